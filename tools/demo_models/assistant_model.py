"""A Gemma 4 assistant (MTP drafter) beside its frozen target, all rows of a text at once.

Row r of a text x_0 x_1 ... stands for the moment when the target has verified x_0 .. x_r and x_{r+1}
is its newest token: that token's embedding and the target's normalised hidden row r go in, position
r+1 holds for all drafts of the round, the target's keys and values 0 .. r are seen. Draft k is for
x_{r+1+k} and is right when it is the first choice of the target's row r+k.
"""

import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from export import hf_config
from model import CONFIGS, Config, Gemma4, Layer, RMSNorm, rope_table, rotate, sliding_attention

STEPS = 3  # drafts of a round that are trained and measured


def assistant_config(target, hidden_size=96, intermediate_size=256, layers=4):
    """Heads, head sizes, window and vocabulary are the target's; S S S F."""
    return Config(vocab_size=target.vocab_size, hidden_size=hidden_size, num_hidden_layers=layers, full_every=layers,
                  num_attention_heads=target.num_attention_heads, num_key_value_heads=target.num_key_value_heads,
                  num_global_key_value_heads=target.num_global_key_value_heads, head_dim=target.head_dim,
                  global_head_dim=target.global_head_dim, intermediate_size=intermediate_size,
                  sliding_window=target.sliding_window, eps=target.eps,
                  max_position_embeddings=target.max_position_embeddings)


class BorrowingAttention(nn.Module):
    """Queries of its own; keys and values [batch, heads, length, dim] of the target, already repeated."""

    def __init__(self, c, full):
        super().__init__()
        self.full, self.window = full, c.sliding_window
        self.dim = c.global_head_dim if full else c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * self.dim, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.dim, c.eps, self.dim ** -0.25)

    def forward(self, x, cos, sin, k, v):
        b, t, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, -1, self.dim)), cos, sin).transpose(1, 2)
        if self.full:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        else:  # the newest row and a window before it
            out = sliding_attention(q, k, v, self.window, self.window + 1)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class Decoder(nn.Module):
    """The part that a checkpoint has under `model.`."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, t == "full_attention", BorrowingAttention) for t in c.layer_types)
        self.norm = RMSNorm(c.hidden_size, c.eps)


def run_layer(layer, x, read):
    return layer(x, read)


class Assistant(nn.Module):
    def __init__(self, c, backbone_hidden_size):
        super().__init__()
        self.c, self.backbone_hidden_size = c, backbone_hidden_size
        self.model = Decoder(c)
        self.pre_projection = nn.Linear(2 * backbone_hidden_size, c.hidden_size, bias=False)
        self.post_projection = nn.Linear(c.hidden_size, backbone_hidden_size, bias=False)
        self.run_layer = run_layer  # a trainer may compile it

    @torch.no_grad()
    def init_weights(self, target):
        """Random, but the table starts as the target's in its main directions."""
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                p.normal_(0, p.shape[-1] ** -0.5)
        table = target.embed_tokens.weight.double().cpu()
        directions = torch.linalg.eigh(table.t() @ table).eigenvectors[:, -self.c.hidden_size:]
        self.model.embed_tokens.weight.copy_((table @ directions).to(table.device))

    def draft(self, e, h, seen):
        """Normalised rows and next h [batch, length, ·] from embeddings and hidden rows of the target."""
        x = self.pre_projection(torch.cat((e, h.to(e.dtype)), -1))
        for layer in self.model.layers:
            x = self.run_layer(layer, x, seen[layer.full])[0]
        y = self.model.norm(x)
        return y, self.post_projection(y)


def load_target(folder, device):
    target = Gemma4(CONFIGS[folder.name]).to(device).eval()
    weights = {k.removeprefix("model."): v.float() for k, v in load_file(folder / "model.safetensors").items()}
    target.load_state_dict(weights, strict=True)
    return target.requires_grad_(False)


def embed(target, ids):
    return target.embed_tokens(ids) * math.sqrt(target.c.hidden_size)


