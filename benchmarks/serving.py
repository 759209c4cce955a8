"""Documents per second of an embedder and a reranker: dense, pruned, and pruned with int8 weights, in three runtimes.

    python benchmarks/serving.py --out benchmarks/results/serving.json
    python benchmarks/serving.py --reranker MINILM-RERANKER --task stsb --data DIR --out benchmarks/results/serving.json

The embedder is all-MiniLM-L6-v2, or a folder. Each model is pruned on Python's documentation; held-out paragraphs of
it, with their padding, are the documents, and a reranker reads them with a question. All variants of a model take turns
in one run, so ratios compare; the times themselves are this machine's. Quality is the likeness to the dense model in
torch on the same documents, and with `--task` (the reranker) or `--embedder-task` also the task's metric.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from machine import provenance
from torch import Tensor
from transformers import PreTrainedModel

from kprune import PruneConfig, Source, Test, load_task
from kprune.data.calibration import python_documentation
from kprune.deploy import onnx, openvino
from kprune.deploy.graphs import Run, graph_bytes, output_names, served_model
from kprune.deploy.runtimes import RUNTIMES
from kprune.deploy.targets import start
from kprune.deploy.timing import Times, time_interleaved
from kprune.evaluation.evaluator import evaluate
from kprune.jobs.demo import QUERIES, embedded_model
from kprune.jobs.int8_search import Int8Search
from kprune.jobs.preparation import Prepared, prepare
from kprune.jobs.prune_checkpoint import prune_checkpoint
from kprune.models.outputs import Prediction
from kprune.runtime.devices import torch_threads

Batches = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Variant:
    """A model in a runtime, ready to run."""

    name: str
    runtime: str
    run: Run
    outputs: list[str]
    megabytes: float


def documents(count: int, *, with_questions: bool) -> list[tuple[str, ...]]:
    """Held-out paragraphs; for a reranker, each after a question."""
    texts = python_documentation()[:count]
    if not with_questions:
        return [(text,) for text in texts]
    return [(QUERIES[number % len(QUERIES)], text) for number, text in enumerate(texts)]


def encode(prepared: Prepared, rows: Sequence[tuple[str, ...]], batch: int) -> Batches:
    """The documents as padded batches."""
    found = []
    for first in range(0, len(rows), batch):
        columns = (list(column) for column in zip(*rows[first : first + batch], strict=True))
        options = {"padding": True, "truncation": True, "max_length": prepared.max_length, "return_tensors": "pt"}
        found.append(dict(prepared.tokenizer(*columns, **options)))
    return found


def variants(
    models: Mapping[str, PreTrainedModel],
    example: dict[str, Tensor],
    folder: Path,
    threads: int,
    search: Int8Search | None,
) -> Iterator[Variant]:
    """Each model in each runtime, and its int8 graphs."""
    for name, model in models.items():
        outputs = output_names(model, example)
        torch_run = RUNTIMES["torch"].start(model, example)
        yield Variant(name, "torch", torch_run, outputs, 4e-6 * model.num_parameters())
        place = folder / name
        place.mkdir()
        onnx.to_onnx(model, example, place / "model.onnx")
        (search if search and name == "pruned" else onnx.quantize)(place / "model.onnx", place / "int8.onnx")
        for weights in ("", " int8"):
            xml = place / f"openvino{weights.strip()}.xml"
            openvino.to_openvino(place / "model.onnx", xml, int8=bool(weights))
            for runtime, file in (("onnxruntime", place / f"{'int8' if weights else 'model'}.onnx"), ("openvino", xml)):
                run = start(file, threads=threads)
                yield Variant(name + weights, runtime, run, outputs, graph_bytes(file) / 1e6)


def quality(
    variant: Variant,
    prepared: Prepared,
    tests: Sequence[Test],
    recalled: list[dict[int, Prediction]],
    against: PreTrainedModel | None = None,
) -> dict[str, float]:
    """Likeness to another model, by default the dense one, or the task's metric where there is one; and points lost."""
    found: dict[str, float] = {}
    for test, cache in zip(tests, recalled, strict=True):
        result = evaluate(
            served_model(prepared.model, variant.run, variant.outputs),
            prepared.tokenizer,
            test,
            against=against or prepared.model,
            pooling=prepared.source.pooling,
            max_length=prepared.max_length,
            recalled=cache,
        )
        figures = result.figures or result.fidelity
        found |= {f"{test.name}: {each.name}": each.value for each in figures[:1]}
        found[f"{test.name}: points lost"] = result.drop.value
    return found


def int8_search(
    prepared: Prepared, pruned: PreTrainedModel, test: Test, batches: Batches, limit: float | None
) -> Int8Search | None:
    """The search for an int8 graph that loses at most `limit` points against the pruned model."""
    if limit is None:
        return None
    cache: list[dict[int, Prediction]] = [{}]
    outputs = output_names(pruned, batches[0])

    def loss(path: Path) -> float:
        variant = Variant("pruned int8", "onnxruntime", start(path), outputs, 0.0)
        return quality(variant, prepared, [test], cache, pruned)[f"{test.name}: points lost"]

    return Int8Search(limit, loss, batches[:2])


