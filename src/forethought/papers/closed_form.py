"""Closed-form privacy of DP-SGD and the central limit theorem: explanations and first guesses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from scipy.special import ndtr

from forethought.accounting import exact
from forethought.accounting.dominating_pair import gaussian_epsilon, gaussian_mu
from forethought.accounting.interval import Interval, reached
from forethought.accounting.theorems import all_uncorrelated
from forethought.accounting.tradeoff import TradeOff, from_points
from forethought.values import mechanism as kinds
from forethought.values.checks import real, settle, whole

# Number of ε at which the curve of Section C.3 is evaluated.
_CURVE_POINTS = 200

# Closed-form privacy of DP-SGD with any sequence of sample sizes: explanation and first guess.
#
# Source: van Dijk et al., "Proactive DP: A Multiple Target Optimization Framework for DP-SGD",
# Theorems 3.1, B.2 and B.4. Its noise is N(0, (Cσ)²) on the sum, as in this library. Its analysis
# is of random samples: each record is in round i with probability s_i/N, so the mechanism of every
# result is Poisson sampling under add-or-remove. The formulas are valid if their conditions hold,
# and loose: the exact interval of each is in ``exact``.


def closed_form_sigma(epsilon: float, delta: float) -> float:
    """σ = sqrt(2(ε + ln(1/δ))/ε), equation (1): the root covers the whole fraction.

    The paper prints sqrt(2(ε + ln(1/δ)))/ε in two places, which is another number.
    """
    eps = real("epsilon", epsilon, above=0)
    return math.sqrt(2 * (eps - math.log(real("delta", delta, above=0, below=1))) / eps)


def closed_form_epsilon(sigma: float, delta: float) -> float:
    """ε = 2 ln(1/δ)/(σ² − 2): equation (1) solved for ε; infinite for σ ≤ √2."""
    size, target = real("sigma", sigma, above=0), real("delta", delta, above=0, below=1)
    return math.inf if size * size <= 2 else -2 * math.log(target) / (size * size - 2)


def h(x: float) -> float:
    """h(x) = (sqrt(1 + (e/x)²) − e/x)², Theorem B.4: the largest ᾱ with x(1 − ᾱ) ≥ 2e√ᾱ."""
    ratio = math.e / real("x", x, above=0)
    # sqrt(1 + r²) − r without cancellation.
    return (1 / (math.hypot(1, ratio) + ratio)) ** 2


def g(x: float) -> float:
    """g(x) = min{1/(ex), h(x)}, Theorem B.4."""
    return min(1 / (math.e * real("x", x, above=0)), h(x))


def gamma_step(sigma: float, ratio: float, current: float) -> float:
    """Right side of (55) at γ = ``current``: one step of the calculators' iteration.

    The denominator is that of the derivation, σ(1 − ᾱ) − 2e√ᾱ with ᾱ = ratio/γ, ratio = εN/K. The
    result is infinite if ᾱ ≥ h(σ).
    """
    return _gamma_right(sigma, ratio / current, 1.0)


def _gamma_right(sigma: float, alpha: float, factor: float) -> float:
    if alpha >= 1 or 700 * sigma**2 < 3:
        return math.inf
    room = sigma * (1 - alpha) - 2 * math.e * math.sqrt(alpha) * factor
    if room <= 0:
        return math.inf
    bracket = sigma / (1 - math.sqrt(alpha)) ** 2 + math.e**3 / (sigma * room)
    return (2 + 16 * alpha * bracket * math.exp(3 / sigma**2)) / (1 - alpha)


def gamma_printed(sigma: float, ratio: float) -> float:
    """The smallest γ that satisfies the condition as printed in Theorems 3.1 and B.4."""
    return gamma(sigma, ratio, real("sigma", sigma, above=0))


def gamma(sigma: float, ratio: float, factor: float = 1.0) -> float:
    """The smallest γ that satisfies (55), with the derivation's denominator: γ = 2 + O(ᾱ).

    Args:
        sigma: σ.
        ratio: εN/K.
        factor: on the denominator's 2e√ᾱ; as printed it is σ.
    """
    size, share = real("sigma", sigma, above=0), real("ratio", ratio, above=0)

    def short(value: float) -> bool:
        return value < _gamma_right(size, share / value, factor)

    # The right side decreases to 2 as γ increases, so there is exactly one solution.
    return reached(short, 2.0, 4.0)[1]


@dataclass(frozen=True)
class SampleSizes:
    """A sequence of sample sizes s_i, as runs of equal ones.

    Args:
        sizes: the size in each run, in records (expected, under Poisson sampling).
        rounds: number of rounds of each run.
        examples: N.
    """

    sizes: tuple[float, ...]
    rounds: tuple[int, ...]
    examples: int

    def __post_init__(self) -> None:
        examples = whole("examples", self.examples)
        sizes = tuple(real("sample size", s, above=0, most=examples) for s in self.sizes)
        if not sizes or len(sizes) != len(self.rounds):
            raise ValueError("one number of rounds per sample size, and at least one of each")
        settle(self, sizes=sizes, rounds=tuple(whole("rounds", n) for n in self.rounds))

    @classmethod
    def constant(cls, size: float, rounds: int, examples: int) -> SampleSizes:
        """s_i = ``size`` in every round."""
        return cls((size,), (rounds,), examples)

    @classmethod
    def growing(cls, q: float, power: float, rounds: int, examples: int) -> SampleSizes:
        """s_i = ⌈q N (i + 1)^power⌉ for i = 0 … ``rounds`` − 1: θ near 1 + power (Appendix B.4).

        Raises:
            ValueError: the last size is larger than N.
        """
        share, exponent = real("q", q, above=0), real("power", power, least=0)
        count, N = whole("rounds", rounds), whole("examples", examples)
        if math.ceil(share * N * count**exponent) > N:
            raise ValueError(
                f"q N i^p grows past N = {N} in {count} rounds: take q at most "
                f"{count**-exponent:.3g}, or fewer rounds"
            )
        return cls.of([max(1, math.ceil(share * N * i**exponent)) for i in range(1, count + 1)], N)

    @classmethod
    def of(cls, sizes: Sequence[float], examples: int) -> SampleSizes:
        """The sequence with these sizes, one per round."""
        runs = [(size, len(list(same))) for size, same in groupby(sizes)]
        return cls(tuple(size for size, _ in runs), tuple(count for _, count in runs), examples)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return iter(zip(self.sizes, self.rounds, strict=True))

    @property
    def total_rounds(self) -> int:
        """T."""
        return sum(self.rounds)

    @property
    def gradients(self) -> float:
        """K = Σ s_i, the number of gradient computations."""
        return math.fsum(size * count for size, count in self)

    @property
    def epochs(self) -> float:
        """k = K/N."""
        return self.gradients / self.examples

    @property
    def mean(self) -> float:
        """s̄ = K/T."""
        return self.gradients / self.total_rounds

    @property
    def largest(self) -> float:
        """s_max."""
        return max(self.sizes)

    @property
    def theta(self) -> float:
        """θ = s_max/s̄: 1 for a constant sequence."""
        return self.largest / self.mean

    def moment(self, j: int) -> float:
        """Ŝ_j = (1/T) Σ s_i^j/(N (N − s_i)^{j−1}), Theorem B.2; infinite when some s_i = N."""
        N = self.examples
        if j > 1 and self.largest >= N:
            return math.inf
        terms = (
            count * (s / N) * (s / (N - s)) ** (j - 1) if j > 1 else count * s / N
            for s, count in self
        )
        return math.fsum(terms) / self.total_rounds

    @property
    def rho(self) -> float:
        """ρ = Ŝ_1 Ŝ_3/Ŝ_2², the smallest that Theorem B.2 allows."""
        return self.moment(1) * self.moment(3) / self.moment(2) ** 2

    @property
    def rho_hat(self) -> float:
        """ρ̂ = Ŝ_1²/Ŝ_2, the smallest that Theorem B.2 allows."""
        return self.moment(1) ** 2 / self.moment(2)

    def mechanism(self, sigma: float) -> kinds.Mechanism:
        """The mechanism of the run: Poisson rounds at rates s_i/N under add-or-remove."""
        return kinds.Mechanism(
            *(
                kinds.Rounds(sigma, count, kinds.Poisson(size / self.examples))
                for size, count in self
            )
        )


@dataclass(frozen=True)
class Condition:
    """One requirement of a theorem: ``left`` is at most ``right``."""

    name: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        """True if the condition is met, up to rounding."""
        return self.left <= self.right * (1 + 1e-12)

    @property
    def margin(self) -> float:
        """right/left: at least 1 if the condition is met, below 1 otherwise."""
        return math.inf if self.left == 0 else self.right / self.left


@dataclass(frozen=True)
class ClosedForm:
    """The claim of a theorem about a run: (ε, δ)-DP if every condition holds."""

    theorem: str
    epsilon: float
    delta: float
    sigma: float
    sizes: SampleSizes
    conditions: tuple[Condition, ...]

    @property
    def holds(self) -> bool:
        """True if all conditions hold, i.e. the theorem proves (ε, δ)-DP."""
        return all(condition.holds for condition in self.conditions)

    @property
    def mechanism(self) -> kinds.Mechanism:
        """The mechanism of the theorem's run."""
        return self.sizes.mechanism(self.sigma)

    @cached_property
    def exact(self) -> Interval:
        """The certified ε of the same run at the same δ, computed on first use."""
        return exact.epsilon(self.mechanism, self.delta)


