"""What is released of the data before the rounds: how much noise it gets, and what that costs."""

from __future__ import annotations

import math
from dataclasses import replace

from forethought.mechanism import Budget
from forethought.planning import defaults
from forethought.planning.limits import PlanError
from forethought.planning.plan_request import PlanRequest
from forethought.preparation import REACH, Preparation


def with_centring(request: PlanRequest, why: dict[str, str]) -> PlanRequest:
    """The request with means and norm of a linear model's features, where worth their price.

    With noise multiplier σ the error of the means has norm √d σ · 1.5 R/N, R being the declared
    norm. What is asked for is 0.1 R, or as little as 15 % of the budget's μ² buys; where that is
    more than √3 R, nothing. The norm of what is left comes with twice the multiplier, for a fifth
    of the price.

    Raises:
        PlanError: centring is asked for and not possible.
    """
    possible = (
        request.by_scores
        and request.features is not None
        and request.parameters is not None
        and request.parameters % (request.features + 1) == 0  # an intercept for each output
        and request.preparation is None
        and request.budget is not None
        and request.noise_multiplier is None
        and request.sampling in ("poisson", "full-batch")
        and not request.course.varies
        and request.augment is None
        and request.clip_norm is None
        and request.clip_rule is None
    )
    if not possible:
        if request.centre:
            raise PlanError(
                "centre=True needs a linear model with an intercept of known features= and "
                "feature_norm=, a budget=, and batch, noise, clipping and step size as the planner "
                "chooses them: drop centre=, or what else is given"
            )
        return request
    if request.centre is False:
        return request
    assert request.budget and request.features and request.feature_norm
    unit = REACH * math.sqrt(request.features) / request.examples  # error for σ = 1
    budget = roughly(request, request.budget)
    usual = math.sqrt(request.features)
    rule = defaults.centring(request.image_features)
    asked = Preparation(
        rule.statistics, features=request.features, reach=REACH * request.feature_norm
    )
    least = defaults.least_preparation_noise(budget, asked.releases, rule.share)
    sigma = max(rule.error / unit, least)
    if sigma * unit > defaults.LEAST_CENTRE and not request.centre:
        return request
    why["centring"] = (
        f"the features' means, to {sigma * unit:.2g} of their declared norm"
        f"{', and the norm that is left around them' if len(rule.statistics) > 1 else ''} are "
        "released first: there a linear model learns through less noise"
    )
    # The longer the path, the better an intercept's noise is corrected while it learns.
    becomes = min(usual, rule.norm) if request.score_rule.long else usual
    return request.with_(preparation=replace(asked, becomes=becomes, noise_multiplier=sigma))


def with_preparation(request: PlanRequest, why: dict[str, str]) -> PlanRequest:
    """The request with the noise of its preparation settled."""
    asked = request.preparation
    if asked is None or (asked.centres and "centring" in why):
        return request
    if asked.noise_multiplier is None:
        wanted = max(asked.norm(name) for name in asked.statistics)
        sigma = defaults.PRECISION * request.examples / wanted
        why["preparation"] = (
            f"noise of {defaults.PRECISION:.0%} of half a feature's declared range on each mean, "
            "which no standardised input feels"
        )
        if request.budget is not None:
            least = defaults.least_preparation_noise(
                roughly(request, request.budget), asked.releases
            )
            if least > sigma:
                sigma = least
                why["preparation"] = (
                    f"{defaults.PREPARATION:.0%} of the budget's μ²; a finer mean would cost more"
                )
        asked = replace(asked, noise_multiplier=float(sigma))
    else:
        why["preparation"] = "as given"
    return request.with_(preparation=asked)


def roughly(request: PlanRequest, budget: Budget) -> Budget:
    """What the rules of choice take for the budget of one record, where it is for several."""
    return Budget(budget.epsilon / request.protected, budget.delta)
