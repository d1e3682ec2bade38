#!/usr/bin/env python3
"""Converts the tiny checkpoints of tests/data/models to GGUF.

Names, keys and transformations follow what llama.cpp's converter writes: Gemma 3 norms carry the
1 of 1 + w, Gemma 4 norms are stored as they are, proportional RoPE becomes a rope_freqs tensor,
layer scalars and experts get a .weight suffix. Each file also holds a toy tokenizer.
"""

import argparse
import dataclasses
import pathlib
import re

import gguf
import numpy as np
import torch
from gemma_variants import VARIANTS
from gguf import GGMLQuantizationType as Type
from golden_files import write_golden
from make_gemma import make_goldens, reload

# file name, variant, type of the matrices, type of token_embd, tensors a split
FILES = [
    ("gemma3_f32", "gemma3", Type.F32, Type.F32, 0),
    ("gemma4_dense_bf16", "gemma4_dense", Type.BF16, Type.BF16, 40),
    ("gemma4_moe_bf16", "gemma4_moe", Type.BF16, Type.BF16, 0),
    ("gemma4_e2b_bf16", "gemma4_e2b", Type.BF16, Type.BF16, 0),
    ("gemma4_e4b_q8_0", "gemma4_e4b", Type.Q8_0, Type.F16, 0),
]

OUTER_NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


def gguf_name(name):
    name = name.removeprefix("model.")
    layer = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    return f"blk.{layer[1]}.{LAYER_NAMES[layer[2]]}" if layer else OUTER_NAMES[name]


def scalar_or_array(values):
    return values[0] if len(set(values)) == 1 else values


def add_metadata(writer, family, config, model):
    layers = model.model.layers
    full = [kind == "full_attention" for kind in config.layer_types]
    rope = config.rope_parameters
    writer.add_name(f"tiny random {family}")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(scalar_or_array([layer.mlp.gate_proj.out_features for layer in layers]))
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if family == "gemma3":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        if rope["full_attention"]["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["full_attention"]["factor"])
        return

    per_layer = [config.per_layer_config[i] for i in range(config.num_hidden_layers)]
    full_dim = per_layer[full.index(True)].head_dim
    sliding_dim = per_layer[full.index(False)].head_dim
    writer.add_head_count_kv(scalar_or_array([c.num_key_value_heads for c in per_layer]))
    writer.add_key_length(full_dim)
    writer.add_value_length(full_dim)
    writer.add_key_length_swa(sliding_dim)
    writer.add_value_length_swa(sliding_dim)
    writer.add_rope_dimension_count(full_dim)
    writer.add_rope_dimension_count_swa(sliding_dim)
    writer.add_sliding_window_pattern([not is_full for is_full in full])
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def add_tokenizer(writer, family, size):
    """Bytes, letters and a few merges, so that lower-case English encodes to something."""
    turns = ["<start_of_turn>", "<end_of_turn>"] if family == "gemma3" else ["<|turn>", "<turn|>"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    merges = "t h|th e|▁ the|i n|e r|a n|an d|▁ and|o n|r e|▁ a|h e|e n|▁ o".split("|")
    kinds = gguf.TokenType
    vocabulary = [(token, 0.0, kinds.CONTROL) for token in ("<pad>", "<eos>", "<bos>")]
    vocabulary.append(("<unk>", 0.0, kinds.UNKNOWN))
    vocabulary += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    vocabulary += [(token, 0.0, kinds.CONTROL) for token in turns]
    vocabulary += [(token, -1000.0 - i, kinds.NORMAL) for i, token in enumerate(["\n", "▁", *letters])]
    vocabulary += [(merge.replace(" ", ""), -1.0 - rank, kinds.NORMAL) for rank, merge in enumerate(merges)]
    assert len(vocabulary) == size

    writer.add_tokenizer_model("llama" if family == "gemma3" else "gemma4")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token for token, _, _ in vocabulary])
    writer.add_token_scores([score for _, score, _ in vocabulary])
    writer.add_token_types([int(kind) for _, _, kind in vocabulary])
    if family == "gemma4":
        writer.add_token_merges(merges)
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_eot_token_id(260 + 1)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def rope_freqs(config):
    """Divisors of the full layers' frequencies: pairs beyond the rotated part get an infinite one."""
    rope = config.rope_parameters["full_attention"]
    full = config.layer_types.index("full_attention")
    pairs = config.per_layer_config[full].head_dim // 2
    live = int(rope["partial_rotary_factor"] * pairs)
    return np.array([1.0] * live + [1e30] * (pairs - live), np.float32)


def convert(path, variant, model, matrix_type, embedding_type, split):
    """Writes the file and puts into the model the values that a reader of the file gets."""
    family, config = variant.family, model.config
    writer = gguf.GGUFWriter(path, family, split_max_tensors=split)
    add_metadata(writer, family, config, model)
    add_tokenizer(writer, family, config.vocab_size)
    if family == "gemma4":
        writer.add_tensor("rope_freqs.weight", rope_freqs(config))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = tensor.numpy().astype(np.float32)
        if family == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        kind = Type.F32 if values.ndim == 1 else embedding_type if "embed_tokens.weight" in name else matrix_type
        if kind == Type.F32:
            writer.add_tensor(gguf_name(name), values)
            continue
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        tensor.copy_(torch.from_numpy(gguf.quants.dequantize(data, kind).reshape(values.shape).copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/models"
    parser.add_argument("--models", type=pathlib.Path, default=default, help="folder of the checkpoints")
    parser.add_argument("--output", type=pathlib.Path, default=default / "gguf")
    parser.add_argument("--seed", type=int, default=4200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    for stale in args.output.glob("gemma*"):
        stale.unlink()
    for number, (name, variant_name, matrix_type, embedding_type, split) in enumerate(FILES):
        variant = VARIANTS[variant_name]
        model = reload(variant, args.models / variant_name)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        with torch.no_grad():
            convert(args.output / f"{name}.gguf", variant, model, matrix_type, embedding_type, split)
        exact = all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert exact == (matrix_type != Type.Q8_0), f"{name}: exact {exact}"
        if not exact:
            brief = dataclasses.replace(variant, brief=True)
            tensors, facts = make_goldens(model, brief, np.random.default_rng([args.seed, number]))
            write_golden(args.output / f"{name}.golden.safetensors", tensors, facts, "tools/goldens/make_gguf.py")
    for file in sorted(args.output.glob("gemma*")):
        file.chmod(0o644)
        print(f"{file.name:44} {file.stat().st_size:8}")


if __name__ == "__main__":
    main()
