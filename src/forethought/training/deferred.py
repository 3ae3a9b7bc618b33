"""Batches that hold nothing: what a loop does with them is written down, and done in the round.

A training loop of one's own gets :class:`Deferred` values in place of tensors. They know no number
of any record, so that nothing the loop does can depend on one. Torch's functions, operators,
methods and attributes of them give further such values; what came of a batch in the end is an
expression, which the private round evaluates for every example by itself.
"""

from __future__ import annotations

import copyreg
import inspect
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from forethought.rounds.contributions import Loss, cross_entropy
from forethought.rounds.randomness import Indices
from forethought.rounds.records import Records, TensorRecords


class DeferredError(ValueError):
    """A training loop asked for a number of a private batch, or for what a round cannot compute."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor of a batch's records.

    Args:
        batch: which batch. place: which of the records' tensors, inputs before targets.
    """

    batch: Any
    place: int


@dataclass(frozen=True, eq=False)
class Call:
    """A function's value; ``casts``: what autocast was on where a model was called."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    casts: tuple[tuple[str, torch.dtype], ...] = ()


def autocasts() -> tuple[tuple[str, torch.dtype], ...]:
    """Kinds of devices on which autocast is on here, and its types."""
    return tuple(
        (kind, torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )


# What would hand a number of the records to Python.
_EXITS = frozenset({"item", "tolist", "numpy", "data_ptr", "storage", "untyped_storage", "nonzero"})
# The number of records in a batch tells which were drawn.
_SIZES = frozenset({"shape", "size", "numel", "nelement"})


class Deferred:
    """A value that there will be in the private round, for each example by itself."""

    __slots__ = ("_what",)

    def __init__(self, what: Leaf | Call) -> None:
        object.__setattr__(self, "_what", what)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Deferred:
        kwargs = dict(kwargs or {})
        if _is_mean(function, kwargs):
            kwargs["reduction"] = "none"
            if function is not F.cross_entropy:  # its values are one an example, or refused
                return cls(Call(_own_mean, (function, *args), kwargs))
        return cls(Call(function, args, kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _EXITS:
            _refuse(f".{name}()")
        if name in _SIZES and isinstance(self._what, Leaf):
            _refuse(f".{name}", "how many records a batch has is private; use plan.batch")
        return Deferred(Call(getattr, (self, name), {}))

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(f".{name} = …")

    def __call__(self, *args: Any, **kwargs: Any) -> Deferred:
        return Deferred(Call(_called, (self, *args), kwargs))

    def to(self, *args: Any, **kwargs: Any) -> Deferred:
        """Itself for another device, where the round puts it; another precision as elsewhere."""
        places = [*args, *(kwargs[name] for name in ("device", "dtype") if name in kwargs)]
        if all(isinstance(place, str | int | torch.device | bool) for place in places):
            return self
        return Deferred(Call(getattr, (self, "to"), {}))(*args, **kwargs)

    def cuda(self, *_: Any, **__: Any) -> Deferred:
        """Itself: the round computes where the model is."""
        return self

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Say that this is the loss: one value per example, to be made small by the next step.

        Raises:
            DeferredError: arguments, or a value that no batch takes part in.
        """
        if args or kwargs:
            raise DeferredError("backward() of a private loss takes no arguments")
        batches = {id(leaf.batch): leaf.batch for leaf in leaves(self)}
        if len(batches) != 1:
            raise DeferredError(
                f"a loss is about one batch, this one about {len(batches)}: take inputs and "
                "targets of the same turn of the loop"
            )
        batches.popitem()[1].take(self)

    def __repr__(self) -> str:
        return "a value of a private batch: it is computed when optimizer.step() runs the round"

    def __format__(self, how: str) -> str:
        return _refuse("a number for printing") if how else repr(self)

    __hash__ = object.__hash__


def _refuse(what: str, instead: str = "") -> NoReturn:
    remedy = instead or (
        "leave the line out, and look at public or held-out records between the epochs"
    )
    raise DeferredError(
        f"{what} of a private batch would be a number without noise, which no guarantee covers: "
        f"{remedy}"
    )


