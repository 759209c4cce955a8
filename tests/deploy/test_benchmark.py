"""Models are timed together, and their times compared with their FLOPs."""

import json

import pytest
import tiny
import torch
from flop_clock import install_flop_clock

from kprune import KpruneError, prune, save
from kprune.checkpoints.source import Source
from kprune.deploy import benchmark
from kprune.deploy.benchmark import Contender, bench, timed_seconds
from kprune.deploy.footprint import Footprint
from kprune.deploy.targets import start, write
from kprune.deploy.timing import random_inputs, time_interleaved
from kprune.models.sublayer import find
from kprune.pruning.budgets import total_flops

BATCHES = tiny.batched(tiny.texts(64))


@pytest.fixture(autouse=True)
def flop_clock(monkeypatch):
    install_flop_clock(monkeypatch)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model and a pruned one, saved."""
    model = tiny.tiny_model(hidden_size=48, intermediate_size=192, num_attention_heads=6, num_hidden_layers=2)
    folder = tmp_path_factory.mktemp("models")
    model.save_pretrained(folder / "dense")
    save(prune(model, BATCHES, reduction=0.7, ridge=1e-2), folder / "small")
    return folder


@pytest.mark.parametrize("names", [("small",), ("small", "dense")])
def test_the_expected_seconds_count_every_model_that_is_timed(names, folders, monkeypatch):
    timed = []

    def count(calls, *, seconds, **options):
        timed.append(seconds * len(calls))
        return time_interleaved(calls, seconds=0.0)

    monkeypatch.setattr(benchmark, "time_interleaved", count)
    contenders = [Contender(name, Source(folders / name)) for name in names]
    bench(contenders, shapes=[(2, 8), (1, 8)], threads=1, seconds=3.0, footprints=False)
    assert sum(timed) == timed_seconds(len(names), 2, ["torch"], 3.0)


def test_models_are_timed_side_by_side(folders):
    contenders = [Contender(name, Source(folders / name)) for name in ("small", "dense")]
    result = bench(contenders, shapes=[(4, 32), (1, 8)], threads=1, seconds=0.0, footprints=False)
    json.dumps(result.as_json())
    assert result.reference == "dense"
    assert [(t.model, t.batch) for t in result.timings] == [("small", 4), ("dense", 4), ("small", 1), ("dense", 1)]
    small, dense = result.timings[:2]
    assert dense.speedup is None
    assert small.p50_ms < dense.p50_ms
    assert small.speedup == pytest.approx(dense.p50_ms / small.p50_ms)
    assert small.speedup > 1.0
    assert 0 < small.p50_ms <= small.p95_ms
    assert small.texts_per_second == pytest.approx(4e3 / small.p50_ms)
    flops = [total_flops(find(Source(folders / name).load()), 32) for name in ("dense", "small")]
    assert small.flops_ratio == pytest.approx(flops[0] / flops[1])
    assert small.encoder_speedup > small.speedup
    # The parts of the loss add up to the difference.
    assert small.loss.total == pytest.approx(small.p50_ms - dense.p50_ms / small.flops_ratio, abs=1e-6)
    assert small.loss.norms > 0


def test_each_model_has_a_footprint_on_the_largest_shape(folders, monkeypatch):
    asked = []

    def measure(name, source, graph, runtime, shape, threads, dtype):
        asked.append((name, source.folder, graph, runtime.name, shape, threads, dtype))
        return Footprint(name, runtime.name, 1.0, 2.0, 3.0)

    monkeypatch.setattr(benchmark, "measure_footprint", measure)
    contenders = [Contender(name, Source(folders / name)) for name in ("small", "dense")]
    result = bench(contenders, shapes=[(1, 8), (2, 16), (4, 2)], threads=1, seconds=0.0)
    assert asked == [(name, folders / name, None, "torch", (2, 16), 1, None) for name in ("small", "dense")]
    assert [(each.model, each.dtype) for each in result.footprints] == [("small", "float32"), ("dense", "float32")]


def test_a_third_model_does_not_change_what_is_told_of_the_first(folders, tmp_path):
    other = tiny.tiny_model(hidden_size=48, intermediate_size=768, num_attention_heads=6, num_hidden_layers=6)
    other.save_pretrained(tmp_path / "emptied")
    folder = {"small": folders / "small", "dense": folders / "dense", "emptied": tmp_path / "emptied"}
    contenders = [Contender(name, Source(path)) for name, path in folder.items()]
    options = {"shapes": [(4, 32)], "threads": 1, "seconds": 0.0, "footprints": False}
    small, dense, largest = bench(contenders, **options).timings
    assert [small, dense] == list(bench(contenders[:2], **options).timings)
    # The parts that pruning does not change are the reference's: less than its time, however large the third model.
    assert small.loss.norms + small.loss.outside < dense.p50_ms < largest.p50_ms
    assert largest.speedup < 1


def test_a_graph_is_timed_in_its_own_runtime(tmp_path):
    model = tiny.tiny_model(num_hidden_layers=1)
    model.save_pretrained(tmp_path / "dense")
    model.config.save_pretrained(tmp_path / "graph")
    write(model, random_inputs(model.config, 2, 8, model.device), tmp_path / "graph/model.onnx")
    contenders = [Contender(name, Source(tmp_path / name)) for name in ("graph", "dense")]
    options = {"shapes": [(2, 16)], "threads": 1, "seconds": 0.0, "footprints": False}
    result = bench(contenders, runtimes=["onnxruntime"], **options)
    assert [t.model for t in result.timings] == ["graph", "dense"]
    assert result.timings[0].speedup > 0
    # The graph gets the inputs that it reads, whatever inputs are given.
    run = start(tmp_path / "graph/model.onnx")
    inputs = random_inputs(model.config, 2, 9, model.device)
    del inputs["token_type_ids"]
    wanted = model(**inputs).logits
    assert torch.allclose(run(inputs)[0], wanted, atol=1e-4)
    assert torch.allclose(run({**inputs, "position_ids": inputs["input_ids"]})[0], wanted, atol=1e-4)
    with pytest.raises(KpruneError, match="no model can run in openvino"):
        bench(contenders[:1], runtimes=["openvino"], **options)


def test_bad_shapes_and_runtimes_are_refused(folders):
    contender = Contender("dense", Source(folders / "dense"))
    with pytest.raises(KpruneError, match="inputs of 2 × 500 tokens are too long for the model; it reads at most 66"):
        bench([contender], shapes=[(2, 500)])
    with pytest.raises(KpruneError, match="two models have the name 'dense'; give each model its own name"):
        bench([contender, contender], shapes=[(2, 5)])
    with pytest.raises(KpruneError, match="device 'toaster' cannot be used"):
        bench([contender], shapes=[(2, 5)], device="toaster")
    with pytest.raises(KpruneError, match="there is no runtime 'tensorrt'; use one of torch, compile"):
        bench([contender], shapes=[(2, 5)], runtimes=["tensorrt"])


def test_progress_never_falls_and_names_what_is_timed(folders):
    seen = []
    contender = Contender("dense", Source(folders / "dense"))
    bench(
        [contender],
        shapes=[(2, 5), (1, 4)],
        threads=1,
        seconds=0.0,
        footprints=False,
        progress=lambda fraction, what: seen.append((fraction, what)),
    )
    assert [what for _, what in seen] == ["torch, starting", "torch, 2 × 5", "torch, 1 × 4"]
    assert [fraction for fraction, _ in seen] == sorted(fraction for fraction, _ in seen)
    assert all(0 <= fraction <= 1 for fraction, _ in seen)
