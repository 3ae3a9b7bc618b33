"""Random numbers of lanes that run apart: each lane keeps the ones it drew together.

When lanes part (:class:`.control.Parted`), they run again from the start. Up to the question that
parted them, every random function runs for all the lanes that were together there, from the same
state of the generator, and each lane keeps its own; behind it, the generator is seeded afresh for
every answer. So a lane's numbers are independent of the other lanes', and their distribution does
not depend on who else is in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from forethought.gradients.boundary import entered, is_lane, lane, outside, physical
from forethought.gradients.control import Unable


@dataclass(frozen=True)
class Fork:
    """Where lanes parted.

    Attributes:
        decision: the number of the question. width: lanes that were together until then.
        mine: which of them the lanes that go on here are, in their order. answer: theirs.
    """

    decision: int
    width: int
    mine: Tensor
    answer: str


class Draws:
    """The forks behind a group of lanes, in order."""

    def __init__(self, forks: tuple[Fork, ...]) -> None:
        self._forks = list(forks)

    @property
    def open(self) -> bool:
        """Whether lanes that are no longer here still take part in every draw."""
        return bool(self._forks)

    def decided(self, decision: int) -> None:
        """A question was answered; if it is a fork, the generator starts a new stream."""
        if self._forks and self._forks[0].decision == decision:
            fork = self._forks.pop(0)
            base = int(_plain(lambda: torch.randint(2**62, ())))
            digest = hashlib.blake2b(f"{base} {fork.answer}".encode(), digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "big") >> 1)

    def call(self, level: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function; if it draws random numbers, for all lanes that were together here."""
        in_place = func is F.dropout and (kwargs.get("inplace") or (len(args) > 3 and args[3]))
        before = torch.get_rng_state()
        if not in_place:
            result = func(*args, **kwargs)
            if torch.equal(torch.get_rng_state(), before):
                return result
            torch.set_rng_state(before)
            if getattr(func, "__name__", "").endswith("_"):
                target = args[0]
                drawn = self._wide(level, func, args, kwargs, copy=True)
                with torch.no_grad():
                    target.copy_(drawn)
                return target
            return self._wide(level, func, args, kwargs)
        target = args[0]
        drawn = self._wide(level, func, args[:3], {**kwargs, "inplace": False})
        target.copy_(drawn)
        return target

    def _wide(
        self,
        level: int,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        copy: bool = False,
    ) -> Any:
        fork = self._forks[0]
        # Lanes that are elsewhere take part with anybody's values.
        fill = torch.zeros(fork.width, dtype=torch.long)
        fill[fork.mine] = torch.arange(len(fork.mine))
        with outside(), entered(fork.width) as inner:

            def widen(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return value
                if not is_lane(value):
                    return value.clone() if copy else value
                with outside():
                    whole, dim = physical(value)
                    whole = whole.index_select(dim, fill.to(whole.device))
                return lane(whole, dim, inner)

            drawn = func(*tree_map(widen, args), **tree_map(widen, dict(kwargs)))

            def narrow(value: Any) -> Any:
                if not isinstance(value, Tensor) or not is_lane(value):
                    return value
                with outside():
                    whole, dim = physical(value)
                    return whole.index_select(dim, fork.mine.to(whole.device)), dim

            found = tree_map(narrow, drawn)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], int):
            return lane(found[0], found[1], level)
        if isinstance(found, Tensor):
            return found
        raise Unable("a random function with several results in lanes that run apart")


def _plain(function: Any) -> Any:
    with outside():
        return function()
