"""Trials of what must never happen: machines under planted faults, processes that are killed.

`python tools/faults.py` runs them.
"""


class ViolationError(RuntimeError):
    """Something happened that must never happen; says what, and in which trial."""
