"""The cost of a client's noised sums where they are seen in sums with those of others only.

**How far sums of discrete Gaussians are from real Gaussian noise: certified charges.**

A discrete Gaussian of scale s has every whole number k with probability ∝ exp(−k²/2s²). Write
a(s) = 2·Σ_{k≥1} exp(−2π²s²k²). By Poisson summation Σ_j exp(−(j − c)²/2s²) = s√(2π)·(1 + θ) with
|θ| ≤ a(s) for every real c, and = s√(2π)·(1 + a(s)) at c = 0. Two facts follow.

**Sums.** X and Y with scales s and t are convolved: the product of their weights at x and w − x is
the weight of scale u = √(s² + t²) at w, times a Gaussian in x of scale v = st/u. So the ratio of
P(X + Y = w) to that of scale u is (1 + θ_v)(1 + a(u))/((1 + a(s))(1 + a(t))), and its logarithm is
at most −ln(1 − a(v)) + 2·a(v) in size, since v is the smallest of the four. Adding one variable
after another, the charges add (Kairouz, Liu and Steinke 2021, Corollary 12, with 10·e^(−2π²v²)).

**Real noise.** A real Gaussian of standard deviation √(s² − r²), rounded by drawing k ∝
exp(−(k − y)²/2r²), is the discrete Gaussian of scale s up to (1 + a(s))/(1 + θ_r) (Peikert 2010,
Theorem 3.1). Rounding is post-processing and commutes with shifts by whole numbers, so theorems
about real Gaussian noise, subsampled or not, hold up to the charge.

**Attackers.** Three attackers see less of a client than the server does. One sees global models,
which in synchronous rounds depend on the clients through their weighted sum (``aggregate``). One is
the server of a secure aggregation (``secure-aggregation``). One is a worker of a gossip that sees
partial averages (``network``; Cyffers and Bellet 2022). All face the noise of others besides the
client's own, which is Gaussian and independent, and the rest of the sum does not depend on the
client's record. So the client's mechanism is accounted at its noise multiplier times a gain: the
standard deviation of all noise that the attacker does not know, over that of the client's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forethought.accounting import exact
from forethought.accounting.interval import Interval
from forethought.values.caveats import Caveat
from forethought.values.checks import real, whole
from forethought.values.mechanism import Correlated, Mechanism

# Rounding of the few operations here, outward.
_OUTWARD = 1 + 1e-12
# Scale of the rounding in the second fact: its charge is below 10⁻⁷⁵, and 9 is little beside s².
ROUNDING_SCALE = 3.0
# Above this a(s) is not small, and the bounds say nothing worth having.
_LEAST_SCALE = 0.5


def sum_divergence(scale: float, parties: int) -> float:
    """A bound on |ln P(sum = w)/P(one of scale √n·s = w)|, for ``parties`` n discrete Gaussians.

    Args:
        scale: s of each, in whole steps. parties: n ≥ 1.

    Raises:
        ValueError: a scale below ½, or no party.
    """
    if not scale >= _LEAST_SCALE or parties < 1:
        raise ValueError(f"a discrete Gaussian needs a scale of at least {_LEAST_SCALE}: {scale}")
    total = 0.0
    for before in range(1, parties):
        # Scales √before·s and s together: v² = s²·before/(before + 1). It grows with every party.
        charge = _charge(scale * math.sqrt(before / (before + 1)))
        if charge == 0.0:
            break
        total += charge
    return total * _OUTWARD


def real_divergence(scale: float, rounding: float = ROUNDING_SCALE) -> float:
    """A bound on |ln| of the ratio between a discrete Gaussian and a rounded real one.

    Args:
        scale: s of the discrete Gaussian. rounding: r; the real one has √(s² − r²).

    Raises:
        ValueError: r is not below s.
    """
    if not _LEAST_SCALE <= rounding < scale:
        raise ValueError(
            f"a discrete Gaussian of scale {scale:g} cannot be rounded at scale {rounding:g}: use "
            "more noise for the grid's step, or a finer grid"
        )
    return _charge(rounding)


def charged(interval: Interval, divergence: float) -> Interval:
    """ε of mechanisms whose every output is as likely as before up to exp(±``divergence``).

    ``interval`` is at δ·exp(−divergence): P' ≤ e^d P ≤ e^d (e^ε Q + δe^−d) ≤ e^(ε+2d) Q' + δ.
    """
    return Interval(
        max(0.0, interval.lower - 2 * divergence), (interval.upper + 2 * divergence) * _OUTWARD
    )


def _tail(scale: float) -> float:
    """a(s), rounded up: the series is below its first term over 1 − the ratio of the first two."""
    first = math.exp(-2 * math.pi**2 * scale * scale)
    return 2 * first / (1 - first**3) * _OUTWARD


def _charge(smallest: float) -> float:
    tail = _tail(smallest)
    return (2 * tail - math.log1p(-tail)) * _OUTWARD


AGGREGATE, SECURE_AGGREGATION, NETWORK = "aggregate", "secure-aggregation", "network"
# A divergence that is lost in the rounding of any power, which is outward.
_NOTHING = 1e-40
# Downward, by more than the few operations here can round.
_INWARD = 1 - 1e-12


def aggregate_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε against an attacker who sees the weighted sums of all clients only.

    Args:
        details: ``gain``: √(Σ_j (a_j σ_j C_j)²)/(a_k σ_k C_k) for weights a and this client k, in
            the round where it is least.

    Raises:
        ValueError: a gain below 1.
    """
    return exact.epsilon(aggregate_curve(mechanism, details), delta, group)


