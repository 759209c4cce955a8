"""Output kinds: how a model's outputs are read into rows that the maths understands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kprune.errors import UnsupportedModel
from kprune.models.batches import Batch


@dataclass(frozen=True)
class Prediction:
    """Outputs of a batch, one row per prediction."""

    values: Tensor
    """Logits or values; (rows, classes)."""
    weights: Tensor
    """Weight of a row within its example; (rows,)."""
    example: Tensor
    """The example that a row belongs to; (rows,)."""
    position: Tensor
    """Number of a row within its example; (rows,)."""

    def detach(self) -> Prediction:
        return Prediction(self.values.detach(), self.weights, self.example, self.position)


@dataclass(frozen=True)
class OutputKind:
    """A kind of model: how its outputs are read, and whether they are logits or plain values."""

    name: str
    is_distribution: bool
    read: Callable[[Any, Batch], Prediction]
    is_vocabulary: bool = False
    """Whether rows are as wide as the vocabulary, so that predictions of a whole sample are too large to keep."""
    averages_tokens: bool = False
    """Whether one prediction is the mean over an example's tokens: changes that tokens share add up."""


def _rows(values: Tensor, batch: Batch, weight: float = 1.0) -> Prediction:
    """(examples, positions, classes) as rows of equal weight."""
    examples, positions, _ = values.shape
    return Prediction(
        values=values.flatten(0, 1).float(),
        weights=values.new_full((examples * positions,), weight, dtype=torch.float32),
        example=batch.example.repeat_interleave(positions),
        position=torch.arange(positions, device=values.device).repeat(examples),
    )


def _token_rows(values: Tensor, batch: Batch, chosen: Tensor) -> Prediction:
    """One row per chosen token; the weights of one example's tokens sum to 1."""
    row, position = chosen.nonzero(as_tuple=True)
    per_example = chosen.sum(1).clamp(min=1)
    return Prediction(
        values=values[row, position].float(),
        weights=1.0 / per_example[row].float(),
        example=batch.example[row],
        position=position,
    )


def _classes(outputs: Any, batch: Batch) -> Prediction:
    return _rows(outputs.logits[:, None, :], batch)


def _labels(outputs: Any, batch: Batch) -> Prediction:
    # An independent label is a distribution over two classes, whose logits are 0 and z.
    return _rows(torch.stack([torch.zeros_like(outputs.logits), outputs.logits], dim=-1), batch)


def _span(outputs: Any, batch: Batch) -> Prediction:
    ends = torch.stack([outputs.start_logits, outputs.end_logits], dim=1)
    return _rows(ends.masked_fill(~batch.mask[:, None, :], -torch.inf), batch, weight=0.5)


def _tokens(outputs: Any, batch: Batch) -> Prediction:
    return _token_rows(outputs.logits, batch, batch.mask)


def _all_positions(batch: Batch) -> Tensor:
    return torch.arange(batch.mask.shape[1], device=batch.mask.device)


def _masked_tokens(outputs: Any, batch: Batch) -> Prediction:
    return _vocabulary(outputs, batch, _all_positions(batch), batch.predicted)


def _next_tokens(outputs: Any, batch: Batch) -> Prediction:
    return next_token_rows(outputs, batch, _all_positions(batch))


def next_token_rows(outputs: Any, batch: Batch, positions: Tensor) -> Prediction:
    """A causal model's rows at some positions; `outputs` have logits of these only. Labels belong to the next token."""
    predicted = batch.predicted
    if predicted is not None:
        predicted = torch.nn.functional.pad(predicted[:, 1:], (0, 1))
    return _vocabulary(outputs, batch, positions, predicted)


