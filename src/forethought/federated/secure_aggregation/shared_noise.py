"""A federation whose noise is shared: a share from every client, in sums the planned noise."""

from __future__ import annotations

import math
from dataclasses import replace

from forethought.federated.federation import Federation
from forethought.federated.secure_aggregation import masking
from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import Plan, grid

# Upward, by more than the roots and products here can round and than rounding real noise takes.
_UPWARD = 1 + 1e-9
# A sum that leaves the ring spoils a round, once in this many federations.
_OVERFLOW = 1e-9
# A batch exceeds its mean by more than √(2·mean·TAIL) + TAIL with a chance below e^−TAIL.
_TAIL = 45.0


def secured(federation: Federation, settings: masking.SecureAggregation) -> Federation:
    """The federation under secure aggregation, with the same ε against its server.

    Every plan's noise multiplier becomes 1/√honest of the largest one (all clients of a sum add the
    same noise), on the grid; members weigh as much as their expected batches, since sums are added.

    Args:
        federation: synchronous, exchanging the gradients of one round, with a plain mean.

    Raises:
        SecureAggregationError: a federation that this does not go with, or a ring too small.
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
    """Refuse a ring that a cohort's sum may leave.

    Raises:
        SecureAggregationError: names the bits that are enough.
    """
    chosen = [federation.plan(client).round(0) for client in range(len(federation.members))]
    largest = sorted(
        (one.divisor + math.sqrt(2 * one.divisor * _TAIL) + _TAIL) * one.clip_norm for one in chosen
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
    # The budget stays: it is what the sums keep, and this plan alone does not.
    return plan.with_(mechanism=mechanism, noise="grid")
