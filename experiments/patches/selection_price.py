"""What it would cost to choose between two kinds of features on the private records themselves.

    python experiments/patches/selection_price.py     # prints; half a minute of one core

For each ε, with 60,000 grey images and the planner's recipe: the noise of a run beside that of the
plain plan, where (a) both kinds are trained and the budget is split evenly, and (b) a search draws
one of the two kinds in each of a random number of trials, four on average, and shows the best
(Papernot and Steinke 2022; `forethought.plan_tuning`); in brackets the ε that a plain plan of that
noise has. Comparing the two on held-out records would cost some more.
"""

from __future__ import annotations

import math
from dataclasses import replace

import forethought as ft
from forethought.accounting import exact
from forethought.accounting.adaptive import NegativeBinomialTrials

EXAMPLES, FEATURES, CLASSES, DELTA = 60_000, 3_969, 10, 1e-5
TRIALS = NegativeBinomialTrials.of_mean(4.0, shape=0)


def main() -> None:
    print("ε      both trained   search")
    for epsilon in (0.5, 1.0, 3.0, 8.0):
        known = {
            "examples": EXAMPLES,
            "budget": ft.Budget(epsilon, DELTA),
            "features": FEATURES,
            "parameters": (FEATURES + 1) * CLASSES,
            "feature_norm": 1.0,
            "image_features": True,
            "centre": False,
        }
        plain = ft.plan(**known)
        search, _ = ft.plan_tuning(**known, trials=TRIALS, candidates=[{}, {}])
        shown = []
        for ratio in (math.sqrt(2), search.noise_multiplier / plain.noise_multiplier):
            (rounds,) = plain.mechanism
            like = replace(rounds, noise_multiplier=ratio * rounds.noise_multiplier)
            worth = exact.epsilon(ft.Mechanism(like), DELTA).upper
            shown.append(f"{ratio:.2f} ({worth:.2f})")
        print(f"{epsilon:<6g} {shown[0]:<14} {shown[1]}")


if __name__ == "__main__":
    main()
