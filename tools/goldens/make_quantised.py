#!/usr/bin/env python3
"""Makes the tiny quantised checkpoints of tests/data/models with their goldens.

compressed-tensors itself quantises, packs and unpacks the matrices of its variants; those of GPTQ
are written from the layout that AutoGPTQ and GPTQModel document. The reference is transformers in
float32 with the matrices as they unpack, their scales taken to float32 first: no weight is rounded
again.
"""

import dataclasses
import json

import gemma_variants
import golden_files
import make_gemma
import make_qwen
import numpy as np
import qwen_variants
import torch
from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file


@dataclasses.dataclass
class Scheme:
    method: str  # "pack", "int8", "gptq" or "gptq_v2"
    group: int = 0  # 0: one scale a row
    symmetric: bool = True
    scale_type: torch.dtype = torch.bfloat16
    act_order: bool = False  # GPTQ: columns belong to groups in an order of their own
    ignore: tuple = ()  # suffixes of modules that stay as they are


GEMMA = gemma_variants.gemma3(
    vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    query_pre_attn_scalar=16, sliding_window_pattern=2,
)
GEMMA_MOE = gemma_variants.gemma4(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    layer_types=gemma_variants.layer_types("SF"), enable_moe_block=True, num_experts=4, top_k_experts=2,
    moe_intermediate_size=32,
)
QWEN = qwen_variants.sizes(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, layer_types=qwen_variants.letters("LF"), intermediate_size=64,
    linear_num_value_heads=4, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
)


def gemma(family, config, **extra):
    return gemma_variants.Variant(family, config, "BF16", brief=True, **extra)


VARIANTS = {
    # Groups of 64; the down projections' 128 columns have two.
    "gemma3_w4a16": (gemma("gemma3", GEMMA), Scheme("pack", 64)),
    # Experts one by one, asymmetric.
    "gemma4_moe_w4a16": (gemma("gemma4", GEMMA_MOE), Scheme("pack", 32, symmetric=False)),
    "gemma3_gptq": (gemma("gemma3", GEMMA), Scheme("gptq", 64, symmetric=False, scale_type=torch.float16)),
    "gemma3_gptq_order": (gemma("gemma3", GEMMA), Scheme("gptq_v2", 32, scale_type=torch.float16, act_order=True)),
    # As the published recipe: shared experts, router and gates are left out, the head is not named.
    "qwen3_next_w8a8": (
        qwen_variants.Variant("qwen3_next", QWEN, brief=True),
        Scheme("int8", scale_type=torch.float32, ignore=("mlp.gate", "shared_expert_gate", "shared_expert.*_proj")),
    ),
    # Fused experts: the parts follow the parameter's name.
    "qwen3_5_moe_w4a16": (
        qwen_variants.Variant("qwen3_5_moe", QWEN, brief=True, fused_experts=True),
        Scheme("pack", 32),
    ),
}


def weights_args(scheme):
    return QuantizationArgs(
        num_bits=8 if scheme.method == "int8" else 4, type="int", symmetric=scheme.symmetric,
        strategy="group" if scheme.group else "channel", group_size=scheme.group or None,
    )


def quantisation_scheme(scheme):
    inputs = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    return QuantizationScheme(
        targets=["Linear"], weights=weights_args(scheme), input_activations=inputs if scheme.method == "int8" else None
    )


def quantisation_params(weight, args, scale_type):
    """Scales and zeros [rows, groups], round to nearest."""
    size = args.group_size or weight.shape[-1]
    groups = weight.reshape(weight.shape[0], -1, size)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    return scale.to(scale_type), zero.to(torch.int8)


def compress(name, weight, scheme):
    """Parts by name, and the matrix in float32 that they stand for."""
    how = quantisation_scheme(scheme)
    compressor = IntQuantizationCompressor if scheme.method == "int8" else PackedQuantizationCompressor
    scale, zero = quantisation_params(weight, how.weights, scheme.scale_type)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    packed = compressor.compress(state, how)
    exact = compressor.decompress(packed | {"weight_scale": packed["weight_scale"].float()}, how)["weight"]
    assert exact.dtype == torch.float32
    stem = name.removesuffix("weight") if name.endswith(".weight") else name
    rename = lambda key: stem + key if name.endswith(".weight") else name + key.removeprefix("weight")
    return {rename(key): value.contiguous() for key, value in packed.items() if value is not None}, exact


def compress_stack(name, stack, scheme):
    each = [compress(name, matrix, scheme) for matrix in stack]
    parts = {}
    for key in each[0][0]:
        values = [part[key] for part, _ in each]
        parts[key] = torch.tensor(stack.shape) if key.endswith("_shape") else torch.stack(values).contiguous()
    return parts, torch.stack([exact for _, exact in each])


