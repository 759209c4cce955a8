"""Rows of vision and speech encoders."""

from __future__ import annotations

from dataclasses import replace

from kprune.models.family import Block, Family

VIT = Family(
    layers="layers",
    mid_stream=None,
    embeddings="embeddings",
    inputs="pixel_values",
    positions=None,
    blocks={
        "attention": Block(
            residual_input="layernorm_before",
            module="attention",
            producers={"attention.q_proj": 1, "attention.k_proj": 1, "attention.v_proj": 1},
            consumer="attention.o_proj",
            dense_units="num_attention_heads",
            unit_width=("attention.head_dim",),
            returns=2,
            config_counts={"num_attention_heads": "units", "head_dim": "width"},
        ),
        "ffn": Block(
            residual_input="layernorm_after",
            module="mlp",
            producers={"mlp.fc1": 1},
            consumer="mlp.fc2",
            dense_units="intermediate_size",
        ),
    },
)

DINOV2 = replace(
    VIT,
    layers="encoder.layer",
    requires={"use_swiglu_ffn": False},
    blocks={
        "attention": replace(VIT.blocks["attention"], residual_input="norm1", output_scale="layer_scale1.lambda1"),
        "ffn": replace(
            VIT.blocks["ffn"],
            residual_input="norm2",
            output_scale="layer_scale2.lambda1",
            dense_units=lambda config: int(config.hidden_size * config.mlp_ratio),
        ),
    },
)

CLIP_VISION = replace(
    VIT,
    layers="encoder.layers",
    blocks={
        "attention": Block(
            residual_input="layer_norm1",
            module="self_attn",
            producers={"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1},
            consumer="self_attn.out_proj",
            dense_units="num_attention_heads",
            unit_width=("self_attn.head_dim",),
            returns=2,
        ),
        "ffn": replace(VIT.blocks["ffn"], residual_input="layer_norm2"),
    },
)
CLIP_TEXT = replace(CLIP_VISION, inputs="input_ids", positions="max_position_embeddings", causal=True)

WHISPER = Family(
    layers="encoder.layers",
    mid_stream=None,
    embeddings=None,  # two convolutions, small beside the layers
    inputs="input_features",
    positions=None,
    requires={"use_weighted_layer_sum": False},
    blocks={
        "attention": replace(
            CLIP_VISION.blocks["attention"],
            residual_input="self_attn_layer_norm",
            dense_units="encoder_attention_heads",
            counts=(("self_attn.num_heads", "units"),),
        ),
        "ffn": Block(
            residual_input="final_layer_norm",
            module="fc1",
            producers={"fc1": 1},
            consumer="fc2",
            dense_units="encoder_ffn_dim",
        ),
    },
)

_WAV2VEC2_ATTENTION = Block(
    residual_input="attention.q_proj",
    module="attention",
    producers={"attention.q_proj": 1, "attention.k_proj": 1, "attention.v_proj": 1},
    consumer="attention.out_proj",
    dense_units="num_attention_heads",
    unit_width=("attention.head_dim",),
    returns=2,
)
_WAV2VEC2_FFN = Block(
    residual_input="feed_forward",
    module="feed_forward",
    producers={"feed_forward.intermediate_dense": 1},
    consumer="feed_forward.output_dense",
    dense_units="intermediate_size",
)
_WAV2VEC2_PRE_NORM = Family(
    layers="encoder.layers",
    mid_stream=None,
    embeddings="feature_extractor",
    inputs="input_values",
    positions=None,
    requires={"adapter_attn_dim": None, "add_adapter": False, "use_weighted_layer_sum": False},
    blocks={
        "attention": replace(_WAV2VEC2_ATTENTION, residual_input="layer_norm"),
        "ffn": replace(_WAV2VEC2_FFN, residual_input="final_layer_norm"),
    },
)
WAV2VEC2 = replace(
    _WAV2VEC2_PRE_NORM,
    mid_stream="layer_norm",
    requires={**_WAV2VEC2_PRE_NORM.requires, "do_stable_layer_norm": False},
    otherwise=_WAV2VEC2_PRE_NORM,
    blocks={"attention": _WAV2VEC2_ATTENTION, "ffn": _WAV2VEC2_FFN},
)
