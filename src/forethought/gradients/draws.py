"""Random numbers of lanes that run apart: each lane keeps the ones it drew together.

When lanes part (:class:`.control.Parted`), they run again from the start, each with its own kind.
Every random function then still runs for all the lanes of the batch, from the same state of the
generator, and each lane keeps its own numbers; and whenever a value of the examples reaches Python
the generator is seeded afresh for the answer. So a lane's numbers follow from its place in the
batch and from its own answers, never from those of other lanes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from forethought.gradients.boundary import entered, is_lane, lane, outside, physical
from forethought.gradients.control import Unable


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


class Draws:
    """What lanes that are elsewhere leave to those that are here.

    Args:
        width: lanes of the whole batch. mine: which of them are here, in their order.
    """

    def __init__(self, width: int, mine: Tensor) -> None:
        self._width, self._mine = width, mine
        # Lanes that are elsewhere take part with anybody's values.
        self._fill = torch.zeros(width, dtype=torch.long)
        self._fill[mine] = torch.arange(len(mine))

    def widened(self, whole: Tensor, dim: int) -> Tensor:
        """A physical tensor for all lanes of the batch."""
        return whole.index_select(dim, self._fill.to(whole.device))

    def narrowed(self, whole: Tensor, dim: int) -> Tensor:
        """The lanes that are here, of a physical tensor for all."""
        return whole.index_select(dim, self._mine.to(whole.device))

    def call(self, level: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function; if it draws random numbers, for all lanes of the batch."""
        if kwargs.get("generator") is not None:
            raise Unable("a generator of the model's own, in lanes that run apart")
        if func is F.dropout and (kwargs.get("inplace") or (len(args) > 3 and args[3])):
            args[0].copy_(self._wide(level, func, args[:3], {**kwargs, "inplace": False}))
            return args[0]
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        if torch.equal(torch.get_rng_state(), before):
            return result
        torch.set_rng_state(before)
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
        with outside(), entered(self._width) as inner:

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
                raise Unable("a random function with several results, in lanes that run apart")
            if not is_lane(drawn):
                return drawn
            with outside():
                whole, dim = physical(drawn)
                whole = self.narrowed(whole, dim)
        return lane(whole, dim, level)
