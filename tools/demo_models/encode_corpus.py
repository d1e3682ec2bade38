#!/usr/bin/env python3
"""Turns train.jsonl and heldout.jsonl (or .jsonl.gz) into token streams.

  encode_corpus.py --cache .cache/demo --tokenizer demo_models/gemma4/tokenizer.json

Writes train.u16 and heldout.u16: little-endian uint16 ids, <bos> before and <eos> after every
document (or what --before and --after name); training documents in random order, each source
repeated as sources.py says.
"""

import argparse
import json
import gzip
import multiprocessing
import os
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

_tokenizer, _before, _after = None, [], []


def _load(path, before, after):
    global _tokenizer, _before, _after
    _tokenizer = Tokenizer.from_file(str(path))
    _before, _after = ([_tokenizer.token_to_id(t)] if t else [] for t in (before, after))


def _encode(line):
    record = json.loads(line)
    ids = _before + _tokenizer.encode(record["text"], add_special_tokens=False).ids + _after
    return np.array(ids, dtype=np.uint16), record["passes"], len(record["text"].encode())


def lines(cache, name):
    path = cache / f"{name}.jsonl"
    with open(path) if path.exists() else gzip.open(f"{path}.gz", "rt") as file:
        yield from file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--tokenizer", type=Path, default=Path("demo_models/gemma4/tokenizer.json"))
    parser.add_argument("--before", default="<bos>", help="token before a document; empty for none")
    parser.add_argument("--after", default="<eos>", help="token after a document; empty for none")
    args = parser.parse_args()
    for name in ("heldout", "train"):
        with multiprocessing.Pool(os.cpu_count(), _load, (args.tokenizer, args.before, args.after)) as pool:
            docs = pool.map(_encode, lines(args.cache, name), chunksize=64)
        train = name == "train"
        stream = [ids for ids, passes, _ in docs for _ in range(passes if train else 1)]
        if train:
            random.Random(0).shuffle(stream)
        stream = np.concatenate(stream)
        unique = sum(len(ids) for ids, _, _ in docs)
        size = sum(n for _, _, n in docs)
        print(f"{name}: {len(docs)} documents, {size} bytes, {unique} tokens, {len(stream)} with repeats, "
              f"{size / unique:.2f} bytes/token", flush=True)
        stream.astype("<u2").tofile(args.cache / f"{name}.u16")


if __name__ == "__main__":
    main()
