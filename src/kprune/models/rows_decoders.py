"""Rows of decoders, and of an encoder with a decoder's layers."""

from __future__ import annotations

from dataclasses import replace

from kprune.models.family import Block, Family

LLAMA = Family(
    layers="layers",
    mid_stream=None,
    embeddings="embed_tokens",
    causal=True,
    has_cache=True,
    blocks={
        # A unit is a key/value head with the query heads that read it.
        "attention": Block(
            residual_input="input_layernorm",
            module="self_attn",
            producers={"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1},
            consumer="self_attn.o_proj",
            dense_units="num_key_value_heads",
            unit_width=("self_attn.head_dim", "self_attn.num_key_value_groups"),
            returns=2,
            config_counts={"num_key_value_heads": "units", "num_attention_heads": "queries", "head_dim": "width"},
        ),
        "ffn": Block(
            residual_input="post_attention_layernorm",
            module="mlp",
            producers={"mlp.gate_proj": 1, "mlp.up_proj": 1},
            consumer="mlp.down_proj",
            dense_units="intermediate_size",
        ),
    },
)

EUROBERT = replace(LLAMA, causal=False, has_cache=False)

STARCODER2 = replace(
    LLAMA,
    blocks={
        "attention": LLAMA.blocks["attention"],
        "ffn": replace(LLAMA.blocks["ffn"], producers={"mlp.c_fc": 1}, consumer="mlp.c_proj"),
    },
)

# Every sublayer's output is normalised before it is added to the stream.
GEMMA2 = replace(
    LLAMA,
    blocks={
        "attention": replace(LLAMA.blocks["attention"], is_normed=True),
        "ffn": replace(LLAMA.blocks["ffn"], residual_input="pre_feedforward_layernorm", is_normed=True),
    },
)

PHI3 = replace(
    LLAMA,
    blocks={
        "attention": replace(
            LLAMA.blocks["attention"],
            producers={"self_attn.qkv_proj": ("self_attn.num_key_value_groups", 1, 1)},
            counts=(
                ("self_attn.num_key_value_heads", "units"),
                ("self_attn.config.num_attention_heads", "queries"),
            ),
        ),
        "ffn": replace(LLAMA.blocks["ffn"], producers={"mlp.gate_up_proj": 2}),
    },
)

OPT = Family(
    layers="decoder.layers",
    mid_stream=None,
    embeddings="decoder.embed_tokens",
    causal=True,
    has_cache=True,
    requires={"do_layer_norm_before": True},
    blocks={
        "attention": Block(
            residual_input="self_attn_layer_norm",
            module="self_attn",
            producers={"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1},
            consumer="self_attn.out_proj",
            dense_units="num_attention_heads",
            unit_width=("self_attn.head_dim",),
            counts=(("self_attn.num_heads", "units"),),
            returns=2,
        ),
        "ffn": Block(
            residual_input="final_layer_norm",
            module="fc1",
            producers={"fc1": 1},
            consumer="fc2",
            dense_units="ffn_dim",
        ),
    },
)

GPT2 = Family(
    layers="h",
    mid_stream=None,
    embeddings="wte",
    causal=True,
    has_cache=True,
    requires={"add_cross_attention": False},
    blocks={
        "attention": Block(
            residual_input="ln_1",
            module="attn",
            producers={"attn.c_attn": 3},
            consumer="attn.c_proj",
            dense_units="num_attention_heads",
            unit_width=("attn.head_dim",),
            counts=(("attn.num_heads", "units"), ("attn.split_size", "features")),
            returns=2,
        ),
        "ffn": Block(
            residual_input="ln_2",
            module="mlp",
            producers={"mlp.c_fc": 1},
            consumer="mlp.c_proj",
            dense_units=lambda config: config.n_inner or 4 * config.n_embd,
            config_counts={"n_inner": "units"},
        ),
    },
)

_NEOX = Family(
    layers="layers",
    mid_stream=None,
    embeddings="embed_in",
    causal=True,
    has_cache=True,
    blocks={
        "attention": Block(
            residual_input="input_layernorm",
            module="attention",
            # Rows are ordered by head, then by query, key and value: one matrix.
            producers={"attention.query_key_value": 1},
            consumer="attention.dense",
            dense_units="num_attention_heads",
            unit_width=("attention.head_size",),
            returns=2,
            cache="layer_past",
        ),
        "ffn": Block(
            residual_input="post_attention_layernorm",
            module="mlp",
            producers={"mlp.dense_h_to_4h": 1},
            consumer="mlp.dense_4h_to_h",
            dense_units="intermediate_size",
        ),
    },
)
GPT_NEOX = replace(_NEOX, requires={"use_parallel_residual": True}, is_parallel=True, otherwise=_NEOX)
