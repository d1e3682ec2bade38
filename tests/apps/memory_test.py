#!/usr/bin/env python3
"""--memory-budget: what is planned, what is refused, and what a process really takes."""

import json
import os
import re
import subprocess
import sys
import unittest

from cli_case import BRAID, CliCase, DEMO, PATIENCE, SOURCE

HELDOUT = os.path.join(os.environ["BRAID_DEMO_MODELS"], "heldout", "heldout.txt")
FIXED = ("-t", "2", "--weight-cache", "off")
GREEDY = ("--greedy", "-n", "4")


class MemoryCase(CliCase):
    def peak_of(self, *arguments, code=0):
        """The result of a command and the most memory it had resident, in bytes."""
        command = [BRAID] + [str(argument) for argument in arguments]
        # A process of its own asks for the peak of its only child.
        ask = ("import resource, subprocess, sys\n"
               "code = subprocess.run(sys.argv[1:]).returncode\n"
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
               "sys.exit(code)\n")
        result = subprocess.run([sys.executable, "-c", ask] + command, capture_output=True,
                                timeout=PATIENCE)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout.decode(), int(result.stderr.decode().split()[-1]) * 1024


class PlanTest(MemoryCase):
    def test_a_run_stays_within_its_plan(self):
        prompt = self.write("prompt.txt", "All that we saw that day was new to us. " * 150)
        for kv in ("f32", "int8"):
            out, peak = self.peak_of("run", DEMO, "-f", prompt, *GREEDY, *FIXED, "--json", "--kv",
                                     kv, "--ctx-size", 4096, "--memory-budget", "400MiB")
            plan = json.loads(out)["memory"]
            self.assertEqual(plan["budget"], 400 << 20)
            self.assertEqual(plan["total"], sum(item["bytes"] for item in plan["items"]))
            self.assertEqual(plan["total"], sum(plan[kind] for kind in
                                                ("weights", "cache", "workspace", "fixed")))
            self.assertLessEqual(plan["total"], plan["budget"])
            self.assertLessEqual(peak, plan["total"])
            # The plan is no wild guess: the whole context is not used here.
            self.assertGreater(peak, 0.3 * plan["total"])

    def test_an_evaluation_stays_within_its_plan(self):
        out, peak = self.peak_of("eval", DEMO, "--reference", "demo:gemma4", "--text", HELDOUT,
                                 "--max-tokens", 3000, "--buckets", "128,1024", *FIXED, "--json",
                                 "--memory-budget", "1GiB")
        result = json.loads(out)
        self.assertLessEqual(peak, result["memory"]["total"])
        names = [item["what"] for item in result["memory"]["items"]]
        self.assertIn("reference: weights", names)
        self.assertEqual(len(result["nll"]["buckets"]), 2)

    def test_bench_and_logits_stay_within_their_plans(self):
        ids = self.write("ids.txt", " ".join(["5"] * 700) + "\n")
        for command in (("bench", DEMO, "--prompt", 256, "--generate", 4, "--batch", "1,3", "-r", 1),
                        ("logits", DEMO, "--ids-file", ids, "-o", self.path("l.safetensors"))):
            result = self.braid(*command, *FIXED, "--memory-budget", "1GiB")
            self.assertEqual(result.returncode, 0, result.stderr)
            planned, peak = re.search(r"memory: ([\d.]+) MB planned, ([\d.]+) MB at the peak",
                                      result.stderr.decode()).groups()
            self.assertLessEqual(float(peak), float(planned))
            self.assertIn("activations", result.stderr.decode())

    def test_quantising_stays_within_its_plan(self):
        for number, options in enumerate((("--sequences", 8, "--match-source"), ("--sequences", 8, "--one-pass"),
                                          ("--method", "rtn"),
                                          ("--scheme", "keep", "--kv", "int8-static", "--sequences", 8))):
            out, peak = self.peak_of("quantize", DEMO, "-o", self.path(f"out{number}"), "-t", 2, *options, "--json",
                                     "--memory-budget", "1GiB")
            plan = json.loads(out)["memory"]
            self.assertLessEqual(peak, plan["total"])
            self.assertGreater(peak, 0.3 * plan["total"])

    def test_quantising_names_what_would_fit(self):
        wanted = ("quantize", DEMO, "-o", self.path("out"), "-t", 2)
        said = self.fail_with(1, *wanted, "--memory-budget", "130MB", says=("128 sequences", "fits")).stderr.decode()
        fitting = int(re.search(r"--sequences (\d+) fits", said).group(1))
        self.fail_with(1, *wanted, "--sequences", fitting + 1, "--memory-budget", "130MB", says=("fits",))
        self.succeed(*wanted, "--sequences", fitting, "--memory-budget", "130MB")
        self.fail_with(1, *wanted, "--memory-budget", "1MB", says=("not even one sequence fits",))

    def test_drafters_are_planned(self):
        for model, drafter, items in (
                ("demo:qwen3next", "mtp", ("head of 4 bits", "keys and values of all tokens",
                                           "activations", "logits", "hidden states")),
                (DEMO, "model:" + DEMO, ("weights", "keys and values of all tokens",
                                         "keys and values of windows", "activations")),
                (DEMO, "assistant:demo:gemma4-assistant", ("weights", "activations",
                                                           "hidden states"))):
            arguments = ("run", model, "-p", "It was a cold morning", "--greedy", "-n", "12",
                         *FIXED, "--json", "--ctx-size", 512, "--memory-budget", "400MiB")
            plain = json.loads(self.succeed(*arguments))
            out, peak = self.peak_of(*arguments, "--speculate", drafter, "--draft-policy", "fixed")
            reply = json.loads(out)
            plan = reply["memory"]
            self.assertEqual(reply["ids"], plain["ids"])
            self.assertGreater(reply["speculation"]["rounds"], 0)
            self.assertEqual([item["what"] for item in plan["items"]
                              if item["what"].startswith("draft: ")],
                             ["draft: " + item for item in items])
            self.assertGreater(plan["total"], plain["memory"]["total"])
            self.assertLessEqual(peak, plan["total"])

    def test_the_context_follows_from_the_budget(self):
        whole = json.loads(self.succeed("run", DEMO, "-p", "The", *GREEDY, *FIXED, "--json",
                                        "--memory-budget", "4GiB"))
        tight = whole["memory"]["total"] - whole["memory"]["cache"] // 2
        result = self.braid("run", DEMO, "-p", "The", *GREEDY, *FIXED, "--json", "--memory-budget",
                            tight)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("as many as the memory budget has room for", result.stderr.decode())
        reply = json.loads(result.stdout)
        self.assertEqual(reply["ids"], whole["ids"])
        self.assertLessEqual(reply["memory"]["total"], tight)
        self.assertGreater(reply["memory"]["total"], tight - (1 << 20))

    def test_inspect_says_what_would_fit(self):
        plan = json.loads(self.succeed("inspect", DEMO, "--json", "--ctx-size", 4096, *FIXED,
                                       "--memory-budget", "2GiB"))["memory"]
        self.assertTrue(plan["fits"])
        self.assertEqual(plan["largest_context"], 4096)
        small = self.fail_with(1, "inspect", DEMO, "--json", "--ctx-size", 4096, *FIXED,
                               "--memory-budget", plan["total"] - 1, says=("budget",))
        plan = json.loads(small.stdout)["memory"]
        self.assertFalse(plan["fits"])
        self.assertLess(plan["largest_context"], 4096)
        # What it names fits, one token more does not.
        largest = plan["largest_context"]
        budget = plan["budget"]
        self.succeed("inspect", DEMO, "--json", "--ctx-size", largest, *FIXED, "--memory-budget",
                     budget)
        self.fail_with(1, "inspect", DEMO, "--json", "--ctx-size", largest + 64, *FIXED,
                       "--memory-budget", budget)


