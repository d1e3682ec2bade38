"""Tiny random Gemma checkpoints: the variants, their weights and their files."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Gemma4ForCausalLM, Gemma4TextConfig

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

WINDOW = 16
VOCABULARY = 304
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclasses.dataclass
class Variant:
    family: str  # "gemma3" or "gemma4"
    config: dict  # arguments of the text config class
    storage: str  # element type of the tensors in the file
    config_form: str = "current"  # see write_config
    prefix: str = "model."
    shards: int = 1
    stray_tensors: bool = False  # vision and audio tensors a text engine has to skip
    brief: bool = False  # a file-format variant: few prompts, small goldens
    free_sizes: tuple = (48, 80, 96, 112)  # hidden sizes that compare_logits.py draws from


def layer_types(letters):
    return [{"S": "sliding_attention", "F": "full_attention"}[letter] for letter in letters]


def gemma3(**extra):
    return dict(vocab_size=VOCABULARY, head_dim=16, sliding_window=WINDOW, max_position_embeddings=4096) | extra


def gemma4(**extra):
    return (
        dict(
            vocab_size=VOCABULARY,
            vocab_size_per_layer_input=extra.get("vocab_size", VOCABULARY),
            head_dim=16,
            global_head_dim=32,
            sliding_window=WINDOW,
            max_position_embeddings=4096,
            hidden_size_per_layer_input=0,
            final_logit_softcapping=30.0,
        )
        | extra
    )


LINEAR_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
}

VARIANTS = {
    # Default rope, default pattern (layer 5 full); ends on a sliding layer as the 1B does.
    "gemma3": Variant(
        "gemma3",
        gemma3(
            hidden_size=48, intermediate_size=48, num_hidden_layers=7, num_attention_heads=3,
            num_key_value_heads=1, query_pre_attn_scalar=16,
        ),
        "F32",
        free_sizes=(48, 96, 144),
    ),
    # 27B-like attention scale, 4B-like linear scaling, release-era configuration keys.
    "gemma3_linear": Variant(
        "gemma3",
        gemma3(
            hidden_size=80, intermediate_size=64, num_hidden_layers=5, num_attention_heads=4,
            num_key_value_heads=2, query_pre_attn_scalar=20, sliding_window_pattern=3, rope_parameters=LINEAR_ROPE,
        ),
        "BF16",
        config_form="release",
    ),
    # 12B and 31B: K = V on the full layers, which have fewer and wider KV heads.
    "gemma4_dense": Variant(
        "gemma4",
        gemma4(
            hidden_size=80, intermediate_size=48, num_hidden_layers=5, num_attention_heads=4,
            num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True,
            layer_types=layer_types("SSFSF"),
        ),
        "BF16",
        config_form="flat",
    ),
    # 26B-A4B: dense and mixture of experts side by side.
    "gemma4_moe": Variant(
        "gemma4",
        gemma4(
            hidden_size=48, intermediate_size=32, num_hidden_layers=5, num_attention_heads=4,
            num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True,
            layer_types=layer_types("SSFSF"), enable_moe_block=True, num_experts=8, top_k_experts=3,
            moe_intermediate_size=16,
        ),
        "BF16",
    ),
    # E2B: per-layer embeddings, shared KV tail, double-wide MLP in the tail.
    "gemma4_e2b": Variant(
        "gemma4",
        gemma4(
            hidden_size=48, intermediate_size=48, num_hidden_layers=7, num_attention_heads=4,
            num_key_value_heads=1, layer_types=layer_types("SFSFSSF"), hidden_size_per_layer_input=16,
            num_kv_shared_layers=3, use_double_wide_mlp=True,
        ),
        "BF16",
    ),
    # E4B: per-layer embeddings and shared KV tail without the double width. num_global_key_value_heads
    # is set but attention_k_eq_v is not, so the full layers keep two KV heads.
    "gemma4_e4b": Variant(
        "gemma4",
        gemma4(
            hidden_size=96, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, num_global_key_value_heads=1, layer_types=layer_types("SFSF"),
            hidden_size_per_layer_input=32, num_kv_shared_layers=2,
        ),
        "F16",
        config_form="flat",
    ),
    # Nothing but the necessary keys: default pattern with forced full last layer, default rope, no softcap.
    "gemma4_defaults": Variant(
        "gemma4",
        gemma4(
            vocab_size=96, hidden_size=48, intermediate_size=16, num_hidden_layers=7, num_attention_heads=2,
            num_key_value_heads=1, final_logit_softcapping=None,
        ),
        "BF16",
        config_form="minimal",
        brief=True,
    ),
    "gemma4_sharded": Variant(
        "gemma4",
        gemma4(
            vocab_size=96, hidden_size=48, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, layer_types=layer_types("SF"),
        ),
        "F32",
        shards=3,
        brief=True,
    ),
    # The released files: text under text_config, longer tensor prefix, towers beside the text model.
    "gemma4_nested": Variant(
        "gemma4",
        gemma4(
            vocab_size=96, hidden_size=48, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, layer_types=layer_types("SFF"), hidden_size_per_layer_input=16,
            num_kv_shared_layers=1, use_double_wide_mlp=True,
        ),
        "BF16",
        config_form="nested",
        prefix="model.language_model.",
        stray_tensors=True,
        brief=True,
    ),
    "gemma3_nested": Variant(
        "gemma3",
        gemma3(
            vocab_size=96, hidden_size=48, intermediate_size=32, num_hidden_layers=3, num_attention_heads=3,
            num_key_value_heads=1, query_pre_attn_scalar=16, sliding_window_pattern=2, rope_parameters=LINEAR_ROPE,
        ),
        "BF16",
        config_form="nested-release",
        prefix="language_model.model.",
        stray_tensors=True,
        brief=True,
        free_sizes=(48, 96, 144),
    ),
}


def make_model(variant, overrides=None):
    arguments = variant.config | (overrides or {})
    arguments["attn_implementation"] = "eager"
    if variant.family == "gemma3":
        return Gemma3ForCausalLM(Gemma3TextConfig(**arguments)).eval().float()
    return Gemma4ForCausalLM(Gemma4TextConfig(**arguments)).eval().float()


def randomise(model, variant, generator):
    """Fills every parameter and layer scalar, then rounds to the storage type.

    Activations and logits stay of order one to ten, attention neither flat nor one-hot.
    """

    def uniform(tensor, low, high):
        return low + (high - low) * torch.rand(tensor.shape, generator=generator)

    def normal(tensor, std):
        return std * torch.randn(tensor.shape, generator=generator)

    one = 1.0 if variant.family == "gemma3" else 0.0  # Gemma 3 stores the gain minus one
    tensors = dict(model.named_parameters())
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name.endswith("layer_scalar")}
    for name, tensor in tensors.items():
        if name.endswith("layer_scalar"):
            value = uniform(tensor, 0.3, 0.95) if torch.rand(1, generator=generator) < 0.7 else uniform(tensor, 1.05, 1.2)
        elif name.endswith("embed_tokens.weight"):
            value = normal(tensor, 0.8 / math.sqrt(tensor.shape[1]))
            value[:4] *= 0.1  # keeps the special ids out of greedy continuations
        elif name.endswith("embed_tokens_per_layer.weight"):
            value = normal(tensor, 1.0 / math.sqrt(model.config.hidden_size_per_layer_input))
        elif name.endswith("router.scale"):
            value = uniform(tensor, 0.5, 1.6)
        elif name.endswith("per_expert_scale"):
            value = uniform(tensor, 0.4, 1.7)
        elif name.endswith("router.proj.weight"):
            value = normal(tensor, 2.0)
        elif "q_norm" in name or "k_norm" in name:
            scale = model.config.query_pre_attn_scalar**0.25 if variant.family == "gemma3" else 1.0
            value = uniform(tensor, 0.3 * scale, 0.7 * scale) - one
        elif name == "model.norm.weight":
            value = uniform(tensor, 2.0, 7.0) - one
        elif "norm" in name:
            value = uniform(tensor, 0.5, 1.7) - one
        else:
            value = normal(tensor, 1.0 / math.sqrt(tensor.shape[-1]))
        tensor.data.copy_(value.to(DTYPES[variant.storage]).float())
    return model


# Configuration forms ---------------------------------------------------------------------------


def text_config(model, variant):
    """The text part of config.json in the form the variant asks for."""
    current = json.loads(model.config.to_json_string(use_diff=True))
    for key in ("_name_or_path", "attn_implementation", "dtype"):
        current.pop(key, None)
    form = variant.config_form
    if form in ("current", "nested"):
        return current
    if form == "flat":  # before per_layer_config
        current.pop("per_layer_config")
        current["global_head_dim"] = variant.config["global_head_dim"]
        current["num_global_key_value_heads"] = variant.config.get("num_global_key_value_heads")
        return current
    if form == "minimal":
        keys = (
            "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
            "num_key_value_heads head_dim sliding_window hidden_size_per_layer_input max_position_embeddings"
        )
        return {key: current[key] for key in keys.split()} | {"global_head_dim": variant.config["global_head_dim"]}
    if form in ("release", "nested-release"):  # Gemma 3 as published
        rope = current.pop("rope_parameters")
        full, sliding = rope["full_attention"], rope["sliding_attention"]
        current.pop("layer_types")
        current.pop("_sliding_window_pattern", None)
        current["sliding_window_pattern"] = variant.config["sliding_window_pattern"]
        current["rope_theta"] = full["rope_theta"]
        current["rope_local_base_freq"] = sliding["rope_theta"]
        current["rope_scaling"] = (
            {"rope_type": full["rope_type"], "factor": full["factor"]} if full["rope_type"] != "default" else None
        )
        return current
    raise ValueError(form)


def write_config(model, variant, folder):
    config = text_config(model, variant)
    config["architectures"] = [type(model).__name__]
    config["dtype" if variant.config_form != "release" else "torch_dtype"] = {
        "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    }[variant.storage]
    if variant.config_form.startswith("nested"):
        name = "Gemma3" if variant.family == "gemma3" else "Gemma4"
        # The image and audio ids of the real models lie outside a tiny vocabulary.
        config = {
            "architectures": [f"{name}ForConditionalGeneration"],
            "model_type": variant.family,
            "dtype": config["dtype"],
            "text_config": config,
            "tie_word_embeddings": True,
            "vision_config": {
                "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
                "image_size": 28, "patch_size": 14,
            }
            | ({"model_type": "siglip_vision_model"} if variant.family == "gemma3" else {"head_dim": 16}),
        }
        config["text_config"].pop("architectures")
        if variant.family == "gemma3":
            config |= {"mm_tokens_per_image": 4}
        else:
            config |= {"audio_config": None}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


# Weights ---------------------------------------------------------------------------------------


def file_tensors(model, variant):
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        assert name.startswith("model.")
        tensors[variant.prefix + name.removeprefix("model.")] = tensor.to(DTYPES[variant.storage]).contiguous()
    if variant.stray_tensors:
        outer = "" if variant.family == "gemma3" else "model."
        projector = "multi_modal_projector" if variant.family == "gemma3" else "embed_vision"
        stray = [
            f"{outer}vision_tower.encoder.layers.0.self_attn.q_proj.weight",
            f"{outer}{projector}.embedding_projection.weight",
        ]
        if variant.family == "gemma4":
            stray.append("model.audio_tower.output_proj.weight")
        for name in stray:
            tensors[name] = torch.full((4, 4), 7.0, dtype=DTYPES[variant.storage])
    return tensors


def write_weights(model, variant, folder):
    tensors = file_tensors(model, variant)
    if variant.shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    index = {}
    for shard in range(variant.shards):
        file = f"model-{shard + 1:05}-of-{variant.shards:05}.safetensors"
        part = names[shard :: variant.shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        index |= {name: file for name in part}
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    text = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text, indent=2) + "\n")


def write_checkpoint(model, variant, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_config(model, variant, folder)
    write_weights(model, variant, folder)


# The reference ---------------------------------------------------------------------------------


def relative_error(a, b):
    """Norm-wise: |a - b| / |b|."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@torch.no_grad()
