"""Lanes: every example's forward pass, isolated from the others, at the speed of one batch."""

from __future__ import annotations

import hashlib
import inspect
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from forethought.gradients import batches, boundary
from forethought.gradients.batches import FINGERPRINT, Loss
from forethought.gradients.boundary import NotVectorisable, is_lane, lane, outside, physical
from forethought.gradients.sums import Dense, OneHot, Outer, Slot, Term, combine, slot, wide

# Properties of torch functions: they write to an argument, draw random numbers, make a tensor.


def named(words: str, *owners: Any) -> tuple[Any, ...]:
    """The functions with these names (``words``, split at spaces) of every owner."""
    return tuple([getattr(owner, word) for owner in owners for word in words.split()])


_LIKE = "zeros ones empty full zeros_like ones_like empty_like full_like"
_NEW = "clone new_zeros new_ones new_empty new_full new_tensor"
FRESH = frozenset(named(f"{_LIKE} arange eye tensor clone", torch) + named(_NEW, Tensor))
# Functions that return uninitialised memory.
UNSET = frozenset({torch.empty, torch.empty_like, Tensor.new_empty})
DROPOUTS = frozenset({F.dropout, torch.dropout, F.alpha_dropout, F.feature_alpha_dropout})


def operator_name(func: Any) -> str:
    """The name by which an operator is registered."""
    return str(func._qualified_op_name if hasattr(func, "_qualified_op_name") else func.name())


@cache
def opened(function: FunctionType) -> FunctionType:
    """A copy of a Python function of torch that a mode does not intercept as a whole.

    The mode then intercepts the functions inside it one by one.
    """

    def never(*_: Any) -> bool:
        return False

    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**function.__globals__, **dict.fromkeys(asked, never)}
    rest = function.__name__, function.__defaults__, function.__closure__
    copy = FunctionType(function.__code__, scope, *rest)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """True if a function changes its first argument, or one given as ``out=``."""
    return _by_name(func) or kwargs.get("out") is not None


@cache
def _by_name(func: Any) -> bool:
    name: str = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return name != "requires_grad_"
    return name == "__setitem__" or name in _INPLACE


@cache
def _place_of_inplace(function: FunctionType) -> int:
    names = [*inspect.signature(function).parameters]
    return names.index("inplace") if "inplace" in names else -1


def _importing(name: str) -> bool:
    """True while a module is imported: torch 2.8's functional transforms import the compiler."""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def changes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if a call changes its first argument, ``inplace=True`` included."""
    if writes(func, kwargs) or kwargs.get("inplace"):
        return True
    if isinstance(func, FunctionType) and func.__globals__ is vars(F):
        place = _place_of_inplace(func)
        return 0 < place < len(args) and bool(args[place])
    return False


_OPERATIONS = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
_INPLACE = frozenset(f"__i{name}__" for name in _OPERATIONS.split())


# Random numbers of lanes that run in separate passes: each lane gets the same numbers as in one.
#
# When lanes diverge (:class:`.DivergentControlFlow`), they run again from the start, in one pass
# for each answer. So if values of the examples reach Python, random numbers must not depend on
# which lanes are in the pass. A dropout mask is identified by its number in the pass and its shape;
# it is drawn once for all lanes of the batch, and each lane takes its own row. Every other random
# function runs for all lanes of the batch, from the same state of the generator, which is seeded
# anew for every answer that Python gets. So a lane's numbers depend on its place in the batch and
# on its own answers, never on those of other lanes.


def fork(answer: Hashable) -> None:
    """Seed the generators from their present state and the answer that Python gets."""
    with outside():
        seeded(_seed(f"{int(torch.randint(2**62, ()))} {answer!r}"))


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seeded(seed: int) -> None:
    """Seed the generators of all devices, faster than ``torch.manual_seed`` by milliseconds."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def _states() -> list[Tensor]:
    """The states of the generators of all devices in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return states


class Masks:
    """Dropout masks for all lanes of a batch.

    Args:
        width: number of lanes of the batch.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._base = int(torch.randint(2**62, ()))
        self._drawn: dict[Any, Tensor] = {}

    def mask(self, number: int, shape: tuple[int, ...], chance: float, like: Tensor) -> Tensor:
        """The mask: 0 with the given chance, else 1/(1 − chance), shape (width, *shape)."""
        key = (number, shape, chance, like.dtype, like.device)
        if key not in self._drawn:
            generator = torch.Generator(like.device).manual_seed(_seed(f"{self._base} {key}"))
            mask = torch.empty(self.width, *shape, dtype=like.dtype, device=like.device)
            mask.bernoulli_(1 - chance, generator=generator)
            self._drawn[key] = mask.div_(1 - chance) if chance < 1 else mask
        return self._drawn[key]


