"""What each of several processes runs in test_ranks.py; `python` on its own makes what they are held against."""

import sys
from pathlib import Path

import tiny
import torch

from kprune import Pruner, draw
from kprune.demo import embedded_model, python_documentation
from kprune.ranks import count, joined, rank

CRITERIA = {"tiny": ("fisher", "compensated", "released"), "embedded": ("compensated",)}


def pruner_of(model: str) -> Pruner:
    if model == "tiny":
        return Pruner(tiny.tiny_model(), tiny.batched(tiny.texts(120)), ridge=1e-4, align=1)
    source = embedded_model()
    rows = [(text,) for text in python_documentation()]
    return Pruner(source.load(), draw(rows, source.load_tokenizer(), tokens=4000, max_length=64))


def main(folder: Path, model: str) -> None:
    torch.set_num_threads(1)
    with joined():
        pruner = pruner_of(model)
        for criterion in CRITERIA[model]:
            pruned = pruner.with_settings(criterion=criterion).prune(0.6)
            if rank() == 0:
                found = {"kept": [step.kept for step in pruned.steps], "tokens": pruned.tokens, "processes": count()}
                found["errors"] = [step.error_after for step in pruned.steps]
                torch.save({**found, "weights": pruned.model.state_dict()}, folder / f"{criterion}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
