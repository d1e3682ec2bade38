#!/usr/bin/env python3
"""Compares a GGUF file that `braid quantize` wrote, as the gguf package reads it, with how braid reads it.

  verify_gguf.py FILE.gguf --dump build/release/tests/dump_weights

Every tensor is expanded by the gguf package and must equal braid's float32 values exactly. The metadata must be
what a loader of llama.cpp's files needs: architecture, sizes, tokens with one type each. Exit code 1 on any
difference.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from safetensors import safe_open


def field(reader, key):
    found = reader.get_field(key)
    return None if found is None else found.contents()


def check_metadata(reader):
    faults = []
    architecture = field(reader, "general.architecture")
    if architecture not in gguf.MODEL_ARCH_NAMES.values():
        faults.append(f"general.architecture: {architecture} is not known to the package")
    for key in ("block_count", "context_length", "embedding_length", "attention.head_count",
                "attention.layer_norm_rms_epsilon"):
        if field(reader, f"{architecture}.{key}") is None:
            faults.append(f"{architecture}.{key}: missing")
    if field(reader, "general.file_type") not in [int(t) for t in gguf.LlamaFileType]:
        faults.append("general.file_type: not known to the package")
    model = field(reader, "tokenizer.ggml.model")
    if model != "none":
        tokens = field(reader, "tokenizer.ggml.tokens")
        types = field(reader, "tokenizer.ggml.token_type")
        rows = next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight")
        if len(tokens) != len(types) or len(tokens) < rows:
            faults.append(f"tokenizer: {len(tokens)} tokens, {len(types)} types, {rows} rows of token_embd")
        if len(set(tokens)) != len(tokens):
            faults.append("tokenizer: a token occurs twice")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--dump", type=pathlib.Path, required=True, help="the program dump_weights")
    args = parser.parse_args()
    reader = gguf.GGUFReader(args.file)
    faults = check_metadata(reader)
    with tempfile.TemporaryDirectory() as scratch:
        dumped = pathlib.Path(scratch) / "weights.safetensors"
        subprocess.run([args.dump, args.file, dumped], check=True)
        kinds, values = {}, 0
        with safe_open(dumped, "np") as ours:
            names = set(ours.keys())
            for tensor in reader.tensors:
                theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                theirs = theirs.reshape([int(n) for n in tensor.shape[::-1]]).astype(np.float32)
                kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
                values += theirs.size
                if tensor.name not in names:
                    faults.append(f"{tensor.name}: not among braid's")
                elif not np.array_equal(theirs, ours.get_tensor(tensor.name)):
                    mine = ours.get_tensor(tensor.name)
                    by = np.abs(theirs - mine).max() if theirs.shape == mine.shape else f"shape {mine.shape}"
                    faults.append(f"{tensor.name} ({tensor.tensor_type.name}): differs, by {by}")
                names.discard(tensor.name)
    faults += [f"{name}: only braid has it" for name in sorted(names)]
    for fault in faults:
        print(fault)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{args.file.name}: {kinds}; {values} values, {len(faults)} faults")
    return 1 if faults or values == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
