"""The workers that gossip between sites: everybody's name, keys and address, as one public file.

As in a federation (:mod:`forethought.exchange.keys`), every worker makes its own keys, hands over
its public identity, and trusts a certificate because it is in here; there is no server.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from forethought.exchange.keys import Identity, Keys, Roster, RosterError
from forethought.gossip.gossip import Gossip, GossipError
from forethought.values.serialisation import Stored, canonical


@dataclass(frozen=True)
class PeerRoster(Stored):
    """Everybody in a gossip between sites.

    Args:
        workers: their identities, in the order of their places.
        addresses: host:port on which each can be reached, in the same order.
        nonce: 32 hexadecimal digits drawn when the roster was made.

    Raises:
        RosterError: a name, a key or an address that occurs twice, or one that is none.
    """

    SCHEMA: ClassVar[str] = "forethought/peer-roster/1"
    CALLED: ClassVar[str] = "roster of workers"

    workers: tuple[Identity, ...]
    addresses: tuple[str, ...]
    nonce: str

    def __post_init__(self) -> None:
        if len(self.workers) < 2 or len(self.workers) != len(self.addresses):
            raise RosterError("a roster needs at least two workers, and an address of each")
        Roster(self.workers[0], self.workers[1:], self.nonce)  # names and keys, each once
        for address in self.addresses:
            host, colon, port = address.rpartition(":")
            if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
                raise RosterError(f"{address!r} is no address: give host:port of every worker")
        twice = sorted({one for one in self.addresses if self.addresses.count(one) > 1})
        if twice:
            raise RosterError(f"two workers have the address {twice[0]}: each needs its own")

    @classmethod
    def of(cls, workers: Sequence[Identity], addresses: Sequence[str]) -> PeerRoster:
        """A new roster with a nonce of its own."""
        return cls(tuple(workers), tuple(addresses), secrets.token_hex(16))

    @property
    def fingerprint(self) -> str:
        """32 digits of its hash, to compare by telephone."""
        return hashlib.sha256(canonical(self.to_dict()).encode()).hexdigest()[:32]

    def place(self, keys: Keys) -> int:
        """The place that these keys are for.

        Raises:
            RosterError: nobody's.
        """
        names = [identity.name for identity in self.workers]
        name = keys.identity.name
        if name not in names or self.workers[names.index(name)] != keys.identity:
            raise RosterError(
                f"the keys are those of {name!r}, or were made anew: the roster has "
                f"{', '.join(names)}, with the keys they had when it was made"
            )
        return names.index(name)

    def with_keys(self, gossip: Gossip) -> Gossip:
        """The gossip with its members' keys and the nonce in it, so that its name depends on them.

        Raises:
            GossipError: other names, or another order.
        """
        names = [member.name for member in gossip.members]
        if names != [identity.name for identity in self.workers]:
            raise GossipError(
                f"the job's workers are {', '.join(names)}; the roster's "
                f"{', '.join(identity.name for identity in self.workers)}: join the same, in order"
            )
        members = tuple(
            replace(member, public_key=identity.public_key)
            for member, identity in zip(gossip.members, self.workers, strict=True)
        )
        return replace(gossip, members=members, nonce=self.nonce)

    def one_way(self, to: int, connecting: Sequence[int]) -> Roster:
        """The members that may connect to a worker, in the form that connections are judged by."""
        return Roster(self.workers[to], tuple(self.workers[one] for one in connecting), self.nonce)

    def _values(self) -> dict[str, Any]:
        workers = [identity.to_dict() for identity in self.workers]
        return {"workers": workers, "addresses": list(self.addresses), "nonce": self.nonce}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> PeerRoster:
        workers = tuple(Identity.from_dict(row) for row in values["workers"])
        return cls(workers, tuple(values["addresses"]), values["nonce"])
