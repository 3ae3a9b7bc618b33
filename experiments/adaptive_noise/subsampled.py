"""Falling noise for Poisson batches, at equal exact ε: where does it beat constant noise?

    python experiments/adaptive_noise/subsampled.py --data-dir ../shared/data    # a few minutes

Logistic regression by plain steps of 1/M at rate 0.1, clipped at L, from zero; the number of rounds
is that of the full-batch default's travel. By how much noise falls follows from how much of it is
forgotten: fall⁴ = e^(2λu), so 1 without regularisation, where 1.5 is tried all the same.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from repeat import Way, minimum, paths, risks
from sets import fetch

from forethought import Budget, Mechanism, Poisson, Rounds, convex
from forethought.accounting import noise_multiplier
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.convex.planning import recipe
from forethought.planning.plan_request import Course, least_noise

NAMES = ("synthetic", "iris", "breast-cancer", "phishing", "german.numer_scale")
EPSILONS = (0.5, 3.0)
RATE = 0.1
MOST = 500


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=60)
    given = parser.parse_args()
    print("Excess risk, medians; the two shapes as a share of constant noise.\n")
    print("| λ | data | ε | T | fall | σ constant | constant | geometric | forgetting |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for l2 in (0.1, 0.0):
        for name in NAMES:
            task = fetch(name, given.data_dir)
            N, d = task.features.shape
            problem = convex.LogisticRegression(feature_bound=task.bound, l2=l2)
            least = minimum(task, problem)
            for epsilon in EPSILONS:
                budget = Budget(epsilon, 1 / N)
                mu = gaussian_mu(budget.epsilon, budget.delta)
                travel = recipe(problem, N, d, mu, 1.0).travel
                rounds = min(MOST, max(10, math.ceil(travel * problem.smoothness)))
                fall = math.exp(l2 * travel / 2) if l2 else 1.5
                sampling = Poisson(RATE)
                sigma = noise_multiplier(budget, sampling, rounds)
                equal = Rounds(sigma, rounds, sampling)
                found = {}
                for shape in ("constant", "geometric", "forgetting"):
                    course = Course(shape, fall)

                    def made(
                        scale: float, course: Course = course, equal: Rounds = equal, N: int = N
                    ) -> Mechanism:
                        parts = course.parts(replace(equal, noise_multiplier=scale), N)
                        return Mechanism(*parts)

                    mechanism = made(
                        sigma if not course.varies else least_noise(made, budget, sigma)
                    )
                    sigmas = np.repeat(
                        [part.noise_multiplier for part in mechanism],
                        [part.count for part in mechanism],
                    ) * (problem.lipschitz / (RATE * N))
                    way = Way(
                        lambda t, _, sigmas=sigmas: float(sigmas[t - 1]),
                        1 / problem.smoothness,
                        problem.lipschitz,
                        rate=RATE,
                    )
                    start = torch.zeros(d, given.repetitions)
                    for t, weights, _ in paths(task, problem, way, start, seed=3):
                        if t == rounds:
                            found[shape] = float(risks(task, problem, weights).median()) - least
                            break
                base = found["constant"]
                print(
                    f"| {l2:g} | {name} | {epsilon:g} | {rounds} | {fall:.3g} | {sigma:.3g} "
                    f"| {base:.3g} | {found['geometric'] / base:.2f} "
                    f"| {found['forgetting'] / base:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