def _checked(epsilon: float, delta: float, sigma: float) -> tuple[float, float, float]:
    return (
        real("epsilon", epsilon, above=0),
        real("delta", delta, above=0, below=1),
        real("sigma", sigma, above=0),
    )


def theorem_3_1(epsilon: float, delta: float, sigma: float, sizes: SampleSizes) -> ClosedForm:
    """Theorem 3.1: the simple form, for ε < 0.5 and δ ≤ 1/N; γ by the derivation's denominator."""
    eps, tail, size = _checked(epsilon, delta, sigma)
    k, theta = sizes.epochs, sizes.theta
    gam = gamma(size, eps / k)
    conditions = (
        Condition("(6) sigma ≥ sqrt(2(ε + ln(1/δ))/ε)", closed_form_sigma(eps, tail), size),
        Condition("δ ≤ 1/N", tail, 1 / sizes.examples),
        # The theorem's inequality is strict, so the right side is the largest double below 0.5.
        Condition("ε < 0.5", eps, math.nextafter(0.5, 0) / (1 + 1e-12)),
        Condition("N ≥ 10000", 10000.0, float(sizes.examples)),
        Condition("θ ≤ 6.85", theta, 6.85),
        Condition("(7) 1/2 + ln(1/δ) ≤ (2/e)² k²", 0.5 - math.log(tail), (2 / math.e * k) ** 2),
        Condition("(8) γ θ² k²/ε ≤ T", gam * theta**2 * k**2 / eps, float(sizes.total_rounds)),
    )
    return ClosedForm("Theorem 3.1", eps, tail, size, sizes, conditions)


