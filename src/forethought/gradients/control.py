"""Why a pass over the lanes stopped. None of these is an error of the model's own.

They pass through ``except Exception`` in user code, which must not answer for other lanes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Stopped(BaseException):
    """The pass cannot go on as it is."""


class Parted(Stopped):
    """The lanes disagree on what Python is about to see; they go on apart.

    Attributes:
        keys: every lane's own answer.
    """

    def __init__(self, keys: Sequence[Hashable]) -> None:
        super().__init__("the examples take different ways")
        self.keys = tuple(keys)


class Asking(Stopped):
    """A value of the examples is about to reach Python, for the first time: start again, prepared.

    What Python can remember is noted now, before it learns anything.
    """


class Unshared(Stopped):
    """A tensor made for all lanes at once is written to by each: make one for each lane."""


class Unable(Stopped):
    """The lanes cannot run this; alone, an example can."""


class RuleFailed(Stopped):
    """A rule raised, or did not answer what it must."""

    def __init__(self, rule: str, error: BaseException) -> None:
        super().__init__(f"rule {rule!r} failed: {error}")
        self.rule = rule


class Refused(Stopped):
    """The model or loss cannot be trained privately as it is; the text says what to do."""


class RefusedError(ValueError):
    """The same outside the pass, for its caller."""
