import copy

import pytest
import torch
from evaluation_cases import made_up, one_by_one, paragraphs, score, shared_model, unlabelled
from task_data import load_tokenizer

from kprune.data.calibration import python_documentation
from kprune.data.tasks import Test, read_test
from kprune.evaluation.change_log import MOST_CHARACTERS
from kprune.evaluation.scorers import MaskedTokenScorer
from kprune.models.outputs import pool

ROWS = paragraphs(24)


def changes_of(kind, test, most=50):
    """A model, one that differs a little, and the changes between them."""
    dense = shared_model(kind)
    model = copy.deepcopy(dense)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.03 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(7)))
        if kind == "classification":  # half of the rows change
            logits = torch.cat([out.logits for out in one_by_one(model, test.rows)]).sort().values
            usual = model(**load_tokenizer()(*test.rows[0], return_tensors="pt")).logits.argmax()
            model.classifier.bias[usual] -= (logits[:, -1] - logits[:, -2]).median()
    return model, dense, score(model, test, against=dense, most_changes=most).changes


def test_changed_classes_are_those_of_both_models_one_text_at_a_time():
    model, dense, changes = changes_of("classification", unlabelled(ROWS))
    answers = [[out.logits.softmax(-1)[0] for out in one_by_one(each, ROWS)] for each in (dense, model)]
    names = dense.config.id2label
    expected = {
        row[0][:40]: (names[int(a.argmax())], names[int(b.argmax())], float(a.max()), float(b.max()))
        for row, a, b in zip(ROWS, *answers, strict=True)
        if a.argmax() != b.argmax()
    }
    assert 0 < changes.changed == len(expected) < changes.compared == len(ROWS)
    for change in changes.examples:
        before, after, sure, unsure = expected[change.text[0][:40]]
        assert (change.before, change.after, change.reference) == (before, after, None)
        assert (change.before_confidence, change.after_confidence) == pytest.approx((sure, unsure), abs=1e-5)
    confidences = [change.before_confidence for change in changes.examples]
    assert confidences == sorted(confidences, reverse=True)


def test_no_more_are_kept_than_asked_for_and_none_by_default():
    _, _, changes = changes_of("classification", unlabelled(ROWS), most=2)
    assert len(changes.examples) == 2 < changes.changed
    dense = shared_model("classification", 1)
    evaluation = score(shared_model("classification"), unlabelled(ROWS), against=dense)
    assert evaluation.changes is None
    assert "changes" not in evaluation.as_json()


def test_equal_models_change_nothing():
    for kind in ("classification", "multi-label classification", "embedding", "question answering"):
        test = made_up("squad", 8) if kind == "question answering" else unlabelled(ROWS[:8])
        model = shared_model(kind)
        changes = score(model, test, against=model, most_changes=9).changes
        assert (changes.changed, changes.examples) == (0, ()), kind


def test_references_are_named():
    labels = ("no", "yes", "perhaps")
    test = Test("mine", "classification", ROWS, [n % 3 for n in range(len(ROWS))], ("accuracy",), labels)
    _, _, changes = changes_of("classification", test)
    right = {row[0][:40]: labels[n % 3] for n, row in enumerate(ROWS)}
    assert [change.reference for change in changes.examples] == [right[c.text[0][:40]] for c in changes.examples]


def test_nearest_texts_are_those_of_brute_force():
    model, dense, changes = changes_of("embedding", unlabelled(ROWS))

    def nearest(each):
        vectors = [pool(o.last_hidden_state, torch.ones(o.last_hidden_state.shape[:2]).bool(), "mean")[0]
                   for o in one_by_one(each, ROWS)]  # fmt: skip
        return [max((float(v @ w), k) for k, w in enumerate(vectors) if k != n)[1] for n, v in enumerate(vectors)]

    before, after = nearest(dense), nearest(model)
    expected = {n for n in range(len(ROWS)) if before[n] != after[n]}
    numbers = {row[0][:40]: n for n, row in enumerate(ROWS)}
    assert changes.what == "nearest text"
    assert {numbers[change.text[0][:40]] for change in changes.examples} == expected
    for change in changes.examples:
        n = numbers[change.text[0][:40]]
        assert (numbers[change.before[:40]], numbers[change.after[:40]]) == (before[n], after[n])
        assert change.before_confidence >= change.after_confidence


