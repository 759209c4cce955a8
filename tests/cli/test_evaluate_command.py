import json
import shutil

import pytest
from command_line import kprune

pytest_plugins = ["command_fixtures"]


def test_evaluate_on_ones_own_table(checkpoint, table):
    own = ("--data", table, "--text-column", "text", "--label-column", "verdict", "--max-length", 60)
    printed = json.loads(kprune("evaluate", checkpoint, *own, "--metric", "macro-f1", "--json").stdout)
    assert [figure["name"] for figure in printed["figures"]] == ["macro-f1"]
    assert printed["examples"] == 120
    result = kprune("evaluate", checkpoint, "--against", checkpoint, *own)
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    assert "equal" in result.output
    assert "agreement with tiny (2) 100.00 (100.00 to 100.00)" in " ".join(result.output.split())


def test_models_with_other_tokenizers_are_not_compared(checkpoint, text, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    file = other / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["the"], vocabulary["of"] = vocabulary["of"], vocabulary["the"]
    file.write_text(json.dumps(content))
    result = kprune("evaluate", checkpoint, "--against", other, "--text", text, "--limit", 5)
    assert result.exit_code == 1
    assert "have different tokenizers" in result.stderr


def test_evaluate_without_labels_needs_another_model(checkpoint, text):
    result = kprune("evaluate", checkpoint, "--text", text, "--max-length", 60)
    assert result.exit_code == 1
    assert "has no right answers" in result.stderr
    printed = json.loads(
        kprune("evaluate", checkpoint, "--against", checkpoint, "--text", text, "--limit", 20, "--json").stdout
    )
    assert printed["fidelity"][0]["value"] == 100.0
    assert printed["examples"] == 20


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--task", "imdb"], 1, "there is no task 'imdb'"),
        (["--task", "sst2"], 1, "point --data at a folder that holds 'glue'"),
        (["--task", "sst2", "--metric", "f1"], 2, "a --task defines its columns, labels, metrics and subset"),
        (["--text", "a.txt", "--label-column", "y"], 2, "a --text file has no columns and no labels"),
        (["--text", "a.txt", "--split", "train"], 1, "a.txt is a file without a split 'train'"),
        (["--task", "sst2", "--data", "/nowhere"], 1, "there is no folder /nowhere"),
        ([], 2, "one of --text, --data and --task"),
        (["--text", "a.txt", "--task", "sst2"], 2, "one of --text, --data and --task"),
        (["--data", "nowhere.csv"], 1, "there is no file nowhere.csv"),
    ],
)
def test_bad_tests_get_a_sentence(arguments, code, sentence, checkpoint):
    result = kprune("evaluate", checkpoint, *arguments)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert "Traceback" not in result.output
