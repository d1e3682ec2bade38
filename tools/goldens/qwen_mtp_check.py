"""The multi-token predictor of transformers, which keeps a cache, on the weights of ours."""

import torch
from qwen_variants import as_batch
from transformers import DynamicCache
from transformers.modeling_layers import MtpLayer

OTHER_NAMES = {"pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "fc": "eh_proj", "norm": "post_norm"}


def other_name(name):
    if name.startswith("layers.0."):
        return "mtp_block." + name.removeprefix("layers.0.")
    first, rest = name.split(".", 1)
    return f"{OTHER_NAMES[first]}.{rest}"


@torch.no_grad()
def cached_mtp(model, mtp, hidden, tokens, drafts):
    """Rows of all pairs [pairs, D], fed one by one, and the logits of each draft, its own pair appended."""
    block = mtp.layers[0]
    config = block.self_attn.config
    layer = MtpLayer(config, type(block), type(mtp.norm), 0).eval()
    layer.load_state_dict({other_name(name): value for name, value in mtp.state_dict().items()})
    cache, rows, logits = DynamicCache(config=config), [], []
    hidden = torch.as_tensor(hidden)
    for position, token in enumerate([*tokens, *drafts[:-1]]):
        previous = hidden[position] if position < len(tokens) else rows[-1]
        embedded = model.model.embed_tokens(as_batch([token]))
        positions = torch.tensor([[position + 1]])
        row = layer(
            embedded,
            previous.reshape(1, 1, -1),
            position_embeddings=model.model.rotary_emb(embedded, positions),
            attention_mask=None,
            position_ids=positions,
            cache=cache,
        )
        rows.append(row.reshape(-1))
        if position >= len(tokens) - 1:
            logits.append(model.lm_head(rows[-1]))
    return torch.stack(rows[: len(tokens)]).numpy(), torch.stack(logits).numpy()
