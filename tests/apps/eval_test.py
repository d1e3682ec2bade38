#!/usr/bin/env python3
"""`braid eval`: figures against the recorded ones, files it writes, inputs it refuses."""

import json
import math
import os
import shutil
import struct
import unittest
import xml.etree.ElementTree

from cli_case import CliCase, DEMO, MODELS, SOURCE, TINY_GGUF, read_safetensors

SAMPLES = os.path.join(SOURCE, "tests", "data", "evaluate")
DEMO_MODELS = os.environ["BRAID_DEMO_MODELS"]
HELDOUT = os.path.join(DEMO_MODELS, "heldout", "heldout.txt")
EXACT = ("--compute", "f32", "-t", "2")


class EvalCase(CliCase):
    def eval(self, *arguments, **streams):
        return json.loads(self.succeed("eval", *arguments, *EXACT, "--json", **streams))


class DemoModelTest(EvalCase):
    def test_loss_is_that_of_the_reference_implementation(self):
        for name in ("gemma4", "gemma4-dense", "qwen3next"):
            with open(os.path.join(DEMO_MODELS, name, "golden.json")) as file:
                golden = json.load(file)["nll"]
            chunks = 6
            expected = golden["chunk_nats"][:chunks]
            bos = golden["tokens"] % golden["context"] != 0
            context = golden["context"]
            text_tokens = chunks * (context - bos)
            result = self.eval("demo:" + name, "--text", HELDOUT, "--buckets", context,
                               "--max-tokens", text_tokens)
            (bucket,) = result["nll"]["buckets"]
            self.assertEqual(bucket["chunks"], chunks)
            self.assertEqual(bucket["tokens"], chunks * (context - 1))
            # Both sides compute in float32; see tests/engine/demo_models_test.cc.
            total = bucket["nll"]["mean"] * bucket["tokens"]
            self.assertAlmostEqual(total / sum(expected), 1, delta=1e-5, msg=name)
            # Student's t for five degrees of freedom over the chunks.
            means = [nats / (context - 1) for nats in expected]
            mean = sum(means) / chunks
            deviation = math.sqrt(sum((m - mean) ** 2 for m in means) / (chunks - 1))
            self.assertAlmostEqual(bucket["nll"]["ci95_half_width"],
                                   2.570582 * deviation / math.sqrt(chunks), delta=1e-4)
            self.assertAlmostEqual(bucket["perplexity"], math.exp(bucket["nll"]["mean"]), places=9)

    def test_price_of_int8_keys_and_values(self):
        page, output = self.path("page.html"), self.path("report.json")
        arguments = ("eval", "demo:gemma4-dense", "--kv", "int8", "--text", HELDOUT, "--max-tokens",
                     "1200", "--buckets", "64,256", "--reference", "demo:gemma4-dense", *EXACT,
                     "--reference-compute", "f32")
        table = self.succeed(*arguments, "--html", page, "-o", output, "--max-delta-nll", "1")
        for text in ("ΔNLL", "KL max", "same top", "heldout.txt @"):
            self.assertIn(text, table)
        with open(output) as file:
            result = json.load(file)
        for bucket in result["nll"]["buckets"]:
            self.assertGreater(bucket["kl"]["mean"], 0)
            self.assertLess(bucket["kl"]["mean"], 0.01)
            self.assertLess(abs(bucket["delta_nll"]["mean"]), 0.01)
            self.assertAlmostEqual(bucket["nll"]["mean"] - bucket["reference_nll"]["mean"],
                                   bucket["delta_nll"]["mean"], places=12)
        self.assertEqual(len(result["nll"]["worst"]), 10)
        self.assertEqual(result["facts"]["kv"], "i8")
        with open(page) as file:
            root = xml.etree.ElementTree.fromstring(file.read().replace("<!DOCTYPE html>", ""))
        self.assertEqual(len(root.findall(".//svg")), 3)
        # The same again with a limit that no change keeps.
        limited = self.fail_with(1, *arguments, "--max-delta-nll", "-1", says=("ΔNLL", "length"))
        self.assertIn("ΔNLL", limited.stdout.decode())

    def test_a_model_does_not_differ_from_itself(self):
        result = json.loads(self.succeed(
            "eval", "demo:qwen3next", "--reference", "demo:qwen3next", "--text", HELDOUT,
            "--max-tokens", "700", "--buckets", "200", "--max-delta-nll", "0", "--json", "-t", "2"))
        (bucket,) = result["nll"]["buckets"]
        self.assertEqual(bucket["kl"]["max"], 0)
        self.assertEqual(bucket["delta_nll"]["mean"], 0)
        self.assertEqual(bucket["top1_agreement"]["mean"], 1)
        self.assertEqual(result["nll"]["worst"], [])

    def test_tasks(self):
        choices = os.path.join(SAMPLES, "choices.jsonl")
        words = os.path.join(SAMPLES, "continuations.jsonl")
        result = self.eval("demo:gemma4", "--tasks", choices, words)
        quiz, generation = result["tasks"]
        self.assertEqual((quiz["task"], quiz["items"]), ("choices", 16))
        # Chance is a quarter.
        self.assertGreater(quiz["accuracy"], 0.75)
        gold = [answer["by_sum"] == answer["gold"] for answer in quiz["answers"]]
        self.assertEqual(quiz["accuracy"], sum(gold) / 16)
        self.assertEqual(generation["items"], 6)
        self.assertGreater(generation["exact_match"], 0.5)
        self.assertEqual(generation["answers"][2]["extracted"], "library")
        table = self.succeed("eval", "demo:gemma4", "--tasks", choices, "--reference",
                             "demo:gemma4-dense", *EXACT)
        self.assertIn("accuracy by length", table)


