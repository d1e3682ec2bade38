"""A compact Gemma 4 text decoder for training: same arithmetic and tensor names as the checkpoint.

Experts are computed densely (every expert for every token, weighted by the router, zero when
not selected), which is the same function and at these widths the fastest form on a GPU.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 8192
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_every: int = 4  # layers 3, 7, ... are full, the others sliding
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    num_global_key_value_heads: int = 1
    head_dim: int = 64
    global_head_dim: int = 128
    intermediate_size: int = 256
    num_experts: int = 0
    top_k_experts: int = 4
    moe_intermediate_size: int = 64
    sliding_window: int = 128
    softcap: float = 30.0
    eps: float = 1e-6
    max_position_embeddings: int = 8192
    layer_types: list = field(init=False)

    def __post_init__(self):
        self.layer_types = ["full_attention" if (i + 1) % self.full_every == 0 else "sliding_attention"
                            for i in range(self.num_hidden_layers)]


CONFIGS = {
    "gemma4": Config(num_experts=16),
    "gemma4-dense": Config(intermediate_size=768),
}


class RMSNorm(nn.Module):
    def __init__(self, dim, eps, init=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((dim,), init))
        self.eps = eps

    def forward(self, x):
        return (rms(x, self.eps).float() * self.weight.float()).to(x.dtype)


def rms(x, eps):
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rope_table(length, dim, theta, live, device):
    """cos, sin [length, dim]; only the first `live` pairs turn."""
    freq = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    freq = torch.where(torch.arange(dim // 2, device=device) < live, freq, 0.0)
    angle = torch.arange(length, dtype=torch.float32, device=device)[:, None] * freq
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [batch, length, heads, dim]."""
    a, b = x.chunk(2, -1)
    return (x * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]).to(x.dtype)


def sliding_attention(q, k, v, window, reach=None):
    """Causal attention over at most `window` keys, in blocks of `window` rows.

    q, k, v [batch, heads, length, dim], length a multiple of the window; no scaling. `reach`: number
    of keys seen if it is not the window; at most window + 1.
    """
    reach = window if reach is None else reach
    b, h, t, d = q.shape
    n = t // window
    q = q.reshape(b, h, n, window, d)

    def with_previous(x):
        x = x.reshape(b, h, n, window, d)
        return torch.cat((F.pad(x[:, :, :-1], (0, 0, 0, 0, 1, 0)), x), 3)

    scores = q @ with_previous(k).transpose(-1, -2)
    row = torch.arange(window, device=q.device)[:, None]
    col = torch.arange(2 * window, device=q.device)[None] - window
    seen = (col <= row) & (row - col < reach)
    first = torch.arange(n, device=q.device)[:, None, None] == 0
    seen = seen & ~(first & (col < 0))
    scores = scores.float().masked_fill(~seen, float("-inf"))
    out = torch.softmax(scores, -1).to(v.dtype) @ with_previous(v)
    return out.reshape(b, h, t, d)


class Attention(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.full, self.window, self.eps = full, c.sliding_window, c.eps
        self.heads = c.num_attention_heads
        self.kv_heads = c.num_global_key_value_heads if full else c.num_key_value_heads
        self.dim = c.global_head_dim if full else c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * self.dim, bias=False)
        if not full:
            self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, c.hidden_size, bias=False)
        # The scores carry no 1/sqrt(dim): let the two gains start with it.
        self.q_norm = RMSNorm(self.dim, c.eps, self.dim ** -0.25)
        self.k_norm = RMSNorm(self.dim, c.eps, self.dim ** -0.25)

    def keys_values(self, x, cos, sin):
        """[batch, length, KV heads, dim] each, as they would be stored in a cache."""
        b, t, _ = x.shape
        raw = self.k_proj(x).view(b, t, -1, self.dim)
        v = rms(raw if self.full else self.v_proj(x).view(b, t, -1, self.dim), self.eps)
        return rotate(self.k_norm(raw), cos, sin), v

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, -1, self.dim)), cos, sin)
        k, v = self.keys_values(x, cos, sin)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if self.full:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        else:
            out = sliding_attention(q, k, v, self.window)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.k, self.eps, self.root = c.top_k_experts, c.eps, c.hidden_size ** -0.5
        self.proj = nn.Linear(c.hidden_size, c.num_experts, bias=False)
        self.scale = nn.Parameter(torch.full((c.hidden_size,), math.sqrt(c.hidden_size)))
        self.per_expert_scale = nn.Parameter(torch.ones(c.num_experts))

    def forward(self, x):
        """Weights [.., experts] (zero when not selected), probabilities and selection of the same shape."""
        with torch.autocast(x.device.type, enabled=False):
            r = rms(x.float(), self.eps) * self.scale * self.root
            p = torch.softmax(r @ self.proj.weight.float().t(), -1)
            chosen = torch.zeros_like(p).scatter(-1, p.topk(self.k, -1).indices, 1.0)
            w = p * chosen
            w = w / w.sum(-1, keepdim=True) * self.per_expert_scale
        return w, p, chosen


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        e, m, d = c.num_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(e, 2 * m, d))
        self.down_proj = nn.Parameter(torch.empty(e, d, m))

    def forward(self, x, weights):
        e, d, m = self.down_proj.shape
        gate, up = self.gate_up_proj.view(e, 2, m, d).transpose(0, 1).reshape(2, e * m, d).unbind(0)
        h = F.gelu(F.linear(x, gate), approximate="tanh") * F.linear(x, up)
        h = h.unflatten(-1, (e, m)) * weights.to(h.dtype).unsqueeze(-1)
        return F.linear(h.flatten(-2), self.down_proj.transpose(0, 1).reshape(d, e * m))


