from dataclasses import replace

import pytest
import tiny
import torch
import zoo
from transformers import BertConfig, BertForNextSentencePrediction

from kprune.errors import UnsupportedModel
from kprune.models.batches import examples_of, regroup
from kprune.models.outputs import POOLINGS, kind_of, pool

BATCH = max(tiny.sample_of(tiny.texts(30), tokens=400).batches, key=lambda batch: batch.mask.numel())
ROWS_PER_EXAMPLE = {"multi-label classification": 4, "question answering": 2}


@pytest.mark.parametrize("kind_name", tiny.KIND_NAMES)
def test_the_rows_of_an_example_do_not_depend_on_its_batch(kind_name):
    model = tiny.tiny_model("bert", kind_name)
    kind = kind_of(model)
    with torch.no_grad():
        together = kind.read(model(**BATCH.inputs), BATCH)
        for row, number in enumerate(BATCH.example.tolist()):
            one = BATCH.rows(slice(row, row + 1))
            alone = kind.read(model(**one.inputs), one)
            own = together.example == number
            assert torch.equal(together.position[own], alone.position)
            torch.testing.assert_close(together.weights[own], alone.weights)
            classes = alone.values.shape[-1]
            torch.testing.assert_close(together.values[own][:, :classes], alone.values, rtol=1e-4, atol=1e-4)
            assert together.values[own][:, classes:].isneginf().all()  # padding is no end of a span


@pytest.mark.parametrize("kind_name", tiny.KIND_NAMES)
def test_rows_have_the_weight_of_one_prediction_per_example(kind_name):
    model = tiny.tiny_model("bert", kind_name)
    kind = kind_of(model)
    assert kind.is_vocabulary == (kind_name == "masked language model")
    assert kind.averages_tokens == (kind_name == "embedding")
    assert kind.is_distribution == (kind_name not in ("regression", "embedding"))
    with torch.no_grad():
        rows = kind.read(model(**BATCH.inputs), BATCH)
    for row, number in enumerate(BATCH.example.tolist()):
        weights = rows.weights[rows.example == number]
        if kind_name in ("token classification", "masked language model"):
            assert len(weights) == int(BATCH.mask[row].sum())
        else:
            assert len(weights) == ROWS_PER_EXAMPLE.get(kind_name, 1)
        labels = 4 if kind_name == "multi-label classification" else 1  # every label is a prediction of its own
        assert float(weights.sum()) == pytest.approx(labels)


def test_an_independent_label_is_a_distribution_over_two_classes():
    model = tiny.tiny_model("bert", "multi-label classification")
    with torch.no_grad():
        outputs = model(**BATCH.inputs)
    values = kind_of(model).read(outputs, BATCH).values.view(len(BATCH.example), 4, 2)
    torch.testing.assert_close(values.softmax(-1)[..., 1], outputs.logits.sigmoid())


@pytest.mark.parametrize("pooling", [name for name in POOLINGS if name != "pooler"])
def test_pooling_reads_real_tokens_only(pooling):
    hidden = torch.randn(*BATCH.mask.shape, 6)
    found = pool(hidden.masked_fill(~BATCH.mask[..., None], 1e3), BATCH.mask, pooling)
    for row, mask in enumerate(BATCH.mask):
        real = hidden[row][mask]
        expected = {"cls": real[0], "max": real.amax(0), "mean": real.mean(0), "lasttoken": real[-1]}[pooling]
        torch.testing.assert_close(found[row], expected / expected.norm())


def test_the_models_own_pooled_output_is_normalised():
    model = tiny.tiny_model("bert", "embedding")
    with torch.no_grad():
        outputs = model(**BATCH.inputs)
    values = kind_of(model, pooling="pooler").read(outputs, BATCH).values
    torch.testing.assert_close(values, torch.nn.functional.normalize(outputs.pooler_output, dim=-1))
    with pytest.raises(UnsupportedModel, match="has no pooled output; use the pooling cls or mean"):
        kind_of(model, pooling="pooler").read(replace(outputs, pooler_output=None), BATCH)


def test_unknown_kinds_and_poolings_are_refused():
    with pytest.raises(UnsupportedModel, match="unknown pooling 'last'; use one of mean, cls, max"):
        kind_of(tiny.tiny_model(), pooling="last")
    config = BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    with pytest.raises(UnsupportedModel, match=r"a BertForNextSentencePrediction: unknown kind .*ForMaskedLM"):
        kind_of(BertForNextSentencePrediction(config))


def test_a_causal_label_belongs_to_the_position_before_it():
    model = zoo.build("llama")
    batch = zoo.batches(model)[0]
    labels = torch.full_like(batch["input_ids"], -100)
    labels[:, 5:8] = batch["input_ids"][:, 5:8]
    sample = regroup(examples_of([{**batch, "labels": labels}]), tokens=1000, pad_id=1, device=torch.device("cpu"))
    rows = kind_of(model).read(model(**sample.batches[0].inputs), sample.batches[0])
    assert sorted(set(rows.position.tolist())) == [4, 5, 6]
