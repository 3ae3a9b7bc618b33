"""The boundary of a pass: reasons to stop, torch's private functions, and state to restore.

The state to restore is that of the model, and everything that Python can remember outside it.
"""

from __future__ import annotations

import array
import contextvars
import datetime
import decimal
import dis
import functools
import hashlib
import inspect
import operator
import os
import random
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpointing

# Reasons for which a pass over the lanes stops. None of them is an error of the model itself.
#
# They derive from BaseException, so that ``except Exception`` in user code does not catch them.


class PassAborted(BaseException):
    """The pass cannot go on as it is."""


class DivergentControlFlow(PassAborted):
    """The lanes have different values for a question of Python; they run in separate passes.

    Attributes:
        keys: the value of each lane.
    """

    def __init__(self, keys: Sequence[Hashable]) -> None:
        super().__init__("the examples take different ways")
        self.keys = tuple(keys)


class NeedsStateSnapshot(PassAborted):
    """A value of the examples is about to reach Python for the first time; the pass starts again.

    The state that Python can remember is noted first, before any value reaches it.
    """


class SharedBufferWrite(PassAborted):
    """Each lane writes to a tensor that was made for all lanes at once: each needs its own."""


class NotVectorisable(PassAborted):
    """The operation cannot run in lanes, but can for one example alone."""


class RuleFailed(PassAborted):
    """A rule raised an error, or returned an invalid result."""

    def __init__(self, rule: str, error: BaseException) -> None:
        super().__init__(f"rule {rule!r} failed: {error}")
        self.rule = rule


class Refused(PassAborted):
    """The model or loss cannot be trained privately as it is; the message says what to do."""


class RefusedError(ValueError):
    """:class:`Refused` outside the pass, for its caller."""


def require_seen(name: str, module: nn.Module) -> None:
    """Refuse a torch.jit module.

    Raises:
        RefusedError: naming the module and what to use instead.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise RefusedError(
            f"module {name or type(module).__name__!r} is a torch.jit module, whose inside cannot "
            "be seen: use the Python module it was made from"
        )


# torch's private functions, in one place.
#
# A lane tensor is the kind of tensor that ``torch.func.vmap`` hands to the function it maps: it
# looks like one example's value and holds the values of all examples, the *physical* tensor, with
# the examples along one dimension. The behaviour that this module relies on is checked before the
# first pass (:func:`check`); a torch version that behaves in another way is refused by name.


TRIED = ("2.8", "2.15")  # the oldest and the newest torch; pyproject.toml allows no other


def untried(what: str) -> str:
    """The message for a torch that differs from the tested versions; ``what`` is the difference."""
    return f"not tried with torch {torch.__version__}, where {what}: install {' to '.join(TRIED)}"


try:
    from torch._C import _autograd, _functorch
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]

    autograd: Any = _autograd  # the stubs know the functions of one torch only
    functorch: Any = _functorch
    # The function that ``apply`` of a user-written autograd.Function calls inside a vmap.
    FUNCTION_CALL: Any = torch._functorch.autograd_function.custom_function_call
    is_lane: Callable[[Tensor], bool] = functorch.is_batchedtensor
    # True if the value belongs to any transform of torch.func.
    wrapped: Callable[[Tensor], bool] = functorch.is_functorch_wrapped_tensor
    # The lane tensor of (a physical tensor, the dimension of its examples, vmap's level).
    lane: Callable[[Tensor, int, int], Tensor] = functorch._add_batch_dim
    # Softmax along a dimension; zeros where all is masked, as in torch's attention.
    safe_softmax: Callable[[Tensor, int], Tensor] = torch._safe_softmax
    GETTERS = vars(torch._C.TensorBase)
    OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    PACK, PAD = torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence
except (ImportError, AttributeError, KeyError) as missing:
    raise ImportError(untried(f"a private part of it is missing ({missing})")) from missing

NO_HOOKS = "hooks on saved tensors (as save_on_cpu) see all examples at once: leave them out"


@contextmanager
def entered(size: int) -> Iterator[int]:
    """Enter one more level of vmap over ``size`` examples; yields the level's number."""
    lazy_load_decompositions()
    level = functorch._vmap_increment_nesting(size, "different")
    try:
        yield level
    finally:
        functorch._vmap_decrement_nesting()


class outside:  # noqa: N801 - used like a function
    """A context in which torch sees plain tensors again: the innermost level is set aside."""

    def __enter__(self) -> None:
        self._kept = functorch.pop_dynamic_layer_stack()

    def __exit__(self, *_: object) -> None:
        functorch.push_dynamic_layer_stack(self._kept)


def current_level() -> int:
    """The number of the innermost transform; -1 if there is none."""
    level: int | None = functorch.maybe_current_level()
    return -1 if level is None else level


def physical(value: Tensor) -> tuple[Tensor, int]:
    """The tensor of all examples of a lane tensor, and the dimension of the examples."""
    return functorch.get_unwrapped(value), functorch.maybe_get_bdim(value)


def rows(value: Tensor) -> Tensor:
    """The tensor of all examples of a lane tensor, with the examples in dimension 0."""
    whole, dim = physical(value)
    return whole.movedim(dim, 0) if dim else whole


def every(value: Tensor, size: int) -> Tensor:
    """The values of all lanes, in dimension 0; one that all share is repeated."""
    return rows(value) if is_lane(value) else value.expand(size, *value.shape)


def hooks_in_force() -> bool:
    """True if hooks on saved tensors, or on nodes of the graph, are in force now."""
    return autograd._top_saved_tensors_default_hooks(True) is not None or bool(_here.node_hooks)


def global_hooks(forwards: bool = True) -> bool:
    """True if there are global module hooks: backward ones, or forward ones if ``forwards``."""
    backward = modules._global_backward_hooks or modules._global_backward_pre_hooks
    forward = modules._global_forward_hooks or modules._global_forward_pre_hooks
    return bool(backward or (forwards and forward))


def dispatched() -> bool:
    """True if a dispatch mode is active, which sees physical tensors below every transform."""
    return bool(torch._C._len_torch_dispatch_stack())


