"""Fine-tune a base encoder for a task row: makes checkpoints to prune without access to the hub.

    python benchmarks/finetune.py BASE OUT --task sst2 --data DATA --epochs 3

The recipe is the usual one: AdamW with weight decay 0.01, linear warm-up over a tenth of the steps, linear decay,
gradients clipped at 1. The log is written next to the weights: a JSON line every fifty steps, and the validation
figures at the end. Data and weights stay outside the repository.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
import transformers
from machine import provenance
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    get_linear_schedule_with_warmup,
)

from kprune import evaluate, load_task
from kprune.checkpoints.source import fetch
from kprune.data.calibration import longest_input
from kprune.data.tasks import TASKS, Task, Test
from kprune.evaluation.scorers import MaskedTokenScorer, encode
from kprune.evaluation.squad import windows_of
from kprune.models.batches import Example
from kprune.models.outputs import pool

Made = tuple[PreTrainedModel, list[Example], Callable[[PreTrainedModel, dict[str, Tensor]], Tensor]]
"""A model with a head, its training examples, and the loss of a batch."""


def classifier(task: Task, base: Path, tokenizer: Any, train: Test, length: int) -> Made:
    names = dict(enumerate(task.labels)) or {0: "score"}
    problem = "single_label_classification" if task.labels else "regression"
    model = AutoModelForSequenceClassification.from_pretrained(
        base, id2label=names, label2id={name: number for number, name in names.items()}, problem_type=problem
    )
    examples = encode(train.rows, tokenizer, length)
    for example, label in zip(examples, train.references or (), strict=True):
        example["labels"] = torch.tensor(label)
    return model, examples, lambda model, batch: model(**batch).loss


def reader(task: Task, base: Path, tokenizer: Any, train: Test, length: int) -> Made:
    questions, contexts = zip(*train.rows, strict=True)
    windows = windows_of(questions, contexts, tokenizer, length)
    for number, example in enumerate(windows.examples):
        answers = (train.references or [])[int(windows.question[number])]
        first, last = windows.context[number].tolist()
        start = end = 0  # the answer is not in this window
        if answers["text"]:
            begin = answers["answer_start"][0]
            stop = begin + len(answers["text"][0])
            offsets = windows.encodings[number].offsets[first : last + 1]
            inside = [place for place, (a, b) in enumerate(offsets, start=first) if a < stop and b > begin]
            if inside and offsets[0][0] <= begin and offsets[-1][1] >= stop:
                start, end = inside[0], inside[-1]
        example["start_positions"], example["end_positions"] = torch.tensor(start), torch.tensor(end)
    model = AutoModelForQuestionAnswering.from_pretrained(base)
    return model, windows.examples, lambda model, batch: model(**batch).loss


def filler(task: Task, base: Path, tokenizer: Any, train: Test, length: int) -> Made:
    model = AutoModelForMaskedLM.from_pretrained(base)
    return model, MaskedTokenScorer(train, tokenizer, length).examples, lambda model, batch: model(**batch).loss


def embedder(task: Task, base: Path, tokenizer: Any, train: Test, length: int) -> Made:
    """An embedding model; the texts of a pair are neighbours, and their cosine is fitted to the score (0..1)."""
    scores = [float(score) for score in train.references or ()]
    examples = []
    for row, score in zip(train.rows, scores, strict=True):
        one, two = encode([(text,) for text in row], tokenizer, length)
        examples.append({**one, "labels": torch.tensor(score / max(scores))})
        examples.append({**two, "labels": torch.tensor(score / max(scores))})

    def loss(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
        wanted = batch.pop("labels")[::2]
        vectors = pool(model(**batch).last_hidden_state, batch["attention_mask"].bool(), "mean")
        return torch.nn.functional.mse_loss((vectors[::2] * vectors[1::2]).sum(1), wanted)

    return AutoModel.from_pretrained(base), examples, loss


MAKERS = {
    "classification": classifier,
    "regression": classifier,
    "question answering": reader,
    "masked language model": filler,
    "embedding": embedder,
}


def batches(
    examples: Sequence[Example], size: int, together: int, pad_id: int, seed: int
) -> Iterator[dict[str, Tensor]]:
    """Endless batches of similar lengths, shuffled each epoch; groups of `together` neighbours stay whole."""
    generator = random.Random(seed)
    units = [list(range(start, start + together)) for start in range(0, len(examples), together)]
    per_batch = max(1, size // together)
    while True:
        generator.shuffle(units)
        chunks = []
        for start in range(0, len(units), 50 * per_batch):
            near = sorted(units[start : start + 50 * per_batch], key=lambda unit: len(examples[unit[0]]["input_ids"]))
            chunks += [near[at : at + per_batch] for at in range(0, len(near), per_batch)]
        generator.shuffle(chunks)
        for chunk in chunks:
            yield collate([examples[number] for unit in chunk for number in unit], pad_id)


def collate(examples: list[Example], pad_id: int) -> dict[str, Tensor]:
    fill = {"input_ids": pad_id, "labels": -100}
    return {
        name: torch.stack([example[name] for example in examples])
        if examples[0][name].dim() == 0
        else pad_sequence([example[name] for example in examples], batch_first=True, padding_value=fill.get(name, 0))
        for name in examples[0]
    }


@click.command()
@click.argument("base")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--task", "name", type=click.Choice(list(TASKS)), required=True)
@click.option("--data", help="Folder with the data sets.  [default: the hub]")
@click.option("--epochs", default=3.0, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--rate", default=5e-5, show_default=True)
@click.option("--max-length", default=128, show_default=True, help="384 is usual for question answering.")
@click.option("--rows", type=int, help="Train on this many rows, evenly spread.")
@click.option("--limit", type=int, help="Test on this many rows, evenly spread.")
@click.option("--seed", default=0, show_default=True)
def main(base: str, out: Path, name: str, data: str | None, **options: Any) -> None:
    """Fine-tune BASE for a task and write the checkpoint to OUT."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if out.exists():
        raise click.ClickException(f"{out} exists; choose another folder.")
    torch.manual_seed(options["seed"])
    task, folder = TASKS[name], fetch(base)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    train = load_task(name, data=data, split=task.train, limit=options["rows"])
    model, examples, loss_of = MAKERS[task.kind](task, folder, tokenizer, train, options["max_length"])
    together = 2 if task.kind == "embedding" else 1
    steps = max(1, round(options["epochs"] * len(examples) / options["batch"]))
    optimiser = torch.optim.AdamW(model.parameters(), lr=options["rate"], weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimiser, steps // 10, steps)
    stream = batches(examples, options["batch"], together, model.config.pad_token_id or 0, options["seed"])
    size = {"examples": len(examples), "steps": steps}
    log: list[dict[str, Any]] = [{"task": name, **size, **options, **provenance()}]
    began, recent = perf_counter(), []
    model.train()
    for step in range(1, steps + 1):
        loss = loss_of(model, next(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        recent.append(loss.item())
        if step % 50 == 0 or step == steps:
            line = {"step": step, "loss": round(sum(recent) / len(recent), 4), "seconds": round(perf_counter() - began)}
            log.append(line)
            click.echo(json.dumps(line))
            recent.clear()
    limit = min(longest_input(tokenizer, model.config), options["max_length"])
    result = evaluate(model, tokenizer, load_task(name, data=data, limit=options["limit"]), max_length=limit)
    log.append(
        {"validation": [{"name": f.name, "value": f.value, "low": f.low, "high": f.high} for f in result.figures]}
    )
    click.echo(json.dumps(log[-1]))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "finetune.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


if __name__ == "__main__":
    main()
