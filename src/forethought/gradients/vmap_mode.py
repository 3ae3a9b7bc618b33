"""Lanes: every example's forward pass in a place of its own, at the speed of one batch."""

from __future__ import annotations

import hashlib
import inspect
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
from forethought.gradients.boundary import (
    GETTERS,
    NotVectorisable,
    Refused,
    is_lane,
    lane,
    outside,
    physical,
    rows,
    turns,
)
from forethought.gradients.sums import Dense, OneHot, Outer, Slot, Term, combine, slot, wide

# What a call of a torch function does: writes to its argument, draws numbers, makes a tensor.


def named(words: str, *owners: Any) -> tuple[Any, ...]:
    """The functions of these names that every owner has."""
    return tuple([getattr(owner, word) for owner in owners for word in words.split()])


_LIKE = "zeros ones empty full zeros_like ones_like empty_like full_like"
_NEW = "clone new_zeros new_ones new_empty new_full new_tensor"
FRESH = frozenset(named(f"{_LIKE} arange eye tensor clone", torch) + named(_NEW, Tensor))
# What they return is whatever was in memory, until something is written there.
UNSET = frozenset({torch.empty, torch.empty_like, Tensor.new_empty})
DROPOUTS = frozenset({F.dropout, torch.dropout, F.alpha_dropout, F.feature_alpha_dropout})


def own_operator(func: Any) -> bool:
    """True if an operator is none of torch's, and may have a batching rule of its own."""
    return operator_name(func).partition("::")[0] not in ("aten", "prims", "prim")


def operator_name(func: Any) -> str:
    """The name by which an operator is registered."""
    return str(func._qualified_op_name if hasattr(func, "_qualified_op_name") else func.name())


@cache
def opened(function: FunctionType) -> FunctionType:
    """A copy of a Python function that does not hand itself over to the mode as a whole.

    The functions inside it are then caught one by one.
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
    """True if a function changes its first argument."""
    name: str = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return name != "requires_grad_"
    return name == "__setitem__" or name in _INPLACE or kwargs.get("out") is not None


@cache
def _place_of_inplace(function: FunctionType) -> int:
    names = [*inspect.signature(function).parameters]
    return names.index("inplace") if "inplace" in names else -1


def changes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if a call changes its first argument, ``inplace=True`` included."""
    known = _WRITES.get(func)
    if known is None:
        known = _WRITES[func] = writes(func, {})
    if known or kwargs.get("out") is not None or kwargs.get("inplace"):
        return True
    if isinstance(func, FunctionType) and func.__globals__ is vars(F):
        place = _place_of_inplace(func)
        return 0 < place < len(args) and bool(args[place])
    return False


_WRITES: dict[Any, bool] = {}
_OPERATIONS = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
_INPLACE = frozenset(f"__i{name}__" for name in _OPERATIONS.split())


# Random numbers of lanes that run apart: each lane keeps the ones it drew together.
#
# When lanes part (:class:`.DivergentControlFlow`), they run again from the start, each with its
# own kind.
# A model that lets values of the examples reach Python therefore draws in a way that does not
# depend on who is there. A mask of dropout belongs to its number in the pass and its shape; it is
# drawn once for all lanes of the batch, and each lane takes its own row. Every other random
# function runs for all lanes of the batch, from the same state of the generator, seeded afresh for
# every answer that Python gets. So a lane's numbers follow from its place in the batch and from its
# own answers, never from those of other lanes.


def fork(answer: Hashable) -> None:
    """A question has this answer: the generator goes on with a stream for it."""
    with outside():
        base = int(torch.randint(2**62, ()))
        digest = hashlib.blake2b(f"{base} {answer!r}".encode(), digest_size=8).digest()
        seeded(int.from_bytes(digest, "big") >> 1)


