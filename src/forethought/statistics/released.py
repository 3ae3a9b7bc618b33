"""A request for statistics: planned before any record is read, then released once.

**Formal guarantee.** Every statistic i is a sum of records' vectors in whole numbers, which one
record moves by at most rᵢ under the request's adjacency. It is released with discrete Gaussian
noise of standard deviation σᵢ·Cᵢ on each number. Cᵢ is rᵢ over the accountant's sensitivity of a
round (1, or 2 under replace-one), so it is a full-batch release of noise multiplier σᵢ
(:func:`~forethought.rounds.randomness.add_grid_noise`: exact, and never less than the Gaussian).
Several independent Gaussian releases of one data set are one of σ⁻² = Σ σᵢ⁻² (Andrew et al. 2021,
Theorem 1), so the whole request is one round. All results, such as curves and intervals, are
post-processing of the noised sums.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch

from forethought.accounting.exact import epsilon, noise_multiplier
from forethought.accounting.statement import Statement, account
from forethought.data.columns import TableSchema
from forethought.data.tables import MEASURED
from forethought.rounds import randomness
from forethought.rounds.randomness import BoundNoise, Secrets, Seeds, add_grid_noise, encoded
from forethought.statistics.kinds import Array, Count, Estimate, Statistic
from forethought.statistics.sections import statistic
from forethought.statistics.table import rows
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real, require_only, settle, whole
from forethought.values.mechanism import Adjacency, Budget, FullBatch, Mechanism, Rounds
from forethought.values.plan import TRANSCRIPT, Transcript, grid, together
from forethought.values.serialisation import Readers, Stored, canonical, each, plain

# The purpose of the random numbers, and the name of the result's file.
_PURPOSE, RESULT = "statistics", "statistics.json"
# A factor that rounds the combined noise multiplier down.
_ROUNDED = 1 - 2.0**-50
# Its noise hides nothing: errors and intervals follow from the number, and are published.
_COUNTED = "a count of all records is released, whose exact number is published beside it"


@dataclass(frozen=True)
class Request(Stored):
    """The plan of a release of statistics, each with its noise.

    Args:
        statistics: the statistics, each with its ``noise_multiplier``.
        examples: number of records, which is public.
        delta: the δ at which ε is stated.
        adjacency: the neighbouring relation.
        group: number of records of one person that are protected together.

    Raises:
        ValueError, TypeError: no statistics, two of the same name, one without a noise multiplier,
            or a number outside its range.
    """

    SCHEMA: ClassVar[str] = "forethought/statistics/1"
    CALLED: ClassVar[str] = "request for statistics"
    PARTS: ClassVar[Readers] = {"statistics": each(statistic)}

    statistics: tuple[Statistic, ...]
    examples: int
    delta: float
    adjacency: Adjacency = "add-or-remove"
    group: int = 1
    # Fields of a plan that the accountant reads. Contributions are in units of their own reach.
    clip_norm: ClassVar[float] = 1.0
    noise: ClassVar[str] = "grid"
    hyperparameters: ClassVar[Caveat] = Caveat("planned")

    def __post_init__(self) -> None:
        if not self.statistics:
            raise ValueError("a request needs at least one statistic, such as Count()")
        names = [one.name for one in self.statistics]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"two statistics are called {name!r}: ask once, or give one of them a name"
                )
        if any(one.noise_multiplier is None for one in self.statistics):
            raise ValueError("give budget= to request, or each statistic a noise_multiplier")
        settle(self, examples=whole("examples", self.examples), group=whole("group", self.group))
        settle(self, delta=real("delta", self.delta, above=0, below=1))
        one_of("adjacency", self.adjacency, get_args(Adjacency))

    @property
    def records_per_person(self) -> int:
        """The number of records that are protected together."""
        return self.group

    @property
    def not_covered(self) -> tuple[Caveat, ...]:
        """The caveats of the request for its Statement."""
        shape = "columns, ranges, categories, bins and filters of the statistics"
        names = "; ".join(one.name for one in self.statistics)
        found = [Caveat("statistics", names), Caveat("declared-shape", shape)]
        if self.group > 1:
            found.append(Caveat("rows-of-persons", str(self.group)))
        counts = (isinstance(one, Count) and one.all_count for one in self.statistics)
        if self.adjacency == "add-or-remove" and any(counts):
            found.append(Caveat("stated", _COUNTED))
        return tuple(found)

    @property
    def mechanism(self) -> Mechanism:
        """One full-batch round of all statistics together."""
        sigma = _together([one.noise_multiplier or 0.0 for one in self.statistics])
        return Mechanism(Rounds(sigma, 1, FullBatch()), adjacency=self.adjacency)

    @property
    def epsilon(self) -> float:
        """The certified upper end of ε at the request's δ."""
        return epsilon(self.mechanism, self.delta, self.group).upper

    def noise_std(self, one: Statistic) -> float:
        """Standard deviation of the noise on each number of a statistic's tally."""
        return (one.noise_multiplier or 0.0) * _unit(one, self.adjacency)

    def expected(self) -> dict[str, tuple[float, str]]:
        """Name → (error, unit): with 95 %, all errors of the result lie below the error.

        The number of records that meet a filter is private. If the error depends on this number, it
        is given for all records, and the unit says so.
        """
        found = {}
        for one in self.statistics:
            std, unit = self.noise_std(one), one.unit.format(column=", ".join(one.columns))
            error = one.expected(std, self.examples)
            if not one.all_count and one.expected(std, 2 * self.examples) < error:
                unit += ", if every record counts; n times that where 1 in n does"
            found[one.name] = error, unit
        return found

    def statement(self) -> Statement:
        """The Statement of the planned release."""
        return replace(account(self), plan=None)

    def _require_exact(self) -> None:
        """Refuse noise with which the statistics cannot be released exactly.

        Raises:
            ValueError: so little that a sum leaves the grid, or so much that rounding would show.
        """
        for one in self.statistics:
            std, most = self.noise_std(one), self.examples * one.entry
            wrong = "small: take a smaller ε or weight, or a larger noise_multiplier"
            # Beyond the limit a tally would be released as the limit itself.
            if most <= randomness.LIMIT * randomness.COARSEST * std:
                wrong = "large: take a larger ε or weight, or a smaller noise_multiplier"
                with suppress(ValueError, OverflowError):
                    randomness.reaching_grid(std, _unit(one, self.adjacency), one.size, most)
                    continue
            text = f"{one.name!r} cannot be released exactly of so many records"
            sigma = f"a noise multiplier of {one.noise_multiplier:.3g}"
            raise ValueError(f"{text} with {sigma}, which is too {wrong}")

    def release(
        self,
        records: Any,
        *,
        schema: TableSchema | None = None,
        seed: int | None = None,
        out: str | Path | None = None,
        before: Callable[[], object] | None = None,
    ) -> Released:
        """Release the statistics with fresh noise; with ``out``, write the result and a statement.

        Every call is another release and spends the same ε again.

        Args:
            records: path of a table, a polars frame, or a mapping from column names to entries.
            schema: the declared columns. Of each person that it names, the rows with the
                first keyed hashes are kept.
            seed: seed of the noise, for tests; with a seed there is no guarantee.
            out: folder for statement, transcript and result; new, or with nothing in it.
            before: called before noise is drawn, when no record can be refused any more.

        Raises:
            ValueError: a different number of records, a column that does not fit its declaration,
                a schema of other persons than planned for, noise that is too large or too small to
                be exact, or a folder that is not empty.
            OSError: the file does not exist.
        """
        self._require_exact()
        if out is not None:
            require_only(Path(out))
        _of_one_person(schema, self.group)
        found = rows(records, needed(self.statistics), schema)
        if len(found) != self.examples:
            text = f"the request is for {self.examples:,} records, the data has {len(found):,}"
            raise ValueError(f"{text}: results rest on this number, which is public")
        tallies = [one.tally(found) for one in self.statistics]
        if before is not None:
            before()
        noise = BoundNoise(Secrets.draw(Seeds(noise=seed)).noise, _PURPOSE)
        results = self._noised(tallies, noise)
        made = Released(self, results, seed is not None, schema is not None and schema.measured)
        if out is not None:
            made.save(out)
        return made

    def _noised(self, tallies: list[Array], noise: BoundNoise) -> tuple[tuple[Estimate, ...], ...]:
        # Each statistic's noise is bound to the whole request and to all its sums.
        sums = torch.from_numpy(np.concatenate(tallies))
        results = []
        for place, (one, tally) in enumerate(zip(self.statistics, tallies, strict=True)):
            about = encoded((canonical(self.to_dict()), place))
            generator = noise.at(noise.bind(about, sums))
            noised = torch.from_numpy(tally.copy())
            std, unit = self.noise_std(one), _unit(one, self.adjacency)
            most = self.examples * one.entry
            beyond = most > randomness.LIMIT * grid(std, unit, one.size)[0]
            add_grid_noise(noised, std, unit, generator, *([most] * beyond))
            results.append(one.estimates(noised.numpy(), std, self.examples))
        return tuple(results)


