import pytest

from kprune.checkpoints.inspection import Shape
from kprune.deploy.benchmark import Bench, Loss, Timing
from kprune.report.figures import draw_layers, draw_speed

SHAPE = Shape(heads=[12, 0, 3], neurons=[1536, 1, 700], dense_heads=12, dense_neurons=1536)
STARTS = {".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.mark.parametrize("ending", STARTS)
def test_layers_are_drawn_in_the_format_of_the_ending(tmp_path, ending):
    path = tmp_path / f"kept{ending}"
    draw_layers(SHAPE, path, "title")
    assert path.read_bytes().startswith(STARTS[ending])


@pytest.mark.parametrize("models", [1, 2, 7])
def test_times_are_drawn_for_any_number_of_models(tmp_path, models):
    loss = Loss(1.0, 1.0, 1.0)
    timings = [
        Timing(f"model{number}", runtime, batch, 32, 10.0, 11.0, 100.0, 5, speedup=2.0, loss=loss if number else None)
        for number in range(models)
        for runtime in ("torch", "onnxruntime")
        for batch in (1, 32)
    ]
    if models > 1:
        timings.pop()  # a model that one runtime could not run
    path = tmp_path / "speed.png"
    draw_speed(Bench("cpu", 1, "model0", tuple(timings), ()), path)
    assert path.read_bytes().startswith(STARTS[".png"])
