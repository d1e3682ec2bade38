"""How the scripts end that make folders of tests/data/models: the golden file, modes, sizes, the command line."""

import argparse
import json
import pathlib

import torch
import transformers
from safetensors.numpy import save_file


def write_golden(path, tensors, facts, generator):
    about = {
        "generator": generator,
        "prompts": [key.split(".")[0] for key in tensors if key.endswith(".ids")],
        "reference": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, eager",
        "reference_self_agreement": float(f"{facts['worst']:.1e}"),
    }
    # One entry only: the library writes several in random order.
    save_file(tensors, path, metadata={"golden": json.dumps(about)})


def finish_folder(folder, tensors, facts, generator):
    """Adds the golden file; the sizes of all files in KiB, by name."""
    write_golden(folder / "golden.safetensors", tensors, facts, generator)
    for file in folder.iterdir():
        file.chmod(0o644)
    return {file.name: file.stat().st_size / 1024 for file in folder.iterdir()}


def run(description, variants, seed, make):
    """Calls make(name, root, seed) for the variants that the command line asks for."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/models"
    parser.add_argument("--output", type=pathlib.Path, default=default)
    parser.add_argument("--variants", nargs="*", default=list(variants), choices=list(variants))
    parser.add_argument("--seed", type=int, default=seed)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.variants:
        make(name, args.output, args.seed)
