#!/usr/bin/env python3
"""Trains a Gemma 4 assistant (MTP drafter) for a frozen demo model, exports and measures it.

  assistant_train.py --target demo_models/gemma4 --cache .cache/demo --out demo_models/gemma4-assistant --seconds 340

Reads train.u16 (encode_corpus.py; --tokens takes its beginning only) and the held-out text. Half of
every batch is the corpus, half is text that the target wrote itself at several temperatures. Three
drafts of a round are trained in a chain, on the tokens of the text, against the target's
distribution and its first choice. --seconds is the budget for everything, start to end.

Matrices are stepped by Muon, the rest by AdamW; the learning rate follows the wall clock.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from assistant_model import (STEPS, Assistant, assistant_config, embed, export_assistant, load_assistant, load_target,
                             read_target, run_layer, write_on)
from train import Muon, Windows, newton_schulz

BOS = 2
STEP_WEIGHTS = [1.0, 0.7, 0.5]
FIRST_CHOICE = 0.5  # weight of the target's first choice, the rest is on its whole distribution
TEMPERATURES = [0.0, 0.6, 0.8, 1.0]
MEASURE_AND_EXPORT = 30  # seconds
METHOD = ("float32 on the bf16 weights, tools/demo_models/assistant_train.py; row r: the target has verified x_0..x_r, "
          "x_{r+1} is its newest token, drafts 1 to 3 follow from the drafter's own first choices at position r+1; "
          "draft k is right when it is the target's first choice at row r+k of the text; drafts 2 and 3 are tried "
          "where the drafts before are right and are the text")


def draft_loss(y, table, teacher, k):
    """Cross-entropy of draft k, k = 1.., against the target [batch, length, vocabulary]: the mean, and
    the share of first choices that agree."""
    rows = teacher.shape[1] - STEPS
    q = torch.log_softmax(F.linear(y[:, :rows], table).float(), -1)
    teacher = teacher[:, k:rows + k]
    best = teacher.argmax(-1)
    soft = -(torch.softmax(teacher, -1) * q).sum(-1)
    hard = -q.gather(-1, best[..., None])[..., 0]
    return (FIRST_CHOICE * hard + (1 - FIRST_CHOICE) * soft).mean(), (q.argmax(-1) == best).float().mean()


@torch.no_grad()
def drafts_of(assistant, target, rows):
    """Logits of the target [batch, length, vocabulary] and the drafts 1 .. STEPS [batch, length] of every row."""
    hidden, seen = read_target(target, rows)
    table, token, h, drafts = assistant.model.embed_tokens.weight, rows.roll(-1, 1), hidden, []
    for _ in range(STEPS):
        y, h = assistant.draft(embed(target, token), h, seen)
        token = F.linear(y, table).argmax(-1)
        drafts.append(token)
    return target.logits(hidden), drafts


@torch.no_grad()
def measure(assistant, target, rows, start=0, temperature=0.0, batch=16):
    """What METHOD says over the rows >= start; at a temperature the chance of a draft to be drawn, and
    drafts are tried where those before were drawn. Then the mean length of greedy rounds of up to
    1 .. STEPS drafts, tokens a pass of the target."""
    count = rows.shape[1] - 1 - STEPS
    tried, right, runs = [0] * STEPS, [0.0] * STEPS, []
    for part in rows.split(batch):
        logits, drafts = drafts_of(assistant, target, part)
        alive = torch.ones_like(part[:, start:count], dtype=torch.bool)
        run = torch.zeros_like(part[:, start:count])
        for k, draft in enumerate(drafts, 1):
            draft = draft[:, start:count, None]
            at, text = logits[:, start + k:count + k], part[:, start + k + 1:count + k + 1, None]
            good = (at.argmax(-1, keepdim=True) == draft)[..., 0]
            chance = good.float() if temperature == 0 else \
                torch.softmax(at / temperature, -1).gather(-1, draft)[..., 0]
            tried[k - 1] += int(alive.sum())
            right[k - 1] += float((chance * alive).sum())
            alive = alive & (draft == text)[..., 0] & (good | (temperature > 0))
            run += alive
        runs += run.tolist()
    result = {"drafts": [{"tried": t, "accepted": round(a, 1) if temperature else int(a), "rate": round(a / max(t, 1), 4)}
                         for t, a in zip(tried, right)]}
    if temperature == 0 and start:
        result["tokens_per_pass"] = [round(mean_round(runs, n), 3) for n in range(1, STEPS + 1)]
    return result


def mean_round(runs, drafts):
    tokens = rounds = 0
    for run in runs:
        at = 0
        while at < len(run):
            at += min(run[at], drafts) + 1
            rounds += 1
        tokens += at
    return tokens / rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path("demo_models/gemma4"))
    parser.add_argument("--heldout", type=Path, default=Path("demo_models/heldout/heldout.txt"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--tokens", type=int, default=12_000_000, help="of train.u16 that are read")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=340)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps instead")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--written", type=int, default=4, help="rounds of text written by the target")
    parser.add_argument("--written-rows", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--mlp", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--chunks", type=int, default=64, help="of 512 held-out tokens, to measure on")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    begin = time.time()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = torch.bfloat16 if device == "cuda" else torch.float32
    tokens = np.fromfile(args.cache / "train.u16", dtype="<u2", count=args.tokens).astype(np.int16)
    tokens = torch.from_numpy(tokens).to(device)
    target = load_target(args.target, device)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    ids = tokenizer.encode(args.heldout.read_text(encoding="utf-8"), add_special_tokens=False).ids
    count = min(args.chunks, len(ids) // 511)
    chunks = torch.tensor([[BOS] + ids[i * 511:i * 511 + 511] for i in range(count)], device=device)

    # Text of the target's own: <bos>, 31 tokens of the corpus, then what it makes of them.
    rng = torch.Generator(device).manual_seed(1)
    written = []
    for _ in range(args.written):
        starts = torch.randint(len(tokens) - 31, (args.written_rows,), generator=rng, device=device)
        prompt = tokens[starts[:, None] + torch.arange(31, device=device)].long()
        prompt = torch.cat((torch.full_like(prompt[:, :1], BOS), prompt), 1)
        warm = torch.tensor(TEMPERATURES, device=device).repeat(args.written_rows // len(TEMPERATURES) + 1)
        written.append(write_on(target, prompt, args.length, warm[:args.written_rows], rng, half).short().flatten())
    written = torch.cat(written)
    print(f"{len(tokens)} tokens of the corpus, {len(written)} written by the target, {time.time() - begin:.0f} s", flush=True)

    a = Assistant(assistant_config(target.c, args.hidden, args.mlp, args.layers), target.c.hidden_size).to(device)
    a.init_weights(target)
    target.stream_dtype = half
    total = sum(p.numel() for p in a.parameters())
    windows = [Windows(source, args.length + STEPS - 1, args.batch // 2, seed) for seed, source in enumerate((tokens, written), 2)]
    matrices = [p for n, p in a.named_parameters() if p.dim() >= 2 and "embed" not in n]
    chosen = {id(p) for p in matrices}
    rest = [(n, p) for n, p in a.named_parameters() if id(p) not in chosen]
    muon = Muon(matrices, 0.1, newton_schulz)
    adam = torch.optim.AdamW([{"params": [p for n, p in rest if "layer_scalar" not in n], "scale": 0.6},
                              {"params": [p for n, p in rest if "layer_scalar" in n], "scale": 0.2}],
                             betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda")
    wrap = (lambda f: f) if args.no_compile else torch.compile
    a.run_layer, loss_of = wrap(run_layer), wrap(draft_loss)

    def run(batch):
        """Weighted loss, and the agreement of each draft."""
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            hidden, seen = read_target(target, batch[:, :args.length], a.run_layer)
            with torch.no_grad():
                teacher = target.logits(hidden)
            loss, agreed, h = 0.0, [], hidden
            for k, weight in enumerate(STEP_WEIGHTS, 1):
                y, h = a.draft(embed(target, batch[:, k:k + args.length]), h, seen)
                one, same = loss_of(y, a.model.embed_tokens.weight, teacher, k)
                loss = loss + weight * one
                agreed.append(same)
        return loss / sum(STEP_WEIGHTS), torch.stack(agreed)

    run(torch.cat([w.next() for w in windows]))[0].backward()  # compile before the clock starts
    a.zero_grad(set_to_none=True)
    print(f"{total} parameters, {2 * total / 1e6:.2f} MB in bf16; ready after {time.time() - begin:.0f} s", flush=True)
    start, step, recent = time.time(), 0, []
    budget = max(1.0, args.seconds - MEASURE_AND_EXPORT - (start - begin))
    while True:
        elapsed = time.time() - start
        done = step / args.steps if args.steps else elapsed / budget
        if done >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / 100) * min(1.0, (1 - done) / 0.7)
        loss, agreed = run(torch.cat([w.next() for w in windows]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in rest], 1.0)
        for group in adam.param_groups:
            group["lr"] = lr * group["scale"]
        muon.step(lr)
        adam.step()
        a.zero_grad(set_to_none=True)
        recent.append(torch.cat((loss.detach()[None], agreed)))
        step += 1
        if step % 25 == 0 and device == "cuda":
            torch.cuda.synchronize()  # keep the clock honest
        if step % 100 == 0:
            mean = torch.stack(recent).mean(0).tolist()
            recent.clear()
            if not math.isfinite(mean[0]):
                raise SystemExit("training diverged")
            print(f"step {step} t {elapsed:.0f}s lr {lr:.5f} loss {mean[0]:.4f} agreed {[round(x, 4) for x in mean[1:]]} "
                  f"epochs {[w.epochs for w in windows]} {step * args.batch * args.length / elapsed / 1e3:.0f}k tok/s", flush=True)
    seconds = time.time() - start
    export_assistant(a, args.out)

    # Measured on what the file holds.
    torch.set_float32_matmul_precision("highest")
    target.stream_dtype = torch.float32
    a = load_assistant(args.out, target, device)
    warm = torch.zeros(count, device=device)
    greedy = write_on(target, chunks[:, :64], 256, warm, rng)
    drawn = write_on(target, chunks[:, :64], 512, warm + 0.9, rng)
    seen_tokens = step * args.batch * args.length
    facts = {
        "parameters": total, "steps": step, "tokens_seen": seen_tokens, "batch_tokens": args.batch * args.length,
        "sequence_length": args.length, "seconds": round(seconds, 1), "corpus_tokens": len(tokens),
        "tokens_written_by_target": len(written), "temperatures": TEMPERATURES, "step_weights": STEP_WEIGHTS,
        "first_choice_weight": FIRST_CHOICE, "peak_learning_rate": args.lr,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "method": METHOD,
        "on_heldout_text": {"tokens": chunks.numel(), **measure(a, target, chunks)},
        "on_greedy_text": {"prompt_tokens": 64, "new_tokens": 192, "texts": count, **measure(a, target, greedy, 62)},
        "on_text_drawn_at_0.9": {"prompt_tokens": 64, "new_tokens": 448, "texts": count, **measure(a, target, drawn, 62, 0.9)},
    }
    (args.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts), f"\ndone after {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
