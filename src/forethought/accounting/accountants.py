"""The registry of accountants: each computes a Statement's ε and gives its words and theorems.

**The distance of sums of discrete Gaussians from continuous Gaussian noise: certified charges.**

A discrete Gaussian of scale s has every whole number k with probability ∝ exp(−k²/2s²). Write
a(s) = 2·Σ_{k≥1} exp(−2π²s²k²). By Poisson summation Σ_j exp(−(j − c)²/2s²) = s√(2π)·(1 + θ) with
|θ| ≤ a(s) for every real c, and = s√(2π)·(1 + a(s)) at c = 0. Two facts follow.

**Sums.** X and Y with scales s and t are convolved: the product of their weights at x and w − x is
the weight of scale u = √(s² + t²) at w, times a Gaussian in x of scale v = st/u. So the ratio of
P(X + Y = w) to that of scale u is (1 + θ_v)(1 + a(u))/((1 + a(s))(1 + a(t))), and its logarithm is
at most −ln(1 − a(v)) + 2·a(v) in absolute value, since v is the smallest of the four scales. For
more variables the charges add (Kairouz, Liu and Steinke 2021, Corollary 12, with 10·e^(−2π²v²)).

**Continuous noise.** A continuous Gaussian of standard deviation √(s² − r²), rounded by drawing
k ∝ exp(−(k − y)²/2r²), is the discrete Gaussian of scale s up to (1 + a(s))/(1 + θ_r) (Peikert
2010, Theorem 3.1). Rounding is post-processing and commutes with shifts by whole numbers, so
theorems about continuous Gaussian noise, subsampled or not, hold up to the charge.

**Attackers who see a client's noised sums only within sums of several clients.** Three attackers
see less of a client than the server does. One sees global models, which in synchronous rounds
depend on the clients through their weighted sum (``aggregate``). One is the server of a secure
aggregation (``secure-aggregation``). One is a worker of a gossip that sees partial averages
(``network``; Cyffers and Bellet 2022). Each of them sees sums that also contain the Gaussian,
independent noise of other clients, and the rest of the sum does not depend on the client's record.
So the client's mechanism is accounted at its noise multiplier times a gain: the standard deviation
of all noise that the attacker does not know, over that of the client's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from forethought.accounting import adaptive, exact
from forethought.accounting.interval import Interval, at_most
from forethought.accounting.renyi import CURVES
from forethought.accounting.theorems import theorem, whole_epochs
from forethought.values.caveats import Caveat
from forethought.values.checks import real, whole
from forethought.values.mechanism import (
    Adjacency,
    Correlated,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Rounds,
    Shuffled,
)

EXACT, KNOWN_BATCHES = "exact", "known-batches"
AGGREGATE, SECURE_AGGREGATION, NETWORK = "aggregate", "secure-aggregation", "network"
_EVERYTHING = (
    "sees every noised sum that was released (hence every intermediate model and the final one), "
    "knows the plan, the code"
)
Details = Mapping[str, Any]


def amplified(mechanism: Mechanism) -> bool:
    """True if ε holds only against attackers who do not know the batches."""
    return any(part.sampling.hides(part.count) for part in mechanism)


def batches_known(mechanism: Mechanism) -> Mechanism:
    """The mechanism against an attacker who knows every batch: no amplification by sampling.

    A batch is then a fixed list of positions. A record that is blanked or replaced moves each sum
    that holds it by as many clipping norms as the record is in the batch. So it counts as in every
    round that may hold it, at the noise divided by its largest number of occurrences. Shuffling and
    random allocation put it into one round of an epoch, cyclic sampling only into the rounds of its
    part. One more record would change all positions, so add-or-remove becomes zero-out.
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
        return replace(part, count=part.releases * part.sampling.rounds_per_epoch)
    # Several records may be in different groups of different rounds of an epoch.
    groups = None if part.groups is None else part.groups * part.sampling.rounds_per_epoch
    times = part.sampling.most(1)
    noise = part.noise_multiplier if times == 1 else part.noise_multiplier / times * (1 - 1e-15)
    return Rounds(noise, part.releases, FullBatch(), part.clipping, groups=groups)


def _theorems(mechanism: Mechanism, group: int) -> tuple[str, ...]:
    pieces = chain.from_iterable(map(whole_epochs, mechanism))
    return tuple(dict.fromkeys(theorem(piece, mechanism.adjacency, group) for piece in pieces))


