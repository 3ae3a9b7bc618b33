"""The two published DP calculators, beside exact figures: from noise and epochs to sample sizes.

Source: van Dijk et al., "Proactive DP", Appendix D.4 (on Theorem 3.1) and Appendix E.1 (on
Theorem B.4, with phases). There are two readings:

- ``"converged"``, for use: γ is iterated until it changes by at most 0.0001γ in either direction.
- ``"as-printed"``, for the paper's tables: γ_new − γ ≤ 0.0001γ literally, which also holds if γ
  decreases. So the iteration ends at its first overshoot, and keeps the γ before it. And the ε
  inside the root of σ is left out, σ = sqrt(2 ln(1/δ)/ε). This reproduces Tables 6 to 11: γ is
  larger than needed (fewer records in a round), σ a little smaller than (35) requires.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Literal, get_args

from forethought.accounting.exact import calibrate, epsilon
from forethought.papers import closed_form
from forethought.values.checks import one_of, real, whole
from forethought.values.mechanism import Budget

TOLERANCE, TURNS = 1e-4, 100


Reading = Literal["converged", "as-printed"]


def iterated_gamma(
    step: Callable[[float], float], reading: Reading = "converged"
) -> tuple[float, float]:
    """(γ, γ_new) at the end of the calculators' iteration from γ = 2; γ_new is ∞ if ᾱ is too large.

    Args:
        step: γ → γ_new.
    """
    low = current = 2.0
    high = math.inf
    for turn in count():
        new = step(current)
        moved = new - current if reading == "as-printed" else abs(new - current)
        if not math.isfinite(new) or moved <= TOLERANCE * current:
            break
        low, high = (current, high) if new > current else (low, current)
        # Steps may jump to and fro without end: then the interval around γ is halved instead.
        current = new if turn < TURNS or math.isinf(high) else (low + high) / 2
    return current, new


def printed_sigma(epsilon: float, delta: float) -> float:
    """σ of the paper's tables: sqrt(2 ln(1/δ)/ε), without the ε that belongs inside the root."""
    return math.sqrt(-2 * math.log(delta) / epsilon)


@dataclass(frozen=True)
class RoundsCalculator:
    """Appendix D.4: the least number of rounds for (σ, θ, k, N).

    Theorem 3.1 proves ``t_min`` = γθ²k²/ε; the paper claims that no proof can go below
    ``t_min_asymptotic`` = θ²k²/(2ε).
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

    def at(self, size: float, rounds: int | None = None) -> closed_form.ClosedForm:
        """Theorem 3.1 at a constant sample size; default: the number of rounds of k epochs."""
        count = round(self.epochs * self.examples / size) if rounds is None else rounds
        return self.proven(closed_form.SampleSizes.constant(size, count, self.examples))

    def proven(self, sizes: closed_form.SampleSizes) -> closed_form.ClosedForm:
        """Theorem 3.1 at these sample sizes."""
        return closed_form.theorem_3_1(self.epsilon, self.delta, self.sigma, sizes)


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
        ValueError: σ is too small, or there are too few epochs: (7) fails or γ does not exist.
    """
    N, size = whole("examples", examples), real("sigma", sigma, above=0, most=1e9)
    k, spread = real("epochs", epochs, above=0, most=1e9), real("theta", theta, least=1)
    tail = 1 / N if delta is None else real("delta", delta, above=0, below=1)
    eps = closed_form.closed_form_epsilon(size, tail)
    if not math.isfinite(eps):
        raise ValueError(f"sigma must be above sqrt(2) for the closed form, not {size}")
    one_of("reading", reading, get_args(Reading))
    kept, last = iterated_gamma(
        lambda current: closed_form.gamma_step(size, eps / k, current), reading
    )
    gam = kept if reading == "as-printed" and math.isfinite(last) else last
    if (2 / math.e * k) ** 2 < 0.5 - math.log(tail) or not math.isfinite(gam):
        raise ValueError(
            f"inequality (7) or the range of gamma fails at sigma {size} and {k} epochs: lower "
            "sigma (and accept a larger epsilon), or plan more epochs"
        )
    return RoundsCalculator(N, size, k, spread, eps, tail, gam)


