#!/usr/bin/env python3
"""Compares braid's tokenizer with the Python package on awkward and random texts.

Usage: check_tokenizer.py BRAID TOKENIZER_FOLDER [--count N] [--seed S]

Runs `BRAID tokenize TOKENIZER_FOLDER --jsonl FILE --no-bos`, which reads {"text": ...} lines and prints
{"ids": [...], "text": decoded} lines (raw text: no BOS added, special tokens recognised). The test
program tokenize_jsonl serves as BRAID as well.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from tokenizer_texts import HAND_WRITTEN, random_text

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("braid")
parser.add_argument("folder", type=Path)
parser.add_argument("--count", type=int, default=5000)
parser.add_argument("--seed", type=int, default=None)
args = parser.parse_args()

seed = args.seed if args.seed is not None else random.randrange(1 << 32)
rng = random.Random(seed)
tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
added = tokenizer.get_added_tokens_decoder()
normalized = {i for i, token in added.items() if token.normalized}
pieces = [token.content for token in added.values()]
lines = Path(__file__).read_text(encoding="utf-8").splitlines(keepends=True) + HAND_WRITTEN
texts = HAND_WRITTEN + [random_text(rng, pieces, lines) for _ in range(args.count)]

with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
    for text in texts:
        file.write(json.dumps({"text": text}) + "\n")
    file.flush()
    command = [args.braid, "tokenize", str(args.folder), "--jsonl", file.name, "--no-bos"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode("utf-8")

results = [json.loads(line) for line in output.split("\n") if line]
if len(results) != len(texts):
    sys.exit(f"{len(texts)} texts, but {len(results)} answers")
differing = 0
for text, result in zip(texts, results):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    # Releases of the package differ in what a token found after normalisation decodes to.
    decoded = result["text"] if normalized & set(ids) else tokenizer.decode(ids, skip_special_tokens=False)
    if result["ids"] != ids or result["text"] != decoded:
        differing += 1
        if differing <= 5:
            print(f"text    {text!r}\nexpect  {ids} {decoded!r}\nbraid   {result['ids']} {result['text']!r}")
print(f"seed {seed}: {differing} of {len(texts)} texts differ")
sys.exit(1 if differing else 0)
