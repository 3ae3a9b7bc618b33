"""How many threads a run takes: no more than this process may use, and than are free.

Torch takes a thread for every core of the machine, whatever a container's quota or other
processes leave; too many threads wait for each other at every operation. The number can move
rounding, so a continued run keeps that of its beginning, and a seeded one does not look at the
load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores(quota: Path = _QUOTA) -> int:
    """Cores that this process may use: of its affinity, and of its control group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = count or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        if allowed != "max":
            found = min(found, max(1, int(allowed) // int(period)))
    except (OSError, ValueError):
        pass  # no control group, or one that says it otherwise
    return found


def free_threads(usual: int, *, by_load: bool = True) -> int:
    """Threads for a run: torch's usual number, as far as cores are there and free.

    Args:
        usual: what torch would take.
        by_load: whether to leave out cores that other processes were busy on in the last minute.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return usual  # decided by hand
    there = cores()
    if by_load and hasattr(os, "getloadavg"):
        there -= round(os.getloadavg()[0])
    return max(1, min(usual, there))


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many threads, and give torch its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
