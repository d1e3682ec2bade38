#!/usr/bin/env python3
"""Makes the tiny Gemma 3 and Gemma 4 checkpoints of tests/data/models with their goldens.

The reference is Hugging Face transformers in float32 with eager attention. It is believed only
where its own paths agree: one pass without a cache, chunks of 7 and single tokens through its
cache, and the written folder loaded again. See tests/data/models/README.md for the names.
"""

import numpy as np
import torch
import transformers
from gemma_variants import (
    VARIANTS,
    WINDOW,
    cached_logits,
    greedy,
    internals,
    make_model,
    randomise,
    relative_error,
    whole_logits,
    write_checkpoint,
)
from golden_files import finish_folder, run

LENGTHS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 63, 64, 65, 130]
BRIEF_LENGTHS = [1, WINDOW + 1, 65]
HIDDEN_LENGTH = WINDOW + 1
GREEDY_LENGTHS = [2, WINDOW + 1, 65]
GREEDY_TOKENS = 24
# Rows kept of prompts longer than the window: around window and page edges, and the last.
EDGE_ROWS = [0, 14, 15, 16, 17, 31, 32, 33, 47, 48, 62, 63, 64, 65, 127, 128]

SELF_AGREEMENT = 5e-6  # between the reference's own paths; half of what an engine is allowed
LEAST_LEAD = 1e-3  # of a greedy winner; rounding moves a logit by about 1e-5
LEAST_DISTINCT = 5  # tokens in a continuation; a tiny random model soon falls into a cycle
LEAST_ROUTER_GAP = 1e-4  # relative, between the last chosen and the first rejected expert


def kept_rows(length):
    if length <= WINDOW + 1:
        return list(range(length))
    return sorted({row for row in EDGE_ROWS if row < length} | {length - 1})


def reload(variant, folder, dtype=torch.float32):
    if variant.config_form.startswith("nested"):
        name = "Gemma3ForConditionalGeneration" if variant.family == "gemma3" else "Gemma4ForConditionalGeneration"
        cls = getattr(transformers, name)
    else:
        cls = transformers.AutoModelForCausalLM
    return cls.from_pretrained(folder, dtype=dtype, attn_implementation="eager", ignore_mismatched_sizes=True).eval()


def draw_ids(rng, model, length):
    ids = rng.integers(4, model.config.vocab_size, length)
    ids[0] = model.config.bos_token_id
    return ids.astype(np.int32)


def check_reference(model, ids, logits):
    worst = 0.0
    for chunk in (1, 7):
        worst = max(worst, relative_error(cached_logits(model, ids, chunk), logits))
    assert worst < SELF_AGREEMENT, f"the reference disagrees with itself: {worst:.1e} at {len(ids)} tokens"
    return worst


def make_goldens(model, variant, rng, is_clear=lambda ids: True):
    """Of prompts that is_clear() accepts."""
    distinct = 2 if variant.brief else LEAST_DISTINCT
    tensors, facts = {}, {"worst": 0.0, "gap": 1.0, "lead": np.inf}
    for length in BRIEF_LENGTHS if variant.brief else LENGTHS:
        for _ in range(200):
            ids = draw_ids(rng, model, length)
            inside = internals(model, ids)
            if inside.get("router_gap", 1.0) < LEAST_ROUTER_GAP or not is_clear(ids):
                continue
            if length not in GREEDY_LENGTHS:
                break
            continuation, lead = greedy(model, ids, GREEDY_TOKENS)
            gap = internals(model, list(ids) + continuation).get("router_gap", 1.0)
            if lead > LEAST_LEAD and gap > LEAST_ROUTER_GAP and min(continuation) > 3 and len(set(continuation)) >= distinct:
                tensors[f"p{length}.greedy"] = np.array(continuation, np.int32)
                facts["lead"] = min(facts["lead"], lead)
                break
        else:
            raise SystemExit(f"no clear prompt of {length} tokens: change the seed")
        logits = whole_logits(model, ids)
        rows = kept_rows(length)
        tensors[f"p{length}.ids"] = ids
        tensors[f"p{length}.rows"] = np.array(rows, np.int32)
        tensors[f"p{length}.logits"] = np.ascontiguousarray(logits[rows])
        facts["worst"] = max(facts["worst"], check_reference(model, ids, logits))
        facts["gap"] = min(facts["gap"], inside.pop("router_gap", 1.0))
        if length == HIDDEN_LENGTH:
            tensors |= {f"p{length}.{name}": np.ascontiguousarray(value) for name, value in inside.items()}
    return tensors, facts


def make_variant(name, root, seed):
    variant, folder = VARIANTS[name], root / name
    number = list(VARIANTS).index(name)
    model = make_model(variant)
    randomise(model, variant, torch.Generator().manual_seed(seed + number))
    write_checkpoint(model, variant, folder)

    tensors, facts = make_goldens(model, variant, np.random.default_rng([seed, number]))
    again = reload(variant, folder)
    ids = tensors[f"p{WINDOW + 1}.ids"]
    reloaded = relative_error(whole_logits(again, ids), whole_logits(model, ids))
    assert reloaded < 1e-7, f"{name}: the written folder gives other logits ({reloaded:.1e})"

    sizes = finish_folder(folder, tensors, facts, "tools/goldens/make_gemma.py")
    print(
        f"{name:16} {sum(sizes.values()):6.0f} KiB  self-agreement {facts['worst']:.1e}  router gap {facts['gap']:.1e}"
        f"  greedy lead {facts['lead']:.1e}  |logit| {max(abs(v).max() for k, v in tensors.items() if k.endswith('logits')):.1f}"
        f"  distinct {[len(set(v.tolist())) for k, v in tensors.items() if k.endswith('greedy')]}",
        flush=True,
    )


if __name__ == "__main__":
    run(__doc__, VARIANTS, 4100, make_variant)