def require_bare_torch() -> None:
    """Refuse user code around a pass that sees all examples at once.

    Raises:
        Refused: a mode, hooks on saved tensors, or a user kernel that replaces one of torch's.
    """
    if hooks_in_force():
        raise Refused(NO_HOOKS)
    stack: Any = torch.overrides._get_current_function_mode_stack  # untyped
    modes = [type(mode) for mode in stack()]
    modes = [kind for kind in modes if not kind.__module__.startswith(("torch.", "forethought."))]
    if dispatched() or modes:
        name = modes[0].__name__ if modes else "TorchDispatchMode"
        raise Refused(
            f"a mode around private training ({name}) sees all examples: enter it in forward"
        )
    if replaced := _replaced(len(torch.library._impls)):
        raise Refused(
            f"torch's own {replaced} has another kernel: give that to an operator of your own"
        )


@functools.lru_cache(maxsize=1)
def _replaced(_: int) -> str:
    """The name of a torch operator whose kernel was replaced in Python; empty if there is none.

    The argument, the number of kernels given so far, is only the key of the cache.
    """
    found = sorted(key for key in torch.library._impls if _KERNEL.fullmatch(key))
    return found[0].split("/")[1] if found else ""


_KERNEL = re.compile("aten/.*/(CPU|Autograd|AutogradC.*|Composite(Im|Ex)plicitAutograd)")


def unseen_kernel(name: str) -> bool:
    """True if an operator has a Python kernel whose state cannot be inspected.

    An operator made with ``torch.library.custom_op`` can be inspected.
    """
    if name in OPDEFS:
        return False
    space, _, own = name.partition("::")
    kernels = re.compile(f"{re.escape(space)}/{re.escape(own)}(\\..*)?/(?!Meta$).*")
    return any(kernels.fullmatch(key) for key in torch.library._impls)


def interrupted() -> bool:
    """True if modes, transforms, hooks or replaced kernels change what torch functions compute."""
    return bool(
        torch._C._len_torch_function_stack()
        or dispatched()
        or _replaced(len(torch.library._impls))
        or current_level() != -1
        or hooks_in_force()
    )


# Replacements of three torch functions, through which lanes handle user code.


@dataclass(frozen=True)
class UserCodeAnswers:
    """The handlers of user code in lanes, where torch would use physical tensors.

    Attributes:
        function: ``function(kind, args, own)`` is ``kind.apply(*args)`` of an autograd.Function;
            ``own(kind, *args)`` is torch's.
        checkpoint: ``checkpoint(function, args, kwargs, own)`` is a generator around a call of
            ``function``, as torch's generator for non-reentrant checkpoints. ``own(again)`` is
            torch's generator, which calls ``again()`` in the backward pass.
    """

    function: Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]
    checkpoint: Callable[..., Iterator[None]]


class _Here(threading.local):
    """The active handlers of this thread, innermost last, and the number of its node hooks."""

    def __init__(self) -> None:
        self.answers: list[UserCodeAnswers] = []
        self.node_hooks = 0


_here = _Here()


@contextmanager
def answering(answers: UserCodeAnswers) -> Iterator[None]:
    """A context in which these handlers run the lanes' user code in this thread.

    The user code cannot activate hooks: torch disables hooks on saved tensors for the thread, and
    raises an error that :func:`refused_hooks` recognises.
    """
    with saving_hooks(NO_HOOKS):
        _here.answers.append(answers)
        try:
            yield
        finally:
            _here.answers.pop()


@contextmanager
def saving_hooks(refusal: str | None) -> Iterator[None]:
    """A context that refuses hooks on saved tensors in this thread with a message; None: allows."""
    before = autograd._saved_tensors_hooks_get_disabled_error_message()
    _refuse_saving_hooks(refusal)
    try:
        yield
    finally:
        _refuse_saving_hooks(before)


def _refuse_saving_hooks(message: str | None) -> None:
    if message is None:
        autograd._saved_tensors_hooks_enable()
    else:
        autograd._saved_tensors_hooks_disable(message, False)


def refused_hooks(error: BaseException) -> bool:
    """True if an error says that user code tried to activate hooks in the lanes."""
    return str(error) == NO_HOOKS


# The inner function: torch's wrapper around it loads the compiler, which takes seconds.
_checkpoint: Callable[..., Any] = inspect.unwrap(checkpointing.checkpoint)


def _answers() -> UserCodeAnswers | None:
    if not _here.answers or not torch._C._are_functorch_transforms_active():
        return None
    return _here.answers[-1]


# Type → (kind, args, kwargs) → the record of a call of ``kind.apply`` with a value of this type.
RECORDERS: dict[type, Callable[[Any, Any, Any], Any]] = {}


def _replace_apply() -> None:
    own = torch.autograd.Function.__dict__["apply"]

    def plain(kind: Any, *args: Any, **kwargs: Any) -> Any:
        return own.__get__(None, kind)(*args, **kwargs)

    @functools.wraps(own.__get__(None, torch.autograd.Function))
    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()) if RECORDERS else ():
            if record := RECORDERS.get(type(value)):
                return record(kind, args, kwargs)
        # In every pass, so that an example's gradient is the same beside others and alone: torch's
        # reentrant checkpoint has none where no input requires one. The recomputation is the same.
        if kind is checkpointing.CheckpointFunction and turns.held.depth:
            function, preserve, *rest = args
            return _checkpoint(function, *rest, use_reentrant=False, preserve_rng_state=preserve)
        answers = _answers()
        if answers is None or kwargs:
            return plain(kind, *args, **kwargs)
        return answers.function(kind, args, plain)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]


def _replace_checkpoints() -> None:
    name = "_checkpoint_without_reentrant_generator"
    apart = hasattr(checkpointing, f"{name}_impl")  # torch 2.15: args and kwargs, two parameters
    own = getattr(checkpointing, f"{name}_impl" if apart else name)
    signature = inspect.signature(own)
    lacking = {"fn", "args", "kwargs", "context_fn", "debug"} - signature.parameters.keys()
    if lacking:
        raise AttributeError(f"{own.__name__} has no {sorted(lacking)}")

    @functools.wraps(own)
    def ours(*given: Any, **named: Any) -> Iterator[None]:
        answers = _answers()
        if answers is None:
            return own(*given, **named)
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        options = bound.arguments
        function, args, kwargs = options["fn"], options["args"], options["kwargs"]
        options.update(context_fn=checkpointing.noop_context_fn, debug=False, args=(), kwargs={})

        def with_again(again: Callable[[], None]) -> Iterator[None]:
            options["fn"] = again
            return own(*bound.args, **bound.kwargs)

        return answers.checkpoint(function, args, kwargs, with_again)

    setattr(checkpointing, own.__name__, ours)


