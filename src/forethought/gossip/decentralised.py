"""One worker's view of another's noised sums in the messages that it is sent.

Workers that mix several times after a step send each other partial averages, in which the noise
of many hides a single sum (network differential privacy: Cyffers and Bellet 2022; Muffliato:
Cyffers, Even, Bellet and Massoulié 2022). After one step of every worker all messages are linear in
the noised sums: with P_e the product of the first e mixing matrices, worker j sends row j of
P_e (s_1, …, s_K) before exchange e + 1. Who sees some of these rows, and knows its own noise, faces
the Gaussian observation y = A (x + z): about worker u alone it holds as much as

    x_u + N(0, gain² σ_u²),   1 / gain² = σ_u² a_uᵀ (A Σ Aᵀ)⁺ a_u,

a_u being A's column of u and Σ the variances of the workers that it does not know: the sufficient
statistic of a Gaussian location family (generalised least squares), whatever law x_u has; sampled
batches are therefore covered. All of it is computed in rational arithmetic.

Over several rounds this composes only where gradients are taken at weights that the attacker
knows: where the exchanges of a round average *exactly*, so that all begin the next round with one
model. If they do not, a worker's later gradients depend on its own unmixed noised sums, and may
repeat them: a batch's whole gradient moves with the weights it is taken at, far beyond one record's
clipping norm, and tells what mixing hid. That is refused; docs/gossip.md has the counterexample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from forethought.gossip.mixing import Mixing

# Messages of a view that are solved for at most, and workers whose products are multiplied out.
MOST_MESSAGES, MOST_WORKERS = 160, 256
_Vector = list[Fraction]


class NetworkViewError(ValueError):
    """A view for which no theorem is known; the message says what to change."""


def averages_exactly(mixing: Mixing, first: int, steps: int) -> bool:
    """True if the steps ``first``, …, ``first + steps − 1`` bring all workers to their mean.

    Raises:
        NetworkViewError: too many workers to multiply out.
    """
    size = mixing.graph.size
    mean = Fraction(1, size)
    rows = _products(mixing, first, steps)[-1]
    return all(entry == mean for row in rows for entry in row)


def gain(
    mixing: Mixing,
    first: int,
    steps: int,
    worker: int,
    observers: Sequence[int],
    noise: Sequence[float],
) -> float:
    """The noise that ``observers`` face over the worker's own, as standard deviations.

    Args:
        mixing: how all average. first: the mixing step before which every worker has stepped once.
        steps: exchanges that are seen.
        worker: whose sum it is about. observers: workers that tell each other everything.
        noise: of each worker, the standard deviation of its noise in the weights.

    Returns:
        At least 1, rounded down; ``math.inf`` where nothing of the worker reaches them.

    Raises:
        NetworkViewError: an observer's own sum, no noise, or a view too large to solve exactly.
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
    # 1 where the sum is seen alone, exactly; rounded down by more than a root can round up.
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
    """Rows that are sent to the observers; each sender's row once a step."""
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
