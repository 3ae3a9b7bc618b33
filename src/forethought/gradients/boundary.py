"""torch's private functions, in one place, and why a pass over the lanes stopped."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpointing

# Why a pass over the lanes stopped. None of these is an error of the model's own.
#
# They pass through ``except Exception`` in user code, which must not answer for other lanes.


class PassAborted(BaseException):
    """The pass cannot go on as it is."""


class DivergentControlFlow(PassAborted):
    """The lanes disagree on what Python is about to see; they go on apart.

    Attributes:
        keys: every lane's own answer.
    """

    def __init__(self, keys: Sequence[Hashable]) -> None:
        super().__init__("the examples take different ways")
        self.keys = tuple(keys)


class NeedsStateSnapshot(PassAborted):
    """A value of the examples is about to reach Python, for the first time: start again, prepared.

    What Python can remember is noted now, before it learns anything.
    """


class SharedBufferWrite(PassAborted):
    """A tensor made for all lanes at once is written to by each: make one for each lane."""


class NotVectorisable(PassAborted):
    """The lanes cannot run this; alone, an example can."""


class RuleFailed(PassAborted):
    """A rule raised, or did not answer what it must."""

    def __init__(self, rule: str, error: BaseException) -> None:
        super().__init__(f"rule {rule!r} failed: {error}")
        self.rule = rule


class Refused(PassAborted):
    """The model or loss cannot be trained privately as it is; the text says what to do."""


class RefusedError(ValueError):
    """The same outside the pass, for its caller."""


# torch's private functions, in one place.
#
# A lane tensor is what ``torch.func.vmap`` hands to the function it maps: it looks like one
# example's value and holds all of them, the *physical* tensor, with the examples along one
# dimension of it. What is relied on here is checked before the first pass (:func:`check`): a torch
# that does it in another way is refused by name.


TRIED = ("2.8", "2.15")  # the oldest and the newest torch; pyproject.toml allows no other


def untried(what: str) -> str:
    """The warning where torch is not as it was in the versions that were tried."""
    return (
        f"forethought was not tried with torch {torch.__version__}, where {what}: install a torch "
        f"from {TRIED[0]} to {TRIED[1]}"
    )


try:
    from torch._C import _autograd, _functorch
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]

    autograd: Any = _autograd  # the stubs know the functions of one torch only
    functorch: Any = _functorch
    # What ``apply`` of a user-written autograd.Function calls inside a vmap.
    FUNCTION_CALL: Any = torch._functorch.autograd_function.custom_function_call
    is_lane: Callable[[Tensor], bool] = functorch.is_batchedtensor
    GETTERS = vars(torch._C.TensorBase)
    OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    PACK, PAD = torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence
except (ImportError, AttributeError, KeyError) as missing:
    raise ImportError(untried(f"a private part of it is missing ({missing})")) from missing

NO_HOOKS = (
    "hooks on saved tensors (save_on_cpu and the like) see all examples at once: leave them out of "
    "private training"
)


@contextmanager
def entered(size: int) -> Iterator[int]:
    """One more level of vmap over ``size`` examples; yields its number."""
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
    """The number of the innermost transform, -1 where there is none."""
    level = functorch.maybe_current_level()
    return -1 if level is None else int(level)


def physical(value: Tensor) -> tuple[Tensor, int]:
    """The tensor of all examples, and the dimension along which they are."""
    return functorch.get_unwrapped(value), functorch.maybe_get_bdim(value)


def wrapped(value: Tensor) -> bool:
    """True if the value belongs to any transform of torch.func."""
    return bool(functorch.is_functorch_wrapped_tensor(value))


def rows(value: Tensor) -> Tensor:
    """The tensor of all examples, with these in front."""
    whole, dim = physical(value)
    return whole.movedim(dim, 0) if dim else whole


def lane(whole: Tensor, dim: int, level: int) -> Tensor:
    """The lane tensor of a physical one."""
    wrapped: Tensor = functorch._add_batch_dim(whole, dim, level)
    return wrapped


def hooks_in_force() -> bool:
    """True if hooks on saved tensors, or on nodes of the graph, are in force now."""
    return autograd._top_saved_tensors_default_hooks(True) is not None or bool(_here.node_hooks)


def global_hooks(forwards: bool = True) -> bool:
    """True if hooks on all modules are there: backward ones, and forward ones if asked for."""
    backward = modules._global_backward_hooks or modules._global_backward_pre_hooks
    forward = modules._global_forward_hooks or modules._global_forward_pre_hooks
    return bool(backward or (forwards and forward))


def dispatched() -> bool:
    """True if a mode is in force that sees physical tensors below every transform."""
    return bool(torch._C._len_torch_dispatch_stack())


def require_bare_torch() -> None:
    """Refuse whatever of the user's stands around a pass and sees all examples at once.

    Raises:
        Refused: a mode, hooks on saved tensors, or a kernel in a torch function's place.
    """
    if hooks_in_force():
        raise Refused(NO_HOOKS)
    stack: Any = torch.overrides._get_current_function_mode_stack  # untyped
    modes = [type(mode) for mode in stack()]
    modes = [kind for kind in modes if not kind.__module__.startswith(("torch.", "forethought."))]
    if dispatched() or modes:
        name = modes[0].__name__ if modes else "TorchDispatchMode"
        raise Refused(
            f"a mode around private training ({name}) sees all examples at once: enter it inside "
            "the model's forward, and leave it there again"
        )
    if replaced := _replaced(len(torch.library._impls)):
        raise Refused(
            f"torch's own {replaced} was given another kernel (torch.library), "
            "which sees all examples at once: give it to an operator of your own"
        )


@functools.lru_cache(maxsize=1)
def _replaced(_: int) -> str:
    """A function of torch's whose kernel was replaced in Python, among so many that were given."""
    found = sorted(key for key in torch.library._impls if _KERNEL.fullmatch(key))
    return found[0].split("/")[1] if found else ""


