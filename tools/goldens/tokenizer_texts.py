"""Texts that exercise tokenizers: awkward ones by hand, and an endless supply of random ones."""

import random
from unicodedata import ucd_3_2_0

HAND_WRITTEN = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n\n\n\n", "\t", "\t\t\t", "\r\n", " \n ", "\n \n", "a", " a", "a ", " a ",
    "Hello world", " Hello world", "Hello, world!", "Hello  world", "Hello   world   ", "   Hello", "ied 4 ½ months",
    "Äpfel", "\t\n", "33", "333", "3333333333", "Cửa Việt", " discards", "it's we'll I'M YOU'RE 'S 'ſ don't",
    "Hello world! Café déjà vu — 123 😊", "Cafe\u0301 de\u0301ja\u0300", "\u1100\u1161\u11a8 각", "ÅÅA\u030a", "ﬁ ﬂ ½ ²",
    "👩‍🚀👨‍👩‍👧‍👦🏳️‍🌈❤️", "🇬🇧🇯🇵", "\U0001f9ec\U00020000\U0010fffd", "\u200b\u200d\ufeff\u00ad", "\u00a0\u3000\u2003x\u1680y\u180ez\u0085",
    "x\u2028y\u2029z", "\x00\x01\x7f", "a\x00b", "<0x41><0x0A>", "<unk>", "<bos>", "<bos><bos>Hi", "Hi<eos>", "<eos", "<<bos>>", " <bos> x",
    "<|turn>user\nHi<turn|>\n", "<|channel>thought\n<channel|>", "<|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|>",
    "<|im_start|>user\nHi<|im_end|>\n", "<think>\n\n</think>\n\n", "<|endoftext|>", "<|im_start", "<start_of_turn>user\nHi<end_of_turn>\n",
    "▁", "▁▁a", "a▁b", " ▁ ", "[W] word[W]word [W]", "<L>x  <L>  y<L>", "<R>   x <R>\n\ny<R>", "<N> caf\u00e9<N>CAFE\u0301", "Ġ Ċ ĠĠ", "é€\u0100",
    "don't stop — won’t", "a" * 100, "ab" * 60, " " * 100, "\n" * 70, "=" * 65, "-" * 33 + "|", "あ" * 50, "é" * 40, "😀" * 30, "\U00013000" * 20,
    "a b c d e f g h i j k l m n o p q r s t u v w x y z", "1.2.3.4 5,6 7/8 9:10", "if (x == 0) {\n    return;\n}\n",
    "    def f(self):\n        return None\n\n\n", "\tfor (;;) {\n\t\tbreak;\n\t}\n", "a\r\nb\rc\n", "foo\u0301\u0302\u0303bar", "١٢٣ ४५६ ⅫⅣ", "ΑΣ ας ǅ İi ıI ẞß",
]

_POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "etaoin shrdlu ", "ABCXYZ'sStTdDlLmMvVrReE", "0123456789.,:%", " \t\n\r\u00a0\u3000", " ", "\n",
    "éèüößñçåøÄÖÜ", "дежзийклмнопрстАБВГ ", "αβγδεάέή", "的一是在不了有和人这", "あいうえおアイウ。、", "가나다라마바", "ابتثجحخ ً ّ", "אבגדה",
    "कखगि ीुं्", "กขคงะาิี", "😀👍🏽\u200d👩🚀❤\ufe0f🇬🇧", "(){}[]<>=!&|+-*/\\\"'`~@#$^_;:,.?", "▁ĠĊ<0x41>", "\u0301\u0300\u030a\u0327", "\u1100\u1161\u11a8",
]


def _any_character(rng: random.Random) -> str:
    """Of those assigned long ago: libraries differ in the Unicode version that they know."""
    while True:
        c = chr(rng.randint(1, 0x10FFFF) if rng.random() < 0.3 else rng.randint(1, 0xFFFF))
        if ucd_3_2_0.category(c) not in ("Cn", "Cs"):
            return c


def random_text(rng: random.Random, pieces: list[str], lines: list[str]) -> str:
    """Random characters of several scripts, mixed with pieces (special tokens) and cuts of lines."""
    out = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.2 and pieces:
            out.append(rng.choice(pieces))
        elif kind < 0.45 and lines:
            line = rng.choice(lines)
            start = rng.randint(0, len(line))
            out.append(line[start : start + rng.randint(0, 60)])
        elif kind < 0.55:
            out.append("".join(_any_character(rng) for _ in range(rng.randint(1, 6))))
        elif kind < 0.65:
            out.append(rng.choice(rng.choice(_POOLS)) * rng.randint(1, 80))
        else:
            pool = rng.choice(_POOLS)
            out.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 20))))
    return "".join(out)
