"""ε of what looked at results: the best of a random number of trials, and filtered runs.

Both are recomputed from a mechanism and a few public details, so that a Statement can hold them:
``selection_interval`` and ``filter_interval`` are accountants of
:mod:`forethought.accounting.statement`. Sources: Papernot and Steinke 2022, Theorems 2 and 6;
Koskela, Redberg and Wang 2024; Feldman and Zrnic 2021, Theorem 4.3; Smith and Thakurta 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from forethought.accounting import exact
from forethought.accounting.gaussian_filter import GAUSSIAN_FILTER_SCHEMA, GaussianFilter
from forethought.accounting.interval import Interval, at_most
from forethought.accounting.pld.privacy_loss import Curve
from forethought.accounting.profile_selection import best_of_epsilon
from forethought.accounting.renyi.curves import RenyiCurve, canonne_epsilon, rdp
from forethought.accounting.renyi.filter import FILTER_SCHEMA, RenyiFilter, best_order
from forethought.accounting.renyi.selection import (
    NegativeBinomialTrials,
    PoissonTrials,
    Trials,
    best_of,
)
from forethought.caveats import Caveat
from forethought.checks import real
from forethought.mechanism import Budget, Mechanism, Rounds, UnsupportedMechanismError
from forethought.samplings import FullBatch
from forethought.serialisation import exact_keys

SELECTION, FILTER, GAUSSIAN_FILTER = "selection", "renyi-filter", "gaussian-filter"
Filter = RenyiFilter | GaussianFilter
SEARCH_ALONE, PHASES_ALONE = Caveat("search"), Caveat("chosen-phases")
_SAME = 1e-9
# By how much a search's ε may differ when it is recomputed, by another version for example.
TOLERANCE = 1e-3


def trials_to_dict(trials: Trials) -> dict[str, Any]:
    """A JSON-ready mapping; :func:`trials_from_dict` reads it back."""
    if isinstance(trials, PoissonTrials):
        return {"kind": "poisson", "mean": trials.mean}
    return {"kind": "negative-binomial", "stopping": trials.stopping, "shape": trials.shape}


def trials_from_dict(values: Mapping[str, Any]) -> Trials:
    """The inverse of :func:`trials_to_dict`. Raises ValueError for anything else."""
    match dict(values):
        case {"kind": "poisson", "mean": mean, **rest} if not rest:
            return PoissonTrials(mean)
        case {"kind": "negative-binomial", "stopping": stopping, "shape": shape, **rest} if (
            not rest
        ):
            return NegativeBinomialTrials(stopping, shape)
    raise ValueError(f"not a distribution of the number of trials: {dict(values)!r}")


def count_mechanism(score_noise: float, mechanism: Mechanism) -> Mechanism:
    """What a noised count costs the records it counts, under the adjacency of ``mechanism``.

    One record moves the count by at most 1, also when it is replaced: the sensitivity of 2 that
    is then charged is more than enough.

    Args:
        score_noise: standard deviation of the noise, in records.
    """
    return Mechanism(Rounds(score_noise, 1, FullBatch()), adjacency=mechanism.adjacency)


def search_epsilon(candidates: Sequence[Mechanism], trials: Trials, delta: float) -> float:
    """ε at δ of the best of ``trials`` runs, each of a candidate drawn by a public rule.

    A trial is then a mixture with public weights; its divergence is at most the largest of the
    candidates' at every order (quasi-convexity of the Rényi divergence), and so is its δ at any ε.
    """
    return _search_epsilon(frozenset(candidates), trials, real("delta", delta, above=0, below=1))


@lru_cache(maxsize=1024)
def _search_epsilon(candidates: frozenset[Mechanism], trials: Trials, target: float) -> float:
    if any(part.noise_multiplier == 0 for mechanism in candidates for part in mechanism):
        return math.inf
    profiles = [curve for mechanism in candidates for curve in _profile(mechanism)]
    by_profile = best_of_epsilon(profiles, trials, target)
    return min(by_profile, _by_divergence(candidates, trials, target))


@lru_cache(maxsize=256)
def _profile(mechanism: Mechanism) -> tuple[Curve, ...]:
    return tuple(above for _, above in exact.privacy_loss(mechanism, accuracy=1e-2))


def _by_divergence(candidates: frozenset[Mechanism], trials: Trials, target: float) -> float:
    curves = [rdp(mechanism) for mechanism in candidates]
    values = np.max([curve.values for curve in curves], axis=0)
    curve = RenyiCurve(curves[0].orders, tuple(values))
    if isinstance(trials, NegativeBinomialTrials):
        return best_of(curve, trials).epsilon(target)
    # Theorem 6 needs a δ of one trial at each order. The exact one is far below the curve's, and
    # slow: it is computed only where a search for the best order looks. Any order is sound.
    found: dict[int, RenyiCurve] = {}

    def profile(epsilon: float) -> float:
        return max(exact.delta(mechanism, epsilon).upper for mechanism in candidates)

    def at(index: int) -> float:
        if index not in found:
            one = RenyiCurve((curve.orders[index],), (curve.values[index],))
            found[index] = best_of(one, trials, profile)
        order, value = found[index].orders[0], found[index].values[0]
        return float(canonne_epsilon(np.array([order]), np.array([value]), target)[0])

    low, high = 0, len(curve.orders) - 1
    while high - low > 3:
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    best = min(range(low, high + 1), key=at)
    return min(found[best].epsilon(target), best_of(curve, trials).epsilon(target))


def matching_score_noise(candidates: Sequence[Mechanism], trials: Trials, delta: float) -> float:
    """The least noise on the count of right answers that costs a held-out record no more than the
    search costs a training record, within 0.1 %; 0 where the search has no guarantee at all.
    """
    target = search_epsilon(candidates, trials, delta)
    if math.isinf(target):
        return 0.0

    def fits(noise: float) -> bool:
        return search_epsilon([count_mechanism(noise, candidates[0])], trials, delta) <= target

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def selection_details(
    mechanism: Mechanism,
    candidates: Sequence[Mechanism],
    trials: Trials,
    score_noise: float | None,
    delta: float,
) -> dict[str, Any]:
    """What a Statement has to hold of a search.

    Args:
        mechanism: of the trial that is shown.
        candidates: what any trial may have run.
        trials: how their number was drawn.
        score_noise: of the count of right answers on held-out records; None where these are public
            or not covered.
        delta: the Statement's.
    """
    epsilon = search_epsilon([mechanism, *candidates], trials, delta)
    return {
        "kind": SELECTION,
        "trials": trials_to_dict(trials),
        "candidates": [
            other.to_dict() for other in dict.fromkeys(candidates) if other != mechanism
        ],
        "score_noise": score_noise,
        "training": {
            "epsilon": epsilon if math.isfinite(epsilon) else "infinity",
            "delta": delta,
        },
    }


def selection_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε of a search of which only the best trial is shown.

    Args:
        mechanism: of the trial that is shown.
        delta: in (0, 1). group: 1.
        details: as :func:`selection_details` gives them.

    Returns:
        Upper end: the larger of what the search costs a training record and what the noised count
        costs a held-out one. Lower end: what one trial costs when the scores say nothing.

    Raises:
        UnsupportedMechanismError: a group of several records.
        ValueError: details that make no sense, or of another mechanism.
    """
    if group != 1:
        raise UnsupportedMechanismError(
            "the theorem on the best of a random number of trials is known here for one record "
            "only: account with group=1"
        )
    trials = trials_from_dict(details["trials"])
    exact_keys("training", details["training"], {"epsilon", "delta"})
    others = [Mechanism.from_dict(values) for values in details["candidates"]]
    if any(other.adjacency != mechanism.adjacency for other in others):
        raise ValueError("all candidates of a search must be stated under one adjacency")
    upper = search_epsilon([mechanism, *others], trials, delta)
    stated, at = details["training"]["epsilon"], real("delta", details["training"]["delta"])
    number = math.inf if stated == "infinity" else real("training epsilon", stated, least=0)
    spent = search_epsilon([mechanism, *others], trials, at)
    if not math.isclose(number, spent, rel_tol=TOLERANCE):
        raise ValueError(
            f"the search costs a training record ε = {at_most(spent, '.6g')} at δ = {at:g}, the "
            f"details say {stated!r}: mechanism, trials and candidates are not "
            "those they were made for"
        )
    if details["score_noise"] is not None:
        count = count_mechanism(real("score_noise", details["score_noise"], least=0), mechanism)
        upper = max(upper, search_epsilon([count], trials, delta))
    # What the best of several trials costs at least depends on their scores: nothing is claimed.
    return Interval(0.0, upper)


