"""The events that a worker receives, and the effects that it requests.

A worker has no clock, no socket and no randomness. Its driver calls ``handle(event)`` and executes
the returned effects *in order, each one completely before the next*: a commit is durable before
anything is sent. ``Commit``, ``Acknowledged``, ``Send`` and ``Alarm`` are those of
:mod:`forethought.exchange.events`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from forethought.exchange.events import Acknowledged as Acknowledged
from forethought.exchange.events import Alarm as Alarm
from forethought.exchange.events import Commit as Commit
from forethought.exchange.events import Send as Send
from forethought.exchange.messages import Framed, Packed, Vector, register

# The messages between workers: frozen values, no behaviour.
#
# ``round`` is the number of updates in the sender's ledger, ``base`` the exchange step. ``known``
# is the number of the *recipient's* updates that the sender knows of; it reveals a ledger that was
# set back. ``proof`` is the recipient's own signature on that number
# (:func:`~forethought.exchange.messages.proven`); without it the claim is refused where frames are
# signed. ``count`` is the sender's share of the global count, in units of
# :data:`~forethought.gossip.worker.UNIT`.


# Values of ``base`` for weights outside the exchanges.
ANSWER, LAST = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Weights(Framed):
    """A worker's weights, to average with.

    Args:
        base: the exchange step; ANSWER: to a Hello that wanted weights; LAST: the sender has ended.
        left: exchanges until the sender ends; -1: it does not know the end yet.
        vector: float32, shape (coordinates,): the weights, then the tracked gradients if tracking,
            after the gossip's compression. Under "top-k": a change of the receiver's replica, in
            which most numbers are 0.
        of, heard: exchanges, see :class:`~forethought.gossip.compression.Link`; -1 if unused.
    """

    known: int
    count: int
    left: int
    vector: Packed
    of: int = -1
    heard: int = -1
    proof: bytes = b""
    LATER: ClassVar[str] = "proof"
    LEAST_BASE: ClassVar[int] = LAST
    COUNTS: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class Hello(Framed):
    """A returning worker asks a neighbour how many of its updates the neighbour knows.

    Args:
        wanted: 1 if the sender asks for :class:`Weights`, 0 if only for :class:`Known`.
    """

    wanted: int
    COUNTS: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class Known(Framed):
    """The answer to a Hello, without weights.

    Args:
        ready: 1 if the sender is not returning itself, so that its weights are current.
    """

    known: int
    ready: int
    proof: bytes = b""
    LATER: ClassVar[str] = "proof"
    COUNTS: ClassVar[bool] = True


Message: TypeAlias = Weights | Hello | Known

for _number, _kind in ((64, Weights), (65, Hello), (66, Known)):
    register(_number, _kind)


# ---- events


@dataclass(frozen=True, slots=True)
class Started:
    """The worker may begin.

    Args:
        returning: 1 for a worker that was away or restarts from a crash or a backup: before it
            computes, its neighbours say how many of its updates they know; under the rule
            "asynchronous" it then takes a neighbour's weights.
    """

    returning: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """A stored number of a neighbour's updates, known before a restart; comes before Started.

    Args:
        peer: the neighbour. updates: their number.
    """

    peer: int
    updates: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Begin exchange ``step``; the driver sends every step once, in order, at its own pace."""

    step: int


@dataclass(frozen=True, slots=True, eq=False)
class GradientDone:
    """A trainer has finished a :class:`ComputeGradient`.

    Args:
        round: of the worker's own plan. vector: the noised mean, float32, shape (parameters,).
        rounds: private rounds of the plan that are done now.
        input_hash: of the weights at which it was computed, 32 bytes.
        state: the trainer's state, to resume from after a restart.
    """

    round: int
    vector: Vector
    rounds: int
    input_hash: bytes
    state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class PeerMessage:
    """A message arrived; its sender's identity has been checked."""

    sender: int
    message: Any


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A neighbour does not answer: matchings are drawn without it."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerBack:
    """A neighbour answers again."""

    peer: int


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """The mean over all workers of the vectors of an :class:`AllReduce`."""

    round: int
    vector: Vector


@dataclass(frozen=True, slots=True)
class Stop:
    """The deadline has come, or the owner ends the worker: no more gradients."""


Event: TypeAlias = (
    Started | Heard | Mix | GradientDone | PeerMessage | PeerLost | PeerBack | Reduced | Stop
)

# ---- effects


@dataclass(frozen=True, slots=True, eq=False)
class ComputeGradient:
    """Compute the next private round at these weights; the answer is :class:`GradientDone`."""

    round: int
    weights: Vector

    @property
    def vector(self) -> Vector:
        """The weights, under the name that trainers use."""
        return self.weights


@dataclass(frozen=True, slots=True)
class Mixed:
    """Exchange ``step`` has received all that it waits for."""

    step: int


@dataclass(frozen=True, slots=True, eq=False)
class AllReduce:
    """Average this vector over all workers; the answer is :class:`Reduced`."""

    round: int
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class WorkerFinished:
    """The worker has nothing more to do; it still answers neighbours that are behind.

    Args:
        weights: its model, float32, shape (parameters,).
        reason: "counted", "stopped", "neighbour", "rounds" or "ledger set back".
    """

    weights: Vector
    reason: str


Effect: TypeAlias = (
    ComputeGradient | Mixed | AllReduce | WorkerFinished | Send | Commit | Acknowledged | Alarm
)
