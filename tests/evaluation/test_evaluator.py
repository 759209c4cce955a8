from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from evaluation_cases import made_up, model_for, one_by_one, paragraphs, score, shared_model, unlabelled
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from task_data import load_tokenizer

import kprune
from kprune import Evaluation, KpruneError, Test
from kprune.data.tasks import TASKS
from kprune.evaluation.evaluator import check_compatible
from kprune.evaluation.metrics import Difference, Figure
from kprune.evaluation.squad import grade
from kprune.models.outputs import pool


def correlations(references, values):
    return [100 * correlation(references, values).statistic for correlation in (spearmanr, pearsonr)]


def embedding_cosines(model, test):
    """Spearman and Pearson correlation of the embeddings' cosines."""
    values = []
    for row in test.rows:
        hidden = [outputs.last_hidden_state for outputs in one_by_one(model, [(text,) for text in row])]
        first, second = (pool(each, torch.ones(each.shape[:2], dtype=bool), "mean")[0] for each in hidden)
        values.append(float(first @ second))
    return correlations(test.references, values)


def predicted_values(model, test):
    """Spearman and Pearson correlation of the predicted values."""
    return correlations(test.references, [float(outputs.logits) for outputs in one_by_one(model, test.rows)])


def predicted_classes(model, test):
    """The task's metrics of the predicted classes, by scikit-learn."""
    chosen = [int(outputs.logits.argmax()) for outputs in one_by_one(model, test.rows)]
    oracles = {
        "accuracy": sum(a == b for a, b in zip(chosen, test.references, strict=True)) / len(chosen),
        "f1": f1_score(test.references, chosen) if len(test.labels) == 2 else None,
        "matthews": matthews_corrcoef(test.references, chosen),
    }
    return [100 * oracles[metric] for metric in test.metrics]


