"""The planner: computes the missing numbers of a run, so that a whole Plan keeps its budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from forethought.accounting import exact
from forethought.accounting.exact import calibrate, noise_multiplier
from forethought.accounting.interval import at_most, warn_if_wide
from forethought.options import MOST_ROUNDS
from forethought.planning import defaults
from forethought.planning.defaults import Trained, gradient_computations, noise_to_signal
from forethought.planning.plan_request import (
    PlanError,
    PlanRequest,
    explain_course,
    keeps,
    least_noise,
    local_of,
    noise_of,
)
from forethought.values import use
from forethought.values.caveats import Caveat
from forethought.values.mechanism import (
    Augmentation,
    Budget,
    Clipping,
    Correlated,
    Mechanism,
    Persons,
    Poisson,
    RandomAllocation,
    Rounds,
    Sampling,
    UnsupportedMechanismError,
)
from forethought.values.plan import REACH, Clip, ClipRule, Plan, Preparation
from forethought.values.strategies import Strategy

if TYPE_CHECKING:
    from forethought.keywords import PlanKeywords

# Rules for groups, from measurements: their number, the algorithm inside, and their cost.
#
# docs/general_framework.md has the tables and the commands that print them.


# The key in a plan's reasons for the cost of groups compared with clipped examples.
GROUPS_AGAINST = "groups against examples"
# Noise-to-signal ratios of groups of 64 records: at WON batch normalisation inside made groups
# better than clipped examples; at LOST they were still worse; at TOO_LONG the step size, which
# grows as noise falls, was too long for some of them.
WON, LOST, TOO_LONG = 0.05, 0.16, 0.013


def explain_groups(request: PlanRequest, mechanism: Mechanism, why: dict[str, str]) -> None:
    """Add the number of groups of a batch to a plan's reasons, ``why``, where a rule chose it.

    Raises:
        PlanError: more groups than a batch has records.
    """
    groups = mechanism.rounds[-1].groups
    if groups is None:
        return
    batch = min(part.sampling.expected_batch(request.examples) for part in mechanism)
    if groups > math.ceil(batch):
        raise PlanError(
            f"{groups} groups are more than the {batch:.0f} records of a batch as planned: choose "
            "fewer, or give batch="
        )
    if request.groups is None and request.local is not None:
        why["groups"] = (
            f"{groups:,} of about {batch / groups:.0f} records: as many as leave an inner "
            f"algorithm {defaults.GROUP} records to work on, since every group more makes the "
            "noise on their mean smaller"
        )


def explain(plan: Plan, parameters: int, why: dict[str, str]) -> None:
    """Add the inner steps and the cost of groups to a plan's reasons, ``why``."""
    if plan.groups is None:
        return
    local = plan.local
    if local is not None and local.step == defaults.INNER_STEP and local.passes == 1:
        why["inner steps"] = (
            f"one pass in steps of {local.step} records: fewer and larger ones, a second pass, and "
            "step sizes a third or three times as long were no better by more than seeds differ; "
            "ten times shorter ones were worse, ten times longer ones of plain SGD too"
        )
    each = plan.mean_batch / plan.groups
    noise = noise_to_signal(plan, parameters)
    measured = (
        f"above {LOST:g} clipped examples did better in every combination that was measured"
        if noise > (LOST * WON) ** 0.5
        else f"at {WON:g} groups with batch normalisation inside did better than clipped examples, "
        "and without it no better"
    )
    if noise < (WON * TOO_LONG) ** 0.5:
        measured += (
            f"; at {TOO_LONG:g} steps of the planner's length were too long for some of them"
        )
    why[GROUPS_AGAINST] = (
        f"groups, as asked: with {each:.0f} records a contribution and a sensitivity of 2 the "
        f"noise is about {2 * each:.0f} times that of clipped examples for the same signal, "
        f"{noise:.2g} of it in {parameters:,} weights. At equal ε, {measured} "
        "(docs/general_framework.md)"
    )


