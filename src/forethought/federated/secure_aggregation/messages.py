"""The messages between participants and aggregator of one secure round.

``base`` is the version of the model that a round is on, ``attempt`` tells tries at one round apart,
and ``round`` is the number of the client's own update. Fields of bytes hold pieces of fixed length
end to end, one for each client of the list beside them, in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from forethought.exchange.messages import Integers, register

KEYS_BYTES, SIGNATURE_BYTES, SHARE_BYTES = 64, 64, 32
# Two shares and the tag of their seal.
SEALED_BYTES = 2 * SHARE_BYTES + 16


@dataclass(frozen=True, slots=True, eq=False)
class MaskRequest:
    """The server begins an attempt at summing what is computed on its model."""

    round: int
    base: int
    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class MaskKeys:
    """A client's fresh public keys of this round: 32 bytes to seal by, 32 to mask by.

    Args:
        keys: empty where the client takes no part in the attempt, so that nobody waits for it.
        signature: by the client's own key over :func:`signed`; empty where nothing is signed.
    """

    round: int
    base: int
    attempt: int
    keys: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskRoster:
    """Everybody's keys, from the server, with their signatures."""

    round: int
    base: int
    attempt: int
    clients: Integers
    keys: bytes
    signatures: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskShares:
    """A client's sealed shares, one for every other client of the roster.

    Args:
        clients: whom they are for. sealed: the shares, and behind them :func:`committed`; empty
            where the client complains instead: what it was sent by ``clients`` does not open.
    """

    round: int
    base: int
    attempt: int
    clients: Integers
    sealed: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskDelivery:
    """The sealed shares that others sent the recipient; their senders mask with each other."""

    round: int
    base: int
    attempt: int
    clients: Integers
    sealed: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskedSum:
    """A noised sum under its masks: ring elements, packed, in whole words."""

    round: int
    base: int
    attempt: int
    content: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """The clients whose masked sums came: those are summed, the others dropped out."""

    round: int
    base: int
    attempt: int
    clients: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking:
    """One share for each client that masked: of its own mask if it survived, else of its key."""

    round: int
    base: int
    attempt: int
    clients: Integers
    shares: bytes


for _number, _kind in enumerate(
    (
        MaskKeys,
        MaskRoster,
        MaskShares,
        MaskDelivery,
        MaskedSum,
        Survivors,
        Unmasking,
        MaskRequest,
    ),
    start=32,
):
    register(_number, _kind)


def committed(run_id: bytes, client: int, own: bytes) -> bytes:
    """The commitment of a client to its own mask before anybody opens it: 32 bytes, and no hint
    of it."""
    head = b"forethought own mask\n" + run_id
    return sha256(head + client.to_bytes(8, "big") + own).digest()


def no_part(round: int, base: int, attempt: int) -> MaskKeys:
    """The message of a client that takes no part in an attempt, or no further one."""
    return MaskKeys(round, base, attempt, b"", b"")


def takes_no_part(message: object) -> bool:
    """True if a client says so."""
    return isinstance(message, MaskKeys) and not message.keys


def signed(run_id: bytes, round: int, client: int, keys: bytes) -> bytes:
    """The bytes that a client signs of its keys."""
    head = b"forethought mask keys\n" + run_id
    return head + round.to_bytes(8, "big") + client.to_bytes(8, "big") + keys


def attempted(run_id: bytes, attempt: int) -> bytes:
    """The name of one attempt for keys and seals, in place of the run: none serves another."""
    return sha256(b"forethought attempt\n" + run_id + attempt.to_bytes(8, "big")).digest()


def pieces(content: bytes, size: int, count: int) -> list[bytes]:
    """``count`` pieces of ``size`` bytes.

    Raises:
        ValueError: another length.
    """
    if len(content) != size * count:
        raise ValueError(f"{len(content)} bytes where {count} pieces of {size} belong")
    return [content[start : start + size] for start in range(0, len(content), size)]
