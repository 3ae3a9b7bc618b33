"""What the planner chooses when the user leaves a number out, and why.

The rules look at the number of records, the number of parameters and the budget; never at data.
Notation: N records, rate q, T rounds, noise multiplier σ, μ the Gaussian-DP parameter that the
budget is worth. The central limit theorem for Poisson sampling (Bu et al. 2020), μ = q √(T
(e^(1/σ²) − 1)), is accurate enough to *choose* with; the noise itself is always calibrated exactly.

- *Batch.* What a round's noise costs is σ/q. At given μ and T it falls with q towards the full
  batch's √T/μ, and exceeds it by the factor √(x/log(1 + x)) with x = μ²/(q² T). A larger batch
  never costs accuracy, only gradients, so the batch is the smallest one that wastes at most
  :data:`WASTE`.
- *Rounds.* With σ/q near its limit the total signal-to-noise ratio does not depend on T. T must
  be large enough for the optimizer to arrive, and q T, the number of passes over the data, small
  enough to pay for.
- *Clipping.* Automatic normalisation (Bu et al. 2022): there is no norm to tune.
- *Step size.* Every normalised contribution moves the weights by at most η/(1 − momentum) a
  round. η is set so that all rounds together may carry them :data:`REACH` far.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import ndtr

from forethought.mechanism import Budget

ROUNDS = 100
WASTE = 0.1
EPOCHS_LIMIT = 50.0
MOMENTUM = 0.9
REACH = 200.0


def default_delta(examples: int) -> float:
    """δ when only ε is given: 1/(10 N), well below the 1/N at which one record may be leaked."""
    return 1 / (10 * examples)


@lru_cache(maxsize=256)
def gaussian_mu(budget: Budget) -> float:
    """The μ for which a Gaussian mechanism meets the budget exactly (Dong et al. 2022, (6))."""
    epsilon, delta = budget.epsilon, budget.delta

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        first = ndtr(mu / 2 - epsilon / mu)
        return float(first - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu) - delta)

    if epsilon > 700:
        return math.sqrt(2 * epsilon)
    return math.exp(float(brentq(excess, math.log(1e-9), math.log(2 * epsilon + 40))))


@lru_cache(maxsize=8)
def _allowed_x(waste: float) -> float:
    return float(brentq(lambda x: math.sqrt(x / math.log1p(x)) - 1 - waste, 1e-9, 1e6))


def batch_for_rounds(examples: int, budget: Budget, rounds: int) -> int:
    """The smallest batch whose noise per signal is within :data:`WASTE` of a full batch's."""
    rate = gaussian_mu(budget) / math.sqrt(_allowed_x(WASTE) * rounds)
    return min(examples, max(1, math.ceil(min(rate, EPOCHS_LIMIT / rounds, 1.0) * examples)))


def batch_for_epochs(examples: int, budget: Budget, epochs: float) -> int:
    """The same at a given number of passes: more rounds of smaller batches until they waste."""
    rate = gaussian_mu(budget) ** 2 / (_allowed_x(WASTE) * epochs)
    rate = min(max(rate, 1 / examples), epochs / ROUNDS, 1.0)
    return min(examples, max(1, math.ceil(rate * examples)))


def rounds_for_batch(examples: int, budget: Budget, batch: int) -> int:
    """As many rounds as the batch serves without waste, and at least :data:`ROUNDS`."""
    rate = batch / examples
    useful = gaussian_mu(budget) ** 2 / (_allowed_x(WASTE) * rate**2)
    return max(1, round(min(max(useful, ROUNDS), max(EPOCHS_LIMIT / rate, 1))))


def batch_for_noise(examples: int, budget: Budget, noise_multiplier: float) -> int:
    """The batch for which the budget lasts about :data:`ROUNDS` rounds at a given σ."""
    spread = math.sqrt(ROUNDS * math.expm1(min(1 / noise_multiplier**2, 700)))
    return min(examples, max(1, round(gaussian_mu(budget) / spread * examples)))


def learning_rate(rounds: int, clip_norm: float, momentum: float) -> float:
    """η for which ``rounds`` unit steps with this momentum reach :data:`REACH`."""
    return REACH * (1 - momentum) / (rounds * clip_norm)
