"""The cost of a mean whose bits do not depend on the order: python benchmarks/exact_mean.py

Whole numbers add up the same in any order: every weighted number is rounded to a multiple of 2^-40
and added in 64 bits. Printed is processor time for each update of a million parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from forethought.exchange.messages import Vector
from forethought.federated.aggregation import WeightedMean
from forethought.federated.own_model import PIECE

CLIENTS, PARAMETERS = 64, 10**6


def as_it_is(vectors: Sequence[Vector]) -> None:
    mean = WeightedMean(None)
    for client in range(CLIENTS):
        mean.add(client, vectors[client % len(vectors)], 1 / CLIENTS)
    mean.result()


def in_bins(vectors: Sequence[Vector]) -> None:
    total, scratch = np.zeros(PARAMETERS, np.int64), np.empty(PIECE)
    scale = 2.0**40 / CLIENTS
    for client in range(CLIENTS):
        for begin in range(0, PARAMETERS, PIECE):
            piece = vectors[client % len(vectors)][begin : begin + PIECE]
            scaled = np.multiply(piece, scale, out=scratch[: len(piece)], dtype=np.float64)
            np.rint(scaled, out=scaled)
            total[begin : begin + PIECE] += scaled.astype(np.int64)
    (total * 2.0**-40).astype(np.float32)


def milliseconds(added: Callable[[Sequence[Vector]], None], vectors: Sequence[Vector]) -> float:
    """Of each update: the best of five."""
    found = []
    for _ in range(5):
        begin = time.process_time()
        added(vectors)
        found.append(time.process_time() - begin)
    return 1e3 * min(found) / CLIENTS


def main() -> None:
    draw = np.random.default_rng(0)
    vectors = [draw.normal(size=PARAMETERS).astype(np.float32) for _ in range(8)]
    now, bins = milliseconds(as_it_is, vectors), milliseconds(in_bins, vectors)
    print(
        f"an update in the mean: {now:.2f} ms as it is, {bins:.2f} ms in bins ({bins / now:.1f} x)"
    )


if __name__ == "__main__":
    main()
