"""Asynchronous rounds: updates are applied as they come; v_k is sent once all rounds below k came.

van Dijk et al., Appendix A, Algorithms 2 to 4. Two things differ. Algorithm 4 adds η̄U for a sum U
of gradients; it must be subtracted. And v_k waits for every client, so a client that is slow for
ever sets the pace whatever the permissible delay: under the rule ``"asynchronous"`` a client that
was not heard of for ``absence`` seconds is not waited for until it is back; sample sizes matched to
speed, with weights in proportion, do the rest. ``"published"`` waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Update, Vector
from forethought.exchange.storage import Absent, Entry, Left, Returned
from forethought.federated.aggregation import shortened
from forethought.federated.federation import Federation
from forethought.federated.own_model import subtract_step
from forethought.federated.rule import Arrays
from forethought.federated.steps import step_size

# How often within the time of absence the clients are looked over.
LOOKS = 4


class Asynchronous:
    """See :class:`forethought.federated.rule.Rule`.

    Args:
        federation: what was agreed. weights: the first model v_0.
    """

    def __init__(self, federation: Federation, weights: Vector) -> None:
        self.version, self.finished = 0, False
        self.model: Vector = weights
        self.weights: Vector = weights.copy()
        self._federation = federation
        members = range(len(federation.members))
        self._limits = np.array([federation.updates(client) for client in members], dtype=np.int64)
        # Rounds without a gap; further ones by themselves; what a returned client is credited.
        self._done = np.zeros(len(members), dtype=np.int64)
        self._ahead: dict[int, set[int]] = {}
        self._credit = np.zeros(len(members), dtype=np.int64)
        self._absent = np.zeros(len(members), dtype=bool)
        self._gone = np.zeros(len(members), dtype=bool)
        self._count()

    def refuses(self, client: int, update: Update) -> str | None:
        if update.base > self.version or not self._federation.permits(update.base, update.round):
            return "future"
        return "late" if self.finished else None

    def apply(self, client: int, update: Update) -> None:
        bound = self._federation.robust.bound
        vector = update.vector if bound is None else shortened(update.vector, None, bound)
        size = step_size(self._federation, client, update.round)
        subtract_step(self.weights, vector, size, self.weights)
        done = int(self._done[client])
        was = self._holds_up(client)
        if update.round == done and client not in self._ahead:
            done += 1
        else:
            ahead = self._ahead.setdefault(client, set())
            ahead.add(update.round)
            while done in ahead:
                ahead.discard(done)
                done += 1
            if not ahead:
                del self._ahead[client]
        self._done[client] = done
        self._behind -= was and not self._holds_up(client)

    def decided(self, entry: Entry) -> None:
        match entry:
            case Absent(client=client):
                self._absent[client] = True
            case Returned(client=client):
                self._absent[client] = self._gone[client] = False
                # It is waited for again from here on, not for what it missed.
                self._credit[client] = max(0, self.version - int(self._done[client]))
            case Left(client=client):
                self._gone[client] = True
            case _:
                return
        self._count()

    def advance(self) -> bool:
        if self.finished or self._behind:
            return False
        there = ~(self._absent | self._gone)
        if not self._active.any() and not there.any() and not self._gone.all():
            return False  # everyone who is not through is away
        self.finished = not self._active.any()
        self.version += 1
        self.model = self.weights.copy()
        self._count()
        return True

    def overdue(self, now: float, since: float, heard: NDArray[np.float64]) -> Sequence[Entry]:
        limit = self._federation.absence
        if limit is None or self.finished:
            return ()
        silent = self._active & (heard < now - limit)
        return tuple(Absent(client) for client in np.flatnonzero(silent).tolist())

    def patience(self) -> float | None:
        limit = self._federation.absence
        return None if limit is None or self.finished else limit / LOOKS

    def expects(self, client: int) -> bool:
        return not self._gone[client]

    def recipients(self) -> Iterable[int]:
        return np.flatnonzero(~self._gone & (self._done < self._limits)).tolist()

    def _holds_up(self, client: int) -> bool:
        """True if the next version waits for this client."""
        done = self._done[client]
        return bool(
            not (self._absent[client] or self._gone[client])
            and done < self._limits[client]
            and done + self._credit[client] <= self.version
        )

    def _count(self) -> None:
        self._active = ~(self._absent | self._gone) & (self._done < self._limits)
        self._behind = int((self._active & (self._done + self._credit <= self.version)).sum())

    def state(self) -> tuple[dict[str, Any], Arrays]:
        ahead = {str(client): sorted(rounds) for client, rounds in self._ahead.items()}
        return {"version": self.version, "finished": self.finished, "ahead": ahead}, {
            "weights": self.weights,
            "model": self.model,
            "done": self._done,
            "credit": self._credit,
            "absent": self._absent,
            "gone": self._gone,
        }

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        self.version, self.finished = int(values["version"]), bool(values["finished"])
        self._ahead = {int(client): set(rounds) for client, rounds in values["ahead"].items()}
        for name in ("weights", "model"):
            setattr(self, name, np.array(arrays[name], dtype=np.float32))
        self._done, self._credit = np.array(arrays["done"]), np.array(arrays["credit"])
        self._absent, self._gone = np.array(arrays["absent"]), np.array(arrays["gone"])
        self._count()
