"""What one layer of an unknown model does, found by calls: which Linears read the stream, and which read which.

A layer is called again and again with the arguments of a real pass. A call may freeze the outputs of all Linears at
their first values, change some of them, and then shows whose inputs changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kprune.errors import UnsupportedModel
from kprune.models.outputs import runs_encoder_only

Change = Callable[[Tensor], Tensor]
"""Changes the output of a Linear."""

SAMPLED_ROWS = 12
"""Output rows of a Linear that are changed one by one."""


class _Reached(Exception):
    """Ends a pass at the traced layer."""


@dataclass
class Call:
    """One call of the layer."""

    result: Tensor
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    """Inputs of each Linear, in the order of its calls."""
    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    """Outputs of each Linear, before any change."""


@dataclass
class Modules:
    """What each module of the layer was called with and returned, by its path, in the order of the calls."""

    stream: dict[str, Tensor] = field(default_factory=dict)
    """The first argument, or `hidden_states`."""
    arguments: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    returned: dict[str, Any] = field(default_factory=dict)


def find_layers(model: PreTrainedModel) -> list[str]:
    """Paths, from the base model, of lists of layers as long as the config says, the outermost first."""
    count = getattr(model.config, "num_hidden_layers", None)
    found = [
        path
        for path, module in model.base_model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == count
        and len({type(layer) for layer in module}) == 1
        and any(isinstance(part, nn.Linear | Conv1D) for part in module.modules())
    ]
    if not found:
        raise UnsupportedModel(
            f"cannot prune a {model.config.model_type!r} model: no list of {count} equal layers with Linears was "
            "found; write a row by hand (docs/new-family.md)."
        )
    return sorted(found, key=lambda path: path.count("."))


def run_model(model: PreTrainedModel, inputs: Mapping[str, Tensor], **options: Any) -> Any:
    """The outputs of a model without a row; of a model with a decoder, those of its encoder."""
    called = model.get_encoder() if runs_encoder_only(model) else model
    return called(**inputs, return_dict=True, **options)


def called_modules(model: PreTrainedModel, inputs: Mapping[str, Tensor], **options: Any) -> list[str]:
    """Paths, from the base model, of the modules that take part in a pass."""
    called: dict[str, None] = {}
    with torch.no_grad(), ExitStack() as stack:
        for path, module in model.base_model.named_modules():

            def keep(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
                called[path] = None

            stack.enter_context(module.register_forward_hook(keep))
        run_model(model, inputs, **options)
    return list(called)


class LayerTrace:
    """One layer with the arguments of a real pass, and its first call."""

    def __init__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.layer, self.args, self.kwargs = layer, args, kwargs
        self.stream: Tensor = args[0] if args else kwargs["hidden_states"]
        self.projections = {
            path: module for path, module in layer.named_modules() if isinstance(module, nn.Linear | Conv1D)
        }
        self.modules = Modules()
        with torch.no_grad(), self._watched():
            self.returned = layer(*args, **kwargs)
        self.first = self.call()

    @classmethod
    def of(cls, model: PreTrainedModel, path: str, inputs: Mapping[str, Tensor], **options: Any) -> LayerTrace:
        """The topmost layer of a list; the lowest is often an exception."""
        layer = next(reversed(list(model.base_model.get_submodule(path).children())))
        seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.append((args, kwargs))
            raise _Reached

        with torch.no_grad(), suppress(_Reached), layer.register_forward_pre_hook(stop, with_kwargs=True):
            run_model(model, inputs, **options)
        if not seen:
            raise UnsupportedModel(f"the layers {path!r} take no part in a pass; write a row by hand.")
        return cls(layer, *seen[0])

    def call(
        self,
        changes: Mapping[str, Change] | None = None,
        *,
        stream: Tensor | None = None,
        is_frozen: bool = False,
        layer: nn.Module | None = None,
    ) -> Call:
        """Call the layer, or a copy of it; with `is_frozen`, Linears return what they returned first."""
        made = Call(self.stream)
        layer = layer or self.layer
        with torch.no_grad(), ExitStack() as stack:
            for path, module in layer.named_modules():
                if path in self.projections and isinstance(module, nn.Linear | Conv1D):
                    change = (changes or {}).get(path)
                    stack.enter_context(self._recorded(made, path, module, change, is_frozen=is_frozen))
            args, kwargs = self.args, self.kwargs
            if stream is not None:
                args, kwargs = ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})
            returned = layer(*args, **kwargs)
        made.result = returned[0] if isinstance(returned, tuple) else returned
        return made

    @contextmanager
    def _recorded(
        self, made: Call, path: str, module: nn.Module, change: Change | None, *, is_frozen: bool
    ) -> Iterator[None]:
        def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            made.inputs.setdefault(path, []).append(args[0].clone())  # the layer may write to either
            made.outputs.setdefault(path, []).append(output.clone())
            if is_frozen:
                output = self.first.outputs[path][len(made.outputs[path]) - 1].clone()
            return output if change is None else change(output)

        with module.register_forward_hook(keep):
            yield

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Within the context, calls of all modules are noted."""
        with ExitStack() as stack:
            for path, module in self.layer.named_modules():
                if not path:
                    continue

                def keep(
                    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, path: str = path
                ) -> None:
                    first = args[0] if args else kwargs.get("hidden_states")
                    if path not in self.modules.returned:
                        self.modules.arguments[path] = (args, kwargs)
                        self.modules.returned[path] = output
                        if isinstance(first, Tensor):
                            self.modules.stream[path] = first

                stack.enter_context(module.register_forward_hook(keep, with_kwargs=True))
            yield

    def readers(self) -> list[str]:
        """Linears whose input depends on the stream while all Linears are frozen."""
        return self._changed(self.call(stream=self.stream + noise_like(self.stream), is_frozen=True))

    def read_by(self, *paths: str) -> list[str]:
        """Linears that read the outputs of any of these, with no other Linear between."""
        return self._changed(
            self.call(dict.fromkeys(paths, lambda output: output + noise_like(output)), is_frozen=True)
        )

    def _changed(self, call: Call) -> list[str]:
        return [
            path
            for path, inputs in call.inputs.items()
            if any(not torch.equal(a, b) for a, b in zip(inputs, self.first.inputs[path], strict=True))
        ]

    def mixes_tokens(self, producers: list[str], consumer: str) -> bool:
        """Whether the consumer's input at other tokens depends on the producers' outputs at the first."""

        def at_first(output: Tensor) -> Tensor:
            noise = noise_like(output).flatten(0, -2)
            noise[1:] = 0
            return output + noise.view_as(output)

        call = self.call(dict.fromkeys(producers, at_first), is_frozen=True)
        before, after = (each.inputs[consumer][0].flatten(0, -2) for each in (self.first, call))
        return not torch.equal(before[1:], after[1:])

    def features_of_rows(self, producer: str, consumer: str) -> dict[int, set[int]]:
        """The consumer's input features that depend on single output rows of a producer, for some of its rows."""
        rows = self.first.outputs[producer][0].shape[-1]
        found = {}
        for row in sorted(set(torch.linspace(0, rows - 1, min(SAMPLED_ROWS, rows)).long().tolist())):

            def at_row(output: Tensor, row: int = row) -> Tensor:
                noise = noise_like(output)
                kept = torch.arange(rows, device=output.device) == row
                return output + noise * kept

            call = self.call({producer: at_row}, is_frozen=True)
            differs = call.inputs[consumer][0] != self.first.inputs[consumer][0]
            found[row] = set(differs.flatten(0, -2).any(0).nonzero().squeeze(1).tolist())
        return found


def noise_like(tensor: Tensor) -> Tensor:
    """Noise of twice the tensor's own size, always the same."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return noise * 2 * tensor.std().clamp(min=1e-3)
