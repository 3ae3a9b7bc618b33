"""Quantiles, survival curves and AUC, computed from private running sums of fine histograms."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import isotonic_regression

from forethought.statistics import cumulative, kinds
from forethought.statistics.kinds import Array, Estimate
from forethought.statistics.table import TableRows, spelled, word
from forethought.values.checks import real, reals, settle, whole
from forethought.values.mechanism import Adjacency

# Number of simulations with fresh noise, for the intervals of a curve or an AUC.
_REPEATS = 400
# A curve or an area is stated only while the number of records that it is a share of is at least
# this many times its noise.
_WELL_KNOWN = 8.0


@dataclass(frozen=True, kw_only=True)
class _OfSums(kinds.Statistic):
    """A statistic of running sums along some axes; each record is in one count of one axis."""

    #: Counts that one more record raises where samples are drawn, so that what no record has met
    #: is possible.
    unseen: ClassVar[tuple[int, ...]] = ()

    @property
    @abstractmethod
    def axes(self) -> tuple[int, ...]:
        """The number of counts along each axis."""

    @property
    def size(self) -> int:
        return sum(self.axes)

    @property
    def entry(self) -> int:
        return cumulative.UNIT

    def reach(self, adjacency: Adjacency) -> float:
        # Columns of C are nonnegative, so two of them are at most √2 norms apart.
        own = cumulative.norm(max(self.axes))
        return own * (math.sqrt(2) if adjacency == "replace-one" else 1.0)

    def counts(self, noised: Array, examples: int) -> Array:
        """Estimated counts along all axes, from a tally with noise; shape (size,)."""
        parts = [cumulative.decoded(part) for part in self.split(noised)]
        return np.concatenate(cumulative.settled(parts, examples) if self.all_count else parts)

    def split(self, values: Array) -> list[Array]:
        """The values of each axis."""
        return np.split(values, np.cumsum(self.axes)[:-1])

    def rising(self, counts: Array) -> Array:
        """The nearest nonnegative counts, separately for each axis."""
        return np.concatenate([cumulative.rising(part) for part in self.split(counts)])

    def at_risk(self, std: float) -> float:
        """The least number of records of which a share is stated: 8 times its noise."""
        return _WELL_KNOWN * std * float(cumulative.noise_of_sums(self.axes[0], 0.0)[-1])

    def strayed(
        self, computed: Callable[[Array], Array], counts: Array, std: float
    ) -> tuple[Array, Array]:
        """Simulated errors of results: by fresh noise, and by fresh noise and fresh records.

        This is post-processing: it uses the released counts and no records, so the random numbers
        need not be secret.

        Returns:
            Two arrays of shape (repeats, numbers).
        """
        generator = np.random.default_rng(self.size)
        centre, more = computed(counts), counts.copy()
        more[list(self.unseen)] += 1
        noise = std * generator.standard_normal((_REPEATS, self.size))
        count = max(1, round(float(counts.sum())))
        drawn = generator.multinomial(count, more / more.sum(), _REPEATS)
        off = [self.counts(one, 0) for one in noise]
        near = [computed(counts + one) - centre for one in off]
        far = [computed(own + one) - centre for own, one in zip(drawn, off, strict=True)]
        return np.array(near), np.array(far)


@dataclass(frozen=True, kw_only=True)
class Quantiles(_OfSums, kinds.OfRange):
    """Quantiles of a column, from running sums of a fine histogram.

    Args:
        column: a column of numbers.
        range: lowest and highest number, declared.
        at: the shares of records below, each in [0, 1] and given once.
        bins: number of bins of equal width; they are the resolution of the quantiles.
    """

    at: Any = (0.25, 0.5, 0.75)
    bins: int = 1024
    kind: ClassVar[str] = "quantiles"
    unit: ClassVar[str] = "share of the records below"

    def _check(self) -> None:
        super()._check()
        wanted = self.at if isinstance(self.at, Iterable) else [self.at]
        shares = reals("at", wanted, least=0, most=1)
        if not shares or len(set(shares)) < len(shares):
            raise ValueError(
                f"at = {list(shares)}: name the shares below, each once, such as [0.25, 0.5, 0.75]"
            )
        settle(self, at=shares)
        whole("bins", self.bins, least=2, most=cumulative.MOST_BINS)

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.bins,)

    def tally(self, rows: TableRows) -> Array:
        return cumulative.encoded(kinds.binned(self, rows, self.column, self.kept(rows)))

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        counts = self.counts(noised, examples)
        total = max(1.0, float(counts.sum()))
        # The last rising sum is the largest mean of the last sums: it exceeds the total on average.
        sums = np.cumsum(cumulative.rising(counts)).clip(max=total)
        low, high = self.range
        edges = np.linspace(low, high, self.bins + 1)

        def bin_of(share: float) -> int:
            return min(self.bins - 1, int(np.searchsorted(sums, share * total)))

        def bounds(share: float, off: float) -> tuple[float, float]:
            return float(edges[bin_of(share - off)]), float(edges[bin_of(share + off) + 1])

        found = []
        for share in self.at:
            spread = self._noise(share) * std / total
            near = kinds.NORMAL * spread
            far = kinds.NORMAL * math.sqrt(spread**2 + share * (1 - share) / total)
            place = bin_of(share)
            before = sums[place - 1] if place else 0.0
            inside = (share * total - before) / max(sums[place] - before, 1e-9)
            value = edges[place] + (edges[1] - edges[0]) * min(1.0, max(0.0, inside))
            ends = (*bounds(share, near), *bounds(share, far))
            found.append(Estimate(repr(share).removesuffix(".0"), float(value), *ends))
        return tuple(found)

    def expected(self, std: float, examples: int) -> float:
        return std * max(map(self._noise, self.at)) * kinds.largest(len(self.at)) / examples

    def _noise(self, share: float) -> float:
        return float(cumulative.noise_of_sums(self.bins, None if self.all_count else share).max())


@dataclass(frozen=True, kw_only=True)
class Survival(_OfSums):
    """The Kaplan–Meier curve on a declared grid of times.

    Events and censored records are counted in equal steps of time, each record in one count, and
    released as running sums. A step's hazard is its number of events over the number at risk at its
    beginning, less half of the number censored in it. If the number at risk is below 8 times its
    noise, the curve is not stated: it keeps its last value, with intervals from 0 to 1. Near that
    end, stated values are on average too high, by up to half of their noise: with more at risk, a
    step is stated sooner.

    Its expected error is that of synthetic records with exponential times, of which 40 % have an
    event, up to the time when a tenth is at risk.

    Args:
        time: column of the time of the event or of the last observation; below 0 counts as 0.
        event: column that tells if the event happened.
        happened: the word in ``event`` for an event.
        until: the last time of the grid; records with a later time count as censored after it.
        steps: number of steps of the grid.
    """

    time: str = "time"
    event: str = "event"
    until: float = 0.0
    steps: int = 64
    happened: str = "1"
    kind: ClassVar[str] = "survival"
    unseen: ClassVar[tuple[int, ...]] = (0,)  # an event in the first step
    unit: ClassVar[str] = "share surviving"
    reads: ClassVar[tuple[str, ...]] = ("time", "event")

    def _check(self) -> None:
        if not self.until:
            raise ValueError("until: declare the last time of the curve, such as until = 60")
        settle(self, until=real("until", self.until, above=0), happened=word(self.happened))
        whole("steps", self.steps, least=2, most=cumulative.MOST_BINS)

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.steps, self.steps + 1)

    def tally(self, rows: TableRows) -> Array:
        kept = self.kept(rows)
        times = rows.numbers(self.time, self.missing)
        words = rows.words(self.event, self.missing).astype(str)
        kept &= ~np.isnan(times) & (words != "")
        times, happened = times[kept], (words == spelled(self.happened))[kept]
        width = self.until / self.steps
        near = rows.on_edge(self.time, 0.0, self.until, self.steps)
        place = np.ceil(np.clip(times, 0, self.until) / width - near).astype(np.int64) - 1
        place = place.clip(0, self.steps - 1)
        beyond = times > self.until + near * width
        place[beyond] = self.steps
        events = np.bincount(place[happened & ~beyond], minlength=self.steps)
        censored = np.bincount(place[~happened | beyond], minlength=self.steps + 1)
        return np.concatenate([cumulative.encoded(events), cumulative.encoded(censored)])

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        counts = self.counts(noised, examples)
        curve, last = self._curve(counts, self.at_risk(std))
        smooth = self.rising(counts)
        spreads = _spreads(*self.strayed(lambda found: self._curve(found)[0], smooth, std))
        for spread in spreads:
            spread[last + 1 :] = 1.0  # nothing is known of what is not stated
        width = self.until / self.steps
        names = [
            f"{width * (step + 1):.6g}" + ("" if step <= last else " (not stated)")
            for step in range(self.steps)
        ]
        return _around(names, curve, spreads, (0.0, 1.0))

    def expected(self, std: float, examples: int) -> float:
        shares = -np.diff(np.exp(-np.linspace(0, math.log(10), self.steps + 1)), append=0)
        counts = np.concatenate([0.4 * shares[:-1], 0.6 * shares]) * examples
        counts[-1] = examples * shares[-1]
        draws = self.strayed(lambda found: self._curve(found)[0], counts, std)
        return float(np.quantile(np.abs(draws[0]).max(axis=1), 0.95))

    def _curve(self, counts: Array, least: float = 1.0) -> tuple[Array, int]:
        """Survival at the end of each step, and the last step with more than ``least`` at risk."""
        events, censored = self.split(counts)
        risk = events.sum() + censored.sum() - np.cumsum(events) - np.cumsum(censored[:-1])
        risk += events + censored[:-1] / 2
        known = np.minimum.accumulate(risk) > least
        last = int(known.sum()) - 1
        hazard = np.where(known, events / np.maximum(risk, 1.0), 0.0)
        # Noisy hazards have either sign and cancel in the sum; then the nearest decreasing curve is
        # taken. Clipping each hazard at 0 would bias the curve downwards.
        logs = np.cumsum(np.log1p(-hazard.clip(-0.5, 1 - 1e-9)))
        return np.exp(-isotonic_regression(-logs).x.clip(min=0)), last


@dataclass(frozen=True, kw_only=True)
class AUC(_OfSums):
    """The area under the ROC curve.

    It is the share of pairs of a positive and a negative record in which the positive one has the
    higher score. Scores of each class are counted in bins of equal width, each record in one count,
    and released as running sums. Two scores in one bin count as half; the intervals include the
    largest possible effect of this. If the number of records of a class is below 8 times its noise,
    the area is not stated: it is 1/2, with intervals from 0 to 1.

    Its expected error is that of synthetic records, half of them positive, whose scores have the
    densities 2x and 2(1 − x).

    Args:
        score: column of the scores.
        range: lowest and highest score, declared; scores beyond count as the ends.
        label: column of the labels.
        positive: the word in ``label`` for a positive record.
        bins: number of bins of the scores.
    """

    score: str = "score"
    label: str = "label"
    positive: str = "1"
    range: Any = (0.0, 1.0)
    bins: int = 128
    kind: ClassVar[str] = "auc"
    unseen: ClassVar[tuple[int, ...]] = (0, -1)  # a low score of a positive, a high one of another
    unit: ClassVar[str] = "area"
    reads: ClassVar[tuple[str, ...]] = ("score", "label")

    def _check(self) -> None:
        settle(self, positive=word(self.positive), range=kinds.ranged(self.range))
        whole("bins", self.bins, least=2, most=cumulative.MOST_BINS)

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.bins, self.bins)

    def tally(self, rows: TableRows) -> Array:
        words = rows.words(self.label, self.missing).astype(str)
        kept, positive = self.kept(rows) & (words != ""), words == spelled(self.positive)
        of_classes = (kept & one for one in (positive, ~positive))
        counts = (kinds.binned(self, rows, self.score, one) for one in of_classes)
        return np.concatenate(list(map(cumulative.encoded, counts)))

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        counts = self.counts(noised, examples)
        if min(float(part.sum()) for part in self.split(counts)) < self.at_risk(std):
            return (Estimate(f"{self.name} (not stated)", 0.5, 0.0, 1.0, 0.0, 1.0),)
        smooth = self.rising(counts)
        near, far = self.strayed(self._areas, smooth, std)
        # Clipping counts at 0 biases the area towards 1/2; the bias of doing it again estimates it.
        value = (self._areas(smooth) - near.mean(axis=0)).clip(0, 1)[:1]
        # Clipped counts stray less than they are off, so widths are those of counts as they come.
        spreads = tuple(one[1:] + _ties(smooth) for one in _spreads(near, far))
        return _around([self.name], value, spreads, (0.0, 1.0))

    def expected(self, std: float, examples: int) -> float:
        edges = np.linspace(0, 1, self.bins + 1)
        positive = examples / 2 * np.diff(edges**2)
        counts = np.concatenate([positive, positive[::-1]])
        draws = self.strayed(self._areas, counts, std)[0][:, 0]
        return float(np.quantile(np.abs(draws - draws.mean()), 0.95)) + _ties(counts)

    def _areas(self, counts: Array) -> Array:
        """The area of the nearest nonnegative counts, and that of counts as they come."""
        found = []
        for positive, negative in (self.split(self.rising(counts)), self.split(counts)):
            below = np.cumsum(negative) - negative / 2
            found.append(float(positive @ below) / _pairs(positive, negative))
        return np.array(found)


def _ties(counts: Array) -> float:
    """Half of the share of pairs whose scores are in the same bin."""
    positive, negative = np.split(counts, 2)
    return float(positive @ negative) / _pairs(positive, negative) / 2


def _pairs(positive: Array, negative: Array) -> float:
    return max(1.0, float(positive.sum())) * max(1.0, float(negative.sum()))


def _spreads(near: Array, far: Array) -> tuple[Array, Array]:
    """Half widths of the two 95 % intervals of every number."""
    half, wide = (np.quantile(np.abs(one), 0.95, axis=0) for one in (near, far))
    return half, np.maximum(half, wide)


def _around(
    names: Sequence[str], values: Array, spreads: tuple[Array, ...], limits: tuple[float, float]
) -> tuple[Estimate, ...]:
    ends = [np.clip(values + sign * one, *limits) for one in spreads for sign in (-1, 1)]
    rows = zip(names, values, *ends, strict=True)
    return tuple(Estimate(name, *map(float, numbers)) for name, *numbers in rows)
