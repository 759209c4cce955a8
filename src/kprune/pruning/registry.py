"""The table of methods, and the one function that resolves a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kprune.config import DEFAULT_RIDGE, PruneConfig
from kprune.errors import KpruneError
from kprune.pruning.baselines.dynabert import DynaBERTDepth, DynaBERTWidth
from kprune.pruning.baselines.ebert import EBERT
from kprune.pruning.baselines.flap import FLAP
from kprune.pruning.baselines.kcm import KCM
from kprune.pruning.baselines.kwon import Kwon
from kprune.pruning.baselines.liar import LIAR
from kprune.pruning.baselines.magnitude import Magnitude
from kprune.pruning.baselines.random_units import RandomUnits
from kprune.pruning.baselines.textpruner import TextPruner
from kprune.pruning.baselines.wanda_sp import WandaSP
from kprune.pruning.baselines.ziplm import ZipLM
from kprune.pruning.budgets import budget_named
from kprune.pruning.choices import CHOICES
from kprune.pruning.criteria import CRITERIA
from kprune.pruning.knowledge_pruning import KPrune
from kprune.pruning.method import Method

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        KPrune,
        Kwon,
        KCM,
        FLAP,
        WandaSP,
        LIAR,
        ZipLM,
        TextPruner,
        DynaBERTWidth,
        DynaBERTDepth,
        EBERT,
        Magnitude,
        RandomUnits,
    )
}
OF_RIVALS = frozenset(name for method in METHODS.values() for name in method.settings)
"""Config fields that only some rivals have."""


def resolve(config: PruneConfig, head_width: int, *, is_causal: bool = False) -> PruneConfig:
    """The config with every name checked and every default filled in; a ridge that stays None is cross-validated.

    `head_width` is d_h of the model; `is_causal` says that it is a causal language model.
    """
    for field in ("method", "criterion", "search"):
        value = getattr(config, field)
        if value not in CHOICES[field] and not (field == "criterion" and value is None):
            raise KpruneError(f"unknown {field} {value!r}; use one of {', '.join(CHOICES[field])}.")
    budget_named(config.budget)
    method = METHODS[config.method]
    ridge = DEFAULT_RIDGE if config.ridge is None else config.ridge
    own: dict[str, Any] = {name: method.settings.get(name) for name in OF_RIVALS}
    asked = {name: getattr(config, name) for name in method.settings if getattr(config, name) is not None}
    config = replace(config, **(own | asked))
    if method is not KPrune:
        return replace(config, ridge=ridge, **method.overrides)
    if config.criterion is None:
        config = replace(config, criterion=PruneConfig.criterion)
    criterion = CRITERIA[config.criterion or ""]
    head_weight = head_width if criterion.head_weight is None else criterion.head_weight
    rep_weight = criterion.rep_weight
    if is_causal and criterion.causal_rep_weight is not None:
        rep_weight = criterion.causal_rep_weight
    return replace(
        config,
        ridge=config.ridge if criterion.is_cross_validated else ridge,
        rep_weight=rep_weight if config.rep_weight is None else config.rep_weight,
        head_weight=head_weight if config.head_weight is None else config.head_weight,
        refresh=criterion.refresh if config.refresh is None else config.refresh,
    )


def wants_labels(config: PruneConfig) -> bool:
    """Whether the method or the criterion uses labels."""
    criterion = CRITERIA.get(config.criterion or "")
    is_kprune = config.method == KPrune.name
    return METHODS[config.method].wants_labels or (is_kprune and criterion is not None and criterion.wants_labels)
