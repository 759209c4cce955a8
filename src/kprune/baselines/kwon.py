"""Kwon et al., "A Fast Post-Training Pruning Framework for Transformers" (NeurIPS 2022), with a FLOPs budget.

Fisher information of the task's loss says which units stay, a greedy exchange rearranges them within each sublayer, and
the masks of those that stay are tuned by least squares; here the tuned masks are folded into the consumer's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.sparse.linalg import lsmr
from torch import Tensor
from transformers import PreTrainedModel

from kprune.baselines.floor import begin, remove_all
from kprune.measure import task_loss
from kprune.observe import forward, gradients
from kprune.prune import Pruner
from kprune.pruned import Progress, Pruned
from kprune.refit import LeastSquares
from kprune.sample import Batch
from kprune.streams import Fit, Streams
from kprune.sublayer import Sublayer, shrink

GROUP = 32
"""Examples whose gradients are one entry of a unit's gradient vector: the batch of the authors' code."""
DAMP = 1.0
LARGEST_MASK = 10.0


def prune(pruner: Pruner, reduction: float, progress: Callable[[Progress], None]) -> Pruned:
    """A smaller copy of the model; needs labels where a model's own choice is no label (regression, embeddings)."""
    draft = begin(pruner, reduction, "kwon")
    fishers, vectors = task_gradients(pruner, draft.student, draft.sublayers)
    masks = _rearranged(fishers, vectors, draft.sublayers, draft.costs, draft.budget)
    # The student's streams are tuned to those of a model that is pruned half as much, on a scale of ratios.
    halfway = begin(pruner, 1.0 - (1.0 - reduction) ** 0.5, "kwon")
    theirs = _rearranged(fishers, vectors, draft.sublayers, draft.costs, halfway.budget)
    for sublayer, keep in zip(halfway.sublayers, theirs, strict=True):
        shrink(sublayer, keep)
    streams = Streams(halfway.student, draft.student, pruner.sample, are_equal=False, offload=pruner.offload)
    return remove_all(pruner, draft, masks, progress, tuning(), streams)


def _rearranged(
    fishers: Sequence[Tensor],
    vectors: Sequence[Tensor],
    sublayers: Sequence[Sublayer],
    costs: Sequence[float],
    budget: float,
) -> list[Tensor]:
    is_head = [sublayer.kind == "attention" for sublayer in sublayers]
    masks = fisher_search(fishers, is_head, costs, budget)
    return [rearrange(*each) for each in zip(masks, fishers, vectors, strict=True)]