def tables(c, length, device):
    return {False: rope_table(length, c.head_dim, 1e4, c.head_dim // 2, device),
            True: rope_table(length, c.global_head_dim, 1e6, int(0.25 * c.global_head_dim / 2), device)}


@torch.no_grad()
def read_target(target, ids, run=run_layer):
    """Normalised hidden rows [batch, length, D], and by kind of layer what an assistant's layer reads:
    (cos, sin) one position on, and keys and values of the last layer of the kind."""
    c, length = target.c, ids.shape[1]
    rope = tables(c, length + 1, ids.device)
    x = embed(target, ids).to(target.stream_dtype)
    seen = {}
    for i, layer in enumerate(target.layers):
        cos, sin = rope[layer.full]
        if c.layer_types[i] not in c.layer_types[i + 1:]:
            pair = layer.self_attn.keys_values(layer.input_layernorm(x), cos[:length], sin[:length])
            group = c.num_attention_heads // pair[0].shape[2]
            seen[layer.full] = (cos[1:], sin[1:], *(t.transpose(1, 2).repeat_interleave(group, 1) for t in pair))
        x = run(layer, x, (cos[:length], sin[:length]))[0]
    return target.norm(x), seen


@torch.no_grad()
def write_on(target, ids, length, temperature, generator, dtype=torch.float32):
    """Texts [batch, length] that begin with `ids`, drawn at `temperature` [batch], 0 the first choice.

    One token after the other, the keys and values of all rows kept in `dtype`.
    """
    c, batch, device = target.c, len(ids), ids.device
    rope = tables(c, length, device)
    kept = []
    for layer in target.layers:
        shape = (batch, layer.self_attn.kv_heads, length, layer.self_attn.dim)
        kept.append((torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)))
    out = torch.zeros(batch, length, dtype=torch.long, device=device)
    out[:, :ids.shape[1]] = ids
    warm = temperature[:, None]
    for t in range(length - 1):
        x = embed(target, out[:, t:t + 1])
        for layer, (keys, values) in zip(target.layers, kept):
            cos, sin = (table[t:t + 1] for table in rope[layer.full])
            attn, normed = layer.self_attn, layer.input_layernorm(x)
            k, v = attn.keys_values(normed, cos, sin)
            keys[:, :, t], values[:, :, t] = k[:, 0], v[:, 0]
            first = 0 if layer.full else max(0, t + 1 - c.sliding_window)
            q = rotate(attn.q_norm(attn.q_proj(normed).view(batch, 1, -1, attn.dim)), cos, sin)
            q = q.view(batch, attn.kv_heads, -1, attn.dim).to(dtype)
            p = torch.softmax((q @ keys[:, :, first:t + 1].transpose(-1, -2)).float(), -1).to(dtype)
            y = attn.o_proj((p @ values[:, :, first:t + 1]).reshape(batch, 1, -1).to(x.dtype))
            x = layer.after_attention(x + layer.post_attention_layernorm(y))[0]
        if t + 1 < ids.shape[1]:
            continue
        logits = target.logits(target.norm(x))[:, 0]
        noise = torch.empty_like(logits).exponential_(generator=generator).clamp_min(1e-20).log()
        out[:, t + 1] = torch.where(warm > 0, logits - warm * noise, logits).argmax(-1)
    return out


def assistant_hf_config(a):
    """Of Gemma4AssistantForCausalLM; the text part has the target's keys, all layers sharing."""
    text = hf_config(a.c) | {
        "final_logit_softcapping": None, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": a.c.num_hidden_layers,
    }
    for key in ("architectures", "dtype"):
        text.pop(key)
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "text_config": text,
        "backbone_hidden_size": a.backbone_hidden_size,
        "use_ordered_embeddings": False,
        "num_centroids": 2048,
        "centroid_intermediate_top_k": 32,
        "tie_word_embeddings": True,
        "pad_token_id": text["pad_token_id"],
        "eos_token_id": text["eos_token_id"],
        "bos_token_id": text["bos_token_id"],
    }


def export_assistant(a, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in a.named_parameters()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(assistant_hf_config(a), indent=2) + "\n")


def load_assistant(folder, target, device):
    text = json.loads((folder / "config.json").read_text())["text_config"]
    c = assistant_config(target.c, text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"])
    a = Assistant(c, target.c.hidden_size).to(device).eval()
    a.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()}, strict=True)
    return a
