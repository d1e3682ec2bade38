#!/usr/bin/env python3
"""Converts tiny Qwen3-Next and Qwen3.5 checkpoints of tests/data/models to GGUF.

Names, keys and transformations follow what llama.cpp's converter writes: 1 is added to the norms but
the gated one, A_log becomes -exp(A_log), the predictor is the last block. qwen3next keeps the value
heads grouped by key head and ssm_ba interleaved; in qwen35 and qwen35moe value heads are tiled.
Each file is read back, returned to the checkpoint's form and compared.
"""

import argparse
import dataclasses
import pathlib
import re

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from golden_files import write_golden
from make_qwen import make_goldens
from qwen_variants import VARIANTS, named_tensors, reload


@dataclasses.dataclass
class File:
    variant: str
    arch: str
    matrices: Type = Type.BF16
    mtp: bool = False
    legacy: bool = False  # ssm_in, still interleaved, instead of attn_qkv and attn_gate
    fused_experts: bool = False


FILES = {
    "qwen3_next_mtp_bf16": File("qwen3_next", "qwen3next", mtp=True),
    "qwen3_next_legacy_bf16": File("qwen3_next", "qwen3next", legacy=True),
    "qwen3_next_idle_experts_f32": File("qwen3_next_idle_experts", "qwen3next", matrices=Type.F32),
    "qwen3_5_mtp_bf16": File("qwen3_5_nested", "qwen35", mtp=True),
    "qwen3_5_moe_split_bf16": File("qwen3_5_moe_split", "qwen35moe", fused_experts=True),
    "qwen3_5_moe_mtp_q8_0": File("qwen3_5_moe", "qwen35moe", matrices=Type.Q8_0, mtp=True),
}

OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}
ALWAYS_F32 = ("ssm_conv1d.weight", "ffn_gate_inp.weight")


def gguf_name(name, layers):
    """The file's name of a tensor of the checkpoint; the predictor is block `layers`."""
    if name.startswith("mtp.layers.0."):
        return f"blk.{layers}.{LAYER_NAMES[name.removeprefix('mtp.layers.0.')]}"
    if name in OUTER_NAMES:
        other = OUTER_NAMES[name]
        return f"blk.{layers}.{other}" if other.startswith("nextn.") else other
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    return f"blk.{layer[1]}.{LAYER_NAMES[layer[2]]}"


