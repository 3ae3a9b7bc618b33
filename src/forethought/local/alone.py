"""Groups one after another: each runs its algorithm on the model itself, in an enclosure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import batches
from forethought.gradients.batches import Loss
from forethought.local.enclosure import Bare, Enclosure
from forethought.local.known import separable
from forethought.local.optimizers import Displacement
from forethought.values.contributions import Local, imported

Mode = AbstractContextManager[Any]


class OneByOne:
    """Computes updates of groups by ordinary passes.

    Args:
        model: at the round's weights. loss: one value a record. local: the algorithm.
        held: records whose activations are held at once; a longer step adds up pieces. None: all.

    Raises:
        ValueError: an algorithm that cannot be loaded, or a model that cannot be put back.
    """

    def __init__(self, model: nn.Module, loss: Loss, local: Local, held: int | None = None) -> None:
        self._function = None if local.function is None else imported(local.function)
        self._loss, self._local, self._held = loss, local, held
        self._enclosure: Enclosure | Bare = (
            Bare(model)
            if self._function is None and separable(model, loss)
            else Enclosure(model, loss, self._function)
        )
        self._weights = [torch.empty_like(value) for value in self._enclosure.first]
        self._pieces = self._enclosure.joined.part(self._weights)

    def update(self, inputs: Any, targets: Any, seed: int) -> dict[str, Tensor]:
        """Name → weight change that a group's records make, not finite where it overflowed.

        Args:
            inputs, targets: the group's records, batch first. seed: of orders, dropout and the
                like.

        Raises:
            ValueError: the user's function returns something else than a weight change.
        """
        size = batches.batch_size(inputs, targets)

        def work(alone: Mode) -> Mapping[str, Tensor]:
            if self._function is not None:
                return self._own(self._function, alone, inputs, targets)
            return self._descend(alone, inputs, targets, size, seed)

        return self._enclosure.run(work, seed)

    def _descend(
        self, alone: Mode, inputs: Any, targets: Any, size: int, seed: int
    ) -> dict[str, Tensor]:
        trained, joined, weights = self._enclosure.trained, self._enclosure.joined, self._weights
        parameters = list(trained.values())
        for weight, value in zip(weights, self._enclosure.first, strict=True):
            weight.copy_(value)
        taken = Displacement(self._local, self._enclosure.first)
        for number, order in enumerate(steps(size, self._local, seed)):
            if number:  # at first they are there, and after the last step nobody looks
                for parameter, weight in zip(parameters, self._pieces, strict=True):
                    parameter.data.copy_(weight)
            for parameter in parameters:
                parameter.grad = None
            if order is None:
                self._backward(alone, inputs, targets, size)
            else:
                rows = lambda leaf, at=order: leaf[at.to(leaf.device)]  # noqa: E731
                some = (batches.mapped(inputs, rows), batches.mapped(targets, rows))
                self._backward(alone, *some, len(order))
            taken.step(joined.join([_slope(p) for p in parameters]), weights)
        return dict(zip(trained, joined.part(taken.moved), strict=True))

    def _backward(self, alone: Mode, inputs: Any, targets: Any, size: int) -> None:
        piece = self._held or size
        for start in range(0, size, piece):
            count = min(piece, size - start)
            some = inputs, targets
            if count < size:
                cut = lambda leaf, at=start: leaf[at : at + piece]  # noqa: E731
                some = batches.mapped(inputs, cut), batches.mapped(targets, cut)
            with torch.enable_grad(), alone:
                values = self._loss(batches.call(self._enclosure.model, some[0]), some[1])
                if isinstance(values, Tensor) and values.dim() == 0 and count == 1:
                    values = values.reshape(1)
                value = batches.losses(values, count).mean()
                if count < size:
                    value = value * (count / size)
                if value.requires_grad:
                    value.backward()  # type: ignore[no-untyped-call]

    def _own(
        self, function: Callable[..., Any], alone: Mode, inputs: Any, targets: Any
    ) -> dict[str, Tensor]:
        with torch.enable_grad(), alone:
            # A copy, which the function may train in place.
            found = function(copy.deepcopy(self._enclosure.model), (inputs, targets))
        return _checked(found, self._enclosure.trained)


def _slope(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter) if gradient is None else gradient.detach().to_dense()


def steps(size: int, local: Local, seed: int) -> Iterator[Tensor | None]:
    """The records of a group that each inner step takes, in the order of a fresh draw a pass.

    None: all of them, in their own order.
    """
    if local.step is None or local.step >= size:
        yield from (None for _ in range(local.passes))
        return
    generator = torch.Generator().manual_seed(seed)
    for _ in range(local.passes):
        yield from torch.randperm(size, generator=generator).split(local.step)  # type: ignore[no-untyped-call]


def _checked(found: Any, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        raise ValueError(
            "the function of local must return the weight change as a mapping from parameter "
            f"name to tensor, not {type(found).__name__}"
        )
    wrong = sorted(found.keys() ^ trained.keys())
    if wrong:
        raise ValueError(
            "the function of local must return a weight change for each trainable parameter and "
            f"nothing else: look at {', '.join(map(repr, wrong[:5]))}"
        )
    for name, parameter in trained.items():
        value = found[name]
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"the function of local returned {shape} for {name!r}, whose shape is "
                f"{tuple(parameter.shape)}"
            )
    return {name: found[name].to(p.device, p.dtype) for name, p in trained.items()}
