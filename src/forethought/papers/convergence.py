"""Bounds of the papers on utility and convergence: as printed and as proven.

None of them is a guarantee of this library: they rest on constants that are unknown for a network
(smoothness, variances, distances). ``printed`` is the published number. ``proven`` is the result of
the paper's proof with its errors corrected: smaller or larger than ``printed``, equal to it, or
infinite if a condition fails.

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
from forethought.papers.decentralised import AsynchronousTheorem
from forethought.values.checks import real, whole

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UtilityBound:
    """A published upper bound on the distance of a run from its goal.

    Args:
        name: the theorem or proposition.
        quantity: the bounded quantity.
        printed: the published number.
        proven: the number that the proof gives; infinite if a condition fails.
        note: the difference of the two, or a remark.
        conditions: the conditions of the theorem.
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


def _square(number: float) -> float:
    """The square, infinite where it is too large for a double: a power would be an error."""
    return number * number


# Adaptive noise: one noisy step, and the schedules that follow from it.


def improvement(
    step: float, sigma: float, gradient_norm: float, smoothness: float, dimension: int
) -> float:
    """Lemma 1's lower bound on E[F(θ_t) − F(θ_{t+1})]: (η − Mη²/2)‖∇F‖² − Mη²dσ²/2 (equation (5)).

    It is exact if every curvature of F is M. If it is negative, the step may increase F.
    """
    eta, M = real("step", step, least=0), real("smoothness", smoothness, above=0)
    norm, sigma = real("gradient_norm", gradient_norm, least=0), real("sigma", sigma, least=0)
    # In units of the larger one, so that the difference of two infinite squares has a sign.
    unit = max(norm, sigma) or 1.0
    squared, noise = _square(norm / unit), whole("dimension", dimension) * _square(sigma / unit)
    return eta * (squared - M * eta / 2 * (squared + noise)) * unit * unit


def best_step(sigma: float, gradient_norm: float, smoothness: float, dimension: int) -> float:
    """η = 1/(M(1 + dσ²/‖∇F‖²)), equation (12): the step of the largest :func:`improvement`."""
    M, norm = real("smoothness", smoothness, above=0), real("gradient_norm", gradient_norm, above=0)
    ratio = whole("dimension", dimension) * _square(real("sigma", sigma, least=0) / norm)
    return 1 / (M * (1 + ratio))


def privacy_cost(sigma: float, lipschitz: float, examples: int, delta: float) -> float:
    """P(σ) = sqrt(2 ln(1.25/δ)) 2L/(Nσ), equation (4): the paper's measure of a round's cost.

    It is the classical ε of one Gaussian round, which is a theorem only below 1; no guarantee.
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
    """PUR(σ, η) = P(σ)/U(σ, η), equation (3); infinite if U is not positive.

    :func:`proposition_1` is its minimum. It depends on the gradient's norm, so it is for comparison
    only.
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
    """The rate of Proposition 1's schedule, which depends on the gradient's norm: not private.

    Args:
        rounds: T.
        smoothness: M.
        gap: F(θ_0) − F*, for (a) and (c).
        radius: R, radius of the iterates around θ*, for (b).
        convexity: μ, with ``gap`` for (c).

    Raises:
        ValueError: the arguments are not exactly those of one case.
    """
    T, M = whole("rounds", rounds), real("smoothness", smoothness, above=0)
    goal = _goal(M, gap, radius, convexity)
    printed = (1 - goal.share) ** T * goal.size
    if goal.case != "c":
        printed = 4 * M * (goal.size if goal.case == "a" else _square(goal.size)) / T
    return goal.bound("Proposition 2", printed, printed, "reads the gradient")


def proposition_3(
    rounds: int,
    smoothness: float,
    *,
    gap: float | None = None,
    radius: float | None = None,
    convexity: float | None = None,
) -> UtilityBound:
    """The rate of the schedules without data; arguments as of :func:`proposition_2`.

    The proof of (a) loses a factor M when it solves for the gradients: 3/(8M) Σ E‖∇F‖² is at most
    (1 + π²M/3)(F(θ_0) − F*), so the printed 8(π²M/3 + 1)(F(θ_0) − F*)/(3T) lacks a factor M.
    """
    T, M = whole("rounds", rounds), real("smoothness", smoothness, above=0)
    goal = _goal(M, gap, radius, convexity)
    if goal.case == "a":
        printed = 8 * (math.pi**2 * M / 3 + 1) * goal.size / (3 * T)
        return goal.bound("Proposition 3", printed, M * printed, "a factor M")
    printed = (1 - goal.share) ** T * goal.size
    if goal.case == "b":
        printed = 16 * M * _square(goal.size) / (3 * T)
    return goal.bound("Proposition 3", printed, printed)


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
    """The rate at ρ of zero-concentrated DP; other arguments as of :func:`proposition_2`.

    The printed right sides have errors: (a) lacks a factor M, as Proposition 3(a); (b) has R
    instead of the proof's R⁴; (c) has half of the result at its own T, and that T spends κ = M/μ
    times ρ. T need not be whole in the proof: ``proven`` is right for the ρ that whole rounds
    spend; a run on a budget of ρ that leaves a part of a round over may end above it.
    """
    M, L = real("smoothness", smoothness, above=0), real("lipschitz", lipschitz, above=0)
    goal = _goal(M, gap, radius, convexity)
    N, d = whole("examples", examples), whole("dimension", dimension)
    cost = _square(L) * d / (real("rho", rho, above=0) * N**2)
    if goal.case == "a":
        printed = 8 / 3 * (math.pi**2 * M / 3 + 1) * (_square(goal.size / M) * cost / 8) ** (1 / 3)
        proven, note = M * printed, "a factor M"
    elif goal.case == "b":
        root = goal.size ** (1 / 3)
        printed, proven = (8 / 3 * (cost * M) ** (1 / 3) * R for R in (root, root * goal.size))
        note = "R printed for R⁴"
    else:
        kappa = 1 / (2 * goal.share)
        printed = cost * kappa / M  # 1/μ
        proven, note = 2 * kappa * printed, "half of what its T gives, and T spends κ times ρ"
    note += "; for the ρ that whole rounds spend, not for a budget"
    return goal.bound("Proposition 4", printed, proven, note)


