"""Time the accounting engine beside dp-accounting, in one process.

python benchmarks/accounting.py            # all rows, median of several runs
python benchmarks/accounting.py --smoke    # one run of each, the slow rivals left out
python benchmarks/accounting.py --cliffs    # only the rows that once took long or gave up
python benchmarks/accounting.py --extremes 740    # so many extreme mechanisms: widths and seconds
python benchmarks/accounting.py --ordinary 151    # so many ordinary ones, of ε < 20 and δ ≥ 1e-12
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from forethought.accounting import exact
from forethought.accounting.exact import noise_multiplier
from forethought.values.mechanism import (
    Adjacency,
    Budget,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)


def ours(*rounds: Rounds, group: int = 1) -> Callable[[], float]:
    """ε at δ = 1e-5, with nothing remembered from earlier runs."""

    def run() -> float:
        exact.enclose.cache_clear()
        return exact.epsilon(Mechanism(*rounds), 1e-5, group).upper

    return run


def theirs(*rounds: Rounds, delta: float = 1e-5) -> Callable[[], float]:
    """The same from dp-accounting at its default grid."""

    def run() -> float:
        accountant = PLDAccountant()
        for part in rounds:
            event = PoissonSampledDpEvent(
                part.sampling.rate, GaussianDpEvent(part.noise_multiplier)
            )
            accountant.compose(SelfComposedDpEvent(event, part.count))
        return float(accountant.get_epsilon(delta))

    return run


def calibrated() -> float:
    """σ for ε = 1."""
    exact.enclose.cache_clear()
    return noise_multiplier(Budget(1, 1e-5), Poisson(256 / 60_000), 4700)


def cliffs() -> list[tuple[str, Mechanism, float, int, float]]:
    """Where accounting once took long or gave up: name, mechanism, δ, group, goal in seconds."""
    rng = np.random.default_rng(1)
    rates, sigmas = 10 ** rng.uniform(-4, -1.5, 3000), rng.uniform(0.7, 5, 3000)
    mixed = (Rounds(float(s), 1, Poisson(float(r))) for r, s in zip(rates, sigmas, strict=True))

    def falling(step: float, parts: int, adjacency: Adjacency) -> Mechanism:
        batches = WithoutReplacement(100, 10_000)
        rounds = (Rounds(1 + step * i, 10, batches) for i in range(parts))
        return Mechanism(*rounds, adjacency=adjacency)

    rare = Mechanism(Rounds(0.566, 282, Poisson(3 / 113_104)))
    epochs = (Rounds(1 + 0.2 * i, 500 * (i + 1), RandomAllocation(100 + i)) for i in range(6))
    least = Mechanism(Rounds(1.9, 472, WithoutReplacement(2, 20_000)), adjacency="zero-out")
    return [
        ("without replacement, zero-out, 100 σ", falling(0.01, 100, "zero-out"), 1e-5, 1, 1),
        ("150 σ", falling(0.01, 150, "zero-out"), 1e-5, 1, 1),
        ("300 σ, replace-one, group of 4", falling(0.005, 300, "replace-one"), 1e-5, 4, 2),
        ("3,000 Poisson rates and σ", Mechanism(*mixed), 1e-5, 1, 2),
        ("3 of 113,104, σ 0.566, 282 rounds", rare, 5.87e-6, 1, 1),
        ("random allocation, 6 parts", Mechanism(*epochs), 1e-5, 1, 1),
        ("random allocation, 1e6 rounds", _epoch(10**6, 0.5), 1e-5, 1, 2),
        ("random allocation, 1e7 rounds, σ 0.4", _epoch(10**7, 0.4), 1e-5, 1, 2),
        ("2 of 20,000, zero-out, group of 5", least, 4.3e-8, 5, 1),
    ]


EXTREME = ((0.2, 100), (1, 1e7), (1e-6, 1))
ORDINARY = ((0.5, 10), (1, 1e5), (1e-4, 0.5))


def drawn(number: int, ends: tuple[tuple[float, float], ...] = EXTREME) -> tuple[Mechanism, float]:
    """A mechanism of one record somewhere between the ends of every range, and a δ.

    Args:
        ends: of σ, of the number of rounds, of the rate.
    """
    rng = np.random.default_rng([25, number])

    def spread(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    sigma, count, rate = (spread(*pair) for pair in ends)
    count = int(count)
    batch = max(1, round(1_000_000 * rate))
    length = int(spread(1, min(count, 1e7)))
    sampling = (
        Poisson(rate),
        WithoutReplacement(batch, 1_000_000),
        Shuffled(batch, 1_000_000),
        RandomAllocation(length),
        CyclicPoisson(rate, length),
        FullBatch(),
    )[number % 6]
    allowed: list[Adjacency] = ["add-or-remove", "zero-out", "replace-one"]
    adjacency = allowed[1 + number // 6 % 2 if isinstance(sampling, Shuffled) else number // 6 % 3]
    return Mechanism(Rounds(sigma, count, sampling), adjacency=adjacency), spread(1e-12, 1e-2)


def _ordinary(cases: int) -> list[tuple[Mechanism, float]]:
    every = (drawn(number, ORDINARY) for number in itertools.count())
    below = (one for one in every if exact.estimate(*one) < 20)
    return list(itertools.islice(below, cases))


def _show_widths(name: str, cases: Sequence[tuple[Mechanism, float]]) -> None:
    seconds, wide = [], dict[str, list[float]]()
    if not cases:
        return
    for number, (mechanism, delta) in enumerate(cases):
        start = time.process_time()
        found = exact.epsilon(mechanism, delta)
        seconds.append(time.process_time() - start)
        if found.upper - found.lower > 1e-3 * found.upper and found.upper > 1e-9:
            wide.setdefault(found.reason or "no reason", []).append(found.relative_width)
        if seconds[-1] > 2:
            print(f"{number}: {seconds[-1]:.1f} s, {found}, {mechanism}, {delta}", flush=True)
    print(f"{len(cases)} {name} mechanisms: median {statistics.median(seconds):.3f} s, ", end="")
    print(f"slowest {max(seconds):.2f} s, {sum(map(len, wide.values()))} wider than 1e-3")
    for reason, widths in wide.items():
        print(f"- {len(widths)}, the widest {max(widths):.2g}: {reason}")


def _epoch(rounds: int, sigma: float) -> Mechanism:
    return Mechanism(Rounds(sigma, rounds, RandomAllocation(rounds)))


def _show_cliffs() -> None:
    print("\n| cliff | interval | relative width | processor seconds | goal | dp-accounting |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, mechanism, delta, group, goal in cliffs():
        exact.enclose.cache_clear()
        start = time.process_time()
        found = exact.epsilon(mechanism, delta, group)
        seconds = time.process_time() - start
        ends = f"[{found.lower:.5g}, {found.upper:.5g}]"
        rival = "no theorem"
        if all(isinstance(part.sampling, Poisson) for part in mechanism):
            rival = "minutes"
            if len(mechanism.rounds) < 10:
                value, took = _timed(theirs(*mechanism.rounds, delta=delta))
                rival = f"{value:.5g} in {took:.2f} s"
        print(
            f"| {name} | {ends} | {found.relative_width:.1e} | {seconds:.2f} | {goal} | {rival} |",
            flush=True,
        )


def _timed(work: Callable[[], float]) -> tuple[float, float]:
    start = time.process_time()
    value = work()
    return value, time.process_time() - start


def _median(work: Callable[[], float], times: int) -> tuple[float, float]:
    runs = [_timed(work) for _ in range(times)]
    return statistics.median(seconds for _, seconds in runs), runs[-1][0]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one quick run of each row of ours")
    parser.add_argument("--cliffs", action="store_true", help="only the rows that once took long")
    parser.add_argument("--extremes", type=int, default=0, metavar="CASES")
    parser.add_argument("--ordinary", type=int, default=0, metavar="CASES")
    args = parser.parse_args()
    if args.extremes or args.ordinary:
        _show_widths("extreme", [drawn(number) for number in range(args.extremes)])
        _show_widths("ordinary", _ordinary(args.ordinary))
        return
    if args.cliffs:
        _show_cliffs()
        return
    smoke = args.smoke
    typical = Rounds(1.1, 14_000, Poisson(0.0043))
    many = [Rounds(1 + 0.002 * i, 1, Poisson(256 / 60_000)) for i in range(500)]
    rare = Rounds(1.0, 10_000, Poisson(1e-4))
    huge = Rounds(1.1, 14_000, Poisson(1e-7))
    long = Rounds(0.6, 1_000_000, Poisson(1e-4))
    rows = [
        ("one ε (rate 0.0043, σ 1.1, 14,000 rounds)", ours(typical), theirs(typical), 9, 0.002),
        ("500 distinct rounds", ours(*many), theirs(*many), 3, 0.1),
        ("σ for ε = 1 (rate 256/60000, 4,700 rounds)", calibrated, None, 5, 0.008),
        ("1,000,000 rounds (rate 1e-4, σ 0.6)", ours(long), theirs(long), 3, 0.1),
        ("rare records (rate 1e-4, σ 1, 10,000 rounds)", ours(rare), theirs(rare), 3, 0.3),
        ("group of 8", ours(typical, group=8), None, 5, 0.005),
        ("group of 100,000 (rate 1e-7)", ours(huge, group=100_000), None, 3, 1.0),
    ]
    print("| work | value | processor seconds | goal | dp-accounting: value | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, mine, other, times, goal in rows:
        seconds, value = _median(mine, 1 if smoke else times)
        line = f"| {name} | {value:.5g} | {seconds:.4f} | {goal} |"
        if other is None or smoke:
            print(f"{line} | |")
        else:
            rival_seconds, rival = _median(other, 1)
            print(f"{line} {rival:.5g} | {rival_seconds:.3f} |")
    if not smoke:
        _show_cliffs()
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import forethought.accounting.exact"], check=True)
    print(f"| import, whole process | | {time.perf_counter() - start:.3f} | 0.5 | | |")


if __name__ == "__main__":
    main()
