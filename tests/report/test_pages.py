import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import page_data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprune.errors import KpruneError
from kprune.evaluation.changes import ANSWER, NEAREST, VALUE
from kprune.evaluation.token_changes import CHOICE, MASKED_TOKEN, NEXT_TOKEN
from kprune.report.html.comparison_document import compare_page
from kprune.report.html.documents import bench_page, evaluation_page, folder_page, prune_page
from kprune.report.html.markup import CONTROLS, Html, tag
from kprune.report.html.numbers import plain, ticks
from kprune.report.html.page import write_page
from kprune.report.html.recognition import page_of
from kprune.report.html.sections import verdict
from kprune.report.html.svg import Axis
from kprune.report.html.sweep_document import sweep_page

PAGES = {
    "sweep": lambda: sweep_page(page_data.sweep(), command="kprune prune MODEL small --reduction 0.5"),
    "healed sweep": lambda: sweep_page(page_data.sweep(healed=True)),
    "prune": lambda: prune_page(page_data.pruned(), "small", changes=page_data.changes(), command="kprune prune …"),
    "evaluate": lambda: evaluation_page(page_data.evaluation(), ("small", "dense"), changes=page_data.changes()),
    "bench": lambda: bench_page(page_data.bench(), command="kprune bench small"),
    "compare": lambda: compare_page(page_data.comparison(), "results"),
    "folder": lambda: folder_page(page_data.inspection(), "small"),
}
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Outline(HTMLParser):
    """The elements of a page, with their attributes and text, read by the parser of the standard library."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page)
        self.close()
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, name, attributes):
        element = (name, dict(attributes), [])
        self.elements.append(element)
        if name not in VOID:
            self.open.append(element)

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, data):
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, name: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(texts)) for kind, attributes, texts in self.elements if kind == name]


@pytest.fixture(scope="module", params=PAGES)
def page(request) -> str:
    return PAGES[request.param]()


def test_a_page_is_one_file_that_asks_for_nothing(page):
    outline = Outline(page)
    names = {name for name, _, _ in outline.elements}
    assert names & {"link", "img", "iframe", "object", "base", "form"} == set()
    for _, attributes, _ in outline.elements:
        assert not {"src", "srcset", "action", "data", "onclick", "onerror"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    style = outline.all("style")[0][1]
    assert not re.search(r"url\(|@import|https?:", style)
    assert "https:" not in outline.all("script")[0][1]
    assert page.startswith("<!doctype html>")


def test_its_structure_can_be_heard(page):
    outline = Outline(page)
    ids = [attributes["id"] for _, attributes, _ in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in outline.elements:
        for name in (attributes.get("aria-labelledby") or "").split():
            assert name in ids
    headings = [int(name[1]) for name, _, _ in outline.elements if re.fullmatch("h[1-6]", name)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert len(outline.all("caption")) == len(outline.all("table"))
    assert all(attributes.get("scope") in ("col", "row") for attributes, _ in outline.all("th"))
    pictures = [attributes for attributes, _ in outline.all("svg") if attributes.get("aria-hidden") != "true"]
    assert all(attributes["role"] == "img" and attributes["aria-labelledby"] for attributes in pictures)
    assert len(outline.all("desc")) == len(pictures)
    assert all("<table>" in figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL))


texts = st.text(min_size=1, max_size=60) | st.sampled_from(
    [page_data.HOSTILE, "<b>", "&amp;", "]]>", "<!--", "-->", "</style>", "\x00\x1b", "'\"`", "\u2028", "</td></table>"]
)


@given(texts, texts)
def test_any_text_stays_text(sample, name):
    changed = page_data.changes((sample,))
    page = evaluation_page(page_data.evaluation(test=name), (name, sample), changes=changed, command=name)
    outline = Outline(page)
    cells = [text for attributes, text in outline.all("td") if attributes.get("class") == "long"]
    assert cells == [sample.translate(CONTROLS).replace("\r\n", "\n").replace("\r", "\n")] or cells == [
        sample.translate(CONTROLS)
    ]
    words = " ".join("c" for _ in name.split(" "))
    usual = Outline(
        evaluation_page(page_data.evaluation(), ("a", "b"), changes=page_data.changes(("x",)), command=words)
    )
    assert [e[0] for e in outline.elements] == [e[0] for e in usual.elements]


@pytest.mark.parametrize(
    ("what", "heading"),
    [
        (ANSWER, "Examples whose answer changed"),
        (VALUE, "Values that moved most"),
        (NEAREST, "Queries whose nearest text changed"),
        (NEXT_TOKEN, "Tokens predicted differently"),
        (MASKED_TOKEN, "Tokens predicted differently"),
        (CHOICE, "Rows whose choice changed"),
    ],
)
def test_the_table_of_changes_speaks_of_every_kind_of_answer(what, heading):
    changed = {**page_data.changes(), "what": what}
    page = evaluation_page(page_data.evaluation(), ("small", "dense"), changes=changed)
    assert heading in page
    assert "{" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)


@given(texts)
def test_attributes_are_escaped(value):
    ((name, attributes, content),) = Outline(tag("p", value, title=value)).elements
    assert (name, set(attributes)) == ("p", {"title"})
    assert attributes["title"] == "".join(content) == value.translate(CONTROLS)


def test_markup_is_kept_and_nothing_is_left_out():
    assert tag("p", None, Html("<i>x</i>"), ["<", tag("b", 1.0 and "y")], hidden=True, lang=None) == (
        "<p hidden><i>x</i>&lt;<b>y</b></p>"
    )


def test_figures_show_the_datas_numbers():
    lines = page_data.sweep()
    page = sweep_page(lines)
    outline = Outline(page)
    axis = Axis(0.0, 1.0, 46.0, 440.0 - 14.0)
    dots = [a for a, _ in outline.all("circle")]
    assert [float(dot["cx"]) for dot in dots[:3]] == pytest.approx(
        [axis(line["removed"]) for line in lines[1:]], abs=0.01
    )
    heights = [float(dot["cy"]) for dot in dots[:3]]
    values = [line["figures"][0]["value"] for line in lines[1:]]
    slopes = [(b - a) / (w - v) for (a, b), (v, w) in zip(pairwise(heights), pairwise(values), strict=True)]
    assert slopes[0] == pytest.approx(slopes[1], rel=0.02)  # one scale for all points
    assert slopes[0] < 0
    described = outline.all("desc")[0][1]
    assert all(plain(value) in described for value in values)
    table = " ".join(text for _, text in outline.all("td"))
    for line in lines[1:]:
        low, high = (plain(line["figures"][0][end]) for end in ("low", "high"))
        assert f"{plain(line['figures'][0]['value'])} ({low} to {high})" in table


def test_bars_have_the_units_that_are_kept():
    page = folder_page(page_data.inspection(), "small")
    outline = Outline(page)
    bars = [(a["class"], float(a["width"])) for a, _ in outline.all("rect") if a.get("height") == "13"]
    whole = [width for kind, width in bars if kind == "removed"]
    kept = [width for kind, width in bars if kind.startswith("fill")]
    shares = [4 / 12, 6 / 12, 16 / 64, 48 / 64]  # top layer first
    assert [k / w for k, w in zip(kept, whole, strict=True)] == pytest.approx(shares, abs=0.01)


def test_values_that_are_not_finite_are_shown_as_such():
    data = page_data.evaluation()
    data["figures"][0] |= {"value": float("inf"), "high": float("inf")}
    assert "inf" in Outline(evaluation_page(data, ("a", "b"))).all("td")[2][1]


def test_the_knee_and_the_proposal_are_marked():
    lines = page_data.sweep()
    rows = re.findall(r"<tr class=\"chosen\">.*?</tr>", sweep_page(lines), re.DOTALL)
    assert len(rows) == 1
    assert "50 %" in rows[0]
    assert "knee" in rows[0]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_span_the_range_in_equal_steps(low, width):
    found = ticks(low, low + width)
    assert found[0] <= low + 1e-6 * width + 1e-9
    assert found[-1] >= low + width - 1e-6 * width - 1e-9
    assert 2 <= len(found) <= 8


def test_files_are_recognised(tmp_path):
    (tmp_path / "sweep.jsonl").write_text("\n".join(map(json.dumps, page_data.sweep())))
    (tmp_path / "compare.jsonl").write_text("\n".join(map(json.dumps, page_data.comparison())))
    (tmp_path / "bench.json").write_text(json.dumps(page_data.bench()))
    (tmp_path / "prune.json").write_text(json.dumps(page_data.pruned()))
    (tmp_path / "evaluate.json").write_text(json.dumps(page_data.evaluation()))
    kinds = {"sweep": "Sweep", "compare": "Comparison", "bench": "Benchmark", "prune": "Pruned model"}
    for path in tmp_path.iterdir():
        assert kinds.get(path.stem, "Evaluation") in page_of(path)
    within = page_of(tmp_path / "sweep.jsonl", max_drop=1.5)
    assert "the most that stays within 1.5 points" in within
    assert "No reduction that was tried stays within" in page_of(tmp_path / "sweep.jsonl", max_drop=0.01)


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", "nonsense", '{"timings": 3}', '{"kind": "sweep", "identity": {}}']
)
def test_other_files_are_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(KpruneError, match="file"):
        page_of(path)
    with pytest.raises(KpruneError, match="there is no"):
        page_of(tmp_path / "nothing.json")


def test_a_page_is_written_whole_or_not(tmp_path):
    write_page(tmp_path / "a.html", "x")
    assert (tmp_path / "a.html").read_text() == "x"
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(KpruneError, match="cannot be written"):
        write_page(tmp_path / "folder.html", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "folder.html"]


@pytest.mark.parametrize(
    ("p_value", "words"), [(0.2, "which may be chance."), (0.03, "which is unlikely to be chance.")]
)
def test_the_verdict_claims_no_more_than_the_paired_test(p_value, words):
    data = page_data.evaluation()
    data["differences"] = [{**data["differences"][0], "p_value": p_value}]
    assert verdict(data).endswith(words)
