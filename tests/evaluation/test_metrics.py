import math

import numpy as np
import pytest
from conftest import DRAWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, f1_score

from kprune import KpruneError
from kprune.evaluation import metrics
from kprune.evaluation.metrics import METRICS, difference, figure, metric_of


@pytest.fixture
def _all_draws(monkeypatch):
    """The real number of draws, for tests of how precise intervals and p-values are."""
    monkeypatch.setattr(metrics, "DRAWS", DRAWS)


# References, predictions, and the figure worked out by hand.
BY_HAND = {
    "accuracy": ([0, 1, 1, 0, 1], [0, 1, 0, 0, 0], 60.0),  # three of five
    "accuracy-norm": ([0, 1, 2], [0, 0, 2], 100 * 2 / 3),
    "f1": ([0, 1, 1, 0, 1, 0], [1, 1, 1, 0, 0, 0], 100 * 2 * 2 / (2 * 2 + 1 + 1)),  # 2 hits, 1 too many, 1 missed
    "macro-f1": ([0, 0, 1, 2], [0, 1, 1, 2], 100 * (2 / 3 + 2 / 3 + 1) / 3),
    "matthews": ([1, 1, 1, 0, 0], [1, 1, 0, 0, 1], 100 * (2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2)),
    # Ranks 1 2 3 4 against 2 1 4 3: squares of their differences sum to 4, and 1 − 6·4/(4·15) = 0.6.
    "spearman": ([0.1, 0.2, 0.3, 4.0], [2.0, 1.0, 40.0, 3.0], 60.0),
    "pearson": ([0.0, 1.0, 2.0], [0.0, 1.0, 0.0], 0.0),
    "exact-match": ([0, 0, 0, 0], [1.0, 0.0, 1.0, 1.0], 75.0),
    "answer-f1": ([0, 0], [0.5, 0.8], 65.0),
    "ndcg@10": ([0, 0], [0.5, 1.0], 75.0),
    "mrr@10": ([0, 0], [0.5, 0.25], 37.5),
    # Four and one entities expected; two found of which one is right, and one found that is right.
    "entity-f1": ([4, 1], [2 * 2**20 + 1, 2**20 + 1], 100 * 2 * 2 / (5 + 3)),
    "entity-precision": ([4, 1], [2 * 2**20 + 1, 2**20 + 1], 100 * 2 / 3),
    "entity-recall": ([4, 1], [2 * 2**20 + 1, 2**20 + 1], 100 * 2 / 5),
    "perplexity": ([2.0, 1.0], [math.log(2) * 2, math.log(16)], 2 ** (6 / 3)),  # six bits over three tokens
    "agreement": ([0, 0], [1.0, 0.5], 75.0),
    "share": ([4, 1], [2, 1], 60.0),  # three of five items
    "cosine": ([0, 0], [1.0, 0.8], 90.0),
    "divergence": ([0, 0], [0.2, 0.4], 0.3),
    "squared-error": ([0, 0], [0.2, 0.4], 0.3),
}


def test_every_metric_has_an_example():
    assert set(BY_HAND) == set(METRICS)


@pytest.mark.parametrize("name", BY_HAND)
def test_metrics_worked_out_by_hand(name):
    references, predictions, expected = BY_HAND[name]
    result = figure(name, np.array(references), np.array(predictions))
    assert result.value == pytest.approx(expected)
    assert result.low - 1e-9 <= result.value <= result.high + 1e-9


def test_a_class_that_one_model_alone_predicts_does_not_weigh_on_the_other():
    references = np.array([0, 1, 2] * 20)
    theirs = references.copy()
    theirs[:3] = 3
    result = difference("macro-f1", references, references, theirs)
    expected = figure("macro-f1", references, references).value - figure("macro-f1", references, theirs).value
    assert result.value == pytest.approx(expected)


