"""The messages between clients and a server: frozen values, no behaviour.

Every message has a ``round`` and a ``base``, which its frame carries in the signed header. Vectors
are one-dimensional NumPy arrays, contiguous, never written to after the message was made. A class
is sent under a number of :data:`KINDS`; what is not registered cannot be sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The server, where a client is its place in the roster.
SERVER = -1

Vector: TypeAlias = Annotated[NDArray[np.float32], "float32"]
# The same, in fewer bytes where that loses nothing.
Packed: TypeAlias = Annotated[NDArray[np.float32], "packed"]
Integers: TypeAlias = Annotated[NDArray[np.int64], "int64"]


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """A client is there; sent on every connection and as a heartbeat.

    Args:
        round: how many updates its ledger holds.
        base: version of the newest model that it has; -1: none.
        life: number of the process that says so, larger in every later one; 0: it has none.
    """

    round: int
    base: int
    life: int = 0
    LATER: ClassVar[str] = "life"


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One release of a client: post-processing of noised sums, and nothing else.

    Args:
        round: number of this client's update, from 0. A release is (client, round) for ever.
        base: version of the model that it was computed on.
        vector: float32, shape (parameters,): the weights after the local rounds, or a noised mean.
    """

    round: int
    base: int
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Leave:
    """A client stops for good: its plan is used up, or its owner ends it.

    Args:
        round: how many updates its ledger holds. base: version of its newest model.
        reason: a short code.
        life: see :class:`Join`. A later process of the client takes this back.
    """

    round: int
    base: int
    reason: str
    life: int = 0
    LATER: ClassVar[str] = "life"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The global model. To a member of a synchronous cohort also the request to compute on it.

    Args:
        round: how many updates of the *recipient* are applied.
        base: the model's version. vector: its weights, float32, shape (parameters,).
    """

    round: int
    base: int
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Acknowledgement:
    """An update is in the server's journal; said again when it comes again.

    Args:
        round: of the update. base: the server's version.
    """

    round: int
    base: int


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """An update was not applied, and changed nothing.

    Args:
        round, base: of what was refused. reason: a short code.
    """

    round: int
    base: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """The last model; nothing follows.

    Args:
        round: how many updates of the recipient are applied. base: version. vector: weights.
    """

    round: int
    base: int
    vector: Vector


Message: TypeAlias = Join | Update | Leave | Model | Acknowledgement | Refusal | Finished

# Number on the wire → class. Numbers are never used again for something else.
KINDS: dict[int, type] = {
    1: Join,
    2: Update,
    3: Leave,
    4: Model,
    5: Acknowledgement,
    6: Refusal,
    7: Finished,
}


def register(number: int, kind: type) -> None:
    """Make a dataclass sendable under a number from 32 on.

    Its fields are ``round: int``, ``base: int``, and any of int, str, bytes, :data:`Vector`,
    :data:`Integers`. ``LEAST_BASE`` of the class is the least base that it can have, otherwise -1.

    Raises:
        ValueError: the number is taken by another class, or below 32.
    """
    if number < 32 or KINDS.get(number, kind) is not kind:
        raise ValueError(
            f"message kind {number} is taken or below 32: choose another for {kind.__name__}"
        )
    KINDS[number] = kind