# Losses whose mean over a batch is the mean of what each example has by itself.
_MEANS = frozenset(
    {
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.cross_entropy,
        F.huber_loss,
        F.l1_loss,
        F.mse_loss,
        F.smooth_l1_loss,
    }
)
# Their weights are factors; those of other losses are divided by, for the whole batch at once.
_WEIGHTED = frozenset({F.binary_cross_entropy, F.binary_cross_entropy_with_logits})


def _is_mean(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """True if a call is one of torch's losses with the mean over all examples."""
    if function not in _MEANS or kwargs.get("reduction") != "mean":
        return False
    return function in _WEIGHTED or kwargs.get("weight") is None


def _own_mean(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A loss of each example: the mean over its own values, in place of that over the batch."""
    values = function(*args, **kwargs)
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _operator(name: str, turned: bool = False) -> Callable[..., Deferred]:
    function = getattr(operator, name)

    def apply(self: Deferred, *others: Any) -> Deferred:
        return Deferred(Call(function, (*others, self) if turned else (self, *others), {}))

    return apply


_LOOP = "a loop over the rows"
_WITHOUT_A_LOOP = (
    "leave it out. A GradScaler, which loops, is not needed: make it with enabled=False. Losses "
    "that a model returns by name are added up in its forward"
)


def _exit(what: str) -> Callable[..., NoReturn]:
    def refuse(self: Deferred, *_: Any) -> NoReturn:
        _refuse(what, _WITHOUT_A_LOOP if what == _LOOP else "")

    return refuse


for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor"),
):
    _plain = f"{_name}_" if _name in ("and", "or") else _name
    setattr(Deferred, f"__{_name}__", _operator(_plain))
    setattr(Deferred, f"__r{_name}__", _operator(_plain, turned=True))
for _name in ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "getitem"):
    setattr(Deferred, f"__{_name}__", _operator(_name))
for _name, _what in {
    "bool": "a decision (if, and, while)",
    "len": "the length",
    "iter": _LOOP,
    "float": "float()",
    "int": "int()",
    "index": "an index",
    "array": "an array",
    "contains": "a search",
    "setitem": "writing into it",
}.items():
    setattr(Deferred, f"__{_name}__", _exit(_what))


def children(value: Any) -> Iterator[Any]:
    """Every value in an argument, which may be nested in tuples, lists and dicts."""
    yield from torch.utils._pytree.tree_leaves(value)


def nodes(value: Deferred, apart: Call | None = None) -> Iterator[Leaf | Call]:
    """Everything that a value is computed from, each once, and itself.

    Args:
        apart: a call that is passed over, with what it is computed from.
    """
    seen = {id(apart)}
    pending: list[Any] = [value]
    while pending:
        one = pending.pop()
        if not isinstance(one, Deferred) or id(one._what) in seen:
            continue
        what = one._what
        seen.add(id(what))
        yield what
        if isinstance(what, Call):
            pending += [*children(what.args), *children(what.kwargs)]


def leaves(value: Deferred, apart: Call | None = None) -> Iterator[Leaf]:
    """The records' tensors that a value is computed from; see :func:`nodes`."""
    return (what for what in nodes(value, apart) if isinstance(what, Leaf))


@dataclass(frozen=True)
class Earlier:
    """The result of an earlier step of a program, by its number."""

    number: int


@contextmanager
def cast_as_called(value: Deferred) -> Iterator[None]:
    """Autocast as it was where the model was called."""
    calls = [what for what in nodes(value) if isinstance(what, Call)]
    with ExitStack() as stack:
        for kind, dtype in {cast for call in calls for cast in call.casts}:
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        yield


class Gate:
    """Lets a model take deferred values: its call is written down, as one step of a loss.

    The model's class is replaced by a subclass with another ``__call__``, as
    ``torch.nn.utils.parametrize`` does; tensors go through as before. Copies and files of the model
    are of the class that it had.
    """

    def __init__(self, model: nn.Module) -> None:
        if type(model) in _GATED:
            raise ValueError(
                "this model is in another private loop: call finish() of that loop's optimizer"
            )
        self._model, self._kind = model, type(model)
        self._gated = _gated(type(model))
        self.close()

    def close(self) -> None:
        """Deferred values are written down."""
        self._model.__class__ = self._gated

    def open(self) -> None:
        """The model is as it was."""
        self._model.__class__ = self._kind


def model_call(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The stand-in for a model's call in an expression; the round knows its value."""
    return model(*args, **kwargs)


_GATED: weakref.WeakSet[type[nn.Module]] = weakref.WeakSet()


def _gated(kind: type[nn.Module]) -> type[nn.Module]:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, Deferred) for value in children((args, kwargs))):
            return Deferred(Call(model_call, (self, *args), kwargs, autocasts()))
        return kind.__call__(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        # An object of the class that it had; pickle wants the class itself elsewhere.
        rest = tuple(kind.__reduce_ex__(self, protocol))[2:]
        return (copyreg._reconstructor, (kind, object, None), *rest)  # type: ignore[attr-defined]

    gated = type(kind.__name__, (kind,), {"__call__": call, "__reduce_ex__": reduce})
    _GATED.add(gated)
    return gated


# From what a training loop did with a batch to what a private round computes.


class StatedLoss:
    """The loss of a round, as the loop stated it: ``loss(outputs, targets)``.

    Plain data: calls whose arguments hold :class:`Earlier` values. Nothing of a batch or a loop is
    in it.

    Args:
        value: what ``backward`` was called on. output: the model's call in it.
        targets: the records' tensors in it, in the order in which the round has them.
    """

    def __init__(self, value: Deferred, output: Call, targets: Sequence[Leaf]) -> None:
        known = (output, *targets)
        numbers = {id(what): number for number, what in enumerate(known)}
        steps: list[Call] = []

        def number(one: Any) -> Any:
            if not isinstance(one, Deferred):
                return one
            what = one._what
            if id(what) not in numbers:
                assert isinstance(what, Call)  # all leaves are known
                args = torch.utils._pytree.tree_map(number, what.args)
                kwargs = torch.utils._pytree.tree_map(number, dict(what.kwargs))
                numbers[id(what)] = len(known) + len(steps)
                steps.append(Call(what.function, args, kwargs))
            return Earlier(numbers[id(what)])

        self._result = number(value)
        self._steps = tuple(steps)
        self._places = tuple(leaf.place for leaf in targets)

    def __call__(self, outputs: Any, targets: Any) -> Any:
        given = (targets,) if len(self._places) == 1 else targets if self._places else ()
        values = [outputs, *given]

        def of(one: Any) -> Any:
            return values[one.number] if isinstance(one, Earlier) else one

        for step in self._steps:
            args = torch.utils._pytree.tree_map(of, step.args)
            kwargs = torch.utils._pytree.tree_map(of, step.kwargs)
            values.append(step.function(*args, **kwargs))
        return of(self._result)

    def same_as(self, other: object) -> bool:
        """True if the same lines were written, with the same numbers and objects in them.

        Objects other than numbers and words must be the same ones.
        """
        if not isinstance(other, StatedLoss):
            return False
        own, its = (self._places, self._result), (other._places, other._result)
        if own != its or len(self._steps) != len(other._steps):
            return False
        return all(_same(one, two) for one, two in zip(self._steps, other._steps, strict=True))


def _same(one: Call, other: Call) -> bool:
    parts, form = torch.utils._pytree.tree_flatten((one.args, dict(one.kwargs)))
    others, other_form = torch.utils._pytree.tree_flatten((other.args, dict(other.kwargs)))
    plain = (str, bool, int, float, Earlier)
    return (
        one.function is other.function
        and form == other_form
        and all(
            a is b or (type(a) is type(b) and isinstance(a, plain) and a == b)
            for a, b in zip(parts, others, strict=True)
        )
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
    # What the loss looks at other than through the model.
    targets = tuple(sorted(leaves(value, output), key=lambda leaf: leaf.place))
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
