#!/usr/bin/env python3
"""Picks the bundled held-out text from heldout.jsonl.

  make_heldout.py --cache .cache/demo --out demo_models/heldout/heldout.txt

Only public-domain and permissively licensed sources, so that the file can travel with the
repository; about 160 kB in all. Documents follow one another with a blank line between, by source and then
in the order of their hash.
"""

import argparse
import hashlib
import json
from pathlib import Path

# Source: at most so many characters.
PERMISSIVE = {
    "r-cran-janeaustenr": 26_000, "sword-comm-tdavid": 26_000, "rust-doc": 16_000, "python3.11-doc": 40_000,
    "sword-text-web": 26_000, "python-django-doc": 26_000, "postgresql-doc-15": 16_000, "erlang-doc": 16_000,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--out", type=Path, default=Path("demo_models/heldout/heldout.txt"))
    args = parser.parse_args()
    docs = [json.loads(line) for line in open(args.cache / "heldout.jsonl")]
    docs.sort(key=lambda d: hashlib.blake2b(d["text"].encode()).digest())
    used, picked = {}, []
    for source, limit in PERMISSIVE.items():
        used[source] = 0
        for doc in docs:
            if doc["source"] == source and used[source] + len(doc["text"]) <= limit:
                used[source] += len(doc["text"])
                picked.append(doc["text"])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(picked) + "\n", encoding="utf-8")
    print(used, len(picked), "documents,", args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
