import json
import os
import shutil
import subprocess
import unittest

from cli_case import BRAID, DEMO, MODELS, PATIENCE, CliCase

GGUFS = ["gemma4_e4b_q8_0.gguf", "gemma3_f32.gguf", "gemma4_moe_bf16.gguf",
         "gemma4_dense_bf16-00001-of-00002.gguf", "qwen3_5_moe_mtp_q8_0.gguf",
         "qwen3_next_legacy_bf16.gguf"]
GGUF = os.path.join(MODELS, "gguf", GGUFS[0])
# Matrices in parts, as GPTQ and compressed-tensors store them (experts stacked and one by one), and
# what becomes of them: panels, but for columns in an order of their own.
IN_PARTS = {"gemma3_gptq": "w4g64_asym_f32x16", "gemma3_gptq_order": "f32",
            "gemma3_w4a16": "w4g64x16", "gemma4_moe_w4a16": "w4g32_asymx16",
            "qwen3_5_moe_w4a16": "w4g32x16", "qwen3_next_w8a8": "w8cx16"}


class PackTest(CliCase):
    def pack(self, model, name="packed"):
        out = self.path(name)
        self.succeed("pack", model, "-o", out)
        return out

    def logits(self, model, compute="auto"):
        ids = self.write("ids", "2 5 7 9 11 13 8 6 4 20 21 22 23 24 25 26 27 28 29 30\n2 3\n")
        out = self.path("logits.safetensors")
        if os.path.exists(out):
            os.remove(out)
        self.succeed("logits", model, "--ids-file", ids, "-o", out, "--compute", compute)
        with open(out, "rb") as file:
            return file.read()

    def test_packed_models_give_the_same_bits(self):
        folders = [os.path.join(MODELS, name) for name in ("gemma4_nested", "qwen3_next")]
        for model in [os.path.join(MODELS, "gguf", name) for name in GGUFS] + folders:
            packed = self.pack(model, "packed_" + os.path.basename(model))
            for compute in ("auto", "f32"):
                self.assertEqual(self.logits(model, compute), self.logits(packed, compute), model)
            self.succeed("pack", "--verify", packed)

    def test_matrices_in_parts_give_the_same_bits(self):
        for name, layout in IN_PARTS.items():
            model = os.path.join(MODELS, name)
            packed = self.path(name)
            said = self.succeed("pack", model, "-o", packed)
            table = self.succeed("inspect", packed).split("stored as")[1].split("\n\n")[0]
            tensors = {line.split()[0]: line.split()[1] for line in table.splitlines()[2:]}
            self.assertIn(layout, tensors, name)
            panels = tensors[layout] if layout.endswith("x16") else 0
            self.assertIn(f"tensors, {panels} in panels", said, name)
            for compute in ("auto", "int8", "f32"):
                self.assertEqual(self.logits(model, compute), self.logits(packed, compute),
                                 (name, compute))
            self.succeed("pack", "--verify", packed)

    def test_a_packed_model_is_a_model(self):
        for model in (DEMO, GGUF):
            packed = self.pack(model, "packed_" + os.path.basename(model))
            arguments = ["-p", "The house", "-n", "8", "--greedy", "--json"]
            replies = [json.loads(self.succeed("run", m, *arguments)) for m in (model, packed)]
            for reply in replies:
                reply.pop("timings", None)
                reply.pop("model", None)
            self.assertEqual(replies[0]["ids"], replies[1]["ids"])
            self.assertEqual(replies[0]["text"], replies[1]["text"])
            before = json.loads(self.succeed("inspect", model, "--json"))
            after = json.loads(self.succeed("inspect", packed, "--json"))
            self.assertEqual((before["packed"], after["packed"]), (False, True))
            self.assertEqual(before["parameters"], after["parameters"])
            self.assertEqual(before["stop_ids"], after["stop_ids"])
            self.assertIn("packed", self.succeed("inspect", packed))
        self.assertIn("q8_0x16", self.succeed("inspect", self.path("packed_" + GGUFS[0])))

    def test_nothing_is_overwritten(self):
        packed = self.pack(GGUF)
        self.fail_with(1, "pack", GGUF, "-o", packed, says=[packed, "already exists"])
        self.fail_with(1, "pack", packed, "-o", self.path("again"), says=["packed already"])
        self.fail_with(1, "pack", self.path("nowhere"), "-o", self.path("x"), says=["nowhere"])
        self.fail_with(2, "pack", GGUF, says=["--output"])
        self.fail_with(1, "pack", GGUF, "-o", "/proc/packed", says=["/proc/packed", "cannot create"])
        self.assertEqual(os.listdir(self.folder), ["packed"])

    def test_a_full_disk_leaves_nothing(self):
        result = self.with_small_files("pack", GGUF, "-o", self.path("packed"))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("cannot write", result.stderr.decode())
        self.assertEqual(os.listdir(self.folder), [])

    def test_one_of_many_at_once_succeeds(self):
        command = [BRAID, "pack", GGUF, "-o", self.path("packed")]
        many = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                for _ in range(4)]
        errors = [process.communicate(timeout=PATIENCE)[1].decode() for process in many]
        self.assertEqual(sorted(process.returncode for process in many), [0, 1, 1, 1], errors)
        self.assertEqual(sum("already exists" in error for error in errors), 3, errors)
        self.assertEqual(os.listdir(self.folder), ["packed"])
        self.succeed("pack", "--verify", self.path("packed"))

    RUN = ["run", GGUF, "-p", "The house", "-n", "8", "--greedy", "--json"]

    def run_ids(self, *arguments):
        return json.loads(self.succeed(*self.RUN, *arguments))["ids"]

    def copies(self, cache):
        return sorted(name for name in os.listdir(cache) if name != "lock")

    def test_the_cache_is_made_once_and_repaired(self):
        cache = self.path("cache")
        expected = self.run_ids("--weight-cache", "off")
        first = json.loads(self.succeed(*self.RUN, "--weight-cache", cache))
        self.assertEqual((first["ids"], first["model"]), (expected, GGUF))
        (name,) = self.copies(cache)
        file = os.path.join(cache, name, "model.braid")
        made = os.stat(file).st_ino
        self.assertEqual(self.run_ids("--weight-cache", cache), expected)
        self.assertEqual((self.copies(cache), os.stat(file).st_ino), ([name], made))
        with open(file, "r+b") as damaged:
            damaged.truncate(1000)
        self.assertEqual(self.run_ids("--weight-cache", cache), expected)
        self.assertGreater(os.stat(file).st_size, 1000)
        self.assertEqual(self.copies(cache), [name])
        # Another file of the same name is another model.
        copy = shutil.copy(GGUF, self.path(GGUFS[0]))
        self.succeed("run", copy, "-p", "a", "-n", "1", "--weight-cache", cache)
        self.assertEqual(len(self.copies(cache)), 2)
        # Nothing to gain from a copy of plain weights, or of a packed model.
        other = self.path("other")
        self.succeed("run", DEMO, "-p", "a", "-n", "1", "--weight-cache", other)
        self.succeed("run", self.pack(GGUF), "-p", "a", "-n", "1", "--weight-cache", other)
        # Nor where weights are not computed with.
        self.succeed("inspect", GGUF, "--weight-cache", other)
        # Nor of a model that cannot be used.
        with open(GGUF, "rb") as file:
            content = file.read().replace(b"blk.0.attn_k.weight", b"blk.0.attn_x.weight")
        bad = self.write("bad.gguf", content)
        self.fail_with(1, "run", bad, "-p", "a", "--weight-cache", other, says=["attn_x"])
        self.assertFalse(os.path.exists(other))

    def test_the_cache_of_the_user(self):
        cache = os.path.join(os.environ["XDG_CACHE_HOME"], "braid", "weights")
        shutil.rmtree(cache, True)
        self.run_ids("--weight-cache", "auto")
        self.assertEqual(len(self.copies(cache)), 1)
        bench = json.loads(self.succeed("bench", GGUF, "-p", "4", "-n", "0", "-r", "1", "--json",
                                        "--weight-cache", "auto"))
        self.assertEqual(bench["weights"], "q8_0x16 of the file")

    def test_without_a_cache_the_model_itself_is_used(self):
        expected = self.run_ids("--weight-cache", "off")
        result = self.braid(*self.RUN, "--weight-cache", "/proc/braid")
        self.assertEqual(json.loads(result.stdout)["ids"], expected)
        self.assertIn("no packed copy", result.stderr.decode())
        cache = self.path("cache")
        result = self.with_small_files(*self.RUN, "--weight-cache", cache)
        self.assertEqual(json.loads(result.stdout)["ids"], expected)
        self.assertIn("cannot write", result.stderr.decode())
        self.assertEqual(self.copies(cache), [])

    def test_many_starts_at_once_share_one_copy(self):
        cache = self.path("cache")
        expected = self.run_ids("--weight-cache", "off")
        many = [subprocess.Popen([BRAID, *self.RUN, "--weight-cache", cache],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                for _ in range(6)]
        replies = [process.communicate(timeout=PATIENCE) for process in many]
        for out, err in replies:
            self.assertEqual(json.loads(out)["ids"], expected, err)
        # The others waited for the one that packed.
        self.assertEqual(sum(b"info: packing " in err for _, err in replies), 1, replies)
        (name,) = self.copies(cache)
        self.succeed("pack", "--verify", os.path.join(cache, name))

    def test_what_is_not_used_goes(self):
        cache = self.path("cache")
        self.run_ids("--weight-cache", cache)
        (name,) = self.copies(cache)
        old = os.path.join(cache, name, "model.braid")
        recent = os.path.join(cache, "recent.packed")
        shutil.copytree(os.path.join(cache, name), recent)
        os.utime(old, (0, 0))
        for other in (name + ".partial-abcdef", "mine", "mine.packed", "partial"):
            os.mkdir(os.path.join(cache, other))
        copy = shutil.copy(GGUF, self.path("other.gguf"))
        self.succeed("run", copy, "-p", "a", "-n", "1", "--weight-cache", cache)
        left = self.copies(cache)
        self.assertNotIn(name, left)
        (made,) = [name for name in left if name.startswith("other.gguf-")]
        self.assertEqual(left, sorted([made, "recent.packed", "mine", "mine.packed", "partial"]))

    def test_damage_is_told(self):
        packed = self.pack(GGUF)
        path = os.path.join(packed, "model.braid")
        with open(path, "rb") as file:
            good = file.read()
        run = ["run", packed, "-p", "a", "-n", "1"]
        for damage, says in ((good[:-1], "cut short"), (good[:30], "cut short"), (b"", "packed"),
                             (good[:12] + b"\x63" + good[13:], "pack the model again"),
                             (good[:60] + bytes([good[60] ^ 1]) + good[61:], "damaged")):
            with open(path, "wb") as file:
                file.write(damage)
            self.fail_with(1, *run, says=["model.braid", says])
        with open(path, "wb") as file:
            file.write(good[:-1] + bytes([good[-1] ^ 1]))
        self.fail_with(1, "pack", "--verify", packed, says=["damaged", "pack the model again"])
        os.remove(os.path.join(packed, "metadata.gguf"))
        self.fail_with(1, *run, says=["config.json"])
        shutil.rmtree(packed)
        self.fail_with(1, "pack", "--verify", packed, says=["model.braid"])


if __name__ == "__main__":
    unittest.main()
