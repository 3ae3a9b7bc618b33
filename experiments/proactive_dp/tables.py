"""Tables 6 to 11 of the proactive-DP paper: printed, to the letter, converged, exact.

python experiments/proactive_dp/tables.py            # prints markdown
python experiments/proactive_dp/tables.py --write    # also writes tables.md beside this file
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import forethought as ft
from forethought.papers.calculators import (
    phase_calculator,
    phase_epsilon,
    rounds_calculator,
)
from forethought.papers.closed_form import approximate_clt_epsilon, closed_form_sigma

# (ε, σ, sample size) as printed, with N, K and δ of the experiment.
SIZES = {
    "Table 6 (convex problems)": (
        10_000,
        50_000,
        1e-4,
        [
            (0.04945, 19.29962, 26),
            (0.1, 13.06742, 55),
            (0.25, 8.59143, 103),
            (0.5, 6.05868, 168),
            (1.0, 4.27273, 265),
            (2.0, 3.03241, 400),
        ],
    ),
    "Table 7 (MNIST)": (
        60_000,
        360_000,
        1.667e-5,
        [
            (0.15007, 12.10881, 370),
            (0.2, 10.48452, 460),
            (0.25, 9.37379, 543),
            (0.5, 6.63120, 889),
            (0.75, 5.41887, 1168),
            (1.0, 4.69244, 1409),
            (2.0, 3.31648, 2159),
        ],
    ),
    "Table 8 (CIFAR-10)": (
        50_000,
        350_000,
        2e-5,
        [
            (0.25, 9.29838, 417),
            (0.5, 6.57192, 689),
            (0.75, 5.36937, 909),
            (1.0, 4.65014, 1099),
            (1.5, 4.16111, 1267),
            (2.0, 3.28831, 1690),
            (3.0, 2.68273, 1994),
        ],
    ),
}
# N, σ, k; printed: s_max, s_max,asym, ε_target, ε of the accountant at each.
TIGHTNESS = {
    "Table 9": (10_000, 19.29962, 5, (26, 198, 0.0497, 0.0105, 0.0533)),
    "Table 10": (60_000, 12.10881, 6, (288, 3042, 0.1521, 0.0389, 0.2097)),
    "Table 11": (50_000, 6.572, 7, (406, 7504, 0.5253, 0.1133, 0.8239)),
}


def exact(sigma: float, size: float, rounds: int, examples: int, delta: float) -> float:
    """Certified ε of constant expected batches of ``size``."""
    release = ft.Rounds(sigma, rounds, ft.Poisson(size / examples))
    return ft.epsilon(ft.Mechanism(release), delta).upper


def uniform(sigma: float, size: float, rounds: int, examples: int) -> float:
    """ε of equation (65): the central limit for samples of a fixed size; not a guarantee.

    Its σ belongs to a sensitivity of 1; ours is 2 where one record takes another's place.
    """
    sampling = ft.WithoutReplacement(round(size), examples)
    release = ft.Rounds(2 * sigma, rounds, sampling)
    return approximate_clt_epsilon(ft.Mechanism(release, adjacency="replace-one"), 1 / examples)


def sizes() -> Iterator[str]:
    """Tables 6 to 8."""
    for name, (examples, gradients, delta, rows) in SIZES.items():
        yield f"\n### {name}: N = {examples:,}, K = {gradients:,}, δ = {delta:g}\n"
        yield (
            "| ε printed | s printed | σ printed | ε, σ to the letter at this s | "
            "s converged | σ of (1) | exact ε at the printed σ, s | exact σ at the printed ε, s | "
            "less noise |"
        )
        yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        for epsilon, sigma, size in rows:
            literal = phase_epsilon(examples, gradients, size, reading="as-printed")
            text = "none" if literal is None else f"{literal[0]:.5f}, {literal[1]:.5f}"
            found = phase_calculator(examples, gradients, epsilon, delta=delta).size
            rounds = round(gradients / size)
            spent = exact(sigma, size, rounds, examples, delta)
            sampling = ft.Poisson(size / examples)
            needed = ft.noise_multiplier(ft.Budget(epsilon, delta), sampling, rounds)
            yield (
                f"| {epsilon:g} | {size} | {sigma:.5f} | {text} | {found} | "
                f"{closed_form_sigma(epsilon, delta):.5f} | {spent:.4g} | {needed:.3f} | "
                f"{sigma / needed:.1f} × |"
            )


def tightness() -> Iterator[str]:
    """Tables 9 to 11."""
    yield "\n### Tables 9 to 11: θ = 1, δ = 1/N\n"
    yield (
        "| table | s_max printed | to the letter (its γ) | converged | ε_target | ε there, printed "
        "| (65) | exact |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    asymptotic = []
    for name, (examples, sigma, epochs, printed) in TIGHTNESS.items():
        most, s_asymptotic, target, spent, spent_asymptotic = printed
        literal = rounds_calculator(examples, sigma, epochs, reading="as-printed")
        found = rounds_calculator(examples, sigma, epochs)
        delta = 1 / examples
        rounds = round(epochs * examples / most)
        yield (
            f"| {name} | {most} | {math.floor(literal.s_max)} ({literal.gamma:.3f}) | "
            f"{math.floor(found.s_max)} | {target:g} | {spent:g} | "
            f"{uniform(sigma, most, rounds, examples):.4f} | "
            f"{exact(sigma, most, rounds, examples, delta):.4g} |"
        )
        cells = []
        for divisor in (2, 4):
            least = max(1, round(epochs**2 / (divisor * found.epsilon)))
            size = epochs * examples / least
            cells.append(
                f"{size:.0f} | {uniform(sigma, size, least, examples):.4f} | "
                f"{exact(sigma, size, least, examples, delta):.4g}"
            )
        asymptotic.append(
            f"| {name} | {s_asymptotic} | {spent_asymptotic:g} | {' | '.join(cells)} |"
        )
    yield "\nThe asymptotic number of rounds, T = k²/(2ε) as printed, and k²/(4ε):\n"
    yield (
        "| table | s_asym printed | ε there, printed | s at k²/(2ε) | (65) | exact | s at k²/(4ε) "
        "| (65) | exact |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    yield from asymptotic


def noises() -> Iterator[str]:
    """The noise of the logistic regressions that is none of the formula's: for the README."""
    N, K, delta, rows = SIZES["Table 6 (convex problems)"]
    yield "\n### Noise of the logistic regressions\n"
    yield "The exact σ at ε = 0.04945, by sample size; `ft.plan`'s own batch, rounds, σ, by ε:\n"
    yield "| s | σ, exact |"
    yield "| --- | --- |"
    for size in (1, 5, 10, 15, 20, 26):
        sigma = ft.noise_multiplier(
            ft.Budget(rows[0][0], delta), ft.Poisson(size / N), round(K / size)
        )
        yield f"| {size} | {sigma:.3f} |"
    yield "\n| ε | s | T | σ |"
    yield "| --- | --- | --- | --- |"
    for epsilon, _, _ in rows:
        own = ft.plan(examples=N, budget=ft.Budget(epsilon, delta), epochs=K / N, parameters=69)
        yield f"| {epsilon:g} | {own.batch:.0f} | {own.rounds} | {own.noise_multiplier:.3f} |"


def main() -> None:
    """Print the tables as markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write tables.md beside this file")
    arguments = parser.parse_args()
    lines = ["# The tables of the proactive-DP paper, recomputed", ""]
    lines.append("Made by `python experiments/proactive_dp/tables.py --write`.")
    lines += [*sizes(), *tightness(), *noises()]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.write:
        Path(__file__).with_name("tables.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
