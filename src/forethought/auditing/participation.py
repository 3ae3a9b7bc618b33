"""The dry run: without noise, planted records show exactly who took part, how often and how much.

Record i's gradient is in coordinate i alone, so the nonzero coordinates of a sum are its batch.
That contributions are at most C and counted once holds with certainty; how batches are drawn is
tested against the claimed distribution, each test with an exact null distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from forethought.auditing import exact_tests as exact
from forethought.auditing import sampling_tests
from forethought.auditing.effort import Effort, evenly, scaled, with_parts
from forethought.auditing.planted import PlantedRecords, divisors, observe
from forethought.auditing.verdict import Finding, certain
from forethought.values.contributions import INNER
from forethought.values.mechanism import Rounds
from forethought.values.plan import Plan
from forethought.values.samplings import (
    Sampling,
)

Indices = NDArray[np.int64]

# Sums of a few numbers in double precision: anything beyond is no rounding.
TOLERANCE = 1e-5
# Even records have half the clipping norm, so that counting twice does not look like no clipping.
SMALL, LARGE = 1, 1_000


@dataclass(frozen=True)
class DryRun:
    """The observations of a run without noise.

    Args:
        plan: what was run: the mechanism of the claim, without noise.
        members: for each round the records that took part.
        values: for each round their contributions' lengths, in the order of ``members``.
        clip_norms: the bound C of each round.
    """

    plan: Plan
    members: tuple[Indices, ...]
    values: tuple[NDArray[np.float64], ...]
    clip_norms: tuple[float, ...]


def dry_plan(plan: Plan, effort: Effort) -> Plan:
    """A plan with the same sampling and clipping, no noise, and rounds enough to judge them."""
    examples = min(plan.examples, effort.population)
    kinds: dict[Sampling, Rounds] = {}
    for part in plan.mechanism:
        sampling = scaled(part.sampling, plan.examples, examples)
        count = _rounds(sampling, examples, plan, effort)
        silent = Rounds(0.0, count, sampling, part.clipping, groups=part.groups)
        kinds.setdefault(sampling, silent)
    return with_parts(plan, evenly(list(kinds.values())), examples)


def _rounds(sampling: Sampling, examples: int, plan: Plan, effort: Effort) -> int:
    length = sampling.rounds_per_epoch
    if length == 1 and not sampling.hides(length):
        return 3
    if length > 1:
        drawn = sampling.expected_batch(examples) * examples / sampling.pool(examples)
        drawn = examples if sampling.redealt else drawn
        epochs = max(3, math.ceil(effort.hits / drawn))
        return max(1, min(effort.dry_rounds, epochs * length))
    wanted = max(48, math.ceil(effort.hits / sampling.expected_batch(examples)))
    if plan.groups is not None:  # each group is a pass of its own
        wanted = min(wanted, max(24, effort.dry_rounds // plan.groups))
    return min(effort.dry_rounds, wanted)


def dry_run(plan: Plan, seed: int | None = None) -> DryRun:
    """Run a plan without noise on planted records.

    Args:
        plan: with noise multiplier 0 in every part.
        seed: of sampling; None draws it as an ordinary run does.
    """
    norm, examples = plan.clip.norm, plan.examples
    if plan.groups is None:
        weight = np.where(np.arange(examples) % 2 == 0, SMALL, LARGE)
        unit = norm / 2
    else:
        # A mean of many orthogonal gradients must still be far above the norm.
        weight = np.full(examples, LARGE)
        unit = LARGE * norm * math.ceil(math.sqrt(examples))
    records = PlantedRecords(np.arange(examples), weight.astype(np.int64), unit, examples)
    members: list[Indices] = []
    values: list[NDArray[np.float64]] = []

    def see(_index: int, total: NDArray[np.float64]) -> None:
        found = np.flatnonzero(total)
        members.append(found)
        values.append(total[found])

    moving = plan.clip.rule == "quantile" or plan.clip.final is not None
    run = observe(plan, records, see, seed=seed, log_every=1 if moving else plan.rounds)
    norms = [row.clip_norm for row in run.history] if moving else [norm] * plan.rounds
    return DryRun(plan, tuple(members), tuple(values), tuple(norms))


def participation(plan: Plan, effort: Effort, generator: np.random.Generator) -> list[Finding]:
    """Every finding of the dry run.

    Args:
        plan: the claim. generator: of the audit's own choices, never of the run.
    """
    seen = dry_run(dry_plan(plan, effort))
    found = contributions(seen) if plan.groups is None else group_contributions(seen, generator)
    first = 0
    for part in seen.plan.mechanism:
        members = seen.members[first : first + part.count]
        found += sampling_tests.sampling_findings(
            part.sampling, members, seen.plan.examples, generator
        )
        first += part.count
    if plan.clip.rule == "quantile":
        found.append(count_noise(seen, generator))
    return found


def contributions(seen: DryRun) -> list[Finding]:
    """Each record counts once, and for at most C."""
    times, length = 0.0, 0.0
    claimed = max(part.sampling.most(1) for part in seen.plan.mechanism)
    for members, values, norm in zip(seen.members, seen.values, seen.clip_norms, strict=True):
        small = members % 2 == 0
        own = _clipped(seen.plan, SMALL * seen.plan.clip.norm / 2, norm)
        times = max(times, float(np.max(np.abs(values[small]), initial=0.0)) / own)
        length = max(length, float(np.max(np.abs(values[~small]), initial=0.0)) / norm)
    twice = times > claimed + TOLERANCE
    most = round(times, 3)
    return [
        certain(
            "participation",
            "times a record counts in a round",
            f"at most {most:g}",
            f"{claimed}",
            twice,
            f"A record was counted {most:g} times in one round, where "
            f"{'once' if claimed == 1 else f'{claimed} times at most'} is claimed.",
        ),
        certain(
            "participation",
            "length of a contribution",
            f"at most {length:.6g} C",
            f"{claimed} C",
            length > claimed + TOLERANCE,
            f"Clipping does not hold: a contribution of length {length:.4g} C entered a sum whose "
            "contributions are bounded by C.",
        ),
    ]


def _clipped(plan: Plan, length: float, norm: float) -> float:
    """Length of a contribution after the plan's rule, for one coordinate."""
    if plan.clip.rule == "automatic":
        return norm * length / (length + plan.clip.gamma)  # shorter ones are lengthened, too
    return min(length, norm)


