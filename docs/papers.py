"""Prints the tables of docs/papers.md: python docs/papers.py."""

from __future__ import annotations

import math

import forethought as ft
from forethought.papers.adaptive_noise import (
    GaussianSchedule,
    convex_sigma,
    exact_inverse_iterations,
    nonconvex_sigma,
    paper_epsilon,
    paper_iterations,
    strongly_convex_iterations,
    strongly_convex_sigma,
)
from forethought.papers.calculators import phase_calculator, rounds_calculator
from forethought.papers.closed_form import SampleSizes, closed_form_epsilon, theorem_b_4
from forethought.papers.comparison import utility_bounds
from forethought.papers.convergence import (
    Decentralised,
    local_degradation,
    proposition_3,
    proposition_4,
    quadratic_path,
    theorem_3,
)
from forethought.papers.decentralised import theorem_2
from forethought.papers.strong_adversary import StrongAdversary

TABLES = (
    ("6", 10000, 5, ((0.04945, 26), (0.1, 55), (0.25, 103), (0.5, 168), (1, 265), (2, 400))),
    (
        "7",
        60000,
        6,
        ((0.15007, 370), (0.2, 460), (0.25, 543), (0.5, 889), (0.75, 1168), (1, 1409), (2, 2159)),
    ),
    (
        "8",
        50000,
        7,
        ((0.25, 417), (0.5, 689), (0.75, 909), (1, 1099), (1.5, 1267), (2, 1690), (3, 1994)),
    ),
)


def proactive() -> None:
    print("### Closed form of Theorem B.4 against the exact ε\n")
    print("| N | σ | s | T | ε, closed form | ε, exact |\n| --- | --- | --- | --- | --- | --- |")
    for N, sigma, size, rounds in (
        (10000, 19.29962, 26, 1923),
        (60000, 12.10881, 288, 1250),
        (50000, 6.572, 406, 862),
    ):
        epsilon = closed_form_epsilon(sigma, 1 / N)
        result = theorem_b_4(epsilon, 1 / N, sigma, SampleSizes.constant(size, rounds, N))
        print(f"| {N} | {sigma} | {size} | {rounds} | {epsilon:.4f} | {result.exact.upper:.5f} |")
    print("\n### Sample sizes of the published calculators\n")
    print("| table | ε | paper | to the letter | converged |\n| --- | --- | --- | --- | --- |")
    for name, N, epochs, rows in TABLES:
        for target, paper in rows:
            literal = phase_calculator(N, epochs * N, target, reading="as-printed").size
            size = phase_calculator(N, epochs * N, target).size
            print(f"| {name} | {target} | {paper} | {literal} | {size} |")
    for name, N, sigma, epochs, paper in (
        ("9", 10000, 19.29962, 5, 26),
        ("10", 60000, 12.10881, 6, 288),
        ("11", 50000, 6.572, 7, 406),
    ):
        found = rounds_calculator(N, sigma, epochs)
        literal = math.floor(rounds_calculator(N, sigma, epochs, reading="as-printed").s_max)
        print(f"| {name} | {found.epsilon:.4f} | {paper} | {literal} | {math.floor(found.s_max)} |")


def strong() -> None:
    print("\n### Strong adversary, δ = 1e-5\n")
    print("| setting | ε, exact | published bound | its ε | verdict |")
    print("| --- | --- | --- | --- | --- |")
    for name, run in (
        (
            "subsampling, N 60000, m 256, E 20, paper σ 8",
            StrongAdversary(60000, 20, 16.0, 256, 1, "subsampling"),
        ),
        ("subsampling, s 256, g 4", StrongAdversary(60000, 20, 16.0, 1, 256, "subsampling", 4)),
        ("shuffling, m 256, g 1", StrongAdversary(60000, 20, 16.0, 256, 1)),
        (
            "shuffling, N 1000, s 50, g 4, E 1, paper σ 2",
            StrongAdversary(1000, 1, 4.0, 1, 50, group=4),
        ),
    ):
        exact = run.epsilon(1e-5).upper
        for bound in run.paper_bounds():
            claimed = bound.curve.epsilon(1e-5)
            print(
                f"| {name} | {exact:.4f} | {bound.name} ({bound.kind}) | {claimed:.4f} "
                f"| {bound.verdict} |"
            )


