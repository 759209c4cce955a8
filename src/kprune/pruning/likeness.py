"""How far a model's predictions are from the dense model's, on a part of the sample."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.config import PruneConfig
from kprune.models.batches import Sample
from kprune.models.outputs import next_token_rows
from kprune.models.passes import call, forward_to_top, has_partial_head, head_at
from kprune.pruning.criteria import lost_knowledge
from kprune.pruning.measurement import position_chunks
from kprune.pruning.teacher import TeacherPredictions
from kprune.runtime.distributed import all_reduce_sum
from kprune.runtime.memory import guard_memory


@torch.no_grad()
def loss_against_teacher(
    model: PreTrainedModel, predictions: TeacherPredictions, config: PruneConfig, tokens: int
) -> float:
    """Lost knowledge (Equation 5) per example, on batches with about so many tokens; the same ones in each call."""
    kind, sample = predictions.kind, predictions.sample
    sums = torch.zeros(2, dtype=torch.float64, device=model.device)
    with guard_memory():
        for number in some_batches(sample, tokens):
            batch = sample.batches[number]
            sums[1] += len(batch.example)
            if not (kind.is_vocabulary and has_partial_head(model)):
                rows = kind.read(call(model, batch), batch)
                sums[0] += lost_knowledge(kind, rows, predictions[number], config)
                continue
            top = forward_to_top(model, batch)
            for positions in position_chunks(batch, model.config.vocab_size):
                rows = next_token_rows(head_at(model, batch, top, positions), batch, positions)
                sums[0] += lost_knowledge(kind, rows, predictions.part(number, positions), config)
    all_reduce_sum([sums])
    lost: Tensor = sums[0] / sums[1]
    return float(lost)


def some_batches(sample: Sample, tokens: int) -> list[int]:
    """Numbers of evenly spaced batches, short and long ones, that have about so many tokens together."""
    own = sum(batch.real_tokens for batch in sample.batches)
    count = min(len(sample.batches), max(1, round(len(sample.batches) * tokens / own)))
    return [number * len(sample.batches) // count for number in range(count)]
