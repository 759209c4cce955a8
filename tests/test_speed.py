"""Times, tables of times, and the budget that is made of them."""

import itertools
import json
from dataclasses import replace
from statistics import median
from time import perf_counter, sleep

import pytest
import tiny
import torch

from kprune import KpruneError, Pruner, latency, prune, timing
from kprune.budget import total_flops
from kprune.latency import Latency, measure_latency, measured_speedup
from kprune.runtimes import RUNTIMES, runtime_named, torch_threads
from kprune.shapes import emptied, reshaped, stacked
from kprune.speed import Contender, bench
from kprune.store import Source
from kprune.sublayer import find
from kprune.timing import Times, random_inputs, take_turns

BATCHES = tiny.batched(tiny.texts(64))


def test_calls_take_turns_and_ratios_are_of_the_same_round():
    order = []
    calls = {name: (lambda name=name: (order.append(name), sleep(0.021))) for name in "abc"}
    times = take_turns(calls, seconds=0.0, least=3)
    # A turn is a call that is not timed and one that is; after the warm-up each round starts with the next call.
    assert "".join(name for name, _ in itertools.groupby(order)) == "abc" + "abc" + "bca" + "cab"
    assert all(len(taken.rounds) == 3 for taken in times.values())
    assert all(0.02 < second < 0.1 for second in times["a"].all)


def test_short_calls_are_timed_several_times_in_a_turn():
    times = take_turns({"short": lambda: sleep(0.02)}, seconds=0.0, least=2)["short"]
    assert all(2 <= len(taken) <= 5 for taken in times.rounds)


def test_what_another_call_leaves_behind_is_not_timed():
    """Threads of ONNX Runtime wait busily for some 50 ms after a call, and slow down whatever else runs then."""
    ended = [0.0]

    def busy():
        sleep(0.005)
        ended[0] = perf_counter()

    def quiet():
        sleep(0.015 if perf_counter() - ended[0] < 0.06 else 0.003)

    times = take_turns({"busy": busy, "quiet": quiet}, seconds=0.0, least=3)
    assert all(median(taken) < 0.01 for taken in times["quiet"].rounds)


def test_a_slow_spell_does_not_change_the_ratio():
    busy = (1.0, 9.0, 9.0)
    ours = Times(tuple((2.0 * each,) for each in busy))
    theirs = Times(tuple((each,) for each in busy))
    assert ours.ratio(theirs) == 2.0
    # The spell hit one of the two only in two rounds of five: the medians differ by 9, the rounds' ratios do not.
    ours, theirs = (Times(tuple((each,) for each in rounds)) for rounds in ((9, 9, 9, 1, 1), (9, 9, 1, 1, 1)))
    assert ours.p50 / theirs.p50 == 9.0
    assert ours.ratio(theirs) == 1.0
    assert Times(((4.0,), (1.0, 2.0))).p50 == 2.0
    assert Times(((5.0,),)).ratio(Times(((3.0,),)), without=1.0) == 2.0
    assert Times((tuple(range(1, 101)),)).p95 == 95


@pytest.mark.parametrize("family", tiny.FAMILY_NAMES)
def test_shapes_are_what_they_say(family):
    model = tiny.tiny_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert [s.units for s in find(reshaped(model, lambda s: 3))] == [3] * len(find(model))
    assert not any(s.units for s in find(emptied(model)))
    assert [s.units for s in find(stacked(model, 1, 5))] == [s.units for s in find(model)[2:4]] * 5
    inputs = random_inputs(model.config, 2, 9, model.device)
    for other in (reshaped(model, lambda s: 3), emptied(model), stacked(model, 0, 0), stacked(model, 1, 5)):
        with torch.no_grad():
            assert other(**inputs).logits.shape == model(**inputs).logits.shape
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_middle_of_the_model_is_all_that_is_left_out_of_stacked():
    model = tiny.tiny_model()
    bare = stacked(model, 0, 0)
    layers = sum(p.numel() for p in model.base_model.encoder.parameters())
    assert model.num_parameters() - bare.num_parameters() == layers


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
    with pytest.raises(KpruneError, match="layer 0 ffn has 128 units, and times are known up to 48"):
        TABLE.price(wide)


def test_milliseconds_are_spent_like_flops():
    model = tiny.tiny_model()
    pruned = prune(model, BATCHES, reduction=0.5, budget=TABLE.budget)
    dense = sum(float(TABLE.price(sublayer)[-1]) for sublayer in find(model))
    spent = sum(float(TABLE.price(s)[len(step.kept)]) for s, step in zip(find(model), pruned.steps, strict=True))
    assert spent <= 0.5 * dense
    assert spent > 0.5 * dense - 2.0  # less than a head, the dearest group
    assert pruned.settings.budget == "milliseconds of 32 × 128 tokens in torch, 1 threads"