@dataclass(frozen=True)
class Accountant:
    """One way to compute ε from a mechanism, and the texts about it in a Statement.

    Args:
        covered: the covered outputs, as the Statement's first sentence names them.
        rounds: name of the mechanism's rounds.
        hidden: mechanism → what the attacker does not know besides the noise; "" if nothing.
        sees: what the attacker sees and knows; continues "The attacker".
        done: the accountant's details → sentences on the run.
        details: the keys of the details besides "kind".
        caveats: the caveats of every Statement of this kind.
        composed: mechanism → the mechanism whose exact ε is stated; None if only one (ε, δ) is
            proven, or it follows from the details.
        curve: (mechanism, details) → the mechanism whose trade-off function bounds the attacker, if
            it depends on the details; it returns None if there is none.
        proven: (mechanism, δ, group, details) → certified interval of ε, if that is not the exact ε
            of the mechanism.
        named: (mechanism, group) → the theorems on its rounds.
        further: other results that the accounting rests on.
        batches_known: the kind of accountant to use instead if the batches were drawn from a seed;
            None if there is none.
    """

    covered: str
    rounds: str
    hidden: Callable[[Mechanism], str] = lambda mechanism: (
        "which records were in which batch" if amplified(mechanism) else ""
    )
    sees: str = f"{_EVERYTHING} and all other records"
    done: Callable[[Details], tuple[str, ...]] = lambda _details: ()
    details: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    composed: Callable[[Mechanism], Mechanism] | None = None
    curve: Callable[[Mechanism, Details], Mechanism | None] | None = None
    proven: Callable[[Mechanism, float, int, Details], Interval] | None = None
    named: Callable[[Mechanism, int], tuple[str, ...]] = _theorems
    further: tuple[str, ...] = ()
    batches_known: str | None = KNOWN_BATCHES

    def faced(self, mechanism: Mechanism, details: Details) -> Mechanism | None:
        """The mechanism whose trade-off function bounds an attacker; None: only (ε, δ) does."""
        if self.curve is not None:
            return self.curve(mechanism, details)
        return None if self.composed is None else self.composed(mechanism)

    def interval(
        self, mechanism: Mechanism, delta: float, group: int, details: Details
    ) -> Interval:
        """The certified interval of ε.

        Raises:
            UnsupportedMechanismError: no theorem covers the mechanism.
            ValueError: the details do not fit the mechanism.
        """
        if self.proven is not None:
            return self.proven(mechanism, delta, group, details)
        return exact.epsilon(self.faced(mechanism, details) or mechanism, delta, group)

    def theorems(self, mechanism: Mechanism, group: int) -> tuple[str, ...]:
        """The results that the accounting rests on."""
        known = mechanism if self.composed is None else self.composed(mechanism)
        return (*self.named(known, group), *self.further)

    def implied(self, mechanism: Mechanism) -> tuple[Caveat, ...]:
        """The caveats of every Statement of this kind about the mechanism."""
        changed = self.adjacency(mechanism) != mechanism.adjacency
        return (*self.caveats, *([Caveat("presence-not-protected")] if changed else ()))

    def adversary(self, mechanism: Mechanism) -> str:
        """The attacker's assumed view and knowledge; the text continues "The attacker"."""
        hidden = self.hidden(mechanism)
        missing = f"knows neither the noise nor {hidden}" if hidden else "does not know the noise"
        return f"{self.sees}, and {missing}"

    def unknown(self, mechanism: Mechanism) -> str:
        """The facts that the attacker does not know, in a few words."""
        *first, last = "the noise", *filter(None, self.hidden(mechanism).split(", nor "))
        return f"{', '.join(first)} and {last}" if first else last

    def adjacency(self, mechanism: Mechanism) -> Adjacency:
        """The neighbouring relation of data sets for which ε holds."""
        return (mechanism if self.composed is None else self.composed(mechanism)).adjacency


# Factor that moves a bound up by more than the rounding of the few operations here.
_OUTWARD = 1 + 1e-12
# Scale r of the rounding in "Continuous noise": its charge is below 10⁻⁷⁵, and r² is small.
ROUNDING_SCALE = 3.0
# Below this scale a(s) is not small, and the bounds are useless.
_LEAST_SCALE = 0.5


