import json
import os
import shutil
import struct
import unittest

from cli_case import MODELS, TINY_GGUF, TOKENIZERS, CliCase, gguf, gguf_string, safetensors

STRING, UINT32, ARRAY = 8, 4, 9


class BadFilesTest(CliCase):
    """Every wrong file gives one line that names it, from each command that opens it."""

    def refuse(self, model, *says):
        ids = self.write("ids.txt", "2 3\n")
        for command in (["run", model, "-p", "hi"], ["inspect", model],
                        ["logits", model, "--ids-file", ids, "-o", self.path("out.safetensors")]):
            with self.subTest(command=command):
                self.fail_with(1, *command, says=says)
        self.assertFalse(os.path.exists(self.path("out.safetensors")))

    def test_paths(self):
        self.refuse(self.path("nowhere"), "nowhere", "no such file")
        os.mkdir(self.path("empty"))
        self.refuse(self.path("empty"), "empty", "config.json")
        self.refuse(self.write("notes.txt", "hello"), "notes.txt", "neither")
        self.refuse(self.write("weights.bin", "x"), "weights.bin", "PyTorch")
        self.write("weights/model.safetensors", b"")
        self.refuse(self.path("weights"), "weights", "config.json")

    def test_config(self):
        model = self.copy_model("gemma4_moe")
        config = os.path.join(model, "config.json")
        for content, *says in (
            ("", "config.json"),
            ("{", "config.json"),
            ("[]", "config.json"),
            ('{"model_type": 5}', "config.json", "model_type"),
            ('{"model_type": "mamba9"}', "mamba9", "not supported", "gemma4", "qwen3_next"),
            ('{"model_type": "gemma4_text", "vocab_size": "many"}', "config.json", "vocab_size"),
        ):
            self.write(os.path.relpath(config, self.folder), content)
            self.refuse(model, *says)

    def test_shards(self):
        model = self.copy_model("gemma4_sharded")
        shard = os.path.join(model, "model-00002-of-00003.safetensors")
        with open(shard, "rb") as file:
            saved = file.read()
        os.remove(shard)
        self.refuse(model, "model-00002-of-00003.safetensors")
        # Present, but with another shard's tensors.
        shutil.copy(os.path.join(model, "model-00003-of-00003.safetensors"), shard)
        self.refuse(model, "safetensors")
        for length in (len(saved) - 1, len(saved) // 2, 40, 0):
            with open(shard, "wb") as file:
                file.write(saved[:length])
            self.refuse(model, "model-00002-of-00003.safetensors")

    def test_safetensors_headers(self):
        model = self.copy_model("gemma4_moe")
        weights = os.path.relpath(os.path.join(model, "model.safetensors"), self.folder)
        f32 = lambda shape, begin, end: {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        twice = json.dumps(f32([1], 0, 4))
        for content, *says in (
            (safetensors({"x": {"dtype": "F64", "shape": [4], "data_offsets": [0, 16]}}, bytes(16)), "x"),
            (safetensors({"x": f32([1000, 1000], 0, 4)}, bytes(4)), "x"),
            (safetensors({"x": f32([2], 0, 8), "y": f32([2], 4, 12)}, bytes(12)),),
            (safetensors(('{"x": %s, "x": %s}' % (twice, twice)).encode(), bytes(4)), "x"),
            (safetensors(b"{"),),
            (struct.pack("<Q", 1 << 62) + b"{}",),
            (b"abc",),
            (safetensors({"x": f32([1], 0, 4)}, bytes(4)),),  # sound, but not this model
        ):
            self.write(weights, content)
            self.refuse(model, "model.safetensors" if says else "", *says)

    def test_gguf_headers(self):
        name = ("general.architecture", STRING, gguf_string(b"gemma3"))
        for content, *says in (
            (gguf([name], [("t", [0], 0, 0)]),),
            (gguf([name, ("general.alignment", STRING, gguf_string(b"32"))]), "general.alignment"),
            (gguf([name, ("general.alignment", UINT32, struct.pack("<I", 0))]), "general.alignment"),
            (gguf([name, ("general.alignment", UINT32, struct.pack("<I", 3))]), "general.alignment"),
            (gguf([name], [("t", [4], 0, 1 << 40)]) + bytes(64), "t"),
            (gguf([name], count=1 << 60),),
            (gguf([("x", ARRAY, struct.pack("<IQ", UINT32, 1 << 61))]),),
            (gguf([("general.architecture", UINT32, struct.pack("<I", 1))]), "general.architecture"),
            (b"GGUF",),
            (b"GGUF" + struct.pack("<I", 99),),
        ):
            self.refuse(self.write("bad.gguf", content), "bad.gguf", *says)
        with open(TINY_GGUF, "rb") as file:
            whole = file.read()
        for length in (len(whole) - 1, len(whole) // 2, 1000, 30):
            self.refuse(self.write("cut.gguf", whole[:length]), "cut.gguf")

    def test_split_gguf_with_a_part_missing(self):
        part = "gemma4_dense_bf16-00001-of-00002.gguf"
        shutil.copy(os.path.join(MODELS, "gguf", part), self.path(part))
        self.refuse(self.path(part), "00002-of-00002")

    def test_without_tokenizer(self):
        model = os.path.join(MODELS, "gemma4_moe")
        for command in (["run", model, "-p", "hi"], ["tokenize", model, "-p", "hi"]):
            self.fail_with(1, *command, says=["gemma4_moe", "tokenizer.json"])
        self.succeed("inspect", model)

    def test_tokenizer_files(self):
        model = self.copy_model("gemma4_moe")
        relative = os.path.relpath(model, self.folder)
        for content in ("", "{", "{}", '{"model": {"type": "Unigram"}}'):
            self.write(os.path.join(relative, "tokenizer.json"), content)
            for command in (["run", model, "-p", "hi"], ["tokenize", model, "-p", "hi"]):
                self.fail_with(1, *command, says=["tokenizer.json"])
        shutil.copy(os.path.join(TOKENIZERS, "gemma", "tokenizer.json"), model)
        self.write(os.path.join(relative, "tokenizer_config.json"),
                   '{"extra_special_tokens": ["<a>", "<b>"], "eos_token": "<eos>"}')
        self.succeed("tokenize", model, "-p", "hi")

    def test_template_errors_concern_chats_only(self):
        model = self.copy_model("gemma4_moe")
        relative = os.path.relpath(model, self.folder)
        shutil.copy(os.path.join(TOKENIZERS, "gemma", "tokenizer.json"), model)
        self.write(os.path.join(relative, "chat_template.jinja"), "a\n{% import 'x' as y %}")
        self.fail_with(1, "run", model, "--chat", "-p", "hi", says=["chat template:2"])
        self.succeed("inspect", model)


if __name__ == "__main__":
    unittest.main()