class LogitsTest(EvalCase):
    def test_loss_is_that_of_the_logits_command(self):
        text = "the cat sat on the mat and the dog ran"
        tokens = self.path("tokens.jsonl")
        file = self.write("text.txt", text)
        result = self.eval(TINY_GGUF, "--text", file, "--buckets", "8", "--per-token", tokens)
        ids = json.loads(self.succeed("run", TINY_GGUF, "-p", text, "-n", "1", "--json", "--greedy",
                                      *EXACT))["prompt_ids"]
        bos, ids = ids[0], ids[1:]
        chunks = [[bos] + ids[i:i + 7] for i in range(0, len(ids) - 6, 7)]
        lines = self.write("ids.txt", "\n".join(" ".join(map(str, c)) for c in chunks) + "\n")
        logits = self.path("logits.safetensors")
        self.succeed("logits", TINY_GGUF, "--ids-file", lines, "-o", logits, *EXACT)
        expected = []
        for name, (dtype, shape, payload) in sorted(read_safetensors(logits).items()):
            chunk = chunks[int(name.split(".")[1])]
            values = struct.unpack("<%df" % (shape[0] * shape[1]), payload)
            for t in range(shape[0] - 1):
                row = values[t * shape[1]:(t + 1) * shape[1]]
                shift = max(row)
                total = math.fsum(math.exp(x - shift) for x in row)
                expected.append(math.log(total) + shift - row[chunk[t + 1]])
        (bucket,) = result["nll"]["buckets"]
        self.assertEqual(bucket["tokens"], len(expected))
        self.assertAlmostEqual(bucket["nll"]["mean"], math.fsum(expected) / len(expected), places=11)
        with open(tokens) as stream:
            losses = [json.loads(line)["nll"] for line in stream]
        self.assertEqual(len(losses), len(expected))
        for loss, other in zip(losses, expected):
            self.assertAlmostEqual(loss, other, places=11)

    def test_bos_stands_once_before_a_chunk(self):
        plain = self.eval(DEMO, "--text", self.write("a.txt", "hello there"))
        given = self.eval(DEMO, "--text", self.write("b.txt", "<bos>hello there"))
        self.assertEqual(plain["nll"]["buckets"], given["nll"]["buckets"])
        without = self.eval(DEMO, "--text", self.write("a.txt", "hello there"), "--no-bos")
        self.assertEqual(without["nll"]["buckets"][0]["tokens"],
                         plain["nll"]["buckets"][0]["tokens"] - 1)

    def test_documents_of_json_lines(self):
        lines = [{"body": "the cat"}, {"body": ""}, {"body": "a dog ran", "other": 1}]
        file = self.write("texts.jsonl", "\n\n".join(map(json.dumps, lines)) + "\n")
        result = self.eval(TINY_GGUF, "--text", file, "--field", "body", "--no-bos")
        self.assertEqual(result["nll"]["documents"], 3)
        self.assertEqual(result["nll"]["empty_documents"], 1)
        self.assertEqual(result["nll"]["buckets"][0]["bucket"], "shorter")
        self.assertEqual(result["nll"]["buckets"][0]["chunks"], 2)
        self.assertEqual([b["chunks"] for b in result["nll"]["buckets"][1:]], [0] * 5)
        piped = self.eval(TINY_GGUF, "--text", "-", stdin="the cat")
        self.assertEqual(piped["nll"]["documents"], 1)


class LayerErrorTest(EvalCase):
    def test_errors_of_the_quantiser_are_shown(self):
        model = self.path("model")
        shutil.copytree(os.path.join(DEMO_MODELS, "gemma4-dense"), model)
        text = self.write("text.txt", "hello there")
        page = self.path("page.html")
        report = os.path.join(model, "report.json")
        with open(report, "w") as file:
            json.dump({"tensors": [{"name": "a", "output_error": 0.25, "weight_error": 0.5},
                                   {"name": "b", "weight_error": 0.125}, {"name": "kept"}]}, file)
        result = self.eval(model, "--text", text, "--html", page)
        self.assertEqual(result["layers"], [{"name": "a", "error": 0.25},
                                            {"name": "b", "error": 0.125}])
        with open(page) as file:
            self.assertIn("a: 0.25", file.read())
        for content in ("[]", "no JSON", '{"tensors": 1}'):
            with open(report, "w") as file:
                file.write(content)
            result = self.eval(model, "--text", text)
            self.assertNotIn("layers", result)


