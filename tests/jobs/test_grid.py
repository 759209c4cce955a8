import re
from dataclasses import fields
from pathlib import Path

import pytest

from kprune.config import HealConfig, PruneConfig, info_of
from kprune.errors import KpruneError
from kprune.jobs.grid import EXPECTED, KNOBS, Cell, Grid, model_source, parse_method, read_grid, split_settings
from kprune.pruning.choices import CHOICES
from kprune.pruning.registry import METHODS


def test_knobs_are_the_fields_that_a_variant_may_set():
    configs = (PruneConfig, HealConfig)
    assert list(KNOBS) == [each.name for config in configs for each in fields(config) if info_of(each).in_grid]
    names = "criterion temperature rep_weight head_weight ridge search refit bias budget align native refresh"
    healing, rivals = "heal heal_rate hidden_weight held_out step_tokens", "iterations epochs minutes"
    assert set(KNOBS) == {*names.split(), *healing.split(), *rivals.split()}
    assert not {each.name for each in fields(PruneConfig)} & set(healing.split())


def test_settings_of_healing_need_healing():
    assert split_settings(parse_method("kprune refit=no heal=2x heal_rate=1e-3")[1]) == (
        {"refit": False},
        {"heal": "2x", "heal_rate": 1e-3},
    )
    with pytest.raises(KpruneError, match="sets heal_rate without heal; add heal=4x"):
        parse_method("kprune heal_rate=1e-3")
    with pytest.raises(KpruneError, match="5x are five passes"):
        parse_method("kprune heal=5")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("criterion=released", "released"),
        ("temperature=4", 4.0),
        ("rep_weight=0", 0.0),
        ("head_weight=2.5", 2.5),
        ("ridge=1e-4", 1e-4),
        ("search=uniform", "uniform"),
        ("refit=no", False),
        ("bias=yes", True),
        ("budget=parameters", "parameters"),
        ("align=1", 1),
        ("refresh=0", 0),
    ],
)
def test_each_knob_has_the_type_of_its_field(setting, value):
    name, knobs = parse_method(f"kprune {setting}")
    assert (name, knobs) == ("kprune", {setting.partition("=")[0]: value})
    assert type(next(iter(knobs.values()))) is type(value)


def test_a_variant_may_set_several_knobs():
    assert parse_method("kprune criterion=released temperature=4") == (
        "kprune",
        {"criterion": "released", "temperature": 4.0},
    )
    assert [parse_method(name) for name in METHODS] == [(name, {}) for name in METHODS]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("movement", "unknown method 'movement'; use one of kprune, kwon"),
        ("", "unknown method ''; use one of kprune"),
        ("kwon refit=no", "sets 'refit'; kwon takes no settings"),
        ("textpruner refit=no", "sets 'refit'; textpruner takes iterations"),
        ("dynabert-w iterations=4", "sets 'iterations'; dynabert-w takes epochs, minutes"),
        ("kprune iterations=4", "sets 'iterations'; kprune takes criterion, temperature"),
        ("kprune speed=9", "sets 'speed'; kprune takes criterion, temperature"),
        ("kprune seed=9", "sets 'seed'; kprune takes criterion, temperature"),
        ("kprune temperature=hot", "sets temperature to 'hot'; it must be a number"),
        ("kprune align=1.5", "sets align to '1.5'; it must be a whole number"),
        ("kprune refit=maybe", "sets refit to 'maybe'; it must be yes or no"),
        ("kprune temperature=-1", "temperature is -1.0, but must be above 0; the paper uses 2"),
        ("kprune ridge=-1", "ridge is -1.0, but must be 0 or more; leave it out for the default"),
    ],
)
def test_a_wrong_method_or_setting_is_refused(text, message):
    with pytest.raises(KpruneError, match=message):
        parse_method(text)


@pytest.mark.parametrize("knob", ["criterion", "search", "budget"])
def test_a_misspelt_name_is_refused_with_the_choices(knob):
    with pytest.raises(KpruneError) as caught:
        parse_method(f"kprune {knob}=magic")
    assert str(caught.value) == f"unknown {knob} 'magic'; use one of {', '.join(CHOICES[knob])}."


