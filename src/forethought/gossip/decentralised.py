"""The view that one worker has of another's noised sums, from the messages that it receives.

Workers that mix several times after a step send each other partial averages, in which the noise
of many workers hides a single sum (network DP: Cyffers and Bellet 2022; Muffliato:
Cyffers, Even, Bellet and Massoulié 2022). After one step of every worker all messages are linear in
the noised sums: with P_e the product of the first e mixing matrices, worker j sends row j of
P_e (s_1, …, s_K) in exchange e + 1. An observer of some rows, which knows its own noise, has the
Gaussian observation y = A (x + z). About worker u alone, y has the same information as

    x_u + N(0, gain² σ_u²),   1 / gain² = σ_u² a_uᵀ (A Σ Aᵀ)⁺ a_u,

where a_u is A's column of u and Σ the noise variances of all workers but the observers. This is
the sufficient statistic of a Gaussian location family (generalised least squares), for any law of
x_u, hence also for sampled batches. All of it is computed in rational arithmetic.

Over several rounds this composes only if the attacker knows the weights at which gradients are
taken: the exchanges of a round average *exactly*, so all workers begin the next round with one
model. Otherwise a worker's later gradients depend on its own unmixed noised sums, and may repeat
them: a batch's whole gradient changes with the weights, by far more than one record's clipping
norm, and reveals what mixing hid. That case is refused; docs/gossip.md has the counterexample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from forethought.gossip.mixing import Mixing

# The most messages of a view in one exact solution; the most workers for exact matrix products.
MOST_MESSAGES, MOST_WORKERS = 160, 256
_Vector = list[Fraction]


class NetworkViewError(ValueError):
    """No theorem is known for this view, or it is too large; the message says what to change."""


def averages_exactly(mixing: Mixing, first: int, steps: int) -> bool:
    """True if the steps ``first``, …, ``first + steps − 1`` bring all workers to their mean.

    Raises:
        NetworkViewError: too many workers for exact matrix products.
    """
    size = mixing.graph.size
    mean = Fraction(1, size)
    return all(entry == mean for row in _products(mixing, first, steps)[-1] for entry in row)


def gain(
    mixing: Mixing,
    first: int,
    steps: int,
    worker: int,
    observers: Sequence[int],
    noise: Sequence[float],
) -> float:
    """The ratio of the noise that ``observers`` face to the worker's own (standard deviations).

    Args:
        mixing: the matrices. first: the first mixing step after every worker's own step.
        steps: number of observed exchanges.
        worker: the worker whose sum is protected. observers: workers that share all they see.
        noise: for each worker, the standard deviation of its noise in the weights.

    Returns:
        At least 1, rounded down; ``math.inf`` if nothing of the worker reaches the observers.

    Raises:
        NetworkViewError: ``worker`` is an observer, no observer is among the workers, a worker adds
            no noise, or the view is too large to solve exactly.
    """
    known = set(observers)
    if worker in known:
        raise NetworkViewError(f"worker {worker} sees its own sum; name observers other than it")
    if not known <= set(range(mixing.graph.size)) or not known:
        raise NetworkViewError("name at least one observer among the workers")
    if min(noise) <= 0:
        raise NetworkViewError("every worker must add noise for a worker to hide behind it")
    hidden = [other for other in range(mixing.graph.size) if other not in known]
    seen = _seen(mixing, first, steps, known)
    if len(seen) > MOST_MESSAGES:
        raise NetworkViewError(
            f"these observers see {len(seen)} messages a round, and at most {MOST_MESSAGES} are "
            "solved exactly: name fewer observers, or use the statement against neighbours"
        )
    scale = Fraction(noise[worker])
    variances = [(Fraction(noise[other]) / scale) ** 2 for other in hidden]
    place = hidden.index(worker)
    leverage = _leverage([[row[other] for other in hidden] for row in seen], variances, place)
    if leverage == 0:
        return math.inf
    # Exactly 1 if the sum is seen alone. The factor exceeds the rounding error of the root.
    return max(1.0, math.sqrt(1 / leverage) * (1 - 2**-50))


def _products(mixing: Mixing, first: int, steps: int) -> list[list[_Vector]]:
    """P_0 = I, P_1, …, P_steps."""
    size = mixing.graph.size
    if size > MOST_WORKERS:
        raise NetworkViewError(
            f"the averages of {size} workers are not multiplied out exactly (at most "
            f"{MOST_WORKERS}): use the statement against neighbours"
        )
    zero = Fraction(0)
    found = [[[Fraction(int(row == column)) for column in range(size)] for row in range(size)]]
    for step in range(first, first + steps):
        before, after = found[-1], []
        for worker in range(size):
            row = [zero] * size
            for other, weight in mixing.weights(step, worker).items():
                for column, entry in enumerate(before[other]):
                    if entry:
                        row[column] += weight * entry
            after.append(row)
        found.append(after)
    return found


def _seen(mixing: Mixing, first: int, steps: int, observers: set[int]) -> list[_Vector]:
    """Rows that are sent to the observers; each sender's row once per step."""
    products = _products(mixing, first, max(0, steps - 1))
    found = []
    for step in range(steps):
        senders = {
            other
            for observer in observers
            for other, weight in mixing.weights(first + step, observer).items()
            if weight and other not in observers
        }
        found += [products[step][sender] for sender in sorted(senders)]
    return found


def _leverage(rows: list[_Vector], variances: list[Fraction], place: int) -> Fraction:
    """a_uᵀ (A Σ Aᵀ)⁺ a_u for the column ``place``, by Gram and Schmidt in the inner product Σ."""
    basis: list[tuple[_Vector, Fraction]] = []
    total = Fraction(0)
    for row in rows:
        rest = row
        for direction, length in basis:
            part = _inner(rest, direction, variances)
            if part:
                factor = part / length
                rest = [one - factor * other for one, other in zip(rest, direction, strict=True)]
        length = _inner(rest, rest, variances)
        if length:
            basis.append((rest, length))
            total += rest[place] ** 2 / length
    return total


def _inner(one: _Vector, other: _Vector, variances: list[Fraction]) -> Fraction:
    return sum(
        (a * b * v for a, b, v in zip(one, other, variances, strict=True) if a and b), Fraction(0)
    )
