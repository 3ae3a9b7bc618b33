"""Plans for a search that is paid for: the noise of one trial such that the whole search fits.

A search runs a random number of trials, each with one of several plans, and shows the best. With
the same noise it costs more than one run; here the noise of a trial is solved for, so that the
search as a whole keeps the budget. Source: Papernot and Steinke 2022, Theorems 2 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from forethought.accounting.adaptive import (
    SEARCH_ALONE,
    NegativeBinomialTrials,
    Trials,
    search_epsilon,
)
from forethought.options import PlanKeywords, table
from forethought.planning.courses import PlanError
from forethought.planning.plan_request import PlanRequest
from forethought.planning.solve import plan
from forethought.values.mechanism import Budget, Mechanism
from forethought.values.plan import Plan

# What candidates may differ in: all of it works on sums that are already noised and clipped, or
# is the clipping itself, whose bound the noise follows.
FREE = tuple(name for name, option in table().items() if option.row.candidate)
NOISE_TOLERANCE = 1e-3


def plan_tuning(
    request: PlanRequest | None = None,
    /,
    *,
    trials: Trials,
    candidates: Sequence[Mapping[str, Any]],
    **shared: Unpack[PlanKeywords],
) -> tuple[Plan, ...]:
    """One plan for each candidate, all with the least noise at which the search keeps the budget.

    Args:
        request: what all candidates share, as for :func:`forethought.plan`; its budget is what
            the whole search may cost.
        trials: how the number of trials will be drawn.
        candidates: for each the arguments of :func:`forethought.plan` in which it differs, out of
            clip_norm, clip_rule, quantile, optimizer, learning_rate, options, schedule, averaging.
        shared: keywords of :func:`forethought.plan`, in place of ``request`` or going before it.

    Returns:
        Plans for :func:`forethought.tune`, in the order of the candidates, with one mechanism.

    Raises:
        PlanError: a candidate that would change what is released, a noise multiplier that is
            given, or a request that no plan fulfils.

    >>> from forethought.accounting.adaptive import NegativeBinomialTrials
    >>> plans = plan_tuning(
    ...     examples=1000, budget=Budget(3, 1e-4), epochs=20,
    ...     trials=NegativeBinomialTrials.of_mean(8, shape=0),
    ...     candidates=[{"learning_rate": rate} for rate in (0.1, 0.3, 1.0)],
    ... )
    >>> len(plans), len({p.mechanism for p in plans})
    (3, 1)
    """
    if not isinstance(trials, Trials):
        raise TypeError(
            f"trials must be PoissonTrials(mean) or NegativeBinomialTrials(...), not {trials!r}"
        )
    if not candidates:
        raise PlanError("candidates is empty: give at least one mapping of arguments to try")
    for candidate in candidates:
        other = sorted(set(candidate) - set(FREE))
        if other:
            raise PlanError(
                f"candidates may differ in {', '.join(FREE)}, not in {', '.join(other)}: what is "
                "released must be the same in every trial. Give it for all, or make plans with "
                "forethought.plan and hand them to forethought.tune, which accounts for the worst"
            )
    request = PlanRequest.of(**shared) if request is None else request.with_(**shared)
    if request.noise_multiplier is not None:
        raise PlanError("noise_multiplier follows from the budget and the trials: drop it")
    request = request.with_(centre=False)
    if request.preparation is not None:
        raise PlanError(
            "a search pays for its trials only: standardise with public constants, and drop "
            "preparation="
        )
    budget = request.budget
    if budget is None:
        raise PlanError("a search needs budget=, which all its trials together keep")
    alone = plan(request)
    if alone.records_per_person > 1:
        raise PlanError(
            "a search promises something to single records: no theorem here has its ε for "
            f"{alone.records_per_person} together. Use person_as='contribution', where a person is "
            "one record"
        )
    parts = alone.mechanism.rounds
    # Noise that changes over the run keeps its shape: this is that of the first rounds.
    single = parts[0].noise_multiplier

    def mechanism(sigma: float) -> Mechanism:
        noised = (
            replace(part, noise_multiplier=sigma * (part.noise_multiplier / single))
            for part in parts
        )
        return Mechanism(*noised, adjacency=alone.mechanism.adjacency)

    found = mechanism(_noise(mechanism, single, trials, budget))
    why = (
        "noise",
        f"the least for which the best of a random number of trials (mean {trials.mean:.3g}) "
        f"keeps ε within {budget.epsilon:g} at δ = {budget.delta:.3g}; one run alone would need "
        f"{single:.4g}",
    )
    plans = []
    for candidate in candidates:
        base = plan(request.with_(**candidate))
        if base.clip.rule == "quantile" and request.count_noise is None:
            raise PlanError("the clip rule 'quantile' needs count_noise= for all candidates")
        plans.append(
            base.with_(
                mechanism=found,
                not_covered=(*base.not_covered, SEARCH_ALONE),
                reasons=(*(pair for pair in base.reasons if pair[0] != "noise"), why),
            )
        )
    return tuple(plans)


def _noise(
    mechanism: Callable[[float], Mechanism], single: float, trials: Trials, budget: Budget
) -> float:
    def fits(sigma: float) -> bool:
        return search_epsilon([mechanism(sigma)], trials, budget.delta) <= budget.epsilon

    low, high = single, single
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e4 * single:
            least = _floor(trials)
            raise PlanError(
                f"no noise keeps the search within ε = {budget.epsilon:g}: {least}. Raise epsilon, "
                "or lower the mean number of trials"
            )
    while low == high or fits(low):  # a search over hardly any trials may cost less than one run
        low, high = low / 1.5, low
        if low < 1e-6 * single:
            return high
    while high / low > 1 + NOISE_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _floor(trials: Trials) -> str:
    kind = "negative binomial" if isinstance(trials, NegativeBinomialTrials) else "Poisson"
    return f"the {kind} number of trials, of mean {trials.mean:.3g}, costs that much by itself"