def _made(
    statistics: Iterable[Statistic | Mapping[str, Any]], schema: TableSchema | None
) -> list[Statistic]:
    if isinstance(statistics, Statistic | Mapping | str) or not isinstance(statistics, Iterable):
        raise TypeError(
            f"statistics are a list, such as [Count()], not {type(statistics).__name__}"
        )
    declared = None if schema is None else schema.parsed()
    return [one if isinstance(one, Statistic) else statistic(one, declared) for one in statistics]


def _of_one_person(schema: TableSchema | None, group: int | None) -> int:
    """The number of records of one person: the schema's where it names persons."""
    if not isinstance(schema, TableSchema | None):
        raise TypeError(f"schema must be a forethought.data.TableSchema, not {schema!r}")
    if schema is not None and schema.missing_label == "drop":
        raise ValueError(
            'missing_label = "drop" is for training, which knows the label: leave it out here; a '
            'statistic with missing = "skip" leaves out records without an entry'
        )
    if schema is None or schema.person is None:
        return 1 if group is None else group
    if group not in (None, schema.records_per_person):
        text = f"group = {group}, and of a person {schema.records_per_person} rows are kept"
        raise ValueError(f"{text}: leave group out for a schema that names persons")
    return schema.records_per_person


def needed(statistics: Iterable[Statistic]) -> set[str]:
    """The names of all columns of the statistics."""
    return {name for one in statistics for name in (*one.columns, *(name for name, _ in one.where))}