@dataclass(frozen=True)
class Phase:
    """The result of Appendix E.1's calculator for one phase and the phases before it."""

    size: int
    rounds: int
    sigma: float
    result: closed_form.ClosedForm


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
        examples: N.
        gradients: K_j, number of gradients of this phase.
        epsilon_target: bound on ε of all phases together.
        earlier: (s_i, T_i) of the phases before, analysed as if they had used this phase's σ.
        sigma: σ_j of this phase, required after earlier phases; the first phase's σ follows from ε
            unless given.
        delta: default 1/N.
        reading: see the module's docstring.

    Returns:
        The phase, with Theorem B.4 of the whole sequence. Rounds are rounded down. With
        "as-printed" it is stated at the ε that was found for the size, and (35) fails since the
        printed σ omits an ε.

    Raises:
        ValueError: no sample size is admissible, or a later phase has no ``sigma``.

    A decision for a further phase depends on results. Unless it is made on public data, only a
    filter such as :class:`forethought.accounting.adaptive.RenyiFilter` bounds the total ε.
    """
    N, K = whole("examples", examples), real("gradients", gradients, above=0)
    target = real("epsilon_target", epsilon_target, above=0)
    tail = 1 / N if delta is None else real("delta", delta, above=0, below=1)
    if earlier and sigma is None:
        raise ValueError("a later phase needs its sigma: the noise that the user has chosen for it")
    one_of("reading", reading, get_args(Reading))
    fixed = None if sigma is None else real("sigma", sigma, above=0, most=1e9)

    def admissible(size: int) -> tuple[float, float] | None:
        found = phase_epsilon(N, K, size, earlier, fixed, tail, reading)
        return found if found is not None and found[0] <= target else None

    # In the paper, sizes grow from 1 until one fails. After earlier phases the smallest sizes fail
    # (they make θ large) although larger ones do not, so a coarse scan comes first.
    scanned = sorted({round(N ** (i / 400)) for i in range(401)})
    fitting = [size for size in scanned if admissible(size) is not None]
    if not fitting:
        raise ValueError(
            f"no sample size keeps epsilon within {target}: compute fewer gradients than {K:g}, "
            "allow a larger epsilon, or use more noise"
        )
    low = fitting[-1]
    high = min((size for size in scanned if size > low), default=N + 1)
    low += bisect_left(range(low + 1, high), True, key=lambda size: admissible(size) is None)
    chosen = admissible(low)
    assert chosen is not None
    spent, noise = chosen
    rounds = max(1, math.floor(K / low))
    phases: Any = zip(*earlier, (low, rounds), strict=True)
    drawn, counts = phases
    sizes = closed_form.SampleSizes(drawn, counts, N)
    stated = target if reading == "converged" else spent
    return Phase(low, rounds, noise, closed_form.theorem_b_4(stated, tail, noise, sizes))


def phase_epsilon(
    examples: int,
    gradients: float,
    size: int,
    earlier: Sequence[tuple[float, int]] = (),
    sigma: float | None = None,
    delta: float | None = None,
    reading: Reading = "converged",
) -> tuple[float, float] | None:
    """(ε, σ) of Appendix E.1, steps 1 to 6, at one sample size.

    None if (32) or (33) fails or γ does not exist. Arguments as of :func:`phase_calculator`.
    """
    N = examples
    tail = 1 / N if delta is None else delta
    rounds = gradients / size
    total = gradients + math.fsum(s * count for s, count in earlier)
    mean = total / (rounds + sum(count for _, count in earlier))
    theta = max([size, *(s for s, _ in earlier)]) / mean
    root = closed_form.closed_form_sigma if reading == "converged" else printed_sigma

    def settled(current: float) -> tuple[float, float]:
        epsilon = current * theta**2 * mean * total / N**2
        if sigma is not None:
            epsilon = max(epsilon, closed_form.closed_form_epsilon(sigma, tail))
        if not 0 < epsilon < math.inf:
            return math.inf, math.inf
        return epsilon, root(epsilon, tail) if sigma is None else sigma

    def step(current: float) -> float:
        epsilon, noise = settled(current)
        if epsilon >= 1e3:
            return math.inf
        return closed_form.gamma_step(noise, epsilon * N / total, current)

    kept, last = iterated_gamma(step, reading)
    if not math.isfinite(last):
        return None
    epsilon, noise = settled(kept)
    if mean > closed_form.g(closed_form.closed_form_sigma(epsilon, tail)) * N / theta:
        return None
    if epsilon > (kept if reading == "as-printed" else last) * closed_form.h(noise) * total / N:
        return None
    return epsilon, noise


# The published DP calculators beside exact figures.
#
# Source: van Dijk et al., "Proactive DP": Appendix D.4 goes from noise to rounds by Theorem 3.1,
# Appendix E.1 from ε to the largest sample size by Theorem B.4. Both are stated for constant sample
# sizes within a phase; the theorems also hold for growing ones, s_i ≈ q N i^p. Every plan is also
# accounted exactly, with the noise that the same (ε, δ) really needs.


_SIDES = ("left", "right", "margin")
D4, E1 = "Appendix D.4", "Appendix E.1"
GROWING = "growing samples"
STEPS = 16
_MOST_ROUNDS = 10_000_000
# A mechanism that meets a budget with so small a σ meets it without noise.
_NO_NOISE = 1e-9


class CalculatorError(ValueError):
    """The calculators find no plan, or cannot start; the message says what to change."""


@dataclass(frozen=True)
class Calculated:
    """A closed-form plan.

    Args:
        calculator: name of the calculator that found it.
        what: the plan in a few words.
        result: the theorem's claim, with its conditions and their margins.
    """

    calculator: str
    what: str
    result: closed_form.ClosedForm

    @cached_property
    def exact_noise_multiplier(self) -> float:
        """The σ at which the same sample sizes have the same (ε, δ), by exact accounting.

        It is 0 if no noise is needed, since δ is at least the chance of being sampled at all.
        """
        result = self.result
        budget = Budget(result.epsilon, result.delta)

        def meets(sigma: float) -> bool:
            spent = epsilon(result.sizes.mechanism(sigma), result.delta, accuracy=0.05)
            return spent.upper <= result.epsilon

        near, met = result.sigma, result.exact.upper <= result.epsilon
        if met and meets(_NO_NOISE):
            return 0.0
        factor = 0.5 if met else 2.0
        while meets(near * factor) == met:
            near *= factor
        # Wider than those coarse values tell, so that exact ones still lie on both sides.
        low, high = sorted((near / factor**0.5, near * factor**1.5))
        return calibrate(result.sizes.mechanism, budget, (low, high))

    @property
    def less_noise(self) -> float:
        """The factor by which the exact σ has less noise: above 1 wherever the theorem holds."""
        least = self.exact_noise_multiplier
        return self.result.sigma / least if least else math.inf

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON, with the exact figures."""
        result = self.result
        return {
            "calculator": self.calculator,
            "what": self.what,
            "theorem": result.theorem,
            "holds": result.holds,
            "epsilon": result.epsilon,
            "delta": result.delta,
            "noise_multiplier": result.sigma,
            "sample_sizes": [[size, rounds] for size, rounds in result.sizes],
            "rounds": result.sizes.total_rounds,
            "epochs": result.sizes.epochs,
            "theta": result.sizes.theta,
            "conditions": [
                {
                    "name": condition.name,
                    **{side: _finite(getattr(condition, side)) for side in _SIDES},
                    "holds": condition.holds,
                }
                for condition in result.conditions
            ],
            "exact_epsilon": [_finite(result.exact.lower), _finite(result.exact.upper)],
            "exact_noise_multiplier": self.exact_noise_multiplier,
            "less_noise": _finite(self.less_noise),
        }


