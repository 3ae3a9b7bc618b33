"""A simulation that is given nothing but the order in which things happened to real workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from forethought.exchange.messages import encode
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.gossip import Gossip
from forethought.holders.simulator import worker
from trials.recorded import Recorded, event_of

# In an order of events: the worker was killed there, and began again from its ledger.
AGAIN = b"again"


def simulated(
    gossip: Gossip, first: Any, orders: list[list[bytes]], computes: list[Callable[[int, Any], Any]]
) -> list[Recorded]:
    """Machines that were taken through the same order of events; the last life of each.

    Messages are what the other machines here send, gradients what the trainers give here; of what
    was recorded only kinds, senders and numbers are used, and which messages were lost.
    """
    machines = [Recorded(worker(gossip, k, first)) for k in range(gossip.workers)]
    ways: dict[tuple[int, int], deque[Any]] = {}
    asked: dict[int, deque[on.ComputeGradient]] = {k: deque() for k in range(gossip.workers)}
    left = [deque(order) for order in orders]
    ledgers = [LedgerState() for _ in machines]
    while any(left):
        moved = False
        for k in range(gossip.workers):
            while left[k]:
                if left[k][0] == AGAIN:
                    left[k].popleft()
                    asked[k].clear()
                    machines[k] = Recorded(worker(gossip, k, first, ledgers[k]))
                machine = machines[k]
                event = made_here(event_of(left[k][0]), k, ways, asked, computes)
                if event is None:
                    break  # it waits for another worker here
                left[k].popleft()
                moved = True
                for effect in machine.handle(event):
                    if isinstance(effect, on.Send):
                        ways.setdefault((k, effect.to), deque()).append(effect.message)
                    elif isinstance(effect, on.ComputeGradient):
                        asked[k].append(effect)
                    elif isinstance(effect, on.Commit):
                        made = effect.release
                        ledgers[k] = LedgerState(made.round + 1, outgoing=(made.update,))
        assert moved, "an event that nothing here leads to"
    return machines


def made_here(
    event: on.Event,
    k: int,
    ways: dict[tuple[int, int], deque[Any]],
    asked: dict[int, deque[on.ComputeGradient]],
    computes: list[Callable[[int, Any], Any]],
) -> on.Event | None:
    """The same event out of what happened here; None: not yet."""
    if isinstance(event, on.GradientDone):
        if not asked[k]:
            return None
        work = asked[k].popleft()
        found = computes[k](work.round, work.weights)
        return on.GradientDone(
            work.round, found.vector, found.rounds, found.input_hash, found.state
        )
    if isinstance(event, on.PeerMessage):
        way = ways.get((event.sender, k), deque())
        wanted = (type(event.message), event.message.base, event.message.round)
        for place, message in enumerate(way):
            if (type(message), message.base, message.round) == wanted:
                for _ in range(place):
                    way.popleft()  # lost on its way
                same = way.popleft()
                assert encode(same) == encode(event.message)
                return on.PeerMessage(event.sender, same)
        return None
    return event
