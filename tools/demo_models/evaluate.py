#!/usr/bin/env python3
"""Checks an exported model with Hugging Face transformers and writes its reference figures.

  evaluate.py FOLDER --heldout demo_models/heldout/heldout.txt [--cache .cache/demo]

Everything runs in float32 on the bf16 weights. Writes golden.json into FOLDER: NLL over the
first tokens of the held-out file and greedy continuations; prints expert use, the difference
between the trainer's model and transformers, and sampled continuations.
"""

import argparse
import hashlib
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from model import CONFIGS, Gemma4

BOS, EOS = 2, 1
CONTEXT, CHUNKS = 512, 64
PROMPTS = ["It was a quiet evening in the village, and", "The history of the project began when",
           "In order to understand how a computer works,"]


def reference(folder, device):
    model = Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.to(device).eval()


@torch.no_grad()
def chunk_nll(model, ids, context):
    """NLL [nats] of every token, each chunk of context-1 tokens seeing <bos> and itself only."""
    out = []
    for chunk in ids.split(context - 1):
        row = torch.cat((torch.tensor([BOS]), chunk))[None].to(model.device)
        logits = model(row, use_cache=False).logits[0, :-1].float()
        out.append(F.cross_entropy(logits, row[0, 1:].to(model.device), reduction="none").double().cpu())
    return torch.cat(out)


@torch.no_grad()
def greedy(model, ids, count):
    """Continuation ids and the smallest lead of the first over the second logit."""
    row, lead = list(ids), math.inf
    for _ in range(count):
        top = model(torch.tensor([row], device=model.device), use_cache=False).logits[0, -1].float().topk(2)
        lead = min(lead, float(top.values[0] - top.values[1]))
        row.append(int(top.indices[0]))
    return row[len(ids):], lead


@torch.no_grad()
def sample(model, ids, count, seed, temperature=0.7, top_k=40, top_p=0.95):
    rng, row = torch.Generator().manual_seed(seed), list(ids)
    for _ in range(count):
        logits = model(torch.tensor([row], device=model.device), use_cache=False).logits[0, -1].float().cpu()
        p, index = torch.softmax(logits / temperature, -1).topk(top_k)
        p = p * ((p.cumsum(0) - p) < top_p)
        row.append(int(index[torch.multinomial(p, 1, generator=rng)]))
        if row[-1] == EOS:
            break
    return row


class ExpertCount:
    """Counts selections by layer and expert through hooks on the routers."""

    def __init__(self, model):
        self.counts = {}
        for i, layer in enumerate(model.model.layers):
            if getattr(layer, "router", None) is not None:
                layer.router.register_forward_hook(lambda _m, _i, out, i=i: self.add(i, out[2]))

    def add(self, layer, index):
        experts = int(index.max()) + 1
        old = self.counts.get(layer, torch.zeros(0, dtype=torch.long))
        new = torch.bincount(index.flatten().cpu(), minlength=max(experts, len(old)))
        self.counts[layer] = new + F.pad(old, (0, len(new) - len(old)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--heldout", type=Path, default=Path("demo_models/heldout/heldout.txt"))
    parser.add_argument("--cache", type=Path, help="also measure the whole held-out split, document by document")
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--quick", action="store_true", help="skip the continuations")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    name = args.folder.name
    model = reference(args.folder, device)

    # The trainer's model and transformers must be the same function.
    config = CONFIGS[name]
    own = Gemma4(config).to(device).eval()
    weights = {k.removeprefix("model."): v.float() for k, v in load_file(args.folder / "model.safetensors").items()}
    own.load_state_dict(weights, strict=True)
    text = args.heldout.read_text(encoding="utf-8")
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    probe = torch.cat((torch.tensor([BOS]), ids[:CONTEXT - 1]))[None].to(device)
    with torch.no_grad():
        ours, theirs = own.logits(own(probe)[0]), model(probe, use_cache=False).logits
    # By row: where two experts tie within rounding, one row may choose otherwise.
    difference = ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1))[0]
    print(f"{name}: trainer against transformers, relative difference of the logits by row: "
          f"median {float(difference.median()):.2e}, largest {float(difference.max()):.2e}", flush=True)
    assert difference.quantile(0.9) < 2e-5, "the exported checkpoint is another function than the trained one"

    # Golden figures.
    count = ExpertCount(model)
    used = ids[:args.chunks * (CONTEXT - 1)]
    nll = chunk_nll(model, used, CONTEXT)
    text_bytes = len(tokenizer.decode(used.tolist(), skip_special_tokens=False).encode())
    golden = {
        "model": name,
        "computed_by": "transformers Gemma4ForCausalLM, float32, eager attention, no cache, bf16 weights",
        "nll": {
            "file": "demo_models/heldout/heldout.txt",
            "sha256": hashlib.sha256(args.heldout.read_bytes()).hexdigest(),
            "method": "encode the whole file without special tokens; take the first `tokens` ids; cut them into "
                      "chunks of `context`-1; prefix each chunk with bos (id 2) at position 0 and score every "
                      "token of the chunk; chunks do not see each other",
            "context": CONTEXT, "file_tokens": len(ids), "tokens": len(used), "first_ids": ids[:16].tolist(),
            "nats_per_token": float(nll.mean()), "nats_total": float(nll.sum()),
            "bits_per_byte": float(nll.sum()) / math.log(2) / text_bytes,
            "chunk_nats": [float(c.sum()) for c in nll.split(CONTEXT - 1)],
        },
        "greedy": [],
    }
    for prompt in PROMPTS[:0 if args.quick else None]:
        prompt_ids = [BOS] + tokenizer.encode(prompt, add_special_tokens=False).ids
        new, lead = greedy(model, prompt_ids, 48)
        golden["greedy"].append({"prompt": prompt, "prompt_ids": prompt_ids, "ids": new,
                                 "text": tokenizer.decode(new, skip_special_tokens=False), "smallest_logit_lead": lead})
    if count.counts:
        shares = torch.stack([c.double() / c.sum() for c in count.counts.values()])
        golden["experts"] = {"smallest_share_by_layer": [round(float(s), 4) for s in shares.min(1).values],
                             "largest_share_by_layer": [round(float(s), 4) for s in shares.max(1).values],
                             "even_share": 1 / shares.shape[1]}
    if args.cache:
        total, tokens, size = 0.0, 0, 0
        for line in open(args.cache / "heldout.jsonl"):
            doc = json.loads(line)["text"]
            doc_ids = torch.tensor(tokenizer.encode(doc, add_special_tokens=False).ids)
            total += float(chunk_nll(model, doc_ids, 1024).sum())
            tokens, size = tokens + len(doc_ids), size + len(doc.encode())
        golden["heldout_split"] = {"tokens": tokens, "bytes": size, "context": 1024, "nats_per_token": total / tokens,
                                   "bits_per_byte": total / math.log(2) / size}
    (args.folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print({k: v for k, v in golden["nll"].items() if k != "chunk_nats"}, golden.get("experts"), golden.get("heldout_split"))
    for g in golden["greedy"]:
        print("GREEDY", g["prompt"], "->", g["text"].replace("\n", "\\n"), f"(lead {g['smallest_logit_lead']:.4f})")
    for seed, prompt in enumerate(PROMPTS * (0 if args.quick else 2)):
        prompt_ids = [BOS] + tokenizer.encode(prompt, add_special_tokens=False).ids
        print("SAMPLE", tokenizer.decode(sample(model, prompt_ids, 90, seed)).replace("\n", "\\n"))


if __name__ == "__main__":
    main()
