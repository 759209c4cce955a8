import json

import pytest
import tiny
import torch
from command_line import write_checkpoint, write_text
from fast_clock import install_fast_clock

from kprune.checkpoints.source import Source
from kprune.config import HealConfig, PruneConfig
from kprune.errors import KpruneError
from kprune.jobs import sweep as sweeping
from kprune.jobs.data_options import DataOptions
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint
from kprune.jobs.sweep import SweepPlan, read_sweep, sweep
from kprune.jobs.sweep_choice import Point, knee_of, largest_within, points_of
from kprune.pruning import knowledge_pruning
from kprune.pruning import teacher as teachers
from kprune.pruning.pruner import Pruner
from kprune.runtime.tensor_store import open_store

TIMES = ("milliseconds", "prune_seconds", "evaluation_seconds", "timing_seconds", "seconds", "forward_seconds")
PLAN = SweepPlan((0.2, 0.5, 0.8), shape=(2, 8), seconds=0.0)


@pytest.fixture(autouse=True)
def _fast_clock(monkeypatch):
    install_fast_clock(monkeypatch)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    write_text(root / "lines.txt", 120)
    write_checkpoint(root / "model")
    return root


def job(place, **options) -> Prepared:
    data = DataOptions(text=place / "lines.txt", tokens=600, limit=30)
    sample, test = data.sample_and_test(wants_test=True, seed=0)
    return prepare(Source(place / "model"), sample, test, PruneConfig(), tokens=600, max_length=48, **options)


@pytest.fixture(scope="module")
def swept(place):
    """The file of a whole sweep."""
    with pytest.MonkeyPatch.context() as patch:
        install_fast_clock(patch)
        sweep(job(place), PruneConfig(align=1), PLAN, place / "whole.jsonl")
    return place / "whole.jsonl"


def without_times(lines):
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def test_points_equal_prunes_of_their_own(place, swept):
    for line in read_sweep(swept)[1:]:
        state = prune_checkpoint(job(place), PruneConfig(reduction=line["reduction"], align=1))
        assert [len(step.kept) for step in state.result.steps] == line["kept"]
        assert [[step.error_before, step.error_after] for step in state.result.steps] == line["errors"]
        assert list(state.result.parameters) == line["parameters"]
        assert json.loads(json.dumps(state.evaluation.as_json()["fidelity"])) == line["fidelity"]


def test_one_measurement_and_one_pass_of_the_teacher_serve_all_points(place, tmp_path, monkeypatch):
    measured, passed = [], []
    measure, pass_layer = knowledge_pruning.measure, teachers.pass_layer
    monkeypatch.setattr(knowledge_pruning, "measure", lambda *a, **b: measured.append(1) or measure(*a, **b))
    monkeypatch.setattr(teachers, "pass_layer", lambda *a: passed.append(a[1][0].index) or pass_layer(*a))
    prepared, shares = job(place), []
    path = tmp_path / "s.jsonl"
    sweep(prepared, PruneConfig(align=1), PLAN, path, advance=lambda p: shares.append(p.fraction))
    batches = len(prepared.pruner(PruneConfig(align=1), sweeping.RunConfig()).shared.sample.batches)
    assert len(measured) == 1
    assert len(passed) <= 4 * batches  # three layers; one of them from its FFN at first
    assert shares == sorted(shares)  # progress never goes back
    assert (shares[0], shares[-1]) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize(("family", "place_of"), [("bert", "memory"), ("mpnet", "disk"), ("modernbert", "memory")])
def test_kept_targets_do_not_change_results(family, place_of, tmp_path):
    model, batches = tiny.tiny_model(family), tiny.batched(tiny.texts())
    shared, alone = Pruner(model, batches, align=1), Pruner(model, batches, align=1)
    shared.keep_targets(open_store(None if place_of == "memory" else tmp_path))
    for reduction in (0.05, 0.7, 0.3):
        ours, theirs = shared.prune(reduction), alone.prune(reduction)
        for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_a_stopped_sweep_continues_where_it_was(place, swept, tmp_path, monkeypatch):
    class StoppedError(Exception):
        pass

    def stop(line):
        raise StoppedError

    path = tmp_path / "s.jsonl"
    with pytest.raises(StoppedError):
        sweep(job(place), PruneConfig(align=1), PLAN, path, finished=stop)
    with path.open("a") as file:
        file.write('{"kind": "point", "reduc')  # a kill while a line was written
    assert [line["reduction"] for line in read_sweep(path)[1:]] == [0.2]
    new = []
    lines = sweep(job(place), PruneConfig(align=1), PLAN, path, finished=new.append)
    assert [line["reduction"] for line in new] == [0.5, 0.8]
    assert without_times(lines) == without_times(read_sweep(swept))
    monkeypatch.setattr(Pruner, "prune", lambda *_: pytest.fail("a finished point was pruned again"))
    sweep(job(place), PruneConfig(align=1), PLAN, path)


def test_a_file_of_another_sweep_is_refused(place, swept, tmp_path):
    before = swept.read_bytes()
    with pytest.raises(KpruneError, match=r"another settings \(align: 1 and 2\); name another file"):
        sweep(job(place), PruneConfig(align=2), PLAN, swept)
    other = tmp_path / "other.jsonl"
    other.write_text('{"task": "sst2"}\n')
    with pytest.raises(KpruneError, match="is not the file of a kprune sweep"):
        sweep(job(place), PruneConfig(align=1), PLAN, other)
    assert swept.read_bytes() == before


def test_healed_models_stand_beside_the_plain_ones(place, swept, tmp_path):
    heal = HealConfig(heal="1x", step_tokens=200)
    plan = SweepPlan((0.5,), heal=heal, shape=(2, 8), seconds=0.0)
    lines = sweep(job(place, held_out=heal.held_out), PruneConfig(align=1), plan, tmp_path / "s.jsonl")
    assert [(line["reduction"], line["healed"]) for line in lines[1:]] == [(0.5, False), (0.5, True)]
    assert lines[1]["flops"] == lines[2]["flops"]
    assert lines[1]["kept"] == lines[2]["kept"]


def points(*drops: float) -> list[Point]:
    return [Point((number + 1) / len(drops), False, drop, drop + 0.5) for number, drop in enumerate(drops)]


@pytest.mark.parametrize(
    ("drops", "expected"),
    [
        ((0.1, 0.2, 0.3, 5.0, 10.0), 0.6),
        ((1.0, 2.0, 3.0, 4.0, 5.0), 1.0),  # a straight line has no knee: all points are as good
        ((0.0, 0.0, 0.0, 0.0, 0.0), 1.0),
        ((-1.0, -0.5, 0.0, -0.2, 0.0), 1.0),
        ((3.0, 0.0, 0.1, 0.2, 9.0), 0.8),
    ],
)
def test_the_knee_is_the_last_point_before_the_fall(drops, expected):
    assert knee_of(points(*drops)).reduction == pytest.approx(expected)


def test_the_largest_within_a_drop_is_held_by_its_interval():
    given = points(0.1, 0.4, 0.7, 2.0)
    assert largest_within(given, 1.0).reduction == 0.5
    assert largest_within(given, 1.0, guard=False).reduction == 0.75
    assert largest_within(given, 0.2) is None


def test_a_shape_beyond_the_models_limit_is_refused_before_any_work(place, tmp_path):
    with pytest.raises(KpruneError, match="use a shorter length"):
        sweep(job(place), PruneConfig(), SweepPlan((0.5,), shape=(1, 999)), tmp_path / "s.jsonl")
    assert not (tmp_path / "s.jsonl").exists()
    assert points_of([{}]) == []