def sum_divergence(scale: float, parties: int) -> float:
    """A bound on |ln P(sum = w)/P(one of scale √n·s = w)|, for n discrete Gaussians of scale s.

    Args:
        scale: s of each, in steps of the grid.
        parties: n ≥ 1.

    Raises:
        ValueError: ``scale`` is below ½, or ``parties`` below 1.
    """
    if not scale >= _LEAST_SCALE or parties < 1:
        raise ValueError(f"a discrete Gaussian needs a scale of at least {_LEAST_SCALE}: {scale}")
    total = 0.0
    for before in range(1, parties):
        # The scales √before·s and s give v² = s²·before/(before + 1), which grows with each party.
        charge = _charge(scale * math.sqrt(before / (before + 1)))
        if charge == 0.0:
            break
        total += charge
    return total * _OUTWARD


def real_divergence(scale: float, rounding: float = ROUNDING_SCALE) -> float:
    """A bound on |ln| of the ratio between a discrete Gaussian and a rounded continuous one.

    Args:
        scale: s of the discrete Gaussian, in steps of the grid.
        rounding: r; the continuous Gaussian has standard deviation √(s² − r²).

    Raises:
        ValueError: r is below ½ or not below s.
    """
    if not _LEAST_SCALE <= rounding < scale:
        text = f"a discrete Gaussian of scale {scale:g} cannot be rounded at scale {rounding:g}"
        raise ValueError(f"{text}: use more noise for the grid's step, or a finer grid")
    return _charge(rounding)


def charged(interval: Interval, divergence: float) -> Interval:
    """ε of a mechanism whose output probabilities differ by at most factors exp(±``divergence``).

    ``interval`` is at δ·exp(−divergence): P' ≤ e^d P ≤ e^d (e^ε Q + δe^−d) ≤ e^(ε+2d) Q' + δ.
    """
    return Interval(
        max(0.0, interval.lower - 2 * divergence), (interval.upper + 2 * divergence) * _OUTWARD
    )


def _charge(smallest: float) -> float:
    # a(s), rounded up: the series is below its first term over 1 − the ratio of the first two.
    first = math.exp(-2 * math.pi**2 * smallest * smallest)
    tail = 2 * first / (1 - first**3) * _OUTWARD
    return (2 * tail - math.log1p(-tail)) * _OUTWARD


# A divergence below this is less than the outward rounding of an attacker's power.
_NOTHING = 1e-40
# Factor that moves a bound down by more than the rounding of the few operations here.
_INWARD = 1 - 1e-12


def aggregate_curve(mechanism: Mechanism, details: Details) -> Mechanism:
    """The mechanism against an attacker who sees only the weighted sums of all clients.

    Args:
        mechanism: the mechanism of one client's noised sums.
        details: ``gain``: √(Σ_j (a_j σ_j C_j)²)/(a_k σ_k C_k) for weights a and this client k, in
            the round where it is least.

    Raises:
        ValueError: the gain is below 1.
    """
    return _scaled(mechanism, real("gain", details["gain"], least=1))


def network_curve(mechanism: Mechanism, details: Details) -> Mechanism:
    """The mechanism against workers who see averages of others, and know their own noise.

    Rounds of one kind compose in any order. If the mechanism has several kinds, or a record takes
    part in turns, the details do not say which rounds have which gain; then the least gain is used
    for all rounds.

    Args:
        mechanism: the mechanism of one worker's noised sums.
        details: ``gains``: pairs (gain, number of rounds with this gain) for all rounds;
            ``observers``: the number of workers who share all that they see.

    Raises:
        ValueError: a gain is below 1, or the numbers of rounds do not add up to the mechanism's.
    """
    whole("observers", details["observers"])
    gains = [
        (real("gain", gain, least=1), whole("rounds", count)) for gain, count in details["gains"]
    ]
    rounds = sum(count for _, count in gains)
    if rounds != len(mechanism):
        raise ValueError(f"gains are given for {rounds} rounds, the mechanism has {len(mechanism)}")
    parts = mechanism.rounds
    if len(parts) > 1 or parts[0].sampling.rounds_per_epoch > 1 or isinstance(parts[0], Correlated):
        return _scaled(mechanism, min(gain for gain, _ in gains))
    scaled = (
        _scaled(Mechanism(replace(parts[0], count=count), adjacency=mechanism.adjacency), gain)
        for gain, count in gains
    )
    return Mechanism(*chain.from_iterable(scaled), adjacency=mechanism.adjacency)