def tile(x, config, axis=0):
    """Value heads along an axis, from grouped by key head to tiled: head j * ratio + i goes to i * key heads + j."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    x = np.moveaxis(x, axis, 0)
    heads = x.reshape(keys, values // keys, -1, *x.shape[1:])
    return np.ascontiguousarray(np.moveaxis(heads.swapaxes(0, 1).reshape(x.shape), 0, axis))


def deinterleave(x, config):
    """in_proj_qkvz [rows, D] to q, k, v and z rows."""
    keys, dk, dv = config.linear_num_key_heads, config.linear_key_head_dim, config.linear_value_head_dim
    values = config.linear_num_value_heads // keys * dv
    groups = x.reshape(keys, 2 * dk + 2 * values, -1)
    parts = np.split(groups, [dk, 2 * dk, 2 * dk + values], axis=1)
    return [part.reshape(-1, x.shape[-1]) for part in parts]


def transformed(name, x, file, config):
    """(name below the block, values) pairs that the file holds for a tensor of the checkpoint."""
    end = name.split(".", 3)[-1] if name.startswith("model.layers.") else name
    tiled = file.arch != "qwen3next"
    key_rows = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if end == "linear_attn.in_proj_qkvz.weight" and not file.legacy:
        q, k, v, z = deinterleave(x, config)
        return [("attn_qkv.weight", np.concatenate([q, k, v])), ("attn_gate.weight", z)]
    if end.endswith("experts.gate_up_proj") and not file.fused_experts:
        gate, up = np.split(x, 2, axis=1)
        return [("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)]
    if end == "linear_attn.A_log":
        x = -np.exp(x)
    elif end.endswith("conv1d.weight"):
        x = x[:, 0]
    elif end.endswith("shared_expert_gate.weight"):
        x = x[0]
    elif end.endswith(("norm.weight",)) and end != "linear_attn.norm.weight" or "pre_fc_norm" in end:
        x = x + np.float32(1)
    if tiled:
        if end.endswith(("in_proj_qkv.weight", "conv1d.weight")):
            x = np.concatenate([x[:key_rows], tile(x[key_rows:], config)])
        elif end.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
            x = tile(x, config)
        elif end.endswith("out_proj.weight"):
            x = tile(x, config, axis=1)
    return [(None, x)]


def add_metadata(writer, file, config, layers, mtp):
    arch = file.arch
    writer.add_name(f"tiny random {arch}")
    writer.add_block_count(layers + bool(mtp))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    rotary = int(config.head_dim * config.rope_parameters["partial_rotary_factor"])
    writer.add_rope_dimension_count(rotary)
    if arch != "qwen3next":
        sections = config.rope_parameters.get("mrope_section", [rotary // 2, 0, 0])
        writer.add_rope_dimension_sections([*sections, 0])
    if hasattr(config, "intermediate_size"):
        writer.add_feed_forward_length(config.intermediate_size)
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    linear = [kind == "linear_attention" for kind in config.layer_types]
    if linear == [bool((i + 1) % 4) for i in range(layers)]:
        writer.add_uint32(f"{arch}.full_attention_interval", 4)
    else:
        writer.add_array(f"{arch}.attention.recurrent_layers", linear + [False] * bool(mtp))
    if mtp:
        writer.add_uint32(f"{arch}.nextn_predict_layers", 1)


def convert(path, file, model, mtp):
    config, layers = model.config, model.config.num_hidden_layers
    writer = gguf.GGUFWriter(path, file.arch)
    add_metadata(writer, file, config, layers, mtp)
    for name, tensor in named_tensors(model, mtp).items():
        main = gguf_name(name, layers)
        for piece, values in transformed(name, tensor.numpy().astype(np.float32), file, config):
            target = main if piece is None else f"{main.rsplit('.', 2)[0]}.{piece}"
            kind = Type.F32 if values.ndim == 1 or target.endswith(ALWAYS_F32) else file.matrices
            if kind == Type.Q8_0 and target == "token_embd.weight":
                kind = Type.F16
            if kind == Type.F32:
                writer.add_tensor(target, np.ascontiguousarray(values))
            else:
                writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Back again, from what the format says and not from the code above ------------------------------


def restored(path, file, model, mtp):
    """The file's values by the names of the checkpoint."""
    config, layers = model.config, model.config.num_hidden_layers
    stored = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        stored[tensor.name] = values.reshape([int(n) for n in tensor.shape[::-1]]).astype(np.float32)
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    dk, dv, ratio = config.linear_key_head_dim, config.linear_value_head_dim, values // keys
    # Of each of the checkpoint's value heads, the head in the file: stored head h belongs to key head h mod keys.
    order = [h for key in range(keys) for h in range(values) if h % keys == key]
    rows = [h * dv + i for h in order for i in range(dv)]
    result = {}
    for name, tensor in named_tensors(model, mtp).items():
        target = gguf_name(name, layers)
        block = target.rsplit(".", 2)[0]
        if name.endswith("in_proj_qkvz.weight") and not file.legacy:
            qkv, z = stored.pop(f"{block}.attn_qkv.weight"), stored.pop(f"{block}.attn_gate.weight")
            x = []
            for key in range(keys):
                heads = range(key * ratio, (key + 1) * ratio)
                x += [qkv[key * dk : (key + 1) * dk], qkv[(keys + key) * dk : (keys + key + 1) * dk]]
                x += [qkv[2 * keys * dk + h * dv :][:dv] for h in heads] + [z[h * dv :][:dv] for h in heads]
            x = np.concatenate(x)
        elif name.endswith("experts.gate_up_proj") and not file.fused_experts:
            x = np.concatenate([stored.pop(f"{block}.ffn_{kind}_exps.weight") for kind in ("gate", "up")], 1)
        else:
            x = stored.pop(target)
        if target.endswith("norm.weight") and not target.endswith("ssm_norm.weight"):
            x = x - np.float32(1)
        if target.endswith("ssm_a"):
            x = np.log(-x)
        if file.arch != "qwen3next":
            if target.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
                x = np.concatenate([x[: 2 * keys * dk], x[2 * keys * dk :][rows]])
            elif target.endswith("attn_gate.weight"):
                x = x[rows]
            elif target.endswith(("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias")):
                x = x[order]
            elif target.endswith("ssm_out.weight"):
                x = x[:, rows]
        result[name] = torch.from_numpy(np.ascontiguousarray(x.reshape(tensor.shape)))
    assert not stored, f"{path.name}: {sorted(stored)[:3]} stand for nothing"
    return result


def check_restored(path, file, model, mtp):
    """Compares, and puts the file's values into the model where a matrix type has rounded them."""
    found = restored(path, file, model, mtp)
    exact = True
    for name, tensor in named_tensors(model, mtp).items():
        # The sum 1 + w and the exponential round once each in float32.
        close = torch.allclose(found[name], tensor, rtol=3e-7, atol=1.5e-7)
        exact &= torch.equal(found[name], tensor) or (tensor.dim() == 1 and close)
        if not close:
            tensor.copy_(found[name])
    assert exact == (file.matrices != Type.Q8_0), f"{path.name}: exact {exact}"
    return exact


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/models"
    parser.add_argument("--models", type=pathlib.Path, default=default, help="folder of the checkpoints")
    parser.add_argument("--output", type=pathlib.Path, default=default / "gguf")
    parser.add_argument("--seed", type=int, default=5200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    for number, (name, file) in enumerate(FILES.items()):
        variant, path = VARIANTS[file.variant], args.output / f"{name}.gguf"
        model, mtp = reload(variant, args.models / file.variant)
        mtp = mtp if file.mtp else None
        with torch.no_grad():
            convert(path, file, model, mtp)
            exact = check_restored(path, file, model, mtp)
        path.chmod(0o644)
        print(f"{path.name:40} {path.stat().st_size:8} {'exact' if exact else 'rounded'}", flush=True)
        if not exact:
            brief = dataclasses.replace(variant, brief=True)
            tensors, facts = make_goldens(model, mtp, brief, np.random.default_rng([args.seed, number]))
            golden = args.output / f"{name}.golden.safetensors"
            write_golden(golden, tensors, facts, "tools/goldens/make_qwen_gguf.py")
            golden.chmod(0o644)


if __name__ == "__main__":
    main()
