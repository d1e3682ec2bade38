"""A compact Qwen3-Next decoder with its MTP head, for training and as the reference of the drafts.

Same arithmetic and tensor names as the checkpoint, except that a layer's experts are stacked.
They are computed densely (every expert for every token, weighted by the router, zero when not
selected), which is the same function and at these widths the fastest form on a GPU.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

CHUNK = 32  # tokens; any power of two gives the same function


@dataclass
class Config:
    vocab_size: int = 7936
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_theta: float = 1e5
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    num_experts: int = 32
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 32
    shared_expert_intermediate_size: int = 32
    eps: float = 1e-6
    max_position_embeddings: int = 8192

    def is_attention(self, layer):
        return (layer + 1) % self.full_attention_interval == 0


CONFIGS = {
    "qwen3next": Config(),
    "tiny": Config(vocab_size=7936, hidden_size=64, num_hidden_layers=4, head_dim=32, rotary_dim=8,
                   linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
                   num_experts=8, num_experts_per_tok=3),
}


class RMSNorm(nn.Module):
    """Zero-centred: the gain is 1 + weight."""

    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight.float())).to(x.dtype)


class GatedRMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, z):
        f = x.float()
        return f * torch.rsqrt(f.square().mean(-1, keepdim=True) + self.eps) * self.weight.float() * F.silu(z.float())


def unit_lower_inverse(a):
    """(I + a)^-1 for strictly lower a [.., n, n], n a power of two.

    Inverts diagonal blocks of growing size (T21 = -T22 A21 T11), then takes one Newton step, which
    removes rounding and carries the gradient.
    """
    n = a.shape[-1]
    index = torch.arange(n, device=a.device)
    fixed, eye = a.detach(), torch.eye(n, dtype=a.dtype, device=a.device)
    t, size = eye.expand_as(a), 1
    while size < n:
        block = index // size
        lower_left = (block[:, None] == block[None] + 1) & (block[:, None] % 2 == 1)
        part = torch.where(lower_left, fixed, 0.0)
        t = t - (part if size == 1 else t @ (part @ t))
        size *= 2
    return t @ (2 * eye - t - a @ t)


def entry_states(m, n):
    """States before each step of S <- m S + n from S = 0; m [.., steps, k, k], n [.., steps, k, v]."""
    steps = m.shape[-3]
    if steps == 1:
        return torch.zeros_like(n)
    if steps % 2:
        m, n = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (m, n))
    m0, m1 = m[..., 0::2, :, :], m[..., 1::2, :, :]
    n0, n1 = n[..., 0::2, :, :], n[..., 1::2, :, :]
    even = entry_states(m1 @ m0, m1 @ n0 + n1)
    return torch.stack((even, m0 @ even + n0), -3).flatten(-4, -3)[..., :steps, :, :]


def gated_delta(q, k, v, g, beta, chunk=CHUNK):
    """The gated delta rule from a zero state, in chunks (WY form).

    q, k [batch, length, key heads, dk], normalised, q scaled; v [batch, length, value heads, dv];
    g (log decay), beta [batch, length, value heads]. Gives [batch, length, value heads, dv].
    """
    b, t, hk, _ = k.shape
    hv = v.shape[2]
    rest = -t % chunk

    def chunked(x):  # [batch, heads, chunks, chunk, ..]
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, rest))
        return x.unflatten(1, (-1, chunk)).movedim(3, 1)

    def shared(x):  # key heads -> value heads
        return x[:, :, None].expand(-1, -1, hv // hk, *x.shape[2:]).flatten(1, 2)

    q, k, v, g, beta = (chunked(x) for x in (q, k, v, g, beta))
    gamma = g.cumsum(-1)
    index = torch.arange(chunk, device=v.device)
    difference = gamma[..., :, None] - gamma[..., None, :]
    decay = difference.masked_fill(index[:, None] < index, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    a = torch.where(index[:, None] > index, beta[..., None] * shared(k @ kt) * decay, 0.0)
    p = shared(q @ kt) * decay
    q, k = shared(q), shared(k)
    inside = gamma.exp()[..., None]
    u, w = (unit_lower_inverse(a) @ torch.cat((v, k * inside), -1).mul(beta[..., None])).split(
        (v.shape[-1], k.shape[-1]), -1)
    last = gamma[..., -1:, None]
    late = (k * (last - gamma[..., None]).exp()).transpose(-1, -2)
    m = last.exp() * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - late @ w
    s = entry_states(m, late @ u)
    out = (q * inside) @ s + p @ (u - w @ s)
    return out.movedim(1, 3).flatten(1, 2)[:, :t]


def l2_normalise(x, eps):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        hk, hv, dk, dv = (c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim,
                          c.linear_value_head_dim)
        self.widths = (hk * dk, hk * dk, hv * dv)
        self.in_proj_qkvz = nn.Linear(c.hidden_size, 2 * hk * dk + 2 * hv * dv, bias=False)
        self.in_proj_ba = nn.Linear(c.hidden_size, 2 * hv, bias=False)
        self.conv1d = nn.Conv1d(sum(self.widths), sum(self.widths), c.linear_conv_kernel_dim, groups=sum(self.widths),
                                bias=False)
        self.A_log = nn.Parameter(torch.empty(hv).uniform_(1, 16).log())
        step = torch.exp(torch.linspace(-6.9, -2.3, hv))  # softplus(dt_bias): 0.001 to 0.1
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = GatedRMSNorm(dv, c.eps)
        self.out_proj = nn.Linear(hv * dv, c.hidden_size, bias=False)

    def separated(self):
        """Rows of the projections in the order q, k, v, z, b, a; the checkpoint groups them by key head."""
        c = self.c
        hk, dk, dv = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_value_head_dim
        ratio = c.linear_num_value_heads // hk
        qkvz = self.in_proj_qkvz.weight.unflatten(0, (hk, -1)).split((dk, dk, ratio * dv, ratio * dv), 1)
        ba = self.in_proj_ba.weight.unflatten(0, (hk, -1)).split((ratio, ratio), 1)
        return torch.cat([x.flatten(0, 1) for x in qkvz + ba])

    def forward(self, x):
        c = self.c
        y = F.linear(x, self.separated())
        with torch.autocast(x.device.type, enabled=False):
            hv = c.linear_num_value_heads
            u, z, b, a = y.float().split((sum(self.widths), hv * c.linear_value_head_dim, hv, hv), -1)
            taps = self.conv1d.weight.float()[:, 0].unbind(-1)
            u = F.pad(u, (0, 0, len(taps) - 1, 0))
            u = F.silu(sum(w * u[:, i:i + x.shape[1]] for i, w in enumerate(taps)))
            q, k, v = (part.unflatten(-1, (-1, dim)) for part, dim in zip(
                u.split(self.widths, -1), (c.linear_key_head_dim, c.linear_key_head_dim, c.linear_value_head_dim)))
            q = l2_normalise(q, c.eps) * c.linear_key_head_dim ** -0.5
            k = l2_normalise(k, c.eps)
            g = -self.A_log.float().exp() * F.softplus(a + self.dt_bias.float())
            o = gated_delta(q, k, v, g, b.sigmoid())
            o = self.norm(o, z.unflatten(-1, (hv, -1))).flatten(-2)
        return self.out_proj(o.to(x.dtype))


def rope_table(c, length, device):
    """cos, sin [length, rotary_dim]."""
    freq = c.rope_theta ** -(torch.arange(0, c.rotary_dim, 2, dtype=torch.float32, device=device) / c.rotary_dim)
    angle = torch.arange(length, dtype=torch.float32, device=device)[:, None] * freq
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [batch, length, heads, dim]: turns the first dims, in halves."""
    turned, rest = x.split((cos.shape[-1], x.shape[-1] - cos.shape[-1]), -1)
    a, b = turned.chunk(2, -1)
    turned = turned * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]
    return torch.cat((turned.to(x.dtype), rest), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, 2 * c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.eps)
        self.k_norm = RMSNorm(c.head_dim, c.eps)

    def qkv(self, x, cos, sin):
        """q, k, v [batch, query heads, length, head_dim] and the gate [batch, length, query heads * head_dim]."""
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (c.num_attention_heads, -1)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (c.num_key_value_heads, -1))
        v = self.v_proj(x).unflatten(-1, (c.num_key_value_heads, -1))
        group = c.num_attention_heads // c.num_key_value_heads
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), gate.flatten(-2)

    def finish(self, out, gate):
        return self.o_proj(out.transpose(1, 2).flatten(-2) * torch.sigmoid(gate))

    def forward(self, x, cos, sin):
        q, k, v, gate = self.qkv(x, cos, sin)
        return self.finish(F.scaled_dot_product_attention(q, k, v, is_causal=True), gate)


