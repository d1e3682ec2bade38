#!/usr/bin/env python3
"""Trains the tokenizer of the demo model qwen3next and writes it in Qwen's form.

  qwen_tokenizer.py --cache .cache/demo --out demo_models/qwen3next

Byte-level BPE: NFC, Qwen's split pattern, no tokens added around a text. The added tokens follow
the BPE entries in Qwen's order and with Qwen's flags. Writes tokenizer.json and
tokenizer_config.json.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from train_tokenizer import ROUND_TRIP, records

BPE_ENTRIES = 7872  # 256 bytes and the merged pieces
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
           "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def byte_level():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)


def train(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), byte_level()])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=BPE_ENTRIES, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  min_frequency=20, show_progress=False, max_token_length=16)
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == BPE_ENTRIES, tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in PLAIN])
    return tokenizer


def in_qwens_form(text):
    """Settings the library leaves out or at defaults, written as Qwen's files have them; none acts here."""
    data = json.loads(text)
    data["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    data["decoder"] |= {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return json.dumps(data, indent=2, ensure_ascii=False)


def tokenizer_config(tokenizer):
    def entry(content, special):
        return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                "special": special}

    added = {str(tokenizer.token_to_id(t)): entry(t, t in SPECIAL) for t in SPECIAL + PLAIN}
    return {
        "add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL[1:], "bos_token": None, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 8192, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }


def check(tokenizer, texts):
    """Every NFC text comes back from its ids."""
    rng = random.Random(1)
    alphabets = [(32, 127), (0, 256), (0x400, 0x500), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF)]
    fuzz = ["".join(chr(rng.randrange(*rng.choice(alphabets))) for _ in range(rng.randrange(1, 80)))
            for _ in range(2000)]
    normalise = normalizers.NFC().normalize_str
    for text in ROUND_TRIP + fuzz + texts:
        ids = tokenizer.encode(text, add_special_tokens=True).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == normalise(text), repr(text[:80])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--out", type=Path, default=Path("demo_models/qwen3next"))
    args = parser.parse_args()
    texts = [r["text"] for r in records(args.cache / "train.jsonl")]
    random.Random(0).shuffle(texts)
    tokenizer = Tokenizer.from_str(in_qwens_form(train(texts[:8000]).to_str()))
    check(tokenizer, [r["text"] for r in records(args.cache / "heldout.jsonl")])
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "tokenizer.json").write_text(in_qwens_form(tokenizer.to_str()), encoding="utf-8")
    (args.out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(tokenizer), indent=2) + "\n")


if __name__ == "__main__":
    main()
