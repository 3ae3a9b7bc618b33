"""Samples that grow or shrink, beside equal ones at the same exact (ε, δ): noise in the weights.

    python experiments/proactive_dp/sizes.py

10,000 records, 300 of them a round in the mean, 120 rounds, δ = 1e-5. Printed is √Σ(σ_t/s_t)², the
noise that plain steps leave, against equal samples': with the same noise in every round, and with
noise that follows the size.
"""

from __future__ import annotations

import forethought as ft
from forethought.planning.defaults import noise_to_signal

EPSILONS = (0.1, 1.0, 4.0)
GROWTHS = (0.25, 0.5, 2.0, 4.0)


def main() -> None:
    """Print the table."""
    print("| ε | last size over first | same noise in every round | noise in step with size |")
    print("| --- | --- | --- | --- |")
    for epsilon in EPSILONS:
        asked = ft.PlanRequest(
            examples=10_000, budget=ft.Budget(epsilon, 1e-5), batch=300, rounds=120
        )
        equal = noise_to_signal(ft.plan(asked))
        for growth in GROWTHS:
            growing = asked.with_(size_schedule="linear", size_growth=growth)
            following = growing.with_(noise_schedule="linear", noise_fall=1 / growth)
            alone, both = (noise_to_signal(ft.plan(one)) / equal for one in (growing, following))
            print(f"| {epsilon:g} | {growth:g} | {alone:.3f} | {both:.3f} |")


if __name__ == "__main__":
    main()