class Mlp(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(c.num_experts, 2 * c.moe_intermediate_size, c.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(c.num_experts, c.hidden_size, c.moe_intermediate_size))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.k = c.num_experts_per_tok
        self.gate = nn.Linear(c.hidden_size, c.num_experts, bias=False)
        self.experts = Experts(c)
        self.shared_expert = Mlp(c.hidden_size, c.shared_expert_intermediate_size)
        self.shared_expert_gate = nn.Linear(c.hidden_size, 1, bias=False)

    def route(self, x):
        """Weights [.., experts] (zero when not selected), probabilities and selection of that shape."""
        p = torch.softmax(F.linear(x.float(), self.gate.weight.float()), -1)
        above, other = p[..., None, :], p[..., :, None]
        index = torch.arange(p.shape[-1], device=p.device)
        rank = ((above > other) | ((above == other) & (index < index[:, None]))).sum(-1)
        chosen = (rank < self.k).to(p.dtype)
        w = p * chosen
        return w / w.sum(-1, keepdim=True), p, chosen

    def forward(self, x):
        e, d, m = self.experts.down_proj.shape
        with torch.autocast(x.device.type, enabled=False):
            w, p, chosen = self.route(x)
            shared = torch.sigmoid(F.linear(x.float(), self.shared_expert_gate.weight.float()))
        gate, up = self.experts.gate_up_proj.unflatten(1, (2, m)).transpose(0, 1).flatten(1, 2).unbind(0)
        h = F.silu(F.linear(x, torch.cat((gate, self.shared_expert.gate_proj.weight))))
        h = h * F.linear(x, torch.cat((up, self.shared_expert.up_proj.weight)))
        scale = torch.cat((w.repeat_interleave(m, -1), shared.expand(*x.shape[:-1], h.shape[-1] - e * m)), -1)
        down = torch.cat((self.experts.down_proj.transpose(0, 1).flatten(1), self.shared_expert.down_proj.weight), 1)
        load = chosen.flatten(0, -2).mean(0) / self.k  # share of assignments by expert
        balance = e * (load * p.flatten(0, -2).mean(0)).sum()
        return F.linear(h * scale.to(h.dtype), down), balance, load


class Layer(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.eps)
        if attention:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.attention = attention
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.eps)
        self.mlp = Moe(c)

    def forward(self, x, cos, sin):
        y = self.input_layernorm(x)
        x = x + (self.self_attn(y, cos, sin) if self.attention else self.linear_attn(y))
        y, balance, load = self.mlp(self.post_attention_layernorm(x))
        return x + y, balance, load