def suited_filter(foreseen: Mechanism, budget: Budget) -> Filter:
    """The filter that affords most of what is foreseen; any run that departs from it is safe.

    A Gaussian filter where no round is sampled, else a Rényi filter at the one best order.
    """
    if not any(part.sampling.hides(part.sampling.rounds_per_epoch) for part in foreseen):
        return GaussianFilter(budget, foreseen.adjacency)
    return RenyiFilter(budget, foreseen.adjacency, (best_order(foreseen, budget.delta),))


def filter_from_state(state: Mapping[str, Any]) -> Filter:
    """The filter that a ``state_dict`` is of."""
    if state.get("schema") == GAUSSIAN_FILTER_SCHEMA:
        return GaussianFilter.from_state(state)
    return RenyiFilter.from_state(state)


def filter_details(ledger: Filter) -> dict[str, Any]:
    """What a Statement has to hold of a filter that a run kept to."""
    if isinstance(ledger, GaussianFilter):
        return {
            "kind": GAUSSIAN_FILTER,
            "epsilon": ledger.budget.epsilon,
            "delta": ledger.budget.delta,
            "spent": ledger.spent,
        }
    return {
        "kind": FILTER,
        "epsilon": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "orders": list(ledger.orders),
        "spent": list(ledger.spent.values),
    }


