"""The participation of records and the size of contributions, which a run without noise shows.

Every record has a gradient in its own coordinate (records of a group share an update, and their
contributions show how many share it). So a sum without noise lists the records that took part, how
often and with which length. Contributions must be bounded by C and counted once. The participation
is tested against the claimed distribution; each test has an exact null distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr, ndtri

from forethought.auditing import canaries
from forethought.auditing import exact_tests as exact
from forethought.auditing.verdict import Finding, smallest, tested
from forethought.values import mechanism
from forethought.values.plan import Plan

Indices = NDArray[np.int64]
Marked = NDArray[np.bool_]

# A batch is compared with the batches so many rounds earlier.
LAGS = (1, 2, 3, 5, 8)
# More than the rounding of sums of a few numbers in double precision.
TOLERANCE = 1e-5
# Even records have gradients of half the clipping norm, so that counting a record twice does not
# look like missing clipping.
SMALL, LARGE = 1, 1_000


_found, _tested = partial(Finding, "participation"), partial(tested, "participation")


# Tests of the claimed sampling on the batches.


def sampling_findings(
    sampling: mechanism.Sampling,
    members: Sequence[Indices],
    examples: int,
    generator: np.random.Generator,
) -> list[Finding]:
    """Test that batches are drawn as claimed.

    Args:
        members: for each round the records that took part. examples: number of all records.
        generator: of the tests' own choices.

    Raises:
        UnsupportedMechanismError: a kind of sampling without tests.
    """
    tests = TESTS.get(type(sampling))
    if tests is None:
        raise mechanism.UnsupportedMechanismError(
            f"an audit has no tests of how {type(sampling).__name__} draws its batches; it has "
            f"them for {', '.join(kind.__name__ for kind in TESTS)}"
        )
    return tests(sampling, SeenBatches(members, examples, generator))


@dataclass(frozen=True)
class SeenBatches:
    """The observed batches, and the tests that several kinds of sampling share.

    Args:
        members, examples, generator: as for :func:`sampling_findings`.
    """

    members: Sequence[Indices]
    examples: int
    generator: np.random.Generator

    @property
    def counts(self) -> Indices:
        """The number of rounds that each record took part in."""
        return np.bincount(np.concatenate(self.members), minlength=self.examples)

    @property
    def halves(self) -> list[Marked]:
        """Two halves of the data set: the first records, and every other one."""
        place = np.arange(self.examples)
        return [place < self.examples // 2, place % 2 == 0]

    def binomial(self, counts: Any, trials: Any, rate: Any) -> NDArray[np.float64]:
        """Counts of independent draws, transformed to uniform numbers."""
        return exact.uniform_binomial(counts, trials, rate, self.generator)

    def sizes(self, wanted: Sequence[int], name: str) -> Finding:
        """Test that batches have the sizes that a sampling fixes."""
        got = [len(batch) for batch in self.members]
        wrong = [pair for pair in zip(got, wanted, strict=True) if pair[0] != pair[1]]
        first, size = wrong[0] if wrong else (0, 0)
        differ = f"{len(wrong)} of {len(got)} rounds differ"
        reason = f"A batch holds {first:,} different records, where {name} draws {size:,}."
        return _found("batch sizes", differ, "none", reason, violated=bool(wrong))

    def most_and_fewest(self, rate: float) -> Finding:
        """Test the largest and smallest count of a record, for independent draws at a rate."""
        rounds, counts = len(self.members), self.counts
        most, fewest = int(counts.max()), int(counts.min())
        upper = float(stats.binom.sf(most - 1, rounds, rate))
        lower = float(stats.binom.cdf(fewest, rounds, rate))
        reason = (
            f"Over {rounds} rounds one record took part {most} times and one {fewest} times, where "
            f"independent draws give {rounds * rate:.3g} on average."
        )
        p_value = min(1.0, 2 * self.examples * min(upper, lower))
        seen, mean = f"{fewest} to {most}", f"{rounds * rate:.4g} on average"
        return _found("counts per record", seen, mean, reason, p_value)

    def once_an_epoch(self, length: int, name: str) -> Finding:
        """Test that no record takes part twice in an epoch of ``length`` rounds."""
        most = 0
        for start in range(0, len(self.members), length):
            epoch = np.concatenate(self.members[start : start + length])
            most = max(most, int(np.bincount(epoch, minlength=self.examples).max()))
        what, reason = "times a record takes part in an epoch", f"A record took part {most} times"
        reason += f" in one epoch, where {name} takes each once."
        return _found(what, f"at most {most}", "1", reason, violated=most > 1)

    def dealt_evenly(self, length: int, rate: float, rounds: int | None = None) -> Finding:
        """Test the sizes of batches, if each record is assigned to one of ``length`` rounds.

        In its round a record takes part with chance ``rate``. A record that has not taken part in
        the t earlier rounds takes part next with chance (rate/length)/(1 − rate·t/length).
        """
        sizes, left, chances = [], [], []
        members = self.members[:rounds]
        for start in range(0, len(members), length):
            there = self.examples
            for t, batch in enumerate(members[start : start + length]):
                sizes.append(min(len(batch), there))
                left.append(there)
                chances.append(min(1.0, rate / (length - rate * t)))
                there = max(0, there - len(batch))
        wanted, mean = rate * self.examples / length, np.mean(sizes)
        reason = (
            f"Batches hold {mean:.4g} records on average; dealt out at random, {wanted:.4g} would, "
            "and sizes would vary as independent draws do."
        )
        p_value = exact.uniform_p(self.binomial(sizes, left, np.array(chances)))
        seen = f"{mean:.5g} on average"
        return _found("sizes of batches", seen, f"{wanted:.5g}", reason, p_value)

    def uniformity(self, sampling: mechanism.Sampling) -> list[Finding]:
        """Test that a batch, given its size and all earlier rounds, is a uniform subset.

        Then the number of its records in any set that was marked beforehand is hypergeometric given
        the past. If each record takes part once an epoch, it is a subset of the remaining records.
        """
        length = sampling.rounds_per_epoch if sampling.redealt else 1
        order = self.generator.permutation(self.examples)
        rounds = len(self.members)
        fixed = [self._overlaps([half] * rounds, length) for half in (*self.halves, order % 2 == 0)]
        again = [self._overlaps(self._earlier(lag * length), length) for lag in LAGS]
        again.append(self._overlaps(self._drawn_often(order, length), length))
        subsets = "Batches are not uniform subsets: some part of the data set is drawn more often "
        subsets += "than another."
        joined = "Records that lie next to each other are not drawn independently."
        one_by_one, pairs = "records drawn one by one", self._neighbours(self.members[::length])
        return [
            _tested("which records are drawn", "uniform subsets", subsets, smallest(fixed)),
            _tested("independence of neighbours", one_by_one, joined, pairs),
            _drawn_afresh(smallest(again)),
        ]

    def _earlier(self, lag: int) -> Iterator[Marked | None]:
        """For each round, the members of the batch ``lag`` rounds earlier; None: there is none."""
        for t in range(len(self.members)):
            yield None if t < lag else self.marked(self.members[t - lag])

    def marked(self, batch: Indices) -> Marked:
        """A batch as a mask over all records, (examples,)."""
        inside = np.zeros(self.examples, dtype=bool)
        inside[batch] = True
        return inside

    def _drawn_often(self, order: Indices, length: int) -> Iterator[Marked | None]:
        """For each round, the half of the records that took part most in earlier rounds or epochs.

        None before there are any.
        """
        counts, half = np.zeros(len(order)), len(order) // 2
        chosen: Marked | None = None
        for t in range(len(self.members)):
            if t and t % length == 0:
                for batch in self.members[t - length : t]:
                    counts[batch] += 1
                # Ties are broken by a fixed random order.
                ranked = np.argpartition(order / (len(order) + 1) - counts, half)
                chosen = self.marked(ranked[:half])
            yield chosen

    def _overlaps(self, marks: Iterator[Marked | None] | list[Marked], length: int) -> float:
        """p-value of the numbers of records in sets that were marked beforehand, one each round."""
        counts, population, marked, drawn = [], [], [], []
        left = np.ones(self.examples, dtype=bool)
        for t, (batch, chosen) in enumerate(zip(self.members, marks, strict=True)):
            if t % length == 0:
                left[:] = True
            # Where every record has had its turn, the number says nothing.
            if chosen is not None and left.any():
                counts.append(int(chosen[batch].sum()))
                population.append(int(left.sum()))
                marked.append(int((chosen & left).sum()))
                drawn.append(len(batch))
            left[batch] = False
        # A record that takes part twice in an epoch is a certain finding of another test.
        if not counts or np.any(np.array(drawn) > np.array(population)):
            return 1.0
        uniforms = exact.uniform_hypergeometric(counts, population, marked, drawn, self.generator)
        return exact.uniform_p(uniforms)

    def _neighbours(self, members: Sequence[Indices]) -> float:
        pairs = self.examples // 2
        if not pairs:
            return 1.0
        inside = [self.marked(batch)[: 2 * pairs].reshape(pairs, 2) for batch in members]
        both = [int(two.all(axis=1).sum()) for two in inside]
        drawn = [int(two.sum()) for two in inside]
        return exact.uniform_p(exact.uniform_pairs(both, pairs, drawn, self.generator))


def _drawn_afresh(p_value: float) -> Finding:
    reason = "Batches are not independent of the ones before: the same records come again."
    what = "independence of successive rounds"
    return _tested(what, "every batch drawn afresh", reason, p_value)


def _subsets(sampling: mechanism.WithoutReplacement, seen: SeenBatches) -> list[Finding]:
    return [
        seen.sizes([sampling.batch] * len(seen.members), "sampling without replacement"),
        seen.most_and_fewest(sampling.rate),
        *seen.uniformity(sampling),
    ]


def _allocated(sampling: mechanism.RandomAllocation, seen: SeenBatches) -> list[Finding]:
    return [
        seen.once_an_epoch(sampling.rounds, "random allocation"),
        seen.dealt_evenly(sampling.rounds, 1.0),
        *seen.uniformity(sampling),
    ]


def _shuffled(sampling: mechanism.Shuffled, seen: SeenBatches) -> list[Finding]:
    length, batch = sampling.rounds_per_epoch, sampling.batch
    last = seen.examples - batch * (length - 1)
    wanted = [last if t % length == length - 1 else batch for t in range(len(seen.members))]
    return [
        seen.sizes(wanted, "shuffling"),
        seen.once_an_epoch(length, "shuffling"),
        *seen.uniformity(sampling),
    ]


def _poisson(sampling: mechanism.Poisson, seen: SeenBatches) -> list[Finding]:
    rounds, rate, examples = len(seen.members), sampling.rate, seen.examples
    sizes, counts = np.array([len(batch) for batch in seen.members]), seen.counts
    total = int(sizes.sum())
    share = total / (rounds * examples)
    spread = float(sizes.std(ddof=1)) if rounds > 1 else 0.0
    wanted = float(np.sqrt(examples * rate * (1 - rate)))
    scatter, expected = float(counts.std()), float(np.sqrt(rounds * rate * (1 - rate)))
    reasons = (
        f"Records take part at a rate of {share:.4g}, where {rate:.4g} was claimed.",
        f"Batch sizes vary with a standard deviation of {spread:.3g}, where Poisson sampling "
        f"gives {wanted:.3g}: batches are not drawn record by record.",
        f"Over {rounds} rounds the records' counts vary with a standard deviation of "
        f"{scatter:.3g}, where independent draws give {expected:.3g}.",
    )
    p_values = (
        exact.binomial_p(total, rounds * examples, rate),
        exact.spread_p(ndtri(seen.binomial(sizes, examples, rate))),
        exact.spread_p(ndtri(seen.binomial(counts, rounds, rate))),
    )
    rows = (
        ("rate at which records take part", f"{share:.5g}", f"{rate:.5g}"),
        ("spread of batch sizes", f"{spread:.4g}", f"{wanted:.4g}"),
        ("spread of counts per record", f"{scatter:.4g}", f"{expected:.4g}"),
    )
    every = zip(rows, reasons, p_values, strict=True)
    return [_found(*row, why, p) for row, why, p in every] + seen.uniformity(sampling)


def _turns(sampling: mechanism.CyclicPoisson, seen: SeenBatches) -> list[Finding]:
    """Test that each record is in rounds of one part only, and there independently at the rate.

    A record's first participation shows its part. From then on it is in each round of that part
    with chance ``rate``, independently of the past. Before, all parts are equally likely.
    """
    parts, rate = sampling.parts, sampling.rate
    part_of, moved, (front, even) = np.full(seen.examples, -1), 0, seen.halves
    before = [np.zeros(seen.examples, dtype=bool) for _ in range(parts)]
    overlaps = []  # for each round: counts and trials of four marked sets
    for t, batch in enumerate(seen.members):
        part, inside = t % parts, seen.marked(batch)
        mine = part_of == part
        marks = np.array([mine, mine & front, mine & even, mine & before[part]])
        overlaps.append([(inside & marks).sum(axis=1), marks.sum(axis=1)])
        moved += int(((part_of[batch] >= 0) & ~mine[batch]).sum())
        part_of[batch] = part
        before[part] = inside
    counts, trials = np.array(overlaps).transpose(1, 2, 0)
    p_values = [
        exact.uniform_p(seen.binomial(k, n, rate)) for k, n in zip(counts, trials, strict=True)
    ]
    share = int(counts[0].sum()) / max(1, int(trials[0].sum()))
    others = (
        f"Records took part in the rounds of more than one part ({moved:,} times), where each "
        f"belongs to one of {parts}."
    )
    reason = (
        f"Records take part at a rate of {share:.4g} in their part's rounds, "
        f"where {rate:.4g} was claimed, or not independently of who they are."
    )
    what, p_value = "rate at which records of a part take part", smallest(p_values[:3])
    return [
        _found(
            "records in rounds of other parts", f"{moved:,}", "none", others, violated=moved > 0
        ),
        seen.dealt_evenly(parts, rate, parts),
        _found(what, f"{share:.4g}", f"{rate:.4g}", reason, p_value),
        _drawn_afresh(p_values[3]),
    ]


# Kind of sampling → function from (sampling, batches) to findings; others cannot be audited.
TESTS: dict[type[mechanism.Sampling], Callable[[Any, SeenBatches], list[Finding]]] = {
    mechanism.FullBatch: lambda _, seen: [
        seen.sizes([seen.examples] * len(seen.members), "full batch")
    ],
    mechanism.Poisson: _poisson,
    mechanism.WithoutReplacement: _subsets,
    mechanism.Shuffled: _shuffled,
    mechanism.RandomAllocation: _allocated,
    mechanism.CyclicPoisson: _turns,
}


# A run without noise.


@dataclass(frozen=True)
class DryRun:
    """The observations of a run without noise.

    Args:
        plan: the plan that was run: the mechanism of the claim, without noise.
        members: for each round the records that took part.
        values: for each round the lengths of their contributions, in the order of ``members``.
        clip_norms: the bound C of each round.
    """

    plan: Plan
    members: tuple[Indices, ...]
    values: tuple[NDArray[np.float64], ...]
    clip_norms: tuple[float, ...]

    @property
    def lengths(self) -> Iterator[tuple[NDArray[np.float64], float]]:
        """(lengths of contributions, C) of each round that has any."""
        rounds = zip(self.values, self.clip_norms, strict=True)
        return ((values, norm) for values, norm in rounds if len(values))


def dry_plan(plan: Plan, sizes: canaries.CheckSizes) -> Plan:
    """A plan with the same sampling and clipping, no noise, and enough rounds to test them."""
    examples = min(plan.examples, sizes.population)
    kinds: dict[mechanism.Sampling, mechanism.Rounds] = {}
    for part in plan.mechanism:
        sampling = canaries.scaled(part.sampling, plan.examples, examples)
        count = _rounds(sampling, examples, plan, sizes)
        silent = mechanism.Rounds(0.0, count, sampling, part.clipping, groups=part.groups)
        kinds.setdefault(sampling, silent)
    return canaries.with_parts(plan, canaries.evenly(list(kinds.values())), examples)


def _rounds(
    sampling: mechanism.Sampling, examples: int, plan: Plan, sizes: canaries.CheckSizes
) -> int:
    length = sampling.rounds_per_epoch
    if length == 1 and not sampling.hides(length):
        return 3
    if length > 1:
        drawn = sampling.expected_batch(examples) * examples / sampling.pool(examples)
        drawn = examples if sampling.redealt else drawn
        epochs = max(3, math.ceil(sizes.hits / drawn))
        return max(1, min(sizes.dry_rounds, epochs * length))
    wanted = max(48, math.ceil(sizes.hits / sampling.expected_batch(examples)))
    if plan.groups is not None:  # each group needs its own pass
        wanted = min(wanted, max(24, sizes.dry_rounds // plan.groups))
    return min(sizes.dry_rounds, wanted)


def dry_run(plan: Plan, seed: int | None = None) -> DryRun:
    """Run a plan without noise on records with known gradients.

    Args:
        plan: with noise multiplier 0 in every part.
        seed: of sampling; None: fresh randomness, as in an ordinary run.
    """
    norm, examples = plan.clip.norm, plan.examples
    if plan.groups is None:
        weight = np.where(np.arange(examples) % 2 == 0, SMALL, LARGE)
        unit = norm / 2
    else:
        # The mean of many orthogonal gradients must still be far above the clipping norm.
        weight = np.full(examples, LARGE)
        unit = LARGE * norm * math.ceil(math.sqrt(examples))
    records = canaries.CanaryRecords(np.arange(examples), weight.astype(np.int64), unit, examples)

    def taken(total: NDArray[np.float64]) -> tuple[Indices, NDArray[np.float64]]:
        there = np.flatnonzero(total)
        return there, total[there]

    found, norms = canaries.kept(plan, records, taken, seed=seed)
    members, values = zip(*found, strict=True)
    return DryRun(plan, members, values, tuple(norms))


def participation(
    plan: Plan, sizes: canaries.CheckSizes, generator: np.random.Generator
) -> list[Finding]:
    """All findings of a run without noise.

    Args:
        plan: the claim. sizes: of the run. generator: of the audit's own choices, not of the run.
    """
    seen = dry_run(dry_plan(plan, sizes))
    found = contributions(seen) if plan.groups is None else group_contributions(seen, generator)
    first = 0
    for part in seen.plan.mechanism:
        members = seen.members[first : first + part.count]
        found += sampling_findings(part.sampling, members, seen.plan.examples, generator)
        first += part.count
    if plan.clip.rule == "quantile":
        found.append(count_noise(seen, generator))
    return found


def contributions(seen: DryRun) -> list[Finding]:
    """Test that a record counts as often as claimed in a round, and with at most C each time."""
    times, length, plan = 0.0, 0.0, seen.plan
    claimed = max(part.sampling.most(1) for part in plan.mechanism)
    for members, values, norm in zip(seen.members, seen.values, seen.clip_norms, strict=True):
        small, own = members % 2 == 0, SMALL * plan.clip.norm / 2
        if plan.clip.rule == "automatic":  # this rule also lengthens short contributions
            own = norm * own / (own + plan.clip.gamma)
        times = max(times, float(np.max(np.abs(values[small]), initial=0.0)) / min(own, norm))
        length = max(length, float(np.max(np.abs(values[~small]), initial=0.0)) / norm)
    most, limit = round(times, 3), claimed + TOLERANCE
    counted = (
        f"A record was counted {most:g} times in one round, where "
        f"{'once' if claimed == 1 else f'{claimed} times at most'} is claimed."
    )
    long = (
        f"Clipping does not hold: a contribution of length {length:.4g} C entered a sum whose "
        "contributions are bounded by C."
    )
    count = "times a record counts in a round"
    often, far = f"at most {most:g}", f"at most {length:.6g} C"
    return [
        _found(count, often, f"{claimed}", counted, violated=times > limit),
        _found("length of a contribution", far, f"{claimed} C", long, violated=length > limit),
    ]


def proportional(plan: Plan) -> bool:
    """True if a group's update is proportional to the mean of its records' gradients.

    With the linear loss of known gradients this holds if every step takes the whole group, without
    weight decay, and the inner optimizer's steps are proportional to the gradient.
    """
    local = plan.local
    if local is None or local.is_gradient:
        return True
    plain = local.function is None and local.step is None
    decays = any(name == "weight_decay" and value for name, value in local.options)
    return plain and not decays and mechanism.INNER[local.optimizer].along


def group_contributions(seen: DryRun, generator: np.random.Generator) -> list[Finding]:
    """Test that each group's update has length at most C, and that records choose groups at random.

    A group of m records with equally long orthogonal gradients contributes L/√m in the coordinate
    of each record, with L the length of its update; this shows m. Updates of different groups are
    orthogonal, so the length of their sum is at most √groups·C.
    """
    groups = seen.plan.groups or 1
    together = [math.sqrt(float(np.square(v).sum()) / groups) / norm for v, norm in seen.lengths]
    if not proportional(seen.plan):
        longest = max(together, default=0.0)
        reason = (
            f"Clipping does not hold: {groups} orthogonal updates are together {longest:.4g} "
            "times as long as updates of length C would be."
        )
        what = "length of all groups' updates over the root of their number"
        beyond = longest > 1 + TOLERANCE
        return [_found(what, f"at most {longest:.6g} C", "1 C", reason, violated=beyond)]
    longest, whole_groups = max(together, default=0.0), True
    mates: list[int] = []  # number of other records in the group of one random record of the batch
    others: list[int] = []  # number of other records in the batch
    for values, norm in seen.lengths:
        length, sizes = _lengths(values, groups)
        longest = max(longest, length / norm, float(np.max(np.abs(values))) / norm)
        whole_groups &= length > 0
        if length > 0:
            mates.append(int(sizes[generator.integers(len(sizes))]) - 1)
            others.append(len(values) - 1)
    farthest, beyond = f"at most {longest:.6g} C", longest > 1 + TOLERANCE
    long = (
        f"Clipping does not hold: a group's update of length {longest:.4g} C entered a sum "
        "whose contributions are bounded by C."
    )
    odd = (
        "Group updates are not what was claimed: lengths and numbers of records do not fit "
        "groups in which every record counts once and whose mean is clipped to C."
    )
    mean = "a group's update is the clipped mean of its records"
    found = [
        _found("length of a group's update", farthest, "1 C", long, violated=beyond),
        _found(mean, "yes" if whole_groups else "no", "yes", odd, violated=not whole_groups),
    ]
    if groups > 1 and mates:
        # A record shares its group with each other record with chance 1/groups, independently.
        p_value = exact.uniform_p(exact.uniform_binomial(mates, others, 1 / groups, generator))
        share, wanted = f"{sum(mates) / max(1, sum(others)):.4g}", f"{1 / groups:.4g}"
        reason = "Records are not dealt to groups independently at random."
        found.append(_found("records that share a group", share, wanted, reason, p_value))
    return found


def _lengths(values: NDArray[np.float64], groups: int) -> tuple[float, Indices]:
    """The common length L of all updates, and each record's group size; 0 if no length fits.

    For a length that fits, the sizes (L/v)² are whole numbers, the number of records with size m is
    a multiple of m, and there are at most ``groups`` groups. If several lengths fit (groups of
    equal size could be one group), the result is the shortest, with the most groups.
    """
    rounded = np.round(np.square(values / values.max()), 9)
    squares, records = np.unique(rounded, return_counts=True)
    for alike in range(min(groups, int(records[-1])), 0, -1):
        if records[-1] % alike:
            continue
        least = int(records[-1] // alike)  # records in each of the smallest groups
        wanted = least / squares
        sizes = np.rint(wanted).astype(np.int64)
        fits = np.all(np.abs(wanted - sizes) <= TOLERANCE * wanted) and not np.any(records % sizes)
        if fits and int((records // sizes).sum()) <= groups:
            of_record = np.rint(least / rounded).astype(np.int64)
            return float(values.max() * math.sqrt(least)), of_record
    return 0.0, np.zeros(0, dtype=np.int64)


def count_noise(seen: DryRun, generator: np.random.Generator) -> Finding:
    """Test that the count that moves the clipping norm carries the accounted noise.

    Each step C ← C·exp(−rate·(share − quantile)) shows the released share; the run without noise on
    the sum shows the true share. If the released share was clamped to 0 or 1, only a bound of the
    noise is known.
    """
    clip = seen.plan.clip
    assert clip.count_noise is not None
    uniforms = []
    for t, (members, divisor) in enumerate(
        zip(seen.members[:-1], canaries.divisors(seen.plan), strict=False)
    ):
        norm = seen.clip_norms[t]
        share = clip.quantile - math.log(seen.clip_norms[t + 1] / norm) / clip.quantile_rate
        lengths = np.where(members % 2 == 0, SMALL, LARGE) * clip.norm / 2
        centred = float((lengths <= norm).sum()) - len(members) / 2
        below = float(ndtr(((share - 0.5) * divisor - centred) / clip.count_noise))
        if share <= TOLERANCE:
            below *= float(generator.random())
        elif share >= 1 - TOLERANCE:
            below += (1 - below) * float(generator.random())
        uniforms.append(below)
    width = float(np.std(ndtri(np.clip(uniforms, 1e-12, 1 - 1e-12))))
    reason = (
        f"The count that moves the clipping norm carries {width:.3g} times the noise that is "
        "accounted for it."
    )
    p_value = exact.uniform_p(np.clip(uniforms, 1e-300, 1 - 2**-53))
    what, times = "noise on the count of clipped contributions", f"{width:.4g} of what is accounted"
    return Finding("noise", what, times, "1", reason, p_value)
