"""Sample sizes that a client chooses on the fly, from what it has released, within a filter.

van Dijk et al., Appendix A, let a client adapt its sizes s_i as it runs. Composition of rounds that
were fixed in advance does not cover that: a size that follows from a release is a parameter chosen
by results.

**Formal guarantee.** Let update i be the Gaussian mechanism on a Poisson sample of rate q_i, its σ
planned, where q_i is a function of the client's releases before i (of those up to i − k, k being
the delay) and of public values. Given these releases the round's Rényi divergence at order α is at
most D_α(q_i, σ), for every pair of neighbours. A round is begun only while Σ_j D_α(q_j, σ), itself
included, is at most the B that converts to the plan's (ε, δ) at α; α is fixed before the first
round. Then all that the client ever releases is (ε, δ)-DP, whatever rule chose the sizes: Feldman
and Zrnic 2021, Theorem 4.3 (:class:`~forethought.accounting.adaptive.RenyiFilter`). What other
members send enters as their models do: by what the client released, and by what does not depend on
its records. The Gaussian filter of that room would charge a sampled round as one of all records.

The sum is divided by what the *planned* size would give: how many records came is secret, and a
divisor that followed q_i would only be another step size. Refused, since the theorem is not about
it: several records of a person, sums that are not one of single Poisson-sampled records, masks
(which share one noise out among all), phases, and persons at several clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from forethought.accounting.adaptive import BudgetExceededError, Filter, suited_filter
from forethought.values.checks import imported, one_of, real, whole
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan, Transcript
from forethought.values.serialisation import canonical


@dataclass(frozen=True)
class Past:
    """All that a rule may look at before an update: releases, and public values.

    Args:
        update: its number. examples: records of the client. planned: size of every update as
            planned, expected records.
        sizes: of all updates before. norms: L2 norms of the released means, of updates up to
            ``update`` − delay. noise: the norm that noise alone would have, √d·σC/planned.
        affordable: the size that all planned updates that are left can have, within one percent.
    """

    update: int
    examples: int
    planned: float
    sizes: tuple[float, ...]
    norms: tuple[float, ...]
    noise: float
    affordable: float


Rule = Callable[[Past], float]


def constant(past: Past) -> float:
    """As planned."""
    return past.planned


def signal(past: Past) -> float:
    """Three quarters of what is affordable while the newest mean stands out from its noise, else
    all of it: what is saved at the beginning is spent where gradients are small.

    To stand out is a squared norm of at least twice that of noise alone.
    """
    stands_out = bool(past.norms) and past.norms[-1] ** 2 >= 2 * past.noise**2
    return past.affordable * (0.75 if stands_out else 1.0)


RULES: Mapping[str, Rule] = {"signal": signal, "constant": constant}


@dataclass(frozen=True)
class Sizes:
    """A rule for sample sizes, by name.

    Args:
        kind: ``"signal"`` or ``"constant"``, a key of :data:`RULES`; or ``"module:function"``, the
            client's own function of a :class:`Past`, which must look at nothing else.
        most: largest size, in planned ones. delay: k, at least 1; see the module.

    Raises:
        ValueError: an unknown kind, or numbers outside their ranges.
    """

    kind: str = "signal"
    most: float = 4.0
    delay: int = 1

    def __post_init__(self) -> None:
        if ":" not in self.kind:
            one_of("sizes", self.kind, (*RULES, "module:function"))
        object.__setattr__(self, "most", real("most", self.most, least=1, most=1000))
        object.__setattr__(self, "delay", whole("delay", self.delay))

    @property
    def rule(self) -> Rule:
        """The function, of the client's own imported here and not before."""
        return imported("sizes", self.kind) if ":" in self.kind else RULES[self.kind]

    def refusal(self, plan: Plan) -> str | None:
        """The reason why the theorem does not cover a plan with these sizes; None: it does."""
        if plan.budget is None:
            return "a filter keeps a budget: plan with one"
        if plan.records_per_person > 1:
            return "the filter is for one record: plan with one record a person"
        if plan.contribution.kind != "examples" or plan.clip.rule == "quantile":
            return "a round is to be one sum of single clipped records: plan with that"
        if len(plan.mechanism.rounds) > 1 or not isinstance(plan.sampling, Poisson):
            return "a size departs from one planned Poisson rate: plan with that"
        return None


