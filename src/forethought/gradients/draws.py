"""Random numbers of lanes that run apart: each lane keeps the ones it drew together.

When lanes part (:class:`.control.Parted`), they run again from the start, each with its own kind.
A model that lets values of the examples reach Python therefore draws in a way that does not depend
on who is there. A mask of dropout belongs to its number in the pass and its shape; it is drawn once
for all lanes of the batch, and each lane takes its own row. Every other random function runs for
all lanes of the batch, from the same state of the generator, seeded afresh for every answer
that Python gets. So a lane's numbers follow from its place in the batch and from its own answers,
never from those of other lanes.
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


def _states() -> list[Tensor]:
    """The states of the generators of all devices in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return states


class Masks:
    """Masks of dropout for all lanes of a batch.

    Args:
        width: how many lanes the batch has.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._base = int(torch.randint(2**62, ()))
        self._drawn: dict[Any, Tensor] = {}

    def mask(self, number: int, shape: tuple[int, ...], chance: float, like: Tensor) -> Tensor:
        """0 with the given chance, else 1/(1 − chance): shape (width, *shape)."""
        key = (number, shape, chance, like.dtype, like.device)
        if key not in self._drawn:
            digest = hashlib.blake2b(f"{self._base} {key}".encode(), digest_size=8).digest()
            generator = torch.Generator(like.device)
            generator.manual_seed(int.from_bytes(digest, "big") >> 1)
            mask = torch.empty(self.width, *shape, dtype=like.dtype, device=like.device)
            mask.bernoulli_(1 - chance, generator=generator)
            self._drawn[key] = mask.div_(1 - chance) if chance < 1 else mask
        return self._drawn[key]


class Draws:
    """What lanes that are elsewhere leave to those that are here.

    Args:
        masks: of the whole batch. mine: which of its lanes are here, in their order, and then some
            of them again, which fill up a block; None: all.
        apart: whether others of its lanes run elsewhere.

    Attributes:
        number: masks that the pass has taken so far.
    """

    def __init__(self, masks: Masks, mine: Tensor | None, apart: bool) -> None:
        self._masks, self._width = masks, masks.width
        self._mine = mine
        self.number = 0
        self.apart = apart
        if mine is not None:
            self._real = len(set(mine.tolist()))
            # Lanes that are elsewhere take part with anybody's values.
            self._fill = torch.zeros(self._width, dtype=torch.long)
            self._fill[mine[: self._real]] = torch.arange(self._real)

    def mask(self, shape: tuple[int, ...], chance: float, like: Tensor) -> Tensor:
        """The next mask of dropout, one row a lane that is here: shape (lanes, *shape)."""
        self.number += 1
        mask = self._masks.mask(self.number, shape, chance, like)
        return self.narrowed(mask, 0)

    def widened(self, whole: Tensor, dim: int) -> Tensor:
        """A physical tensor for all lanes of the batch."""
        return whole.index_select(dim, self._fill.to(whole.device))

    def narrowed(self, whole: Tensor, dim: int) -> Tensor:
        """The lanes that are here, of a physical tensor for all."""
        return whole if self._mine is None else whole.index_select(dim, self._mine.to(whole.device))

    def call(self, level: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function; if it draws random numbers, for all lanes of the batch."""
        if kwargs.get("generator") is not None:
            raise Unable("a generator of the model's own, in lanes that may run apart")
        if self._mine is None:
            return func(*args, **kwargs)
        if func is F.dropout and (kwargs.get("inplace") or (len(args) > 3 and args[3])):
            args[0].copy_(self._wide(level, func, args[:3], {**kwargs, "inplace": False}))
            return args[0]
        before = _states()
        result = func(*args, **kwargs)
        if all(map(torch.equal, _states(), before)):
            return result
        torch.set_rng_state(before[0])
        if len(before) > 1:
            torch.cuda.set_rng_state_all(before[1:])
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
                if self._mine is not None and self._real < len(self._mine):
                    # A row that fills up has its original's value, and must not share its way back.
                    here = whole.narrow(dim, 0, self._real)
                    again = whole.narrow(dim, self._real, len(self._mine) - self._real)
                    whole = torch.cat([here, again.detach()], dim)
        return lane(whole, dim, level)
