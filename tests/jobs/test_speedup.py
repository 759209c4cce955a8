import pytest
from command_line import write_checkpoint
from fast_clock import install_fast_clock

from kprune.checkpoints.source import Source
from kprune.config import PruneConfig
from kprune.errors import KpruneError
from kprune.jobs.data_options import DataOptions
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint
from kprune.jobs.speedup import PruneToSpeedup

pytest_plugins = ["command_fixtures"]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    install_fast_clock(monkeypatch)


@pytest.fixture(scope="module")
def prepared(text, tmp_path_factory) -> Prepared:
    source = Source(write_checkpoint(tmp_path_factory.mktemp("model") / "tiny", intermediate_size=192))
    sample, _ = DataOptions(text=text).sample_and_test(wants_test=False, seed=0)
    return prepare(source, sample, None, PruneConfig(), tokens=1000)


@pytest.mark.parametrize("asked", [1.2, 1.5])
def test_the_requested_speedup_is_reached_and_recorded(prepared, asked, tmp_path):
    stage = PruneToSpeedup(asked, (4, 32), threads=1, cache=tmp_path / "cache")
    state = prune_checkpoint(prepared, PruneConfig(align=1), prune=stage, out=tmp_path / "out")
    found = state.details["speedup"]
    assert found["asked"] == asked
    assert found["measured"] == pytest.approx(asked, rel=0.1)
    assert state.result.config.as_json()["budget"] == "milliseconds of 4 × 32 tokens in torch, float32, 1 thread"
    assert found["latency"]["dtype"] == "float32"
    note = (
        f"{found['measured']:.2f} × as fast as before ({asked:g} × requested): batch 4 × 32 tokens, torch, float32, "
        "1 thread."
    )
    assert state.notes == (note,)
    assert note in " ".join((tmp_path / "out/README.md").read_text().split())
    assert len(list((tmp_path / "cache").glob("latency-*.json"))) == 1


def test_a_speedup_out_of_reach_is_refused_before_pruning(prepared, monkeypatch):
    monkeypatch.setattr("kprune.pruning.pruner._remove", lambda *_: pytest.fail("was pruned"))
    with pytest.raises(KpruneError, match="a speed-up of 1000 cannot be reached on inputs of 4 × 32 tokens in torch"):
        prune_checkpoint(prepared, PruneConfig(), prune=PruneToSpeedup(1000, (4, 32), threads=1))