def _replace_node_hooks() -> None:
    if not hasattr(autograd, "_push_node_creation_hook"):  # before torch 2.15
        return
    push, pop = autograd._push_node_creation_hook, autograd._pop_node_creation_hook

    @functools.wraps(push)
    def pushed(hook: Any) -> None:
        if _here.answers:
            raise RuntimeError(NO_HOOKS)
        push(hook)
        _here.node_hooks += 1

    @functools.wraps(pop)
    def popped() -> None:
        pop()
        _here.node_hooks -= 1

    autograd._push_node_creation_hook = pushed
    autograd._pop_node_creation_hook = popped


# The functions are replaced once and never restored: a second thread could restore them at the
# wrong time. Outside lanes, and in every other thread, each does what torch's own does.
try:
    for _replace in (_replace_apply, _replace_checkpoints, _replace_node_hooks):
        _replace()
except (AttributeError, KeyError, ValueError) as missing:
    raise ImportError(untried(f"what lanes answer is missing ({missing})")) from missing


class OwnNode(torch.autograd.Function):
    """One node of the graph: ``run()`` makes its outputs, ``back(*gradients)`` is its derivative.

    ``run`` and ``back`` see physical tensors, and must not mix their rows.
    """

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[], list[Tensor]], back: Callable[..., Any], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.back = back
        ctx.set_materialize_grads(False)
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, None, *ctx.back(*gradients)


def sets_up_context(kind: Any) -> bool:
    """True if an ``autograd.Function`` has a separate ``setup_context``."""
    return bool(kind.setup_context is not torch.autograd.Function.setup_context)


# Checks of the behaviour of torch that this module relies on.


@functools.cache
def check() -> None:
    """Check the behaviour of torch that lanes rely on: once, in some milliseconds.

    Raises:
        RuntimeError: this torch behaves in another way; no gradient was computed.
    """
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        for what, holds in _RELIED_ON.items():
            try:
                good, why = holds(), ""
            except Exception as error:
                good, why = False, f" ({type(error).__name__}: {error})"
            if not good:
                raise RuntimeError(untried(f"{what} are not what they were{why}"))


def _lanes_are_apart() -> bool:
    x = torch.arange(6.0).view(3, 2).requires_grad_()
    with entered(2) as level:
        one = lane(x, 1, level)
        inside = is_lane(one) and wrapped(one) and one.shape == (3,) and current_level() == level
        total = (one * one).sum() * torch.ones(())
        with outside():
            whole = rows(total)
            inside = inside and current_level() == -1 and not is_lane(whole)
        inside = inside and physical(one)[1] == 1 and interrupted()
    (slope,) = torch.autograd.grad(whole.sum(), x)
    right = torch.equal(whole, (x * x).sum(0)) and torch.equal(slope, 2 * x)
    return inside and right and not interrupted() and not is_lane(x)


def _lanes_draw_apart() -> bool:
    with entered(4):
        drawn = torch.rand(2)
        return is_lane(drawn) and len(set(rows(drawn).flatten().tolist())) == 8


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 2 * gradient * ctx.saved_tensors[0]


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return args[1] if func is FUNCTION_CALL else func(*args, **(kwargs or {}))


def _answered(run: Callable[[Tensor], Any]) -> list[Any]:
    """The calls that the handlers receive while ``run`` uses a lane tensor."""
    asked: list[Any] = []

    def function(kind: Any, args: tuple[Any, ...], own: Any) -> Any:
        asked.append(kind)
        return args[0]

    def checkpoint(function: Any, args: Any, kwargs: Any, own: Any) -> Iterator[None]:
        asked.append((function, len(args), kwargs))
        yield

    x = torch.ones(2, requires_grad=True)
    with turns, entered(2) as level, answering(UserCodeAnswers(function, checkpoint)):
        run(lane(x, 0, level))
    return asked


def _functions_ask() -> bool:
    x = torch.ones(2, requires_grad=True)
    (slope,) = torch.autograd.grad(_Squared.apply(x).sum(), x)  # type: ignore[no-untyped-call]
    with entered(2) as level, _Seen() as seen:
        FUNCTION_CALL(_Apart, lane(x, 0, level))
    both = _answered(_Squared.apply) == [_Squared] and _answered(_Apart.apply) == [_Apart]
    differ = sets_up_context(_Apart) and not sets_up_context(_Squared)
    return torch.equal(slope, 2 * x) and both and differ and seen.functions == [FUNCTION_CALL]


def _checkpoints_ask() -> bool:
    return all(
        _answered(functools.partial(_checkpoint, torch.exp, use_reentrant=reentrant))
        == [(torch.exp, 1, {})]
        for reentrant in (False, True)
    )


def _hooks_are_refused() -> bool:
    refused = []

    def put(context: Any) -> None:
        try:
            with context:
                pass
        except RuntimeError as error:
            refused.append(refused_hooks(error))

    def nothing(x: Any) -> Any:
        return x

    graph: Any = torch.autograd.graph
    kinds: list[Any] = [lambda: graph.saved_tensors_hooks(nothing, nothing)]
    if hasattr(graph, "node_creation_hook"):
        kinds.append(lambda: graph.node_creation_hook(nothing))
    for hooks in kinds:
        _answered(functools.partial(lambda hooks, _: put(hooks()), hooks))
        put(hooks())
        with hooks():
            if not hooks_in_force():
                return False
    return refused == [True] * len(kinds) and not hooks_in_force()


def _attention_masks() -> bool:
    return not safe_softmax(torch.full((2, 3), float("-inf")), -1).any()


_RELIED_ON: dict[str, Callable[[], bool]] = {
    "lanes": _lanes_are_apart,
    "random numbers in lanes": _lanes_draw_apart,
    "calls of an autograd.Function": _functions_ask,
    "checkpoints": _checkpoints_ask,
    "hooks on saved tensors and nodes": _hooks_are_refused,
    "masks of attention": _attention_masks,
}


# The state of a model between passes, which is restored after every pass.
#
# A pass may write values that it computed from private records, without noise. Values are compared,
# not only versions, because writes through NumPy do not change a tensor's version.


_TABLES = ("_parameters", "_buffers", "_modules")
STANDARD = frozenset(vars(nn.Module()))  # attributes that every module has
_HOOKS = tuple(sorted(name for name in STANDARD if "ward_" in name and "hook" in name))
_CHANGEABLE = (Tensor, np.ndarray, tuple, list, dict, set, deque)
_NESTED = frozenset({list, tuple, deque, dict, OrderedDict})
_PLAIN = (int, float, str, complex, bytes)


