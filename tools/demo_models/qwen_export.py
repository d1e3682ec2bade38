"""Writes a trained Qwen3-Next as a Hugging Face folder, MTP tensors included, in the names and keys of the
published checkpoints."""

import json

import torch
from safetensors.torch import load_file, save_file

BPE_ENTRIES = 7872
ENDOFTEXT, IM_END = BPE_ENTRIES, BPE_ENTRIES + 2


def hf_config(c):
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": "bfloat16",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": 4 * c.hidden_size,
        "num_hidden_layers": c.num_hidden_layers,
        "full_attention_interval": c.full_attention_interval,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "partial_rotary_factor": c.rotary_dim / c.head_dim,
        "rope_theta": c.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": c.max_position_embeddings,
        "linear_num_key_heads": c.linear_num_key_heads,
        "linear_num_value_heads": c.linear_num_value_heads,
        "linear_key_head_dim": c.linear_key_head_dim,
        "linear_value_head_dim": c.linear_value_head_dim,
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim,
        "num_experts": c.num_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "norm_topk_prob": True,
        "moe_intermediate_size": c.moe_intermediate_size,
        "shared_expert_intermediate_size": c.shared_expert_intermediate_size,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "rms_norm_eps": c.eps,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "bos_token_id": ENDOFTEXT,
        "eos_token_id": IM_END,
    }


def generation_config():
    return {"bos_token_id": ENDOFTEXT, "do_sample": True, "eos_token_id": [IM_END, ENDOFTEXT],
            "pad_token_id": ENDOFTEXT, "temperature": 0.7, "top_k": 20, "top_p": 0.8}


def to_checkpoint(state):
    """Checkpoint names; stacked experts are taken apart."""
    out = {}
    for name, p in state.items():
        name = name if name.startswith("mtp.") else f"model.{name}"
        p = p.detach().to("cpu", torch.bfloat16)
        if name.endswith("experts.gate_up_proj"):
            for e, (gate, up) in enumerate(p.unflatten(1, (2, -1)).unbind(0)):
                prefix = name.removesuffix("gate_up_proj") + str(e)
                out[f"{prefix}.gate_proj.weight"], out[f"{prefix}.up_proj.weight"] = gate.clone(), up.clone()
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(p.unbind(0)):
                out[f"{name.removesuffix('down_proj')}{e}.down_proj.weight"] = down.clone()
        else:
            out[name] = p.contiguous()
    return out


def load_checkpoint(model, folder):
    """Fills the trainer's model from a folder; a missing or left-over tensor is an error."""
    tensors = {k.removeprefix("model."): v.float() for k, v in load_file(folder / "model.safetensors").items()}
    state = {}
    for name in model.state_dict():
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            state[name] = torch.stack([torch.cat((tensors.pop(f"{prefix}{e}.gate_proj.weight"),
                                                  tensors.pop(f"{prefix}{e}.up_proj.weight")))
                                       for e in range(model.c.num_experts)])
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            state[name] = torch.stack([tensors.pop(f"{prefix}{e}.down_proj.weight")
                                       for e in range(model.c.num_experts)])
        else:
            state[name] = tensors.pop(name)
    assert not tensors, sorted(tensors)[:5]
    model.load_state_dict(state, strict=True)


def export(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_checkpoint(model.state_dict()), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(hf_config(model.c), indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation_config(), indent=2) + "\n")
