#!/usr/bin/env python3
"""Compares braid with transformers and llama.cpp on one Gemma 3 GGUF file.

  compare.py build/release/braid "$(./fetch_gemma3_270m)"
  compare.py BRAID MODEL.gguf --tokens 600 --new 32 --without llama.cpp

The oracle is transformers in float32 on the weights as the gguf package expands them; it shares no code
with braid. Prints, as Markdown:

  tokens      are the ids equal to llama.cpp's on a page of English and on hard texts?
  logits      perplexity on the page, and the distance of each engine's logits from the oracle's:
              norm-wise relative error before and past the sliding window, mean Kullback-Leibler
              divergence, share of positions with the same best token
  greedy      for each prompt, how many of an engine's tokens are the oracle's choice; at the first that is
              not, the oracle's logit of its own choice less that of the engine's
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from engines import Braid, LlamaCpp, Transformers, default_threads
from texts import HARD_TEXTS, PROMPTS

ROOT = Path(__file__).resolve().parents[2]
ROWS = 64  # positions handled at a time, so that float64 copies stay small


def log_probabilities(logits):
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def relative_error(logits, oracle):
    if not len(oracle):
        return float("nan")
    difference = sum(np.sum((a.astype(np.float64) - b) ** 2) for a, b in zip(logits, oracle))
    return float(np.sqrt(difference / sum(np.sum(b.astype(np.float64) ** 2) for b in oracle)))


def measure(ids, logits, oracle, window):
    """One row of the table: see the module's description."""
    if not np.isfinite(logits).all():
        raise ValueError("there are logits that are not finite")
    nll, divergence, same = 0.0, 0.0, 0
    for start in range(0, len(ids), ROWS):
        end = min(start + ROWS, len(ids))
        log_p, log_q = log_probabilities(oracle[start:end]), log_probabilities(logits[start:end])
        divergence += float((np.exp(log_p) * (log_p - log_q)).sum())
        same += int((log_p.argmax(axis=1) == log_q.argmax(axis=1)).sum())
        targets = np.array(ids[start + 1 : end + 1])
        nll -= float(log_q[np.arange(len(targets)), targets].sum())
    return {
        "perplexity": np.exp(nll / (len(ids) - 1)),
        "before": relative_error(logits[:window], oracle[:window]),
        "past": relative_error(logits[window:], oracle[window:]),
        "divergence": divergence / len(ids),
        "same": same / len(ids),
    }


def compare_tokens(page, braid, other):
    texts = [page, *HARD_TEXTS]
    different = [
        (text, ours, theirs)
        for text, ours, theirs in zip(texts, braid.tokenize(texts), other.tokenize(texts))
        if ours != theirs
    ]
    print(f"## Tokens\n\n{len(texts) - len(different)} of {len(texts)} texts have the same ids.")
    for text, ours, theirs in different:
        print(f"\n- {text[:60]!r}: braid {ours[:40]}, {other.name} {theirs[:40]}")
    print(flush=True)
    return not different


def compare_logits(ids, engines, oracle, window):
    reference = oracle.logits(ids)
    print(f"## Logits\n\n{len(ids)} tokens, window {window}.\n")
    print("| engine | perplexity | error before window | past it | mean KL | same best token |")
    print("|---|---|---|---|---|---|")
    rows = {}
    for engine in [oracle, *engines]:
        logits = reference if engine is oracle else engine.logits(ids)
        row = rows[engine.name] = measure(ids, logits, reference, window)
        print(
            f"| {engine.name} | {row['perplexity']:.4f} | {row['before']:.2e} | {row['past']:.2e} "
            f"| {row['divergence']:.2e} | {row['same']:.2%} |",
            flush=True,
        )
    print()
    return rows


def first_departure(prompt_ids, generated, oracle):
    """(tokens that are the oracle's choice, the oracle's gap at the first that is not)."""
    rows = oracle.logits(prompt_ids + generated[:-1], keep=len(generated))
    for i, (row, token) in enumerate(zip(rows, generated)):
        if row.argmax() != token:
            return i, float(row.max() - row[token])
    return len(generated), None


def compare_greedy(prompts, count, tokenizer, engines, oracle):
    print(f"## Greedy\n\n{count} tokens a prompt: tokens that are {oracle.name}'s choice (gap).\n")
    print("| prompt | " + " | ".join(engine.name for engine in engines) + " |")
    print("|---" * (len(engines) + 1) + "|")
    for text, prompt_ids in zip(prompts, tokenizer.tokenize(prompts)):
        cells, known = [], {}
        for engine in engines:
            generated = engine.greedy(text, count)
            key = tuple(generated)
            if key not in known:
                known[key] = first_departure(prompt_ids, generated, oracle)
            same, gap = known[key]
            cells.append(f"{same}" if gap is None else f"{same} ({gap:.2g})")
        title = f"{text[:32]!r}, {len(prompt_ids)} tokens".replace("|", "\\|")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)
    print()


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("braid", help="the program")
    parser.add_argument("gguf", help="a Gemma 3 file whose attention scale is 1/sqrt(key length)")
    parser.add_argument(
        "--text",
        type=Path,
        default=ROOT / "demo_models" / "heldout" / "heldout.txt",
        help="ordinary English (default: %(default)s)",
    )
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the page")
    parser.add_argument("--new", type=int, default=64, help="greedy tokens a prompt")
    parser.add_argument("--window", type=int, default=512, help="the model's sliding window")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--bound", type=float, default=1e-5, help="largest error of braid f32")
    parser.add_argument("--only", choices=["tokens", "logits", "greedy"], action="append")
    parser.add_argument("--without", choices=["llama.cpp"], help="leave an engine out")
    parser.add_argument("--float64", action="store_true", help="compute the oracle in float64")
    return parser.parse_args()


def main():
    options = parse_arguments()
    parts = options.only or ["tokens", "logits", "greedy"]
    exact, fast = (
        Braid(options.braid, options.gguf, compute, options.threads) for compute in ("f32", "int8")
    )
    engines = [exact, fast]
    if not options.without:
        engines.append(LlamaCpp(options.gguf, options.threads, context=options.tokens + 1024))
    text = options.text.read_text(encoding="utf-8")
    page = text[: 6 * options.tokens]  # English has four to five characters a token
    good = True
    if "tokens" in parts and not options.without:
        good = compare_tokens(page, exact, engines[-1])
    if parts == ["tokens"]:
        return 0 if good else 1
    oracle = Transformers(
        options.gguf, "float64" if options.float64 else "float32", options.threads
    )
    if "logits" in parts:
        ids = exact.tokenize([page])[0][: options.tokens]
        row = compare_logits(ids, engines, oracle, options.window)[exact.name]
        good &= row["before"] <= options.bound and not row["past"] > options.bound
    if "greedy" in parts:
        long_prompt = text[: 5 * options.window].rsplit(" ", 1)[0]
        compare_greedy([*PROMPTS, long_prompt], options.new, exact, engines, oracle)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
