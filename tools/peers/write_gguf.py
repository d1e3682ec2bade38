#!/usr/bin/env python3
"""Writes GGUF files of random weights in the shapes of real models, whole or cut in depth (-6l: six
layers): for measuring speed in any program that reads them. As fast as the disk; standard library
only."""

import argparse
import math
import os
import random
import struct
import sys
from functools import partial

ALIGNMENT = 32
POOL_ELEMENTS = 1 << 20

# GGML type number, elements and bytes of a block.
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q4_0": (2, 32, 18),
         "q8_0": (8, 32, 34)}


class Pool:
    """Random rows of about N(0, 1/cols), as pieces of a pool of random blocks."""

    def __init__(self, kind, cols, rng):
        _, elements, self.block = TYPES[kind]
        deviation = cols ** -0.5
        if elements == 1:
            values = [rng.gauss(0, deviation) for _ in range(POOL_ELEMENTS // 16)]
            data = b"".join(plain_bytes(kind, value) for value in values)
        else:
            # Uniform codes: their deviation, around a centre that signs of the scales level out.
            levels = {"q4_0": 16, "q8_0": 256}[kind]
            scale = deviation / math.sqrt(levels ** 2 / 12)
            scales = struct.pack("<e", scale), struct.pack("<e", -scale)
            data = b"".join(scales[rng.getrandbits(1)] + rng.randbytes(self.block - 2)
                            for _ in range(POOL_ELEMENTS // elements))
        self.bytes = memoryview(data)
        self.rng = rng

    def write(self, file, size):
        half = len(self.bytes) // 2 // self.block * self.block
        while size > 0:
            start = self.rng.randrange(half // self.block) * self.block
            piece = min(size, half)
            file.write(self.bytes[start:start + piece])
            size -= piece


def plain_bytes(kind, value):
    if kind == "bf16":
        return struct.pack("<f", value)[2:]
    return struct.pack("<e" if kind == "f16" else "<f", value)


class Writer:
    def __init__(self, architecture, kind, seed):
        self.rng = random.Random(seed)
        self.architecture, self.kind = architecture, kind
        self.metadata, self.tensors, self.pools = [], [], {}
        self.text("general.architecture", architecture)
        # No vocabulary: token ids go in and out.
        self.text("tokenizer.ggml.model", "none")

    @staticmethod
    def _string(text):
        return struct.pack("<Q", len(text)) + text.encode()

    def _add(self, key, type_number, value):
        self.metadata.append(self._string(key) + struct.pack("<I", type_number) + value)

    def text(self, key, value):
        self._add(key, 8, self._string(value))

    def set(self, key, value):
        """A value below the architecture's name; lists become arrays."""
        items = value if isinstance(value, list) else [value]
        number, code = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(items[0])]
        data = struct.pack(f"<{len(items)}{code}", *items)
        key = f"{self.architecture}.{key}"
        if isinstance(value, list):
            self._add(key, 9, struct.pack("<IQ", number, len(items)) + data)
        else:
            self._add(key, number, data)

    def matrix(self, name, *shape, kind=None):
        """[rows, cols] or [experts, rows, cols]"""
        self.tensors.append((name, shape, kind or self.kind, None))

    def values(self, name, values, *shape):
        """Given numbers, in float32."""
        data = struct.pack(f"<{len(values)}f", *values)
        self.tensors.append((name, shape or (len(values),), "f32", data))

    def normal(self, name, size, centre, deviation, *shape):
        self.values(name, [self.rng.gauss(centre, deviation) for _ in range(size)], *shape)

    def uniform(self, name, size, low, high):
        self.values(name, [self.rng.uniform(low, high) for _ in range(size)])

    def norm(self, name, size):
        self.normal(name, size, 1, 0.1)

    def write(self, path):
        offset, infos, sizes = 0, [], []
        for name, shape, kind, _ in self.tensors:
            number, elements, block = TYPES[kind]
            if shape[-1] % elements:
                raise SystemExit(f"{name}: rows of {shape[-1]} are no whole blocks of {kind}")
            size = math.prod(shape) // elements * block
            infos.append(self._string(name) + struct.pack("<I", len(shape))
                         + struct.pack(f"<{len(shape)}Q", *reversed(shape))
                         + struct.pack("<IQ", number, offset))
            sizes.append(size)
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        header = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(self.metadata))
        header += b"".join(self.metadata) + b"".join(infos)
        temporary = path + ".partial"
        with open(temporary, "wb", buffering=0) as file:
            file.write(header + bytes(-len(header) % ALIGNMENT))
            for (_, shape, kind, data), size in zip(self.tensors, sizes):
                if data is not None:
                    file.write(data)
                else:
                    key = kind, shape[-1]
                    if key not in self.pools:
                        self.pools[key] = Pool(kind, shape[-1], self.rng)
                    self.pools[key].write(file, size)
                file.write(bytes(-size % ALIGNMENT))
        os.replace(temporary, path)


def add_common(w, layers, hidden, width, heads, context):
    w.set("block_count", layers)
    w.set("context_length", context)
    w.set("embedding_length", hidden)
    w.set("feed_forward_length", width)
    w.set("attention.head_count", heads)
    w.set("attention.layer_norm_rms_epsilon", 1e-6)


def add_attention(w, block, hidden, q_rows, k_rows, v_rows, o_cols, head):
    w.matrix(f"{block}.attn_q.weight", q_rows, hidden)
    w.matrix(f"{block}.attn_k.weight", k_rows, hidden)
    if v_rows:
        w.matrix(f"{block}.attn_v.weight", v_rows, hidden)
    w.matrix(f"{block}.attn_output.weight", hidden, o_cols)
    w.norm(f"{block}.attn_q_norm.weight", head)
    w.norm(f"{block}.attn_k_norm.weight", head)


def add_mlp(w, block, hidden, width, suffix=""):
    w.matrix(f"{block}.ffn_gate{suffix}.weight", width, hidden)
    w.matrix(f"{block}.ffn_up{suffix}.weight", width, hidden)
    w.matrix(f"{block}.ffn_down{suffix}.weight", hidden, width)


def add_outer(w, hidden, vocabulary, tied):
    w.set("vocab_size", vocabulary)
    w.matrix("token_embd.weight", vocabulary, hidden)
    w.norm("output_norm.weight", hidden)
    if not tied:
        w.matrix("output.weight", vocabulary, hidden)


def gemma3(kind, seed, layers=18, hidden=640, width=2048, heads=4, kv_heads=1, head=256,
           window=512):
    w = Writer("gemma3", kind, seed)
    add_common(w, layers, hidden, width, heads, 32768)
    w.set("attention.head_count_kv", kv_heads)
    w.set("attention.key_length", head)
    w.set("attention.value_length", head)
    w.set("attention.sliding_window", window)
    w.set("rope.freq_base", 1e6)
    w.set("rope.freq_base_swa", 1e4)
    add_outer(w, hidden, 262144, tied=True)
    for i in range(layers):
        block = f"blk.{i}"
        add_attention(w, block, hidden, heads * head, kv_heads * head, kv_heads * head,
                      heads * head, head)
        add_mlp(w, block, hidden, width)
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            w.norm(f"{block}.{norm}.weight", hidden)
    return w


def gemma4(kind, seed, layers=6, hidden=3840, width=15360, heads=16, kv_heads=8, full_kv_heads=1,
           experts=0, chosen=8, expert_width=704):
    """Every sixth layer attends to all tokens, with values that are its keys."""
    w = Writer("gemma4", kind, seed)
    sliding = [i % 6 != 5 for i in range(layers)]
    sliding_head, full_head = 256, 512
    add_common(w, layers, hidden, width, heads, 262144)
    w.set("attention.head_count_kv", [kv_heads if s else full_kv_heads for s in sliding])
    w.set("attention.key_length", full_head)
    w.set("attention.value_length", full_head)
    w.set("attention.key_length_swa", sliding_head)
    w.set("attention.value_length_swa", sliding_head)
    w.set("attention.sliding_window", 1024)
    w.set("attention.sliding_window_pattern", sliding)
    w.set("attention.shared_kv_layers", 0)
    w.set("embedding_length_per_layer_input", 0)
    w.set("final_logit_softcapping", 30.0)
    w.set("rope.dimension_count", full_head)
    w.set("rope.dimension_count_swa", sliding_head)
    w.set("rope.freq_base", 1e6)
    w.set("rope.freq_base_swa", 1e4)
    if experts:
        w.set("expert_count", experts)
        w.set("expert_used_count", chosen)
        w.set("expert_feed_forward_length", expert_width)
    add_outer(w, hidden, 262144, tied=True)
    # Of 256 frequencies of the full layers a quarter turns.
    w.values("rope_freqs.weight", [1.0] * 64 + [1e30] * 192)
    for i, is_sliding in enumerate(sliding):
        block = f"blk.{i}"
        head = sliding_head if is_sliding else full_head
        kv = kv_heads if is_sliding else full_kv_heads
        add_attention(w, block, hidden, heads * head, kv * head, kv * head if is_sliding else 0,
                      heads * head, head)
        add_mlp(w, block, hidden, width)
        norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
        if experts:
            norms += ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
            w.matrix(f"{block}.ffn_gate_inp.weight", experts, hidden, kind="f32")
            w.norm(f"{block}.ffn_gate_inp.scale", hidden)
            w.matrix(f"{block}.ffn_gate_up_exps.weight", experts, 2 * expert_width, hidden)
            w.matrix(f"{block}.ffn_down_exps.weight", experts, hidden, expert_width)
            w.norm(f"{block}.ffn_down_exps.scale", experts)
        for norm in norms:
            w.norm(f"{block}.{norm}.weight", hidden)
        w.values(f"{block}.layer_output_scale.weight", [1.0])
    return w


def qwen3next(kind, seed, layers=4, hidden=2048, heads=16, kv_heads=2, head=256, experts=512,
              chosen=10, expert_width=512, key_heads=16, value_heads=32, delta_head=128):
    """Three Gated DeltaNet layers to one of gated attention."""
    w = Writer("qwen3next", kind, seed)
    add_common(w, layers, hidden, 5120, heads, 262144)
    w.set("attention.head_count_kv", kv_heads)
    w.set("attention.key_length", head)
    w.set("attention.value_length", head)
    w.set("rope.dimension_count", head // 4)
    w.set("rope.freq_base", 1e7)
    w.set("full_attention_interval", 4)
    w.set("expert_count", experts)
    w.set("expert_used_count", chosen)
    w.set("expert_feed_forward_length", expert_width)
    w.set("expert_shared_feed_forward_length", expert_width)
    w.set("ssm.conv_kernel", 4)
    w.set("ssm.inner_size", value_heads * delta_head)
    w.set("ssm.state_size", delta_head)
    w.set("ssm.time_step_rank", value_heads)
    w.set("ssm.group_count", key_heads)
    add_outer(w, hidden, 151936, tied=False)
    keys, values = key_heads * delta_head, value_heads * delta_head
    for i in range(layers):
        block = f"blk.{i}"
        if i % 4 == 3:
            add_attention(w, block, hidden, 2 * heads * head, kv_heads * head, kv_heads * head,
                          heads * head, head)
        else:
            w.matrix(f"{block}.attn_qkv.weight", 2 * keys + values, hidden)
            w.matrix(f"{block}.attn_gate.weight", values, hidden)
            w.matrix(f"{block}.ssm_ba.weight", 2 * value_heads, hidden)
            channels = 2 * keys + values
            w.normal(f"{block}.ssm_conv1d.weight", 4 * channels, 0, 0.5, channels, 4)
            w.uniform(f"{block}.ssm_dt.bias", value_heads, -4, -1)
            w.uniform(f"{block}.ssm_a", value_heads, -16, -1)
            w.norm(f"{block}.ssm_norm.weight", delta_head)
            w.matrix(f"{block}.ssm_out.weight", hidden, values)
        for norm in ("attn_norm", "post_attention_norm"):
            w.norm(f"{block}.{norm}.weight", hidden)
        w.matrix(f"{block}.ffn_gate_inp.weight", experts, hidden, kind="f32")
        w.matrix(f"{block}.ffn_gate_exps.weight", experts, expert_width, hidden)
        w.matrix(f"{block}.ffn_up_exps.weight", experts, expert_width, hidden)
        w.matrix(f"{block}.ffn_down_exps.weight", experts, hidden, expert_width)
        w.normal(f"{block}.ffn_gate_inp_shexp.weight", hidden, 0, hidden ** -0.5)
        add_mlp(w, block, hidden, expert_width, "_shexp")
    return w


def gemma4_experts(kind, seed, layers=6):
    return gemma4(kind, seed, layers, hidden=2816, width=2112, full_kv_heads=2, experts=128)


MODELS = {
    "gemma3-270m": gemma3,
    "gemma4-12b-6l": gemma4,
    "gemma4-12b": partial(gemma4, layers=48),
    "gemma4-26b-a4b-6l": gemma4_experts,
    "gemma4-26b-a4b": partial(gemma4_experts, layers=30),
    "qwen3-next-80b-a3b-4l": qwen3next,
    "qwen3-next-80b-a3b": partial(qwen3next, layers=48),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS, help="whose shapes")
    parser.add_argument("format", choices=["q4_0", "q8_0", "bf16", "f16"],
                        help="of matrices; routers, norms and convolutions are f32")
    parser.add_argument("output", help="file to write")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    MODELS[arguments.model](arguments.format, arguments.seed).write(arguments.output)
    print(f"{arguments.output}: {os.path.getsize(arguments.output) / 1e9:.2f} GB", file=sys.stderr)


if __name__ == "__main__":
    main()
