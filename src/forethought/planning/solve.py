"""Solve for the missing piece: from any part of the picture to a whole Plan, exactly.

Noise, batch, rounds and ε hang together by one equation, the accountant's. Given enough of them
the rest follows; what is neither given nor determined is chosen by `planning.defaults`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from forethought.accounting import exact
from forethought.accounting.calibration import least_multiplier, solved
from forethought.accounting.interval import at_most, warn_if_wide
from forethought.augmentation import Augmentation
from forethought.mechanism import Budget, Mechanism, Rounds, UnsupportedMechanismError
from forethought.optimizers import USUAL_RATE, check_options, kind_of
from forethought.planning import defaults, persons
from forethought.planning.adaptive_steps import adaptive_rate
from forethought.planning.correlation import gain
from forethought.planning.courses import explain_course
from forethought.planning.grouping import explain, groups_of
from forethought.planning.least_noise import least_noise
from forethought.planning.limits import PlanError
from forethought.planning.noise_to_signal import noise_to_signal
from forethought.planning.plan_request import (
    MOST_ROUNDS,
    PlanKeywords,
    PlanRequest,
    local_of,
)
from forethought.planning.preparations import roughly, with_centring, with_preparation
from forethought.plans import Plan
from forethought.privacy import Clip, ClipRule
from forethought.samplings import Poisson, SamplingName
from forethought.strategies import Strategy
from forethought.use import Averaging, GradientFilter, Optimizer, Schedule

# In a plan's reasons: whose choice the step size was.
STEP_SIZE, GIVEN = "step size", "as given"

__all__ = ["GIVEN", "MOST_ROUNDS", "STEP_SIZE", "PlanError", "PlanRequest", "SamplingName", "plan"]


def plan(request: PlanRequest | None = None, /, **keywords: Unpack[PlanKeywords]) -> Plan:
    """Everything a private run needs, from what is known of it.

    Give ``examples`` and either a ``budget`` (the noise follows; batch and rounds are chosen
    unless given), or ``noise_multiplier`` with batch and length (ε follows), or both a budget and
    a noise multiplier (the affordable rounds follow, or the batch if the length is given).

    Args:
        request: the keywords below as one value; keywords given as well go before it.
        examples: records in the training set, taken as public.
        budget: the (ε, δ) wanted.
        delta: δ when no budget is given; 1/(10 · examples) by default.
        epochs: passes over the data; rounds: releases. At most one of the two.
        batch: expected batch size.
        noise_multiplier: σ, in units of the clipping norm. 0: no privacy.
        sampling: how batches are drawn; ``"full-batch"`` takes no batch.
        parts: of ``"cyclic-poisson"``: how many parts of the records take turns. Without a batch,
            whole parts.
        adjacency: what a neighbour is. Default: add-or-remove for Poisson and full batches,
            replace-one without replacement, zero-out when shuffled.
        clipping, groups: ``"example"``, or ``"group"`` with the number of groups (default 1, or
            chosen for ``local``).
        local: what runs inside a group (`forethought.Local`, or an inner optimizer's name, whose
            steps the planner chooses). The clipped contribution is then its weight change; by
            default the mean gradient.
        noise: ``"gaussian"``, or ``"grid"`` for discrete noise in whole numbers, which leaves no
            assumption on floating-point arithmetic in the Statement, or ``"correlated"`` over the
            rounds, so that later ones cancel a part of it (with ``"cyclic-poisson"`` sampling).
        noise_schedule, noise_fall: ``"geometric"``, ``"linear"`` or ``"forgetting"``: noise that
            falls over the run by about this factor (default 2), or grows where it is below 1; see
            :mod:`forethought.planning.noise_schedules`. ``noise_multiplier`` is then the noise in
            the middle of the run.
        size_schedule, size_growth, size_power: ``"linear"`` or ``"geometric"``: samples whose last
            size is so many times the first (default 4; below 1 they shrink); ``"power"``: s_i
            proportional to i^power (default 0.5). ``batch`` is then their mean. With Poisson,
            without-replacement and cyclic-poisson sampling; see
            :mod:`forethought.planning.courses`.
        preparation: what is released of the data first, and paid for (`forethought.Preparation`);
            by default with so much noise as costs next to nothing.
        final_clip_norm: norm of the last round; the norm goes to it geometrically.
        clip_norm, clip_rule, quantile, count_noise: see `forethought.Clip`. Default: automatic
            normalisation; flat clipping when a clip norm is given, and for a linear model of known
            ``feature_norm`` whose step size the planner chooses.
        optimizer, learning_rate, options, schedule, averaging: see `forethought.Optimizer`,
            `forethought.Schedule`, `forethought.Averaging`.
        hyperparameters, not_covered: for the Statement.
        parameters: how many the model trains; the step size and the batch depend on it. Default:
            a guess, `forethought.planning.defaults.PARAMETERS`.
        feature_norm: usual norm of a record's features (root mean square), declared or known from
            how they were made, for a linear model: step size and batch then follow from the noise
            in its scores. Default: taken from ``data`` where it is known and ``model`` is linear.
        feature_norm_known: that it follows from how the features are made, such as normalised or
            declared ones, and not from a look at the data: for the Statement.
        features: how many a linear model has; with ``parameters`` it says how many classes.
            Default: taken from ``model``.
        centre: whether the features' means are released first, and paid for, so that a linear
            model trains on centred features (`forethought.train` does it by itself; the model
            takes features as they are). Default: where ``model`` is linear with an intercept, its
            ``feature_norm`` is known and the means come out clear enough for at most 15 % of the
            budget's μ²; the norm of what is left is released with them.
        image_features: that a linear model's features are fixed ones of images, kept on disk, so
            that passes over them are cheap and batches may be large, and whose norm is not released
            beside their means. Default: taken from ``data``.
        noise_borne: norm of noise that the weights of a network bear, from which its step size
            follows. Default: found out on synthetic inputs, where ``model`` and ``data``, or
            ``shape``, are given, of the norm that ``data`` declares for rows of a table; see
            :mod:`forethought.planning.tolerance`.
        data: a :class:`forethought.data.Dataset` in place of ``examples``: its training records
            are counted, and what loading read of them is named in the plan.
        model: a torch module, or a function that builds one, in place of ``parameters``.
        shape: of one record, beside ``model`` where there is no ``data``.
        records_per_person: how many of the records may be one person's; every promise is then
            about all of them. persons: how many different persons there are: then the stronger
            way, one clipped contribution a person, is planned against groups of rows and the better
            one taken. person_as: ``"contribution"`` (then examples are persons) or ``"group"``
            decides it; see :mod:`forethought.planning.persons`.
        augment, augmentations: kinds of `forethought.Augmentation`, and how many altered copies of
            an image are averaged before clipping (default 8), at no privacy cost.
        gradient_filter: of noised means, see `forethought.GradientFilter`: none by default.

    Returns:
        A Plan whose certified upper ε meets the budget.

    Raises:
        PlanError: too much or too little is given, or the request is out of reach; the message says
            which argument to drop, add or change.
        TypeError, ValueError: an argument outside its range.

    Warns:
        UserWarning: the ends of the plan's ε are further apart than usual; ``reasons`` of the plan
            say why.
    """
    if request is None:
        request = PlanRequest.of(**keywords)
    elif keywords:
        request = request.with_(**keywords)
    found = unchecked(request)
    with suppress(UnsupportedMechanismError):
        words = warn_if_wide(exact.epsilon(found.mechanism, found.delta, found.records_per_person))
        if words is not None:
            return found.with_(reasons=(*found.reasons, ("epsilon", words)))
    return found


def unchecked(request: PlanRequest) -> Plan:
    """The plan of a request, of which nobody has said yet how well its ε is known."""
    if request.persons is None:
        return _plan(request)
    return persons.planned(request, _plan)


def _plan(request: PlanRequest) -> Plan:
    why: dict[str, str] = {}
    if request.person_as == "better" and request.records_per_person > 1:
        why[persons.PERSONS] = (
            f"groups of {request.records_per_person} rows; with persons=, the number of different "
            "persons, one contribution a person is planned against them"
        )
    if request.budget is None and request.delta is None:
        why["delta"] = "one tenth of one over the number of examples, since none was given"
    delta = request.settled_delta()
    chosen_by = request.chosen_by()  # before the planner adds anything
    request = with_preparation(with_centring(request, why), why)
    mechanism = _mechanism(request, why)
    if request.preparation is not None:
        mechanism = mechanism.after(len(request.preparation.statistics))
    explain_course(request.course, mechanism, request.examples, why)
    options = request.options
    if options is None:
        options = dict(kind_of(request.optimizer).options)
    groups = groups_of(request, mechanism, why)
    if request.clipping == "group":
        parts = (replace(part, groups=groups) for part in mechanism)
        mechanism = Mechanism(*parts, adjacency=mechanism.adjacency)
    found = Plan(
        mechanism=mechanism,
        examples=request.examples,
        delta=delta,
        clip=_clip(request, mechanism, why),
        contribution=persons.contribution(request),
        groups=groups,
        local=local_of(request.local),
        records_per_person=request.protected,
        augmentation=Augmentation.of(request.augment),
        noise="grid" if request.noise == "grid" else "gaussian",
        preparation=request.preparation,
        schedule=request.schedule or Schedule(),
        averaging=request.averaging or Averaging(),
        gradient_filter=GradientFilter.of(request.gradient_filter),
        budget=request.budget,
        hyperparameters=chosen_by,
        not_covered=(*request.not_covered, *persons.caveat(request)),
    )
    explain(found, request.weights, why)
    learning_rate = _learning_rate(request, found, options, why)
    chosen = Optimizer(request.optimizer, learning_rate, tuple(options.items()))
    return found.with_(optimizer=chosen, assumed=request.assumed, reasons=tuple(why.items()))


def _noise(request: PlanRequest, budget: Budget, batch: int, rounds: int) -> float:
    """The least noise multiplier of the rounds that keeps the budget, the preparation paid."""
    sampling = request.sampling_of(batch)
    strategy = request.strategy(batch, rounds)
    group = request.protected
    alone = least_multiplier(
        budget, sampling, rounds, request.clipping, request.neighbouring, strategy, group
    )
    if request.preparation is None and not request.course.varies:
        return alone
    return least_noise(lambda sigma: request.mechanism(sigma, batch, rounds), budget, alone, group)


def _clip(request: PlanRequest, mechanism: Mechanism, why: dict[str, str]) -> Clip:
    given, norm = request.clip_rule, request.clip_norm
    rule: ClipRule = given or ("automatic" if norm is None else "flat")
    count_noise = request.count_noise
    if rule == "quantile" and count_noise is None:
        # At 10 σ the count costs the gradients 1/800 of their precision (Clip.gradient_noise).
        count_noise = 10 * max(part.noise_multiplier for part in mechanism)
    if given or norm is not None:
        why["clipping"] = f"{rule}, as given"
    elif request.by_scores:
        assert request.usual_norm is not None
        share = request.score_rule.clip
        rule, norm = "flat", defaults.linear_clip(request.usual_norm, share)
        why["clipping"] = (
            f"flat at {share:g} of a record's usual norm, {norm / share:.3g} with an intercept: as "
            "loud as normalisation where a label is in doubt, and quiet where it is settled"
        )
    else:
        why["clipping"] = (
            "automatic normalisation: every contribution counts with norm below 1, so there is no "
            "clip norm to tune on private data"
        )
    return Clip(
        norm=1.0 if norm is None else norm,
        rule=rule,
        count_noise=count_noise,
        quantile=0.5 if request.quantile is None else request.quantile,
        final=request.final_clip_norm,
    )


def _learning_rate(
    request: PlanRequest, found: Plan, options: Mapping[str, Any], why: dict[str, str]
) -> float:
    if request.learning_rate is not None:
        why[STEP_SIZE] = GIVEN
        return request.learning_rate
    size, name = request.size, request.optimizer
    check_options(name, options)
    if not kind_of(name).descends:
        like = defaults.learning_rate(
            found, size, 0.0, request.usual_norm, request.score_rule.noise
        )
        rate = adaptive_rate(found, name, options, like)
        why[STEP_SIZE] = (
            f"the usual one of {name}"
            if rate == USUAL_RATE
            else f"under this noise {name} steps as far with it as gradient descent with {like:.3g}"
        )
        return rate
    momentum = float(options.get("momentum", 0.0))
    # What correlated noise leaves in the weights depends on the momentum, which is known by now.
    found = found.with_(optimizer=replace(found.optimizer, options=tuple(options.items())))
    norm, scores = request.usual_norm, request.score_rule.noise
    length = defaults.path_length(found, size, norm, scores)
    where = "" if norm is None else f" in scores of features of norm {norm:.3g}"
    bound = (
        f"further steps of {request.weights:,} weights would only gather noise{where}"
        if length * noise_to_signal(found, size) > 0.999 * defaults.noise_norm(size, norm, scores)
        else "further a round would not be better"
    )
    why[STEP_SIZE] = (
        f"lets {found.rounds:,} unit steps carry the weights {length:,.0f} far, momentum "
        f"included: {bound}"
    )
    return defaults.learning_rate(found, size, momentum, norm, scores)


def _mechanism(request: PlanRequest, why: dict[str, str]) -> Mechanism:
    budget, sigma = request.budget, request.noise_multiplier
    batch = request.examples if request.sampling == "full-batch" else request.batch
    all_but_the_batch = budget is not None and sigma is not None and request.timed
    if batch is None and request.parts is not None and not all_but_the_batch:
        why["batch"] = "every record of a part in its turn, since none was given"
        batch = max(1, request.examples // request.parts)
    if budget is None:
        if sigma is None:
            raise PlanError("too little is given: add budget= (ε and δ), or noise_multiplier=")
        if batch is None or not request.timed:
            missing = [] if batch is not None else ["batch="]
            missing += [] if request.timed else ["epochs= or rounds="]
            raise PlanError(
                f"with a noise multiplier and no budget, ε follows from batch and length: add "
                f"{' and '.join(missing)}, or a budget="
            )
        why["noise"] = "as given; ε follows from it, the batch and the length"
        return request.mechanism(sigma, batch, request.length_of(batch))
    if sigma is None:
        batch, length = _batch_and_length(request, budget, batch, why)
        why["noise"] = (
            f"the least for which the certified ε of all {length:,} rounds stays within "
            f"{budget.epsilon:g} at δ = {budget.delta:.3g}"
        )
        sigma = _noise(request, budget, batch, length)
        strategy = request.strategy(batch, length)
        if strategy is not None:
            why["correlation"] = _compared(request, budget, batch, length, sigma, strategy)
        return request.mechanism(sigma, batch, length)
    if batch is not None and request.timed:
        raise PlanError(
            "too much is given: budget, noise_multiplier, batch and length leave nothing to "
            "solve for. Drop one (without the budget, ε follows)"
        )
    if sigma == 0:
        raise PlanError("noise_multiplier 0 keeps no budget: drop it or the budget")
    why["noise"] = "as given"
    if request.timed:
        why["batch"] = (
            f"the largest that keeps ε within {budget.epsilon:g} at this noise and length"
        )
        return _solve_batch(request, budget, sigma)
    if batch is None:
        why["batch"] = f"the one with which the budget lasts about {defaults.ROUNDS} rounds"
        batch = defaults.batch_for_noise(request.examples, roughly(request, budget), sigma)
        # That rule is rough where σ is small: a batch that one round could not pay for is cut.
        fitting = _largest(
            lambda size: request.mechanism(sigma, int(size), 1), budget, batch, request.protected
        )
        if fitting is not None and fitting < batch:
            batch = fitting
            why["batch"] = "the largest of which the budget affords a round at this noise"
    why["rounds"] = f"as many as ε = {budget.epsilon:g} affords at this noise and batch"
    return _solve_rounds(request, budget, sigma, batch)


def _compared(
    request: PlanRequest,
    budget: Budget,
    batch: int,
    length: int,
    sigma: float,
    strategy: Strategy,
) -> str:
    """What correlation is worth: noise in the weights, beside independent noise at the same ε."""
    mine = sigma * gain(strategy, length, request.momentum)
    arguments = length, request.clipping, request.neighbouring, None, request.protected
    in_turns = least_multiplier(budget, request.sampling_of(batch), *arguments)
    sampled = least_multiplier(budget, Poisson(min(1.0, batch / request.examples)), *arguments)
    return (
        f"{strategy.kind}, the least noise in the weights of the strategies tried: "
        f"{mine / in_turns:.3g} of what independent noise in the same turns leaves there at the "
        f"same ε, {mine / sampled:.3g} of it with Poisson batches, where records can be sampled"
    )


def _batch_and_length(
    request: PlanRequest, budget: Budget, batch: int | None, why: dict[str, str]
) -> tuple[int, int]:
    rounds, N = request.rounds, request.examples
    budget = roughly(request, budget)
    if batch is None:
        why["batch"] = (
            "the smallest whose noise, relative to what the batch says, is within "
            f"{defaults.WASTE:.0%} of a full batch's, or low enough not to matter; larger ones "
            "only cost more gradients"
        )
        if request.epochs is not None:
            batch = defaults.batch_for_epochs(N, budget, request.epochs)
        else:
            if rounds is None:
                why["rounds"] = (
                    "enough for the optimizer to arrive; more rounds need more noise each and "
                    "gain nothing in sum"
                )
            rounds = rounds or defaults.ROUNDS
            known = request.size, request.usual_norm, request.score_rule.noise
            batch = defaults.batch_for_rounds(N, budget, rounds, *known)
            if request.image_features and request.by_scores:
                batch = defaults.batch_of_image_features(N, rounds)
                why["batch"] = (
                    f"as large as {defaults.EPOCHS_LIMIT:.0f} passes allow: features of images are "
                    "computed once, and larger batches have less noise for the same signal"
                )
    if rounds is None and request.epochs is None:
        why["rounds"] = "as many as this batch serves before small batches waste noise"
        rounds = defaults.rounds_for_batch(N, budget, batch)
    length = request.length_of(batch) if rounds is None else rounds
    if request.batch is None:
        room = _room(request, batch, length)
        if room < batch:
            batch = room
            why["batch"] = "as large as the largest of growing or shrinking samples allows"
            length = request.length_of(batch) if rounds is None else rounds
    return batch, length


def _room(request: PlanRequest, batch: int, length: int) -> int:
    """The batch, cut to what the largest sample of a course leaves room for."""
    """The batch, or the most with which the largest sample of a course fits into the data."""
    like = Rounds(1.0, length, request.sampling_of(batch))
    return max(1, min(batch, int(request.course.room(like, request.examples))))


def _solve_rounds(request: PlanRequest, budget: Budget, sigma: float, batch: int) -> Mechanism:
    def make(rounds: float) -> Mechanism:
        return request.mechanism(sigma, batch, int(rounds))

    rounds = _largest(make, budget, MOST_ROUNDS, request.protected)
    if rounds is None:
        spent = exact.epsilon(make(1), budget.delta, request.protected).upper
        least = _noise(request, budget, batch, 1)
        raise PlanError(
            f"noise_multiplier {sigma:g} at batch {batch} spends ε = {at_most(spent)} in one "
            f"round, more than {budget.epsilon:g}: raise noise_multiplier to at "
            f"least {at_most(least)}"
        )
    return make(rounds)


def _solve_batch(request: PlanRequest, budget: Budget, sigma: float) -> Mechanism:
    def make(batch: float) -> Mechanism:
        return request.mechanism(sigma, int(batch), request.length_of(int(batch)))

    most = request.examples // (request.parts or 1)
    if request.epochs is not None:
        most = min(most, max(1, math.floor(2 * request.epochs * request.examples)))
    most = _room(request, most, request.length_of(most))
    batch = _largest(make, budget, most, request.protected)
    if batch is None:
        least = exact.epsilon(make(1), budget.delta, request.protected).upper
        raise PlanError(
            f"with noise_multiplier {sigma:g} even a batch of one record exceeds ε = "
            f"{budget.epsilon:g} (it has {at_most(least)}): raise "
            "noise_multiplier, or shorten the run"
        )
    return make(batch)


def _largest(
    make: Callable[[float], Mechanism], budget: Budget, most: int, group: int
) -> int | None:
    """The largest whole number from 1 to ``most`` that keeps the budget; None when none does."""

    def fits(number: int) -> bool:
        return exact.epsilon(make(number), budget.delta, group).upper <= budget.epsilon

    if not fits(1):
        return None
    if fits(most):
        return most
    return int(solved(make, budget, (1, most), integer=True, group=group))