def _observed(details: Details) -> tuple[str, ...]:
    least = min(float(gain) for gain, _ in details["gains"])
    observers = whole("observers", details["observers"])
    who = "one other worker" if observers == 1 else f"{observers} other workers together"
    return (
        f"The attacker is {who} of the gossip and sees averages of several workers' sums, with at "
        f"least {least:.4g} times the standard deviation of this worker's own noise. Against its "
        "neighbours all together, and by default, the statement without this view holds",
    )


def secure_interval(mechanism: Mechanism, delta: float, group: int, details: Details) -> Interval:
    """ε against the server of a secure aggregation and the clients that collude with it.

    Args:
        mechanism: the mechanism of one client's noised sums, with its own share of the noise.
        delta: in (0, 1).
        group: number of records in which neighbouring data sets differ.
        details: ``clients``, ``dropouts`` and ``colluders`` of a round; ``coordinates`` of a sum;
            ``scale`` of a client's discrete Gaussian, in steps of the grid.

    Raises:
        ValueError: no client is left that neither drops out nor colludes, or the noise is too small
            for the grid.
    """
    behind, divergence = _behind_masks(mechanism, details)
    at = delta * math.exp(-divergence) * _INWARD if divergence else delta
    return charged(exact.epsilon(behind, at, group), divergence)


def secure_curve(mechanism: Mechanism, details: Details) -> Mechanism | None:
    """The mechanism whose trade-off function bounds the attacker; None if the grid is coarse."""
    behind, divergence = _behind_masks(mechanism, details)
    return behind if divergence < _NOTHING else None


def _behind_masks(mechanism: Mechanism, details: Details) -> tuple[Mechanism, float]:
    """The mechanism against the server, and the divergence up to which it holds."""
    honest, scale = honest_clients(details), real("scale", details["scale"], above=0)
    coordinates = whole("coordinates", details["coordinates"])
    # The sum of all honest noise, less the variance of rounding: "Continuous noise" above.
    divergence = sum_divergence(scale, honest) + real_divergence(scale * math.sqrt(honest))
    gain = math.sqrt(honest - (ROUNDING_SCALE / scale) ** 2)
    divergence *= coordinates * len(mechanism)
    if divergence > 1:
        where = f"{coordinates:,} coordinates in {len(mechanism):,} rounds"
        raise ValueError(f"noise of {scale:g} steps is too coarse for {where}: use a finer grid")
    return _scaled(mechanism, gain), divergence


def honest_clients(details: Details) -> int:
    """The number of clients whose noise is in every opened sum and unknown to the attacker."""
    clients = whole("clients", details["clients"], least=2)
    dropouts = whole("dropouts", details["dropouts"], least=0)
    colluders = whole("colluders", details["colluders"], least=0)
    return whole("clients that neither drop out nor collude", clients - dropouts - colluders)


def _aggregated(details: Details) -> tuple[str, ...]:
    return (
        "The attacker sees the clients' noised sums added up, with at least "
        f"{float(details['gain']):.4g} times the standard deviation of this client's own noise. "
        "Against whoever sees this client's own noised sums, the statement without this view holds",
    )


def _masked(details: Details) -> tuple[str, ...]:
    return (
        f"Rounds summed {details['clients']} clients by secure aggregation. Up to "
        f"{details['dropouts']} may drop out of a round and up to {details['colluders']} may "
        f"collude with the server, so at least {honest_clients(details)} clients' noise is unknown "
        "to it in every sum; the table shows this client's own share. Should secure aggregation "
        "fail, the statement without it still holds",
    )


def _scaled(mechanism: Mechanism, gain: float) -> Mechanism:
    if gain == 1:
        return mechanism
    parts = (
        replace(part, noise_multiplier=part.noise_multiplier * gain * _INWARD) for part in mechanism
    )
    return Mechanism(*parts, adjacency=mechanism.adjacency)


def _renyi(mechanism: Mechanism, _group: int) -> tuple[str, ...]:
    kinds = dict.fromkeys(part.sampling.kind for part in mechanism)
    return tuple(f"Rényi divergence: {CURVES[kind]}" for kind in kinds)


def _search(details: Details) -> tuple[str, ...]:
    trials = adaptive.trials_from_dict(details["trials"])
    if isinstance(trials, adaptive.PoissonTrials):
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


