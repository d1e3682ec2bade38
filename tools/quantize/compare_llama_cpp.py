#!/usr/bin/env python3
"""Exports models with `braid quantize` and compares what llama.cpp computes from the files with what braid does.

For each model and scheme: are the token ids of a text the same, how far are the logits of its first tokens from one another
(norm-wise, relative to braid's with --compute f32), how far the two distributions (KL), how often do they agree on the likeliest
token. llama.cpp rounds the inputs of products with quantised matrices to 8 bits, with those of bfloat16 to bfloat16; so braid with
--compute int8 or bf16 is shown beside it: what llama.cpp may differ by. Exit code 1 if a file does not load, if ids differ, or if llama.cpp is further from braid than
--bound (default 3) times that.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "real_models"))
from engines import Braid, LlamaCpp, default_threads  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "demo_models/heldout/heldout.txt"
LEAST_ERROR = 1e-3  # other orders of sums, and GELU, which llama.cpp takes from a table in float16


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def distance(logits, reference):
    error = np.linalg.norm(logits.astype(np.float64) - reference) / np.linalg.norm(reference.astype(np.float64))
    p, q = log_softmax(reference), log_softmax(logits)
    return error, float((np.exp(p) * (p - q)).sum(-1).mean()), float((p.argmax(-1) == q.argmax(-1)).mean())


def compare(args, model, scheme, folder):
    name = pathlib.Path(model.removeprefix("demo:")).name
    path = folder / f"{name}-{scheme}.gguf"
    subprocess.run([args.braid, "quantize", model, "-o", path, "--scheme", scheme, "-t", str(args.threads)],
                   stdout=subprocess.DEVNULL, check=True)
    try:
        other = LlamaCpp(str(path), args.threads, context=args.tokens)
    except RuntimeError as error:
        print(f"| {name} | {scheme} | does not load: {error} |")
        return False
    exact = Braid(args.braid, path, "f32", args.threads)
    text = TEXT.read_text(encoding="utf-8")[: 8 * args.tokens]
    ids = exact.tokenize([text])[0]
    same_ids = other.tokenize([text])[0] == ids
    ids = ids[: args.tokens]
    reference = exact.logits(ids)
    error, kl, top = distance(other.logits(ids), reference)
    inputs = {"bf16": "bf16", "f16": "bf16", "f32": "f32"}.get(scheme, "int8")
    rounded = distance(Braid(args.braid, path, inputs, args.threads).logits(ids), reference)
    print(f"| {name} | {scheme} | {'same' if same_ids else 'DIFFERENT'} | {error:.1e} | {kl:.1e} | {100 * top:.1f} % "
          f"| {rounded[0]:.1e} | {rounded[1]:.1e} | {100 * rounded[2]:.1f} % |", flush=True)
    path.unlink()
    return same_ids and error <= max(args.bound * rounded[0], LEAST_ERROR)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("braid", help="the program")
    parser.add_argument("models", nargs="+", help="as braid quantize takes them")
    parser.add_argument("--schemes", nargs="+", default=["f32", "q8_0", "q4_0", "q4_k", "q6_k"])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--bound", type=float, default=3)
    args = parser.parse_args()
    print("| model | scheme | ids | llama.cpp: error | KL | same top | braid's rounding: error | KL | same top |\n|" + "---|" * 9, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        good = [compare(args, model, scheme, pathlib.Path(folder)) for model in args.models for scheme in args.schemes]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
