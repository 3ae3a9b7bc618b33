"""Rules: how a torch function's parameters get per-example gradients from its input and output.

One rule covers one function (or several that take the same arguments). It runs unchanged, with
its parameters detached, and the gradient of its output is caught on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forethought.gradients.layout import Layout
from forethought.gradients.place import Slot
from forethought.gradients.terms import Term, sums_to


@dataclass(frozen=True)
class Use:
    """One use of parameters in one pass, seen on the way back.

    Attributes:
        arguments: the call's arguments by name, without the saved tensors and the parameters.
        parameters: role → the parameter (detached), for roles that are trained here.
        saved: name → the saved argument with the batch in front, shape (B, …).
        gradient: of the output, with the batch in front.
        batch_dim: which dimension of the output the batch was.
        folded: whether one example has several entries along the batch dimension; these then
            stay as a dimension of their own at ``batch_dim`` + 1.
    """

    arguments: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    saved: Mapping[str, Tensor]
    gradient: Tensor
    batch_dim: int
    folded: bool

    def reduced(self, values: Tensor, role: str) -> Tensor:
        """``values`` (B, *output shape) summed over everything that ``role`` was broadcast to."""
        shape = tuple(self.parameters[role].shape)
        rank = values.dim() if self.folded is False else values.dim() - 1
        padded = [1] * (rank - len(shape)) + list(shape)
        if padded[self.batch_dim] != 1:
            raise ValueError(f"{role} of shape {shape} has one entry for each example of a batch")
        if not self.folded:
            del padded[self.batch_dim]
        return sums_to(values, padded).reshape(values.shape[0], *shape)


Gradients = Callable[[Use], Iterator[tuple[str, Term]]]


def _always(arguments: Mapping[str, Any], parameters: Mapping[str, Slot]) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """How one function's parameters get their gradients.

    Attributes:
        name: what ``explain`` prints.
        signature: the function's argument names, in order.
        parameters: the arguments that may be parameters.
        saved: the arguments whose values the gradients need.
        gradients: yields (role, :class:`Term`) for every role in ``use.parameters``.
        accepts: whether the rule covers these arguments; otherwise the parameters fall back.
        run: replaces the call where one captured output is not enough (recurrent layers).
    """

    name: str
    signature: tuple[str, ...]
    parameters: tuple[str, ...]
    saved: tuple[str, ...]
    gradients: Gradients
    accepts: Callable[[Mapping[str, Any], Mapping[str, Slot]], bool] = _always
    run: Callable[..., Any] | None = None

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
    """Watch calls of ``functions`` as the torch functions that ``parts`` makes of them.

    ``parts(watch, *args, **kwargs)`` must compute the same value; it is used only where a call
    uses a trained parameter.
    """
    for function in functions:
        PARTS[function] = parts


@dataclass(frozen=True)
class Frames:
    """The layouts of one use: of its output's gradient and of each saved argument."""

    gradient: Layout
    saved: Mapping[str, Layout]