class RefusalTest(EvalCase):
    def refuse(self, content, *says, name="text.txt", option="--text", code=1, more=()):
        file = self.write(name, content)
        self.fail_with(code, "eval", TINY_GGUF, option, file, *more, says=says)

    def test_texts(self):
        self.refuse("", "text.txt", "no text")
        self.refuse(b"abc\xff\xfe", "text.txt", "byte 3", "UTF-8")
        self.refuse("hello", "--buckets 8192", "context is 4096", code=2,
                    more=("--buckets", "8192"))
        self.refuse('{"text": "a"}\n{"txt": "b"}\n', "texts.jsonl:2", '"text"', "missing",
                    name="texts.jsonl")
        self.refuse('{"text": 3}\n', "texts.jsonl:1", "a string", name="texts.jsonl")
        self.refuse("{nonsense\n", "texts.jsonl:1", "not JSON", name="texts.jsonl")
        self.refuse(b'{"text": "\xff"}\n', "texts.jsonl:1", name="texts.jsonl")
        self.refuse('{"text": ""}\n', "texts.jsonl", "no text", name="texts.jsonl")
        self.refuse("\n\n", "texts.jsonl", "no text", name="texts.jsonl")
        self.fail_with(1, "eval", TINY_GGUF, "--text", self.path("nowhere"), says=("nowhere",))
        # A single token, and nothing before it.
        self.refuse("a", "token to score", more=("--no-bos",))

    def test_tasks(self):
        def refuse(line, *says):
            self.refuse(json.dumps(line) + "\n", "task.jsonl:1", *says, name="task.jsonl",
                        option="--tasks")
        good = {"query": "q", "choices": ["a", "b"], "gold": 0}
        refuse({**good, "gold": 2}, '"gold"', "out of range")
        refuse({**good, "gold": "a"}, '"gold"')
        refuse({**good, "choices": ["a"]}, '"choices"', "two")
        refuse({**good, "choices": ["a", ""]}, '"choices"', "empty")
        refuse({**good, "choices": ["a", 1]}, '"choices"')
        refuse({"choices": ["a", "b"], "gold": 0}, '"query"', "missing")
        refuse({"query": "q", "choices": ["a", "b"]}, '"gold"', "missing")
        refuse({**good, "extra": 1}, '"extra"', "unknown field")
        refuse({"prompt": "p"}, '"choices"', '"answer"')
        refuse({"prompt": "p", "answer": []}, '"answer"')
        refuse({"answer": "a"}, '"prompt"', "missing")
        refuse({"prompt": "p", "answer": "a", "filter": "("}, '"filter"')
        refuse({"prompt": "p", "answer": "a", "stop": [""]}, '"stop"')
        refuse({"prompt": "p", "answer": "a", "max_tokens": 0}, '"max_tokens"')
        refuse([1], "object")
        self.refuse("", "task.jsonl", "no items", name="task.jsonl", option="--tasks")
        mixed = json.dumps(good) + "\n" + json.dumps({"prompt": "p", "answer": "a"}) + "\n"
        self.refuse(mixed, "task.jsonl:2", "in one file", name="task.jsonl", option="--tasks")

    def test_models_that_cannot_be_compared(self):
        text = self.write("text.txt", "hello there")
        self.fail_with(1, "eval", "demo:gemma4", "--text", text, "--reference", "demo:qwen3next",
                       says=("different tokens", "text.txt"))
        other = self.copy_model("gemma3")
        self.fail_with(1, "eval", TINY_GGUF, "--text", text, "--reference", other,
                       says=("tokenizer",))
        self.fail_with(1, "eval", TINY_GGUF, "--text", text, "--reference", self.path("none"),
                       says=("none",))

    def test_a_model_without_tokenizer(self):
        text = self.write("text.txt", "hello")
        self.fail_with(1, "eval", os.path.join(MODELS, "gemma3"), "--text", text,
                       says=("tokenizer.json",))

    def test_arguments(self):
        text = self.write("text.txt", "hello")
        self.fail_with(2, "eval", says=("MODEL",))
        self.fail_with(2, "eval", TINY_GGUF, says=("--text", "--tasks"))
        for arguments in (("--max-delta-nll", "0.1"), ("--buckets", "1"), ("--buckets", "x"),
                          ("--max-tokens", "-1"), ("--batch", "-1"), ("--kv", "int4"),
                          ("--reference-kv", "f16")):
            self.fail_with(2, "eval", TINY_GGUF, "--text", text, *arguments)
        folder = self.path("folder")
        os.mkdir(folder)
        for option in ("--html", "-o", "--per-token"):
            self.fail_with(1, "eval", TINY_GGUF, "--text", text, option, folder, says=(folder,))


if __name__ == "__main__":
    unittest.main()
