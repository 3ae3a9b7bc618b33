"""A count apart from the ledger tells one that was set back, and raises no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from forethought.exchange.storage import LedgerError, MemberWitness

RUN = bytes(range(32))


def test_a_ledger_behind_the_count_is_refused_and_one_ahead_goes_on(tmp_path: Path) -> None:
    witness = MemberWitness(tmp_path, RUN, 3)
    witness.require(0)  # the first time
    witness.require(3)  # a ledger from before there was a count
    witness.note(4)
    for updates in (4, 5, 100):
        MemberWitness(tmp_path, RUN, 3).require(updates)
    with pytest.raises(LedgerError, match=r"4 updates have.*has 3.*set back"):
        MemberWitness(tmp_path, RUN, 3).require(3)
    MemberWitness(tmp_path, bytes(32), 3).require(0)  # of another run
    MemberWitness(tmp_path, RUN, 2).require(0)  # of another member


def test_every_count_replaces_the_last_whole(tmp_path: Path) -> None:
    witness = MemberWitness(tmp_path, RUN, 3)
    for updates in (9, 10, 99, 1, 10**15):
        witness.note(updates)
        witness.require(updates)
        with pytest.raises(LedgerError):
            witness.require(updates - 1)
    assert witness.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["12", "x" * 20, "1" * 21])
def test_a_damaged_count_stops(tmp_path: Path, text: str) -> None:
    witness = MemberWitness(tmp_path, RUN, 3)
    witness.path.write_text(text)
    with pytest.raises(LedgerError, match="damaged"):
        witness.require(10**18)


def test_one_that_never_reached_the_disk_says_nothing(tmp_path: Path) -> None:
    witness = MemberWitness(tmp_path, RUN, 3)
    witness.path.write_text("")
    witness.require(0)