# Persons with several records: two ways to protect each person, and the choice of the better one.
#
# - *One contribution per person*: all of a person's rows in a batch are one clipped contribution,
#   so a person moves a sum by one clipping norm. The plan's examples are then persons.
# - *Groups of rows*: every row is a contribution, and the guarantee holds for as many rows together
#   as one person may have (group accounting). It needs more noise, but has more contributions.
#
# Which one has less noise for its signal depends on the average and the largest number of rows of a
# person; :func:`better` plans both. At the same noise a person's mean gradient has more information
# than one row's, so ties go to persons.


# The key in a plan's reasons for the way that persons are protected.
PERSONS = "persons"


def caveat(request: PlanRequest) -> tuple[Caveat, ...]:
    """The caveat on persons for a Statement; none where every person has one record."""
    if request.person_as == "contribution":
        return (Caveat("persons", f"at most {request.records_per_person}"),)
    if request.records_per_person > 1:
        return (Caveat("rows-of-persons", f"{request.records_per_person}"),)
    return ()


def of_rows(request: PlanRequest) -> PlanRequest:
    """The same request, planned with groups of as many rows as one person may have."""
    return request.with_(person_as="group", persons=None)


def of_persons(request: PlanRequest) -> PlanRequest:
    """The same request with persons as examples; a batch has the same share of them as of rows."""
    rows, persons = request.examples, request.persons
    if persons is None:
        return request.with_(person_as="contribution")
    batch = request.batch
    if batch is not None:
        batch = min(persons, max(1, math.ceil(batch * persons / rows)))
    return request.with_(examples=persons, batch=batch, persons=None, person_as="contribution")


def better(request: PlanRequest) -> Plan:
    """The plan with less noise for its signal; without a budget, the one with persons.

    Args:
        request: with the number of rows and of persons.
    """
    if request.clipping != "example":
        return _plan(of_rows(request))
    persons = _plan(of_persons(request))
    alone = "one contribution a person: "
    if request.budget is None:
        return _because(persons, f"{alone}at this noise its ε is the smaller one")
    try:
        rows = _plan(of_rows(request))
    except (UnsupportedMechanismError, PlanError) as error:
        return _because(persons, f"{alone}groups of these rows are refused: {error}")
    ratio = noise_to_signal(rows) / noise_to_signal(persons)
    most, mean = request.records_per_person, request.examples / (request.persons or 1)
    have = f"people have {mean:.3g} rows on average and at most {most}"
    if ratio < 1:
        return _because(
            rows,
            f"groups of {most} rows: {have}, so rows protected together have {ratio:.2f} times "
            "the noise for the signal that one contribution a person has",
        )
    return _because(
        persons,
        f"{alone}{have}, so groups of {most} rows would have {ratio:.2f} times the noise for the "
        "signal",
    )


def _because(plan: Plan, why: str) -> Plan:
    """The plan with the reason for this way to protect persons."""
    return plan.with_(reasons=(*plan.reasons, (PERSONS, why)))


# The releases before the rounds, their noise and their cost.


def with_centring(request: PlanRequest, why: dict[str, str]) -> PlanRequest:
    """The request with a release of means (and norm) of a linear model's features, if worthwhile.

    With noise multiplier σ the error of the means has norm √d σ · 1.5 R/N, where R is the declared
    norm. For tables σ is chosen for an error of 0.1 R, or for the least error that 15 % of the
    budget's μ² allow; above √3 R nothing is released. The norm of the centred features is released
    with twice the multiplier, for a fifth of the cost. :func:`defaults.centring` has the numbers
    for fixed features of images.

    Raises:
        PlanError: centring is requested and not possible.
    """
    possible = (
        request.by_scores
        and request.features is not None
        and request.parameters is not None
        and request.parameters % (request.features + 1) == 0  # an intercept for each output
        and (request.preparation is None or request.preparation.statistics == ("ranges",))
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
                "feature_norm=, a budget=, and noise and clipping as the planner chooses them: "
                "drop centre=, or what else is given"
            )
        return request
    if request.centre is False:
        return request
    assert request.budget and request.features and request.feature_norm
    unit = REACH * math.sqrt(request.features) / request.examples  # error for σ = 1
    budget = roughly(request, request.budget)
    usual = math.sqrt(request.features)
    rule = defaults.centring(request.image_features)
    own: dict[str, Any] = {
        "features": request.features,
        "reach": REACH * request.feature_norm,
        "statistics": rule.statistics,
    }
    if request.preparation is None:
        asked = Preparation(**own)
    else:
        own["statistics"] = (*request.preparation.statistics, *rule.statistics)
        asked = replace(request.preparation, **own)
    least = defaults.least_preparation_noise(budget, asked.releases, rule.share)
    sigma = max(rule.error / unit, least)
    if sigma * unit > defaults.LEAST_CENTRE and not request.centre:
        return request
    why["centring"] = (
        f"the features' means, to {sigma * unit:.2g} of their declared norm"
        f"{', and the norm that is left around them' if len(rule.statistics) > 1 else ''} are "
        "released first: there a linear model learns through less noise"
    )
    # On a long path the noise of the intercept is corrected during training.
    becomes = min(usual, rule.norm) if request.score_rule.long else usual
    return request.with_(preparation=replace(asked, becomes=becomes, noise_multiplier=sigma))