def theorem_b_4(epsilon: float, delta: float, sigma: float, sizes: SampleSizes) -> ClosedForm:
    """Theorem B.4: for any ε and δ; γ with the derivation's denominator."""
    eps, tail, size = _checked(epsilon, delta, sigma)
    k, N, theta, mean = sizes.epochs, sizes.examples, sizes.theta, sizes.mean
    gam = gamma(size, eps / k)
    least = closed_form_sigma(eps, tail)
    conditions = (
        Condition("(32) s̄ ≤ g(sqrt(2(ε + ln(1/δ))/ε)) N/θ", mean, g(least) * N / theta),
        Condition("(33) ε ≤ γ h(σ) K/N", eps, gam * h(size) * k),
        Condition("(34) γ θ² (K/N)(s̄/N) ≤ ε", gam * theta**2 * k * mean / N, eps),
        Condition("(35) sqrt(2(ε + ln(1/δ))/ε) ≤ σ", least, size),
    )
    return ClosedForm("Theorem B.4", eps, tail, size, sizes, conditions)


def theorem_b_2(epsilon: float, delta: float, sigma: float, sizes: SampleSizes) -> ClosedForm:
    """Theorem B.2: the general one, with r_0 = σ s_max/N, its smallest value.

    ρ and ρ̂ are the smallest that the moments Ŝ_j allow; c_0 = c(c_1) with ε = c_1 T Ŝ_1².
    """
    eps, tail, size = _checked(epsilon, delta, sigma)
    r0 = size * sizes.largest / sizes.examples
    gap = size - r0
    u0 = 2 * math.sqrt(r0 * size) / gap if gap > 0 else math.inf
    u1 = math.e * u0 / size
    below_one = math.nextafter(1.0, 0) / (1 + 1e-12)
    needed = math.inf
    if size >= 216 / 215 and u0 < 1 and u1 < 1:
        r = r0 * 8 * (1 / (1 - u0) + math.e**3 / ((1 - u1) * size**3)) * math.exp(3 / size**2)
        x = eps / (sizes.total_rounds * sizes.moment(1) ** 2)
        product = r * sizes.rho * x
        # (sqrt(2y + 1) − 1)/y without cancellation for small y.
        c0 = min(2 / (math.sqrt(2 * product + 1) + 1), 2 / (sizes.rho_hat * x))
        spread = sizes.moment(2) * sizes.total_rounds * (eps - math.log(tail))
        needed = 2 / math.sqrt(c0) * math.sqrt(spread) / eps
    conditions = (
        Condition("216/215 ≤ σ", 216 / 215, size),
        Condition("r_0 ≤ 1/e", r0, 1 / math.e),
        Condition("u_0 < 1", u0, below_one),
        Condition("u_1 < 1", u1, below_one),
        Condition("(2/√c_0) sqrt(Ŝ_2 T (ε + ln(1/δ)))/ε ≤ σ", needed, size),
    )
    return ClosedForm("Theorem B.2", eps, tail, size, sizes, conditions)