def whole_logits(model, ids):
    """Float32 logits [tokens, vocabulary] from one pass without a cache."""
    out = model(input_ids=torch.tensor([list(map(int, ids))]), use_cache=False)
    return out.logits[0].float().numpy()


@torch.no_grad()
def cached_logits(model, ids, chunk):
    """The same by chunks through the model's own cache."""
    cache, rows = None, []
    for start in range(0, len(ids), chunk):
        piece = torch.tensor([list(map(int, ids[start : start + chunk]))])
        extra = {} if cache is None else {cache_argument(model): cache}
        out = model(input_ids=piece, use_cache=True, **extra)
        cache = getattr(out, "cache", None) or out.past_key_values
        rows.append(out.logits[0].float().numpy())
    return np.concatenate(rows)


def cache_argument(model):
    import inspect

    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


@torch.no_grad()
def greedy(model, ids, count):
    """Greedy continuation without a cache, and the smallest lead of a winner over its runner-up."""
    ids, lead = list(map(int, ids)), math.inf
    start = len(ids)
    for _ in range(count):
        last = whole_logits(model, ids)[-1]
        second, first = np.partition(last, -2)[-2:]
        lead = min(lead, float(first - second))
        ids.append(int(last.argmax()))
    return ids[start:], lead


@torch.no_grad()
def internals(model, ids):
    """Values inside one pass: layer outputs, final norm, per-layer inputs, routing."""
    seen = {"hidden": [], "router_ids": [], "router_weights": [], "router_gap": []}
    hooks = []

    def on_layer(_, __, output):
        output = output[0] if isinstance(output, tuple) else output
        seen["hidden"].append(output.reshape(-1, output.shape[-1]).clone())

    def on_router(_, __, output):
        probabilities, weights, chosen = output
        ranked = probabilities.sort(dim=-1, descending=True).values
        k = chosen.shape[-1]
        seen["router_gap"].append(float((1 - ranked[:, k] / ranked[:, k - 1]).min()))
        seen["router_ids"].append(chosen.clone())
        seen["router_weights"].append(weights.clone())

    def on_first_layer(_, arguments, named):
        embedded = arguments[0] if arguments else named["hidden_states"]
        seen["hidden"].append(embedded[0].clone())

    def on_norm(_, __, output):
        seen["final"] = output[0].clone()

    text = model.model
    hooks.append(text.layers[0].register_forward_pre_hook(on_first_layer, with_kwargs=True))
    hooks.append(text.norm.register_forward_hook(on_norm))
    for layer in text.layers:
        hooks.append(layer.register_forward_hook(on_layer))
        if hasattr(layer, "router"):
            hooks.append(layer.router.register_forward_hook(on_router))
    if getattr(text, "hidden_size_per_layer_input", 0):
        original = text.project_per_layer_inputs

        def record(*args, **kwargs):
            seen["ple"] = original(*args, **kwargs)
            return seen["ple"]

        text.project_per_layer_inputs = record
    try:
        whole_logits(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
        if "ple" in seen:
            del text.project_per_layer_inputs

    result = {"hidden": torch.stack(seen["hidden"]).numpy(), "final": seen["final"].numpy()}
    if "ple" in seen:
        result["ple"] = seen["ple"][0].numpy()
    if seen["router_ids"]:
        result["router_ids"] = torch.stack(seen["router_ids"]).numpy().astype(np.int32)
        result["router_weights"] = torch.stack(seen["router_weights"]).numpy()
        result["router_gap"] = min(seen["router_gap"])
    return result
