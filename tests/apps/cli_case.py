"""Runs the built `braid` program and checks what a user would see. Standard library only."""

import atexit
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

BRAID = os.environ["BRAID_PROGRAM"]
SOURCE = os.environ["BRAID_SOURCE"]
MODELS = os.path.join(SOURCE, "tests", "data", "models")
TOKENIZERS = os.path.join(SOURCE, "tests", "data", "tokenizer")
TINY_GGUF = os.path.join(MODELS, "gguf", "gemma4_moe_bf16.gguf")  # with a toy tokenizer
DEMO = "demo:gemma4-dense"


# Nothing of the user's is read or left behind.
CACHE = tempfile.mkdtemp(prefix="braid_cache_")
atexit.register(shutil.rmtree, CACHE, True)
os.environ["XDG_CACHE_HOME"] = CACHE
# No test here is of a GPU, whatever the machine has.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Seconds after which a program is taken for stuck. Far more than any needs, however slow the machine.
PATIENCE = 1800


class CliCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="braid_cli_")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(content, str):
            content = content.encode()
        with open(path, "wb") as file:
            file.write(content)
        return path

    def copy_model(self, name):
        """A copy of a model's folder."""
        target = self.path("model_%d" % len(os.listdir(self.folder)))
        shutil.copytree(os.path.join(MODELS, name), target)
        return target

    def braid(self, *arguments, stdin=b"", stdout=subprocess.PIPE):
        command = [BRAID] + [str(argument) for argument in arguments]
        if isinstance(stdin, str):
            stdin = stdin.encode()
        return subprocess.run(command, input=stdin, stdout=stdout, stderr=subprocess.PIPE,
                              timeout=PATIENCE)

    @staticmethod
    def with_small_files(*arguments):
        """Runs braid where no file can grow beyond 20 kB."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        return subprocess.run([BRAID, *map(str, arguments)], preexec_fn=limit, capture_output=True,
                              timeout=PATIENCE)

    def succeed(self, *arguments, **streams):
        result = self.braid(*arguments, **streams)
        self.assertEqual(result.returncode, 0, (arguments, result.stderr))
        return (result.stdout or b"").decode()

    def fail_with(self, code, *arguments, says=(), **streams):
        """The command fails with one line on stderr that holds every text of `says`."""
        result = self.braid(*arguments, **streams)
        self.assertEqual(result.returncode, code, (arguments, result.stderr))
        lines = [line for line in result.stderr.decode().splitlines() if line.startswith("braid: ")]
        self.assertEqual(len(lines), 1, (arguments, result.stderr))
        self.assertTrue(result.stderr.decode().endswith(lines[0] + "\n"), result.stderr)
        for text in says:
            self.assertIn(text, lines[0], arguments)
        return result


def safetensors(header, payload=b""):
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + payload


def read_safetensors(path):
    """name -> (dtype, shape, bytes)"""
    with open(path, "rb") as file:
        content = file.read()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   content[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def gguf_string(text):
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text


def gguf(metadata=(), tensors=(), count=None):
    """A GGUF v3 of (key, type code, packed value) and (name, dimensions, type, offset)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors) if count is None else count, len(metadata))
    for key, code, value in metadata:
        out += gguf_string(key) + struct.pack("<I", code) + value
    for name, dimensions, kind, offset in tensors:
        out += gguf_string(name) + struct.pack("<I", len(dimensions))
        out += b"".join(struct.pack("<Q", d) for d in dimensions)
        out += struct.pack("<IQ", kind, offset)
    return out
