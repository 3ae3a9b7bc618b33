"""Solve for any one unknown so that the certified ε meets a budget."""

from __future__ import annotations

import math
from collections.abc import Callable

from forethought.accounting.exact import epsilon, estimate
from forethought.accounting.interval import at_most, warn_if_wide
from forethought.values.checks import real
from forethought.values.mechanism import Adjacency, Budget, Clipping, Correlated, Mechanism, Rounds
from forethought.values.samplings import Sampling
from forethought.values.strategies import Strategy

# How often an estimate is asked where it meets the budget, and how often it is then corrected.
_STEPS, _ATTEMPTS = 12, 4
_APART = 0.02


def calibrate(
    make_mechanism: Callable[[float], Mechanism],
    budget: Budget,
    bracket: tuple[float, float],
    *,
    tolerance: float = 1e-3,
    integer: bool = False,
    group: int = 1,
) -> float:
    """The value in ``bracket`` at which the mechanism just meets the budget.

    Whether ε grows or falls with the value is found out at the ends of the bracket.

    Args:
        make_mechanism: the unknown (noise multiplier, rounds, rate, epochs, …) → mechanism; ε must
            be monotone in it.
        budget: the target. The certified upper end of ε is at most ``budget.epsilon``.
        bracket: two values, 0 ≤ low < high, of which one meets the budget and the other does not.
        tolerance: the certified ε is at least (1 - tolerance) of the budget, where the unknown is
            continuous.
        integer: the unknown is a whole number: the last one that still meets the budget.
        group: number of records in which neighbouring data sets differ.

    Returns:
        The value; an integral float when ``integer``.

    Raises:
        ValueError: both ends of the bracket meet the budget, or neither does.
        UnsupportedMechanismError: as in :func:`forethought.accounting.exact.epsilon`.

    Warns:
        UserWarning: ε of what is found has ends that are further apart than usual, and why.

    >>> from forethought.values.samplings import FullBatch
    >>> def once(sigma: float) -> Mechanism:
    ...     return Mechanism(Rounds(sigma, 1, FullBatch()))
    >>> sigma = calibrate(once, Budget(1, 1e-5), (0.5, 50))
    >>> round(sigma, 2)
    3.73
    """
    found = solved(
        make_mechanism, budget, bracket, tolerance=tolerance, integer=integer, group=group
    )
    warn_if_wide(epsilon(make_mechanism(found), budget.delta, group))
    return found


def solved(
    make_mechanism: Callable[[float], Mechanism],
    budget: Budget,
    bracket: tuple[float, float],
    *,
    tolerance: float = 1e-3,
    integer: bool = False,
    group: int = 1,
) -> float:
    """The same as :func:`calibrate` without its warning, for what warns of the whole itself."""
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, not {type(budget).__name__}")
    tolerance = real("tolerance", tolerance, above=0, most=0.1)
    low = real("bracket's low end", bracket[0], least=0)
    high = real("bracket's high end", bracket[1], above=low)
    if integer:
        low, high = float(math.ceil(low)), float(math.floor(high))

    def spent(value: float) -> float:
        # At the default accuracy, as in a Statement: a sharper bound could call a mechanism within
        # budget that the Statement then finds above it. A rough one is hardly faster.
        return epsilon(make_mechanism(value), budget.delta, group).upper

    if not integer:
        found = _near_estimate(make_mechanism, spent, budget, (low, high), tolerance, group)
        if found is not None:
            return found
    ends = (spent(low), spent(high))
    meets = [end <= budget.epsilon for end in ends]
    if meets[0] == meets[1]:
        raise ValueError(
            f"no solution in the bracket ({low:g}, {high:g}): ε at δ={budget.delta:g} is "
            f"{at_most(ends[0])} and {at_most(ends[1])} at its ends, and the budget is "
            f"{budget.epsilon:g}; "
            f"{'both meet it' if meets[0] else 'neither meets it'}. Widen the bracket"
        )
    # `good` meets the budget, `bad` does not. ε is close to a power of the unknown.
    good, bad = (low, high) if meets[0] else (high, low)
    at_good, at_bad = ends if meets[0] else ends[::-1]
    target = budget.epsilon * (1 - tolerance / 2)
    for step in range(200):
        finished = abs(good - bad) <= (1 if integer else 4e-16 * max(good, bad))
        if finished or (not integer and at_good >= budget.epsilon * (1 - tolerance)):
            break
        # Every fourth step halves the bracket, so that a kink cannot stall the search.
        value = _between(good, bad, at_good, at_bad, target, bisect=step % 4 == 3)
        if integer:
            value = float(min(max(round(value), min(good, bad) + 1), max(good, bad) - 1))
        got = spent(value)
        if got <= budget.epsilon:
            good, at_good = value, got
        else:
            bad, at_bad = value, got
    return good