def filter_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε of a run whose rounds were chosen by results, within a filter.

    Args:
        mechanism: what was released in the end.
        delta: at least the filter's. group: 1.
        details: the filter, as :func:`filter_details` gives it.

    Returns:
        Upper end: the filter's budget, which holds whatever would have been chosen. Lower end: 0,
        since the rounds that were made say nothing of those that could have been.

    Raises:
        UnsupportedMechanismError: a group of several records.
        ValueError: the rounds do not fit, are not those that the filter was charged for, or δ is
            smaller than the filter's.
    """
    if group != 1:
        raise UnsupportedMechanismError(
            "a filter keeps its budget for one record: account with group=1"
        )
    state = {key: value for key, value in details.items() if key != "kind"}
    state["adjacency"] = mechanism.adjacency
    ledger: Filter
    if "orders" in details:
        unspent = [0.0] * len(details["orders"])
        ledger = RenyiFilter.from_state({**state, "schema": FILTER_SCHEMA, "spent": unspent})
    else:
        state |= {"schema": GAUSSIAN_FILTER_SCHEMA, "spent": 0.0}
        ledger = GaussianFilter.from_state(state)
    budget = ledger.budget
    if delta < budget.delta:
        raise ValueError(
            f"the filter kept delta = {budget.delta:g}: nothing is proven at {delta:g}. Account at "
            f"{budget.delta:g} or more"
        )
    if ledger.would_exceed(mechanism):
        raise ValueError(
            f"the stated rounds do not fit into a filter of epsilon {budget.epsilon:g} at delta "
            f"{budget.delta:g}"
        )
    if isinstance(ledger, GaussianFilter):
        ledger.spend(mechanism)
        spent: tuple[float, ...] = (ledger.spent,)
        charged = [real("spent", details["spent"], least=0)]
    else:
        spent = rdp(mechanism, ledger.orders).values
        charged = [real("spent", value, least=0) for value in details["spent"]]
    if len(charged) != len(spent) or not np.allclose(charged, spent, rtol=_SAME, atol=0):
        raise ValueError("the filter was charged for other rounds than the stated ones")
    return Interval(0.0, budget.epsilon)