def _unit(one: Statistic, adjacency: Adjacency) -> float:
    """C, the distance by which one contribution moves the tally.

    One record moves it by :meth:`~forethought.values.mechanism.Rounds.per_hit` times C.
    """
    return one.reach(adjacency) / Rounds(1.0, 1, FullBatch()).per_hit(adjacency)


def _together(sigmas: Sequence[float]) -> float:
    """The combined noise multiplier of independent releases, rounded down."""
    return sigmas[0] if len(sigmas) == 1 else _ROUNDED * together(sigmas)


@dataclass(frozen=True)
class Released:
    """Released statistics.

    Args:
        request: the plan of the release.
        results: the estimates of each statistic, in the request's order.
        seeded: True if a person chose the seed of the noise.
        measured: True if a part of the declaration was taken from the records.
    """

    request: Request
    results: tuple[tuple[Estimate, ...], ...]
    seeded: bool = False
    measured: bool = False

    def __getitem__(self, name: str) -> tuple[Estimate, ...]:
        """The result of the statistic of that name; KeyError if there is none."""
        names = [one.name for one in self.request.statistics]
        if name not in names:
            raise KeyError(f"no statistic {name!r}; there are {', '.join(map(repr, names))}")
        return self.results[names.index(name)]

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the release."""
        return self.request.mechanism

    @property
    def transcript(self) -> Transcript:
        """A transcript of one round, in which each statistic is a release under its own name."""
        asked = self.request.statistics
        row = {
            "noises": [[one.name, one.noise_multiplier] for one in asked],
            "like": Rounds(1.0, 1, FullBatch()).to_dict(),
            "origin": 0,
            "count": 1,
        }
        found = Transcript.from_values({"rounds": [row], "others": []})
        found.require(self.mechanism)
        return found

    @property
    def statement(self) -> Statement:
        """The Statement of the release."""
        made = account(self.request, seeded=self.seeded)
        caveats = (*made.caveats, MEASURED) if self.measured else made.caveats
        return replace(made, plan=None, caveats=caveats).of_run(self.transcript.releases())

    def to_dict(self) -> dict[str, Any]:
        """The request and its results, ready for JSON."""
        names = [one.name for one in self.request.statistics]
        results = dict(zip(names, map(plain, self.results), strict=True))
        return {"request": self.request.to_dict(), "seeded": self.seeded, "results": results}

    @property
    def files(self) -> dict[str, str]:
        """Name → text of ``statistics.json`` and ``transcript.json``, which the statement names."""
        result = json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        return {TRANSCRIPT: self.transcript.to_json(), RESULT: result}

    def save(self, folder: str | Path) -> Statement:
        """Write ``statistics.json``, ``transcript.json`` and the statement that rests on them."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        return self.statement.save(path, self.files)


