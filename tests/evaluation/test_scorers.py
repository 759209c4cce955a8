import math
from dataclasses import replace

import pytest
import torch
from evaluation_cases import PARAGRAPHS, made_up, model_for, one_by_one, paragraphs, score, shared_model
from task_data import load_tokenizer

from kprune import KpruneError, Test
from kprune.data.tasks import TASKS
from kprune.data.windows import Windows
from kprune.evaluation.scorers import MaskedTokenScorer, SpanScorer, scorer_for
from kprune.evaluation.squad import AnswerSpans, windows_of


def test_perplexity_is_that_of_plain_loops():
    model, tokenizer, rows = shared_model("masked language model"), load_tokenizer(), paragraphs(30)
    test = Test("wikitext2", None, rows, None)
    result = score(model, test, max_length=66)
    scorer = MaskedTokenScorer(test, tokenizer, 66)
    loss, tokens = 0.0, 0
    for ids, given in zip(scorer.targets, scorer.examples, strict=True):
        with torch.no_grad():
            logits = model(given["input_ids"][None]).logits[0]
        for position in (given["labels"] != -100).nonzero().squeeze(1).tolist():
            assert int(given["input_ids"][position]) == tokenizer.mask_token_id
            loss -= float(logits[position].log_softmax(-1)[ids[position]])
            tokens += 1
    assert result.figures[0].value == pytest.approx(math.exp(loss / tokens), rel=1e-4)
    assert result.resampled == len(scorer.examples)
    running = [token for (text,) in rows for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    whole = [token for ids in scorer.targets for token in ids[1:-1].tolist()]
    assert whole == running[: len(whole)]  # every token once, in order
    assert tokens == pytest.approx(0.15 * len(running), rel=0.15)


def test_a_limit_of_blocks_keeps_the_first_ones_and_blank_rows_add_nothing():
    rows = [row for text in PARAGRAPHS[:30] for row in ((text,), (" \n",))]
    whole, blank = (MaskedTokenScorer(Test("a", None, each, None), load_tokenizer(), 66) for each in (rows[::2], rows))
    first = MaskedTokenScorer(Test("a", None, rows, None, windows=Windows(most=3)), load_tokenizer(), 66)
    as_lists = [[ids.tolist() for ids in scorer.targets] for scorer in (whole, blank, first)]
    assert as_lists[0] == as_lists[1]
    assert as_lists[2] == as_lists[0][:3]


def test_a_text_too_short_to_mask_is_refused():
    with pytest.raises(KpruneError, match="mine is too short: no token was masked; pass more text"):
        scorer_for(Test("mine", None, [("word",)], None), "masked language model", load_tokenizer(), 64)


def test_classes_are_matched_by_name():
    test = made_up("mnli", 60)
    model = model_for("classification")
    expected = score(model, test)
    assert "does not name its classes" in expected.notes[0]
    names = ["Contradiction", "ENTAILMENT", "neutral"]
    with torch.no_grad():  # the same model with its classes in another order
        for parameter in model.classifier.parameters():
            parameter.copy_(parameter[[2, 0, 1]].clone())
    model.config.id2label = dict(enumerate(names))
    result = score(model, test)
    assert result.figures[0].value == expected.figures[0].value
    assert "in another order (Contradiction, ENTAILMENT, neutral); matched by name" in result.notes[0]


def flipped_choices(model, rows):
    """The wrong one of two classes for every row."""
    return [1 - int(outputs.logits.argmax()) for outputs in one_by_one(model, rows)]


def test_a_better_order_of_unnamed_classes_is_reported():
    model, test = shared_model("classification", num_labels=2), made_up("sst2", 40)
    result = score(model, replace(test, references=flipped_choices(model, test.rows)))
    assert result.figures[0].value == 0.0
    assert any("In the order [1, 0] of the data's classes they would be right 100%" in note for note in result.notes)


def test_a_better_order_of_class_numbers_is_reported():
    model, rows = shared_model("classification", num_labels=2), made_up("sst2", 40).rows
    result = score(model, Test("mine", None, rows, flipped_choices(model, rows)))
    assert "name them in id2label" in result.notes[0]


def test_labels_may_be_names_or_numbers():
    model = model_for("classification", id2label={0: "bad", 1: "fair", 2: "good"})
    values = []
    for references in ([0, 1, 2] * 3, ["0", "1", "2.0"] * 3, ["Bad", "fair", "GOOD"] * 3):
        test = Test("mine", None, paragraphs(9), references, ("accuracy", "macro-f1"))
        values.append([figure.value for figure in score(model, test).figures])
    assert values[0] == values[1] == values[2]


def test_signs_may_be_class_names():
    model = model_for("classification", num_labels=2, id2label={0: "-", 1: "+"})
    rows = paragraphs(10)
    numbers, names = ([0, 1] * 5, ["-", "+"] * 5)
    results = [score(model, Test("mine", None, rows, labels)) for labels in (numbers, names)]
    assert results[0].figures == results[1].figures
    with pytest.raises(KpruneError, match="the label '-1', but classes are numbered 0 to 1"):
        score(model, Test("mine", None, rows, ["-1"] * 10))


def test_f1_of_more_than_two_classes_is_their_mean():
    test = Test("mine", None, paragraphs(9), [0, 1] * 4 + [0], ("f1",))
    assert score(shared_model("classification"), test).figures[0].name == "macro-f1"


def test_a_metric_named_twice_is_computed_once():
    model = shared_model("classification")
    test = Test("mine", None, paragraphs(9), [0, 1, 2] * 3, ("f1", "macro-f1", "accuracy"))
    result = score(model, test, against=shared_model("classification", seed=1))
    for figures in (result.figures, result.against, result.differences):
        assert [figure.name for figure in figures] == ["macro-f1", "accuracy"]


def test_an_answer_may_be_empty_if_the_task_or_a_reference_allows_it():
    rows = [("What?", "It is blue."), ("Where?", "There it is.")]

    def may_be_empty(references, **options):
        return SpanScorer(Test("mine", None, rows, references, **options), load_tokenizer(), 64).may_be_empty

    assert not may_be_empty([["It"], "There"])
    assert may_be_empty([["It"], "There"], may_be_empty=TASKS["squad2"].may_be_empty)
    for nothing in ([], [""], "", {"text": []}):
        assert may_be_empty([["It"], nothing])


def test_answers_to_long_contexts_come_from_windows():
    model = shared_model("question answering")
    context = " ".join(PARAGRAPHS[:4])
    rows = [("What is it?", context)]
    result = score(model, Test("mine", None, rows, [["unlikely"]]), max_length=60)
    assert [figure.name for figure in result.figures] == ["answer-f1", "exact-match"]
    # The expected answer is the best over all windows, each run alone; as the reference it earns full marks.
    windows = windows_of(["What is it?"], [context], load_tokenizer(), 60)
    assert len(windows.examples) > 1
    spans = AnswerSpans(windows)
    for number, given in enumerate(windows.examples):
        with torch.no_grad():
            out = model(**{name: value[None] for name, value in given.items()})
        spans.add(torch.stack([out.start_logits, out.end_logits], dim=1), torch.tensor([number]))
    (best,) = spans.texts(may_be_empty=False)
    perfect = score(model, Test("mine", None, rows, [[best]]), max_length=60)
    assert [figure.value for figure in perfect.figures] == [100.0, 100.0]