class Layer(nn.Module):
    def __init__(self, c, full, attention=Attention):
        super().__init__()
        d, eps = c.hidden_size, c.eps
        residual_gain = (2 * c.num_hidden_layers) ** -0.5
        self.full = full
        self.input_layernorm = RMSNorm(d, eps)
        self.self_attn = attention(c, full)
        self.post_attention_layernorm = RMSNorm(d, eps, residual_gain)
        self.pre_feedforward_layernorm = RMSNorm(d, eps)
        self.mlp = Mlp(c)
        self.post_feedforward_layernorm = RMSNorm(d, eps, residual_gain)
        self.layer_scalar = nn.Parameter(torch.ones(1))
        self.moe = c.num_experts > 0
        if self.moe:
            self.router = Router(c)
            self.experts = Experts(c)
            self.post_feedforward_layernorm_1 = RMSNorm(d, eps)
            self.pre_feedforward_layernorm_2 = RMSNorm(d, eps)
            self.post_feedforward_layernorm_2 = RMSNorm(d, eps)

    def forward(self, x, read):
        """`read`: what the attention needs beside its rows, here the tables (cos, sin)."""
        return self.after_attention(
            x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), *read)))

    def after_attention(self, x):
        y = self.mlp(self.pre_feedforward_layernorm(x))
        balance, load = x.new_zeros((), dtype=torch.float32), None
        if self.moe:
            w, p, chosen = self.router(x)
            z = self.experts(self.pre_feedforward_layernorm_2(x), w)
            y = self.post_feedforward_layernorm_1(y) + self.post_feedforward_layernorm_2(z)
            load = chosen.flatten(0, -2).mean(0) / self.router.k  # share of assignments by expert
            balance = p.shape[-1] * (load * p.flatten(0, -2).mean(0)).sum()
        x = x + self.post_feedforward_layernorm(y)
        return x * self.layer_scalar.to(x.dtype), balance, load


class Gemma4(nn.Module):
    """`forward` gives the normalised hidden rows; `logits` turns them into soft-capped logits."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.stream_dtype = torch.float32  # of the residual stream; a trainer may narrow it
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, t == "full_attention") for t in c.layer_types)
        self.norm = RMSNorm(c.hidden_size, c.eps)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        d = self.c.hidden_size
        for name, p in self.named_parameters():
            if name.startswith("embed"):
                p.normal_(0, d ** -0.5)
            elif p.dim() >= 2:
                p.normal_(0, p.shape[-1] ** -0.5 if "router" not in name else 0.5 * d ** -0.5)

    def forward(self, ids):
        c, t = self.c, ids.shape[1]
        rope = {
            False: rope_table(t, c.head_dim, 1e4, c.head_dim // 2, ids.device),
            True: rope_table(t, c.global_head_dim, 1e6, int(0.25 * c.global_head_dim / 2), ids.device),
        }
        x = self.embed_tokens(ids) * math.sqrt(c.hidden_size)
        x = x.to(self.stream_dtype)
        balance, loads = 0.0, []
        for layer in self.layers:
            x, b, load = layer(x, rope[layer.full])
            balance = balance + b
            loads.append(load)
        return self.norm(x), balance / len(self.layers), torch.stack(loads) if loads[0] is not None else None

    def logits(self, hidden):
        y = F.linear(hidden, self.embed_tokens.weight)
        return self.c.softcap * torch.tanh(y.float() / self.c.softcap)
