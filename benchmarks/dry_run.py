"""How well `kprune prune --dry-run` predicts: each case is planned, then run, each in a process of its own.

    python benchmarks/dry_run.py --case mpnet=FOLDER --case squad=FOLDER,squad --data DATA

The case `minilm`, the demo's model on Python's documentation, is always there. `--case NAME=FOLDER` adds a model on the
same text, `--case NAME=FOLDER,TASK` one on a task, whose data is in the folder `--data`. Times are of the pruning
alone, by the clock: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import provenance

from kprune.data.calibration import python_documentation
from kprune.jobs.demo import embedded_model

RESULT = Path(__file__).parent / "results/dry_run.json"
MOST_WRONG = {"seconds": 0.30, "megabytes": 0.25}
"""Relative errors that are accepted."""


def prune(model: str, *arguments: str) -> dict[str, Any]:
    """The JSON of one `kprune prune`."""
    command = [sys.executable, "-m", "kprune", "prune", model, *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compare(name: str, model: str, data: list[str], options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Prediction and run of one case, with relative errors."""
    shared = [*data, "--tokens", str(options.tokens), "--reduction", str(options.reduction)]
    shared += ["--criterion", options.criterion, "--device", "cpu"]
    planned = prune(model, str(work / "out"), *shared, "--dry-run")
    done = prune(model, str(work / name), *shared)
    predicted = {"seconds": planned["seconds"], "megabytes": planned["megabytes"]}
    observed = {"seconds": done["seconds"], "megabytes": done["peak_megabytes"]}
    return {
        "case": name,
        "tokens": done["tokens"],
        "criterion": options.criterion,
        "reduction": options.reduction,
        "predicted": {key: round(value, 1) for key, value in predicted.items()},
        "observed": {key: round(value, 1) for key, value in observed.items()},
        "wrong": {key: round(predicted[key] / observed[key] - 1.0, 3) for key in predicted},
    }


def is_accepted(line: dict[str, Any]) -> bool:
    """Whether both predictions of a case are near enough."""
    return all(abs(line["wrong"][key]) <= most for key, most in MOST_WRONG.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", default=[], metavar="NAME=FOLDER[,TASK]")
    parser.add_argument("--data")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--reduction", type=float, default=0.6)
    parser.add_argument("--criterion", default="compensated")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    lines = []
    with TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "text.txt").write_text("\n".join(python_documentation()), encoding="utf-8")
        for case in [f"minilm={embedded_model().folder}", *options.case]:
            name, _, place = case.partition("=")
            model, _, task = place.partition(",")
            data = ["--task", task, "--data", str(options.data)] if task else ["--text", str(work / "text.txt")]
            lines.append(compare(name, model, data, options, work))
            print(json.dumps(lines[-1]), flush=True)
    accepted = all(map(is_accepted, lines))
    content = {"cases": lines, "accepted": accepted, **provenance()}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if accepted else 1)


if __name__ == "__main__":
    main()
