#!/usr/bin/env python3
"""Trains the demo models' tokenizer and writes it in Gemma 4's form.

  train_tokenizer.py --cache .cache/demo --out demo_models/gemma4 demo_models/gemma4-dense

Merges are learned on text split in front of every word, so none crosses a word boundary; the
written tokenizer merges over whole segments by rank, as Gemma 4's does. Writes tokenizer.json
and tokenizer_config.json into each --out folder.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB_SIZE = 8192
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
           "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>",
           "<turn|>"]
SPACE = "\u2581"
MAX_RUN = {"\n": 8, SPACE: 16, "\t": 8}
WORD = (rf"{SPACE}?\p{{L}}+(?:'\p{{L}}{{1,2}}(?!\p{{L}}))?|\p{{N}}|\n+|{SPACE}?[^\s{SPACE}\p{{L}}\p{{N}}]+|{SPACE}+|\s+")


def records(path):
    with open(path) as file:
        for line in file:
            yield json.loads(line)


def learn_merges(texts, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "isolated")
    alphabet = [chr(c) for c in range(33, 127)] + ["\n", "\t", SPACE]
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, limit_alphabet=150,
                                  min_frequency=20, show_progress=False, max_token_length=16)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    return pieces, [tuple(m) for m in model["merges"]]


def build(pieces, merges):
    """Lays out ids: special tokens, whitespace runs, bytes, characters, merged pieces."""
    runs, run_merges = [], []
    for ch, longest in MAX_RUN.items():
        for n in range(2, longest + 1):
            half = 1 << (n - 1).bit_length() - 1
            runs.append(ch * n)
            run_merges.append((ch * half, ch * (n - half)))
    order = SPECIAL + runs + [f"<0x{b:02X}>" for b in range(256)] + pieces
    vocab = {}
    for token in order:
        if token not in vocab and len(vocab) < VOCAB_SIZE:
            vocab[token] = len(vocab)
    known = set(merges)
    merges = [m for m in merges if m[0] + m[1] in vocab] + [m for m in run_merges if m not in known]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(SPECIAL)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    return tokenizer


def tokenizer_config():
    return {
        "add_bos_token": False, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
        "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", "padding_side": "left",
        "clean_up_tokenization_spaces": False, "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


ROUND_TRIP = ["Hello, world!", "  two  spaces   three", "line\n\nline\n\n\n\n\ttab\t\ttabs", "caf\u00e9 na\u00efve \u65e5\u672c\u8a9e "
              "\ud55c\uad6d\uc5b4 \u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7", "def f(x):\n    return {x: [1, 2.5e-3]}\n", "",
              " ", "\n", "a\u2581b".replace("\u2581", " "), "\r\n\x00\x07 \u00ff\uffff", "1234567890", "x" * 300, " " * 40]


def check(tokenizer, texts):
    rng = random.Random(1)
    alphabets = [(32, 127), (0, 256), (0x400, 0x500), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF)]
    fuzz = ["".join(chr(rng.randrange(*rng.choice(alphabets))) for _ in range(rng.randrange(1, 80)))
            for _ in range(2000)]
    for text in ROUND_TRIP + fuzz + texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, repr(text[:80])
        assert SPECIAL.index("<unk>") not in ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--out", type=Path, nargs="+", required=True)
    args = parser.parse_args()
    texts = [r["text"] for r in records(args.cache / "train.jsonl")]
    rng = random.Random(0)
    rng.shuffle(texts)
    tokenizer = build(*learn_merges(texts[:10000], VOCAB_SIZE))
    heldout = [r["text"] for r in records(args.cache / "heldout.jsonl")]
    check(tokenizer, heldout)
    for folder in args.out:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=2) + "\n")


if __name__ == "__main__":
    main()