def task_gradients(
    pruner: Pruner, model: PreTrainedModel, sublayers: Sequence[Sublayer]
) -> tuple[list[Tensor], list[Tensor]]:
    """Σ g² over examples, (units,), and Σ g over groups of examples, (groups, units), for every sublayer.

    g is the gradient of the task's loss with respect to a unit's mask.
    """
    sample = pruner.sample
    groups = -(-sample.examples // GROUP)
    squares = {s: torch.zeros(s.units, dtype=torch.float64) for s in sublayers}
    sums = {s: torch.zeros(groups, s.units, dtype=torch.float64) for s in sublayers}
    for number, batch in enumerate(sample.batches):

        def feel(sublayer: Sublayer, features: Tensor, gradient: Tensor, batch: Batch = batch) -> None:
            by_unit = (features * gradient).sum(1).unflatten(1, (-1, sublayer.width)).sum(2).double().cpu()
            squares[sublayer] += by_unit.square().sum(0)
            sums[sublayer].index_add_(0, batch.example.cpu() // GROUP, by_unit)

        with torch.enable_grad(), gradients(sublayers, feel):
            read = pruner.references.kind.read(forward(model, batch), batch)
            loss = task_loss(pruner.references.kind, read, pruner.references[number], batch.labels)
            loss.sum().backward()
    return [squares[s] for s in sublayers], [sums[s] for s in sublayers]


def fisher_search(
    fishers: Sequence[Tensor], is_head: Sequence[bool], costs: Sequence[float], budget: float
) -> list[Tensor]:
    """Masks with the largest sum of Fisher information that the budget allows.

    All heads cost the same and so do all neurons, so for each number of heads the best are those with the most Fisher
    information, and as many neurons as are left room for.
    """
    sizes = [len(fisher) for fisher in fishers]
    heads_at = torch.tensor(is_head).repeat_interleave(torch.tensor(sizes))
    everything = torch.cat(list(fishers))
    head_cost = max((cost for cost, head in zip(costs, is_head, strict=True) if head), default=1.0)
    neuron_cost = max((cost for cost, head in zip(costs, is_head, strict=True) if not head), default=1.0)
    heads, neurons = everything[heads_at], everything[~heads_at]
    best_heads = torch.cat([heads.new_zeros(1), heads.sort(descending=True).values.cumsum(0)])
    best_neurons = torch.cat([neurons.new_zeros(1), neurons.sort(descending=True).values.cumsum(0)])
    counts = torch.arange(len(best_heads))
    counts = counts[counts * head_cost <= budget]
    room = ((budget - counts * head_cost) / neuron_cost).floor().clamp(max=len(neurons)).long()
    chosen = int((best_heads[counts] + best_neurons[room]).argmax())
    keep = torch.zeros(len(everything), dtype=torch.bool)
    for places, count in ((heads_at, int(counts[chosen])), (~heads_at, int(room[chosen]))):
        numbers = places.nonzero().squeeze(1)
        keep[numbers[everything[numbers].argsort(descending=True, stable=True)[:count]]] = True
    return list(keep.split(sizes))


def rearrange(keep: Tensor, fisher: Tensor, vectors: Tensor) -> Tensor:
    """A mask of as many units whose removed ones' gradient vectors sum to less: removals that cancel out.

    In ascending order of Fisher information each kept unit is removed, and the one given back whose return leaves the
    smallest ‖Σ g‖² over the removed; it may be the same.
    """
    keep = keep.clone()
    if bool(keep.all()) or not bool(keep.any()):
        return keep
    norms = vectors.square().sum(0)
    total = vectors[:, ~keep].sum(1)
    for unit in fisher.argsort(stable=True).tolist():
        if not keep[unit]:
            continue
        keep[unit] = False
        total = total + vectors[:, unit]
        left = norms - 2.0 * (total @ vectors)  # of ‖total − g‖², what depends on g
        back = int(left.masked_fill(keep, torch.inf).argmin())
        keep[back] = True
        total = total - vectors[:, back]
    return keep


def mask_equations(problem: LeastSquares, weights: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """AᵀA and Aᵀ(Q − A·1) of the least squares over masks: A's columns are the units' outputs.

    `weights` are (features + 1) × d, the bias last. AᵀA = Σ over a pair's features of (W Wᵀ) ⊙ (PᵀP).
    """
    w = weights[:-1]
    products = (w @ w.T) * problem.gram[:-1, :-1]
    units = len(w) // width
    gram = products.view(units, width, units, width).sum((1, 3))
    wanted = (w * problem.cross[:-1]).sum(1).view(units, width).sum(1)
    return gram, wanted - gram.sum(1)


def tuned(problem: LeastSquares, weights: Tensor, width: int) -> Tensor | None:
    """Mask values near 1 that bring the sublayer's output nearest to what it should be; None where they run wild."""
    gram, lacking = mask_equations(problem, weights, width)
    if width > 1:  # heads: LSMR on A itself, which solves (AᵀA + damp²) x = Aᵀb
        change = torch.linalg.solve(gram + DAMP**2 * torch.eye(len(gram), dtype=gram.dtype), lacking)
    else:  # neurons: LSMR on the normal equations
        solution = lsmr(gram.cpu().numpy(), lacking.cpu().numpy(), damp=DAMP)
        if solution[1] == 7:  # the limit of iterations
            return None
        change = torch.from_numpy(np.asarray(solution[0]))
    masks = 1.0 + change
    return masks if bool(masks.isfinite().all()) and float(masks.abs().max()) <= LARGEST_MASK else None


def tuning() -> Fit:
    """Mask tuning as a fit; once a sublayer's masks run wild, it and all above are left as they are."""
    stopped = False

    def fit(target: Sublayer, problem: LeastSquares, weights: Tensor) -> Tensor:
        nonlocal stopped
        masks = None if stopped or not target.units else tuned(problem, weights, target.width)
        stopped = stopped or (masks is None and bool(target.units))
        if masks is None:
            return weights
        scale = torch.cat([masks.repeat_interleave(target.width), masks.new_ones(1)]).to(weights)
        return scale[:, None] * weights

    return fit
