#!/usr/bin/env python3
"""Makes the tiny checkpoints of tests/data/models that llm-compressor has quantised, with their goldens.

A random Gemma 3 goes through llm-compressor's oneshot() with its own presets (W4A16 and W8A8 by GPTQ), which
writes the folder as it does any user's. The reference is transformers in float32 with the matrices as
compressed-tensors unpacks them on loading, their scales taken to float32 first: no weight is rounded again.

With static scales of keys and values the reference keeps these in compressed-tensors' own quantised cache. Its codes
are -128 to 127, so that a scale is the largest magnitude / 127.5; an engine whose codes end at -127 differs by one
code where the reference has -128, and any engine may where a number lies between two codes. Prompts are drawn until
no key or value is at -128 or too near to such a middle.
"""

import pathlib
import shutil
import tempfile

import gemma_variants
import make_gemma
import numpy as np
import torch
import transformers
from compressed_tensors.modeling.kvcache import initialize_hooked_kv_cache, register_key_hook, register_value_hook
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStatus
from datasets import Dataset
from golden_files import finish_folder, run
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from safetensors import safe_open
from tokenizers import Tokenizer, models
from transformers.utils.quantization_config import CompressedTensorsConfig

# The presets have groups of 128.
CONFIG = gemma_variants.gemma3(
    vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
    query_pre_attn_scalar=16, sliding_window_pattern=2,
)
SCHEMES = {"gemma3_llmcompressor_w4a16": "W4A16", "gemma3_llmcompressor_w8a8": "W8A8", "gemma3_llmcompressor_kv": "W8A8"}
KV = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False, "observer": "minmax"}
# Of a code from the middle between two: some times what float32 leaves open, 127 · 2^-24 · sqrt(128) for a dot product.
LEAST_MARGIN = 1e-4
SEQUENCES, LENGTH = 32, 64


def calibration(generator):
    ids = torch.randint(4, CONFIG["vocab_size"], (SEQUENCES, LENGTH), generator=generator)
    ids[:, 0] = 2
    rows = ids.tolist()
    return Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * LENGTH] * SEQUENCES})


def tokenizer():
    words = {f"t{i}": i for i in range(CONFIG["vocab_size"])}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t3")))


def as_stored(folder):
    """The folder's model with plain matrices, and how many of them were quantised."""
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager",
        quantization_config=CompressedTensorsConfig(run_compressed=False),
    )
    state = loaded.state_dict()
    scales = [key for key in state if key.endswith("weight_scale")]
    plain = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**CONFIG)).float()
    wanted = plain.state_dict()
    plain.load_state_dict({key: state[key].float() for key in wanted})
    plain.config._attn_implementation = "eager"
    return plain.eval(), len(scales)


class CodeMargins:
    """How near the keys and values of a pass come to another code."""

    def __init__(self, model):
        self.model, self.margin, self.lowest = model, 1.0, 0.0
        for layer in model.model.layers:
            for name, hook in (("k", register_key_hook), ("v", register_value_hook)):
                hook(layer.self_attn, lambda module, x, name=name: self.see(x / getattr(module, name + "_scale")))

    def are_clear(self, ids):
        self.margin, self.lowest = 1.0, 0.0
        make_gemma.whole_logits(self.model, ids)
        return self.margin > LEAST_MARGIN and self.lowest > -127.5

    def see(self, codes):
        codes = codes.detach().double()
        inside = codes[codes.abs() < 127.5]
        self.margin = min(self.margin, (inside - inside.floor() - 0.5).abs().min().item())
        self.lowest = min(self.lowest, codes.min().item())


def keep_quantised(model, folder):
    """Keys and values go through compressed-tensors' cache with the folder's scales."""
    args = QuantizationArgs.model_validate(KV)
    with safe_open(folder / "model.safetensors", "pt") as file:
        for i, layer in enumerate(model.model.layers):
            module = layer.self_attn
            module.quantization_scheme = QuantizationScheme(targets=["Gemma3Attention"], input_activations=args)
            module.quantization_status = QuantizationStatus.FROZEN
            for name in ("k_scale", "v_scale"):
                scale = file.get_tensor(f"model.layers.{i}.self_attn.{name}").float()
                module.register_parameter(name, torch.nn.Parameter(scale, requires_grad=False))
            initialize_hooked_kv_cache(model, module)
    return CodeMargins(model)


def recipe(name):
    kv = {"kv_cache_scheme": KV} if name.endswith("_kv") else {}
    return GPTQModifier(targets="Linear", scheme=SCHEMES[name], ignore=["lm_head"], **kv)


def make_variant(name, root, seed):
    variant = gemma_variants.Variant("gemma3", CONFIG, "BF16", brief=True)
    number = list(SCHEMES).index(name)
    generator = torch.Generator().manual_seed(seed + number)
    model = gemma_variants.make_model(variant)
    gemma_variants.randomise(model, variant, generator)
    folder = root / name
    with tempfile.TemporaryDirectory() as scratch:
        source, written = pathlib.Path(scratch) / "source", pathlib.Path(scratch) / "written"
        gemma_variants.write_checkpoint(model, variant, source)
        tokenizer().save_pretrained(source)
        oneshot(
            model=str(source), dataset=calibration(generator), max_seq_length=LENGTH,
            num_calibration_samples=SEQUENCES, recipe=recipe(name),
            output_dir=str(written),
        )
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(written / file, folder / file)
    reference, quantised = as_stored(folder)
    assert quantised == 7 * CONFIG["num_hidden_layers"], f"{quantised} matrices were quantised"
    is_clear = keep_quantised(reference, folder).are_clear if name.endswith("_kv") else lambda ids: True
    goldens, facts = make_gemma.make_goldens(reference, variant, np.random.default_rng([seed, number]), is_clear)
    sizes = finish_folder(folder, goldens, facts, "tools/goldens/make_llmcompressor.py")
    print(f"{name:28} {sum(sizes.values()):4.0f} KiB  self-agreement {facts['worst']:.1e}", flush=True)


if __name__ == "__main__":
    run(__doc__, SCHEMES, 8300, make_variant)
