"""The two published DP calculators: from noise and epochs to rounds and sample size.

Source: van Dijk et al., "Proactive DP", Appendix D.4 (on Theorem 3.1) and Appendix E.1 (on
Theorem B.4, with phases). Two readings:

- ``"converged"``, for use: γ is iterated until it moves by less than 0.0001γ either way.
- ``"as-printed"``, for the paper's tables: γ_new − γ ≤ 0.0001γ to the letter, which also holds when
  γ falls. So the iteration ends at its first overshoot, and the γ that it kept is the one before.
  And the ε inside the root of σ is left out, σ = sqrt(2 ln(1/δ)/ε). Tables 6 to 11 come out this
  way: the γ is larger than needed (fewer records a round), the σ a little smaller than (35) asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from forethought.checks import one_of, real, whole
from forethought.published.closed_form import (
    ClosedForm,
    SampleSizes,
    closed_form_epsilon,
    closed_form_sigma,
    g,
    gamma_step,
    h,
    theorem_3_1,
    theorem_b_4,
)

TOLERANCE = 1e-4


Reading = Literal["converged", "as-printed"]


def iterated_gamma(
    step: Callable[[float], float], reading: Reading = "converged"
) -> tuple[float, float]:
    """(γ, γ_new) where the calculators' own iteration from 2 ends; infinite when ᾱ is too large.

    Args:
        step: from γ to γ_new.
    """
    current = 2.0
    while True:
        new = step(current)
        moved = new - current if reading == "as-printed" else abs(new - current)
        if not math.isfinite(new) or moved <= TOLERANCE * current:
            return current, new
        current = new


def converged_gamma(sigma: float, ratio: float) -> float:
    """γ of Theorem 3.1 at fixed σ by that iteration. ratio: εN/K."""
    return iterated_gamma(lambda current: gamma_step(sigma, ratio, current))[1]


def printed_sigma(epsilon: float, delta: float) -> float:
    """σ of the paper's tables: sqrt(2 ln(1/δ)/ε), without the ε that belongs inside the root."""
    return math.sqrt(-2 * math.log(delta) / epsilon)


@dataclass(frozen=True)
class RoundsCalculator:
    """Appendix D.4: from (σ, θ, k, N) to the least number of rounds.

    ``t_min`` = γθ²k²/ε is what Theorem 3.1 proves; ``t_min_asymptotic`` = θ²k²/(2ε) is the value
    below which the paper claims that it cannot go.
    """

    examples: int
    sigma: float
    epochs: float
    theta: float
    epsilon: float
    delta: float
    gamma: float

    @property
    def t_min(self) -> float:
        """T_min = γθ²k²/ε."""
        return self.gamma * self.theta**2 * self.epochs**2 / self.epsilon

    @property
    def t_min_asymptotic(self) -> float:
        """T_min,asym = θ²k²/(2ε)."""
        return self.theta**2 * self.epochs**2 / (2 * self.epsilon)

    @property
    def s_max(self) -> float:
        """s_max = kN/T_min, before rounding down."""
        return self.epochs * self.examples / self.t_min

    @property
    def s_max_asymptotic(self) -> float:
        """s_max,asym = kN/T_min,asym."""
        return self.epochs * self.examples / self.t_min_asymptotic

    def at(self, size: float, rounds: int | None = None) -> ClosedForm:
        """Theorem 3.1 of a constant sample size; as many rounds as k epochs hold by default."""
        count = round(self.epochs * self.examples / size) if rounds is None else rounds
        sizes = SampleSizes.constant(size, count, self.examples)
        return theorem_3_1(self.epsilon, self.delta, self.sigma, sizes)


def rounds_calculator(
    examples: int,
    sigma: float,
    epochs: float,
    theta: float = 1.0,
    delta: float | None = None,
    reading: Reading = "converged",
) -> RoundsCalculator:
    """Appendix D.4, steps 1 to 7: δ = 1/N unless given, ε = 2 ln(1/δ)/(σ² − 2), then γ and T_min.

    Raises:
        ValueError: σ so small, or epochs so few, that (7) fails or γ does not exist.
    """
    N, size = whole("examples", examples), real("sigma", sigma, above=0)
    k, spread = real("epochs", epochs, above=0), real("theta", theta, least=1)
    tail = 1 / N if delta is None else real("delta", delta, above=0, below=1)
    eps = closed_form_epsilon(size, tail)
    if not math.isfinite(eps):
        raise ValueError(f"sigma must be above sqrt(2) for the closed form, not {size}")
    one_of("reading", reading, get_args(Reading))
    kept, last = iterated_gamma(lambda current: gamma_step(size, eps / k, current), reading)
    gam = kept if reading == "as-printed" and math.isfinite(last) else last
    if (2 / math.e * k) ** 2 < 0.5 - math.log(tail) or not math.isfinite(gam):
        raise ValueError(
            f"inequality (7) or the range of gamma fails at sigma {size} and {k} epochs: lower "
            "sigma (and accept a larger epsilon), or plan more epochs"
        )
    return RoundsCalculator(N, size, k, spread, eps, tail, gam)


