"""Random mechanisms against two oracles, and extreme ones against the clock.

python tests/accounting/fuzz.py --cases 100000 --seed 1
python tests/accounting/fuzz.py --small 10000       # every cell, by enumeration of data sets
python tests/accounting/fuzz.py --keep enumeration --cases 1000   # and a row in fuzzed.csv
python tests/accounting/fuzz.py --keep convolution --cases 1000

One oracle (oracle.py) composes the documented pairs with weights and a convolution of its own. The
other (listed.py) knows no theorem: it lists every batch, and every deal to groups, of a handful of
records, and integrates what the sums of these very data sets have as δ. Neither shares code with
the library. A guarantee below what data have is an upper end too low; where data are said to attain
more than they have, or a theorem that data attain is said to prove more, a lower end is too high.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np

from forethought.accounting import exact
from forethought.accounting.attack_bounds import attained
from forethought.accounting.dominating_pair import gaussian_epsilon_bounds
from forethought.accounting.theorems import SUPPORTED, parts, unsampled_distance
from forethought.values.mechanism import (
    ADJACENCIES,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)

# Processor seconds; the goal is 2, the rest is for slow and busy machines.
LIMIT = 10.0
TRUSTED = 0.01


def _beside(file: str) -> ModuleType:
    name = f"accounting_{file}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{file}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _oracle() -> ModuleType:
    return _beside("oracle")


@dataclass(frozen=True)
class Case:
    """One question to the accountant."""

    mechanism: Mechanism
    delta: float
    group: int


def _many(case: Case) -> str:
    return "one" if case.group == 1 else "several"


@dataclass
class Outcome:
    """What a run of cases found."""

    cases: int = 0
    checked: int = 0
    faults: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    narrowable: int = 0
    asked: Counter[tuple[str, ...]] = field(default_factory=Counter)


def plain_cases(seed: int) -> Iterator[Case]:
    """What people run: every cell, a few kinds of rounds, small groups."""
    rng, dealing = np.random.default_rng(seed), np.random.default_rng([seed, 1])

    def spread(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    while True:
        parts = []
        for _ in range(int(rng.integers(1, 3))):
            rate, kind = spread(1e-4, 1), rng.random()
            sampling: object = Poisson(rate)
            if kind < 0.3:
                examples = int(spread(50, 5000))
                sampling = WithoutReplacement(max(1, int(examples * rate)), examples)
            elif kind < 0.35:
                sampling = FullBatch()
            elif kind < 0.45:
                sampling = CyclicPoisson(rate, int(spread(1, 300)))
            clipping = str(rng.choice(["example", "group"]))
            known = dealing.choice([0, 1, 2, 5]) if clipping == "group" else 0
            groups = int(known) or None
            sigma, count = spread(0.4, 20), int(spread(1, 3000))
            parts.append(Rounds(sigma, count, sampling, clipping, groups=groups))
        adjacency = ADJACENCIES[int(rng.integers(3))]
        group = int(rng.choice([1, 1, 1, 2, 3, 8]))
        yield Case(Mechanism(*parts, adjacency=adjacency), 10 ** -rng.uniform(1, 12), group)


def extreme_cases(seed: int) -> Iterator[Case]:
    """What nobody should run, and what must not crash, hang or fill the memory."""
    rng = np.random.default_rng(seed)

    def spread(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    while True:
        sigma = spread(1e-160, 1e160) if rng.random() < 0.3 else spread(0.02, 100)
        rate, kind = spread(1e-12, 1), rng.random()
        sampling: object = Poisson(min(1.0, rate))
        if kind < 0.3:
            examples = int(spread(2, 1e7))
            sampling = WithoutReplacement(max(1, int(examples * rate)), examples)
        adjacency = ADJACENCIES[int(rng.integers(3))]
        if kind > 0.9:
            examples = int(spread(2, 1e7))
            sampling = Shuffled(max(1, int(examples * rate)), examples)
            adjacency = "zero-out"
        count = int(spread(1, 1e7))
        group = int(spread(1, 100)) if rng.random() < 0.9 else int(spread(100, 1e5))
        clipping = str(rng.choice(["example", "group"]))
        mechanism = Mechanism(Rounds(sigma, count, sampling, clipping), adjacency=adjacency)
        yield Case(mechanism, 10 ** -rng.uniform(0.5, 300 if rng.random() < 0.3 else 30), group)


# Relative error of the midpoint rule in one and in two dimensions, at most: at the level the
# integrand's logarithm has a slope of at most 8 a standard deviation, of which a step is 1 in 100
# or 1 in 20, and the rule errs by the square of slope times step, over 24.
INTEGRAL = {1: 3e-4, 2: 8e-3}


@dataclass
class Enumerated:
    """What enumeration of small data sets found."""

    cases: int = 0
    attacks: int = 0
    ends: int = 0
    asked: Counter[tuple[str, ...]] = field(default_factory=Counter)
    too_low: list[str] = field(default_factory=list)
    too_high: list[str] = field(default_factory=list)


def small_cases(seed: int) -> Iterator[tuple[Case, int]]:
    """One or two rounds on at most five records, cell by cell; and how many records there are."""
    rng = np.random.default_rng([seed, 2])

    def spread(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    for turn in count():
        for kind, clipping, adjacency in SUPPORTED:
            group = int(rng.integers(1, 3))
            if turn % 4 and kind == "random-allocation":
                # Whole curves are needed for its chains, which cost ten times what others do.
                if adjacency == "replace-one":
                    continue
                group = 1
            records = int(rng.integers(3, 6 if clipping == "example" else 5))
            rounds, rate = 1 + int(rng.random() < 0.3), spread(0.02, 1)
            batch = int(rng.integers(1, records))
            # Rounds in turns and epochs are listed for one epoch.
            first = int(rng.integers((records + 1) // 2, records))
            sampling = {
                "poisson": Poisson(rate),
                "without-replacement": WithoutReplacement(batch, records),
                "shuffled": Shuffled(first, records),
                "random-allocation": RandomAllocation(2),
                "cyclic-poisson": CyclicPoisson(rate, 2),
                "full-batch": FullBatch(),
            }[kind]
            groups = int(rng.integers(1, 3)) if clipping == "group" else None
            part = Rounds(spread(0.3, 4), rounds, sampling, clipping, groups=groups)
            yield (
                Case(Mechanism(part, adjacency=adjacency), 10 ** -rng.uniform(0.5, 4), group),
                records,
            )


def enumerate_small(case: Case, records: int, found: Enumerated) -> None:
    """Every batch of every data set listed: no δ of theirs may be above what is certified."""
    (part,) = case.mechanism.rounds
    adjacency, cell = case.mechanism.adjacency, (part.sampling.kind, part.clipping)
    listed, fewer = _beside("listed"), _beside("drawn").fewer
    slack = INTEGRAL[part.count]

    def truth(level: float) -> float:
        return max(
            listed.least_delta(part, adjacency, many, records, level, fewer)
            for many in {1, case.group}
        )

    found.cases += 1
    found.asked[(*cell, adjacency, _many(case))] += 1
    got = exact.epsilon(case.mechanism, case.delta, case.group)
    if got.upper < 30:
        found.ends += 1
        if truth(got.upper) > case.delta * (1 + slack):
            found.too_low.append(f"{got} of {records}: {case}")
    least = attained(case.mechanism, case.delta, case.group).epsilon
    tight = cell in {("poisson", "example"), ("full-batch", "example")}
    claimed = max(least, got.lower if tight else 0.0)
    # Of groups an attack supposes as many others as leave none empty, where nobody says how many.
    within = part.clipping == "example" or part.sampling.known_examples() is not None
    if within and 0 < claimed < 30:
        found.attacks += 1
        if truth(claimed) < case.delta * (1 - slack):
            found.too_high.append(f"{claimed} of {records}: {case}")


def run_small(seed: int, cases: int) -> Enumerated:
    """So many small cases."""
    found = Enumerated()
    for _, (case, records) in zip(range(cases), small_cases(seed), strict=False):
        enumerate_small(case, records, found)
    return found


def check(case: Case, outcome: Outcome, *, against_oracle: bool, size: int = 2**14) -> None:
    """Ask, and judge the answer."""
    outcome.cases += 1
    started = time.process_time()
    try:
        got = exact.enclose(case.mechanism, case.group, 1e-3, exact.Asked(case.delta))
    except Exception as error:
        outcome.faults.append(f"{type(error).__name__}: {error}: {case}")
        return
    seconds = time.process_time() - started
    outcome.seconds.append(seconds)
    if seconds > LIMIT:
        outcome.slow.append(f"{seconds:.1f} s: {case}")
    sigma = min(part.noise_multiplier for part in case.mechanism)
    if not 0 <= got.lower <= got.upper or (math.isinf(got.upper) and sigma > 1e-100):
        outcome.faults.append(f"{got}: {case}")
        return
    if got.upper < 20 and case.delta >= 1e-12 and case.group <= 64:
        outcome.narrowable += 1
        goal = 1e-3 if case.group == 1 else 1e-2
        if got.relative_width > goal and got.upper - got.lower > 1e-8:
            outcome.wide.append(f"{got}: {case}")
    if not against_oracle or not 0 < got.upper < 60:
        return
    cap = gaussian_epsilon_bounds(unsampled_distance(case.mechanism, case.group), case.delta)
    wanted = math.log(case.delta)
    for level, above in ((got.upper, True), (got.lower, False)):
        # The cap is the Gaussian's own figure, tested beside its closed form.
        if level <= 0 or level >= cap.lower * (1 - 1e-9):
            continue
        truth = _oracle().truth(case.mechanism, level, case.group, size=size, points=12_000)
        if truth.error > TRUSTED:
            continue
        outcome.checked += 1
        outcome.asked.update(
            {
                (part.sampling.kind, part.clipping, case.mechanism.adjacency, _many(case))
                for part in case.mechanism
            }
        )
        # A single release has a kink at the level, where halving the step says less of the error;
        # so have several of which only one can hold the record.
        once = sum(parts(case.mechanism, case.group).values()) == 1
        slack = truth.error + (1e-4 if once else 1e-6)
        if above and truth.log_delta - slack > wanted:
            outcome.faults.append(f"upper end too low by {truth.log_delta - wanted}: {got}: {case}")
        if not above and truth.log_delta + slack < wanted:
            outcome.faults.append(
                f"lower end too high by {wanted - truth.log_delta}: {got}: {case}"
            )


def run(seed: int, plain: int, extreme: int, every: int = 1) -> Outcome:
    """So many cases of both kinds; of the plain ones every so many goes to the oracle."""
    outcome = Outcome()
    for number, case in zip(range(plain), plain_cases(seed), strict=False):
        check(case, outcome, against_oracle=number % every == 0)
    for _, case in zip(range(extreme), extreme_cases(seed), strict=False):
        check(case, outcome, against_oracle=False)
    return outcome


# What 5,000 mechanisms and more came to, one row a run: "fewest" of a cell and group size.
KEPT = Path(__file__).parent / "fuzzed.csv"
FIELDS = ("oracle", "seed", "mechanisms", "cells", "fewest", "ends", "violations", "seconds")


def keep(oracle: str, seed: int, cases: int) -> int:
    """So many cases to one oracle, and a row of what came out to ``KEPT``; the violations."""
    started = time.process_time()
    if oracle == "convolution":
        outcome = run(seed, cases, 0)
        asked, ends, wrong = outcome.asked, outcome.checked, outcome.faults
    else:
        found = run_small(seed, cases)
        asked, ends = found.asked, found.ends + found.attacks
        wrong = [*found.too_low, *found.too_high]
    print(*wrong, sep="\n")
    seconds = round(time.process_time() - started)
    cells = len({cell[:3] for cell in asked})
    row = (oracle, seed, cases, cells, min(asked.values()), ends, len(wrong), seconds)
    with KEPT.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(row)
    print(*map("{} {}".format, FIELDS, row), sep=", ")
    return len(wrong)


def main() -> None:
    """Print what was found; status 1 where something is wrong."""
    import resource  # Unix has it

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--small", type=int, default=0, help="so many by enumeration, and no others"
    )
    parser.add_argument(
        "--keep", choices=("convolution", "enumeration"), help="and a row in fuzzed.csv"
    )
    arguments = parser.parse_args()
    if arguments.keep:
        sys.exit(bool(keep(arguments.keep, arguments.seed, arguments.cases)))
    if arguments.small:
        listed = run_small(arguments.seed, arguments.small)
        cells = len({cell[:3] for cell in listed.asked})
        print(
            f"{listed.cases} mechanisms of {cells} cells enumerated: "
            f"{len(listed.too_low)} upper ends too low, {len(listed.too_high)} of "
            f"{listed.attacks} lower ends too high"
        )
        print(*listed.too_low, *listed.too_high, sep="\n")
        sys.exit(bool(listed.too_low or listed.too_high))
    found = run(arguments.seed, arguments.cases * 3 // 4, arguments.cases // 4)
    print(
        f"{found.cases} cases, {found.checked} ends against the oracle, {len(found.faults)} faults"
    )
    print(f"wider than the goal: {len(found.wide)} of {found.narrowable}; slow: {len(found.slow)}")
    seconds, peak = sorted(found.seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"processor seconds: median {seconds[len(seconds) // 2]:.3f}, most {seconds[-1]:.1f}, over "
        f"2.5 in {sum(each > 2.5 for each in seconds)} cases; memory at most {peak / 1024:.0f} MB"
    )
    print(*found.faults, *found.wide[:20], *found.slow[:20], sep="\n")
    sys.exit(bool(found.faults))


if __name__ == "__main__":
    main()
