"""What each process runs in test_distributed.py; a single process makes the results for comparison."""

import sys
from pathlib import Path

import tiny
import torch

from kprune import Pruner, draw
from kprune.data.calibration import python_documentation
from kprune.jobs.demo import embedded_model
from kprune.runtime.distributed import process_group, rank, world_size

CASES = {
    "tiny": [
        {"criterion": "fisher"},
        {"criterion": "compensated"},
        {"criterion": "released"},
        {"method": "kwon"},
        {"method": "flap"},
        {"method": "wanda-sp"},
        {"method": "ziplm"},
        {"method": "textpruner", "iterations": 2},
        {"method": "magnitude"},
    ],
    "embedded": [{"criterion": "compensated"}],
}


def pruner_of(model: str) -> Pruner:
    if model == "tiny":
        return Pruner(tiny.tiny_model(), tiny.batched(tiny.texts(120)), ridge=1e-4, align=1)
    source = embedded_model()
    rows = [(text,) for text in python_documentation()]
    return Pruner(source.load(), draw(rows, source.load_tokenizer(), tokens=2000, max_length=64))


def file_of(folder: Path, model: str, options: dict[str, str]) -> Path:
    return folder / f"{model}-{next(iter(options.values()))}.pt"


def main(folder: Path, models: list[str]) -> None:
    torch.set_num_threads(1)
    with process_group():
        for model in models:
            pruner = pruner_of(model)
            for options in CASES[model]:
                pruned = pruner.with_config(**options).prune(0.6)
                if rank() == 0:
                    result = {
                        "processes": world_size(),
                        "kept": [step.kept for step in pruned.steps],
                        "tokens": pruned.tokens,
                        "errors": [step.error_after for step in pruned.steps],
                        "weights": pruned.model.state_dict(),
                    }
                    torch.save(result, file_of(folder, model, options))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
