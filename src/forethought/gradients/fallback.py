"""Gradients of one lane after another, for what vmap cannot run: slow, and exact.

Every lane runs alone, from the same state of the model, and only its own examples are at hand. A
mode watches what it writes to: a tensor that was there before and is not the model's own would
carry values from one lane to the next.
"""

from __future__ import annotations

import contextvars
import copy
import gc
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from forethought.gradients import trees
from forethought.gradients.boundary import GETTERS, OPERATORS, unseen_kernel, wrapped
from forethought.gradients.calls import operator_name, writes
from forethought.gradients.control import Refused
from forethought.gradients.draws import seeded
from forethought.gradients.state import State, alike, changes_itself, copied
from forethought.gradients.trees import Loss
from forethought.gradients.whole_batch import of_one

if TYPE_CHECKING:
    from forethought.gradients.batch import Batch


class SlowGradientsWarning(UserWarning):
    """Gradients are exact but slow: vmap cannot run a part of the model, or a rule failed."""


_DATA = GETTERS["data"].__get__
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)


def _normalised_alone(given: Mapping[str, Any]) -> Tensor:
    """One value a channel is its own mean: zero, where torch raises, and then weight and bias."""
    value: Tensor = given["input"] - given["input"]
    shape = (1, -1, *(1,) * (value.dim() - 2))
    for part, by in ((given.get("weight"), torch.mul), (given.get("bias"), torch.add)):
        value = value if part is None else by(value, part.view(shape))
    return value


def _storage(value: Tensor) -> int:
    """Where a tensor's memory is; 0 for one that has none of its own (sparse, or of torch.func)."""
    if value.layout is not torch.strided or wrapped(value):
        return 0
    return value.untyped_storage().data_ptr()


class Alone(TorchFunctionMode):
    """Knows the tensors that one lane's pass made, and refuses to write to others.

    Args:
        model: whose buffers and attributes a pass may write to, since they are put back.
        grouped: the lane is a group, whose examples batch normalisation may mix.
    """

    def __init__(self, model: nn.Module, grouped: bool) -> None:
        super().__init__()
        self._grouped = grouped
        # The model's own are put back after every lane.
        self._parameters = {*map(_storage, model.parameters())} - {0}
        owned = list(model.buffers())
        for module in model.modules():
            owned += trees.tensors(list(vars(module).values()))
        self._owned = {*map(_storage, owned)} - {0} - self._parameters
        self._known = self._owned | self._parameters
        self._made: dict[int, weakref.ref[Tensor]] = {}
        self._storages: set[int] = {0}

    def again(self) -> Alone:
        """The same for another lane, where the model's own tensors are put back in between."""
        other = copy.copy(self)
        other._made, other._storages = {}, {0}
        return other

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) in OPERATORS and unseen_kernel(operator_name(func)):
            raise Refused(
                f"{operator_name(func)} is an operator made with torch.library.Library: nobody can "
                "see what its code keeps of the examples; make it with torch.library.custom_op"
            )
        if func is _DATA:
            return args[0].detach()  # the same memory; unlike .data, its changes are counted
        if func is F.batch_norm and self._grouped:
            names = ("input", "running_mean", "running_var", "weight", "bias", "training")
            given = dict(zip((*names, "momentum", "eps"), args, strict=False)) | kwargs
            if given.get("training"):  # the group's own statistics, kept nowhere
                if given["input"].numel() == given["input"].shape[1]:
                    return _normalised_alone(given)
                return func(**{**given, "running_mean": None, "running_var": None})
        if writes(func, kwargs):
            target = kwargs.get("out", args[0] if args else None)
            if isinstance(target, Tensor) and not self._mine(target):
                raise Refused(
                    "values of the examples are written into a tensor that is neither the "
                    "example's nor put back (a parameter, a global, one that a closure keeps): "
                    "compute a new tensor instead"
                )
        result = func(*args, **kwargs)
        if func in _ARRAYS:
            return result.copy()  # what is written there would stay
        if isinstance(result, Tensor):
            leaves = [result]
        else:
            leaves = [*trees.tensors(result)] if isinstance(result, tuple | list) else []
        for leaf in leaves:
            place = _storage(leaf)
            if place not in self._known:  # in-place functions return what the model holds
                self._made[id(leaf)] = weakref.ref(leaf)
                self._storages.add(place)
        return result

    def _mine(self, target: Tensor) -> bool:
        known = self._made.get(id(target))
        if known is not None and known() is target:
            return True
        place = _storage(target)
        return place in self._storages or place in self._owned

    def made(self) -> list[Tensor]:
        """Tensors of the pass that somebody still holds."""
        return [value for value in (kept() for kept in self._made.values()) if value is not None]


