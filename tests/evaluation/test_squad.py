import pytest
import torch
from evaluation_cases import PARAGRAPHS
from hypothesis import given, settings
from hypothesis import strategies as st
from task_data import load_tokenizer

from kprune import KpruneError
from kprune.evaluation.squad import LONGEST_ANSWER, AnswerSpans, best_spans, grade, normalise, windows_of


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("The  Eiffel Tower!", ["eiffel", "tower"]),
        ("an apple, a day", ["apple", "day"]),
        ("Theatre", ["theatre"]),  # an article only where it is a word
        ("the-end", ["theend"]),  # punctuation goes first, so this is one word
        ("$1,000.50", ["100050"]),
        ("1066–1087", ["1066–1087"]),  # only ASCII punctuation goes
        ("Ångström’s École", ["ångström’s", "école"]),
        ("the", []),
        ("", []),
        (" \u00a0\n x ", ["x"]),
    ],
)
def test_answers_are_compared_as_the_official_rules_say(answer, words):
    assert normalise(answer) == words


@pytest.mark.parametrize(
    ("answer", "references", "exact", "f1"),
    [
        ("Denver Broncos", ["the Denver Broncos", "Broncos"], 1.0, 1.0),  # the best reference counts
        ("New York City", ["New York"], 0.0, 0.8),  # 2 of 3 and 2 of 2
        ("cat cat", ["cat"], 0.0, 2 / 3),  # a word counts as often as both have it
        ("Paris", ["London", "Paris, France"], 0.0, 2 / 3),
        ("nothing alike", ["something else"], 0.0, 0.0),
        ("", [], 1.0, 1.0),  # correctly no answer
        ("something", [], 0.0, 0.0),
        ("", ["something"], 0.0, 0.0),
        ("", ["the"], 1.0, 1.0),  # a reference without words is none
        ("a", ["an"], 1.0, 1.0),
    ],
)
def test_grades_worked_out_by_hand(answer, references, exact, f1):
    assert grade(answer, references) == (exact, pytest.approx(f1))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 18), st.data())
def test_the_best_span_is_the_best_of_all(length, data):
    first = data.draw(st.integers(0, length - 1))
    last = data.draw(st.integers(first, length - 1))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    start, end = torch.randn(2, 1, length, generator=generator).unbind(0)
    score, begin, stop = best_spans(start, end, torch.tensor([[first, last]]))
    everything = {(i, j): float(start[0, i] + end[0, j]) for i in range(first, last + 1) for j in range(i, last + 1)}
    assert float(score) == pytest.approx(max(everything.values()))
    assert everything[int(begin), int(stop)] == pytest.approx(float(score))


def test_answers_are_not_longer_than_allowed():
    start, end = torch.zeros(2, 1, 100).unbind(0)
    start[0, 10], end[0, 90] = 9.0, 9.0
    _, begin, stop = best_spans(start, end, torch.tensor([[5, 99]]))
    assert int(stop - begin) < LONGEST_ANSWER


def test_windows_cover_the_context_and_overlap(tokenizer):
    context = " ".join(PARAGRAPHS[:20])
    windows = windows_of(["What is it?"], [context], tokenizer, 96)
    whole = tokenizer(context, add_special_tokens=False)["input_ids"]
    assert len(windows.examples) > 2
    seen, before = [], set()
    for number, example in enumerate(windows.examples):
        first, last = windows.context[number].tolist()
        assert len(example["input_ids"]) <= 96
        offsets = windows.encodings[number].offsets[first : last + 1]
        assert before & set(offsets) or number == 0
        before = set(offsets)
        seen += [pair for pair in offsets if pair not in seen]
    assert len(seen) == len(whole)


def test_an_answer_is_the_text_as_it_was_written(tokenizer):
    context = "In 1851, Zürich – a ‘city’ – had   15,000 people."
    windows = windows_of(["Where?"], [context], tokenizer, 384)
    first, last = windows.context[0].tolist()
    assert windows.text(0, first, last) == context
    tokens = windows.encodings[0].tokens
    at = tokens.index("zurich")
    assert windows.text(0, at, at) == "Zürich"


def test_the_best_window_answers_and_the_answer_may_be_empty(tokenizer):
    contexts = [" ".join(PARAGRAPHS[:10]), "It is blue."]
    windows = windows_of(["What?", "Which colour?"], contexts, tokenizer, 64)
    spans = AnswerSpans(windows)
    count = len(windows.examples)
    for number, example in enumerate(windows.examples):
        logits = torch.zeros(1, 2, len(example["input_ids"]))
        first = int(windows.context[number, 0])
        logits[0, 0, first] = logits[0, 1, first] = 1.0 + (number == 1)  # the second window scores highest
        logits[0, :, 0] = 5.0 if number == count - 1 else -5.0  # the last question's window prefers no answer
        spans.add(logits, torch.tensor([number]))
    place = int(windows.context[1, 0])
    assert spans.texts(may_be_empty=True) == [windows.text(1, place, place), ""]
    assert spans.texts(may_be_empty=False) == [windows.text(1, place, place), "It"]


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    with pytest.raises(KpruneError, match="does not fit into 16 tokens"):
        windows_of(["why " * 40], ["because"], tokenizer, 16)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(KpruneError, match=r"needs a fast tokenizer, and this model has none; add a tokenizer.json"):
        windows_of(["why?"], ["because"], object(), 16)
