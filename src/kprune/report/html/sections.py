"""Sections of a page, from results as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kprune.report.html.figures import figure, intervals, share_bar
from kprune.report.html.markup import Child, Html, tag
from kprune.report.html.numbers import FINE, capital, digits_of, percent, plain, scaled, signed, with_interval
from kprune.report.html.tables import Cell, Column, sortable_table, table

Data = Mapping[str, Any]


def section(name: str, title: str, *content: Child) -> Html:
    """A section with its heading, by which a screen reader finds it."""
    heading = tag("h2", title, id=f"{name}-heading")
    return tag("section", heading, *content, id=name, aria_labelledby=f"{name}-heading")


def glance(pairs: Sequence[tuple[str, float, float, str]]) -> Html:
    """Sizes before and after: (name, before, after, unit); the unit "count" writes 22.7 M."""
    columns = [Column("measure"), *(Column(each, is_number=True) for each in ("before", "after")), Column("left")]
    rows = []
    for name, before, after, unit in pairs:
        written = [scaled(each) if unit == "count" else f"{plain(each, 1)} {unit}" for each in (before, after)]
        rows.append([name, *written, share_bar(after / before) if before else ""])
    return section(
        "glance", "Before and after", table("Size and cost of the dense model and of the pruned one", columns, rows)
    )


def quality(evaluation: Data, names: tuple[str, str] = ("pruned", "dense")) -> Html:
    """The figures of an evaluation, with intervals drawn, and its notes."""
    ours, theirs = names
    count, test = evaluation["examples"], evaluation["test"]
    few = evaluation["resampled"] <= 1
    content: list[Child] = [tag("p", f"Measured on {count:,} example{'s' * (count != 1)} of {test}{_spread(few)}.")]
    for number, figure_of in enumerate(evaluation["figures"]):
        content.append(_metric(number, figure_of, evaluation, ours, theirs))
    if evaluation["fidelity"]:
        content.append(_likeness(evaluation["fidelity"], theirs))
    content += [tag("p", f"Note: {note}", class_="notes") for note in evaluation["notes"]]
    return section("quality", "Quality", *content)


def _spread(few: bool) -> str:
    return "; too few for intervals" if few else ", with 95 % intervals over the examples"


def _metric(number: int, ours: Data, evaluation: Data, name: str, other: str) -> Html:
    """One metric of both models, and their difference on the same examples."""
    rows = [(name, ours["value"], ours["low"], ours["high"], "s0")]
    cells: list[list[Child]] = [[name, with_interval(ours), ""]]
    gaps: Child = None
    if evaluation["against"]:
        theirs, gap = evaluation["against"][number], evaluation["differences"][number]
        rows.insert(0, (other, theirs["value"], theirs["low"], theirs["high"], "s4"))
        cells.insert(0, [other, with_interval(theirs), ""])
        cells.append(["difference", with_interval(gap, with_sign=True), f"p = {gap['p_value']:.3f}"])
        drawn = [("difference", gap["value"], gap["low"], gap["high"], "s1")]
        gaps = intervals(f"quality-{number}-gap", f"{ours['name']}: difference on the same examples", drawn, zero=True)
    columns = [Column("model"), Column(f"{ours['name']} (95 % interval)", is_number=True), Column("paired test")]
    data = table(f"{ours['name']} with 95 % intervals", columns, cells)
    content = [intervals(f"quality-{number}-svg", f"{ours['name']} with 95 % intervals", rows), gaps]
    caption = f"{capital(ours['name'])}: the dot is the estimate, the line its 95 % interval." + (
        " Below, the difference on the same examples; the dashed line is no difference." if gaps else ""
    )
    return figure(f"quality-{number}", caption, content, data)


def _likeness(figures: Sequence[Data], other: str) -> Html:
    """How alike the two models' outputs are; percentages are drawn."""
    rows = [[each["name"], with_interval(each)] for each in figures]
    columns = [Column(f"with {other}"), Column("value (95 % interval)", is_number=True)]
    title = "How alike the outputs of the two models are, right or wrong"
    drawn = [(_short_name(each["name"]), each["value"], each["low"], each["high"], "s0") for each in figures]
    shares = [row for row, each in zip(drawn, figures, strict=True) if each["name"] not in FINE]
    caption = f"Likeness of the outputs to those of {other}, right or wrong; 100 is equal. Lines are 95 % intervals."
    return figure("likeness", caption, intervals("likeness-svg", title, shares), table(title, columns, rows))


def _short_name(name: str) -> str:
    """A figure's name that fits beside its interval."""
    return name.removeprefix("agreement on ")


@dataclass(frozen=True)
class _Wording:
    """How the table of changes speaks of one kind of answer; `str.format` fills it in."""

    heading: str = "Examples whose answer changed"
    intro: str = "{share} examples get another answer."
    text: str = "text"
    answer: str = "{model}"
    measure: str = "confidence"
    right: str = "right answer"


