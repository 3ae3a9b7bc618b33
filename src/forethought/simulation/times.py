"""The durations in a simulation of several machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forethought.simulation.speeds import Outage, Way

Factors = Callable[[int, int], float]
# Bytes of a frame besides its vector.
OVERHEAD = 256


class SimulationError(RuntimeError):
    """A simulation that cannot go on: nothing is to come, and it has not ended."""


@dataclass(frozen=True)
class Times:
    """The durations in a simulation.

    Args:
        compute: each machine's seconds for one update; for the mean one, where sample sizes change.
        way: of every message.
        straggling: σ of a lognormal factor on every single computation.
        outages: when machines are away.
        factors: from a machine and its round to what its seconds are multiplied by; None: 1.
        seed: of all this.
    """

    compute: Sequence[float]
    way: Way = Way()  # noqa: RUF009 (frozen)
    straggling: float = 0.0
    outages: tuple[Outage, ...] = ()
    seed: int = 0
    factors: Factors | None = None
