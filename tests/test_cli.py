import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
import torch
from click.testing import CliRunner
from transformers import AutoModel, AutoModelForSequenceClassification

from kprune import Pruner
from kprune.cli import main
from kprune.demo import embedded_model, python_documentation
from kprune.families import FAMILIES
from kprune.tasks import TASKS


def kprune(*arguments: object):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A tiny classifier with a real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = embedded_model().load_tokenizer()
    names = {0: "bad", 1: "fair", 2: "good"}
    model = tiny.tiny_model("bert", vocab_size=len(tokenizer), pad_token_id=0, id2label=names)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(python_documentation()[:300]))
    return path


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
    told = json.loads(result.stdout)
    assert told["folder"] == str(out)
    assert told["tokens"] >= 1000
    assert len(told["steps"]) == 6
    seen = json.loads(kprune("inspect", out, "--json").stdout)
    assert seen["flops"] == pytest.approx(told["flops"])
    assert seen["parameters"] == told["parameters"]
    assert seen["shape"]["heads"] == [len(s["kept"]) for s in told["steps"] if s["kind"] == "attention"]
    assert seen["shape"]["neurons"] == [len(s["kept"]) for s in told["steps"] if s["kind"] == "ffn"]
    assert seen["bytes_on_disk"] == sum(f.stat().st_size for f in out.rglob("*") if f.is_file())


def test_a_table_of_pairs(checkpoint, tmp_path):
    rows = [{"a": text, "b": other, "n": 1} for text, other in zip(python_documentation(), "abc" * 90, strict=False)]
    table = tmp_path / "pairs.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    options = ("--reduction", 0.5, "--tokens", 1000, "--column", "a", "--column", "b")
    result = kprune("prune", checkpoint, tmp_path / "out", "--data", table, *options)
    assert result.exit_code == 0, result.output


def test_inspect_a_dense_model():
    result = kprune("inspect", embedded_model().folder, "--json")
    seen = json.loads(result.stdout)
    assert seen["shape"] == {"heads": [12] * 6, "neurons": [1536] * 6, "dense_heads": 12, "dense_neurons": 1536}
    assert (
        seen["flops"][0] == seen["flops"][1] == 6 * (12 * (8 * 128 * 384 * 32 + 4 * 128**2 * 32) + 1536 * 4 * 128 * 384)
    )
    assert seen["parameters"][1] == embedded_model().load().num_parameters()


def test_families():
    assert kprune("families").stdout.split() == sorted(FAMILIES)
    assert set(json.loads(kprune("families", "--json").stdout)) == set(FAMILIES)


