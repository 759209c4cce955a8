import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from test_tasks import example

from kprune import KpruneError, Test, evaluate
from kprune.demo import embedded_model, python_documentation
from kprune.exams import Blanks, Spans
from kprune.labels import class_names, class_order
from kprune.observe import call
from kprune.outputs import pool
from kprune.squad import Answers, grade, windows_of
from kprune.tasks import TASKS

# `kprune.evaluate` is the function; the module is reached by its full name.
evaluate_module = __import__("sys").modules["kprune.evaluate"]


@pytest.fixture(scope="module")
def tokenizer():
    return embedded_model().load_tokenizer()


def model_for(kind: str, tokenizer, seed: int = 0, **changes):
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "pad_token_id": 0}
    return tiny.tiny_model("bert", kind, seed, **sizes, **changes)


def made_up(name: str, rows: int = 24) -> Test:
    """A made-up test with a task's own columns and labels, of mixed lengths."""
    task = TASKS[name]
    words = python_documentation()[5].split()
    made = [example(task, number) for number in range(rows)]
    texts = [
        tuple(f"{row[column]} {' '.join(words[: 7 * number % 23])}" for column in task.texts)
        for number, row in enumerate(made)
    ]
    references = None if task.label is None else [row[task.label] for row in made]
    return Test(name, task.kind, texts, references, task.metrics, task.labels)


def one_by_one(model, tokenizer, rows):
    """The plain model's outputs, a row at a time, so without padding or batches."""
    with torch.no_grad():
        for row in rows:
            yield model(**tokenizer(*row, return_tensors="pt"))


def by_hand(name, model, tokenizer, test):
    """A task's figures by loops and textbook formulas."""
    kind = TASKS[name].kind
    if kind == "embedding":
        cosines = []
        for row in test.rows:
            vectors = [
                pool(out.last_hidden_state, torch.ones(out.last_hidden_state.shape[:2], dtype=bool), "mean")[0]
                for out in one_by_one(model, tokenizer, [(text,) for text in row])
            ]
            cosines.append(float(vectors[0] @ vectors[1]))
        return [100 * f(test.references, cosines).statistic for f in (spearmanr, pearsonr)]
    if kind == "regression":
        values = [float(out.logits) for out in one_by_one(model, tokenizer, test.rows)]
        return [100 * f(test.references, values).statistic for f in (spearmanr, pearsonr)]
    if kind == "classification":
        chosen = [int(out.logits.argmax()) for out in one_by_one(model, tokenizer, test.rows)]
        oracles = {
            "accuracy": sum(a == b for a, b in zip(chosen, test.references, strict=True)) / len(chosen),
            "f1": f1_score(test.references, chosen) if len(test.labels) == 2 else None,
            "matthews": matthews_corrcoef(test.references, chosen),
        }
        return [100 * oracles[metric] for metric in test.metrics]
    if kind == "question answering":
        grades = []
        for (question, context), reference in zip(test.rows, test.references, strict=True):
            encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
            offsets = encoded.pop("offset_mapping")[0].tolist()
            with torch.no_grad():
                out = model(**encoded)
            inside = [i for i, part in enumerate(encoded.sequence_ids(0)) if part == 1]
            start, end = out.start_logits[0], out.end_logits[0]
            starts = sorted(inside, key=lambda i: -start[i])[:20]
            ends = sorted(inside, key=lambda i: -end[i])[:20]
            pairs = [(float(start[i] + end[j]), i, j) for i in starts for j in ends if i <= j < i + 30]
            _, i, j = max(pairs)
            grades.append(grade(context[offsets[i][0] : offsets[j][1]], reference["text"]))
        return [100 * float(np.mean([f1 for _, f1 in grades])), 100 * float(np.mean([em for em, _ in grades]))]
    raise AssertionError(kind)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "wikitext2"])
def test_every_tasks_figures_are_those_of_plain_loops(name, tokenizer):
    task = TASKS[name]
    changes = {"num_labels": len(task.labels)} if task.labels else {}
    model, test = model_for(task.kind, tokenizer, **changes), made_up(name)
    result = evaluate(model, tokenizer, test)
    assert [figure.name for figure in result.figures] == list(task.metrics)
    expected = by_hand(name, model, tokenizer, test)
    assert [figure.value for figure in result.figures] == pytest.approx(expected, rel=1e-4)
    assert result.examples == 24