_KERNEL = re.compile("aten/.*/(CPU|Autograd|AutogradC.*|Composite(Im|Ex)plicitAutograd)")


def unseen_kernel(name: str) -> bool:
    """True if an operator's code is in Python, and not where anybody could look what it keeps."""
    if name in OPDEFS:
        return False
    space, _, own = name.partition("::")
    kernels = re.compile(f"{re.escape(space)}/{re.escape(own)}(\\..*)?/(?!Meta$).*")
    return any(kernels.fullmatch(key) for key in torch.library._impls)


def interrupted() -> bool:
    """True if anything stands between a torch function and its arithmetic: modes, transforms."""
    return bool(
        torch._C._len_torch_function_stack()
        or dispatched()
        or _replaced(len(torch.library._impls))
        or current_level() != -1
        or hooks_in_force()
    )


# What lanes answer in torch's place, and how it comes about


@dataclass(frozen=True)
class Answers:
    """The answers to user code in lanes in place of what torch would do with physical tensors.

    Attributes:
        function: ``function(kind, args, own)`` is ``kind.apply(*args)`` of an autograd.Function;
            ``own(kind, *args)`` is torch's.
        checkpoint: ``checkpoint(function, args, kwargs, own)`` goes around a call of ``function``,
            as torch's generator for non-reentrant checkpoints; ``own(again)`` is that generator,
            which in the backward pass calls ``again()``.
    """

    function: Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]
    checkpoint: Callable[..., Iterator[None]]


class _Here(threading.local):
    """The answers in force in this thread, the innermost last; hooks on nodes in force in it."""

    def __init__(self) -> None:
        self.answers: list[Answers] = []
        self.node_hooks = 0


_here = _Here()


