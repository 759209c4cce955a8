"""HTML for notebooks is escaped, complete and without colours."""

import re
from html.parser import HTMLParser

import pytest
import tiny
from notebook_shell import pretend_notebook

from kprune import Bench, Evaluation, prune
from kprune.deploy.benchmark import Timing
from kprune.evaluation.metrics import Difference, Figure
from kprune.runtime.notebook import html_details, html_table, is_notebook

EVIL = "<script>alert('&')</script>"


class Reader(HTMLParser):
    """Collects tags and texts; raises where an element is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def require_self_contained(html: str) -> Reader:
    read = Reader(html)
    assert set(read.tags) <= {
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "p",
        "small",
        "details",
        "summary",
    }
    assert {name for name, _ in read.attributes} <= {"style"}
    styles = " ".join(value or "" for _, value in read.attributes)
    assert re.search(r"#[0-9a-f]{3}|rgb|white|black|url", styles) is None  # a notebook is light or dark
    return read


def test_texts_are_escaped():
    read = require_self_contained(html_details(EVIL, html_table(EVIL, (EVIL, "b"), [(EVIL, "1")], [EVIL])))
    assert read.texts.count(EVIL) == 5
    assert read.tags.count("tr") == 2


def test_a_pruned_model_shows_sizes_and_layers():
    model = tiny.tiny_model()
    pruned = prune(model, tiny.batched(tiny.texts()), reduction=0.5, align=1)
    read = require_self_contained(pruned._repr_html_())
    assert "million parameters" in read.texts
    assert f"{pruned.flops[1] / pruned.flops[0]:.2f}" in read.texts
    assert [step.name for step in pruned.steps if step.name not in read.texts] == []


@pytest.mark.parametrize("has_other", [True, False])
def test_an_evaluation_shows_its_figures(has_other):
    figure = Figure("accuracy", 91.25, 90.0, 92.0)
    others = {
        "against": (Figure("accuracy", 92.5, 91.0, 93.0),),
        "differences": (Difference("accuracy", -1.25, -2.0, -0.5, 0.012),),
        "fidelity": (Figure("agreement", 97.0, 96.0, 98.0),),
    }
    result = Evaluation(EVIL, 872, 872, (figure,), **(others if has_other else {}), notes=("a note",))
    read = require_self_contained(result._repr_html_())
    assert f"{EVIL}, 872 examples" in read.texts
    assert "91.25 (90 to 92)" in read.texts
    assert ("-1.25 (-2 to -0.5)" in read.texts, "0.012" in read.texts) == (has_other, has_other)
    assert "a note" in read.texts


def test_a_benchmark_shows_its_times():
    timing = Timing("small", "torch", 32, 128, 10.04, 11.0, 3200.0, 9, speedup=2.345)
    read = require_self_contained(Bench("a CPU", 2, "dense", (timing,), (), ("a note",))._repr_html_())
    assert {"small", "32 × 128", "10.0", "2.35", "a CPU, 2 threads", "a note"} <= set(read.texts)


def test_a_kernel_is_a_notebook_and_a_script_is_none(monkeypatch):
    assert not is_notebook()
    pretend_notebook(monkeypatch)
    assert is_notebook()
