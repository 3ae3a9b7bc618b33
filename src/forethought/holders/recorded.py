"""A simulation that can be interrupted: where it begins, and what is computed only once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from forethought.exchange.codec import decode, encode
from forethought.exchange.messages import Vector
from forethought.exchange.storage import RecordLog
from forethought.holders.work import Result, Trainers, Work
from forethought.rounds.randomness import Secrets, Seeds
from forethought.training.folder import KEYS, CheckpointError, Keys, RunFolderExistsError
from forethought.values.serialisation import Stored

# Where a simulation of several holders begins: anew, or in the folder of an interrupted one.


START = "start.npy"
_Agreed = TypeVar("_Agreed", bound=Stored)


def begun(
    folder: Path | None, resume: bool, agreed: _Agreed, name: str, weights: Vector, seeds: Seeds
) -> tuple[Secrets, Vector]:
    """Secrets and first weights: new ones, or those of the simulation that goes on.

    Args:
        folder: of the simulation; None: nothing is kept. agreed: what all agree on.
        name: of its file. weights: the first ones of a new simulation.

    Raises:
        ValueError: nowhere to go on. RunFolderExistsError: the folder holds a simulation.
        CheckpointError: nothing to go on with, or something else was agreed on.
    """
    if folder is None:
        if resume:
            raise ValueError("resume=True goes on in out=: give out")
        return Secrets.draw(seeds), weights
    if resume:
        if not (folder / KEYS).exists():
            raise CheckpointError(f"{folder} holds no simulation that was interrupted")
        if type(agreed).load(folder / name) != agreed:
            raise CheckpointError(
                f"the {agreed.CALLED} of {folder} is another one: go on with the job it began with"
            )
        start: Vector = np.load(folder / START, allow_pickle=False)
        return Keys.read(folder).secrets, start
    if (folder / name).exists() or (folder / RECORD).exists() or (folder / FUSED).exists():
        raise RunFolderExistsError(
            f"{folder} holds a simulation: go on with resume (--resume), or choose another folder"
        )
    keys = Keys.draw(seeds)
    keys.write(folder)
    np.save(folder / START, weights)
    agreed.save(folder / name)
    return keys.secrets, weights


# A simulation that can be interrupted: what was computed is kept, and not computed again.
#
# Virtual time costs microseconds an event, training everything else. So a continued simulation
# begins anew and reads the updates that were computed before from its record, in which a crash can
# have torn the last one only.


RECORD = "updates"
# The record of a simulation whose cohorts' sums are fused.
FUSED = "fused-updates"
_LENGTH = struct.Struct("<Q")


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
    """See :class:`forethought.holders.work.Trainers`.

    Args:
        folder: of the simulation's record.
        make: makes the trainers, given the states that clients go on from.
        name: of the record. Another one in the folder is of another kind of simulation.

    Raises:
        CheckpointError: the folder holds a record of another name.
    """

    def __init__(
        self,
        folder: Path,
        make: Callable[[dict[int, bytes]], Trainers],
        name: str = RECORD,
    ) -> None:
        for other in {RECORD, FUSED} - {name}:
            if (folder / other).exists():
                raise CheckpointError(
                    f"{folder} holds a simulation that was begun "
                    f"{'with' if other == FUSED else 'without'} fused = true: go on with it so"
                )
        self._log = RecordLog(PlainFile(folder), name)
        self._known: dict[tuple[int, int], _Computed] = {}
        states: dict[int, bytes] = {}
        for record in self._log.replay():
            for part in _split(record):
                found: _Computed = decode(_Computed, part)
                self._known[found.client, found.round] = found
                states[found.client] = found.state
        self.trainers = make(states)
        self._works: dict[int, Work] = {}
        self._kept: set[tuple[int, int]] = set()

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
        """The outcome, recorded."""
        work = self._works.pop(client)
        known = self._known.pop((client, work.round), None)
        if known is not None:
            vector = np.array(known.vector, dtype=np.float32)
            return Result(vector, known.rounds, known.input_hash, known.state)
        done = self.trainers.result(client)
        if (client, work.round) in self._kept:
            self._kept.discard((client, work.round))
            return done
        # Everything that was computed with it is one record: a simulation that goes on computes
        # all of it again or none, in the same company, and so to the same bits.
        others = self.trainers.done()
        along = [self._works[one] for one in sorted(others)]
        new = [other for other in along if (other.client, other.round) not in self._kept]
        all_of_it = [(work, done), *((other, others[other.client]) for other in new)]
        self._kept |= {(other.client, other.round) for other, _ in all_of_it[1:]}
        self._log.append(_joined([_encoded(*pair) for pair in all_of_it]))
        return done

    def done(self) -> dict[int, Result]:
        """Nothing that is not in the record."""
        return {}


def _encoded(work: Work, done: Result) -> bytes:
    kept = _Computed(
        work.client,
        work.round,
        work.base,
        done.rounds,
        done.input_hash,
        done.state,
        done.vector,
    )
    return encode(kept)


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _split(record: bytes) -> Iterator[memoryview]:
    view, at = memoryview(record), 0
    while at < len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        yield view[at : at + length]
        at += length