def lemma_b_3(
    size: float, sigma: float, examples: int, order: int, r0: float | None = None
) -> float:
    """Lemma B.3's bound on α(λ) of a round, the log moment of its privacy loss at λ = ``order``.

    It is s²λ(λ + 1)/(N(N − s)σ²) + (r/r_0) s³λ²(λ + 1)/(N(N − s)²σ³). The exact value is λ D_{λ+1}
    of :func:`forethought.accounting.renyi.rdp`. The lemma's u_0 and u_1 take their smallest values,
    U_0(λ) and U_1(λ).

    Args:
        size: s, the expected sample size.
        sigma: σ.
        examples: N.
        order: λ, an integer.
        r0: r_0 with s/N ≤ r_0/σ; None: the smallest, σs/N.

    Returns:
        The bound; ∞ if the lemma does not apply (σ < 216/215, λ > σ² ln(N/(sσ)), u ≥ 1).
    """
    N, deviation = whole("examples", examples), real("sigma", sigma, above=0)
    s, lam = real("size", size, above=0, most=N), whole("order", order)
    least = deviation * s / N
    r_0 = least if r0 is None else real("r0", r0, above=0, below=1)
    if deviation < 216 / 215 or not least <= r_0 * (1 + 1e-12) or r_0 >= 1:
        return math.inf
    if s == N or lam > deviation**2 * math.log(N / (s * deviation)):
        return math.inf
    u_0 = 2 * math.sqrt(lam * r_0 / deviation) / (deviation - r_0)
    u_1 = math.e * u_0 / deviation
    if u_0 >= 1 or u_1 >= 1:
        return math.inf
    ratio = 8 * (1 / (1 - u_0) + math.e**3 / ((1 - u_1) * deviation**3)) * math.exp(3 / sigma**2)
    first = s**2 * lam * (lam + 1) / (N * (N - s) * deviation**2)
    return first + ratio * s**3 * lam**2 * (lam + 1) / (N * (N - s) ** 2 * deviation**3)


def section_c_3(sigma: float, target: float, examples: int, gradients: int) -> TradeOff:
    """g_{σ,ε_target} of Section C.3: the trade-off function that Theorem 3.1 proves for any T.

    It is the supremum of f_{ε,δ} over ε_target ≤ ε < 0.5 with δ = min(1/N, e^(−ε(σ²/2 − 1))), where
    condition (7) and k² ≥ … hold; sizes are constant, T ≥ γk²/ε_target. The same curve holds for
    all such T: more rounds of smaller samples never spend more.

    Args:
        sigma: σ.
        target: ε_target.
        examples: N.
        gradients: K, the same for all T.

    Raises:
        ValueError: no ε is covered, σ² ≤ 2, or ε_target is at least 0.5.
    """
    size, first = real("sigma", sigma, above=0), real("target", target, above=0, below=0.5)
    N = whole("examples", examples)
    k = whole("gradients", gradients) / N
    if size**2 <= 2:
        raise ValueError(f"Theorem 3.1 needs σ above √2, not {size:g}")
    epsilons, deltas = [], []
    for eps in np.linspace(first, math.nextafter(0.5, 0), _CURVE_POINTS):
        surprise = eps * (size**2 / 2 - 1)
        tail, gam = math.exp(-surprise), gamma(size, eps / k)
        if tail <= 1 / N and k >= math.sqrt(2 * eps * surprise) * math.e / gam:
            epsilons.append(float(eps))
            deltas.append(tail)
    if not epsilons:
        raise ValueError(
            f"no ε from {first:g} to 0.5 is covered at σ = {size:g}: δ ≤ 1/N needs ε ≥ "
            f"{2 * math.log(N) / (size**2 - 2):.3g}"
        )
    # Nothing is proven at ε = 0, so δ = 1 there; chords over e^ε lie above the true profile.
    return from_points([0.0, *epsilons], [1.0, *deltas])


