"""What cannot be trained privately as it is, told in one line where it happens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forethought.gradients import foreign
from forethought.gradients.boundary import FUNCTION_CALL, GETTERS, global_hooks, is_lane, physical
from forethought.gradients.control import Refused, Unable
from forethought.gradients.lanes import Lanes, handles


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str) -> Any:
    return kwargs.get(name, args[at] if len(args) > at else None)


_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum")
_PLAIN_BATCH_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training")


@handles(F.batch_norm, torch.batch_norm)
def _batch_norm(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = (*_BATCH_NORM, "eps") if func is F.batch_norm else _PLAIN_BATCH_NORM
    given = dict(zip(names, args, strict=False)) | kwargs
    if not given.get("training"):
        return NotImplemented
    if not lanes.settings.grouped:
        raise Refused(
            "batch normalisation in training mode mixes the examples of a batch: use GroupNorm "
            "(forethought.gradients.replace_mixing_layers), or eval mode with fixed statistics"
        )
    if given.get("running_mean") is None:
        return NotImplemented
    if func is torch.batch_norm:
        raise Unable("torch.batch_norm with running statistics in a group")
    # Inside a group of examples it is theirs; the running statistics are left as they are.
    with lanes:
        return F.batch_norm(**{**given, "running_mean": None, "running_var": None})


@handles(F.instance_norm)
def _instance_norm(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    own = _argument(args, kwargs, 5, "use_input_stats")
    if own is not False and _argument(args, kwargs, 1, "running_mean") is not None:
        raise Refused(
            "instance normalisation that tracks running statistics mixes the examples: use "
            "track_running_stats=False (forethought.gradients.replace_mixing_layers)"
        )
    return NotImplemented


@handles(F.embedding)
def _embedding(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_table(
        _argument(args, kwargs, 3, "max_norm"), _argument(args, kwargs, 5, "scale_grad_by_freq")
    )
    return NotImplemented


@handles(F.embedding_bag)
def _bag(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_table(
        _argument(args, kwargs, 3, "max_norm"), _argument(args, kwargs, 5, "scale_grad_by_freq")
    )
    return NotImplemented


def _check_table(max_norm: Any, by_frequency: Any) -> None:
    if max_norm is not None:
        raise Refused("an embedding's max_norm rewrites rows that the examples use: use None")
    if by_frequency:
        raise Refused(
            "scale_grad_by_freq counts tokens over the batch, which mixes the examples: use False"
        )


@handles(
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.retain_grad,
    always=True,
)
def _hook(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise Refused(
        "a hook on a tensor would run in the backward pass, where the examples are no longer "
        "apart: remove it, or write what it does into the forward pass"
    )


@handles(torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward, always=True)
def _inner_backward(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise Unable("the model or loss differentiates inside itself")


@handles(FUNCTION_CALL, always=True)
def _function(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind = args[0]  # its ``apply`` was taken before the pass
    return foreign.call(lanes, kind, args[1:], lambda kind, *rest: kind.apply(*rest))


@handles(GETTERS["data"].__get__, always=True)
def _data(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].detach()  # the same memory; unlike .data, its changes are counted


@handles(GETTERS["requires_grad"].__get__)
def _requires_grad(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return physical(args[0])[0].requires_grad


@handles(GETTERS["is_leaf"].__get__)
def _is_leaf(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return physical(args[0])[0].is_leaf


@handles(GETTERS["grad_fn"].__get__)
def _grad_fn(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if physical(args[0])[0].grad_fn is None:
        return None
    raise Refused("the graph of an example's value (grad_fn) is shared by all: leave it alone")


@handles(torch.Tensor.numpy, torch.Tensor.__array__, always=True)
def _array(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A copy: what is written there would stay in the tensor, and no version would tell.
    return func(*args, **kwargs).copy()


@handles(torch.Tensor.requires_grad_)
def _wants_gradient(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]  # nobody could see that gradient: inner differentiation goes another way


@handles(GETTERS["requires_grad"].__set__)
def _sets_gradient(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None


# Batching rules of torch that mix examples where the ranks of the operands differ: found by
# comparing every rule of torch 2.13 with a loop.
@handles(
    torch.linalg.solve,
    torch.linalg.solve_ex,
    torch.linalg.lstsq,
    torch.linalg.lu_solve,
    torch.lu_solve,
    torch.Tensor.lu_solve,
)
def _mistaken(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise Unable(f"torch's batching rule for {func.__name__} may mix the examples")


@handles(torch.roll, torch.Tensor.roll)
def _roll(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Of one number, vmap rolls the lanes.
    return args[0].clone() if args and not args[0].dim() else NotImplemented


@handles(
    torch.index_fill,
    torch.Tensor.index_fill,
    torch.Tensor.index_fill_,
)
def _fill(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = _argument(args, kwargs, 3, "value")
    if isinstance(value, Tensor) and is_lane(value):
        raise Unable("torch's batching rule for index_fill mixes the examples' values")
    return NotImplemented


@handles(torch.Tensor.as_strided, torch.as_strided)
def _strided(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise Unable("as_strided, which sees the memory of an example's tensor")


@handles(
    torch.Tensor.resize_,
    torch.Tensor.resize_as_,
    torch.Tensor.set_,
    torch.Tensor.as_strided_,
    torch.Tensor.__dlpack__,
    torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage,
    torch.Tensor.storage,
)
def _memory(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise Refused(
        f"{func.__name__} reaches the memory of an example's tensor, which holds all of them: "
        "make a new tensor instead"
    )


def hooked(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Refuse hooks that would run in the backward pass, and parameters that no rule is true of.

    Raises:
        Refused: naming the module or parameter.
    """
    if global_hooks(forwards=False):
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
                _check_parameter(f"{name}.{key}" if name else key, parameter)


def _check_parameter(name: str, parameter: Tensor) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise Refused(
            f"parameter {name!r} has a hook on its gradient, which private training does not "
            "pass through it: remove it"
        )
    kind = type(parameter.data)
    if kind is not Tensor and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise Refused(
            f"parameter {name!r} is a {kind.__name__}: shards of a parameter (FSDP, tensor "
            "parallelism) and other wrapped tensors are not supported; use the plain module"
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
