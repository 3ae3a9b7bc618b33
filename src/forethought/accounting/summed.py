"""What a client's noised sums cost where nobody sees them singly: only sums with those of others.

Three attackers see less of a client than the server does. One sees global models, which in
synchronous rounds depend on the clients through their weighted sum (``aggregate``). One is the
server of a secure aggregation (``secure-aggregation``). One is a worker of a gossip that sees
partial averages (``network``; Cyffers and Bellet 2022). All face the noise of others besides
the client's own, which is Gaussian and independent, and the rest of the sum does not depend on the
client's record. So the client's mechanism is accounted at its noise multiplier times a gain: the
standard deviation of all noise that the attacker does not know, over that of the client's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forethought.accounting import exact
from forethought.accounting.discrete_gaussian import (
    ROUNDING_SCALE,
    charged,
    real_divergence,
    sum_divergence,
)
from forethought.accounting.interval import Interval
from forethought.caveats import Caveat
from forethought.checks import real, whole
from forethought.mechanism import Correlated, Mechanism

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
    """What was done, a sentence each."""
    least = min(float(gain) for gain, _ in details["gains"])
    observers = whole("observers", details["observers"])
    who = "one other worker" if observers == 1 else f"{observers} other workers together"
    return (
        f"The attacker is {who} of the gossip and sees averages of several workers' sums, with at "
        f"least {least:.4g} times the standard deviation of this worker's own noise. Against its "
        "neighbours all together, and by default, the statement without this view holds",
    )


def network_caveats(_mechanism: Mechanism) -> tuple[Caveat, ...]:
    """What every statement of this kind says."""
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
    """What the server faces, up to a divergence."""
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
    """What was done, a sentence each."""
    return (
        "The attacker sees the clients' noised sums added up, with at least "
        f"{float(details['gain']):.4g} times the standard deviation of this client's own noise. "
        "Against whoever sees this client's own noised sums, the statement without this view holds",
    )


def secure_done(details: Mapping[str, Any]) -> tuple[str, ...]:
    """What was done, a sentence each."""
    return (
        f"Rounds summed {details['clients']} clients by secure aggregation. Up to "
        f"{details['dropouts']} may drop out of a round and up to {details['colluders']} may "
        f"collude with the server, so at least {honest_clients(details)} clients' noise is unknown "
        "to it in every sum; the table shows this client's own share. Should secure aggregation "
        "fail, the statement without it still holds",
    )


def aggregate_caveats(_mechanism: Mechanism) -> tuple[Caveat, ...]:
    """What every statement of this kind says."""
    return (Caveat("single-updates-hidden"), Caveat("others-noise"))


def secure_caveats(_mechanism: Mechanism) -> tuple[Caveat, ...]:
    """What every statement of this kind says."""
    return (Caveat("secure-aggregation"), Caveat("others-noise"))


def _scaled(mechanism: Mechanism, gain: float) -> Mechanism:
    if gain == 1:
        return mechanism
    parts = (
        replace(part, noise_multiplier=part.noise_multiplier * gain * _INWARD) for part in mechanism
    )
    return Mechanism(*parts, adjacency=mechanism.adjacency)