class _Goal(NamedTuple):
    """A proposition's case, its gap or radius, and μ/(2M); 0 where F may have no curvature."""

    case: str
    size: float
    share: float

    def bound(self, name: str, printed: float, proven: float, note: str = "") -> UtilityBound:
        quantity = _GRADIENT if self.case == "a" else _EXCESS
        return UtilityBound(f"{name}({self.case})", quantity, printed, proven, note)


def _goal(
    smoothness: float, gap: float | None, radius: float | None, convexity: float | None
) -> _Goal:
    given = (gap is not None, radius is not None, convexity is not None)
    found = {(True, False, False): "a", (False, True, False): "b", (True, False, True): "c"}
    if given not in found:
        raise ValueError(
            "give gap= (any F), radius= (convex F), or gap= and convexity= (strongly convex F), "
            "and nothing else"
        )
    size = real("gap or radius", gap if radius is None else radius, above=0)
    curved = 0.0 if convexity is None else real("convexity", convexity, above=0, most=smoothness)
    return _Goal(found[given], size, curved / (2 * smoothness))


class ExpectedPath(NamedTuple):
    """E F(θ_t) and E‖∇F(θ_t)‖² for t = 0, 1, …, both of shape (rounds + 1,)."""

    risks: Array
    squared_gradients: Array


def quadratic_path(
    curvatures: ArrayLike, start: ArrayLike, step: float, sigmas: Sequence[float]
) -> ExpectedPath:
    """The exact expected path of noisy descent on F(θ) = Σ h_i θ_i²/2 from ``start``.

    It serves to compare the bounds above; M is the largest curvature, F* = 0.

    Args:
        curvatures: h, shape (d,).
        start: θ_0, shape (d,).
        step: η.
        sigmas: σ_t on each coordinate of the mean gradient, t from 1.
    """
    h, second = np.asarray(curvatures, dtype=float), np.asarray(start, dtype=float) ** 2
    risks, gradients = [0.5 * h @ second], [h**2 @ second]
    for sigma in sigmas:
        second = (1 - step * h) ** 2 * second + (step * sigma) ** 2
        risks.append(0.5 * h @ second)
        gradients.append(h**2 @ second)
    return ExpectedPath(np.array(risks), np.array(gradients))


# A(DP)²SGD: asynchronous workers.


def staleness(seconds: Sequence[float]) -> int:
    """τ of Assumption 2: the most updates by others while a worker computes its own update.

    Worker k takes ``seconds[k]`` for each gradient and starts the next one at once. During a time s
    a worker who takes d makes at most ⌈s/d⌉ updates.

    Raises:
        ValueError: a time is not above 0.
    """
    times = [real("seconds", value, above=0) for value in seconds]
    most = 0
    for own, span in enumerate(times):
        # The factor keeps the rounding of the quotient from raising ceil by one.
        others = (math.ceil(span / each * (1 - 1e-12)) for each in times)
        most = max(most, sum(count for k, count in enumerate(others) if k != own))
    return most


def mixing_constant(rho: float, workers: int) -> float:
    """ρ̄ = (K − 1)/K · (1/(1 − ρ) + 2√ρ/(1 − √ρ)²), Theorem 1; ∞ at ρ = 1 and K > 1."""
    gap, K = real("rho", rho, least=0, most=1), whole("workers", workers)
    if gap == 1:
        return 0.0 if K == 1 else math.inf
    root = math.sqrt(gap)
    return (K - 1) / K * (1 / (1 - gap) + 2 * root / (1 - root) ** 2)


