import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import kprune
from fast_clock import install_fast_clock
from transformers import AutoModelForSequenceClassification

from kprune.checkpoints.source import Source
from kprune.data.calibration import python_documentation
from kprune.pruning import pruner

pytest_plugins = ["command_fixtures"]


def test_prune_then_load_with_plain_transformers(checkpoint, text, tmp_path):
    out = tmp_path / "small"
    result = kprune("prune", checkpoint, out, "--text", text, "--reduction", 0.6, "--tokens", 2000, "--align", 1)
    assert result.exit_code == 0, result.output
    assert "removed" in result.output
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert model.dtype == torch.float16  # as it came
    assert model.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert (out / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    assert "60." in (out / "README.md").read_text()


def test_json_is_all_that_is_printed(checkpoint, text, tmp_path):
    out = tmp_path / "small"
    result = kprune("prune", checkpoint, out, "--text", text, "--reduction", 0.5, "--tokens", 1000, "--json")
    printed = json.loads(result.stdout)
    assert printed["folder"] == str(out)
    assert printed["tokens"] >= 1000
    assert len(printed["steps"]) == 6
    inspected = json.loads(kprune("inspect", out, "--json").stdout)
    assert inspected["flops"] == pytest.approx(printed["flops"])
    assert inspected["parameters"] == printed["parameters"]
    assert inspected["shape"]["heads"] == [len(s["kept"]) for s in printed["steps"] if s["kind"] == "attention"]
    assert inspected["shape"]["neurons"] == [len(s["kept"]) for s in printed["steps"] if s["kind"] == "ffn"]
    assert inspected["bytes_on_disk"] == sum(f.stat().st_size for f in out.rglob("*") if f.is_file())


def test_a_table_of_pairs(checkpoint, tmp_path):
    rows = [{"a": text, "b": other, "n": 1} for text, other in zip(python_documentation(), "abc" * 90, strict=False)]
    table = tmp_path / "pairs.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    options = ("--reduction", 0.5, "--tokens", 1000, "--column", "a", "--column", "b")
    result = kprune("prune", checkpoint, tmp_path / "out", "--data", table, *options)
    assert result.exit_code == 0, result.output


def bad_input(checkpoint: Path, text: Path, tmp_path: Path) -> dict[str, tuple[list[object], int, str]]:
    """Arguments, exit code and a part of the message."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "few.txt").write_text("four words of text")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)))
    (tmp_path / "table.csv").write_text("a,b\nx,y\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "albert").mkdir()
    (tmp_path / "albert/config.json").write_text('{"model_type": "albert", "architectures": ["AlbertModel"]}')
    out, usual, one = tmp_path / "out", ["--text", text, "--reduction", 0.5], "pass exactly one of --reduction"
    return {
        "reduction above 1": (
            [checkpoint, out, "--text", text, "--reduction", 1.2],
            1,
            "reduction is 1.2, but must be 0 or more and below 1; 0.6 removes 60 %",
        ),
        "unreachable reduction": ([checkpoint, out, "--text", text, "--reduction", 0.99999], 1, "would leave no unit"),
        "blank sample": (
            [checkpoint, out, "--text", tmp_path / "blank.txt", "--reduction", 0.5],
            1,
            "no lines with text",
        ),
        "small sample": ([checkpoint, out, "--text", tmp_path / "few.txt", "--reduction", 0.5], 1, "has 6 tokens"),
        "not text": ([checkpoint, out, "--text", tmp_path / "binary.txt", "--reduction", 0.5], 1, "not UTF-8 text"),
        "no such text": ([checkpoint, out, "--text", tmp_path / "nope.txt", "--reduction", 0.5], 1, "cannot read"),
        "wrong column": (
            [checkpoint, out, "--data", tmp_path / "table.csv", "--column", "text", "--reduction", 0.5],
            1,
            "has no column 'text'; it has a, b",
        ),
        "folder exists": ([checkpoint, tmp_path / "taken", *usual], 1, "taken exists"),
        "an ALBERT": ([tmp_path / "albert", out, *usual], 1, "cannot prune an 'albert' model: one layer's weights"),
        "no model": ([tmp_path / "empty", out, *usual], 1, "holds no model"),
        "no such model": (["no/such-model", out, *usual], 1, "there is no folder no/such-model"),
        "both samples": ([checkpoint, out, *usual, "--data", "x"], 2, "one of --text, --data and --task"),
        "no sample": ([checkpoint, out, "--reduction", 0.5], 2, "one of --text, --data and --task"),
        "no reduction": ([checkpoint, out, "--text", text], 2, f"{one}, --max-drop and --speedup"),
        "two reductions": ([checkpoint, out, *usual, "--max-drop", 1], 2, f"{one}, --max-drop and --speedup"),
        "short inputs": ([checkpoint, out, *usual, "--max-length", 1], 2, "--max-length"),
        "native rival": (
            [checkpoint, out, *usual, "--native", "--method", "flap"],
            2,
            "native is for method kprune only",
        ),
        "unreachable native": (
            [checkpoint, out, "--text", text, "--reduction", 0.9, "--native"],
            1,
            "the largest possible reduction of a native model is",
        ),
        "unknown device": ([checkpoint, out, *usual, "--device", "toaster"], 1, "device 'toaster' cannot be used"),
        "unknown criterion": ([checkpoint, out, *usual, "--criterion", "magic"], 2, "magic"),
        "checkpoint and drop": (
            [checkpoint, out, "--text", text, "--max-drop", 1, "--checkpoint", tmp_path / "kept"],
            2,
            "--checkpoint works with --reduction only",
        ),
        "checkpoint inside": ([checkpoint, out, *usual, "--checkpoint", out / "kept"], 2, "a folder outside OUT"),
        "temperature of 0": ([checkpoint, out, *usual, "--temperature", 0], 1, "temperature is 0.0, but must be above"),
        "align of 0": ([checkpoint, out, *usual, "--align", 0], 1, "align is 0, but must be 1 or more"),
        "no tokens": ([checkpoint, out, *usual, "--tokens", 0], 1, "the sample size is 0 tokens; ask for 1 or more"),
    }


CASES = [
    "reduction above 1", "unreachable reduction", "blank sample", "small sample", "not text", "no such text",
    "wrong column", "folder exists", "an ALBERT", "no model", "no such model", "both samples", "no sample",
    "no reduction", "two reductions", "short inputs", "native rival", "unreachable native",
    "unknown device", "unknown criterion", "checkpoint and drop",
    "checkpoint inside", "temperature of 0", "align of 0", "no tokens",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_a_sentence_and_leaves_nothing(case, checkpoint, text, tmp_path):
    cases = bad_input(checkpoint, text, tmp_path)
    assert list(cases) == CASES
    arguments, code, sentence = cases[case]
    before = sorted(tmp_path.rglob("*"))
    result = kprune("prune", *arguments)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--speedup", "2", "--search", "uniform"], "uniform keeps the same share everywhere and cannot reach a"),
        (["--reduction", "0.5", "--method", "ebert"], "ebert chooses other units for every text, so that there is no"),
        (["--speedup", "2", "--reduction", "0.5"], "pass exactly one of --reduction, --max-drop and --speedup"),
        (["--speedup", "2", "--method", "kwon"], "a budget of its own"),
        (["--speedup", "2", "--budget", "parameters"], "a budget of its own"),
        (["--speedup", "2", "--shape", "32"], "the shape '32' is not BATCHxLENGTH"),
    ],
)
def test_bad_speed_options_are_usage_errors(arguments, sentence, checkpoint, text, tmp_path):
    result = kprune("prune", checkpoint, tmp_path / "out", "--text", text, *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("others", [["--max-drop", 1], ["--speedup", 2]])
def test_several_processes_work_with_a_reduction_only(others, checkpoint, text, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = kprune("prune", checkpoint, tmp_path / "out", "--text", text, *others)
    assert (result.exit_code, "several processes work with --reduction only" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "data", [["--text", "nope.txt"], ["--data", "nope.csv"], ["--task", "imdb"], ["--text", "blank.txt"]]
)
def test_wrong_data_are_reported_before_weights_are_loaded(data, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("blank.txt").write_text(" \n")
    monkeypatch.setattr(Source, "load", lambda source: pytest.fail("weights were loaded"))
    result = kprune("prune", checkpoint, "out", *data, "--reduction", 0.5)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
    assert data[1] in result.stderr


def test_overwrite_replaces_a_checkpoint(checkpoint, text, tmp_path):
    options = ("--text", text, "--tokens", 1000, "--json")
    for reduction in (0.3, 0.6):
        result = kprune("prune", checkpoint, tmp_path / "out", "--reduction", reduction, *options, "--overwrite")
        assert result.exit_code == 0, result.output
    assert json.loads(kprune("inspect", tmp_path / "out", "--json").stdout)["history"][0]["reduction"] == 0.6


@pytest.mark.parametrize("method", ["kwon", "magnitude"])
def test_a_rival_continues_from_its_checkpoint(method, checkpoint, text, tmp_path, monkeypatch):
    removed = []
    remove = pruner._remove

    def stop_at_the_third(number, *others):
        removed.append(number)
        if removed == [0, 1, 2]:
            raise KeyboardInterrupt
        return remove(number, *others)

    monkeypatch.setattr(pruner, "_remove", stop_at_the_third)
    options = ("--text", text, "--tokens", 1000, "--reduction", 0.5, "--method", method)
    kept = ("--checkpoint", tmp_path / "kept")
    assert kprune("prune", checkpoint, tmp_path / "out", *options, *kept).exit_code == 130
    assert not (tmp_path / "out").exists()
    result = kprune("prune", checkpoint, tmp_path / "out", *options, *kept)
    assert result.exit_code == 0, result.output
    assert removed == [0, 1, 2, 2, 3, 4, 5]
    assert not (tmp_path / "kept").exists()
    assert kprune("prune", checkpoint, tmp_path / "whole", *options).exit_code == 0
    resumed, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole"))
    assert resumed == whole


INTERRUPTIBLE = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with SIGINT ignored
from kprune.cli.main import main
from kprune.pruning import pruner

def remove_and_wait(*arguments, remove=pruner._remove):
    remove(*arguments)
    print("one sublayer is pruned", flush=True)
    time.sleep(600)

pruner._remove = remove_and_wait
main()
"""


def test_an_interrupt_ends_cleanly(checkpoint, text, tmp_path):
    arguments = ["prune", checkpoint, tmp_path / "out", "--text", text, "--reduction", 0.5, "--tokens", 1000]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "one sublayer is pruned\n", process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted; no model was written" in stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_prune_and_evaluate_in_one(checkpoint, table, tmp_path):
    own = ("--data", table, "--column", "text", "--label-column", "verdict", "--max-length", 60)
    usual = (*own, "--reduction", 0.6, "--tokens", 1500, "--evaluate")
    printed = json.loads(kprune("prune", checkpoint, tmp_path / "a", *usual, "--json").stdout)
    assert printed["evaluation"]["examples"] == 12  # a tenth, held out
    assert [figure["name"] for figure in printed["evaluation"]["differences"]] == ["accuracy"]
    assert "## What was lost" in (tmp_path / "a/README.md").read_text()
    result = kprune("prune", checkpoint, tmp_path / "b", *usual, "--validation", table)
    assert result.exit_code == 0, result.output
    assert "120 examples" in result.output
    assert "agreement with dense" in " ".join(result.output.split())


def test_the_largest_reduction_within_a_drop(checkpoint, text, tmp_path):
    usual = ("--text", text, "--tokens", 1500, "--max-length", 60)
    result = kprune("prune", checkpoint, tmp_path / "a", *usual, "--max-drop", 60, "--json")
    assert "removed: " in result.stderr  # every trial
    printed = json.loads(result.stdout)
    passed = [trial["reduction"] for trial in printed["trials"] if trial["passed"]]
    assert printed["reduction"] == max(passed)
    assert all(trial["high"] <= 60 for trial in printed["trials"] if trial["passed"])
    assert printed["evaluation"]["fidelity"][0]["name"] == "agreement"
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "a")
    result = kprune("prune", checkpoint, tmp_path / "b", *usual, "--max-drop", 0.0001)
    assert "cannot rule out a drop of 0.0001 points" in result.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--evaluate", "--validation", "typo.csv"], 1, "is a file without a split 'typo.csv'"),
        (["--validation", "x"], 2, "belong to a test; add --evaluate"),
        (["--evaluate", "--metric", "spearman"], 1, "'spearman' does not suit"),
        (["--method", "kcm", "--reduction", 0.9], 1, "kcm removes neurons only"),
    ],
)
def test_a_bad_test_is_refused_before_pruning(arguments, code, sentence, checkpoint, table, tmp_path, monkeypatch):
    monkeypatch.setattr(pruner, "_remove", lambda *_: pytest.fail("was pruned"))
    own = ("--data", table, "--column", "text", "--label-column", "verdict", "--max-length", 60, "--tokens", 1500)
    if "--reduction" not in arguments:
        arguments = [*arguments, "--reduction", 0.5]
    result = kprune("prune", checkpoint, tmp_path / "out", *own, *arguments)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_speedup_is_requested_and_measured(checkpoint, text, tmp_path, monkeypatch):
    install_fast_clock(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = ("--text", text, "--tokens", 1000, "--shape", "2x16", "--threads", 1, "--json")
    result = kprune("prune", checkpoint, tmp_path / "fast", *options, "--speedup", 1.2)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["speedup"]["asked"] == 1.2
    assert printed["speedup"]["measured"] == pytest.approx(1.2, rel=0.1)
    assert printed["budget"] == "milliseconds of 2 × 16 tokens in torch, float32, 1 thread"
    assert "× as fast as before (1.2 × requested)" in (tmp_path / "fast/README.md").read_text()
    assert list((tmp_path / "cache/kprune").glob("latency-*.json"))
    refused = kprune("prune", checkpoint, tmp_path / "faster", *options, "--speedup", 1000)
    assert refused.exit_code == 1
    assert "a speed-up of 1000 cannot be reached on inputs of 2 × 16 tokens in torch" in refused.output
    assert not (tmp_path / "faster").exists()


def test_a_value_out_of_range_is_refused_before_anything_is_read(tmp_path):
    result = kprune("prune", "no/such-model", tmp_path / "out", "--text", tmp_path / "nope.txt", "--reduction", 60)
    assert result.exit_code == 1
    assert result.stderr == "kprune: reduction is 60.0, but must be 0 or more and below 1; 0.6 removes 60 %.\n"


def test_several_texts_are_sampled(checkpoint, text, tmp_path):
    lines = text.read_text().splitlines()
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, half in zip(paths, (lines[:150], lines[150:]), strict=True):
        path.write_text("\n".join(half))
    options = ("--reduction", 0.5, "--json")
    both, whole = (
        json.loads(kprune("prune", checkpoint, tmp_path / name, *files, *options).stdout)
        for name, files in (("both", ("--text", paths[0], "--text", paths[1])), ("whole", ("--text", text)))
    )
    assert both["tokens"] == whole["tokens"] > 2000
    assert [step["kept"] for step in both["steps"]] == [step["kept"] for step in whole["steps"]]
