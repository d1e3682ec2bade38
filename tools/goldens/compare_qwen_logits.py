#!/usr/bin/env python3
"""Compares `braid logits` with transformers on fresh random checkpoints of Qwen3-Next and Qwen3.5.

  compare_qwen_logits.py build/release/apps/braid
  compare_qwen_logits.py BRAID --families qwen3_next --seed 7 --repeat 3

Shapes, head ratios, layer kinds, expert counts, file form and weights are drawn from the seed. Every
sequence must lie within --bound (norm-wise, relative) of transformers in float32; the column "reference"
is the difference between the reference's own whole and chunked passes, the part of the error that says
nothing about the engine.
"""

import argparse
import pathlib
import secrets
import sys
import tempfile

import numpy as np
import torch
from compare_logits import run_braid
from qwen_variants import (
    FAMILIES,
    FLOAT32_NAMES,
    STOP_ID,
    Variant,
    cached_logits,
    internals,
    make_model,
    make_mtp,
    randomise,
    relative_error,
    rope,
    sizes,
    write_checkpoint,
)

LENGTHS = [1, 63, 64, 65, 130, 257, 700]
LEAST_ROUTER_GAP = 2e-5  # relative; closer experts may swap by float32 rounding alone


def fresh_variant(family, rng):
    pick = lambda *values: values[int(rng.integers(len(values)))]
    layers, keys, heads_kv = pick(3, 4, 5, 8), pick(1, 2, 3), pick(1, 2)
    config = sizes(
        vocab_size=int(rng.integers(100, 400)),
        hidden_size=pick(32, 40, 64, 96),
        head_dim=pick(16, 32, 48),
        num_hidden_layers=layers,
        num_attention_heads=heads_kv * pick(1, 2, 3),
        num_key_value_heads=heads_kv,
        linear_num_key_heads=keys,
        linear_num_value_heads=keys * pick(1, 2, 3, 4),
        linear_key_head_dim=pick(8, 16, 32),
        linear_value_head_dim=pick(8, 16, 24, 32),
        rope_parameters=rope(pick(1e4, 1e6, 1e7), pick(0.25, 0.5)),
        tie_word_embeddings=pick(True, False),
    )
    form = pick("current", "release" if family == "qwen3_next" else "nested")
    if form == "release":
        config["full_attention_interval"] = pick(2, 3, 4)
    else:
        kinds = [pick("linear_attention", "linear_attention", "full_attention") for _ in range(layers)]
        config["layer_types"] = ["linear_attention", *kinds[1:-1], "full_attention"]
    if family != "qwen3_5":
        experts = pick(4, 8, 16)
        config |= dict(
            num_experts=experts,
            num_experts_per_tok=int(rng.integers(1, experts)),
            moe_intermediate_size=pick(8, 16, 24),
            shared_expert_intermediate_size=pick(16, 32),
        )
    if family != "qwen3_5_moe":
        config["intermediate_size"] = pick(32, 48, 80)
    if family == "qwen3_next":
        config |= dict(
            norm_topk_prob=pick(True, True, False),
            decoder_sparse_step=pick(1, 1, 2),
            mlp_only_layers=pick([], [], [0]),
        )
    return Variant(
        family,
        config,
        config_form=form,
        storage=pick("BF16", "F32", "F16"),
        float32_names=pick((), FLOAT32_NAMES),
        fused_experts=pick(True, False),
        mtp=pick(True, False),
    )


def draw_sequence(model, length, rng):
    for _ in range(100):
        ids = rng.integers(STOP_ID + 1, model.config.vocab_size, length)
        inside = internals(model, ids)
        if inside["router_gap"] > LEAST_ROUTER_GAP:
            break
    return ids, inside


def compare(args, family, seed, folder, extra):
    rng = np.random.default_rng(seed)
    variant = fresh_variant(family, rng)
    model = make_model(variant)
    mtp = make_mtp(model) if variant.mtp else None
    randomise(model, mtp, variant, torch.Generator().manual_seed(int(rng.integers(2**31))))
    write_checkpoint(model, mtp, variant, folder)
    c = variant.config
    kinds = "".join("L" if kind == "linear_attention" else "F" for kind in model.config.layer_types)
    print(
        f"{family}: {kinds}, D {c['hidden_size']}, GDN heads {c['linear_num_key_heads']}/{c['linear_num_value_heads']} x "
        f"{c['linear_key_head_dim']}/{c['linear_value_head_dim']}, experts {c.get('num_experts', 0)}, {variant.config_form}, "
        f"{variant.storage}{', mtp' if variant.mtp else ''}"
    )
    drawn = [draw_sequence(model, length, rng) for length in args.lengths]
    got = run_braid(args, folder, [ids for ids, _ in drawn], [*extra, *(["--hidden-states"] if args.layers else [])])
    ok = True
    for index, (ids, inside) in enumerate(drawn):
        mine, want = got[f"logits.{index}"], inside["logits"]
        assert mine.shape == want.shape, (mine.shape, want.shape)
        error = relative_error(mine, want)
        other = relative_error(cached_logits(model, ids, 1 if len(ids) < 40 else 7 if len(ids) < 200 else 50)[0], want)
        good = bool(error <= args.bound)
        ok &= good
        print(f"{len(ids):8} {error:9.1e} {other:10.1e}  {'' if good else 'TOO FAR'}", flush=True)
        if args.layers and not good:
            for layer, rows in enumerate(inside["hidden"]):
                name = "embedding" if layer == 0 else str(layer - 1)
                print(f"    {name:>9} {relative_error(got[f'hidden.{index}.{name}'], rows):9.1e}  {('E' + kinds)[layer]}")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("braid", type=pathlib.Path, help="the braid binary; further options for it after --")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="NAME")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one each time")
    parser.add_argument("--repeat", type=int, default=1, help="checkpoints a family")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--bound", type=float, default=1e-5)
    parser.add_argument("--layers", action="store_true", help="also print the error after each layer of a bad sequence")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the checkpoints (default: temporary)")
    own, extra = sys.argv[1:], []
    if "--" in own:
        own, extra = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own)
    args.compute = "f32"
    torch.set_num_threads(1)
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    print(f"seed {seed}\n{'ids':>8} {'error':>9} {'reference':>10}")
    bad = []
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(args.repeat):
            for family in args.families:
                folder = (args.keep or pathlib.Path(scratch)) / f"{family}-{seed}-{repeat}" / "model"
                if not compare(args, family, [seed, repeat, list(FAMILIES).index(family)], folder, extra):
                    bad.append(f"{family}-{repeat}")
    print(f"too far: {' '.join(bad)}" if bad else "all within the bound")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
