"""torch's private functions that lanes need, in one place.

A lane tensor is what ``torch.func.vmap`` hands to the function it maps: it looks like one example's
value and holds all of them, the *physical* tensor, with the examples along one dimension of it.
``tests/gradients/test_boundary.py`` fails when torch changes what is relied on here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
from torch.utils import checkpoint as checkpointing

# What ``apply`` of a user-written autograd.Function calls inside a vmap.
FUNCTION_CALL: Any = torch._functorch.autograd_function.custom_function_call
is_lane: Callable[[Tensor], bool] = functorch.is_batchedtensor


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
    """Whether the value belongs to any transform of torch.func."""
    return bool(functorch.is_functorch_wrapped_tensor(value))


def rows(value: Tensor) -> Tensor:
    """The tensor of all examples, with these in front."""
    whole, dim = physical(value)
    return whole.movedim(dim, 0) if dim else whole


def lane(whole: Tensor, dim: int, level: int) -> Tensor:
    """The lane tensor of a physical one."""
    wrapped: Tensor = functorch._add_batch_dim(whole, dim, level)
    return wrapped


@contextmanager
def saving_hooks_by(enter: Callable[[Any, Callable[[Any], None]], None]) -> Iterator[None]:
    """Hooks on saved tensors, which see physical tensors, are put in force by ``enter``.

    It is given the hooks and torch's own way of putting them in force; those of torch's
    checkpointing are none of its business.
    """
    kind = torch.autograd.graph.saved_tensors_hooks
    own = kind.__enter__

    def ours(hooks: Any) -> None:
        if type(hooks).__module__ == checkpointing.__name__:
            own(hooks)
        else:
            enter(hooks, own)

    kind.__enter__ = ours  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.__enter__ = own  # type: ignore[method-assign]


def saving_hooks_in_force() -> bool:
    """Whether hooks on saved tensors are in force now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def interrupted() -> bool:
    """Whether anything stands between a torch function and its arithmetic: modes, transforms."""
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or current_level() != -1
        or saving_hooks_in_force()
    )


Checkpoint = Callable[..., Any]


class _Reentrant:
    """Stands for ``CheckpointFunction``: the same recomputation without reentrance."""

    def __init__(self, generator: Checkpoint) -> None:
        self._generator = generator

    def apply(self, function: Checkpoint, preserve: bool, *args: Any) -> Any:
        options = (checkpointing.noop_context_fn, "default", False, True)
        parts = self._generator(function, preserve, *options, *args)
        next(parts)
        result = function(*args)
        for _ in parts:
            raise RuntimeError("a checkpoint's generator must end after the function")
        return result


@contextmanager
def checkpoints_by(make: Callable[[Checkpoint], Checkpoint]) -> Iterator[None]:
    """``torch.utils.checkpoint.checkpoint`` of both kinds runs ``make(torch's own generator)``."""
    generator = checkpointing._checkpoint_without_reentrant_generator
    function = checkpointing.CheckpointFunction
    ours = make(generator)
    checkpointing._checkpoint_without_reentrant_generator = ours
    checkpointing.CheckpointFunction = _Reentrant(ours)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        checkpointing._checkpoint_without_reentrant_generator = generator
        checkpointing.CheckpointFunction = function  # type: ignore[misc]


@contextmanager
def functions_by(call: Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]) -> Iterator[None]:
    """``Function.apply`` inside a vmap is ``call(kind, args, torch's own apply)``."""
    kept = torch.autograd.Function.__dict__["apply"]

    def own(kind: Any, *args: Any) -> Any:
        return kept.__func__(kind, *args)

    def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not torch._C._are_functorch_transforms_active():
            return kept.__func__(kind, *args, **kwargs)
        return call(kind, args, own)

    kind: Any = torch.autograd.Function
    kind.apply = classmethod(apply)
    try:
        yield
    finally:
        kind.apply = kept


def sets_up_context(kind: Any) -> bool:
    """Whether an ``autograd.Function`` has its context set up apart from its forward pass."""
    return bool(kind.setup_context is not torch.autograd.Function.setup_context)


def safe_softmax(scores: Tensor) -> Tensor:
    """Over the last dimension; zeros where everything is masked, as in torch's attention."""
    return torch._safe_softmax(scores, -1)
