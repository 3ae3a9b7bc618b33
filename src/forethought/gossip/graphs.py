"""Undirected communication graphs of workers, made by name or read from a file.

A worker exchanges messages with its neighbours only. Every graph here is connected, because
workers in unconnected parts can never reach consensus.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Literal, get_args

from forethought.values.checks import one_of, settle, whole

Kind = Literal["complete", "ring", "torus", "random-regular", "hypercube", "exponential"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FROM_FILE = "file"
Edge = tuple[int, int]
# The most workers, and the most draws of a random graph before an error.
LARGEST, _DRAWS = 10**5, 50


class GraphError(ValueError):
    """A graph is unusable for gossip; the message says what to change."""


@dataclass(frozen=True)
class Graph:
    """Workers 0 … size − 1 and the pairs of them that may exchange weights.

    Args:
        kind: one of ``KINDS``, or "file".
        size: number of workers, 2 to 10⁵.
        listed: the edges; stored sorted, each (smaller, larger). None only for "complete".

    Raises:
        GraphError: an edge is invalid, the graph is not connected, or ``listed`` does not fit
            ``kind``.
    """

    kind: str
    size: int
    listed: tuple[Edge, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        whole("size", self.size, least=2, most=LARGEST)
        if (self.listed is None) != (self.kind == "complete"):
            raise GraphError("a graph has a list of edges, or is complete and needs none")
        if self.listed is None:
            return
        seen = set()
        for one, other in self.listed:
            if one == other:
                raise GraphError(f"worker {one} has an edge to itself: take that edge out")
            if not (0 <= one < self.size and 0 <= other < self.size):
                raise GraphError(
                    f"the edge {one} - {other} names a worker outside 0 to {self.size - 1}"
                )
            seen.add((min(one, other), max(one, other)))
        settle(self, listed=tuple(sorted(seen)))
        far = self.distances(0)
        if cut := far.count(-1):
            raise GraphError(
                f"the graph is not connected: worker 0 reaches {self.size - cut} of {self.size} "
                f"workers (not worker {far.index(-1)}, for one); add an edge between the parts"
            )

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, sorted, the smaller worker first."""
        return tuple(combinations(range(self.size), 2)) if self.listed is None else self.listed

    @cached_property
    def _adjacent(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in range(self.size)]
        for one, other in self.listed or ():
            found[one].append(other)
            found[other].append(one)
        return tuple(tuple(sorted(ones)) for ones in found)

    def neighbours(self, worker: int) -> tuple[int, ...]:
        """Neighbours of ``worker``, sorted."""
        if self.listed is None:
            return tuple(other for other in range(self.size) if other != worker)
        return self._adjacent[worker]

    def degree(self, worker: int) -> int:
        """Number of neighbours."""
        return self.size - 1 if self.listed is None else len(self._adjacent[worker])

    def joins(self, one: int, other: int) -> bool:
        """True if two different workers are neighbours."""
        if self.listed is None:
            return one != other
        return other in self._adjacent[one]

    def distances(self, worker: int) -> tuple[int, ...]:
        """Fewest edges from ``worker`` to each worker; -1 to one that cannot be reached."""
        found, front = [-1] * self.size, deque([worker])
        found[worker] = 0
        while front:
            one = front.popleft()
            for other in self.neighbours(one):
                if found[other] < 0:
                    found[other] = found[one] + 1
                    front.append(other)
        return tuple(found)


def make(kind: Kind, size: int, *, degree: int | None = None, seed: int = 0) -> Graph:
    """A graph by name.

    Args:
        kind: ``"complete"``; ``"ring"``; ``"torus"`` (four neighbours on a wrapped grid, as square
            as the size allows); ``"random-regular"``; ``"hypercube"`` (size a power of two);
            ``"exponential"`` (neighbours 1, 2, 4, … away on a ring; Ying et al. 2021).
        size: number of workers, 2 to 10⁵.
        degree: neighbours of each worker, for "random-regular" only.
        seed: for "random-regular"; public.

    Raises:
        GraphError: no such graph exists. ValueError: the kind is unknown.
    """
    one_of("kind", kind, KINDS)
    size = whole("size", size, least=2, most=LARGEST)
    if (degree is not None) != (kind == "random-regular"):
        raise GraphError(
            "degree is for random-regular graphs: "
            + ("give it" if degree is None else f"leave it out for {kind!r}")
        )
    match kind:
        case "complete":
            return Graph(kind, size)
        case "ring":
            edges = _steps(size, [1])
        case "torus":
            edges = _torus(size)
        case "hypercube":
            edges = _hypercube(size)
        case "exponential":
            edges = _steps(size, powers(size))
        case _:
            edges = _regular(size, degree or 0, seed)
    return Graph(kind, size, tuple(edges))


