"""Solve for the missing piece: from any part of the picture to a whole Plan, exactly.

Noise, batch, rounds and ε hang together by one equation, the accountant's. Given enough of them
the rest follows; what is neither given nor determined is chosen by `planning.defaults`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from forethought.accounting import exact
from forethought.accounting.calibration import calibrate
from forethought.accounting.calibration import noise_multiplier as exact_noise
from forethought.mechanism import (
    Adjacency,
    Budget,
    Clipping,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Sampling,
    Shuffled,
    WithoutReplacement,
    one_of,
    real,
    whole,
)
from forethought.planning import defaults
from forethought.plans import (
    FIXED_IN_ADVANCE,
    Averaging,
    Clip,
    ClipRule,
    Optimizer,
    Plan,
    Schedule,
)

SamplingName = Literal["poisson", "without-replacement", "shuffled", "full-batch"]

MOST_ROUNDS = 10_000_000
_ADJACENCY: dict[str, Adjacency] = {
    "poisson": "add-or-remove",
    "full-batch": "add-or-remove",
    "without-replacement": "replace-one",
    "shuffled": "zero-out",
}


class PlanError(ValueError):
    """A request that no plan fulfils: over- or under-determined, or out of reach."""


def plan(
    *,
    examples: int,
    budget: Budget | None = None,
    delta: float | None = None,
    epochs: float | None = None,
    rounds: int | None = None,
    batch: int | None = None,
    noise_multiplier: float | None = None,
    sampling: SamplingName = "poisson",
    adjacency: Adjacency | None = None,
    clipping: Clipping = "example",
    groups: int | None = None,
    clip_norm: float | None = None,
    clip_rule: ClipRule | None = None,
    quantile: float | None = None,
    count_noise: float | None = None,
    optimizer: str = "sgd",
    learning_rate: float | None = None,
    options: Mapping[str, Any] | None = None,
    schedule: Schedule | None = None,
    averaging: Averaging | None = None,
    hyperparameters: str | None = None,
    not_covered: tuple[str, ...] = (),
    parameters: int | None = None,
) -> Plan:
    """Everything a private run needs, from what is known of it.

    Give ``examples`` and either a ``budget`` (the noise follows; batch and rounds are chosen
    unless given), or ``noise_multiplier`` with batch and length (ε follows), or both a budget and
    a noise multiplier (the affordable rounds follow, or the batch if the length is given).

    Args:
        examples: records in the training set, taken as public.
        budget: the (ε, δ) wanted.
        delta: δ when no budget is given; 1/(10 · examples) by default.
        epochs: passes over the data; rounds: releases. At most one of the two.
        batch: expected batch size.
        noise_multiplier: σ, in units of the clipping norm. 0: no privacy.
        sampling: how batches are drawn; ``"full-batch"`` takes no batch.
        adjacency: what a neighbour is. Default: add-or-remove for Poisson and full batches,
            replace-one without replacement, zero-out when shuffled.
        clipping, groups: ``"example"``, or ``"group"`` with the number of groups (default 1).
        clip_norm, clip_rule, quantile, count_noise: see `forethought.Clip`. Default: automatic
            normalisation; flat clipping when a clip norm is given.
        optimizer, learning_rate, options, schedule, averaging: see `forethought.Optimizer`,
            `forethought.Schedule`, `forethought.Averaging`.
        hyperparameters, not_covered: for the Statement.
        parameters: how many the model trains; the step size and the batch depend on it. Default:
            a guess, `forethought.planning.defaults.PARAMETERS`.

    Returns:
        A Plan whose certified upper ε meets the budget.

    Raises:
        PlanError: too much or too little is given, or the request is out of reach; the message says
            which argument to drop, add or change.
        TypeError, ValueError: an argument outside its range.
    """
    examples = whole("examples", examples)
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be forethought.Budget(epsilon, delta), not {budget!r}")
    if budget is not None and delta is not None and delta != budget.delta:
        raise PlanError("delta is given twice: drop delta=, the budget has its own")
    if epochs is not None and rounds is not None:
        raise PlanError("epochs and rounds both fix the length: drop one of them")
    if epochs is not None:
        epochs = real("epochs", epochs, above=0)
    if rounds is not None:
        rounds = whole("rounds", rounds, most=MOST_ROUNDS)
    size = defaults.PARAMETERS if parameters is None else whole("parameters", parameters)
    if noise_multiplier is not None:
        noise_multiplier = real("noise_multiplier", noise_multiplier, least=0)
    one_of("sampling", sampling, get_args(SamplingName))
    if sampling == "full-batch":
        if batch not in (None, examples):
            raise PlanError(f"full-batch sampling takes all {examples} examples: drop batch=")
        batch = examples
    if batch is not None:
        batch = whole("batch", batch)
        if batch > examples:
            raise PlanError(
                f"batch {batch} is larger than the data ({examples} examples): choose at most "
                f"{examples}"
            )
    if clipping == "group" and groups is None:
        groups = 1
    picture = _Picture(examples, sampling, clipping, adjacency or _ADJACENCY[sampling])
    why: dict[str, str] = {}
    if budget is None and delta is None:
        why["delta"] = "one tenth of one over the number of examples, since none was given"
    delta = (budget.delta if budget else delta) or defaults.default_delta(examples)
    if delta > 1 / examples:
        warnings.warn(
            f"delta {delta:g} is larger than 1/{examples}, one over the number of examples: "
            f"publishing a random record outright would be allowed. Use at most "
            f"{defaults.default_delta(examples):.2g}",
            stacklevel=2,
        )
    mechanism = _mechanism(picture, budget, noise_multiplier, batch, rounds, epochs, size, why)
    rule: ClipRule = clip_rule or ("automatic" if clip_norm is None else "flat")
    if rule == "quantile" and count_noise is None:
        # At 10 σ the count costs the gradients 1/800 of their precision (Clip.gradient_noise).
        count_noise = 10 * max(part.noise_multiplier for part in mechanism)
    why["clipping"] = (
        f"{rule}, as given"
        if clip_rule or clip_norm is not None
        else "automatic normalisation: every contribution counts with norm below 1, so there is no "
        "clip norm to tune on private data"
    )
    clip = Clip(
        norm=1.0 if clip_norm is None else clip_norm,
        rule=rule,
        count_noise=count_noise,
        quantile=0.5 if quantile is None else quantile,
    )
    if options is None:
        options = {"momentum": defaults.MOMENTUM} if optimizer == "sgd" else {}
    found = Plan(
        mechanism=mechanism,
        examples=examples,
        delta=delta,
        clip=clip,
        groups=groups,
        schedule=schedule or Schedule(),
        averaging=averaging or Averaging(),
        budget=budget,
        hyperparameters=hyperparameters or FIXED_IN_ADVANCE,
        not_covered=not_covered,
    )
    if learning_rate is not None:
        why["step size"] = "as given"
    elif optimizer == "sgd":
        momentum = float(options.get("momentum", 0.0))
        learning_rate = defaults.learning_rate(found, size, momentum)
        length = defaults.path_length(found, size)
        bound = (
            f"further steps of {size:,} weights would only gather noise"
            if length < defaults.STEP * found.rounds
            else f"{defaults.STEP:g} a round, which longer steps would not make better"
        )
        why["step size"] = (
            f"lets {found.rounds:,} unit steps carry the weights {length:,.0f} far, momentum "
            f"included: {bound}"
        )
    else:
        learning_rate = 1e-3
        why["step size"] = f"the usual one of {optimizer}"
    chosen = Optimizer(optimizer, learning_rate, tuple(options.items()))
    return found.with_(optimizer=chosen, reasons=tuple(why.items()))


class _Picture:
    """The part of a request that is never solved for; builds mechanisms from the rest."""

    def __init__(
        self, examples: int, sampling: SamplingName, clipping: Clipping, adjacency: Adjacency
    ) -> None:
        self.examples = examples
        self.kind = sampling
        self.clipping = clipping
        self.adjacency = adjacency

    def sampling(self, batch: int) -> Sampling:
        match self.kind:
            case "poisson":
                return Poisson(batch / self.examples)
            case "without-replacement":
                return WithoutReplacement(batch, self.examples)
            case "shuffled":
                return Shuffled(batch, self.examples)
            case "full-batch":
                return FullBatch()

    def length(self, batch: int, rounds: int | None, epochs: float | None) -> int:
        if rounds is not None:
            return rounds
        if epochs is None:
            raise PlanError("the length is missing: add epochs= or rounds=")
        wanted = epochs * self.examples / batch
        if wanted < 0.5:
            raise PlanError(
                f"{epochs:g} epochs of {self.examples} examples are less than one batch of "
                f"{batch}: at least {batch / self.examples:.3g} epochs are needed, or a batch of "
                f"at most {max(1, math.floor(epochs * self.examples))}"
            )
        return max(1, round(wanted))

    def mechanism(self, noise_multiplier: float, batch: int, rounds: int) -> Mechanism:
        release = Rounds(noise_multiplier, rounds, self.sampling(batch), self.clipping)
        return Mechanism(release, adjacency=self.adjacency)


def _mechanism(
    picture: _Picture,
    budget: Budget | None,
    sigma: float | None,
    batch: int | None,
    rounds: int | None,
    epochs: float | None,
    parameters: int,
    why: dict[str, str],
) -> Mechanism:
    timed = rounds is not None or epochs is not None
    if budget is None:
        if sigma is None:
            raise PlanError("too little is given: add budget= (ε and δ), or noise_multiplier=")
        if batch is None or not timed:
            missing = [] if batch is not None else ["batch="]
            missing += [] if timed else ["epochs= or rounds="]
            raise PlanError(
                f"with a noise multiplier and no budget, ε follows from batch and length: add "
                f"{' and '.join(missing)}, or a budget="
            )
        why["noise"] = "as given; ε follows from it, the batch and the length"
        return picture.mechanism(sigma, batch, picture.length(batch, rounds, epochs))
    if sigma is None:
        batch, length = _batch_and_length(picture, budget, batch, rounds, epochs, parameters, why)
        why["noise"] = (
            f"the least for which the certified ε of all {length:,} rounds stays within "
            f"{budget.epsilon:g} at δ = {budget.delta:.3g}"
        )
        sampling = picture.sampling(batch)
        sigma = exact_noise(budget, sampling, length, picture.clipping, picture.adjacency)
        return picture.mechanism(sigma, batch, length)
    if batch is not None and timed:
        raise PlanError(
            "too much is given: budget, noise_multiplier, batch and length leave nothing to "
            "solve for. Drop one (without the budget, ε follows)"
        )
    if sigma == 0:
        raise PlanError("noise_multiplier 0 keeps no budget: drop it or the budget")
    why["noise"] = "as given"
    if timed:
        why["batch"] = (
            f"the largest that keeps ε within {budget.epsilon:g} at this noise and length"
        )
        return _solve_batch(picture, budget, sigma, rounds, epochs)
    if batch is None:
        why["batch"] = f"the one with which the budget lasts about {defaults.ROUNDS} rounds"
        batch = defaults.batch_for_noise(picture.examples, budget, sigma)
    why["rounds"] = f"as many as ε = {budget.epsilon:g} affords at this noise and batch"
    return _solve_rounds(picture, budget, sigma, batch)


def _batch_and_length(
    picture: _Picture,
    budget: Budget,
    batch: int | None,
    rounds: int | None,
    epochs: float | None,
    parameters: int,
    why: dict[str, str],
) -> tuple[int, int]:
    if batch is None:
        why["batch"] = (
            "the smallest whose noise, relative to what the batch says, is within "
            f"{defaults.WASTE:.0%} of a full batch's, or low enough not to matter; larger ones "
            "only cost more gradients"
        )
        if epochs is not None:
            batch = defaults.batch_for_epochs(picture.examples, budget, epochs)
        else:
            if rounds is None:
                why["rounds"] = (
                    "enough for the optimizer to arrive; more rounds need more noise each and "
                    "gain nothing in sum"
                )
            rounds = rounds or defaults.ROUNDS
            batch = defaults.batch_for_rounds(picture.examples, budget, rounds, parameters)
    if rounds is None and epochs is None:
        why["rounds"] = "as many as this batch serves before small batches waste noise"
        rounds = defaults.rounds_for_batch(picture.examples, budget, batch)
    return batch, picture.length(batch, rounds, epochs)


def _solve_rounds(picture: _Picture, budget: Budget, sigma: float, batch: int) -> Mechanism:
    def make(rounds: float) -> Mechanism:
        return picture.mechanism(sigma, batch, int(rounds))

    rounds = _largest(make, budget, MOST_ROUNDS)
    if rounds is None:
        spent = exact.epsilon(make(1), budget.delta).upper
        sampling = picture.sampling(batch)
        least = exact_noise(budget, sampling, 1, picture.clipping, picture.adjacency)
        raise PlanError(
            f"noise_multiplier {sigma:g} at batch {batch} spends ε = {spent:.4g} in one round, "
            f"more than {budget.epsilon:g}: raise noise_multiplier to at least {least:.4g}"
        )
    return make(rounds)


def _solve_batch(
    picture: _Picture, budget: Budget, sigma: float, rounds: int | None, epochs: float | None
) -> Mechanism:
    def make(batch: float) -> Mechanism:
        return picture.mechanism(sigma, int(batch), picture.length(int(batch), rounds, epochs))

    most = picture.examples
    if epochs is not None:
        most = min(most, max(1, math.floor(2 * epochs * picture.examples)))
    batch = _largest(make, budget, most)
    if batch is None:
        raise PlanError(
            f"with noise_multiplier {sigma:g} even a batch of one record exceeds ε = "
            f"{budget.epsilon:g} (it has {exact.epsilon(make(1), budget.delta).upper:.4g}): raise "
            "noise_multiplier, or shorten the run"
        )
    return make(batch)


def _largest(make: Callable[[float], Mechanism], budget: Budget, most: int) -> int | None:
    """The largest whole number from 1 to ``most`` that keeps the budget; None when none does."""

    def fits(number: int) -> bool:
        return exact.epsilon(make(number), budget.delta).upper <= budget.epsilon

    if not fits(1):
        return None
    if fits(most):
        return most
    return int(calibrate(make, budget, (1, most), integer=True))
