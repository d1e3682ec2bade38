#!/usr/bin/env python3
"""Picks the bundled calibration text for quantising.

  make_calibration.py --cache .cache/demo --out demo_models/calibration/calibration.txt

From the same public-domain and permissively licensed sources as the held-out text (make_heldout.py),
which it shares no paragraph with; about 320 kB. Downloads those packages only. Excerpts of at most
4,000 characters, by the hash of their text, so that the sources mix.
"""

import argparse
import hashlib
from pathlib import Path

from build_corpus import read_source, unpack
from make_heldout import PERMISSIVE
from sources import SOURCES

EXCERPT = 4_000
PER_SOURCE = 40_000


def excerpts(source, root, heldout):
    for _, paragraphs in read_source((source, root))[1]:
        part, size = [], 0
        for paragraph in paragraphs:
            if paragraph in heldout:
                continue
            if size + len(paragraph) > EXCERPT and part:
                yield "\n\n".join(part)
                part, size = [], 0
            part.append(paragraph)
            size += len(paragraph)


def order(text):
    return hashlib.blake2b(text.encode(), key=b"calibration").digest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--heldout", type=Path, default=Path("demo_models/heldout/heldout.txt"))
    parser.add_argument("--out", type=Path, default=Path("demo_models/calibration/calibration.txt"))
    args = parser.parse_args()
    heldout = set(args.heldout.read_text(encoding="utf-8").rstrip("\n").split("\n\n"))
    picked = []
    for source in SOURCES:
        if source.package not in PERMISSIVE:
            continue
        used = 0
        found = set(excerpts(source, unpack(source.package, args.cache), heldout))
        for text in sorted((t for t in found if len(t) > EXCERPT // 2), key=order):
            if used + len(text) > PER_SOURCE:
                continue
            used += len(text)
            picked.append(text)
        print(source.package, used)
    picked.sort(key=order)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(picked) + "\n", encoding="utf-8")
    print(len(picked), "excerpts,", args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
