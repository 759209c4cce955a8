"""Pages in a real headless Chromium."""

import os
from pathlib import Path

import page_data
import pytest
from browser import IS_MISSING, REASON, Browser

from kprune.report.html.comparison_document import compare_page
from kprune.report.html.documents import bench_page, evaluation_page, folder_page, prune_page
from kprune.report.html.sweep_document import sweep_page

pytestmark = pytest.mark.skipif(IS_MISSING, reason=REASON)
AXE = os.environ.get("KPRUNE_AXE", "")
"""Path of axe.min.js, of the npm package axe-core."""
NAMES = ("a-pruned-model-with-a-long-name", "the-dense-model-that-it-was-made-from")
LONG = "a long text without end " * 30 + "x" * 300

PAGES = {
    "sweep": lambda: sweep_page(page_data.sweep(healed=True), command=f"kprune prune MODEL small --data {'x' * 200}"),
    "prune": lambda: prune_page(page_data.pruned(), "a-model-with-a-name-" * 6, changes=page_data.changes(("a", LONG))),
    "evaluate": lambda: evaluation_page(page_data.evaluation(), NAMES, changes=page_data.changes()),
    "bench": lambda: bench_page(page_data.bench()),
    "compare": lambda: compare_page(page_data.comparison(), "results"),
    "folder": lambda: folder_page(page_data.inspection(), "small"),
}
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE = """
return Array.from(document.querySelectorAll('svg[role=img] text, svg[role=img] circle, svg[role=img] rect'))
  .filter((mark) => { const box = mark.getBoundingClientRect(), figure = mark.closest('figure').getBoundingClientRect();
    return box.right > document.documentElement.clientWidth + 1 || box.left < figure.left - 1; })
  .map((mark) => mark.outerHTML);
"""
EMPTY = """
return Array.from(document.querySelectorAll('svg')).filter((svg) => {
  const marks = Array.from(svg.querySelectorAll('rect, circle, polyline'));
  const box = svg.getBoundingClientRect();
  return !marks.some((mark) => mark.getBBox().width > 0) || (box.width < 5 && svg.closest('details') === null);
}).map((svg) => svg.id || svg.outerHTML.slice(0, 80));
"""
COLUMN = """
return Array.from(document.querySelectorAll('#changed tbody tr')).filter((row) => !row.hidden)
  .map((row) => row.cells[arguments[0]].textContent);
"""
CLICK = "document.querySelectorAll('#changed thead button')[arguments[0]].click()"
SORTED = "return Array.from(document.querySelectorAll('#changed thead th'), (cell) => cell.getAttribute('aria-sort'))"
TYPE = """
const field = document.getElementById(arguments[0]);
field.value = arguments[1];
field.dispatchEvent(new Event('input'));
field.dispatchEvent(new Event('change'));
"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (root / f"{name}.html").write_text(make(), encoding="utf-8")
    return root


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_drawn_nothing_overflows_and_nothing_is_fetched(browser, folder, name):
    browser.open(folder / f"{name}.html")
    for width in (360, 1440):
        for dark in (False, True):
            browser.resize(width, dark=dark)
            assert browser.run(OVERFLOW) <= 0, f"{name} overflows at {width} pixels"
            assert browser.run(OUTSIDE) == []
            assert browser.run(EMPTY) == []
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.resize(1440)
    assert paper != browser.run("return getComputedStyle(document.body).backgroundColor")
    assert browser.problems() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "about:"))] == []


def test_examples_are_sorted_and_filtered(browser, folder):
    browser.open(folder / "evaluate.html")
    confidences = ["0.900", "0.800", "0.700"]
    assert browser.run(COLUMN, 2) == confidences
    browser.run(CLICK, 2)
    assert browser.run(COLUMN, 2) == sorted(confidences)
    assert browser.run(SORTED)[2] == "ascending"
    browser.run(CLICK, 2)
    assert browser.run(COLUMN, 2) == sorted(confidences, reverse=True)
    browser.run(CLICK, 0)
    assert browser.run(COLUMN, 0) == sorted([page_data.HOSTILE, "dull", "good film"])
    assert browser.run(SORTED) == ["ascending", *["none"] * 5]
    browser.run(TYPE, "changed-search", "GOOD")
    assert browser.run(COLUMN, 0) == ["good film"]
    assert browser.run("return document.getElementById('changed-count').textContent") == "1 of 3 shown"
    browser.run(TYPE, "changed-search", "")
    browser.run(TYPE, "changed-group", "positive → negative")
    assert browser.run(COLUMN, 1) == ["positive"]
    assert browser.run("return window.alerted") is None
    assert browser.problems() == []


def test_a_command_can_be_copied_and_breaks_between_its_words(browser, folder):
    command = "kprune prune MODEL small " + " ".join(f"--option-{n} some-value-{n}" for n in range(20))
    (folder / "command.html").write_text(evaluation_page(page_data.evaluation(), NAMES, command=command))
    browser.open(folder / "command.html")
    for width in (360, 1440):
        browser.resize(width)
        selected = browser.run("""
          const code = document.querySelector('pre.command code');
          getSelection().selectAllChildren(code);
          return getSelection().toString();
        """)
        assert selected == command
        broken = "return Array.from(document.querySelectorAll('pre.command span'), (w) => w.getClientRects().length)"
        assert set(browser.run(broken)) == {1}


def test_keys_reach_every_control_and_focus_is_visible(browser, folder):
    browser.open(folder / "evaluate.html")
    reached = browser.run("""
      return Array.from(document.querySelectorAll('a, button, input, select, summary, .scroll, pre')).filter((each) =>
        each.tabIndex >= 0 && each.checkVisibility()).map((each) => { each.focus({focusVisible: true});
        return document.activeElement === each && getComputedStyle(each).outlineStyle !== 'none'; });
    """)
    assert reached
    assert all(reached)


@pytest.mark.skipif(not AXE, reason="KPRUNE_AXE does not name axe.min.js of the npm package axe-core")
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_serious_fault(browser, folder, name):
    browser.open(folder / f"{name}.html")
    browser.resize(1440)
    browser.run(Path(AXE).read_text("utf-8") + "; window.axe = axe;")
    for dark in (False, True):
        browser.resize(1440, dark=dark)
        found = browser.run("return axe.run({resultTypes: ['violations']}).then((r) => r.violations)")
        serious = [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in found]
        assert serious == []
