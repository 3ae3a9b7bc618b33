"""What a simulation of faults finds, if it finds anything."""


class ViolationError(RuntimeError):
    """Something happened that must never happen; says what, and in which trial."""
