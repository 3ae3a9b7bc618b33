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

from forethought.gradients.ghost import joined
from forethought.gradients.rounding import SLACK, gamma
from forethought.gradients.terms import BoundedTerm, Bounds, Dense, Outer, Term, bounded, mass_of
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


class Moved:
    """A term whose gradients lie elsewhere in the parameter: same numbers, same norms.

    A subclass says where (``moved``) and how to be made of another term (``around``).
    """

    term: BoundedTerm

    def moved(self, rows: Tensor) -> Tensor:
        """From the term's shape to the parameter's, with any number of rows in front."""
        raise NotImplementedError

    def around(self, term: Term) -> Moved:
        """The same place of another term."""
        raise NotImplementedError

    @property
    def added(self) -> int:
        return self.term.added

    @property
    def breadth(self) -> int:
        return self.term.breadth

    @property
    def dtype(self) -> torch.dtype:
        return self.term.dtype

    def off(self, length: int | None) -> float:
        return self.term.off(length)

    def bounds(self) -> Bounds:
        return self.term.bounds()

    def squared_norms(self) -> Tensor:
        return self.term.squared_norms()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.moved(self.term.weighted(factors).unsqueeze(0))[0]

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        return self.moved(self.term.summed(factors, length).unsqueeze(0))[0]

    def rows(self) -> Tensor:
        return self.moved(self.term.rows())

    def picked(self, index: Tensor) -> Moved:
        return self.around(self.term.picked(index))

    def without(self, bad: Tensor) -> Moved:
        return self.around(self.term.without(bad))

    def settled(self) -> Moved:
        return self.around(self.term.settled())

    def way(self) -> str:
        return self.term.way()


@dataclass
class Placed(Moved):
    """A term of a view, as a term of the whole parameter."""

    term: BoundedTerm
    shape: tuple[int, ...]
    geometry: Geometry

    def moved(self, rows: Tensor) -> Tensor:
        whole = rows.new_zeros(rows.shape[0], *self.shape)
        step = whole[0].numel()
        view = whole.as_strided(
            (rows.shape[0], *self.geometry.size),
            (step, *self.geometry.stride),
            self.geometry.offset,
        )
        view.copy_(rows)
        return whole

    def around(self, term: Term) -> Placed:
        return Placed(bounded(term), self.shape, self.geometry)


class _Several:
    """What terms of parts say together."""

    def _all(self) -> Sequence[BoundedTerm]:
        raise NotImplementedError

    @property
    def added(self) -> int:
        return sum(term.added for term in self._all())

    @property
    def breadth(self) -> int:
        return sum(term.breadth for term in self._all())

    @property
    def dtype(self) -> torch.dtype:
        kinds = {term.dtype for term in self._all()}
        return torch.float64 if torch.float64 in kinds else torch.float32

    def off(self, length: int | None) -> float:
        # The parts are added in float64.
        terms = self._all()
        return max(term.off(length) for term in terms) + gamma(len(terms) + 2, torch.float64)

    def way(self) -> str:
        return ", ".join(dict.fromkeys(term.way() for term in self._all()))


@dataclass
class Disjoint(_Several):
    """Terms of parts of a parameter that do not overlap: their squared norms add."""

    terms: Sequence[BoundedTerm]

    def _all(self) -> Sequence[BoundedTerm]:
        return self.terms

    def bounds(self) -> Bounds:
        found = [term.bounds() for term in self.terms]
        norms = torch.stack([bounds.norms for bounds in found])
        masses = torch.stack([mass_of(bounds) for bounds in found])
        known = [bounds.reach for bounds in found if bounds.reach is not None]
        return Bounds(
            torch.linalg.vector_norm(norms, dim=0) * SLACK,
            masses.sum(0) * SLACK,
            torch.stack(known).amax(0) if known else None,
        )

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        total = self.terms[0].summed(factors, length)
        for term in self.terms[1:]:
            total += term.summed(factors, length)
        return total

    def rows(self) -> Tensor:
        total = self.terms[0].rows()
        for term in self.terms[1:]:
            total = total + term.rows()
        return total

    def picked(self, index: Tensor) -> Disjoint:
        return Disjoint([term.picked(index) for term in self.terms])

    def without(self, bad: Tensor) -> Disjoint:
        return Disjoint([bounded(term.without(bad)) for term in self.terms])

    def settled(self) -> Disjoint:
        return Disjoint([bounded(term.settled()) for term in self.terms])


