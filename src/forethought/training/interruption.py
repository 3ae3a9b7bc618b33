"""Ctrl-C and SIGTERM end a run between two rounds, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was stopped from outside after a whole round.

    Attributes:
        folder: where it can be resumed from, or None when nothing was kept.
        rounds: how many rounds were done.
    """

    def __init__(self, folder: Path | None, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        how = (
            "it had no run folder, so it cannot be resumed"
            if folder is None
            else f"resume it with resume=True and out={str(folder)!r}"
        )
        super().__init__(f"interrupted after {rounds} rounds; {how}")


class InterruptGuard:
    """While active, the first SIGINT or SIGTERM sets :attr:`requested`; the second acts at once.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for known, handler in self._before.items():
            signal.signal(known, handler)
