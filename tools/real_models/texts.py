"""Texts for the comparison."""

# Each is tokenised by both engines, with special tokens parsed; nothing here is prose.
HARD_TEXTS = [
    "Hello world",
    " Hello  world ",
    "   Hello",
    "\t\n",
    "\n\n\n\n\n",
    "a\r\nb\rc\n\n  d\t\te",
    "It's 3.14159, isn't it? 1,000,000 of them: 33 1984 0x7fff 1e-9",
    "ied 4 ½ months",
    "Äpfel über Straße; naïve café, e\u0301 as two characters",
    "Cửa Việt",
    "Привет, мир! Как дела?",
    "中文字符，没有空格。日本語のテキスト 한국어 문장",
    "हिन्दी में लिखा हुआ वाक्य العربية من اليمين עברית",
    "🙂👍🏽👩‍👩‍👧‍👦🏳️‍🌈 \U0001f9ff",
    "\U00013080\U00013081 \U0001d54f \ufeff \u200b\u00a0\u2028 \u2581",
    "def f(x):\n    if x < 2:\n        return [x ** 2 for _ in range(10)]\n\n\n# end\n",
    "<b>bold</b> &amp; {\"key\": [1, 2, null]} \\n \\\\ ///// ------- ======",
    "once<bos>twice<eos><unk><pad>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "< start_of_turn> <start_of_turn <unused0><unused98>[multimodal]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                                              x",
    "\x00\x01\x7f",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
]

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
    "Water boils at a lower temperature on a mountain because",
    "The following is a list of the planets, from the nearest to the Sun:\n1.",
    "<start_of_turn>user\nWhat is the capital of France?<end_of_turn>\n<start_of_turn>model\n",
    "Der schnellste Weg von Berlin nach Hamburg ist",
]
