"""Decoders for the tests of GGUF files, with every kind of emptied sublayer, and what llama.cpp makes of a file."""

import torch
import zoo
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from kprune.models.resize import add_bias, shrink
from kprune.models.sublayer import find

LEFT = ((0, 20), (1, 0), (0, 0), (0, 33), (2, 0), (1, 48), (0, 0))
"""Units of the attention and of the FFN that stay, by layer."""


@torch.no_grad()
def uneven_decoder(name="llama", *, biased=False, left=LEFT, **changes):
    """A decoder with the layers of `left`; with biases also in emptied sublayers if it is `biased`."""
    model = zoo.build(name, "causal language model", num_hidden_layers=len(left), **changes)
    counts = [count for layer in left for count in layer]
    for number, (sublayer, count) in enumerate(zip(find(model), counts, strict=True)):
        if biased:
            add_bias(sublayer)
            sublayer.consumer.bias.normal_(std=0.3)
        chosen = torch.randperm(sublayer.units, generator=torch.Generator().manual_seed(number))[:count]
        shrink(sublayer, torch.isin(torch.arange(sublayer.units), chosen))
    return model


class GgufModel:
    """A file as llama.cpp computes it, by its documentation of the architecture and the names of its tensors."""

    def __init__(self, path):
        import gguf

        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {each.name: torch.from_numpy(each.data.copy()).float() for each in reader.tensors}

    def of(self, name):
        """A value of the architecture."""
        return self.fields[f"{self.fields['general.architecture']}.{name}"]

    def linear(self, layer, name, stream):
        bias = self.tensors.get(f"blk.{layer}.{name}.bias")
        return stream @ self.tensors[f"blk.{layer}.{name}.weight"].T + (0 if bias is None else bias)

    def norm(self, stream, name):
        weight = self.tensors[f"{name}.weight"]
        return rms_norm(stream, weight.shape, weight, eps=self.of("attention.layer_norm_rms_epsilon"))

    def rotated(self, heads):
        """Heads (length, heads, width) whose neighbouring features are turned together."""
        width = self.of("rope.dimension_count")
        factors = self.tensors.get("rope_freqs.weight", torch.ones(width // 2))
        angles = torch.arange(len(heads))[:, None] * self.of("rope.freq_base") ** -(torch.arange(0, width, 2) / width)
        turned = torch.polar(torch.ones(len(heads), width // 2), angles / factors)[:, None]
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turned).flatten(-2)

    def attention(self, layer, stream):
        queries, heads = self.of("attention.head_count")[layer], self.of("attention.head_count_kv")[layer]
        stream, width = self.norm(stream, f"blk.{layer}.attn_norm"), self.of("attention.key_length")
        q, k, v = (self.linear(layer, f"attn_{name}", stream).unflatten(-1, (-1, width)) for name in "qkv")
        assert (q.shape[1], k.shape[1], v.shape[1]) == (queries, heads, heads)
        parts = (each.transpose(0, 1) for each in (self.rotated(q), self.rotated(k), v))
        mixed = scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return self.linear(layer, "attn_output", mixed.transpose(0, 1).flatten(1))

    def ffn(self, layer, stream):
        stream = self.norm(stream, f"blk.{layer}.ffn_norm")
        features = silu(self.linear(layer, "ffn_gate", stream)) * self.linear(layer, "ffn_up", stream)
        assert features.shape[1] == self.of("feed_forward_length")[layer]
        return self.linear(layer, "ffn_down", features)

    def logits(self, ids):
        """Logits of the token after each of `ids`."""
        stream = self.tensors["token_embd.weight"][ids]
        assert self.of("attention.head_count")[0] > 0  # the width of all heads would be read from it
        for layer in range(self.of("block_count")):
            if not self.of("feed_forward_length")[layer]:
                continue  # the whole layer is left out
            if self.of("attention.head_count")[layer]:
                stream = stream + self.attention(layer, stream)
            stream = stream + self.ffn(layer, stream)
        output = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return self.norm(stream, "output_norm") @ output.T
