from rich.console import Console

from kprune.report import Shape, bar, draw_layers, layers_table

SHAPE = Shape(heads=[12, 0, 3], neurons=[1536, 1, 700], dense_heads=12, dense_neurons=1536)


def test_a_bar_is_filled_in_proportion():
    for left in range(13):
        drawn = bar(left, 12, 24, "blue").plain
        assert len(drawn) == 24
        assert drawn.count("█") == 2 * left
    assert bar(1, 1000, 10, "blue").plain[0] != "·"
    assert bar(0, 1000, 10, "blue").plain == "·" * 10


def test_the_table_shows_the_top_layer_first():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(layers_table(SHAPE))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["2", "1", "0"]
    assert lines[1].split()[-1] == "700"
    assert lines[3].split()[-1] == "1,536"


def test_the_picture_is_a_picture(tmp_path):
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"kept{ending}"
        draw_layers(SHAPE, path, "title")
        assert path.read_bytes().startswith(start)
