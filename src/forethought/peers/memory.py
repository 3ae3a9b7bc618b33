"""Memory of a process that exchanges vectors of one size, over and over.

The C library returns what is freed to the system where it is large, and the next vector of a
million weights is a thousand new pages, each cleared by the system when it is first touched. That
is a fifth of an exchange's processor time.
"""

from __future__ import annotations

import ctypes

# glibc's names for its parameters (malloc.h), and what is never reached.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 1_000_000_000


def keep_memory() -> bool:
    """Keep what is freed for the next vector, in one arena for all threads; for a process's life.

    To be called before threads are started. Returns False where the C library has no such settings
    (anything but glibc): nothing changes there.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = ((_TRIM_THRESHOLD, _LARGE), (_MMAP_THRESHOLD, _LARGE), (_ARENA_MAX, 1))
    return all(bool(mallopt(name, value)) for name, value in settings)