def calculate(
    *,
    examples: int,
    epochs: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    power: float = 0.0,
    steps: int = STEPS,
    earlier: Sequence[tuple[float, int]] = (),
    reading: Reading = "converged",
) -> list[Calculated]:
    """Closed-form plans of the paper's calculators.

    With ``noise_multiplier`` alone, Appendix D.4 gives ε by the formula and the least number of
    rounds by Theorem 3.1, beside the number below which the paper claims that no proof can go. With
    ``epsilon``, Appendix E.1 gives σ by the formula and the largest sample size by Theorem B.4, in
    one phase or after ``earlier`` ones. With ``power``, sample sizes grow, by the same theorems.

    Args:
        examples: N.
        epochs: k = K/N, passes over the data in this phase.
        epsilon: the target.
        noise_multiplier: σ; with ``epsilon`` it fixes σ, which a phase after earlier ones requires.
        delta: default 1/N, as in the paper.
        power: p of s_i ≈ q N i^p; 0 is a constant sample size.
        steps: largest number of different sizes if sizes grow.
        earlier: (sample size, rounds) of the phases before.
        reading: ``"as-printed"`` gives the sizes of the paper's tables, for constant sample sizes;
            see :mod:`forethought.papers.calculators`.

    Raises:
        CalculatorError: the arguments do not fit together, or the theorems prove no plan.
        TypeError, ValueError: an argument is out of range.

    >>> plan = calculate(examples=10_000, epochs=5, epsilon=0.1)[0]
    >>> round(plan.result.sigma, 3), plan.result.sizes.sizes, plan.result.holds
    (13.791, (56.0,), True)
    """
    N, k = whole("examples", examples), real("epochs", epochs, above=0, most=1e9)
    tail = 1 / N if delta is None else real("delta", delta, above=0, below=1)
    exponent = real("power", power, least=0, most=4)
    most = whole("steps", steps, most=64)
    one_of("reading", reading, get_args(Reading))
    if exponent and reading == "as-printed":
        raise CalculatorError("the paper prints constant sample sizes: drop power, or as-printed")
    if epsilon is None and noise_multiplier is None:
        raise CalculatorError(
            "give noise_multiplier (Appendix D.4 finds epsilon and rounds) or epsilon (Appendix "
            "E.1 finds the noise and the sample size)"
        )

    def sizes(rounds: int) -> closed_form.SampleSizes:
        return growing(N, k, exponent, rounds, most)

    if epsilon is None:
        if earlier:
            raise CalculatorError("a phase after earlier ones needs epsilon: the total allowed")
        # θ hardly depends on the number of rounds, so it is computed for many rounds.
        theta = sizes(max(10_000, math.ceil(k * (exponent + 1)))).theta
        sigma = real("noise_multiplier", noise_multiplier, above=0, most=1e9)
        try:
            found = rounds_calculator(N, sigma, k, theta, tail, reading)
            proven = _enough_rounds(found, sizes)
            claimed = found.proven(sizes(math.ceil(found.t_min_asymptotic)))
        except ValueError as error:
            raise CalculatorError(f"{D4}: {error}") from error
        return [
            Calculated(D4, "T_min, the fewest rounds that Theorem 3.1 proves", proven),
            Calculated(D4, "T_min,asym, below which the paper claims no proof can go", claimed),
        ]
    target = real("epsilon", epsilon, above=0)
    if exponent:
        if earlier or noise_multiplier is not None:
            raise CalculatorError(
                "growing samples are planned from epsilon alone: drop power, or drop earlier "
                "phases and noise_multiplier"
            )
        grown = _fewest_rounds(target, tail, k, sizes)
        return [Calculated(GROWING, f"fewest rounds of s_i ≈ q N i^{exponent:g}", grown)]
    try:
        phase = phase_calculator(N, k * N, target, earlier, noise_multiplier, tail, reading)
    except ValueError as error:
        raise CalculatorError(f"{E1}: {error}") from error
    what = f"phase {len(earlier) + 1}" if earlier else "largest constant sample size"
    what += ", as printed" if reading == "as-printed" else ""
    return [Calculated(E1, what, phase.result)]


