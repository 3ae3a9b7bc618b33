"""Workers as threads of one process, with links in memory that can be cut and stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from forethought.gossip.gossip import Gossip
from forethought.holders.links import Arrived, Deliver, Pace, WorkerDriver, WorkerOutcome
from forethought.holders.simulator import Result, worker
from trials.recorded import Recorded


class Switchboard:
    """All links; ``cut`` holds workers that nobody reaches."""

    def __init__(self, size: int) -> None:
        self.deliver: dict[int, Deliver] = {}
        self.cut: set[int] = set()
        self.finished: set[int] = set()
        self.size = size


class MemoryLinks:
    """See :class:`forethought.holders.links.Links`."""

    reduce = None

    def __init__(self, board: Switchboard, me: int) -> None:
        self.board, self.me = board, me

    def start(self, deliver: Deliver) -> None:
        self.board.deliver[self.me] = deliver

    def send(self, to: int, message: Any) -> None:
        if to in self.board.deliver and not {to, self.me} & self.board.cut:
            self.board.deliver[to](Arrived(self.me, message))

    def heard(self, peer: int) -> float | None:
        there = peer in self.board.deliver and not {peer, self.me} & self.board.cut
        return time.monotonic() if there else None

    def finish(self) -> None:
        self.board.finished.add(self.me)

    def over(self, peer: int) -> bool:
        return peer in self.board.finished

    def close(self, seconds: float) -> None:
        self.board.deliver.pop(self.me, None)


def toward(target: float, seconds: float = 0.0) -> Callable[[int, Any], Result]:
    """A trainer of a quadratic loss around ``target``."""

    def compute(round: int, weights: Any) -> Result:
        time.sleep(seconds)
        return Result((weights - np.float32(target)).astype(np.float32), round + 1, b"", b"state")

    return compute


QUICK = Pace(exchange=0.002, answer=0.2, patience=2.0, meet=30.0, quiet=30.0, linger=20.0)


class Crew:
    """Drives all workers of a gossip, each in a thread."""

    def __init__(
        self, gossip: Gossip, first: Any, computes: list[Callable[[int, Any], Result]],
        pace: Pace = QUICK, ledgers: list[Any] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.ledgers = ledgers or [None] * gossip.workers
        self.board = Switchboard(gossip.workers)
        self.recorded = [Recorded(worker(gossip, k, first)) for k in range(gossip.workers)]
        self.stops = [threading.Event() for _ in computes]
        self.drivers = [
            WorkerDriver(
                self.recorded[k], gossip, k, MemoryLinks(self.board, k), computes[k],
                pace=pace, ledger=self.ledgers[k], **options,
            )
            for k in range(gossip.workers)
        ]  # fmt: skip
        self.outcomes: dict[int, WorkerOutcome | BaseException] = {}
        self.threads = [
            threading.Thread(target=self._run, args=(k,)) for k in range(gossip.workers)
        ]

    def _run(self, k: int) -> None:
        try:
            self.outcomes[k] = self.drivers[k].run(self.stops[k].is_set)
        except BaseException as error:
            self.outcomes[k] = error

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def join(self, seconds: float = 300.0) -> None:
        until = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.1, until - time.monotonic()))
        assert not any(thread.is_alive() for thread in self.threads)