@pytest.fixture(scope="module")
def wide():
    """A model that is slow enough to be timed."""
    return tiny.tiny_model(hidden_size=96, intermediate_size=768, num_attention_heads=6)


@pytest.fixture
def hasty(monkeypatch):
    """Short turns: one thread of torch leaves nothing behind."""
    monkeypatch.setattr(timing, "WARMING", 0.02)


@pytest.mark.usefixtures("hasty")
def test_a_table_is_measured_kept_and_read_back(wide, tmp_path, monkeypatch):
    found = measure_latency(wide, batch=4, length=32, threads=1, cache=tmp_path, seconds=0.1)
    assert 0 < found.fixed < found.dense
    for points in found.tables.values():
        assert [units for units, _ in points] == sorted({units for units, _ in points})
        assert [ms for _, ms in points] == sorted(ms for _, ms in points)
    assert found.tables["attention"][-1][0] == 6
    assert found.tables["ffn"][-1][0] == 768
    # More neurons take more time: that is the point of the table.
    assert found.tables["ffn"][-1][1] > 2 * found.tables["ffn"][1][1]
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]

    def refuse(*arguments, **options):
        raise AssertionError("measured again")

    monkeypatch.setattr(latency, "take_turns", refuse)
    assert measure_latency(wide, batch=4, length=32, threads=1, cache=tmp_path, seconds=0.1) == found
    with pytest.raises(AssertionError, match="measured again"):  # another shape is another table
        measure_latency(wide, batch=4, length=31, threads=1, cache=tmp_path, seconds=0.1)
    next(tmp_path.iterdir()).write_text("{")
    with pytest.raises(AssertionError, match="measured again"):  # so is a damaged one
        measure_latency(wide, batch=4, length=32, threads=1, cache=tmp_path, seconds=0.1)


@pytest.mark.usefixtures("hasty")
def test_a_model_is_not_slower_than_itself(wide):
    found = measure_latency(wide, batch=2, length=16, threads=1, seconds=0.1)
    assert measured_speedup(wide, wide, found, seconds=0.3) == pytest.approx(1.0, abs=0.35)
    assert measured_speedup(emptied(wide), wide, found, seconds=0.3) > 1.5


def test_times_too_short_to_tell_apart_are_refused(wide, monkeypatch):
    def same(calls, **options):
        return {name: Times(((0.001,),)) for name in calls}

    monkeypatch.setattr(latency, "take_turns", same)
    with pytest.raises(KpruneError, match="too short to tell apart; use a larger shape"):
        measure_latency(wide, batch=1, length=4)


def test_no_unit_is_free(wide, monkeypatch):
    def flat(calls, **options):  # only whole models differ
        return {name: Times(((0.002 if name[0] in ("dense", "whole") else 0.001,),)) for name in calls}

    monkeypatch.setattr(latency, "take_turns", flat)
    found = measure_latency(wide, batch=1, length=4)
    for sublayer in find(wide)[:2]:
        assert (found.price(sublayer).diff() > 0).all()


def test_what_a_preview_misses_is_put_right(wide, monkeypatch):
    # A calculator's table, in which parts add up: what a clock says of so small a model is noise.
    tables = {"attention": [(0, 0.0), (6, 6.0)], "ffn": [(0, 0.0), (768, 12.0)]}
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
    reduction = latency.aim(pruner, found, asked)
    # 40 % of the units' time may stay, and all take twice as long: 20 % of the parts.
    assert 1 - reduction == pytest.approx(0.2, abs=0.03)
    assert shapes[0] == pruner.preview(found.reduction(asked))
    assert sum(shapes[1]) < sum(shapes[0])


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with torch_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


@pytest.fixture(scope="module")
def folders(wide, tmp_path_factory):
    """A model and a pruned one, saved."""
    from kprune import save

    folder = tmp_path_factory.mktemp("models")
    wide.save_pretrained(folder / "dense")
    save(prune(wide, BATCHES, reduction=0.7, ridge=1e-2), folder / "small")
    return folder


