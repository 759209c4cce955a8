"""GGUF: write a Llama-like decoder as one file for llama.cpp, in the architecture whose layers have their own sizes.

llama.cpp leaves out the attention of a layer without heads, but it also drops the attention of a layer without neurons,
and takes the width of all heads from the lowest layer. So the file has one unit of zeros in the place of an emptied
sublayer where that matters, or where a bias is left, and no layer in the place of one that adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from kprune.deploy.gguf_tokenizer import Vocabulary
from kprune.errors import NotFinite, UnsupportedModel
from kprune.models.outputs import CAUSAL_LM, kind_of
from kprune.models.sublayer import Sublayer, find

ARCHITECTURE = "deci"
MODEL_TYPES = ("llama", "mistral")
"""Types whose computation is the architecture's, with the restrictions of `require_writable_model`."""
ROPES = ("default", "linear", "llama3")
"""Position encodings whose frequencies do not depend on the length, and that scale nothing else."""
DTYPES = ("float32", "float16")

ATTENTION = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
}
FFN = {
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate_proj.bias": "ffn_gate.bias",
    "mlp.up_proj.bias": "ffn_up.bias",
    "mlp.down_proj.bias": "ffn_down.bias",
}
ROTATED = ("attn_q.weight", "attn_k.weight")


@dataclass(frozen=True)
class FileLayer:
    """A layer of the file: its counts, and its tensors by their names in a layer."""

    queries: int
    """Query heads."""
    heads: int
    """Key/value heads."""
    neurons: int
    tensors: dict[str, Tensor]


def require_writable_model(model: PreTrainedModel) -> None:
    """Raise if llama.cpp's architecture would compute something else than the model."""
    config = model.config
    if config.model_type not in MODEL_TYPES or kind_of(model) is not CAUSAL_LM:
        raise UnsupportedModel(
            f"a {type(model).__name__} cannot be written as GGUF: llama.cpp's architecture for layers of uneven sizes "
            f"computes causal language models of the types {', '.join(MODEL_TYPES)}; use another runtime."
        )
    longest = config.max_position_embeddings
    window, rope = getattr(config, "sliding_window", None) or longest, config.rope_parameters["rope_type"]
    reason = ""
    if config.hidden_act not in ("silu", "swish"):
        reason = f"its activation is {config.hidden_act!r}, and the architecture's is 'silu'"
    elif window < longest:
        reason = f"a token sees only {window} tokens, and the architecture has no such limit"
    elif rope not in ROPES:
        reason = f"its positions are encoded by {rope!r}, and kprune writes {', '.join(ROPES)}"
    elif getattr(config, "attention_bias", False):
        reason = "its queries, keys and values have biases, which llama.cpp may not read in layers of uneven sizes"
    if reason:
        raise UnsupportedModel(f"this {config.model_type!r} model cannot be written as GGUF: {reason}.")