def copied(value: Any, depth: int = 4) -> Any:
    """The value with tensors and built-in containers copied, to compare a later one with.

    Anything else stays as it is.
    """
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return value if wrapped(value) else value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if depth and type(value) in _NESTED:
        return {key: copied(leaf, depth - 1) for key, leaf in _items(value)}
    if type(value) is set:
        return set(value)
    return value


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    # Places of the leaves of a container, and the leaves.
    return value.items() if isinstance(value, dict) else enumerate(value)


def alike(value: Any, kept: Any, depth: int = 4) -> bool:
    """True if a value equals the one of which ``kept`` is the copy (:func:`copied`)."""
    if isinstance(value, nn.Parameter):
        return value is kept
    if isinstance(value, Tensor):
        if value is kept or wrapped(value):
            return value is kept
        same = isinstance(kept, Tensor) and value.dtype == kept.dtype
        return same and _equal(value.detach(), kept)
    if isinstance(value, np.ndarray):
        return isinstance(kept, np.ndarray) and np.array_equal(value, kept, equal_nan=True)
    if depth and type(value) in _NESTED:
        now = dict(_items(value))
        same = isinstance(kept, dict) and now.keys() == kept.keys()
        return same and all(alike(leaf, kept[key], depth - 1) for key, leaf in now.items())
    if type(value) is set:
        return bool(value == kept)
    return value is kept or (type(value) is type(kept) and _plainly_equal(value, kept))


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.layout is not other.layout:
        return False
    if one.layout is not torch.strided:  # torch.equal knows no sparse tensors
        parts = ((v._indices(), v._values()) for v in (one.to_sparse(), other.to_sparse()))
        return all(map(_equal, *parts))
    return bool(torch.equal(one, other)) or (
        one.is_floating_point()
        and bool(torch.equal(one.isnan(), other.isnan()))
        and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
    )


def _put_back(value: Tensor, kept: Tensor) -> None:
    """Give a tensor its kept shape and numbers again."""
    if _equal(value.detach(), kept):
        return
    with torch.no_grad():
        if value.layout is not torch.strided:
            value.resize_as_sparse_(kept).copy_(kept)
            return
        if value.shape != kept.shape:
            value.resize_(kept.shape)
        value.detach().copy_(kept)


def _untouched(now: Any, before: Any) -> bool:
    # Dictionaries compare values by identity first, which is fast and enough for untouched ones.
    try:
        return bool(now == before)
    except Exception:  # replaced tensors cannot be compared in this way
        return False


def _plainly_equal(value: Any, kept: Any) -> bool:
    return type(value) in _PLAIN and bool(value == kept)


def _restore(value: Any, kept: Any) -> Any:
    """The original object with its kept content."""
    if isinstance(value, nn.Parameter) or value is kept:
        return value
    if isinstance(value, Tensor):
        _put_back(value, kept)
    elif isinstance(value, np.ndarray):
        value[...] = kept
    elif type(value) in (list, deque):
        value.clear()
        value.extend(kept.values())
    elif type(value) in (dict, OrderedDict) or type(value) is set:
        value.clear()
        value.update(kept)
    return value


class _ModuleKept:
    """One module's snapshot: its attributes, its three tables, and contents that can change."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.attributes = attributes = module.__dict__.copy()
        self.tables = [attributes[table].copy() for table in _TABLES]
        self.contents = [
            (key, value, copied(value))
            for key, value in attributes.items()
            if key not in STANDARD and isinstance(value, _CHANGEABLE)
        ]
        buffers = self.tables[1].items()
        self.contents += [
            (k, buffer, copied(buffer)) for k, buffer in buffers if buffer is not None
        ]
        self.hooks = [
            (attributes[key], attributes[key].copy())
            for key in _HOOKS
            if hasattr(attributes.get(key), "clear")
        ]

    def differing(self) -> list[str]:
        """Names of attributes that were replaced, added or removed."""
        now, before = self.module.__dict__, self.attributes
        tables = [now.get(name) for name in _TABLES]
        if _untouched(now, before) and all(map(_untouched, tables, self.tables)):
            return []
        found = [
            key
            for key, value in before.items()
            if now.get(key, _MISSING) is not value and not _plainly_equal(now.get(key), value)
        ]
        if len(now) != len(before):
            found += [key for key in now if key not in before]
        for name, table in zip(_TABLES, self.tables, strict=True):
            current = now[name]
            found += [k for k, value in table.items() if current.get(k, _MISSING) is not value]
            if len(current) != len(table):
                found += [key for key in current if key not in table]
        return found

    def rewritten(self) -> list[tuple[str, Any, Any]]:
        """Contents whose values have changed."""
        return [one for one in self.contents if not alike(one[1], one[2])]


class ModuleState:
    """A snapshot of everything that modules hold: attributes, buffers, submodules, parameters.

    Attributes, and the built-in containers, arrays and tensors in them, are kept by value. For
    parameters only the version is kept, which shows whether they were written to.

    Args:
        modules: (name, module) pairs.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        self._kept = [_ModuleKept(name, module) for name, module in modules]
        self._parameters = [
            (f"{kept.name}.{key}" if kept.name else key, parameter, parameter._version)
            for kept in self._kept
            for key, parameter in kept.tables[0].items()
            if parameter is not None
        ]

    def changes(self) -> dict[str, Any]:
        """The differences of the model from the snapshot: ``module.attribute`` → present value."""
        found = {}
        for kept in self._kept:
            names = [*kept.differing(), *(name for name, *_ in kept.rewritten())]
            for name in dict.fromkeys(names):
                label = f"{kept.name}.{name}" if kept.name else name
                found[label] = getattr(kept.module, name, None)
        return found

    def restore(self) -> None:
        """Restore everything but the values of parameters, which the snapshot does not keep."""
        for kept in self._kept:
            for _, value, before in kept.rewritten():
                _restore(value, before)
            for now, before in kept.hooks:  # also those that a pass installed
                if len(now) != len(before):
                    now.clear()
                    now.update(before)
            if not kept.differing():
                continue
            now = kept.module.__dict__
            for name, table in zip(_TABLES, kept.tables, strict=True):
                kept.attributes[name].clear()
                kept.attributes[name].update(table)
            now.clear()
            now.update(kept.attributes)

    def parameters_changed(self) -> list[str]:
        """Names of parameters that were written to."""
        return [
            name for name, parameter, version in self._parameters if parameter._version != version
        ]


