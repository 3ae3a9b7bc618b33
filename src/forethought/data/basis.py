"""Functions of encoded numbers, added as features: with them, a linear model can be non-linear.

Nothing in a basis is fitted to records. The range of its numbers inside their declared range may be
released first, with noise, and paid for (:attr:`Basis.ranges`); the functions then use that range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from forethought.values.checks import real, settle, whole

Floats = NDArray[np.float32]

WIDTH = 0.25
# Rows at a time for which waves are computed.
_ROWS = 4096


class OnnxNodes(Protocol):
    """An ONNX graph under construction; everything in it is referred to by name."""

    def input(self, name: str, kind: type, about: str = "") -> str: ...
    def constant(self, value: Any, kind: type = np.float64) -> str: ...
    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str: ...
    def cast(self, value: str, kind: type) -> str: ...


def hats(values: NDArray[Any], low: float, high: float, pieces: int) -> NDArray[Any]:
    """Hat functions (splines of degree 1) of numbers, on evenly spaced knots.

    Args:
        values: numbers of any shape; a number outside the range counts as the nearer end.
        low, high: the range.
        pieces: number of intervals between knots.

    Returns:
        One more axis, of pieces + 1 features that sum to 1, in the precision of ``values``.
    """
    at = (np.clip(values, low, high) - low) * (pieces / (high - low))
    found: NDArray[Any] = 1 - np.abs(at[..., None] - np.arange(pieces + 1, dtype=at.dtype))
    found[found < 0] = 0
    return found


def hats_in_onnx(graph: OnnxNodes, numbers: str, pieces: int) -> str:
    """:func:`hats` in ONNX, of numbers in [−1, 1], (rows, numbers), with one more axis."""
    wide = graph.add("Unsqueeze", numbers, graph.constant([2], np.int64))
    knots = graph.constant(np.linspace(-1, 1, pieces + 1), np.float32)
    apart = graph.add("Abs", graph.add("Sub", wide, knots))
    fall = graph.add("Mul", apart, graph.constant(pieces / 2, np.float32))
    return graph.add("Relu", graph.add("Sub", graph.constant(1.0, np.float32), fall))


def _widened(features: Floats, more: int) -> tuple[Floats, int]:
    """Features with space for ``more`` further ones, and the index of the first of these."""
    rows, width = features.shape
    found = np.empty((rows, width + more), np.float32)
    found[:, :width] = features
    return found, width


class _Functions:
    """Features that are added to a table's encoded ones."""

    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        # A model card has them in lists.
        settle(self, numbers=tuple(whole("numbers", place, least=0) for place in self.numbers))

    def _names(self, titles: tuple[str, ...], pieces: int) -> tuple[str, ...]:
        """Names of the hats of all numbers."""
        return tuple(
            f"{titles[place]} near {knot / pieces:.0%} of its range"
            for place in self.numbers
            for knot in range(pieces + 1)
        )

    def _gathered(self, graph: OnnxNodes, features: str) -> str:
        """The numbers in ONNX, (rows, numbers)."""
        return graph.add("Gather", features, graph.constant(list(self.numbers), np.int64), axis=1)