def aggregate_curve(mechanism: Mechanism, details: Mapping[str, Any]) -> Mechanism:
    """The mechanism that the attacker faces: its whole trade-off function bounds them."""
    gain = real("gain", details["gain"], least=1)
    return _scaled(mechanism, gain)


def network_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε against workers that see the averages which they are sent, and know their own noise.

    Args:
        details: ``gains``: (gain, rounds in which it is that), for all rounds; ``observers``: how
            many workers tell each other everything.

    Raises:
        ValueError: a gain below 1, or rounds that are not those of the mechanism.
    """
    return exact.epsilon(network_curve(mechanism, details), delta, group)


def network_curve(mechanism: Mechanism, details: Mapping[str, Any]) -> Mechanism:
    """The mechanism that the observers face: its whole trade-off function bounds them.

    Rounds of one kind compose in any order. Where a mechanism has several, which of its rounds have
    which gain is not told here, and the least gain counts for all.
    """
    whole("observers", details["observers"])
    gains = [
        (real("gain", gain, least=1), whole("rounds", count)) for gain, count in details["gains"]
    ]
    if sum(count for _, count in gains) != len(mechanism):
        raise ValueError(
            f"gains are given for {sum(count for _, count in gains)} rounds, the mechanism has "
            f"{len(mechanism)}"
        )
    parts = mechanism.rounds
    if len(parts) > 1 or parts[0].sampling.rounds_per_epoch > 1 or isinstance(parts[0], Correlated):
        return _scaled(mechanism, min(gain for gain, _ in gains))
    return Mechanism(
        *(
            part
            for gain, count in gains
            for part in _scaled(
                Mechanism(replace(parts[0], count=count), adjacency=mechanism.adjacency), gain
            )
        ),
        adjacency=mechanism.adjacency,
    )


def network_done(details: Mapping[str, Any]) -> tuple[str, ...]:
    """The description of the view, a sentence each."""
    least = min(float(gain) for gain, _ in details["gains"])
    observers = whole("observers", details["observers"])
    who = "one other worker" if observers == 1 else f"{observers} other workers together"
    return (
        f"The attacker is {who} of the gossip and sees averages of several workers' sums, with at "
        f"least {least:.4g} times the standard deviation of this worker's own noise. Against its "
        "neighbours all together, and by default, the statement without this view holds",
    )


def network_caveats(_mechanism: Mechanism) -> tuple[Caveat, ...]:
    """The caveats of every statement of this kind."""
    return (Caveat("distant-observer"), Caveat("others-noise"))


def secure_interval(
    mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Interval:
    """ε against the server of a secure aggregation and those who collude with it.

    Args:
        mechanism: of one client's noised sums, with its own share of the noise.
        details: ``clients``, ``dropouts`` and ``colluders`` of a round; ``coordinates`` of a sum;
            ``scale`` of a client's discrete Gaussian, in steps of the grid.

    Raises:
        ValueError: fewer than one client that keeps its noise to itself, or noise that is too
            little for the grid.
    """
    behind, divergence = _behind_masks(mechanism, details)
    at = delta * math.exp(-divergence) * _INWARD if divergence else delta
    return charged(exact.epsilon(behind, at, group), divergence)


def secure_curve(mechanism: Mechanism, details: Mapping[str, Any]) -> Mechanism | None:
    """The mechanism whose trade-off function bounds the attacker; None on a coarse grid."""
    behind, divergence = _behind_masks(mechanism, details)
    return behind if divergence < _NOTHING else None


def _behind_masks(mechanism: Mechanism, details: Mapping[str, Any]) -> tuple[Mechanism, float]:
    """The mechanism that the server faces, up to a divergence."""
    honest, scale = honest_clients(details), real("scale", details["scale"], above=0)
    coordinates = whole("coordinates", details["coordinates"])
    # All honest noise together, less what rounding real noise takes: see discrete_gaussian.
    divergence = sum_divergence(scale, honest) + real_divergence(scale * math.sqrt(honest))
    gain = math.sqrt(honest - (ROUNDING_SCALE / scale) ** 2)
    divergence *= coordinates * len(mechanism)
    if divergence > 1:
        raise ValueError(
            f"noise of scale {scale:g} steps is too coarse for {coordinates:,} coordinates in "
            f"{len(mechanism):,} rounds: use a finer grid"
        )
    return _scaled(mechanism, gain), divergence


def honest_clients(details: Mapping[str, Any]) -> int:
    """Clients whose noise is in every opened sum and unknown to the attacker."""
    clients = whole("clients", details["clients"], least=2)
    dropouts = whole("dropouts", details["dropouts"], least=0)
    colluders = whole("colluders", details["colluders"], least=0)
    return whole("clients that neither drop out nor collude", clients - dropouts - colluders)


def aggregate_done(details: Mapping[str, Any]) -> tuple[str, ...]:
    """The description of the view, a sentence each."""
    return (
        "The attacker sees the clients' noised sums added up, with at least "
        f"{float(details['gain']):.4g} times the standard deviation of this client's own noise. "
        "Against whoever sees this client's own noised sums, the statement without this view holds",
    )


def secure_done(details: Mapping[str, Any]) -> tuple[str, ...]:
    """The description of the view, a sentence each."""
    return (
        f"Rounds summed {details['clients']} clients by secure aggregation. Up to "
        f"{details['dropouts']} may drop out of a round and up to {details['colluders']} may "
        f"collude with the server, so at least {honest_clients(details)} clients' noise is unknown "
        "to it in every sum; the table shows this client's own share. Should secure aggregation "
        "fail, the statement without it still holds",
    )


def aggregate_caveats(_mechanism: Mechanism) -> tuple[Caveat, ...]:
    """The caveats of every statement of this kind."""
    return (Caveat("single-updates-hidden"), Caveat("others-noise"))


def secure_caveats(_mechanism: Mechanism) -> tuple[Caveat, ...]:
    """The caveats of every statement of this kind."""
    return (Caveat("secure-aggregation"), Caveat("others-noise"))


def _scaled(mechanism: Mechanism, gain: float) -> Mechanism:
    if gain == 1:
        return mechanism
    parts = (
        replace(part, noise_multiplier=part.noise_multiplier * gain * _INWARD) for part in mechanism
    )
    return Mechanism(*parts, adjacency=mechanism.adjacency)
