"""Names of methods, criteria, searches and budgets; the command line reads them without importing torch."""

from __future__ import annotations

from collections.abc import Mapping

from kprune.errors import BadOptions

CHOICES: dict[str, Mapping[str, str]] = {
    "method": {
        "kprune": "measure, search and refit, sublayer by sublayer",
        "kwon": "Kwon et al. 2022: Fisher search, rearrangement, mask tuning",
        "kcm": "Nova et al. 2023: central and active neurons, mask tuning; no heads",
        "flap": "An et al. 2024: features that vary stay, a bias replaces the others' mean",
        "wanda-sp": "Wanda, structured: weights times activations, the same share of every layer",
        "liar": "LIAR 2024: active units stay, weights reproduce each sublayer's dense output",
        "ziplm": "ZipLM without training: a surgeon per sublayer, and a knapsack over sizes",
        "textpruner": "Taylor importance of the predictions, in many steps, each measured again",
        "dynabert-w": "DynaBERT, widths: trained on labels, networks share weights",
        "dynabert-d": "DynaBERT, widths and depths: half of the layers stay",
        "ebert": "gates choose units for every text; trained on labels; in kprune compare only",
        "magnitude": "the largest weights stay",
        "random": "units drawn at random stay",
    },
    "criterion": {
        "compensated": "loss of the predictions after the remaining units are refitted",
        "fisher": "Fisher information of the dense model's predictions",
        "paper": "Equations 6 and 8 of the paper",
        "released": "the scales of the authors' released code",
        "gradient": "gradient of the task's own loss, an ablation",
    },
    "search": {
        "global": "the best units of the whole model stay",
        "uniform": "the same share of every sublayer stays, an ablation",
    },
    "budget": {
        "flops": "the encoder's FLOPs",
        "parameters": "the parameters of the encoder's units",
    },
}
"""Values of the fields of `PruneConfig` that name something, each with a phrase for the help text."""
DYNAMIC = frozenset({"ebert"})
"""Methods that choose units for every input."""


def require_static(method: str) -> None:
    """Raise if a method's result is not a smaller model."""
    if method in DYNAMIC:
        raise BadOptions(
            f"{method} chooses other units for every text, so that there is no smaller model to write; kprune compare "
            "evaluates it with its gates on."
        )