@dataclass(frozen=True)
class Basis(_Functions):
    """Functions that are added to a table's encoded numbers.

    A hat is 1 at its knot and falls linearly to 0 at the neighbouring knots (de Boor 1978: splines
    of degree 1). A wave is a cosine of a random linear combination of all numbers; many waves
    approximate a Gaussian kernel (Rahimi and Recht 2007).

    Args:
        numbers: indices of the numbers among the encoded features, each in [−1, 1].
        hats: evenly spaced hats for each number.
        waves: waves of all numbers together.
        width: of the approximated kernel, times √numbers, in units of half a range.
        seed: of the waves; it is public.
        ranges: for each number, the part of [−1, 1] that is stretched to [−1, 1]; empty: all.

    Raises:
        ValueError, TypeError: numbers out of range, no numbers, or a different number of ranges.
    """

    numbers: tuple[int, ...]
    hats: int = 0
    waves: int = 0
    width: float = WIDTH
    seed: int = 0
    ranges: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.numbers or len(set(self.numbers)) != len(self.numbers):
            raise ValueError(f"a basis needs numbers, each once, not {self.numbers!r}")
        settle(self, ranges=tuple(map(tuple, self.ranges)))
        for name in ("hats", "waves", "seed"):
            whole(name, getattr(self, name), least=0, most=100_000)
        if self.hats == 1:
            raise ValueError("one hat is no function of a number: 0, or at least 2")
        real("width", self.width, above=0)
        if self.ranges and len(self.ranges) != len(self.numbers):
            raise ValueError(f"{len(self.ranges)} ranges of {len(self.numbers)} numbers")
        for low, high in self.ranges:
            if not -1 <= low < high <= 1:
                raise ValueError(f"a range has a lower and a higher end in [-1, 1]: {low, high}")

    @property
    def more(self) -> int:
        """The number of features that the basis adds."""
        return len(self.numbers) * self.hats + self.waves

    @property
    def bound(self) -> float:
        """The largest norm of the added features."""
        hats = len(self.numbers) if self.hats else 0
        return math.sqrt(hats + (self._wave**2 * self.waves))

    @property
    def usual_square(self) -> float:
        """Mean square norm of the added features, for numbers spread evenly over their ranges."""
        hats = 2 / 3 * len(self.numbers) if self.hats else 0.0
        return hats + self._wave**2 * self.waves / 2

    @property
    def _wave(self) -> float:
        """Amplitude of a wave, so that all waves together have the usual norm of the numbers."""
        return math.sqrt(2 * len(self.numbers) / 3 / self.waves) if self.waves else 0.0

    def titles(self, titles: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the added features, from the names of the encoded ones."""
        hats = self._names(titles, self.hats - 1) if self.hats else ()
        return (*hats, *(f"wave {number}" for number in range(1, self.waves + 1)))

    @cached_property
    def _directions(self) -> tuple[Floats, Floats]:
        """Directions (numbers, waves) and phases (waves,), from a stream that never changes."""
        count = len(self.numbers)
        raw = np.random.PCG64(self.seed).random_raw((count + 1) * self.waves)
        chances = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        drawn = chances.reshape(count + 1, self.waves)
        from scipy.special import ndtri  # imported here, since it is slow to load

        directions = ndtri(drawn[:-1]) / (self.width * math.sqrt(count))
        return directions.astype(np.float32), (2 * math.pi * drawn[-1]).astype(np.float32)

    @cached_property
    def _ends(self) -> tuple[Floats, Floats]:
        """Middle and half width of each number's range."""
        ends = np.array(self.ranges or [(-1.0, 1.0)] * len(self.numbers))
        middle, half = ends.mean(1), (ends[:, 1] - ends[:, 0]) / 2
        return middle.astype(np.float32), half.astype(np.float32)

    def of(self, features: Floats) -> Floats:
        """All features, float32 (rows, encoded + more), the encoded ones first.

        Args:
            features: encoded, float32 (rows, encoded); not changed.
        """
        found, at = _widened(features, self.more)
        places = list(self.numbers)
        numbers = features[:, places]
        if self.ranges:
            middle, half = self._ends
            numbers = np.clip((numbers - middle) / half, -1, 1)
            found[:, places] = numbers
        for number in range(len(places)) if self.hats else ():
            found[:, at : at + self.hats] = hats(numbers[:, number], -1.0, 1.0, self.hats - 1)
            at += self.hats
        if self.waves:
            directions, phases = self._directions
            for first in range(0, len(found), _ROWS):
                rows = numbers[first : first + _ROWS]
                # No matrix product: how it rounds a row depends on the row's place and on the
                # number of rows, so that one record would change the features of others.
                part = np.tile(phases, (len(rows), 1))
                for number, along in zip(rows.T, directions, strict=True):
                    part += number[:, None] * along
                found[first : first + _ROWS, at:] = np.float32(self._wave) * np.cos(part)
        return found

    def with_ranges(self, ranges: tuple[tuple[float, float], ...]) -> Self:
        """The same basis with other ranges."""
        return replace(self, ranges=ranges)

    def to_onnx(self, graph: OnnxNodes, features: str) -> str:
        """The name of all features in ONNX, from that of the encoded ones, (rows, encoded)."""
        numbers, parts = self._gathered(graph, features), [features]
        if self.ranges:
            middle, half = (graph.constant(part, np.float32) for part in self._ends)
            numbers = graph.add("Div", graph.add("Sub", numbers, middle), half)
            ends = (graph.constant(end, np.float32) for end in (-1.0, 1.0))
            numbers = graph.add("Clip", numbers, *ends)
            moved = graph.add("Transpose", numbers, perm=[1, 0])
            rows = graph.add("Transpose", features, perm=[1, 0])
            index = graph.constant([[place] for place in self.numbers], np.int64)
            rows = graph.add("ScatterND", rows, index, moved)
            parts = [graph.add("Transpose", rows, perm=[1, 0])]
        if self.hats:
            bent = hats_in_onnx(graph, numbers, self.hats - 1)
            parts.append(graph.add("Flatten", bent))
        if self.waves:
            directions, phases = (graph.constant(part, np.float32) for part in self._directions)
            turned = graph.add("Add", graph.add("MatMul", numbers, directions), phases)
            size = graph.constant(self._wave, np.float32)
            parts.append(graph.add("Mul", graph.add("Cos", turned), size))
        return graph.add("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


# Features of an additive model: a curve over each declared number, surfaces over pairs of them.
#
# Nothing here is fitted to records: the knots lie evenly on the ranges that the owner declared.


# Pieces of a curve and of each side of a surface, and the scale of their features relative to the
# number itself. Small features are learnt later, so that a short training path, which much noise
# allows, gives straight lines, and a long one gives curves. Chosen on the tables that
# experiments/additive lists.
PIECES, SIZE = 8, 0.5
PAIR_PIECES, PAIR_SIZE = 2, 1.0
# The least number of records times ε from which pairs are learnt, and that for each pair.
LEAST, EACH = 3_000.0, 25.0


def pairs_pay(numbers: int, examples: int, epsilon: float | None) -> bool:
    """True if records and ε suffice to learn surfaces over all pairs of columns despite the noise.

    Args:
        numbers: number of columns that have a curve.
        examples: number of records.
        epsilon: of the budget; None: not known.
    """
    count = math.comb(numbers, 2)
    known = examples * (epsilon or 0.0)
    return count > 0 and known >= max(LEAST, EACH * count)


@dataclass(frozen=True)
class Curves(_Functions):
    """Features added to a table's encoded ones, which make a linear model an additive one.

    Args:
        numbers: indices, among the encoded features, of those in a declared range, each in [−1, 1].
        pieces: number of intervals of the curve over each number.
        pairs: True for a surface over every two of them.

    Raises:
        TypeError, ValueError: numbers out of range.
    """

    numbers: tuple[int, ...]
    pieces: int = PIECES
    pairs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("pieces", self.pieces, least=1, most=100)
        if not isinstance(self.pairs, bool):
            raise TypeError(f"pairs is true or false, not {self.pairs!r}")

    @property
    def couples(self) -> tuple[tuple[int, int], ...]:
        """Every two positions in ``numbers`` with a surface, in the order of their features."""
        return tuple(combinations(range(len(self.numbers)), 2)) if self.pairs else ()

    @property
    def more(self) -> int:
        """The number of features that the curves and surfaces add."""
        return (self.pieces + 1) * len(self.numbers) + (PAIR_PIECES + 1) ** 2 * len(self.couples)

    @property
    def bound(self) -> float:
        """The largest norm of the added features: hats sum to 1, and so do their products."""
        return math.sqrt(SIZE**2 * len(self.numbers) + self.pair_size**2 * len(self.couples))

    @property
    def usual_square(self) -> float:
        """Mean square norm of the added features, for numbers spread evenly over their ranges."""
        return SIZE**2 * 2 / 3 * len(self.numbers) + self.pair_size**2 * 4 / 9 * len(self.couples)

    @property
    def pair_size(self) -> float:
        """Scale of a surface's features, so that all surfaces together grow as the curves do."""
        return PAIR_SIZE * math.sqrt(2 / max(1, len(self.numbers) - 1))

    def titles(self, titles: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the added features, from the names of the encoded ones."""
        names = [titles[place] for place in self.numbers]
        pairs = (
            f"{names[one]} near {i / PAIR_PIECES:.0%} and {names[two]} near "
            f"{j / PAIR_PIECES:.0%} of their ranges"
            for one, two in self.couples
            for i, j in product(range(PAIR_PIECES + 1), repeat=2)
        )
        return (*self._names(titles, self.pieces), *pairs)

    def of(self, features: Floats) -> Floats:
        """All features, float32 (rows, encoded + more), the encoded ones first.

        Args:
            features: encoded, float32 (rows, encoded); not changed.
        """
        found, at = _widened(features, self.more)
        step = self.pieces + 1
        for place in self.numbers:
            found[:, at : at + step] = SIZE * hats(features[:, place], -1.0, 1.0, self.pieces)
            at += step
        if not self.couples:
            return found
        coarse = hats(features[:, list(self.numbers)], -1.0, 1.0, PAIR_PIECES)
        step = (PAIR_PIECES + 1) ** 2
        for one, two in self.couples:
            both = coarse[:, one, :, None] * coarse[:, two, None, :]
            found[:, at : at + step] = self.pair_size * both.reshape(len(found), step)
            at += step
        return found

    def to_onnx(self, graph: OnnxNodes, features: str) -> str:
        """The name of all features in ONNX, from that of the encoded ones, (rows, encoded)."""
        if not self.numbers:
            return features

        def sized(value: str, size: float) -> str:
            return graph.add("Flatten", graph.add("Mul", value, graph.constant(size, np.float32)))

        numbers = self._gathered(graph, features)
        parts = [features, sized(hats_in_onnx(graph, numbers, self.pieces), SIZE)]
        if self.couples:
            coarse = hats_in_onnx(graph, numbers, PAIR_PIECES)
            sides = [
                graph.add(
                    "Unsqueeze",
                    graph.add("Gather", coarse, graph.constant(list(side), np.int64), axis=1),
                    graph.constant([axis], np.int64),
                )
                for side, axis in zip(zip(*self.couples, strict=True), (3, 2), strict=True)
            ]
            parts.append(sized(graph.add("Mul", *sides), self.pair_size))
        return graph.add("Concat", *parts, axis=1)
