"""The speed of mixing on a graph: eigenvalues of Laplacians and of averaging matrices.

It uses closed forms where they exist, else a dense solver for small graphs and Lanczos for large
ones. Results are floating point: for planning and tables, never for a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh

from forethought.gossip.graphs import Graph, powers, sides

# Above this number of workers Lanczos computes eigenvalues, to this relative accuracy.
_DENSE, _ACCURACY = 600, 1e-8


def algebraic_connectivity(graph: Graph) -> float:
    """The second smallest eigenvalue of the graph's Laplacian (Fiedler 1973); positive."""
    size = graph.size
    match graph.kind:
        case "complete":
            return float(size)
        case "ring":
            return _circulant_gap(size, [1])
        case "exponential":
            return _circulant_gap(size, powers(size))
        case "hypercube":
            return 2.0
        case "torus":
            return min(_circulant_gap(side, [1]) for side in sides(size))
        case _:
            ones, others = np.array(graph.edges).T
            weights = np.ones(len(ones))
            adjacency = sparse.coo_array((weights, (ones, others)), shape=(size, size))
            whole = (adjacency + adjacency.T).tocsr()
            degrees = np.asarray(whole.sum(axis=1)).ravel()
            return _second(sparse.diags_array(degrees) - whole)


def second_singular(size: int, row: Callable[[int], Mapping[int, Fraction]]) -> float:
    """The second largest singular value of a doubly stochastic matrix, in [0, 1].

    One step leaves at most this factor of the disagreement.

    Args:
        size: number of workers. row: worker → its weights.
    """
    entries = [
        (worker, other, float(weight))
        for worker in range(size)
        for other, weight in row(worker).items()
    ]
    rows, columns, weights = zip(*entries, strict=True)
    matrix = sparse.coo_array((weights, (rows, columns)), shape=(size, size)).tocsr()
    if size <= _DENSE:
        values = np.linalg.svd(matrix.toarray() - 1 / size, compute_uv=False)
        return float(min(1.0, values[0]))
    return math.sqrt(max(0.0, _second((matrix.T @ matrix).tocsr(), smallest=False)))


def exponential_factors(size: int, steps: int) -> NDArray[np.float64]:
    """The factor that remains of each frequency of a disagreement after exponential mixing.

    A step is I/2 + P/2 with a shift P: its eigenvalue at frequency f is (1 + ω^(f·stride))/2.

    Returns:
        Absolute values after ``steps`` steps for frequencies 1 … size − 1, shape (size − 1,).
    """
    frequencies = np.arange(1, size)
    strides = powers(size)
    left = np.ones(size - 1)
    for step in range(steps):
        turns = frequencies * strides[step % len(strides)] % size
        left = left * np.abs(np.cos(np.pi * turns / size))
    return left


def _circulant_gap(size: int, strides: list[int]) -> float:
    """The connectivity of a circulant graph: the least Σ (2 − 2 cos) over frequencies."""
    frequencies = np.arange(1, size)
    total = np.zeros(size - 1)
    for distance in {min(stride, size - stride) for stride in strides}:
        both = 1 if 2 * distance == size else 2
        total += both * (1 - np.cos(2 * np.pi * frequencies * distance / size))
    return float(total.min())


def _second(matrix: sparse.csr_array, smallest: bool = True) -> float:
    """The second smallest (or largest) eigenvalue of a symmetric matrix.

    The all-ones vector belongs to the smallest (or largest).
    """
    size = matrix.shape[0]
    if size <= _DENSE:
        values = np.linalg.eigvalsh(matrix.toarray())
        return float(values[1] if smallest else values[-2])
    start = np.random.Generator(np.random.PCG64(0)).standard_normal(size)
    values = eigsh(
        matrix,
        k=2,
        which="SA" if smallest else "LA",
        tol=_ACCURACY,
        v0=start,
        return_eigenvectors=False,
        maxiter=100 * size,
    )
    return float(values.max() if smallest else values.min())
