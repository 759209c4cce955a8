"""Commands and code in the documentation work: those that can run on a tiny model run, the rest are parsed.

A test is named after the line of the document that it checks.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent

import click
import media_data
import pytest
import torch
from command_line import kprune, write_checkpoint, write_decoder, write_text
from fast_clock import install_fast_clock
from task_data import load_tokenizer, write_data

import kprune as package
from kprune.cli.config_file import read_options
from kprune.cli.main import main
from kprune.data.calibration import python_documentation
from kprune.data.tasks import TASKS
from kprune.deploy import benchmark
from kprune.deploy.footprint import Footprint
from kprune.jobs import export_checkpoint
from kprune.jobs.grid import Grid, parse_method, read_grid
from kprune.jobs.results import read_results
from kprune.models.family import Block, Family

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LAUNCHERS = ("torchrun", "accelerate")
ONCE = ("--reduction", "--seed")
"""Repeated options of which the first value suffices."""


@dataclass(frozen=True)
class Fence:
    """A fenced block of a document."""

    document: str
    line: int
    """Number of its first line."""
    language: str
    content: str

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a document."""

    document: str
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)


def fences(path: Path) -> Iterator[Fence]:
    lines = path.read_text("utf-8").splitlines()
    start, language = None, ""
    for number, line in enumerate(lines, 1):
        mark = re.match(r"\s*```(\w*)", line)
        if mark and start is None:
            start, language = number + 1, mark[1]
        elif mark:
            content = "\n".join(lines[start - 1 : number - 1])
            yield Fence(str(path.relative_to(ROOT)), start, language, content)
            start = None
    assert start is None, f"{path.name} does not close the block in line {start}"


def commands_of(fence: Fence) -> Iterator[Command]:
    """The commands of a block; the body of a loop is taken once, with the loop's first value."""
    first, joined, value = fence.line, "", {}
    for number, line in enumerate(fence.content.splitlines(), fence.line):
        first = first if joined else number
        joined += line.removesuffix("\\").strip() + " " if line.endswith("\\") else line.strip()
        if line.endswith("\\"):
            continue
        loop = re.fullmatch(r"for (\w+) in (\S+).*; do", joined)
        if loop:
            value[loop[1]] = loop[2]
        elif joined and joined != "done":
            for variable, text in value.items():
                joined = joined.replace(f"${variable}", text)
            for part in joined.split(" && "):
                if shlex.split(part, comments=True):
                    yield Command(fence.document, first, part)
        joined = ""


FENCES = [fence for path in DOCUMENTS for fence in fences(path)]
COMMANDS = [command for fence in FENCES if fence.language == "bash" for command in commands_of(fence)]
INLINE = [
    Command(str(path.relative_to(ROOT)), number, code)
    for path in DOCUMENTS
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
    for code in re.findall(r"(?<!`)`((?:kprune [a-z]|python benchmarks/)[^`]*)`", line)
]
KPRUNE = [command for command in COMMANDS if command.words[0] == "kprune"]
LAUNCHED = [command for command in COMMANDS if command.words[0] in LAUNCHERS]
SCRIPTS = [command for command in COMMANDS + INLINE if command.words[0] == "python"]
SETUP = [command for command in COMMANDS if command.words[0] in ("make", "pip", "git", "cd")]


def named(items: list) -> list:
    return [pytest.param(item, id=item.name) for item in items]


def is_parsed_only(command: Command) -> bool:
    """Whether a command is parsed only: it would write some twenty graphs, or needs a package that is not there."""
    if "gguf" in command.words and importlib.util.find_spec("gguf") is None:
        return True
    return "--int8-max-drop" in command.words or ("--speedup" in command.words and "onnxruntime" in command.words)


RUN = list({tuple(command.words[1:]): command for command in reversed(KPRUNE) if not is_parsed_only(command)}.values())
"""Commands that run; the same command in several places runs once."""


def test_every_command_is_known():
    known = {*KPRUNE, *LAUNCHED, *SCRIPTS, *SETUP}
    assert [f"{command.name}: {command.text}" for command in COMMANDS if command not in known] == []
    assert len(RUN) > 15


