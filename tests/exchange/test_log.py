"""Records survive a crash at any byte of any write, and damage is not mistaken for a crash."""

from __future__ import annotations

import contextlib
import errno
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.exchange.storage import FolderStorage, LogError, MemberWitness, RecordLog
from trials.storage import CrashError, MemoryStorage

RECORDS = [b"first", b"", b"third" * 20, b"\0" * 40]


def written() -> bytes:
    storage = MemoryStorage()
    log = RecordLog(storage, "log")
    for record in RECORDS:
        log.append(record)
    return storage.contents()["log"]


WHOLE = written()


def ends() -> list[int]:
    found, storage = [0], MemoryStorage()
    log = RecordLog(storage, "log")
    for record in RECORDS:
        log.append(record)
        found.append(log.size)
    return found


@pytest.mark.parametrize("length", range(len(WHOLE) + 1))
def test_a_crash_at_any_byte_leaves_whole_records_and_the_log_goes_on(length: int) -> None:
    storage = MemoryStorage({"log": WHOLE[:length]})
    log = RecordLog(storage, "log")
    survived = sum(end <= length for end in ends()[1:])
    assert log.replay() == RECORDS[:survived]
    log.append(b"next")
    assert RecordLog(storage, "log").replay() == [*RECORDS[:survived], b"next"]


def test_a_file_that_had_grown_before_its_content_arrived_is_a_crash_too() -> None:
    end = ends()[2]
    storage = MemoryStorage({"log": WHOLE[:end] + bytes(300)})
    assert RecordLog(storage, "log").replay() == RECORDS[:2]


def test_any_other_damage_stops_the_reader_or_loses_the_last_record_only() -> None:
    last = ends()[-2]
    for position in range(len(WHOLE)):
        changed = bytearray(WHOLE)
        changed[position] ^= 0x40
        storage = MemoryStorage({"log": bytes(changed)})
        if position < last:
            with pytest.raises(LogError, match="damaged at record"):
                RecordLog(storage, "log")
            assert storage.contents()["log"] == bytes(changed)  # evidence is left alone
            continue
        with contextlib.suppress(LogError):
            assert RecordLog(storage, "log").replay() == RECORDS[:-1]


def test_a_header_whose_end_was_not_written_is_torn() -> None:
    """The file had grown to its new length, and a page that ends in the header was written."""
    cuts = ends()
    for kept in range(cuts[-2], cuts[-1]):
        torn = WHOLE[:kept] + bytes(cuts[-1] - kept)
        if torn != WHOLE:
            assert RecordLog(MemoryStorage({"log": torn}), "log").replay() == RECORDS[:-1]


def test_a_record_cannot_be_dropped_repeated_or_exchanged() -> None:
    cuts = ends()
    parts = [WHOLE[a:b] for a, b in itertools.pairwise(cuts)]
    for order in ([1, 2, 3], [0, 2, 3], [0, 1, 1, 2], [1, 0, 2]):
        with pytest.raises(LogError):
            RecordLog(MemoryStorage({"log": b"".join(parts[i] for i in order)}), "log")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=30)), min_size=1, max_size=12),
    st.integers(0, 12),
    st.floats(0, 1),
)
def test_against_a_list(operations: list[tuple[bool, bytes]], crash: int, share: float) -> None:
    """Appends and rewrites with a crash at one of them: what was done before it is there."""

    def fault(number: int, length: int) -> int | None:
        return int(share * length) if number == crash else None

    storage, model = MemoryStorage(fault=fault), list[bytes]()
    log = RecordLog(storage, "log")
    tried = None
    with contextlib.suppress(CrashError):
        for rewrite, record in operations:
            tried = [record] if rewrite else [*model, record]
            if rewrite:
                log.rewrite(tried)
            else:
                log.append(record)
            model = tried
    assert RecordLog(MemoryStorage(storage.contents()), "log").replay() in (model, tried)


def test_a_planted_fault_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its checksum a torn record would be read as a whole one."""
    import forethought.exchange.storage as module

    monkeypatch.setattr(module, "sums_of", lambda chain, length, record: (bytes(16), bytes(16)))
    planted = written()
    torn = planted[:-3] + b"abc"
    assert RecordLog(MemoryStorage({"log": torn}), "log").replay() != RECORDS


def test_on_disk_as_in_memory(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path / "new" / "folder")
    log = RecordLog(storage, "log")
    for record in RECORDS:
        log.append(record)
    path = tmp_path / "new" / "folder" / "log"
    assert path.read_bytes() == WHOLE and path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(WHOLE[:-1])
    log = RecordLog(storage, "log")
    assert log.replay() == RECORDS[:-1]
    log.rewrite([b"only"])
    assert RecordLog(storage, "log").replay() == [b"only"]
    assert [entry.name for entry in path.parent.iterdir()] == ["log"]
    with pytest.raises(ValueError, match="no name here"):
        storage.read("../log")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    witness, storage = MemberWitness(tmp_path, bytes(32), 0), FolderStorage(tmp_path)
    writes = {
        witness.path: lambda: witness.note(1),
        tmp_path / "log": lambda: storage.append("log", b"record"),
        tmp_path / ".whole.part": lambda: storage.replace("whole", b"record"),
    }
    for path, write in writes.items():
        path.symlink_to("/dev/full")
        with pytest.raises(OSError) as told:
            write()
        assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(path))