def _vocabulary(outputs: Any, batch: Batch, positions: Tensor, predicted: Tensor | None) -> Prediction:
    chosen = batch.mask if predicted is None else predicted
    per_example = chosen.sum(1).clamp(min=1)
    row, place = chosen[:, positions].nonzero(as_tuple=True)
    return Prediction(
        values=outputs.logits[row, place].float(),
        weights=1.0 / per_example[row].float(),
        example=batch.example[row],
        position=positions[place],
    )


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Normalised sentence embeddings, (examples, d), from (examples, length, d) and the mask of real tokens."""
    if pooling == "cls":
        pooled = hidden[:, 0]
    elif pooling == "lasttoken":
        last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(1)
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), last]
    elif pooling == "max":
        pooled = hidden.masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    else:
        pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(pooled, dim=-1)


POOLINGS = ("mean", "cls", "max", "lasttoken", "pooler")
POOLINGS_OF = {
    **dict.fromkeys(("vit", "deit"), "cls"),
    **dict.fromkeys(("dinov2", "clip_vision_model", "siglip_vision_model"), "pooler"),
    "clip_text_model": "pooler",
}
"""The usual pooling of bare models by model type; the mean of all others."""


def embed(outputs: Any, mask: Tensor, pooling: str) -> Tensor:
    """Normalised embeddings, (examples, d): the model's own, if it has a projection or with `pooler`, or pooled."""
    for name in ("image_embeds", "text_embeds", *(["pooler_output"] if pooling == "pooler" else [])):
        own: Tensor | None = getattr(outputs, name, None)
        if own is not None:
            return torch.nn.functional.normalize(own, dim=-1)
    if pooling == "pooler":
        raise UnsupportedModel("the model has no pooled output; use the pooling cls or mean.")
    return pool(outputs.last_hidden_state, mask, pooling)


def _embedding(pooling: str) -> OutputKind:
    return OutputKind(
        "embedding",
        is_distribution=False,
        read=lambda outputs, batch: _rows(embed(outputs, batch.mask, pooling)[:, None, :], batch),
        averages_tokens=pooling == "mean",
    )


def _states(outputs: Any, batch: Batch) -> Prediction:
    return _token_rows(torch.nn.functional.normalize(outputs.last_hidden_state, dim=-1), batch, batch.mask)


CLASSIFICATION = OutputKind("classification", True, _classes)
MULTI_LABEL = OutputKind("multi-label classification", True, _labels)
REGRESSION = OutputKind("regression", False, _classes)
QUESTION_ANSWERING = OutputKind("question answering", True, _span)
TOKEN_CLASSIFICATION = OutputKind("token classification", True, _tokens)
CTC = OutputKind("speech recognition", True, _tokens)
MASKED_LM = OutputKind("masked language model", True, _masked_tokens, is_vocabulary=True)
CAUSAL_LM = OutputKind("causal language model", True, _next_tokens, is_vocabulary=True)
ENCODER_STATES = OutputKind("encoder states", False, _states)

CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
EMBEDDERS = ("ModelWithProjection",)
BY_CLASS_SUFFIX = {
    "ForQuestionAnswering": QUESTION_ANSWERING,
    "ForTokenClassification": TOKEN_CLASSIFICATION,
    "ForAudioFrameClassification": TOKEN_CLASSIFICATION,
    "ForCTC": CTC,
    "ForMaskedLM": MASKED_LM,
    "ForCausalLM": CAUSAL_LM,
    "LMHeadModel": CAUSAL_LM,
}


def kind_of(model: PreTrainedModel, *, pooling: str = "mean") -> OutputKind:
    """The output kind of a model, by its class and its config's `problem_type`."""
    if pooling not in POOLINGS:
        raise UnsupportedModel(f"unknown pooling {pooling!r}; use one of {', '.join(POOLINGS)}.")
    name = type(model).__name__
    if runs_encoder_only(model):
        if name.endswith(("ForConditionalGeneration", "Model")):
            return ENCODER_STATES
        raise UnsupportedModel(f"cannot prune a {name}: its head reads a decoder; prune the encoder's own class.")
    if name.endswith(CLASSIFIERS):
        problem = model.config.problem_type
        if problem == "multi_label_classification":
            return MULTI_LABEL
        return REGRESSION if problem == "regression" or model.config.num_labels == 1 else CLASSIFICATION
    for suffix, kind in BY_CLASS_SUFFIX.items():
        if name.endswith(suffix):
            return kind
    if model is model.base_model or name.endswith(EMBEDDERS):
        return _embedding(pooling)
    raise UnsupportedModel(
        f"cannot prune a {name}: unknown kind of outputs; supported: the bare encoder, "
        f"{', '.join((*CLASSIFIERS, *EMBEDDERS, *BY_CLASS_SUFFIX))}."
    )


def runs_encoder_only(model: PreTrainedModel) -> bool:
    """Whether the model has a decoder that reads the pruned encoder; passes end with the encoder's states."""
    return hasattr(model.base_model, "encoder") and hasattr(model.base_model, "decoder")
