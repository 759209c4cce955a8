"""`benchmarks/finetune.py`: the labels that a reader of questions is trained on, and a run with its log."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import write_checkpoint
from task_data import load_tokenizer, write_data
from transformers import AutoModelForSequenceClassification

from kprune.data.tasks import TASKS, Test

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import finetune

CONTEXT = " ".join(f"Room {number} is {colour}." for number, colour in enumerate(("red", "green", "blue", "white") * 4))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("finetune") / "base", "embedding")


def test_a_readers_labels_are_the_answers_tokens_or_the_first_token(base):
    tokenizer = load_tokenizer()
    answers = ["Room 9 is green", "white", None]
    references = [
        {"text": [a], "answer_start": [CONTEXT.index(a)]} if a else {"text": [], "answer_start": []} for a in answers
    ]
    rows = [("Which room is it?", CONTEXT)] * 3
    train = Test("squad2", "question answering", rows, references)
    _, examples, _ = finetune.reader(TASKS["squad2"], base, tokenizer, train, 32)
    assert len(examples) > 6
    found = []
    for example in examples:
        start, end = int(example["start_positions"]), int(example["end_positions"])
        found.append(tokenizer.decode(example["input_ids"][start : end + 1]))
    windows = len(examples) // 3
    per_question = [set(found[n : n + windows]) for n in (0, windows, 2 * windows)]
    assert per_question == [{"room 9 is green", "[CLS]"}, {"white", "[CLS]"}, {"[CLS]"}]


def test_a_model_is_trained_scored_and_logged(base, tmp_path):
    write_data(tmp_path / "data", TASKS["sst2"], rows=20)
    options = ["--task", "sst2", "--data", tmp_path / "data", "--epochs", 1, "--batch", 8, "--limit", 10]
    words = [str(each) for each in [base, tmp_path / "out", *options]]
    result = CliRunner().invoke(finetune.main, words)
    assert result.exit_code == 0, result.output
    head, *steps, last = [json.loads(line) for line in (tmp_path / "out/finetune.jsonl").read_text().splitlines()]
    assert (head["task"], head["examples"], head["steps"], head["epochs"]) == ("sst2", 20, 2, 1.0)
    assert [step["step"] for step in steps] == [2]
    assert last["validation"][0]["name"] == "accuracy"
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    again = CliRunner().invoke(finetune.main, words)
    assert (again.exit_code, "exists; choose another folder" in again.output) == (1, True)
