"""The whole job, and that the command line, the comparison and the demo all run it."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command_line import kprune, write_checkpoint
from safetensors.torch import load_file
from task_data import write_data

from kprune.checkpoints.source import Source
from kprune.cli import prune_run
from kprune.config import HealConfig, PruneConfig, RunConfig
from kprune.data.tasks import TASKS
from kprune.errors import KpruneError
from kprune.jobs import comparison, demo, prune_checkpoint
from kprune.jobs.data_options import DataOptions
from kprune.jobs.grid import Grid
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import State, require_output, text_for_passes
from kprune.pruning.progress import Progress

pytest_plugins = ["command_fixtures"]

CONFIG = PruneConfig(reduction=0.5, align=1)


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    """A tiny classifier in single precision."""
    return write_checkpoint(tmp_path_factory.mktemp("dense") / "tiny")


@pytest.fixture(scope="module")
def prepared(dense, text) -> Prepared:
    sample, test = DataOptions(text=text).sample_and_test(wants_test=True, seed=0)
    return prepare(Source(dense), sample, test, CONFIG, tokens=1000, max_length=60)


def test_stages_run_between_pruning_and_testing_and_their_model_is_tested_and_saved(prepared, tmp_path, monkeypatch):
    order = []

    def record(name, function):
        def call(*arguments, **options):
            order.append(name)
            return function(*arguments, **options)

        return call

    for name in ("evaluate", "save"):
        monkeypatch.setattr(prune_checkpoint, name, record(name, getattr(prune_checkpoint, name)))

    def reverse_classes(state: State) -> State:
        order.append("reverse classes")
        assert state.evaluation is None
        with torch.no_grad():
            head = state.result.model.classifier
            head.weight.copy_(head.weight.flip(0))
            head.bias.copy_(head.bias.flip(0))
        return replace(state, notes=(*state.notes, "The classes are reversed."))

    def describe(state: State) -> State:
        order.append("describe")
        return replace(state, details={"classes": "reversed"})

    prune = record("prune", prune_checkpoint.prune_to_reduction)
    state = prune_checkpoint.prune_checkpoint(
        prepared, CONFIG, prune=prune, stages=[reverse_classes, describe], out=tmp_path / "out"
    )
    assert order == ["prune", "reverse classes", "describe", "evaluate", "save"]
    assert state.out == tmp_path / "out"
    assert state.details == {"classes": "reversed"}
    stored = load_file(tmp_path / "out/model.safetensors")
    weights = state.result.model.state_dict()
    assert stored.keys() <= weights.keys()
    assert all(torch.equal(stored[name], weights[name]) for name in stored)
    assert torch.equal(stored["classifier.weight"], prepared.model.classifier.weight.flip(0))
    card = (tmp_path / "out/README.md").read_text()
    assert "The classes are reversed." in card
    assert "## What was lost" in card

    plain = prune_checkpoint.prune_checkpoint(prepared, CONFIG)
    assert torch.equal(plain.result.model.classifier.weight, prepared.model.classifier.weight)
    # Classes 0 and 2 change places: what agreed with the dense model in them does not any more.
    assert plain.evaluation.fidelity[0].value > state.evaluation.fidelity[0].value
    assert plain.out is None


def test_without_a_test_nothing_is_evaluated(prepared):
    state = prune_checkpoint.prune_checkpoint(replace(prepared, test=None), CONFIG)
    assert (state.evaluation, state.out) == (None, None)
    assert state.result.config.reduction == 0.5


def test_a_stage_that_evaluates_is_not_evaluated_again(prepared, monkeypatch):
    evaluation = prune_checkpoint.prune_checkpoint(prepared, CONFIG).evaluation
    monkeypatch.setattr(prune_checkpoint, "evaluate", lambda *_, **__: pytest.fail("was evaluated again"))
    state = prune_checkpoint.prune_checkpoint(
        prepared, CONFIG, stages=[lambda state: replace(state, evaluation=evaluation)]
    )
    assert state.evaluation is evaluation


def test_progress_of_pruning_and_of_the_test_is_shown(prepared):
    phases: list[list[Progress]] = []

    @contextmanager
    def show_progress():
        phases.append([])
        yield phases[-1].append

    prune_checkpoint.prune_checkpoint(prepared, CONFIG, show_progress=show_progress)
    assert len(phases) == 2
    for phase in phases:
        fractions = [progress.fraction for progress in phase]
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1.0)


def test_a_journal_is_deleted_once_the_model_is_written(prepared, tmp_path, monkeypatch):
    run, out = RunConfig(checkpoint=tmp_path / "kept"), tmp_path / "out"

    def killed(state: State) -> State:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_checkpoint.prune_checkpoint(prepared, CONFIG, run, stages=[killed], out=out)
    assert (tmp_path / "kept/step-005.safetensors").is_file()
    monkeypatch.setattr("kprune.pruning.pruner._remove", lambda *_: pytest.fail("was pruned again"))
    prune_checkpoint.prune_checkpoint(prepared, CONFIG, run, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_exists_is_refused_unless_it_may_be_replaced(prepared, tmp_path):
    out = tmp_path / "out"
    assert require_output(out, RunConfig(), overwrite=False) is False
    prune_checkpoint.prune_checkpoint(replace(prepared, test=None), CONFIG, out=out)
    with pytest.raises(KpruneError, match="out exists; choose another folder"):
        require_output(out, RunConfig(), overwrite=False)
    assert require_output(out, RunConfig(), overwrite=True) is True


def count_calls(module, monkeypatch) -> list[PruneConfig]:
    """Configurations of the calls of `prune_checkpoint` from a module."""
    calls: list[PruneConfig] = []

    def count(prepared, config, *arguments, **options):
        calls.append(config)
        return prune_checkpoint.prune_checkpoint(prepared, config, *arguments, **options)

    monkeypatch.setattr(module, "prune_checkpoint", count)
    return calls


def test_the_command_line_runs_the_job(dense, text, tmp_path, monkeypatch):
    calls = count_calls(prune_run, monkeypatch)
    options = ("--text", text, "--tokens", 1000, "--align", 1, "--reduction", 0.5)
    assert kprune("prune", dense, tmp_path / "out", *options).exit_code == 0
    assert calls == [CONFIG]


def test_a_comparison_runs_the_job_for_every_cell(tmp_path, monkeypatch):
    write_data(tmp_path / "data", TASKS["sst2"], rows=60)
    model = write_checkpoint(tmp_path / "model", num_labels=2)
    grid = Grid(
        {"sst2": str(model)}, ("kprune align=1", "random"), (0.5,), (3,), tokens=400, data=str(tmp_path / "data")
    )
    calls = count_calls(comparison, monkeypatch)
    lines = list(comparison.run_cells(grid, grid.cells()))
    assert ["error" in line for line in lines] == [False, False]
    assert calls == [PruneConfig(align=1, seed=3), PruneConfig(method="random", seed=3)]


def test_the_demo_runs_the_job(tmp_path, monkeypatch):
    source = Source(write_checkpoint(tmp_path / "model", "embedding", max_position_embeddings=256))
    monkeypatch.setattr(demo, "embedded_model", lambda: source)
    monkeypatch.setattr(demo, "HELD_OUT", 32)
    monkeypatch.setattr(demo, "ROUNDS", 2)
    calls = count_calls(demo, monkeypatch)
    result = demo.run_demo(tmp_path / "out", reduction=0.4, tokens=500)
    assert calls == [PruneConfig(reduction=0.4)]
    assert result.flops[1] <= 0.6 * result.flops[0]
    assert result.megabytes[1] < result.megabytes[0]
    assert 0 < result.worst_cosine <= result.cosine <= 1.0
    assert [query for query, _, _ in result.nearest] == list(demo.QUERIES)
    assert Source(tmp_path / "out").load().num_parameters() == result.parameters[1]


@pytest.mark.parametrize(
    ("heal", "available", "wanted"), [("4x", 90, 10), ("5x", 90, 20), ("5x", 12, 20), ("0x", 90, 10)]
)
def test_healing_reads_unseen_text_first_and_fills_it_up_with_the_sample(heal, available, wanted):
    """Texts of one token each; the sample has ten, two judge, and `available` more can be drawn."""
    texts = [
        {"input_ids": torch.tensor([[number]]), "attention_mask": torch.ones(1, 1, dtype=torch.long)}
        for number in range(12 + available)
    ]
    prepared = SimpleNamespace(batches=texts[:10], judging=texts[10:12], draw_more=lambda tokens: texts[:tokens])
    read = text_for_passes(prepared, HealConfig(heal=heal), 10)
    numbers = [int(batch["input_ids"]) for batch in read]
    unseen = list(range(12, 12 + min(wanted, available)))
    assert numbers == unseen + list(range(wanted - len(unseen)))
