"""How loud the noise of a plan is against the signal: the predicted utility without data."""

from __future__ import annotations

import math

from forethought.mechanism import Correlated, Rounds
from forethought.planning.correlation import gain
from forethought.plans import Plan


def noise_to_signal(plan: Plan, parameters: int = 1) -> float:
    """Noise that reaches the weights over the whole run, against the most the data can say.

    Round t adds N(0, σ_t² C² I_d) to a sum of at most B_t contributions of norm C, and divides by
    B_t. Over the run the noise has norm √(Σ (σ_t/B_t)²) C √d and the contributions at most T C, so
    the ratio is √(d Σ (σ_t/B_t)²) / T; with equal rounds σ √d / (B √T). Group clipping counts
    groups, not records.
    A preparation of the data says nothing to the weights and is left out.
    Correlated noise counts as independent noise that leaves the same mean square in the weights,
    under the plan's momentum.

    Args:
        plan: what will run. parameters: d, the number of trained parameters; 1 compares plans for
            the same model.
    """
    momentum = float(dict(plan.optimizer.options).get("momentum", 0.0))
    parts = plan.privacy.mechanism.rounds
    noise = math.fsum(part.count * _of_a_round(plan, part, momentum) ** 2 for part in parts)
    return math.sqrt(parameters * noise) / plan.rounds


def _of_a_round(plan: Plan, part: Rounds, momentum: float) -> float:
    """Noise of one round's mean, in clipping norms."""
    signal = plan.contribution.expected(part.sampling.expected_batch(plan.examples))
    return part.noise_multiplier * _cancelled(part, momentum) / signal


def _cancelled(part: Rounds, momentum: float) -> float:
    """What correlation leaves of the noise in the weights."""
    return gain(part.strategy, part.count, momentum) if isinstance(part, Correlated) else 1.0


def gradient_computations(plan: Plan) -> float:
    """Expected number of per-example gradients that the whole run computes.

    An inner algorithm computes one for each record in each of its passes; what a function of the
    user's own computes is not known, and counts as one pass.
    """
    passes = 1 if plan.local is None else plan.local.passes
    return plan.epochs * plan.examples * passes
