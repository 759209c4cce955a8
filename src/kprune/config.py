"""The options of a run.

`PruneConfig` holds everything that the result of pruning depends on, `HealConfig` that of healing, `RunConfig`
everything else. A field carries its default,
type, help text and range; the command line's options, the grid's knobs, the record in config.json, the model card's
sentence and the journal's identity are generated from the fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, TypeVar, get_args, get_type_hints

from kprune.errors import BadOptions, KpruneError

DEFAULT_RIDGE = 1e-6
DEFAULT_TOKENS = 100_000
"""Real tokens of a sample."""
DEFAULT_HEAL = "4x"
"""Passes of healing."""
DTYPES = ("float32", "float16", "bfloat16")
"""Types of weights that can be asked for."""
QUANT_METHOD = "kprune"
"""The name by which `config.json` asks transformers for the plug-in."""
NATIVE_KEY = "kprune"
"""The entry of `config.json` with the history of a native model, which transformers keeps and does not read."""


GROUPS = {
    "what": "What to do",
    "how much": "How much",
    "from what": "From what",
    "test": "Test",
    "healing": "Healing",
    "output": "Output",
    "advanced": "Advanced",
    "general": "General",
}
"""Headings of options on help pages, in their order."""


class NamedBudget(Protocol):
    """A budget object, such as `Latency.budget`, in the place of a budget's name."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class OptionInfo:
    """Help text, range and uses of a field; its default and type are in the field itself."""

    help: str
    least: float | None = None
    below: float | None = None
    example: str = ""
    """A remedy, for the message about a value out of range."""
    metavar: str | None = None
    on_command_line: bool = True
    in_grid: bool = True
    """Whether a variant of `kprune compare` may set it."""
    flag_value: str | None = None
    """The value of an option that is named without one."""
    group: str = "advanced"
    """Its heading on help pages, a key of `GROUPS`."""


def option(default: Any, help: str, **info: Any) -> Any:
    """A dataclass field with its default, its help text and further `OptionInfo`."""
    return field(default=default, metadata={"info": OptionInfo(help, **info)})


@dataclass(frozen=True)
class PruneConfig:
    """Everything that the result of a run depends on, besides the model and the sample.

    A field that is None takes the default of its method or criterion (`kprune.pruning.registry.resolve`).
    """

    reduction: float = option(
        0.5,
        "Share of the budget (the encoder's FLOPs) to remove, such as 0.6.",
        least=0.0,
        below=1.0,
        example="0.6 removes 60 %",
        in_grid=False,
        group="how much",
    )
    method: str = option("kprune", "K-prune or a rival method.", in_grid=False)
    criterion: str | None = option("compensated", "How a unit's knowledge is measured.")
    temperature: float = option(2.0, "γ: temperature of the softmax.", example="the paper uses 2")
    rep_weight: float | None = option(
        None,
        "λ: weight of representational knowledge.  [default: the criterion's]",
        least=0.0,
        example="leave it out for the default",
    )
    head_weight: float | None = option(
        None,
        "μ: weight of heads relative to neurons.  [default: the criterion's]",
        least=0.0,
        example="leave it out for the default",
    )
    ridge: float | None = option(
        None,
        "Ridge of the refit, relative to the mean diagonal.  [default: cross-validated per sublayer, or "
        f"{DEFAULT_RIDGE:g} by the paper's criteria and by rivals]",
        least=0.0,
        example="leave it out for the default",
    )
    seed: int = option(0, "Seed of the sample and of the probes.", in_grid=False)
    search: str = option("global", "Search over all sublayers, or the same share in each (an ablation).")
    refit: bool = option(True, "Refit the remaining weights; without it, one shot (an ablation).")
    bias: bool = option(False, "Also fit a bias where the model has none; most decoders have none.")
    budget: str | NamedBudget = option("flops", "What --reduction is a share of.", group="how much")
    align: int = option(16, "Keep neurons in multiples of this number.", least=1, example="16 is fast on most hardware")
    native: bool = option(
        False, "Keep the same number of units in every layer: the result loads anywhere, without kprune."
    )
    refresh: int | None = option(
        None,
        "Measure again after this many sublayers; 0: measure once.  [default: the criterion's]",
        least=0,
        example="0 measures once, 1 at every sublayer",
    )
    iterations: int | None = option(
        None,
        "Equal steps in which the method textpruner removes units.  [default: 16]",
        least=1,
        example="16 is usual",
    )
    epochs: float | None = option(
        None,
        "Epochs of each phase of the methods dynabert-w, dynabert-d and ebert.  [default: 3]",
        least=0.0,
        example="3 is usual",
    )
    minutes: float | None = option(
        None,
        "Time limit of the training of dynabert-w, dynabert-d and ebert.  [default: none]",
        least=0.0,
        example="10 is short",
    )
    pooling: str = option(
        "mean", "Pooling of a bare encoder's tokens: mean, cls or max.", on_command_line=False, in_grid=False
    )

    def __post_init__(self) -> None:
        _check_types(self)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise KpruneError(f"temperature is {self.temperature}, but must be above 0; the paper uses 2.")
        _check_ranges(self)
        if self.native:
            _check_native(self)

    def as_json(self) -> dict[str, Any]:
        """All fields, for the record in config.json, result files and the journal's identity."""
        plain = self if isinstance(self.budget, str) else replace(self, budget=self.budget.name)
        return asdict(plain)

    def describe(self) -> str:
        """One sentence with every setting, for the model card."""
        settings = {name: value for name, value in self.as_json().items() if value is not None}
        parts = [f"{name.replace('_', ' ')} {_text(value)}" for name, value in settings.items()]
        return f"Settings: {', '.join(parts)}."


