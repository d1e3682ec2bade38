#!/usr/bin/env python3
"""Trains one demo model on token streams made by encode_corpus.py and exports it.

  train.py gemma4 --cache .cache/demo --out OUT --seconds 400

The learning rate follows the wall clock: warm-up, a plateau, then a straight line to zero.
Matrices of the blocks are stepped by Muon (orthogonalised momentum), the rest by AdamW.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from export import export
from model import CONFIGS, Gemma4

AUX = 0.01  # weight of the expert balance loss


def newton_schulz(g):
    """Batched orthogonalisation of [batch, rows, cols] by the quintic iteration of Muon."""
    x = g.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        b = -4.7750 * a + 2.0315 * (a @ a)
        x = 3.4445 * x + b @ x
    return (x.transpose(-1, -2) if tall else x).to(g.dtype)


class Muon:
    """Momentum, orthogonalised, scaled to the RMS of an Adam step; parameters of a shape go together."""

    def __init__(self, params, weight_decay, orthogonalise):
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.momentum = {p: torch.zeros_like(p) for ps in self.groups.values() for p in ps}
        self.weight_decay, self.orthogonalise = weight_decay, orthogonalise

    @torch.no_grad()
    def step(self, lr, beta=0.95):
        for (rows, cols), params in self.groups.items():
            grads, moments = [p.grad for p in params], [self.momentum[p] for p in params]
            torch._foreach_lerp_(moments, grads, 1 - beta)
            looked = torch._foreach_lerp(grads, moments, beta)
            stacked = torch.cat([u.reshape(-1, rows, cols) for u in looked])
            update = self.orthogonalise(stacked).split([u.numel() // (rows * cols) for u in looked])
            torch._foreach_mul_(params, 1 - lr * self.weight_decay)
            torch._foreach_add_(params, [u.reshape(p.shape) for u, p in zip(update, params)],
                                alpha=-lr * 0.2 * math.sqrt(max(rows, cols)))


def loss_fn(model, ids):
    """Mean next-token NLL [nats], balance loss, expert load [layers, experts]."""
    hidden, balance, load = model(ids[:, :-1])
    logits = model.logits(hidden)
    nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    return nll, balance, load


class Windows:
    """Rows of length+1 tokens: a random shift and order each epoch."""

    def __init__(self, tokens, length, batch, seed):
        self.tokens, self.length, self.batch = tokens, length, batch
        self.rng = torch.Generator().manual_seed(seed)
        self.order, self.at, self.epochs = torch.empty(0, dtype=torch.long), 0, 0

    def next(self):
        if self.at + self.batch > len(self.order):
            shift = int(torch.randint(self.length, (1,), generator=self.rng))
            count = (len(self.tokens) - 1 - shift) // self.length
            self.order = torch.randperm(count, generator=self.rng) * self.length + shift
            self.at, self.epochs = 0, self.epochs + 1
        starts = self.order[self.at:self.at + self.batch].to(self.tokens.device)
        self.at += self.batch
        return self.tokens[starts[:, None] + torch.arange(self.length + 1, device=self.tokens.device)].long()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps instead")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def stream(name):
        data = np.fromfile(args.cache / f"{name}.u16", dtype="<u2").astype(np.int16)
        return torch.from_numpy(data).to(device)

    tokens, heldout = stream("train"), stream("heldout")
    windows = Windows(tokens, args.length, args.batch, 1)
    model = Gemma4(CONFIGS[args.model]).to(device)
    model.stream_dtype = torch.bfloat16 if device == "cuda" else torch.float32
    total = sum(p.numel() for p in model.parameters())
    matrices = [p for n, p in model.named_parameters() if p.dim() >= 2 and not n.startswith("embed") and "router" not in n]
    chosen = {id(p) for p in matrices}
    rest = [(n, p) for n, p in model.named_parameters() if id(p) not in chosen]
    slow = [p for n, p in rest if "layer_scalar" in n or "per_expert_scale" in n]
    fast = [p for n, p in rest if not ("layer_scalar" in n or "per_expert_scale" in n)]
    wrap = (lambda f: f) if args.no_compile else torch.compile
    muon = Muon(matrices, 0.1, wrap(newton_schulz))
    adam = torch.optim.AdamW([{"params": fast, "scale": 0.6}, {"params": slow, "scale": 0.2}],
                             betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda")
    print(f"{args.model}: {total} parameters, {2 * total / 1e6:.2f} MB in bf16, {len(tokens)} training tokens", flush=True)
    compiled = wrap(loss_fn)

    def run(ids):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            return compiled(model, ids)

    @torch.no_grad()
    def validate():
        count = min((16 if device == "cuda" else 1) * args.batch, (len(heldout) - 1) // args.length)
        rows = torch.arange(count, device=device)[:, None] * args.length + torch.arange(args.length + 1, device=device)
        rows = rows[:count // args.batch * args.batch] if count >= args.batch else rows
        sums = [run(heldout[r].long())[0] for r in rows.split(args.batch)]
        return float(torch.stack(sums).mean())

    # Compile before the clock starts.
    run(windows.next())[0].backward()
    model.zero_grad(set_to_none=True)
    validate()
    start, step, log = time.time(), 0, []
    recent, recent_load = [], None
    while True:
        elapsed = time.time() - start
        done = step / args.steps if args.steps else elapsed / args.seconds
        if done >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / 100) * min(1.0, (1 - done) / 0.7)
        nll, balance, load = run(windows.next())
        (nll + AUX * balance).backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in rest], 1.0)
        for group in adam.param_groups:
            group["lr"] = lr * group["scale"]
        muon.step(lr)
        adam.step()
        model.zero_grad(set_to_none=True)
        recent.append(nll.detach())
        recent_load = load
        step += 1
        if step % 25 == 0:
            torch.cuda.synchronize() if device == "cuda" else None  # keep the clock honest
        if step % 250 == 0:
            train_nll = float(torch.stack(recent).mean())
            recent.clear()
            if not math.isfinite(train_nll):
                raise SystemExit("training diverged")
            rate = step * args.batch * args.length / (time.time() - start)
            spread = f" expert share {float(recent_load.min()):.3f}..{float(recent_load.max()):.3f}" if load is not None else ""
            print(f"{args.model} step {step} t {elapsed:.0f}s lr {lr:.5f} train {train_nll:.4f} "
                  f"heldout {validate():.4f} epoch {windows.epochs} {rate / 1e3:.0f}k tok/s{spread}", flush=True)
    seconds = time.time() - start
    facts = {"parameters": total, "steps": step, "tokens_seen": step * args.batch * args.length,
             "batch_tokens": args.batch * args.length, "sequence_length": args.length, "seconds": round(seconds, 1),
             "epochs": round(step * args.batch * args.length / len(tokens), 2),
             "training_tokens": len(tokens), "heldout_nll_bf16_trainer": round(validate(), 4),
             "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
             "peak_learning_rate": args.lr, "balance_loss": AUX}
    print(facts, flush=True)
    export(model, args.out)
    (args.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
