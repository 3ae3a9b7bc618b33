"""Time the accounting engine beside dp-accounting, in one process.

python benchmarks/accounting.py            # all rows, median of several runs
python benchmarks/accounting.py --smoke    # one run of each, the slow rivals left out
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from forethought.accounting import exact
from forethought.accounting.calibration import noise_multiplier
from forethought.mechanism import Budget, Mechanism, Rounds
from forethought.samplings import Poisson


def ours(*rounds: Rounds, group: int = 1) -> Callable[[], float]:
    """ε at δ = 1e-5, with nothing remembered from earlier runs."""

    def run() -> float:
        exact._epsilon.cache_clear()
        return exact.epsilon(Mechanism(*rounds), 1e-5, group).upper

    return run


def theirs(*rounds: Rounds) -> Callable[[], float]:
    """The same from dp-accounting at its default grid."""

    def run() -> float:
        accountant = PLDAccountant()
        for part in rounds:
            event = PoissonSampledDpEvent(
                part.sampling.rate, GaussianDpEvent(part.noise_multiplier)
            )
            accountant.compose(SelfComposedDpEvent(event, part.count))
        return float(accountant.get_epsilon(1e-5))

    return run


def calibrated() -> float:
    """σ for ε = 1."""
    exact._epsilon.cache_clear()
    return noise_multiplier(Budget(1, 1e-5), Poisson(256 / 60_000), 4700)


def _median(work: Callable[[], float], times: int) -> tuple[float, float]:
    seconds = []
    for _ in range(times):
        start = time.process_time()
        value = work()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), value


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one quick run of each row of ours")
    smoke = parser.parse_args().smoke
    typical = Rounds(1.1, 14_000, Poisson(0.0043))
    many = [Rounds(1 + 0.002 * i, 1, Poisson(256 / 60_000)) for i in range(500)]
    rare = Rounds(1.0, 10_000, Poisson(1e-4))
    huge = Rounds(1.1, 14_000, Poisson(1e-7))
    long = Rounds(0.6, 1_000_000, Poisson(1e-4))
    rows = [
        ("one ε (rate 0.0043, σ 1.1, 14,000 rounds)", ours(typical), theirs(typical), 9, 0.005),
        ("500 distinct rounds", ours(*many), theirs(*many), 3, 0.3),
        ("σ for ε = 1 (rate 256/60000, 4,700 rounds)", calibrated, None, 5, 0.03),
        ("1,000,000 rounds (rate 1e-4, σ 0.6)", ours(long), theirs(long), 3, 0.1),
        ("rare records (rate 1e-4, σ 1, 10,000 rounds)", ours(rare), theirs(rare), 3, 0.3),
        ("group of 8", ours(typical, group=8), None, 5, 0.02),
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
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import forethought.accounting.exact"], check=True)
    print(f"| import, whole process | | {time.perf_counter() - start:.3f} | 0.5 | | |")


if __name__ == "__main__":
    main()
