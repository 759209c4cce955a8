"""How a model is to be pruned: what was asked, and the defaults that belong to each criterion."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kprune.errors import KpruneError

DEFAULT_RIDGE = 1e-6
DEFAULT_ALIGN = 16
SEARCHES = ("global", "uniform")


@dataclass(frozen=True)
class Criterion:
    """A way to measure knowledge, with the balance coefficients that belong to its scale."""

    name: str
    summary: str
    rep_weight: float
    """λ, the weight of representational beside predictive knowledge."""
    head_weight: float | None
    """μ, the weight of heads beside neurons; None: the width d_h of a head."""
    refresh: int = 1
    """Sublayers between two measurements; 0: one serves the whole run."""
    is_probed: bool = False
    """Whether a random probe of the predictions is differentiated, and not what was lost already."""
    is_compensated: bool = False
    """Whether the refit of the others is looked ahead to."""


CRITERIA = {
    criterion.name: criterion
    for criterion in (
        Criterion(
            "compensated",
            "what is lost of the predictions after the others are refitted, measured once",
            1e-6,
            1.0,
            refresh=0,
            is_probed=True,
            is_compensated=True,
        ),
        Criterion("fisher", "Fisher information of the dense model's own predictions", 1e-5, 1.0, is_probed=True),
        Criterion("paper", "Equations 6 and 8 as they stand", 2.5e-4, 64.0),
        Criterion("released", "the scales of the authors' released code", 2.5e-4, None),
        Criterion("gradient", "an ablation: the gradient of the task's own loss", 0.0, 1.0),
    )
}
DEFAULT_CRITERION = "compensated"


@dataclass(frozen=True)
class Settings:
    """How a model was pruned; weights are those in force, after the criterion's own defaults."""

    reduction: float
    criterion: str
    temperature: float
    rep_weight: float
    head_weight: float
    ridge: float
    pooling: str
    seed: int
    search: str = "global"
    """`global`: the best units of the model stay. `uniform`, an ablation: the same share of every sublayer."""
    refit: bool = True
    """Off, an ablation: measured and searched once, removed, and nothing refitted."""
    budget: str = "flops"
    """What `reduction` is a share of."""
    align: int = DEFAULT_ALIGN
    """The global search keeps neurons by so many at a time."""
    refresh: int = 1
    """Sublayers between two measurements; 0: one serves the whole run."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.reduction < 1.0:
            raise KpruneError(f"reduction is {self.reduction}, and must be at least 0 and below 1: 0.6 removes 60 %.")
        if self.align < 1:
            raise KpruneError(f"align is {self.align}, and must be 1 or more; 16 suits most hardware.")
        if self.refresh < 0:
            raise KpruneError(
                f"refresh is {self.refresh}, and must be 0 (measure once), 1 (at every sublayer) or more."
            )
        if self.search not in SEARCHES:
            raise KpruneError(f"search {self.search!r} is not known; use one of {', '.join(SEARCHES)}.")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise KpruneError(f"temperature is {self.temperature}, and must be above 0; the paper's is 2.")
        for name in ("rep_weight", "head_weight", "ridge"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise KpruneError(f"{name} is {value}, and must be 0 or more; leave it out for the default.")


def settings_for(
    *,
    reduction: float,
    criterion: str,
    temperature: float,
    rep_weight: float | None,
    head_weight: float | None,
    ridge: float | None,
    pooling: str,
    seed: int,
    head_width: int,
    search: str = "global",
    refit: bool = True,
    budget: str = "flops",
    align: int = DEFAULT_ALIGN,
    refresh: int | None = None,
) -> Settings:
    """Settings with every default filled in; `head_width` is d_h of the model at hand."""
    if criterion not in CRITERIA:
        raise KpruneError(f"criterion {criterion!r} is not known; use one of {', '.join(CRITERIA)}.")
    row = CRITERIA[criterion]
    default_head_weight = head_width if row.head_weight is None else row.head_weight
    return Settings(
        reduction=reduction,
        criterion=criterion,
        temperature=temperature,
        rep_weight=row.rep_weight if rep_weight is None else rep_weight,
        head_weight=default_head_weight if head_weight is None else head_weight,
        ridge=DEFAULT_RIDGE if ridge is None else ridge,
        pooling=pooling,
        seed=seed,
        search=search,
        refit=refit,
        budget=budget,
        align=align,
        refresh=row.refresh if refresh is None else refresh,
    )