class RefusalTest(MemoryCase):
    def test_what_does_not_fit_is_refused_with_figures(self):
        figures = ("memory budget is 52.4 MB", "weights", "cache", "workspace", "fixed", "needed")
        self.fail_with(1, "run", DEMO, "-p", "x", *FIXED, "--ctx-size", 8192, "--memory-budget",
                       "50MiB", says=figures)
        lines = self.write("prompts.jsonl", '{"prompt": "a"}\n')
        self.fail_with(1, "run", DEMO, "--prompts", lines, *FIXED, "--ctx-size", 4096,
                       "--max-sequences", 64, "--memory-budget", "200MiB",
                       says=("64 sequences at a time fit with a context of at most",
                             "with a context of 4096 tokens at most", "at a time"))
        self.fail_with(1, "eval", DEMO, "--text", HELDOUT, *FIXED, "--memory-budget", "60MiB",
                       says=("budget",))
        self.fail_with(1, "bench", DEMO, *FIXED, "--memory-budget", "60MiB", says=("budget",))
        ids = self.write("ids.txt", "5 6 7\n")
        self.fail_with(1, "logits", DEMO, "--ids-file", ids, "-o", self.path("out"), *FIXED,
                       "--memory-budget", "30MiB", says=("budget",))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_weights_beyond_the_budget_are_not_even_bound(self):
        for command in (("run", DEMO, "-p", "x"), ("inspect", DEMO), ("bench", DEMO),
                        ("eval", DEMO, "--text", HELDOUT)):
            self.fail_with(1, *command, *FIXED, "--memory-budget", "1MiB",
                           says=("the weights alone take 17", "1.05 MB", "no context fits"))

    def test_a_large_model_is_refused_without_its_memory(self):
        shapes = os.path.join(SOURCE, "tests", "data", "models", "gemma3")
        big = self.path("big")
        os.mkdir(big)
        with open(os.path.join(shapes, "config.json")) as file:
            config = json.load(file)
        text = config.get("text_config", config)
        text.update(hidden_size=4096, intermediate_size=16384, vocab_size=65536)
        with open(os.path.join(big, "config.json"), "w") as file:
            json.dump(config, file)
        command = ["bench", big, "--load-format", "dummy", *FIXED, "--memory-budget", "200MiB"]
        self.fail_with(1, *command, says=("budget", "needed"))
        _, peak = self.peak_of(*command, code=1)
        # The weights would take more than 3 GB.
        self.assertLess(peak, 100 << 20)

    def test_arguments(self):
        for text in ("0", "-1", "ten", "10Gb/s", "1.2.3MB", "GiB", "1e40"):
            self.fail_with(2, "run", DEMO, "-p", "x", "--memory-budget=" + text,
                           says=("--memory-budget",))
        self.fail_with(1, "run", DEMO, "-p", "x", "--memory-budget", "1GiB", "--speculate", "mtp",
                       says=("--speculate mtp",))
        self.fail_with(2, "run", DEMO, "-p", "x", "--offload", says=("--offload", "--memory-budget"))
        self.fail_with(2, "run", DEMO, "-p", "x", "--offload", "--memory-budget", "1GiB",
                       says=("--offload is for --device cuda",))
        self.fail_with(2, "logits", DEMO, "--ids-file", "-", "-o", self.path("o"),
                       "--memory-budget", "1GiB", says=("--memory-budget",))


if __name__ == "__main__":
    unittest.main()
