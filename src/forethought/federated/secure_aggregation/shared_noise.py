"""Distributed noise: every client adds a share, and the sum of the shares is the planned noise."""

from __future__ import annotations

import math
from dataclasses import replace

from forethought.federated.federation import Federation
from forethought.federated.secure_aggregation import masking
from forethought.federated.steps import TAIL
from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import Plan, grid

# Noise is rounded up by more than the rounding errors of the roots and products here, and by more
# than rounding real-valued noise to the grid costs.
_UPWARD = 1 + 1e-9
# Permitted probability that in a whole federation some sum overflows the ring and spoils a round.
_OVERFLOW = 1e-9


def secured(federation: Federation, settings: masking.SecureAggregation) -> Federation:
    """The federation under secure aggregation, with the same ε against its server.

    Every plan's noise multiplier becomes 1/√honest of the largest one, since all clients of a sum
    add the same noise, and the noise is on the grid. A member's weight becomes its expected batch
    size, since sums are added, not means.

    Args:
        federation: synchronous, exchanging the gradients of one round, with a plain mean.

    Raises:
        SecureAggregationError: the federation does not support it, or the ring is too small.
    """
    counts = {tuple(part.count for part in plan.mechanism) for plan in federation.plans}
    if len(counts) > 1:
        raise masking.SecureAggregationError(
            "clients that are summed change their noise after the same rounds: give all plans the "
            f"same number of rounds, not {sorted(counts)}"
        )
    largest = [
        max(part.noise_multiplier for part in parts)
        for parts in zip(*(plan.mechanism for plan in federation.plans), strict=True)
    ]
    shares = [sigma * settings.noise_share * _UPWARD for sigma in largest]
    plans = tuple(_with_noise(plan, shares) for plan in federation.plans)
    members = tuple(
        replace(member, weight=plans[member.plan].round(0).divisor) for member in federation.members
    )
    found = replace(federation, plans=plans, members=members, secure=settings.to_dict())
    settings.require(found)
    require_room(found, settings)
    return found


def require_room(federation: Federation, settings: masking.SecureAggregation) -> None:
    """Refuse a ring that a cohort's sum may overflow.

    Raises:
        SecureAggregationError: the ring is too small; the message names sufficient bits.
    """
    chosen = [federation.plan(client).round(0) for client in range(len(federation.members))]
    # P(batch size − mean > √(2·mean·TAIL) + TAIL) < e^−TAIL.
    largest = sorted(
        (one.divisor + math.sqrt(2 * one.divisor * TAIL) + TAIL) * one.clip_norm for one in chosen
    )[-settings.clients :]
    std, norm = chosen[0].noise_std, chosen[0].clip_norm
    step, scale = grid(std, norm, federation.parameters)
    noise = scale * step * math.sqrt(settings.clients)
    coordinates = federation.parameters * federation.rounds

    def chance(bits: int) -> float:
        return masking.overflow_chance(math.fsum(largest), noise, step, bits, coordinates)

    if chance(settings.bits) > _OVERFLOW:
        enough = next((bits for bits in range(8, 65) if chance(bits) <= _OVERFLOW), None)
        raise masking.SecureAggregationError(
            f"sums of {settings.clients} clients may leave a ring of {settings.bits} bits: "
            + ("no ring is large enough" if enough is None else f"use at least {enough} bits")
        )


def _with_noise(plan: Plan, shares: list[float]) -> Plan:
    parts = (
        Rounds(share, part.count, part.sampling, part.clipping, groups=part.groups)
        for part, share in zip(plan.mechanism, shares, strict=True)
    )
    mechanism = Mechanism(*parts, adjacency=plan.mechanism.adjacency)
    # The budget stays: the sums keep it, although this plan by itself does not.
    return plan.remade(mechanism=mechanism, noise="grid")