def changes_itself(changed: Iterable[str], why: str) -> Refused:
    """The refusal of a model that changes itself."""
    return Refused(
        f"the model changes itself while it runs: {', '.join([*changed][:5])} {why}; compute it "
        "from the example alone, or keep it fixed during private training"
    )


class Generators:
    """The states of the generators that a forward pass may draw from."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._torch = torch.get_rng_state()
        self._dtype = torch.get_default_dtype()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"}
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 - the one that user code may use

    def restore(self) -> None:
        """Set the generators, and torch's default dtype, back to these states."""
        torch.set_default_dtype(self._dtype)
        torch.set_rng_state(self._torch)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


# State that Python code can keep outside modules: objects, closures, globals, generators, settings.
#
# Values of the examples reach Python only when the lanes answer a question of Python
# (:mod:`.vmap_mode`), or when examples run one at a time. Before that, every object that model and
# loss can reach is noted here; it is restored before other examples can see it. A reachable object
# of an unknown kind is refused. The code of the standard library and of installed packages is
# trusted, and so is the state that their objects keep outside Python attributes.


LIMIT = 200_000  # objects: far more than a model has
_MISSING: Any = object()
_LIBRARIES = frozenset({"torch", "numpy", "forethought", *sys.stdlib_module_names}) - {"__main__"}
# Modules whose objects keep no state of a model: their attributes are not followed.
_OPAQUE = ("logging", "torch._", "torch.fx", "torch.jit", "torch.distributed.", "torch.autograd")
# Modules whose objects belong to the user if the object that holds them does.
_PASSING = frozenset({"builtins", "collections", "functools", "weakref", "types"})
_WAITING = frozenset({"threading", "_thread", "queue", "_queue", "multiprocessing", "asyncio"})
_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device})
# Classes written in C whose objects cannot change.
_FIXED = (
    *(int, float, complex, str, bytes, type(None), type(...), type(NotImplemented)),
    *(range, slice, BaseException, types.CodeType, types.GenericAlias, types.UnionType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, re.Pattern, re.Match),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller, random.SystemRandom),
    *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(torch.finfo, torch.iinfo, np.dtype, np.ufunc, np.generic),
    torch.jit.ScriptFunction,  # a graph and its constants
)
_CALLED = (types.FunctionType, types.MethodType, functools.partial, nn.Module)
# Names by which code can reach other names that do not occur in it.
_OF_ITS_MODULE = frozenset({"globals", "eval", "exec", "__globals__"})
_OF_MODULES = frozenset({"getattr", "setattr", "delattr", "vars", "attrgetter", "__dict__"})
_OF_ANY_MODULE = frozenset({"__import__", "import_module"})
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # bits of a type's __flags__

Undo = Callable[[], object]


def of_user(module: object) -> bool:
    """True if a module is the user's own, and not one of Python or of an installed package.

    Args:
        module: the module's name. Any other object names no module and counts as the user's: a
            class may keep a descriptor under ``__module__``.
    """
    name = module if isinstance(module, str) else ""
    if name.partition(".")[0] in _LIBRARIES:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" or file is None or not _installed(file)


def _home(kind: type) -> str:
    """The name of a class's module; empty if its ``__module__`` is no string."""
    return kind.__module__ if isinstance(kind.__module__, str) else ""


@functools.cache
def _installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _native(kind: type) -> type | None:
    """The base class written in C whose objects hold more than attributes; None: there is none."""
    for base in kind.__mro__[:-1]:
        parent = base.__base__
        assert parent is not None  # only object has none
        slots = vars(base).get("__slots__", ())
        named = {*((slots,) if isinstance(slots, str) else slots)} - {"__dict__", "__weakref__"}
        places = len(named) + ("__dict__" in vars(base)) + ("__weakref__" in vars(base))
        longer = base.__basicsize__ - parent.__basicsize__ > 8 * places
        if longer or base.__itemsize__ != parent.__itemsize__:
            return base
    return None


def _own(value: Any, held: bool) -> bool:
    """True if the contents of a value belong to user code; ``held``: the value itself does."""
    if isinstance(value, types.FunctionType):
        return of_user(value.__globals__.get("__name__"))
    if isinstance(value, type):
        return of_user(value.__module__)
    module = _home(type(value))
    return held if module in _PASSING or isinstance(value, nn.Module) else of_user(module)


class _Mentions(NamedTuple):
    """Names in code: globals, imported modules, attributes, and the names that it writes to."""

    names: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=8192)
