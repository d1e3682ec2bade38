import json
import os
import signal
import subprocess
import unittest

from cli_case import BRAID, DEMO, PATIENCE, TINY_GGUF, TOKENIZERS, CliCase, read_safetensors

GREEDY = ["--greedy", "-t", "1", "--compute", "f32"]


class PromptTest(CliCase):
    def run_json(self, *arguments, **streams):
        return json.loads(self.succeed("run", *arguments, *GREEDY, "--json", **streams))

    def test_text_on_stdout_and_messages_on_stderr(self):
        result = self.braid("run", DEMO, "-p", "The old house", "-n", "6", *GREEDY)
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout.decode().startswith("The old house"))
        self.assertNotIn("tokens/s", result.stdout.decode())
        self.assertIn("tokens/s", result.stderr.decode())
        reply = self.run_json(DEMO, "-p", "The old house", "-n", "6")
        self.assertEqual(result.stdout.decode(), "The old house" + reply["text"] + "\n")
        self.assertEqual(len(reply["ids"]), 6)
        self.assertEqual(reply["finish_reason"], "length")
        self.assertEqual(reply["usage"], {"prompt_tokens": len(reply["prompt_ids"]),
                                          "completion_tokens": 6})

    def test_prompt_sources_agree(self):
        expected = self.run_json(TINY_GGUF, "-p", "the cat", "-n", "4")
        file = self.write("prompt.txt", "the cat")
        for arguments, stdin in ((["-f", file], ""), (["-f", "-"], "the cat"), ([], "the cat")):
            reply = self.run_json(TINY_GGUF, *arguments, "-n", "4", stdin=stdin)
            self.assertEqual(reply["ids"], expected["ids"], arguments)
        self.fail_with(1, "run", TINY_GGUF, "-f", self.path("nowhere"), says=["nowhere"])

    def test_bos_stands_once_at_the_front(self):
        for model in (DEMO, TINY_GGUF):
            for arguments in (["-p", "hello"], ["-p", "<bos>hello"], ["-p", ""]):
                ids = self.run_json(model, *arguments, "-n", "1")["prompt_ids"]
                self.assertEqual((ids[0], ids.count(2)), (2, 1), (model, arguments))
        plain = self.write("plain.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}")
        for arguments in (["--chat"], ["--chat-template", plain]):
            ids = self.run_json(DEMO, "-p", "hello", "-n", "1", *arguments)["prompt_ids"]
            self.assertEqual((ids[0], ids.count(2)), (2, 1), arguments)

    def test_stop_strings_and_ids(self):
        whole = self.run_json(DEMO, "-p", "The house", "-n", "24")
        stop = whole["text"][5:9]
        cut = self.run_json(DEMO, "-p", "The house", "-n", "24", "--stop", stop)
        self.assertEqual(cut["text"], whole["text"][:whole["text"].index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")
        token = whole["ids"][7]
        cut = self.run_json(DEMO, "-p", "The house", "-n", "24", "--stop-id", token)
        self.assertEqual(cut["ids"], whole["ids"][:whole["ids"].index(token) + 1])
        # A line break as the shell's user types it.
        broken = self.run_json(DEMO, "-p", "Contents:\n\n", "-n", "64", "--ignore-eos")
        self.assertIn("\n", broken["text"])
        cut = self.run_json(DEMO, "-p", "Contents:\n\n", "-n", "64", "--stop", r"\n")
        self.assertEqual(cut["text"], broken["text"].split("\n")[0])

    def test_seed(self):
        # So hot that each of 12 tokens is nearly any of 8192: no two seeds agree by luck.
        arguments = ["run", DEMO, "-p", "Once", "-n", "12", "--temp", "1000", "--top-k", "0", "--top-p",
                     "1", "--ignore-eos", "-t", "1", "--json"]
        ids = lambda seed: json.loads(self.succeed(*arguments, "--seed", seed))["ids"]
        self.assertEqual(ids(5), ids(5))
        self.assertNotEqual(ids(5), ids(6))
        self.assertNotEqual(ids(-1), ids(-1))

    def test_speculation_changes_no_text(self):
        prompt = ["demo:gemma4", "-p", "The old house", "-n", "60", "--ignore-eos", "-t", "1"]
        for sampling in (["--temp", "0"], ["--temp", "1", "--seed", "4"]):
            plain = json.loads(self.succeed("run", *prompt, *sampling, "--json"))
            self.assertNotIn("speculation", plain)
            for drafter in ("ngram", "model:demo:gemma4-dense", "assistant:demo:gemma4-assistant"):
                for policy in ("fixed", "adaptive"):
                    reply = json.loads(self.succeed("run", *prompt, *sampling, "--json", "--speculate",
                                                    drafter, "--draft-policy", policy))
                    self.assertEqual((reply["ids"], reply["text"]), (plain["ids"], plain["text"]))
                    drafts = reply["speculation"]
                    self.assertEqual(drafts["drafter"], drafter)
                    self.assertEqual(drafts["accepted"], sum(drafts["accepted_by_position"]))
                    self.assertLessEqual(drafts["accepted"], drafts["drafted"])
                    if policy == "fixed" and drafter != "ngram":
                        self.assertGreater(drafts["accepted"], 0)
        result = self.braid("run", *prompt, "--temp", "0", "--speculate", "ngram", "--draft-policy", "fixed")
        self.assertIn("drafts accepted", result.stderr.decode())

    def test_speculation_with_batches(self):
        lines = self.write("in.jsonl", "".join(
            json.dumps({"prompt": text, "max_tokens": 40, "temperature": 0.5 * i, "seed": 3}) + "\n"
            for i, text in enumerate(("Once", "The old", "It was", "She said"))))
        batch = ["run", "demo:gemma4", "--prompts", lines, "-t", "1"]
        plain = self.succeed(*batch)
        for drafter in ("ngram", "assistant:demo:gemma4-assistant"):
            for policy in ("fixed", "adaptive"):
                self.assertEqual(self.succeed(*batch, "--speculate", drafter, "--draft-policy",
                                              policy), plain)

    def test_drafters_that_do_not_fit(self):
        for drafter, says in (("mtp", "no multi-token-prediction head"),
                              ("model:" + TINY_GGUF, "vocabulary"),
                              ("model:nowhere", "nowhere"),
                              ("assistant:demo:gemma4-dense", "gemma4-dense")):
            self.fail_with(1, "run", DEMO, "-p", "x", "-n", "1", "--speculate", drafter, says=[says])

    def test_system_message(self):
        with_system = self.run_json(DEMO, "--chat", "--system", "Be brief.", "-p", "hi", "-n", "1")
        without = self.run_json(DEMO, "--chat", "-p", "hi", "-n", "1")
        self.assertGreater(len(with_system["prompt_ids"]), len(without["prompt_ids"]))
        users = self.write("users.jinja", "{% for m in messages if m.role == 'user' %}"
                                          "{{ m.content }}{% endfor %}")
        self.fail_with(1, "run", DEMO, "--chat-template", users, "--system", "x", "-p", "hi",
                       says=["users.jinja", "system message"])
        strict = self.write("strict.jinja", "{% if messages[0].role == 'system' %}"
                                            "{{ raise_exception('no system role') }}{% endif %}x")
        self.fail_with(1, "run", DEMO, "--chat-template", strict, "--system", "x", "-p", "hi",
                       says=["strict.jinja:1", "no system role"])

    def test_thinking_without_effect_is_said(self):
        result = self.braid("run", DEMO, "--chat", "--thinking", "on", "-p", "hi", "-n", "1", *GREEDY)
        self.assertEqual(result.returncode, 0)
        self.assertIn("--thinking has no effect", result.stderr.decode())

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            for command in (["run", TINY_GGUF, "-p", "x", "-n", "1"], ["inspect", TINY_GGUF],
                            ["tokenize", TINY_GGUF, "-p", "x"], ["run", "--help"]):
                self.fail_with(1, *command, stdout=full, says=["standard output", "write"])
        ids = self.write("ids.txt", "2 3")
        self.fail_with(1, "logits", TINY_GGUF, "--ids-file", ids, "-o", self.path("no/l.safetensors"),
                       says=["l.safetensors"])


class TokenizeTest(CliCase):
    def test_forms_agree_with_each_other(self):
        text = "Hello world! Café déjà vu — 123 😊"
        one = json.loads(self.succeed("tokenize", DEMO, "--json", "-p", text))
        self.assertEqual(one["ids"][0], 2)
        self.assertEqual(one["text"], "<bos>" + text)
        bare = json.loads(self.succeed("tokenize", DEMO, "--json", "--no-bos", stdin=text))
        self.assertEqual(bare, {"ids": one["ids"][1:], "text": text})
        lines = self.write("texts.jsonl", json.dumps({"text": text}) + "\n\n" +
                           json.dumps({"text": ""}) + "\n")
        self.assertEqual([json.loads(line) for line in
                          self.succeed("tokenize", DEMO, "--jsonl", lines).splitlines()],
                         [one, {"ids": [2], "text": "<bos>"}])
        table = self.succeed("tokenize", DEMO, "-p", text).splitlines()
        self.assertEqual([int(line.split()[0]) for line in table], one["ids"])
        self.assertIn("(special)", table[0])
        for line, says in (('{"text": 5}', '"text"'), ("x", "not JSON"), ('{"text": "a", "b": 1}', '"b"'),
                           ('{"text": "a", "text": "b"}', "twice")):
            path = self.write("bad.jsonl", '{"text": "a"}\n' + line)
            self.fail_with(1, "tokenize", DEMO, "--jsonl", path, says=["bad.jsonl:2", says])


class LogitsTest(CliCase):
    def test_file_holds_every_line(self):
        ids = self.write("ids.txt", "2 5 6 7\n2,9\n")
        out = self.path("logits.safetensors")
        self.succeed("logits", TINY_GGUF, "--ids-file", ids, "-o", out, "--compute", "f32",
                     "--hidden-states")
        tensors = read_safetensors(out)
        self.assertEqual(tensors["logits.0"][:2], ("F32", [4, 304]))
        self.assertEqual(tensors["logits.1"][:2], ("F32", [2, 304]))
        self.assertEqual(tensors["hidden.1.embedding"][1][0], 2)
        piped = self.path("piped.safetensors")
        self.succeed("logits", TINY_GGUF, "--ids-file", "-", "-o", piped, "--compute", "f32",
                     "--batch-tokens", "1", stdin="2 5 6 7\n")
        self.assertEqual(read_safetensors(piped)["logits.0"], tensors["logits.0"])

    def test_bad_ids(self):
        for content, says in (("", "holds no token ids"), ("2\n\n3", "ids.txt:2"), ("2 x", "'x'"),
                              ("2 304", "304"), ("2 -1", "-1"), ("2 99999999999999999999", "ids.txt:1")):
            ids = self.write("ids.txt", content)
            self.fail_with(1, "logits", TINY_GGUF, "--ids-file", ids, "-o", self.path("l"), says=[says])
        self.assertFalse(os.path.exists(self.path("l")))


class BatchTest(CliCase):
    def results(self, name="out.jsonl"):
        with open(self.path(name), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_every_line_has_its_answer(self):
        template = self.write("t.jinja", "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}")
        lines = [  # the line, and what its error says (None: it is generated)
            (b'{"prompt": "the", "id": "a"}', None),
            (b"", "blank"),
            (b"not json", "not JSON"),
            (b'{"prompt": "\xff"}', "UTF-8"),
            (b'{"prompt": "a", "prompt": "b"}', "given twice"),
            (b'{"prompt": "a", "temperature": 0, "temperature": 1}', "given twice"),
            (b"[1]", "object"),
            (b"{}", "expected one of"),
            (b'{"prompt": "a", "ids": [2]}', "expected one of"),
            (b'{"prompt": 5}', '"prompt"'),
            (b'{"prompt": "a", "max_tokens": "4"}', '"max_tokens"'),
            (b'{"prompt": "a", "max_tokens": 0}', "max tokens is 0"),
            (b'{"prompt": "a", "max_tokens": 99999999999999999999}', '"max_tokens"'),
            (b'{"prompt": "a", "top_k": 4294967296}', '"top_k"'),
            (b'{"prompt": "a", "top_p": 7}', "top_p"),
            (b'{"prompt": "a", "temprature": 1}', '"temprature"'),
            (b'{"prompt": "a", "stop": ""}', '"stop"'),
            (b'{"prompt": "a", "id": [1]}', '"id"'),
            (b'{"prompt": "a", "seed": -1}', '"seed"'),
            (b'{"ids": []}', "empty"),
            (b'{"ids": [2, 304]}', "304"),
            (b'{"ids": [2, -1]}', "-1"),
            (b'{"ids": [2, 1.5]}', '"ids"'),
            (b'{"ids": [2, "3"]}', '"ids"'),
            (b'{"messages": []}', '"messages"'),
            (b'{"messages": [{"content": "x"}]}', "role"),
            (b'{"messages": [{"role": "user", "content": 5}]}', '"content"'),
            (b'{"messages": [{"role": "user", "content": "x", "mood": 1}]}', '"mood"'),
            (b"[" * 5000, "nested"),
            (b'{"prompt": "' + b"the " * 500 + b'"}', "context holds"),
            (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "the"}]}]}', None),
            (b'{"ids": [2, 5, 6], "id": 7, "max_tokens": 2}', None),
            (b'{"prompt": "", "stop": ["zzz"], "seed": 3, "temperature": 0.5}', None),
            (b'{"prompt": "the", "id": "a"}', None),
        ]
        prompts = self.write("in.jsonl", b"\n".join(line for line, _ in lines))
        self.fail_with(1, "run", TINY_GGUF, "--prompts", prompts, "-o", self.path("out.jsonl"),
                       "-n", "4", "-c", "128", "--chat-template", template, *GREEDY,
                       says=["in.jsonl", "not every line"])
        results = {result["index"]: result for result in self.results()}
        self.assertEqual(list(results), [i for i, (line, _) in enumerate(lines) if line])
        for index, (line, says) in enumerate(lines):
            if not line:
                continue
            with self.subTest(line=line[:80]):
                if says is None:
                    self.assertIn("text", results[index])
                    self.assertNotIn("error", results[index])
                else:
                    self.assertIn(says, results[index]["error"])
        self.assertEqual(results[0]["id"], "a")
        self.assertEqual(results[31]["id"], 7)
        self.assertEqual(results[31]["usage"], {"prompt_tokens": 3, "completion_tokens": 2})
        self.assertEqual(results[33]["text"], results[0]["text"])

    def test_streams_and_empty_files(self):
        self.assertEqual(self.succeed("run", TINY_GGUF, "--prompts", "-", stdin=""), "")
        self.assertEqual(self.succeed("run", TINY_GGUF, "--prompts", "-", stdin="\n \n"), "")
        out = self.succeed("run", TINY_GGUF, "--prompts", "-", "-n", "2", *GREEDY,
                           stdin='{"prompt": "a"}\r\n{"prompt": "b"}')
        self.assertEqual([json.loads(line)["index"] for line in out.splitlines()], [0, 1])

    def test_output_files(self):
        prompts = self.write("in.jsonl", '{"prompt": "a"}\n')
        arguments = ["run", TINY_GGUF, "--prompts", prompts, "-n", "2"]
        self.fail_with(1, *arguments, "-o", self.path("no/out.jsonl"), says=["no/out.jsonl"])
        self.fail_with(1, *arguments, "-o", "/dev/full", says=["/dev/full", "write"])
        self.fail_with(1, *arguments, "-o", prompts, says=["in.jsonl"])
        with open(prompts, encoding="utf-8") as file:
            self.assertEqual(file.read(), '{"prompt": "a"}\n')
        self.fail_with(1, "run", TINY_GGUF, "--prompts", self.path("nowhere"), says=["nowhere"])
        # A model that cannot be loaded costs no results.
        self.write("out.jsonl", "kept\n")
        self.fail_with(1, "run", self.path("nomodel"), "--prompts", prompts, "-o",
                       self.path("out.jsonl"), says=["nomodel"])
        with open(self.path("out.jsonl"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "kept\n")

    def start_and_block(self, prompts):
        """A batch that is in the midst of writing its second line, and what of its output came so far."""
        source, sink = os.pipe()
        self.addCleanup(os.close, source)
        process = subprocess.Popen([BRAID, "run", DEMO, "--prompts", prompts, "-o", "/dev/fd/%d" % sink, "-n",
                                    "40", "--max-sequences", "2", *GREEDY], stderr=subprocess.PIPE,
                                   pass_fds=[sink])
        os.close(sink)
        output = b""
        while output.find(b"\n") in (-1, len(output) - 1):
            piece = os.read(source, 65536)
            if not piece:
                self.fail("the batch ended: %s" % (process.communicate(),))
            output += piece
        return process, source, output

    def test_interrupted_batches_lose_nothing_and_resume(self):
        starts = ["One", "The house", "A river", "In the beginning", "Python", "It was", "She", "God"]
        # No pipe has room for the second answer: its writer waits for the reader, and is not done early.
        prompts = self.write("in.jsonl", "".join(
            json.dumps({"prompt": text, "max_tokens": 4 if i == 0 else 40,
                        "id": "x" * 1000000 if i == 1 else i}) + "\n"
            for i, text in enumerate(starts)))
        self.succeed("run", DEMO, "--prompts", prompts, "-o", self.path("whole.jsonl"), "-n", "40",
                     *GREEDY)
        whole = self.results("whole.jsonl")
        self.assertEqual([result["index"] for result in whole], list(range(8)))

        process, source, output = self.start_and_block(prompts)
        process.send_signal(signal.SIGINT)
        with os.fdopen(os.dup(source), "rb") as rest:
            output += rest.read()
        _, messages = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 1, messages)
        self.write("out.jsonl", output)
        results = self.results()
        self.assertEqual([result["index"] for result in results], list(range(8)))
        self.assertEqual(results[:2], whole[:2])
        for result, reference in zip(results[2:], whole[2:]):
            self.assertEqual(result["finish_reason"], "cancelled")
            self.assertTrue(reference["text"].startswith(result["text"]))
        self.assertGreater(len(results[2]["text"]), 0)
        resume = ["run", DEMO, "--prompts", prompts, "-o", self.path("out.jsonl"), "-n", "40", "--resume",
                  *GREEDY]
        self.succeed(*resume)
        self.assertEqual(self.results(), whole)

        process, _, output = self.start_and_block(prompts)
        process.kill()
        process.communicate()
        first, half = output.split(b"\n")
        self.assertEqual(json.loads(first), whole[0])
        self.assertGreater(len(half), 0)
        self.write("out.jsonl", output)
        self.succeed(*resume)
        self.assertEqual(self.results(), whole)

    def test_resume_checks_what_it_continues(self):
        prompts = self.write("in.jsonl", '{"prompt": "a"}\n{"prompt": "b", "top_p": 9}\n')
        arguments = ["run", TINY_GGUF, "--prompts", prompts, "-o", self.path("out.jsonl"), "-n", "2",
                     "--resume", *GREEDY]
        self.fail_with(1, *arguments, says=["not every line"])
        first = self.results()
        self.fail_with(1, *arguments, says=["not every line"])  # the failure is still there
        self.assertEqual(self.results(), first)
        for content in ("text\n", '{"index": 1, "error": "x"}\n',
                        '{"index": 0, "error": "x"}\n' * 2):
            self.write("out.jsonl", content)
            self.fail_with(1, *arguments, says=["--resume"])
            with open(self.path("out.jsonl"), encoding="utf-8") as file:
                self.assertEqual(file.read(), content)


if __name__ == "__main__":
    unittest.main()
