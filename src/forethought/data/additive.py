"""Features of an additive model: a curve over each declared number, surfaces over pairs of them.

Nothing here is fitted to records: the knots lie evenly on the ranges that the owner declared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from forethought.data.basis import hats, hats_in_onnx
from forethought.values.checks import whole
from forethought.values.serialisation import build, entries

Floats = NDArray[np.float32]

# Pieces of a curve and of a surface's sides, and how large their features are beside the number
# itself: small ones are learnt later, so that a short path, which much noise leaves, gives straight
# lines and a long one curves. Chosen on the tables that experiments/additive says were looked at.
PIECES, SIZE = 8, 0.5
PAIR_PIECES, PAIR_SIZE = 2, 1.0
# Records times ε from which pairs are learnt at all, and how much of that each pair needs.
LEAST, EACH = 3_000.0, 25.0


def pairs_pay(numbers: int, examples: int, epsilon: float | None) -> bool:
    """True if so many records at this ε tell surfaces over all pairs of columns from noise.

    Args:
        numbers: columns that have a curve. examples: records. epsilon: None where nothing says it.
    """
    count = math.comb(numbers, 2)
    known = examples * (epsilon or 0.0)
    return count > 0 and known >= max(LEAST, EACH * count)


@dataclass(frozen=True)
class Curves:
    """Features beside a table's encoded ones, with all of which a linear model is additive.

    Args:
        numbers: places, among the encoded features, of those that lie on a declared range, each in
            [−1, 1]. pieces: of the curve over each. pairs: whether there is a surface over every
            two of them.

    Raises:
        TypeError, ValueError: numbers out of range.
    """

    numbers: tuple[int, ...]
    pieces: int = PIECES
    pairs: bool = False

    def __post_init__(self) -> None:
        whole("pieces", self.pieces, least=1, most=100)
        for place in self.numbers:
            whole("numbers", place, least=0)
        if not isinstance(self.pairs, bool):
            raise TypeError(f"pairs is true or false, not {self.pairs!r}")

    @property
    def couples(self) -> tuple[tuple[int, int], ...]:
        """Every two positions in ``numbers`` that have a surface, in the order of its features."""
        return tuple(combinations(range(len(self.numbers)), 2)) if self.pairs else ()

    @property
    def more(self) -> int:
        """The number of features that it adds."""
        return (self.pieces + 1) * len(self.numbers) + (PAIR_PIECES + 1) ** 2 * len(self.couples)

    @property
    def bound(self) -> float:
        """The largest norm of what it adds: hats sum to 1, and so do products of them."""
        return math.sqrt(self.size**2 * len(self.numbers) + self.pair_size**2 * len(self.couples))

    @property
    def usual_square(self) -> float:
        """Mean square norm of what it adds, numbers spread evenly over their ranges."""
        return self.size**2 * 2 / 3 * len(self.numbers) + self.pair_size**2 * 4 / 9 * len(
            self.couples
        )

    @property
    def size(self) -> float:
        """Size of a curve's features."""
        return SIZE

    @property
    def pair_size(self) -> float:
        """Size of a surface's features: all of them together grow as the curves do."""
        return PAIR_SIZE * math.sqrt(2 / max(1, len(self.numbers) - 1))

    def titles(self, titles: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the features that it adds, from those of the encoded ones."""
        names = [titles[place] for place in self.numbers]
        found = [
            f"{name} near {knot / self.pieces:.0%} of its range"
            for name in names
            for knot in range(self.pieces + 1)
        ]
        for one, two in self.couples:
            found += [
                f"{names[one]} near {i / PAIR_PIECES:.0%} and {names[two]} near "
                f"{j / PAIR_PIECES:.0%} of their ranges"
                for i in range(PAIR_PIECES + 1)
                for j in range(PAIR_PIECES + 1)
            ]
        return tuple(found)

    def of(self, features: Floats) -> Floats:
        """All features, float32 (rows, encoded + more): the encoded ones come first.

        Args:
            features: encoded, float32 (rows, encoded); not changed.
        """
        rows, width = features.shape
        found = np.empty((rows, width + self.more), np.float32)
        found[:, :width] = features
        at, step = width, self.pieces + 1
        for place in self.numbers:
            found[:, at : at + step] = self.size * hats(features[:, place], -1.0, 1.0, self.pieces)
            at += step
        if not self.couples:
            return found
        coarse = hats(features[:, list(self.numbers)], -1.0, 1.0, PAIR_PIECES)
        step = (PAIR_PIECES + 1) ** 2
        for one, two in self.couples:
            both = coarse[:, one, :, None] * coarse[:, two, None, :]
            found[:, at : at + step] = self.pair_size * both.reshape(rows, step)
            at += step
        return found

    def to_onnx(self, graph: Any, features: str) -> str:
        """All features, from the name of the encoded ones, float32 (rows, encoded).

        Args:
            graph: a :class:`forethought.data.columns.OnnxNodes`.
        """
        if not self.numbers:
            return features

        def bent(pieces: int) -> Any:
            """(rows, numbers, pieces + 1)"""
            places = graph.constant(list(self.numbers), np.int64)
            numbers = graph.add("Gather", features, places, axis=1)
            return hats_in_onnx(graph, numbers, pieces)

        def sized(value: Any, size: float) -> Any:
            return graph.add("Flatten", graph.add("Mul", value, graph.constant(size, np.float32)))

        parts = [features, sized(bent(self.pieces), self.size)]
        if self.couples:
            coarse = bent(PAIR_PIECES)
            sides = [
                graph.add(
                    "Unsqueeze",
                    graph.add("Gather", coarse, graph.constant(list(side), np.int64), axis=1),
                    graph.constant([axis], np.int64),
                )
                for side, axis in zip(zip(*self.couples, strict=True), (3, 2), strict=True)
            ]
            parts.append(sized(graph.add("Mul", *sides), self.pair_size))
        found: str = graph.add("Concat", *parts, axis=1)
        return found

    def to_dict(self) -> dict[str, Any]:
        """As a model card keeps it; :meth:`from_dict` reads it back."""
        return entries(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError, TypeError: something else.
        """
        given = {**values, "numbers": tuple(values.get("numbers", ()))}
        return build(cls, given, "curves")