def one_at_a_time(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    trained: Mapping[str, nn.Parameter] | None,
    state: State,
    restore: Callable[[], None],
    answers: list[tuple[Any, Tensor]] | None = None,
) -> dict[str, list[Tensor]]:
    """Every lane's gradients by one ordinary backward pass, by name; ``.grad`` is left as it was.

    Args:
        trained: None: not the gradients but the loss of every lane, under the name "loss".
        state: of the model, to compare with. restore: puts it back, and all else that Python holds.
        answers: takes copies of the model's outputs and the loss, lane by lane; None: nobody asks.

    Raises:
        Refused: the model changes itself, or keeps what it computed from an example.
    """
    rows: dict[str, list[Tensor]] = {name: [] for name in ("loss",) if trained is None}
    rows |= {name: [] for name in trained or ()}
    first: dict[str, Any] | None = None
    # Each draws from a stream of its own: how much one draws must not matter to the next.
    seeds = torch.randint(2**62, (batch.count + 1,)).tolist()
    for at in range(batch.count):
        seeded(seeds[at])
        alone = Alone(model, batch.mixing)
        found = contextvars.copy_context().run(
            _run, alone, model, loss, batch, trained, at, answers
        )
        changed = _check(alone, state, restore)
        first = changed if first is None else first
        if not alike(changed, first):
            raise changes_itself({**changed, **first}, "depends on the examples that it has seen")
        for name, value in found.items():
            rows[name].append(value)
    seeded(seeds[-1])
    return rows


def _run(
    alone: Alone,
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    trained: Mapping[str, nn.Parameter] | None,
    at: int,
    answers: list[tuple[Any, Tensor]] | None,
) -> dict[str, Tensor]:
    parameters = list(model.parameters())
    kept = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        with torch.set_grad_enabled(trained is not None), alone:
            inputs, targets = batch.some(torch.tensor([at]))
            inputs, targets = (trees.mapped(tree, _only) for tree in (inputs, targets))
            outputs = trees.call(model, inputs)
            values = loss(outputs, targets)
        if isinstance(values, Tensor) and values.dim() == 0 and batch.each == 1:
            values = values.reshape(1)
        value = trees.losses(values, batch.each).mean()
        if answers is not None:
            answers.append((of_one(outputs), value.detach().clone()))
        del outputs
        if trained is None:
            return {"loss": value.detach().clone()}
        if value.requires_grad:
            # backward, not autograd.grad: reentrant checkpointing allows nothing else.
            value.backward()  # type: ignore[no-untyped-call]
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense().detach()
            for name, p in trained.items()
        }
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def _only(leaf: Tensor) -> Tensor:
    return leaf[0]


def _check(alone: Alone, state: State, restore: Callable[[], None]) -> dict[str, Any]:
    changed = copied(state.changes())
    written = state.parameters_changed()
    restore()
    if written:
        raise changes_itself(written, "is written to in the forward pass")
    if alone.made():
        gc.collect()
        if alone.made():
            raise changes_itself(["something outside the model"], "keeps values of an example")
    return changed
