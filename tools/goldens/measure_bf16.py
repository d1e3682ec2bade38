#!/usr/bin/env python3
"""How far transformers in bfloat16 is from itself in float32 on the tiny models.

Prints, for each folder of tests/data/models, the norm-wise relative error of the kept logits over all
prompts, and the share of positions whose best token differs.
"""

import argparse
import pathlib

import numpy as np
import torch
from gemma_variants import VARIANTS, whole_logits
from make_gemma import reload
from safetensors.numpy import load_file


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/models"
    parser.add_argument("--models", type=pathlib.Path, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, variant in VARIANTS.items():
        goldens = load_file(args.models / name / "golden.safetensors")
        model = reload(variant, args.models / name, torch.bfloat16)
        square, total, other, rows = 0.0, 0.0, 0, 0
        for key in [key for key in goldens if key.endswith(".ids")]:
            prompt = key.split(".")[0]
            want = goldens[f"{prompt}.logits"].astype(np.float64)
            got = whole_logits(model, goldens[key])[goldens[f"{prompt}.rows"]]
            square += ((got - want) ** 2).sum()
            total += (want**2).sum()
            other += (got.argmax(-1) != want.argmax(-1)).sum()
            rows += len(want)
        print(f"{name:16} {variant.storage:5} {np.sqrt(square / total):8.1e}  {100 * other / rows:5.1f} %", flush=True)


if __name__ == "__main__":
    main()
