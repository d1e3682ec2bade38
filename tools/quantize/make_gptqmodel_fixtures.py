#!/usr/bin/env python3
"""Makes tests/data/quants/gptqmodel: linear layers that the gptqmodel package has quantised and packed.

Two layers of random weights, in each of the package's forms: GPTQ v1 and v2, with and without desc_act, symmetric or
not. The package's own GPTQ rounds them with random inputs, its TorchLinear packs them, its conversion makes version 1
of version 2, its dequantize_weight says what they stand for (expected.safetensors, [out, in] in float32), and its
QuantizeConfig writes the quantization_config. braid's reader is tested against those values.
"""

import argparse
import json
import pathlib

import gptqmodel
import torch
from gptqmodel import QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization import FORMAT
from gptqmodel.quantization.gptq import GPTQ
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file

# name: format, desc_act, symmetric
CASES = {
    "v1": ("gptq", False, True),
    "v1_order": ("gptq", True, True),
    "v1_asymmetric_order": ("gptq", True, False),
    "v2_order": ("gptq_v2", True, True),
    "v2_asymmetric": ("gptq_v2", False, False),
}
GROUP = 32
LAYERS = {"mlp.up_proj": (64, 32), "mlp.down_proj": (128, 16)}  # in, out


def make(folder, form, desc_act, symmetric, generator):
    config = QuantizeConfig(bits=4, group_size=GROUP, desc_act=desc_act, sym=symmetric, format=FORMAT(form),
                            act_group_aware=False)
    tensors, expected = {}, {}
    for name, (cols, rows) in LAYERS.items():
        linear = torch.nn.Linear(cols, rows, bias=False)
        linear.weight.data = torch.randn(rows, cols, generator=generator) * cols**-0.5
        # Inputs of very different sizes, so that desc_act has an order to choose.
        inputs = torch.randn(1, 256, cols, generator=generator) * torch.rand(cols, generator=generator) ** 2
        task = GPTQ(linear, config)
        task.quantizer.configure(perchannel=True)
        task.add_batch(inputs, linear(inputs))
        rounded, scale, zero, groups = task.quantize()[:4]
        linear.weight.data = rounded.to(linear.weight.dtype)
        packed = TorchLinear(bits=4, group_size=GROUP, sym=symmetric, desc_act=desc_act, in_features=cols,
                             out_features=rows, bias=False, register_buffers=True)
        packed.pack_original(linear, scale.cpu(), zero.cpu(), groups.cpu().to(torch.int32))
        packed.eval()
        packed.qzero_format(format=2)
        matrix = packed.dequantize_weight().T.float()
        error = (matrix - rounded.float()).abs().max()
        assert error <= 2**-10 * rounded.abs().max() * 4, f"{name}: packed weights are {error} from GPTQ's"
        if form == "gptq":
            convert_gptq_v2_to_v1_format_module(packed, config)
        stem = f"model.layers.0.{name}"
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            tensors[f"{stem}.{part}"] = getattr(packed, part).contiguous()
        expected[f"{stem}.weight"] = matrix.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file(expected, folder / "expected.safetensors")
    entry = config.to_dict()
    entry.pop("meta", None)
    text = {"model_type": "gemma3_text", "quantization_config": entry}
    (folder / "config.json").write_text(json.dumps(text, indent=2, default=str) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/quants/gptqmodel"
    parser.add_argument("--output", type=pathlib.Path, default=default)
    parser.add_argument("--seed", type=int, default=6300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(args.seed)
    for name, (form, desc_act, symmetric) in CASES.items():
        with torch.no_grad():
            make(args.output / name, form, desc_act, symmetric, generator)
        print(f"{name}: gptqmodel {gptqmodel.__version__}")


if __name__ == "__main__":
    main()