def test_models_are_timed_side_by_side(folders):
    contenders = [Contender(name, Source(folders / name)) for name in ("small", "dense")]
    result = bench(contenders, shapes=[(4, 32), (1, 8)], threads=1, seconds=0.3)
    json.dumps(result.as_json())
    assert result.reference == "dense"
    assert [(t.model, t.batch) for t in result.timings] == [("small", 4), ("dense", 4), ("small", 1), ("dense", 1)]
    small, dense = result.timings[:2]
    assert dense.speedup is None
    assert small.p50_ms < dense.p50_ms
    assert small.speedup > 1.0
    assert 0 < small.p50_ms <= small.p95_ms
    assert small.texts_per_second == pytest.approx(4e3 / small.p50_ms)
    flops = [total_flops(find(Source(folders / name).load()), 32) for name in ("dense", "small")]
    assert small.flops_ratio == pytest.approx(flops[0] / flops[1])
    # What eats the difference adds up to the difference.
    assert small.loss.total == pytest.approx(small.p50_ms - dense.p50_ms / small.flops_ratio, abs=1e-6)
    assert small.loss.norms > 0
    sizes = {each.model: each.disk_megabytes for each in result.footprints}
    assert sizes["small"] == (folders / "small/model.safetensors").stat().st_size / 1e6
    assert sizes["small"] < sizes["dense"]
    assert all(each.load_seconds > 0 and each.peak_megabytes > 0 for each in result.footprints)


def test_a_third_model_does_not_change_what_is_told_of_the_first(folders, tmp_path):
    other = tiny.tiny_model(hidden_size=96, intermediate_size=3072, num_attention_heads=6, num_hidden_layers=12)
    other.save_pretrained(tmp_path / "emptied")
    folder = {"small": folders / "small", "dense": folders / "dense", "emptied": tmp_path / "emptied"}
    contenders = [Contender(name, Source(path)) for name, path in folder.items()]
    small, dense, largest = bench(contenders, shapes=[(4, 32)], threads=1, seconds=0.3, footprints=False).timings
    # The parts that pruning does not touch are of the reference: less than all of its time, however large the third.
    assert small.loss.norms + small.loss.outside < dense.p50_ms < largest.p50_ms
    assert largest.speedup < 1


def test_a_graph_is_timed_in_its_own_runtime(folders, tmp_path):
    from kprune import graphs

    model = Source(folders / "small").load()
    model.config.save_pretrained(tmp_path)
    graphs.write(model, random_inputs(model.config, 2, 8, model.device), tmp_path / "model.onnx")
    contenders = [Contender("graph", Source(tmp_path)), Contender("dense", Source(folders / "dense"))]
    result = bench(contenders, shapes=[(2, 16)], runtimes=["onnxruntime"], threads=1, seconds=0.1, footprints=False)
    assert [t.model for t in result.timings] == ["graph", "dense"]
    assert result.timings[0].speedup > 0
    # It is given what it reads: a graph without segments, and one with.
    run = graphs.start(tmp_path / "model.onnx")
    inputs = random_inputs(model.config, 2, 9, model.device)
    del inputs["token_type_ids"]
    wanted = model(**inputs).logits
    assert torch.allclose(run(inputs)[0], wanted, atol=1e-4)
    assert torch.allclose(run({**inputs, "position_ids": inputs["input_ids"]})[0], wanted, atol=1e-4)
    with pytest.raises(KpruneError, match="no model can run in openvino"):
        bench(contenders[:1], shapes=[(2, 16)], runtimes=["openvino"], threads=1, seconds=0.1)


def test_bad_shapes_and_runtimes_are_refused(folders):
    contender = Contender("dense", Source(folders / "dense"))
    with pytest.raises(KpruneError, match="inputs of 2 × 500 tokens are too long for the model; it reads at most 66"):
        bench([contender], shapes=[(2, 500)])
    with pytest.raises(KpruneError, match="two models have the same name"):
        bench([contender, contender], shapes=[(2, 5)])
    with pytest.raises(KpruneError, match="device 'toaster' cannot be used"):
        bench([contender], shapes=[(2, 5)], device="toaster")
    with pytest.raises(KpruneError, match="there is no runtime 'tensorrt'; use one of torch, compile"):
        bench([contender], shapes=[(2, 5)], runtimes=["tensorrt"])


def test_a_runtime_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else object())
    with pytest.raises(KpruneError, match=r"the runtime openvino is not installed: pip install 'kprune\[openvino\]'"):
        runtime_named("openvino")
    assert runtime_named("torch") is RUNTIMES["torch"]


def test_random_inputs_have_no_padding():
    config = tiny.tiny_config("roberta")
    inputs = timing.random_inputs(config, 3, 7, torch.device("cpu"))
    assert inputs["input_ids"].shape == (3, 7)
    assert not (inputs["input_ids"] == config.pad_token_id).any()
    assert inputs["attention_mask"].all()