class Draws:
    """Random numbers of a pass over some lanes of a batch, the same as in a pass over all lanes.

    Args:
        masks: of the whole batch.
        mine: the batch's lanes that are in this pass, in their order, followed by repeated ones
            that fill up a block; None: all.
        apart: True if other lanes of the batch run in another pass.
        level: vmap's, of this pass.

    Attributes:
        number: number of masks that the pass has taken so far.
    """

    def __init__(self, masks: Masks, mine: Tensor | None, apart: bool, level: int) -> None:
        self._masks, self._width, self._level = masks, masks.width, level
        self._mine, self.number, self.apart = mine, 0, apart
        if mine is not None:
            self._real = len(set(mine.tolist()))
            # Lanes of other passes take part with the values of the first lane of this pass.
            self._fill = torch.zeros(self._width, dtype=torch.long)
            self._fill[mine[: self._real]] = torch.arange(self._real)

    def mask(self, shape: tuple[int, ...], chance: float, like: Tensor) -> Tensor:
        """The next dropout mask for the lanes of this pass, shape (lanes, *shape)."""
        self.number += 1
        return self.narrowed(self._masks.mask(self.number, shape, chance, like), 0)

    def narrowed(self, whole: Tensor, dim: int) -> Tensor:
        """A physical tensor of all lanes of the batch, narrowed to the lanes of this pass."""
        return whole if self._mine is None else whole.index_select(dim, self._mine.to(whole.device))

    def call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function; if it draws random numbers, call it for all lanes of the batch.

        Raises:
            NotVectorisable: the call has its own generator, or several results.
        """
        if kwargs.get("generator") is not None:
            raise NotVectorisable("a generator of the model's own, in lanes that may run apart")
        if self._mine is None:
            return func(*args, **kwargs)
        if func is F.dropout and (kwargs.get("inplace") or (len(args) > 3 and args[3])):
            args[0].copy_(self._wide(func, args[:3], {**kwargs, "inplace": False}))
            return args[0]
        before = _states()
        result = func(*args, **kwargs)
        if all(map(torch.equal, _states(), before)):
            return result
        torch.set_rng_state(before[0])
        if len(before) > 1:
            torch.cuda.set_rng_state_all(before[1:])
        if getattr(func, "__name__", "").endswith("_"):
            with torch.no_grad():
                args[0].copy_(self._wide(func, args, kwargs, copy=True))
            return args[0]
        return self._wide(func, args, kwargs)

    def _wide(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], copy: bool = False
    ) -> Any:
        with outside(), boundary.entered(self._width) as inner:

            def widen(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return value
                if not is_lane(value):
                    return value.clone() if copy else value
                with outside():
                    whole, dim = physical(value)
                    whole = whole.index_select(dim, self._fill.to(whole.device))
                return lane(whole, dim, inner)

            drawn = func(*tree_map(widen, args), **tree_map(widen, dict(kwargs)))
            if not isinstance(drawn, Tensor):
                raise NotVectorisable("random numbers in several results, in lanes that run apart")
            if not is_lane(drawn):
                return drawn
            with outside():
                whole, dim = physical(drawn)
                whole = self.narrowed(whole, dim)
                if self._mine is not None and self._real < len(self._mine):
                    # Repeated rows have the values of their originals, but no gradient may flow
                    # back through them.
                    here = whole.narrow(dim, 0, self._real)
                    again = whole.narrow(dim, self._real, len(self._mine) - self._real)
                    whole = torch.cat([here, again.detach()], dim)
        return lane(whole, dim, self._level)


# Rules: per-example gradients of a torch function's parameters from its input and output.
#
# One rule covers one function (or several that take the same arguments). In the lanes the function
# runs on the whole batch with its parameters detached, and the backward pass reports the gradient
# of its output. For a function without a rule, the gradients of its parameters are written out for
# every example.


@dataclass(frozen=True)
class Use:
    """One use of parameters in one pass, as the backward pass reports it.

    Attributes:
        arguments: the call's arguments by name, without the saved tensors and the parameters.
        parameters: role → the parameter (detached), trained or frozen.
        saved: name → the saved argument, one row for each example: shape (B, *shape in a lane). A
            lane is a batch of one, so an input of a layer usually has the shape (B, 1, …).
        gradient: of the output, one row for each example, in the same form.
        trained: the roles whose gradients are wanted.
    """

    arguments: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    saved: Mapping[str, Tensor]
    gradient: Tensor
    trained: frozenset[str]

    def reduced(self, values: Tensor, role: str) -> Tensor:
        """``values`` (B, *output shape) summed over everything that ``role`` was broadcast to."""
        shape, total = self.parameters[role].shape, wide(values)
        extra = values.dim() - 1 - len(shape)
        # A sum over a single number would be a copy.
        dims = [dim for dim in range(1, 1 + extra) if values.shape[dim] != 1]
        given = values.shape[1 + extra :]
        dims += [1 + extra + i for i, size in enumerate(shape) if size == 1 and given[i] != 1]
        return (total.sum(dims) if dims else total).reshape(len(values), *shape)


Gradients = Callable[[Use], Iterator[tuple[str, Term]]]
Accepts = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


def always(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """A rule for the gradients of one function's parameters.

    Attributes:
        name: the rule's name, which ``explain`` prints.
        signature: the function's argument names, in order.
        parameters: the arguments that may be parameters.
        saved: the arguments whose values the gradients need.
        gradients: a function of a :class:`Use` that yields (role, :class:`Term`) for every role in
            ``use.trained``; terms of other roles are dropped.
        accepts: ``(arguments, trained parameters by role)`` → True if the rule covers the call;
            otherwise gradients are written out for every example.
    """

    name: str
    signature: tuple[str, ...]
    parameters: tuple[str, ...]
    saved: tuple[str, ...]
    gradients: Gradients
    accepts: Accepts = always

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments by name; None for a form of the call that the rule does not know."""
        if len(args) > len(self.signature) or not kwargs.keys() <= set(self.signature):
            return None
        return {**dict(zip(self.signature, args, strict=False)), **kwargs}


RULES: dict[Any, Rule] = {}


def register(rule: Rule, *functions: Any) -> Rule:
    """Use ``rule`` for calls of ``functions`` (a later rule replaces an earlier one).

    Raises:
        TypeError: no function given, or one that cannot be called.
    """
    if not functions or not all(callable(function) for function in functions):
        raise TypeError("register(rule, *functions) needs at least one function to apply it to")
    RULES.update(dict.fromkeys(functions, rule))
    return rule


PHYSICAL: dict[Any, Callable[..., Any]] = {}


def register_physical(run: Callable[..., Any], *functions: Any) -> None:
    """Run calls of ``functions`` that see examples as ``run(mode, function, *args, **kwargs)``.

    This is for functions that vmap cannot run, or runs slowly. ``run`` works on the whole batch and
    must treat every row in the same way and independently of the others. It may return
    ``NotImplemented`` to leave the call to vmap.
    """
    PHYSICAL.update(dict.fromkeys(functions, run))


# Tensors computed from parameters alone: weight normalisation, ``1 + w``, positions, LoRA merges.
#
# In the lanes such a tensor is shared by all examples. It is treated as a parameter of its own. One
# vectorised vector-Jacobian product for all examples turns its per-example gradients into those of
# the parameters, before any norm is taken.


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor that is computed from parameters alone."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class LookedUp:
    """Rows of a table picked by an index that all examples share."""

    tensor: Tensor
    table: Tensor
    index: Tensor
    padding: int | None


ParameterView = Slot | Derived | LookedUp