def parsed(command: Command, words: list[str]) -> click.Context:
    """The context of a kprune command; unknown options and wrong values fail with the document's line."""
    verb, *arguments = words
    assert verb in main.commands, f"{command.name}: there is no command `kprune {verb}`"
    try:
        return main.commands[verb].make_context(verb, list(arguments))
    except click.UsageError as error:
        pytest.fail(f"{command.name}: `{command.text}`: {error.format_message()}")


@pytest.mark.parametrize("command", named(KPRUNE))
def test_options_of_commands_exist(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = command.words[1:]
    if words[0] == "plot":
        (tmp_path / words[1]).touch()
    context = parsed(command, words)
    for method in context.params.get("methods", ()):
        parse_method(method)
    for model in context.params.get("models", ()):
        assert model.partition("=")[0] in TASKS, command.name
    assert context.params.get("task") in (None, *TASKS), command.name


@pytest.mark.parametrize("command", named(LAUNCHED))
def test_options_of_launched_commands_exist(command):
    words = command.words
    assert words[words.index("-m") + 1] == "kprune", command.name
    parsed(command, words[words.index("-m") + 2 :])


@pytest.mark.parametrize("command", named([command for command in INLINE if command.words[0] == "kprune"]))
def test_options_in_the_text_exist(command):
    verb = command.words[1]
    if "=" in verb:  # a variant of the method
        parse_method(command.text)
        return
    assert verb in main.commands, f"{command.name}: there is no command `kprune {verb}`"
    options = {name for option in main.commands[verb].params for name in (*option.opts, *option.secondary_opts)}
    unknown = {word.partition("=")[0] for word in command.words if word.startswith("--")} - options - {"--help"}
    assert unknown == set(), f"{command.name}: `{command.text}`"


@pytest.mark.parametrize("command", named(SCRIPTS))
def test_scripts_and_their_options_exist(command):
    script, *arguments = command.words[1:]
    assert (ROOT / script).is_file(), f"{command.name}: there is no {script}"
    declared = re.findall(r"\"(--[\w/-]+)\"", (ROOT / script).read_text("utf-8"))
    options = {name for names in declared for name in names.split("/")}
    unknown = {word.partition("=")[0] for word in arguments if word.startswith("--")} - options
    assert unknown == set(), f"{command.name}: `{command.text}`"


@pytest.mark.parametrize("command", named(SETUP))
def test_targets_and_extras_exist(command):
    program, *arguments = command.words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets), f"{command.name}: `{command.text}`"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for names in re.findall(r"\[([\w,]+)\]", command.text if program == "pip" else ""):
        assert set(names.split(",")) <= set(extras), f"{command.name}: `{command.text}`"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Every file and folder that the documents name, with a tiny model in the place of MODEL."""
    root = tmp_path_factory.mktemp("documents")
    texts = [text.replace('"', "")[:120] for text in python_documentation()[:400]]
    write_text(root / "sentences.txt", 400)
    pairs = "".join(f'"What is number {n}?","{text}"\n' for n, text in enumerate(texts))
    (root / "pairs.csv").write_text("question,passage\n" + pairs)
    rows = "".join(f'"{text}","{text}","{text[:20]}",{n % 2}\n' for n, text in enumerate(texts[:60]))
    (root / "my.csv").write_text("text,a,b,y\n" + rows)
    choices = ({"context": text, "choices": ["this", "that"], "answer": n % 2} for n, text in enumerate(texts[:20]))
    (root / "piqa.jsonl").write_text("\n".join(map(json.dumps, choices)))
    queries = (
        {"query": text, "passages": texts[n : n + 3], "relevance": [0, 1, 0]} for n, text in enumerate(texts[:9])
    )
    (root / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    words = ({"tokens": text.split(), "tags": ["B-PER"] * len(text.split())} for text in texts[:9])
    (root / "ner.jsonl").write_text("\n".join(map(json.dumps, words)))
    (root / "my.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for folder in ("DIR", "DATA"):
        for task in ("sst2", "squad", "wikitext2"):
            write_data(root / folder, TASKS[task], rows=320 if task == "sst2" else 60)
    write_data(root / "nyu-mll", TASKS["sst2"], rows=320)
    photos = sorted(media_data.write_images(root / "photos").rglob("*.png"))
    (root / "photos.csv").write_text("path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in photos))
    media_data.write_sounds(root / "recordings")
    (root / "scratch").mkdir()
    _write_models(root)
    arguments = ("--text", root / "sentences.txt", "--reduction", 0.6, "--tokens", 1000)
    assert kprune("prune", root / "MODEL", root / "small", *arguments).exit_code == 0
    grid = ("--reduction", 0.5, "--seed", 0, "--tokens", 400, "--limit", 20, "--data", root / "DIR")
    assert kprune("compare", root / "results.jsonl", "--model", f"sst2={root / 'MODEL'}", *grid).exit_code == 0
    for name in ("compare.jsonl", "criteria.jsonl"):
        (root / name).write_bytes((root / "results.jsonl").read_bytes())
    return root


def _write_models(root: Path) -> None:
    """MODEL, `dense` and a model for each task."""
    sizes = {"max_position_embeddings": 160}
    for task, kind in {"sst2": "classification", "squad": "question answering"}.items():
        labels = {"num_labels": 2} if kind == "classification" else {}
        write_checkpoint(root / "models" / task, kind, **sizes, **labels)
    media_data.write_model(root / "VIT", "vit", "image classification")
    media_data.write_model(root / "small-vit", "vit", "image classification")
    media_data.write_model(root / "WAV2VEC2", "wav2vec2", "speech recognition")
    media_data.write_model(root / "small-wav2vec2", "wav2vec2", "speech recognition")
    write_checkpoint(
        root / "small-tagger",
        "token classification",
        **sizes,
        id2label=dict(enumerate(("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))),
    )
    write_decoder(root / "LM")
    write_decoder(root / "small-lm", seed=1)
    for name in ("MODEL", "dense"):
        model = package.Source(root / "models/sst2").load()
        with torch.no_grad():  # one class in all cases, so that no reduction costs accuracy
            model.classifier.bias.copy_(torch.tensor([0.0, 6.0]))
        model.save_pretrained(root / name)
        load_tokenizer().save_pretrained(root / name)


@pytest.fixture
def workspace(inputs, tmp_path, monkeypatch) -> Path:
    """An empty current folder, and clocks and sizes that make commands short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    install_fast_clock(monkeypatch)
    monkeypatch.setattr(
        benchmark, "measure_footprint", lambda name, source, graph, runtime, *_: Footprint(name, runtime.name, 1, 2, 3)
    )
    monkeypatch.setattr(export_checkpoint, "STOCK_TEXTS", 30)
    return tmp_path


