"""Prints the figures of docs/accounting.md and docs/adaptive.md that the accountant gives.

python docs/accounted.py    # some minutes
"""

from __future__ import annotations

import math
import time
from itertools import product

import forethought as ft
from forethought.accounting.adaptive import search_epsilon
from forethought.accounting.attack_bounds import attained
from forethought.accounting.dominating_pair import gaussian_delta
from forethought.accounting.theorems import SUPPORTED
from forethought.planning.alternatives import plan_tuning
from forethought.values.mechanism import ADJACENCIES, Adjacency, Clipping, Mechanism, Sampling


def spent(
    sigma: float,
    count: int,
    sampling: Sampling,
    delta: float = 1e-5,
    adjacency: Adjacency = "add-or-remove",
    group: int = 1,
    groups: int | None = None,
) -> str:
    """ε of equal rounds as the ends of its interval."""
    clipping = "example" if groups is None else "group"
    rounds = ft.Rounds(sigma, count, sampling, clipping, groups=groups or None)
    found = ft.epsilon(Mechanism(rounds, adjacency=adjacency), delta, group=group)
    return f"[{found.lower:.6g}, {found.upper:.6g}]"


def replaced() -> None:
    """Without replacement, zero-out and replace-one."""
    print("## Replaced records\n")
    rate, sigma, epsilon = 0.4, 1.3, 0.5
    rounds = ft.Rounds(sigma, 1, ft.WithoutReplacement(2, 5))
    blanked = ft.delta(Mechanism(rounds, adjacency="zero-out"), epsilon)
    print(f"five records, two drawn, σ {sigma}, ε {epsilon}: δ of a blanked one at most {blanked}")
    # (1 − q) N(0) + q N(1) against N(0) at ε: the privacy amplification of Poisson's pair.
    inner = math.log1p((math.exp(epsilon) - 1) / rate)
    print(f"pair of distance 1: δ {rate * gaussian_delta(inner, 1 / sigma):.4f}")
    for sigma, rate in ((2.0, 0.01), (4.0, 0.1)):
        drawn = ft.WithoutReplacement(round(10_000 * rate), 10_000)
        for adjacency in ("zero-out", "replace-one"):
            print(
                f"σ {sigma:g}, rate {rate:g}, 1,000 rounds, {adjacency}: "
                f"{spent(sigma, 1000, drawn, adjacency=adjacency)}"
            )
    drawn = ft.WithoutReplacement(100, 1000)
    for adjacency in ("replace-one", "zero-out"):
        told = spent(4.0, 1000, drawn, adjacency=adjacency, group=4)
        print(f"four of 1,000, batches of 100, σ 4, 1,000 rounds, {adjacency}: {told}")
    shuffled = ft.Shuffled(10, 1000)
    for count in (5, 100):
        told = spent(4.0, count, shuffled, adjacency="zero-out")
        print(f"shuffled, {count} of 100 rounds, σ 4: {told}")


def few_groups() -> None:
    """Several records in few groups."""
    print("\n## Several records in few groups\n")
    for groups in (1, 2, 0):
        rounds = ft.Rounds(4.0, 20, ft.Poisson(0.05), "group", groups=groups or None)
        mechanism = Mechanism(rounds, adjacency="replace-one")
        found = ft.epsilon(mechanism, 1e-5, group=4)
        print(f"{groups or 'unknown'} groups, four records: [{found.lower:.4g}, {found.upper:.4g}]")


def allocated() -> None:
    """Random allocation."""
    print("\n## Random allocation\n")
    for sigma, epochs, t, delta in (
        (1.0, 1, 100, 1e-5),
        (1.0, 10, 234, 1e-5),
        (0.8, 4, 1000, 1e-6),
        (2.0, 100, 234, 1e-5),
    ):
        start = time.process_time()
        told = spent(sigma, epochs * t, ft.RandomAllocation(t), delta)
        seconds = time.process_time() - start
        poisson = spent(sigma, epochs * t, ft.Poisson(1 / t), delta)
        shuffled = spent(sigma, epochs * t, ft.Shuffled(1, t), delta, "zero-out")
        print(
            f"σ {sigma:g}, {epochs} epochs of {t}, δ {delta:g}: {told} in {seconds:.1f} s; "
            f"Poisson {poisson}; shuffled {shuffled}"
        )
    for words, sigma, count, t, delta, adjacency, group in (
        ("exchanged", 2.0, 1000, 100, 1e-6, "replace-one", 1),
        ("four records", 4.0, 400, 100, 1e-5, "add-or-remove", 4),
    ):
        told = spent(sigma, count, ft.RandomAllocation(t), delta, adjacency, group)
        gaussian = spent(sigma, count // t, ft.FullBatch(), delta, adjacency, group)
        print(f"{words}, σ {sigma:g}, {count // t} epochs of {t}, δ {delta:g}: {told}; {gaussian}")


def searches() -> None:
    """docs/adaptive.md: tuning that is paid for."""
    print("\n## Tuning\n")
    trials = ft.NegativeBinomialTrials.of_mean(8, shape=0)
    asked = ft.PlanRequest(examples=1077, budget=ft.Budget(3.0, 1e-5), epochs=20)
    (one,) = plan_tuning(asked, trials=trials, candidates=[{"learning_rate": 0.1}])
    alone = ft.plan(asked)
    trial = ft.epsilon(one.mechanism, 1e-5).upper
    print(
        f"σ of a trial {one.noise_multiplier:.3g}, of one run {alone.noise_multiplier:.3g}; "
        f"ε of a trial alone {trial:.3g}"
    )
    run = ft.plan(asked.with_(budget=ft.Budget(1.5, 1e-5)))
    for mean in (2, 8, 32, 128):
        ways = (
            ft.NegativeBinomialTrials.of_mean(mean, shape=0),
            ft.NegativeBinomialTrials.of_mean(mean, shape=1),
            ft.PoissonTrials(mean),
        )
        told = (f"{search_epsilon([run.mechanism], way, 1e-5):.3g}" for way in ways)
        print(f"a run of ε = 1.5 as the best of {mean}: {', '.join(told)}")


def truth() -> None:
    """The guarantee over what named data sets attain, the larger of two noise multipliers."""
    print("\n## How far the truth can be below\n")
    samplings: tuple[Sampling, ...] = (
        ft.FullBatch(),
        ft.Poisson(0.05),
        ft.WithoutReplacement(50, 1000),
        ft.Shuffled(50, 1000),
        ft.RandomAllocation(20),
        ft.CyclicPoisson(0.5, 4),
    )
    clippings: tuple[tuple[Clipping, int | None], ...] = (
        ("example", None),
        ("group", None),
        ("group", 5),
    )
    for sampling, (clipping, groups), adjacency in product(samplings, clippings, ADJACENCIES):
        if (sampling.kind, clipping, adjacency) not in SUPPORTED:
            continue
        row = []
        for group in (1, 4, 8):
            factors = []
            for sigma in (1.0, 3.0):
                rounds = ft.Rounds(sigma, 100, sampling, clipping, groups=groups)
                mechanism = Mechanism(rounds, adjacency=adjacency)
                proven = ft.epsilon(mechanism, 1e-5, group=group).upper
                factors.append(proven / attained(mechanism, 1e-5, group).epsilon)
            row.append(f"{max(factors):.4g}")
        named = clipping if groups is None else f"{groups} groups"
        print(f"{sampling.kind}, {named}, {adjacency}: {', '.join(row)}")


def main() -> None:
    """Print everything."""
    replaced()
    few_groups()
    allocated()
    searches()
    truth()


if __name__ == "__main__":
    main()