def bad_input(checkpoint: Path, text: Path, tmp_path: Path) -> dict[str, tuple[list[object], int, str]]:
    """Arguments, exit code and what the sentence says."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "few.txt").write_text("four words of text")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)))
    (tmp_path / "table.csv").write_text("a,b\nx,y\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5/config.json").write_text('{"model_type": "t5", "architectures": ["T5Model"]}')
    out, usual = tmp_path / "out", ["--text", text, "--reduction", 0.5]
    return {
        "reduction above 1": ([checkpoint, out, "--text", text, "--reduction", 1.2], 1, "reduction is 1.2"),
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
        "a T5": ([tmp_path / "t5", out, *usual], 1, "cannot prune a 't5' model; supported: bert"),
        "no model": ([tmp_path / "empty", out, *usual], 1, "holds no model"),
        "no such model": (["no/such-model", out, *usual], 1, "there is no folder no/such-model"),
        "both samples": ([checkpoint, out, *usual, "--data", "x"], 2, "one of --text, --data and --task"),
        "no sample": ([checkpoint, out, "--reduction", 0.5], 2, "one of --text, --data and --task"),
        "no reduction": ([checkpoint, out, "--text", text], 2, "pass either --reduction or --max-drop"),
        "short inputs": ([checkpoint, out, *usual, "--max-length", 1], 2, "--max-length"),
        "unknown device": ([checkpoint, out, *usual, "--device", "toaster"], 1, "device 'toaster' cannot be used"),
        "unknown criterion": ([checkpoint, out, *usual, "--criterion", "magic"], 2, "magic"),
    }


CASES = [
    "reduction above 1", "unreachable reduction", "blank sample", "small sample", "not text", "no such text",
    "wrong column", "folder exists", "a T5", "no model", "no such model", "both samples", "no sample", "no reduction",
    "short inputs", "unknown device", "unknown criterion",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_a_sentence_and_leaves_nothing(case, checkpoint, text, tmp_path):
    cases = bad_input(checkpoint, text, tmp_path)
    assert list(cases) == CASES
    arguments, code, sentence = cases[case]
    before = sorted(tmp_path.rglob("*"))
    result = kprune("prune", *arguments)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_overwrite_replaces_a_checkpoint(checkpoint, text, tmp_path):
    options = ("--text", text, "--tokens", 1000, "--json")
    for reduction in (0.3, 0.6):
        result = kprune("prune", checkpoint, tmp_path / "out", "--reduction", reduction, *options, "--overwrite")
        assert result.exit_code == 0, result.output
    assert json.loads(kprune("inspect", tmp_path / "out", "--json").stdout)["history"][0]["reduction"] == 0.6


@pytest.mark.real
def test_an_interrupt_ends_cleanly(text, tmp_path):
    # A first import on a new machine may take longer than the pause below.
    subprocess.run([sys.executable, "-c", "import kprune.cli"], check=True)
    command = [sys.executable, "-m", "kprune", "prune", str(embedded_model().folder), str(tmp_path / "out")]
    process = subprocess.Popen(
        [*command, "--text", str(text), "--reduction", "0.5"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    time.sleep(12)
    assert process.poll() is None, "it was over too soon to be interrupted"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; no model was written" in stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_the_demo_runs_on_the_real_model(tmp_path, monkeypatch):
    monkeypatch.setattr("kprune.demo.HELD_OUT", 64)
    result = kprune("demo", tmp_path / "demo", "--tokens", 2000, "--reduction", 0.3, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["flops"][1] <= 0.7 * told["flops"][0]
    assert told["cosine"] > 0.7
    assert len(told["nearest"]) == 3
    assert Path(told["picture"]).read_bytes().startswith(b"\x89PNG")
    assert AutoModel.from_pretrained(tmp_path / "demo/model").num_parameters() == told["parameters"][1]


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """Labelled rows, as a user has them."""
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    labels = ("bad", "fair", "good")
    lines = (
        f'"{line.replace(chr(34), "")[:200]}",{labels[n % 3]}' for n, line in enumerate(python_documentation()[:120])
    )
    path.write_text("\n".join(["text,verdict", *lines]))
    return path


def test_evaluate_on_ones_own_table(checkpoint, table, tmp_path):
    own = ("--data", table, "--text-column", "text", "--label-column", "verdict", "--max-length", 60)
    told = json.loads(kprune("evaluate", checkpoint, *own, "--metric", "macro-f1", "--json").stdout)
    assert [figure["name"] for figure in told["figures"]] == ["macro-f1"]
    assert told["examples"] == 120
    result = kprune("evaluate", checkpoint, "--against", checkpoint, *own)
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    assert "equal" in result.output
    assert "agreement with tiny 100.00 (100.00 to 100.00)" in " ".join(result.output.split())


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
    told = json.loads(
        kprune("evaluate", checkpoint, "--against", checkpoint, "--text", text, "--limit", 20, "--json").stdout
    )
    assert told["fidelity"][0]["value"] == 100.0
    assert told["examples"] == 20


def test_prune_and_evaluate_in_one(checkpoint, table, tmp_path):
    own = ("--data", table, "--column", "text", "--label-column", "verdict", "--max-length", 60)
    usual = (*own, "--reduction", 0.6, "--tokens", 1500, "--evaluate")
    told = json.loads(kprune("prune", checkpoint, tmp_path / "a", *usual, "--json").stdout)
    assert told["evaluation"]["examples"] == 12  # a tenth, held out
    assert [figure["name"] for figure in told["evaluation"]["differences"]] == ["accuracy"]
    assert "## What was lost" in (tmp_path / "a/README.md").read_text()
    result = kprune("prune", checkpoint, tmp_path / "b", *usual, "--validation", table)
    assert result.exit_code == 0, result.output
    assert "120 examples" in result.output
    assert "agreement with dense" in " ".join(result.output.split())


def test_the_largest_reduction_within_a_drop(checkpoint, text, tmp_path):
    usual = ("--text", text, "--tokens", 1500, "--max-length", 60)
    result = kprune("prune", checkpoint, tmp_path / "a", *usual, "--max-drop", 60, "--json")
    assert "removed: " in result.stderr  # the path that it took
    told = json.loads(result.stdout)
    passed = [trial["reduction"] for trial in told["trials"] if trial["passed"]]
    assert told["reduction"] == max(passed)
    assert all(trial["high"] <= 60 for trial in told["trials"] if trial["passed"])
    assert told["evaluation"]["fidelity"][0]["name"] == "agreement"
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "a")
    result = kprune("prune", checkpoint, tmp_path / "b", *usual, "--max-drop", 0.0001)
    assert "cannot rule out a drop of 0.0001 points" in result.stderr
    assert not (tmp_path / "b").exists()


def test_tasks_are_listed():
    assert set(json.loads(kprune("tasks", "--json").stdout)) == set(TASKS)
    listed = kprune("tasks").output
    assert all(name in listed for name in TASKS)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--evaluate", "--validation", "typo.csv"], 1, "is a file and has no split 'typo.csv'"),
        (["--validation", "x"], 2, "belong to a test; add --evaluate"),
        (["--evaluate", "--metric", "spearman"], 1, "'spearman' does not suit"),
        (["--method", "kcm", "--reduction", 0.9], 1, "kcm removes neurons only"),
    ],
)
def test_a_bad_test_is_refused_before_pruning(arguments, code, sentence, checkpoint, table, tmp_path, monkeypatch):
    monkeypatch.setattr(Pruner, "prune", lambda *_, **__: pytest.fail("was pruned"))
    own = ("--data", table, "--column", "text", "--label-column", "verdict", "--max-length", 60, "--tokens", 1500)
    if "--reduction" not in arguments:
        arguments = [*arguments, "--reduction", 0.5]
    result = kprune("prune", checkpoint, tmp_path / "out", *own, *arguments)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--task", "imdb"], 1, "there is no task 'imdb'"),
        (["--task", "sst2"], 1, "point --data at a folder that holds 'glue'"),
        (["--task", "sst2", "--metric", "f1"], 2, "a --task has its own columns, labels, metrics"),
        (["--text", "a.txt", "--label-column", "y"], 2, "a --text has no columns and no labels"),
        (["--text", "a.txt", "--split", "train"], 1, "a.txt is a file and has no split 'train'"),
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


def test_bench_tells_times_and_draws_them(checkpoint, text, tmp_path):
    small, picture = tmp_path / "small", tmp_path / "speed.png"
    assert kprune("prune", checkpoint, small, "--text", text, "--reduction", 0.6, "--tokens", 1000).exit_code == 0
    options = ("--shape", "4x16", "--shape", "1x8", "--runtime", "torch", "--seconds", 0.05, "--threads", 1)
    result = kprune("bench", small, "--against", checkpoint, *options, "--picture", picture)
    assert result.exit_code == 0, result.output
    for part in ("torch, batch 4 × 16 tokens, 1 threads", "speed-up", "FLOPs ratio", "peak MB", "norms and residual"):
        assert part in result.output
    assert picture.read_bytes()[:4] == b"\x89PNG"
    told = json.loads(kprune("bench", small, *options, "--json").stdout)
    assert told["reference"] is None
    assert [timing["batch"] for timing in told["timings"]] == [4, 1]
    assert all(timing["speedup"] is None for timing in told["timings"])


def test_a_speedup_is_asked_for_and_measured(checkpoint, text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    short = {"seconds": 0.05}
    for name in ("measure_latency", "measured_speedup"):
        plain = getattr(sys.modules["kprune.latency"], name)
        monkeypatch.setattr(
            sys.modules["kprune.cli"], name, lambda *args, plain=plain, **options: plain(*args, **options, **short)
        )
    options = ("--text", text, "--tokens", 1000, "--shape", "2x16", "--threads", 1, "--json")
    result = kprune("prune", checkpoint, tmp_path / "fast", *options, "--speedup", 1.2)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["speedup"]["asked"] == 1.2
    assert told["speedup"]["measured"] > 0.8
    assert told["budget"] == "milliseconds of 2 × 16 tokens in torch, 1 threads"
    assert "× as fast as before, 1.2 × asked" in (tmp_path / "fast/README.md").read_text()
    assert list((tmp_path / "cache/kprune").glob("latency-*.json"))
    refused = kprune("prune", checkpoint, tmp_path / "faster", *options, "--speedup", 1000)
    assert refused.exit_code == 1
    assert "a speed-up of 1000 cannot be reached on inputs of 2 × 16 tokens in torch" in refused.output
    assert not (tmp_path / "faster").exists()


def test_export_and_what_int8_costs(checkpoint, table, tmp_path):
    out = tmp_path / "graph"
    options = ("--data", table, "--text-column", "text", "--label-column", "verdict")
    result = kprune("export", checkpoint, out, "--int8", *options)
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    assert "onnx int8" in result.output
    assert (out / "model.onnx").is_file()
    assert kprune("export", checkpoint, out).exit_code == 1  # it exists
    again = json.loads(kprune("export", checkpoint, out, "--overwrite", "--json").stdout)
    assert again["difference"] < 1e-4
    assert again["evaluation"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("bench", "{checkpoint}", "--shape", "32"), 2, "the shape '32' is not BATCHxLENGTH"),
        (("bench", "{checkpoint}", "--shape", "1x999"), 1, "inputs of 1 × 999 tokens are too long"),
        (("bench", "{checkpoint}", "--shape", "1x8", "--device", "toaster"), 1, "device 'toaster' cannot be used"),
        (("bench", "{checkpoint}", "--picture", "x.foo"), 2, "x.foo cannot be drawn; name a .png or .svg"),
        (("prune", "{checkpoint}", "out", "--text", "x", "--speedup", "2", "--search", "uniform"), 2, "cannot aim"),
        (("export", "{checkpoint}", "out", "--device", "cpu"), 2, "graphs run on the CPU here"),
        (("export", "{checkpoint}", "out", "--column", "a"), 2, "belong to data; add --data"),
        (("export", "{checkpoint}", "{checkpoint}", "--overwrite"), 1, "itself; choose another"),
        (("export", "{checkpoint}", "{checkpoint}/x"), 1, "itself; choose another"),
        (("bench", "nowhere/x"), 1, "there is no folder nowhere/x"),
        (("prune", "{checkpoint}", "out", "--text", "x", "--speedup", "2", "--reduction", "0.5"), 2, "pass either"),
        (
            ("prune", "{checkpoint}", "out", "--text", "x", "--speedup", "2", "--method", "kwon"),
            2,
            "a budget of its own",
        ),
        (("export", "{checkpoint}", "out", "--to", "tflite"), 2, "'tflite' is not one of 'onnx', 'openvino'"),
        (("export", "{checkpoint}", "{checkpoint}"), 1, "exists; choose another folder"),
    ],
)
def test_bad_speed_options_get_a_sentence(arguments, code, sentence, checkpoint):
    result = kprune(*(argument.format(checkpoint=checkpoint) for argument in arguments))
    assert result.exit_code == code
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output