@dataclass(frozen=True)
class HealConfig:
    """Everything that the result of healing depends on, besides the two models and the text."""

    heal: str = option(
        DEFAULT_HEAL,
        "Train the pruned model toward the dense one, without labels: this many passes (5x) or minutes (10m).",
        metavar="[5x|10m]",
        example="5x are five passes, 10m ten minutes",
        flag_value=DEFAULT_HEAL,
        group="healing",
    )
    heal_rate: float | None = option(
        None,
        "Largest learning rate of --heal.  [default: 2e-4; 1e-3 for embeddings]",
        least=0.0,
        below=1.0,
        example="2e-4 is usual; little text needs less",
        group="healing",
    )
    hidden_weight: float = option(
        50.0,
        "Weight of the hidden states' error beside the outputs' in --heal.",
        least=0.0,
        example="0 compares the outputs only",
        group="healing",
    )
    held_out: float = option(
        0.1,
        "Share of the text that judges --heal and is not trained on.",
        least=0.01,
        below=0.9,
        example="0.1 holds out a tenth",
        group="healing",
    )
    step_tokens: int = option(
        512,
        "Tokens per step of --heal.",
        least=1,
        example="512 is usual; fewer mean more steps per pass",
        group="healing",
    )
    seed: int = option(0, "Seed of the order of steps and of the held-out part.", in_grid=False)
    pooling: str = option(
        "mean", "Pooling of a bare encoder's tokens: mean, cls or max.", on_command_line=False, in_grid=False
    )

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        passes_and_seconds(self.heal)

    def as_json(self) -> dict[str, Any]:
        """All fields, for the record in config.json, result files and the identity of a resumed run."""
        return asdict(self)

    @property
    def passes(self) -> float | None:
        """Passes over the text; None: as many as the minutes allow."""
        return passes_and_seconds(self.heal)[0]

    @property
    def seconds(self) -> float | None:
        """Seconds that healing may take; None: as long as the passes take."""
        return passes_and_seconds(self.heal)[1]


