#!/usr/bin/env python3
"""Makes the tiny Qwen3-Next and Qwen3.5 checkpoints of tests/data/models with their goldens.

The reference is Hugging Face transformers in float32 with eager attention and its plain torch delta
rule. It is believed only where its own paths agree: one pass without a cache, chunks of 7 and single
tokens through its cache, and the written folder loaded again. The predictor (MTP) follows the released
implementations and has to agree with the cached one of transformers. See tests/data/models/README.md.
"""

import numpy as np
import torch
from golden_files import finish_folder, run
from qwen_mtp_check import cached_mtp
from qwen_variants import (
    STOP_ID,
    VARIANTS,
    RouterWatch,
    cached_logits,
    draft_chain,
    greedy,
    internals,
    lead,
    make_model,
    make_mtp,
    mtp_rows,
    randomise,
    relative_error,
    reload,
    states,
    whole_logits,
    write_checkpoint,
)

LENGTHS = [1, 2, 3, 17, 63, 64, 65, 130, 200]
BRIEF_LENGTHS = [1, 17, 65]
HIDDEN_LENGTH = 17
STATE_LENGTHS = [65, 130]
GREEDY_LENGTHS = [17, 65]
GREEDY_TOKENS = 24
DRAFTS = 3
# Rows kept of prompts of more than 17 tokens: around chunk and page edges, and the last.
EDGE_ROWS = [0, 1, 2, 15, 16, 17, 31, 32, 47, 62, 63, 64, 65, 127, 128, 129, 191, 192]

SELF_AGREEMENT = 5e-6  # between the reference's own paths; half of what an engine is allowed
LEAST_LEAD = 2e-3  # of a greedy winner; rounding moves a logit by about 1e-5
LEAST_DISTINCT = 5  # tokens in a continuation; a tiny random model soon falls into a cycle
LEAST_ROUTER_GAP = 1e-4  # relative, between the last chosen and the first rejected expert


def kept_rows(length):
    if length <= 17:
        return list(range(length))
    return sorted({row for row in EDGE_ROWS if row < length} | {length - 1})


def clear_prompt(model, mtp, length, rng, distinct):
    """A prompt whose routing and greedy tokens do not hang on rounding, with all that is computed on it."""
    for _ in range(400):
        ids = rng.integers(STOP_ID + 1, model.config.vocab_size, length).astype(np.int32)
        inside = internals(model, ids)
        if inside["router_gap"] < LEAST_ROUTER_GAP:
            continue
        if length not in GREEDY_LENGTHS:
            return ids, inside, {}
        continuation, least = greedy(model, ids, GREEDY_TOKENS)
        gap = internals(model, list(ids) + continuation)["router_gap"]
        if least < LEAST_LEAD or gap < LEAST_ROUTER_GAP or min(continuation) <= STOP_ID or len(set(continuation)) < distinct:
            continue
        found = {"greedy": np.array(continuation, np.int32)}
        if mtp is not None:
            with RouterWatch(mtp) as watch:
                found |= draft_chain(model, mtp, inside["final"], [*ids[1:], continuation[0]], DRAFTS)
            if watch.gap < LEAST_ROUTER_GAP or min(map(lead, found["draft_logits"])) < LEAST_LEAD:
                continue
        inside["router_gap"] = min(inside["router_gap"], gap)
        return ids, inside, found
    raise SystemExit(f"no clear prompt of {length} tokens: change the seed")


def check_states(model, ids, cache):
    """Final states of one pass, and how far those of chunks and single tokens are from them."""
    found, worst = states(model, cache), 0.0
    for chunk in (1, 7):
        other = states(model, cached_logits(model, ids, chunk)[1])
        worst = max(worst, relative_error(other["ssm"], found["ssm"]), relative_error(other["conv"], found["conv"]))
    return found, worst


def check_mtp(model, mtp, ids, found, final):
    """Against other RoPE positions and against the predictor of transformers with its cache."""
    tokens = [*ids[1:], found["greedy"][0]]
    shifted = mtp_rows(model, mtp, final, tokens, first_position=1)[1]
    rows, logits = cached_mtp(model, mtp, final, tokens, found["draft_ids"])
    return max(
        relative_error(shifted, found["mtp_logits"]),
        relative_error(rows, found["mtp_hidden"]),
        relative_error(logits, found["draft_logits"]),
    )


def make_goldens(model, mtp, variant, rng):
    distinct = 2 if variant.brief else LEAST_DISTINCT
    tensors, facts = {}, {"worst": 0.0, "states": 0.0, "mtp": 0.0, "gap": 1.0}
    for length in BRIEF_LENGTHS if variant.brief else LENGTHS:
        ids, inside, found = clear_prompt(model, mtp, length, rng, distinct)
        logits, rows = inside["logits"], kept_rows(length)
        kept = {"ids": ids, "rows": np.array(rows, np.int32), "logits": logits[rows]} | found
        for chunk in (1, 7, length):
            again, cache = cached_logits(model, ids, chunk)
            facts["worst"] = max(facts["worst"], relative_error(again, logits))
        if length in STATE_LENGTHS:
            values, worst = check_states(model, ids, cache)
            kept |= values
            facts["states"] = max(facts["states"], worst)
        if "draft_ids" in found:
            kept["final"] = inside["final"]
            facts["mtp"] = max(facts["mtp"], check_mtp(model, mtp, ids, found, inside["final"]))
        if length == HIDDEN_LENGTH:
            kept |= {key: inside[key] for key in ("hidden", "final", "router_ids", "router_weights") if key in inside}
        facts["gap"] = min(facts["gap"], inside["router_gap"])
        tensors |= {f"p{length}.{key}": np.ascontiguousarray(value) for key, value in kept.items()}
    assert all(np.isfinite(value).all() for value in tensors.values())
    for name in ("worst", "states", "mtp"):
        assert facts[name] < SELF_AGREEMENT, f"the reference disagrees with itself: {name} {facts[name]:.1e}"
    return tensors, facts


def make_variant(name, root, seed):
    variant, folder = VARIANTS[name], root / name
    number = list(VARIANTS).index(name)
    model = make_model(variant)
    mtp = make_mtp(model) if variant.mtp else None
    randomise(model, mtp, variant, torch.Generator().manual_seed(seed + number))
    write_checkpoint(model, mtp, variant, folder)

    tensors, facts = make_goldens(model, mtp, variant, np.random.default_rng([seed, number]))
    again, again_mtp = reload(variant, folder)
    ids = tensors["p17.ids"]
    assert np.array_equal(whole_logits(again, ids), whole_logits(model, ids)), f"{name}: the folder gives other logits"
    if mtp is not None:
        want = mtp.state_dict()
        assert all(torch.equal(value, want[key]) for key, value in again_mtp.state_dict().items()), name

    sizes = finish_folder(folder, tensors, facts, "tools/goldens/make_qwen.py")
    print(
        f"{name:24} {sizes['model.safetensors']:4.0f} + {sizes['golden.safetensors']:4.0f} KiB  self {facts['worst']:.1e}"
        f"  states {facts['states']:.1e}  mtp {facts['mtp']:.1e}  router gap {facts['gap']:.1e}"
        f"  |logit| {max(abs(v).max() for k, v in tensors.items() if k.endswith('.logits')):.1f}"
        f"  distinct {[len(set(v.tolist())) for k, v in tensors.items() if k.endswith('greedy')]}",
        flush=True,
    )


if __name__ == "__main__":
    run(__doc__, VARIANTS, 5100, make_variant)
