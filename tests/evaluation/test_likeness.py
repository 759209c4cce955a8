import pytest
import tiny
import torch
from evaluation_cases import PARAGRAPHS, model_for, one_by_one, paragraphs, score, shared_model, unlabelled

from kprune.evaluation.likeness import RARER_ANSWERS, Likeness
from kprune.models.outputs import CLASSIFICATION, CTC, ENCODER_STATES, TOKEN_CLASSIFICATION, Prediction


@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_a_model_equals_itself_and_differs_from_another(kind):
    model, other = model_for(kind), shared_model(kind, seed=1)
    rows = paragraphs(16)
    if kind == "question answering":
        rows = [("What is it?", text) for (text,) in rows]
    model.train()
    same = score(model, unlabelled(rows), against=model, max_length=60)
    assert same.fidelity[0].value == pytest.approx(100, abs=1e-3)
    assert same.drop.value == pytest.approx(0, abs=1e-3)
    assert model.training  # its mode is restored
    apart = score(model, unlabelled(rows), against=other, max_length=60)
    assert apart.fidelity[0].value < 99.9
    if kind != "masked language model":  # its drop is in perplexity
        assert apart.drop.high >= apart.drop.value > 0.1


def test_agreement_and_divergence_worked_out_by_hand():
    def prediction(values):
        values = torch.tensor(values)
        return Prediction(values, torch.ones(2), torch.tensor([1, 0]), torch.zeros(2, dtype=torch.long))

    likeness = Likeness(CLASSIFICATION, 2)
    ours, theirs = [[0.0, 1.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]
    likeness.add(prediction(ours), prediction(theirs))
    agreement, rarer, divergence = likeness.figures()
    assert (agreement.name, divergence.name) == ("agreement", "divergence")
    assert (rarer.name, rarer.value) == (RARER_ANSWERS, 0.0)  # of the one item with another answer
    assert agreement.value == 50.0
    p = torch.tensor([0.0, 1.0]).softmax(0)
    assert divergence.value == pytest.approx(float((p * (2 * p).log()).sum()) / 2)


def test_squared_error_is_that_of_plain_loops():
    models = [shared_model("regression", seed=seed) for seed in (0, 1)]
    rows = paragraphs(20)
    ours, theirs = (torch.cat([outputs.logits for outputs in one_by_one(each, rows)]) for each in models)
    rank_agreement, squared_error = score(models[0], unlabelled(rows), against=models[1]).fidelity
    assert (rank_agreement.name, squared_error.name) == ("rank agreement", "squared-error")
    assert squared_error.value == pytest.approx(float((ours - theirs).square().mean()), rel=1e-4)


def test_each_model_keeps_its_own_pooling():
    model, test = shared_model("embedding"), unlabelled(paragraphs(16))
    assert score(model, test, against=model).fidelity[0].value == pytest.approx(100, abs=1e-3)
    assert score(model, test, against=model, against_pooling="cls").fidelity[0].value < 99.9


def test_an_embedding_model_reads_the_texts_of_a_pair_one_by_one():
    model, other = shared_model("embedding"), shared_model("embedding", seed=1)
    pairs = [tuple(PARAGRAPHS[n : n + 2]) for n in range(0, 20, 2)]
    single = [(text,) for pair in pairs for text in pair]
    by_pair, by_text = (score(model, unlabelled(rows), against=other) for rows in (pairs, single))
    assert by_pair.fidelity == by_text.fidelity


def tagged(answers, classes: int = 4) -> Prediction:
    """A prediction of these classes, one list of items per example."""
    example = torch.tensor([number for number, row in enumerate(answers) for _ in row])
    flat = torch.tensor([answer for row in answers for answer in row])
    weights = torch.tensor([1 / len(row) for row in answers for _ in row])
    return Prediction(torch.nn.functional.one_hot(flat, classes).float(), weights, example, torch.zeros_like(flat))


@pytest.mark.parametrize("kind", [TOKEN_CLASSIFICATION, CTC], ids=lambda kind: kind.name)
def test_agreement_on_rarer_answers_worked_out_by_hand(kind):
    theirs = [[0] * 20, [0, 2, 0, 0, 3], [0] * 9 + [1]]
    ours = [[0] * 20, [0, 2, 1, 0, 0], [0] * 9 + [1]]
    likeness = Likeness(kind, 3)
    likeness.add(tagged(ours), tagged(theirs))
    found = {each.name: each for each in likeness.figures()}
    assert found["agreement"].value == pytest.approx(100 * (1 + 3 / 5 + 1) / 3, abs=1e-4)
    assert found[RARER_ANSWERS].value == 50.0  # 2 → 2 and 1 → 1 of four items
    assert (found[RARER_ANSWERS].low, found[RARER_ANSWERS].high) == (pytest.approx(100 / 3), 100.0)
    (note,) = likeness.notes(["keep", "drop", "swap", "add"])
    assert ("'keep'" in note) == (kind is TOKEN_CLASSIFICATION)
    assert "is 91.4% of" in note
    assert "the 4 of 35 items" in note


def test_there_is_no_agreement_on_rarer_answers_without_any():
    likeness = Likeness(CLASSIFICATION, 3)
    likeness.add(tagged([[1]] * 3), tagged([[1]] * 3))
    assert [each.name for each in likeness.figures()] == ["agreement", "divergence"]
    assert likeness.notes(["a", "b", "c", "d"]) == ()


def test_the_likeness_of_states_is_the_mean_cosine_of_frames():
    torch.manual_seed(0)
    ours, theirs = torch.nn.functional.normalize(torch.randn(2, 5, 8), dim=-1)
    example, weights = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3])
    likeness = Likeness(ENCODER_STATES, 2)
    likeness.add(*(Prediction(each, weights, example, torch.zeros(5)) for each in (ours, theirs)))
    cosine = (ours * theirs).sum(1)
    expected = 100 * float((cosine[:2].mean() + cosine[2:].mean()) / 2)
    assert [(each.name, each.value) for each in likeness.figures()] == [("cosine", pytest.approx(expected))]
