"""DynaBERT (Hou et al., NeurIPS 2020), a rival that retrains: networks of several widths and depths share weights.

Heads and neurons are sorted by importance. The dense model's networks of several widths are trained together toward
its outputs and hidden states; `dynabert-d` then trains networks of fewer layers toward those of all layers. The network
that fits the budget is fine-tuned on the labels at the end. At a reduction of 0.75 it has the paper's multipliers of
width and depth, (0.25, 1) and (0.5, 0.5); other reductions have another width.

Differences: no augmented data; embeddings are not trained, so that their own error is left out; a removed layer keeps
its norms and biases, as in all models of kprune.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from torch import Tensor
from transformers import PreTrainedModel

from kprune.maths.selection import best_share, even_shares
from kprune.models.batches import Batch
from kprune.models.subnetwork import Subnetwork, shrunk
from kprune.pruning.baselines.one_shot import OneShot
from kprune.pruning.baselines.task_gradients import task_gradients
from kprune.pruning.baselines.training import (
    distillation_loss,
    fine_tuning_loss,
    require_labels,
    target_of,
    train,
    training_batches,
)

WIDTHS = (1.0, 0.75, 0.5, 0.25)
"""Multipliers of networks that are trained beside the final one, as far as they are wider."""
HIDDEN_WEIGHTS = {"width": 0.1, "depth": 1.0}
"""Weights of the hidden states' errors in the two phases."""

Masks = list[Tensor]
Phase = Callable[[PreTrainedModel, Callable[[float], None]], PreTrainedModel]
"""Trains a model, reports the share that is done, and returns the model for the next phase."""


