"""Several processes on one run, compared with one process."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import ranks_worker
import torch
from command_line import kprune, write_checkpoint, write_text
from safetensors.torch import load_file

from kprune import KpruneError
from kprune.runtime.distributed import (
    all_reduce_sum,
    all_true,
    broadcast,
    local_device,
    process_group,
    rank,
    shard,
    world_size,
)

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"]
# A process of a run that ends without a word once it has finished a sublayer.
DYING = """
import os, signal
from kprune.cli.main import main
from kprune.pruning.journal import FolderJournal

def add_and_die(self, number, outcome, add=FolderJournal.add):
    add(self, number, outcome)
    os.kill(os.getpid(), signal.SIGKILL)

FolderJournal.add = add_and_die
main()
"""


@pytest.fixture
def by_one_process(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    ranks_worker.main(folder, models)
    return folder


@pytest.mark.parametrize(
    ("launcher", "models"),
    [
        (TORCHRUN, ["tiny"]),
        pytest.param(TORCHRUN, ["embedded"], marks=pytest.mark.slow),
        pytest.param(ACCELERATE, ["tiny"], marks=pytest.mark.slow),
    ],
    ids=["torchrun", "torchrun, embedded", "accelerate"],
)
def test_two_processes_come_to_the_result_of_one(launcher, models, by_one_process, tmp_path):
    command = [sys.executable, "-m", *launcher, ranks_worker.__file__, tmp_path, *models]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=600, capture_output=True)
    for model in models:
        for options in ranks_worker.CASES[model]:
            one, two = (
                torch.load(ranks_worker.file_of(folder, model, options)) for folder in (by_one_process, tmp_path)
            )
            assert (two["processes"], one["processes"]) == (2, 1)
            assert two["kept"] == one["kept"], options
            assert two["tokens"] == one["tokens"]
            assert two["errors"] == pytest.approx(one["errors"], rel=1e-9)
            for name, weight in one["weights"].items():
                assert torch.equal(two["weights"][name], weight), (options, name)


def start_both(arguments, second=("-m", "kprune")):
    """Both processes of a run, with the variables that a launcher sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, *start, *map(str, arguments)],
            env={**ENVIRONMENT, **place, "RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, start in enumerate((("-m", "kprune"), second))
    ]


def test_a_process_that_dies_ends_the_run_with_a_sentence_and_both_go_on(tmp_path):
    source, text = write_checkpoint(tmp_path / "source"), write_text(tmp_path / "text.txt", lines=150)
    arguments = ["prune", source, "--text", text, "--tokens", 2000, "--reduction", 0.6, "--json"]
    kept = ["--checkpoint", tmp_path / "kept"]
    both = start_both([*arguments, tmp_path / "out", *kept], second=("-c", DYING))
    _, message = both[0].communicate(timeout=600)
    both[1].communicate(timeout=600)
    assert [each.returncode for each in both] == [1, -signal.SIGKILL]
    assert "process 0 of 2: another process of this run has ended; its own message says why" in message
    assert "Traceback" not in message
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / "kept" / "process-1-of-2").glob("step-*.safetensors"))) == 1

    both = start_both([*arguments, tmp_path / "out", *kept])
    (first, _), (second, complaints) = (each.communicate(timeout=600) for each in both)
    assert [each.returncode for each in both] == [0, 0]
    assert (second, complaints) == ("", "")  # only the first process prints
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "text.txt"]
    result = kprune(*arguments, tmp_path / "clean")
    ours, theirs = json.loads(first), json.loads(result.stdout)
    assert [step["kept"] for step in ours["steps"]] == [step["kept"] for step in theirs["steps"]]
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "clean"))
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group():
        assert (world_size(), rank()) == (1, 0)
        assert shard([1, 2, 3]) == [1, 2, 3]
        assert (all_true(True), all_true(False)) == (True, False)
        tensor = torch.arange(3.0)
        assert broadcast(tensor) is tensor
        all_reduce_sum([tensor])
        assert tensor.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert local_device("cuda") == "cuda:1"
    assert local_device(None) is None
    with (
        pytest.raises(KpruneError, match=r"cannot connect the processes \(.*\); start them with torchrun"),
        process_group("cuda:1"),
    ):
        pass
    assert world_size() == 1
