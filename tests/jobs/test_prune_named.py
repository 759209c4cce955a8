"""`kprune.prune` with a name and text does what the command line does."""

import json

import pytest
from command_line import kprune, write_checkpoint
from notebook_shell import pretend_notebook
from safetensors.torch import load_file

import kprune as package
from kprune import KpruneError, Progress, PruneConfig, RunConfig, Source
from kprune.data.calibration import python_documentation
from kprune.errors import BadOptions

pytest_plugins = ["command_fixtures"]
OPTIONS = {"reduction": 0.5, "tokens": 900, "align": 1, "ridge": 1e-3}


@pytest.fixture(scope="module")
def by_command(checkpoint, text, tmp_path_factory):
    """The weights that the command line writes."""
    out = tmp_path_factory.mktemp("command") / "out"
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    assert kprune("prune", checkpoint, out, "--text", text, *options).exit_code == 0
    return load_file(out / "model.safetensors")


def same_weights(folder, weights) -> bool:
    ours = load_file(folder / "model.safetensors")
    return ours.keys() == weights.keys() and all(ours[name].equal(weights[name]) for name in weights)


@pytest.mark.parametrize("form", ["list", "file", "frame", "column", "data set", "iterator"])
def test_every_form_of_text_gives_the_result_of_the_command(form, checkpoint, text, by_command, tmp_path):
    lines = python_documentation()[:300]
    if form == "data set":
        from datasets import Dataset

        data = Dataset.from_dict({"text": lines})
    elif form in ("frame", "column"):
        from pandas import DataFrame

        frame = DataFrame({"text": lines, "number": range(len(lines))})
        data = frame if form == "frame" else frame["text"]
    else:
        data = {"list": lines, "file": text, "iterator": iter(lines)}[form]
    pruned = package.prune(str(checkpoint) if form == "list" else checkpoint, data, **OPTIONS)
    package.save(pruned, tmp_path / "out")
    assert same_weights(tmp_path / "out", by_command)


def test_side_files_are_saved_without_naming_them(checkpoint, tmp_path):
    pruned = package.prune(checkpoint, python_documentation()[:60], **OPTIONS)
    package.save(pruned, tmp_path / "out")
    assert {file.name for file in checkpoint.iterdir()} <= {file.name for file in (tmp_path / "out").iterdir()}
    assert Source(tmp_path / "out").load_tokenizer().get_vocab() == Source(checkpoint).load_tokenizer().get_vocab()


def test_an_embedder_keeps_its_modules_pooling_and_prompt(tmp_path):
    folder = tmp_path / "embedder"
    write_checkpoint(folder, "embedding")
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    lines = python_documentation()[:60]
    pruned = package.prune(folder, lines, **OPTIONS)
    assert pruned.config.pooling == "cls"
    package.save(pruned, tmp_path / "out")
    assert json.loads((tmp_path / "out/modules.json").read_text()) == modules
    source = Source(folder)
    batches = package.draw(["query: " + line for line in lines], source.load_tokenizer(), tokens=900, max_length=66)
    expected = package.prune(source.load(), batches, reduction=0.5, align=1, ridge=1e-3, pooling="cls")
    assert pruned.steps[-1].kept == expected.steps[-1].kept
    assert pruned.parameters == expected.parameters


def test_pairs_and_columns_are_read(checkpoint):
    rows = [{"a": line, "b": line[:40], "c": 1} for line in python_documentation()[:60]]
    by_columns = package.prune(checkpoint, rows, columns=["a", "b"], **OPTIONS)
    by_pairs = package.prune(checkpoint, [(row["a"], row["b"]) for row in rows], **OPTIONS)
    assert [step.kept for step in by_columns.steps] == [step.kept for step in by_pairs.steps]
    with pytest.raises(KpruneError, match="2 text columns"):
        package.prune(checkpoint, rows, **OPTIONS)


def test_objects_and_keywords_are_the_same(checkpoint, by_command, tmp_path):
    config = PruneConfig(reduction=0.5, align=1, ridge=1e-3)
    pruned = package.prune(checkpoint, python_documentation()[:300], config, run=RunConfig(), tokens=900)
    package.save(pruned, tmp_path / "out")
    assert same_weights(tmp_path / "out", by_command)


def test_batches_take_no_options_of_text(checkpoint):
    model = Source(checkpoint).load().float()
    with pytest.raises(BadOptions, match="tokens belongs to text, and this model is an object with batches"):
        package.prune(model, [], tokens=900)


def test_progress_is_a_callback_or_a_bar_that_notebooks_have_by_default(checkpoint, capsys, monkeypatch):
    lines, seen = python_documentation()[:60], []
    package.prune(checkpoint, lines, **OPTIONS, progress=seen.append)
    assert isinstance(seen[0], Progress)
    assert seen[-1].fraction == 1.0
    assert "pruning" not in capsys.readouterr().err  # no notebook, no bar
    pretend_notebook(monkeypatch)
    package.prune(checkpoint, lines, **OPTIONS)
    assert "pruning: 100%" in capsys.readouterr().err
    package.prune(checkpoint, lines, **OPTIONS, progress=False)
    assert "pruning" not in capsys.readouterr().err
