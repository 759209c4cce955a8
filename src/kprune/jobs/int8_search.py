"""An int8 graph within a limit of loss: the matrices that cost most stay in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from kprune.deploy.int8 import Matrix, node_names, rank_by_error, weight_matrices
from kprune.deploy.onnx import quantize
from kprune.errors import BadOptions


@dataclass(frozen=True)
class Int8Choice:
    """Which matrices of a graph are int8, and the loss in points."""

    limit: float
    in_float32: tuple[str, ...]
    """Names of the modules whose matrices stay in float32, the most costly first."""
    matrices: int
    """Number of matrices that could be int8."""
    before: float
    """Loss with all matrices in int8."""
    after: float
    """Loss of the chosen graph."""

    def describe(self) -> str:
        """A sentence on what int8 costs."""
        all_int8 = f"With all {self.matrices} matrices in int8 the graph loses {self.before:.2f} points"
        if not self.in_float32:
            return f"{all_int8}, within the limit of {self.limit:g}: none stays in float32."
        if len(self.in_float32) == self.matrices:
            return (
                f"{all_int8}, and no smaller number stays within the limit of {self.limit:g}: all stay in float32, and "
                "the graph is not quantised. Allow a larger drop."
            )
        shown = ", ".join(self.in_float32[:5]) + (", …" if len(self.in_float32) > 5 else "")
        return (
            f"{all_int8}; with {len(self.in_float32)} of them in float32 ({shown}) it loses {self.after:.2f}, within "
            f"the limit of {self.limit:g}."
        )


@dataclass
class Int8Search:
    """Writes the int8 graph of a float32 graph, and remembers its choice."""

    limit: float
    loss: Callable[[Path], float]
    """Points that a graph loses against the model."""
    batches: Sequence[Mapping[str, Tensor]]
    """Inputs on which matrices are ranked."""
    progress: Callable[[float, str], None] = lambda fraction, phase: None
    choice: Int8Choice | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise BadOptions(f"--int8-max-drop is {self.limit:g}, but must be above 0: 1.0 allows one point.")

    def describe(self) -> str:
        """A sentence on the choice, for the card and the terminal."""
        assert self.choice is not None  # it is called after the graph was written
        return self.choice.describe()

    def __call__(self, float_file: Path, path: Path) -> None:
        """Write the graph in which as few matrices as the ranking allows stay in float32."""
        matrices = weight_matrices(float_file)
        self.progress(0.0, "all in int8")
        before = self._loss_without(float_file, path, [])
        kept, after = self._fewest_in_float32(float_file, path, matrices, before)
        self._write(float_file, path, kept)
        names = tuple(matrix.name for matrix in kept)
        self.choice = Int8Choice(self.limit, names, len(matrices), before, after)

    def _fewest_in_float32(
        self, float_file: Path, path: Path, matrices: list[Matrix], before: float
    ) -> tuple[list[Matrix], float]:
        """The matrices to keep in float32, and the loss then; bisection assumes that more of them lose less."""
        if before <= self.limit:
            return [], before
        ranked = rank_by_error(float_file, matrices, self.batches, lambda done: self.progress(0.5 * done, "ranking"))
        failed, passed, after = 0, len(ranked), 0.0
        while passed - failed > 1:
            middle = (failed + passed) // 2
            self.progress(1.0 - 0.5 * (passed - failed) / len(ranked), f"{middle} in float32")
            loss = self._loss_without(float_file, path, ranked[:middle])
            if loss <= self.limit:
                passed, after = middle, loss
            else:
                failed = middle
        return ranked[:passed], after

    def _loss_without(self, float_file: Path, path: Path, kept: Sequence[Matrix]) -> float:
        self._write(float_file, path, kept)
        return self.loss(path)

    def _write(self, float_file: Path, path: Path, kept: Sequence[Matrix]) -> None:
        quantize(float_file, path, exclude=node_names(kept))
