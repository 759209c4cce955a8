"""Tokenizers in GGUF files: llama.cpp's name for how they split text, their tokens, and those that are refused."""

import json

import pytest
from gguf_models import uneven_decoder
from task_data import load_decoder_tokenizer, word_tokenizer
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from kprune import KpruneError
from kprune.data.calibration import python_documentation
from kprune.deploy.gguf import write_gguf
from kprune.deploy.gguf_check import start_llama_cpp
from kprune.deploy.gguf_tokenizer import LLAMA3_PATTERN, vocabulary_of

LLAMA3 = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
SMOLLM = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)


def changed(*, eos="<end>", pre=None, normalizer=None, post=None, **bpe):
    """The byte-level tokenizer of the tests with other parts."""
    content = json.loads(load_decoder_tokenizer().backend_tokenizer.to_str())
    content["model"] |= bpe
    backend = Tokenizer.from_str(json.dumps(content))
    if pre is not None:
        backend.pre_tokenizer = pre
    if normalizer is not None:
        backend.normalizer = normalizer
    if post is not None:
        backend.post_processor = post
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)


SPLIT = pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("gpt-2", changed()),
        ("smollm", changed(pre=SMOLLM)),
        ("llama-bpe", changed(pre=LLAMA3, ignore_merges=True)),
    ],
)
TEXTS = [
    *(
        "",
        " ",
        "\n\n\n  x",
        "a\tb\r\n\r\nc  ",
        "I'll, YOU'LL 12345 3.14 ½ ²",
        "naïve Größe 東京 🙂 e\u0301",
        "<end>a <end>",
    ),
    *python_documentation()[:100],
]


@SPLIT
def test_the_way_to_split_text_has_llama_cpps_name(name, tokenizer):
    assert vocabulary_of(tokenizer, 400).splitter == name


@SPLIT
def test_llama_cpp_reads_texts_as_the_same_tokens(name, tokenizer, tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    model = uneven_decoder(vocab_size=400, left=((1, 1),))
    write_gguf(model, vocabulary_of(tokenizer, 400), tmp_path / "model.gguf", dtype="float32", title=name)
    runtime = start_llama_cpp(tmp_path / "model.gguf", 64)
    for text in TEXTS:
        assert runtime.tokenize(text.encode(), add_bos=True, special=True) == tokenizer(text)["input_ids"], text


def test_tokens_and_merges_are_the_tokenizers():
    tokenizer = load_decoder_tokenizer()
    tokenizer.chat_template, found = "{{ messages }}", None
    try:
        found = vocabulary_of(tokenizer, 410)
    finally:
        tokenizer.chat_template = None
    assert found.tokens[:400] == tokenizer.convert_ids_to_tokens(range(400))
    assert found.kinds == ["CONTROL", *["NORMAL"] * 399, *["UNUSED"] * 10]
    assert len(set(found.tokens)) == 410
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    assert [tuple(merge.split(" ")) for merge in found.merges] == [tuple(merge) for merge in merges]
    assert found.special == {"bos": 0, "eos": 0}
    assert (found.adds_bos, found.adds_eos, found.chat_template) == (False, False, "{{ messages }}")


def test_a_token_before_every_text_is_said():
    tokenizer = changed(post=processors.TemplateProcessing("<end> $A", special_tokens=[("<end>", 0)]))
    tokenizer.bos_token = "<end>"
    found = vocabulary_of(tokenizer, 400)
    assert (found.adds_bos, found.adds_eos) == (True, False)


def spaced():
    tokenizer = changed()
    tokenizer.add_tokens(["<mask>"])
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["added_tokens"][-1]["lstrip"] = True
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)), eos_token="<end>")


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (word_tokenizer(), "its model is WordLevel, not BPE"),
        (changed(normalizer=normalizers.NFC()), r"it changes the text first \(NFC\)"),
        (changed(pre=pre_tokenizers.Metaspace()), "no name that kprune knows for how it splits text .*Metaspace"),
        (changed(pre=LLAMA3), "no name that kprune knows for how it splits text"),
        (changed(pre=pre_tokenizers.ByteLevel(add_prefix_space=True)), "no name that kprune knows"),
        (changed(dropout=0.1), "it uses dropout"),
        (changed(byte_fallback=True), "it uses byte_fallback"),
        (changed(eos=None), "it has no end-of-text token"),
        (changed(post=processors.TemplateProcessing("<end> $A", special_tokens=[("<end>", 0)])), r"the tokens \[0\]"),
        (spaced(), "its token '<mask>' takes the spaces around it"),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_compute_is_refused(tokenizer, reason):
    with pytest.raises(KpruneError, match=f"the tokenizer cannot be written as GGUF: .*{reason}.*another runtime"):
        vocabulary_of(tokenizer, 410)
