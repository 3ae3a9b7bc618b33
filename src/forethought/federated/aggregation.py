"""From a round's updates to one vector: the weighted mean, or one that hostile clients bend less.

Trimmed mean and median take the coordinates apart (Yin, Chen, Ramchandran and Bartlett 2018); the
norm bound shortens long updates (Sun, Kairouz, Suresh and McMahan 2019). The mean needs up to
sixteen vectors of memory, the other two a vector for each client. All of it is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector
from forethought.federated.federation import Robust
from forethought.federated.own_model import add_weighted

Sum = NDArray[np.float64]
# Vectors that are added up in float32 before they join the rest.
TOGETHER = 16


class WeightedMean:
    """Σ share·vector / Σ share over the clients that came.

    A few vectors at a time are added in float32, in the order of their clients; their sums in
    float64, so that a million clients lose nothing. The bits of so few clients' mean do not depend
    on who came first. Those of more may, in the last digit: adding whole numbers instead costs an
    update of a million parameters 1.3 ms in place of 0.4, where all else that a round without
    training does for it is 0.8 (benchmarks/exact_mean.py).

    Args:
        bound: vectors are shortened to this distance from ``centre``; None: they are not.

    Attributes:
        count: updates that have come.
    """

    def __init__(self, centre: Vector | None, bound: float | None = None) -> None:
        self.count = 0
        self._centre, self._bound = centre, bound
        self._total = 0.0
        self._sum: Sum | Vector | None = None  # float32 in a result of few
        self._held: dict[int, tuple[Vector, float]] = {}

    def add(self, client: int, vector: Vector, share: float) -> None:
        """Take one client's vector in, with its share of all weights; in the server's order."""
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
        """The sum of what is held, which is forgotten."""
        (vector, share), *others = (self._held[client] for client in sorted(self._held))
        part: Vector = vector * np.float32(share)
        self._total += float(np.float32(share))
        for vector, share in others:
            add_weighted(part, vector, share)
            self._total += float(np.float32(share))
        self._held = {}
        return part

    def result(self) -> Vector:
        """The round's vector, float32."""
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
        """The state of what has come so far."""
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
        if "part" in state:  # of 0.2.0, which added as updates came
            part = np.array(state["part"], dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
        if "held" in state:
            vectors = np.array(state["held"], dtype=np.float32)
            known = state["clients"].tolist(), zip(vectors, state["shares"].tolist(), strict=True)
            self._held = dict(zip(*known, strict=True))


class Sorted:
    """Coordinate by coordinate: the mean without the ``trimmed`` share at each end; 1/2: median.

    Weights make no difference here: a hostile client could claim any. Its methods are those of
    :class:`WeightedMean`.
    """

    def __init__(self, trimmed: float) -> None:
        self._trimmed = trimmed
        self._vectors: list[Vector] = []

    @property
    def count(self) -> int:
        """Updates that have come."""
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
        kept: Sum = values[cut : count - cut].mean(axis=0, dtype=np.float64)
        return kept.astype(np.float32)

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"vectors": np.stack(self._vectors)} if self._vectors else {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        if state:
            self._vectors = [np.array(row, dtype=np.float32) for row in state["vectors"]]


Aggregate: TypeAlias = WeightedMean | Sorted


def shortened(vector: Vector, centre: Vector | None, bound: float) -> Vector:
    """``vector``, moved towards ``centre`` (None: 0) until it is no further away than ``bound``."""
    change = vector if centre is None else vector - centre
    length = float(np.linalg.norm(change.astype(np.float64)))
    if length <= bound:
        return vector
    short = (change * (bound / length)).astype(np.float32)
    return short if centre is None else centre + short


def aggregate(robust: Robust, centre: Vector | None) -> Aggregate:
    """An empty aggregate of a kind.

    Args:
        centre: the weights that updates began with; None: updates are gradients.
    """
    match robust.kind:
        case "trimmed":
            return Sorted(robust.share)
        case "median":
            return Sorted(0.5)
        case _:
            return WeightedMean(centre, robust.bound)
