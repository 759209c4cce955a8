from rich.console import Console

from kprune.checkpoints.inspection import Shape
from kprune.evaluation.evaluator import Evaluation
from kprune.evaluation.metrics import Difference, Figure
from kprune.jobs.demo import Demo
from kprune.report.tables import bar, demo_tables, evaluation_table, layers_table

SHAPE = Shape(heads=[12, 0, 3], neurons=[1536, 1, 700], dense_heads=12, dense_neurons=1536)


def printed(*renderables) -> list[str]:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for renderable in renderables:
        console.print(renderable)
    return console.export_text().splitlines()


def test_a_bar_is_filled_in_proportion():
    for left in range(13):
        drawn = bar(left, 12, 24, "blue").plain
        assert len(drawn) == 24
        assert drawn.count("█") == 2 * left
    assert bar(1, 1000, 10, "blue").plain[0] != "·"
    assert bar(0, 1000, 10, "blue").plain == "·" * 10


def test_the_table_shows_the_top_layer_first():
    lines = printed(layers_table(SHAPE))
    assert [line.split()[0] for line in lines[1:]] == ["2", "1", "0"]
    assert lines[1].split()[-1] == "700"
    assert lines[3].split()[-1] == "1,536"


def test_a_difference_has_a_sign_and_a_verdict():
    figure = Figure("accuracy", 80.0, 78.0, 82.0)
    gap = Difference("accuracy", -0.001, -1.0, 1.0, p_value=0.9)
    result = Evaluation("sst2", 872, 872, (figure,), against=(figure,), differences=(gap,))
    lines = printed(evaluation_table(result, "small", "dense"))
    assert lines[0].strip() == "sst2, 872 examples, 95 % intervals"
    assert "+0.00 (-1.00 to +1.00)" in lines[3]
    assert lines[3].endswith("p = 0.900: may be noise")


def test_one_example_has_no_interval():
    figure, gap = Figure("accuracy", 100.0, 100.0, 100.0), Difference("accuracy", 0.0, 0.0, 0.0, p_value=1.0)
    result = Evaluation("sst2", 1, 1, (figure,), against=(figure,), differences=(gap,), fidelity=(figure,))
    for other, numbers in (("dense", ["100.00", "100.00", "+0.00", "100.00"]), ("", ["100.00"])):
        words = " ".join(printed(evaluation_table(result, "small", other))).split()
        assert " ".join(words).startswith("sst2, 1 example, too few for intervals accuracy ")
        assert [word for word in words if "." in word] == numbers
        assert words[-1] == numbers[-1]  # no verdict
    card = result.card_section()
    assert "Measured on 1 example of sst2, too few for intervals." in card
    assert " to 1" not in card
    assert "| accuracy | 100.00 | 100.00 | +0.00 | 1.000 |" in card


def test_the_demo_shows_ratios_and_short_answers():
    demo = Demo(
        flops=(2e9, 1e9),
        parameters=(4_000_000, 3_000_000),
        megabytes=(16.0, 12.0),
        milliseconds=(10.0, 6.0),
        cosine=0.9,
        worst_cosine=0.8,
        nearest=[("question?", "dense answer", "word " * 100)],
        seconds=1.0,
    )
    text = "\n".join(printed(*demo_tables(demo)))
    assert [f" {ratio} " in text for ratio in ("0.50", "0.75", "0.60")] == [True] * 3
    assert text.count("word") == 44
    assert "…" in text