def growing(
    examples: int, epochs: float, power: float, rounds: int, steps: int
) -> closed_form.SampleSizes:
    """Sizes near q N i^p in ``steps`` equal stretches of rounds; q is such that they use k epochs.

    Each stretch has the mean of its sizes, so that few different rates are accounted; power 0 gives
    a single stretch.

    Raises:
        ValueError: a size would be above N.
    """
    stretches = min(steps, rounds) if power else 1
    ends = [rounds * (i + 1) // stretches for i in range(stretches)]
    starts = [0, *ends[:-1]]
    # The mean of i^p over a stretch, by the integral.
    weights = [
        ((end / rounds) ** (power + 1) - (start / rounds) ** (power + 1)) * rounds / (end - start)
        for start, end in zip(starts, ends, strict=True)
    ]
    mean = epochs * examples / rounds
    sizes = tuple(weight * mean for weight in weights)
    counts = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return closed_form.SampleSizes(sizes, counts, examples)


def earlier_phase(text: str) -> tuple[float, int]:
    """Parse sample size and rounds of a phase from SIZE:ROUNDS.

    Raises:
        CalculatorError: the text has another form.
    """
    size, colon, rounds = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return real("sample size", float(size), above=0), whole("rounds", int(rounds))
    except ValueError:
        raise CalculatorError(
            f"an earlier phase is written SIZE:ROUNDS, such as 26:1923, not {text!r}"
        ) from None


# Sample sizes of k epochs, from the number of rounds.
_Sizes = Callable[[int], closed_form.SampleSizes]


def _enough_rounds(found: RoundsCalculator, sizes: _Sizes) -> closed_form.ClosedForm:
    """Theorem 3.1 at T_min, or at a few more rounds for γ's tolerance and the size stretches."""
    rounds = math.ceil(found.t_min)
    while True:
        result = found.proven(sizes(rounds))
        needed = next(c.left for c in result.conditions if c.name.startswith("(8)"))
        if needed <= rounds:
            return result
        rounds = max(rounds + 1, math.ceil(needed))


def _fewest_rounds(
    epsilon: float, delta: float, epochs: float, sizes: _Sizes
) -> closed_form.ClosedForm:
    """Theorem B.4 at the fewest rounds at which it holds."""
    sigma = closed_form.closed_form_sigma(epsilon, delta)

    def result(rounds: int) -> closed_form.ClosedForm | None:
        try:
            found = closed_form.theorem_b_4(epsilon, delta, sigma, sizes(rounds))
        except ValueError:
            return None
        return found if found.holds else None

    # More rounds relax the conditions.
    fewer = range(1, _MOST_ROUNDS)
    found = result(1 + bisect_left(fewer, True, key=lambda rounds: result(rounds) is not None))
    if found is None:
        raise CalculatorError(
            f"Theorem B.4 proves epsilon {epsilon} not even with {_MOST_ROUNDS:,} rounds: allow a "
            f"larger epsilon, or fewer than {epochs:g} epochs"
        )
    return found


def _finite(value: float) -> float | None:
    """The value, or None if it is not finite, since JSON has no infinity."""
    return value if math.isfinite(value) else None
