#!/usr/bin/env python3
"""`braid bench` and --profile: what they print and write, and how they fail. No times are judged."""

import json
import os
import unittest
import xml.etree.ElementTree

from cli_case import CliCase, MODELS

GEMMA3 = os.path.join(MODELS, "gemma3")
QUICK = ("--load-format", "dummy", "--dummy-format", "q8_0", "--repetitions", "2")


class BenchTest(CliCase):
    @classmethod
    def setUpClass(cls):
        os.environ["BRAID_ISA"] = "portable"

    def bench(self, *arguments):
        return json.loads(self.succeed("bench", GEMMA3, *QUICK, "--json", *arguments))

    def test_json_has_all_rows(self):
        result = self.bench("--prompt", "8,12", "--generate", "3", "--batch", "1,2",
                            "--threads", "1,2", "--depth", "0,5")
        keys = [(row["test"], row["batch"], row["threads"], row["depth"])
                for row in result["rows"]]
        expected = [(test, batch, threads, depth)
                    for threads in (1, 2) for depth in (0, 5)
                    for test, batch in (("pp8", 1), ("pp12", 1), ("tg3", 1), ("tg3", 2))]
        self.assertEqual(keys, expected)
        for row in result["rows"]:
            self.assertEqual(len(row["seconds"]), 2)
            self.assertGreater(row["per_second"], 0)
            self.assertIn(row["bound"], ("memory", "int8", "f32"))
            self.assertGreater(row["work"]["weight_bytes"], 0)
            self.assertTrue(any(op["op"] == "linear" for op in row["ops"]))
        self.assertEqual([c["threads"] for c in result["ceilings"]], [1, 2])
        self.assertEqual(result["environment"]["isa"], "portable")
        self.assertIn("--prompt 8,12", result["environment"]["command"])
        self.assertEqual(result["weights"], "dummy q8_0x16")
        rows = self.bench("--prompt", "8", "--generate", "0", "--threads", "1",
                          "--dummy-layout", "rows")
        self.assertEqual(rows["weights"], "dummy q8_0")
        # The second run takes the ceilings of the first.
        again = self.bench("--prompt", "8", "--generate", "0", "--threads", "2")
        self.assertEqual(again["ceilings"], result["ceilings"][1:])
        self.assertEqual([row["test"] for row in again["rows"]], ["pp8"])

    def test_jobs_are_measured_whole(self):
        result = self.bench("--prompt", "0", "--generate", "0", "--threads", "1",
                            "--jobs", "3x8+4,1x5+2")
        self.assertEqual([(row["test"], row["phase"], row["batch"], row["tokens"])
                          for row in result["rows"]],
                         [("job8+4", "job", 3, 36), ("job5+2", "job", 1, 7)])
        for row in result["rows"]:
            self.assertEqual(len(row["seconds"]), 2)
            # A step for the prompts, one for each token after them.
            self.assertEqual(row["work"]["calls"], 1 + int(row["test"].split("+")[1]))
        for job in ("8x4", "0x4+4", "x4+4", "4x4+", "4x4+4x", "-1x4+4", "99999x4+4"):
            self.fail_with(2, "bench", GEMMA3, *QUICK, "--jobs=" + job, says=("--jobs", "10x256+32"))

    def test_table_page_and_comparison(self):
        page, first, second = self.path("page.html"), self.path("a.json"), self.path("b.json")
        small = ("--prompt", "8", "--generate", "2", "--threads", "1")
        table = self.succeed("bench", GEMMA3, *QUICK, *small, "--html", page, "-o", first)
        for text in ("pp8", "tg2", "tok/s", "bound", "share", "ceilings of 1 thread"):
            self.assertIn(text, table)
        with open(page) as file:
            root = xml.etree.ElementTree.fromstring(
                file.read().replace("<!DOCTYPE html>", ""))
        self.assertEqual(root.tag, "html")
        self.assertEqual(len(root.findall(".//svg")), 2)

        with open(first) as file:
            result = json.load(file)
        result["rows"][0]["seconds"] = [s * 2 for s in result["rows"][0]["seconds"]]
        with open(second, "w") as file:
            json.dump(result, file)
        report = self.succeed("bench", "compare", first, second)
        lines = report.splitlines()
        self.assertIn("pp8", lines[2])
        self.assertIn("0.500", lines[2])
        self.assertIn("1.000", lines[3])
        self.fail_with(1, "bench", "compare", first, second, "--tolerance", "10",
                       says=("1 of 2 rows", "pp8"))
        self.succeed("bench", "compare", first, second, "--tolerance", "60")

    def test_kernels(self):
        result = json.loads(self.succeed("bench", "kernels", "--filter", "rms_norm.*n1$", "--json",
                                         "--threads", "1", "--repetitions", "1"))
        self.assertEqual([row["phase"] for row in result["rows"]], ["op"])
        names = self.succeed("bench", "kernels", "--list").splitlines()
        self.assertEqual(len(names), len(set(names)))
        for start in ("linear q4_0 ", "attention ", "gated_delta ", "rms_norm "):
            self.assertTrue(any(name.startswith(start) for name in names), start)

    def test_profile(self):
        trace = self.path("trace.json")
        ids = self.write("ids.txt", "1 2 3\n")
        for command in (
                ("bench", GEMMA3, *QUICK, "--prompt", "8", "--generate", "2", "--threads", "1"),
                ("logits", GEMMA3, "--load-format", "dummy", "--ids-file", ids, "-o",
                 self.path("logits.safetensors"))):
            result = self.braid(*command, "--profile", trace)
            self.assertEqual(result.returncode, 0, result.stderr)
            report = result.stderr.decode()
            for text in ("linear", "attention", "head", "GB/s", "(between ops)"):
                self.assertIn(text, report)
            with open(trace) as file:
                events = json.load(file)["traceEvents"]
            self.assertTrue({"op", "layer", "step"} <= {event["cat"] for event in events})
            for event in events:
                self.assertEqual(event["ph"], "X")
                self.assertGreaterEqual(event["dur"], 0)
        without_file = self.braid("logits", GEMMA3, "--load-format", "dummy", "--ids-file", ids,
                                  "-o", self.path("l.safetensors"), "--profile")
        self.assertEqual(without_file.returncode, 0)
        self.assertIn("linear", without_file.stderr.decode())

    def test_bad_arguments(self):
        self.fail_with(2, "bench", says=("MODEL",))
        for arguments in (("--prompt", "-1"), ("--prompt", "x"), ("--batch", "0"),
                          ("--repetitions", "0"), ("--threads", "1,x"),
                          ("--prompt", "0", "--generate", "0"), ("--prompt", "5000")):
            self.fail_with(2, "bench", GEMMA3, *QUICK, *arguments)
        self.fail_with(2, "bench", "kernels", "--filter", "(")
        self.fail_with(2, "bench", "kernels", "--filter", "no such case")
        self.fail_with(2, "bench", "compare", self.path("a.json"))
        self.fail_with(2, "logits", GEMMA3, "--ids-file", "x", "-o", "y", "--profile", "trace.txt",
                       says=(".json",))

    def test_bad_files(self):
        self.fail_with(1, "bench", self.path("nothing"), says=("nothing",))
        empty = self.write("empty.json", "")
        other = self.write("other.json", "{}")
        self.fail_with(1, "bench", "compare", empty, other, says=("empty.json",))
        self.fail_with(1, "bench", "compare", self.path("none.json"), other, says=("none.json",))
        folder = self.path("folder")
        os.mkdir(folder)
        self.fail_with(1, "bench", GEMMA3, *QUICK, "--prompt", "8", "--generate", "0", "--threads",
                       "1", "--html", folder, says=(folder,))


if __name__ == "__main__":
    unittest.main()
