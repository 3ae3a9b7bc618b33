"""User code that runs in the backward pass, in the lanes: Functions and checkpoints of the model's.

vmap no longer keeps them apart once the graph is recorded. So both halves of a
``torch.autograd.Function`` run on lane tensors, each inside a vmap of its own (a rule that the user
wrote for vmap is never used), and a checkpointed part runs again in lanes of its own: torch's
non-reentrant checkpointing as it is, outside vmap, where it saves physical tensors. Random numbers
are drawn again from the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forethought.gradients.boundary import (
    Answers,
    answering,
    entered,
    is_lane,
    lane,
    outside,
    physical,
    rows,
    saving_hooks,
    sets_up_context,
)
from forethought.gradients.control import Unable
from forethought.gradients.lanes import Lanes


def answered(lanes: Lanes) -> AbstractContextManager[None]:
    """While active, Functions and checkpoints of user code work inside the lanes."""
    return answering(Answers(partial(call, lanes), partial(_checkpointed, lanes)))


@contextmanager
def _inside(lanes: Lanes) -> Iterator[int]:
    """The lanes once more, on physical tensors."""
    with entered(lanes.size) as level:
        if level != lanes.level:
            raise Unable("the model uses torch.func inside")
        with answered(lanes), lanes:
            yield level


class _Notes:
    """What a Function keeps for its backward pass: the ``ctx`` that user code sees."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[Any, ...] = ()
        self.unneeded: tuple[Tensor, ...] = ()
        self.filled = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.unneeded = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.filled = value

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise Unable("a torch.autograd.Function of the model's own changes its inputs in place")


class _Both(torch.autograd.Function):
    """The physical side: everything between the lanes' inputs and outputs is one node."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[], list[Tensor]], back: Callable[..., Any], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.back = back
        ctx.set_materialize_grads(False)
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, None, *ctx.back(gradients)


def call(lanes: Lanes, kind: Any, args: tuple[Any, ...], own: Callable[..., Any]) -> Any:  # noqa: PLR0915
    """``kind.apply(*args)`` for every lane.

    Args:
        kind: the Function. own: torch's ``apply``.
    """
    grown = torch.is_grad_enabled()
    if not any(isinstance(value, Tensor) and is_lane(value) for value in args):
        if grown and any(isinstance(value, Tensor) and value.requires_grad for value in args):
            raise Unable(f"{kind.__name__} is a torch.autograd.Function on parameters")
        with outside():
            return own(kind, *args)
    lanes.here()
    if lanes.draws is not None and lanes.draws.apart:
        raise Unable(f"{kind.__name__} in lanes that run apart")
    args = tuple(
        lanes.rows_of(value)
        if isinstance(value, Tensor) and not is_lane(value) and value.requires_grad and grown
        else value
        for value in args
    )
    places = [i for i, value in enumerate(args) if isinstance(value, Tensor) and is_lane(value)]
    wholes = [physical(args[i]) for i in places]
    needs = tuple(
        isinstance(value, Tensor)
        and grown
        and (physical(value)[0] if is_lane(value) else value).requires_grad
        for value in args
    )
    notes = _Notes(needs)
    shape: list[Any] = []
    dims: list[int] = []

    def run() -> list[Tensor]:
        with _inside(lanes) as level:
            plain = list(args)
            for i, (whole, dim) in zip(places, wholes, strict=True):
                plain[i] = lanes.followed(lane(whole.detach(), dim, level))
            if sets_up_context(kind):
                result = kind.forward(*plain)
                kind.setup_context(notes, tuple(plain), result)
            else:
                result = kind.forward(notes, *plain)
            results = result if isinstance(result, tuple) else (result,)
            shape.append(isinstance(result, tuple))
            found = []
            for value in results:
                if not isinstance(value, Tensor):
                    raise Unable(f"{kind.__name__} returns something else than tensors")
                mixed = rows(value) if is_lane(value) else None
                with outside():
                    if mixed is None:
                        mixed = value.expand(lanes.size, *value.shape)
                    found.append(mixed.detach().clone())
                dims.append(0)
            return found

    def back(gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        with _inside(lanes) as level, torch.no_grad():
            wrapped = [None if g is None else lanes.followed(lane(g, 0, level)) for g in gradients]
            answer = kind.backward(notes, *wrapped)
            answers = answer if isinstance(answer, tuple) else (answer,)
            found: list[Tensor | None] = []
            for i, (whole, dim) in zip(places, wholes, strict=True):
                value = answers[i] if i < len(answers) else None
                if value is None or not needs[i]:
                    found.append(None)
                    continue
                gradient = rows(value) if is_lane(value) else None
                with outside():
                    if gradient is None:
                        gradient = value.expand(lanes.size, *value.shape)
                    expected = whole.movedim(dim, 0).shape
                    found.append(gradient.reshape(expected).movedim(0, dim))
            return found

    with outside():
        outputs = _Both.apply(run, back, *(whole for whole, _ in wholes))  # type: ignore[no-untyped-call]
    result = tuple(lane(value, dim, lanes.level) for value, dim in zip(outputs, dims, strict=True))
    return result if shape[0] else result[0]


def _checkpointed(
    lanes: Lanes,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    own: Callable[[Callable[[], None]], Iterator[None]],
) -> Iterator[None]:
    """Around a call of a checkpointed function (:class:`.boundary.Answers`)."""
    lanes.here()
    taken = 0 if lanes.draws is None else lanes.draws.number

    def again() -> None:
        if lanes.draws is not None:
            lanes.draws.number = taken
        with _inside(lanes):
            function(*args, **kwargs)

    parts = own(again)
    with outside(), saving_hooks(None):  # torch's own, which keep each lane's values where they are
        next(parts)
    try:
        yield
    finally:
        with outside():
            for _ in parts:
                pass
