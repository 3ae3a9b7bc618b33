"""Torch optimizers by name. What they do with a noised mean is post-processing, hence free."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module

import torch

from forethought.optimizers import OPTIMIZERS
from forethought.use import Optimizer

# Optimizers that evaluate the loss again inside a step would use the data without noise.
_LOOKS_AT_THE_DATA = {"lbfgs"}
_LOOKS = (
    "optimizer {name!r} evaluates the loss inside its step, which would read the data without "
    "noise; use 'sgd' or 'adam'"
)

# Of torch, and of ours with what is known of them.
NAMES: dict[str, str] = {
    name.lower(): f"torch.optim:{name}"
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
    and name.lower() not in _LOOKS_AT_THE_DATA
} | {name: kind.home for name, kind in OPTIMIZERS.items()}


def make_optimizer(
    optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The torch optimizer that a plan names.

    Raises:
        ValueError: an unknown name (the nearest is suggested), an option that it does not take,
            or an optimizer that evaluates the loss inside its step.
    """
    kind = _find(optimizer.name)
    if needs_closure(kind):
        raise ValueError(_LOOKS.format(name=optimizer.name))
    options = dict(optimizer.options)
    known = set(inspect.signature(kind.__init__).parameters) - {"self", "params", "lr"}
    takes_any = any(
        p.kind is p.VAR_KEYWORD for p in inspect.signature(kind.__init__).parameters.values()
    )
    unknown = sorted(set(options) - known)
    if unknown and not takes_any:
        raise ValueError(
            f"optimizer {optimizer.name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it takes {', '.join(sorted(known))}"
        )
    try:
        return kind(parameters, lr=optimizer.learning_rate, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer {optimizer.name!r}: {error}") from error


def needs_closure(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether a step of this optimizer evaluates the loss, which would read the data again."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _find(name: str) -> type[torch.optim.Optimizer]:
    if ":" not in name:
        found = NAMES.get(name.lower())
        if found is not None:
            return _find(found)
        if name.lower() in _LOOKS_AT_THE_DATA:
            raise ValueError(_LOOKS.format(name=name))
        near = get_close_matches(name.lower(), NAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"unknown optimizer {name!r}: {hint}The names are {', '.join(sorted(NAMES))}, or "
            "'module:Class' for your own"
        )
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"optimizer {name!r} cannot be loaded: {error}") from error
    if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"optimizer {name!r} is not a subclass of torch.optim.Optimizer")
    return kind
