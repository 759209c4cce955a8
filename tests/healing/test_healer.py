"""Laws of healing: never worse, embeddings and shapes unchanged, resumed as uninterrupted."""

import copy
import logging

import pytest
import tiny
import torch
import zoo

import kprune
from kprune import HealConfig, KpruneError
from kprune.healing import healer
from kprune.healing.schedule import RATE, RATE_OF_EMBEDDINGS
from kprune.healing.training import Training
from kprune.models.pruned_shape import record_of
from kprune.models.trainable import trainable_parameters

SETTINGS = {"heal": "3x", "heal_rate": 1e-3, "hidden_weight": 5.0, "step_tokens": 60}


@pytest.fixture(scope="module")
def dense():
    return tiny.tiny_model()


@pytest.fixture(scope="module")
def text():
    return tiny.batched(tiny.texts(80))


@pytest.fixture(scope="module")
def pruned(dense, text):
    return kprune.prune(dense, text[:8], reduction=0.5, ridge=1e-3, align=1)


@pytest.fixture(scope="module")
def healed(pruned, dense, text):
    return kprune.heal(pruned, dense, text, **SETTINGS)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def are_equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def held_out_divergence(model, dense, batches):
    """Mean KL divergence of the outputs, without kprune's own loss."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            p, q = (each(**batch).logits.log_softmax(-1) for each in (dense, model))
            total, count = total + float((p.exp() * (p - q)).sum()), count + len(p)
    return total / count


def test_healing_lowers_the_loss_on_text_that_judges(pruned, dense, text):
    judges = tiny.batched(tiny.texts(40, seed=5))
    result = kprune.heal(pruned, dense, text, **SETTINGS, judged_by=judges)
    before, after = (held_out_divergence(model, dense, judges) for model in (pruned.model, result.model))
    assert result.loss == pytest.approx((before, after), rel=1e-3)
    assert after < 0.9 * before
    assert result.best_step > 0
    assert result.examples == 80


def test_neither_model_changes(dense, text, pruned):
    before = state(dense), state(pruned.model)
    kprune.heal(pruned, dense, text, heal="1x", step_tokens=200)
    assert are_equal(before[0], state(dense))
    assert are_equal(before[1], state(pruned.model))
    assert all(parameter.grad is None for parameter in (*dense.parameters(), *pruned.model.parameters()))


def test_no_steps_return_the_same_weights(pruned, dense, text):
    result = kprune.heal(pruned, dense, text, heal="0x")
    assert result.steps == 0
    assert result.loss[0] == result.loss[1]
    assert are_equal(state(result.model), state(pruned.model))


@pytest.mark.parametrize("rate", [0.9, 0.05])
def test_an_absurd_rate_is_never_worse(rate, pruned, dense, text, caplog):
    judges = tiny.batched(tiny.texts(24, seed=6))
    result = kprune.heal(pruned, dense, text, heal="2x", heal_rate=rate, step_tokens=60, judged_by=judges)
    before, after = (held_out_divergence(model, dense, judges) for model in (pruned.model, result.model))
    assert after <= before * (1 + 1e-6)
    if not result.is_better:
        assert are_equal(state(result.model), state(pruned.model))
        assert "found no better weights" in caplog.text
        assert "found no better weights" in result.describe()


def test_a_step_that_is_not_finite_goes_back_to_the_best_state_with_half_the_rate(pruned):
    training = Training(healer._float32_student(pruned.model))
    training.start(1.0)
    best = {name: value.clone() for name, value in training.best.items()}
    for parameter in training.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    assert training.update(0.1)
    for parameter in training.parameters.values():
        parameter.grad = torch.full_like(parameter, torch.nan)
    assert not training.update(0.1)
    assert training.scale == 0.5
    assert all(torch.equal(parameter, best[name]) for name, parameter in training.parameters.items())


def test_embeddings_shapes_and_record_stay(healed, pruned):
    before, after = state(pruned.model), state(healed.model)
    trained = set(trainable_parameters(pruned.model))
    assert {name: value.shape for name, value in before.items()} == {n: value.shape for n, value in after.items()}
    assert any("embeddings" in name for name in before)
    assert not any("embeddings" in name for name in trained)
    assert {name for name in before if not torch.equal(before[name], after[name])} <= trained
    ours, theirs = record_of(pruned.model.config), record_of(healed.model.config)
    assert {**theirs, "history": None} == {**ours, "history": None}
    assert theirs["history"][-1].pop("healed") == [healed.summary()]
    assert theirs["history"] == ours["history"]
    assert "healed" not in ours["history"][-1]


def test_a_saved_model_is_read_by_from_pretrained(healed, text, tmp_path):
    kprune.save(healed, tmp_path / "out")
    model = type(healed.model).from_pretrained(tmp_path / "out")
    assert tiny.same_outputs(model, healed.model, text[0])
    assert healed.describe() in (tmp_path / "out/README.md").read_text()


def test_a_model_without_its_pruning_is_saved_beside_its_folder(pruned, dense, text, tmp_path):
    kprune.save(pruned, tmp_path / "small")
    model = type(dense).from_pretrained(tmp_path / "small")
    result = kprune.heal(model, dense, text, **SETTINGS)
    kprune.save(result, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "Nothing was retrained" not in card
    assert result.describe() in card
    assert 'from_pretrained("out")' in card
    assert tiny.same_outputs(type(dense).from_pretrained(tmp_path / "out"), result.model, text[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_healed_in_float32_and_stays(dtype, pruned, dense, text):
    small = copy.deepcopy(pruned.model).to(dtype)
    result = kprune.heal(small, dense, text, **SETTINGS)
    assert {value.dtype for value in result.model.parameters()} == {dtype}
    assert result.loss[1] <= result.loss[0]


class _Killed(Exception):
    pass


def test_a_resumed_run_is_an_uninterrupted_one_bit_for_bit(pruned, dense, text, healed, tmp_path, monkeypatch):
    write = healer.FolderJournal.write
    kills = iter([False, False, True, False, True])

    def write_and_die(self, *arguments):
        write(self, *arguments)
        if next(kills, False):
            raise _Killed

    monkeypatch.setattr(healer.FolderJournal, "write", write_and_die)
    for _ in range(2):
        with pytest.raises(_Killed):
            kprune.heal(pruned, dense, text, **SETTINGS, checkpoint=tmp_path / "journal")
    result = kprune.heal(pruned, dense, text, **SETTINGS, checkpoint=tmp_path / "journal")
    assert are_equal(state(result.model), state(healed.model))
    assert (result.loss, result.best_step, result.steps) == (healed.loss, healed.best_step, healed.steps)


def test_a_checkpoint_of_another_run_is_refused(pruned, dense, text, tmp_path):
    kprune.heal(pruned, dense, text, heal="1x", checkpoint=tmp_path / "journal")
    with pytest.raises(KpruneError, match="belongs to another run: heal is 1x there and 2x here"):
        kprune.heal(pruned, dense, text, heal="2x", checkpoint=tmp_path / "journal")


def test_an_interrupt_keeps_the_best_so_far(pruned, dense, text, caplog):
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if progress.fraction > 0.6:
            raise KeyboardInterrupt

    caplog.set_level(logging.WARNING)
    result = kprune.heal(pruned, dense, text, **SETTINGS, progress=interrupt, judged_by=text)
    assert result.is_interrupted
    assert result.loss[1] < result.loss[0]
    assert "the best state so far is kept" in caplog.text
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert seen[-1].note.startswith("held-out")


def test_minutes_end_a_run(pruned, dense, text):
    result = kprune.heal(pruned, dense, text, heal="0.005m", step_tokens=60)
    assert result.steps > 0
    assert result.seconds >= 0.3


def test_other_models_are_refused(pruned, dense, text):
    with pytest.raises(KpruneError, match="cannot heal with a str"):
        kprune.heal(pruned, "dense", text)
    with pytest.raises(KpruneError, match="number of labels is 3, the dense model's 5"):
        kprune.heal(pruned, tiny.tiny_model(num_labels=5), text)
    with pytest.raises(KpruneError, match="output kind is classification, the dense model's embedding"):
        kprune.heal(pruned, tiny.tiny_model(kind="embedding"), text)


@pytest.mark.parametrize("value", ["5", "x", "-1x", "5h", ""])
def test_a_budget_is_passes_or_minutes(value):
    with pytest.raises(KpruneError, match="5x are five passes, 10m ten minutes"):
        HealConfig(heal=value)


@pytest.mark.parametrize(("name", "kind"), zoo.CASES)
def test_every_family_and_kind_is_healed(name, kind):
    """The student is the dense model with disturbed weights of its layers, so that no family is pruned here."""
    dense, student = zoo.build(name, kind), zoo.build(name, kind)
    with torch.no_grad():
        for parameter in trainable_parameters(student).values():
            parameter.mul_(1.0 + 0.1 * torch.randn_like(parameter))
    before = state(student)
    pooling = "pooler" if "clip" in name else "mean"
    batches = zoo.batches(dense, 2)
    options = {"heal": "4x", "heal_rate": 1e-3, "step_tokens": 100, "pooling": pooling}
    result = kprune.heal(student, dense, batches, **options, judged_by=batches)
    assert result.steps > 0
    assert result.loss[1] < result.loss[0]
    assert {name: value.shape for name, value in before.items()} == {n: v.shape for n, v in state(result.model).items()}


@pytest.mark.parametrize(("passes", "parts"), [("0.1x", 1), ("4x", 1), ("5x", 2), ("9x", 3), ("20x", 3)])
def test_only_text_that_was_read_counts(passes, parts, pruned, dense):
    text = tiny.batched(tiny.texts(30, shortest=10, longest=11), size=1)
    tokens = sum(int(batch["attention_mask"].sum()) for batch in text)
    options = {"heal": passes, "heal_rate": 1e-5, "step_tokens": 60, "pass_tokens": tokens // 3}
    result = kprune.heal(pruned, dense, text, **options, judged_by=text[:2])
    assert result.examples == 10 * parts
    assert result.tokens == sum(int(batch["attention_mask"].sum()) for batch in text[: 10 * parts])


@pytest.mark.parametrize(("kind", "rate"), [("regression", RATE), ("embedding", RATE_OF_EMBEDDINGS)])
def test_the_usual_rate_depends_on_the_outputs(kind, rate):
    dense = tiny.tiny_model(kind=kind)
    text = tiny.batched(tiny.texts(16))
    result = kprune.heal(tiny.tiny_model(kind=kind, seed=1), dense, text, heal="0.1x")
    assert result.config.heal_rate == rate