@dataclass(frozen=True)
class Decentralised:
    """The setting of Theorem 1 and its propositions.

    Args:
        workers: K.
        batch: B.
        rounds: T, of all workers together.
        smoothness: L.
        gap: F(w⁰) − F*.
        example_variance: ς².
        worker_variance: v².
        dimension: d.
        sigma: σ on the *sum* of B gradients, as in Algorithm 1.
        rho: ρ of the mixing, as of ``Mixing.second_eigenvalue()``.
        tau: τ, see :func:`staleness`.
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
        """The least T for which Proposition 1 is stated.

        Its 64τ²/K² should be 64τ⁴/K², since the term ηBLτ²/K = Lτ²/√T of C_3 has to be small. Long
        delays with few workers (K = 2, τ = 100) meet the condition with C_3 = 3.1, where the proof
        fails.
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

        ``proven`` is finite if T is as large as stated *and* Theorem 1's own conditions hold.
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
    """T of equation (8), at which the terms of noise and of progress are equal.

    Args:
        epsilon, delta: those of the paper's Theorem 2.
        smallest: n, number of records of the smallest worker.
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

    The printed bound drops the 1 of α = ln(1/δ)/((1 − μ)ε) + 1, and adds Theorem 2's σ, which is
    for a mean, to a sum of B gradients: ``proven`` has B times this σ on the sum. Theorem 2's own
    conditions are among those here; where d is large, T of (8) breaks its bound on ε. The output is
    the mean of all models, whose gradient is small by this proof only if F is convex; the bound
    holds for a model drawn at random. The setting's own σ and T are not used.

    Args:
        split: μ of Theorem 2, in (0, 1); the others as of :func:`proposition_2_rounds`.
    """
    mu, B = real("split", split, above=0, below=1), setting.batch
    tail = -math.log(real("delta", delta, above=0, below=1))
    G = real("lipschitz", lipschitz, above=0)
    root = math.sqrt(setting.dimension * setting.smoothness * _reach(setting) * tail)
    scale = 4 * math.sqrt(5) * G * root / _population(setting, epsilon, smallest)
    printed = scale * (1 + 1 / (B**2 * mu * (1 - mu)))
    proven = scale * (1 + (1 / (1 - mu) + epsilon / tail) / mu)
    rounds = proposition_2_rounds(setting, epsilon, delta, smallest, G)
    enough = Condition("T of (8) is large enough", setting.proposition_1_rounds, rounds)
    proof = setting.theorem_1(setting.workers / (B * math.sqrt(rounds))).conditions
    K, T = setting.workers, math.ceil(rounds)
    private = AsynchronousTheorem(epsilon, delta, T, B, K, smallest, G, mu).conditions
    note = "drops the 1 of α, and adds the noise of a mean to a sum"
    return _under("Proposition 2", printed, proven, (enough, *proof, *private), note)


def _reach(setting: Decentralised) -> float:
    spread = setting.example_variance / setting.batch + 6 * setting.worker_variance
    return setting.gap + setting.smoothness * spread


def _population(setting: Decentralised, epsilon: float, smallest: int) -> float:
    """K n ε."""
    return setting.workers * whole("smallest", smallest) * real("epsilon", epsilon, above=0)


# Private federated learning: the effect of local epochs and of the number of clients.


def local_degradation(
    local_steps: int,
    learning_rate: float,
    clip_norm: float,
    noise_multiplier: float,
    batch: int,
    parameters: int,
    plain: tuple[float, float] = (0.0, 0.0),
) -> float:
    """Theorem 2's bound on E‖θ̃ − θ‖, the distance of E local steps with and without noise.

    It is E(αC + α₁C₁ + (√2 ασC/L) Γ((N+1)/2)/Γ(N/2)). It increases with E, from which the paper
    concludes that E = 1 is best. But a run of T steps has T/E such rounds, and the sum over them
    does not depend on E; and without clipping C₁ is infinite. So the conclusion is an observation
    that the paper's figures support, not a theorem about a run.

    Args:
        local_steps: E.
        learning_rate: α.
        clip_norm: C.
        noise_multiplier: σ.
        batch: L.
        parameters: N.
        plain: α₁ and C₁ of the run without noise.
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
        excesses: R(θ) − R(θ*) of each run, shape (runs,).
        l: above 0.

    Raises:
        ValueError: ``excesses`` has another shape or is empty.
    """
    found = np.abs(np.asarray(excesses, dtype=float))
    if found.ndim != 1 or not found.size:
        raise ValueError("excesses must be a list of numbers, one a run")
    return float(np.mean(found < real("l", l, above=0)))


def theorem_3(l: float, clients: int, lipschitz: float, spread: float) -> float:
    """Theorem 3's lower bound on U_l: max(0, 1 − σ²β²/(l²k)), by Chebyshev.

    It assumes that every client's model is an independent draw with mean θ*. Models of clients with
    little data have another mean, and more clients do not reduce this bias.

    Args:
        l: l of Definition 2.
        clients: k.
        lipschitz: β of the loss.
        spread: σ, the root of a client's E‖θ_i − θ*‖²; for noise alone √d times that of a
            coordinate.
    """
    size = real("spread", spread, least=0) * real("lipschitz", lipschitz, least=0)
    return max(0.0, 1 - _square(size / real("l", l, above=0)) / whole("clients", clients))