_WORDINGS = {
    "nearest text": _Wording(
        "Queries whose nearest text changed",
        "For {share} texts of the test, the nearest other text is another one. The cosines are the {theirs} model’s, "
        "so that a small difference is a close call.",
        text="query",
        answer="{model}: nearest",
        measure="cosine",
    ),
    "value": _Wording("Values that moved most", "The {kept:,} examples on which the two models differ most."),
    "next token": _Wording(
        "Tokens predicted differently",
        "At {share} places, another next token is the most likely one. A probability is that of the model’s own token.",
        text="text before the token",
        measure="probability",
        right="token in the text",
    ),
    "masked token": _Wording(
        "Tokens predicted differently",
        "At {share} masks, another token is the most likely one. A probability is that of the model’s own token.",
        text="text around the mask",
        measure="probability",
        right="token in the text",
    ),
    "choice": _Wording("Rows whose choice changed", "{share} rows get another choice.", right="right choice"),
}


def changes_section(changes: Data | None, names: tuple[str, str] = ("pruned", "dense")) -> Html | None:
    """The examples that the two models answer differently, as a table to be searched and sorted."""
    if not changes:
        return None
    ours, theirs = names
    kept, changed, compared = changes["examples"], changes["changed"], changes["compared"]
    wording = _WORDINGS.get(changes["what"], _Wording())
    share = f"{changed:,} of {compared:,} ({percent(changed / compared if compared else 0.0, 1)})"
    intro = wording.intro.format(share=share, theirs=theirs, kept=len(kept))
    if len(kept) < changed and changes["what"] != "value":
        intro += f" The {len(kept):,} clearest are shown."
    if not kept:
        none = "Both models give the same answers to all examples of the test."
        return section("changes", wording.heading, tag("p", none))
    shown = _changes_table(wording, changes["what"], kept, ours, theirs)
    return section("changes", wording.heading, tag("p", intro), shown)


def _changes_table(wording: _Wording, what: str, kept: Sequence[Data], ours: str, theirs: str) -> Html:
    has_confidence = any(each["before_confidence"] is not None for each in kept)
    has_reference = any(each["reference"] is not None for each in kept)
    columns = [Column(wording.text, is_text=True)]
    for name in (theirs, ours):
        columns.append(Column(wording.answer.format(model=name), is_text=what == "nearest text"))
        if has_confidence:
            columns.append(Column(wording.measure, is_number=True))
    columns += [Column(wording.right)] if has_reference else []
    rows = []
    for each in kept:
        row = [Cell([tag("span", part) for part in each["text"]])]
        for which in ("before", "after"):
            row.append(Cell(each[which], _number(each[which]) if what == "value" else None))
            if has_confidence:
                confidence = each[f"{which}_confidence"]
                row.append(Cell("" if confidence is None else plain(confidence, 3), confidence))
        row += [Cell(each["reference"] or "")] if has_reference else []
        rows.append(row)
    pairs = [f"{each['before']} → {each['after']}" for each in kept]
    groups = pairs if len(set(pairs)) <= MOST_GROUPS and what == "answer" else []
    caption = f"{wording.heading}: both models side by side; the headings sort"
    return sortable_table("changed", caption, columns, rows, groups=groups)


MOST_GROUPS = 30
"""Pairs of answers by which the table of changed examples can be filtered."""


def _number(written: str) -> float | None:
    try:
        return float(written)
    except ValueError:
        return None


def command_block(command: str) -> Html:
    """A command; lines break between its words, not after the hyphens of an option."""
    words: list[Child] = []
    for word in command.split(" "):
        words += [" " if words else "", tag("span", word)]
    return tag("pre", tag("code", *words), class_="command", tabindex="0")


def settings(values: Mapping[str, Any], command: str, facts: Sequence[tuple[str, str]] = ()) -> Html:
    """The settings, and the command that does it again."""
    content: list[Child] = []
    if command:
        content += [tag("p", "To do it again:"), command_block(command)]
    rows = [[name, value] for name, value in facts]
    rows += [[name.replace("_", " "), _setting(value)] for name, value in values.items() if value is not None]
    if rows:
        content.append(table("Every setting and its value", [Column("setting"), Column("value")], rows))
    return section("settings", "Settings", *content)


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdict(evaluation: Data | None) -> str:
    """One sentence on the quality that was lost."""
    if evaluation is None or not evaluation["fidelity"]:
        return ""
    if not evaluation["differences"]:
        alike = evaluation["fidelity"][0]
        return f"The {alike['name']} of its outputs with the dense model’s is {with_interval(alike)}."
    ours, theirs, gap = (evaluation[each][0] for each in ("figures", "against", "differences"))
    digits = digits_of(ours["name"])
    chance = "which may be chance" if gap["p_value"] > 0.05 else "which is unlikely to be chance"
    return (
        f"Its {ours['name']} is {plain(ours['value'], digits)}, the dense model’s {plain(theirs['value'], digits)}: a "
        f"difference of {signed(gap['value'], digits)} (95 % interval {signed(gap['low'], digits)} to "
        f"{signed(gap['high'], digits)}), {chance}."
    )
