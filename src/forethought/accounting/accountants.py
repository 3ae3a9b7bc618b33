"""The ways in which a Statement's ε is computed: one registry with their words and theorems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from forethought.accounting import exact
from forethought.accounting.adaptive import (
    FILTER,
    GAUSSIAN_FILTER,
    SELECTION,
    PoissonTrials,
    filter_interval,
    selection_interval,
    trials_from_dict,
)
from forethought.accounting.interval import Interval, at_most
from forethought.accounting.renyi import CURVES
from forethought.accounting.summed import (
    AGGREGATE,
    NETWORK,
    SECURE_AGGREGATION,
    aggregate_caveats,
    aggregate_curve,
    aggregate_done,
    aggregate_interval,
    network_caveats,
    network_curve,
    network_done,
    network_interval,
    secure_caveats,
    secure_curve,
    secure_done,
    secure_interval,
)
from forethought.accounting.theorems import theorem
from forethought.values.caveats import Caveat
from forethought.values.mechanism import Adjacency, Correlated, Mechanism, Rounds, releases
from forethought.values.samplings import CyclicPoisson, FullBatch, Shuffled

EXACT, KNOWN_BATCHES = "exact", "known-batches"


@dataclass(frozen=True)
class Accountant:
    """One way from a mechanism to ε, and what a Statement says of it.

    Args:
        interval: (mechanism, δ, group, details) → ε, certified.
        theorems: (mechanism, group) → the results that the accounting rests on.
        covered: what the first sentence says that the proof is for.
        rounds: what the mechanism's rounds are.
        hidden: what the attacker does not see besides the noise, given the mechanism; "" if
            nothing. sees: what they see.
        done: the accountant's details → what was done, a sentence each.
        details: the keys that the details have besides "kind".
        implied: mechanism → caveats that go with every statement of this kind.
        composed: mechanism → the one whose exact composition is stated, so that its whole
            trade-off function bounds an attacker; None where only the one (ε, δ) is proven, and
            where the rounds need not be those of the plan.
        curve: (mechanism, details) → the same where it depends on the details; None: nothing.
        batches_known: the kind that takes over when the batches were drawn from a seed; None
            where no theorem does.
    """

    interval: Callable[[Mechanism, float, int, Mapping[str, Any]], Interval]
    theorems: Callable[[Mechanism, int], tuple[str, ...]]
    covered: str
    rounds: str
    hidden: Callable[[Mechanism], str]
    sees: str = (
        "sees every noised sum that was released (hence every intermediate model and the final "
        "one), knows the plan, the code and all other records"
    )
    done: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda _details: ()
    details: tuple[str, ...] = ()
    implied: Callable[[Mechanism], tuple[Caveat, ...]] = lambda _mechanism: ()
    composed: Callable[[Mechanism], Mechanism] | None = None
    curve: Callable[[Mechanism, Mapping[str, Any]], Mechanism | None] | None = None
    batches_known: str | None = None

    def adversary(self, mechanism: Mechanism) -> str:
        """The attacker's assumed sight and knowledge; follows "The attacker"."""
        hidden = self.hidden(mechanism)
        missing = f"knows neither the noise nor {hidden}" if hidden else "does not know the noise"
        return f"{self.sees}, and {missing}"

    def unknown(self, mechanism: Mechanism) -> str:
        """The attacker's gaps of knowledge, in a few words."""
        *first, last = "the noise", *filter(None, self.hidden(mechanism).split(", nor "))
        return f"{', '.join(first)} and {last}" if first else last

    def adjacency(self, mechanism: Mechanism) -> Adjacency:
        """The difference between neighbouring data sets that ε is about."""
        return (mechanism if self.composed is None else self.composed(mechanism)).adjacency


def amplified(mechanism: Mechanism) -> bool:
    """True if ε counts on an attacker who does not know the batches."""
    return any(part.sampling.hides(part.count) for part in mechanism)


def batches_known(mechanism: Mechanism) -> Mechanism:
    """The mechanism that is left when the attacker knows every batch: a record is in every round
    that may hold it, at the same noise.

    A batch is then a fixed list of positions. A record that is blanked or replaced moves the sums
    it is in, each by as many clipping norms as it can be in the batch, so full participation bounds
    them, at a noise divided by that number; shuffling and random allocation put it into one round
    an epoch, cyclic sampling only into those of its part. One more record would give other
    positions altogether, so presence (add-or-remove) becomes zero-out.
    """
    adjacency: Adjacency = (
        "zero-out" if mechanism.adjacency == "add-or-remove" else mechanism.adjacency
    )
    return Mechanism(*map(_all_turns, mechanism), adjacency=adjacency)


