#!/usr/bin/env python3
"""Checks an exported qwen3next with Hugging Face transformers and writes its reference figures.

  qwen_evaluate.py FOLDER [--cache .cache/demo]

Everything runs in float32 on the bf16 weights. Writes golden.json into FOLDER: NLL over the first
tokens of the held-out file and greedy continuations from transformers; what the MTP head drafts
from qwen_model.py, which must give transformers' logits first.
"""

import argparse
import hashlib
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import Qwen3NextForCausalLM

from evaluate import CHUNKS, CONTEXT, PROMPTS, greedy
from qwen_export import load_checkpoint
from qwen_model import CONFIGS, Qwen3Next

METHOD = ("encode the whole file (no token is added); take the first `tokens` ids; cut them into chunks of `context`; "
          "nothing is put in front; score every token of a chunk but its first, given the chunk's earlier tokens; "
          "chunks do not see each other")
DRAFT_METHOD = (
    "over the same chunks, p counts positions in a chunk of n tokens. First draft at p (0 <= p <= n-2): argmax of the "
    "MTP head for the pair (main row after the final norm at p, token p+1), with the pairs 0..p in the MTP layer's "
    "cache; accepted when it equals the argmax of the main logits at p+1. Second draft at p (0 <= p <= n-3): argmax of "
    "the MTP head for the pair (MTP row after mtp.norm of the first draft, first draft), behind the pairs 0..p; counted "
    "only where the first draft was accepted and equals token p+2; accepted when it equals the argmax of the main "
    "logits at p+2. `on_greedy_text` does the same on greedy continuations of `new_tokens` tokens after the first "
    "`prompt_tokens` of every second chunk, for drafts of new tokens only")


def reference(folder, device):
    model = Qwen3NextForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.to(device).eval()


@torch.no_grad()
def chunk_nll(logits_of, ids, context, device):
    """NLL [nats] of every token but the first of each chunk of `context` tokens."""
    out = []
    for chunk in ids.split(context):
        if len(chunk) > 1:
            chunk = chunk.to(device)
            logits = logits_of(chunk[None])[0, :-1].float()
            out.append(F.cross_entropy(logits, chunk[1:], reduction="none").double().cpu())
    return out


@torch.no_grad()
def drafts(own, rows):
    """Argmax of main, first and second drafts [batch, length], [batch, length-1] twice, for token rows."""
    hidden = own(rows)[0]
    main = own.logits(hidden).argmax(-1)
    hidden, following = hidden[:, :-1], rows[:, 1:]
    drafted = own.draft(hidden, following)[0]
    first = own.logits(drafted).argmax(-1)
    second = own.logits(own.draft_again(hidden, following, drafted, first)).argmax(-1)
    return main, first, second


def acceptance(own, rows, start=0):
    """Counts over positions p >= start: first drafts, accepted; second drafts that count, accepted."""
    main, first, second = drafts(own, rows)
    right = first == main[:, 1:]
    counted = (right[:, :-1] & (first[:, :-1] == rows[:, 2:]))[:, start:]
    again = counted & (second[:, :-1] == main[:, 2:])[:, start:]
    right = right[:, start:]
    return torch.tensor([right.numel(), int(right.sum()), int(counted.sum()), int(again.sum())])


def rates(counts):
    first, right, second, again = counts.tolist()
    return {"first_drafts": first, "first_accepted": right, "first_rate": right / max(first, 1),
            "second_drafts": second, "second_accepted": again, "second_rate": again / max(second, 1)}


