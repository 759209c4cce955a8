from dataclasses import fields, replace

import pytest
import tiny

from kprune import KpruneError, PruneConfig, prune
from kprune.config import DEFAULT_RIDGE
from kprune.pruning.budgets import BUDGETS
from kprune.pruning.choices import CHOICES
from kprune.pruning.criteria import CRITERIA
from kprune.pruning.registry import METHODS, OF_RIVALS, resolve, wants_labels

BATCHES = tiny.batched(tiny.texts(16))
RIVALS = [name for name in METHODS if name != "kprune"]


def test_every_name_has_a_phrase():
    assert list(METHODS) == [
        "kprune",
        "kwon",
        "kcm",
        "flap",
        "wanda-sp",
        "liar",
        "ziplm",
        "textpruner",
        "dynabert-w",
        "dynabert-d",
        "ebert",
        "magnitude",
        "random",
    ]
    assert list(CHOICES) == ["method", "criterion", "search", "budget"]
    tables = {"method": METHODS, "criterion": CRITERIA, "budget": BUDGETS}
    assert {field: list(CHOICES[field]) for field in tables} == {field: list(table) for field, table in tables.items()}
    for field, choices in CHOICES.items():
        assert getattr(PruneConfig(), field) in choices
        assert all(phrase and phrase[0] != " " and not phrase.endswith(".") for phrase in choices.values())


@pytest.mark.parametrize("criterion", CRITERIA)
def test_none_takes_the_criterions_default_and_nothing_else_changes(criterion):
    row = CRITERIA[criterion]
    resolved = resolve(PruneConfig(criterion=criterion, reduction=0.3, seed=7), head_width=8)
    ridge = None if row.is_cross_validated else DEFAULT_RIDGE
    assert (resolved.rep_weight, resolved.refresh, resolved.ridge) == (row.rep_weight, row.refresh, ridge)
    assert resolved.head_weight == (8 if criterion == "released" else row.head_weight)
    assert (resolved.reduction, resolved.seed, resolved.criterion) == (0.3, 7, criterion)
    unset = {each.name for each in fields(PruneConfig) if getattr(resolved, each.name) is None}
    assert unset == OF_RIVALS | ({"ridge"} if row.is_cross_validated else set())
    assert resolve(resolved, head_width=64) == resolved
    chosen = {"rep_weight": 0.5, "head_weight": 2.0, "refresh": 3, "ridge": 0.1}
    kept = resolve(PruneConfig(criterion=criterion, **chosen), head_width=8)
    assert {name: getattr(kept, name) for name in chosen} == chosen


@pytest.mark.parametrize("criterion", CRITERIA)
def test_causal_language_models_have_their_own_default_of_the_representational_weight(criterion):
    row, config = CRITERIA[criterion], PruneConfig(criterion=criterion)
    wanted = row.rep_weight if row.causal_rep_weight is None else row.causal_rep_weight
    assert resolve(config, head_width=8, is_causal=True).rep_weight == wanted
    assert resolve(config, head_width=8, is_causal=False).rep_weight == row.rep_weight
    chosen = replace(config, rep_weight=0.5)
    assert resolve(chosen, head_width=8, is_causal=True).rep_weight == 0.5


@pytest.mark.parametrize("method", RIVALS)
def test_a_rival_turns_the_settings_of_kprune_off(method):
    resolved = resolve(PruneConfig(method=method, criterion="fisher", rep_weight=3.0, align=8, seed=5), head_width=8)
    refits, align = method in ("liar", "ziplm"), 8 if method == "ziplm" else 1
    assert (resolved.criterion, resolved.refit, resolved.align, resolved.refresh) == (None, refits, align, 0)
    assert (resolved.method, resolved.seed, resolved.bias) == (method, 5, method == "flap")
    own = METHODS[method].settings
    assert {name: getattr(resolved, name) for name in OF_RIVALS} == {**dict.fromkeys(OF_RIVALS), **own}
    back = resolve(PruneConfig(criterion=None), head_width=8)
    assert back == resolve(PruneConfig(), head_width=8)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; use one of kprune, kwon, kcm, flap, wanda-sp, liar"),
        ({"criterion": "magic"}, "unknown criterion 'magic'; use one of compensated, fisher"),
        ({"criterion": "kwon"}, "unknown criterion 'kwon'; use one of"),
        ({"search": "local"}, "unknown search 'local'; use one of global, uniform"),
        ({"budget": "watts"}, "unknown budget 'watts'; use one of flops, parameters"),
        ({"pooling": "last"}, "unknown pooling 'last'; use one of mean, cls, max"),
        ({"temperature": 0.0}, "temperature is 0.0, but must be above 0"),
        ({"refresh": -1}, "refresh is -1, but must be 0 or more"),
        ({"rep_weight": -1.0}, "rep_weight is -1.0, but must be 0 or more"),
        ({"align": 0}, "align is 0, but must be 1 or more"),
    ],
)
def test_bad_options_are_refused(option, message):
    with pytest.raises(KpruneError, match=message):
        prune(tiny.tiny_model(), BATCHES, reduction=0.5, **option)


def test_labels_are_wanted_by_kwon_and_by_the_gradient_criterion():
    assert wants_labels(PruneConfig(method="kwon"))
    assert wants_labels(PruneConfig(method="textpruner"))
    assert wants_labels(PruneConfig(criterion="gradient"))
    assert not wants_labels(PruneConfig())
    assert not wants_labels(PruneConfig(method="kcm", criterion="gradient"))
