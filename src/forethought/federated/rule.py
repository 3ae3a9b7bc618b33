"""The common part of the synchronous and the asynchronous rule, as the server sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Update, Vector
from forethought.exchange.storage import Entry

Arrays = dict[str, NDArray[np.generic]]


class Rule(Protocol):
    """The way from accepted updates to models.

    Its state changes by :meth:`apply`, :meth:`decided` and :meth:`advance` only, and follows from
    the order of the entries alone.

    Attributes:
        version: of the newest model. finished: whether it is the last one.
        weights: the newest weights. model: those of the newest version, as they are sent; never
            written to.
    """

    version: int
    finished: bool

    @property
    def weights(self) -> Vector: ...
    @property
    def model(self) -> Vector: ...

    def refuses(self, client: int, update: Update) -> str | None:
        """The reason why an update cannot be applied, if there is one."""
        ...

    def apply(self, client: int, update: Update) -> None:
        """Take an update in."""
        ...

    def decided(self, entry: Entry) -> None:
        """Take in anything else that the server decided."""
        ...

    def advance(self) -> bool:
        """Go to the next version if the entries so far lead there; whether it did."""
        ...

    def overdue(self, now: float, since: float, heard: NDArray[np.float64]) -> Sequence[Entry]:
        """The decisions that are due because of time.

        Args:
            since: when the present version began. heard: when each client was last heard of.
        """
        ...

    def patience(self) -> float | None:
        """Seconds until :meth:`overdue` should be asked; None: time decides nothing."""
        ...

    def expects(self, client: int) -> bool:
        """True if the newest model is for this client."""
        ...

    def recipients(self) -> Iterable[int]:
        """All clients that the newest model is for."""
        ...

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """For a snapshot."""
        ...

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        ...
