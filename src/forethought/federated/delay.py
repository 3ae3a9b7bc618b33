"""Permissible delay: how far a client's round may run ahead of the newest global model it has.

Υ(k, i) of the asynchronous algorithm (van Dijk et al., Appendix A, Algorithm 2): whether round i
(from 0) may be computed when the newest global model received is v_k. Plain functions, chosen by
name. ``module:function`` names one of the user's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forethought.values.checks import imported, one_of, whole

Permissible = Callable[[int, int], bool]


def constant(most: int) -> Permissible:
    """i − k ≤ ``most``: a fixed number of rounds ahead. 0 waits for every client each round."""
    return lambda k, i: i - k <= most


def one(most: int) -> Permissible:
    """k ≥ i − 1: 1-asynchronous, as in the paper's experiments."""
    return constant(1)


def root(most: int) -> Permissible:
    """i − k ≤ max(``most``, √(i/ln i)), counted in rounds.

    A delay of √(t/ln t) keeps the best rate for strongly convex problems (Nguyen et al. 2018).
    """
    return lambda k, i: i - k <= max(most, math.sqrt(i / math.log(i)) if i > 1 else 0)


DELAYS: Mapping[str, Callable[[int], Permissible]] = {
    "constant": constant,
    "one": one,
    "sqrt": root,
}


@dataclass(frozen=True)
class Delay:
    """A permissible delay by name.

    Args:
        kind: ``"constant"``, ``"one"`` or ``"sqrt"``; a key of :data:`DELAYS`. Or
            ``"module:function"``, a function of the user's own that is called with k and i.
        most: rounds ahead that are permitted, of "constant", and always, of "sqrt".

    Raises:
        ValueError: an unknown kind, or a negative number.
    """

    kind: str = "one"
    most: int = 1

    def __post_init__(self) -> None:
        if ":" not in self.kind:
            one_of("delay", self.kind, (*DELAYS, "module:function"))
        object.__setattr__(self, "most", whole("most", self.most, least=0))

    @property
    def permits(self) -> Permissible:
        """The function Υ(k, i).

        Of the user's own it is imported here, not before: a name in somebody else's file imports
        nothing. Round i on v_i is always permitted: no newer model comes before this round.

        Raises:
            ValueError: it cannot be imported.
        """
        if ":" in self.kind:
            chosen = imported("delay", self.kind)
            return lambda k, i: k >= i or bool(chosen(k, i))
        return DELAYS[self.kind](self.most)