def proportional(plan: Plan) -> bool:
    """True if a group's update lies along the mean of its records' gradients.

    So it does where a loss is linear, as the planted one is, and all steps take the whole group.
    """
    local = plan.local
    if local is None or local.is_gradient:
        return True
    plain = local.function is None and local.step is None
    decays = any(name == "weight_decay" and value for name, value in local.options)
    return plain and not decays and INNER[local.optimizer].along


def group_contributions(seen: DryRun, generator: np.random.Generator) -> list[Finding]:
    """Each group's update is at most C long; groups are drawn by record, independently.

    A group of m records with equally long orthogonal gradients contributes L/√m in the coordinate
    of each, L being the length of its update, which tells its size.
    """
    groups = seen.plan.groups or 1
    if not proportional(seen.plan):
        return [_together(seen, groups)]
    longest, whole_groups = 0.0, True
    mates: list[int] = []
    others: list[int] = []
    for values, norm in zip(seen.values, seen.clip_norms, strict=True):
        if not len(values):
            continue
        length, sizes = _lengths(values, groups)
        together = math.sqrt(float(np.square(values).sum()) / groups)
        longest = max(longest, length / norm, together / norm, float(np.max(np.abs(values))) / norm)
        whole_groups &= length > 0
        if length > 0:
            mates.append(int(sizes[generator.integers(len(sizes))]) - 1)
            others.append(len(values) - 1)
    found = [
        certain(
            "participation",
            "length of a group's update",
            f"at most {longest:.6g} C",
            "1 C",
            longest > 1 + TOLERANCE,
            f"Clipping does not hold: a group's update of length {longest:.4g} C entered a sum "
            "whose contributions are bounded by C.",
        ),
        certain(
            "participation",
            "a group's update is the clipped mean of its records",
            "yes" if whole_groups else "no",
            "yes",
            not whole_groups,
            "Group updates are not what was claimed: lengths and numbers of records do not fit "
            "groups in which every record counts once and whose mean is clipped to C.",
        ),
    ]
    if groups > 1 and mates:
        found.append(sampling_tests.group_sizes(mates, others, groups, generator))
    return found


