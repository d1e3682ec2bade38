#!/usr/bin/env python3
"""Makes the tiny Gemma 4 assistants (draft models) of tests/data/models with their goldens.

Each drafts for one of the checkpoints that make_gemma.py wrote. The reference is transformers'
Gemma4AssistantForCausalLM in float32 with eager attention, over the keys and values that the target
shares: three drafts of a chain, first choices, at one position. See tests/data/models/README.md.
"""

import argparse
import copy
import dataclasses
import json
import pathlib

import gguf
import numpy as np
import torch
from gemma_variants import DTYPES, VARIANTS, WINDOW, layer_types, make_model, randomise, relative_error
from golden_files import finish_folder
from make_gemma import LEAST_LEAD, SELF_AGREEMENT, reload
from make_gguf import add_metadata, add_tokenizer, gguf_name, rope_freqs
from safetensors.torch import load_file, save_file
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig

# Tokens in the target's cache: around the window, which shows one row more than it says, and pages.
LENGTHS = [1, 2, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 2 * WINDOW + 3, 65]
ODD_LENGTH = 19  # drafted three positions further on than usual: rows and position are independent
STEPS = 3
LEAST_GAP = 1e-3  # between the last chosen and the first rejected centroid's score


@dataclasses.dataclass
class Assistant:
    target: str  # of VARIANTS
    config: dict  # of the text config, beside what must agree with the target's
    outer: dict
    storage: str = "BF16"
    flat: bool = False  # the flat keys instead of per_layer_config
    gguf: bool = False  # write a GGUF file too
    family: str = "gemma4"  # for randomise


ASSISTANTS = {
    "gemma4_assistant": Assistant(
        "gemma4_dense",
        dict(hidden_size=32, intermediate_size=48, num_hidden_layers=4, layer_types=layer_types("SSSF")),
        {},
        gguf=True,
    ),
    # Ordered head; the target's last layers borrow their keys and values, so the donors are earlier ones.
    "gemma4_assistant_ordered": Assistant(
        "gemma4_e2b",
        dict(hidden_size=48, intermediate_size=32, num_hidden_layers=2, layer_types=layer_types("SF")),
        dict(use_ordered_embeddings=True, num_centroids=38, centroid_intermediate_top_k=5),
        flat=True,
    ),
}
TAKEN_FROM_TARGET = (
    "vocab_size num_attention_heads num_key_value_heads num_global_key_value_heads attention_k_eq_v head_dim "
    "global_head_dim sliding_window max_position_embeddings"
).split()


def make_assistant(name, seed):
    kind = ASSISTANTS[name]
    target = VARIANTS[kind.target].config
    shared = {key: target[key] for key in TAKEN_FROM_TARGET if key in target}
    text = Gemma4TextConfig(
        **shared, **kind.config, hidden_size_per_layer_input=0, vocab_size_per_layer_input=0,
        num_kv_shared_layers=kind.config["num_hidden_layers"], final_logit_softcapping=None,
    )
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=target["hidden_size"], **kind.outer)
    model = Gemma4AssistantForCausalLM._from_config(config, attn_implementation="eager").eval().float()
    generator = torch.Generator().manual_seed(seed)
    randomise(model, kind, generator)
    if model.masked_embedding is not None:
        model.masked_embedding.token_ordering.copy_(torch.randperm(target["vocab_size"], generator=generator))
    return model


