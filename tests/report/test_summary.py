from io import StringIO

from rich.console import Console

from kprune.checkpoints.inspection import Inspection, Shape, Vocabulary
from kprune.deploy.benchmark import Bench, Loss, Timing
from kprune.deploy.footprint import Footprint
from kprune.evaluation.evaluator import Evaluation
from kprune.evaluation.metrics import Figure
from kprune.report.summary import print_bench, print_evaluation, print_inspection


def console() -> Console:
    return Console(file=StringIO(), width=120)


def test_an_inspection_ends_with_flops_parameters_and_size():
    shape = Shape([1, 2], [3, 4], 2, 4)
    screen = console()
    print_inspection(Inspection("bert", shape, 60.0, (2e9, 1e9), (4_000_000, 3_000_000), 12_300_000, []), screen)
    assert screen.file.getvalue().splitlines()[-3:] == [
        "FLOPs           1.000 G of 2.000 G at 60 tokens: 50.0% removed",
        "parameters       3.00 M of 4.00 M (embeddings and head included)",
        "on disk          12.3 MB",
    ]


def test_an_inspection_of_a_language_model_names_the_share_of_its_vocabulary():
    shape, screen = Shape([1], [3], 1, 3), console()
    vocabulary = Vocabulary(flops=3e9, parameters=750_000)
    found = Inspection("llama", shape, 60.0, (2e9, 1e9), (4_000_000, 3_000_000), 12_300_000, [], vocabulary)
    print_inspection(found, screen)
    (line,) = [line for line in screen.file.getvalue().splitlines() if line.startswith("vocabulary")]
    assert line.split()[1] == "75.0%"
    assert line.endswith("25.0% of the parameters")


def test_an_evaluation_ends_with_its_notes():
    result = Evaluation("sst2", 9, 9, (Figure("accuracy", 80.0, 78.0, 82.0),), notes=("few examples.",))
    screen = console()
    print_evaluation(result, "folder/small", "", screen)
    lines = screen.file.getvalue().splitlines()
    assert lines[1].split()[:2] == ["accuracy", "folder/small"]
    assert lines[-1] == "Note: few examples."


def test_a_benchmark_explains_the_gap_to_the_flops_ratio():
    dense = Timing("dense", "torch", 1, 32, 10.0, 11.0, 100.0, 5)
    small = Timing("small", "torch", 1, 32, 6.0, 7.0, 166.0, 5, 1.67, 2.0, 1.8, Loss(0.25, 0.25, 0.5))
    screen = console()
    footprint = Footprint("small", "torch", 1.0, 2.0, 3.0)
    print_bench(Bench("cpu", 1, "dense", (small, dense), (footprint,), ("small is in float16.",)), screen)
    text = screen.file.getvalue()
    assert "torch, batch 1 × 32 tokens, 1 thread\n" in text.replace("  ", "").replace(" \n", "\n")
    assert text.count("float32") == 3
    assert text.splitlines()[-1] == "small is in float16."
    assert "1.80×, 90%" in text
    assert "small in torch, 1 × 32: 6.0 ms, by FLOPs 5.0; between them: embeddings and head +0.2 ms" in text
    assert "to load and hold" in text
