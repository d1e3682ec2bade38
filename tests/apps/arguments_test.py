import json
import unittest

from cli_case import DEMO, TINY_GGUF, CliCase


class ArgumentsTest(CliCase):
    def test_help_has_examples(self):
        self.assertIn("Subcommands", self.succeed("--help"))
        for command in ("run", "tokenize", "logits", "inspect"):
            text = self.succeed(command, "--help")
            self.assertIn("Examples:", text)
            self.assertIn("braid " + command, text)
        self.assertRegex(self.succeed("--version"), r"^\d+\.\d+\.\d+\n$")

    def test_wrong_arguments_are_usage_errors(self):
        for arguments in (
            [],
            ["nosuch"],
            ["run", "--nosuch"],
            ["run", "--threads", "many"],
            ["run", "--threads", "-1"],
            ["run", "--isa", "sse9"],
            ["run", "--compute", "f8"],
            ["run", "-n", "0"],
            ["run", "-n", "-2"],
            ["run", "--seed", "-2"],
            ["run", "--top-p", "0"],
            ["run", "--top-p", "1.5"],
            ["run", "--min-p", "2"],
            ["run", "--temp", "-1"],
            ["run", "--temp", "nan"],
            ["run", "--top-k", "-2"],
            ["run", "--greedy", "--temp", "1"],
            ["run", "--stop", ""],
            ["run", "--logit-bias", "5"],
            ["run", "--logit-bias", "5=x"],
            ["run", "--ctx-size", "-1"],
            ["run", "--output", "x.jsonl"],
            ["run", "--prompts", "x.jsonl", "--resume"],
            ["run", "--prompts", "x.jsonl", "-p", "hi"],
            ["run", "--prompts", "x.jsonl", "-f", "y"],
            ["run", "--system", "Be brief.", "-p", "hi"],
            ["run", "--thinking", "on", "-p", "hi"],
            ["run", "--chat", "--json"],
            ["run", "--speculate", "nosuch"],
            ["run", "--speculate", "model:"],
            ["run", "--draft-tokens", "3"],
            ["run", "--draft-policy", "fixed"],
            ["run", "--speculate", "ngram", "--draft-tokens", "0"],
            ["run", "--speculate", "ngram", "--draft-tokens", "1000"],
            ["run", "--speculate", "ngram", "--draft-policy", "nosuch"],
            ["run", DEMO, "-m", DEMO],
            ["run", DEMO, "another"],
            ["inspect"],
            ["tokenize", "-p", "hi"],
            ["logits", DEMO],
            ["logits", DEMO, "--ids-file", "x"],
            ["tokenize", DEMO, "-p", "a", "-f", "b"],
        ):
            with self.subTest(arguments=arguments):
                self.fail_with(2, *arguments)

    def test_repeatable_options_leave_the_model_alone(self):
        out = self.succeed("run", "--stop", "zzz", "--stop-id", "7", "--logit-bias", "9=1",
                           TINY_GGUF, "-p", "the", "-n", "2", "--json")
        self.assertEqual(json.loads(out)["model"], TINY_GGUF)

    def test_device_and_limits(self):
        self.fail_with(1, "run", DEMO, "-p", "x", "--device", "cuda", says=["--device cuda"])
        self.fail_with(1, "run", TINY_GGUF, "-p", "x", "-c", "100000000", says=["context", "limit"])
        self.fail_with(1, "run", TINY_GGUF, "-p", "the cat and the dog", "-c", "4",
                       says=["context holds 4", "--ctx-size"])

    def test_drafters_are_listed(self):
        self.fail_with(2, "run", DEMO, "-p", "x", "--speculate", "eagle",
                       says=["mtp", "assistant:PATH", "model:PATH", "ngram", "off"])

    def test_demo_names_are_listed(self):
        self.fail_with(1, "run", "demo:nowhere", says=["demo:gemma4", "demo:gemma4-dense"])


if __name__ == "__main__":
    unittest.main()
