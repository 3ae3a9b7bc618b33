"""Differences between the holders of a star around a server and those of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from forethought.accounting.statement import Randomness, Statement
from forethought.federated.federation import Federation
from forethought.federated.statements import View, client_statement, plan_made
from forethought.gossip.gossip import Gossip
from forethought.gossip.statements import worker_statement
from forethought.values.caveats import Caveat
from forethought.values.plan import Plan, Transcript

Agreed: TypeAlias = Federation | Gossip

# The reason of a client's end that results may have decided.
LEFT = "stopped by its owner"


def endings(agreed: Agreed) -> tuple[str, ...]:
    """Reasons of an end after which a holder cannot go on.

    Behind masks a client that left stays out; without them it may begin again.
    """
    if isinstance(agreed, Gossip):
        return ("counted", "neighbour", "rounds", "stopped", "ledger set back")
    return ("finished",) if agreed.secure is None else ("finished", LEFT)


def made_plan(agreed: Agreed, place: int, transcript: Transcript) -> Plan:
    """The plan for the statement of a holder's releases."""
    if isinstance(agreed, Gossip):
        return agreed.plan(place)
    return plan_made(agreed, place, transcript)


def statement_of(
    agreed: Agreed,
    place: int,
    transcript: Transcript,
    randomness: Randomness,
    not_covered: Iterable[Caveat] = (),
    *,
    outsider: bool = False,
    left: bool = False,
) -> Statement:
    """The statement of a holder's releases against its server or neighbours.

    Args:
        outsider: True of a worker: against an observer of one final model.
        left: of a client: see :func:`~forethought.federated.statements.client_statement`.
    """
    known: dict[str, Any] = {"transcript": transcript, "randomness": randomness}
    if isinstance(agreed, Gossip):
        known |= {"view": "outsider" if outsider else "neighbours", "not_covered": not_covered}
        return worker_statement(agreed, place, **known)
    view: View = "server" if agreed.secure is None else "secure-server"
    made = client_statement(agreed, place, view, **known, left=left)
    return replace(made, caveats=(*made.caveats, *not_covered))