def _filtered(details: Details) -> tuple[str, ...]:
    name, charged = "Gaussian filter", "charged before each release as if it held every record"
    if "orders" in details:
        orders = ", ".join(f"{order:g}" for order in details["orders"])
        name, charged = f"Rényi filter at order {orders}", "charged before each release"
    return (
        f"Rounds were chosen adaptively, after seeing results. A {name} with a budget of "
        f"ε = {details['epsilon']:g} at δ = {details['delta']:g}, set before the first round, was "
        f"{charged}; ε is that budget, whatever would have been chosen",
    )


_CONVERTED = "conversion to (ε, δ) (Asoodeh et al. 2021, Theorem 2)"
_WHATEVER = "everything the run released, whatever its results would have made it do"

# The accountants by kind.
ACCOUNTANTS: dict[str, Accountant] = {
    EXACT: Accountant(
        covered="everything the run released",
        rounds="rounds accounted",
        composed=lambda mechanism: mechanism,
    ),
    KNOWN_BATCHES: Accountant(
        covered="everything the run released, to an attacker who knows the batches",
        rounds="rounds, each counted as if it held every record that it can hold",
        hidden=lambda _mechanism: "",
        sees=f"{_EVERYTHING}, which records were in which batch and what all other records say",
        done=lambda _details: (
            "The batches were drawn from a seed that a person chose, so ε is that of rounds whose "
            "batches are known: no amplification by sampling",
        ),
        caveats=(Caveat("seeded-sampling"),),
        composed=batches_known,
    ),
    adaptive.SELECTION: Accountant(
        proven=adaptive.selection_interval,
        named=_renyi,
        further=(
            "best of a random number of trials (Papernot and Steinke 2022, Theorems 2 and 6; by "
            "privacy profiles: Koskela, Redberg and Wang 2024), the smaller",
            _CONVERTED,
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
        caveats=(Caveat("hidden-trials"),),
        batches_known=None,
    ),
    adaptive.FILTER: Accountant(
        proven=adaptive.filter_interval,
        named=_renyi,
        further=("Rényi filter (Feldman and Zrnic 2021, Theorem 4.3)", _CONVERTED),
        covered=_WHATEVER,
        rounds="rounds released",
        done=_filtered,
        details=("epsilon", "delta", "orders", "spent"),
        batches_known=None,
    ),
    adaptive.GAUSSIAN_FILTER: Accountant(
        proven=adaptive.filter_interval,
        named=lambda _mechanism, _group: ("Gaussian mechanism (Balle and Wang 2018, Theorem 8)",),
        further=("Gaussian filter (Smith and Thakurta 2022)",),
        covered=_WHATEVER,
        rounds="rounds released",
        hidden=lambda _mechanism: "",
        done=_filtered,
        details=("epsilon", "delta", "spent"),
        batches_known=None,
    ),
    AGGREGATE: Accountant(
        covered="this client's records, in everything that can be seen of the global models",
        rounds="rounds of this client",
        sees="sees every global model (hence the final one), in which the clients' noised sums are "
        "added up, sees no single client's, knows the plans, the code and all other records",
        done=_aggregated,
        details=("gain",),
        curve=aggregate_curve,
        caveats=(Caveat("single-updates-hidden"), Caveat("others-noise")),
    ),
    NETWORK: Accountant(
        further=("network differential privacy (Cyffers and Bellet 2022)",),
        covered="this worker's records, in everything that the observers are sent",
        rounds="rounds of this worker",
        sees="sees the averages that a distant worker of the gossip is sent and knows that "
        "worker's own sums, sees no single sum of others beyond what those averages tell, knows "
        "the plans, the code and all other records",
        done=_observed,
        details=("gains", "observers"),
        curve=network_curve,
        caveats=(Caveat("distant-observer"), Caveat("others-noise")),
    ),
    SECURE_AGGREGATION: Accountant(
        proven=secure_interval,
        further=(
            "distributed discrete Gaussian (Kairouz, Liu and Steinke 2021, Corollary 12)",
            "secure aggregation (Bonawitz et al. 2017, Theorem 6.3)",
        ),
        covered="this client's records, in everything that secure aggregation shows",
        rounds="rounds of this client",
        sees="sees what the server does, the cohort's sum in every round and every model, is told "
        "everything by the clients that collude with it, knows the plans, the code and all other "
        "records",
        done=_masked,
        details=("clients", "dropouts", "colluders", "coordinates", "scale"),
        curve=secure_curve,
        caveats=(Caveat("secure-aggregation"), Caveat("others-noise")),
    ),
}