def seeded(seed: int) -> None:
    """Start the generators of all devices, without the milliseconds of ``torch.manual_seed``."""
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
    """Masks of dropout for all lanes of a batch.

    Args:
        width: how many lanes the batch has.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._base = int(torch.randint(2**62, ()))
        self._drawn: dict[Any, Tensor] = {}

    def mask(self, number: int, shape: tuple[int, ...], chance: float, like: Tensor) -> Tensor:
        """0 with the given chance, else 1/(1 − chance): shape (width, *shape)."""
        key = (number, shape, chance, like.dtype, like.device)
        if key not in self._drawn:
            digest = hashlib.blake2b(f"{self._base} {key}".encode(), digest_size=8).digest()
            generator = torch.Generator(like.device)
            generator.manual_seed(int.from_bytes(digest, "big") >> 1)
            mask = torch.empty(self.width, *shape, dtype=like.dtype, device=like.device)
            mask.bernoulli_(1 - chance, generator=generator)
            self._drawn[key] = mask.div_(1 - chance) if chance < 1 else mask
        return self._drawn[key]


class Draws:
    """The random numbers that lanes which are elsewhere leave to those that are here.

    Args:
        masks: of the whole batch. mine: which of its lanes are here, in their order, and then some
            of them again, which fill up a block; None: all.
        apart: whether others of its lanes run elsewhere.

    Attributes:
        number: masks that the pass has taken so far.
    """

    def __init__(self, masks: Masks, mine: Tensor | None, apart: bool) -> None:
        self._masks, self._width = masks, masks.width
        self._mine = mine
        self.number = 0
        self.apart = apart
        if mine is not None:
            self._real = len(set(mine.tolist()))
            # Lanes that are elsewhere take part with anybody's values.
            self._fill = torch.zeros(self._width, dtype=torch.long)
            self._fill[mine[: self._real]] = torch.arange(self._real)

    def mask(self, shape: tuple[int, ...], chance: float, like: Tensor) -> Tensor:
        """The next mask of dropout, one row a lane that is here: shape (lanes, *shape)."""
        self.number += 1
        mask = self._masks.mask(self.number, shape, chance, like)
        return self.narrowed(mask, 0)

    def widened(self, whole: Tensor, dim: int) -> Tensor:
        """A physical tensor for all lanes of the batch."""
        return whole.index_select(dim, self._fill.to(whole.device))

    def narrowed(self, whole: Tensor, dim: int) -> Tensor:
        """The lanes that are here, of a physical tensor for all."""
        return whole if self._mine is None else whole.index_select(dim, self._mine.to(whole.device))

    def call(self, level: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function; if it draws random numbers, for all lanes of the batch."""
        if kwargs.get("generator") is not None:
            raise NotVectorisable("a generator of the model's own, in lanes that may run apart")
        if self._mine is None:
            return func(*args, **kwargs)
        if func is F.dropout and (kwargs.get("inplace") or (len(args) > 3 and args[3])):
            args[0].copy_(self._wide(level, func, args[:3], {**kwargs, "inplace": False}))
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
                args[0].copy_(self._wide(level, func, args, kwargs, copy=True))
            return args[0]
        return self._wide(level, func, args, kwargs)

    def _wide(
        self,
        level: int,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        copy: bool = False,
    ) -> Any:
        with outside(), boundary.entered(self._width) as inner:

            def widen(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return value
                if not is_lane(value):
                    return value.clone() if copy else value
                with outside():
                    whole, dim = physical(value)
                    whole = self.widened(whole, dim)
                return lane(whole, dim, inner)

            drawn = func(*tree_map(widen, args), **tree_map(widen, dict(kwargs)))
            if not isinstance(drawn, Tensor):
                raise NotVectorisable(
                    "a random function with several results, in lanes that run apart"
                )
            if not is_lane(drawn):
                return drawn
            with outside():
                whole, dim = physical(drawn)
                whole = self.narrowed(whole, dim)
                if self._mine is not None and self._real < len(self._mine):
                    # A row that fills up has its original's value, and must not share its way back.
                    here = whole.narrow(dim, 0, self._real)
                    again = whole.narrow(dim, self._real, len(self._mine) - self._real)
                    whole = torch.cat([here, again.detach()], dim)
        return lane(whole, dim, level)


# Rules: how a torch function's parameters get per-example gradients from its input and output.
#
# One rule covers one function (or several that take the same arguments). In the lanes it runs on
# the whole batch with its parameters detached, and the gradient of its output is caught on the way
# back. A function without a rule needs none: its parameters are then written out for every example.


def sums_to(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Reduce (B, …) per example to (B, *shape): the reverse of broadcasting ``shape``."""
    extra = values.dim() - 1 - len(shape)
    dims, given = [*range(1, 1 + extra)], values.shape[1 + extra :]
    dims += [1 + extra + i for i, size in enumerate(shape) if size == 1 and given[i] != 1]
    total = wide(values)
    total = total.sum(dims) if dims else total
    return total.reshape(values.shape[0], *shape)


@dataclass(frozen=True)
class Use:
    """One use of parameters in one pass, seen on the way back.

    Attributes:
        arguments: the call's arguments by name, without the saved tensors and the parameters.
        parameters: role → the parameter (detached), trained or frozen.
        saved: name → the saved argument, one row an example: shape (B, *shape in a lane). A lane
            is a batch of one, so an input of a layer usually has the shape (B, 1, …).
        gradient: of the output, likewise.
        trained: the roles whose gradients are wanted.
    """

    arguments: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    saved: Mapping[str, Tensor]
    gradient: Tensor
    trained: frozenset[str]

    def reduced(self, values: Tensor, role: str) -> Tensor:
        """``values`` (B, *output shape) summed over everything that ``role`` was broadcast to."""
        return sums_to(values, tuple(self.parameters[role].shape))


Gradients = Callable[[Use], Iterator[tuple[str, Term]]]
Accepts = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


def always(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """The way in which one function's parameters get their gradients.

    Attributes:
        name: what ``explain`` prints.
        signature: the function's argument names, in order.
        parameters: the arguments that may be parameters.
        saved: the arguments whose values the gradients need.
        gradients: yields (role, :class:`Term`) for every role in ``use.trained``; what it yields
            for other roles is dropped.
        accepts: whether the rule covers these arguments, given the trained parameters by role;
            otherwise they are written out for every example.
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


PARTS: dict[Any, Callable[..., Any]] = {}


def register_parts(parts: Callable[..., Any], *functions: Any) -> None:
    """Run calls of ``functions`` in the lanes as ``parts(mode, *args, **kwargs)``.

    ``parts`` must compute the same value for one example; what it calls is intercepted in turn.
    """
    PARTS.update(dict.fromkeys(functions, parts))


PHYSICAL: dict[Any, Callable[..., Any]] = {}


def register_physical(run: Callable[..., Any], *functions: Any) -> None:
    """Run calls of ``functions`` that see examples as ``run(mode, function, *args, **kwargs)``.

    For functions that vmap cannot run, or only slowly. ``run`` works on the whole batch and must
    treat every row alike and alone; it may answer ``NotImplemented`` to leave the call to vmap.
    """
    PHYSICAL.update(dict.fromkeys(functions, run))


# What is computed from parameters alone: weight normalisation, ``1 + w``, positions, LoRA merges.
#
# In the lanes such a tensor is shared by all examples. It is treated as a parameter of its own, and
# every example's gradient of it is pulled back through its derivation by one vectorised product
# (vector-Jacobian, all examples at once), before any norm is taken.


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor computed from parameters."""

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
    """The parameter, or the part of the parameters, that a tensor is.

    Args:
        trained: the trained parameters by name.
        derived: whether tensors that are computed from parameters are taken, too.
    """

    def __init__(self, trained: Mapping[str, Tensor], derived: bool = True) -> None:
        self.trained, self._derived = dict(trained), derived
        self._names = {id(parameter): name for name, parameter in trained.items()}
        self._known: dict[int, Derived | LookedUp] = {}

    def of(self, value: Tensor) -> ParameterView:
        """The place of a tensor that needs gradients and belongs to no example."""
        found: ParameterView | None = self._known.get(id(value)) or slot(value, self._names)
        if found is None and not self._derived:
            raise Refused(
                "weights that are computed from sharded parameters (weight normalisation, merged "
                "adapters) would have to be whole: train the model without fully_shard"
            )
        if found is None:
            found = self._known[id(value)] = Derived(value)  # kept: an id is no name otherwise
        return found

    def look_up(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The rows that a shared index picks from a large table; None for any other call.

        Pulled back like everything else, the gradients of a table would be as large as the batch
        times the table.
        """
        padding = None
        if func is F.embedding:
            given = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | dict(kwargs)
            index, table, padding = given["input"], given["weight"], given.get("padding_idx")
            if given.get("max_norm") is not None or len(args) > 3:
                return None
        elif func is torch.Tensor.__getitem__ and len(args) == 2:
            table, index = args
        else:
            return None
        whole = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
        if not whole or table.dim() != 2 or index.requires_grad:
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
        """Every used parameter's term, from the terms of all places."""
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
        leaves = [*self.trained.values()]
        leaves += [known.tensor for known in self._known.values() if isinstance(known, LookedUp)]
        for same in derived.values():
            tensor, total = same[0][0].tensor, same[0][1].rows()
            for _, term in same[1:]:
                total = total + term.rows()
            same.clear()  # one after the other, so that little is held twice
            rows = total.reshape(size, *tensor.shape).to(tensor.dtype)
            found = vjp_rows([tensor], leaves, [rows], size)
            for leaf, gradient in zip(leaves, found, strict=True):
                if gradient is not None:
                    yield self.of(leaf), Dense(wide(gradient))


# So many numbers of a batched derivative at a time stay in the cache.
AT_ONCE = 1 << 19


def vjp_rows(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], rows: Sequence[Tensor], size: int
) -> list[Tensor | None]:
    """Σ over outputs of J^T·row, for every row: shapes (size, *leaf shape), None if unused.

    A few rows at once; where a derivative has no batching rule, one after another.
    """
    whole: list[Tensor | None] = [None] * len(leaves)
    step = max(1, min(size, AT_ONCE // max(1, sum(row[0].numel() for row in rows))))
    at, batched = 0, True
    while at < size:
        few = [row[at : at + step] if batched else row[at] for row in rows]
        try:
            found = torch.autograd.grad(
                outputs, leaves, few, retain_graph=True, allow_unused=True, is_grads_batched=batched
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
                    into = whole[place] = part.new_empty(size, *leaves[place].shape)
                into[at : at + step] = part
        at += step
    return whole


def _table_term(place: LookedUp, term: Term) -> Term:
    rows = term.rows()
    gradient = rows.reshape(rows.shape[0], -1, place.table.shape[1])
    index = place.index.flatten()
    if place.padding is not None:
        blank = index == place.padding % place.table.shape[0]
        gradient = gradient.masked_fill(blank.view(1, -1, 1), 0)
    index = index.unsqueeze(0).expand(rows.shape[0], -1)
    return Outer([(OneHot(index, place.table.shape[0]), gradient)])


# What the backward pass reports: the gradient of a ruled call's output, one row an example.
#
# These Functions are the only code besides torch's own derivatives that runs in the backward pass.
# They see physical tensors, and leave every row alone.


@dataclass(frozen=True)
class Site:
    """One call that a rule covers.

    Attributes:
        rule: the rule. trained: role → the tensor whose gradient is wanted, a parameter or
            computed from parameters. arguments: the rest of the call, by name.
        parameters: role → detached value. saved: names of the saved arguments, in order.
        dims: where the examples are in the output and in every saved argument; None for one that
            all examples share. size: how many examples.
    """

    rule: Rule
    trained: Mapping[str, Tensor]
    arguments: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    saved: tuple[str, ...]
    dims: tuple[int | None, ...]
    size: int

    def use(self, gradient: Tensor, saved: tuple[Tensor, ...]) -> Use:
        """The use that the rule sees: the examples in front everywhere."""
        out, *dims = self.dims
        assert out is not None  # an output without examples is never tapped
        every = zip(self.saved, saved, dims, strict=True)
        values = {name: self._front(value, dim) for name, value, dim in every}
        gradient = gradient.movedim(out, 0) if out else gradient
        return Use(self.arguments, self.parameters, values, gradient, frozenset(self.trained))

    def _front(self, value: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            return value.expand(self.size, *value.shape)
        return value.movedim(dim, 0) if dim else value


Report = Callable[[Site, Use], None]


class OutputHook(torch.autograd.Function):
    """The same output, whose gradient is reported on the way back."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, report: Report, site: Site, *saved: Tensor
    ) -> Tensor:
        # Saving through autograd keeps the check for in-place changes working. The result shares
        # memory with the output but is no view of it, so that in-place activations may follow.
        ctx.save_for_backward(*saved)
        ctx.report, ctx.site = report, site
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.report(ctx.site, ctx.site.use(gradient.detach(), ctx.saved_tensors))
        return gradient, *(None,) * (3 + len(ctx.site.saved))


class SharedRows(torch.autograd.Function):
    """A value that all examples share, once for each: its gradient is written out."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, anchor: Tensor, size: int, report: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.report = report
        return value.detach().expand(size, *value.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.report(gradient.detach())
        return None, None, None, None


# Lanes: every example's forward pass in a place of its own, all of them at the speed of one batch.
#
# Model and loss run on lane tensors (:mod:`.boundary`): to Python they are one example (a batch of
# one), and vmap keeps the examples apart whatever the model does. This mode sees every torch
# function on the way in. Where a trained parameter meets examples, the parameter is detached and
# the call's output (or the parameter, written out for each example) is tapped, so that no gradient
# reaches a parameter but through a report that has one row an example.


Handler = Callable[["VmapMode", Any, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}
"""Functions that are more than arithmetic on examples; may answer ``NotImplemented``."""
ALWAYS: dict[Any, Handler] = {}
"""The same, also where no argument belongs to a lane."""

Observer = Callable[[ParameterView, str, Term], None]


def handles(*functions: Any, always: bool = False) -> Callable[[Handler], Handler]:
    """Register a handler for calls of ``functions``; ``always``: whatever their arguments."""

    def register(handler: Handler) -> Handler:
        (ALWAYS if always else HANDLERS).update(dict.fromkeys(functions, handler))
        return handler

    return register


# These hand themselves over whole, with functions inside that must be caught one by one.
OPEN: set[Any] = {F.multi_head_attention_forward}


@dataclass(frozen=True)
class PassSettings:
    """The settings of a pass; a pass that stops may be run again with others.

    Attributes:
        unshared: tensors that the model makes are made for each lane, and inputs are copied,
            since it writes to them. without: names of rules
            that are not to be used. grouped: a lane is a group, whose examples may see each other.
    """

    unshared: bool = False
    grouped: bool = False
    without: frozenset[str] = frozenset()


class VmapMode(TorchFunctionMode):
    """The pass of ``size`` lanes at vmap's ``level``.

    Args:
        places: what the trained tensors are.
        draws: for lanes of a batch that runs apart; None where all are here.
        observe: is told of every use before it is decided how to keep it.
        before_answer: is given every lane's value of what reaches Python, before it does.

    Attributes:
        anchor: the leaf that every report hangs on; differentiate with respect to it.
        uses: what was reported. failed: the first rule that failed on the way back.
    """

    def __init__(
        self,
        size: int,
        level: int,
        places: ParameterViews,
        settings: PassSettings,
        draws: Draws | None = None,
        observe: Observer | None = None,
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
        self.inputs: set[int] = set()  # storages of the caller's tensors
        self.parameters: set[int] = set()  # and of the model's parameters

    # What is intercepted

    def __torch_function__(  # noqa: C901
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if boundary.dispatched():
            raise NotVectorisable(
                "a TorchDispatchMode of the model's, which sees all examples at once"
            )
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
        try:
            if mixed:
                result = self._with_examples(func, args, kwargs, trained)
            else:
                result = self._without(func, args, kwargs, trained)
        except boundary.PassAborted as reason:
            self.stopped = reason
            raise
        if isinstance(result, Tensor):
            if is_lane(result):
                self._took(result, func not in UNSET)
        elif isinstance(result, list | tuple):
            for leaf in result:
                if isinstance(leaf, Tensor) and is_lane(leaf):
                    self._took(leaf)
        return result

    def _took(self, value: Tensor, written: bool = True) -> None:
        self._kept.append(weakref.ref(value))
        if self._watch is not None and written and boundary.current_level() == self.level:
            whole, dim = physical(value)
            with outside():
                self._watch.see(whole, dim)

    def followed(self, value: Tensor) -> Tensor:
        """A lane tensor that nobody may keep when the pass is over."""
        self._kept.append(weakref.ref(value))
        return value

    def _with_examples(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
    ) -> Any:
        if type(func) in boundary.OPERATORS and own_operator(func):
            raise NotVectorisable(f"{func} is an operator of the model's own")
        handler = HANDLERS.get(func) or ALWAYS.get(func)
        if handler is not None:
            result = handler(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if trained and torch.is_grad_enabled():
            self.here()
            rule = RULES.get(func)
            if rule is not None and rule.name not in self.settings.without:
                result = self._ruled(rule, func, args, kwargs)
                if result is not NotImplemented:
                    return result
            if func not in PARTS and not self._opens(func):
                args, kwargs = self._written_out(func, args, kwargs)
        parts = PARTS.get(func)
        if parts is not None:
            with self:
                return parts(self, *args, **kwargs)
        if func in OPEN or (trained and func not in PHYSICAL and self._opens(func)):
            with self:
                return opened(func)(*args, **kwargs)
        return self.call(func, args, kwargs)

    def _opens(self, func: Any) -> bool:
        return isinstance(func, FunctionType) and func.__globals__ is vars(F)

    def _without(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: bool
    ) -> Any:
        handler = ALWAYS.get(func)
        if handler is not None:
            result = handler(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if trained and torch.is_grad_enabled():
            if func in DROPOUTS:  # another draw for every lane
                args, kwargs = self._written_out(func, args, kwargs)
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
        """The function itself, under vmap."""
        if changes(func, args, kwargs):
            self._check_target(kwargs.get("out", args[0] if args else None))
        run = PHYSICAL.get(func)
        if run is not None and self._any_lane(args):
            self.here()
            result = run(self, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        try:
            if self.draws is not None:
                return self.draws.call(self.level, func, args, kwargs)
            return func(*args, **kwargs)
        except RuntimeError as error:
            target = kwargs.get("out", args[0] if args else None)
            if not writes(func, kwargs) or not isinstance(target, Tensor) or is_lane(target):
                raise
            if not self.settings.unshared:
                raise boundary.SharedBufferWrite from error
            raise Refused(
                "values of the examples are written into a tensor that is not theirs (a buffer, a "
                "parameter, or one kept from elsewhere): compute a new tensor instead"
            ) from error

    def _any_lane(self, values: tuple[Any, ...]) -> bool:
        return any(isinstance(value, Tensor) and is_lane(value) for value in values)

    def _check_target(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            return
        whole = physical(value)[0] if is_lane(value) else value
        place = whole.untyped_storage().data_ptr()
        if place in self.inputs:
            raise boundary.SharedBufferWrite
        if place in self.parameters:
            raise Refused("a parameter is written to in the forward pass: compute a new tensor")

    def here(self) -> None:
        """Stop inside a transform of the model's own, where the examples are at another level."""
        if boundary.current_level() != self.level:
            raise NotVectorisable("the model uses torch.func inside")

    # Where parameters meet examples

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
        if not trained or not rule.accepts(arguments, trained):
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
        """The same output; on the way back its gradient is reported to the rule."""
        whole, dim = physical(output)
        names, values = [], []
        dims: list[int | None] = [dim]
        for name in rule.saved:
            value = arguments.get(name)
            if name not in trained and isinstance(value, Tensor):
                at: int | None = None
                if is_lane(value):
                    value, at = physical(value)
                names.append(name)
                values.append(value.detach())
                dims.append(at)
        known = {*parameters, *rule.saved}
        rest = {
            name: value
            for name, value in arguments.items()
            if not isinstance(value, Tensor) or not (name in known or is_lane(value))
        }
        site = Site(rule, trained, rest, parameters, tuple(names), tuple(dims), self.size)
        self.count(trained)
        with outside():
            tapped = OutputHook.apply(whole, self.anchor, self.report, site, *values)  # type: ignore[no-untyped-call]
        return lane(tapped, dim, self.level)

    def _written_out(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # What is written to stays: vmap refuses to write examples into a shared tensor.
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

        def report(gradient: Tensor) -> None:
            self._add(place, "any function", Dense(gradient))

        with outside():
            whole = SharedRows.apply(value.detach(), self.anchor, self.size, report)  # type: ignore[no-untyped-call]
        return lane(whole, 0, self.level)

    def count(self, trained: Mapping[str, Tensor]) -> None:
        """A use of these was seen; its report will follow."""
        for value in trained.values():
            self._times[self.places.of(value)] += 1

    def report(self, site: Site, use: Use) -> None:
        """A use's output gradient is known: keep the terms that the rule makes of it."""
        try:
            terms = dict(_terms_of(site, use))
        except Exception as error:  # whatever an outsider's rule raises
            self.failed = self.failed or boundary.RuleFailed(site.rule.name, error)
            return
        for role, term in terms.items():
            self._add(self.places.of(site.trained[role]), site.rule.name, term)

    def _add(self, place: ParameterView, rule: str, term: Term) -> None:
        if self._observe is not None:
            self._observe(place, rule, term)
        # Linear uses of one weight are joined before it is decided how to keep them.
        joined = isinstance(term, Outer) and self._times[place] > 1
        self.uses.append((place, term if joined else term.settled()))

    # What Python sees of the examples

    def decide(self, keys: Sequence[Hashable]) -> None:
        """Go on if every lane has the same key; otherwise the lanes part.

        Raises:
            DivergentControlFlow: they disagree.
        """
        first = keys[0]
        self._before_answer(keys)
        if any(key != first for key in keys):
            raise boundary.DivergentControlFlow(keys)
        fork(first)

    def remaining(self) -> list[Tensor]:
        """Lane tensors that somebody still holds."""
        return [value for value in (kept() for kept in self._kept) if value is not None]


def _terms_of(site: Site, use: Use) -> list[tuple[str, Term]]:
    given = [(role, term) for role, term in site.rule.gradients(use) if role in site.trained]
    if len(given) != len(site.trained) or {role for role, _ in given} != site.trained.keys():
        raise ValueError(
            f"it must yield each of {sorted(site.trained)} once, not {[role for role, _ in given]}"
        )
    for role, term in given:
        shape = tuple(site.trained[role].shape)
        if isinstance(term, Dense) and tuple(term.values.shape) != (site.size, *shape):
            raise ValueError(
                f"the gradients of {role!r} must have the shape {(site.size, *shape)}, not "
                f"{tuple(term.values.shape)}"
            )
        if isinstance(term, Outer) and term.shape != shape:
            raise ValueError(
                f"the gradients of {role!r} must have the shape {shape}, not {term.shape}"
            )
    return given


# Where values of the examples reach Python, or decide on a shape: every lane gets its own answer.
#
# Lanes with one answer go on together; where they disagree, they part
# (:class:`.DivergentControlFlow`), so that each computes exactly what it would alone.


T = torch.Tensor


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
    """The function, for one lane after another, outside vmap."""
    mode.here()
    with outside():
        return [
            func(*(_one(v, at) for v in args), **{k: _one(v, at) for k, v in kwargs.items()})
            for at in range(mode.size)
        ]


@handles(T.__bool__, T.is_nonzero, torch.is_nonzero)
def _truth(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode.here()
    if args[0].numel() != 1:
        return NotImplemented
    with outside():
        keys = (rows(args[0]).detach().reshape(mode.size) != 0).tolist()
    mode.decide(keys)
    return keys[0]


_CONVERSIONS = "item tolist __int__ __float__ __complex__ __index__ numpy __array__"


@handles(*named(f"{_CONVERSIONS} __format__ __repr__ __contains__", T))
@handles(*named("equal allclose", T, torch))
def _value(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        answers = each(mode, func, args, kwargs)
    array = func in (T.numpy, T.__array__)
    mode.decide([(a.shape, a.tobytes()) if array else _key(a) for a in answers])
    return answers[0].copy() if array else answers[0]


_BY_VALUES = "nonzero argwhere masked_select unique unique_consecutive bincount"


@handles(*named(_BY_VALUES, T, torch))
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


@handles(torch.repeat_interleave, T.repeat_interleave)
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
            places = _shaped(mode, T.nonzero, (part,), {})
            found += places.unbind(1)
        elif part.dim() == 0:
            found.append(_value(mode, T.item, (part,), {}))
        else:
            found.append(part)
    return tuple(found)


@handles(T.__getitem__)
def _get(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = _index(mode, args[1])
    if index is None:
        return NotImplemented
    with mode:
        return args[0][index]


@handles(T.__setitem__)
def _set(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = _index(mode, args[1])
    if index is None:
        return NotImplemented
    with mode:
        args[0][index] = args[2]
    return None


@handles(boundary.PACK)
def _packed(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, lengths, batch_first = args
    if is_lane(lengths):
        lengths = torch.tensor(_value(mode, T.tolist, (lengths,), {}))
    if not is_lane(values):
        return NotImplemented
    return _padded(mode, func, (values, lengths, batch_first), {})


@handles(boundary.PAD)
def _padded(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    answers = each(mode, func, args, kwargs)
    with outside():
        whole = torch.stack([data for data, _ in answers])
    return lane(whole, 0, mode.level), answers[0][1]


# User code that runs in the backward pass, in the lanes: Functions and checkpoints of the model's.
#
# vmap no longer keeps them apart once the graph is recorded. So both halves of a
# ``torch.autograd.Function`` run on lane tensors, each inside a vmap of its own (a rule that the
# user wrote for vmap is never used), and a checkpointed part runs again in lanes of its own:
# torch's non-reentrant checkpointing as it is, outside vmap, where it saves physical tensors.
# Random numbers are drawn again from the same state.


def answered(mode: VmapMode) -> AbstractContextManager[None]:
    """While active, Functions and checkpoints of user code work inside the lanes."""
    return boundary.answering(
        boundary.UserCodeAnswers(partial(call, mode), partial(_checkpointed, mode))
    )


@contextmanager
def _inside(mode: VmapMode) -> Iterator[int]:
    """The lanes once more, on physical tensors."""
    with boundary.entered(mode.size) as level:
        if level != mode.level:
            raise NotVectorisable("the model uses torch.func inside")
        with answered(mode), mode:
            yield level


class _Notes:
    """The notes that a Function keeps for its backward pass: the ``ctx`` that user code sees."""

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
        raise NotVectorisable(
            "a torch.autograd.Function of the model's own changes its inputs in place"
        )


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


def call(mode: VmapMode, kind: Any, args: tuple[Any, ...], own: Callable[..., Any]) -> Any:  # noqa: PLR0915
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
    places = [i for i, value in enumerate(args) if isinstance(value, Tensor) and is_lane(value)]
    wholes = [physical(args[i]) for i in places]
    plain = [physical(v)[0] if isinstance(v, Tensor) and is_lane(v) else v for v in args]
    needs = tuple(isinstance(v, Tensor) and grown and v.requires_grad for v in plain)
    notes = _Notes(needs)
    shape: list[Any] = []
    dims: list[int] = []

    def run() -> list[Tensor]:
        with _inside(mode) as level:
            given = list(args)
            for i, (whole, dim) in zip(places, wholes, strict=True):
                given[i] = mode.followed(lane(whole.detach(), dim, level))
            if boundary.sets_up_context(kind):
                result = kind.forward(*given)
                kind.setup_context(notes, tuple(given), result)
            else:
                result = kind.forward(notes, *given)
            results = result if isinstance(result, tuple) else (result,)
            shape.append(isinstance(result, tuple))
            found = []
            for value in results:
                if not isinstance(value, Tensor):
                    raise NotVectorisable(f"{kind.__name__} returns something else than tensors")
                mixed = rows(value) if is_lane(value) else None
                with outside():
                    if mixed is None:
                        mixed = value.expand(mode.size, *value.shape)
                    found.append(mixed.detach().clone())
                dims.append(0)
            return found

    def back(gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        with _inside(mode) as level, torch.no_grad():
            wrapped = [None if g is None else mode.followed(lane(g, 0, level)) for g in gradients]
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
                        gradient = value.expand(mode.size, *value.shape)
                    expected = whole.movedim(dim, 0).shape
                    found.append(gradient.reshape(expected).movedim(0, dim))
            return found

    with outside():
        outputs = _Both.apply(run, back, *(whole for whole, _ in wholes))  # type: ignore[no-untyped-call]
    result = tuple(lane(value, dim, mode.level) for value, dim in zip(outputs, dims, strict=True))
    return result if shape[0] else result[0]


def _checkpointed(
    mode: VmapMode,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    own: Callable[[Callable[[], None]], Iterator[None]],
) -> Iterator[None]:
    """Around a call of a checkpointed function (:class:`.boundary.Answers`)."""
    mode.here()
    taken = 0 if mode.draws is None else mode.draws.number

    def again() -> None:
        if mode.draws is not None:
            mode.draws.number = taken
        with _inside(mode):
            function(*args, **kwargs)

    parts = own(again)
    with outside(), boundary.saving_hooks(None):  # torch's own, which keep values where they are
        next(parts)
    try:
        yield
    finally:
        with outside():
            for _ in parts:
                pass


# What cannot be trained privately as it is, told in one line where it happens.


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str) -> Any:
    return kwargs.get(name, args[at] if len(args) > at else None)


_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum")
_PLAIN_BATCH_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training")


@handles(F.batch_norm, torch.batch_norm)
def _batch_norm(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = (*_BATCH_NORM, "eps") if func is F.batch_norm else _PLAIN_BATCH_NORM
    given = dict(zip(names, args, strict=False)) | kwargs
    if not given.get("training"):
        return NotImplemented
    if not mode.settings.grouped:
        raise Refused(
            "batch normalisation in training mode mixes the examples of a batch: use GroupNorm "
            "(forethought.gradients.replace_mixing_layers), or eval mode with fixed statistics"
        )
    if given.get("running_mean") is None:
        return NotImplemented
    if func is torch.batch_norm:
        raise NotVectorisable("torch.batch_norm with running statistics in a group")
    # Inside a group of examples it is theirs; the running statistics are left as they are.
    with mode:
        return F.batch_norm(**{**given, "running_mean": None, "running_var": None})


@handles(F.instance_norm)
def _instance_norm(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = _argument(args, kwargs, 5, "use_input_stats")
    if own is not False and _argument(args, kwargs, 1, "running_mean") is not None:
        raise Refused(
            "instance normalisation that tracks running statistics mixes the examples: use "
            "track_running_stats=False (forethought.gradients.replace_mixing_layers)"
        )
    return NotImplemented


@handles(F.embedding, F.embedding_bag)
def _table(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _argument(args, kwargs, 3, "max_norm") is not None:
        raise Refused("an embedding's max_norm rewrites rows that the examples use: use None")
    if _argument(args, kwargs, 5, "scale_grad_by_freq"):
        raise Refused(
            "scale_grad_by_freq counts tokens over the batch, which mixes the examples: use False"
        )
    return NotImplemented


@handles(boundary.FUNCTION_CALL, always=True)
def _function(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind = args[0]  # its ``apply`` was taken before the pass
    return call(mode, kind, args[1:], lambda kind, *rest: kind.apply(*rest))


@handles(GETTERS["data"].__get__, always=True)
def _data(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].detach()  # the same memory; unlike .data, its changes are counted


@handles(GETTERS["requires_grad"].__get__, GETTERS["is_leaf"].__get__)
def _of_all(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(physical(args[0])[0])


@handles(GETTERS["grad_fn"].__get__)
def _grad_fn(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if physical(args[0])[0].grad_fn is None:
        return None
    raise Refused("the graph of an example's value (grad_fn) is shared by all: leave it alone")


@handles(torch.Tensor.numpy, torch.Tensor.__array__, always=True)
def _array(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A copy: what is written there would stay in the tensor, and no version would tell.
    return func(*args, **kwargs).copy()


@handles(torch.Tensor.requires_grad_)
def _wanted(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]  # nobody could see that gradient: inner differentiation goes another way


@handles(GETTERS["requires_grad"].__set__)
def _sets_gradient(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None


@handles(torch._weight_norm, always=True)
def _weight_norm(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The whole has no batched derivative; its parts do.
    if kwargs:
        return NotImplemented
    direction, magnitude, dim = (*args, 0)[:3]
    with mode:
        return direction * (magnitude / torch.norm_except_dim(direction, 2, dim))


@handles(torch.roll, torch.Tensor.roll)
def _roll(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Of one number, vmap rolls the lanes.
    return args[0].clone() if args and not args[0].dim() else NotImplemented


@handles(torch.index_fill, T.index_fill, T.index_fill_)
def _fill(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = _argument(args, kwargs, 3, "value")
    if isinstance(value, Tensor) and is_lane(value):
        raise NotVectorisable("torch's batching rule for index_fill mixes the examples' values")
    return NotImplemented


def _refuse(
    kind: type[boundary.PassAborted], why: str, *functions: Any, always: bool = False
) -> None:  # ``why`` may say the function's name
    def handler(mode: VmapMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise kind(why.format(getattr(func, "__name__", func)))

    handles(*functions, always=always)(handler)


_refuse(
    Refused,
    "a hook on a tensor would run in the backward pass, where the examples are no longer apart: "
    "remove it, or write what it does into the forward pass",
    *named("register_hook register_post_accumulate_grad_hook retain_grad", T),
    always=True,
)
_refuse(
    NotVectorisable,
    "the model or loss differentiates inside itself",
    *(torch.autograd.grad, torch.autograd.backward, T.backward),
    always=True,
)
# Found by comparing every rule of torch 2.13 with a loop, where the ranks of the operands differ.
_refuse(
    NotVectorisable,
    "torch's batching rule for {} may mix the examples",
    *named("solve solve_ex lstsq lu_solve", torch.linalg),
    *(torch.lu_solve, T.lu_solve),
)
_refuse(
    NotVectorisable,
    "as_strided, which sees the memory of an example's tensor",
    *(torch.as_strided, T.as_strided),
)
_refuse(
    Refused,
    "{} reaches the memory of an example's tensor, which holds all of them: make a new tensor "
    "instead",
    *named("resize_ resize_as_ set_ as_strided_ __dlpack__", T),
    *named("data_ptr untyped_storage storage", T),
)


def hooked(modules: Iterable[tuple[str, nn.Module]], sharded: bool = False) -> None:
    """Refuse hooks that would run in the backward pass, and parameters that no rule is true of.

    Args:
        sharded: parameters are gathered by the pass itself.

    Raises:
        Refused: naming the module or parameter.
    """
    if boundary.global_hooks(forwards=False):
        raise Refused("global backward hooks of modules see all examples at once: remove them")
    for name, module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            raise Refused(
                f"module {name or type(module).__name__!r} is a torch.jit module, whose inside "
                "cannot be seen: use the Python module it was made from"
            )
        if module._backward_hooks or module._backward_pre_hooks:
            raise Refused(
                f"module {name or type(module).__name__!r} has backward hooks, which would see "
                "all examples at once: remove them"
            )
        for key, parameter in module._parameters.items():
            if parameter is not None:
                _check_parameter(f"{name}.{key}" if name else key, parameter, sharded)


def _check_parameter(name: str, parameter: Tensor, sharded: bool) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise Refused(
            f"parameter {name!r} has a hook on its gradient, which private training does not "
            "pass through it: remove it"
        )
    kind = type(parameter.data)
    if (
        not sharded
        and kind is not Tensor
        and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    ):
        raise Refused(
            f"parameter {name!r} is a {kind.__name__}: shards are taken from fully_shard, by "
            "forethought.train; other wrapped tensors are not supported, use the plain module"
        )
    if parameter.is_complex() and parameter.requires_grad:
        raise Refused(
            f"parameter {name!r} is complex: keep its real and imaginary part as two real "
            "parameters (torch.view_as_real)"
        )


def module_at_fault(model: nn.Module, error: BaseException) -> str:
    """The name of the innermost module that the error passed through; the model's type if none."""
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


_WRONG = (AttributeError, NameError, AssertionError)  # no answer of torch's to what a model does


def own_fault(error: BaseException) -> None:
    """Raise what this library did wrong itself: an example alone would hide it and blame the model.

    Raises:
        RuntimeError: the error was raised by a line of this package, and not by torch or a model.
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


# A loss in lanes of its own, behind outputs that are known to be apart.


def _leave(keys: Sequence[Hashable]) -> None:
    raise NotVectorisable("values of the examples reach Python")


@turns
def loss_in_lanes(
    loss: Loss,
    outputs: Tensor,
    targets: Any,
    points: list[Tensor],
    trained: Mapping[str, nn.Parameter],
) -> tuple[Tensor | None, ...] | None:
    """Gradients at ``points`` of a loss that runs in lanes behind outputs known to be apart.

    Args:
        outputs: shape (B, …), row i from example i. points: what the outputs were computed from.

    Returns:
        None where the loss needs what only a whole pass can do (parameters, lanes that part).
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
            if isinstance(found, Tensor) and found.dim() == 0:
                found = found.reshape(1)
            if mode.stopped is not None or not boundary.is_lane(batches.losses(found, 1)):
                return None
            with boundary.outside():
                total = boundary.rows(found).sum()
        del found
        if not total.requires_grad:
            return (None,) * len(points)
        leaves = (mode.anchor, *trained.values(), *points)
        _, *gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    except (Exception, boundary.PassAborted) as error:  # the general way says what is wrong
        own_fault(error)
        return None
    direct, at_points = gradients[: len(trained)], gradients[len(trained) :]
    used = mode.uses or mode.failed is not None or any(g is not None for g in direct)
    changed = any(parameter._version != version for parameter, version in written)
    if used or changed or mode.remaining():
        return None
    return tuple(at_points)
