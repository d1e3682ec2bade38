#!/usr/bin/env python3
"""Trains small tokenizers of the published forms and writes what the Python package makes of many texts.

Usage: make_tokenizer_vectors.py TEXT OUTPUT_FOLDER

TEXT is the training text (one document a line is not required). For each form NAME the folder receives
NAME/tokenizer.json, NAME/tokenizer_config.json and NAME/vectors.json; scored/ holds a SentencePiece-like
vocabulary with scores instead, and vectors from a direct implementation of that algorithm.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_texts import HAND_WRITTEN, random_text

SPACE = "\u2581"
BYTES = [f"<0x{b:02X}>" for b in range(256)]
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Cuts where the released vocabularies have no merge, so that training does not create any there.
GEMMA_TRAINING_SPLIT = rf"\n+|\t+|[0-9]|{SPACE}+(?={SPACE})|{SPACE}?[^{SPACE}\n\t0-9]+|{SPACE}+"
ODD_TOKENS = [
    AddedToken("[W]", single_word=True, normalized=False),
    AddedToken("<L>", lstrip=True, normalized=False),
    AddedToken("<R>", rstrip=True, normalized=False, special=True),
    AddedToken("<N> caf\u00e9", normalized=True),
]


def gemma_form(text: str) -> tuple[Tokenizer, dict]:
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
               '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>"]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(GEMMA_TRAINING_SPLIT), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=control + BYTES, limit_alphabet=330, show_progress=False)
    tokenizer.train_from_iterator([text, "\n\n\n\n\n\n", " " * 32, "\t\t\t\t"], trainer)
    spec = json.loads(tokenizer.to_str())
    spec["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] in control]
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "add_bos_token": False,
              "extra_special_tokens": ["<|turn>", "<turn|>"], "tokenizer_class": "GemmaTokenizer"}
    return Tokenizer.from_str(json.dumps(spec)), config


def qwen_form(text: str) -> tuple[Tokenizer, dict]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=1300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ["<tool_call>", "</tool_call>", "<think>", "</think>"]])
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "add_bos_token": False,
              "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "tokenizer_class": "Qwen2Tokenizer"}
    return tokenizer, config


def llama_form(text: str) -> tuple[Tokenizer, dict]:
    """Accents and trailing blanks dropped, space prefix on every piece, unk without fusing, added tokens of every kind, BOS by template."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip(left=False, right=True),
        normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(GEMMA_TRAINING_SPLIT), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=120, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer.add_tokens(ODD_TOKENS)
    config = {"bos_token": {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
              "eos_token": {"content": "</s>"}, "add_bos_token": True, "extra_special_tokens": {"boi_token": "<R>"}}
    return tokenizer, config


def metaspace_form(text: str) -> tuple[Tokenizer, dict]:
    """The rarer steps: Metaspace with prepend "first", digits, lower case, ignore_merges, pairs of merges as strings."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False, fuse_unk=True, ignore_merges=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("merged_with_next")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<bos>"], limit_alphabet=100, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.add_tokens(ODD_TOKENS)
    spec = json.loads(tokenizer.to_str())
    spec["model"]["merges"] = ["#version: 0.2"] + [" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]]
    del spec["model"]["type"]
    return tokenizer, (spec, {"bos_token": "<bos>"})


def texts_for(tokenizer: Tokenizer, text: str, seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    pieces = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    lines = text.splitlines(keepends=True)
    return HAND_WRITTEN + lines + [random_text(rng, pieces, lines) for _ in range(count)]


def vectors(tokenizer: Tokenizer, texts: list[str]) -> list[dict]:
    """ids; plain: ids without special tokens, where they differ; decoded, where it is not the text;
    skipped: decoded without special tokens, where it differs from decoded. A text with an added token
    that is looked for after normalisation has "decoded": null: releases of the package differ in whether
    such a token decodes to its content or to the normalised content."""
    normalized = {i for i, t in tokenizer.get_added_tokens_decoder().items() if t.normalized}
    out = []
    for text in texts:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        entry = {"text": text, "ids": ids}
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        if normalized & set(ids):
            decoded = skipped = None
        if decoded != text:
            entry["decoded"] = decoded
        if skipped != decoded:
            entry["skipped"] = skipped
        if plain != ids:
            entry["plain"] = plain
        out.append(entry)
    tokenizer.encode_special_tokens = False
    return out


def id_vectors(tokenizer: Tokenizer, seed: int, count: int) -> list[dict]:
    """Random ids: mostly broken characters in byte-level vocabularies."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        out.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    return out


def scored_vocabulary(tokenizer: Tokenizer, seed: int) -> dict:
    """The vocabulary of a byte-fallback tokenizer with scores: decreasing along the merges, with many ties."""
    rng = random.Random(seed)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values()}
    tokens, scores, types = [], [], []
    for token, index in vocab:
        tokens.append(token)
        kind = 6 if token in BYTES else 2 if token == "<unk>" else 3 if token in special else 1
        types.append(kind)
        scores.append(float(-(index // 3)) if rng.random() < 0.9 else float(-rng.randrange(len(vocab))))
    for token in ["<user one>", "  ", "\n\n\n"]:
        tokens.append(token), scores.append(0.0), types.append(4)
    return {"tokens": tokens, "scores": scores, "types": types}


def scored_encode(vocabulary: dict, text: str, prefix: bool) -> list[int]:
    """Score-based merging, written down directly: quadratic, for checking only."""
    index = {t: i for i, t in reversed(list(enumerate(vocabulary["tokens"])))}
    cut = sorted((t for t, k in zip(vocabulary["tokens"], vocabulary["types"]) if k in (2, 3, 4)), key=len, reverse=True)
    usable = {t: i for t, i in index.items() if vocabulary["types"][i] in (1, 4, 5)}
    ids: list[int] = []

    def merge(piece: str):
        symbols = list(((" " if prefix else "") + piece).replace(" ", SPACE))
        while True:
            best = None
            for i in range(len(symbols) - 1):
                found = usable.get(symbols[i] + symbols[i + 1])
                if found is not None and (best is None or vocabulary["scores"][found] > best[0]):
                    best = (vocabulary["scores"][found], i)
            if best is None:
                break
            i = best[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            if symbol in usable:
                ids.append(usable[symbol])
            else:
                ids.extend(index[f"<0x{b:02X}>"] for b in symbol.encode())

    done = at = 0
    while at < len(text):
        token = next((t for t in cut if text.startswith(t, at)), None)
        if token is None:
            at += 1
            continue
        if at > done:
            merge(text[done:at])
        ids.append(index[token])
        done = at = at + len(token)
    if done < len(text):
        merge(text[done:])
    return ids


def write(path: Path, value, indent=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")


def write_vectors(path: Path, entries: list[dict]):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries)
    path.write_text("[\n" + lines + "\n]\n", encoding="utf-8")


def main():
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    folder = Path(sys.argv[2])
    forms = {"gemma": gemma_form, "qwen": qwen_form, "llama": llama_form, "metaspace": metaspace_form}
    made = {}
    for number, (name, make) in enumerate(forms.items()):
        tokenizer, config = make(text)
        spec = json.loads(tokenizer.to_str())
        if isinstance(config, tuple):
            spec, config = config
            tokenizer = Tokenizer.from_str(json.dumps(spec | {"model": spec["model"] | {"type": "BPE"}}))
        made[name] = tokenizer
        write(folder / name / "tokenizer.json", spec)
        write(folder / name / "tokenizer_config.json", config, indent=1)
        write_vectors(folder / name / "vectors.json", vectors(tokenizer, texts_for(tokenizer, text, 100 + number, 200)))
        print(f"{name}: {tokenizer.get_vocab_size()} tokens")
    write_vectors(folder / "qwen" / "id_vectors.json", id_vectors(made["qwen"], 7, 200))

    vocabulary = scored_vocabulary(made["gemma"], 11)
    write(folder / "scored" / "vocabulary.json", vocabulary)
    entries = []
    for entry_text in texts_for(made["gemma"], text, 12, 150):
        entry_text = entry_text[:400]
        entries.append({"text": entry_text, "ids": scored_encode(vocabulary, entry_text, False),
                        "prefixed": scored_encode(vocabulary, entry_text, True)})
    write_vectors(folder / "scored" / "vectors.json", entries)


if __name__ == "__main__":
    main()
