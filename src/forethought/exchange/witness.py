"""How many updates left a client, kept apart from its ledger: what a restored backup has not.

A ledger that was set back counts too little, and releases again what it has forgotten. The server
can tell, if it is honest; this file tells whatever the server says, unless it was set back along.
It is written after the ledger and before anything is sent, and need not reach the disk at once: one
that lags says less, and nothing wrong.
"""

from __future__ import annotations

import os
from pathlib import Path

from forethought.exchange.ledger import LedgerError

_DIGITS = 20


class Witness:
    """The count of one member in one run.

    Args:
        folder: not the ledger's, and not in the same backup; it exists. run_id: 32 bytes.
        member: its place in the roster.
    """

    def __init__(self, folder: Path, run_id: bytes, member: int) -> None:
        self.path = folder / f"released-{run_id.hex()[:16]}-{member}"

    def count(self) -> int:
        """How many updates have left, as far as was noted.

        Raises:
            LedgerError: the count is damaged.
        """
        text = self.path.read_text(encoding="ascii") if self.path.exists() else ""
        if text and not (len(text) == _DIGITS and text.isdigit()):
            raise LedgerError(
                f"{self.path} is no count of updates: it is damaged. Remove it only if the ledger "
                "was not restored from a backup"
            )
        return int(text or 0)

    def require(self, updates: int) -> None:
        """Refuse a ledger that has fewer updates than have left.

        Raises:
            LedgerError: the ledger was set back, or the count is damaged.
        """
        left = self.count()
        if left > updates:
            raise LedgerError(
                f"{left} updates have left this member, its ledger has {updates}: the ledger "
                "was set back. Nothing more is released: restore the newest ledger; a run from the "
                "beginning is another run, with keys of its own"
            )

    def note(self, updates: int) -> None:
        """So many updates are in the ledger and about to leave.

        Raises:
            OSError: cannot be written; then nothing may be sent.
        """
        place = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(place, f"{updates:0{_DIGITS}d}".encode("ascii"), 0)
        finally:
            os.close(place)
