"""Privacy of asynchronous decentralised SGD: as published, and by exact accounting.

Source: Xu, Zhang and Wang, "A(DP)²SGD", Theorem 2 and Remark 1. The theorem samples each batch
without replacement. It counts every worker's step at the rate B/(K n), as if nobody saw which
worker stepped, although its neighbours do. And it calibrates to the sensitivity 2G/B of a *mean*,
while the algorithm adds the noise to a sum. ``as_published`` is the paper's figure with its
assumption; ``exact`` accounts one worker's own steps at its own rate B/n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from forethought.accounting import exact
from forethought.accounting.interval import Interval
from forethought.papers.closed_form import Condition
from forethought.values.checks import real, whole
from forethought.values.mechanism import Mechanism, Rounds, WithoutReplacement


@dataclass(frozen=True)
class AsynchronousTheorem:
    """Theorem 2 at one μ: σ on the mean gradient, and its conditions.

    Args:
        epsilon, delta: the budget.
        iterations: T, of all workers together.
        batch: B.
        workers: K.
        smallest: n, number of examples of the smallest worker.
        lipschitz: G, the clipping norm.
        split: μ in (0, 1).
    """

    epsilon: float
    delta: float
    iterations: int
    batch: int
    workers: int
    smallest: int
    lipschitz: float
    split: float

    @property
    def order(self) -> float:
        """α = ln(1/δ)/((1 − μ)ε) + 1."""
        return -math.log(self.delta) / ((1 - self.split) * self.epsilon) + 1

    @property
    def sigma(self) -> float:
        """σ on the *mean* gradient: σ² = 20G²Tα/(K²n²με)."""
        population = self.workers * self.smallest
        variance = 20 * self.lipschitz**2 * self.iterations * self.order
        return math.sqrt(variance / (self.split * self.epsilon)) / population

    @property
    def noise_multiplier(self) -> float:
        """This library's noise multiplier: on the sum of B gradients clipped to G, over G."""
        return self.sigma * self.batch / self.lipschitz

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """(7), and the bound on ε that the proof needs (σ²/Δ² ≥ 1.5)."""
        B, T, population = self.batch, self.iterations, self.workers * self.smallest
        scaled = population**2 * self.split * self.epsilon
        inside = scaled * population / (scaled * B + 5 * T * self.order * B**3)
        return (
            Condition("(7) α ≤ ln(K³n³με/(K²n²μεB + 5TαB³))", self.order, math.log(inside)),
            Condition(
                "ε ≤ 10B²Tα/(3K²n²μ)",
                self.epsilon,
                10 * B**2 * T * self.order / (3 * population**2 * self.split),
            ),
        )

    @property
    def holds(self) -> bool:
        """True if the theorem applies."""
        return all(condition.holds for condition in self.conditions)

    @cached_property
    def as_published(self) -> Interval:
        """The certified ε under the paper's assumption: T steps at rate B/(K n)."""
        return exact.epsilon(
            self._mechanism(self.workers * self.smallest, self.iterations), self.delta
        )

    @property
    def mechanism(self) -> Mechanism:
        """One worker's own steps, ⌈T/K⌉ at rate B/n, of which the adversary sees all messages."""
        return self._mechanism(self.smallest, -(-self.iterations // self.workers))

    @cached_property
    def exact(self) -> Interval:
        """The certified ε of one worker's own steps."""
        return exact.epsilon(self.mechanism, self.delta)

    def _mechanism(self, examples: int, rounds: int) -> Mechanism:
        sampling = WithoutReplacement(self.batch, examples)
        return Mechanism(Rounds(self.noise_multiplier, rounds, sampling), adjacency="replace-one")

    def prefix_epsilon(self, iteration: int) -> float:
        """Remark 1's √(t/T) ε after ``iteration`` steps: an approximation, no guarantee.

        ``mechanism.first(rounds)`` has the certified ε of every prefix.
        """
        share = whole("iteration", iteration, most=self.iterations) / self.iterations
        return math.sqrt(share) * self.epsilon


def theorem_2(
    epsilon: float,
    delta: float,
    iterations: int,
    batch: int,
    workers: int,
    smallest: int,
    lipschitz: float = 1.0,
) -> AsynchronousTheorem:
    """Theorem 2 at the μ in (0, 1) with the least noise among those that satisfy it.

    Args:
        epsilon, delta: the budget.
        iterations: T, of all workers together.
        batch: B, at most n.
        workers: K.
        smallest: n, number of examples of the smallest worker.
        lipschitz: G, the clipping norm.

    Returns:
        The best admissible case; if no μ is admissible, the case with the least noise and its
        failing conditions.
    """
    eps, tail = real("epsilon", epsilon, above=0), real("delta", delta, above=0, below=1)
    T, K = whole("iterations", iterations), whole("workers", workers)
    n = whole("smallest", smallest)
    B, G = whole("batch", batch, most=n), real("lipschitz", lipschitz, above=0)
    cases = [AsynchronousTheorem(eps, tail, T, B, K, n, G, mu / 1000) for mu in range(1, 1000)]
    return min(cases, key=lambda case: (not case.holds, case.sigma))
