"""What an attacker can achieve at most: the table that a Statement translates ε and δ into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from forethought.accounting.accountants import Accountant
from forethought.accounting.interval import Interval
from forethought.accounting.tradeoff import tradeoff
from forethought.mechanism import Mechanism

# False-positive rates at which a statement bounds an attacker's true-positive rate.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)

Attack = tuple[tuple[float, float], ...]


def bounded(
    way: Accountant,
    mechanism: Mechanism,
    delta: float,
    group: int,
    details: Mapping[str, Any],
) -> tuple[Interval, Attack]:
    """ε, and pairs (false-positive rate, highest true-positive rate) of any attacker.

    Raises:
        UnsupportedMechanismError: no theorem covers the mechanism.
        ValueError: details that do not fit.
    """
    epsilon = way.interval(mechanism, delta, group, details)
    rows = _by_epsilon(epsilon.upper, delta)
    faced = None if way.composed is None else way.composed(mechanism)
    if way.curve is not None:
        faced = way.curve(mechanism, details)
    if faced is not None and math.isfinite(epsilon.upper):
        # The whole trade-off function says more than one point of it.
        powers = _powers(faced, group)
        rows = tuple(
            (rate, min(power, most)) for (rate, power), most in zip(rows, powers, strict=True)
        )
    return epsilon, rows


# A mechanism is trained with again and again, in a search or an audit: its curve is found once.
@lru_cache(maxsize=512)
def _powers(mechanism: Mechanism, group: int) -> tuple[float, ...]:
    misses = tradeoff(mechanism, group)(FALSE_POSITIVE_RATES)
    return tuple(float(1 - missed) for missed in misses)


def _by_epsilon(epsilon: float, delta: float) -> Attack:
    # (ε, δ) bounds every test's power: TPR ≤ e^ε FPR + δ and, with the roles exchanged,
    # 1 − FPR ≤ e^ε (1 − TPR) + δ  (Kairouz, Oh, Viswanath 2015, Theorem 2.1).
    rows = []
    for rate in FALSE_POSITIVE_RATES:
        grown = math.exp(min(epsilon, 700.0))
        power = min(grown * rate + delta, 1 - (1 - rate - delta) / grown, 1.0)
        rows.append((rate, max(power, 0.0)))
    return tuple(rows)
