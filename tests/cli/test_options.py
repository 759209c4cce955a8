"""Options are generated from the configuration's fields, and none is lost."""

from dataclasses import fields
from pathlib import Path

import click
import pytest
from command_line import kprune

from kprune.checkpoints.files import short_names
from kprune.cli.main import main
from kprune.cli.options import parse_shape
from kprune.config import PruneConfig, RunConfig, info_of, type_of
from kprune.errors import BadOptions, KpruneError
from kprune.pruning.choices import CHOICES

pytest_plugins = ["command_fixtures"]

DATA_OPTIONS = (
    "--text --task --data --column --text-column --label-column --metric --subset --max-length --limit --device --split"
)
OPTIONS_OF_VERSION_0_1 = {
    "prune": "--reduction --speedup --max-drop --guard --no-guard --evaluate --validation --tokens --criterion "
    "--method --search --refit --no-refit --budget --align --shape --runtime --threads --cache --no-cache "
    "--temperature --rep-weight --head-weight --refresh --ridge --seed --offload --checkpoint --overwrite --json "
    + DATA_OPTIONS,
    "evaluate": f"--against --json {DATA_OPTIONS}",
    "bench": "--against --shape --runtime --threads --device --seconds --picture --json",
    "export": f"--to --int8 --overwrite --json {DATA_OPTIONS}",
    "compare": "--grid --model --method --reduction --seed --tokens --data --limit --jobs",
    "plot": "--format --json",
    "tasks": "--json",
    "inspect": "--length --json",
    "families": "--json",
    "demo": "--reduction --tokens --json",
}
ON_COMMAND_LINE = [
    (config, each) for config in (PruneConfig, RunConfig) for each in fields(config) if info_of(each).on_command_line
]
OTHER_VALUES = {
    "method": "kwon", "criterion": "fisher", "temperature": 3.5, "rep_weight": 0.25, "head_weight": 2.5, "ridge": 1e-3,
    "seed": 5, "search": "uniform", "refit": False, "bias": True, "budget": "parameters", "align": 4, "refresh": 2,
    "reduction": 0.3, "device": "cpu", "offload": "host", "checkpoint": "kept", "native": True,
    "iterations": 3, "epochs": 0.5, "minutes": 2.0,
}  # fmt: skip
"""Of each field a value that is not its default."""


def options_of(command: str) -> dict[str, click.Option]:
    options = [each for each in main.commands[command].params if isinstance(each, click.Option)]
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("command", OPTIONS_OF_VERSION_0_1)
def test_no_option_of_version_0_1_is_lost(command):
    assert set(OPTIONS_OF_VERSION_0_1[command].split()) - set(options_of(command)) == set()


def test_no_command_of_version_0_1_is_lost():
    assert set(OPTIONS_OF_VERSION_0_1) <= set(main.commands)


@pytest.mark.parametrize("command", main.commands)
def test_every_command_and_option_has_help(command):
    assert main.commands[command].help
    shown = kprune(command, "--help")
    assert shown.exit_code == 0
    unexplained = {name for name, option in options_of(command).items() if not option.help}
    assert unexplained <= {"--shape", "--to", "--format", "--reduction", "--seed"}  # lists and plain names


@pytest.mark.parametrize(("config", "field"), [pytest.param(*each, id=each[1].name) for each in ON_COMMAND_LINE])
def test_every_field_is_an_option_with_its_default_and_help(config, field):
    option = options_of("prune")["--" + field.name.replace("_", "-")]
    assert option.name == field.name
    assert option.default == (None if field.name == "reduction" else field.default)  # one of three ways to say how much
    assert option.help.startswith(info_of(field).help)
    if field.name in CHOICES:
        assert list(option.type.choices) == list(CHOICES[field.name])
        assert all(f"{name}: {summary}" in option.help for name, summary in CHOICES[field.name].items())
    if type_of(config, field.name) is bool:
        assert option.secondary_opts == [f"--no-{field.name}"]


def test_every_option_reaches_its_configuration(checkpoint, text, tmp_path, monkeypatch):
    assert set(OTHER_VALUES) == {field.name for _, field in ON_COMMAND_LINE}
    received = {}

    def receive(prepared, config, run, **_):
        received.update(vars(config) | vars(run))
        raise KpruneError("received")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kprune.cli.prune_run.prepare_from", lambda *_, **__: None)
    monkeypatch.setattr("kprune.cli.prune_run.prune_checkpoint", receive)
    arguments = [
        f"--{name.replace('_', '-')}={value}" for name, value in OTHER_VALUES.items() if type(value) is not bool
    ]
    result = kprune("prune", checkpoint, "out", "--text", text, "--no-refit", "--bias", *arguments)
    assert result.stderr == "kprune: received\n"
    expected = {**OTHER_VALUES, "checkpoint": Path("kept"), "native": False}  # native suits no rival and no bias
    assert {name: received[name] for name in OTHER_VALUES} == expected
    kprune("prune", checkpoint, "out", "--text", text, "--reduction", 0.5, "--native")
    assert received["native"] is True
    kprune("prune", checkpoint, "out", "--text", text, "--reduction", 0.5)
    assert {name: received[name] for name in OTHER_VALUES} == {
        field.name: field.default for _, field in ON_COMMAND_LINE
    }


def test_shapes_are_parsed():
    assert parse_shape("32x128") == parse_shape("32X128") == parse_shape("32×128") == (32, 128)
    for wrong in ("32", "x", "0x8", "8x0", "-1x8", "8x8x8", ""):
        with pytest.raises(BadOptions, match="is not BATCHxLENGTH; 32x128 means"):
            parse_shape(wrong)


def test_short_names_differ():
    assert short_names(["a/model", "b/small"]) == ["model", "small"]
    assert short_names(["a/x/model", "b/x/model"]) == ["a/x/model", "b/x/model"]
    assert short_names(["m", "m"]) == ["m (1)", "m (2)"]


def test_the_limit_of_rows_is_described_as_it_works():
    for name in ("prune", "evaluate", "export", "compare"):
        (limit,) = (option for option in main.commands[name].params if option.name == "limit")
        assert "evenly spread" in limit.help  # as `thin` takes them