@dataclass(frozen=True)
class Phase:
    """What the calculator of Appendix E.1 settles for one phase, together with those before it."""

    size: int
    rounds: int
    sigma: float
    result: ClosedForm


def phase_calculator(
    examples: int,
    gradients: float,
    epsilon_target: float,
    earlier: Sequence[tuple[float, int]] = (),
    sigma: float | None = None,
    delta: float | None = None,
    reading: Reading = "converged",
) -> Phase:
    """Appendix E.1: the largest sample size of the next phase that keeps ε ≤ ``epsilon_target``.

    Args:
        examples: N. gradients: K_j, to be computed in this phase.
        epsilon_target: bound on ε of all phases together.
        earlier: (s_i, T_i) of the phases before, analysed as if they had used this phase's σ.
        sigma: σ_j of this phase, needed when there are earlier ones; the first phase's σ follows
            from ε unless given.
        delta: 1/N unless given.
        reading: see the module's text.

    Returns:
        The phase, with Theorem B.4 of the whole sequence. Rounds are rounded down. As printed it
        is stated at the ε that the size was found to have, and (35) fails by the ε left out.

    Raises:
        ValueError: not even s_j = 1 is admissible, or a later phase without ``sigma``.

    The decision for a further phase looks at results: totals that hold under such a choice come
    from :class:`forethought.accounting.adaptive.RenyiFilter`, unless it is made on public data.
    """
    N, K = whole("examples", examples), real("gradients", gradients, above=0)
    target = real("epsilon_target", epsilon_target, above=0)
    tail = 1 / N if delta is None else real("delta", delta, above=0, below=1)
    if earlier and sigma is None:
        raise ValueError("a later phase needs its sigma: the noise that the user has chosen for it")
    one_of("reading", reading, get_args(Reading))
    fixed = None if sigma is None else real("sigma", sigma, above=0)

    def admissible(size: int) -> tuple[float, float] | None:
        found = phase_epsilon(N, K, size, earlier, fixed, tail, reading)
        return found if found is not None and found[0] <= target else None

    # As published, sizes grow from 1 until one fails. After earlier phases the smallest ones fail
    # (they make θ large) although larger ones do not: a coarse scan finds them all the same.
    scanned = sorted({round(N ** (i / 400)) for i in range(401)})
    fitting = [size for size in scanned if admissible(size) is not None]
    if not fitting:
        raise ValueError(
            f"no sample size keeps epsilon within {target}: compute fewer gradients than {K:g}, "
            "allow a larger epsilon, or use more noise"
        )
    low = fitting[-1]
    high = min((size for size in scanned if size > low), default=N + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if admissible(middle) is None else (middle, high)
    chosen = admissible(low)
    if chosen is None:
        raise RuntimeError(f"sample size {low} was admissible and no longer is")
    spent, noise = chosen
    rounds = max(1, math.floor(K / low))
    sizes = SampleSizes(
        (*(float(size) for size, _ in earlier), float(low)),
        (*(count for _, count in earlier), rounds),
        N,
    )
    stated = target if reading == "converged" else spent
    return Phase(low, rounds, noise, theorem_b_4(stated, tail, noise, sizes))


def phase_epsilon(
    examples: int,
    gradients: float,
    size: int,
    earlier: Sequence[tuple[float, int]] = (),
    sigma: float | None = None,
    delta: float | None = None,
    reading: Reading = "converged",
) -> tuple[float, float] | None:
    """(ε, σ) of Appendix E.1, steps 1 to 6, at one sample size; arguments as for the calculator.

    None when (32) or (33) fails or γ does not exist.
    """
    N = examples
    tail = 1 / N if delta is None else delta
    rounds = gradients / size
    total = gradients + math.fsum(s * count for s, count in earlier)
    mean = total / (rounds + sum(count for _, count in earlier))
    theta = max([size, *(s for s, _ in earlier)]) / mean
    root = closed_form_sigma if reading == "converged" else printed_sigma

    def settled(current: float) -> tuple[float, float]:
        epsilon = current * theta**2 * mean * total / N**2
        if sigma is not None:
            epsilon = max(epsilon, closed_form_epsilon(sigma, tail))
        if not 0 < epsilon < math.inf:
            return math.inf, math.inf
        return epsilon, root(epsilon, tail) if sigma is None else sigma

    def step(current: float) -> float:
        epsilon, noise = settled(current)
        return gamma_step(noise, epsilon * N / total, current) if epsilon < 1e3 else math.inf

    kept, last = iterated_gamma(step, reading)
    if not math.isfinite(last):
        return None
    epsilon, noise = settled(kept)
    if mean > g(closed_form_sigma(epsilon, tail)) * N / theta:
        return None
    if epsilon > (kept if reading == "as-printed" else last) * h(noise) * total / N:
        return None
    return epsilon, noise