def _all_turns(part: Rounds) -> Rounds:
    """``part`` with a record in every round that may hold it."""
    if isinstance(part, Correlated):
        if not part.sampling.hides(part.count):
            return part
        return replace(part, sampling=CyclicPoisson(1.0, part.sampling.rounds_per_epoch))
    if isinstance(part.sampling, Shuffled):
        return replace(part, count=releases(part) * part.sampling.rounds_per_epoch)
    # Several records may be in as many groups as the rounds of an epoch have together.
    groups = None if part.groups is None else part.groups * part.sampling.rounds_per_epoch
    times = part.sampling.most(1)
    noise = part.noise_multiplier if times == 1 else part.noise_multiplier / times * (1 - 1e-15)
    return Rounds(noise, releases(part), FullBatch(), part.clipping, groups=groups)


def _same(mechanism: Mechanism) -> Mechanism:
    return mechanism


def _sampled(mechanism: Mechanism) -> str:
    return "which records were in which batch" if amplified(mechanism) else ""


def _known(mechanism: Mechanism) -> tuple[Caveat, ...]:
    changed = mechanism.adjacency == "add-or-remove"
    return (Caveat("seeded-sampling"), *((Caveat("presence-not-protected"),) if changed else ()))


def _theorems(mechanism: Mechanism, group: int) -> tuple[str, ...]:
    names = [theorem(part, mechanism.adjacency, group) for part in mechanism]
    return tuple(dict.fromkeys(names))


def _renyi(*more: str) -> Callable[[Mechanism, int], tuple[str, ...]]:
    def theorems(mechanism: Mechanism, _group: int) -> tuple[str, ...]:
        kinds = dict.fromkeys(type(part.sampling) for part in mechanism)
        return (*(f"Rényi divergence: {CURVES[kind].theorem}" for kind in kinds), *more)

    return theorems


def _search(details: Mapping[str, Any]) -> tuple[str, ...]:
    trials = trials_from_dict(details["trials"])
    if isinstance(trials, PoissonTrials):
        drawn = f"Poisson with mean {trials.mean:g}"
    else:
        drawn = (
            f"truncated negative binomial with stopping {trials.stopping:g} and shape "
            f"{trials.shape:g} (mean {trials.mean:.4g})"
        )
    noise = details["score_noise"]
    score = (
        "Trials were compared by a score that is public or named below as not covered"
        if noise is None
        else "Trials were compared by their number of right answers on held-out records, each "
        f"count with Gaussian noise of standard deviation {noise:g}. ε covers those records too; "
        f"for a training record it is {at_most(float(details['training']['epsilon']))}"
    )
    others = len(details["candidates"])
    return (
        f"The number of trials was drawn once, {drawn}, and is not shown; the table is one trial",
        score,
        *((f"{others} other mechanisms could be drawn, and ε covers them",) if others else ()),
    )


def _gaussian_filtered(details: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        "Rounds were chosen adaptively, after seeing results. A Gaussian filter with a budget of "
        f"ε = {details['epsilon']:g} at δ = {details['delta']:g}, set before the first round, was "
        "charged before each release as if it held every record; ε is that budget, whatever would "
        "have been chosen",
    )


def _filtered(details: Mapping[str, Any]) -> tuple[str, ...]:
    orders = ", ".join(f"{order:g}" for order in details["orders"])
    return (
        "Rounds were chosen adaptively, after seeing results. A Rényi filter at order "
        f"{orders} with a budget of ε = {details['epsilon']:g} at δ = {details['delta']:g}, set "
        "before the first round, was charged before each release; ε is that budget, whatever "
        "would have been chosen",
    )


