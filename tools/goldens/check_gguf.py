#!/usr/bin/env python3
"""Checks the GGUF files of tests/data/models against the goldens with a second engine.

The engine below is plain NumPy in float64, knows only the file and follows the equations of the
model; it shares no code with the reference or with the converter. Only the rotary angles are
float32 products, as the reference has them.
"""

import argparse
import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

GOLDENS = {
    "gemma3_f32": "gemma3/golden.safetensors",
    "gemma4_dense_bf16": "gemma4_dense/golden.safetensors",
    "gemma4_moe_bf16": "gemma4_moe/golden.safetensors",
    "gemma4_e2b_bf16": "gemma4_e2b/golden.safetensors",
    "gemma4_e4b_q8_0": "gguf/gemma4_e4b_q8_0.golden.safetensors",
}
BOUND = 1e-5


def read(folder, name):
    """Metadata and float64 tensors of a file or of its splits."""
    fields, tensors = {}, {}
    files = sorted(folder.glob(f"{name}.gguf")) or sorted(folder.glob(f"{name}-*-of-*.gguf"))
    for file in files:
        reader = gguf.GGUFReader(file)
        for key, field in reader.fields.items():
            fields[key] = field.contents()
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            tensors[tensor.name] = values.reshape([int(n) for n in tensor.shape[::-1]]).astype(np.float64)
    return fields, tensors


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rms(x, weight=1.0, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(x, frequencies):
    """x [tokens, heads, d], frequencies float32 [d / 2]."""
    angles = (np.arange(len(x), dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Engine:
    def __init__(self, fields, tensors):
        self.arch = fields["general.architecture"]
        self.fields, self.tensors, self.used = fields, tensors, set()
        self.layers = self.get("block_count")
        default = [bool((i + 1) % 6) for i in range(self.layers)]
        self.sliding = self.get("attention.sliding_window_pattern", default)

    def get(self, key, default=None):
        value = self.fields.get(f"{self.arch}.{key}", default)
        assert value is not None, key
        return value

    def tensor(self, name):
        self.used.add(name)
        return self.tensors.get(name)

    def frequencies(self, layer, d):
        sliding = self.sliding[layer]
        base = self.get("rope.freq_base_swa", 1e4) if sliding else self.get("rope.freq_base")
        exponents = np.arange(0, d, 2, dtype=np.float32) / np.float32(d)
        f = np.float32(1) / np.float32(base) ** exponents
        if not sliding and (divisors := self.tensor("rope_freqs.weight")) is not None:
            f = f / divisors.astype(np.float32)
        if not sliding and self.fields.get(f"{self.arch}.rope.scaling.type") == "linear":
            f = f / np.float32(self.get("rope.scaling.factor"))
        return f.astype(np.float32)

    def attention(self, l, h):
        gemma4 = self.arch == "gemma4"
        weight = lambda name: self.tensor(f"blk.{l}.{name}.weight")
        heads = self.get("attention.head_count")
        swa = "_swa" if gemma4 and self.sliding[l] else ""
        d = self.get(f"attention.key_length{swa}")
        n = len(h)
        f = self.frequencies(l, d)
        q = rope(rms((h @ weight("attn_q").T).reshape(n, heads, d), weight("attn_q_norm")), f)
        owners = self.layers - (self.get("attention.shared_kv_layers", 0) if gemma4 else 0)
        if l < owners:
            raw = (h @ weight("attn_k").T).reshape(n, -1, d)
            v = raw if weight("attn_v") is None else (h @ weight("attn_v").T).reshape(n, -1, d)
            self.kv[self.sliding[l]] = rope(rms(raw, weight("attn_k_norm")), f), rms(v) if gemma4 else v
        k, v = self.kv[self.sliding[l]]
        group = heads // k.shape[1]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) * (1.0 if gemma4 else d**-0.5)
        i, j = np.arange(n)[:, None], np.arange(n)[None]
        seen = (j <= i) & ((i - j < self.get("attention.sliding_window")) | (not self.sliding[l]))
        scores = np.where(seen, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ weight("attn_output").T

    def experts(self, l, x, z):
        k = self.get("expert_used_count")
        weight = lambda name: self.tensor(f"blk.{l}.{name}")
        logits = rms(x) * weight("ffn_gate_inp.scale") * x.shape[1] ** -0.5 @ weight("ffn_gate_inp.weight").T
        p = np.exp(logits - logits.max(-1, keepdims=True))
        out = np.zeros_like(x)
        for t in range(len(x)):
            chosen = np.argsort(-p[t], kind="stable")[:k]
            for e in chosen:
                gate, up = np.split(weight("ffn_gate_up_exps.weight")[e] @ z[t], 2)
                y = weight("ffn_down_exps.weight")[e] @ (gelu(gate) * up)
                out[t] += y * weight("ffn_down_exps.scale")[e] * p[t, e] / p[t, chosen].sum()
        return out

    def logits(self, ids):
        t = self.tensor
        self.kv = {}
        x = t("token_embd.weight")[ids] * np.sqrt(self.get("embedding_length"))
        width = self.get("embedding_length_per_layer_input", 0) if self.arch == "gemma4" else 0
        if width:
            shape = (len(ids), self.layers, width)
            own = (t("per_layer_token_embd.weight")[ids] * np.sqrt(width)).reshape(shape)
            context = (x @ t("per_layer_model_proj.weight").T * x.shape[1] ** -0.5).reshape(shape)
            u = (rms(context, t("per_layer_proj_norm.weight")) + own) * 2**-0.5
        for l in range(self.layers):
            w = lambda name: t(f"blk.{l}.{name}.weight")
            x = x + rms(self.attention(l, rms(x, w("attn_norm"))), w("post_attention_norm"))
            z = rms(x, w("ffn_norm"))
            y = (gelu(z @ w("ffn_gate").T) * (z @ w("ffn_up").T)) @ w("ffn_down").T
            if w("ffn_gate_inp") is not None:
                mixture = self.experts(l, x, rms(x, w("pre_ffw_norm_2")))
                y = rms(y, w("post_ffw_norm_1")) + rms(mixture, w("post_ffw_norm_2"))
            x = x + rms(y, w("post_ffw_norm"))
            if width:
                x = x + rms(gelu(x @ w("inp_gate").T) * u[:, l] @ w("proj").T, w("post_norm"))
            if (scale := w("layer_output_scale")) is not None:
                x = x * scale
        y = rms(x, t("output_norm.weight")) @ t("token_embd.weight").T
        cap = self.fields.get(f"{self.arch}.final_logit_softcapping")
        return cap * np.tanh(y / cap) if cap else y


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/models"
    parser.add_argument("--models", type=pathlib.Path, default=default)
    args = parser.parse_args()
    bad = 0
    for name, golden in GOLDENS.items():
        fields, tensors = read(args.models / "gguf", name)
        engine = Engine(fields, tensors)
        goldens = load_file(args.models / golden)
        worst = 0.0
        for prompt in sorted({key.split(".")[0] for key in goldens}, key=lambda p: int(p[1:])):
            got = engine.logits(goldens[f"{prompt}.ids"])[goldens[f"{prompt}.rows"]]
            want = goldens[f"{prompt}.logits"].astype(np.float64)
            worst = max(worst, float(np.linalg.norm(got - want) / np.linalg.norm(want)))
        unused = set(tensors) - engine.used
        tokens = fields["tokenizer.ggml.tokens"]
        complete = len(tokens) == tensors["token_embd.weight"].shape[0] and len(set(tokens)) == len(tokens)
        bad += worst > BOUND or bool(unused) or not complete
        print(f"{name:20} {len(tensors):3} tensors, {len(unused)} unused, error {worst:.1e}", *sorted(unused)[:3])
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
