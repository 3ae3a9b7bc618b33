"""Bounds of the papers on what a run attains: utility and convergence, printed and as proven.

None of them is a promise of this library: they rest on constants that nobody knows of a network
(smoothness, variances, distances), and stand beside a plan as the paper's own words. ``printed`` is
the published number. ``proven`` is what the paper's proof gives once its slips are mended: equal to
it, or larger, or infinite where the conditions fail.

Sources: "Adaptive Hyperparameter Selection for Differentially Private Gradient Descent" (adaptive
noise; Lemma 1, equations (3), (4), (12), Propositions 1 to 4); Xu, Zhang and Wang, "A(DP)²SGD"
(Theorem 1, Propositions 1 and 2); Bhaskar et al., "Optimal Strategies for Federated Learning
Maintaining Client Privacy" (Theorems 2 and 3, Definition 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from forethought.papers.closed_form import Condition
from forethought.values.checks import real, whole

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UtilityBound:
    """A published upper bound on how far a run is from its goal.

    Args:
        name: where it stands. quantity: what is bounded. printed: the published number.
        proven: what the proof gives; infinite where a condition fails.
        note: what differs between the two, and on what both rest.
        conditions: of the theorem.
    """

    name: str
    quantity: str
    printed: float
    proven: float
    note: str = ""
    conditions: tuple[Condition, ...] = ()

    @property
    def holds(self) -> bool:
        """True if all conditions are met."""
        return all(condition.holds for condition in self.conditions)


_GRADIENT = "(1/T) Σ E‖∇F(θ_t)‖²"
_EXCESS = "E F(θ_T) − F*"


# Adaptive noise: one noisy step, and the schedules that follow from it.


def improvement(
    step: float, sigma: float, gradient_norm: float, smoothness: float, dimension: int
) -> float:
    """E[F(θ_t) − F(θ_{t+1})] at least: (η − Mη²/2)‖∇F‖² − Mη²dσ²/2, Lemma 1 (equation (5)).

    Exact where every curvature of F is M. Negative: the step may lose.
    """
    eta, M = real("step", step, least=0), real("smoothness", smoothness, above=0)
    squared = real("gradient_norm", gradient_norm, least=0) ** 2
    noise = whole("dimension", dimension) * real("sigma", sigma, least=0) ** 2
    return (eta - M * eta**2 / 2) * squared - M * eta**2 * noise / 2


def best_step(sigma: float, gradient_norm: float, smoothness: float, dimension: int) -> float:
    """η = 1/(M(1 + dσ²/‖∇F‖²)), equation (12): the step of the largest :func:`improvement`."""
    M, norm = real("smoothness", smoothness, above=0), real("gradient_norm", gradient_norm, above=0)
    ratio = whole("dimension", dimension) * (real("sigma", sigma, least=0) / norm) ** 2
    return 1 / (M * (1 + ratio))


def privacy_cost(sigma: float, lipschitz: float, examples: int, delta: float) -> float:
    """P(σ) = sqrt(2 ln(1.25/δ)) 2L/(Nσ), equation (4): the paper's measure of a round's cost.

    It is the classical ε of one Gaussian round, a theorem below 1 only; a heuristic, no guarantee.
    """
    tail = real("delta", delta, above=0, below=1)
    distance = 2 * real("lipschitz", lipschitz, above=0) / whole("examples", examples)
    return math.sqrt(2 * math.log(1.25 / tail)) * distance / real("sigma", sigma, above=0)


def privacy_utility_ratio(
    step: float,
    sigma: float,
    gradient_norm: float,
    smoothness: float,
    dimension: int,
    lipschitz: float,
    examples: int,
    delta: float,
) -> float:
    """PUR(σ, η) = P(σ)/U(σ, η), equation (3); infinite where nothing is gained.

    :func:`proposition_1` has its minimum. It reads the gradient's norm, so it is for comparison.
    """
    gained = improvement(step, sigma, gradient_norm, smoothness, dimension)
    cost = privacy_cost(sigma, lipschitz, examples, delta)
    return cost / gained if gained > 0 else math.inf


class NoiseAndStep(NamedTuple):
    """σ on the mean gradient, and the step size."""

    sigma: float
    step: float


def proposition_1(gradient_norm: float, smoothness: float, dimension: int) -> NoiseAndStep:
    """σ = ‖∇F‖/√d and η = 1/(2M): the least :func:`privacy_utility_ratio`, at any budget."""
    norm = real("gradient_norm", gradient_norm, above=0)
    sigma = norm / math.sqrt(whole("dimension", dimension))
    return NoiseAndStep(sigma, 1 / (2 * real("smoothness", smoothness, above=0)))


def proposition_2(
    rounds: int,
    smoothness: float,
    *,
    gap: float | None = None,
    radius: float | None = None,
    convexity: float | None = None,
) -> UtilityBound:
    """The rate of Proposition 1's schedule, which reads the gradient's norm and is not private.

    Args:
        rounds: T. smoothness: M.
        gap: F(θ_0) − F*, for (a) and (c). radius: R, of the iterates around θ*, for (b).
        convexity: μ, with ``gap``: case (c).

    Raises:
        ValueError: not exactly what one of the cases needs.
    """
    case = _case(gap, radius, convexity)
    T, M = whole("rounds", rounds), real("smoothness", smoothness, above=0)
    if case == "a":
        printed, quantity = 4 * M * _positive(gap) / T, _GRADIENT
    elif case == "b":
        printed, quantity = 4 * M * _positive(radius) ** 2 / T, _EXCESS
    else:
        printed, quantity = (1 - _share(convexity, M)) ** T * _positive(gap), _EXCESS
    return UtilityBound(f"Proposition 2({case})", quantity, printed, printed, "reads the gradient")


def proposition_3(
    rounds: int,
    smoothness: float,
    *,
    gap: float | None = None,
    radius: float | None = None,
    convexity: float | None = None,
) -> UtilityBound:
    """The rate of the schedules that look at no data; arguments as for :func:`proposition_2`.

    (a) loses a factor M where the sum is solved for the gradients: 3/(8M) Σ E‖∇F‖² is at most
    (1 + π²M/3)(F(θ_0) − F*), so the printed 8(π²M/3 + 1)(F(θ_0) − F*)/(3T) is M times too small.
    """
    case = _case(gap, radius, convexity)
    T, M = whole("rounds", rounds), real("smoothness", smoothness, above=0)
    if case == "a":
        printed = 8 * (math.pi**2 * M / 3 + 1) * _positive(gap) / (3 * T)
        return UtilityBound("Proposition 3(a)", _GRADIENT, printed, M * printed, "a factor M")
    if case == "b":
        printed = 16 * M * _positive(radius) ** 2 / (3 * T)
        return UtilityBound("Proposition 3(b)", _EXCESS, printed, printed)
    printed = (1 - _share(convexity, M)) ** T * _positive(gap)
    return UtilityBound("Proposition 3(c)", _EXCESS, printed, printed)


def proposition_4(
    rho: float,
    smoothness: float,
    lipschitz: float,
    examples: int,
    dimension: int,
    *,
    gap: float | None = None,
    radius: float | None = None,
    convexity: float | None = None,
) -> UtilityBound:
    """The rate that ρ of zero-concentrated DP buys; arguments as for :func:`proposition_2`.

    The printed right sides: (a) lacks a factor M, as Proposition 3(a); (b) has R where the proof
    has R⁴; (c) has half of what its own T gives, and that T spends κ = M/μ times ρ.
    """
    case = _case(gap, radius, convexity)
    M, L = real("smoothness", smoothness, above=0), real("lipschitz", lipschitz, above=0)
    N, d = whole("examples", examples), whole("dimension", dimension)
    cost = L**2 * d / (real("rho", rho, above=0) * N**2)
    if case == "a":
        printed = (
            8 / 3 * (math.pi**2 * M / 3 + 1) * (_positive(gap) ** 2 * cost / (8 * M**2)) ** (1 / 3)
        )
        return UtilityBound("Proposition 4(a)", _GRADIENT, printed, M * printed, "a factor M")
    if case == "b":
        R = _positive(radius)
        printed, proven = (8 / 3 * (cost * M * size) ** (1 / 3) for size in (R, R**4))
        return UtilityBound("Proposition 4(b)", _EXCESS, printed, proven, "R printed for R⁴")
    kappa = 1 / (2 * _share(convexity, M))
    printed = cost * kappa / M  # 1/μ
    note = "half of what its T gives, and T spends κ times ρ"
    return UtilityBound("Proposition 4(c)", _EXCESS, printed, 2 * kappa * printed, note)


def _case(gap: float | None, radius: float | None, convexity: float | None) -> str:
    given = (gap is not None, radius is not None, convexity is not None)
    found = {(True, False, False): "a", (False, True, False): "b", (True, False, True): "c"}
    if given not in found:
        raise ValueError(
            "give gap= (any F), radius= (convex F), or gap= and convexity= (strongly convex F), "
            "and nothing else"
        )
    return found[given]


def _positive(value: float | None) -> float:
    return real("gap or radius", value, above=0)


def _share(convexity: float | None, smoothness: float) -> float:
    """μ/(2M)."""
    return real("convexity", convexity, above=0, most=smoothness) / (2 * smoothness)


class ExpectedPath(NamedTuple):
    """E F(θ_t) and E‖∇F(θ_t)‖² of t = 0, 1, …, both of shape (rounds + 1,)."""

    risks: Array
    squared_gradients: Array


def quadratic_path(
    curvatures: ArrayLike, start: ArrayLike, step: float, sigmas: Sequence[float]
) -> ExpectedPath:
    """Noisy descent on F(θ) = Σ h_i θ_i²/2 from ``start``, in expectation and exactly.

    What the bounds above are compared with: M is the largest curvature, F* = 0.

    Args:
        curvatures: h, shape (d,). start: θ_0, shape (d,). step: η.
        sigmas: σ_t on each coordinate of the mean gradient, t from 1.
    """
    h, second = np.asarray(curvatures, dtype=float), np.asarray(start, dtype=float) ** 2
    risks, gradients = [0.5 * h @ second], [h**2 @ second]
    for sigma in sigmas:
        second = (1 - step * h) ** 2 * second + (step * sigma) ** 2
        risks.append(0.5 * h @ second)
        gradients.append(h**2 @ second)
    return ExpectedPath(np.array(risks), np.array(gradients))


# A(DP)²SGD: workers who wait for nobody.


def staleness(seconds: Sequence[float]) -> int:
    """τ of Assumption 2: the most updates between a worker's reading and its own update.

    Worker k takes ``seconds[k]`` for each gradient and begins the next at once. In a time s there
    are at most ⌈s/d⌉ updates of one who takes d; its own is not counted.

    Raises:
        ValueError: a time that is not above 0.
    """
    times = [real("seconds", value, above=0) for value in seconds]
    most = 0
    for own, span in enumerate(times):
        # Equal spans divide without rounding; others are rounded up by a little more than they are.
        others = (math.ceil(span / each * (1 - 1e-12)) for each in times)
        most = max(most, sum(count for k, count in enumerate(others) if k != own))
    return most


def mixing_constant(rho: float, workers: int) -> float:
    """ρ̄ = (K − 1)/K · (1/(1 − ρ) + 2√ρ/(1 − √ρ)²), Theorem 1; infinite where nothing mixes."""
    gap, K = real("rho", rho, least=0, most=1), whole("workers", workers)
    if gap == 1:
        return 0.0 if K == 1 else math.inf
    root = math.sqrt(gap)
    return (K - 1) / K * (1 / (1 - gap) + 2 * root / (1 - root) ** 2)


@dataclass(frozen=True)
class Decentralised:
    """The setting of Theorem 1 and its propositions.

    Args:
        workers: K. batch: B. rounds: T, of all workers together. smoothness: L.
        gap: F(w⁰) − F*. example_variance: ς². worker_variance: v².
        dimension: d. sigma: σ on the *sum* of B gradients, as Algorithm 1 adds it.
        rho: of the mixing, as ``Mixing.second_eigenvalue()`` has it. tau: :func:`staleness`.
    """

    workers: int
    batch: int
    rounds: int
    smoothness: float
    gap: float
    example_variance: float
    worker_variance: float
    dimension: int
    sigma: float
    rho: float
    tau: int

    def __post_init__(self) -> None:
        for name in ("workers", "batch", "rounds", "dimension"):
            whole(name, getattr(self, name))
        whole("tau", self.tau, least=0)
        for name in ("smoothness", "gap"):
            real(name, getattr(self, name), above=0)
        for name in ("example_variance", "worker_variance", "sigma"):
            real(name, getattr(self, name), least=0)

    @property
    def mixing(self) -> float:
        """ρ̄."""
        return mixing_constant(self.rho, self.workers)

    def constants(self, step: float) -> tuple[float, float, float]:
        """C_1, C_2 and C_3 of Theorem 1 at step size η."""
        K, L, tau, mixed = self.workers, self.smoothness, self.tau, self.mixing
        u = real("step", step, above=0) * self.batch  # ηB
        lag = tau * (K - 1) / K + mixed
        first = 1 - 24 * u**2 * L**2 * lag
        if first <= 0 or math.isinf(mixed):
            return -math.inf if math.isinf(mixed) else first, -math.inf, math.inf
        third = (
            0.5
            + u * L * tau**2 / K
            + (6 * u**2 * L**2 + u * K * L + 12 * u**3 * L**3 * tau**2 / K) * 2 * mixed / first
        )
        spread = u * L**2 / K + 6 * u**2 * L**3 / K**2 + 12 * u**3 * L**4 * tau**2 / K**3
        second = (
            -spread * 4 * u**2 * lag / first
            + u / (2 * K)
            - u**2 * L / K**2
            - 2 * u**3 * L**2 * tau**2 / K**3
        )
        return first, second, third

    def theorem_1(self, step: float) -> UtilityBound:
        """2(F(w⁰) − F*)K/(ηTB) + 2ηL/(BK) (ς²B + 6v²B² + dσ²), at step size η."""
        K, B, L = self.workers, self.batch, self.smoothness
        first, second, third = self.constants(step)
        conditions = (
            Condition("0 < C_1", 0.0 if first > 0 else 1.0, max(first, 0.0)),
            Condition("0 ≤ C_2", 0.0 if second >= 0 else 1.0, max(second, 0.0)),
            Condition("C_3 ≤ 1", third, 1.0),
        )
        spread = (
            self.example_variance * B
            + 6 * self.worker_variance * B**2
            + self.dimension * self.sigma**2
        )
        printed = 2 * self.gap * K / (step * self.rounds * B) + 2 * step * L / (B * K) * spread
        return _under("Theorem 1", printed, printed, conditions)

    @property
    def proposition_1_rounds(self) -> float:
        """The fewest T for which Proposition 1 is stated.

        Its 64τ²/K² should be 64τ⁴/K²: of C_3, ηBLτ²/K = Lτ²/√T has to be small. So long delays
        with few workers (K = 2, τ = 100) meet it while C_3 is 3.1, and the proof fails.
        """
        K, L, tau, mixed = self.workers, self.smoothness, self.tau, self.mixing
        if math.isinf(mixed):
            return math.inf
        last = 0.0
        if K > 1:
            last = (
                (K - 1) ** 0.5
                / K ** (1 / 6)
                * (8 * math.sqrt(6) * tau ** (2 / 3) + 8) ** 2
                * (tau + mixed * K / (K - 1)) ** (2 / 3)
            )
        most = max(
            192 * (tau * (K - 1) / K + mixed), 1024 * K**2 * mixed**2, 64 * tau**2 / K**2, last
        )
        return L**2 * K**2 * most

    def proposition_1(self) -> UtilityBound:
        """Theorem 1 at η = K/(B√T): (2(F(w⁰) − F*) + 2L(ς²/B + 6v² + dσ²/B²))/√T.

        ``proven`` where T is as large as stated *and* Theorem 1's own conditions hold.
        """
        B = self.batch
        noise = self.dimension * self.sigma**2 / B**2
        spread = self.example_variance / B + 6 * self.worker_variance + noise
        printed = (2 * self.gap + 2 * self.smoothness * spread) / math.sqrt(self.rounds)
        enough = Condition("T is large enough", self.proposition_1_rounds, float(self.rounds))
        proof = self.theorem_1(self.workers / (B * math.sqrt(self.rounds))).conditions
        return _under("Proposition 1", printed, printed, (enough, *proof))


def _under(
    name: str, printed: float, proven: float, conditions: tuple[Condition, ...], note: str = ""
) -> UtilityBound:
    met = all(condition.holds for condition in conditions)
    return UtilityBound(name, _GRADIENT, printed, proven if met else math.inf, note, conditions)


def proposition_2_rounds(
    setting: Decentralised, epsilon: float, delta: float, smallest: int, lipschitz: float
) -> float:
    """T of equation (8), at which noise and progress weigh alike.

    Args:
        epsilon, delta: of the paper's Theorem 2. smallest: n, records of the smallest worker.
        lipschitz: G.
    """
    reach, room = _reach(setting), _population(setting, epsilon, smallest)
    spent = 40 * setting.dimension * setting.smoothness * real("lipschitz", lipschitz, above=0) ** 2
    return 2 * reach * room**2 / (spent * -math.log(real("delta", delta, above=0, below=1)))


def adp2sgd_utility(
    setting: Decentralised,
    epsilon: float,
    delta: float,
    smallest: int,
    lipschitz: float,
    split: float,
) -> UtilityBound:
    """Proposition 2: Proposition 1 with Theorem 2's noise after T rounds of (8).

    Of α = ln(1/δ)/((1 − μ)ε) + 1 the print drops the 1. And its output is the mean of all models,
    which has a small gradient by this proof only where F is convex; it holds for one drawn at
    random. The setting's own σ and T do not count.

    Args:
        split: μ of Theorem 2, in (0, 1); the others as for :func:`proposition_2_rounds`.
    """
    mu, tail = real("split", split, above=0, below=1), -math.log(delta)
    B, G = setting.batch, real("lipschitz", lipschitz, above=0)
    root = math.sqrt(setting.dimension * setting.smoothness * _reach(setting) * tail)
    scale = 4 * math.sqrt(5) * G * root / _population(setting, epsilon, smallest)
    printed = scale * (1 + 1 / (B**2 * mu * (1 - mu)))
    proven = scale * (1 + (1 / (1 - mu) + epsilon / tail) / (B**2 * mu))
    rounds = proposition_2_rounds(setting, epsilon, delta, smallest, G)
    enough = Condition("T of (8) is large enough", setting.proposition_1_rounds, rounds)
    proof = setting.theorem_1(setting.workers / (B * math.sqrt(rounds))).conditions
    return _under("Proposition 2", printed, proven, (enough, *proof), "drops the 1 of α")


def _reach(setting: Decentralised) -> float:
    spread = setting.example_variance / setting.batch + 6 * setting.worker_variance
    return setting.gap + setting.smoothness * spread


def _population(setting: Decentralised, epsilon: float, smallest: int) -> float:
    """K n ε."""
    return setting.workers * whole("smallest", smallest) * real("epsilon", epsilon, above=0)


# Private federated learning: what local epochs and clients do.


def local_degradation(
    local_steps: int,
    learning_rate: float,
    clip_norm: float,
    noise_multiplier: float,
    batch: int,
    parameters: int,
    plain: tuple[float, float] = (0.0, 0.0),
) -> float:
    """E‖θ̃ − θ‖ after E steps with and without noise at most, Theorem 2's bound.

    E(αC + α₁C₁ + (√2 ασC/L) Γ((N+1)/2)/Γ(N/2)). It grows with E, from which the paper takes that
    E = 1 is best. But a run of T steps has T/E such rounds, and the sum over them does not depend
    on E at all; and without clipping the comparison's C₁ is infinite. So it is an observation that
    the paper's figures support, not a theorem about a run.

    Args:
        local_steps: E. learning_rate: α. clip_norm: C. noise_multiplier: σ. batch: L.
        parameters: N. plain: α₁ and C₁ of the run without noise.
    """
    N = whole("parameters", parameters)
    alpha, C = real("learning_rate", learning_rate, above=0), real("clip_norm", clip_norm, above=0)
    length = math.sqrt(2) * math.exp(float(gammaln((N + 1) / 2) - gammaln(N / 2)))
    sigma = real("noise_multiplier", noise_multiplier, least=0)
    noise = alpha * sigma * C * length / whole("batch", batch)
    without = real("plain step", plain[0], least=0) * real("plain norm", plain[1], least=0)
    return whole("local_steps", local_steps) * (alpha * C + without + noise)


def l_utility(excesses: ArrayLike, l: float) -> float:
    """U_l = P(|R(θ) − R(θ*)| < l), Definition 2, over the models of repeated runs.

    Args:
        excesses: R(θ) − R(θ*), a number a run. l: above 0.
    """
    found = np.abs(np.asarray(excesses, dtype=float))
    if found.ndim != 1 or not found.size:
        raise ValueError("excesses must be a list of numbers, one a run")
    return float(np.mean(found < real("l", l, above=0)))


def theorem_3(l: float, clients: int, lipschitz: float, spread: float) -> float:
    """U_l at least: 1 − σ²β²/(l²k) by Chebyshev, 0 where that is below, Theorem 3.

    It takes every client's model for an independent draw around θ* itself. Models of clients that
    lack data are not: their mean is off, and no number of clients mends that.

    Args:
        l: of Definition 2. clients: k. lipschitz: β of the loss.
        spread: σ, root of a client's E‖θ_i − θ*‖²; of noise alone √d times that of a coordinate.
    """
    size = real("spread", spread, least=0) * real("lipschitz", lipschitz, least=0)
    return max(0.0, 1 - (size / real("l", l, above=0)) ** 2 / whole("clients", clients))
