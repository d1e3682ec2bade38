#!/usr/bin/env python3
"""Trains the demo model qwen3next on token streams made by encode_corpus.py and exports it.

  qwen_train.py --cache .cache/demo --out OUT --seconds 360

The MTP head is trained with the rest: its loss, for the token after next, has weight 0.3 and its
gradient reaches the whole model. Learning rate and optimisers as in train.py.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from qwen_export import export
from qwen_model import CONFIGS, Qwen3Next, run_layer
from train import Muon, Windows, newton_schulz

BALANCE, MTP = 0.1, 0.3  # weights of the expert balance and draft losses
BY_ADAM = ("embed_tokens.weight", "gate.weight", "conv1d.weight", "in_proj_ba.weight")


def token_loss(hidden, table, targets):
    """Mean NLL [nats] of a tied head."""
    return F.cross_entropy(F.linear(hidden, table).flatten(0, -2).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=CONFIGS, default="qwen3next")
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps instead")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--log-every", type=int, default=250)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def stream(name):
        data = np.fromfile(args.cache / f"{name}.u16", dtype="<u2").astype(np.int16)
        return torch.from_numpy(data).to(device)

    tokens, heldout = stream("train"), stream("heldout")
    windows = Windows(tokens, args.length + 1, args.batch, 1)  # rows of length + 2
    model = Qwen3Next(CONFIGS[args.model]).to(device)
    model.stream_dtype = torch.bfloat16 if device == "cuda" else torch.float32
    wrap = (lambda f: f) if args.no_compile else torch.compile
    model.run_layer, loss_of = wrap(run_layer), wrap(token_loss)  # two graphs serve all layers
    total = sum(p.numel() for p in model.parameters())
    matrices = [p for n, p in model.named_parameters() if p.dim() >= 2 and not n.endswith(BY_ADAM)]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    muon = Muon(matrices, 0.1, newton_schulz)
    adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda")
    print(f"{total} parameters, {2 * total / 1e6:.2f} MB in bf16, {len(tokens)} training tokens", flush=True)

    def run(ids):
        """NLL, draft NLL, mean balance loss, loads [layers, experts]."""
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            hidden, balances, loads = model(ids[:, :-2])
            nll = loss_of(hidden, model.embed_tokens.weight, ids[:, 1:-1])
            drafted, balance, load = model.draft(hidden, ids[:, 1:-1])
            draft_nll = loss_of(drafted, model.embed_tokens.weight, ids[:, 2:])
        return nll, draft_nll, torch.stack(balances + [balance]).mean(), torch.stack(loads + [load])

    def validate():  # with gradients on, so that the training graphs serve
        rows = torch.arange((len(heldout) - 2) // args.length, device=device)[:, None] * args.length
        rows = (rows + torch.arange(args.length + 2, device=device))[:16 * args.batch]
        rows = rows[:len(rows) // args.batch * args.batch].split(args.batch)
        losses = torch.stack([torch.stack(run(heldout[r].long())[:2]).detach() for r in rows]).mean(0)
        return tuple(losses.tolist())

    # Compile before the clock starts.
    begin = time.time()
    nll, draft_nll, _, _ = run(windows.next())
    (nll + draft_nll).backward()
    model.zero_grad(set_to_none=True)
    validate()
    print(f"compiled in {time.time() - begin:.0f} s", flush=True)
    start, step, recent = time.time(), 0, []
    while True:
        elapsed = time.time() - start
        done = step / args.steps if args.steps else elapsed / args.seconds
        if done >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / 100) * min(1.0, (1 - done) / 0.7)
        nll, draft_nll, balance, load = run(windows.next())
        (nll + MTP * draft_nll + BALANCE * balance).backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        adam.param_groups[0]["lr"] = 0.6 * lr
        muon.step(lr)
        adam.step()
        model.zero_grad(set_to_none=True)
        recent.append(torch.stack((nll.detach(), draft_nll.detach())))
        step += 1
        if step % 25 == 0 and device == "cuda":
            torch.cuda.synchronize()  # keep the clock honest
        if step % args.log_every == 0:
            train_nll, train_draft = torch.stack(recent).mean(0).tolist()
            recent.clear()
            if not math.isfinite(train_nll + train_draft):
                raise SystemExit("training diverged")
            rate = step * args.batch * args.length / (time.time() - start)
            held, held_draft = validate()
            print(f"step {step} t {elapsed:.0f}s lr {lr:.5f} train {train_nll:.4f} draft {train_draft:.4f} "
                  f"heldout {held:.4f} draft {held_draft:.4f} epoch {windows.epochs} {rate / 1e3:.0f}k tok/s "
                  f"expert share {float(load.min()):.4f}..{float(load.max()):.4f}", flush=True)
    seconds = time.time() - start
    held, held_draft = validate()
    seen = step * args.batch * args.length
    facts = {"parameters": total, "mtp_parameters": sum(p.numel() for p in model.mtp.parameters()), "steps": step,
             "tokens_seen": seen, "batch_tokens": args.batch * args.length, "sequence_length": args.length,
             "seconds": round(seconds, 1), "epochs": round(seen / len(tokens), 2), "training_tokens": len(tokens),
             "heldout_nll_bf16_trainer": round(held, 4), "heldout_draft_nll_bf16_trainer": round(held_draft, 4),
             "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
             "peak_learning_rate": args.lr, "balance_loss": BALANCE, "mtp_loss": MTP}
    print(facts, flush=True)
    export(model, args.out)
    (args.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
