"""The events that reach a worker, and the effects that it asks for.

A worker has no clock, no socket and no randomness. Its driver calls ``handle(event)`` and executes
the effects that come back *in order, each whole before the next*: what was committed is durable
before anything is sent. ``Commit``, ``Acknowledged``, ``Send`` and ``Alarm`` are those of
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
# ``round`` is how many updates the sender's ledger holds, ``base`` the exchange step. ``known`` is
# how many updates of the *recipient* the sender has heard of: a ledger that was set back is
# recognised by it. ``proof`` is the recipient's own signature on so many updates
# (:func:`~forethought.exchange.messages.proven`); without it the claim is refused where frames are
# signed. ``count`` is the sender's share of the global count, in units of
# :data:`~forethought.gossip.worker.UNIT`.


# Steps below 0 are no exchanges.
ANSWER, LAST = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Weights(Framed):
    """A worker's weights, to average with.

    Args:
        base: the exchange step; ANSWER: to a Hello that wanted them; LAST: the sender is done.
        left: exchanges until the sender ends; -1: it does not know the end yet.
        vector: float32, shape (coordinates,): weights, and tracked gradients where there are any;
            as the gossip's compression leaves them. Under "top-k" a change of what the receiver
            has, in which most numbers are 0.
        of, heard: exchanges, see :class:`~forethought.gossip.compression.Link`; -1 elsewhere.
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
    """A worker is back: what do you know of me?

    Args:
        wanted: 1 where the answer is to be :class:`Weights`, 0 where :class:`Known`.
    """

    wanted: int
    COUNTS: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class Known(Framed):
    """The answer to a Hello that did not want the weights.

    Args:
        ready: 1 where the sender has weights worth taking, and is not coming back itself.
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
        returning: 1 for a worker that was away, or that a crash or a backup made anew: before it
            computes, its neighbours say what they know of it, and it takes their weights.
    """

    returning: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    """So many updates of a neighbour were heard of in an earlier life, as was kept; before Started.

    Args:
        peer: the neighbour. updates: of it.
    """

    peer: int
    updates: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Begin exchange ``step``; the driver paces them, and every step comes once, in order."""

    step: int


@dataclass(frozen=True, slots=True, eq=False)
class GradientDone:
    """A trainer finished what a :class:`ComputeGradient` asked for.

    Args:
        round: of the worker's own plan. vector: the noised mean, float32, shape (parameters,).
        rounds: private rounds of the plan that are done now.
        input_hash: 32 bytes: of the weights it was computed on.
        state: the trainer's own, to go on from after a restart.
    """

    round: int
    vector: Vector
    rounds: int
    input_hash: bytes
    state: bytes


@dataclass(frozen=True, slots=True, eq=False)
class PeerMessage:
    """A message came, its sender's identity checked."""

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
    """The mean over all workers of what an :class:`AllReduce` handed in."""

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
    """The worker's next private round, on these weights; the answer is :class:`GradientDone`."""

    round: int
    weights: Vector

    @property
    def vector(self) -> Vector:
        """The weights, as trainers ask for them."""
        return self.weights


@dataclass(frozen=True, slots=True)
class Mixed:
    """Everything that exchange ``step`` waits for has come."""

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
