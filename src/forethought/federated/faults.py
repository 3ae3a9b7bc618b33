"""What a trial of faults is made of: how often what goes wrong, and in which machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from forethought.exchange.journal import ServerJournal
from forethought.federated.client import ClientMachine
from forethought.federated.delay import Delay
from forethought.federated.federation import Federation, Member
from forethought.federated.server import ServerMachine
from forethought.mechanism import Mechanism, Rounds
from forethought.plans import Plan
from forethought.samplings import Poisson
from forethought.use import Optimizer

# Length of a trial's vectors.
PARAMETERS = 3


@dataclass(frozen=True)
class Faults:
    """How often things go wrong.

    Args:
        drop, double: chance of a message. delay: mean virtual seconds of its way.
        crash_write: chance of a crash at a write. crashes: machines killed between events.
        backups: ledgers set back to an older content. jumps: of clocks. cuts: of a client's way.
        crash_at: (machine, number of its write, share of it that gets through): a crash there.
    """

    drop: float = 0.08
    double: float = 0.08
    delay: float = 0.5
    crash_write: float = 0.04
    crashes: int = 2
    backups: int = 0
    jumps: int = 2
    cuts: int = 1
    crash_at: tuple[int, int, float] | None = None


# Nothing goes wrong by chance.
CALM = Faults(drop=0, double=0, crash_write=0, crashes=0, backups=0, jumps=0, cuts=0)


@dataclass(frozen=True)
class Kinds:
    """What a trial is made of; tests put machines with planted bugs here."""

    client: Callable[..., ClientMachine] = ClientMachine
    server: Any = ServerMachine
    salted: bool = True
    journal: Any = ServerJournal


@dataclass
class Tally:
    """What happened in a trial."""

    events: int = 0
    crashes: int = 0
    restarts: int = 0
    accepted: int = 0
    alarms: list[str] = field(default_factory=list)


@lru_cache(maxsize=512)
def trial_federation(
    rule: Any,
    clients: int,
    updates: int,
    cohort: bool,
    slack: bool,
    lost: bool,
    padded: bool = False,
) -> Federation:
    """``lost``: clients may stop for good, so that nobody may be waited for for ever."""
    plan = Plan(
        Mechanism(Rounds(1.0, updates, Poisson(0.5))),
        20,
        1e-3,
        optimizer=Optimizer("sgd", 0.5, ()),
    )
    synchronous = rule == "synchronous"
    if lost and rule == "published":
        rule = "asynchronous"
    bounded = slack or lost
    return Federation(
        tuple(Member(f"client-{place}") for place in range(clients)),
        (plan,),
        PARAMETERS,
        "trial",
        updates,
        rule=rule,
        exchanged="weights" if synchronous else "gradients",
        delay=Delay("constant", 2) if slack else Delay(),
        cohort=max(1, clients - 1) if synchronous and cohort else None,
        deadline=15.0 if synchronous and bounded else None,
        absence=12.0 if rule == "asynchronous" and bounded else None,
        resend=3.0,
        cadence=2.0 if padded else None,
    )
