"""Predictions of one or two models on the same batches, longest inputs first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch
from transformers import PreTrainedModel

from kprune.errors import NotFinite
from kprune.models.batches import Batch, Example, regroup, require_fit
from kprune.models.outputs import OutputKind, Prediction
from kprune.models.passes import call

BATCH_TOKENS = 4096
"""Tokens per batch."""
VOCABULARY_BATCH_TOKENS = 1024
"""Tokens per batch for models whose outputs are as wide as the vocabulary."""
MAX_PADDING = 0.05
"""Largest share of a batch's tokens that may be padding."""


class PredictionRun:
    """Runs models over the same examples, batch by batch.

    `cached` holds the last model's predictions by batch number. Batches that it lacks are computed and added.
    """

    def __init__(
        self,
        models: Sequence[PreTrainedModel],
        kinds: Sequence[OutputKind],
        examples: list[Example],
        cached: dict[int, Prediction] | None = None,
    ) -> None:
        for model in models:
            require_fit(examples, model.config)
        self.models, self.kinds = models, kinds
        self.cached = None if kinds[0].is_vocabulary else cached  # vocabulary outputs are too large to keep
        self.batches = regroup(
            examples,
            tokens=self.batch_tokens(),
            pad_id=getattr(models[0].config, "pad_token_id", None) or 0,
            device=models[0].device,
            most_padding=MAX_PADDING,
        ).batches
        self.forward_seconds = 0.0

    @property
    def padding(self) -> float:
        """Share of all tokens that are padding."""
        real = sum(int(batch.mask.sum()) for batch in self.batches)
        return 1.0 - real / sum(batch.mask.numel() for batch in self.batches)

    def results(self, progress: Callable[[float], None]) -> Iterator[tuple[Batch, list[Prediction]]]:
        """Each batch, or piece of one, with every model's prediction; `progress` gets the share of the work done."""
        total = sum(batch.mask.numel() for batch in self.batches)
        done = 0
        with torch.no_grad(), _evaluation_mode(self.models):
            for number, batch in enumerate(self.batches):
                for predictions in self.predictions(number):
                    yield batch, predictions
                done += batch.mask.numel()
                progress(done / total)

    def batch_tokens(self) -> int:
        """Tokens per batch, padding included."""
        return VOCABULARY_BATCH_TOKENS if self.kinds[0].is_vocabulary else BATCH_TOKENS

    def predictions(self, number: int) -> Iterator[list[Prediction]]:
        """Every model's prediction for one batch, whole or in pieces."""
        yield [self._prediction(which, number) for which in range(len(self.models))]

    def _prediction(self, which: int, number: int) -> Prediction:
        """The prediction of one model for one batch; only the second model's are cached."""
        model, kind, batch = self.models[which], self.kinds[which], self.batches[number]
        if which == 0 or self.cached is None:
            return self._predict(model, kind, batch)
        if number not in self.cached:
            self.cached[number] = self._predict(model, kind, batch)
        return self.cached[number]

    def _predict(self, model: PreTrainedModel, kind: OutputKind, batch: Batch) -> Prediction:
        started = perf_counter()
        prediction = kind.read(call(model, batch), batch)
        require_numbers(prediction)
        self.forward_seconds += perf_counter() - started
        return prediction


def require_numbers(prediction: Prediction) -> None:
    """Raise if an output is NaN."""
    if bool(prediction.values.isnan().any()):
        raise NotFinite("the model's outputs are NaN; check the checkpoint, or load it in float32.")


@contextmanager
def _evaluation_mode(models: Sequence[PreTrainedModel]) -> Iterator[None]:
    """Set the models to evaluation mode, and restore their modes at the end."""
    modes = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)
