#!/usr/bin/env python3
"""Compares a checkpoint that `braid quantize` wrote, as other programs read it, with how braid reads it.

  verify.py FOLDER --dump build/release/tests/dump_weights

Every quantised matrix is expanded by the compressed-tensors package (or, of GPTQ files, by the format's
definition) and must equal braid's float32 values exactly. The scheme of each matrix is found as that package
finds it: by the targets and the ignore list of quantization_config. Exit code 1 on any difference, on a matrix
that the config gives no scheme, and on one that it wrongly gives one; likewise for scales of keys and values.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors import safe_open


def read_tensors(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensors[name] = file.get_tensor(name)
    return tensors


def matches(name, target):
    return bool(re.match(target[3:], name)) if target.startswith("re:") else target in ("Linear", name)


class CompressedTensors:
    def __init__(self, config):
        from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
        from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationConfig

        self.compressors = {"int-quantized": IntQuantizationCompressor, "pack-quantized": PackedQuantizationCompressor}
        parsed = QuantizationConfig.model_validate(config)
        self.schemes = list(parsed.config_groups.values())
        self.ignore = parsed.ignore
        self.kv = parsed.kv_cache_scheme

    def scheme_of(self, module):
        if any(matches(module, target) for target in self.ignore):
            return None
        found = [s for s in self.schemes if any(matches(module, target) for target in s.targets)]
        return found[0] if found else None

    def kv_faults(self, tensors):
        """What is wrong with the scales of keys and values, and how many there are."""
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize

        names = [name for name in tensors if name.endswith((".k_scale", ".v_scale"))]
        if self.kv is None or self.kv.dynamic:
            return [f"{name}: the config says nothing of static scales" for name in names], len(names)
        faults = [] if names else ["no scales of keys and values, but the config says so"]
        for name in names:
            stem, last = name.rsplit(".", 1)
            scale = tensors[name].float()
            if f"{stem}.{'v_scale' if last == 'k_scale' else 'k_scale'}" not in tensors:
                faults.append(f"{name}: has no partner")
            if scale.numel() != 1 or not bool(torch.isfinite(scale).all()) or float(scale) <= 0:
                faults.append(f"{name}: is no scale")
                continue
            codes = torch.arange(-127, 128).float()
            read = fake_quantize(codes * scale, scale, torch.zeros_like(scale), self.kv)
            if not torch.equal(read, codes * scale):
                faults.append(f"{name}: codes do not stand for themselves")
        return faults, len(names)

    def matrices(self, tensors):
        """(name, module, parts) of each quantised matrix."""
        for key in tensors:
            if key.endswith("_packed"):
                stem = key.removesuffix("_packed")
            elif tensors[key].dtype == torch.int8 and key + "_scale" in tensors:
                stem = key
            else:
                continue
            parts = {"weight" + k.removeprefix(stem): v for k, v in tensors.items()
                     if k == stem or k.startswith(stem + "_")}
            yield stem, stem.removesuffix(".weight"), parts

    def expand(self, scheme, parts):
        # Scales in float32, so that nothing is rounded again.
        parts = parts | {"weight_scale": parts["weight_scale"].float()}
        format_name = getattr(scheme, "format", None)
        format_name = getattr(format_name, "value", format_name)
        if format_name is None:
            format_name = "int-quantized" if scheme.weights.num_bits == 8 else "pack-quantized"
        compressor = self.compressors[format_name]
        matrix = next(v for k, v in parts.items() if k in ("weight", "weight_packed"))
        if matrix.dim() == 2:
            return compressor.decompress(parts, scheme)["weight"].numpy()
        rows = []
        for i in range(matrix.shape[0]):
            one = {k: v[1:] if k == "weight_shape" else v[i] for k, v in parts.items()}
            rows.append(compressor.decompress(one, scheme)["weight"].numpy())
        return np.stack(rows)


class Gptq:
    def __init__(self, config):
        self.config = config

    def kv_faults(self, tensors):
        return [], 0

    def scheme_of(self, module):
        for rule in self.config.get("dynamic", {}):
            if rule.startswith("-:") and re.match(rule[2:], module):
                return None
        return self.config

    def matrices(self, tensors):
        for key in tensors:
            if key.endswith(".qweight"):
                module = key.removesuffix(".qweight")
                parts = {part: tensors[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx")}
                yield module + ".weight", module, parts

    def expand(self, scheme, parts):
        def unpack(words, axis):
            words = words.numpy().view(np.uint32)
            codes = np.stack([(words >> np.uint32(4 * k)) & 15 for k in range(8)], axis + 1)
            shape = list(words.shape)
            shape[axis] *= 8
            return codes.reshape(shape).astype(np.float32)

        codes, zeros = unpack(parts["qweight"], 0), unpack(parts["qzeros"], 1) + 1
        groups = parts["g_idx"].numpy()
        scales = parts["scales"].float().numpy()
        return np.ascontiguousarray((scales[groups] * (codes - zeros[groups])).T)


class GptqByPackage(Gptq):
    """The same, unpacked by gptqmodel: products in float16."""

    def expand(self, scheme, parts):
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

        rows, cols = parts["scales"].shape[1], parts["g_idx"].shape[0]
        layer = TorchLinear(bits=4, group_size=scheme["group_size"], sym=scheme["sym"], desc_act=scheme["desc_act"],
                            in_features=cols, out_features=rows, bias=False, register_buffers=True)
        for name, value in parts.items():
            setattr(layer, name, value)
        layer.qzero_format(format=1)
        convert_gptq_v1_to_v2_format_module(layer, bits=4, pack_dtype=torch.int32)
        return layer.eval().dequantize_weight().T.float().numpy()


def same(theirs, ours, exact):
    if theirs.shape != ours.shape:
        return False
    return np.array_equal(theirs, ours) if exact else bool((np.abs(theirs - ours) <= np.abs(theirs) / 2048).all())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dump", type=pathlib.Path, required=True, help="the program dump_weights")
    parser.add_argument("--gptqmodel", action="store_true",
                        help="GPTQ files: unpack with the gptqmodel package (within its rounding to float16)")
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    config = (config.get("quantization_config") or config["text_config"]["quantization_config"])
    gptq = GptqByPackage if args.gptqmodel else Gptq
    reader = (gptq if config["quant_method"] == "gptq" else CompressedTensors)(config)
    tensors = read_tensors(args.folder)
    with tempfile.TemporaryDirectory() as scratch:
        dumped = pathlib.Path(scratch) / "weights.safetensors"
        subprocess.run([args.dump, args.folder, dumped], check=True)
        with safe_open(dumped, "np") as file:
            ours = {name: file.get_tensor(name) for name in file.keys()}
    faults, scales = reader.kv_faults(tensors)
    count, values = 0, 0
    quantised = set()
    for name, module, parts in reader.matrices(tensors):
        quantised.add(module)
        scheme = reader.scheme_of(module)
        if scheme is None:
            faults.append(f"{name}: quantised, but the config has no scheme for it")
            continue
        theirs = reader.expand(scheme, parts)
        if name not in ours:
            faults.append(f"{name}: not among braid's")
        elif not same(theirs, ours[name], exact=not args.gptqmodel):
            faults.append(f"{name}: differs, by {np.abs(theirs - ours[name]).max():g}")
        count += 1
        values += theirs.size
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        is_linear = tensor.dim() == 2 and name.endswith(".weight") and "embed" not in name
        if is_linear and module not in quantised and reader.scheme_of(module) is not None:
            faults.append(f"{name}: not quantised, but the config says so")
    for fault in faults:
        print(fault)
    says_kv = getattr(reader, "kv", None) is not None
    print(f"{args.folder.name}: {count} matrices, {values} values, {scales} scales of keys or values, {len(faults)} faults")
    return 1 if faults or (count == 0 and not says_kv) or count != len(ours) else 0


if __name__ == "__main__":
    sys.exit(main())