def measure(
    source: Source,
    tests: Sequence[Test],
    *,
    reduction: float,
    tokens: int,
    count: int,
    batch: int,
    threads: int,
    seconds: float,
    int8_max_drop: float | None,
) -> list[dict[str, Any]]:
    """A line for each variant of one model: speed, its ratio to the dense model in torch, and quality."""
    with_questions = not source.is_sentence_transformer or source.sentence_class == "CrossEncoder"
    rows = documents(2 * count, with_questions=with_questions)
    config = PruneConfig(reduction=reduction, pooling=source.pooling)
    more = [(QUERIES[n % len(QUERIES)], text) for n, text in enumerate(python_documentation()[2 * count :])]
    sample = Test("sample", None, more if with_questions else [(text,) for _, text in more], None)
    prepared = prepare(source, sample, None, config, tokens=tokens, max_length=128, device="cpu", in_float32=True)
    pruned = prune_checkpoint(prepared, config).result.model.float().eval()
    models = {"dense": prepared.model.eval(), "pruned": pruned}
    held_out = [Test("held-out documents", None, rows, None), *tests]
    batches = encode(prepared, rows[:count], batch)
    search = int8_search(prepared, pruned, held_out[-1], batches, int8_max_drop)
    with TemporaryDirectory() as folder, torch_threads(threads):
        found = list(variants(models, batches[0], Path(folder), threads, search))
        calls = {(each.name, each.runtime): _all_batches(each.run, batches) for each in found}
        times = time_interleaved(calls, seconds=seconds)
        recalled: list[dict[int, Prediction]] = [{} for _ in held_out]
        lines = [
            {**_speed(each, times, count), "quality": quality(each, prepared, held_out, recalled)} for each in found
        ]
    choice = asdict(search.choice) if search and search.choice else None
    return [{"model": source.title, "class": type(prepared.model).__name__, **line, "int8": choice} for line in lines]


def _all_batches(run: Run, batches: Batches) -> Callable[[], object]:
    return lambda: [run(batch) for batch in batches]


def _speed(variant: Variant, times: Mapping[tuple[str, str], Times], count: int) -> dict[str, Any]:
    ours = times[variant.name, variant.runtime]
    return {
        "variant": variant.name,
        "runtime": variant.runtime,
        "documents_per_second": count / ours.p50,
        "times_dense_torch": times["dense", "torch"].ratio(ours),
        "times_dense_here": times["dense", variant.runtime].ratio(ours),
        "megabytes": variant.megabytes,
    }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as a Markdown table."""
    rows = [
        f"| {line['model']} | {line['variant']} | {line['runtime']} | {line['documents_per_second']:.0f} | "
        f"{line['times_dense_torch']:.2f} | {line['times_dense_here']:.2f} | {line['megabytes']:.0f} | "
        + "; ".join(f"{name} {value:.2f}" for name, value in line["quality"].items())
        + " |"
        for line in lines
    ]
    head = "| model | variant | runtime | documents/s | × dense torch | × dense here | MB | quality |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *rows])


@click.command()
@click.option("--embedder", help="A folder.  [default: all-MiniLM-L6-v2]")
@click.option("--reranker", help="A folder of a reranker, or of a regressor of pairs.  [default: none]")
@click.option("--task", help="A task that scores the reranker, such as stsb.")
@click.option("--embedder-task", help="A task that scores the embedder, such as stsb-cosine.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with the tasks' data.  [default: the hub]")
@click.option("--limit", type=int, help="Rows of the tasks.  [default: all]")
@click.option("--reduction", default=0.6, show_default=True)
@click.option("--tokens", default=50_000, show_default=True)
@click.option("--documents", "count", default=128, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="For each variant.")
@click.option(
    "--int8-max-drop", type=float, help="Matrices of the pruned graph stay in float32 until int8 loses at most this."
)
@click.option("--out", type=click.Path(path_type=Path))
def main(
    embedder: str | None,
    reranker: str | None,
    task: str | None,
    embedder_task: str | None,
    data: Path | None,
    limit: int | None,
    out: Path | None,
    **settings: Any,
) -> None:
    """Measure both models, print a table, and write JSON."""
    chosen = [(Source(embedder) if embedder else embedded_model(), embedder_task)]
    if reranker:
        chosen.append((Source(reranker), task))
    lines: list[dict[str, Any]] = []
    for source, name in chosen:
        tests = [load_task(name, data=data, limit=limit)] if name else []
        lines += measure(source, tests, **settings)
    click.echo(table(lines))
    if out:
        out.write_text(json.dumps({"lines": lines, **provenance(), **settings}, indent=1) + "\n")


if __name__ == "__main__":
    main()
