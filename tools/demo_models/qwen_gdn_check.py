#!/usr/bin/env python3
"""Compares the chunked gated delta rule of qwen_model.py with the plain recurrence, values and gradients."""

import torch

from qwen_model import gated_delta, l2_normalise, unit_lower_inverse


def recurrent(q, k, v, g, beta):
    ratio = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(ratio, 2), k.repeat_interleave(ratio, 2)
    s, out = v.new_zeros(*v.shape[:1], v.shape[2], k.shape[-1], v.shape[-1]), []
    for t in range(v.shape[1]):
        s = s * g[:, t, :, None, None].exp()
        d = beta[:, t, :, None] * (v[:, t] - (s * k[:, t, ..., None]).sum(-2))
        s = s + k[:, t, ..., None] * d[..., None, :]
        out.append((s * q[:, t, ..., None]).sum(-2))
    return torch.stack(out, 1)


def relative(a, b):
    return float((a - b).norm() / b.norm())


def case(length, dtype, chunk, alike, seed):
    torch.manual_seed(seed)
    q = l2_normalise(torch.randn(2, length, 2, 16, dtype=dtype), 1e-6) * 0.25
    k = torch.randn(2, length, 2, 16, dtype=dtype)
    k = l2_normalise(torch.randn(16, dtype=dtype) + 0.05 * k if alike else k, 1e-6)
    v = torch.randn(2, length, 4, 16, dtype=dtype)
    g = -torch.exp(torch.randn(2, length, 4, dtype=dtype) * 2 - (7 if alike else 2))
    beta = torch.sigmoid(torch.randn(2, length, 4, dtype=dtype) + (4 if alike else 0))
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    weights = torch.randn(2, length, 4, 16, dtype=dtype)
    results = []
    for function in (lambda *x: gated_delta(*x, chunk=chunk), recurrent):
        out = function(*inputs)
        results.append([out.detach()] + list(torch.autograd.grad((out * weights).sum(), inputs)))
    return [relative(a, b) for a, b in zip(*results)]


def main():
    seed = int(torch.randint(1 << 30, (1,)))
    print("seed", seed)
    a = torch.randn(3, 64, 64, dtype=torch.float64).tril(-1) * 0.2
    error = relative(unit_lower_inverse(a), torch.linalg.inv(torch.eye(64, dtype=a.dtype) + a))
    assert error < 1e-12, error
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 2e-4)):
        for chunk in (32, 64):
            for length in (1, 33, 64, 130):
                for alike in (False, True):
                    errors = case(length, dtype, chunk, alike, seed + length)
                    assert max(errors[:4]) < limit, (dtype, chunk, length, alike, errors)
                    if length > 1:
                        assert max(errors) < limit, (dtype, chunk, length, alike, errors)
            print(dtype, "chunk", chunk, "agrees; last case:", " ".join(f"{e:.1e}" for e in errors))


if __name__ == "__main__":
    main()