def _mentions(code: types.CodeType) -> _Mentions:
    names, modules, written = set[str](), set[str](), set[str]()
    # String constants may be names too, as in globals()["x"] and getattr(helpers, "x").
    parts = {part for part in code.co_consts if isinstance(part, str) and part.isidentifier()}
    for step in dis.get_instructions(code):
        how, name = step.opname, step.argval
        if not isinstance(name, str):
            continue
        if how == "IMPORT_NAME":
            modules.add(name)
        elif how.endswith(("_GLOBAL", "_NAME")):
            names.add(name)
        elif how.endswith(("_ATTR", "_METHOD", "IMPORT_FROM")):
            parts.add(name)
        if how.startswith(("STORE_", "DELETE_")):
            written.add(name)
    found = [_Mentions(*map(frozenset, (names, modules, parts, written)))]
    found += [_mentions(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return _Mentions(*(frozenset().union(*column) for column in zip(*found, strict=True)))


@dataclass
class _Space:
    """The names of a user module that code can reach, and their values.

    Attributes:
        scope: the module's globals.
        wanted: names that the module's own functions use.
        open: True if these functions can reach names that do not occur in them.
        reached: True if code can reach the module itself, and its names as attributes.
        kept: the values of the names when they were noted.
    """

    scope: dict[str, Any]
    wanted: set[str] = field(default_factory=set)
    open: bool = False
    reached: bool = False
    kept: dict[str, Any] = field(default_factory=dict)

    def undo(self) -> None:
        """Give every name its noted value again."""
        for name, value in self.kept.items():
            if self.scope.get(name, _MISSING) is value:
                continue
            if value is _MISSING:
                del self.scope[name]
            else:
                self.scope[name] = value
        if self.open:
            for name in self.scope.keys() - self.kept.keys():
                if not name.startswith("__"):
                    del self.scope[name]


class ExternalState:
    """A snapshot of all Python objects that ``roots`` can reach.

    Args:
        known: modules whose own attributes a :class:`ModuleState` restores.
        roots: objects from which to follow references.

    Attributes:
        waits: the holder of a lock or queue among the objects, for which a pass that begins again
            could wait for ever; empty if there is none.

    Raises:
        Refused: an object of an unknown kind, or too many objects.
    """

    def __init__(self, known: Iterable[nn.Module], *roots: Any) -> None:
        self.waits = ""
        self._undo: list[Undo] = [_settings()]
        modules = list(known)
        self._known = {id(module) for module in modules}
        self._weights = {id(p) for module in modules for p in module._parameters.values()}
        self._seen: dict[int, tuple[Any, bool]] = {}  # keeps objects alive, so that ids stay unique
        self._kinds: dict[type, tuple[type | None, _Way | None]] = {}
        self._spaces: dict[int, _Space] = {}
        self._parts, self._written = set[str](), set[str]()
        self._open = False  # True if code can reach attributes of modules that it does not name
        operators = [one for one in list(OPDEFS.values()) if of_user(one._init_fn.__module__)]
        # (object to follow, its holder, True if it belongs to the user).
        self._pending = [(root, "the model or loss", True) for root in (*roots, *operators)]
        self._pending.append((decimal.getcontext(), "Python", False))
        while self._pending or self._more_names():
            value, holder, strict = self._pending.pop()
            before = self._seen.get(id(value))
            if before is not None and (before[1] or not strict):
                continue
            self._seen[id(value)] = value, strict
            if len(self._seen) > LIMIT:
                raise Refused(
                    f"values of the examples reach Python, and model and loss reach {LIMIT:,} "
                    "objects, too many to put back: keep tables as tensors, and data elsewhere"
                )
            own = _own(value, strict)
            label = _label(value, holder) if own else holder
            for part in self._note(value, holder, strict):
                if type(part) not in _ATOMS:
                    self._pending.append((part, label, own))
        self._undo += [space.undo for space in self._spaces.values()]

    def restore(self) -> None:
        """Restore all noted objects and settings."""
        for undo in self._undo:
            undo()

    def _note(self, value: Any, holder: str, strict: bool) -> Iterator[Any]:
        kind = type(value)
        if isinstance(value, types.ModuleType):
            if of_user(value.__name__):
                self._space(vars(value)).reached = True
        elif isinstance(value, type):
            yield from self._class(value)
        elif id(value) in self._known:
            # Its own attributes are known (:class:`ModuleState`), but not the objects in them.
            for table in (value._modules, value._parameters, value._buffers):
                yield from table.values()
            for name, content in vars(value).items():
                if name not in STANDARD:
                    yield content
                elif content and name.endswith("_hooks"):
                    yield from content.values()
            yield kind
        else:
            if kind not in self._kinds:
                self._kinds[kind] = _native(kind), _noted(kind)
            native, noted = self._kinds[kind]
            if native is not None:
                if noted is not None:
                    yield from noted(self, value)
                elif strict and not _of_a_library(value):
                    raise Refused(_not_understood(value, holder))
            if strict and native is not _LOCAL and _home(kind).partition(".")[0] in _WAITING:
                self.waits = self.waits or f"{holder} keeps a {kind.__name__}"
            if isinstance(value, nn.Module | CustomOpDef) or not _home(kind).startswith(_OPAQUE):
                yield from self._attributes(value)
            yield kind

    def _space(self, scope: dict[str, Any]) -> _Space:
        return self._spaces.setdefault(id(scope), _Space(scope))

    def _more_names(self) -> bool:
        """Note names of user modules that the code found so far can reach; True if any are new."""
        for space in list(self._spaces.values()):
            scope = space.scope
            names = space.wanted | self._parts if space.reached else space.wanted
            if space.open or (space.reached and self._open):
                names = names | {name for name in scope if not name.startswith("__")}
            for name in names - space.kept.keys():
                value = scope.get(name, _MISSING)
                if value is not _MISSING:
                    space.kept[name] = value
                    label = f"module {scope.get('__name__')}"
                    self._pending.append((value, label, True))
                elif name in self._written:
                    space.kept[name] = _MISSING
        return bool(self._pending)

    def _tensor(self, value: Tensor) -> Iterator[Any]:
        yield value.__dict__  # attributes that user code added
        if wrapped(value):
            return
        if value.is_leaf:
            gradient = value.grad
            self._undo.append(functools.partial(_give_back_gradient, value, gradient))
            yield gradient
        if id(value) not in self._weights:
            self._undo.append(functools.partial(_put_back, value, value.detach().clone()))

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        scope = function.__globals__
        cells = function.__closure__ or ()
        if not of_user(scope.get("__name__")):
            # A library function may wrap one of the user's, as torch.no_grad() does.
            for cell in cells:
                content = next(_content(cell), None)
                if isinstance(content, _CALLED) or of_user(type(content).__module__):
                    yield content
            return
        yield from (*cells, function.__defaults__, function.__kwdefaults__)
        mentions = _mentions(function.__code__)
        words = mentions.names | mentions.parts
        self._parts |= mentions.parts
        self._written |= mentions.written
        self._open = self._open or not words.isdisjoint(_OF_MODULES)
        space = self._space(scope)
        space.wanted |= mentions.names
        space.open = space.open or not words.isdisjoint(_OF_ITS_MODULE)
        if not words.isdisjoint(_OF_ANY_MODULE) or words >= {"sys", "modules"}:
            yield from list(sys.modules.values())
        for name in mentions.modules:
            yield sys.modules.get(name)
            yield sys.modules.get(f"{scope.get('__package__')}.{name}")

    def _cell(self, cell: types.CellType) -> Iterator[Any]:
        for content in _content(cell):
            self._undo.append(functools.partial(setattr, cell, "cell_contents", content))
            yield content

    def _class(self, kind: type) -> Iterator[Any]:
        # All instances of a class share its attributes.
        made = kind.__flags__ & _HEAP and not kind.__flags__ & _IMMUTABLE
        if made and of_user(kind.__module__) and _native(kind) is not kind:
            self._undo.append(functools.partial(_give_back_names, kind, dict(vars(kind))))
            for name, value in list(vars(kind).items()):
                code = isinstance(value, types.FunctionType | staticmethod | classmethod | property)
                if code or not name.startswith(("__", "_abc_")):
                    yield value
            yield type(kind)
        yield from (base for base in kind.__mro__[1:] if of_user(base.__module__))

    def _attributes(self, value: Any) -> Iterator[Any]:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield attributes
        for base in type(value).__mro__:
            if "__slots__" in vars(base):
                for place in vars(base).values():
                    if isinstance(place, types.MemberDescriptorType):
                        content = _slot(place, value)
                        self._undo.append(functools.partial(_give_back_slot, place, value, content))
                        if content is not _MISSING:
                            yield content


def _label(value: Any, holder: str) -> str:
    if isinstance(value, types.FunctionType | type):
        return value.__qualname__
    kind = type(value)
    return holder if _home(kind) in _PASSING else kind.__qualname__


def _not_understood(value: Any, holder: str) -> str:
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{_home(kind)}.{name}"
    if isinstance(value, Iterator):
        return (
            f"{holder} keeps an iterator ({name}) while examples' values reach Python: use a list"
        )
    return (
        f"{holder} keeps a {name} while values of the examples reach Python, which cannot be put "
        "back: keep numbers, lists, dicts, arrays or tensors, or make it anew in every pass"
    )


def _of_a_library(value: Any) -> bool:
    """True for an object that a library keeps under its own name, such as a function in C.

    Standard output and standard error count too.
    """
    if any(value is screen for screen in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        return True
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or of_user(module):
        return False
    return getattr(sys.modules.get(module), name, None) is value


# The note of an object of a class written in C: a function that restores it (None: not needed), and
# the objects that can be reached from it.
Noted = tuple[Undo | None, Iterable[Any]]


_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, deque, list, set)


def _container(value: Any) -> Noted:
    # By the methods of the built-in class: a class derived from it may have others.
    kind = next(one for one in _CONTAINERS if isinstance(value, one))
    keyed = issubclass(kind, dict)

    def content() -> list[Any]:
        return [*chain.from_iterable(kind.items(value))] if keyed else [*kind.__iter__(value)]

    kept = content()

    def undo() -> None:
        now = content()
        if len(now) != len(kept) or any(map(operator.is_not, now, kept)):
            kind.clear(value)
            fill = kind.extend if hasattr(kind, "extend") else kind.update
            fill(value, zip(kept[::2], kept[1::2], strict=True) if keyed else kept)

    return undo, (getattr(value, "default_factory", None), *kept)


def _row(value: Any) -> Noted:
    kept = value[:]

    def undo() -> None:
        if len(value) == len(kept):  # while a memoryview of it exists, its length is fixed
            value[:] = kept
        else:
            del value[:]
            value.extend(kept)

    return undo, ()


def _ndarray(value: np.ndarray[Any, Any]) -> Noted:
    kept = value.copy()

    def undo() -> None:
        if value.flags.writeable:
            value[...] = kept

    return undo, list(value.flat) if value.dtype.hasobject else ()


def _numpys(value: Any) -> Noted:
    bits = value.bit_generator if isinstance(value, np.random.Generator) else value
    return functools.partial(setattr, bits, "state", bits.state), ()


def _context(value: decimal.Context) -> Noted:
    kept = value.copy()

    def undo() -> None:
        for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "flags", "traps"):
            setattr(value, name, getattr(kept, name))

    return undo, ()


def _storage(value: torch.UntypedStorage) -> Noted:
    kept = value.clone()  # type: ignore[no-untyped-call]
    return lambda: value.copy_(kept), ()


def _reset(value: Any) -> Noted:
    get = value.getstate if hasattr(value, "getstate") else value.get_state
    put = value.setstate if hasattr(value, "setstate") else value.set_state
    return functools.partial(put, get()), ()


def _holds(*names: str) -> Callable[[Any], Noted]:
    return lambda value: (None, [getattr(value, name, None) for name in names])


_UNDERSTOOD: dict[Any, Callable[[Any], Noted]] = {
    _FIXED: lambda value: (None, ()),
    tuple | frozenset: lambda value: (None, value),
    dict | list | deque | set: _container,
    types.MethodType: _holds("__self__", "__func__"),
    types.BuiltinMethodType | types.MethodWrapperType: _holds("__self__"),
    functools.partial: _holds("func", "args", "keywords"),
    # Cached results can be computed again.
    functools._lru_cache_wrapper: lambda value: (value.cache_clear, (value.__wrapped__,)),
    property: _holds("fget", "fset", "fdel"),
    staticmethod | classmethod: _holds("__func__"),
    types.MappingProxyType: lambda value: (None, [*value.keys(), *value.values()]),
    weakref.ref: lambda value: (None, (value(),)),
    np.ndarray: _ndarray,
    bytearray | array.array: _row,
    memoryview: _holds("obj"),
    np.random.Generator | np.random.BitGenerator: _numpys,
    random.Random | np.random.RandomState | torch.Generator: _reset,
    decimal.Context: _context,
    torch.UntypedStorage: _storage,
    super: _holds("__self__"),
    threading.local: _holds(),  # its attributes in this thread, which runs the passes, are followed
    # Every pass runs in its own context: values that it sets end with the context.
    contextvars.ContextVar: lambda value: (None, (value.get(None),)),
}
_LOCAL = _native(threading.local)
_Way = Callable[[ExternalState, Any], Iterable[Any]]


def _noted(kind: type) -> _Way | None:
    """A function that notes objects of a class written in C and yields what they reach, or None."""
    if issubclass(kind, Tensor):
        return ExternalState._tensor
    if issubclass(kind, types.FunctionType):
        return ExternalState._function
    if issubclass(kind, types.CellType):
        return ExternalState._cell
    for kinds, note in _UNDERSTOOD.items():
        if issubclass(kind, kinds):
            return functools.partial(_keep, note)
    return None


def _keep(note: Callable[[Any], Noted], surroundings: ExternalState, value: Any) -> Iterable[Any]:
    undo, parts = note(value)
    if undo is not None:
        surroundings._undo.append(undo)
    return parts


def _content(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # empty
        return


def _slot(place: types.MemberDescriptorType, value: Any) -> Any:
    try:
        return place.__get__(value)
    except AttributeError:
        return _MISSING


def _give_back_slot(place: Any, value: Any, kept: Any) -> None:
    now = _slot(place, value)
    if now is not kept:
        place.__delete__(value) if kept is _MISSING else place.__set__(value, kept)


def _give_back_gradient(value: Tensor, kept: Tensor | None) -> None:
    if value.grad is not kept:
        value.grad = kept


def _give_back_names(kind: type, kept: dict[str, Any]) -> None:
    now = vars(kind)
    for name in [*now.keys() - kept.keys()]:
        type.__delattr__(kind, name)
    for name, value in kept.items():
        if now.get(name, _MISSING) is not value:
            type.__setattr__(kind, name, value)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (np.geterr, lambda kept: np.seterr(**kept)),
    (np.get_printoptions, lambda kept: np.set_printoptions(**kept)),
)


def _settings() -> Undo:
    """A function that restores the present settings of torch and NumPy."""
    before = [get() for get, _ in _SETTINGS]

    def undo() -> None:
        for (get, put), kept in zip(_SETTINGS, before, strict=True):
            if get() != kept:
                put(kept)

    return undo


# Facts about a model that are kept between passes, for speed and for the comparison of losses.


JUDGED = "judged"


@dataclass
class ModelMemory:
    """Facts about a model that earlier passes found.

    Attributes:
        unshared: True if tensors that lanes write to are made for each lane.
        without: names of rules that failed.
        asks: True if values of the examples reach Python.
        widest: the most numbers of one example that a value of a tried pass has.
        noted: (loss, key, value): blocks, from tests on made-up examples; ``JUDGED`` for losses
            that were compared with the loss of a whole batch.
    """

    unshared: bool = False
    without: frozenset[str] = frozenset()
    asks: bool = False
    widest: int = 1
    noted: list[tuple[weakref.ref[Any], Any, Any]] = field(default_factory=list)

    def found(self, loss: Any, key: Any) -> Any:
        """The value that :meth:`note` kept for the loss under this key; None: there is none."""
        self.noted = [known for known in self.noted if known[0]() is not None]
        for kept, named, value in self.noted:
            if named == key and kept() == loss:
                return value
        return None

    def note(self, loss: Any, key: Any, value: Any) -> None:
        """Keep a value for :meth:`found`."""
        self.noted.append((_weak(loss), key, value))


def _weak(loss: Any) -> weakref.ref[Any]:
    return weakref.WeakMethod(loss) if isinstance(loss, types.MethodType) else weakref.ref(loss)


_REMEMBERED: weakref.WeakKeyDictionary[nn.Module, ModelMemory] = weakref.WeakKeyDictionary()


def memory_of(model: nn.Module) -> ModelMemory:
    """The memory of the model so far."""
    return _REMEMBERED.setdefault(model, ModelMemory())


def trained_of(model: nn.Module, what: str) -> dict[str, nn.Parameter]:
    """The parameters whose gradients are wanted, by name.

    Raises:
        ValueError: there are none (the message says that there is nothing to ``what``), or see
            :func:`require_gradients`.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError(f"the model has no parameter with requires_grad=True: nothing to {what}")
    require_gradients(model)
    return trained


def require_gradients(model: nn.Module) -> None:
    """Refuse a pass, or a model that was made, under ``torch.inference_mode()``.

    Raises:
        ValueError: there torch keeps neither gradients nor the versions of tensors.
    """
    if torch.is_inference_mode_enabled() or any(p.is_inference() for p in model.parameters()):
        raise ValueError(
            "no gradients under torch.inference_mode(): make and use the model outside"
        )


# Models in shards: see :mod:`forethought.gradients.sharded`.

SHARDED: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


def shards_of(model: nn.Module) -> Any:
    """The ``Shards`` of a model given to ``take_shards``; None for a model of whole parameters."""
    return SHARDED.get(model)


def gathered(model: nn.Module) -> AbstractContextManager[object]:
    """A context in which a sharded model can be called; it does nothing for any other model."""
    shards = SHARDED.get(model)
    return nullcontext() if shards is None else shards.gathering()


def agreed(model: nn.Module, *answers: object) -> bool:
    """True if all answers are equal, for a sharded model in all its processes.

    Every process gets the same result.
    """
    one = all(answer == answers[0] for answer in answers)
    if SHARDED.get(model) is None:
        return one
    digest = hashlib.blake2b(repr(answers[0]).encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "big")
    with plain_torch():
        device = next(iter(own_parameters(model))).device
        # The minima of n and of −n over the processes add up to 0 only if n is the same in all.
        found = torch.tensor([number, -number] if one else [-1, -1], device=device)
        distributed.all_reduce(found, op=distributed.ReduceOp.MIN)
        return not int(found.sum())


def trained_here(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name → trained parameter, or this process's shard of it, for an optimizer."""
    shards = SHARDED.get(model)
    every = model.named_parameters() if shards is None else shards.local.items()
    return {name: p for name, p in every if p.requires_grad}


def own_part(tensor: Any) -> Tensor:
    """This process's shard of a sharded tensor, sharing memory; any other tensor as it is."""
    with torch.no_grad():
        found: Tensor = tensor.to_local().detach() if hasattr(tensor, "to_local") else tensor
    return found


def cut_like(own: Tensor, other: Any) -> Any:
    """A process's shard as a tensor sharded like ``other``, the inverse of :func:`own_part`."""
    if not hasattr(other, "to_local"):
        return own
    from torch.distributed.tensor import DTensor

    how = {"shape": other.shape, "stride": other.stride()}
    return DTensor.from_local(own, other.device_mesh, other.placements, **how)


def own_parameters(model: nn.Module) -> list[Tensor]:
    """All parameters of the model; for sharded ones, this process's shards."""
    return [own_part(p) for p in model.parameters()]


@contextmanager
def plain_torch() -> Iterator[None]:
    """A context in which torch sees plain tensors, inside lanes too."""
    level = outside() if current_level() != -1 else nullcontext()
    with torch._C.DisableTorchFunction(), level:
        yield


# Threads take turns when they restore state of the whole process: globals, attributes, random
# generators and torch's precision are noted before a pass over records and restored after it. Two
# threads that did this at the same time would restore each other's changes.


class _Held(threading.local):
    """The number of times that this thread holds the lock."""

    depth = 0


class _Turns(ContextDecorator):
    """The lock of a process, reentrant: a thread may take it again while it holds it."""

    def __init__(self) -> None:
        self.held = _Held()
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # In a forked child, another thread that held the lock does not exist and cannot release it.
        # The forking thread may hold it itself; then the child must be able to release it.
        self._lock = threading.RLock()
        for _ in range(self.held.depth):
            self._lock.acquire()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.held.depth += 1

    def __exit__(self, *_: object) -> None:
        self.held.depth -= 1
        self._lock.release()


turns = _Turns()
