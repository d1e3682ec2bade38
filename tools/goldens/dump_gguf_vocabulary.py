#!/usr/bin/env python3
"""Writes the tokenizer part of a GGUF file as JSON, for the test that compares against real vocabularies.

Usage: dump_gguf_vocabulary.py MODEL.gguf OUTPUT.json
"""

import json
import sys

from gguf import GGUFReader

reader = GGUFReader(sys.argv[1])


def value(key):
    field = reader.get_field(f"tokenizer.ggml.{key}")
    return None if field is None else field.contents()


keys = ["model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
        "unknown_token_id", "padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix"]
found = {key: value(key) for key in keys}
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump({key: item for key, item in found.items() if item is not None}, file, ensure_ascii=False)
