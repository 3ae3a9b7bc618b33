"""Rules: how a torch function's parameters get per-example gradients from its input and output.

One rule covers one function (or several that take the same arguments). In the lanes it runs on the
whole batch with its parameters detached, and the gradient of its output is caught on the way back.
A function without a rule needs none: its parameters are then written out for every example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forethought.gradients.terms import Term, sums_to


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


def _always(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """How one function's parameters get their gradients.

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
    accepts: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = _always

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
    for function in functions:
        RULES[function] = rule
    return rule


PARTS: dict[Any, Callable[..., Any]] = {}


def register_parts(parts: Callable[..., Any], *functions: Any) -> None:
    """Run calls of ``functions`` in the lanes as ``parts(lanes, *args, **kwargs)``.

    ``parts`` must compute the same value for one example; what it calls is intercepted in turn.
    """
    for function in functions:
        PARTS[function] = parts


PHYSICAL: dict[Any, Callable[..., Any]] = {}


def register_physical(run: Callable[..., Any], *functions: Any) -> None:
    """Run calls of ``functions`` that see examples as ``run(lanes, function, *args, **kwargs)``.

    For functions that vmap cannot run, or only slowly. ``run`` works on the whole batch and must
    treat every row alike and alone; it may answer ``NotImplemented`` to leave the call to vmap.
    """
    for function in functions:
        PHYSICAL[function] = run