def write_checkpoint(model, kind, folder):
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(model.config.to_json_string(use_diff=True))
    for part in (config, config["text_config"]):
        for key in ("_name_or_path", "attn_implementation", "dtype", "transformers_version"):
            part.pop(key, None)
    config |= {"architectures": [type(model).__name__], "dtype": {"BF16": "bfloat16"}[kind.storage]}
    if kind.flat:
        text = config["text_config"]
        text.pop("per_layer_config")
        text["global_head_dim"] = VARIANTS[kind.target].config["global_head_dim"]
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = {
        name: tensor.contiguous() if tensor.dtype == torch.long else tensor.to(DTYPES[kind.storage]).contiguous()
        for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_gguf(model, path):
    """BF16 matrices, the same values as in the folder; there is no place for an ordered head."""
    text, architecture = model.config.text_config, "gemma4-assistant"
    writer = gguf.GGUFWriter(path, architecture)
    add_metadata(writer, "gemma4", text, model)
    writer.add_uint32(f"{architecture}.embedding_length_out", model.config.backbone_hidden_size)
    writer.add_uint32(f"{architecture}.nextn_predict_layers", text.num_hidden_layers)
    add_tokenizer(writer, "gemma4", text.vocab_size)
    writer.add_tensor("rope_freqs.weight", rope_freqs(text))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        name = f"nextn.{name}" if "_projection." in name else gguf_name(name)
        values = tensor.numpy().astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def chain(model, target, ids, token, position):
    """Tokens fed, hidden rows (fed and left), logits and first choices of STEPS drafts, and the smallest
    leads of a choice over its runner-up."""
    out = target(input_ids=torch.tensor([ids.tolist()]), use_cache=False, output_hidden_states=True,
                 return_shared_kv_states=True)
    hidden = [out.hidden_states[-1][:, -1:]]
    tokens, logits, lead, gap = [int(token)], [], np.inf, np.inf
    for _ in range(STEPS):
        e = target.get_input_embeddings()(torch.tensor([[tokens[-1]]]))
        draft = model(
            inputs_embeds=torch.cat((e, hidden[-1]), -1), position_ids=torch.tensor([[position]]),
            shared_kv_states=out.shared_kv_states, output_hidden_states=True,
        )
        hidden.append(draft.last_hidden_state)
        logits.append(draft.logits[0, 0])
        first, second = logits[-1].topk(2).values.tolist()
        lead = min(lead, first - second)
        tokens.append(int(logits[-1].argmax()))
        if model.masked_embedding is not None:
            y = draft.hidden_states[-1]
            scores = model.masked_embedding.centroids(y)[0, 0].sort(descending=True).values
            k = model.config.centroid_intermediate_top_k
            gap = min(gap, float(scores[k - 1] - scores[k]))
    return {
        "tokens": np.array(tokens[:-1], np.int32), "drafts": np.array(tokens[1:], np.int32),
        "position": np.array([position], np.int32), "hidden": torch.cat(hidden, 1)[0].numpy(),
        "logits": torch.stack(logits).numpy(),
    }, lead, gap


def make_goldens(model, target, other, rng):
    """`other`: the same assistant and target with another attention implementation."""
    tensors, facts = {}, {"worst": 0.0, "lead": np.inf, "gap": np.inf}
    for length in [*LENGTHS, ODD_LENGTH]:
        for _ in range(200):
            ids = rng.integers(4, target.config.vocab_size, length + 1).astype(np.int32)
            ids[0] = target.config.bos_token_id
            position = length + (3 if length == ODD_LENGTH else 0)
            result, lead, gap = chain(model, target, ids[:-1], ids[-1], position)
            if lead > LEAST_LEAD and gap > LEAST_GAP and len(set(result["drafts"].tolist())) > 1:
                break
        else:
            raise SystemExit(f"no clear prompt of {length} tokens: change the seed")
        again, _, _ = chain(*other, ids[:-1], ids[-1], position)
        facts["worst"] = max(facts["worst"], *(relative_error(again[key], result[key]) for key in ("logits", "hidden")))
        tensors[f"p{length}.ids"] = ids[:-1]
        tensors |= {f"p{length}.{name}": np.ascontiguousarray(value) for name, value in result.items()}
        facts["lead"], facts["gap"] = min(facts["lead"], lead), min(facts["gap"], gap)
    assert facts["worst"] < SELF_AGREEMENT, f"the reference disagrees with itself: {facts['worst']:.1e}"
    return tensors, facts


def load(folder, attention):
    model, report = Gemma4AssistantForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/models"
    parser.add_argument("--output", type=pathlib.Path, default=default)
    parser.add_argument("--seed", type=int, default=5400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for number, (name, kind) in enumerate(ASSISTANTS.items()):
        folder = args.output / name
        model = make_assistant(name, args.seed + number)
        write_checkpoint(model, kind, folder)
        target = reload(VARIANTS[kind.target], args.output / kind.target)
        again, other = load(folder, "eager"), load(folder, "sdpa")
        other_target = copy.deepcopy(target)
        other_target.set_attn_implementation("sdpa")
        rng = np.random.default_rng([args.seed, number])
        tensors, facts = make_goldens(again, target, (other, other_target), rng)
        written, _, _ = chain(model, target, tensors["p65.ids"], tensors["p65.tokens"][0], 65)
        assert relative_error(written["logits"], tensors["p65.logits"]) < 1e-7, "the written folder differs"
        if kind.gguf:
            write_gguf(again, folder / f"{name}_bf16.gguf")
        sizes = finish_folder(folder, tensors, facts, "tools/goldens/make_assistant.py")
        drafts = [tensors[key].tolist() for key in tensors if key.endswith("drafts")]
        print(f"{name:24} {sum(sizes.values()):5.0f} KiB  self-agreement {facts['worst']:.1e}  lead {facts['lead']:.1e}  centroid gap {facts['gap']:.1e}  "
              f"|logit| {max(abs(v).max() for k, v in tensors.items() if k.endswith('logits')):.1f}  {drafts}")


if __name__ == "__main__":
    main()