def others() -> None:
    case = theorem_2(5.0, 1e-5, 40000, 16, 16, 3000)
    print("\n### A(DP)²SGD, Theorem 2: ε 5, δ 1e-5, T 40000, B 16, K 16, n 3000\n")
    print(
        f"σ on the sum, in units of G: {case.noise_multiplier:.4f}; exact ε with the paper's "
        f"rate B/(Kn): {case.as_published.upper:.4f}; of one worker's own steps: "
        f"{case.exact.upper:.4f}."
    )
    print("\n### Adaptive schedules\n")
    sigmas = tuple(convex_sigma(t, 0.25, 1.0, 10) for t in range(1, 80))
    run = GaussianSchedule(sigmas, 1.0, 10000)
    budget = ft.Budget(paper_epsilon(0.1, 1e-5), 1e-5)
    published = paper_iterations(0.1, 0.25, 1.0, 1.0, 10000, 10)
    print(
        f"Convex, M 0.25, R 1, d 10, L 1, N 10000, T 79: ρ {run.rho:.5f}, published ε "
        f"{run.paper_epsilon(1e-5):.4f}, exact ε {run.exact(1e-5).upper:.4f}. Iterations for "
        f"ε {budget.epsilon:.4f}: published {published:.0f}, "
        f"exact {exact_inverse_iterations(budget, sigmas[0], 1.0, 10000)}."
    )
    count = strongly_convex_iterations(0.05, 1.0, 0.2, 0.7, 1.0, 50000, 5)
    print(f"Strongly convex, κ 5, ρ 0.05: {count} iterations by the exact sum.")


def rates() -> None:
    print("\n### Bounds of the papers on what a run attains: printed, proven, and what runs\n")
    print("None of them is a promise of this library.\n")
    print("| bound | setting | what runs | printed | proven |\n| --- | --- | --- | --- | --- |")
    T, M, gap = 20, 4.0, 2.0  # F = 2x² from x = 1
    for told, sigmas in (
        ({"gap": gap}, [nonconvex_sigma(t, M, gap, 1) for t in range(1, T + 1)]),
        ({"radius": 1.0}, [convex_sigma(t, M, 1.0, 1) for t in range(1, T + 1)]),
        (
            {"gap": gap, "convexity": M},
            [strongly_convex_sigma(t, M, M, gap, 1) for t in range(1, T + 1)],
        ),
    ):
        path = quadratic_path([M], [1.0], 1 / (2 * M), sigmas)
        bound = proposition_3(T, M, **told)
        gradients = path.squared_gradients.sum() / T
        runs = gradients if "‖" in bound.quantity else path.risks[-1]
        print(
            f"| {bound.name} | F = 2x², x = 1, T 20: {bound.quantity} | {runs:.4g} "
            f"| {bound.printed:.4g} | {bound.proven:.4g} |"
        )
    for told in ({"gap": 2.0}, {"radius": 3.0}, {"gap": 2.0, "convexity": 0.4}):
        bound = proposition_4(0.05, M, 1.0, 10_000, 10, **told)
        given = ", ".join(f"{name} {value:g}" for name, value in told.items())
        print(
            f"| {bound.name} | ρ 0.05, M 4, L 1, N 10000, d 10, {given} | "
            f"| {bound.printed:.4g} | {bound.proven:.4g} |"
        )
    late = Decentralised(2, 8, 1, 0.5, 2.0, 1.0, 0.3, 50, 1.2, 0.0, 100)
    rounds = math.ceil(late.proposition_1_rounds)
    third = late.constants(2 / (8 * math.sqrt(rounds)))[2]
    print(
        f"\nProposition 1 of A(DP)²SGD, K 2, τ 100: {rounds:,} rounds are enough as printed, where "
        f"C_3 is {third:.3f} and may be 1."
    )
    one, five = (20 / E * local_degradation(E, 0.3, 1.0, 1.5, 250, 26_010) for E in (1, 5))
    print(
        f"Theorem 2 of private federated learning, 20 steps: E = 1 sums to {one:.3f}, E = 5 to "
        f"{five:.3f}. Theorem 3, β 1, σ 1, l 0.5: at least {theorem_3(0.5, 10, 1.0, 1.0):.2f} with "
        f"10 clients, {theorem_3(0.5, 100, 1.0, 1.0):.2f} with 100."
    )


def beside_a_plan() -> None:
    print("\n### The bounds beside a plan: 10,000 records, 50 parameters, ε 2, M 0.25, gap 0.69\n")
    print(
        "Propositions 3 and 4 are of the paper's own steps and noise, without sampling and "
        "clipping: a plan's rounds may be above them.\n"
    )
    asked = {"examples": 10_000, "parameters": 50, "budget": ft.Budget(2.0, 1e-5)}
    plan = ft.plan(**asked, learning_rate=0.2)
    print("| bound | of | what runs | printed | proven |\n| --- | --- | --- | --- | --- |")
    for bound, runs in utility_bounds(plan, 50, 0.25, 0.69):
        print(
            f"| {bound.name} | {bound.quantity} | {runs:.4g} | {bound.printed:.4g} "
            f"| {bound.proven:.4g} |"
        )


if __name__ == "__main__":
    proactive()
    strong()
    others()
    rates()
    beside_a_plan()
