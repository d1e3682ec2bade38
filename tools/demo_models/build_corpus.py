#!/usr/bin/env python3
"""Builds the training and held-out text of the demo models from Debian packages.

  build_corpus.py --cache .cache/demo

Downloads the packages of sources.py with `apt-get download`, unpacks them with `dpkg -x`,
extracts plain text, drops repeated paragraphs, and splits whole documents by a hash of their
text. Writes into the cache: train.jsonl, heldout.jsonl ({"source","id","text"} a line) and
corpus.json (bytes and documents by package).
"""

import argparse
import collections
import hashlib
import json
import multiprocessing
import re
import subprocess
import unicodedata
from pathlib import Path

from readers import READERS
from sources import SOURCES

HELDOUT_ONE_IN = 180
MAX_DOC = 24_000  # characters; longer documents are cut at a paragraph
MIN_DOC = 300
_PUNCT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ",
                        "\u2011": "-", "\u2010": "-", "\u200b": None, "\u00ad": None, "\u00b6": None,
                        "\uf0c1": None, "\u2026": "..."})
_COMMON = re.compile(r"\b(the|of|and|to|in|a|is|that|for|it|you|he|his|with|be|was|i|this|are|not)\b", re.I)


def unpack(package, cache):
    target = cache / "x" / package
    if target.exists():
        return target
    debs = cache / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    if not list(debs.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", "-q", package], cwd=debs, check=True)
    (deb,) = debs.glob(f"{package}_*.deb")
    partial = target.with_suffix(".partial")
    partial.mkdir(parents=True)
    subprocess.run(["dpkg", "-x", str(deb), str(partial)], check=True)
    partial.rename(target)
    return target


def clean(text):
    return unicodedata.normalize("NFC", text).translate(_PUNCT)


def is_prose(paragraph):
    """Long enough, mostly letters, with common English words: drops tables, code and listings."""
    if len(paragraph) < 40:
        return False
    letters = sum(c.isalpha() or c == " " for c in paragraph)
    ascii_share = sum(c < "\u0250" for c in paragraph) / len(paragraph)
    if letters / len(paragraph) < 0.82 or ascii_share < 0.97:
        return False
    words = paragraph.count(" ") + 1
    return len(_COMMON.findall(paragraph)) >= 0.08 * words


def is_heading(paragraph):
    return (len(paragraph) < 90 and paragraph[:1].isalnum() and paragraph[-1:].isalnum()
            and sum(c.isalpha() or c == " " for c in paragraph) / len(paragraph) > 0.85)


def filter_paragraphs(text):
    """Keeps prose, and a short heading when prose follows it."""
    out, heading = [], None
    for p in clean(text).split("\n\n"):
        p = p.strip()
        if not p:
            continue
        if is_prose(p):
            if heading:
                out.append(heading)
            out.append(p)
            heading = None
        else:
            heading = p if is_heading(p) else None
    return out


def read_source(args):
    source, root = args
    docs = []
    keep_short = source.reader in ("r_strings", "plain", "endless_sky", "wesnoth", "fortunes")
    for pattern in source.globs:
        for path in sorted(root.glob(pattern)):
            if not path.is_file() or path.is_symlink():
                continue
            for name, text in READERS[source.reader](path):
                if keep_short:
                    paragraphs = [p.strip() for p in clean(text).split("\n\n") if p.strip()]
                else:
                    paragraphs = filter_paragraphs(text)
                if paragraphs:
                    docs.append((f"{path.relative_to(root)}#{name}", paragraphs))
    return source, docs


def cut(paragraphs):
    part, size = [], 0
    for p in paragraphs:
        if size + len(p) > MAX_DOC and part:
            yield part
            part, size = [], 0
        part.append(p)
        size += len(p)
    if part:
        yield part


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    args = parser.parse_args()
    roots = [unpack(s.package, args.cache) for s in SOURCES]
    seen = set()
    stats = collections.defaultdict(lambda: [0, 0, 0])
    with multiprocessing.Pool(2) as pool, \
            open(args.cache / "train.jsonl", "w") as train, \
            open(args.cache / "heldout.jsonl", "w") as heldout:
        for source, docs in pool.imap(read_source, list(zip(SOURCES, roots))):
            taken = 0
            for name, paragraphs in docs:
                fresh = []
                for p in paragraphs:
                    key = hashlib.blake2b(p.lower().encode(), digest_size=8).digest()
                    if len(p) < 60 or key not in seen:
                        fresh.append(p)
                    seen.add(key)
                for n, part in enumerate(cut(fresh)):
                    text = "\n\n".join(part)
                    if len(text) < MIN_DOC or taken > source.max_bytes:
                        continue
                    taken += len(text.encode())
                    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
                    held = digest % HELDOUT_ONE_IN == 0
                    record = {"source": source.package, "id": f"{name}/{n}", "passes": source.passes, "text": text}
                    (heldout if held else train).write(json.dumps(record, ensure_ascii=False) + "\n")
                    entry = stats[source.package]
                    entry[0] += 1
                    entry[1 + held] += len(text.encode())
            print(source.package, *stats[source.package], flush=True)
    total = [sum(s[i] for s in stats.values()) for i in range(3)]
    print("total: documents, train bytes, held-out bytes:", *total)
    (args.cache / "corpus.json").write_text(json.dumps(
        {p: {"documents": s[0], "train_bytes": s[1], "heldout_bytes": s[2]} for p, s in stats.items()}, indent=1))


if __name__ == "__main__":
    main()
