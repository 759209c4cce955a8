"""Several processes on one run, against one process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ranks_worker
import tiny
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from kprune import KpruneError
from kprune.cli import main
from kprune.demo import embedded_model, python_documentation
from kprune.ranks import count, joined, own_device

ONE = {**os.environ, "OMP_NUM_THREADS": "1"}


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"]


@pytest.mark.parametrize(
    ("launcher", "model"),
    [(TORCHRUN, "tiny"), (ACCELERATE, "tiny"), (TORCHRUN, "embedded")],
    ids=["torchrun", "accelerate", "real"],
)
def test_two_processes_come_to_the_result_of_one(launcher, model, tmp_path):
    worker = Path(__file__).with_name("ranks_worker.py")
    command = [sys.executable, "-m", *launcher, worker, tmp_path, model]
    subprocess.run(command, env=ONE, check=True, timeout=300, capture_output=True)
    (tmp_path / "one").mkdir()
    ranks_worker.main(tmp_path / "one", model)
    for criterion in ranks_worker.CRITERIA[model]:
        two, one = (torch.load(folder / f"{criterion}.pt") for folder in (tmp_path, tmp_path / "one"))
        assert (two["processes"], one["processes"]) == (2, 1)
        assert two["kept"] == one["kept"]
        assert two["tokens"] == one["tokens"]
        assert two["errors"] == pytest.approx(one["errors"], rel=1e-9)
        for name, weight in one["weights"].items():
            assert torch.equal(two["weights"][name], weight), name


def started(words, rank, port):
    """One of two processes, with what a launcher would tell it."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "kprune", *map(str, words)]
    return subprocess.Popen(
        command, env={**ONE, **place}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def start_both(words):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [started(words, rank, port) for rank in (0, 1)]


def test_a_process_that_dies_ends_the_run_with_a_sentence_and_both_go_on(tmp_path):
    tokenizer = embedded_model().load_tokenizer()
    tiny.tiny_model("bert", vocab_size=len(tokenizer), pad_token_id=0).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    lines = [" ".join(line.split()) for line in python_documentation()[:300]]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    words = ["prune", tmp_path / "source", "--text", tmp_path / "text.txt", "--tokens", 5000, "--reduction", 0.6]
    words += ["--criterion", "compensated", "--json"]
    kept = tmp_path / "kept"
    both = start_both([*words, tmp_path / "out", "--checkpoint", kept])
    while not list(kept.glob("*/step-000.safetensors")) and all(each.poll() is None for each in both):
        time.sleep(0.01)
    both[1].send_signal(signal.SIGKILL)
    _, told = both[0].communicate(timeout=60)
    both[1].communicate()
    assert both[0].returncode == 1
    assert "process 0 of 2: another process of this run has ended" in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()

    both = start_both([*words, tmp_path / "out", "--checkpoint", kept])
    (first, _), (second, complaints) = (each.communicate(timeout=120) for each in both)
    assert [each.returncode for each in both] == [0, 0]
    assert (second, complaints) == ("", "")  # only the first process prints
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "text.txt"]
    result = CliRunner().invoke(main, [*map(str, words), str(tmp_path / "clean")])
    ours, theirs = json.loads(first), json.loads(result.stdout)
    assert [step["kept"] for step in ours["steps"]] == [step["kept"] for step in theirs["steps"]]
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "clean"))
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []


@pytest.mark.parametrize("others", [["--max-drop", "1"], ["--reduction", "0.5", "--method", "kwon"]])
def test_what_runs_in_one_process_only_is_refused(others, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(main, ["prune", "model", str(tmp_path / "out"), *others])
    assert result.exit_code == 2
    assert "several processes go with --reduction" in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device("cuda") == "cuda:1"
    assert own_device(None) is None
    with (
        pytest.raises(KpruneError, match=r"processes could not meet .*; start them with torchrun"),
        joined("cuda:1"),
    ):
        pass
    assert count() == 1
