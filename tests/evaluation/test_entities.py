"""Entities of tagged words, and taggers as products: names, scores, refusals."""

import json
from itertools import combinations_with_replacement, pairwise

import pytest
import tiny
import torch
from command_line import kprune as command
from command_line import write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from task_data import load_tokenizer

import kprune
from kprune.data.calibration import python_documentation
from kprune.evaluation.entities import entities_of

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
tags = st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in "XY")]), max_size=12)


def is_boundary(before, after):
    """Whether an entity ends between two tags, or one begins: at O, where types differ, before B, S, after E, S."""
    if "O" in (before, after):
        return True
    return before[2:] != after[2:] or after[0] in "BS" or before[0] in "ES"


@given(tags)
def test_entities_agree_with_trying_all_spans(drawn):
    padded = ["O", *drawn, "O"]
    expected = set()
    for first, last in combinations_with_replacement(range(1, len(drawn) + 1), 2):
        inside = padded[first : last + 1]
        is_open = any(is_boundary(*pair) for pair in pairwise(inside))
        is_closed = is_boundary(padded[first - 1], inside[0]) and is_boundary(inside[-1], padded[last + 1])
        if "O" not in inside and is_closed and not is_open:
            expected.add((inside[0][2:], first - 1, last - 1))
    assert entities_of(drawn) == expected


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        ("B-PER I-PER O B-LOC", {("PER", 0, 1), ("LOC", 3, 3)}),  # IOB2
        ("I-PER I-PER B-PER O", {("PER", 0, 1), ("PER", 2, 2)}),  # IOB1
        ("I-PER E-PER I-PER O", {("PER", 0, 1), ("PER", 2, 2)}),  # IOE
        ("S-PER B-LOC I-LOC E-LOC", {("PER", 0, 0), ("LOC", 1, 3)}),  # IOBES
        ("O I-PER I-LOC", {("PER", 1, 1), ("LOC", 2, 2)}),  # lenient: an entity need not begin with B
        ("B I O I", {("", 0, 1), ("", 3, 3)}),  # no types
    ],
)
def test_schemes(drawn, expected):
    assert entities_of(drawn.split()) == expected


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    names = dict(enumerate(NAMES))
    folder = tmp_path_factory.mktemp("taggers") / "tagger"
    return write_checkpoint(folder, "token classification", id2label=names, label2id={n: i for i, n in names.items()})


@pytest.fixture(scope="module")
def rows():
    texts = [text.split()[:12] for text in python_documentation()[:40]]
    return [
        {"tokens": words, "tags": [NAMES[(number + place) % 5] for place in range(len(words))]}
        for number, words in enumerate(texts)
    ]


def predicted_tags(model, tokenizer, words):
    """The tag of each word's first token, by the tokenizer's own words."""
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        chosen = model(**encoded).logits[0].argmax(-1).tolist()
    owners = encoded.word_ids()
    return [NAMES[chosen[owners.index(word)]] for word in range(len(words))]


def test_a_pruned_tagger_keeps_its_names_and_is_scored_by_entities(tagger, rows, tmp_path):
    table = tmp_path / "ner.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    options = ("--data", table, "--reduction", 0.4, "--align", 1, "--tokens", 300, "--ridge", 1e-3)
    done = command("prune", tagger, tmp_path / "small", *options, "--evaluate", "--validation", table, "--json")
    assert done.exit_code == 0, done.output
    model = kprune.Source(tmp_path / "small").load().eval()
    assert list(model.config.id2label.values()) == NAMES
    tokenizer = load_tokenizer()
    pairs = [(entities_of(predicted_tags(model, tokenizer, r["tokens"])), entities_of(r["tags"])) for r in rows]
    right = sum(len(ours & theirs) for ours, theirs in pairs)
    found, expected = (sum(len(pair[side]) for pair in pairs) for side in (0, 1))
    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["evaluation"]["figures"]}
    assert right > 0
    assert figures == {
        "entity-f1": pytest.approx(200 * right / (found + expected)),
        "entity-precision": pytest.approx(100 * right / found),
        "entity-recall": pytest.approx(100 * right / expected),
    }


def test_numbers_are_the_models_classes_and_a_perfect_model_has_a_hundred(tagger, rows):
    source = kprune.Source(tagger)
    model, tokenizer = source.load().eval(), load_tokenizer()
    own = [predicted_tags(model, tokenizer, row["tokens"]) for row in rows]
    data = [
        {"tokens": row["tokens"], "ner_tags": [NAMES.index(tag) for tag in tags]}
        for row, tags in zip(rows, own, strict=True)
    ]
    result = kprune.evaluate(model, tokenizer, kprune.read_test(data), against=model)
    assert [each.value for each in result.figures] == [100.0] * 3
    assert [each.value for each in result.differences] == [0.0] * 3
    with pytest.raises(kprune.KpruneError, match="a tag is 9, but the model has classes 0 to 4"):
        kprune.evaluate(model, tokenizer, kprune.read_test([{"tokens": ["a"], "ner_tags": [9]}]))


def test_words_beyond_the_length_count_as_outside_with_a_note(tagger, rows):
    model = kprune.Source(tagger).load()
    result = kprune.evaluate(model, load_tokenizer(), kprune.read_test(rows), max_length=8)
    assert any("words have no token within the model's length" in note for note in result.notes)


def test_models_that_do_not_suit_are_refused(tagger, rows):
    test, tokenizer = kprune.read_test(rows), load_tokenizer()
    classifier = tiny.tiny_model("bert", "classification", vocab_size=len(tokenizer), pad_token_id=0)
    with pytest.raises(kprune.KpruneError, match="made for classification"):
        kprune.evaluate(classifier, tokenizer, test)
    other = [{"tokens": ["a", "b"], "tags": ["B-GENE", "O"]}]
    with pytest.raises(kprune.KpruneError, match="the data's entities are GENE, and the model's tags are O, B-PER"):
        kprune.evaluate(kprune.Source(tagger).load(), tokenizer, kprune.read_test(other))
    unnamed = tiny.tiny_model("bert", "token classification", vocab_size=len(tokenizer), pad_token_id=0)
    with pytest.raises(
        kprune.KpruneError, match=r"does not name its tags \(LABEL_0, LABEL_1, LABEL_2, …\), so that none"
    ):
        kprune.evaluate(unnamed, tokenizer, kprune.read_test([{"tokens": ["a", "b"], "ner_tags": [0, 1]}]))
