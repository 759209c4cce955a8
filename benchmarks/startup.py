"""Start-up times: `kprune --help` and `import kprune`, next to click and transformers alone.

    python benchmarks/startup.py

Each command runs in a new process; commands take turns. Times are CPU seconds (user and system), the median of rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

from machine import provenance

RESULT = Path(__file__).parent / "results/startup.json"
MOST_FOR_HELP = 0.5
"""Seconds that `kprune --help` may take."""
MOST_ABOVE_TRANSFORMERS = 0.2
"""Seconds by which `import kprune` may exceed `import transformers`."""
COMMANDS = {
    "python": ["-c", ""],
    "import click": ["-c", "import click"],
    "import transformers": ["-c", "import transformers"],
    "import kprune": ["-c", "import kprune"],
    "kprune --help": ["-m", "kprune", "--help"],
    "kprune --version": ["-m", "kprune", "--version"],
    "kprune prune --help": ["-m", "kprune", "prune", "--help"],
    "kprune prun": ["-m", "kprune", "prun"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """CPU seconds of one run of Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, float]:
    """Median seconds of each command; a first round, which fills the file cache, is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            seconds = cpu_seconds(arguments)
            if number:
                taken[name].append(seconds)
    return {name: round(median(values), 3) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    seconds = measure(options.rounds)
    click, transformers = seconds["import click"], seconds["import transformers"]
    for name, value in seconds.items():
        print(f"{name:22} {value:6.3f} s  {value / click:5.1f} × click  {value / transformers:5.2f} × transformers")
    accepted = {
        f"kprune --help takes at most {MOST_FOR_HELP} s": seconds["kprune --help"] <= MOST_FOR_HELP,
        f"import kprune takes at most {MOST_ABOVE_TRANSFORMERS} s more than import transformers": (
            seconds["import kprune"] <= transformers + MOST_ABOVE_TRANSFORMERS
        ),
    }
    for claim, holds in accepted.items():
        print(f"{'yes' if holds else 'NO'}: {claim}")
    content = {"cpu_seconds": seconds, "accepted": accepted, "rounds": options.rounds, **provenance()}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(accepted.values()) else 1)


if __name__ == "__main__":
    main()
