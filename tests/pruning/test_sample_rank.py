"""Texts that are all alike are noticed; varied text is not."""

import logging

import pytest
import tiny
import torch

from kprune.data.calibration import draw, python_documentation
from kprune.jobs.demo import embedded_model
from kprune.models.batches import examples_of, regroup
from kprune.pruning.sample_rank import stream_rank, warn_of_uniform_text

TEMPLATES = [f"The answer to question {n} is {n * n}." for n in range(2000)]
VARIANTS = [f"{text} {n}" for n in range(200) for text in python_documentation()[:8]]


@pytest.fixture(scope="module")
def embedder():
    source = embedded_model()
    return source.load().eval(), source.load_tokenizer()


def sample(embedder, rows, tokens=6000):
    model, tokenizer = embedder
    batches = draw(rows, tokenizer, tokens=tokens, max_length=64)
    return regroup(examples_of(batches), tokens=2000, pad_id=0, device=model.device)


@pytest.mark.real
@pytest.mark.parametrize(("rows", "is_uniform"), [(TEMPLATES, True), (VARIANTS, True), (python_documentation(), False)])
def test_texts_that_are_alike_are_noticed(embedder, rows, is_uniform, caplog):
    with caplog.at_level(logging.WARNING):
        warn_of_uniform_text(embedder[0], sample(embedder, rows))
    assert ("the texts are much alike" in caplog.text) == is_uniform


@pytest.mark.real
def test_a_small_sample_of_real_text_is_not_called_uniform(embedder, caplog):
    with caplog.at_level(logging.WARNING):
        warn_of_uniform_text(embedder[0], sample(embedder, python_documentation(), tokens=1600))
    assert not caplog.text


def test_the_rank_is_that_of_the_centred_stream():
    model = tiny.tiny_model("bert", "embedding").eval()
    few = tiny.sample_of([tiny.texts(1, shortest=6, longest=6)[0]] * 30)
    with torch.no_grad():
        states = model(**few.batches[0].inputs, output_hidden_states=True).hidden_states[2][0].double()
        centred = states - states.mean(0)
        expected = int(torch.linalg.matrix_rank(centred / centred.std(0), rtol=1e-3**0.5))
        assert stream_rank(model, few.batches) == expected <= 5
