"""Virtual time: what happens next, how long everything takes, and who is away when.

Straggling is lognormal (as measured in data centres and among phones) or a constant factor; a way
is a latency and a bandwidth. Numbers are drawn from public seeds in blocks, in the order in which
they are asked for, so that a simulation that asks in the same order gets the same ones.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forethought.values.checks import real, whole


class Agenda:
    """The events to come, in virtual seconds.

    Attributes:
        now: the time of the last thing that happened.
    """

    __slots__ = ("_entries", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._entries: list[tuple[float, int, int, int, Any]] = []

    def __len__(self) -> int:
        """Things to come."""
        return len(self._entries)

    @property
    def alone(self) -> bool:
        """True if nothing else is to happen at this very time."""
        return not self._entries or self._entries[0][0] > self.now

    def add(self, at: float, kind: int, machine: int, what: Any = None) -> None:
        """Let something happen to a machine at a time, at once if the time has passed."""
        self._order += 1
        at = at if at > self.now else self.now
        heapq.heappush(self._entries, (at, self._order, kind, machine, what))

    def next(self) -> tuple[int, int, Any]:
        """Go to the next thing: its kind, machine, and content.

        Raises:
            IndexError: nothing is to come.
        """
        self.now, _, kind, machine, what = heapq.heappop(self._entries)
        return kind, machine, what


BLOCK = 4096


@dataclass(frozen=True)
class Way:
    """A network: every message takes ``latency`` seconds and its bytes over ``bandwidth``.

    Args:
        latency: seconds. bandwidth: bytes a second; None: no limit.
        jitter: σ of a lognormal factor with median 1 on the whole; 0: none.
    """

    latency: float = 0.0
    bandwidth: float | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        real("latency", self.latency, least=0)
        real("jitter", self.jitter, least=0)
        if self.bandwidth is not None:
            real("bandwidth", self.bandwidth, above=0)

    def seconds(self, size: float) -> float:
        """The duration of a message of ``size`` bytes, without the jitter."""
        return self.latency + (size / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True)
class Outage:
    """A machine is off the network, and computes nothing, from ``begin`` to ``end`` (seconds)."""

    machine: int
    begin: float
    end: float = math.inf

    def __post_init__(self) -> None:
        whole("machine", self.machine, least=0)
        if not real("begin", self.begin, least=0) < self.end:
            raise ValueError("an outage must end after it began")


class LogNormal:
    """Lognormal factors with median 1.

    Args:
        sigma: of the logarithm; 0: always 1.
        seed: public.
    """

    def __init__(self, sigma: float, seed: int | Sequence[int]) -> None:
        self._sigma = real("sigma", sigma, least=0)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._left: list[float] = []

    def __call__(self) -> float:
        """The next factor."""
        if not self._sigma:
            return 1.0
        if not self._left:
            self._left = np.exp(self._sigma * self._generator.standard_normal(BLOCK)).tolist()
        return self._left.pop()


def slow_ones(machines: int, slow: int, factor: float, seconds: float = 1.0) -> tuple[float, ...]:
    """Seconds of each machine for one unit of work, of which the last ``slow`` take longer."""
    machines, slow = whole("machines", machines), whole("slow", slow, least=0)
    if slow > machines:
        raise ValueError(f"{slow} of {machines} machines cannot be slow")
    real("factor", factor, above=0)
    return (seconds,) * (machines - slow) + (seconds * factor,) * slow


def lognormal_speeds(machines: int, sigma: float, seed: int, seconds: float = 1.0) -> list[float]:
    """Seconds of each machine for one unit of work, lognormal over the machines with a median."""
    draw = LogNormal(sigma, [seed, 1])
    return [seconds * draw() for _ in range(whole("machines", machines))]


@dataclass(frozen=True)
class Hiccups:
    """In every round one machine, drawn anew, takes longer (Xu, Zhang and Wang, Case I).

    A function of seed, machine and round: whoever waits for whom, the same rounds are slow.

    Args:
        machines: how many. factor: on the seconds of the slow one. seed: public.
    """

    machines: int
    factor: float = 2.0
    seed: int = 0

    def __call__(self, machine: int, round: int) -> float:
        """The factor on a machine's seconds in its round."""
        digest = hashlib.blake2b(f"hiccup {self.seed} {round}".encode(), digest_size=8).digest()
        slow = int.from_bytes(digest, "little") % self.machines
        return self.factor if machine == slow else 1.0


@dataclass(frozen=True)
class Trace:
    """Factors that were measured: each machine goes through its row again and again.

    Args:
        rows: one of each machine, in its own time; a trace with fewer rows than machines is dealt
            out in turns.

    Raises:
        ValueError: no rows, an empty one, or a factor that is not positive.
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.rows or not all(self.rows):
            raise ValueError("a trace needs a row of at least one number for some machine")
        for row in self.rows:
            for factor in row:
                real("a factor of a trace", factor, above=0)

    def __call__(self, machine: int, round: int) -> float:
        """The factor on a machine's seconds in its round."""
        row = self.rows[machine % len(self.rows)]
        return row[round % len(row)]


def read_trace(path: str | Path) -> Trace:
    """A trace from a text file: a line a machine, its factors in turn; # begins a comment.

    Raises:
        ValueError: a line that holds something else. OSError: no such file.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            rows.append(tuple(float(word) for word in words))
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: {line.strip()!r} are no numbers; write one factor a round"
            ) from None
    return Trace(tuple(rows))


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
    way: Way = Way()
    straggling: float = 0.0
    outages: tuple[Outage, ...] = ()
    seed: int = 0
    factors: Factors | None = None