@pytest.mark.usefixtures("_all_draws")
def test_a_rare_class_that_was_not_drawn_is_not_a_class_of_zero():
    references = np.array([0] * 60 + [1] * 38 + [2] * 2)
    predictions = references.copy()
    predictions[[0, 1, 70]] = [1, 1, 0]
    result = figure("macro-f1", references, predictions)
    generator = np.random.default_rng(1)
    draws = [generator.integers(0, 100, 100) for _ in range(400)]
    plain = [100 * f1_score(references[at], predictions[at], average="macro") for at in draws]
    assert result.low == pytest.approx(np.percentile(plain, 2.5), abs=1.5)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_a_models_scale_does_not_change_the_test(metric):
    generator = np.random.default_rng(0)
    truth = generator.normal(size=300)
    ours, theirs = truth + 0.3 * generator.normal(size=300), truth + 0.5 * generator.normal(size=300)
    result = difference(metric, truth, ours, theirs)
    scaled = difference(metric, truth, 0.05 * ours + 7, theirs)
    assert scaled.p_value == pytest.approx(result.p_value, abs=0.01)
    assert scaled.value == pytest.approx(result.value)


@pytest.mark.parametrize("classes", [2, 5])
def test_accuracy_and_f1_are_scikit_learns(classes):
    generator = np.random.default_rng(classes)
    references, predictions = generator.integers(0, classes, (2, 300))
    oracles = {"accuracy": accuracy_score(references, predictions)}
    oracles["macro-f1"] = f1_score(references, predictions, average="macro")
    if classes == 2:
        oracles["f1"] = f1_score(references, predictions)
    for name, expected in oracles.items():
        assert figure(name, references, predictions).value == pytest.approx(100 * expected)


def test_an_unknown_metric_is_refused_with_the_list():
    with pytest.raises(KpruneError, match=r"no metric 'bleu'; use one of accuracy, f1"):
        metric_of("bleu")


@pytest.mark.usefixtures("_all_draws")
def test_the_interval_of_a_share_is_the_normal_one():
    right = np.array([1] * 800 + [0] * 200)
    result = figure("accuracy", np.ones(1000, dtype=int), right)
    half = 196 * math.sqrt(0.8 * 0.2 / 1000)
    assert result.low == pytest.approx(80 - half, abs=0.4)
    assert result.high == pytest.approx(80 + half, abs=0.4)


def test_intervals_hold_the_truth_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(metrics, "DRAWS", 400)
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(150):
        scores = generator.random(60) ** 2  # mean 1/3
        result = figure("answer-f1", np.zeros(60), scores)
        held += result.low <= 100 / 3 <= result.high
    assert 0.88 <= held / 150 <= 0.99


@pytest.mark.usefixtures("_all_draws")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 25), st.integers(0, 25), st.integers(10, 60))
def test_the_paired_test_of_accuracy_is_the_exact_sign_test(ours_alone, theirs_alone, both):
    # Only examples that one model has right and the other wrong say which is better.
    ours = np.array([1] * ours_alone + [0] * theirs_alone + [1] * both)
    theirs = np.array([0] * ours_alone + [1] * theirs_alone + [1] * both)
    result = difference("accuracy", np.ones_like(ours), ours, theirs)
    total = ours_alone + theirs_alone
    expected = binomtest(ours_alone, total).pvalue if total else 1.0
    assert result.p_value == pytest.approx(expected, abs=0.06)
    assert result.value == pytest.approx(100 * (ours_alone - theirs_alone) / len(ours))
    assert result.low <= result.value <= result.high


def test_a_model_is_no_better_than_itself():
    answers = np.random.default_rng(0).normal(size=50)
    result = difference("spearman", answers + 0.1, answers, answers)
    assert (result.value, result.low, result.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)
    assert result.is_noise


def test_a_large_difference_is_not_noise():
    generator = np.random.default_rng(0)
    truth = generator.normal(size=200)
    result = difference("spearman", truth, truth + 0.1 * generator.normal(size=200), generator.normal(size=200))
    assert result.p_value < 0.01
    assert result.low > 0
    assert not result.is_noise


def test_a_correlation_with_a_constant_is_none():
    assert figure("spearman", np.array([1.0, 2.0, 3.0]), np.ones(3)).value == 0.0