class ParameterViews:
    """The relation of tensors to trained parameters: a parameter, a view of one, or derived.

    Args:
        trained: the trained parameters by name.
        derived: True to accept tensors that are computed from parameters.
    """

    def __init__(self, trained: Mapping[str, Tensor], derived: bool = True) -> None:
        self.trained, self._derived = dict(trained), derived
        self._names = {id(parameter): name for name, parameter in trained.items()}
        self._known: dict[int, Derived | LookedUp] = {}
        self.derived: set[int] = set()  # addresses of the storages of derived tensors

    def leaves(self) -> dict[str, Tensor]:
        """All tensors that are shared by the examples and at which a backward pass ends."""
        found = dict(self.trained)
        for known in self._known.values():
            if isinstance(known, LookedUp):
                found[f"rows {len(found)} of a table"] = known.tensor
        return found

    def of(self, value: Tensor) -> ParameterView:
        """The place of a tensor that needs gradients and is shared by all examples.

        Raises:
            Refused: the tensor is computed from parameters, and ``derived`` is False.
        """
        found: ParameterView | None = self._known.get(id(value)) or slot(value, self._names)
        if found is None and not self._derived:
            raise boundary.Refused(
                "weights computed from sharded parameters must be whole: train without fully_shard"
            )
        if found is None:
            found = self._known[id(value)] = Derived(value)  # kept alive, so that its id is unique
            self.derived.add(value.untyped_storage().data_ptr())
        return found

    def look_up(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The rows that a shared index picks from a large table; None for any other call.

        As a derived tensor, its gradients would be as large as the batch times the table.
        """
        padding = None
        if func is F.embedding:
            given = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | dict(kwargs)
            index, table, padding = given["input"], given["weight"], given.get("padding_idx")
        elif func is torch.Tensor.__getitem__ and len(args) == 2:
            table, index = args
        else:
            return None
        whole = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
        if not whole or table.dim() != 2 or table.is_complex():
            return None
        if self._derived and index.numel() >= table.shape[0]:
            return None
        if bool((index < 0).any()):
            return None
        with outside():
            picked = table.detach()[index].requires_grad_()
        self._known[id(picked)] = LookedUp(picked, table, index.long(), padding)
        return picked

    def resolve(self, uses: list[tuple[ParameterView, Term]], size: int) -> dict[str, Term]:
        """The term of every used parameter, from the terms of all places; empties ``uses``."""
        placed: dict[str, list[tuple[Slot, Term]]] = defaultdict(list)
        while uses:
            derived: dict[int, list[tuple[Derived, Term]]] = defaultdict(list)
            ahead: list[tuple[ParameterView, Term]] = []
            for place, term in uses:
                if isinstance(place, Slot):
                    placed[place.name].append((place, term))
                elif isinstance(place, LookedUp):
                    ahead.append((self.of(place.table), _table_term(place, term)))
                else:
                    derived[id(place)].append((place, term))
            uses.clear()
            uses = [*ahead, *self._pulled_back(derived, size)]
        return {name: combine(of_name) for name, of_name in placed.items()}

    def _pulled_back(
        self, derived: Mapping[int, list[tuple[Derived, Term]]], size: int
    ) -> Iterator[tuple[ParameterView, Term]]:
        leaves = [*self.leaves().values()]
        for same in derived.values():
            tensor, total = same[0][0].tensor, same[0][1].rows()
            for _, term in same[1:]:
                total = total + term.rows()
            same.clear()  # frees the terms, so that little is held twice
            rows = total.reshape(size, *tensor.shape).to(tensor.dtype)
            found = vjp_rows(tensor, leaves, rows)
            for leaf, gradient in zip(leaves, found, strict=True):
                if gradient is not None:
                    yield self.of(leaf), Dense(wide(gradient))


# Numbers of a batched derivative at a time, such that they stay in the cache.
AT_ONCE = 1 << 19


def vjp_rows(output: Tensor, leaves: Sequence[Tensor], rows: Tensor) -> list[Tensor | None]:
    """Jᵀ·row for every row: one tensor (rows, *leaf shape) for each leaf, None if it is unused.

    A few rows are taken at once; if a derivative has no batching rule, one after another.
    """
    whole: list[Tensor | None] = [None] * len(leaves)
    size = len(rows)
    step = max(1, min(size, AT_ONCE // max(1, output.numel())))
    at, batched = 0, True
    while at < size:
        few = rows[at : at + step] if batched else rows[at]
        try:
            found = torch.autograd.grad(
                output, leaves, few, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        except RuntimeError:
            if not batched:
                raise
            step, batched = 1, False
            continue
        for place, part in enumerate(found):
            if part is not None:
                into = whole[place]
                if into is None:
                    into = whole[place] = leaves[place].new_empty(size, *leaves[place].shape)
                into[at : at + step] = part.to_dense()
        at += step
    return whole


def looked_up(index: Tensor, size: int, padding: int | None, gradient: Tensor) -> Outer:
    """The term of a table, from the gradients (B, T, n) of its rows at ``index`` (B, T)."""
    if padding is not None:
        gradient = gradient.masked_fill((index == padding % size).unsqueeze(2), 0)
    return Outer([(OneHot(index.long(), size), gradient)])


def _table_term(place: LookedUp, term: Term) -> Term:
    rows, (size, width) = term.rows(), place.table.shape
    index = place.index.flatten().expand(rows.shape[0], -1)
    return looked_up(index, size, place.padding, rows.reshape(rows.shape[0], -1, width))


# Reports of the backward pass: the output gradients of calls with a rule, one row for each example.
#
# These Functions are the only code besides torch's own derivatives that runs in the backward pass.
# They see physical tensors, and do not mix their rows.


class OutputHook(torch.autograd.Function):
    """The identity; its backward pass calls ``report(gradient of the output, saved)``."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, report: Callable[..., None], *saved: Tensor
    ) -> Tensor:
        # Saving through autograd keeps its check for in-place changes. The result shares memory
        # with the output but is no view of it, so that in-place activations may follow.
        ctx.save_for_backward(*saved)
        ctx.report = report
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.report(gradient.detach(), ctx.saved_tensors)
        return gradient, *(None,) * (2 + len(ctx.saved_tensors))


def in_front(whole: Tensor, dim: int) -> Tensor:
    """A tensor with the examples moved from ``dim`` to dimension 0."""
    return whole.movedim(dim, 0) if dim else whole


# The mode that intercepts torch functions in lanes.
#
# Model and loss run on lane tensors (:mod:`.boundary`): to Python they look like one example (a
# batch of one), and vmap isolates the examples in any model. The mode intercepts every torch
# function. If a call combines a trained parameter with examples, the parameter is detached, and a
# hook is put on the call's output (or on the parameter, repeated for each example). So a gradient
# reaches a parameter only through a report with one row for each example.