def outputs_of(words: list[str]) -> set[str]:
    """Files and folders that a command writes, and that must not exist before."""
    verb, *others = words
    if "--dry-run" in others:
        return set()
    positional = {"prune": 1, "sweep": 1, "export": 1, "plot": 1, "report": 1, "compare": 0}.get(verb)
    kept = {others[place + 1] for place, word in enumerate(others) if word == "--checkpoint"}
    return kept if positional is None else {*kept, others[positional]}


def shortened(words: list[str], inputs: Path) -> list[str]:
    """The command with less work: fewer tokens, one seed, reduction, runtime and method, data from a folder."""
    verb = words[0]
    short: list[str] = []
    for place, word in enumerate(words):
        option = words[place - 1] if place else ""
        if (word in ONCE and word in short) or (option in ONCE and option in words[: place - 1]):
            continue
        if word.startswith("/"):
            word = str(inputs) + word
        if option == "--heal" and word.endswith("m"):
            word = "0.01m"
        if option == "--reduction" and "--native" in words:
            word = "0.1"  # the heads of the tiny model, which all stay, are half its FLOPs
        if option == "--model":
            task = word.partition("=")[0]
            word = f"{task}={inputs / 'models' / task}"
        short.append(word)
    extra: dict[str, list[str]] = {
        "prune": ["--tokens", "1000"],
        "sweep": ["--tokens", "600", "--limit", "30", "--shape", "2x8", "--seconds", "0", "--reduction", "0.5"],
        "compare": [
            *("--tokens", "400", "--limit", "20", "--seed", "0", "--data", str(inputs / "DIR")),
            *("--reduction", "0.5", "--method", "kprune"),
        ],
        "bench": ["--seconds", "0", "--runtime", "torch", "--threads", "1"],
    }
    if "--task" in words:
        extra[verb] = [*extra.get(verb, []), "--data", str(inputs / "DIR")]
    if "--speedup" in words:
        extra[verb] = [*extra[verb], "--threads", "1"]
    given = extra.get(verb, [])
    for option, value in zip(given[::2], given[1::2], strict=True):
        if option not in short:
            short += [option, value]
    return short


