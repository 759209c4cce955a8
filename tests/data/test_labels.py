import pytest
import tiny

from kprune import KpruneError, Test
from kprune.data.labels import class_names, class_numbers, class_order, training_labels, value_references

VERDICTS = {0: "bad", 1: "fair", 2: "good"}


def test_classes_are_matched_by_normalised_name():
    config = tiny.tiny_config("bert", id2label={0: "not-equivalent", 1: "Equivalent"})
    assert class_names(config) == ["not-equivalent", "Equivalent"]
    assert class_order(config, ("not_equivalent", "equivalent")) == ([0, 1], [], True)
    order, notes, are_named = class_order(config, ("equivalent", "not_equivalent"))
    assert (order, are_named) == ([1, 0], True)
    assert notes == ["the checkpoint has its classes in another order (not-equivalent, Equivalent); matched by name."]


def test_classes_without_names_keep_the_datas_order_with_a_note():
    config = tiny.tiny_config("bert", num_labels=2)
    order, notes, are_named = class_order(config, ("negative", "positive"))
    assert (order, are_named) == ([0, 1], False)
    assert notes == ["the checkpoint does not name its classes; the data's order is used (0 = negative, 1 = positive)."]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("yes", "no"), r"the model has 3 classes \(bad, fair, good\) and the test has 2 \(yes, no\); pass a model"),
        (("bad", "fair", "fine"), "classes are called bad, fair, good, the test's bad, fair, fine; write the test's"),
    ],
)
def test_classes_that_do_not_match_are_refused(labels, message):
    with pytest.raises(KpruneError, match=message):
        class_order(tiny.tiny_config("bert", id2label=VERDICTS), labels)


def test_words_for_classes_without_names_say_where_to_write_them():
    test = Test("mine", None, [("a",)] * 2, ["negative", "positive"])
    message = "label 'negative', and the model does not name its classes: write their names into id2label of .* 0 to 1"
    with pytest.raises(KpruneError, match=message):
        class_numbers(test, ["LABEL_0", "LABEL_1"])


@pytest.mark.parametrize("references", [[0, 1, 2], ["0", "1", "2.0"], ["Bad", "fair", " GOOD "], [0.0, True, "good"]])
def test_a_label_is_a_number_or_a_name(references):
    test = Test("mine", None, [("a",)] * 3, references)
    assert class_numbers(test, list(VERDICTS.values())).tolist() == [0, 1, 2]


def test_names_that_differ_only_in_case_match_exactly():
    test = Test("mine", None, [("a",)] * 2, ["A", "a"])
    assert class_numbers(test, ["a", "A"]).tolist() == [1, 0]


def test_training_labels_are_in_the_models_order():
    test = Test("mine", None, [("a",)] * 3, [0, 1, 2], labels=("good", "bad", "fair"))
    config = tiny.tiny_config("bert", id2label=VERDICTS)
    assert training_labels(test, "classification", config) == [2, 0, 1]
    assert training_labels(test, "regression", config) == [0.0, 1.0, 2.0]
    assert training_labels(test, "question answering", config) is None
    assert training_labels(Test("mine", None, [("a",)], None), "classification", config) is None


def test_values_are_finite_numbers():
    assert value_references(Test("mine", None, [("a",)] * 2, ["1.5", 2])).tolist() == [1.5, 2.0]
    with pytest.raises(KpruneError, match="row 1 of mine has the label inf, not a finite number; correct the row"):
        value_references(Test("mine", None, [("a",)] * 2, [1, "inf"]))