def _near_estimate(
    make_mechanism: Callable[[float], Mechanism],
    spent: Callable[[float], float],
    budget: Budget,
    bracket: tuple[float, float],
    tolerance: float,
    group: int,
    start: float | None = None,
) -> float | None:
    """A value that just meets the budget, certified, found from where an estimate does.

    None where that takes more than a few attempts: then the bracket is searched.
    """
    low, high = bracket
    target = math.log(budget.epsilon * (1 - tolerance / 2))

    def roughly(x: float) -> float:
        value = estimate(make_mechanism(math.exp(x)), budget.delta, group)
        return math.log(value) if 0 < value < math.inf else math.nan

    if low <= 0:
        return None
    ends = (math.log(low), math.log(high))
    # ε is close to a power of the unknown.
    x = sum(ends) / 2 if start is None else math.log(start)
    step = min(0.1, (ends[1] - ends[0]) / 4)
    at = roughly(x)
    slope = (roughly(x + step) - at) / step
    for _ in range(_STEPS):
        if not (math.isfinite(slope) and slope != 0):
            return None
        following = min(max(x + (target - at) / slope, ends[0]), ends[1])
        before, x = (x, at), following
        if abs(x - before[0]) < 1e-3:
            break
        at = roughly(x)
        if abs(x - before[0]) > _APART:  # nearer ones tell of the estimate's own jumps
            slope = (at - before[1]) / (x - before[0])
    known: list[tuple[float, float]] = []
    for _ in range(_ATTEMPTS):
        got = spent(math.exp(x))
        if budget.epsilon * (1 - tolerance) <= got <= budget.epsilon:
            return math.exp(x)
        if not 0 < got < math.inf:
            return None
        known.append((x, math.log(got)))
        if len(known) > 1 and known[-1][0] != known[-2][0]:
            secant = (known[-1][1] - known[-2][1]) / (known[-1][0] - known[-2][0])
            slope = secant if secant * slope > 0 else slope
        x = x + (target - known[-1][1]) / slope
        if not ends[0] <= x <= ends[1]:
            return None
    return None


def _between(
    good: float, bad: float, at_good: float, at_bad: float, target: float, *, bisect: bool
) -> float:
    logs = good > 0 and bad > 0
    x, y = (math.log(good), math.log(bad)) if logs else (good, bad)
    share = 0.5
    if not bisect and at_good > 0 and at_bad < math.inf:
        u, v = math.log(at_good), math.log(at_bad)
        if v > u:
            share = min(0.98, max(0.02, (math.log(target) - u) / (v - u)))
    point = x + share * (y - x)
    return math.exp(point) if logs else point


def noise_multiplier(
    budget: Budget,
    sampling: Sampling,
    rounds: int,
    clipping: Clipping = "example",
    adjacency: Adjacency = "add-or-remove",
    strategy: Strategy | None = None,
    group: int = 1,
) -> float:
    """The smallest noise multiplier, within 0.1 % of ε, with which the rounds meet the budget.

    Args:
        strategy: how the noise is correlated over the rounds; None: it is independent.
        group: number of records in which neighbouring data sets differ.

    Raises:
        UnsupportedMechanismError: no theorem is known for the combination.
        ValueError: no noise multiplier in [1e-3, 1e9] meets the budget.

    Warns:
        UserWarning: ε of what is found has ends that are further apart than usual, and why.
    """
    found = least_multiplier(budget, sampling, rounds, clipping, adjacency, strategy, group)
    made = _equal_rounds(found, sampling, rounds, clipping, adjacency, strategy)
    warn_if_wide(epsilon(made, budget.delta, group))
    return found


def least_multiplier(
    budget: Budget,
    sampling: Sampling,
    rounds: int,
    clipping: Clipping = "example",
    adjacency: Adjacency = "add-or-remove",
    strategy: Strategy | None = None,
    group: int = 1,
) -> float:
    """The same as :func:`noise_multiplier` without its warning."""

    def make(sigma: float) -> Mechanism:
        return _equal_rounds(sigma, sampling, rounds, clipping, adjacency, strategy)

    def spent(sigma: float) -> float:
        return epsilon(make(sigma), budget.delta, group).upper

    def meets(sigma: float) -> bool:
        return spent(sigma) <= budget.epsilon

    found = _near_estimate(make, spent, budget, (1e-3, 1e9), 1e-3, group, start=1.0)
    if found is not None:
        return found
    high = 1.0
    while not meets(high):
        high *= 3
        if high > 1e9:
            raise ValueError(f"no noise multiplier up to 1e9 meets {budget} over {rounds} rounds")
    low = high / 3
    while meets(low):
        low /= 2
        if low < 1e-3:
            raise ValueError(
                f"{budget} over {rounds} rounds is met with a noise multiplier of {low:g} already: "
                "the budget asks for no noise worth the name"
            )
    return solved(make, budget, (low, high), group=group)


def _equal_rounds(
    sigma: float,
    sampling: Sampling,
    rounds: int,
    clipping: Clipping,
    adjacency: Adjacency,
    strategy: Strategy | None,
) -> Mechanism:
    release = Rounds(sigma, rounds, sampling, clipping)
    if strategy is not None:
        release = Correlated(sigma, rounds, sampling, clipping, strategy)
    return Mechanism(release, adjacency=adjacency)