@pytest.mark.parametrize("command", named(RUN))
def test_commands_run(command, workspace, inputs):
    words = command.words[1:]
    for path in inputs.iterdir():
        if path.name not in outputs_of(words):
            (workspace / path.name).symlink_to(path)
    short = shortened(words, inputs)
    result = kprune(*short)
    assert result.exit_code == 0, f"{command.name}: `{command.text}`, run as `{shlex.join(short)}`:\n{result.output}"
    assert all((workspace / name).exists() for name in outputs_of(words) if words[0] != "prune" or name != "DIR")
    if words[0] == "compare":
        errors = [line["error"] for line in read_results(workspace / words[1]) if "error" in line]
        assert all(error.startswith("kcm removes neurons only") for error in errors), f"{command.name}: {errors}"


@pytest.mark.parametrize("fence", named([fence for fence in FENCES if fence.language == "python"]))
def test_code_runs(fence, workspace, inputs, monkeypatch, capsys):
    for path in inputs.iterdir():
        if path.name != "small" or "from_pretrained" in fence.content or "Source(" in fence.content:
            (workspace / path.name).symlink_to(path)
    monkeypatch.setattr(package, "load_task", partial(package.load_task, data=inputs / "DIR"))
    source = package.Source(inputs / "MODEL")
    model, tokenizer = source.load(), source.load_tokenizer()
    batches = package.draw(package.read_lines("sentences.txt"), tokenizer, tokens=1000, max_length=64)
    prepared = {"model": model, "tokenizer": tokenizer, "batches": batches, "kprune": package, "Path": Path}
    if "pruned." in fence.content and "pruned =" not in fence.content:
        prepared["pruned"] = package.prune(model, batches, reduction=0.5)
    code = "\n" * (fence.line - 1) + dedent(fence.content)  # a traceback then has the document's line
    exec(compile(code, str(ROOT / fence.document), "exec"), {**prepared, "Family": Family, "Block": Block})


TOML = [fence for fence in FENCES if fence.language == "toml"]


def is_config(fence: Fence) -> bool:
    """Whether a block is a kprune.toml, not a grid."""
    return set(tomllib.loads(fence.content)) <= set(main.commands)


@pytest.mark.parametrize("fence", named([fence for fence in TOML if is_config(fence)]))
def test_files_of_options_are_read(fence, tmp_path):
    (tmp_path / "kprune.toml").write_text(fence.content)
    for name in tomllib.loads(fence.content):
        context = click.Context(main.commands[name], info_name=name, parent=click.Context(main))
        assert read_options(context, tmp_path / "kprune.toml"), fence.name


@pytest.mark.parametrize("fence", named([fence for fence in TOML if not is_config(fence)]))
def test_grids_are_read(fence, tmp_path):
    (tmp_path / "grid.toml").write_text(fence.content)
    grid = Grid(**read_grid(tmp_path / "grid.toml"))
    assert set(grid.models) <= set(TASKS), fence.name
    for method in grid.methods:
        parse_method(method)
