"""The worker of each rule."""

from __future__ import annotations

from collections.abc import Callable

from forethought.exchange.messages import Vector
from forethought.exchange.storage import LedgerState
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.gossip import Gossip, Rule
from forethought.gossip.synchronous import AllReduceWorker, SynchronousWorker
from forethought.gossip.worker import Machine

MACHINES: dict[Rule, Callable[[Gossip, int, Vector, LedgerState | None], Machine]] = {
    "asynchronous": AsynchronousWorker,
    "synchronous": SynchronousWorker,
    "allreduce": AllReduceWorker,
}


def worker(gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None) -> Machine:
    """The worker of the gossip's rule; see :class:`~forethought.gossip.worker.Releases`."""
    return MACHINES[gossip.rule](gossip, me, weights, ledger)
