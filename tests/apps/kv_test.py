import json
import os
import re
import struct
import unittest

from cli_case import DEMO, MODELS, SOURCE, CliCase, read_safetensors, safetensors

HELDOUT = os.path.join(SOURCE, "demo_models", "heldout", "heldout.txt")
STATIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}


def prefix_of(tensors):
    """Of the decoder's layers: "model.layers." or longer."""
    return next(re.match(r"(.*layers\.)\d+\.", name).group(1) for name in tensors
                if re.match(r".*layers\.\d+\.", name))


class KvTest(CliCase):
    def scaled(self, source, scheme=None, scale=0.03, drop=()):
        """A copy of a folder whose attention layers have scales, and whose config has the scheme."""
        target = self.path(f"model_{len(os.listdir(self.folder))}")
        os.makedirs(target)
        for name in os.listdir(source):
            if not name.startswith(("golden", "model.")):
                os.symlink(os.path.join(source, name), os.path.join(target, name))
        tensors = read_safetensors(os.path.join(source, "model.safetensors"))
        prefix = prefix_of(tensors)
        for name in [name for name in tensors if name.endswith("self_attn.k_proj.weight")]:
            if not name.startswith(prefix):
                continue
            layer = name[:-len("k_proj.weight")]
            for kind in ("k_scale", "v_scale"):
                if layer + kind not in [prefix + text for text in drop]:
                    tensors[layer + kind] = ("F32", [1], struct.pack("<f", scale))
        header, payload = {}, b""
        for name, (dtype, shape, content) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape,
                            "data_offsets": [len(payload), len(payload) + len(content)]}
            payload += content
        with open(os.path.join(target, "model.safetensors"), "wb") as file:
            file.write(safetensors(header, payload))
        config_path = os.path.join(target, "config.json")
        with open(config_path) as file:
            config = json.load(file)
        os.remove(config_path)
        if scheme is not None:
            config["quantization_config"] = {"quant_method": "compressed-tensors",
                                             "format": "dense", "kv_cache_scheme": scheme}
        with open(config_path, "w") as file:
            json.dump(config, file)
        return target

    def tiny(self, *arguments, **options):
        return self.scaled(os.path.join(MODELS, "gemma3"), *arguments, **options)

    def demo(self, *arguments, **options):
        return self.scaled(os.path.join(SOURCE, "demo_models", "gemma4-dense"), *arguments,
                           **options)

    def logits(self, model, kv):
        ids = self.write("ids", " ".join(str(id) for id in range(2, 60)) + "\n")
        out = self.path("logits.safetensors")
        if os.path.exists(out):
            os.remove(out)
        self.succeed("logits", model, "--ids-file", ids, "-o", out, "--kv", kv)
        with open(out, "rb") as file:
            return file.read()

    def test_auto_does_what_the_checkpoint_says(self):
        model = self.tiny(STATIC)
        expected = self.logits(model, "int8-static")
        self.assertEqual(self.logits(model, "auto"), expected)
        self.assertEqual(self.logits(model, "int8"), expected)
        dynamic = self.logits(model, "int8-dynamic")
        self.assertNotEqual(dynamic, expected)
        self.assertEqual(dynamic, self.logits(os.path.join(MODELS, "gemma3"), "int8"))
        self.assertEqual(self.logits(model, "bf16"),
                         self.logits(os.path.join(MODELS, "gemma3"), "auto"))
        result = self.braid("logits", model, "--ids-file", self.path("ids"), "-o",
                            self.path("again.safetensors"))
        said = [line for line in result.stderr.decode().splitlines() if "kv_cache_scheme" in line]
        self.assertEqual(len(said), 1, result.stderr)
        self.assertIn("i8 with static scales", said[0])

    def test_inspect_shows_it(self):
        model = self.tiny(STATIC)
        self.assertIn("i8 with static scales keys and values", self.succeed("inspect", model))
        self.assertIn("i8 keys and values",
                      self.succeed("inspect", model, "--kv", "int8-dynamic"))
        shown = json.loads(self.succeed("inspect", model, "--json"))
        self.assertEqual(shown["cache"]["kv"], "i8 with static scales")
        plain = os.path.join(MODELS, "gemma3")
        self.assertEqual(json.loads(self.succeed("inspect", plain, "--json"))["cache"]["kv"],
                         "bf16")
        self.assertEqual(
            json.loads(self.succeed("inspect", plain, "--json", "--kv", "int8"))["cache"]["kv"],
            "i8")

    def test_dynamic_schemes_are_a_scale_a_token_and_head(self):
        source = os.path.join(MODELS, "gemma3")
        model = self.tiny({**STATIC, "strategy": "token", "dynamic": True})
        result = self.braid("inspect", model)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("i8 keys and values", result.stdout.decode())
        self.assertIn("14 scales of a quantised KV cache are not used", result.stderr.decode())
        self.assertEqual(self.logits(model, "auto"), self.logits(source, "int8"))
        self.fail_with(1, "inspect", model, "--kv", "int8-static", says=["no scales"])

    def test_scales_of_something_else_are_not_used(self):
        plain = self.logits(os.path.join(MODELS, "gemma3"), "auto")
        for scheme, why in ((None, "no kv_cache_scheme"),
                            ({**STATIC, "type": "float"}, "kv_cache_scheme has type float")):
            model = self.tiny(scheme)
            result = self.braid("inspect", model)
            self.assertEqual(result.returncode, 0, result.stderr)
            warnings = [line for line in result.stderr.decode().splitlines() if "scales" in line]
            self.assertEqual(len(warnings), 1, result.stderr)
            self.assertIn(why, warnings[0])
            self.assertEqual(self.logits(model, "auto"), plain)
            self.fail_with(1, "inspect", model, "--kv", "int8-static", says=["no scales"])

    def test_packed_models_keep_them(self):
        model = self.tiny(STATIC)
        packed = self.path("packed")
        self.succeed("pack", model, "-o", packed)
        self.succeed("pack", "--verify", packed)
        self.assertEqual(self.logits(packed, "auto"), self.logits(model, "int8-static"))

    def test_incomplete_and_useless_scales_are_errors(self):
        self.fail_with(1, "inspect", self.tiny(STATIC, drop=["2.self_attn.v_scale"]),
                       says=["layers.2.self_attn.v_scale: missing"])
        self.fail_with(1, "inspect",
                       self.tiny(STATIC, drop=["2.self_attn.k_scale", "2.self_attn.v_scale"]),
                       says=["layers.2.self_attn.k_scale and v_scale are missing"])
        for scale in (0, float("nan"), float("inf"), -1):
            self.fail_with(1, "inspect", self.tiny(STATIC, scale=scale),
                           says=["layers.0.self_attn.k_scale", "a scale must"])
        bare = self.tiny(STATIC, drop=[f"{layer}.self_attn.{kind}_scale" for layer in range(7)
                                       for kind in "kv"])
        self.fail_with(1, "inspect", bare, says=["kv_cache_scheme is static", "no scales"])

    def test_every_command_knows_the_choices(self):
        commands = (("run", DEMO, "-p", "It", "-n", "1"), ("inspect", DEMO),
                    ("bench", DEMO, "-p", "1", "-n", "1", "-r", "1"),
                    ("eval", DEMO, "--text", HELDOUT),
                    ("logits", DEMO, "--ids-file", self.write("ids", "2 3\n"), "-o",
                     self.path("out")))
        for command in commands:
            self.fail_with(2, *command, "--kv", "int4", says=["--kv", "int8-static"])
            self.fail_with(1, *command, "--kv", "int8-static",
                           says=["--kv int8-static", "no scales", "int8-dynamic"])
        self.fail_with(2, "eval", DEMO, "--text", HELDOUT, "--reference", DEMO, "--reference-kv",
                       "fp8", says=["--reference-kv"])
        self.fail_with(1, "eval", DEMO, "--text", HELDOUT, "--reference", DEMO, "--reference-kv",
                       "int8-static", says=["no scales"])

    def test_eval_and_run_use_them(self):
        model = self.demo(STATIC, scale=0.05)
        report = json.loads(self.succeed(
            "eval", model, "--text", HELDOUT, "--max-tokens", "1500", "--buckets", "512", "--json",
            "--reference", model, "--reference-kv", "int8-dynamic"))
        facts = report["facts"]
        self.assertEqual(facts["kv"], "i8 with static scales")
        self.assertEqual(facts["reference kv"], "i8")
        same = json.loads(self.succeed(
            "eval", model, "--text", HELDOUT, "--max-tokens", "1500", "--buckets", "512", "--json",
            "--reference", model))
        differing = [bucket["kl"]["mean"] for bucket in report["nll"]["buckets"]]
        self.assertTrue(all(value != 0 for value in differing), differing)
        self.assertEqual([bucket["kl"]["max"] for bucket in same["nll"]["buckets"]],
                         [0] * len(differing))
        self.succeed("run", model, "-p", "It was", "-n", "8", "--greedy", "--memory-budget",
                     "500MB")


if __name__ == "__main__":
    unittest.main()