def test_values_spans_labels_and_tokens_have_answers_too():
    for kind in ("regression", "multi-label classification", "token classification"):
        _, _, changes = changes_of(kind, unlabelled(ROWS[:6]))
        assert changes.examples, kind
        assert all(change.before != change.after for change in changes.examples), kind
    _, _, changes = changes_of("question answering", made_up("squad", 8))
    assert all(change.reference and change.before in (*change.text, "no answer", change.before)
               for change in changes.examples)  # fmt: skip


def test_unnamed_classes_are_written_like_the_right_answers():
    for labels in (["1", "0"], [1, 0]):
        test = Test("mine", "classification", ROWS, labels * (len(ROWS) // 2), ("accuracy",))
        _, dense, changes = changes_of("classification", test)
        assert dense.config.id2label[1] == "LABEL_1"
        right = {row[0][:40]: str(labels[n % 2]) for n, row in enumerate(ROWS)}
        assert [change.reference for change in changes.examples] == [right[c.text[0][:40]] for c in changes.examples]
        assert {answer for c in changes.examples for answer in (c.before, c.after)} <= {"0", "1", "2"}


def test_masked_tokens_that_are_predicted_differently_are_those_of_the_plain_models():
    model, dense, changes = changes_of("masked language model", unlabelled(ROWS), most=10_000)
    tokenizer, expected, compared = load_tokenizer(), [], 0
    for example in MaskedTokenScorer(unlabelled(ROWS), tokenizer, 512).examples:
        ids, masked = example["input_ids"], (example["labels"] >= 0).nonzero().squeeze(1)
        compared += len(masked)
        with torch.no_grad():
            both = [each(ids[None]).logits[0, masked].softmax(-1).max(-1) for each in (dense, model)]
        for place, before, after in zip(masked.tolist(), *(each.indices.tolist() for each in both), strict=True):
            if before != after:
                answers = (before, after, int(example["labels"][place]))
                expected.append((tokenizer.decode([ids[place - 1]]), *map(tokenizer.decode, answers)))
    assert (changes.what, changes.compared, changes.changed) == ("masked token", compared, len(expected))
    assert 0 < changes.changed < compared
    answers = [(change.before, change.after, change.reference) for change in changes.examples]
    assert sorted(answers) == sorted(each[1:] for each in expected)
    before = {each[0].removeprefix("##") for each in expected}
    assert all(change.text[0].partition(" ____ ")[0].endswith(tuple(before)) for change in changes.examples)


@pytest.mark.parametrize(("kind", "labels"), [("regression", 1), ("classification", 2)])
def test_a_rerankers_changes_are_pairs_with_their_relevance(kind, labels):
    passages = [text for (text,) in paragraphs(8)]
    table = [{"query": f"Which is number {n}?", "passages": passages, "relevance": [0] * 7 + [2]} for n in range(2)]
    model, dense = (shared_model(kind, seed, num_labels=labels) for seed in (0, 1))
    changes = score(model, read_test(table), against=dense, most_changes=50).changes
    assert changes.compared == 16
    assert changes.examples
    for change in changes.examples:
        query, passage = change.text
        assert query.startswith("Which is number")
        assert float(change.reference) == (2.0 if passages[7].startswith(passage[:40]) else 0.0)


def test_long_texts_are_cut():
    long = " ".join(python_documentation()[:20])
    _, _, changes = changes_of("regression", unlabelled([(long,), ("short",)]))
    assert {len(change.text[0]) <= MOST_CHARACTERS for change in changes.examples} == {True}
