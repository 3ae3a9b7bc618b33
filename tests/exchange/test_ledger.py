"""A ledger keeps one content a round for ever, whatever crashes; so does a server's journal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.exchange.events import ClientRelease
from forethought.exchange.messages import SERVER, Endpoint, Update
from forethought.exchange.storage import (
    Absent,
    Accepted,
    ClientLedger,
    Closed,
    JournalError,
    LedgerError,
    Left,
    Returned,
    ServerJournal,
    ServerSnapshot,
    counted,
)
from trials.storage import CrashError, MemoryStorage

RUN = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
D = 4


def endpoint(run: bytes = RUN, me: int = 0) -> Endpoint:
    return Endpoint(run, me, KEY, {SERVER: bytes(32)}, D)


def release(number: int, value: float = 1.0, state: bytes = b"state") -> ClientRelease:
    vector = np.full(D, value + number, dtype=np.float32)
    update = Update(number, number + 5, vector)
    return ClientRelease(number, number + 5, 2 * number + 2, bytes([number]) * 32, state, update)


def opened(storage: MemoryStorage, data: str = "data") -> ClientLedger:
    return ClientLedger(storage, endpoint(), data)


def test_it_says_where_the_client_stands() -> None:
    storage = MemoryStorage()
    ledger = opened(storage)
    assert ledger.read().updates == 0 and ledger.frames() == []
    for number in range(3):
        ledger.commit(release(number, state=b"after %d" % number))
    frames = ledger.frames()
    ledger.acknowledged(0)
    ledger.acknowledged(2)
    state = ledger.read()
    assert (state.updates, state.rounds, state.acknowledged) == (3, 6, 1)
    assert (state.state, state.base) == (b"after 2", 7)
    assert [update.round for update in state.outgoing] == [1]
    np.testing.assert_array_equal(state.outgoing[0].vector, release(1).update.vector)
    assert ledger.frames() == frames[1:2] and ledger.frame(1) == frames[1]
    assert ledger.frame(0) is None
    assert opened(storage).frames() == frames  # acknowledgements are written with a release
    ledger.commit(release(3))
    assert opened(storage).frames() == ledger.frames() == [frames[1], ledger.frame(3)]


def test_one_content_a_round() -> None:
    storage = MemoryStorage()
    ledger = opened(storage)
    ledger.commit(release(0))
    before = storage.contents()
    ledger.commit(release(0))  # the same again: nothing
    with pytest.raises(LedgerError, match="another content"):
        ledger.commit(release(0, value=9.0))
    with pytest.raises(LedgerError, match="cannot be released"):
        ledger.commit(release(2))
    with pytest.raises(LedgerError, match="cannot be released"):
        ledger.commit(ClientRelease(1, 6, 2, bytes(32), b"", release(1).update))  # no round more
    with pytest.raises(LedgerError, match="holds update 1"):
        ledger.commit(ClientRelease(2, 6, 9, bytes(32), b"", release(1).update))
    with pytest.raises(LedgerError, match="never released"):
        ledger.acknowledged(1)
    assert storage.contents() == before
    ledger.acknowledged(0)
    with pytest.raises(LedgerError, match="another content"):  # also when it is acknowledged
        ledger.commit(release(0, value=9.0))


@pytest.mark.parametrize("other", ["run", "client", "data"])
def test_it_goes_on_with_its_own_run_only(other: str) -> None:
    storage = MemoryStorage()
    opened(storage).commit(release(0))
    run = bytes(32) if other == "run" else RUN
    with pytest.raises(LedgerError, match="another run, client"):
        ClientLedger(
            storage,
            endpoint(run, 1 if other == "client" else 0),
            "other" if other == "data" else "data",
        )


def test_what_was_acknowledged_takes_no_room() -> None:
    storage = MemoryStorage()
    ledger = opened(storage)
    for number in range(40):
        ledger.commit(release(number, state=bytes(2_000_000)))
        ledger.acknowledged(number)
    assert len(storage.contents()["ledger"]) < 40_000_000
    state = opened(storage).read()
    assert (state.updates, state.acknowledged, len(state.state)) == (40, 39, 2_000_000)
    with pytest.raises(LedgerError, match="another content"):
        opened(storage).commit(release(3, value=9.0))


def test_counting_a_ledger_leaves_what_another_process_is_writing() -> None:
    storage = MemoryStorage()
    ledger = opened(storage)
    ledger.commit(release(0))
    before = storage.contents()["ledger"]
    ledger.commit(release(1))
    whole = storage.contents()["ledger"]
    storage.replace("ledger", whole[: len(before) + 60])  # the second record is being written
    assert counted(storage) == [2]
    storage.append("ledger", whole[len(before) + 60 :])
    assert counted(storage) == [2, 4]
    assert opened(storage).read().updates == 2


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=14), st.integers(0, 16), st.floats(0, 1))
def test_a_crash_at_any_write_loses_nothing(steps: list[int], crash: int, share: float) -> None:
    """After a crash the ledger is as before the write or as after it; frames never change."""

    def fault(number: int, length: int) -> int | None:
        return int(share * length) if number == crash else None

    storage = MemoryStorage(fault=fault)
    done, confirmed, frames = 0, set[int](), dict[int, bytes]()
    doing: tuple[str, int] | None = None
    try:
        ledger = opened(storage)
        for step in steps:
            if step or not done:
                doing = ("commit", done)
                ledger.commit(release(done))
                frames[done] = ledger.frame(done) or b""
                done += 1
            else:
                doing = ("confirm", min(set(range(done)) - confirmed, default=0))
                ledger.acknowledged(doing[1])
                confirmed.add(doing[1])
    except CrashError:
        pass
    again = opened(MemoryStorage(storage.contents()))
    state = again.read()
    assert state.updates in (done, done + (doing is not None and doing[0] == "commit"))
    for number, frame in frames.items():
        assert again.frame(number) in (frame, None)
        if number not in confirmed:
            assert again.frame(number) == frame
        again.commit(release(number))  # the same content still counts as the same
        with pytest.raises(LedgerError):
            again.commit(release(number, value=3.0))


ENTRIES: list[Any] = [
    Accepted(1, 0, 4, np.arange(D, dtype=np.float32), bytes(16)),
    Closed(4),
    Absent(2),
    Returned(2),
    Left(0),
    Left(1, 5),
]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__
    )


def test_a_journal_gives_back_its_snapshot_and_what_followed() -> None:
    storage = MemoryStorage()
    journal = ServerJournal(storage, RUN)
    assert journal.read() == (None, [])
    for entry in ENTRIES:
        journal.append(entry)
    snapshot, entries = ServerJournal(storage, RUN).read()
    assert snapshot is None and len(entries) == len(ENTRIES)
    assert all(map(same, entries, ENTRIES))
    arrays = {
        "model": np.linspace(0, 1, D),
        "counts": np.array([3, 4], dtype=np.int64),
        "flag": np.array(True),
    }
    journal.snapshot(ServerSnapshot({"version": 3, "pending": [[1, 2]], "x": 0.1}, arrays))
    journal.append(ENTRIES[0])
    snapshot, entries = ServerJournal(storage, RUN).read()
    assert snapshot is not None
    assert snapshot.values == {"version": 3, "pending": [[1, 2]], "x": 0.1}
    assert len(entries) == 1 and same(entries[0], ENTRIES[0])
    for name, array in arrays.items():
        assert snapshot.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(snapshot.arrays[name], array)


def test_a_journal_of_another_run_is_refused() -> None:
    storage = MemoryStorage()
    ServerJournal(storage, RUN)
    with pytest.raises(JournalError, match="another run"):
        ServerJournal(storage, bytes(32))
    with pytest.raises(ValueError, match="no registered entry"):
        ServerJournal(MemoryStorage(), RUN).append("text")  # type: ignore[arg-type]


def test_a_crash_during_a_snapshot_leaves_the_old_journal_or_the_new() -> None:
    for through in (0, 10**9):
        storage = MemoryStorage(
            fault=lambda number, _, through=through: through if number == 3 else None
        )
        journal = ServerJournal(storage, RUN)
        journal.append(Absent(0))
        journal.append(Absent(1))
        with pytest.raises(CrashError):
            journal.snapshot(ServerSnapshot({"at": 2}, {}))
        snapshot, entries = ServerJournal(MemoryStorage(storage.contents()), RUN).read()
        found = (None if snapshot is None else dict(snapshot.values), len(entries))
        assert found == ((None, 2) if through == 0 else ({"at": 2}, 0))