def _together(seen: DryRun, groups: int) -> Finding:
    """Updates of different groups are orthogonal here: together at most √m clipping norms."""
    longest = max(
        math.sqrt(float(np.square(values).sum()) / groups) / norm
        for values, norm in zip(seen.values, seen.clip_norms, strict=True)
    )
    return certain(
        "participation",
        "length of all groups' updates over the root of their number",
        f"at most {longest:.6g} C",
        "1 C",
        longest > 1 + TOLERANCE,
        f"Clipping does not hold: {groups} orthogonal updates are together {longest:.4g} times as "
        "long as updates of length C would be.",
    )


def _lengths(values: NDArray[np.float64], groups: int) -> tuple[float, Indices]:
    """The one length L of all updates, and each record's group size; 0 if none fits.

    Sizes (L/v)² are whole, as many records have size m as whole groups of m hold, and there are at
    most ``groups`` in all. Where several lengths fit (groups that are all alike could be one), it
    is the shortest: the most groups.
    """
    rounded = np.round(np.square(values / values.max()), 9)
    squares, records = np.unique(rounded, return_counts=True)
    for alike in range(min(groups, int(records[-1])), 0, -1):
        if records[-1] % alike:
            continue
        smallest = int(records[-1] // alike)  # records in each of the smallest groups
        wanted = smallest / squares
        sizes = np.rint(wanted).astype(np.int64)
        fits = np.all(np.abs(wanted - sizes) <= TOLERANCE * wanted) and not np.any(records % sizes)
        if fits and int((records // sizes).sum()) <= groups:
            of_record = np.rint(smallest / rounded).astype(np.int64)
            return float(values.max() * math.sqrt(smallest)), of_record
    return 0.0, np.zeros(0, dtype=np.int64)


def count_noise(seen: DryRun, generator: np.random.Generator) -> Finding:
    """Does the count that moves the clipping norm carry the noise that is accounted?

    Each step C ← C·exp(−rate·(share − quantile)) gives the released share, and the dry run the true
    one. Where the share was cut off at 0 or 1, only that the noise reached so far is known.
    """
    clip = seen.plan.clip
    assert clip.count_noise is not None
    uniforms = []
    divisors_ = divisors(seen.plan)
    for t, (members, divisor) in enumerate(zip(seen.members[:-1], divisors_, strict=False)):
        norm = seen.clip_norms[t]
        share = clip.quantile - math.log(seen.clip_norms[t + 1] / norm) / clip.quantile_rate
        lengths = np.where(members % 2 == 0, SMALL, LARGE) * clip.norm / 2
        centred = float((lengths <= norm).sum()) - len(members) / 2
        noise = ((share - 0.5) * divisor - centred) / clip.count_noise
        below = float(ndtr(noise))
        if share <= TOLERANCE:
            below *= float(generator.random())
        elif share >= 1 - TOLERANCE:
            below += (1 - below) * float(generator.random())
        uniforms.append(below)
    width = float(np.std(ndtri(np.clip(uniforms, 1e-12, 1 - 1e-12))))
    return Finding(
        "noise",
        "noise on the count of clipped contributions",
        f"{width:.4g} of what is accounted",
        "1",
        f"The count that moves the clipping norm carries {width:.3g} times the noise that is "
        "accounted for it.",
        exact.uniform_p(np.clip(uniforms, 1e-300, 1 - 2**-53)),
    )
