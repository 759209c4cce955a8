"""Tables of times, and the budget that is made of them."""

from dataclasses import replace

import pytest
import tiny
from flop_clock import install_flop_clock

import kprune
from kprune import KpruneError, Pruner, prune
from kprune.deploy import latency
from kprune.deploy.latency import Latency, measure_latency, measured_speedup
from kprune.deploy.shape_variants import emptied
from kprune.deploy.timing import Times
from kprune.models.sublayer import find

BATCHES = tiny.batched(tiny.texts(64))


# Attention is free up to the first head, and 2 ms each after; FFN costs 1 ms per 16 neurons.
TABLE = Latency(
    device="a calculator",
    runtime="torch",
    threads=1,
    batch=32,
    length=128,
    dense=100.0,
    fixed=20.0,
    tables={"attention": [(0, 0.0), (1, 0.0), (4, 6.0)], "ffn": [(0, 0.0), (48, 3.0)]},
    whole=[(0.0, 0.0), (10.0, 30.0), (30.0, 80.0)],
)


def test_prices_are_interpolated():
    attention, ffn = find(tiny.tiny_model())[:2]
    assert (attention.units, ffn.units) == (4, 48)
    assert TABLE.price(attention).tolist() == pytest.approx([0.0, 0.0, 2.0, 4.0, 6.0])
    assert TABLE.price(ffn).tolist() == pytest.approx([n / 16 for n in range(49)])


def test_reductions_come_from_whole_models():
    # Twice as fast: 50 ms, 30 of them for units, for which parts may add up to 10 of 30.
    assert TABLE.reduction(2.0) == pytest.approx(2 / 3)
    assert TABLE.reduction(1.0) == pytest.approx(0.0)
    assert TABLE.reduction(4.0) == pytest.approx(1 - (5 / 30 * 10) / 30)


@pytest.mark.parametrize("asked", [0.5, 5.0, 50.0, float("nan")])
def test_a_speedup_out_of_reach_is_refused_with_the_limit(asked):
    with pytest.raises(KpruneError, match=rf"a speed-up of {asked:g} cannot be reached.*is 5\.00 times as fast"):
        TABLE.reduction(asked)


def test_a_table_of_another_model_is_refused():
    wide = find(tiny.tiny_model(intermediate_size=128))[1]
    with pytest.raises(KpruneError, match="layer 0 ffn has 128 units, and the table ends at 48"):
        TABLE.price(wide)


def test_milliseconds_are_spent_like_flops():
    model = tiny.tiny_model()
    pruned = prune(model, BATCHES, reduction=0.5, budget=TABLE.budget)
    dense = sum(float(TABLE.price(sublayer)[-1]) for sublayer in find(model))
    spent = sum(float(TABLE.price(s)[len(step.kept)]) for s, step in zip(find(model), pruned.steps, strict=True))
    assert spent <= 0.5 * dense
    assert spent > 0.5 * dense - 2.0  # less than a head, the dearest group
    assert pruned.config.as_json()["budget"] == "milliseconds of 32 × 128 tokens in torch, float32, 1 thread"


@pytest.fixture(scope="module")
def wide():
    """A model with more than a few units per sublayer."""
    return tiny.tiny_model(hidden_size=48, intermediate_size=192, num_attention_heads=6)


@pytest.fixture
def flop_clock(monkeypatch):
    install_flop_clock(monkeypatch)