class Mtp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pre_fc_norm_embedding = RMSNorm(c.hidden_size, c.eps)
        self.pre_fc_norm_hidden = RMSNorm(c.hidden_size, c.eps)
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(c, True)])
        self.norm = RMSNorm(c.hidden_size, c.eps)

    def join(self, hidden, embedding):
        return self.fc(torch.cat((self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)), -1))


def run_layer(layer, x, cos, sin):
    return layer(x, cos, sin)


class Qwen3Next(nn.Module):
    """`forward` gives the rows after the final norm; tied weights turn them into logits."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.stream_dtype = torch.float32  # of the residual stream; a trainer may narrow it
        self.run_layer = run_layer  # a trainer may compile it
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, c.is_attention(i)) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.eps)
        self.mtp = Mtp(c)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        for name, p in self.named_parameters():
            std = p.shape[-1] ** -0.5
            if name.endswith("conv1d.weight"):
                p.uniform_(-0.5, 0.5)
            elif name.endswith((".o_proj.weight", ".out_proj.weight", ".down_proj.weight", ".down_proj")):
                p.normal_(0, std * (2 * self.c.num_hidden_layers) ** -0.5)
            elif p.dim() >= 2:
                p.normal_(0, 0.5 * std if name.endswith(("gate.weight", "in_proj_ba.weight")) else std)

    def embed(self, ids):
        return self.embed_tokens(ids).to(self.stream_dtype)

    def forward(self, ids):
        """Rows after the final norm [batch, length, hidden], balance losses and loads by layer."""
        rope = rope_table(self.c, ids.shape[1], ids.device)
        x, balances, loads = self.embed(ids), [], []
        for layer in self.layers:
            x, balance, load = self.run_layer(layer, x, *rope)
            balances.append(balance)
            loads.append(load)
        return self.norm(x), balances, loads

    def draft(self, hidden, next_ids):
        """MTP rows, balance loss and load for the pairs (row of position p, token of position p+1)."""
        x = self.mtp.join(hidden, self.embed(next_ids)).to(self.stream_dtype)
        x, balance, load = self.run_layer(self.mtp.layers[0], x, *rope_table(self.c, x.shape[1], x.device))
        return self.mtp.norm(x), balance, load

    def draft_again(self, hidden, next_ids, drafted, drafts):
        """The second draft at every position: rows for the pairs (first draft's row, first draft).

        hidden, next_ids as for `draft`; drafted [batch, length, hidden] the rows it gave, drafts [batch,
        length] their tokens. Each position sees the pairs up to its own, then its own new pair.
        """
        layer, length = self.mtp.layers[0], hidden.shape[1]
        cos, sin = rope_table(self.c, length + 1, hidden.device)
        x = self.mtp.join(hidden, self.embed(next_ids))
        _, k, v, _ = layer.self_attn.qkv(layer.input_layernorm(x), cos[:-1], sin[:-1])
        x = self.mtp.join(drafted, self.embed(drafts))
        q, own_k, own_v, gate = layer.self_attn.qkv(layer.input_layernorm(x), cos[1:], sin[1:])
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(ahead, float("-inf"))
        scores = torch.cat((scores, (q * own_k).sum(-1, keepdim=True)), -1) * self.c.head_dim ** -0.5
        p = torch.softmax(scores.float(), -1).to(v.dtype)
        x = x + layer.self_attn.finish(p[..., :-1] @ v + p[..., -1:] * own_v, gate)
        y, _, _ = layer.mlp(layer.post_attention_layernorm(x))
        return self.mtp.norm(x + y)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight).float()
