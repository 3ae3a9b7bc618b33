"""Adaptive sample sizes: a client chooses them from its own releases, within a privacy filter.

van Dijk et al., Appendix A, let a client adapt its sizes s_i during the run. Composition theorems
for rounds fixed in advance do not cover that: such a size is an adaptively chosen privacy
parameter.

**Formal guarantee.** Let update i be the Gaussian mechanism on a Poisson sample of rate q_i, its σ
planned, where q_i is a function of the client's releases before i (of those up to i − k, k being
the delay) and of public values. Given these releases the round's Rényi divergence at order α is at
most D_α(q_i, σ), for every pair of neighbours. A round begins only if Σ_j D_α(q_j, σ), including
this round, is at most the B that converts to the plan's (ε, δ) at α; α is fixed before the first
round. Then the sequence of all the client's releases is (ε, δ)-DP, whatever rule chose the sizes:
Feldman and Zrnic 2021, Theorem 4.3 (:class:`~forethought.accounting.adaptive.RenyiFilter`). Other
members' messages depend on the client's records only through its releases. The Gaussian filter of
that module would charge a sampled round like a round of all records.

The sum is divided by the *planned* expected size: the actual number of records is secret, and a
divisor that followed q_i would only be another step size. The theorem does not cover these cases,
which are refused: several records per person, sums other than one of single Poisson-sampled
records, masks (they distribute one noise over all clients), phases, and persons at several clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from forethought.accounting.adaptive import BudgetExceededError, Filter, suited_filter
from forethought.values.checks import imported, one_of, real, settle, whole
from forethought.values.mechanism import Poisson, Rounds, scaled_noise
from forethought.values.plan import Plan, Transcript
from forethought.values.serialisation import canonical


@dataclass(frozen=True)
class Past:
    """Everything that a rule may read before an update: the client's releases and public values.

    Args:
        update: number of the update, from 0. examples: number of the client's records.
        planned: planned size of every update, in expected records.
        sizes: expected sizes of all earlier updates. norms: L2 norms of the released means, of
            updates up to ``update`` − delay. noise: norm of the noise alone, √d·σC/planned.
        affordable: size that all remaining planned updates can have, to one percent.
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
    """The planned size."""
    return past.planned


def signal(past: Past) -> float:
    """Three quarters of the affordable size while the newest mean exceeds its noise; else all.

    So budget saved at the beginning is spent later, where gradients are small. The mean exceeds its
    noise if its squared norm is at least twice that of the noise alone.
    """
    stands_out = bool(past.norms) and past.norms[-1] ** 2 >= 2 * past.noise**2
    return past.affordable * (0.75 if stands_out else 1.0)


RULES: Mapping[str, Rule] = {"signal": signal, "constant": constant}


@dataclass(frozen=True)
class Sizes:
    """A rule for sample sizes, by name.

    Args:
        kind: ``"signal"`` or ``"constant"``, a key of :data:`RULES`; or ``"module:function"``, the
            client's own function of a :class:`Past`, which must read nothing else.
        most: largest size as a multiple of the planned one, 1 to 1000.
        delay: k, at least 1; see the module.

    Raises:
        ValueError: an unknown kind, or numbers outside their ranges.
    """

    kind: str = "signal"
    most: float = 4.0
    delay: int = 1

    def __post_init__(self) -> None:
        if ":" not in self.kind:
            one_of("sizes", self.kind, (*RULES, "module:function"))
        most = real("most", self.most, least=1, most=1000)
        settle(self, most=most, delay=whole("delay", self.delay))

    @property
    def rule(self) -> Rule:
        """The function; the client's own function is imported at this access, not earlier."""
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
    """A new filter with the plan's budget, to which a client's releases are charged."""
    assert plan.budget is not None  # refused before
    return suited_filter(plan.mechanism, plan.budget)


def charged(plan: Plan, transcript: Transcript | None) -> Filter:
    """The filter after these releases; None: after all planned rounds.

    Raises:
        BudgetExceededError: they exceed the budget.
    """
    found = filter_of(plan)
    if transcript is None:
        found.spend(plan.mechanism)
    elif len(transcript):
        found.spend(transcript.mechanism(plan.mechanism.adjacency))
    return found


def fitted(plan: Plan) -> Plan:
    """The plan with the least noise, within a factor of 1.001, at which all planned rounds fit.

    A filter converts at one Rényi order, so it permits slightly less than exact composition.
    """

    def at(factor: float) -> Plan:
        return plan.remade(mechanism=scaled_noise(plan.mechanism, factor))

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

    It has no state of its own: everything follows from the ledger.

    Args:
        plan: the client's plan. sizes: its rule. parameters: number of the model's parameters.
    """

    def __init__(self, plan: Plan, sizes: Sizes, parameters: int) -> None:
        self.plan, self.sizes = plan, sizes
        planned = plan.round(0)
        self._planned = planned.sampling.expected_batch(self.plan.examples)
        self._noise = math.sqrt(parameters * planned.mean_variance)

    def next(self, update: int, state: bytes) -> Rounds | None:
        """The update's round with the size that the rule chooses; None: it exceeds the filter.

        Args:
            update: number of the update, from 0.
            state: the trainer's state after the previous update; b"": this is the first.
        """
        transcript = released(state)
        norms = values_of(state).get("norms", []) if state else []
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
        """Refuse to begin a round that does not fit after the releases in ``state``.

        Args:
            text: the round, from :func:`text_of`.

        Raises:
            BudgetExceededError: the round does not fit. ValueError: ``text`` is not a round.
        """
        charged(self.plan, released(state)).spend(Rounds.from_dict(json.loads(text)))

    def after(self, state: bytes, text: str) -> None:
        """Refuse to commit a release that does not fit or differs from the round that was begun.

        Args:
            state: the trainer's state, including the release. text: the round that was begun.

        Raises:
            BudgetExceededError: the releases exceed the filter, or the last one is another round.
        """
        transcript = released(state)
        charged(self.plan, transcript)
        mechanism = transcript.mechanism(self.plan.mechanism.adjacency)
        last, begun = mechanism.rounds[-1], Rounds.from_dict(json.loads(text))
        if replace(last, count=1) != begun:
            raise BudgetExceededError(f"{last!r} was released, {begun!r} was begun")


def text_of(chosen: Rounds) -> str:
    """A round as the JSON text that a ledger stores."""
    return canonical(chosen.to_dict())


def values_of(state: bytes) -> dict[str, Any]:
    """The plain values in a trainer's state, which is in the format of safetensors."""
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])
    return json.loads(header["__metadata__"]["values"])


def released(state: bytes) -> Transcript:
    """The releases of a client, from the last state in its ledger; b"": none."""
    return Transcript.from_values(values_of(state)["transcript"]) if state else Transcript()