def with_preparation(request: PlanRequest, why: dict[str, str]) -> PlanRequest:
    """The request with the noise multiplier of its preparation."""
    asked = request.preparation
    if asked is not None and asked.measures:
        why["ranges"] = (
            f"where the {asked.numbers} numbers lie within their declared ranges is released "
            f"first, to 1/{asked.bins} of a range: one that is ten times too wide then costs little"
        )
    if asked is None or "centring" in why or asked.statistics == ("ranges",):
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
    """The budget of one record that the rules assume: ε over the number of protected records."""
    return Budget(budget.epsilon / request.protected, budget.delta)


# The accountant relates noise, batch, rounds and ε. From enough of these numbers the others follow;
# `planning.defaults` chooses those that are neither given nor determined.


# In a plan's reasons: the key of the step size, and two of its values.
STEP_SIZE, GIVEN = "step size", "as given"
OF_SQUARES = "three quarters of what the curvature of a squared error bears"

__all__ = ["GIVEN", "STEP_SIZE", "PlanError", "PlanRequest", "plan"]


def plan(request: PlanRequest | None = None, /, **keywords: Unpack[PlanKeywords]) -> Plan:
    """Plan a private run: compute every number that is not given.

    Give ``examples`` and either a ``budget`` (the noise follows; batch and rounds are chosen
    unless given), or ``noise_multiplier`` with batch and length (ε follows), or both a budget and
    a noise multiplier (the affordable rounds follow, or the batch if the length is given).

    Args:
        request: the keywords below as one value; keywords given as well replace its fields.
        examples: number of records in the training set, taken as public.
        budget: the (ε, δ) that the run must keep.
        delta: δ when no budget is given; 1/(10 · examples) by default.
        epochs: passes over the data; rounds: releases. At most one of the two.
        batch: expected batch size.
        noise_multiplier: σ, in units of the clipping norm. 0: no privacy.
        sampling: how batches are drawn; ``"full-batch"`` takes no batch.
        parts: for ``"cyclic-poisson"``: number of parts of the records that take turns. Without
            ``batch``, a batch is a whole part.
        adjacency: the relation between neighbouring data sets. Default: replace-one for sampling
            without replacement, zero-out when shuffled, otherwise add-or-remove.
        clipping, groups: ``"example"``, or ``"group"`` with the number of groups (default 1, or
            chosen for ``local``).
        local: the algorithm inside a group (`forethought.Local`, or an inner optimizer's name,
            whose steps the planner chooses). The clipped contribution is then its weight change;
            by default it is the mean gradient.
        noise: ``"gaussian"``, or ``"grid"`` for discrete noise in whole numbers, which leaves no
            assumption on floating-point arithmetic in the Statement, or ``"correlated"`` over the
            rounds, so that later ones cancel a part of it (with ``"cyclic-poisson"`` sampling).
        noise_schedule, noise_fall: ``"geometric"``, ``"linear"`` or ``"forgetting"``: noise that
            falls over the run by about the factor ``noise_fall`` (default 2), or grows where it is
            below 1; see :mod:`forethought.planning.plan_request`. ``noise_multiplier`` is then the
            noise in the middle of the run.
        size_schedule, size_growth, size_power: ``"linear"`` or ``"geometric"``: samples whose last
            size is ``size_growth`` times the first (default 4; below 1 they shrink); ``"power"``:
            s_i proportional to i^``size_power`` (default 0.5). ``batch`` is then their mean. With
            Poisson, without-replacement and cyclic-poisson sampling; see
            :mod:`forethought.planning.plan_request`.
        preparation: the releases before training, paid from the budget
            (`forethought.Preparation`); by default with so much noise that they cost little.
        final_clip_norm: norm of the last round; the norm moves to it geometrically.
        clip_norm, clip_rule, quantile, count_noise: see `forethought.Clip`. Default: automatic
            normalisation; flat clipping when a clip norm is given, and for a linear model of known
            ``feature_norm`` whose step size the planner chooses.
        optimizer, learning_rate, options, schedule, averaging: see `forethought.Optimizer`,
            `forethought.Schedule`, `forethought.Averaging`.
        hyperparameters, not_covered: for the Statement.
        parameters: number of weights that the model trains; step size and batch depend on it.
            Default: a guess, `forethought.planning.defaults.PARAMETERS`.
        feature_norm: usual norm of a record's features (root mean square), declared or known from
            their construction, for a linear model: step size and batch then follow from the noise
            in its scores. Default: taken from ``data`` where it is known and ``model`` is linear.
        squared_error: whether the loss is the squared error of values in [−1, 1]: steps are then
            shorter. Default: True where ``data`` has no classes.
        feature_norm_known: whether ``feature_norm`` follows from the construction of the features,
            such as normalised or declared ones, and not from a look at the data: for the Statement.
        features: number of features of a linear model; with ``parameters`` it gives the number of
            classes. Default: taken from ``model``.
        centre: whether the features' means are released first, paid from the budget, so that a
            linear model trains on centred features (`forethought.train` does it by itself; the
            final model takes features as they are). Default: yes where ``model`` is linear with an
            intercept, its ``feature_norm`` is known and at most 15 % of the budget's μ² give means
            that are precise enough; the norm of the centred features is released with them.
        image_features: whether a linear model's features are fixed features of images, kept on
            disk: passes over them are cheap, so batches may be large, and their norm is not
            released beside their means. Default: taken from ``data``.
        noise_borne: norm of the noise that the weights of a network tolerate, from which its step
            size follows. Default: measured on synthetic inputs, where ``model`` and ``data`` or
            ``shape`` are given (for tables with the norm that ``data`` declares); see
            :mod:`forethought.planning.plan_request`.
        untried: whether ``noise_borne`` could not be measured: steps of Adam and similar optimizers
            are then at most `forethought.planning.defaults.UNTRIED_RATE`. Default: True where
            ``model`` is a network and ``noise_borne`` is neither given nor measured.
        data: a :class:`forethought.data.Dataset` in place of ``examples``: its training records
            are counted, and the plan names what loading read of them.
        model: a torch module, or a function that builds one, in place of ``parameters``.
        shape: shape of one record, given with ``model`` where there is no ``data``.
        records_per_person: largest number of records of one person; the guarantee is then about all
            of them together. persons: number of different persons: one clipped contribution per
            person is then compared with groups of rows, and the better plan is returned. person_as:
            ``"contribution"`` (examples are then persons) or ``"group"`` fixes the choice; see
            :mod:`forethought.planning.solve`.
        augment, augmentations: kinds of `forethought.Augmentation`, and the number of altered
            copies of an image that are averaged before clipping (default 8), at no privacy cost.
        gradient_filter: filter of noised means, see `forethought.GradientFilter`; none by default.

    Returns:
        A Plan whose certified upper ε meets the budget.

    Raises:
        PlanError: too much or too little is given, or the request is out of reach; the message says
            which argument to drop, add or change.
        TypeError, ValueError: an argument outside its range.

    Warns:
        UserWarning: the lower and upper bound of the plan's ε are further apart than usual; the
            plan's ``reasons`` explain it.
    """
    found = unchecked(PlanRequest.of(request, **keywords))
    if found.schedule.warmup > found.rounds:
        raise PlanError(
            f"the warmup of {found.schedule.warmup:,} rounds is longer than the run of "
            f"{found.rounds:,}: choose a shorter one, or more rounds"
        )
    with suppress(UnsupportedMechanismError):
        words = warn_if_wide(exact.epsilon(found.mechanism, found.delta, found.records_per_person))
        if words is not None:
            return found.with_(reasons=(*found.reasons, ("epsilon", words)))
    return found


