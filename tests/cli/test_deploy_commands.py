import json

import pytest
from command_line import kprune
from fast_clock import install_fast_clock

from kprune.deploy import benchmark
from kprune.deploy.footprint import Footprint

pytest_plugins = ["command_fixtures"]


def test_bench_prints_times_and_draws_them(checkpoint, small, tmp_path, monkeypatch):
    install_fast_clock(monkeypatch)
    monkeypatch.setattr(  # tests/deploy measures it in a new process
        benchmark, "measure_footprint", lambda name, source, graph, runtime, *_: Footprint(name, runtime.name, 1, 2, 3)
    )
    picture = tmp_path / "speed.png"
    options = ("--shape", "4x16", "--shape", "1x8", "--runtime", "torch", "--seconds", 0, "--threads", 1)
    result = kprune("bench", small, "--against", checkpoint, *options, "--picture", picture)
    assert result.exit_code == 0, result.output
    for part in (
        "torch, batch 4 × 16 tokens, 1 thread ",
        "float32",
        "speed-up",
        "FLOPs ratio",
        "peak MB",
        "norms and residual",
    ):
        assert part in result.output
    assert "tiny's folder is in float16, which is slow on a CPU" in result.output
    assert "Timing 2 models on inputs of 4 × 16, 1 × 8 tokens in torch: 0 s of calls" in " ".join(result.stderr.split())
    assert picture.read_bytes()[:4] == b"\x89PNG"
    printed = json.loads(kprune("bench", small, *options, "--json").stdout)
    assert printed["reference"] is None
    assert [timing["batch"] for timing in printed["timings"]] == [4, 1]
    assert all(timing["speedup"] is None for timing in printed["timings"])
    assert [timing["dtype"] for timing in printed["timings"]] == ["float32", "float32"]
    half = json.loads(kprune("bench", small, *options, "--dtype", "bfloat16", "--json").stdout)
    assert [timing["dtype"] for timing in half["timings"]] == ["bfloat16", "bfloat16"]


def test_a_picture_that_cannot_be_drawn_loses_no_times(small, tmp_path, monkeypatch):
    install_fast_clock(monkeypatch)
    monkeypatch.setattr(benchmark, "measure_footprint", lambda name, *_: Footprint(name, "torch", 1, 2, 3))
    options = ("--shape", "1x8", "--runtime", "torch", "--seconds", 0, "--picture")
    (tmp_path / "folder.png").mkdir()
    refused = kprune("bench", small, *options, tmp_path / "folder.png")
    assert refused.exit_code == 2
    assert "cannot be written (Is a directory); name another file" in " ".join(refused.stderr.split())
    assert refused.stdout == ""

    def fail(result, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kprune.report.figures.draw_speed", fail)
    result = kprune("bench", small, *options, tmp_path / "speed.png")
    assert result.exit_code == 1
    assert "p50 ms" in result.stdout
    assert "speed.png cannot be written (No space left on device); name another file." in result.stderr
    assert not (tmp_path / "speed.png").exists()


def test_export_and_what_int8_costs(checkpoint, table, tmp_path):
    out = tmp_path / "graph"
    options = ("--data", table, "--text-column", "text", "--label-column", "verdict")
    result = kprune("export", checkpoint, out, "--int8", "--int8-max-drop", 60, *options)
    assert result.exit_code == 0, result.output
    assert "points, within the limit of 60: none stays in float32." in result.output
    assert "within the limit of 60" in (out / "README.md").read_text()
    assert "accuracy" in result.output
    assert "onnx int8" in result.output
    assert (out / "model.onnx").is_file()
    assert kprune("export", checkpoint, out).exit_code == 1  # it exists
    again = json.loads(kprune("export", checkpoint, out, "--overwrite", "--json").stdout)
    assert again["difference"] < 1e-4
    assert again["evaluation"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("bench", "{checkpoint}", "--shape", "32"), 2, "the shape '32' is not BATCHxLENGTH"),
        (("bench", "{checkpoint}", "--shape", "1x999"), 1, "inputs of 1 × 999 tokens are too long"),
        (("bench", "{checkpoint}", "--shape", "1x8", "--device", "toaster"), 1, "device 'toaster' cannot be used"),
        (("bench", "{checkpoint}", "--picture", "x.foo"), 2, "x.foo cannot be drawn; name a .png or .svg"),
        (
            ("bench", "{checkpoint}", "--runtime", "onnxruntime", "--dtype", "float16"),
            1,
            "onnxruntime runs float32 graphs, not float16; leave it out, or leave --dtype out.",
        ),
        (("bench", "nowhere/x"), 1, "there is no folder nowhere/x"),
        (("export", "{checkpoint}", "out", "--device", "cpu"), 2, "exported graphs run on the CPU; leave --device out"),
        (("export", "{checkpoint}", "out", "--layout", "hub", "--to", "onnx"), 2, "has the graphs of all runtimes"),
        (("export", "{checkpoint}", "out", "--int8-max-drop", 1), 2, "is for int8 graphs of ONNX Runtime; add --int8"),
        (("export", "{checkpoint}", "out", "--int8", "--int8-max-drop", 0), 2, "is 0, but must be above 0: 1.0 allows"),
        (("export", "{checkpoint}", "out", "--column", "a"), 2, "belong to data; add --data"),
        (("export", "{checkpoint}", "{checkpoint}", "--overwrite"), 1, "contains or is inside the folder of"),
        (("export", "{checkpoint}", "{checkpoint}/x"), 1, "contains or is inside the folder of"),
        (("export", "{checkpoint}", "out", "--to", "tflite"), 2, "'tflite' is not one of 'onnx', 'openvino'"),
        (("export", "{checkpoint}", "{checkpoint}"), 1, "exists; choose another folder"),
        (("export", "{checkpoint}", "out", "--data", "nowhere.csv"), 1, "there is no file nowhere.csv"),
    ],
)
def test_bad_options_get_a_sentence(arguments, code, sentence, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = kprune(*(str(argument).format(checkpoint=checkpoint) for argument in arguments))
    assert result.exit_code == code
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
