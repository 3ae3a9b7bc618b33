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
        self._renew()
        if hasattr(os, "register_at_fork"):
            # Who held it in the parent is not there in the child to give it back.
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


turns = _Turns()
