import json
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprune import KpruneError, PruneConfig, RunConfig
from kprune.config import combine_options, info_of, type_of

RANGES = {
    "reduction": (0.0, 1.0),
    "rep_weight": (0.0, None),
    "head_weight": (0.0, None),
    "ridge": (0.0, None),
    "align": (1, None),
    "refresh": (0, None),
    "iterations": (1, None),
    "epochs": (0.0, None),
    "minutes": (0.0, None),
}


def test_every_field_has_a_help_text_and_a_type():
    for config in (PruneConfig, RunConfig):
        for each in fields(config):
            assert info_of(each).help.strip(), each.name
            if each.name != "progress":
                assert isinstance(type_of(config, each.name), type), each.name
    assert {name: type_of(PruneConfig, name) for name in ("ridge", "refresh", "refit", "criterion", "budget")} == {
        "ridge": float,
        "refresh": int,
        "refit": bool,
        "criterion": str,
        "budget": str,
    }


def test_fields_with_a_range_are_these():
    found = {each.name: (info_of(each).least, info_of(each).below) for each in fields(PruneConfig)}
    assert {name: limits for name, limits in found.items() if limits != (None, None)} == RANGES


@given(st.sampled_from(sorted(RANGES)), st.floats() | st.integers(-5, 5))
def test_values_out_of_range_are_refused_with_the_range(name, value):
    least, below = RANGES[name]
    is_sound = value == value and least <= value < (float("inf") if below is None else below)
    if is_sound:
        assert getattr(PruneConfig(**{name: value}), name) == value
        return
    with pytest.raises(KpruneError) as raised:
        PruneConfig(**{name: value})
    message = str(raised.value)
    assert message.startswith(f"{name} is {value}, but must be {least:g} or more")
    assert ("and below 1;" in message) == (name == "reduction")
    assert message.endswith(".")
    assert message.split("; ")[1]  # a remedy


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_is_above_zero(temperature):
    with pytest.raises(KpruneError, match=f"temperature is {temperature}, but must be above 0; the paper uses 2"):
        PruneConfig(temperature=temperature)


def test_configs_are_frozen_and_checked_again_when_replaced():
    config = PruneConfig()
    with pytest.raises(FrozenInstanceError):
        config.reduction = 0.6
    with pytest.raises(KpruneError, match="align is 0, but must be 1 or more; 16 is fast"):
        replace(config, align=0)


def test_json_has_every_field_and_the_budgets_name():
    class Own:
        name = "latency"

    config = PruneConfig(reduction=0.6, budget=Own())
    content = config.as_json()
    assert list(content) == [each.name for each in fields(PruneConfig)]
    assert content["budget"] == "latency"
    assert json.loads(json.dumps(content)) == content
    assert PruneConfig(**PruneConfig(reduction=0.25, seed=3).as_json()) == PruneConfig(reduction=0.25, seed=3)


def test_the_sentence_names_every_setting_with_its_value():
    config = PruneConfig(reduction=0.6, rep_weight=1e-5, refit=False)
    sentence = config.describe()
    assert sentence.startswith("Settings: reduction 0.6, method kprune, criterion compensated, ")
    assert sentence.endswith(".")
    for name, value in config.as_json().items():
        assert (f", {name.replace('_', ' ')} " in f", {sentence.removeprefix('Settings: ')}") == (value is not None)
    assert ", rep weight 1e-05," in sentence
    assert ", refit no," in sentence


def test_options_go_to_the_config_that_has_them():
    base, run = PruneConfig(seed=4), RunConfig(device="cpu")
    combined, combined_run = combine_options(base, run, {"reduction": 0.3, "offload": "host"})
    assert combined == PruneConfig(seed=4, reduction=0.3)
    assert (combined_run.device, combined_run.offload) == ("cpu", "host")
    assert combine_options(base, run, {}) == (base, run)
    assert combine_options(PruneConfig(), None, {"align": 8})[0] == PruneConfig(align=8)
    names = [{each.name for each in fields(config)} for config in (PruneConfig, RunConfig)]
    assert not names[0] & names[1]


def test_an_unknown_option_is_named_with_all_known_ones():
    with pytest.raises(TypeError, match="unknown option 'lambda'") as raised:
        combine_options(PruneConfig(), None, {"lambda": 1.0, "reduction": 0.5})
    for config in (PruneConfig, RunConfig):
        assert all(each.name in str(raised.value) for each in fields(config))


def test_a_value_out_of_range_is_refused_as_a_keyword_too():
    with pytest.raises(KpruneError, match=r"reduction is 1\.5, but must be 0 or more and below 1; 0\.6 removes 60 %"):
        combine_options(PruneConfig(), None, {"reduction": 1.5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduction": "0.5"}, r"reduction is '0.5' \(str\), but must be a number; 0.6 removes 60 %\.$"),
        ({"reduction": None}, r"reduction is None \(NoneType\), but must be a number"),
        ({"reduction": True}, r"reduction is True \(bool\), but must be a number"),
        ({"temperature": "2"}, r"temperature is '2' \(str\), but must be a number; the paper uses 2"),
        ({"ridge": [1e-4]}, r"ridge is \[0.0001\] \(list\), but must be a number; leave it out for the default"),
        ({"seed": "1"}, r"seed is '1' \(str\), but must be a number; the default is 0"),
        ({"refit": "no"}, r"refit is 'no' \(str\), but must be True or False; the default is True"),
        ({"method": 3}, r"method is 3 \(int\), but must be a name; the default is 'kprune'"),
        ({"budget": 0.5}, r"budget is 0.5 \(float\), but must be a name; the default is 'flops'"),
    ],
)
def test_values_of_another_type_are_refused_by_name(options, message):
    with pytest.raises(KpruneError, match=message):
        PruneConfig(**options)


def test_numbers_of_numpy_are_numbers():
    assert PruneConfig(reduction=np.float32(0.5), align=np.int64(8)).align == 8
