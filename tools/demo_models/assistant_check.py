#!/usr/bin/env python3
"""Compares an exported assistant, and the trainer's view of its target, with transformers in float32.

  assistant_check.py --target demo_models/gemma4 --assistant demo_models/gemma4-assistant

For prompts shorter than, as long as and longer than the window: a chain of drafts from
Gemma4AssistantForCausalLM, one position at a time on the target's shared keys and values, against
the trainer's rows.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM

from assistant_model import STEPS, embed, load_assistant, load_target, read_target, write_on


def relative(a, b):
    return float((a - b).norm() / b.norm())


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path("demo_models/gemma4"))
    parser.add_argument("--assistant", type=Path, default=Path("demo_models/gemma4-assistant"))
    args = parser.parse_args()
    torch.manual_seed(0)
    reference = Gemma4ForCausalLM.from_pretrained(args.target, dtype=torch.float32, attn_implementation="eager").eval()
    drafter, report = Gemma4AssistantForCausalLM.from_pretrained(
        args.assistant, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    drafter.eval()
    target = load_target(args.target, "cpu")
    own = load_assistant(args.assistant, target, "cpu")
    window = target.c.sliding_window
    table = own.model.embed_tokens.weight

    ids = torch.randint(17, target.c.vocab_size, (1, 3 * window))
    ids[0, 0] = 2
    hidden, seen = read_target(target, ids)
    worst = relative(target.logits(hidden), reference(ids, use_cache=False).logits)
    print(f"target: {worst:.1e}")
    for length in (1, 2, window - 1, window, window + 1, window + 2, 2 * window + 3):
        out = reference(ids[:, :length], use_cache=False, output_hidden_states=True, return_shared_kv_states=True)
        h, token = out.hidden_states[-1][:, -1:], ids[:, length:length + 1]
        position = torch.tensor([[length]])
        own_h, own_token = hidden[:, :], ids.roll(-1, 1)
        for step in range(STEPS):
            e = reference.get_input_embeddings()(token)
            theirs = drafter(inputs_embeds=torch.cat((e, h), -1), position_ids=position,
                             shared_kv_states=out.shared_kv_states)
            y, own_h = own.draft(embed(target, own_token), own_h, seen)
            logits = F.linear(y, table)
            errors = relative(logits[0, length - 1], theirs.logits[0, 0]), relative(own_h[0, length - 1], theirs.last_hidden_state[0, 0])
            worst = max(worst, *errors)
            print(f"{length} tokens, draft {step + 1}: logits {errors[0]:.1e}, h' {errors[1]:.1e}")
            h, token = theirs.last_hidden_state, theirs.logits.argmax(-1)
            own_token = logits.argmax(-1)
    text = write_on(target, ids[:, :8], window + 40, torch.zeros(1), torch.Generator().manual_seed(0))
    rows = torch.cat((text, text[:, :2 * window - text.shape[1]]), 1)
    again = target.logits(read_target(target, rows)[0]).argmax(-1)[0, 7:text.shape[1] - 1]
    print(f"greedy text: {int((again != text[0, 8:]).sum())} of {len(again)} tokens are not the first choice")
    assert (again == text[0, 8:]).all()
    assert worst < 2e-5, f"the trainer and transformers differ: {worst:.1e}"


if __name__ == "__main__":
    main()
