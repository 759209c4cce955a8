"""What `kprune prune` writes and says: names as they are, types of weights, the time of the whole work."""

import json
import time

import pytest
import torch
from command_line import CLASSES, kprune, write_checkpoint, write_table
from fast_clock import install_fast_clock
from transformers import AutoModelForSequenceClassification

from kprune.jobs import max_drop, speedup

pytest_plugins = ["command_fixtures"]
SAMPLE = ("--tokens", 1000, "--align", 1)


@pytest.mark.parametrize("name", ["[v2]", "out[/bold]", ":smile:", "[red]x[/red]"])
def test_names_are_printed_as_they_are(name, checkpoint, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = kprune("prune", checkpoint, f"runs/{name}", "--text", text, "--reduction", 0.5, *SAMPLE)
    assert result.exit_code == 0, result.output
    assert f"Written to runs/{name} in " in result.stdout
    table = write_table(tmp_path / f"{name.replace('/', '')}.csv")
    data = ("--data", table, "--text-column", "text", "--label-column", "verdict")
    result = kprune("evaluate", f"runs/{name}", "--against", checkpoint, *data)
    assert result.exit_code == 0, result.output
    assert f" {name.split('/')[-1]} " in result.stdout
    assert result.stdout.strip().startswith(f"{table.name}, 120 examples")


def test_models_of_the_same_name_are_told_apart(checkpoint, table, tmp_path):
    other = write_checkpoint(tmp_path / "other" / checkpoint.name, half=True, id2label=dict(enumerate(CLASSES)))
    data = ("--data", table, "--text-column", "text")
    result = kprune("evaluate", other, "--against", checkpoint, *data)
    assert result.exit_code == 0, result.output
    assert f"with {checkpoint.parent.name}/{checkpoint.name} " in result.stdout


@pytest.mark.parametrize("out", ["model", "model/inside", "model/.."])
def test_the_model_itself_is_not_replaced(out, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_checkpoint(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    result = kprune("prune", "model", out, "--text", text, "--reduction", 0.5, *SAMPLE, "--overwrite")
    assert result.exit_code == 1
    assert "choose another folder" in result.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_type_of_the_weights_is_chosen(dtype, checkpoint, text, tmp_path):
    options = ("--text", text, "--reduction", 0.5, *SAMPLE, "--dtype", dtype)
    result = kprune("prune", checkpoint, tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").dtype == getattr(torch, dtype)
    note = f"The model is in {dtype}, which is slow on a CPU"
    assert (note in result.stdout) == (dtype != "float32" and not torch.cuda.is_available())
    printed = json.loads(kprune("prune", checkpoint, tmp_path / "json", *options, "--json").stdout)
    assert printed["dtype"] == dtype


def test_weights_that_do_not_fit_the_type_are_refused(text, tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.classifier.weight.data[0, 0] = 1e6
    model.save_pretrained(folder)
    options = ("--text", text, "--reduction", 0.5, *SAMPLE, "--dtype", "float16")
    result = kprune("prune", folder, tmp_path / "out", *options)
    assert result.exit_code == 1
    assert "does not fit into float16; use --dtype float32" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_time_is_that_of_the_whole_work(checkpoint, table, tmp_path, monkeypatch):
    trial = max_drop._trial

    def slow_trial(*arguments):
        time.sleep(0.3)
        return trial(*arguments)

    monkeypatch.setattr(max_drop, "_trial", slow_trial)
    data = ("--data", table, "--text-column", "text", "--label-column", "verdict")
    options = (*data, "--max-drop", 90, "--no-guard", *SAMPLE, "--json")
    printed = json.loads(kprune("prune", checkpoint, tmp_path / "out", *options).stdout)
    assert printed["total_seconds"] > 0.3 * len(printed["trials"]) > printed["seconds"] / 4
    assert printed["total_seconds"] > printed["seconds"]


def test_the_time_of_a_speedup_counts_its_measurements(checkpoint, text, tmp_path, monkeypatch):
    install_fast_clock(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    measure = speedup.measured_speedup

    def slow_measurement(*arguments):
        time.sleep(0.2)
        return measure(*arguments)

    monkeypatch.setattr(speedup, "measured_speedup", slow_measurement)
    options = ("--text", text, "--speedup", 1.2, "--shape", "2x16", "--threads", 1, *SAMPLE, "--json")
    printed = json.loads(kprune("prune", checkpoint, tmp_path / "out", *options).stdout)
    assert printed["total_seconds"] > 0.2 + printed["seconds"]