def pack_words(codes):
    """Codes 0 to 15 [n, m] as int32 [n / 8, m], the first in the lowest bits."""
    codes = codes.numpy().astype(np.uint32).reshape(codes.shape[0] // 8, 8, codes.shape[1])
    words = (codes << (4 * np.arange(8, dtype=np.uint32))[None, :, None]).sum(1, dtype=np.uint32)
    return torch.from_numpy(words.view(np.int32).copy())


def gptq(name, weight, scheme, generator):
    """The layout of AutoGPTQ: qweight [in / 8, out], qzeros [groups, out / 8] less one in v1, scales [groups, out]."""
    rows, cols = weight.shape
    groups = cols // scheme.group
    order = torch.randperm(cols, generator=generator) if scheme.act_order else torch.arange(cols)
    group_of = torch.empty(cols, dtype=torch.int32)
    group_of[order] = torch.arange(cols, dtype=torch.int32) // scheme.group
    scale, zero = quantisation_params(weight[:, order], weights_args(scheme), scheme.scale_type)
    zero = zero.long() + 8
    # v1 cannot tell a zero of 0 from one of 16.
    if scheme.method == "gptq":
        zero = zero.clamp(min=1)
    spread = lambda values: values[:, group_of.long()]
    codes = torch.clamp(torch.round(weight / spread(scale.float())) + spread(zero), 0, 15).long()
    exact = spread(scale.float()) * (codes - spread(zero)).float()
    stored = zero - 1 if scheme.method == "gptq" else zero
    stem = name.removesuffix("weight")
    return {
        stem + "qweight": pack_words(codes.T.contiguous()),
        stem + "qzeros": pack_words(stored).T.contiguous(),
        stem + "scales": scale.T.contiguous(),
        stem + "g_idx": group_of,
        stem + "bias": torch.zeros(rows, dtype=scheme.scale_type),
    }, exact


def config_of(scheme):
    if scheme.method.startswith("gptq"):
        return {
            "bits": 4, "checkpoint_format": scheme.method, "desc_act": scheme.act_order, "group_size": scheme.group,
            "lm_head": False, "quant_method": "gptq", "sym": scheme.symmetric,
        }
    ignore = [rf"re:.*{name.replace('.', chr(92) + '.').replace('*', '.*')}$" for name in scheme.ignore]
    config = QuantizationConfig(
        config_groups={"group_0": quantisation_scheme(scheme)}, ignore=ignore, quantization_status="compressed",
        format="int-quantized" if scheme.method == "int8" else "pack-quantized",
    )
    return json.loads(config.model_dump_json())


def is_quantised(name, tensor, scheme):
    if "layers." not in name or tensor.dim() not in (2, 3) or "conv1d" in name:
        return False
    module = name.removesuffix(".weight")
    plain = ("router.proj", "mlp.gate", "shared_expert_gate", "shared_expert.gate_proj", "shared_expert.up_proj",
             "shared_expert.down_proj", "in_proj_b", "in_proj_a")
    if module.endswith(plain):
        return False
    return "proj" in module


@torch.no_grad()
def quantise(model, named, pieces_of, scheme, generator):
    """The file's tensors; the model's parameters become what those stand for."""
    tensors = {}
    for name, parameter in named.items():
        exact_pieces = []
        for piece, values in pieces_of(name, parameter):
            if not is_quantised(piece, values, scheme):
                tensors[piece] = values.to(torch.bfloat16).clone().contiguous()
                exact_pieces.append(values)
                continue
            values = values.float().contiguous()
            if scheme.method.startswith("gptq"):
                parts, exact = gptq(piece, values, scheme, generator)
            else:
                parts, exact = (compress_stack if values.dim() == 3 else compress)(piece, values, scheme)
            tensors |= parts
            exact_pieces.append(exact)
        join_pieces(parameter, exact_pieces)
    return tensors


def join_pieces(parameter, pieces):
    if len(pieces) == 1 and pieces[0].shape == parameter.shape:
        parameter.copy_(pieces[0])
        return
    # Experts: gate and up, or down, of each in turn.
    flat = torch.cat([piece.reshape(-1, piece.shape[-1]) for piece in pieces])
    parameter.copy_(flat.reshape(parameter.shape))


def make_variant(name, root, seed):
    variant, scheme = VARIANTS[name]
    number = list(VARIANTS).index(name)
    generator = torch.Generator().manual_seed(seed + number)
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, number])
    if isinstance(variant, gemma_variants.Variant):
        model = gemma_variants.make_model(variant)
        gemma_variants.randomise(model, variant, generator)
        gemma_variants.write_config(model, variant, folder)
        named = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
        split = lambda key, value: (
            list(qwen_variants.split_experts(key, value)) if value.dim() == 3 and ".experts." in key else [(key, value)]
        )
        tensors = quantise(model, named, split, scheme, generator)
        goldens, facts = make_gemma.make_goldens(model, variant, rng)
    else:
        model = qwen_variants.make_model(variant)
        qwen_variants.randomise(model, None, variant, generator)
        qwen_variants.write_config(model, variant, folder)
        fused = variant.fused_experts
        split = lambda key, value: (
            list(qwen_variants.split_experts(key, value))
            if value.dim() == 3 and ".experts." in key and not fused
            else [(key, value)]
        )
        tensors = quantise(model, qwen_variants.named_tensors(model), split, scheme, generator)
        goldens, facts = make_qwen.make_goldens(model, None, variant, rng)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = config_of(scheme)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    sizes = golden_files.finish_folder(folder, goldens, facts, "tools/goldens/make_quantised.py")
    print(f"{name:20} {sum(sizes.values()):4.0f} KiB  self-agreement {facts['worst']:.1e}  router gap {facts['gap']:.1e}", flush=True)


if __name__ == "__main__":
    golden_files.run(__doc__, VARIANTS, 8200, make_variant)
