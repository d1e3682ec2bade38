"""Tiny random Qwen3-Next and Qwen3.5 checkpoints: the variants, their weights and their files."""

import copy
import dataclasses
import json
import math
import pathlib

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    DynamicCache,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

STOP_ID = 2  # eos_token_id of every variant; prompts and continuations do without it
FAMILIES = {
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM),
}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FLOAT32_NAMES = ("linear_attn.A_log", "linear_attn.norm.weight")  # as the Qwen3.5 releases store them


@dataclasses.dataclass
class Variant:
    family: str
    config: dict  # arguments of the text config class
    config_form: str = "current"  # "release": flat rope keys and full_attention_interval; "nested": text_config
    storage: str = "BF16"
    float32_names: tuple = ()  # suffixes of tensors that are stored in F32 whatever the storage
    fused_experts: bool = False
    mtp: bool = False
    idle_experts: bool = False  # see idle_experts()
    brief: bool = False  # few prompts, small goldens


def letters(text):
    return [{"L": "linear_attention", "F": "full_attention"}[letter] for letter in text]


def rope(theta=1e4, factor=0.25, **extra):
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor} | extra


def sizes(**extra):
    common = dict(
        vocab_size=160, hidden_size=32, head_dim=32, num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope(),
        linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4,
        max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=False, eos_token_id=STOP_ID,
    )
    return common | extra


VARIANTS = {
    # The released shape in small: 3:1, two value heads a key head, all layers MoE, one tensor an expert.
    "qwen3_next": Variant(
        "qwen3_next",
        sizes(
            num_hidden_layers=8, intermediate_size=48, linear_num_value_heads=4, linear_value_head_dim=8, num_experts=8,
            num_experts_per_tok=3, moe_intermediate_size=8, shared_expert_intermediate_size=24,
        ),
        config_form="release",
        mtp=True,
    ),
    # Irregular layer_types, dense and MoE layers (1 and 5), fused experts, tied head, other rotary share.
    "qwen3_next_mixed": Variant(
        "qwen3_next",
        sizes(
            hidden_size=48, layer_types=letters("LFLLFL"), num_hidden_layers=6, intermediate_size=48,
            linear_num_value_heads=6, linear_key_head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=16, decoder_sparse_step=2, mlp_only_layers=[3], tie_word_embeddings=True,
            num_key_value_heads=1, rope_parameters=rope(5e3, 0.5),
        ),
        float32_names=("linear_attn.A_log",),
        fused_experts=True,
    ),
    # Router weights not divided by their sum; every second layer attention.
    "qwen3_next_unnormed": Variant(
        "qwen3_next",
        sizes(
            vocab_size=96, full_attention_interval=2, num_hidden_layers=4, intermediate_size=32, linear_num_value_heads=8,
            num_attention_heads=6, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=5,
            num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=16, norm_topk_prob=False,
        ),
        config_form="release",
        storage="F32",
        brief=True,
    ),
    # One expert gets every token, one has zero weights, one has weights of about 1e-23.
    "qwen3_next_idle_experts": Variant(
        "qwen3_next",
        sizes(
            vocab_size=96, num_hidden_layers=4, intermediate_size=32, linear_num_value_heads=4, head_dim=16, num_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        ),
        idle_experts=True,
        brief=True,
    ),
    # Dense, flat configuration, one value head a key head (as the 0.8B), tied head, all BF16 (as the 3.6 files).
    "qwen3_5": Variant(
        "qwen3_5",
        sizes(
            hidden_size=48, num_hidden_layers=4, intermediate_size=80, linear_num_key_heads=3, linear_num_value_heads=3,
            tie_word_embeddings=True,
        ),
    ),
    # The released files: text_config, model.language_model., a vision tower to skip, M-RoPE keys, dense MTP.
    "qwen3_5_nested": Variant(
        "qwen3_5",
        sizes(
            num_hidden_layers=5, layer_types=letters("LLFLF"), intermediate_size=64, linear_num_value_heads=6,
            rope_parameters=rope(mrope_interleaved=True, mrope_section=[2, 1, 1]),
        ),
        config_form="nested",
        float32_names=FLOAT32_NAMES,
        mtp=True,
    ),
    # MoE with fused experts, four value heads a key head (as the 397B), MTP.
    "qwen3_5_moe": Variant(
        "qwen3_5_moe",
        sizes(
            num_hidden_layers=4, linear_num_value_heads=8, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
            rope_parameters=rope(mrope_interleaved=True, mrope_section=[2, 1, 1]),
        ),
        float32_names=FLOAT32_NAMES,
        fused_experts=True,
        mtp=True,
    ),
    # A re-saved MoE: one tensor an expert, but the nested configuration and names.
    "qwen3_5_moe_split": Variant(
        "qwen3_5_moe",
        sizes(
            vocab_size=96, num_hidden_layers=3, layer_types=letters("LFL"), linear_num_value_heads=4, head_dim=16,
            linear_key_head_dim=8, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=8,
            shared_expert_intermediate_size=16,
        ),
        config_form="nested",
        brief=True,
    ),
}