def best_spans(model, test):
    """F1 and exact match of the best span, by trying all pairs of candidates."""
    grades = []
    for (question, context), reference in zip(test.rows, test.references, strict=True):
        encoded = load_tokenizer()(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            out = model(**encoded)
        inside = [i for i, part in enumerate(encoded.sequence_ids(0)) if part == 1]
        start, end = out.start_logits[0], out.end_logits[0]
        starts = sorted(inside, key=lambda i: -start[i])[:20]
        ends = sorted(inside, key=lambda i: -end[i])[:20]
        _, i, j = max((float(start[i] + end[j]), i, j) for i in starts for j in ends if i <= j < i + 30)
        grades.append(grade(context[offsets[i][0] : offsets[j][1]], reference["text"]))
    return [100 * float(np.mean([f1 for _, f1 in grades])), 100 * float(np.mean([exact for exact, _ in grades]))]


BY_HAND = {
    "embedding": embedding_cosines,
    "regression": predicted_values,
    "classification": predicted_classes,
    "question answering": best_spans,
}


@pytest.mark.parametrize("name", [name for name in TASKS if name != "wikitext2"])
def test_every_tasks_figures_are_those_of_plain_loops(name):
    task = TASKS[name]
    model = shared_model(task.kind, **({"num_labels": len(task.labels)} if task.labels else {}))
    test = made_up(name)
    result = score(model, test)
    assert [figure.name for figure in result.figures] == list(task.metrics)
    assert [figure.value for figure in result.figures] == pytest.approx(BY_HAND[task.kind](model, test), rel=1e-4)
    assert result.examples == result.resampled == 24


def test_two_models_are_compared_on_the_same_examples():
    test = made_up("sst2", 60)
    a, b = (shared_model("classification", seed, num_labels=2) for seed in (0, 1))
    both = score(a, test, against=b)
    alone = [score(model, test).figures[0] for model in (a, b)]
    assert both.figures[0] == alone[0]
    assert both.against[0] == alone[1]
    assert both.differences[0].value == pytest.approx(alone[0].value - alone[1].value)
    assert both.drop.value == pytest.approx(-both.differences[0].value)
    assert (both.drop.low, both.drop.high) == (-both.differences[0].high, -both.differences[0].low)
    assert 0 < both.forward_seconds < both.seconds


def test_a_rise_of_perplexity_is_a_drop():
    model, other = (shared_model("masked language model", seed) for seed in (0, 1))
    result = score(model, unlabelled(paragraphs(10)), against=other, max_length=60)
    assert result.drop.value == pytest.approx(result.figures[0].value - result.against[0].value)


def test_a_drop_and_a_card_section_need_a_second_model():
    alone = Evaluation("mine", 10, 10, (Figure("accuracy", 80.0, 70.0, 90.0),))
    with pytest.raises(KpruneError, match="a drop needs a second model; evaluate with `against`"):
        _ = alone.drop
    with pytest.raises(KpruneError, match="a card section needs a second model; evaluate with `against`"):
        alone.card_section()


def test_the_card_section_lists_likeness_and_losses():
    both = Evaluation(
        "mine",
        1200,
        1200,
        figures=(Figure("accuracy", 80.0, 78.5, 81.5),),
        against=(Figure("accuracy", 82.0, 80.0, 84.0),),
        differences=(Difference("accuracy", -2.0, -3.0, -1.0, 0.0125),),
        fidelity=(Figure("agreement", 95.125, 94.0, 96.0), Figure("divergence", 0.01234, 0.01, 0.02)),
    )
    section = both.card_section()
    assert section.startswith("## What was lost\n\nMeasured on 1,200 examples of mine, with 95 % intervals.")
    assert "agreement 95.12 (94 to 96); divergence 0.01234 (0.01 to 0.02)." in section
    assert section.endswith(
        "| metric | pruned | dense | difference | p |\n|---|---|---|---|---|\n"
        "| accuracy | 80.00 (78.50 to 81.50) | 82.00 | -2.00 (-3.00 to -1.00) | 0.013 |\n\n"
    )
    assert "|" not in replace(both, figures=(), against=(), differences=()).card_section()


def test_the_shorter_of_two_models_sets_the_length():
    tokenizer = load_tokenizer()
    short = tiny.tiny_model("bert", vocab_size=len(tokenizer), max_position_embeddings=16, pad_token_id=0)
    rows = paragraphs(6)
    assert max(len(tokenizer(text)["input_ids"]) for (text,) in rows) > 16
    assert score(shared_model("classification"), unlabelled(rows), against=short).examples == 6


def wrong_cases():
    """Models with tests that do not fit them, options, and the expected message."""
    rows = [("one text",), ("another text",)]
    pairs = [("what?", "one text"), ("what?", "another")]
    classifier = model_for("classification", id2label={0: "bad", 1: "fair", 2: "good"})
    regression, embedding, reader, tagger, unnamed = (
        shared_model(kind)
        for kind in ("regression", "embedding", "question answering", "token classification", "classification")
    )
    broken = model_for("classification")
    with torch.no_grad():
        broken.classifier.weight.fill_(torch.nan)
    smaller = tiny.tiny_model("bert", id2label=classifier.config.id2label)

    def mine(references, metrics=(), rows=rows):
        return Test("mine", None, rows, references, metrics)

    against = {"against": classifier}
    return {
        "wrong kind": (
            reader,
            made_up("sst2"),
            {},
            "made for question answering .*and sst2 for classification; pass",
        ),
        "another task": (embedding, made_up("stsb"), {}, "use the task stsb-cosine"),
        "class count": (classifier, made_up("sst2"), {}, "the model has 3 classes .* the test has 2"),
        "class names": (classifier, made_up("mnli"), {}, "classes are called bad, fair, good, the test's entailment"),
        "out of range": (classifier, mine([1, 3]), {}, "row 1 of mine has the label 3"),
        "hidden label": (classifier, mine([-1, 1]), {}, "row 0 of mine has the label -1"),
        "half a class": (classifier, mine([0, 0.5]), {}, "row 1 of mine has the label 0.5"),
        "blank label": (classifier, mine(["bad", ""]), {}, "row 1 of mine has the label ''; use bad, fair, good"),
        "unknown name": (classifier, mine(["bad", "ugly"]), {}, "the label 'ugly'; use bad, fair, good, or a class"),
        "no number": (regression, mine(["1", "x"]), {}, "a label that is not a number"),
        "not finite": (regression, mine(["1", "nan"]), {}, "row 1 of mine has the label nan, not a finite number"),
        "no pairs": (embedding, mine([1, 2]), {}, "name two text columns"),
        "no context": (reader, mine([["a"], ["b"]]), {}, "the question and the context"),
        "strange answer": (reader, mine([["a"], 1998], rows=pairs), {}, "has the answer 1998"),
        "no text in it": (reader, mine([{"a": 1}, []], rows=pairs), {}, "row 0 of mine has the answer"),
        "endless": (classifier, mine([0, float("inf")]), {}, "row 1 of mine has the label inf"),
        "nothing": (classifier, mine([], rows=[]), {}, "mine has no rows"),
        "metric of nothing": (classifier, mine(None, ("f1",)), against, "has no right answers, so f1 cannot be comp"),
        "no answers": (classifier, mine(None), {}, "has no right answers; name the column"),
        "tags": (tagger, mine([1, 2]), {}, "token classification cannot be scored by labels"),
        "metric": (classifier, mine([1, 2], ("spearman",)), {}, "'spearman' does not suit"),
        "unknown metric": (classifier, mine([1, 2], ("bleu",)), {}, "there is no metric 'bleu'"),
        "two kinds": (regression, mine(None), against, "of two kinds, regression and classification"),
        "two namings": (unnamed, mine(None), against, "classes differ"),
        "two vocabularies": (smaller, mine(None), against, "the models' vocabularies have 99 and 30522 tokens"),
        "not numbers": (broken, mine([1, 2]), {}, "the model's outputs are NaN; check the checkpoint"),
    }


@pytest.fixture(scope="module")
def wrong():
    return wrong_cases()


WRONG = ["wrong kind", "another task", "class count", "class names", "out of range", "hidden label", "half a class",
         "blank label", "unknown name", "no number", "not finite", "no pairs", "no context", "strange answer",
         "no text in it", "endless", "nothing", "metric of nothing", "no answers", "tags", "metric",
         "unknown metric", "two kinds", "two namings", "two vocabularies", "not numbers"]  # fmt: skip
CHECKED = [name for name in WRONG if not name.startswith(("two ", "no answers", "not numbers"))]
"""Cases of one model and its test; a comparison with the dense model needs no right answers."""


@pytest.mark.parametrize("case", WRONG)
def test_a_test_that_does_not_fit_is_refused_with_a_remedy(case, wrong):
    assert list(wrong) == WRONG
    model, test, options, message = wrong[case]
    with pytest.raises(KpruneError, match=message):
        score(model, test, **options)


@pytest.mark.parametrize("case", CHECKED)
def test_the_check_refuses_what_evaluation_would(case, wrong):
    model, test, _, message = wrong[case]
    with pytest.raises(KpruneError, match=message):
        check_compatible(model, load_tokenizer(), test)


def test_the_check_reads_every_label_and_accepts_a_fitting_test():
    model = shared_model("classification", num_labels=2)
    test = made_up("sst2", 100)
    check_compatible(model, load_tokenizer(), test)
    with pytest.raises(KpruneError, match="row 98 of sst2 has the label 2"):
        check_compatible(model, load_tokenizer(), replace(test, references=[*test.references[:98], 2, 0]))


def test_an_invented_tokenizer_is_refused():
    class Invented:
        """What transformers 5 makes up for a folder without a tokenizer."""

        def __call__(self, *texts, **options):
            raise AssertionError("it must not be used")

        def get_vocab(self):
            return {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}

    test = Test("mine", None, [("a text",)] * 4, [0, 1, 2, 0])
    with pytest.raises(KpruneError, match="has 5 tokens, and the model a vocabulary of 99; use the tokenizer that"):
        kprune.evaluate(tiny.tiny_model(), Invented(), test)


@pytest.mark.parametrize("other", [None, "a-model-name", load_tokenizer])
def test_what_is_no_model_or_tokenizer_is_refused_by_name(other):
    model, test = tiny.tiny_model("bert", "classification", vocab_size=30522), Test("mine", None, ["a", "b"], [0, 1])
    with pytest.raises(KpruneError, match=r"the tokenizer has the type \w+; pass a tokenizer"):
        kprune.evaluate(model, other, test)
    with pytest.raises(KpruneError, match=r"cannot evaluate a \w+; pass a transformers model"):
        kprune.evaluate(other, load_tokenizer(), test)
    with pytest.raises(KpruneError, match=r"cannot evaluate a BertTokenizer\w*; pass a transformers model"):
        kprune.evaluate(load_tokenizer(), model, test)
    if other is not None:
        with pytest.raises(KpruneError, match=r"cannot evaluate a \w+; pass a transformers model"):
            kprune.evaluate(model, load_tokenizer(), test, against=other)


@pytest.mark.parametrize(
    ("max_length", "message"),
    [
        (0, "max_length is 0, but the tokenizer adds 3 special tokens to each input; use 5 or more"),
        (-5, "max_length is -5, but the tokenizer adds 3 special tokens"),
        (4, "max_length is 4, but the tokenizer adds 3 special tokens"),
        ("64", r"max_length is '64' \(str\); pass a whole number"),
    ],
)
def test_a_length_without_room_for_text_is_refused(max_length, message):
    model = tiny.tiny_model("bert", "classification", vocab_size=30522)
    test = Test("mine", None, [("a", "b"), ("c", "d")], [0, 1])
    with pytest.raises(KpruneError, match=message):
        kprune.evaluate(model, load_tokenizer(), test, max_length=max_length)
    assert kprune.evaluate(model, load_tokenizer(), test, max_length=5).examples == 2


def test_a_test_without_rows_is_refused():
    model = tiny.tiny_model("bert", "classification", vocab_size=30522)
    with pytest.raises(KpruneError, match="mine has no rows; pass at least one"):
        kprune.evaluate(model, load_tokenizer(), Test("mine", None, [], []))


@pytest.mark.parametrize("kind", ["regression", "embedding"])
@pytest.mark.parametrize(("labels", "is_noted"), [([3.0, 3.0, 3.0], True), ([3.0, 3.0, 2.0], False), ([3.0], False)])
def test_labels_that_are_all_equal_get_a_note(kind, labels, is_noted):
    model = tiny.tiny_model("bert", kind, vocab_size=30522, pad_token_id=0)
    test = Test("mine", None, [(f"one {n}", f"two {n * n}") for n in range(len(labels))], labels)
    notes = kprune.evaluate(model, load_tokenizer(), test, against=model).notes
    assert [note.startswith("all labels are 3, so that no correlation is defined") for note in notes] == [
        True
    ] * is_noted
