"""The server's update rules: state machines that turn accepted updates into global models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Update, Vector
from forethought.exchange.storage import Absent, Closed, Entry, Left, Returned
from forethought.federated.aggregation import aggregate, shortened
from forethought.federated.federation import Federation
from forethought.federated.own_model import subtract_step
from forethought.federated.steps import Moments, moved, step_size
from forethought.values.plan import step_sizes

Arrays = dict[str, NDArray[np.generic]]


# Number of checks for silent clients within the time ``absence``.
LOOKS = 4
# Attributes of an asynchronous rule with one element per client, which a snapshot holds.
_COUNTED = ("done", "credit", "absent", "gone")


class Asynchronous:
    """Asynchronous rounds: updates are applied as they arrive.

    The model v_k is sent once all rounds below k arrived (van Dijk et al., Appendix A, Algorithms 2
    to 4). Two things differ. Algorithm 4 adds η̄U for a sum U of gradients; this class subtracts
    it. And there v_k waits for every client, so one permanently slow client limits all others,
    whatever the permissible delay. Under the rule ``"asynchronous"`` the server does not wait for a
    client that was silent for ``absence`` seconds until it returns; sample sizes in proportion to
    speed, with weights in proportion, handle the rest. ``"published"`` waits.

    Only :meth:`apply`, :meth:`decided` and :meth:`advance` change the state, which depends on the
    order of the entries alone.

    Args:
        federation: the agreement. weights: the first model v_0, float32, shape (parameters,).

    Attributes:
        version: version of the newest model. finished: True if it is the last one.
        weights: the newest weights. model: weights of the newest version, as sent; never written
            to.
    """

    def __init__(self, federation: Federation, weights: Vector) -> None:
        self.version, self.finished = 0, False
        self.model: Vector = weights
        self.weights: Vector = weights.copy()
        self._federation = federation
        members = range(len(federation.members))
        self._limits = np.array([federation.updates(client) for client in members], dtype=np.int64)
        # Per client: rounds done without a gap, later rounds that arrived early, and the rounds
        # that a returned client is credited with.
        self._done = np.zeros(len(members), dtype=np.int64)
        self._ahead: dict[int, set[int]] = {}
        self._credit = np.zeros(len(members), dtype=np.int64)
        self._absent = np.zeros(len(members), dtype=bool)
        self._gone = np.zeros(len(members), dtype=bool)
        self._count()

    def refuses(self, client: int, update: Update) -> str | None:
        """The reason why an update cannot be applied; None: it can."""
        known = 0 <= update.base <= self.version
        if not known or not self._federation.permits(update.base, update.round):
            return "future"
        return "late" if self.finished else None

    def apply(self, client: int, update: Update) -> None:
        """Apply an update to the weights."""
        bound = self._federation.robust.bound
        vector = update.vector if bound is None else shortened(update.vector, None, bound)
        size = step_size(self._federation, client, update.round)
        subtract_step(self.weights, vector, size, self.weights)
        done = int(self._done[client])
        was = self._holds_up(client)
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
        """Apply any other entry of the journal."""
        match entry:
            case Absent(client=client):
                self._absent[client] = True
            case Returned(client=client):
                self._absent[client] = self._gone[client] = False
                # The next versions wait for it again, but not for the rounds that it missed.
                self._credit[client] = max(0, self.version - int(self._done[client]))
            case Left(client=client):
                self._gone[client] = True
            case _:
                return
        self._count()

    def advance(self) -> bool:
        """Go to the next version if the entries so far permit it; True if it did."""
        if self.finished or self._behind:
            return False
        there = ~(self._absent | self._gone)
        if not self._active.any() and not there.any() and not self._gone.all():
            return False  # all clients that have rounds left are absent
        self.finished = not (self._active.any() or self._later())
        self.version += 1
        self.model = self.weights.copy()
        if self._federation.phases:
            # Rounds that a client missed or skipped in a phase are not due in the next one.
            self._credit = np.maximum(self._credit, self.version - self._done)
        self._count()
        return True

    def _later(self) -> bool:
        """True if a client that is not in this phase has rounds left in a later one."""
        there = ~(self._gone | self._absent | self._takes) & (self._done < self._limits)
        return any(
            own.stop > self.version
            for client in np.flatnonzero(there).tolist()
            for own in self._federation.places(client)
        )

    def overdue(self, now: float, since: float, heard: NDArray[np.float64]) -> Sequence[Entry]:
        """The entries that are due because of the time.

        Args:
            now: seconds. since: time at which the present version began. heard: time of each
                client's last message, shape (clients,).
        """
        limit = self._federation.absence
        if limit is None or self.finished:
            return ()
        silent = self._active & (heard < now - limit)
        return tuple(Absent(client) for client in np.flatnonzero(silent).tolist())

    def patience(self) -> float | None:
        """Seconds until the next call of :meth:`overdue`; None: no call is needed."""
        limit = self._federation.absence
        return None if limit is None or self.finished else limit / LOOKS

    def expects(self, client: int) -> bool:
        """True if this client is to get the newest model."""
        return not self._gone[client]

    def recipients(self) -> Iterable[int]:
        """All clients that are to get the newest model."""
        return np.flatnonzero(~self._gone & (self._done < self._limits)).tolist()

    def _holds_up(self, client: int) -> bool:
        """True if the next version waits for this client."""
        done = self._done[client]
        return bool(
            not (self._absent[client] or self._gone[client])
            and self._takes[client]
            and done < self._limits[client]
            and done + self._credit[client] <= self.version
        )

    def _count(self) -> None:
        self._takes = takers(self._federation, self.version)
        self._active = ~(self._absent | self._gone) & (self._done < self._limits) & self._takes
        self._behind = int((self._active & (self._done + self._credit <= self.version)).sum())

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """The state for a snapshot: values for JSON, and arrays."""
        ahead = {str(client): sorted(rounds) for client, rounds in self._ahead.items()}
        values = {"version": self.version, "finished": self.finished, "ahead": ahead}
        arrays: Arrays = {name: getattr(self, f"_{name}") for name in _COUNTED}
        return values, {"weights": self.weights, "model": self.model, **arrays}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.version, self.finished = int(values["version"]), bool(values["finished"])
        self._ahead = {int(client): set(rounds) for client, rounds in values["ahead"].items()}
        for name in ("weights", "model"):
            setattr(self, name, np.array(arrays[name], dtype=np.float32))
        for name in _COUNTED:
            setattr(self, f"_{name}", np.array(arrays[name]))
        self._count()


class Synchronous:
    """Synchronous rounds: a cohort computes on one model, and the mean gives the next one.

    FedAvg (McMahan et al. 2017), as in private federated learning with R global rounds of E local
    ones. A public seed determines the cohorts, so no amplification by client sampling is claimed.

    The methods, state and attributes are those of :class:`Asynchronous`.

    Args:
        federation: the agreement. weights: the first model, float32, shape (parameters,).

    Attributes:
        asked: the present version's cohort, including clients that have answered.
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
        self._steps = federation.exchanged == "gradients"
        # One model takes one step, of the size of the first member's plan, or of the first plan
        # that has a size for every round. A schedule that is too short is stretched over the run.
        plans, rounds = (federation.plan(0), *federation.plans), federation.rounds
        chosen = max(plans, key=lambda plan: min(plan.rounds, rounds))
        self._size, self._stretch = step_sizes(chosen), min(1.0, chosen.rounds / rounds)
        self._begin()

    @property
    def weights(self) -> Vector:
        """The weights of the newest model; they change only with its version."""
        return self.model

    @property
    def begun(self) -> bool:
        """True if some of the round's updates arrived and others are still missing."""
        return bool(self._aggregate.count and self._waiting)

    def refuses(self, client: int, update: Update) -> str | None:
        if update.base > self.version:
            return "future"
        if update.base < self.version or self.finished:
            return "late"
        if client not in self._waiting:
            return "twice" if client in self.asked else "future"
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

    def advance(self) -> bool:
        if self.finished or self._waiting:
            return False
        if not self._aggregate.count:
            # All clients of the cohort left, or the round is lost: the model stays the same.
            before = self.version
            self.version += self._lost
            self._begin()
            return self.version > before
        came, how = self._aggregate.result(), self._federation.server
        if self._steps:
            size = self._size(int(self.version * self._stretch))
            change = -size * came.astype(np.float64)
            self.model = moved(how, self._moments, self.model, change)
        elif how.kind == "avg" and how.rate == 1.0:
            self.model = came
        else:
            change = came.astype(np.float64) - self.model
            self.model = moved(how, self._moments, self.model, change)
        self.version += 1
        self._begin()
        return True

    def overdue(self, now: float, since: float, heard: NDArray[np.float64]) -> Sequence[Entry]:
        deadline = self._federation.deadline
        if deadline is None or self.finished or now < since + deadline:
            return ()
        # Without any update there is no mean, so the round stays open for the first one.
        return (Closed(self.version),) if self.begun else ()

    def patience(self) -> float | None:
        return None if self.finished else self._federation.deadline

    def expects(self, client: int) -> bool:
        return client in self._waiting

    def recipients(self) -> Iterable[int]:
        return tuple(self._waiting)

    def _begin(self) -> None:
        """Draw a cohort for the present version, or for the next one for which somebody is there;
        the run is finished if nobody is."""
        centre = None if self._steps else self.model
        self._aggregate = aggregate(self._federation.robust, centre)
        # A phase whose clients all left is over: the next one may have others.
        drawn = ((v, self._cohort(v)) for v in range(self.version, self._federation.rounds))
        self.version, self.asked = next((one for one in drawn if one[1]), (self.version, ()))
        self._waiting = dict.fromkeys(self.asked)
        self._lost = False
        self.finished = not self._waiting

    def _cohort(self, version: int) -> tuple[int, ...]:
        takes = takers(self._federation, version)
        able = np.flatnonzero(~self._gone & (self._next < self._limits) & takes)
        return cohort_of(self._federation, version, able)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {
            "weights": self.model,
            "next": self._next,
            "gone": self._gone,
            "asked": np.array(self.asked, dtype=np.int64),
            "waiting": np.array(list(self._waiting), dtype=np.int64),
        }
        arrays |= {f"moment/{name}": value for name, value in self._moments.items()}
        arrays |= {f"came/{name}": value for name, value in self._aggregate.state().items()}
        return {"version": self.version, "finished": self.finished}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        self.model = np.array(arrays["weights"], dtype=np.float32)
        self._next, self._gone = np.array(arrays["next"]), np.array(arrays["gone"])
        parts = {name: name.partition("/") for name in arrays}
        self._moments = {
            own: np.array(arrays[name], dtype=np.float64)
            for name, (kind, _, own) in parts.items()
            if kind == "moment"
        }
        self._begin()
        self.version = int(values["version"])
        self.asked = tuple(arrays["asked"].tolist())
        self._waiting = dict.fromkeys(arrays["waiting"].tolist())
        self.finished = bool(values["finished"])
        self._aggregate.restore(
            {own: arrays[name] for name, (kind, _, own) in parts.items() if kind == "came"}
        )


# Either of the server's update rules.
UpdateRule: TypeAlias = Asynchronous | Synchronous


def takers(federation: Federation, version: int) -> NDArray[np.bool_]:
    """Boolean array, shape (members,): True if a member takes part in the version's phase."""
    if not federation.taking:
        return np.ones(len(federation.members), dtype=bool)
    phase = federation.phase(version)
    return np.array([federation.takes(client, phase) for client in range(len(federation.members))])


def cohort_of(federation: Federation, version: int, able: NDArray[np.int64]) -> tuple[int, ...]:
    """The cohort of a round, drawn from the clients ``able``, ascending; all if no size is set."""
    size = federation.cohort
    if size is not None and size < len(able):
        # PCG64 of (seed, version, number of able clients): anybody can draw the cohorts again.
        generator = np.random.Generator(np.random.PCG64([federation.seed, version, len(able)]))
        able = np.sort(generator.choice(able, size, replace=False))
    return tuple(able.tolist())
