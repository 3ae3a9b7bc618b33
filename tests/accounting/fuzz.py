"""Random mechanisms against the oracle, and extreme ones against the clock.

python tests/accounting/fuzz.py --cases 100000 --seed 1
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np

from forethought.accounting import exact
from forethought.accounting.closed_bounds import gaussian_epsilon_bounds
from forethought.accounting.theorems import parts, unsampled_distance
from forethought.mechanism import ADJACENCIES, Mechanism, Rounds
from forethought.samplings import CyclicPoisson, FullBatch, Poisson, Shuffled, WithoutReplacement

# Processor seconds; the goal is 2, the rest is for slow and busy machines.
LIMIT = 10.0
TRUSTED = 0.01


def _oracle() -> ModuleType:
    name = "accounting_oracle"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "oracle.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True)
class Case:
    """One question to the accountant."""

    mechanism: Mechanism
    delta: float
    group: int


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


def check(case: Case, outcome: Outcome, *, against_oracle: bool, size: int = 2**14) -> None:
    """Ask, and judge the answer."""
    outcome.cases += 1
    started = time.process_time()
    try:
        got = exact.enclose(case.mechanism, case.group, 1e-3, delta=case.delta)
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


def main() -> None:
    """Print what was found; status 1 where something is wrong."""
    import resource  # Unix has it

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
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
