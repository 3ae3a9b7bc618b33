"""From what a training loop did with a batch to what a private round computes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from forethought.rounds.losses import Loss, cross_entropy
from forethought.rounds.records import Records, TensorRecords
from forethought.rounds.sampling import Indices
from forethought.training.deferred import (
    Call,
    Deferred,
    DeferredError,
    Leaf,
    Program,
    children,
    model_call,
    nodes,
)


class StatedLoss:
    """The loss of a round, as the loop stated it: ``loss(outputs, targets)``.

    Args:
        value: what ``backward`` was called on. output: the model's call in it.
        targets: the records' tensors in it, in the order in which the round has them.
    """

    def __init__(self, value: Deferred, output: Call, targets: Sequence[Leaf]) -> None:
        self._program = Program(value, (output, *targets))
        self._places = tuple(leaf.place for leaf in targets)

    def __call__(self, outputs: Any, targets: Any) -> Any:
        given = (targets,) if len(self._places) == 1 else targets if self._places else ()
        return self._program(outputs, *given)

    def same_as(self, other: object) -> bool:
        """True if the same lines were written, with the same numbers and objects in them."""
        return (
            isinstance(other, StatedLoss)
            and self._places == other._places
            and self._program.same_as(other._program)
        )


@dataclass(frozen=True)
class Place:
    """The place of one of a record's tensors."""

    number: int


class ArrangedRecords:
    """Records with their tensors as a model's arguments and a loss's targets.

    Args:
        records: as they are.
        inputs: nested tuples and dicts of places among all their tensors (inputs before targets),
            and of what is no tensor.
        targets: the places of those that the loss looks at; none where the model computes it.
    """

    def __init__(self, records: Records, inputs: Any, targets: tuple[int, ...]) -> None:
        self._records, self._inputs, self._targets = records, inputs, targets

    def __len__(self) -> int:
        return len(self._records)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        if not len(indices):
            return None, None
        tensors = torch.utils._pytree.tree_leaves(self._records.take(indices))

        def at(place: Any) -> Any:
            return tensors[place.number] if isinstance(place, Place) else place

        inputs = torch.utils._pytree.tree_map(at, self._inputs)
        # A round wants some: the loss that a model computes itself looks at none.
        targets = tuple(tensors[place] for place in self._targets or (-1,))
        return inputs, targets[0] if len(targets) == 1 else targets

    def digest(self, key: bytes) -> str:
        return self._records.digest(key)

    def settled(self) -> Records:
        """The records themselves where nothing has another place: rounds know their own kinds."""
        as_they_are = (self._inputs, self._targets) == (Place(0), (1,))
        return self._records if as_they_are and isinstance(self._records, TensorRecords) else self

    def same_as(self, other: ArrangedRecords) -> bool:
        """True if models and losses get the same of every record."""
        return (self._inputs, self._targets) == (other._inputs, other._targets)


def stated(
    value: Deferred,
    model: nn.Module,
    records: Records,
    before: tuple[Loss, ArrangedRecords] | None = None,
) -> tuple[Loss, ArrangedRecords]:
    """The loss of a round and the records as it takes them.

    Args:
        value: what ``backward`` was called on. before: that of the round before, which is used
            again where the lines are the same: gradients remember a loss that they judged.

    Raises:
        DeferredError: something that a round cannot compute, with what to write instead.
    """
    calls = [what for what in nodes(value) if isinstance(what, Call)]
    outputs = [call for call in calls if call.function is model_call]
    if len(outputs) != 1 or outputs[0].args[0] is not model:
        raise DeferredError(
            f"the loss has {len(outputs)} calls of a model in it: it must have one, of the whole "
            "model that was given to forethought.private. Put several into one module"
        )
    (output,) = outputs
    for call in calls:
        for part in (*children(call.args), *children(call.kwargs)):
            if isinstance(part, torch.Tensor) and part.requires_grad:
                raise DeferredError(
                    "the loss holds a parameter, or what was computed from one, besides the "
                    "model's output: a penalty on weights belongs into the optimizer "
                    "(weight_decay=), anything else into the model's forward"
                )
    inputs = _as_called(model, output)
    of_inputs = {id(leaf) for leaf in _leaves(inputs)}
    targets = tuple(_without_output(value, output))
    for leaf in _leaves(inputs):
        if not isinstance(leaf, Leaf | bool | str | None):
            raise DeferredError(
                "the model was given something besides the batch's own tensors: move what is done "
                "to them into the model or the data set, and what all records share into the model"
            )
    if not of_inputs:
        raise DeferredError("the model's arguments hold nothing of the batch")
    arranged = ArrangedRecords(
        records,
        torch.utils._pytree.tree_map(
            lambda leaf: Place(leaf.place) if isinstance(leaf, Leaf) else leaf, inputs
        ),
        tuple(leaf.place for leaf in targets),
    )
    loss = _known(value, output, targets)
    if before is not None and arranged.same_as(before[1]):
        same = loss is before[0] or (isinstance(loss, StatedLoss) and loss.same_as(before[0]))
        if same:
            return before
    return loss, arranged


def _leaves(tree: Any) -> list[Any]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if leaf is not None]


def _as_called(model: nn.Module, output: Call) -> Any:
    """The arguments of the model's call, in one of the forms in which rounds call models."""

    def what(part: Any) -> Any:
        return part._what if isinstance(part, Deferred) else part

    args, kwargs = torch.utils._pytree.tree_map(what, (output.args[1:], dict(output.kwargs)))
    if args and kwargs:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
        if len(bound.args) and any(
            part.kind is part.VAR_POSITIONAL for part in bound.signature.parameters.values()
        ):
            raise DeferredError("call the model with its arguments by position, or all by name")
        named: dict[str, Any] = {}
        for name, part in bound.arguments.items():
            several = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            named.update(part if several else {name: part})
        return named
    if kwargs:
        return kwargs
    alone = len(args) == 1 and not isinstance(args[0], Mapping | tuple | list)
    return args[0] if alone else args


def _without_output(value: Deferred, output: Call) -> list[Leaf]:
    """The records' tensors that a loss looks at other than through the model."""
    seen: dict[int, Leaf] = {}
    pending: list[Any] = [value]
    while pending:
        one = pending.pop()
        if not isinstance(one, Deferred) or one._what is output:
            continue
        if isinstance(one._what, Leaf):
            seen[id(one._what)] = one._what
        else:
            pending += [*children(one._what.args), *children(one._what.kwargs)]
    return sorted(seen.values(), key=lambda leaf: leaf.place)


def _known(value: Deferred, output: Call, targets: tuple[Leaf, ...]) -> Loss:
    """Forethought's own function for plain cross entropy, which has rules; else as stated."""
    what = value._what
    if isinstance(what, Call) and what.function is F.cross_entropy and len(targets) == 1:
        bound = inspect.signature(F.cross_entropy).bind(*what.args, **what.kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        first, second = given.pop("input"), given.pop("target")
        plain = {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None}
        own = {**plain, "reduction": "none", "label_smoothing": 0.0}
        if (
            given == own
            and getattr(first, "_what", None) is output
            and getattr(second, "_what", None) is targets[0]
        ):
            return cross_entropy
    return StatedLoss(value, output, targets)
