"""Synchronous rounds: a cohort computes on one model, and their mean makes the next one.

FedAvg (McMahan et al. 2017), as in private federated learning with R global rounds of E local ones.
Cohorts follow from a public seed, so no amplification by them is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Update, Vector
from forethought.exchange.storage import Closed, Entry, Left, Returned
from forethought.federated.aggregation import aggregate
from forethought.federated.federation import Federation
from forethought.federated.rule import Arrays
from forethought.federated.server_optimizers import Moments, is_plain, moved
from forethought.values.plan import step_sizes


class Synchronous:
    """See :class:`forethought.federated.rule.Rule`.

    Args:
        federation: what was agreed. weights: the first model.
    """

    def __init__(self, federation: Federation, weights: Vector) -> None:
        self.version, self.finished = 0, False
        self.model: Vector = weights
        self._federation = federation
        members = range(len(federation.members))
        self._limits = np.array([federation.updates(client) for client in members], dtype=np.int32)
        self._next = np.zeros(len(members), dtype=np.int32)
        self._gone = np.zeros(len(members), dtype=bool)
        self._moments: Moments = {}
        gradients = federation.exchanged == "gradients"
        # One model takes one step: its sizes are those of the first member's plan.
        self._step = step_sizes(federation.plan(0)) if gradients else None
        self._begin()

    @property
    def weights(self) -> Vector:
        """Those of the newest model: nothing is between two of them."""
        return self.model

    @property
    def asked(self) -> tuple[int, ...]:
        """The clients that the present version was made for, those that have answered too."""
        return self._asked

    @property
    def begun(self) -> bool:
        """True if some of a round's updates are in, and others are waited for."""
        return bool(self._aggregate.count and self._waiting)

    def refuses(self, client: int, update: Update) -> str | None:
        if update.base > self.version:
            return "future"
        if update.base < self.version or self.finished:
            return "late"
        if client not in self._waiting:
            return "twice" if client in self._asked else "future"
        if update.round < self._next[client]:
            return "late"
        return None

    def apply(self, client: int, update: Update) -> None:
        del self._waiting[client]
        self._next[client] = update.round + 1
        self._aggregate.add(client, update.vector, self._federation.shares[client])

    def decided(self, entry: Entry) -> None:
        match entry:
            case Left():
                self._gone[entry.client] = True
                self._waiting.pop(entry.client, None)
            case Returned(client=client):
                self._gone[client] = False
            case Closed(base=base):
                self._lost = base == -1 - self.version
                if self._lost or base == self.version:
                    self._waiting.clear()
            case _:
                pass

    def advance(self) -> bool:
        if self.finished or self._waiting:
            return False
        if not self._aggregate.count:
            # All who were asked left; or the model of the next round is this one.
            lost = self._lost
            self.version += lost
            self._begin()
            return lost
        came = self._aggregate.result()
        if self._step is not None:
            change = -self._step(self.version) * came.astype(np.float64)
            self.model = moved(self._federation.server, self._moments, self.model, change)
        elif is_plain(self._federation.server):
            self.model = came
        else:
            change = came.astype(np.float64) - self.model
            self.model = moved(self._federation.server, self._moments, self.model, change)
        self.version += 1
        self._begin()
        return True

    def overdue(self, now: float, since: float, heard: NDArray[np.float64]) -> Sequence[Entry]:
        deadline = self._federation.deadline
        if deadline is None or self.finished or now < since + deadline:
            return ()
        # Nobody's update is no model: the round stays open for the first one.
        return (Closed(self.version),) if self.begun else ()

    def patience(self) -> float | None:
        return None if self.finished else self._federation.deadline

    def expects(self, client: int) -> bool:
        return client in self._waiting

    def recipients(self) -> Iterable[int]:
        return tuple(self._waiting)

    def _begin(self) -> None:
        """Ask a cohort for the present version; nobody left to ask is the end."""
        self._aggregate = aggregate(
            self._federation.robust,
            None if self._step is not None else self.model,
        )
        self._asked = () if self.version >= self._federation.rounds else self._cohort()
        self._waiting = dict.fromkeys(self._asked)
        self._lost = False
        self.finished = not self._waiting

    def _cohort(self) -> tuple[int, ...]:
        able = np.flatnonzero(~self._gone & (self._next < self._limits))
        return cohort_of(self._federation, self.version, able)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {
            "weights": self.model,
            "next": self._next,
            "gone": self._gone,
            "asked": np.array(self._asked, dtype=np.int64),
            "waiting": np.array(list(self._waiting), dtype=np.int64),
        }
        arrays |= {f"moment/{name}": value for name, value in self._moments.items()}
        arrays |= {f"came/{name}": value for name, value in self._aggregate.state().items()}
        return {"version": self.version, "finished": self.finished}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        self.version = int(values["version"])
        self.model = np.array(arrays["weights"], dtype=np.float32)
        self._next, self._gone = np.array(arrays["next"]), np.array(arrays["gone"])
        parts = {name: name.partition("/") for name in arrays}
        self._moments = {
            own: np.array(arrays[name], dtype=np.float64)
            for name, (kind, _, own) in parts.items()
            if kind == "moment"
        }
        self._begin()
        self._asked = tuple(arrays["asked"].tolist())
        self._waiting = dict.fromkeys(arrays["waiting"].tolist())
        self.finished = bool(values["finished"])
        self._aggregate.restore(
            {own: arrays[name] for name, (kind, _, own) in parts.items() if kind == "came"}
        )


def cohort_of(federation: Federation, version: int, able: NDArray[np.int64]) -> tuple[int, ...]:
    """Whom a round asks of those who are able, ascending; all of them where there is no cohort."""
    size = federation.cohort
    if size is not None and size < len(able):
        # PCG64 of (seed, version): anybody can draw the cohorts again.
        generator = np.random.Generator(np.random.PCG64([federation.seed, version, len(able)]))
        able = np.sort(generator.choice(able, size, replace=False))
    return tuple(able.tolist())
