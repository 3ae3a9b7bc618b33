"""Where in a parameter a gradient belongs: whole, a view of it, or several views.

``weight.t()``, one third of a packed projection, a reshaped kernel: all are strided views of the
parameter, and their gradients go back to the same strided places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from forethought.gradients.terms import Dense, Outer, Term, joined
from forethought.gradients.trees import zeros_for


@dataclass(frozen=True)
class Geometry:
    """A strided view of a parameter, in elements from its first one."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Slot:
    """A parameter, or the part of it that a call used."""

    name: str
    shape: tuple[int, ...]
    geometry: Geometry | None = None


def slot(value: Tensor, parameters: dict[int, str]) -> Slot | None:
    """The slot that ``value`` is, or None when it is no trained parameter and no view of one."""
    name = parameters.get(id(value))
    if name is not None:
        return Slot(name, tuple(value.shape))
    base = value._base if value._is_view() else None
    if base is None:
        return None
    name = parameters.get(id(base))
    repeated = any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True))
    if name is None or repeated or not base.is_contiguous() or value.dtype != base.dtype:
        return None
    offset = int(value.storage_offset()) - int(base.storage_offset())
    geometry = Geometry(tuple(value.shape), value.stride(), offset)
    return Slot(name, tuple(base.shape), geometry)


@dataclass
class Placed:
    """A term of a view, as a term of the whole parameter."""

    term: Term
    shape: tuple[int, ...]
    geometry: Geometry

    def squared_norms(self) -> Tensor:
        return self.term.squared_norms()

    def weighted(self, factors: Tensor) -> Tensor:
        return self._put(self.term.weighted(factors).unsqueeze(0))[0]

    def rows(self) -> Tensor:
        return self._put(self.term.rows())

    def _put(self, values: Tensor) -> Tensor:
        whole = values.new_zeros(values.shape[0], *self.shape)
        step = whole[0].numel()
        view = whole.as_strided(
            (values.shape[0], *self.geometry.size),
            (step, *self.geometry.stride),
            self.geometry.offset,
        )
        view.copy_(values)
        return whole

    def without(self, bad: Tensor) -> Placed:
        return Placed(self.term.without(bad), self.shape, self.geometry)

    def settled(self) -> Placed:
        return Placed(self.term.settled(), self.shape, self.geometry)

    def way(self) -> str:
        return self.term.way()


@dataclass
class Disjoint:
    """Terms of parts of a parameter that do not overlap: their squared norms add."""

    terms: Sequence[Term]

    def squared_norms(self) -> Tensor:
        return torch.stack([term.squared_norms() for term in self.terms]).sum(0)

    def weighted(self, factors: Tensor) -> Tensor:
        return torch.stack([term.weighted(factors) for term in self.terms]).sum(0)

    def rows(self) -> Tensor:
        total = self.terms[0].rows()
        for term in self.terms[1:]:
            total = total + term.rows()
        return total

    def without(self, bad: Tensor) -> Disjoint:
        return Disjoint([term.without(bad) for term in self.terms])

    def settled(self) -> Disjoint:
        return Disjoint([term.settled() for term in self.terms])

    def way(self) -> str:
        return ", ".join(dict.fromkeys(term.way() for term in self.terms))


@dataclass
class Split:
    """Terms of lanes that ran apart: (which of all lanes, their term)."""

    parts: Sequence[tuple[Tensor, Term]]
    size: int

    def _joined(self, values: list[Tensor]) -> Tensor:
        whole = values[0].new_zeros(self.size, *values[0].shape[1:])
        for (index, _), value in zip(self.parts, values, strict=True):
            whole[index.to(value.device)] = value.to(whole.dtype)
        return whole

    def squared_norms(self) -> Tensor:
        return self._joined([term.squared_norms() for _, term in self.parts])

    def weighted(self, factors: Tensor) -> Tensor:
        total: Tensor | None = None
        for index, term in self.parts:
            part = term.weighted(factors[index.to(factors.device)])
            total = part if total is None else total + part
        assert total is not None  # lanes that parted are two parts at least
        return total

    def rows(self) -> Tensor:
        return self._joined([term.rows() for _, term in self.parts])

    def without(self, bad: Tensor) -> Split:
        return Split(
            [(i, term.without(bad[i.to(bad.device)])) for i, term in self.parts], self.size
        )

    def settled(self) -> Split:
        return self

    def way(self) -> str:
        return ", ".join(dict.fromkeys(term.way() for _, term in self.parts))


class Unused:
    """The gradient of a parameter that the loss does not depend on."""

    def __init__(self, size: int, parameter: Tensor) -> None:
        self._size, self._parameter = size, parameter

    def squared_norms(self) -> Tensor:
        return zeros_for(self._parameter, self._size)

    def weighted(self, factors: Tensor) -> Tensor:
        return zeros_for(self._parameter)

    def rows(self) -> Tensor:
        return zeros_for(self._parameter, self._size, *self._parameter.shape)

    def without(self, bad: Tensor) -> Unused:
        return self

    def settled(self) -> Unused:
        return self

    def way(self) -> str:
        return "unused"


@lru_cache(maxsize=1024)
def _overlap(shape: tuple[int, ...], parts: tuple[Geometry, ...]) -> bool:
    count = torch.Size(shape).numel()
    hits = torch.zeros(count, dtype=torch.int32)
    places = torch.arange(count)
    for part in parts:
        hits[places.as_strided(part.size, part.stride, part.offset).flatten()] += 1
    return bool((hits > 1).any())


def combine(uses: Iterable[tuple[Slot, Term]]) -> Term:
    """The one term of a parameter from all its uses in a pass."""
    uses = list(uses)
    if len(uses) == 1 and uses[0][0].geometry is None:
        return uses[0][1]
    by_place: dict[Slot, list[Term]] = defaultdict(list)
    for place, term in uses:
        by_place[place].append(term)
    terms: list[Term] = []
    for place, same in by_place.items():
        merged = _merge(same)
        if place.geometry is not None:
            merged = Placed(merged, place.shape, place.geometry)
        terms.append(merged)
    if len(terms) == 1:
        return terms[0]
    parts = tuple(place.geometry for place in by_place)
    shape = next(iter(by_place)).shape
    known = tuple(part for part in parts if part is not None)
    if len(known) == len(parts) and not _overlap(shape, known):
        return Disjoint(terms)
    return _sum(terms)


def _merge(terms: list[Term]) -> Term:
    if len(terms) == 1:
        return terms[0]
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(outers) == len(terms) and len({term.transposed for term in outers}) == 1:
        blocks = [block for term in outers for block in term.blocks]
        return Outer(joined(blocks), outers[0].transposed)
    return _sum(terms)


def _sum(terms: list[Term]) -> Dense:
    total = terms[0].rows()
    for term in terms[1:]:
        total = total + term.rows()
    return Dense(total)
