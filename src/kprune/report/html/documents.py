"""The pages of a pruned model, a folder, an evaluation and a benchmark, from the data that their commands print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from kprune.config import PruneConfig
from kprune.report.html.figures import errors, times, units_kept
from kprune.report.html.markup import Html, tag
from kprune.report.html.numbers import capital, percent, plain, with_interval
from kprune.report.html.page import page
from kprune.report.html.sections import Data, changes_section, glance, quality, section, settings, verdict
from kprune.report.html.tables import Column, table


def prune_page(data: Data, name: str, *, changes: Data | None = None, command: str = "") -> Html:
    """The page of `kprune prune`."""
    flops, parameters = data["flops"], data["parameters"]
    pairs = [("encoder FLOPs per input", *flops, "count"), ("parameters", *parameters, "count")]
    if "megabytes" in data:
        pairs.append(("weights", *data["megabytes"], "MB"))
    evaluation = data.get("evaluation")
    steps = [{**step, "kept": len(step["kept"])} for step in data["steps"]]
    sections = [
        glance(pairs),
        quality(evaluation) if evaluation else None,
        changes_section(changes),
        layers_section(steps),
        settings(_settings_of(data), command, _facts(data)),
    ]
    deck = f"{_removed(flops)} {verdict(evaluation)}"
    return page("Pruned model", name, deck.strip(), sections)


def _removed(flops: Sequence[float]) -> str:
    return f"{percent(1 - flops[1] / flops[0], 1)} of the encoder’s FLOPs were removed."


def layers_section(steps: Sequence[Data]) -> Html:
    """Units kept and errors, layer by layer."""
    return section("layers", "Layer by layer", units_kept("kept", steps), errors("errors", steps))


def _settings_of(data: Data) -> dict[str, Any]:
    """The settings among the entries of a record."""
    return {each.name: data[each.name] for each in fields(PruneConfig) if each.name in data}


def _facts(data: Data) -> list[tuple[str, str]]:
    """What is known of the run besides its settings."""
    facts = [("kprune", str(data["kprune"])), ("sample", f"{data['tokens']:,} tokens, {data['examples']:,} examples")]
    if "total_seconds" in data:
        facts.append(("seconds", plain(data["total_seconds"], 0)))
    if "peak_megabytes" in data:
        facts.append(("peak memory", f"{plain(data['peak_megabytes'], 0)} MB"))
    return facts


def folder_page(inspection: Data, name: str) -> Html:
    """The page of a model folder: what its config and record say."""
    shape, history = inspection["shape"], inspection["history"]
    last = history[-1] if history else {}
    places = [
        {"layer": layer, "kind": kind, "units": shape[f"dense_{units}"], "kept": kept[layer]}
        for layer in range(max(len(shape["heads"]), len(shape["neurons"])))
        for kind, units, kept in (("attention", "heads", shape["heads"]), ("ffn", "neurons", shape["neurons"]))
        if layer < len(kept)
    ]
    found: list[Any] = list(last.get("errors") or [])
    fits = len(found) == len(places)
    steps = [{**step, "error_before": None, "error_after": found[n] if fits else None} for n, step in enumerate(places)]
    pairs = [
        (f"encoder FLOPs at {plain(inspection['length'], 0)} tokens", *inspection["flops"], "count"),
        ("parameters", *inspection["parameters"], "count"),
    ]
    facts = [("runs", str(len(history))), ("on disk", f"{plain(inspection['bytes_on_disk'] / 1e6, 1)} MB")]
    sections = [glance(pairs), layers_section(steps), settings(_settings_of(last), "", facts)]
    return page("Model folder", name, _removed(inspection["flops"]), sections)


def evaluation_page(data: Data, names: tuple[str, str], *, changes: Data | None = None, command: str = "") -> Html:
    """The page of `kprune evaluate`; the second name is empty without a second model."""
    ours, theirs = names
    title = f"{ours} against {theirs}" if theirs else ours
    facts = [("padding", percent(data["padding"], 1)), ("seconds", plain(data["seconds"], 1))]
    sections = [quality(data, names), changes_section(changes, names), settings({}, command, facts)]
    first = data["figures"][0] if data["figures"] else data["fidelity"][0]
    deck = f"{capital(first['name'])} {with_interval(first)} on {data['test']}, {data['examples']:,} examples."
    return page("Evaluation", title, deck, sections)


def bench_page(data: Data, *, command: str = "") -> Html:
    """The page of `kprune bench`."""
    timings = data["timings"]
    faster = [each for each in timings if each.get("speedup")]
    models = list(dict.fromkeys(each["model"] for each in timings))
    deck = f"On {data['device']}, {data['threads']} thread{'s' * (data['threads'] != 1)}."
    if faster:
        ratios = [each["speedup"] for each in faster]
        low, high = (f"{plain(each)}×" for each in (min(ratios), max(ratios)))
        span = low if low == high else f"{low} to {high}"
        deck = f"{span} as fast as {data['reference']}. {deck}"
    sections = [
        section("times", "Time", times("latency", timings)),
        _footprints(data["footprints"]) if data["footprints"] else None,
        *(tag("p", f"Note: {note}", class_="notes") for note in data["notes"]),
        settings({}, command, [("device", data["device"]), ("threads", str(data["threads"]))]),
    ]
    return page("Benchmark", " and ".join(models[:3]), deck, sections)


def _footprints(footprints: Sequence[Data]) -> Html:
    numbers = ("load s", "peak MB", "disk MB")
    columns = [Column("model"), Column("runtime"), *(Column(each, is_number=True) for each in numbers)]
    rows = [
        [
            each["model"],
            each["runtime"],
            plain(each["load_seconds"]),
            plain(each["peak_megabytes"], 0),
            plain(each["disk_megabytes"], 1),
        ]
        for each in footprints
    ]
    return section("footprints", "To load and hold", table("Load time, memory and size on disk", columns, rows))