@torch.no_grad()
def greedy_rows(model, rows, count):
    """Greedy continuations of token rows of one length [batch, length + count]."""
    cache = None
    new = rows
    for _ in range(count):
        out = model(new, past_key_values=cache, use_cache=True)
        cache, new = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
        rows = torch.cat((rows, new), 1)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=CONFIGS, default="qwen3next")
    parser.add_argument("--heldout", type=Path, default=Path("demo_models/heldout/heldout.txt"))
    parser.add_argument("--cache", type=Path, help="also measure the whole held-out split, document by document")
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--new", type=int, default=64, help="length of the greedy texts for the drafts")
    parser.add_argument("--quick", action="store_true", help="skip the continuations")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    model = reference(args.folder, device)
    own = Qwen3Next(CONFIGS[args.model]).eval()
    load_checkpoint(own, args.folder)
    own.to(device)

    text = args.heldout.read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    used = ids[:min(args.chunks, len(ids) // CONTEXT) * CONTEXT]
    chunks = used.view(-1, CONTEXT).to(device)
    difference = []
    with torch.no_grad():
        for row in chunks[:4, None]:
            ours, theirs = own.logits(own(row)[0]), model(row, use_cache=False).logits
            # By row: where two experts tie within rounding, one row may choose otherwise.
            difference.append(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1))[0])
    difference = torch.cat(difference)
    print(f"trainer against transformers, relative difference of the logits by row: median "
          f"{float(difference.median()):.2e}, largest {float(difference.max()):.2e}", flush=True)
    assert difference.quantile(0.9) < 2e-5, "the exported checkpoint is another function than the trained one"

    nll = chunk_nll(lambda row: model(row, use_cache=False).logits, used, CONTEXT, device)
    total = float(torch.cat(nll).sum())
    scored = sum(len(n) for n in nll)
    text_bytes = sum(len(tokenizer.decode(c.tolist(), skip_special_tokens=False).encode()) -
                     len(tokenizer.decode(c[:1].tolist(), skip_special_tokens=False).encode()) for c in chunks)
    golden = {
        "model": "qwen3next",
        "computed_by": "transformers Qwen3NextForCausalLM, float32, eager attention, no cache, bf16 weights",
        "largest_relative_logit_difference_to_trainer": float(difference.max()),
        "nll": {
            "file": "demo_models/heldout/heldout.txt",
            "sha256": hashlib.sha256(args.heldout.read_bytes()).hexdigest(),
            "method": METHOD, "context": CONTEXT, "file_tokens": len(ids), "tokens": len(used), "scored": scored,
            "first_ids": ids[:16].tolist(), "nats_per_token": total / scored, "nats_total": total,
            "bits_per_byte": total / math.log(2) / text_bytes, "chunk_nats": [float(n.sum()) for n in nll],
        },
        "greedy": [],
    }
    for prompt in PROMPTS[:0 if args.quick else None]:
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        new, lead = greedy(model, prompt_ids, 48)
        golden["greedy"].append({"prompt": prompt, "prompt_ids": prompt_ids, "ids": new,
                                 "text": tokenizer.decode(new, skip_special_tokens=False), "smallest_logit_lead": lead})

    # What the MTP head drafts.
    counts = sum(acceptance(own, rows) for rows in chunks.split(8))
    prompt_tokens = 64
    texts = greedy_rows(model, chunks[::2, :prompt_tokens], args.new)
    greedy_counts = sum(acceptance(own, rows, prompt_tokens - 2) for rows in texts.split(8))
    main_ids, first, second = (x[0].tolist() for x in drafts(own, chunks[:1]))
    golden["mtp"] = {
        "computed_by": "tools/demo_models/qwen_model.py, float32, bf16 weights", "method": DRAFT_METHOD,
        "on_heldout_text": rates(counts),
        "on_greedy_text": {"prompt_tokens": prompt_tokens, "new_tokens": args.new, "texts": len(texts),
                           **rates(greedy_counts)},
        "first_chunk": {"argmax": main_ids[:128], "first_drafts": first[:128], "second_drafts": second[:128]},
    }

    loads = torch.stack([torch.stack(own(rows)[2]) for rows in chunks.split(8)]).mean(0).detach()
    golden["experts"] = {"smallest_share_by_layer": [round(float(s), 4) for s in loads.min(1).values],
                         "largest_share_by_layer": [round(float(s), 4) for s in loads.max(1).values],
                         "even_share": 1 / loads.shape[1]}
    if args.cache:
        sums, tokens, size = 0.0, 0, 0
        for line in open(args.cache / "heldout.jsonl"):
            doc = json.loads(line)["text"]
            doc_ids = torch.tensor(tokenizer.encode(doc, add_special_tokens=False).ids)
            doc_nll = chunk_nll(lambda row: own.logits(own(row)[0]), doc_ids, 1024, device)
            sums += sum(float(n.sum()) for n in doc_nll)
            tokens, size = tokens + sum(len(n) for n in doc_nll), size + len(doc.encode())
        golden["heldout_split"] = {"computed_by": "qwen_model.py, float32", "scored": tokens, "bytes": size, "context": 1024, "nats_per_token": sums / tokens}
    (args.folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print({k: v for k, v in golden["nll"].items() if k not in ("chunk_nats", "method")}, golden["experts"],
          golden.get("heldout_split"))
    print({k: v for k, v in golden["mtp"].items() if k.startswith("on_")})
    for g in golden["greedy"]:
        print("GREEDY", g["prompt"], "->", g["text"].replace("\n", "\\n"), f"(lead {g['smallest_logit_lead']:.4f})")


if __name__ == "__main__":
    main()