def make_model(variant):
    config_class, model_class = FAMILIES[variant.family]
    arguments = copy.deepcopy(variant.config)  # the classes change nested values in place
    return model_class(config_class(**arguments, attn_implementation="eager")).eval().float()


class Mtp(torch.nn.Module):
    """The multi-token predictor: parameters by their names in the file, after "mtp."."""

    def __init__(self, model):
        super().__init__()
        config = copy.deepcopy(model.config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        if hasattr(config, "mlp_only_layers"):
            config.mlp_only_layers, config.decoder_sparse_step = [], 1
        layer_class, norm_class = type(model.model.layers[0]), type(model.model.norm)
        width = config.hidden_size
        self.pre_fc_norm_embedding = norm_class(width, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm_class(width, eps=config.rms_norm_eps)
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.layers = torch.nn.ModuleList([layer_class(config, 0)])
        self.norm = norm_class(width, eps=config.rms_norm_eps)


def make_mtp(model):
    return Mtp(model).eval().float()


def named_tensors(model, mtp=None):
    """All parameters by the names that a flat text checkpoint gives them, experts fused."""
    tensors = {name: value for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    if mtp is not None:
        tensors |= {f"mtp.{name}": value for name, value in mtp.state_dict().items()}
    return tensors


def storage_type(variant, name):
    return torch.float32 if name.endswith(variant.float32_names) else DTYPES[variant.storage]


@torch.no_grad()
def randomise(model, mtp, variant, generator):
    """Fills every parameter, then rounds it to the type it is stored in.

    Activations stay of order one, decays range from almost none to a forgotten token, experts are chosen
    clearly, gains differ from their centre (0, or 1 in the gated norm).
    """

    def uniform(tensor, low, high):
        return low + (high - low) * torch.rand(tensor.shape, generator=generator)

    for name, tensor in named_tensors(model, mtp).items():
        scale = tensor.shape[-1] ** -0.5
        normal = torch.randn(tensor.shape, generator=generator)
        if name.endswith("A_log"):
            value = uniform(tensor, 1, 16).log()
        elif name.endswith("dt_bias"):
            value = uniform(tensor, -5, 0)
        elif name.endswith("linear_attn.norm.weight"):
            value = 1 + 0.2 * normal
        elif name.endswith(("layernorm.weight", "norm.weight")) or "pre_fc_norm" in name:
            value = 0.25 * normal
        elif name.endswith("conv1d.weight"):
            value = uniform(tensor, -0.7, 0.7)
        elif name.endswith("mlp.gate.weight"):
            value = 1.5 * scale * normal
        elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
            value = 0.5 * scale * normal
        elif name.endswith("embed_tokens.weight"):
            # A tied head would repeat the token at hand if its embedding made up most of the stream.
            value = (0.4 if model.config.tie_word_embeddings else 0.7) * normal
        elif name.endswith("lm_head.weight"):
            value = 2 * scale * normal
        else:
            value = scale * normal
        tensor.copy_(value)
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            lean_queries(layer.linear_attn)
    if variant.idle_experts:
        idle_experts(model)
    for name, tensor in named_tensors(model, mtp).items():
        tensor.copy_(tensor.to(storage_type(variant, name)).float())


@torch.no_grad()
def lean_queries(mixer, share=0.7):
    """Makes queries resemble their keys: the gated norm magnifies the rounding of q·k where that is near 0."""
    heads, width = mixer.num_k_heads, mixer.head_k_dim
    fused = hasattr(mixer, "in_proj_qkvz")
    projection = mixer.in_proj_qkvz.weight if fused else mixer.in_proj_qkv.weight
    for weight, grouped in ((projection, fused), (mixer.conv1d.weight, False)):
        rows = weight.view(heads if grouped else 1, -1, weight.shape[-1])
        count = width if grouped else heads * width
        q, k = rows[:, :count], rows[:, count : 2 * count]
        q.copy_(share * k + (1 - share**2) ** 0.5 * q)


@torch.no_grad()
def idle_experts(model):
    """Expert 0 gets all tokens, expert 1 is zero, expert 2 tiny; layers 0 and 1 leave the others nothing.

    Channel 0 of the residual stream is a large constant, so a router weight there acts as a bias.
    """
    model.model.embed_tokens.weight[:, 0] = 6
    for index, layer in enumerate(model.model.layers):
        layer.post_attention_layernorm.weight[0] = 0
        router = layer.mlp.gate.weight
        router[:, 0] = 0
        router[0, 0] = 8
        if index < 2:
            router[1 + index, 0] = 5
        for mixer in (getattr(layer, "linear_attn", None), getattr(layer, "self_attn", None)):
            if mixer is not None:
                (mixer.out_proj if hasattr(mixer, "out_proj") else mixer.o_proj).weight[0] = 0
        for down in (layer.mlp.shared_expert.down_proj.weight, *layer.mlp.experts.down_proj):
            down[0] = 0
        for weights in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            weights[1] = 0
            weights[2] *= 1e-23


# Configuration forms ---------------------------------------------------------------------------


def text_config(model, variant):
    """The text part of config.json in the form the variant asks for."""
    current = json.loads(model.config.to_json_string(use_diff=False))
    keep = set(variant.config) | {"model_type", "hidden_act", "attention_bias", "layer_types"}
    config = {key: value for key, value in current.items() if key in keep}
    config |= {"bos_token_id": None}
    if "num_experts" in config and variant.family == "qwen3_next":
        config |= {key: current[key] for key in ("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")}
    if variant.config_form == "release":
        parameters = config.pop("rope_parameters")
        config.pop("layer_types")
        config |= {
            "full_attention_interval": variant.config.get("full_attention_interval", 4),
            "partial_rotary_factor": parameters["partial_rotary_factor"],
            "rope_scaling": None,
            "rope_theta": parameters["rope_theta"],
        }
    if variant.config_form == "nested":
        config |= {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    if variant.mtp and variant.family != "qwen3_next":
        config |= {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    return config


def write_config(model, variant, folder):
    config = text_config(model, variant)
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[variant.storage]
    if variant.config_form == "nested":
        config = {
            "architectures": [type(model).__name__.replace("ForCausalLM", "ForConditionalGeneration")],
            "model_type": variant.family,
            "text_config": config | {"dtype": dtype},
            "tie_word_embeddings": config["tie_word_embeddings"],
            "vision_config": {
                "model_type": f"{variant.family}_vision" if variant.family != "qwen3_5" else "qwen3_5_vision",
                "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 16,
            },
        }
    else:
        config |= {"architectures": [type(model).__name__]}
        config |= {"torch_dtype" if variant.config_form == "release" else "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


# Weights ---------------------------------------------------------------------------------------


def split_experts(name, tensor):
    """Tensors of single experts from a fused one."""
    stem, kind = name.rsplit(".", 1)
    for expert, matrix in enumerate(tensor):
        if kind == "gate_up_proj":
            gate, up = matrix.chunk(2)
            yield f"{stem}.{expert}.gate_proj.weight", gate
            yield f"{stem}.{expert}.up_proj.weight", up
        else:
            yield f"{stem}.{expert}.{kind}.weight", matrix


def file_tensors(model, mtp, variant):
    tensors = {}
    for name, tensor in named_tensors(model, mtp).items():
        pieces = [(name, tensor)]
        if tensor.dim() == 3 and ".experts." in name and not variant.fused_experts:
            pieces = split_experts(name, tensor)
        for piece, values in pieces:
            if variant.config_form == "nested" and piece.startswith("model."):
                piece = "model.language_model." + piece.removeprefix("model.")
            tensors[piece] = values.to(storage_type(variant, name)).clone().contiguous()
    if variant.config_form == "nested":
        for name in ("blocks.0.attn.qkv.weight", "blocks.0.norm1.bias", "merger.linear_fc1.weight", "pos_embed.weight"):
            shape = (4,) if name.endswith("bias") else (4, 4)
            tensors[f"model.visual.{name}"] = torch.full(shape, 7.0, dtype=DTYPES[variant.storage])
    return tensors


def write_checkpoint(model, mtp, variant, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_config(model, variant, folder)
    save_file(file_tensors(model, mtp, variant), folder / "model.safetensors", metadata={"format": "pt"})


def reload(variant, folder):
    """Model and MTP in float32 from a written folder."""
    config_class, model_class = FAMILIES[variant.family]
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    config = config_class(**config.get("text_config", config))
    model = model_class.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    if not variant.mtp:
        return model, None
    mtp = make_mtp(model)
    stored = load_file(pathlib.Path(folder) / "model.safetensors")
    stored = {name.removeprefix("mtp."): value.float() for name, value in stored.items() if name.startswith("mtp.")}
    if not variant.fused_experts:
        stem = "layers.0.mlp.experts"
        experts = range(getattr(model.config, "num_experts", 0))
        take = lambda kind: torch.stack([stored.pop(f"{stem}.{e}.{kind}.weight") for e in experts])
        if experts:
            stored[f"{stem}.gate_up_proj"] = torch.cat([take("gate_proj"), take("up_proj")], 1)
            stored[f"{stem}.down_proj"] = take("down_proj")
    mtp.load_state_dict(stored)
    return model, mtp


# The reference ---------------------------------------------------------------------------------


def relative_error(a, b):
    """Norm-wise: |a - b| / |b|."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def as_batch(ids):
    return torch.tensor([list(map(int, ids))])


@torch.no_grad()
def whole_logits(model, ids):
    """Float32 logits [tokens, vocabulary] from one pass without a cache."""
    return model(input_ids=as_batch(ids), use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def cached_logits(model, ids, chunk):
    """The same by chunks through the model's own cache, and the cache."""
    cache, rows = DynamicCache(config=model.config), []
    for start in range(0, len(ids), chunk):
        out = model(input_ids=as_batch(ids[start : start + chunk]), cache=cache, use_cache=True)
        rows.append(out.logits[0].float().numpy())
    return np.concatenate(rows), cache


def states(model, cache):
    """GDN states: ssm [layers, value heads, d_k, d_v], conv [layers, kernel - 1, channels], oldest row first."""
    linear = [i for i, kind in enumerate(model.config.layer_types) if kind == "linear_attention"]
    ssm = np.stack([cache.get_recurrent_state(i)[0].float().numpy() for i in linear])
    kept = model.config.linear_conv_kernel_dim - 1
    conv = np.stack([cache.get_conv_state(i)[0].float().numpy()[:, -kept:].T for i in linear])
    return {"ssm": np.ascontiguousarray(ssm), "conv": np.ascontiguousarray(conv)}


def lead(row):
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def greedy(model, ids, count):
    """Greedy continuation without a cache, and the smallest lead of a winner over its runner-up."""
    ids, least = list(map(int, ids)), math.inf
    start = len(ids)
    for _ in range(count):
        last = whole_logits(model, ids)[-1]
        least = min(least, lead(last))
        ids.append(int(last.argmax()))
    return ids[start:], least


class RouterWatch:
    """Choices and the smallest relative gap between a chosen and a rejected expert, while hooked to modules."""

    def __init__(self, *modules):
        self.gap, self.ids, self.weights = 1.0, [], []
        routers = [m for module in modules if module is not None for m in module.modules() if type(m).__name__.endswith("TopKRouter")]
        self.hooks = [router.register_forward_hook(self.record) for router in routers]

    def record(self, _, __, output):
        logits, weights, chosen = output
        ranked = torch.softmax(logits.float(), -1).sort(dim=-1, descending=True).values
        k = chosen.shape[-1]
        self.gap = min(self.gap, float((1 - ranked[:, k] / ranked[:, k - 1]).min()))
        self.ids.append(chosen.clone())
        self.weights.append(weights.clone())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


@torch.no_grad()
def internals(model, ids):
    """Values inside one pass: layer outputs, final norm, routing."""
    hidden, final, hooks = [], [], []
    text = model.model

    def on_first(_, arguments, named):
        hidden.append((arguments[0] if arguments else named["hidden_states"])[0].clone())

    def on_layer(_, __, output):
        hidden.append((output[0] if isinstance(output, tuple) else output).reshape(-1, text.config.hidden_size).clone())

    hooks.append(text.layers[0].register_forward_pre_hook(on_first, with_kwargs=True))
    hooks.append(text.norm.register_forward_hook(lambda _, __, output: final.append(output[0].clone())))
    hooks += [layer.register_forward_hook(on_layer) for layer in text.layers]
    with RouterWatch(model) as watch:
        logits = whole_logits(model, ids)
    for hook in hooks:
        hook.remove()
    result = {"logits": logits, "hidden": torch.stack(hidden).numpy(), "final": final[0].numpy(), "router_gap": watch.gap}
    if watch.ids:
        result["router_ids"] = torch.stack(watch.ids).numpy().astype(np.int32)
        result["router_weights"] = torch.stack(watch.weights).numpy()
    return result


@torch.no_grad()
def mtp_rows(model, mtp, hidden, tokens, first_position=0):
    """Rows after mtp.norm [pairs, D] and their logits for the pairs (hidden [pairs, D], tokens), without a cache."""
    hidden = torch.as_tensor(hidden)[None]
    embedded = model.model.embed_tokens(as_batch(tokens))
    x = mtp.fc(torch.cat([mtp.pre_fc_norm_embedding(embedded), mtp.pre_fc_norm_hidden(hidden)], -1))
    count = x.shape[1]
    positions = torch.arange(first_position, first_position + count)[None]
    mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
    x = mtp.layers[0](x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask)
    x = mtp.norm(x[0] if isinstance(x, tuple) else x)
    return x[0].numpy(), model.lm_head(x)[0].float().numpy()


def draft_chain(model, mtp, hidden, tokens, count):
    """Logits of all pairs, their rows, then `count` drafts: ids and logits.

    hidden [n, D] are the model's rows after the final norm, tokens the n ids that follow them.
    """
    hidden, tokens = np.array(hidden), list(map(int, tokens))
    pairs = len(tokens)
    drafts, draft_logits = [], []
    for step in range(count):
        rows, logits = mtp_rows(model, mtp, hidden, tokens)
        if step == 0:
            first = rows, logits
        drafts.append(int(logits[-1].argmax()))
        draft_logits.append(logits[-1])
        # The next pair is the predictor's own row with its own draft.
        hidden = np.concatenate([hidden, rows[-1:]])
        tokens.append(drafts[-1])
    assert len(first[0]) == pairs
    return {
        "mtp_hidden": first[0],
        "mtp_logits": first[1],
        "draft_ids": np.array(drafts, np.int32),
        "draft_logits": np.stack(draft_logits),
    }