# The central limit theorem for private training: an approximation, neither upper nor lower bound.
#
# No Statement uses it. Source: Bu, Dong, Long and Su 2020, Section 3 (Poisson sampling); Dong, Roth
# and Su 2022, Corollary 5.4 (without replacement).


def approximate_clt_mu(mechanism: kinds.Mechanism) -> float:
    """μ of the Gaussian limit of many rounds with little information each: an approximation.

    Poisson sampling: μ² = Σ T q²(e^{(Δ/σ)²} − 1). An epoch of random allocation in t rounds adds
    (e^{(Δ/σ)²} − 1)/t. Sampling without replacement: the limit of the symmetrised subsampled curve.
    Full batches and shuffled epochs are exactly Gaussian. μ is ∞ without noise, and if the
    exponential overflows.

    Raises:
        UnsupportedMechanismError: no limit is known for a kind of sampling.
    """
    total = 0.0
    for part in all_uncorrelated(mechanism):
        if part.noise_multiplier == 0:
            return math.inf
        shift = part.sensitivity(mechanism.adjacency) / part.noise_multiplier
        total += part.releases * _squared(part, shift)
    return math.sqrt(total)


def _squared(part: kinds.Rounds, shift: float) -> float:
    match part.sampling:
        case kinds.FullBatch() | kinds.Shuffled():
            return shift**2
        case _ if shift > 26:
            return math.inf
        case kinds.Poisson(rate=rate) | kinds.CyclicPoisson(rate=rate):
            return rate**2 * math.expm1(shift**2) if rate < 1 else shift**2
        case kinds.RandomAllocation(rate=rate):
            # The likelihood ratio is the mean of 1/rate independent ones of mean 1.
            return rate * math.expm1(shift**2)
        case kinds.WithoutReplacement(rate=rate):
            if rate == 1:
                return shift**2
            normal = math.exp(shift**2) * ndtr(1.5 * shift) + 3 * ndtr(-0.5 * shift) - 2
            return float(2 * rate**2 * normal)
        case other:
            raise kinds.UnsupportedMechanismError(
                f"no central limit is known for {type(other).__name__} sampling; there is one for "
                "Poisson, CyclicPoisson, RandomAllocation, WithoutReplacement, Shuffled, FullBatch"
            )


def approximate_clt_epsilon(mechanism: kinds.Mechanism, delta: float) -> float:
    """ε of the limiting Gaussian at δ: an approximation that may be too small or too large."""
    mu = approximate_clt_mu(mechanism)
    return gaussian_epsilon(delta, mu) if math.isfinite(mu) else math.inf


def section_c_1(epsilon: float, delta: float, c: float) -> tuple[float, float]:
    """τ of Section C.1 at s√T/N → c: the approximation c√(2(ln(1/δ) + ln ε))/ε, and the exact c/μ.

    μ is that of the Gaussian mechanism that is exactly (ε, δ)-DP. The approximation drops
    −O(ln ln(1/δ)), so it has more noise than the limit needs. The limit itself is no guarantee.

    Raises:
        ValueError: δ ≥ ε, where the approximation has no meaning.
    """
    eps, tail = real("epsilon", epsilon, above=0), real("delta", delta, above=0, below=1)
    if tail >= eps:
        raise ValueError(f"Section C.1 is for δ ≪ ε, not δ = {tail:g} and ε = {eps:g}")
    size = real("c", c, above=0)
    approximate = size * math.sqrt(2 * math.log(eps / tail)) / eps
    return approximate, size / gaussian_mu(eps, tail)