def test_every_type_of_a_knob_has_a_name_for_messages():
    flags = ("refit", "bias", "native")
    assert {type(parser("1")) for name, parser in KNOBS.items() if name not in flags} | {bool} == set(EXPECTED)


def test_cells_that_share_a_sample_are_adjacent():
    grid = Grid({"sst2": "a/m1", "squad": "m2"}, methods=("kprune", "kwon"), reductions=(0.4, 0.8), seeds=(0, 1))
    cells = grid.cells()
    assert len(cells) == len(set(cells)) == 16
    assert cells[0] == Cell("sst2", "m1", "kprune", 0.4, 0, 25_000, None, "a/m1")
    samples = [(cell.task, cell.seed) for cell in cells]
    assert samples == sorted(samples, key=[("sst2", 0), ("sst2", 1), ("squad", 0), ("squad", 1)].index)


def test_models_of_a_grid_have_labels_that_differ(tmp_path):
    models = {"sst2": "a/model", "squad": "b/model", "stsb": "a/model"}
    labels = {cell.task: (cell.model, cell.source) for cell in Grid(models).cells()}
    assert labels == {
        "sst2": ("a/model", "a/model"),
        "squad": ("b/model", "b/model"),
        "stsb": ("a/model", "a/model"),
    }
    deep = [write_folder(tmp_path / place / "run/model", place) for place in "ab"]
    cells = Grid(dict(zip(("sst2", "squad"), map(str, deep), strict=True))).cells()
    assert {cell.model for cell in cells} == {cell.source for cell in cells}  # two parts of the paths are alike


def write_folder(folder: Path, weights: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)
    return folder


def test_the_source_of_a_folder_is_its_name_and_content_without_its_path(tmp_path):
    one, copy, other = (write_folder(tmp_path / name / "model", text) for name, text in zip("abc", "xxy", strict=True))
    (one / "README.md").write_text("a card")  # is not part of the model
    sources = [model_source(str(folder)) for folder in (one, one / "../model", copy, other)]
    assert sources[0] == sources[1] == sources[2] != sources[3]
    assert all(re.fullmatch(r"model@[0-9a-f]{12}", source) for source in sources)
    (copy / "vocab.txt").write_text("word")
    assert model_source(str(copy)) != sources[2]
    assert model_source("owner/model") == "owner/model"


def test_the_source_covers_the_parts_of_a_sentence_transformers_folder(tmp_path):
    folder = write_folder(tmp_path / "model", "x")
    part = write_folder(folder / "2_Dense", "y")
    before = model_source(str(folder))
    (part / "model.safetensors").write_text("z")
    assert model_source(str(folder)) == before  # such as the folder of an earlier training step
    (folder / "modules.json").write_text("[]")
    before = model_source(str(folder))
    (part / "model.safetensors").write_text("y")
    assert model_source(str(folder)) != before


def test_a_file_sets_the_fields_of_a_grid(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("methods = ['kprune']\nreductions = [0.5]\nseeds = [1]\nlimit = 9\n[models]\nsst2 = 'm'\n")
    grid = Grid(**read_grid(path))
    assert grid == Grid({"sst2": "m"}, methods=("kprune",), reductions=(0.5,), seeds=(1,), limit=9)
    assert hash(grid.cells()[0])


def test_a_file_with_unknown_fields_is_refused(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("methods = ['kprune']\nlayers = 3\n")
    with pytest.raises(KpruneError, match="sets 'layers'; it may set data, limit"):
        read_grid(path)
    path.write_text("methods = [")
    with pytest.raises(KpruneError, match=r"cannot read .* as TOML"):
        read_grid(path)
    with pytest.raises(KpruneError, match=r"cannot read .*absent\.toml as TOML"):
        read_grid(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("reductions = 0.5", "sets reductions to 0.5; it must be a list"),
        ('models = "m"', "sets models to 'm'; it must be a table"),
        ('methods = "kprune"', "sets methods to 'kprune'; it must be a list"),
        ('tokens = "many"', "sets tokens to 'many'; it must be a whole number"),
    ],
)
def test_a_grid_of_wrong_types_is_refused(content, sentence, tmp_path):
    (tmp_path / "grid.toml").write_text(content)
    with pytest.raises(KpruneError, match=re.escape(sentence)):
        read_grid(tmp_path / "grid.toml")