def request(
    statistics: Iterable[Statistic | Mapping[str, Any]],
    *,
    examples: int,
    budget: Budget | float | None = None,
    delta: float | None = None,
    adjacency: Adjacency = "add-or-remove",
    group: int | None = None,
    schema: TableSchema | None = None,
) -> Request:
    """Plan a release of statistics: choose the noise of each before any record is read.

    Args:
        statistics: the statistics, as values or ``[[statistics]]`` sections.
        examples: number of records, which is public.
        budget: (ε, δ) of all statistics together, or ε; None if each has a ``noise_multiplier``.
        delta: δ, required if ``budget`` is ε or None.
        adjacency: the neighbouring relation.
        group: number of records that are protected together; None: 1, or the rows that are kept of
            each person where the schema names persons. These are then the records.
        schema: declared columns, for ranges and categories that a section leaves out.

    Raises:
        ValueError, TypeError: a statistic is declared wrongly, or both a budget and noise
            multipliers are given, or neither; another δ than the budget's; weights, and no budget
            to share; another group than the schema's; a schema that drops records without a label;
            or noise that is too large or too small to be exact.
    """
    group = _of_one_person(schema, group)
    asked = _made(statistics, schema)
    if isinstance(budget, Budget):
        if delta not in (None, budget.delta):
            raise ValueError("delta stands in the Budget already: drop delta=, or give ε alone")
        delta, budget = budget.delta, budget.epsilon
    if delta is None:
        raise ValueError("delta must be given beside ε: choose one far below 1 / examples")
    delta = real("delta", delta, above=0, below=1)
    examples, group = whole("examples", examples), whole("group", group)
    told = [one.name for one in asked if one.noise_multiplier is not None]
    if budget is None:
        if any(one.weight != 1 for one in asked):
            raise ValueError("weight = … shares a budget: give budget= to request, or drop it")
    elif told:
        raise ValueError(
            f"{told[0]!r} says its own noise_multiplier, and a budget is to be shared: drop one"
        )
    else:
        sigma = noise_multiplier(
            Budget(budget, delta), FullBatch(), 1, adjacency=adjacency, group=group, warn=False
        )
        # The combined noise is then σ again; slightly more, so that rounding cannot lower it.
        sigma *= 1 if len(asked) == 1 else 1 + 2.0**-48
        total = math.fsum(one.weight for one in asked)
        sigmas = (sigma * math.sqrt(total / one.weight) for one in asked)
        asked = [replace(one, noise_multiplier=s) for one, s in zip(asked, sigmas, strict=True)]
    planned = Request(tuple(asked), examples, delta, adjacency, group)
    planned._require_exact()
    return planned


def release(
    records: Any,
    statistics: Iterable[Statistic | Mapping[str, Any]],
    *,
    budget: Budget | float | None = None,
    delta: float | None = None,
    adjacency: Adjacency = "add-or-remove",
    group: int | None = None,
    schema: TableSchema | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
) -> Released:
    """Plan and release statistics of all ``records``; arguments as of :func:`request` and release.

    Raises:
        ValueError, TypeError, OSError: as of :func:`request` and :meth:`Request.release`.
    """
    group = _of_one_person(schema, group)
    asked = _made(statistics, schema)
    found = rows(records, needed(asked), schema)
    planned = request(
        asked, examples=len(found), budget=budget, delta=delta, adjacency=adjacency, group=group
    )
    return planned.release(found, schema=schema, seed=seed, out=out)