def unchecked(request: PlanRequest) -> Plan:
    """The plan of a request, without a check of how wide the interval of its ε is."""
    if request.groups is not None and request.clipping != "group":
        raise PlanError(
            "groups= goes with clipping='group', and only with it: add that, or drop groups="
        )
    if request.persons is None:
        return _plan(request)
    if request.person_as == "contribution":
        return _plan(of_persons(request))
    if request.person_as == "group":
        return _plan(of_rows(request))
    # Settled here, since the planner's choice between the two ways is not the user's.
    return better(request.with_(hyperparameters=request.chosen_by()))


def _plan(request: PlanRequest) -> Plan:
    why: dict[str, str] = {}
    if request.person_as == "better" and request.records_per_person > 1:
        why[PERSONS] = (
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
    dealt = mechanism.rounds[0].sampling
    batch = round(dealt.expected_batch(request.examples))
    if isinstance(dealt, RandomAllocation) and request.batch not in (None, batch):
        why["batch"] = (
            f"{batch:,} a round and not {request.batch:,}: random allocation deals all records to "
            f"a whole number of rounds an epoch, here {dealt.rounds:,}"
        )
    options = request.options
    if options is None:
        options = dict(use.kind_of(request.optimizer).options)
    explain_groups(request, mechanism, why)
    persons = Persons(request.records_per_person) if request.person_as == "contribution" else None
    found = Plan(
        mechanism=mechanism,
        examples=request.examples,
        delta=delta,
        clip=_clip(request, mechanism, why),
        contribution=persons,
        groups=mechanism.rounds[-1].groups,
        local=local_of(request.local),
        records_per_person=request.protected,
        augmentation=Augmentation.of(request.augment),
        noise="grid" if request.noise == "grid" else "gaussian",
        preparation=request.preparation,
        schedule=request.schedule or use.Schedule(),
        averaging=request.averaging or use.Averaging(),
        gradient_filter=use.GradientFilter.of(request.gradient_filter),
        budget=request.budget,
        hyperparameters=chosen_by,
        not_covered=(*request.not_covered, *caveat(request)),
    )
    explain(found, request.weights, why)
    learning_rate = _learning_rate(request, found, options, why)
    chosen = use.Optimizer(request.optimizer, learning_rate, tuple(options.items()))
    return found.remade(optimizer=chosen, assumed=request.assumed, reasons=tuple(why.items()))


def _noise(request: PlanRequest, budget: Budget, batch: int, rounds: int) -> float:
    """The least noise multiplier of the rounds that keeps the budget, preparation included."""
    sampling = request.sampling_of(batch)
    strategy = request.strategy(batch, rounds)
    group = request.protected
    given = sampling, rounds, request.clipping, request.neighbouring, strategy, group
    alone = noise_multiplier(budget, *given, warn=False)
    together = group > 1 and request.clipping == "group"
    if request.preparation is None and not request.course.varies and not together:
        return alone
    return least_noise(lambda sigma: request.mechanism(sigma, batch, rounds), budget, alone, group)


def _clip(request: PlanRequest, mechanism: Mechanism, why: dict[str, str]) -> Clip:
    given, norm = request.clip_rule, request.clip_norm
    rule: ClipRule = given or ("automatic" if norm is None else "flat")
    if request.quantile is not None and rule != "quantile":
        raise PlanError("quantile= goes with clip_rule='quantile': add it, or drop quantile=")
    count_noise = request.count_noise
    if rule == "quantile" and count_noise is None:
        # At 10 σ the count raises the gradients' noise by 1/800 (Clip.gradient_noise).
        count_noise = 10 * max(part.noise_multiplier for part in mechanism)
    if given or norm is not None:
        why["clipping"] = f"{rule}, as given"
    elif request.by_scores:
        assert request.usual_norm is not None
        share = request.score_rule.clip
        rule, norm = "flat", share * math.hypot(request.usual_norm, 1.0)
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
    model, name = request.trained, request.optimizer
    use.check_options(name, options)
    if not use.kind_of(name).descends:
        like = defaults.learning_rate(found, model)
        rate = defaults.adaptive_rate(found, name, options, like)
        if request.untried and rate > defaults.UNTRIED_RATE:
            why[STEP_SIZE] = "what the weights bear is not known: what small models bore at most"
            return defaults.UNTRIED_RATE
        why[STEP_SIZE] = (
            f"the usual one of {name}"
            if rate == use.USUAL_RATE
            else f"under this noise {name} steps as far with it as gradient descent with {like:.3g}"
        )
        return rate
    momentum = use.momentum_of(options)
    # The noise that correlation leaves in the weights depends on the momentum, so it is set first.
    found = found.remade(optimizer=replace(found.optimizer, options=tuple(options.items())))
    norm, length = model.feature_norm, defaults.path_length(found, model)
    where = "" if norm is None else f" in scores of features of norm {norm:.3g}"
    bound = (
        f"further steps of {request.weights:,} weights would only gather noise{where}"
        if length * noise_to_signal(found, model.parameters) > 0.999 * model.noise
        else "further a round would not be better"
    )
    why[STEP_SIZE] = (
        f"lets {found.rounds:,} unit steps carry the weights {length:,.0f} far, momentum "
        f"included: {bound}"
    )
    rate = defaults.learning_rate(found, model, momentum)
    if request.squared_error and norm is not None:
        most = defaults.longest_rate_of_squares(norm, momentum)
        if rate > most:
            why[STEP_SIZE] = f"{OF_SQUARES} of features of norm {norm:.3g}: longer steps swing"
            return most
    return rate


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
        # That rule is rough where σ is small: a batch whose single round exceeds the budget is cut.
        fitting = largest(
            lambda size: request.mechanism(sigma, int(size), 1), budget, batch, request.protected
        )
        if fitting is not None and fitting < batch:
            batch = fitting
            why["batch"] = "the largest of which the budget affords a round at this noise"
    why["rounds"] = f"as many as ε = {budget.epsilon:g} affords at this noise and batch"
    return _solve_rounds(request, budget, sigma, batch)


def _compared(
    request: PlanRequest, budget: Budget, batch: int, length: int, sigma: float, strategy: Strategy
) -> str:
    """The gain of correlation in words: noise in the weights over that of independent noise."""
    mine = sigma * defaults.gain(strategy, length, request.momentum)
    arguments = length, request.clipping, request.neighbouring, None, request.protected
    in_turns, sampled = (
        noise_multiplier(budget, sampling, *arguments, warn=False)
        for sampling in (request.sampling_of(batch), Poisson(min(1.0, batch / request.examples)))
    )
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
        passes = request.epochs
        if passes is not None:
            batch = defaults.batch_for_epochs(N, budget, passes)
        else:
            batch = defaults.batch_for_rounds(N, budget, rounds or defaults.ROUNDS, request.trained)
            if rounds is None:
                why["rounds"] = (
                    "enough for the optimizer to arrive; more rounds need more noise each and "
                    "gain nothing in sum"
                )
                rounds, passes = defaults.ROUNDS, batch * defaults.ROUNDS / N
            if request.image_features and request.by_scores:
                batch = defaults.batch_of_image_features(N, rounds)
                why["batch"] = (
                    f"as large as {defaults.EPOCHS_LIMIT:.0f} passes allow: features of images are "
                    "computed once, and larger batches have less noise for the same signal"
                )
        if passes is not None and request.divided is not None:
            least = defaults.rounds_of_short_steps(N, budget, passes, request.divided)
            if least > passes * N / batch:
                batch = math.ceil(passes * N / least)
                rounds = rounds and round(passes * N / batch)
                why["batch"] = "in larger ones a network's steps would be too long to arrive"
    if rounds is None and request.epochs is None:
        why["rounds"] = "as many as this batch serves before small batches waste noise"
        rounds = defaults.rounds_for_batch(N, budget, batch)
    length = request.length_of(batch) if rounds is None else rounds
    if request.batch is None:
        room = room_for(request, batch, length)
        if room < batch:
            batch = room
            why["batch"] = "as large as the largest of growing or shrinking samples allows"
            length = request.length_of(batch) if rounds is None else rounds
    return batch, length


def room_for(request: PlanRequest, batch: int, length: int) -> int:
    """The batch, reduced if needed so that the largest sample of a course fits into the data."""
    like = Rounds(1.0, length, request.sampling_of(batch))
    return max(1, min(batch, int(request.course.room(like, request.examples))))


def _solve_rounds(request: PlanRequest, budget: Budget, sigma: float, batch: int) -> Mechanism:
    def make(rounds: float) -> Mechanism:
        return request.mechanism(sigma, batch, int(rounds))

    rounds = largest(make, budget, MOST_ROUNDS, request.protected)
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
    most = room_for(request, most, request.length_of(most))
    batch = largest(make, budget, most, request.protected)
    if batch is None:
        least = exact.epsilon(make(1), budget.delta, request.protected).upper
        raise PlanError(
            f"with noise_multiplier {sigma:g} even a batch of one record exceeds ε = "
            f"{budget.epsilon:g} (it has {at_most(least)}): raise "
            "noise_multiplier, or shorten the run"
        )
    return make(batch)


def largest(
    make: Callable[[float], Mechanism], budget: Budget, most: int, group: int
) -> int | None:
    """The largest whole number from 1 to ``most`` that keeps the budget; None when none does."""

    if not keeps(make(1), budget, group):
        return None
    if keeps(make(most), budget, group):
        return most
    return int(calibrate(make, budget, (1, most), integer=True, group=group, warn=False))


# Alternatives to a plan, one cheaper and one more accurate, with costs and gains.


@dataclass(frozen=True)
class Neighbour:
    """An alternative to a plan.

    Args:
        name: its purpose, such as "cheaper". plan: the alternative.
        reason: what changes, in one line.
    """

    name: str
    plan: Plan
    reason: str


# A smaller relative reduction of the noise-to-signal ratio counts as no gain in accuracy.
_GAIN = 0.01


def neighbours(
    plan: Plan,
    parameters: int | None = None,
    feature_norm: float | None = None,
    scores: float = defaults.SCORE_NOISE,
) -> tuple[Neighbour, ...]:
    """A cheaper and a more accurate plan; fewer where none exists.

    The cheaper one halves the batch, the more accurate one doubles it, each with exactly
    calibrated noise for the same budget and, where the planner chose it, a new step size. Groups
    keep their size, so their number halves or doubles. A full batch cannot be doubled, and a batch
    near it gains nothing: only a larger ε helps then, so the more accurate plan is the one at twice
    ε, if that helps. For a plan with groups, the same run with clipped examples is added.

    Args:
        plan: from :func:`forethought.plan`.
        parameters, feature_norm, scores: the values that the plan was made with.

    Returns:
        No plans under correlated noise, without noise, or where δ alone allows the plan.
    """
    parts = plan.privacy.mechanism.rounds
    if any(isinstance(part, Correlated) or part.noise_multiplier == 0 for part in parts):
        return ()
    epsilon = (
        plan.budget.epsilon
        if plan.budget
        else exact.epsilon(plan.mechanism, plan.delta, plan.records_per_person).upper
    )
    if epsilon == 0:
        return ()
    budget = Budget(epsilon, plan.delta)
    found, samplings = [], [part.sampling for part in parts]
    if plan.preparation is not None and plan.preparation.becomes is not None:
        feature_norm = plan.preparation.becomes
    trained = defaults.PARAMETERS if parameters is None else parameters
    model = Trained(trained, feature_norm, scores)
    half = _resized(plan, 0.5, budget, model)
    if half is not None:
        found.append(Neighbour("cheaper", half, _change(plan, half)))
    double = _resized(plan, 2.0, budget, model)
    if double is None or noise_to_signal(double) > (1 - _GAIN) * noise_to_signal(plan):
        twice = Budget(2 * epsilon, plan.delta)
        double = _with_noise(plan, samplings, twice, model, plan.groups)
        reason = f"twice ε: {_change(plan, double)}"
    else:
        reason = _change(plan, double)
    # Where δ dominates a small ε, twice that ε reduces no noise.
    if noise_to_signal(double) <= (1 - _GAIN) * noise_to_signal(plan):
        found.append(Neighbour("more accurate", double, reason))
    if plan.groups is not None:
        alone = _with_noise(plan, samplings, budget, model, None)
        reason = f"{_change(plan, alone)}; a model with batch normalisation needs groups"
        found.append(Neighbour("clipped examples", alone, reason))
    return tuple(found)


def _resized(plan: Plan, factor: float, budget: Budget, model: Trained) -> Plan | None:
    samplings = []
    for sampling in (part.sampling for part in plan.privacy.mechanism):
        batch = sampling.expected_batch(plan.examples) * factor
        other = sampling.resized(batch, plan.examples)
        if other == sampling or not 1 <= int(batch) <= sampling.pool(plan.examples):
            return None
        samplings.append(other)
    # The size of groups stays, their number changes.
    groups = None if plan.groups is None else max(1, round(plan.groups * factor))
    return _with_noise(plan, samplings, budget, model, groups)


def _with_noise(
    plan: Plan, samplings: Sequence[Sampling], budget: Budget, model: Trained, groups: int | None
) -> Plan:
    """The plan with other samplings and number of groups (None: clipped examples), in a budget.

    Noise that changes over the run keeps its shape.
    """
    parts, adjacency = plan.privacy.mechanism.rounds, plan.mechanism.adjacency
    clipping: Clipping = "example" if groups is None else "group"
    dealt = None if parts[0].groups is None else groups

    def make(factor: float) -> Mechanism:
        releases = (
            Rounds(part.noise_multiplier * factor, part.count, sampling, clipping, groups=dealt)
            for part, sampling in zip(parts, samplings, strict=True)
        )
        return Mechanism(*releases, adjacency=adjacency)

    group = plan.records_per_person
    factor = 1.0
    if len(parts) == 1:
        alone = noise_of(make(1.0).rounds[0], adjacency, budget, group)
        factor = alone / parts[0].noise_multiplier
    if len(parts) > 1 or plan.preparation is not None:
        factor = least_noise(make, budget, factor, group, plan.preparation)
    kept: dict[str, Any] = {}  # without a change, groups= would replace a contribution of persons
    if groups != plan.groups:
        kept = {"groups": groups, "local": None if groups is None else plan.local}
    found = plan.remade(**kept, mechanism=make(factor), budget=budget)
    about = ("epsilon", GROUPS_AGAINST, "groups") if groups is None else ("epsilon",)
    found = found.with_(reasons=tuple(pair for pair in plan.reasons if pair[0] not in about))
    if not use.kind_of(plan.optimizer.name).descends or dict(plan.reasons).get(
        STEP_SIZE, GIVEN
    ).startswith((GIVEN, OF_SQUARES)):
        return found
    rate = defaults.learning_rate(found, model, plan.optimizer.momentum)
    return found.remade(optimizer=replace(plan.optimizer, learning_rate=rate))


def _change(old: Plan, new: Plan) -> str:
    cost = gradient_computations(new) / gradient_computations(old)
    # At the same ε and sampling rate the ratio is proportional to 1/N: express it in records.
    like = noise_to_signal(old) / noise_to_signal(new)
    whose = "persons" if isinstance(new.contribution, Persons) else "records"
    return f"{cost:.2g} × the work; noise weighs as with {like:.2g} × the {whose}"
