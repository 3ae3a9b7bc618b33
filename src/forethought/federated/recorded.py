"""A simulation that can be interrupted: what was computed is kept, and not computed again.

Virtual time costs microseconds an event, training everything else. So a continued simulation begins
anew and reads the updates that were computed before from its record, in which a crash can have torn
the last one only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forethought.exchange.codec import decode, encode
from forethought.exchange.log import RecordLog
from forethought.exchange.messages import Vector
from forethought.federated.work import Result, Trainers, Work

RECORD = "updates"


@dataclass(frozen=True, slots=True)
class _Computed:
    client: int
    round: int
    base: int
    rounds: int
    input_hash: bytes
    state: bytes
    vector: Vector


class PlainFile:
    """Storage of a simulation: whatever the system has not written yet may be lost, whole records.

    Args:
        folder: exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """The content, or None where there is none."""
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def replace(self, name: str, content: bytes) -> None:
        """Write it anew."""
        path = self._folder / name
        part = path.with_name(f".{name}.part")
        part.touch(mode=0o600)
        part.write_bytes(content)
        part.replace(path)

    def append(self, name: str, content: bytes) -> None:
        """Add at the end."""
        path = self._folder / name
        if not path.exists():
            path.touch(mode=0o600)
        with path.open("ab") as file:
            file.write(content)


class Recorded:
    """See :class:`forethought.federated.work.Trainers`.

    Args:
        folder: of the simulation's record.
        make: makes the trainers, given the states that clients go on from.
    """

    def __init__(self, folder: Path, make: Callable[[dict[int, bytes]], Trainers]) -> None:
        self._log = RecordLog(PlainFile(folder), RECORD)
        self._known: dict[tuple[int, int], _Computed] = {}
        states: dict[int, bytes] = {}
        for record in self._log.replay():
            found: _Computed = decode(_Computed, memoryview(record))
            self._known[found.client, found.round] = found
            states[found.client] = found.state
        self.trainers = make(states)
        self._works: dict[int, Work] = {}

    @property
    def known(self) -> int:
        """Updates in the record."""
        return len(self._known)

    def begin(self, work: Work) -> None:
        """Look the work up, or have it done."""
        self._works[work.client] = work
        if (work.client, work.round) not in self._known:
            self.trainers.begin(work)

    def result(self, client: int) -> Result:
        """What came of it, recorded."""
        work = self._works.pop(client)
        known = self._known.pop((client, work.round), None)
        if known is not None:
            vector = np.array(known.vector, dtype=np.float32)
            return Result(vector, known.rounds, known.input_hash, known.state)
        done = self.trainers.result(client)
        kept = _Computed(
            client, work.round, work.base, done.rounds, done.input_hash, done.state, done.vector
        )
        self._log.append(encode(kept))
        return done
