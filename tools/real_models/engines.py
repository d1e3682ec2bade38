"""Three ways to compute the logits of one GGUF file: braid, transformers and llama.cpp.

Each engine has a name, `logits(ids)` -> float32 [tokens, vocabulary], and where it can
`tokenize(texts)` -> lists of ids (BOS included) and `greedy(ids, count)` -> `count` new ids.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

# GGUF name: transformers name. Norm weights are stored with the 1 of (1 + w) already added.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class Braid:
    def __init__(self, binary, gguf, compute, threads):
        self.name = f"braid {compute}"
        self.binary, self.gguf = binary, gguf
        self.options = ["--compute", compute, "--threads", str(threads)]

    def _run(self, *arguments):
        command = [self.binary, "--log-level", "warn", arguments[0], self.gguf, *arguments[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return done.stdout.decode()

    def tokenize(self, texts):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
            file.flush()
            lines = self._run("tokenize", "--jsonl", file.name).strip("\n").split("\n")
        return [json.loads(line)["ids"] for line in lines]

    def logits(self, ids):
        from safetensors.numpy import load_file

        with tempfile.TemporaryDirectory() as folder:
            ids_file, output = Path(folder) / "ids.txt", Path(folder) / "logits.safetensors"
            ids_file.write_text(" ".join(map(str, ids)) + "\n")
            files = ["--ids-file", str(ids_file), "--output", str(output)]
            self._run("logits", *files, *self.options)
            return load_file(output)["logits.0"]

    def greedy(self, text, count):
        length = ["--greedy", "--ignore-eos", "--max-tokens", str(count)]
        return json.loads(self._run("run", "-p", text, "--json", *length, *self.options))["ids"]


class Transformers:
    """transformers' own Gemma 3, on the file's weights expanded exactly by the gguf package."""

    def __init__(self, gguf, dtype, threads):
        import torch
        from gguf import GGUFReader
        from gguf.quants import dequantize
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig

        self.name = f"transformers {dtype}"
        self.torch, self.dtype = torch, getattr(torch, dtype)
        torch.set_num_threads(threads)
        reader = GGUFReader(gguf)

        def value(key, default=None):
            field = reader.get_field(f"gemma3.{key}")
            return default if field is None else field.contents()

        state = {}
        for tensor in reader.tensors:
            data = dequantize(tensor.data, tensor.tensor_type)
            weights = torch.from_numpy(np.array(data, dtype=np.float32)).to(self.dtype)
            state[transformers_name(tensor.name)] = weights - 1 if "norm" in tensor.name else weights
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        layers, full = value("block_count"), {"rope_type": "default"}
        config = Gemma3TextConfig(
            vocab_size=state["lm_head.weight"].shape[0],
            hidden_size=value("embedding_length"),
            intermediate_size=value("feed_forward_length"),
            num_hidden_layers=layers,
            num_attention_heads=value("attention.head_count"),
            num_key_value_heads=value("attention.head_count_kv"),
            head_dim=value("attention.key_length"),
            query_pre_attn_scalar=value("attention.key_length"),
            rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
            sliding_window=value("attention.sliding_window"),
            max_position_embeddings=value("context_length"),
            layer_types=[
                "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)
            ],
            rope_parameters={
                "full_attention": full | {"rope_theta": value("rope.freq_base")},
                "sliding_attention": full | {"rope_theta": value("rope.freq_base_swa", 1e4)},
            },
            tie_word_embeddings=True,
        )
        config._attn_implementation = "eager"
        self.model = Gemma3ForCausalLM(config).to(self.dtype)
        self.model.load_state_dict(state, strict=True)
        self.model.eval()

    def logits(self, ids, keep=0):
        """Logits of the last `keep` positions (0: of all)."""
        with self.torch.no_grad():
            output = self.model(self.torch.tensor([ids]), logits_to_keep=keep, use_cache=False)
        return output.logits[0].float().numpy()


def transformers_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"


class LlamaCpp:
    """llama.cpp through llama-cpp-python's low-level interface, with float32 keys and values."""

    def __init__(self, gguf, threads, context=2048, batch=512):
        import llama_cpp as api

        self.api, self.batch = api, batch
        self.name = f"llama.cpp (llama-cpp-python {api.__version__})"
        api.llama_backend_init()
        model_parameters = api.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(gguf.encode(), model_parameters)
        if not self.model:
            raise RuntimeError(f"{gguf}: llama.cpp cannot load it")
        self.vocabulary = api.llama_model_get_vocab(self.model)
        parameters = api.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context, batch, batch
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.type_k = parameters.type_v = api.GGML_TYPE_F32
        parameters.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = api.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise RuntimeError(f"{gguf}: llama.cpp cannot make a context")

    def tokenize(self, texts):
        return [self._tokenize(text.encode()) for text in texts]

    def _tokenize(self, text):
        capacity = len(text) + 2
        ids = (self.api.llama_token * capacity)()
        count = self.api.llama_tokenize(
            self.vocabulary, text, len(text), ids, capacity, True, True
        )
        if count < 0:
            raise RuntimeError("llama_tokenize needs more room than one token a byte")
        return list(ids[:count])

    def _decode(self, ids, first_position):
        """Logits [tokens, vocabulary] of at most `batch` new ids."""
        api = self.api
        batch = api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i] = token
                batch.pos[i] = first_position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = 1
            if api.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            width = (api.llama_vocab_n_tokens(self.vocabulary),)
            rows = [api.llama_get_logits_ith(self.context, i) for i in range(len(ids))]
            return np.stack([np.ctypeslib.as_array(row, width) for row in rows])
        finally:
            api.llama_batch_free(batch)

    def logits(self, ids):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        parts = [ids[i : i + self.batch] for i in range(0, len(ids), self.batch)]
        return np.concatenate([self._decode(p, i * self.batch) for i, p in enumerate(parts)])

    def greedy(self, text, count):
        ids = self.tokenize([text])[0]
        row, start = self.logits(ids)[-1], len(ids)
        generated = []
        while True:
            generated.append(int(row.argmax()))
            if len(generated) == count:
                return generated
            row = self._decode(generated[-1:], start)[-1]
            start += 1


def default_threads():
    return len(os.sched_getaffinity(0))