# By kind. Rooms that account in another way register here.
ACCOUNTANTS: dict[str, Accountant] = {
    EXACT: Accountant(
        interval=lambda mechanism, delta, group, _details: exact.epsilon(mechanism, delta, group),
        theorems=_theorems,
        covered="everything the run released",
        rounds="rounds accounted",
        hidden=_sampled,
        composed=_same,
        batches_known=KNOWN_BATCHES,
    ),
    KNOWN_BATCHES: Accountant(
        interval=lambda mechanism, delta, group, _details: exact.epsilon(
            batches_known(mechanism), delta, group
        ),
        theorems=lambda mechanism, group: _theorems(batches_known(mechanism), group),
        covered="everything the run released, to an attacker who knows the batches",
        rounds="rounds, each counted as if it held every record that it can hold",
        hidden=lambda _mechanism: "",
        sees="sees every noised sum that was released (hence every intermediate model and the "
        "final one), knows the plan, the code, which records were in which batch and what all "
        "other records say",
        done=lambda _details: (
            "The batches were drawn from a seed that a person chose, so ε is that of rounds whose "
            "batches are known: no amplification by sampling",
        ),
        implied=_known,
        composed=batches_known,
        batches_known=KNOWN_BATCHES,
    ),
    SELECTION: Accountant(
        interval=selection_interval,
        theorems=_renyi(
            "best of a random number of trials (Papernot and Steinke 2022, Theorems 2 and 6; by "
            "privacy profiles: Koskela, Redberg and Wang 2024), the smaller",
            "conversion to (ε, δ) (Asoodeh et al. 2021, Theorem 2)",
        ),
        covered="the best of a random number of private trials, the search for it included",
        rounds="rounds of one trial",
        hidden=lambda _mechanism: (
            "the other trials, nor how many there were, nor which records were in which batch"
        ),
        sees="sees every noised sum of the trial that was chosen (hence its intermediate and final "
        "models) and its score, knows the candidates, the code and all other records",
        done=_search,
        details=("trials", "candidates", "score_noise", "training"),
        implied=lambda _mechanism: (Caveat("hidden-trials"),),
    ),
    FILTER: Accountant(
        interval=filter_interval,
        theorems=_renyi(
            "Rényi filter (Feldman and Zrnic 2021, Theorem 4.3)",
            "conversion to (ε, δ) (Asoodeh et al. 2021, Theorem 2)",
        ),
        covered="everything the run released, whatever its results would have made it do",
        rounds="rounds released",
        hidden=_sampled,
        done=_filtered,
        details=("epsilon", "delta", "orders", "spent"),
    ),
    GAUSSIAN_FILTER: Accountant(
        interval=filter_interval,
        theorems=lambda _mechanism, _group: (
            "Gaussian mechanism (Balle and Wang 2018, Theorem 8)",
            "Gaussian filter (Smith and Thakurta 2022)",
        ),
        covered="everything the run released, whatever its results would have made it do",
        rounds="rounds released",
        hidden=lambda _mechanism: "",
        done=_gaussian_filtered,
        details=("epsilon", "delta", "spent"),
    ),
    AGGREGATE: Accountant(
        interval=aggregate_interval,
        theorems=_theorems,
        covered="this client's records, in everything that can be seen of the global models",
        rounds="rounds of this client",
        hidden=_sampled,
        sees="sees every global model (hence the final one), in which the clients' noised sums are "
        "added up, sees no single client's, knows the plans, the code and all other records",
        done=aggregate_done,
        details=("gain",),
        curve=aggregate_curve,
        implied=aggregate_caveats,
        batches_known=KNOWN_BATCHES,
    ),
    NETWORK: Accountant(
        interval=network_interval,
        theorems=lambda mechanism, group: (
            *_theorems(mechanism, group),
            "network differential privacy (Cyffers and Bellet 2022)",
        ),
        covered="this worker's records, in everything that the observers are sent",
        rounds="rounds of this worker",
        hidden=_sampled,
        sees="sees the averages that a distant worker of the gossip is sent and knows that "
        "worker's own sums, sees no single sum of others beyond what those averages tell, knows "
        "the plans, the code and all other records",
        done=network_done,
        details=("gains", "observers"),
        curve=network_curve,
        implied=network_caveats,
        batches_known=KNOWN_BATCHES,
    ),
    SECURE_AGGREGATION: Accountant(
        interval=secure_interval,
        theorems=lambda mechanism, group: (
            *_theorems(mechanism, group),
            "distributed discrete Gaussian (Kairouz, Liu and Steinke 2021, Corollary 12)",
            "secure aggregation (Bonawitz et al. 2017, Theorem 6.3)",
        ),
        covered="this client's records, in everything that secure aggregation shows",
        rounds="rounds of this client",
        hidden=_sampled,
        sees="sees what the server does, the cohort's sum in every round and every model, is told "
        "everything by the clients that collude with it, knows the plans, the code and all other "
        "records",
        done=secure_done,
        details=("clients", "dropouts", "colluders", "coordinates", "scale"),
        curve=secure_curve,
        implied=secure_caveats,
        batches_known=KNOWN_BATCHES,
    ),
}
