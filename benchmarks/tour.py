"""The tour of a new user: prune, evaluate, export and load elsewhere, with real files; each stop checks its claim.

    python benchmarks/tour.py --model MODELS --data DATA

MODELS holds minilm-sst2 and minilm-stsb; DATA holds glue/sst2 and glue/stsb. The embedder is the demo's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnxruntime
import pandas as pd  # type: ignore[import-untyped]
import torch
from datasets import Dataset
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

import kprune
from kprune.jobs.demo import embedded_model

ROWS = ("--column", "sentence")
PAIR = ("--column", "sentence1", "--column", "sentence2")
LABELS = ("--label-column", "label")
SAMPLE = ("--reduction", "0.4", "--tokens", "5000")


def run(*arguments: str | Path) -> str:
    """Output of a kprune command; an error ends the stop."""
    done = subprocess.run([sys.executable, "-m", "kprune", *map(str, arguments)], capture_output=True, text=True)
    assert not done.returncode, done.stderr.strip()[-300:]
    return done.stdout


def evaluated(name: str, *arguments: str | Path) -> float:
    """A figure of `kprune evaluate`."""
    report = json.loads(run("evaluate", *arguments, "--json"))
    return next(float(each["value"]) for each in report["figures"] + report["fidelity"] if each["name"] == name)


def same(what: str, *values: float, within: float = 0.01) -> str:
    """Fails unless all values are alike."""
    assert max(values) - min(values) <= within, f"{what} differ: {values}"
    return f"{what} {values[0]:.2f}"


def refused(what: str, read: Callable[[], list[Any]]) -> str:
    """Fails if the reader accepts the file."""
    try:
        found = read()
    except kprune.KpruneError:
        return f"{what} is refused"
    raise AssertionError(f"{what} gives {found[:2]}")


def through_onnx(folder: Path, *texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """First output of an exported model, and the attention mask; all rows in one batch."""
    encoded = AutoTokenizer.from_pretrained(folder)(*texts, padding=True, truncation=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    fed = {node.name: encoded[node.name] for node in session.get_inputs()}
    return session.run(None, fed)[0], encoded["attention_mask"]


@dataclass
class Tour:
    """The stops, in order; later ones read the folders of earlier ones."""

    models: Path
    data: Path
    here: Path
    limit: int
    rows: Any = None
    pairs: Any = None

    def table(self, task: str, split: str) -> Any:
        return pd.read_parquet(next((self.data / "glue" / task).glob(f"{split}*.parquet")))

    def shrink(self, source: Path, out: str, file: str, *options: str) -> None:
        run("prune", source, self.here / out, "--data", self.here / file, *options, *SAMPLE)
        run("export", self.here / out, self.here / f"{out}-onnx")

    def files(self) -> str:
        self.rows = self.table("sst2", "train").sample(600, random_state=0)[["sentence", "label"]]
        self.pairs = self.table("stsb", "validation").head(self.limit)
        self.rows.to_csv(self.here / "train.csv", index=False)
        self.rows.to_json(self.here / "train.jsonl", orient="records", lines=True)
        self.table("sst2", "validation").to_csv(self.here / "test.csv", index=False)
        self.pairs.to_csv(self.here / "pairs.csv", index=False)
        return f"{len(self.rows)} rows of train text"

    def sample(self) -> str:
        tokenizer = AutoTokenizer.from_pretrained(self.models / "minilm-sst2")
        meant = {tuple(ids) for ids in tokenizer(self.rows.sentence.tolist())["input_ids"]}
        files = [kprune.read_rows(self.here / name, ["sentence"]) for name in ("train.csv", "train.jsonl")]
        drawn = []
        for form in [*files, self.rows.sentence.tolist(), self.rows, Dataset.from_pandas(self.rows)]:
            columns = () if isinstance(form, list) else ("sentence",)
            batches = kprune.draw(form, tokenizer, tokens=2000, max_length=128, columns=columns)
            rows = [row for each in batches for row in zip(each["input_ids"], each["attention_mask"], strict=True)]
            drawn.append([tuple(ids[mask.bool()].tolist()) for ids, mask in rows])
        assert all(each == drawn[0] and set(each) <= meant for each in drawn), "the forms give different samples"
        return f"CSV, JSONL, list, DataFrame and Dataset give the same {len(drawn[0])} texts"

    def commas(self) -> str:
        (self.here / "semicolons.csv").write_text("text;label\ngood;1\n")
        refused("a table with semicolons", lambda: kprune.read_rows(self.here / "semicolons.csv"))
        (self.here / "commas.csv").write_text("text,label\n" + "good, but long,1\n" * 20)
        return refused("a row with too many fields", lambda: kprune.read_rows(self.here / "commas.csv", ["text"]))

    def lines_of_table(self) -> str:
        return refused("a table read as lines", lambda: kprune.read_lines(self.here / "train.csv"))

    def classifier(self) -> str:
        self.shrink(self.models / "minilm-sst2", "small", "train.csv", *ROWS)
        test = self.table("sst2", "validation")
        labels, texts = test.label.to_numpy(), test.sentence.tolist()
        ours = evaluated("accuracy", self.here / "small", "--data", self.here / "test.csv", *ROWS, *LABELS)
        classify = pipeline("text-classification", model=str(self.here / "small"), dtype=torch.float32)
        piped = np.array([int(answer["label"].removeprefix("LABEL_")) for answer in classify(texts, batch_size=32)])
        onnx = through_onnx(self.here / "small-onnx", texts)[0].argmax(1)
        assert ours > 80, f"accuracy {ours}"
        scores = [ours, 100 * float((piped == labels).mean()), 100 * float((onnx == labels).mean())]
        return same("accuracy by evaluate, pipeline and ONNX", *scores)

    def dtype(self) -> str:
        said = json.loads((self.here / "small/config.json").read_text())["dtype"]
        stored = {str(tensor.dtype) for tensor in load_file(self.here / "small/model.safetensors").values()}
        assert (stored, said) == ({"torch.float16"}, "float16"), f"weights are {stored}, config.json says {said}"
        return "the float16 model stays float16, in file and config.json"

    def from_python(self) -> str:
        source = self.models / "minilm-sst2"
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32)
        test = kprune.read_test(self.table("sst2", "validation"), ["sentence"], "label")
        results = {}
        for form, data in {"data-set": Dataset.from_pandas(self.rows), "data-frame": self.rows}.items():
            batches = kprune.draw(data, tokenizer, columns=["sentence"], tokens=5000, max_length=128)
            results[form] = kprune.prune(model, batches, reduction=0.4)
            kprune.save(results[form], self.here / form, tokenizer=tokenizer)
        weights = [load_file(self.here / form / "model.safetensors") for form in results]
        assert all(weights[0][name].equal(weights[1][name]) for name in weights[0] | weights[1]), "weights differ"
        ours = kprune.evaluate(results["data-set"].model, tokenizer, test).figures[0].value
        elsewhere = evaluated("accuracy", self.here / "data-frame", "--data", self.here / "test.csv", *ROWS, *LABELS)
        piped = self.in_process("data-set", test.rows[:50])
        with torch.no_grad():
            encoded = tokenizer([text for (text,) in test.rows[:50]], padding=True, return_tensors="pt")
            expected = results["data-set"].model(**encoded).logits.argmax(1).tolist()
        assert piped == expected, "another process gives other answers"
        assert ours > 80, f"accuracy {ours}"
        return same("Dataset and DataFrame give one model; accuracy here and elsewhere", ours, elsewhere)

    def in_process(self, folder: str, rows: Sequence[tuple[str, ...]]) -> list[int]:
        """Classes of a saved model by a pipeline of another process."""
        code = (
            "import json, sys, kprune; from transformers import pipeline; "
            "answers = pipeline('text-classification', model=sys.argv[1])(json.load(sys.stdin)); "
            "print(json.dumps([int(answer['label'][-1]) for answer in answers]))"
        )
        command = [sys.executable, "-c", code, str(self.here / folder)]
        texts = json.dumps([text for (text,) in rows])
        done = subprocess.run(command, input=texts, capture_output=True, text=True, check=True)
        return [int(each) for each in json.loads(done.stdout.splitlines()[-1])]

    def reranker(self) -> str:
        CrossEncoder(str(self.models / "minilm-stsb")).save_pretrained(str(self.here / "reranker"))
        self.shrink(self.here / "reranker", "ranks", "pairs.csv", *PAIR)
        texts = self.pairs.sentence1.tolist(), self.pairs.sentence2.tolist()
        model = CrossEncoder(str(self.here / "ranks"), model_kwargs={"dtype": torch.float32})
        raw = model.predict(list(zip(*texts, strict=True)), activation_fn=torch.nn.Identity())
        onnx = through_onnx(self.here / "ranks-onnx", *texts)[0].reshape(-1)
        assert np.abs(raw - onnx).max() < 1e-3, f"ONNX is {np.abs(raw - onnx).max()} off"
        ours = evaluated("spearman", self.here / "ranks", "--data", self.here / "pairs.csv", *PAIR, *LABELS)
        rank = 100 * float(pd.Series(raw).corr(self.pairs.label.reset_index(drop=True), method="spearman"))
        return same("rank correlation by evaluate and CrossEncoder", ours, rank, within=0.05)

    def embedder(self) -> str:
        dense = SentenceTransformer(str(embedded_model().folder), prompts={"q": "query: "}, default_prompt_name="q")
        dense.save(str(self.here / "embedder"))
        self.shrink(self.here / "embedder", "embeds", "pairs.csv", "--column", "sentence1")
        texts = self.pairs.sentence1.tolist()
        ours, theirs = SentenceTransformer(str(self.here / "embeds")).encode(texts), dense.encode(texts)
        states, mask = through_onnx(self.here / "embeds-onnx", ["query: " + text for text in texts])
        states = states if states.ndim == 2 else (states * mask[..., None]).sum(1)
        states = states / np.linalg.norm(states, axis=1, keepdims=True)
        assert np.abs(states - ours).max() < 1e-3, f"ONNX is {np.abs(states - ours).max()} off"
        shown = ("--against", self.here / "embedder", "--data", self.here / "pairs.csv", "--column", "sentence1")
        said = evaluated("cosine", self.here / "embeds", *shown)
        return same("cosine by evaluate and SentenceTransformer", said, 100 * float((ours * theirs).sum(1).mean()))

    def token_classifier(self) -> str:
        torch.manual_seed(0)
        source = embedded_model().folder
        AutoModelForTokenClassification.from_pretrained(source, num_labels=3).save_pretrained(self.here / "tags")
        AutoTokenizer.from_pretrained(source).save_pretrained(self.here / "tags")
        self.shrink(self.here / "tags", "tagger", "train.jsonl", *ROWS)
        logits, mask = through_onnx(self.here / "tagger-onnx", texts := self.pairs.sentence1.tolist()[:32])
        tag = pipeline("token-classification", model=str(self.here / "tagger"), ignore_labels=[])
        piped = [[int(word["entity"][-1]) for word in words] for words in tag(texts)]
        onnx = [row.argmax(1)[1 : int(length) - 1].tolist() for row, length in zip(logits, mask.sum(1), strict=True)]
        assert piped == onnx, "pipeline and ONNX give different tags"
        return f"pipeline and ONNX give the same {sum(map(len, piped))} tags of {len(set().union(*piped))} kinds"


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of models.")
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of data sets.")
@click.option("--limit", default=200, show_default=True, help="Rows of STS-B.")
def main(model: Path, data: Path, limit: int) -> None:
    """Take the tour in a temporary folder; print a line per stop, and fail if one is wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        tour = Tour(model, data, Path(folder), limit)
        stops = [tour.files, tour.sample, tour.commas, tour.lines_of_table, tour.classifier, tour.dtype]
        for stop in [*stops, tour.from_python, tour.reranker, tour.embedder, tour.token_classifier]:
            try:
                verdict, said = "ok", stop()
            except Exception as error:  # a stop that fails is a finding
                verdict, said, wrong = "WRONG", f"{type(error).__name__}: {error}", wrong + 1
            click.echo(f"{verdict:5}  {stop.__name__:16}  {said}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