def passes_and_seconds(heal: str) -> tuple[float | None, float | None]:
    """The passes of `5x`, or the seconds of `10m`; the other one is None."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([xm])", heal.strip().lower())
    if match is None:
        raise BadOptions(f"heal is {heal!r}, but must be passes or minutes; 5x are five passes, 10m ten minutes.")
    number = float(match[1])
    return (number, None) if match[2] == "x" else (None, 60.0 * number)


Config = TypeVar("Config", PruneConfig, HealConfig)


@dataclass(frozen=True)
class RunConfig:
    """What the result does not depend on: where tensors are kept, what survives a kill, who is informed."""

    device: str | None = option(None, "cpu, cuda, ...  [default: cuda if there is one]")
    offload: str | Path | None = option(
        None,
        "Keep streams on disk, in this folder, or in a GPU's 'host': large samples then need little memory.",
        metavar="PLACE",
    )
    checkpoint: Path | None = option(
        None, "Keep finished sublayers in this folder: a killed run continues from there.", metavar="FOLDER"
    )
    progress: Callable[[Any], None] = option(lambda progress: None, "Callback.", on_command_line=False)


def info_of(each: Any) -> OptionInfo:
    """The `OptionInfo` of a dataclass field."""
    info: OptionInfo = each.metadata["info"]
    return info


def type_of(config: type, name: str) -> type:
    """The type of a field's values, without None."""
    hint = get_type_hints(config)[name]
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    return hint  # type: ignore[no-any-return]


def combine_options(config: Config, run: RunConfig | None, options: Mapping[str, Any]) -> tuple[Config, RunConfig]:
    """Both configurations with keyword options applied to the one that has a field of that name."""
    run = run or RunConfig()
    names = {each.name for each in fields(config)}
    run_names = {each.name for each in fields(RunConfig)}
    unknown = sorted(set(options) - names - run_names)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; options are {', '.join(sorted(names | run_names))}")
    return (
        replace(config, **{name: value for name, value in options.items() if name in names}),
        replace(run, **{name: value for name, value in options.items() if name in run_names}),
    )


def _check_types(config: PruneConfig | HealConfig) -> None:
    hints = get_type_hints(type(config))
    for each in fields(config):
        _check_type(each, getattr(config, each.name), get_args(hints[each.name]) or (hints[each.name],))


def _check_ranges(config: PruneConfig | HealConfig) -> None:
    for each in fields(config):
        _check_range(each.name, getattr(config, each.name), info_of(each))


def _check_native(config: PruneConfig) -> None:
    """Raise if native is combined with what chooses units in another way, or adds weights."""
    for name in ("method", "search", "bias"):
        value, default = getattr(config, name), getattr(PruneConfig, name)
        if value != default:
            raise BadOptions(
                f"native is for {name} {_text(default)} only, not for {_text(value)}; leave one of them out."
            )


def _check_type(each: Any, value: Any, kinds: tuple[type, ...]) -> None:
    """Raise if a number, a flag or a name is of another type."""
    if (value is None and type(None) in kinds) or (NamedBudget in kinds and hasattr(value, "name")):
        return
    if bool in kinds:
        wanted, is_sound = "True or False", isinstance(value, bool)
    elif str in kinds:
        wanted, is_sound = "a name", isinstance(value, str)
    else:
        wanted, is_sound = "a number", isinstance(value, Real) and not isinstance(value, bool)
    if not is_sound:
        remedy = info_of(each).example or f"the default is {each.default!r}"
        raise KpruneError(f"{each.name} is {value!r:.60} ({type(value).__name__}), but must be {wanted}; {remedy}.")


def _check_range(name: str, value: Any, info: OptionInfo) -> None:
    if value is None or (info.least is None and info.below is None):
        return
    is_low = info.least is not None and value < info.least
    is_high = info.below is not None and value >= info.below
    if is_low or is_high or not math.isfinite(value):
        limits = f"{info.least:g} or more" + ("" if info.below is None else f" and below {info.below:g}")
        raise KpruneError(f"{name} is {value}, but must be {limits}; {info.example}.")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