@pytest.fixture(scope="module")
def measured(wide):
    """The table of the wide model on the simulated clock."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        install_flop_clock(monkeypatch)
        return measure_latency(wide, batch=2, length=16, threads=1, seconds=0.0)


def test_a_table_is_measured_kept_and_read_back(wide, tmp_path, flop_clock, monkeypatch):
    found = measure_latency(wide, batch=4, length=32, threads=1, cache=tmp_path, seconds=0.0)
    assert 0 < found.fixed < found.dense
    for points in found.tables.values():
        assert [units for units, _ in points] == sorted({units for units, _ in points})
        assert [ms for _, ms in points] == sorted(ms for _, ms in points)
    assert found.tables["attention"][-1][0] == 6
    assert found.tables["ffn"][-1][0] == 192
    # More neurons take more time: that is the point of the table.
    assert found.tables["ffn"][-1][1] > 2 * found.tables["ffn"][1][1]
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]

    def refuse(*arguments, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr(latency, "time_interleaved", refuse)
    assert measure_latency(wide, batch=4, length=32, threads=1, cache=tmp_path, seconds=0.0) == found
    with pytest.raises(AssertionError, match="measured again"):  # another shape is another table
        measure_latency(wide, batch=4, length=31, threads=1, cache=tmp_path, seconds=0.0)
    next(tmp_path.iterdir()).write_text("{")
    with pytest.raises(AssertionError, match="measured again"):  # so is a damaged one
        measure_latency(wide, batch=4, length=32, threads=1, cache=tmp_path, seconds=0.0)


@pytest.mark.usefixtures("flop_clock")
def test_a_model_is_not_slower_than_itself(wide, measured):
    assert measured_speedup(wide, wide, measured, seconds=0.0) == 1.0
    speedup = measured_speedup(emptied(wide), wide, measured, seconds=0.0)
    assert speedup == pytest.approx(measured.dense / measured.fixed)
    assert speedup > 1.5


def test_parts_of_the_table_add_up_to_the_model(wide, measured):
    parts = sum(float(measured.price(sublayer)[-1]) for sublayer in find(wide))
    assert measured.fixed + parts == pytest.approx(measured.dense, rel=0.02)


def test_times_too_short_to_tell_apart_are_refused(wide, monkeypatch):
    def same(calls, **options):
        return {name: Times(((0.001,),)) for name in calls}

    monkeypatch.setattr(latency, "time_interleaved", same)
    with pytest.raises(KpruneError, match="too short to tell apart; use a larger shape"):
        measure_latency(wide, batch=1, length=4)


def test_no_unit_is_free(wide, monkeypatch):
    def flat(calls, **options):  # only whole models differ
        return {name: Times(((0.002 if name[0] in ("dense", "whole") else 0.001,),)) for name in calls}

    monkeypatch.setattr(latency, "time_interleaved", flat)
    found = measure_latency(wide, batch=1, length=4)
    for sublayer in find(wide)[:2]:
        assert (found.price(sublayer).diff() > 0).all()


def test_what_a_preview_misses_is_put_right(wide, monkeypatch):
    # A calculator's table, in which parts add up: what a clock says of so small a model is noise.
    tables = {"attention": [(0, 0.0), (6, 6.0)], "ffn": [(0, 0.0), (192, 12.0)]}
    parts = sum(tables[sublayer.kind][-1][1] for sublayer in find(wide))
    found = replace(TABLE, dense=20.0 + parts, tables=tables, whole=[(0.0, 0.0), (parts, parts)])
    pruner = Pruner(wide, BATCHES, budget=found.budget, ridge=1e-2)
    shapes = []

    def slower(model, dense, table, seconds):
        """A machine on which what is left takes twice as long as the table says."""
        shapes.append([sublayer.units for sublayer in find(model)])
        left = sum(float(found.price(sublayer)[-1]) for sublayer in find(model) if sublayer.units)
        return found.dense / (found.fixed + 2 * left)

    monkeypatch.setattr(latency, "measured_speedup", slower)
    asked = found.dense / (found.fixed + 0.4 * parts)
    reduction = latency.reduction_for_speedup(pruner, found, asked)
    # 40 % of the units' time may stay, and all take twice as long: 20 % of the parts.
    assert 1 - reduction == pytest.approx(0.2, abs=0.03)
    assert shapes[0] == pruner.preview(found.reduction(asked))
    assert sum(shapes[1]) < sum(shapes[0])


def test_the_earlier_public_name_stays():
    assert kprune.aim is latency.reduction_for_speedup
