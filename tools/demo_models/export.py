"""Writes a trained model as a Hugging Face folder (config.json, model.safetensors, generation_config.json)."""

import json

import torch
from safetensors.torch import save_file

EOS = [1, 16, 9]  # <eos>, <turn|>, <|tool_response>


def hf_config(c):
    moe = c.num_experts > 0
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "layer_types": c.layer_types,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "num_global_key_value_heads": c.num_global_key_value_heads,
        "head_dim": c.head_dim,
        "global_head_dim": c.global_head_dim,
        "attention_k_eq_v": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "num_kv_shared_layers": 0,
        "sliding_window": c.sliding_window,
        "max_position_embeddings": c.max_position_embeddings,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": c.eps,
        "final_logit_softcapping": c.softcap,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": c.vocab_size,
        "use_double_wide_mlp": False,
        "use_bidirectional_attention": None,
        "enable_moe_block": moe,
        "num_experts": c.num_experts if moe else None,
        "top_k_experts": c.top_k_experts if moe else None,
        "moe_intermediate_size": c.moe_intermediate_size if moe else None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "pad_token_id": 0,
        "eos_token_id": EOS,
        "bos_token_id": 2,
    }


def generation_config():
    return {"bos_token_id": 2, "eos_token_id": EOS, "pad_token_id": 0, "do_sample": True,
            "temperature": 0.9, "top_k": 40, "top_p": 0.95}


def export(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": p.detach().to("cpu", torch.bfloat16).contiguous()
               for name, p in model.named_parameters()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config(model.c), indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation_config(), indent=2) + "\n")
