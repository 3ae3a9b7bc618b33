"""Aggregation of a round's updates: the weighted mean, or a robust one that resists bad clients.

Trimmed mean and median work on each coordinate (Yin, Chen, Ramchandran and Bartlett 2018); the
norm bound shortens long updates (Sun, Kairouz, Suresh and McMahan 2019). The mean holds up to
sixteen vectors in memory, the other two one vector per client. All of it is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector
from forethought.federated.federation import Robust
from forethought.federated.own_model import subtract_step

Sum = NDArray[np.float64]
# Number of vectors that are added in float32 before their sum is added to the total.
TOGETHER = 16


class WeightedMean:
    """Σ share·vector / Σ share over the clients whose updates arrived.

    ``TOGETHER`` vectors at a time are added in float32, in the order of their clients. Their sums
    are added in float64, so that a million clients lose no precision. With at most ``TOGETHER``
    clients the result does not depend on the order of arrival. With more its last digit may: exact
    integer addition would take 1.3 ms instead of 0.4 for an update of a million parameters, where
    the rest of a round without training takes 0.8 (benchmarks/exact_mean.py).

    Args:
        centre: origin of distances, float32, shape (parameters,); None: zero.
        bound: vectors are shortened to this L2 distance from ``centre``; None: they are not.

    Attributes:
        count: number of updates added.
    """

    def __init__(self, centre: Vector | None, bound: float | None = None) -> None:
        self.count = 0
        self._centre, self._bound = centre, bound
        self._total = 0.0
        self._sum: Sum | Vector | None = None  # float32 in a result of few
        self._held: dict[int, tuple[Vector, float]] = {}

    def add(self, client: int, vector: Vector, share: float) -> None:
        """Add one client's vector with its share of all weights, in the order of arrival."""
        if self._bound is not None:
            vector = shortened(vector, self._centre, self._bound)
        self._held[client] = vector, share
        self.count += 1
        if len(self._held) == TOGETHER:
            self._join()

    def _join(self) -> None:
        part = self._taken()
        self._sum = part.astype(np.float64) if self._sum is None else self._sum + part

    def _taken(self) -> Vector:
        """The weighted sum of the held vectors, which are then dropped."""
        (vector, share), *others = (self._held[client] for client in sorted(self._held))
        part: Vector = vector * np.float32(share)
        self._total += float(np.float32(share))
        for vector, share in others:
            subtract_step(part, vector, -share, part)
            self._total += float(np.float32(share))
        self._held = {}
        return part

    def result(self) -> Vector:
        """The mean, float32, shape (parameters,).

        Raises:
            ValueError: no update was added.
        """
        if not self.count:
            raise ValueError("no update has come: there is no mean of nothing")
        if self._sum is None:
            self._sum = self._taken()
        elif self._held:
            self._join()
        mean: Vector = np.empty(len(self._sum), dtype=np.float32)
        # Divided in float64, without a copy of that size.
        np.divide(self._sum, self._total, out=mean, dtype=np.float64, casting="unsafe")
        return mean

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything added so far, as arrays."""
        found: dict[str, NDArray[np.generic]] = {"total": np.array([self._total, self.count])}
        if self._sum is not None:
            found["sum"] = self._sum
        if self._held:
            found["held"] = np.stack([vector for vector, _ in self._held.values()])
            found["clients"] = np.array(list(self._held), dtype=np.int64)
            found["shares"] = np.array([share for _, share in self._held.values()])
        return found

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """The inverse of :meth:`state`."""
        total, count = state["total"]
        self._total, self.count = float(total), int(count)
        if "sum" in state:
            self._sum = np.array(state["sum"], dtype=np.float64)
        if "part" in state:  # version 0.2.0 added updates in the order of arrival
            part = np.array(state["part"], dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
        if "held" in state:
            vectors = np.array(state["held"], dtype=np.float32)
            known = state["clients"].tolist(), zip(vectors, state["shares"].tolist(), strict=True)
            self._held = dict(zip(*known, strict=True))


class Sorted:
    """The coordinate-wise mean without the ``trimmed`` share at each end; 0.5: the median.

    Weights are ignored, since a hostile client could claim any. The methods are those of
    :class:`WeightedMean`.
    """

    def __init__(self, trimmed: float) -> None:
        self._trimmed = trimmed
        self._vectors: list[Vector] = []

    @property
    def count(self) -> int:
        """Number of updates added."""
        return len(self._vectors)

    def add(self, client: int, vector: Vector, share: float) -> None:
        self._vectors.append(vector)

    def result(self) -> Vector:
        if not self._vectors:
            raise ValueError("no update has come: there is no median of nothing")
        values = np.sort(np.stack(self._vectors), axis=0)
        count = len(values)
        cut = (count - 1) // 2 if self._trimmed == 0.5 else math.ceil(self._trimmed * count)
        cut = min(cut, (count - 1) // 2)
        return values[cut : count - cut].mean(axis=0, dtype=np.float64).astype(np.float32)

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"vectors": np.stack(self._vectors)} if self._vectors else {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        if state:
            self._vectors = [np.array(row, dtype=np.float32) for row in state["vectors"]]


Aggregate: TypeAlias = WeightedMean | Sorted


def shortened(vector: Vector, centre: Vector | None, bound: float) -> Vector:
    """``vector``, moved towards ``centre`` (None: 0) until its L2 distance is at most ``bound``."""
    change = vector if centre is None else vector - centre
    length = float(np.linalg.norm(change.astype(np.float64)))
    if length <= bound:
        return vector
    short = (change * (bound / length)).astype(np.float32)
    return short if centre is None else centre + short


def aggregate(robust: Robust, centre: Vector | None) -> Aggregate:
    """An empty aggregate of the kind that ``robust`` names.

    Args:
        centre: the weights that the updates started from; None: updates are gradients.
    """
    match robust.kind:
        case "trimmed":
            return Sorted(robust.share)
        case "median":
            return Sorted(0.5)
        case _:
            return WeightedMean(centre, robust.bound)
