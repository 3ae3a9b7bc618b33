"""The messages between workers: frozen values, no behaviour.

``round`` is how many updates the sender's ledger holds, ``base`` the exchange step. ``known`` is
how many updates of the *recipient* the sender has heard of: a ledger that was set back is
recognised by it. ``proof`` is the recipient's own signature on so many updates
(:func:`~forethought.exchange.messages.proven`); without it the claim is refused where frames are
signed. ``count`` is the sender's share of the global count, in units of
:data:`~forethought.gossip.worker.UNIT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from forethought.exchange.messages import Packed, register

# Steps below 0 are no exchanges.
ANSWER, LAST = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A worker's weights, to average with.

    Args:
        base: the exchange step; ANSWER: to a Hello that wanted them; LAST: the sender is done.
        left: exchanges until the sender ends; -1: it does not know the end yet.
        vector: float32, shape (coordinates,): weights, and tracked gradients where there are any;
            as the gossip's compression leaves them. Under "top-k" a change of what the receiver
            has, in which most numbers are 0.
        of, heard: exchanges, see :class:`~forethought.gossip.replicas.Link`; -1 elsewhere.
    """

    round: int
    base: int
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
class Hello:
    """A worker is back: what do you know of me?

    Args:
        wanted: 1 where the answer is to be :class:`Weights`, 0 where :class:`Known`.
    """

    round: int
    base: int
    wanted: int
    COUNTS: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The answer to a Hello that did not want the weights.

    Args:
        ready: 1 where the sender has weights worth taking, and is not coming back itself.
    """

    round: int
    base: int
    known: int
    ready: int
    proof: bytes = b""
    LATER: ClassVar[str] = "proof"
    COUNTS: ClassVar[bool] = True


Message: TypeAlias = Weights | Hello | Known

for _number, _kind in ((64, Weights), (65, Hello), (66, Known)):
    register(_number, _kind)
