"""Noise schedules in proportion to the expected gradient norm, and their privacy cost.

Source: "Adaptive Hyperparameter Selection for Differentially Private Gradient Descent",
Propositions 3 and 4. The setting is full-batch gradient descent on a mean of N losses with
L-Lipschitz gradients (here: each gradient clipped to L), one record replaced: Δ = 2L/N, noise
N(0, σ_t²) per coordinate in iteration t = 1, 2, … . F(θ_0) − F*, R and μ must be known without the
data. The data-dependent schedule of Proposition 1 is not private and has no figure here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from forethought.accounting.dominating_pair import gaussian_epsilon, gaussian_mu
from forethought.accounting.interval import Interval
from forethought.values.checks import real, reals, settle, whole
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds


def nonconvex_sigma(t: int, smoothness: float, gap: float, dimension: int) -> float:
    """σ_t = 4M sqrt(F(θ_0) − F*)/(√d t), Proposition 3(a). Some places print √(dt)."""
    return convex_sigma(t, smoothness, math.sqrt(real("gap", gap, above=0)), dimension)


def convex_sigma(t: int, smoothness: float, radius: float, dimension: int) -> float:
    """σ_t = 4MR/(√d t), Proposition 3(b); the iterates are projected to the ball of radius R."""
    size = real("smoothness", smoothness, above=0) * real("radius", radius, above=0)
    return 4 * size / (math.sqrt(whole("dimension", dimension)) * whole("t", t))


def strongly_convex_sigma(
    t: int, smoothness: float, convexity: float, gap: float, dimension: int
) -> float:
    """σ_t = sqrt(2μ (F(θ_0) − F*) (1 − μ/(2M))^t/d), Proposition 3(c)."""
    M, mu = real("smoothness", smoothness, above=0), real("convexity", convexity, above=0)
    if mu > M:
        raise ValueError(f"convexity {mu} cannot exceed smoothness {M}")
    left = (1 - mu / (2 * M)) ** whole("t", t)
    return math.sqrt(2 * mu * real("gap", gap, above=0) * left / whole("dimension", dimension))


def paper_epsilon(rho: float, delta: float) -> float:
    """ε = ρ + 2 sqrt(ρ ln(1/δ)), Proposition 4 (Bun and Steinke 2016): valid, but loose."""
    size, tail = real("rho", rho, least=0), real("delta", delta, above=0, below=1)
    return size + 2 * math.sqrt(-size * math.log(tail))


def paper_rho(epsilon: float, delta: float) -> float:
    """The largest ρ with ρ + 2 sqrt(ρ ln(1/δ)) ≤ ε."""
    eps, tail = real("epsilon", epsilon, least=0), real("delta", delta, above=0, below=1)
    root = math.sqrt(-math.log(tail))
    return (eps / (math.sqrt(root**2 + eps) + root)) ** 2


def paper_iterations(
    rho: float, smoothness: float, scale: float, lipschitz: float, examples: int, dimension: int
) -> float:
    """T = (8ρN²M²S/(L²d))^{1/3}, Proposition 4(a) with S = F(θ_0) − F* and (b) with S = R².

    It bounds Σ t² by T³, where the exact sum is T(T + 1)(2T + 1)/6: about a third.
    """
    M, S = real("smoothness", smoothness, above=0), real("scale", scale, above=0)
    L = real("lipschitz", lipschitz, above=0)
    N, d = whole("examples", examples), whole("dimension", dimension)
    return float((8 * real("rho", rho, above=0) * N**2 * M**2 * S / (L**2 * d)) ** (1 / 3))


def paper_strongly_convex_iterations(
    rho: float,
    smoothness: float,
    convexity: float,
    gap: float,
    lipschitz: float,
    examples: int,
    dimension: int,
) -> float:
    """T = ln(ρμ(F(θ_0) − F*)N²/(2dL²))/ln(2κ/(2κ − 1)), κ = M/μ, Proposition 4(c), as published.

    The proof loses a factor κ between ρ ≤ 2aκ r^T and the line after it, so this number of
    iterations spends about κ·ρ. :func:`strongly_convex_iterations` is correct.
    """
    M = real("smoothness", smoothness, above=0)
    mu = real("convexity", convexity, above=0, most=M)
    L, N = real("lipschitz", lipschitz, above=0), whole("examples", examples)
    inside = real("rho", rho, above=0) * mu * real("gap", gap, above=0) * N**2
    grown = math.log(inside / (2 * whole("dimension", dimension) * L**2))
    return grown / -math.log1p(-mu / (2 * M))


def strongly_convex_iterations(
    rho: float,
    smoothness: float,
    convexity: float,
    gap: float,
    lipschitz: float,
    examples: int,
    dimension: int,
) -> int:
    """Most iterations of Proposition 3(c)'s schedule within ρ, from the exact geometric sum.

    ρ_T = 2aκ(r^T − 1), a = dΔ²/(4μ(F(θ_0) − F*)), r = 2κ/(2κ − 1).
    """
    M = real("smoothness", smoothness, above=0)
    mu = real("convexity", convexity, above=0, most=M)
    delta = 2 * real("lipschitz", lipschitz, above=0) / whole("examples", examples)
    a = whole("dimension", dimension) * delta**2 / (4 * mu * real("gap", gap, above=0))
    grown = math.log1p(real("rho", rho, above=0) / (2 * a * M / mu))
    return math.floor(grown / -math.log1p(-mu / (2 * M)))  # ln r, exact for large κ, too


@dataclass(frozen=True)
class GaussianSchedule:
    """Iterations with noise ``sigmas`` on a mean of ``examples`` gradients, norms ≤ ``lipschitz``.

    A sequence of Gaussian releases composes to one Gaussian release, μ² = Σ (Δ/σ_t)² = 2ρ, also if
    later gradients depend on earlier outputs; the σ_t themselves are fixed in advance.
    """

    sigmas: tuple[float, ...]
    lipschitz: float
    examples: int

    def __post_init__(self) -> None:
        settle(self, sigmas=reals("sigma", self.sigmas, above=0))
        real("lipschitz", self.lipschitz, above=0)
        whole("examples", self.examples)

    @property
    def sensitivity(self) -> float:
        """Δ = 2L/N: one record replaced."""
        return 2 * self.lipschitz / self.examples

    @cached_property
    def rho(self) -> float:
        """ρ = Σ Δ²/(2σ_t²); the text prints Δ for Δ² in one place."""
        return math.fsum((self.sensitivity / sigma) ** 2 for sigma in self.sigmas) / 2

    @property
    def mu(self) -> float:
        """μ of the whole run as one Gaussian release."""
        return math.sqrt(2 * self.rho)

    def paper_epsilon(self, delta: float) -> float:
        """Proposition 4's ε = ρ + 2 sqrt(ρ ln(1/δ))."""
        return paper_epsilon(self.rho, delta)

    def exact(self, delta: float) -> Interval:
        """The exact ε of the same run, in closed form."""
        upper = gaussian_epsilon(delta, self.mu * (1 + 1e-14))
        return Interval(upper * (1 - 1e-9), upper)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the run: full batches of gradients clipped to L, under replace-one."""
        scale = self.examples / self.lipschitz
        return Mechanism(
            *(Rounds(sigma * scale, 1, FullBatch()) for sigma in self.sigmas),
            adjacency="replace-one",
        )


def exact_inverse_iterations(
    budget: Budget, first_sigma: float, lipschitz: float, examples: int
) -> int:
    """Most iterations of σ_t = ``first_sigma``/t within the budget, from the exact Σ t² and ε.

    The schedules of Proposition 3(a) and (b) have this form.
    """
    delta_one = 2 * real("lipschitz", lipschitz, above=0) / whole("examples", examples)
    allowed = gaussian_mu(budget.epsilon, budget.delta)
    # Σ t² ≤ (μ σ_1/Δ)²
    room = (allowed * real("first_sigma", first_sigma, above=0) / delta_one) ** 2
    count: int = math.floor((3 * room) ** (1 / 3)) + 1
    while count and count * (count + 1) * (2 * count + 1) / 6 > room:
        count -= 1
    return count