@contextmanager
def answering(answers: Answers) -> Iterator[None]:
    """User code of this thread, in the lanes, is answered so; it can put no hooks in force.

    Hooks on saved tensors are switched off by torch, thread by thread: putting them in force
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
    """In this thread no more hooks on saved tensors can be put in force; None: they can."""
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
    """True if an error says that hooks were to be put in force in the lanes."""
    return str(error) == NO_HOOKS


# As it is inside: around it, torch loads its compiler, which takes seconds.
_checkpoint: Callable[..., Any] = inspect.unwrap(checkpointing.checkpoint)


def _answers() -> Answers | None:
    if not _here.answers or not torch._C._are_functorch_transforms_active():
        return None
    return _here.answers[-1]


def _replace_apply() -> None:
    own = torch.autograd.Function.__dict__["apply"]

    def plain(kind: Any, *args: Any, **kwargs: Any) -> Any:
        return own.__get__(None, kind)(*args, **kwargs)

    @functools.wraps(own.__get__(None, torch.autograd.Function))
    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        answers = _answers()
        if answers is None or kwargs:
            return plain(kind, *args, **kwargs)
        if kind is checkpointing.CheckpointFunction:  # the same recomputation without reentrance
            function, preserve, *rest = args
            return _checkpoint(function, *rest, use_reentrant=False, preserve_rng_state=preserve)
        return answers.function(kind, args, plain)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]


def _replace_checkpoints() -> None:
    name = "_checkpoint_without_reentrant_generator"
    apart = hasattr(checkpointing, f"{name}_impl")  # torch 2.15: arguments are handed on as two
    own = getattr(checkpointing, f"{name}_impl" if apart else name)
    signature = inspect.signature(own)
    lacking = {"fn", "args", "kwargs", "context_fn", "debug"} - signature.parameters.keys()
    if lacking:
        raise AttributeError(f"{own.__name__} has no {sorted(lacking)}")

    @functools.wraps(own)
    def ours(*given: Any, **named: Any) -> Iterator[None]:
        answers = _answers()
        if answers is None:
            result: Iterator[None] = own(*given, **named)
            return result
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        options = bound.arguments
        function, args, kwargs = options["fn"], options["args"], options["kwargs"]
        options.update(context_fn=checkpointing.noop_context_fn, debug=False, args=(), kwargs={})

        def with_again(again: Callable[[], None]) -> Iterator[None]:
            options["fn"] = again
            parts: Iterator[None] = own(*bound.args, **bound.kwargs)
            return parts

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


# Once and for ever: what is never put back cannot be put back by the wrong thread. Outside lanes,
# and in every other thread, each does what torch's own does.
try:
    for _replace in (_replace_apply, _replace_checkpoints, _replace_node_hooks):
        _replace()
except (AttributeError, KeyError, ValueError) as missing:
    raise ImportError(untried(f"what lanes answer is missing ({missing})")) from missing


def sets_up_context(kind: Any) -> bool:
    """True if an ``autograd.Function`` has its context set up apart from its forward pass."""
    return bool(kind.setup_context is not torch.autograd.Function.setup_context)


def safe_softmax(scores: Tensor) -> Tensor:
    """Over the last dimension; zeros where everything is masked, as in torch's attention."""
    return torch._safe_softmax(scores, -1)


# What all of it rests on


@functools.cache
def check() -> None:
    """Compare torch with what is relied on here: once, some milliseconds.

    Raises:
        RuntimeError: this torch does it in another way; no gradient was computed.
    """
    before = torch.get_rng_state()
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            for what, holds in _RELIED_ON.items():
                try:
                    good, why = holds(), ""
                except Exception as error:
                    good, why = False, f" ({type(error).__name__}: {error})"
                if not good:
                    raise RuntimeError(untried(f"{what} are not what they were{why}"))
    finally:
        torch.set_rng_state(before)


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
    """Answer what lanes are asked while ``run`` has one of their tensors."""
    asked: list[Any] = []

    def function(kind: Any, args: tuple[Any, ...], own: Any) -> Any:
        asked.append(kind)
        return args[0]

    def checkpoint(function: Any, args: Any, kwargs: Any, own: Any) -> Iterator[None]:
        asked.append((function, len(args), kwargs))
        yield

    x = torch.ones(2, requires_grad=True)
    with entered(2) as level, answering(Answers(function, checkpoint)):
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
    scores = torch.full((2, 3), float("-inf"))
    return not safe_softmax(scores).any()


_RELIED_ON: dict[str, Callable[[], bool]] = {
    "lanes": _lanes_are_apart,
    "random numbers in lanes": _lanes_draw_apart,
    "calls of an autograd.Function": _functions_ask,
    "checkpoints": _checkpoints_ask,
    "hooks on saved tensors and nodes": _hooks_are_refused,
    "masks of attention": _attention_masks,
}
