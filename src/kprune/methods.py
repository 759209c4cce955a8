"""Methods by name: K-prune and its rivals, all with one signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kprune.baselines import floor
from kprune.errors import KpruneError
from kprune.prune import Pruner
from kprune.pruned import Progress, Pruned

Prune = Callable[[Pruner, float, Callable[[Progress], None]], Pruned]
"""A pruned copy from a prepared model, the reduction, and a progress callback."""


@dataclass(frozen=True)
class Method:
    """A way to prune."""

    name: str
    summary: str
    prune: Prune
    wants_labels: bool = False


def _kprune(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    return pruner.prune(reduction, progress=progress)


def _kwon(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    _require_scipy()
    from kprune.baselines import kwon

    return kwon.prune(pruner, reduction, progress)


def _kcm(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    _require_scipy()
    from kprune.baselines import kcm

    return kcm.prune(pruner, reduction, progress)


def _require_scipy() -> None:
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise KpruneError("this method needs the extra: pip install 'kprune[data]'.") from error


METHODS = {
    method.name: method
    for method in (
        Method("kprune", "measure, search and refit, sublayer by sublayer", _kprune),
        Method("kwon", "Kwon et al. 2022: Fisher search, rearrangement, mask tuning", _kwon, wants_labels=True),
        Method("kcm", "Nova et al. 2023: central and active neurons, mask tuning; no heads", _kcm),
        Method("magnitude", "the largest weights stay", floor.magnitude),
        Method("random", "chance decides", floor.chance),
    )
}
