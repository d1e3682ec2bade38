#!/usr/bin/env python3
"""Writes goldens for the GGUF block formats: raw blocks and the values they stand for.

For each type T the output holds
  T.blocks   u8  [n, bytes]   random and extreme blocks
  T.values   f32 [n, block]   their values by the gguf package
and, where that package can also quantise,
  T.inputs     f32 [m, block]
  T.quantised  u8  [m, bytes]

Every value of these formats is a product of small integers and a float16 scale, at most one
subtraction away from exact, so float32 gives the same bits in any order of evaluation. The
script asserts this with float64, hence a reader must reproduce T.values exactly (==).
"""

import argparse
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

# Byte offsets of the float16 fields of a block.
SCALE_FIELDS = {
    Type.Q8_0: [0],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.IQ4_NL: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
}
QUANTISERS = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]

# zero, minus zero, smallest and largest subnormal, smallest normal, one, largest
EXTREME_SCALES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF]


def put_scale(block, offset, half_bits):
    block[offset] = half_bits & 0xFF
    block[offset + 1] = half_bits >> 8


def random_half(rng):
    scale = np.float16(rng.normal() * 10.0 ** rng.uniform(-4, 1))
    return int(scale.view(np.uint16))


def make_blocks(rng, kind, random_blocks):
    """Blocks with random quants and ordinary scales, then every extreme scale."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = []
    for _ in range(random_blocks):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        for offset in SCALE_FIELDS[kind]:
            put_scale(block, offset, random_half(rng))
        blocks.append(block)
    for index, half_bits in enumerate(EXTREME_SCALES):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        for field, offset in enumerate(SCALE_FIELDS[kind]):
            # The second field takes the extremes in another order.
            shifted = EXTREME_SCALES[(index + 3 * field) % len(EXTREME_SCALES)]
            put_scale(block, offset, shifted if field else half_bits)
        blocks.append(block)
    for filler in (0x00, 0xFF, 0x80, 0x7F):
        block = np.full(size, filler, dtype=np.uint8)
        for offset in SCALE_FIELDS[kind]:
            put_scale(block, offset, random_half(rng))
        blocks.append(block)
    return np.stack(blocks)


def dequantise_in_double(kind, blocks):
    """The same formulas in float64, by making the package's float32 type a float64."""
    from unittest import mock

    shim = type("np64", (), {"__getattr__": lambda self, name: getattr(np, name)})()
    shim.float32 = np.float64
    decoder = gguf.quants._type_traits[kind]
    with mock.patch.object(gguf.quants, "np", shim):
        return decoder.dequantize_blocks(blocks)


def make_inputs(rng, block, rows):
    values = rng.normal(size=(rows, block)).astype(np.float32)
    values *= np.float32(10.0) ** rng.uniform(-3, 2, size=(rows, 1)).astype(np.float32)
    values[0] = 0.0
    values[1, 1:] = 0.0  # a single value
    values[2] = np.abs(values[2])
    values[3] = -np.abs(values[3])
    values[4] = values[4, 0]  # constant row: Q4_1 and Q5_1 get a zero scale
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--output", type=pathlib.Path, default=root / "tests/data/quants/quants.safetensors")
    parser.add_argument("--seed", type=int, default=20260)
    args = parser.parse_args()

    tensors = {}
    for number, kind in enumerate(SCALE_FIELDS):
        rng = np.random.default_rng([args.seed, number])
        block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = make_blocks(rng, kind, 8 if block == 256 else 26)
        values = gguf.quants.dequantize(blocks, kind)
        exact = dequantise_in_double(kind, blocks)
        assert exact.dtype == np.float64 and values.dtype == np.float32
        assert np.isfinite(values).all()
        assert np.array_equal(values, exact.astype(np.float32)), kind
        assert values.shape == (len(blocks), block) and blocks.shape[1] == size
        tensors[f"{kind.name}.blocks"] = blocks
        tensors[f"{kind.name}.values"] = values
        if kind in QUANTISERS:
            inputs = make_inputs(rng, block, 12)
            tensors[f"{kind.name}.inputs"] = inputs
            tensors[f"{kind.name}.quantised"] = gguf.quants.quantize(inputs, kind)
        print(f"{kind.name:8} {len(blocks):3} blocks of {size:3} bytes, {block:3} values")

    args.output.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.output, metadata={"generator": "tools/goldens/make_quants.py"})
    print(f"{args.output}: {args.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
