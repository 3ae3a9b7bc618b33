"""Doubly stochastic mixing matrices, one per step: the weights with which workers average.

After a step with matrix W, worker k's model is Σ_j W[k, j] w_j. Rows that sum to 1 preserve
consensus; columns that sum to 1 preserve the average of all workers. Three kinds have names:

| kind | a step | exchanges per worker |
| --- | --- | --- |
| ``"matchings"`` | randomly drawn disjoint pairs of neighbours average (Boyd et al. 2006) | ≤ 1 |
| ``"metropolis"`` | a worker averages with all neighbours (Xiao, Boyd and Kim 2007) | its degree |
| ``"exponential"`` | a worker takes half from the worker 2^t before it (Ying et al. 2021) | 1 |

The edges of the graph are divided into matchings once (``pairing``); each step draws one matching
from a public seed. So every worker can compute every step's matrix without a message, an edge is
used in one of c draws on average for c matchings, and all possible matrices can be checked.
A fourth kind, ``"given"``, is one matrix from a file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from forethought.gossip import pairing, spectrum
from forethought.gossip.graphs import Edge, Graph, powers, written_rows
from forethought.gossip.pairing import colour
from forethought.values.checks import one_of, real, whole
from forethought.values.serialisation import exact_keys

# A job file can name the kinds in Named; "given" is one matrix from a file.
Named = Literal["matchings", "metropolis", "exponential"]
Kind = Named | Literal["given"]
KINDS: tuple[Named, ...] = get_args(Named)
GIVEN: Literal["given"] = "given"
Row = dict[int, Fraction]
Living = frozenset[int] | None
HALF = Fraction(1, 2)
_NEVER = (
    "this matrix never brings the workers to agree: no weight passes between parts, or "
    "weights only change places; put positive weights on the diagonal and on edges"
)
_ZERO = 1e-12  # below this an eigenvalue computed in floating point is 0


class MixingError(ValueError):
    """Mixing weights are invalid; the message names them and says what they must be."""


@dataclass(frozen=True)
class Mixing:
    """The matrices of all steps over a graph.

    Args:
        kind: see the module. graph: off the diagonal, only weights on its edges may differ from 0.
        seed: of the draws of "matchings"; public, the same for all workers.
        given: rows of (worker, weight), only for kind "given".

    Raises:
        MixingError: the matrix is not doubly stochastic, or the graph does not allow this kind.
    """

    kind: Kind
    graph: Graph
    seed: int = 0
    given: tuple[tuple[tuple[int, Fraction], ...], ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        one_of("kind", self.kind, (*KINDS, GIVEN))
        whole("seed", self.seed, least=0, most=2**63 - 1)
        if (self.given is not None) != (self.kind == GIVEN):
            raise MixingError("a mixing of kind 'given' has its rows; the other kinds have none")
        if self.kind == "exponential" and self.graph.kind not in ("exponential", "complete"):
            raise MixingError(
                f"exponential mixing needs the edges of an exponential or complete graph, not of "
                f"{self.graph.kind!r}: choose that graph, or matchings"
            )
        if self.given is not None:
            size = self.graph.size
            if len(self.given) != size:
                raise MixingError(
                    f"a matrix for {size} workers has as many rows, not {len(self.given)}"
                )
            self.check()
            self._require_mixing()

    @property
    def period(self) -> int:
        """Number of different matrices."""
        if self.kind == "matchings":
            return pairing.rounds(self.graph.size) if self._complete else len(self._classes)
        return len(powers(self.graph.size)) if self.kind == "exponential" else 1

    @property
    def drawn(self) -> bool:
        """True if each step draws a matching at random; False if the matrices follow a period."""
        return self.kind == "matchings"

    @property
    def mutual(self) -> bool:
        """True if all matrices are symmetric: both ends of a link use the same weight."""
        if self.given is None:
            return self.kind != "exponential"
        rows = [dict(row) for row in self.given]
        return all(
            rows[other].get(worker) == weight
            for worker, row in enumerate(rows)
            for other, weight in row.items()
        )

    def matching(self, step: int, living: Living = None) -> tuple[Edge, ...]:
        """The pairs that average in ``step``, sorted: disjoint neighbours, both living.

        Args:
            step: from 0. living: the workers that take part; None: all. On a complete graph the
                living are paired anew; elsewhere a worker whose partner is missing does nothing.

        Raises:
            MixingError: the kind is not "matchings".
        """
        self._need_matchings()
        if self._complete:
            here, drawn = self._tournament(step, living)
            count = len(here)
            places = ((one, pairing.opponent(one, count, drawn)) for one in range(count))
            return tuple((here[one], here[other]) for one, other in places if one < other)
        pairs = self._classes[_draw(self.seed, step) % len(self._classes)]
        return tuple(pair for pair in pairs if living is None or living.issuperset(pair))

    def partner(self, step: int, worker: int, living: Living = None) -> int | None:
        """The partner of ``worker`` in ``step``; None: it has none. O(1) when all are living.

        Raises:
            MixingError: the kind is not "matchings".
        """
        self._need_matchings()
        if living is not None and worker not in living:
            return None
        if self._complete:
            here, drawn = self._tournament(step, living)
            other = here[pairing.opponent(here.index(worker), len(here), drawn)]
        else:
            other = self._partners[_draw(self.seed, step) % len(self._classes)].get(worker, worker)
        return None if other == worker or (living is not None and other not in living) else other

    def weights(self, step: int, worker: int, living: Living = None) -> Row:
        """``worker``'s row of the matrix of ``step``: weight by worker, its own included."""
        living = self._fewer(living)
        match self.kind:
            case "matchings":
                other = self.partner(step, worker, living)
                return {worker: Fraction(1)} if other is None else {worker: HALF, other: HALF}
            case "metropolis":
                return self._metropolis(worker, living)
            case "exponential":
                return self._exponential(step, worker, living)
            case _:
                row = dict((self.given or ())[worker])
                return row if living is None else self._repaired(worker, row, living)

    def receivers(self, step: int, worker: int, living: Living = None) -> tuple[int, ...]:
        """The other workers that take ``worker``'s weights in ``step``, so ``worker`` sends to
        them."""
        if self.kind == "exponential":
            near = self._exponential_near(step, worker)
        elif self.given is not None:
            near = set(self._columns[worker])
        else:  # symmetric
            near = set(self.weights(step, worker, living))
        return tuple(
            other
            for other in sorted(near - {worker})
            if (living is None or other in living) and worker in self.weights(step, other, living)
        )

    def check(self, living: Living = None) -> None:
        """Check in rational arithmetic that every matrix of a period is doubly stochastic.

        For matchings it covers the first draws, as many as there are different ones.

        Raises:
            MixingError: a sum is not 1, a weight is negative, or a weight has no edge.
        """
        size = self.graph.size
        living = self._fewer(living)
        here = self._here(living)
        for step in range(self.period):
            columns = [Fraction(0)] * size
            for worker in here:
                row = self.weights(step, worker, living)
                _check_row(worker, row, self.graph)
                for other, weight in row.items():
                    columns[other] += weight
            for worker in here:
                _sums_to_one("column", worker, columns[worker])

    def _require_mixing(self) -> None:
        """Refuse a given matrix whose powers do not converge to the average of all workers.

        They do if positive weights lead from one worker to all others, and the lengths of all ways
        back have no common divisor: a doubly stochastic matrix then is irreducible and aperiodic.
        """
        far, reached = {0: 0}, [0]
        for worker in reached:
            for other in self._columns[worker]:
                if other not in far:
                    far[other] = far[worker] + 1
                    reached.append(other)
        detours = (far[one] + 1 - far[other] for one in far for other in self._columns[one])
        if len(far) < self.graph.size or math.gcd(*detours) != 1:
            raise MixingError(_NEVER)

    def second_eigenvalue(self) -> float:
        """ρ: a step shrinks the expected squared disagreement by at least this factor.

        The second largest eigenvalue of E[AᵀA] (Xu, Zhang and Wang, Assumption 2; Boyd et al. 2006,
        Theorem 3). Each matching is a projection, so E[AᵀA] = I − L/(2c) for c matchings of the
        graph with Laplacian L. For "exponential": the geometric mean over a period; 0 if a period
        averages exactly (the number of workers is a power of two).
        """
        size = self.graph.size
        if self.kind == "matchings":
            return max(0.0, 1 - spectrum.algebraic_connectivity(self.graph) / (2 * self.period))
        if self.kind == "exponential":
            left = spectrum.exponential_factors(size, self.period).max()
            return float(left ** (2 / self.period)) if left > _ZERO else 0.0
        if self.kind == "metropolis" and self._complete:
            return 0.0
        found = spectrum.second_singular(size, lambda worker: self.weights(0, worker))
        return found**2 if found > _ZERO else 0.0

    def time(self, to: float = 0.01) -> int:
        """Steps until the root mean squared disagreement is at most ``to`` times its first value.

        Raises:
            MixingError: with this matrix the workers never reach consensus.
        """
        real("to", to, above=0, below=1)
        if self.kind == "exponential":
            steps = 1
            while spectrum.exponential_factors(self.graph.size, steps).max() > to:
                steps += 1
            return steps
        rho = self.second_eigenvalue()
        if rho > 1 - _ZERO:
            raise MixingError(_NEVER)
        return max(1, math.ceil(2 * math.log(to) / math.log(rho) - _ZERO)) if rho else 1

    @cached_property
    def _complete(self) -> bool:
        return self.graph.kind == "complete"

    @cached_property
    def _classes(self) -> tuple[tuple[Edge, ...], ...]:
        return colour(self.graph)

    @cached_property
    def _partners(self) -> tuple[dict[int, int], ...]:
        return tuple(
            {**dict(pairs), **{other: one for one, other in pairs}} for pairs in self._classes
        )

    @cached_property
    def _columns(self) -> tuple[tuple[int, ...], ...]:
        """For each worker, the workers that take its weights under the given matrix."""
        found: list[list[int]] = [[] for _ in range(self.graph.size)]
        for worker, row in enumerate(self.given or ()):
            for other, weight in row:
                if weight:
                    found[other].append(worker)
        return tuple(map(tuple, found))

    def _fewer(self, living: Living) -> Living:
        """None if all workers are living, so that each set of workers has one representation."""
        return None if living is None or len(living) == self.graph.size else living

    def _here(self, living: Living) -> range | list[int]:
        return range(self.graph.size) if living is None else sorted(living)

    def _tournament(self, step: int, living: Living) -> tuple[range | list[int], int]:
        """The players of a step, and the number of the round that is drawn for them."""
        here = self._here(living)
        return here, _draw(self.seed, step) % pairing.rounds(len(here))

    def _need_matchings(self) -> None:
        if not self.drawn:
            raise MixingError(f"{self.kind!r} mixing has no pairs; weights(...) has its rows")

    def _degree(self, worker: int, living: Living) -> int:
        if living is None:
            return self.graph.degree(worker)
        return sum(other in living for other in self.graph.neighbours(worker))

    def _metropolis(self, worker: int, living: Living) -> Row:
        own = self._degree(worker, living)
        row = {
            other: Fraction(1, 1 + max(own, self._degree(other, living)))
            for other in self.graph.neighbours(worker)
            if living is None or other in living
        }
        return {worker: 1 - sum(row.values(), Fraction(0)), **row}

    def _exponential_near(self, step: int, worker: int) -> set[int]:
        size = self.graph.size
        stride = 1 << step % len(powers(size))
        return {(worker - stride) % size, (worker + stride) % size}

    def _exponential(self, step: int, worker: int, living: Living) -> Row:
        size = self.graph.size
        stride = 1 << step % len(powers(size))
        cycle = ((worker + turn * stride) % size for turn in range(size))
        if living is None or living.issuperset(cycle):
            return {worker: HALF, (worker - stride) % size: HALF}
        # If a worker of this cycle is missing, the cycle falls into paths. A doubly stochastic
        # matrix on a path is symmetric, so the paths get Metropolis weights.
        row = {
            other: Fraction(1, 3)
            for other in self._exponential_near(step, worker)
            if other in living and other != worker
        }
        return {worker: 1 - sum(row.values(), Fraction(0)), **row}

    def _repaired(self, worker: int, row: Row, living: frozenset[int]) -> Row:
        """A row of the given matrix without missing workers: each edge keeps the smaller of its two
        weights, the diagonal gets the rest. So the matrix is symmetric and no row sum grows."""
        kept = {
            other: min(weight, dict((self.given or ())[other]).get(worker, Fraction(0)))
            for other, weight in row.items()
            if other in living and other != worker
        }
        kept = {other: weight for other, weight in kept.items() if weight}
        return {worker: 1 - sum(kept.values(), Fraction(0)), **kept}

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        graph, edges, rows = self.graph, self.graph.listed, self.given
        return {
            "kind": self.kind,
            "seed": self.seed,
            "graph": {
                "kind": graph.kind,
                "size": graph.size,
                "edges": None if edges is None else [list(edge) for edge in edges],
            },
            "given": rows and [[[other, str(part)] for other, part in row] for row in rows],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Mixing:
        """The inverse of :meth:`to_dict`."""
        exact_keys("mixing", values, ("kind", "seed", "graph", "given"))
        graph, edges, rows = values["graph"], values["graph"]["edges"], values["given"]
        exact_keys("graph", graph, ("kind", "size", "edges"))
        listed = edges and tuple((int(one), int(other)) for one, other in edges)
        given = rows and tuple(
            tuple((int(other), Fraction(part)) for other, part in row) for row in rows
        )
        return cls(
            values["kind"], Graph(graph["kind"], graph["size"], listed), values["seed"], given
        )


def given(graph: Graph, path: str | Path) -> Mixing:
    """The mixing of one matrix from a text file: one row per line, weights such as 1/3 or 0.25.

    Weights are exact: 0.333 is 333/1000, and three of them do not sum to 1.

    Raises:
        MixingError: the file has no matrix, or one that is not doubly stochastic.
        OSError: the file cannot be read.
    """
    rows = []
    for number, _, words in written_rows(path):
        try:
            row = [Fraction(word) for word in words]
        except (ValueError, ZeroDivisionError):
            raise MixingError(
                f"{path}, line {number}: weights are fractions or decimals, such as 1/3 or 0.25"
            ) from None
        if len(row) != graph.size:
            raise MixingError(
                f"{path}, line {number}: a row has a weight for each of {graph.size} workers, not "
                f"{len(row)}"
            )
        rows.append(tuple((other, weight) for other, weight in enumerate(row) if weight))
    return Mixing(GIVEN, graph, 0, tuple(rows))


@lru_cache(maxsize=4096)
def _draw(seed: int, step: int) -> int:
    """64 pseudorandom bits from public values, so that every worker computes the same."""
    text = f"gossip matching {seed} {step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _check_row(worker: int, row: Row, graph: Graph) -> None:
    for other, weight in row.items():
        if weight < 0:
            raise MixingError(
                f"the matrix is not doubly stochastic: worker {worker} takes {weight} of worker "
                f"{other}'s weights, and no weight may be negative"
            )
        if weight and other != worker and not graph.joins(worker, other):
            raise MixingError(
                f"worker {worker} takes {weight} of worker {other}'s weights, but the graph has no "
                "edge between them: add it, or make the weight 0"
            )
    _sums_to_one("row", worker, sum(row.values(), Fraction(0)))


def _sums_to_one(what: str, worker: int, total: Fraction) -> None:
    if total != 1:
        raise MixingError(
            f"the matrix is not doubly stochastic: {what} {worker} sums to {total}, and every row "
            "and every column must sum to 1"
        )
