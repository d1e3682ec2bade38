"""braid quantize as a user meets it: models that run, and one clear line for what cannot be done."""

import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from cli_case import BRAID, MODELS, PATIENCE, CliCase

HELDOUT = os.path.join(os.environ["BRAID_DEMO_MODELS"], "heldout", "heldout.txt")


class QuantizeTest(CliCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.folder)
        self.out = self.root / "out"

    def refuse(self, says, *arguments, code=1):
        self.fail_with(code, "quantize", *arguments, says=[says])

    def test_quantised_models_run(self):
        for scheme in (["--scheme", "w8a8"], ["--sequences", "8", "--sequence-length", "64"]):
            out = self.root / scheme[0].strip("-")
            result = self.succeed("quantize", "demo:gemma4-dense", "-o", out, "--json", *scheme)
            facts = json.loads(result)
            self.assertEqual(facts["tensors_quantised"], 54)
            self.assertLess(facts["bytes_after"], 0.7 * facts["bytes_before"])
            self.assertTrue((out / "report.md").is_file())
            text = self.succeed("run", out, "-p", "It was a cold", "-n", "8", "--temp", "0")
            self.assertGreater(len(text.strip()), 0)

    def test_group_sizes_that_do_not_divide(self):
        # B09: experts 64 wide.
        self.succeed("quantize", "demo:gemma4", "-o", self.out, "--method", "rtn", "--group-size", "128")
        self.assertIn("groups of 64, as 128 does not divide 64", (self.out / "report.md").read_text())
        self.refuse("groups of 128 do not divide rows of 64", "demo:gemma4", "-o", self.root / "strict",
                 "--method", "rtn", "--strict")
        self.assertFalse((self.root / "strict").exists())

    def test_calibration_without_text(self):
        empty = self.root / "empty.txt"
        empty.write_text(" \n")
        self.refuse("the calibration text is empty", "demo:gemma4", "-o", self.out, "--calibration", empty)
        empty.write_text("a few words\n")
        self.refuse("too few for one sequence", "demo:gemma4", "-o", self.out, "--calibration", empty)
        self.refuse("No such file", "demo:gemma4", "-o", self.out, "--calibration", self.root / "none.txt")
        self.assertFalse(self.out.exists())

    def test_balancing(self):
        for strength in ("-0.1", "1.5", "nan", "half"):
            self.refuse("--balance", "demo:gemma4", "-o", self.out, "--scheme", "w8a8", "--balance", strength, code=2)
        self.refuse("--balance 0.5: is for folders", "demo:gemma4", "-o", self.root / "m.gguf", "--scheme", "q8_0",
                    "--balance", "0.5", code=2)
        self.assertEqual(os.listdir(self.root), [])
        calibration = ["--sequences", "4", "--sequence-length", "64"]
        self.succeed("quantize", "demo:gemma4-dense", "-o", self.out, "--scheme", "w8a8", "--balance", "0.5", *calibration)
        report = json.loads((self.out / "report.json").read_text())
        self.assertEqual(report["balance"]["strength"], 0.5)
        self.assertGreater(max(group["largest"] for group in report["balance"]["groups"]), 1)
        self.assertIn("## Balancing", (self.out / "report.md").read_text())
        text = self.succeed("run", self.out, "-p", "It was a cold", "-n", "8", "--temp", "0")
        self.assertGreater(len(text.strip()), 0)

    def test_few_lines_starve_experts(self):
        # B08.
        text = self.root / "tiny.txt"
        text.write_text("\n".join(f"A short English line, the number {i} of eight." for i in range(8)))
        self.succeed("quantize", "demo:gemma4", "-o", self.out, "--calibration", text, "--sequence-length", "16")
        report = json.loads((self.out / "report.json").read_text())
        self.assertGreater(report["starved_experts"], 0)
        self.assertIn("## Starved experts", (self.out / "report.md").read_text())

    def test_gguf_files(self):
        for scheme, out in (("q4_k", "a.gguf"), ("q4_0", "b.gguf"), ("q8_0", "c.gguf")):
            out = self.root / out
            facts = json.loads(self.succeed("quantize", "demo:gemma4-dense", "-o", out, "--scheme", scheme, "--json"))
            self.assertEqual(facts["files"], [out.name])
            self.assertLess(facts["bytes_after"], 0.6 * facts["bytes_before"])
            report = json.loads(out.with_suffix(".report.json").read_text())
            self.assertTrue(all("stored_in" in tensor or "left_out" in tensor for tensor in report["tensors"]))
            text = self.succeed("run", out, "-p", "It was a cold", "-n", "8", "--temp", "0")
            self.assertGreater(len(text.strip()), 0)
        # And on from there.
        again = self.root / "again.gguf"
        self.succeed("quantize", self.root / "c.gguf", "-o", again, "--scheme", "q4_1")
        evaluated = json.loads(self.succeed("eval", again, "--reference", self.root / "c.gguf", "--json", "--buckets", "128",
                                            "--max-tokens", "600", "--text", HELDOUT))
        self.assertEqual(len(evaluated["nll"]["buckets"]), 1)
        self.refuse("is to be called *.gguf", "demo:gemma4", "-o", self.out, "--scheme", "q4_k", code=2)
        self.refuse("GGUF files have", "demo:gemma4", "-o", self.root / "d.gguf", "--scheme", "w8a8", code=2)
        self.refuse("is for GGUF files", "demo:gemma4", "-o", self.out, "--scheme", "q4_k", "--format", "gptq", code=2)
        self.refuse("already exists", "demo:gemma4", "-o", again, "--scheme", "q4_k")

    def test_parts_that_are_not_uniform(self):
        # B07: 8 bits in router and shared expert beside 4, joint recurrent projections in 4 bits, MTP as it was, and a
        # config that leaves out what is quantised and names what is not.
        self.succeed("quantize", "demo:qwen3next", "-o", self.out, "--method", "rtn", "--group-size", "32", "--recipe",
                     "shared_expert=w8a8", "--recipe", "attention=w8a8")
        arguments = ("eval", self.out, "--text", HELDOUT, "--buckets", "128", "--max-tokens", "700", "--json")
        before = json.loads(self.succeed(*arguments))
        path = self.out / "config.json"
        config = json.loads(path.read_text())
        groups = config["quantization_config"]["config_groups"]
        for group in groups.values():
            group["targets"] = ["re:.*mlp.*"]
        config["quantization_config"]["ignore"] = []
        path.write_text(json.dumps(config))
        result = self.braid(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["nll"], before["nll"])
        self.assertIn(b"leaves them out: model.layers.0.linear_attn.in_proj_qkvz", result.stderr)
        self.assertIn(b"says so: mtp.layers.0.mlp.experts.0.down_proj", result.stderr)

    def test_keys_and_values(self):
        for scheme, kv in (("keep", "int8"), ("keep", "int8-static"), ("w8a8", "int8-static")):
            out = self.root / f"{scheme}-{kv}"
            facts = json.loads(self.succeed("quantize", "demo:gemma4-dense", "-o", out, "--scheme", scheme, "--kv", kv,
                                            "--sequences", "4", "--sequence-length", "64", "--json"))
            static = kv == "int8-static"
            self.assertEqual(len(facts.get("tensors_added", [])), 16 if static else 0)
            self.assertEqual(facts["tensors_quantised"], 54 if scheme == "w8a8" else 0)
            config = json.loads((out / "config.json").read_text())["quantization_config"]
            self.assertEqual(config["kv_cache_scheme"]["dynamic"], not static)
            report = json.loads((out / "report.json").read_text())
            self.assertEqual(report["kv"]["storage"], kv)
            self.assertEqual("## Keys and values" in (out / "report.md").read_text(), static)
            result = self.braid("run", out, "-p", "It was a cold", "-n", "8", "--temp", "0")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreater(len(result.stdout.strip()), 0)
        self.refuse("quantised already", out, "-o", self.out, "--scheme", "keep", "--kv", "int8-static")
        empty = self.root / "empty.txt"
        empty.write_text(" \n")
        self.refuse("the calibration text is empty", "demo:gemma4", "-o", self.out, "--scheme", "w8a8", "--kv",
                    "int8-static", "--calibration", empty)
        for says, words in (("--kv", ["--kv", "int4"]),
                            ("a GGUF file has no place for it", ["--scheme", "q8_0", "--kv", "int8-static"]),
                            ("a GGUF file has no place for it", ["--scheme", "q4_k", "--kv", "int8"]),
                            ("--format gptq has no place for it", ["--format", "gptq", "--kv", "int8-static"]),
                            ("changes nothing", ["--scheme", "keep"])):
            name = "out.gguf" if "--scheme" in words and words[1].startswith("q") else "out"
            self.refuse(says, "demo:gemma4", "-o", self.root / name, *words, code=2)
        self.assertFalse(self.out.exists())

    def test_bad_arguments(self):
        for words in (["--recipe", "mlp"], ["--recipe", "mlp=w3"], ["--group-size", "48"], ["--scheme", "w2"],
                      ["--scheme", "w8a8", "--format", "gptq"]):
            self.refuse("", "demo:gemma4", "-o", self.out, "--method", "rtn", *words, code=2)
        self.refuse("no matrix of", "demo:gemma4", "-o", self.out, "--method", "rtn", "--keep", "nothing.*")
        self.refuse("quantised already", os.path.join(MODELS, "gemma3_w4a16"), "-o", self.out, "--method", "rtn")
        # What is refused leaves nothing to clear away.
        self.assertFalse(self.out.with_name(self.out.name + ".quantizing").exists())
        for name in ("gguf/qwen3_5_mtp_bf16.gguf", "gguf/gemma4_moe_bf16.gguf"):
            self.refuse("quantise to a GGUF file", os.path.join(MODELS, name), "-o", self.out, "--method", "rtn")
        self.out.mkdir()
        (self.out / "file").write_text("x")
        self.refuse("already exists", "demo:gemma4", "-o", self.out, "--method", "rtn")

    def start_and_freeze(self, words, work):
        """The command, stopped by SIGSTOP when a part more is done and layers are left."""
        parts = lambda: len(glob.glob(f"{work}/part-*.json"))
        wanted = parts() + 1
        for _ in range(20):
            process = subprocess.Popen([BRAID, *map(str, words)], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
            while process.poll() is None and parts() < wanted:
                time.sleep(0.005)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            # Twice this leaves some of the eight layers.
            if process.poll() is None and parts() < wanted + 3:
                return process
            # This script was slower than the program: once more, from the start.
            process.kill()
            _, error = process.communicate()
            self.assertIn(process.returncode, (0, -signal.SIGKILL), error)
            for folder in (work, self.out):
                shutil.rmtree(folder, ignore_errors=True)
        self.fail("never stopped in time")

    def test_interrupted_work_is_gone_on_with(self):
        words = ["quantize", "demo:gemma4-dense", "-o", self.out, "--sequences", "16", "--sequence-length", "128", "-t", "2"]
        work = pathlib.Path(f"{self.out}.quantizing")
        for stop in (signal.SIGINT, signal.SIGKILL):
            process = self.start_and_freeze(words, work)
            process.send_signal(stop)
            process.send_signal(signal.SIGCONT)
            _, error = process.communicate(timeout=PATIENCE)
            self.assertFalse(self.out.exists())
            if stop == signal.SIGINT:
                self.assertEqual(process.returncode, 1, error)
                self.assertIn("the same command goes on with it", error)
        facts = json.loads(self.succeed(*words, "--json"))
        self.assertGreater(facts["layers_resumed"], 1)
        whole = self.root / "whole"
        self.succeed(*words[:3], whole, *words[4:])
        for name in ("model.safetensors", "config.json"):
            self.assertEqual((self.out / name).read_bytes(), (whole / name).read_bytes())
        self.assertFalse(work.exists())

    OUTPUTS = (("out", "--method", "rtn"), ("out.gguf", "--scheme", "q8_0"))

    def test_full_disk(self):
        mount = self.root / "small"
        mount.mkdir()
        # In a name space of its own: whatever happens, no mount is left behind.
        alone = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4m tmpfs "$0" && "$@"', mount]
        if subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
            self.skipTest("tmpfs cannot be mounted here")
        for name, *options in self.OUTPUTS:
            # What is there afterwards shows while the mount is.
            result = subprocess.run([*alone, "sh", "-c", '"$@"; code=$?; ls "$0"; exit $code', mount, BRAID, "quantize",
                                     "demo:gemma4-dense", "-o", mount / name, *options], capture_output=True,
                                    text=True, timeout=PATIENCE)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("cannot write: No space left on device", result.stderr)
            self.assertNotIn(name, result.stdout.split())

    def test_files_that_may_not_grow(self):
        for name, *options in self.OUTPUTS:
            result = self.with_small_files("quantize", "demo:gemma4-dense", "-o", self.root / name, *options)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("cannot write: File too large", result.stderr.decode())
            self.assertFalse((self.root / name).exists())


if __name__ == "__main__":
    unittest.main()