class DynaBERT(OneShot):
    """Needs labels, and one process."""

    wants_labels = True
    settings: ClassVar[dict[str, Any]] = {"epochs": 3.0, "minutes": None}
    training_work = 400.0
    depths: ClassVar[tuple[float, ...]]
    """Multipliers of depth, from the largest; the final network has the smallest that does not miss the budget."""

    def masks(self) -> Masks:
        require_labels(self.name, self.run.shared)
        masks = self._network(*self._shares, self._depth)
        self._trained_widths = [width for width in WIDTHS if width > max(self._shares)]
        return masks

    def finish(self, report: Callable[[float], None]) -> None:
        """Train the shared weights, then the final network; finished phases are in the journal."""
        model: PreTrainedModel = copy.deepcopy(self.run.shared.teacher).requires_grad_(False)
        for number, phase in enumerate(self._phases):
            name = f"training-{number:03}"
            kept = self.journal.read(name)
            if kept is None:
                model = phase(model, lambda share, done=number: report((done + share) / len(self._phases)))  # type: ignore[misc]
                self.journal.write(name, dict(model.state_dict()), {})
            else:
                model = shrunk(model, self._masks) if phase == self._fine_tune else model
                model.load_state_dict(kept[0])
        self.run.student.load_state_dict(model.state_dict())

    @property
    def _phases(self) -> list[Phase]:
        depths = [] if self._depth == 1.0 else [self._train_depths]
        return [self._train_widths, *depths, self._fine_tune]

    def _train_widths(self, supernet: PreTrainedModel, report: Callable[[float], None]) -> PreTrainedModel:
        """The supernet after its networks of all widths were trained toward the dense model."""
        networks = [Subnetwork(supernet, self._network(width, width, 1.0)) for width in self._trained_widths]
        networks.append(Subnetwork(supernet, self._network(*self._shares, 1.0)))
        groups = [(self.run.shared.teacher, networks)]
        self._train_together(supernet, groups, HIDDEN_WEIGHTS["width"], report, phase=0)
        return supernet

    def _train_depths(self, supernet: PreTrainedModel, report: Callable[[float], None]) -> PreTrainedModel:
        """The supernet after its networks of all depths were trained toward those of the same width and all layers."""
        groups = []
        for heads, neurons in [*((width, width) for width in self._trained_widths), self._shares]:
            teacher = shrunk(supernet, self._network(heads, neurons, 1.0)).eval()
            depths = [depth for depth in self.depths if depth >= self._depth]
            groups.append((teacher, [Subnetwork(supernet, self._network(heads, neurons, depth)) for depth in depths]))
        self._train_together(supernet, groups, HIDDEN_WEIGHTS["depth"], report, phase=1)
        return supernet

    def _train_together(
        self,
        supernet: PreTrainedModel,
        groups: Sequence[tuple[PreTrainedModel, Sequence[Subnetwork]]],
        hidden_weight: float,
        report: Callable[[float], None],
        *,
        phase: int,
    ) -> None:
        """Train networks that share the supernet's weights, each group toward its teacher."""
        kind = self.run.shared.predictions.kind

        def backpropagate(batch: Batch) -> None:
            for teacher, networks in groups:
                target = target_of(kind, teacher, batch)
                for network in networks:
                    network.load()
                    distillation_loss(kind, network.model.train(), target, batch, hidden_weight).backward()
                    network.hand_over_gradients()

        train(supernet, self._batches, backpropagate, self.config, self._seconds, report, phase=phase)

    def _fine_tune(self, supernet: PreTrainedModel, report: Callable[[float], None]) -> PreTrainedModel:
        """The final network, trained on the labels."""
        model = shrunk(supernet, self._masks)
        loss = partial(fine_tuning_loss, self.run.shared.predictions.kind, model.train())
        train(model, self._batches, lambda batch: loss(batch).backward(), self.config, self._seconds, report, phase=2)
        model.eval()
        return model

    def _network(self, heads: float, neurons: float, depth: float) -> Masks:
        """Masks of the network with these shares of heads and of neurons in the layers of a depth."""
        layers = kept_layers(self.run.student.config.num_hidden_layers, depth)
        masks = []
        for sublayer, importance in zip(self.run.sublayers, self._importance, strict=True):
            share = heads if sublayer.kind == "attention" else neurons
            masks.append(best_share(importance, share if sublayer.index in layers else 0.0))
        return masks

    @cached_property
    def _importance(self) -> list[Tensor]:
        """Σ |Σ g·m| over groups of examples, of every unit of the dense model."""
        run = self.run
        return [sums.abs().sum(0) for sums in task_gradients(run.student, run.sublayers, run.shared)[1]]

    @cached_property
    def _depth(self) -> float:
        """The smallest multiplier of depth whose layers, whole, cost the budget or more."""
        return next((depth for depth in self.depths[::-1] if sum(self._costs(depth)) >= self.run.remaining), 1.0)

    def _costs(self, depth: float) -> list[float]:
        layers = kept_layers(self.run.student.config.num_hidden_layers, depth)
        pairs = zip(self.run.sublayers, self.run.prices, strict=True)
        return [float(price[-1]) for sublayer, price in pairs if sublayer.index in layers]

    @cached_property
    def _shares(self) -> tuple[float, float]:
        """Multipliers of width of heads and of neurons, as equal as the budget allows."""
        layers = kept_layers(self.run.student.config.num_hidden_layers, self._depth)
        pairs = zip(self.run.sublayers, self.run.prices, strict=True)
        chosen = [(price, sublayer.kind == "attention") for sublayer, price in pairs if sublayer.index in layers]
        return even_shares([price for price, _ in chosen], [is_head for _, is_head in chosen], self.run.remaining)

    @cached_property
    def _batches(self) -> list[Batch]:
        return training_batches(self.run.shared.sample)

    @property
    def _seconds(self) -> float | None:
        """Seconds that each phase may take."""
        return None if self.config.minutes is None else 60.0 * self.config.minutes / len(self._phases)


def kept_layers(layers: int, depth: float) -> list[int]:
    """Numbers of the layers that a network of a depth has: ⌊i / depth⌋, evenly spread from the lowest."""
    return [math.floor(number / depth) for number in range(round(depth * layers))]


class DynaBERTWidth(DynaBERT):
    """Networks of all layers."""

    name = "dynabert-w"
    depths = (1.0,)


class DynaBERTDepth(DynaBERT):
    """Networks of half of the layers, or more where the budget is larger than that."""

    name = "dynabert-d"
    depths = (1.0, 0.75, 0.5)