@dataclass
class Filled:
    """The first ``count`` of the ``size`` rows of a term, the others repeating these in turn."""

    term: BoundedTerm
    count: int
    size: int

    @property
    def added(self) -> int:
        return self.term.added

    @property
    def breadth(self) -> int:
        return self.term.breadth

    @property
    def dtype(self) -> torch.dtype:
        return self.term.dtype

    def off(self, length: int | None) -> float:
        return self.term.off(length)

    def bounds(self) -> Bounds:
        found = self.term.bounds()
        norms, *others = (None if part is None else part[: self.count] for part in found)
        assert norms is not None  # every term has norms
        return Bounds(norms, *others)

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        missing = factors.new_zeros(self.size - self.count)
        return self.term.summed(torch.cat([factors, missing]), length)

    def rows(self) -> Tensor:
        return self.term.rows()[: self.count]

    def picked(self, index: Tensor) -> BoundedTerm:
        return self.term.picked(index)

    def without(self, bad: Tensor) -> Filled:
        every = bad[torch.arange(self.size, device=bad.device) % self.count]
        return Filled(bounded(self.term.without(every)), self.count, self.size)

    def settled(self) -> Filled:
        return self

    def way(self) -> str:
        return self.term.way()


@dataclass
class Split(_Several):
    """Terms of lanes that ran apart: (which of all lanes, their term)."""

    parts: Sequence[tuple[Tensor, BoundedTerm]]
    size: int

    def _all(self) -> Sequence[BoundedTerm]:
        return [term for _, term in self.parts]

    def _joined(self, values: Sequence[Tensor]) -> Tensor:
        whole = values[0].new_zeros(self.size, *values[0].shape[1:])
        for (index, _), value in zip(self.parts, values, strict=True):
            whole[index.to(value.device)] = value.to(whole.dtype)
        return whole

    def bounds(self) -> Bounds:
        found = [term.bounds() for _, term in self.parts]
        reach = [torch.zeros_like(b.norms) if b.reach is None else b.reach for b in found]
        return Bounds(
            self._joined([bounds.norms for bounds in found]),
            self._joined([mass_of(bounds) for bounds in found]),
            self._joined(reach),
        )

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        total: Tensor | None = None
        for index, term in self.parts:
            part = term.summed(factors[index.to(factors.device)], length)
            total = part if total is None else total.add_(part)
        assert total is not None  # lanes that parted are two parts at least
        return total

    def rows(self) -> Tensor:
        return self._joined([term.rows() for _, term in self.parts])

    def picked(self, index: Tensor) -> Split:
        found: list[tuple[Tensor, BoundedTerm]] = []
        for mine, term in self.parts:
            # Where the picked ones are among these lanes, and where the result wants them.
            inside = mine.to(index.device).unsqueeze(1) == index.unsqueeze(0)
            places, wanted = inside.nonzero(as_tuple=True)
            if len(places):
                found.append((wanted, term.picked(places)))
        return Split(found, len(index))

    def without(self, bad: Tensor) -> Split:
        return Split(
            [(i, bounded(term.without(bad[i.to(bad.device)]))) for i, term in self.parts],
            self.size,
        )

    def settled(self) -> Split:
        return self


class Unused:
    """The gradient of a parameter that the loss does not depend on."""

    added, breadth, dtype = 1, 1, torch.float64

    def __init__(self, size: int, parameter: Tensor) -> None:
        self._size, self._parameter = size, parameter

    def bounds(self) -> Bounds:
        return Bounds(torch.zeros(self._size, dtype=torch.float64, device=self._parameter.device))

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors, None)

    def off(self, length: int | None) -> float:
        return 0.0

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        return torch.zeros_like(self._parameter, dtype=torch.float64)

    def rows(self) -> Tensor:
        return zeros_for(self._parameter, self._size, *self._parameter.shape)

    def picked(self, index: Tensor) -> Unused:
        return Unused(index.numel(), self._parameter)

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
            merged = Placed(bounded(merged), place.shape, place.geometry)
        terms.append(merged)
    if len(terms) == 1:
        return terms[0]
    parts = tuple(place.geometry for place in by_place)
    shape = next(iter(by_place)).shape
    known = tuple(part for part in parts if part is not None)
    if len(known) == len(parts) and not _overlap(shape, known):
        return Disjoint([bounded(term) for term in terms])
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
