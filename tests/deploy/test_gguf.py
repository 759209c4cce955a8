"""GGUF files: what they hold is the model, by llama.cpp's reading, and in llama.cpp itself if it is installed."""

import pytest
import torch
from gguf_models import LEFT, GgufModel, uneven_decoder
from task_data import load_decoder_tokenizer

from kprune import KpruneError
from kprune.deploy.gguf import file_layers, require_writable_model, write_gguf
from kprune.deploy.gguf_check import gguf_difference, logits_of, start_llama_cpp
from kprune.deploy.gguf_tokenizer import vocabulary_of

VOCABULARY = 410
"""More embeddings than the tokenizer has tokens."""
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = {
    "llama": {},
    "biases": {"biased": True},
    "wide heads": {"head_dim": 16, "tie_word_embeddings": True, "mlp_bias": True},
    "llama3": {"rope_parameters": LLAMA3},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}},
    "mistral": {"name": "mistral", "sliding_window": None},
}
TEXTS = [
    "Names are bound by assignment.",
    "  def f(x):\n\treturn x ** 2  # 1234 times",
    "Größe: 25 µm – naïve 東京 🙂",
    "<end>a",
]


def written(path, dtype="float32", **changes):
    """A model, and its file."""
    model = uneven_decoder(vocab_size=VOCABULARY, **changes)
    vocabulary = vocabulary_of(load_decoder_tokenizer(), VOCABULARY)
    write_gguf(model, vocabulary, path, dtype=dtype, title="uneven")
    return model, path


def gap(found, model, ids):
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_file_computes_what_the_model_computes(variant, tmp_path):
    pytest.importorskip("gguf")
    model, path = written(tmp_path / "model.gguf", **VARIANTS[variant])
    ids = torch.randint(VOCABULARY, (40,)).tolist()
    assert gap(GgufModel(path).logits(ids), model, ids) < 1e-5


def test_the_file_says_the_sizes_of_the_model(tmp_path):
    pytest.importorskip("gguf")
    model, path = written(tmp_path / "model.gguf")
    found, config = GgufModel(path), model.config
    assert found.fields["general.architecture"] == "deci"
    # Layers 2 and 6 add nothing. The lowest has a head of zeros, for llama.cpp reads the width of heads there.
    assert found.of("block_count") == len(LEFT) - 2
    assert found.of("attention.head_count_kv") == [1, 1, 0, 2, 1]
    assert found.of("attention.head_count") == [2, 2, 0, 4, 2]
    assert found.of("feed_forward_length") == [20, 1, 33, 1, 48]
    assert not any(found.tensors[f"blk.0.attn_{name}.weight"].any() for name in ("q", "k", "v", "output"))
    assert not found.tensors["blk.1.ffn_down.weight"].any()
    assert "blk.2.attn_norm.weight" not in found.tensors
    assert found.of("context_length") == config.max_position_embeddings
    assert found.of("embedding_length") == config.hidden_size
    assert found.of("vocab_size") == VOCABULARY
    assert found.of("rope.dimension_count") == found.of("attention.value_length") == 8


def test_float16_rounds_matrices_only(tmp_path):
    pytest.importorskip("gguf")
    model, path = written(tmp_path / "half.gguf", dtype="float16")
    found = GgufModel(path)
    weight = model.model.layers[3].mlp.up_proj.weight
    assert torch.equal(found.tensors["blk.2.ffn_up.weight"], weight.half().float())
    assert torch.equal(found.tensors["blk.2.ffn_norm.weight"], model.model.layers[3].post_attention_layernorm.weight)
    with torch.no_grad():
        weight[0, 0] = 1e6
    with pytest.raises(KpruneError, match=r"ffn_up\.weight has values that float16 cannot hold; use --dtype float32"):
        write_gguf(model, vocabulary_of(load_decoder_tokenizer(), VOCABULARY), path, dtype="float16", title="")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "qwen2"}, "a Qwen2ForCausalLM cannot be written as GGUF: .* of the types llama, mistral"),
        ({"hidden_act": "gelu"}, "its activation is 'gelu'"),
        ({"attention_bias": True}, "its queries, keys and values have biases"),
        ({"name": "mistral", "sliding_window": 8}, "a token sees only 8 tokens"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 2.0}}, "encoded by 'yarn'"),
    ],
)
def test_what_the_architecture_cannot_say_is_refused(changes, reason):
    with pytest.raises(KpruneError, match=reason):
        require_writable_model(uneven_decoder(left=((2, 48),), **changes))


def test_a_model_without_units_is_refused():
    with pytest.raises(KpruneError, match="no layer of the model has units"):
        file_layers(uneven_decoder(left=((0, 0), (0, 0))))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float16", 5e-2)])
def test_llama_cpp_computes_what_the_model_computes(variant, dtype, limit, tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    model, path = written(tmp_path / "model.gguf", dtype=dtype, **VARIANTS[variant])
    assert gguf_difference(path, model, load_decoder_tokenizer(), TEXTS, 60) < limit


def test_llama_cpp_writes_the_same_tokens(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    model, path = written(tmp_path / "model.gguf")
    ids = load_decoder_tokenizer()(TEXTS[0])["input_ids"]
    wanted = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=None)[0].tolist()
    runtime, found = start_llama_cpp(path, 64), list(ids)
    while len(found) < len(wanted):
        found.append(int(logits_of(runtime, found)[-1].argmax()))
    assert found == wanted