def filter_of(plan: Plan) -> Filter:
    """The empty filter that a client's releases are charged to: its plan's budget."""
    assert plan.budget is not None  # refused before
    return suited_filter(plan.mechanism, plan.budget)


def charged(plan: Plan, transcript: Transcript | None) -> Filter:
    """The filter after these releases; None: after all that is planned.

    Raises:
        BudgetExceededError: they do not fit.
    """
    found = filter_of(plan)
    if transcript is None:
        found.spend(plan.mechanism)
    elif len(transcript):
        found.spend(transcript.mechanism(plan.mechanism.adjacency))
    return found


def fitted(plan: Plan) -> Plan:
    """The plan with the least noise, to a thousandth, at which all planned rounds fit.

    A filter converts divergences at one order, and affords a little less than exact composition.
    """

    def at(factor: float) -> Plan:
        parts = [
            replace(part, noise_multiplier=part.noise_multiplier * factor)
            for part in plan.mechanism
        ]
        return plan.with_(mechanism=Mechanism(*parts, adjacency=plan.mechanism.adjacency))

    def fits(factor: float) -> bool:
        return not filter_of(at(factor)).would_exceed(at(factor).mechanism)

    low, high = 1.0, 1.0
    while not fits(high):
        low, high = high, 1.25 * high
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return at(high)


class Guard:
    """Chooses a client's sizes, and refuses every release that the filter does not allow.

    It has no state: all follows from what the ledger holds.

    Args:
        plan: the client's. sizes: its rule. parameters: of the model.
    """

    def __init__(self, plan: Plan, sizes: Sizes, parameters: int) -> None:
        self.plan, self.sizes = plan, sizes
        planned = plan.round(0)
        self._planned = planned.sampling.expected_batch(self.plan.examples)
        self._noise = math.sqrt(parameters * planned.mean_variance)

    def next(self, update: int, state: bytes) -> Rounds | None:
        """The update's round with the size that the rule chooses; None: it does not fit any more.

        Args:
            state: of the trainer after the update before; b"": this is the first.
        """
        transcript, norms = _held(state)
        plan, like = self.plan, self.plan.round_at(update)
        sizes = tuple(
            part.sampling.expected_batch(plan.examples)
            for part in (transcript.mechanism("add-or-remove") if len(transcript) else ())
            for _ in range(part.count)
        )
        seen = tuple(norms[: max(0, update - self.sizes.delay + 1)])
        spent, largest = charged(plan, transcript), self.sizes.most * self._planned
        largest = min(largest, float(plan.examples))

        def fits(size: float, count: int) -> Rounds | None:
            chosen = replace(like, count=count, sampling=Poisson(size / plan.examples))
            return None if spent.would_exceed(chosen) else chosen

        low, high = self._planned / self.sizes.most / 100, largest
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fits(middle, plan.rounds - update) else (low, middle)
        past = Past(update, plan.examples, self._planned, sizes, seen, self._noise, low)
        size = real("the size that a rule chose", self.sizes.rule(past), above=0)
        return fits(min(size, largest), 1)

    def before(self, state: bytes, text: str) -> None:
        """Refuse to begin a round that does not fit after what ``state`` has released.

        Raises:
            BudgetExceededError, ValueError: it does not, or is none.
        """
        charged(self.plan, _held(state)[0]).spend(Rounds.from_dict(json.loads(text)))

    def after(self, state: bytes, text: str) -> None:
        """Refuse to commit what was not begun so, or does not fit.

        Args:
            state: of the trainer with the release in it.

        Raises:
            BudgetExceededError: all that was released is more than the filter allows, or not this.
        """
        transcript, _ = _held(state)
        charged(self.plan, transcript)
        mechanism = transcript.mechanism(self.plan.mechanism.adjacency)
        last, begun = mechanism.rounds[-1], Rounds.from_dict(json.loads(text))
        if replace(last, count=1) != begun:
            raise BudgetExceededError(f"{last!r} was released, {begun!r} was begun")


def text_of(chosen: Rounds) -> str:
    """A round as a ledger holds it."""
    return canonical(chosen.to_dict())


def _held(state: bytes) -> tuple[Transcript, list[float]]:
    """The releases in a trainer's state, and their norms."""
    if not state:
        return Transcript(), []
    length = int.from_bytes(state[:8], "little")
    values: dict[str, Any] = json.loads(json.loads(state[8 : 8 + length])["__metadata__"]["values"])
    return Transcript.from_values(values["transcript"]), values.get("norms", [])