def written_rows(path: str | Path) -> Iterator[tuple[int, str, list[str]]]:
    """The lines of a text file that are not empty: (number, line, words); # begins a comment.

    Blanks or commas separate words. Raises OSError if the file cannot be read.
    """
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        if words := line.partition("#")[0].replace(",", " ").split():
            yield number, line, words


def read(path: str | Path) -> Graph:
    """A graph from a text file: one edge per line as two numbers, workers counted from 0.

    Empty lines and text after a ``#`` are ignored; the largest number determines the size.

    Raises:
        GraphError: a line is not an edge, or the graph is not connected.
        OSError: the file cannot be read.
    """
    edges = []
    for number, line, words in written_rows(path):
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise GraphError(
                f"{path}, line {number}: {line.strip()!r} is not an edge; write two workers as "
                "whole numbers from 0, such as '0 1'"
            )
        edges.append((int(words[0]), int(words[1])))
    if not edges:
        raise GraphError(f"{path} has no edge: write one a line, such as '0 1'")
    size = 1 + max(max(edge) for edge in edges)
    if size > LARGEST:
        raise GraphError(f"{path} names worker {size - 1}; at most {LARGEST:,} workers are taken")
    return Graph(FROM_FILE, size, tuple(edges))


def powers(size: int) -> list[int]:
    """1, 2, 4, … below ``size``: the strides of an exponential graph."""
    return [1 << power for power in range((size - 1).bit_length())]


def sides(size: int) -> tuple[int, int]:
    """Rows and columns of a torus, as square as ``size`` allows.

    Raises:
        GraphError: the size is prime.
    """
    rows = next(side for side in range(int(size**0.5), 0, -1) if size % side == 0)
    if rows == 1:
        raise GraphError(
            f"{size} workers make no torus, since {size} is not rows × columns; take another "
            "number of workers, or a ring"
        )
    return rows, size // rows


def _ordered(one: int, other: int) -> Edge:
    return (one, other) if one < other else (other, one)


def _steps(size: int, strides: list[int]) -> set[Edge]:
    return {
        _ordered(worker, (worker + stride) % size) for worker in range(size) for stride in strides
    }


def _torus(size: int) -> set[Edge]:
    columns = sides(size)[1]
    edges = {_ordered(here, (here + columns) % size) for here in range(size)}
    return edges | {
        _ordered(here, here - here % columns + (here + 1) % columns) for here in range(size)
    }


def _hypercube(size: int) -> set[Edge]:
    if size & (size - 1):
        raise GraphError(
            f"a hypercube has a power of two of workers, not {size}: take "
            f"{1 << size.bit_length() - 1} or {1 << size.bit_length()}"
        )
    return {_ordered(worker, worker ^ bit) for worker in range(size) for bit in powers(size)}


def _regular(size: int, degree: int, seed: int) -> set[Edge]:
    degree = whole("degree", degree, least=2, most=size - 1)
    if size * degree % 2:
        raise GraphError(
            f"{size} workers with {degree} neighbours each have half an edge over: make one of the "
            "two even"
        )
    for draw in range(_DRAWS):
        edges = _paired(size, degree, random.Random(f"{seed}/{draw}"))
        if edges is not None:
            with contextlib.suppress(GraphError):  # not connected
                Graph(FROM_FILE, size, tuple(edges))
                return edges
    raise GraphError(
        f"none of {_DRAWS} random graphs of {size} workers with {degree} neighbours is connected: "
        "take a larger degree, or a ring"
    )


def _paired(size: int, degree: int, draw: random.Random) -> set[Edge] | None:
    """A random regular graph's edges: ends are paired at random, and pairs that would be loops or
    repeat an edge are drawn again (Steger and Wormald 1999, close to uniform). None if no remaining
    pair fits."""
    edges: set[Edge] = set()
    ends = [worker for worker in range(size) for _ in range(degree)]
    while ends:
        draw.shuffle(ends)
        left = []
        for one, other in zip(ends[::2], ends[1::2], strict=True):
            edge = _ordered(one, other)
            if one == other or edge in edges:
                left += [one, other]
            else:
                edges.add(edge)
        if len(left) == len(ends) and edges.issuperset(combinations(sorted(set(left)), 2)):
            return None
        ends = left
    return edges