def head_width(config: PreTrainedConfig) -> int:
    """Features of a head, which all layers share."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def file_layers(model: PreTrainedModel) -> list[FileLayer]:
    """The layers of the file, bottom to top; a layer that adds nothing to the stream has none."""
    sublayers = find(model)
    layers: list[FileLayer] = []
    for attention, ffn in zip(sublayers[::2], sublayers[1::2], strict=True):
        if not any(each.units or each.consumer.bias is not None for each in (attention, ffn)):
            continue
        has_attention = attention.units > 0 or attention.consumer.bias is not None or not layers
        config = model.config
        queries = config.num_attention_heads // config.num_key_value_heads
        heads = max(attention.units, 1) if has_attention else 0
        tensors = _tensors(ffn, FFN)
        if not ffn.units:
            tensors |= _zeros(config.hidden_size, {"ffn_gate": 1, "ffn_up": 1}, {"ffn_down": 1})
        if has_attention:
            tensors |= _tensors(attention, ATTENTION)
        if has_attention and not attention.units:
            width = head_width(config)
            rows = {"attn_q": queries * width, "attn_k": width, "attn_v": width}
            tensors |= _zeros(config.hidden_size, rows, {"attn_output": queries * width})
        for name in ROTATED:
            if name in tensors:
                tensors[name] = paired(tensors[name], head_width(config))
        layers.append(FileLayer(heads * queries, heads, max(ffn.units, 1), tensors))
    if not layers:
        raise UnsupportedModel("no layer of the model has units, so there is nothing to write; prune less.")
    return layers


def _tensors(sublayer: Sublayer, names: dict[str, str]) -> dict[str, Tensor]:
    """The weights that a layer has of one sublayer, by their names in the file."""
    present = dict(sublayer.layer.named_parameters())
    return {theirs: present[ours] for ours, theirs in names.items() if ours in present}


def _zeros(hidden: int, producers: dict[str, int], consumer: dict[str, int]) -> dict[str, Tensor]:
    """Weights of a unit that adds nothing: producers by their rows, the consumer by its columns."""
    rows = {f"{name}.weight": torch.zeros(size, hidden) for name, size in producers.items()}
    return rows | {f"{name}.weight": torch.zeros(hidden, size) for name, size in consumer.items()}


def paired(weight: Tensor, width: int) -> Tensor:
    """The rows of each head with the two that are rotated together side by side, as the architecture has them.

    transformers rotates row i of a head with row i + width / 2.
    """
    pairs: Tensor = weight.unflatten(0, (-1, 2, width // 2)).transpose(1, 2)
    return pairs.flatten(0, 2)


def frequency_factors(model: PreTrainedModel) -> Tensor | None:
    """By what the file divides the frequencies of plain rotary positions, (width / 2,); None if by nothing."""
    rotary: Any = next(each for each in model.modules() if hasattr(each, "inv_freq"))
    frequencies: Tensor = type(rotary)(config=model.config).inv_freq  # a model in float16 has rounded ones
    width = head_width(model.config)
    plain = model.config.rope_parameters["rope_theta"] ** -(torch.arange(0, width, 2) / width)
    factors: Tensor = plain / frequencies
    return None if torch.allclose(factors, torch.ones_like(factors)) else factors


def write_gguf(model: PreTrainedModel, vocabulary: Vocabulary, path: Path, *, dtype: str, title: str) -> None:
    """Write a float32 model on the CPU as a GGUF file; norms and biases stay in float32."""
    import gguf

    require_writable_model(model)
    layers, writer = file_layers(model), gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name(title)
    writer.add_file_type(getattr(gguf.LlamaFileType, {"float32": "ALL_F32", "float16": "MOSTLY_F16"}[dtype]))
    _add_sizes(writer, model.config, layers)
    vocabulary.add_to(writer)
    tensors = _outer_tensors(model)
    for number, layer in enumerate(layers):
        tensors |= {f"blk.{number}.{name}": tensor for name, tensor in layer.tensors.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, _stored(name, tensor, dtype).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: Any, config: PreTrainedConfig, layers: list[FileLayer]) -> None:
    """Add the sizes of the model, and those of each layer."""
    width = head_width(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(layers))
    writer.add_head_count([layer.queries for layer in layers])
    writer.add_head_count_kv([layer.heads for layer in layers])
    writer.add_feed_forward_length([layer.neurons for layer in layers])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _outer_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors outside the layers; a file without an output layer uses the embeddings."""
    base: Any = model.base_model
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    assert isinstance(head, nn.Linear)
    tensors: dict[str, Tensor] = {"token_embd.weight": embeddings.weight, "output_norm.weight": base.norm.weight}
    if head.weight is not embeddings.weight:
        tensors["output.weight"] = head.weight
    factors = frequency_factors(model)
    return tensors if factors is None else {**tensors, "rope_freqs.weight": factors}


def _stored(name: str, tensor: Tensor, dtype: str) -> Tensor:
    """The tensor as it is stored: matrices in the given type, all else in float32."""
    stored = tensor.detach().float()
    if stored.ndim > 1 and dtype == "float16":
        stored = stored.half()
    if not bool(stored.isfinite().all()):
        raise NotFinite(f"the tensor {name} has values that {dtype} cannot hold; use --dtype float32.")
    return stored.contiguous()