def test_perplexity_is_that_of_plain_loops(tokenizer):
    model = model_for("masked language model", tokenizer)
    rows = [(text,) for text in python_documentation()[:30]]
    result = evaluate(model, tokenizer, Test("wikitext2", None, rows, None), max_length=66)
    exam = Blanks(Test("wikitext2", None, rows, None), tokenizer, 66)
    surprise, tokens = 0.0, 0
    for ids, given in zip(exam.targets, exam.examples, strict=True):
        with torch.no_grad():
            logits = model(given["input_ids"][None]).logits[0]
        for place in (given["labels"] != -100).nonzero().squeeze(1).tolist():
            assert int(given["input_ids"][place]) == tokenizer.mask_token_id
            surprise -= float(logits[place].log_softmax(-1)[ids[place]])
            tokens += 1
    assert result.figures[0].value == pytest.approx(math.exp(surprise / tokens), rel=1e-4)
    running = [token for (text,) in rows for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    whole = [token for ids in exam.targets for token in ids[1:-1].tolist()]
    assert whole == running[: len(whole)]  # every token once, in order
    assert tokens == pytest.approx(0.15 * len(running), rel=0.15)


@pytest.mark.parametrize("kind", tiny.KIND_NAMES)
def test_a_model_is_wholly_like_itself_and_less_like_another(kind, tokenizer):
    model, other = model_for(kind, tokenizer), model_for(kind, tokenizer, seed=1)
    rows = [(text,) for text in python_documentation()[:24]]
    if kind == "question answering":
        rows = [("What is it?", text) for (text,) in rows]
    model.train()
    same = evaluate(model, tokenizer, Test("mine", None, rows, None), against=model, max_length=60)
    assert same.fidelity[0].value == pytest.approx(100, abs=1e-3)
    assert same.drop.value == pytest.approx(0, abs=1e-3)
    assert model.training  # as it was
    apart = evaluate(model, tokenizer, Test("mine", None, rows, None), against=other, max_length=60)
    assert apart.fidelity[0].value < 99.9
    if kind != "masked language model":  # its drop is one of perplexity
        assert apart.drop.high >= apart.drop.value > 0.1


def test_two_models_are_compared_on_the_same_examples(tokenizer):
    test = made_up("sst2", rows=60)
    a, b = (model_for("classification", tokenizer, seed, num_labels=2) for seed in (0, 1))
    both = evaluate(a, tokenizer, test, against=b)
    alone = [evaluate(model, tokenizer, test).figures[0] for model in (a, b)]
    assert both.figures[0] == alone[0]
    assert both.against[0] == alone[1]
    assert both.differences[0].value == pytest.approx(alone[0].value - alone[1].value)
    assert both.drop.value == pytest.approx(-both.differences[0].value)
    assert (both.drop.low, both.drop.high) == (-both.differences[0].high, -both.differences[0].low)
    assert 0 < both.forward_seconds < both.seconds


def test_a_rise_of_perplexity_is_a_drop(tokenizer):
    model, other = (model_for("masked language model", tokenizer, seed) for seed in (0, 1))
    rows = [(text,) for text in python_documentation()[:10]]
    result = evaluate(model, tokenizer, Test("mine", None, rows, None), against=other, max_length=60)
    assert result.drop.value == pytest.approx(result.figures[0].value - result.against[0].value)


def test_classes_are_matched_by_name(tokenizer):
    test = made_up("mnli", rows=60)
    model = model_for("classification", tokenizer)
    expected = evaluate(model, tokenizer, test)
    assert "does not name its classes" in expected.notes[0]
    names = ["Contradiction", "ENTAILMENT", "neutral"]
    with torch.no_grad():  # the same model with its classes in another order
        for parameter in model.classifier.parameters():
            parameter.copy_(parameter[[2, 0, 1]].clone())
    model.config.id2label = dict(enumerate(names))
    result = evaluate(model, tokenizer, test)
    assert result.figures[0].value == expected.figures[0].value
    assert "in another order (Contradiction, ENTAILMENT, neutral); matched by name" in result.notes[0]


def test_a_permuted_order_of_nameless_classes_is_reported(tokenizer):
    model = model_for("classification", tokenizer, num_labels=2)
    test = made_up("sst2", rows=40)
    chosen = [int(out.logits.argmax()) for out in one_by_one(model, tokenizer, test.rows)]
    flipped = replace(test, references=[1 - choice for choice in chosen])
    result = evaluate(model, tokenizer, flipped)
    assert result.figures[0].value == 0.0
    assert any("in the order [1, 0] of the data's they would be right 100%" in note for note in result.notes)


def test_own_labels_may_be_names_or_numbers(tokenizer):
    model = model_for("classification", tokenizer, id2label={0: "bad", 1: "fair", 2: "good"})
    rows = [(text,) for text in python_documentation()[:9]]
    values = []
    for references in ([0, 1, 2] * 3, ["0", "1", "2.0"] * 3, ["Bad", "fair", "GOOD"] * 3):
        test = Test("mine", None, rows, references, ("accuracy", "macro-f1"))
        values.append([figure.value for figure in evaluate(model, tokenizer, test).figures])
    assert values[0] == values[1] == values[2]


def test_signs_are_names_too(tokenizer):
    model = model_for("classification", tokenizer, num_labels=2, id2label={0: "-", 1: "+"})
    rows = [(text,) for text in python_documentation()[:10]]
    numbers, names = ([0, 1] * 5, ["-", "+"] * 5)
    results = [evaluate(model, tokenizer, Test("mine", None, rows, labels)) for labels in (numbers, names)]
    assert results[0].figures == results[1].figures
    with pytest.raises(KpruneError, match="the label '-1', and classes are numbered 0 to 1"):
        evaluate(model, tokenizer, Test("mine", None, rows, ["-1"] * 10))


def test_f1_of_more_than_two_classes_is_their_mean(tokenizer):
    model = model_for("classification", tokenizer)
    rows = [(text,) for text in python_documentation()[:9]]
    result = evaluate(model, tokenizer, Test("mine", None, rows, [0, 1] * 4 + [0], ("f1",)))
    assert result.figures[0].name == "macro-f1"


def test_own_numbers_in_another_order_are_reported(tokenizer):
    model = model_for("classification", tokenizer, num_labels=2)
    rows = made_up("sst2", rows=40).rows
    chosen = [int(out.logits.argmax()) for out in one_by_one(model, tokenizer, rows)]
    result = evaluate(model, tokenizer, Test("mine", None, rows, [1 - choice for choice in chosen]))
    assert "name them in id2label" in result.notes[0]


def test_each_model_keeps_its_own_pooling(tokenizer):
    model = model_for("embedding", tokenizer)
    rows = [(text,) for text in python_documentation()[:24]]
    test = Test("mine", None, rows, None)
    assert evaluate(model, tokenizer, test, against=model).fidelity[0].value == pytest.approx(100, abs=1e-3)
    assert evaluate(model, tokenizer, test, against=model, against_pooling="cls").fidelity[0].value < 99.9


def test_an_embedding_model_reads_a_pairs_texts_one_by_one(tokenizer):
    model, other = model_for("embedding", tokenizer), model_for("embedding", tokenizer, seed=1)
    pairs = [tuple(python_documentation()[n : n + 2]) for n in range(0, 20, 2)]
    single = [(text,) for pair in pairs for text in pair]
    found = [evaluate(model, tokenizer, Test("mine", None, rows, None), against=other) for rows in (pairs, single)]
    assert found[0].fidelity == found[1].fidelity


@pytest.mark.parametrize("kind", ["classification", "regression", "embedding"])
def test_what_the_other_model_said_is_recalled(tokenizer, kind, monkeypatch):
    model, third, other = (model_for(kind, tokenizer, seed=seed) for seed in (0, 2, 1))
    test = Test("mine", None, [(text,) for text in python_documentation()[:30]], None)
    recalled = {}
    first = evaluate(model, tokenizer, test, against=other, recalled=recalled)
    asked = []
    monkeypatch.setattr(evaluate_module, "call", lambda model, batch: asked.append(model) or call(model, batch))
    for each, again in ((model, first), (third, evaluate(third, tokenizer, test, against=other))):
        asked.clear()
        found = evaluate(each, tokenizer, test, against=other, recalled=recalled)
        assert set(asked) == {each}
        assert found.fidelity == again.fidelity
    if kind == "regression":
        with torch.no_grad():
            ours, theirs = (
                torch.cat([outputs.logits for outputs in one_by_one(each, tokenizer, test.rows)])
                for each in (model, other)
            )
        assert first.fidelity[1].value == pytest.approx(float((ours - theirs).square().mean()), rel=1e-4)


def test_no_answer_is_for_the_task_or_a_reference_to_allow(tokenizer):
    rows = [("What?", "It is blue."), ("Where?", "There it is.")]

    def may_be_empty(references, **options):
        return Spans(Test("mine", None, rows, references, **options), tokenizer, 64).may_be_empty

    assert not may_be_empty([["It"], "There"])
    assert may_be_empty([["It"], "There"], may_be_empty=TASKS["squad2"].may_be_empty)
    for nothing in ([], [""], "", {"text": []}):
        assert may_be_empty([["It"], nothing])


def bad_cases(tokenizer):
    rows = [("one text",), ("another text",)]
    rows_of_two = [("what?", "one text"), ("what?", "another")]
    classifier = model_for("classification", tokenizer, id2label={0: "bad", 1: "fair", 2: "good"})
    regression = model_for("regression", tokenizer)
    embedding = model_for("embedding", tokenizer)
    reader = model_for("question answering", tokenizer)
    tagger = model_for("token classification", tokenizer)
    sick = model_for("classification", tokenizer)
    with torch.no_grad():
        sick.classifier.weight.fill_(torch.nan)
    pair = made_up("stsb")
    return {
        "wrong kind": (reader, made_up("sst2"), {}, "made for question answering .*and sst2 for classification"),
        "another task": (embedding, pair, {}, "use the task stsb-cosine"),
        "class count": (
            classifier,
            made_up("sst2"),
            {},
            "tells 3 classes apart .* the test has 2",
        ),
        "class names": (classifier, made_up("mnli"), {}, "classes are called bad, fair, good, the test's entailment"),
        "out of range": (classifier, Test("mine", None, rows, [1, 3]), {}, "row 1 of mine has the label 3"),
        "hidden label": (classifier, Test("mine", None, rows, [-1, 1]), {}, "row 0 of mine has the label -1"),
        "half a class": (classifier, Test("mine", None, rows, [0, 0.5]), {}, "row 1 of mine has the label 0.5"),
        "blank label": (classifier, Test("mine", None, rows, ["bad", ""]), {}, "row 1 of mine has the label ''; the"),
        "unknown name": (
            classifier,
            Test("mine", None, rows, ["bad", "ugly"]),
            {},
            "the label 'ugly'; the",
        ),
        "no number": (regression, Test("mine", None, rows, ["1", "x"]), {}, "a label that is not a number"),
        "not finite": (regression, Test("mine", None, rows, ["1", "nan"]), {}, "row 1 of mine has no finite label"),
        "no pairs": (embedding, Test("mine", None, rows, [1, 2]), {}, "name two text columns"),
        "no context": (reader, Test("mine", None, rows, [["a"], ["b"]]), {}, "the question and the context"),
        "strange answer": (
            reader,
            Test("mine", None, rows_of_two, [["a"], 1998]),
            {},
            "has the answer 1998",
        ),
        "no text in it": (reader, Test("mine", None, rows_of_two, [{"a": 1}, []]), {}, "row 0 of mine has the answer"),
        "endless": (classifier, Test("mine", None, rows, [0, float("inf")]), {}, "row 1 of mine has the label inf"),
        "nothing": (classifier, Test("mine", None, [], []), {}, "mine has no rows"),
        "metric of nothing": (
            classifier,
            Test("mine", None, rows, None, ("f1",)),
            {"against": classifier},
            "no right answers to take f1 of",
        ),
        "no answers": (classifier, Test("mine", None, rows, None), {}, "has no right answers"),
        "tags": (tagger, Test("mine", None, rows, [1, 2]), {}, "token classification cannot be scored by labels"),
        "metric": (classifier, Test("mine", None, rows, [1, 2], ("spearman",)), {}, "'spearman' does not suit"),
        "unknown metric": (classifier, Test("mine", None, rows, [1, 2], ("bleu",)), {}, "there is no metric 'bleu'"),
        "two kinds": (classifier, Test("mine", None, rows, None), {"against": regression}, "of two kinds"),
        "two namings": (
            classifier,
            Test("mine", None, rows, None),
            {"against": model_for("classification", tokenizer)},
            "classes differ",
        ),
        "not numbers": (sick, Test("mine", None, rows, [1, 2]), {}, "are not numbers .NaN."),
    }


BAD = ["wrong kind", "another task", "class count", "class names", "out of range", "hidden label", "half a class",
       "blank label", "unknown name", "no number", "not finite", "no pairs", "no context", "strange answer",
       "no text in it", "endless", "nothing", "metric of nothing", "no answers", "tags", "metric",
       "unknown metric", "two kinds", "two namings", "not numbers"]  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_told_in_a_sentence(case, tokenizer):
    cases = bad_cases(tokenizer)
    assert list(cases) == BAD
    model, test, options, message = cases[case]
    with pytest.raises(KpruneError, match=message):
        evaluate(model, tokenizer, test, **options)


def test_class_order_finds_its_way():
    config = tiny.tiny_config("bert", id2label={0: "not-equivalent", 1: "Equivalent"})
    assert class_names(config) == ["not-equivalent", "Equivalent"]
    assert class_order(config, ("not_equivalent", "equivalent")) == ([0, 1], [], True)
    assert class_order(config, ("equivalent", "not_equivalent"))[0] == [1, 0]


def test_sorted_batches_hardly_pad(tokenizer):
    rows = [(text[: 20 + 13 * number % 180],) for number, text in enumerate(python_documentation()[:300])]
    model = model_for("classification", tokenizer)
    result = evaluate(model, tokenizer, Test("mine", None, rows, [0] * len(rows)), max_length=60)
    assert result.padding < 0.05


def test_progress_ends_at_the_whole(tokenizer):
    told = []
    test = made_up("sst2")
    evaluate(model_for("classification", tokenizer, num_labels=2), tokenizer, test, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_answers_to_long_contexts_come_from_windows(tokenizer):
    model = model_for("question answering", tokenizer)
    context = " ".join(python_documentation()[:4])
    rows = [("What is it?", context)]
    assert len(windows_of(["What is it?"], [context], tokenizer, 60).examples) > 1
    result = evaluate(model, tokenizer, Test("mine", None, rows, [["unlikely"]]), max_length=60)
    assert [figure.name for figure in result.figures] == ["answer-f1", "exact-match"]
    # The best of all windows, each run alone, is what must be found, and earns full marks where it is the reference.
    windows = windows_of(["What is it?"], [context], tokenizer, 60)
    answers = Answers(windows)
    for number, given in enumerate(windows.examples):
        with torch.no_grad():
            out = model(**{name: value[None] for name, value in given.items()})
        answers.note(torch.stack([out.start_logits, out.end_logits], dim=1), torch.tensor([number]))
    (best,) = answers.texts(may_be_empty=False)
    found = evaluate(model, tokenizer, Test("mine", None, rows, [[best]]), max_length=60)
    assert [figure.value for figure in found.figures] == [100.0, 100.0]


def test_the_shorter_of_two_models_sets_the_length(tokenizer):
    model = model_for("classification", tokenizer)
    short = tiny.tiny_model("bert", vocab_size=len(tokenizer), max_position_embeddings=16, pad_token_id=0)
    rows = [(text,) for text in python_documentation()[:6]]
    assert max(len(tokenizer(text)["input_ids"]) for (text,) in rows) > 16
    assert evaluate(model, tokenizer, Test("mine", None, rows, None), against=short).examples == 6