Handler = Callable[["VmapMode", Any, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}
"""Handlers of functions that are not plain arithmetic; they may return ``NotImplemented``."""
ALWAYS: dict[Any, Handler] = {}
"""Handlers that are also called if no argument is a lane tensor."""


def handles(*functions: Any, always: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for calls of ``functions``; ``always``: also without lane tensors."""

    def register(handler: Handler) -> Handler:
        (ALWAYS if always else HANDLERS).update(dict.fromkeys(functions, handler))
        return handler

    return register


# Functions that torch hands to a mode as a whole, although what is inside must be intercepted.
_OPENED = frozenset({F.multi_head_attention_forward, F.gaussian_nll_loss})
# Functions of several steps, each of which may have a rule; a rule of the whole goes first.
PARTS: dict[Any, Callable[..., Any]] = {}


def register_parts(parts: Callable[..., Any], *functions: Any) -> None:
    """Run calls of ``functions`` in the lanes as ``parts(mode, *args, **kwargs)``.

    ``parts`` must compute the same value for one example; the functions that it calls are
    intercepted too.
    """
    PARTS.update(dict.fromkeys(functions, parts))


@dataclass(frozen=True)
class PassSettings:
    """The settings of a pass; a pass that stops may run again with other settings.

    Attributes:
        unshared: True to make the model's new tensors for each lane and to copy inputs, because
            the model writes to them.
        grouped: True if a lane is a group, whose examples may see each other.
        without: names of rules that must not be used.
    """

    unshared: bool = False
    grouped: bool = False
    without: frozenset[str] = frozenset()


class VmapMode(TorchFunctionMode):
    """The mode of one pass of ``size`` lanes at vmap's ``level``.

    Args:
        places: the relation of tensors to trained parameters.
        draws: random numbers for a batch whose lanes may diverge; None: torch's own.
        observe: called with every use (parameter's name, rule's name, term), before it is kept;
            the name is empty for a tensor that is computed from parameters.
        before_answer: called with the values of all lanes before one of them reaches Python.

    Attributes:
        anchor: the leaf on which all reports depend; differentiate with respect to it.
        uses: the reported (place, term) pairs.
        failed: the error of the first rule that failed in the backward pass.
        stopped: the reason for which the pass stopped; None: it did not.
    """

    def __init__(
        self,
        size: int,
        level: int,
        places: ParameterViews,
        settings: PassSettings,
        draws: Draws | None = None,
        observe: Callable[[str, str, Term], None] | None = None,
        before_answer: Callable[[Sequence[Hashable]], None] = lambda keys: None,
    ) -> None:
        super().__init__()
        self._before_answer = before_answer
        self.size, self.level, self.settings = size, level, settings
        self.anchor = torch.zeros(0, requires_grad=True)
        self.places = places
        self.draws = draws
        self.uses: list[tuple[ParameterView, Term]] = []
        self.failed: boundary.RuleFailed | None = None
        self.stopped: boundary.PassAborted | None = None
        self._observe = observe
        self._watch = FINGERPRINT.get()
        self._times: Counter[ParameterView] = Counter()
        self._kept: list[weakref.ref[Tensor]] = []
        self.inputs: set[int] = set()  # addresses of the storages of the caller's tensors
        self.parameters: set[int] = set()  # and of the model's parameters

    def __exit__(self, kind: Any, reason: BaseException | None, frames: Any) -> None:
        super().__exit__(kind, reason, frames)  # type: ignore[no-untyped-call]
        if reason is not None:
            # Kept, its traceback would keep the whole pass: graph and mode hold each other.
            self.stopped = None

    # Interception of calls

    def __torch_function__(  # noqa: C901
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if "memory_format" in kwargs:  # a layout of the whole batch, which vmap does not know
            kwargs = kwargs | {"memory_format": torch.contiguous_format}
        if boundary.dispatched():
            raise NotVectorisable("a TorchDispatchMode of the model sees all examples at once")
        mixed = trained = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                if is_lane(value):
                    mixed = True
                elif value.requires_grad:
                    trained = True
            elif isinstance(value, list | tuple):
                for leaf in value:
                    if isinstance(leaf, Tensor):
                        if is_lane(leaf):
                            mixed = True
                        elif leaf.requires_grad:
                            trained = True
        handler = (HANDLERS.get(func) if mixed else None) or ALWAYS.get(func)
        run = self._with_examples if mixed else self._without
        try:
            result = NotImplemented if handler is None else handler(self, func, args, kwargs)
            if result is NotImplemented:
                result = run(func, args, kwargs, trained)
        except boundary.PassAborted as reason:
            self.stopped = reason
            raise
        if isinstance(result, Tensor):
            if is_lane(result):
                self.took(result, func not in UNSET)
        elif isinstance(result, list | tuple):
            for leaf in result:
                if isinstance(leaf, Tensor) and is_lane(leaf):
                    self.took(leaf)
        return result

    def took(self, value: Tensor, written: bool = True) -> Tensor:
        """Note a result of a call in the lanes, as :meth:`followed` does, and its bits."""
        self._kept.append(weakref.ref(value))
        if self._watch is not None and written and boundary.current_level() == self.level:
            whole, dim = physical(value)
            with outside():
                self._watch.see(whole, dim)
        return value

    def followed(self, value: Tensor) -> Tensor:
        """Note a lane tensor, which nothing may keep after the pass; returns it."""
        self._kept.append(weakref.ref(value))
        return value

    def _with_examples(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
    ) -> Any:
        space = operator_name(func).split("::")[0] if type(func) in boundary.OPERATORS else "aten"
        if space not in ("aten", "prims", "prim"):  # the user's may have its own batching rule
            raise NotVectorisable(f"{func} is an operator of the model's own")
        if trained and torch.is_grad_enabled():
            self.here()
            rule = RULES.get(func)
            if rule is not None and rule.name not in self.settings.without:
                result = self._ruled(rule, func, args, kwargs)
                if result is not NotImplemented:
                    return result
            if func not in PARTS and not self._opens(func):
                args, kwargs = self.written_out(func, args, kwargs)
        parts = PARTS.get(func)
        if parts is not None:
            with self:
                return parts(self, *args, **kwargs)
        if func in _OPENED or (trained and self._opens(func)):
            with self:
                return opened(func)(*args, **kwargs)
        return self.call(func, args, kwargs)

    def _opens(self, func: Any) -> bool:
        return func not in PHYSICAL and getattr(func, "__globals__", None) is vars(F)

    def _without(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
    ) -> Any:
        if trained and torch.is_grad_enabled():
            if func in DROPOUTS:  # every lane needs its own draw
                args, kwargs = self.written_out(func, args, kwargs)
                return self.call(func, args, kwargs)
            looked_up = self.places.look_up(func, args, kwargs)
            if looked_up is not None:
                return looked_up
        result = self.call(func, args, kwargs)
        fresh = self.settings.unshared and func in FRESH and not trained
        if fresh and isinstance(result, Tensor) and not is_lane(result):
            with outside():
                result = result.expand(self.size, *result.shape).clone()
            return lane(result, 0, self.level)
        return result

    def call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function itself under vmap.

        Raises:
            SharedBufferWrite: examples are written into a tensor that all lanes share.
            Refused: they are written into a parameter, a buffer or another tensor from outside.
        """
        if changes(func, args, kwargs) and not _importing("torch._dynamo"):
            self._check_target(kwargs.get("out", args[0] if args else None))
        run = PHYSICAL.get(func)
        if run is not None and any(isinstance(v, Tensor) and is_lane(v) for v in args):
            self.here()
            result = run(self, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        try:
            if self.draws is not None:
                return self.draws.call(func, args, kwargs)
            return func(*args, **kwargs)
        except RuntimeError as error:
            target = kwargs.get("out", args[0] if args else None)
            if not writes(func, kwargs) or not isinstance(target, Tensor) or is_lane(target):
                raise
            if not self.settings.unshared:
                raise boundary.SharedBufferWrite from error
            raise boundary.Refused(
                "values of the examples are written into a tensor that is not theirs: compute anew"
            ) from error

    def _check_target(self, value: Any) -> None:
        for target in batches.tensors(value):  # several of a foreach function
            whole = physical(target)[0] if is_lane(target) else target
            place = whole.untyped_storage().data_ptr()
            if place in self.inputs:
                raise boundary.SharedBufferWrite
            if place in self.parameters:
                raise boundary.Refused("a parameter is written to in forward: compute a new tensor")
            if place in self.places.derived:  # its uses before and after would be taken for one
                raise NotVectorisable("a value of parameters is written to after it was used")

    def here(self) -> None:
        """Raise :class:`.NotVectorisable` inside a torch.func transform of the model."""
        if boundary.current_level() != self.level:
            raise NotVectorisable("the model uses torch.func inside")

    # Calls that combine parameters and examples

    def _ruled(self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = rule.bind(args, kwargs)
        if arguments is None:
            return NotImplemented
        trained: dict[str, Tensor] = {}
        parameters: dict[str, Tensor] = {}
        for role in rule.parameters:
            value = arguments.get(role)
            if not isinstance(value, Tensor):
                continue
            if is_lane(value):
                if role not in rule.saved:
                    return NotImplemented
                continue
            parameters[role] = value.detach()
            if value.requires_grad:
                trained[role] = value
        # Rules are of real numbers; a complex weight is one that is computed from its real parts.
        known = not any(map(torch.is_complex, trained.values()))
        if not trained or not known or not rule.accepts(arguments, trained):
            return NotImplemented
        swapped = {id(value): parameters[role] for role, value in trained.items()}
        for name, value in arguments.items():
            shared = isinstance(value, Tensor) and value.requires_grad and not is_lane(value)
            if shared and name not in parameters:
                swapped[id(value)] = arguments[name] = self.rows_of(value)
        output = self.call(
            func,
            tuple([swapped.get(id(value), value) for value in args]),
            {name: swapped.get(id(value), value) for name, value in kwargs.items()},
        )
        return self.tap(output, rule, trained, parameters, arguments)

    def tap(
        self,
        output: Tensor,
        rule: Rule,
        trained: dict[str, Tensor],
        parameters: dict[str, Tensor],
        arguments: Mapping[str, Any],
    ) -> Tensor:
        """The output with a hook; the backward pass reports its gradient to the rule."""
        whole, dim = physical(output)
        saved: dict[str, Tensor] = {}
        with outside():
            for name in rule.saved:
                value = arguments.get(name)
                if name not in trained and isinstance(value, Tensor):
                    saved[name] = boundary.every(value, self.size).detach()
        names, known = tuple(saved), {*parameters, *rule.saved}
        rest = {
            name: value
            for name, value in arguments.items()
            if not isinstance(value, Tensor) or not (name in known or is_lane(value))
        }

        def report(gradient: Tensor, values: tuple[Tensor, ...]) -> None:
            kept = dict(zip(names, values, strict=True))
            slope = in_front(gradient, dim)
            self.report(rule, trained, Use(rest, parameters, kept, slope, frozenset(trained)))

        self.count(trained)
        with outside():
            tapped = OutputHook.apply(whole, self.anchor, report, *saved.values())  # type: ignore[no-untyped-call]
        return lane(tapped, dim, self.level)

    def written_out(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments, with lane tensors in place of the shared ones that are trained."""
        # The target of a write stays as it is: vmap refuses to write examples into a shared tensor.
        kept = args[0] if args and writes(func, kwargs) else None

        def change(value: Any) -> Any:
            if isinstance(value, Tensor):
                if value.requires_grad and value is not kept and not is_lane(value):
                    return self.rows_of(value)
            elif type(value) in (list, tuple):
                return type(value)(change(leaf) for leaf in value)
            return value

        return tuple(map(change, args)), {name: change(v) for name, v in kwargs.items()}

    def rows_of(self, value: Tensor) -> Tensor:
        """A lane tensor of a shared value; the value's gradient is written out for each lane."""
        place = self.places.of(value)

        def repeated() -> list[Tensor]:
            return [value.detach().expand(self.size, *value.shape)]

        def report(gradient: Tensor | None) -> list[None]:
            if gradient is None:  # nothing came back: zero for every example
                gradient = value.new_zeros(self.size, *value.shape)
            self._add(place, "any function", Dense(gradient.detach()))
            return [None]

        with outside():
            (whole,) = boundary.OwnNode.apply(repeated, report, self.anchor)  # type: ignore[no-untyped-call]
        return lane(whole, 0, self.level)

    def count(self, trained: Mapping[str, Tensor]) -> None:
        """Count a use of the trained tensors, whose report will follow in the backward pass."""
        for value in trained.values():
            self._times[self.places.of(value)] += 1

    def report(self, rule: Rule, trained: Mapping[str, Tensor], use: Use) -> None:
        """Keep the terms that the rule makes of a use, now that its output gradient is known.

        Args:
            trained: role → the tensor whose gradient is wanted, a parameter or computed from
                parameters.
        """
        try:
            terms = dict(_terms_of(rule, trained, use))
        except Exception as error:  # a registered rule may raise any error
            self.failed = self.failed or boundary.RuleFailed(rule.name, error)
            return
        for role, term in terms.items():
            self._add(self.places.of(trained[role]), rule.name, term)

    def _add(self, place: ParameterView, rule: str, term: Term) -> None:
        if self._observe is not None:
            self._observe(getattr(place, "name", ""), rule, term)
        # Several linear uses of one weight are joined first, and settled afterwards.
        joined = isinstance(term, Outer) and self._times[place] > 1
        self.uses.append((place, term if joined else term.settled()))

    # Values of the examples that reach Python

    def decide(self, keys: Sequence[Hashable]) -> None:
        """Go on if every lane has the same key, with random numbers that follow from the key.

        Raises:
            DivergentControlFlow: the keys differ, so that the lanes must run in separate passes.
        """
        first = keys[0]
        self._before_answer(keys)
        if any(key != first for key in keys):
            raise boundary.DivergentControlFlow(keys)
        fork(first)

    def remaining(self) -> list[Tensor]:
        """Lane tensors of this pass that are still alive."""
        return [value for value in (kept() for kept in self._kept) if value is not None]


def _terms_of(rule: Rule, trained: Mapping[str, Tensor], use: Use) -> list[tuple[str, Term]]:
    given = [(role, term) for role, term in rule.gradients(use) if role in trained]
    if len(given) != len(trained) or {role for role, _ in given} != trained.keys():
        raise ValueError(
            f"it must yield each of {sorted(trained)} once, not {[role for role, _ in given]}"
        )
    for role, term in given:
        shape, size = tuple(trained[role].shape), len(use.gradient)
        if isinstance(term, Dense) and tuple(term.values.shape) != (size, *shape):
            raise ValueError(
                f"the gradients of {role!r} must have the shape {(size, *shape)}, not "
                f"{tuple(term.values.shape)}"
            )
        if isinstance(term, Outer) and term.shape != shape:
            raise ValueError(
                f"the gradients of {role!r} must have the shape {shape}, not {term.shape}"
            )
    return given


# Functions through which values of the examples reach Python, or decide on a shape.
#
# Every lane gets its own answer. Lanes with the same answer go on together; if the answers differ,
# the lanes run in separate passes (:class:`.DivergentControlFlow`). So each lane computes exactly
# what it would compute alone.


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        if plain.dtype == torch.bool:
            plain = plain.to(torch.uint8)
        return (tuple(value.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return repr(value)


def _one(value: Any, at: int) -> Any:
    # One lane's own value of an argument, outside vmap.
    if isinstance(value, Tensor):
        if not is_lane(value):
            return value
        whole, dim = physical(value)
        return whole.select(dim, at)
    if isinstance(value, tuple | list):
        return type(value)(_one(leaf, at) for leaf in value)
    return value


def each(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The results of the function for each lane, one after another, outside vmap."""
    mode.here()
    with outside():
        return [
            func(*(_one(v, at) for v in args), **{k: _one(v, at) for k, v in kwargs.items()})
            for at in range(mode.size)
        ]


@handles(Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero)
def _truth(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.here()
    if args[0].numel() != 1:
        return NotImplemented
    with outside():
        keys = (boundary.rows(args[0]).detach().reshape(mode.size) != 0).tolist()
    mode.decide(keys)
    return keys[0]


_CONVERSIONS = "item tolist __int__ __float__ __complex__ __index__ numpy __array__"


@handles(*named(f"{_CONVERSIONS} __format__ __repr__ __contains__", Tensor))
@handles(*named("equal allclose", Tensor, torch))
def _value(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        answers = each(mode, func, args, kwargs)
    array = func in (Tensor.numpy, Tensor.__array__)
    mode.decide([(a.shape, a.tobytes()) if array else _key(a) for a in answers])
    return answers[0].copy() if array else answers[0]


_BY_VALUES = "nonzero argwhere masked_select unique unique_consecutive bincount"


@handles(*named(_BY_VALUES, Tensor, torch))
def _shaped(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions whose result has a shape that the values decide on."""
    return _stacked(mode, each(mode, func, args, kwargs))


def _stacked(mode: VmapMode, answers: list[Any]) -> Any:
    if isinstance(answers[0], Tensor):
        mode.decide([tuple(answer.shape) for answer in answers])
        with outside():
            whole = torch.stack(answers)
        return lane(whole, 0, mode.level)
    if isinstance(answers[0], tuple):
        mode.decide([len(answer) for answer in answers])
        return tuple(_stacked(mode, list(column)) for column in zip(*answers, strict=True))
    mode.decide([_key(answer) for answer in answers])
    return answers[0]


@handles(torch.where)
def _where(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return _shaped(mode, func, args, kwargs)
    return NotImplemented


@handles(torch.repeat_interleave, Tensor.repeat_interleave)
def _repeated(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
    if isinstance(repeats, Tensor) and is_lane(repeats):
        return _shaped(mode, func, args, kwargs)
    return NotImplemented


def _index(mode: VmapMode, index: Any) -> Any:
    """The index with masks of the examples turned into positions; None if there are none."""
    parts = index if isinstance(index, tuple) else (index,)
    mine = (p for p in parts if isinstance(p, Tensor) and is_lane(p))
    if not any(p.dtype in (torch.bool, torch.uint8) or not p.dim() for p in mine):
        return None
    found: list[Any] = []
    for part in parts:
        if not isinstance(part, Tensor) or not is_lane(part):
            found.append(part)
        elif part.dtype in (torch.bool, torch.uint8):
            if not part.dim():
                raise NotVectorisable("an example's truth value is used as an index")
            places = _shaped(mode, Tensor.nonzero, (part,), {})
            found += places.unbind(1)
        elif part.dim() == 0:
            found.append(_value(mode, Tensor.item, (part,), {}))
        else:
            found.append(part)
    return tuple(found)


@handles(Tensor.__getitem__, Tensor.__setitem__)
def _at(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = _index(mode, args[1])
    if index is None:
        return NotImplemented
    with mode:
        return func(args[0], index, *args[2:])


@handles(boundary.PACK)
def _packed(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, lengths, batch_first = args
    if is_lane(lengths):
        lengths = torch.tensor(_value(mode, Tensor.tolist, (lengths,), {}))
    if not is_lane(values):
        return NotImplemented
    return _padded(mode, func, (values, lengths, batch_first), {})


@handles(boundary.PAD)
def _padded(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    answers = each(mode, func, args, kwargs)
    with outside():
        whole = torch.stack([data for data, _ in answers])
    return lane(whole, 0, mode.level), answers[0][1]


# User code that runs in the backward pass, in lanes: the model's Functions and checkpoints.
#
# vmap does not isolate the lanes in the backward pass. So the forward and the backward method of a
# ``torch.autograd.Function`` run on lane tensors, each inside its own vmap (a rule that the user
# wrote for vmap is never used). A checkpointed part runs again in its own lanes: torch's
# non-reentrant checkpointing is used unchanged, outside vmap, where it saves physical tensors.
# Random numbers are drawn again from the same state.


def answered(mode: VmapMode) -> AbstractContextManager[None]:
    """A context in which Functions and checkpoints of user code work inside the lanes."""
    return boundary.answering(
        boundary.UserCodeAnswers(partial(call, mode), partial(_checkpointed, mode))
    )


@contextmanager
def _inside(mode: VmapMode) -> Iterator[int]:
    """A context that enters the lanes again, for the physical tensors of a pass."""
    with boundary.entered(mode.size) as level:
        if level != mode.level:
            raise NotVectorisable("the model uses torch.func inside")
        with answered(mode), mode:
            yield level


class _Notes:
    """The ``ctx`` object of a user's Function, with the values for its backward pass."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.saved_tensors: tuple[Any, ...] = ()
        self.fixed: tuple[Tensor, ...] = ()  # outputs through which no gradient flows
        self.materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *_: Any) -> None:
        pass

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        self.fixed = outputs

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise NotVectorisable("a torch.autograd.Function of the model changes its inputs in place")


def call(mode: VmapMode, kind: Any, args: tuple[Any, ...], own: Callable[..., Any]) -> Any:
    """``kind.apply(*args)`` for every lane.

    Args:
        kind: the Function. own: torch's ``apply``.
    """
    grown = torch.is_grad_enabled()
    if not any(isinstance(value, Tensor) and is_lane(value) for value in args):
        if grown and any(isinstance(value, Tensor) and value.requires_grad for value in args):
            raise NotVectorisable(f"{kind.__name__} is a torch.autograd.Function on parameters")
        with outside():
            return own(kind, *args)
    mode.here()
    if mode.draws is not None and mode.draws.apart:
        raise NotVectorisable(f"{kind.__name__} in lanes that run apart")
    args = tuple(
        mode.rows_of(value)
        if isinstance(value, Tensor) and not is_lane(value) and value.requires_grad and grown
        else value
        for value in args
    )
    return _OwnCall(mode, kind, args).result()


class _OwnCall:
    """One call of a user's Function for every lane; each half runs in a vmap of its own."""

    def __init__(self, mode: VmapMode, kind: Any, args: tuple[Any, ...]) -> None:
        self.mode, self.kind, self.args = mode, kind, args
        known = [physical(v) if isinstance(v, Tensor) and is_lane(v) else None for v in args]
        self.lanes = {at: pair for at, pair in enumerate(known) if pair is not None}
        grown = torch.is_grad_enabled()
        wholes = [
            value if pair is None else pair[0] for value, pair in zip(args, known, strict=True)
        ]
        self.notes = _Notes(
            tuple(isinstance(v, Tensor) and grown and v.requires_grad for v in wholes)
        )
        self.several = False
        # Zeros of each output's shape, and True if no gradient flows through it.
        self.outputs: list[tuple[Tensor, bool]] = []

    def result(self) -> Any:
        """The outputs as lane tensors."""
        with outside():
            wholes = [whole for whole, _ in self.lanes.values()]
            found = boundary.OwnNode.apply(self._run, self._back, *wholes)  # type: ignore[no-untyped-call]
            kept = zip(found, self.outputs, strict=True)
            found = [value.detach() if fixed else value for value, (_, fixed) in kept]
        result = tuple(lane(value, 0, self.mode.level) for value in found)
        return result if self.several else result[0]

    def _run(self) -> list[Tensor]:
        mode, kind, notes = self.mode, self.kind, self.notes
        with _inside(mode) as level:
            given, self.args = list(self.args), ()  # not kept until the backward pass
            for at, (whole, dim) in self.lanes.items():
                with outside():
                    known = whole.detach().requires_grad_(notes.needs_input_grad[at])
                given[at] = mode.followed(lane(known, dim, level))
            if boundary.sets_up_context(kind):
                result = kind.forward(*given)
                kind.setup_context(notes, tuple(given), result)
            else:
                result = kind.forward(notes, *given)
            self.several = isinstance(result, tuple)
            found = []
            for value in result if self.several else (result,):
                if not isinstance(value, Tensor):
                    raise NotVectorisable(f"{kind.__name__} returns something else than tensors")
                with outside():
                    whole = boundary.every(value, mode.size).detach().clone()
                    fixed = any(value is one for one in notes.fixed)
                    self.outputs.append((whole.new_zeros(()).expand_as(whole), fixed))
                found.append(whole)
            notes.fixed = ()  # they would be kept until the backward pass
            return found

    def _back(self, *gradients: Tensor | None) -> list[Tensor | None]:
        mode, notes = self.mode, self.notes
        with _inside(mode) as level, torch.no_grad():
            given: list[Tensor | None] = []
            for gradient, (zeros, _) in zip(gradients, self.outputs, strict=True):
                if gradient is None and notes.materialize and zeros.is_floating_point():
                    with outside():
                        gradient = zeros.clone(memory_format=torch.contiguous_format)
                given.append(None if gradient is None else mode.followed(lane(gradient, 0, level)))
            answer = self.kind.backward(notes, *given)
            answers = answer if isinstance(answer, tuple) else (answer,)
            found: list[Tensor | None] = []
            for at, (whole, dim) in self.lanes.items():
                value = answers[at] if at < len(answers) else None
                if value is not None and notes.needs_input_grad[at]:
                    with outside():
                        rows = boundary.every(value, mode.size).reshape(whole.movedim(dim, 0).shape)
                        value = rows.movedim(0, dim)
                    found.append(value)
                else:
                    found.append(None)
            return found


def _checkpointed(
    mode: VmapMode,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    own: Callable[[Callable[[], None]], Iterator[None]],
) -> Iterator[None]:
    """The handler of checkpoints in lanes (see :class:`.boundary.UserCodeAnswers`)."""
    mode.here()
    taken = 0 if mode.draws is None else mode.draws.number

    def again() -> None:
        if mode.draws is not None:
            mode.draws.number = taken
        with _inside(mode):
            function(*args, **kwargs)

    parts = own(again)
    with outside(), boundary.saving_hooks(None):  # torch's own hooks, which move no values
        next(parts)
    try:
        yield
    finally:
        with outside():
            for _ in parts:
                pass


# Functions that cannot be trained privately, or not in lanes, or only in another form.


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str) -> Any:
    return kwargs.get(name, args[at] if len(args) > at else None)


BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum")
_PLAIN_BATCH_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training")


@handles(F.batch_norm, torch.batch_norm)
def _batch_norm(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = (*BATCH_NORM, "eps") if func is F.batch_norm else _PLAIN_BATCH_NORM
    given = dict(zip(names, args, strict=False)) | kwargs
    if not given.get("training"):
        return NotImplemented
    if not mode.settings.grouped:
        raise boundary.Refused(
            "batch normalisation in training mode mixes the examples of a batch: use GroupNorm "
            "(forethought.gradients.replace_mixing_layers), or eval mode with fixed statistics"
        )
    if given.get("running_mean") is None:
        return NotImplemented
    if func is torch.batch_norm:
        raise NotVectorisable("torch.batch_norm with running statistics in a group")
    # A group's examples may be normalised together; the running statistics must not change.
    with mode:
        return F.batch_norm(**{**given, "running_mean": None, "running_var": None})


@handles(F.instance_norm)
def _instance_norm(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = _argument(args, kwargs, 5, "use_input_stats")
    if own is not False and _argument(args, kwargs, 1, "running_mean") is not None:
        raise boundary.Refused(
            "instance normalisation that tracks running statistics mixes the examples: use "
            "track_running_stats=False (forethought.gradients.replace_mixing_layers)"
        )
    return NotImplemented


@handles(F.embedding, F.embedding_bag, always=True)
def _table(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _argument(args, kwargs, 3, "max_norm") is not None:
        raise boundary.Refused(
            "an embedding's max_norm rewrites rows that the examples use: use None"
        )
    if _argument(args, kwargs, 5, "scale_grad_by_freq"):
        raise boundary.Refused(
            "an embedding's scale_grad_by_freq counts over all examples: use False"
        )
    return NotImplemented


@handles(boundary.FUNCTION_CALL, always=True)
def _function(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind = args[0]  # user code kept a reference to ``apply`` from before the pass
    return call(mode, kind, args[1:], lambda kind, *rest: kind.apply(*rest))


@handles(boundary.GETTERS["data"].__get__, always=True)
def _data(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].detach()  # the same memory; unlike .data, its changes are counted


@handles(boundary.GETTERS["requires_grad"].__get__, boundary.GETTERS["is_leaf"].__get__)
def _of_all(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(physical(args[0])[0])


@handles(boundary.GETTERS["grad_fn"].__get__)
def _grad_fn(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if physical(args[0])[0].grad_fn is None:
        return None
    raise boundary.Refused(
        "the graph of an example's value (grad_fn) is shared by all: leave it alone"
    )


@handles(torch.Tensor.numpy, torch.Tensor.__array__, always=True)
def _array(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A copy: writes to the array would change the tensor without changing its version.
    return func(*args, **kwargs).copy()


@handles(torch.Tensor.requires_grad_)
def _wanted(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]  # the gradient would not be used: models that differentiate do not run in lanes


@handles(boundary.GETTERS["requires_grad"].__set__)
def _sets_gradient(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None


@handles(torch._weight_norm, always=True)
def _weight_norm(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # torch's function has no batched derivative; its parts do.
    if kwargs:
        return NotImplemented
    direction, magnitude, dim = (*args, 0)[:3]
    with mode:
        return direction * (magnitude / torch.norm_except_dim(direction, 2, dim))


@handles(torch.roll, torch.Tensor.roll)
def _roll(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # For a tensor of one number, vmap would roll the lanes.
    return args[0].clone() if args and not args[0].dim() else NotImplemented


@handles(torch.index_fill, Tensor.index_fill, Tensor.index_fill_)
def _fill(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = _argument(args, kwargs, 3, "value")
    if isinstance(value, Tensor) and is_lane(value):
        raise NotVectorisable("torch's batching rule for index_fill mixes the examples' values")
    return NotImplemented


def _refuse(
    kind: type[boundary.PassAborted], why: str, *functions: Any, always: bool = False
) -> None:  # ``{}`` in ``why`` stands for the function's name
    def handler(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise kind(why.format(getattr(func, "__name__", func)))

    handles(*functions, always=always)(handler)


_refuse(
    boundary.Refused,
    "a hook on a tensor would see all examples on the way back: write it into the forward pass",
    *named("register_hook register_post_accumulate_grad_hook retain_grad", Tensor),
    always=True,
)
_refuse(
    NotVectorisable,
    "the model or loss differentiates inside itself",
    *(torch.autograd.grad, torch.autograd.backward, Tensor.backward),
    always=True,
)
# Found by comparing every batching rule of torch 2.13 with a loop, for operands of unequal ranks.
_refuse(
    NotVectorisable,
    "torch's batching rule for {} may mix the examples",
    *named("solve solve_ex lstsq lu_solve", torch.linalg),
    *(torch.lu_solve, Tensor.lu_solve),
)
_refuse(
    NotVectorisable,
    "as_strided, which sees the memory of an example's tensor",
    *(torch.as_strided, Tensor.as_strided),
)
_refuse(
    boundary.Refused,
    "{} reaches the memory of all examples: make a new tensor instead",
    *named("resize_ resize_as_ set_ as_strided_ __dlpack__", Tensor),
    *named("data_ptr untyped_storage storage", Tensor),
)


def hooked(modules: Iterable[tuple[str, nn.Module]], sharded: bool = False) -> None:
    """Refuse hooks that would run in the backward pass, and unsupported kinds of parameters.

    Args:
        modules: (name, module) pairs.
        sharded: True if the pass itself gathers the parameters.

    Raises:
        Refused: naming the module or parameter.
    """
    if boundary.global_hooks(forwards=False):
        raise boundary.Refused(
            "global backward hooks of modules see all examples at once: remove them"
        )
    for name, module in modules:
        boundary.require_seen(name, module)
        if module._backward_hooks or module._backward_pre_hooks:
            raise boundary.Refused(
                f"module {name or type(module).__name__!r} has backward hooks, which would see "
                "all examples at once: remove them"
            )
        for key, parameter in module._parameters.items():
            if parameter is not None:
                _check_parameter(f"{name}.{key}" if name else key, parameter, sharded)


def _check_parameter(name: str, parameter: Tensor, sharded: bool) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise boundary.Refused(f"parameter {name!r} has a hook on its gradient: remove it")
    kind = type(parameter.data)
    if not sharded and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise boundary.Refused(
            f"parameter {name!r} is a {kind.__name__}: shards are taken from fully_shard, by "
            "forethought.train; other wrapped tensors are not supported, use the plain module"
        )
    if parameter.is_complex() and parameter.requires_grad:
        raise boundary.Refused(
            f"parameter {name!r} is complex: keep its parts as real ones (torch.view_as_real)"
        )


def module_at_fault(model: nn.Module, error: BaseException) -> str:
    """The name of the innermost module in the error's traceback; else the model's type."""
    names = {id(module): name for name, module in model.named_modules()}
    found = ""
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            name, kind = names[id(owner)], type(owner).__name__
            found = f"{name} ({kind})" if name else kind
        trace = trace.tb_next
    return found or type(model).__name__


# torch raises others for a model's errors
_WRONG = (AttributeError, NameError, AssertionError, ZeroDivisionError)


def own_fault(error: BaseException) -> None:
    """Report an error of this package itself, which a pass of single examples would hide.

    Raises:
        RuntimeError: a line of this package raised the error, not torch or the model.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, _WRONG):
        return
    place = Path(trace.tb_frame.f_code.co_filename)
    if place.is_relative_to(_OURS):
        raise RuntimeError(
            f"a fault of forethought's own, not of the model ({place.name} line {trace.tb_lineno}, "
            f"torch {torch.__version__}): {type(error).__name__}: {error}; please report it"
        ) from error


_OURS = Path(__file__).parent


# A loss that runs in lanes, behind a model whose outputs are known to be one row for each example.


def _leave(keys: Sequence[Hashable]) -> None:
    raise NotVectorisable("values of the examples reach Python")


@boundary.turns
def loss_in_lanes(
    loss: Loss,
    outputs: Tensor,
    targets: Any,
    points: list[Tensor],
    trained: Mapping[str, nn.Parameter],
) -> tuple[Tensor | None, ...] | None:
    """Gradients at ``points`` of a loss in lanes, for outputs whose rows depend on one example.

    Args:
        outputs: shape (B, …), row i from example i.
        points: the tensors from which the outputs were computed.

    Returns:
        One gradient for each point, None where the loss does not depend on it. None instead of all
        if the loss needs a pass through the whole model (it uses parameters, or lanes diverge).
    """
    boundary.check()
    size = len(outputs)
    written = [(parameter, parameter._version) for parameter in trained.values()]
    mode: VmapMode | None = None
    try:
        with boundary.entered(size) as level:
            mode = VmapMode(
                size, level, ParameterViews(trained), PassSettings(), before_answer=_leave
            )

            def wrap(leaf: Tensor) -> Tensor:
                return mode.followed(boundary.lane(leaf.unsqueeze(1), 0, level))

            with answered(mode), mode:
                found = loss(wrap(outputs), batches.mapped(targets, wrap))
            if mode.stopped is not None or not boundary.is_lane(batches.own_losses(found, 1)):
                return None
            with boundary.outside():
                total = boundary.rows(found).sum()
        del found
        if not total.requires_grad:
            return (None,) * len(points)
        shared = mode.places.leaves().values()
        leaves = (mode.anchor, *shared, *points)
        _, *gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    except (Exception, boundary.PassAborted) as error:  # the general way will report the error
        own_fault(error)
        return None
    direct, at_points = gradients[: len(shared)], gradients[len(shared) :]
    used = mode.uses or mode.failed is not None or any(g is not None for g in direct)
    changed = any(parameter._version != version for parameter, version in written)
    if used or changed or mode.remaining():
        return None
    return tuple(at_points)
