#!/usr/bin/env python3
"""Compares `braid logits` with transformers on fresh random checkpoints of every variant.

  compare_logits.py build/release/apps/braid
  compare_logits.py BRAID --variants gemma4_moe gemma4_e2b --seed 7 --repeat 3
  compare_logits.py BRAID --compute bf16

Each checkpoint is a folder of config.json and model.safetensors with sizes, window, element type and
weights drawn from the seed. With --compute f32 every sequence must lie within --bound (norm-wise,
relative) of transformers in float32; the column "reference" is the difference between the reference's
own whole and chunked passes, the part of the error that says nothing about the engine. With --compute
bf16 the engine may be no further from float32 than transformers in bfloat16 is, over all sequences
of a variant together.
"""

import argparse
import copy
import dataclasses
import pathlib
import secrets
import subprocess
import sys
import tempfile

import numpy as np
import torch
from gemma_variants import (
    VARIANTS,
    cached_logits,
    internals,
    make_model,
    randomise,
    relative_error,
    whole_logits,
    write_checkpoint,
)
from safetensors.numpy import load_file

LEAST_ROUTER_GAP = 2e-5  # relative; closer experts may swap by float32 rounding alone


def fresh_variant(variant, rng, compute):
    """The variant with sizes of its own."""
    config = dict(variant.config)
    config["hidden_size"] = int(rng.choice(variant.free_sizes))
    config["intermediate_size"] = int(rng.integers(2, 8)) * 16
    config["sliding_window"] = int(rng.choice([7, 8, 16, 21, 32]))
    config["vocab_size"] = int(rng.integers(260, 521))
    if variant.family == "gemma4":
        config["vocab_size_per_layer_input"] = config["vocab_size"]
        if config["hidden_size_per_layer_input"]:
            config["hidden_size_per_layer_input"] = int(rng.choice([8, 16, 24, 32]))
        if config.get("enable_moe_block"):
            config["num_experts"] = int(rng.choice([5, 8, 16]))
            config["top_k_experts"] = int(rng.integers(1, 5))
            config["moe_intermediate_size"] = int(rng.choice([16, 24, 32]))
    # bfloat16 arithmetic is compared on weights that bfloat16 holds exactly.
    storage = "BF16" if compute == "bf16" else str(rng.choice(["F32", "F16", "BF16"]))
    return dataclasses.replace(variant, config=config, storage=storage, shards=1)


def draw_sequences(model, lengths, rng):
    sequences = []
    for length in lengths:
        for _ in range(100):
            ids = rng.integers(0, model.config.vocab_size, length)
            ids[0] = 2
            if internals(model, ids).get("router_gap", 1.0) > LEAST_ROUTER_GAP:
                break
        sequences.append(ids)
    return sequences


def default_lengths(window):
    return [1, 2, window - 1, window, window + 1, 2 * window + 3, 63, 64, 65, 130, 700]


def run_braid(args, folder, sequences, extra):
    ids_file, output = folder.parent / "ids.txt", folder.parent / "logits.safetensors"
    ids_file.write_text("".join(" ".join(map(str, ids)) + "\n" for ids in sequences))
    output.unlink(missing_ok=True)
    command = [args.braid, "logits", folder, "--ids-file", ids_file, "--output", output, "--compute", args.compute]
    done = subprocess.run([*map(str, command), *extra], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: exit {done.returncode}\n{' '.join(map(str, command))}\n{done.stderr.strip()}")
    return load_file(output)


def locate(args, folder, model, ids, extra):
    """Prints the error after each layer of one sequence."""
    tensors = run_braid(args, folder, [ids], [*extra, "--hidden-states"])
    want = internals(model, ids)["hidden"]
    for layer in range(-1, len(want) - 1):
        name = "embedding" if layer < 0 else str(layer)
        kind = "" if layer < 0 else model.config.layer_types[layer]
        print(f"    {name:>9} {relative_error(tensors[f'hidden.0.{name}'], want[layer + 1]):9.1e}  {kind}")


def compare(args, name, seed, folder, extra):
    rng = np.random.default_rng(seed)
    variant = fresh_variant(VARIANTS[name], rng, args.compute)
    model = randomise(make_model(variant), variant, torch.Generator().manual_seed(int(rng.integers(2**31))))
    write_checkpoint(model, variant, folder)
    window = variant.config["sliding_window"]
    sequences = draw_sequences(model, args.lengths or default_lengths(window), rng)
    got = run_braid(args, folder, sequences, extra)
    half = copy.deepcopy(model).to(torch.bfloat16) if args.compute == "bf16" else None
    if half is not None:
        # As loading does: scales in bfloat16, frequencies in float32.
        for (_, low), (buffer, high) in zip(half.named_buffers(), model.named_buffers()):
            if buffer.endswith("inv_freq"):
                low.data = high.data.clone()

    ok = True
    size = f"D {variant.config['hidden_size']}, W {window}, {variant.storage}"
    squares = np.zeros(3)
    for index, ids in enumerate(sequences):
        mine, want = got[f"logits.{index}"], whole_logits(model, ids)
        assert mine.shape == want.shape, (mine.shape, want.shape)
        error = relative_error(mine, want)
        if half is None:
            chunk = 1 if len(ids) < 40 else 7 if len(ids) < 200 else 32
            other, bound = relative_error(cached_logits(model, ids, chunk), want), args.bound
        else:
            low = whole_logits(half, ids)
            other, bound = relative_error(low, want), np.inf
            squares += [((mine - want) ** 2.0).sum(), ((low - want) ** 2.0).sum(), (want**2.0).sum()]
        good = error <= bound
        ok &= good
        print(f"{name:16} {size:18} {len(ids):5} {error:9.1e} {other:10.1e}  {'' if good else 'TOO FAR'}", flush=True)
        if args.layers and (not good or len(ids) == window + 1):
            locate(args, folder, model, ids, extra)
    if half is not None:
        error, other = np.sqrt(squares[:2] / squares[2])
        good = error <= other
        ok &= bool(good)
        print(f"{name:16} {size:18} {'all':>5} {error:9.1e} {other:10.1e}  {'' if good else 'TOO FAR'}", flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("braid", type=pathlib.Path, help="the braid binary; further options for it after --")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="NAME")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one each time")
    parser.add_argument("--repeat", type=int, default=1, help="checkpoints a variant")
    parser.add_argument("--lengths", nargs="+", type=int, help="default: around the window, 63 to 65, 130, 700")
    parser.add_argument("--compute", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--bound", type=float, default=1e-5)
    parser.add_argument("--layers", action="store_true", help="also print the error after each layer")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the checkpoints (default: temporary)")
    own, extra = sys.argv[1:], []
    if "--" in own:
        own, extra = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own)
    torch.set_num_threads(1)
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    print(f"seed {seed}, compute {args.compute}")
    print(f"{'variant':16} {'checkpoint':18} {'ids':>5} {'error':>9} {'reference' if args.compute == 'f32' else 'HF bf16':>10}")
    bad = []
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(args.repeat):
            for name in args.variants:
                folder = (args.keep or pathlib.Path(scratch)) / f"{name}-{seed}-{repeat}" / "model"
                number = list(VARIANTS).index(name)
                if not compare(args, name, [seed, repeat, number], folder, extra):
                    bad.append(f"{name}-{repeat}")
    print(f"too far: {' '.join(bad)}" if bad else "all within the bound")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
