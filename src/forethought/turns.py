"""Threads take turns where they put back what belongs to the process.

Globals, attributes, random generators and torch's precision are noted before a pass over records
and put back after it. Two threads that did so at once would put back each other's.
"""

from __future__ import annotations

import os
import threading
from contextlib import ContextDecorator


class _Turns(ContextDecorator):
    """One lock a process, which a thread may take again while it has it."""

    def __init__(self) -> None:
        self._held = threading.local()
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # Another thread that held it is not there in the child to give it back; this one may be in
        # the middle of its own turn, and ends it there as well.
        self._lock = threading.RLock()
        for _ in range(self._depth):
            self._lock.acquire()

    @property
    def _depth(self) -> int:
        return getattr(self._held, "depth", 0)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._held.depth = self._depth + 1

    def __exit__(self, *_: object) -> None:
        self._held.depth = self._depth - 1
        self._lock.release()


turns = _Turns()
