"""The differences between a star of clients around a server and a graph of workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from forethought.accounting.statement import Randomness, Statement
from forethought.federated import statements as of_clients
from forethought.federated.federation import FEDERATION, Federation
from forethought.gossip import statements as of_workers
from forethought.gossip.gossip import GOSSIP, Gossip
from forethought.values.caveats import Caveat
from forethought.values.mechanism import LocalRounds
from forethought.values.plan import Plan, Transcript


@dataclass(frozen=True)
class _Topology:
    """The common part of both topologies.

    Attributes:
        file: name of the agreement's file. local_rounds: private rounds in an update.
    """

    file: ClassVar[str]

    agreed: Federation | Gossip

    @property
    def plans(self) -> list[Plan]:
        """The plan of each holder."""
        return [self.agreed.plan(place) for place in range(len(self.agreed.members))]

    @property
    def names(self) -> list[str]:
        """The name of each holder."""
        return [member.name for member in self.agreed.members]


# The reason of a client's end that results may have decided.
LEFT = "stopped by its owner"


@dataclass(frozen=True)
class StarTopology(_Topology):
    """Clients around a server; see :class:`~forethought.federated.federation.Federation`.

    Args:
        left: see :func:`~forethought.federated.statements.client_statement`.
    """

    file = FEDERATION

    agreed: Federation
    left: bool = False

    @property
    def endings(self) -> tuple[str, ...]:
        """Reasons of an end after which a client cannot go on.

        Behind masks a client that left stays out; without them it may begin again.
        """
        return ("finished",) if self.agreed.secure is None else ("finished", LEFT)

    @property
    def most(self) -> int:
        """The largest number of updates of all clients together."""
        return sum(self.agreed.updates(client) for client in range(len(self.agreed.members)))

    @property
    def local_rounds(self) -> LocalRounds:
        """Private rounds in an update."""
        return self.agreed.local_rounds

    @property
    def gradients(self) -> bool:
        """True if clients send noised means in place of weights."""
        return self.agreed.exchanged == "gradients"

    @property
    def skips(self) -> bool:
        """True if rounds of a plan may be left out."""
        return bool(self.agreed.phases)

    @property
    def sized(self) -> bool:
        """True if holders choose their sample sizes."""
        return self.agreed.sizes is not None

    def made(self, client: int, transcript: Transcript) -> Plan:
        """The plan for the statement of a client's releases."""
        return of_clients.plan_made(self.agreed, client, transcript)

    @property
    def views(self) -> tuple[of_clients.View, ...]:
        """The adversaries of a client's statements."""
        return ("server" if self.agreed.secure is None else "secure-server",)

    def statement(
        self,
        client: int,
        transcript: Transcript,
        randomness: Randomness,
        not_covered: Iterable[Caveat] = (),
        view: int = 0,
    ) -> Statement:
        """A client's statement against the adversary ``views[view]``."""
        made = of_clients.client_statement(
            self.agreed,
            client,
            self.views[view],
            transcript=transcript,
            randomness=randomness,
            left=self.left,
        )
        return replace(made, caveats=(*made.caveats, *not_covered))


@dataclass(frozen=True)
class GraphTopology(_Topology):
    """Workers that are each other's neighbours; see :class:`~forethought.gossip.gossip.Gossip`."""

    file = GOSSIP
    # Reasons of an end after which a worker cannot go on.
    endings = ("counted", "neighbour", "rounds", "stopped", "ledger set back")

    agreed: Gossip
    local_rounds: ClassVar[LocalRounds] = 1
    gradients: ClassVar[bool] = True
    skips: ClassVar[bool] = False
    sized: ClassVar[bool] = False
    views: ClassVar[tuple[of_workers.View, ...]] = ("neighbours", "outsider")

    @property
    def most(self) -> int:
        """The largest number of updates of all workers together."""
        return self.agreed.total

    def made(self, worker: int, transcript: Transcript) -> Plan:
        """The plan for the statement of a worker's releases."""
        return self.agreed.plan(worker)

    def statement(
        self,
        worker: int,
        transcript: Transcript,
        randomness: Randomness,
        not_covered: Iterable[Caveat] = (),
        view: int = 0,
    ) -> Statement:
        """A worker's statement against the adversary ``views[view]``."""
        return of_workers.worker_statement(
            self.agreed,
            worker,
            self.views[view],
            transcript=transcript,
            randomness=randomness,
            not_covered=not_covered,
        )


Topology = StarTopology | GraphTopology


def topology_of(agreed: Federation | Gossip) -> Topology:
    """The topology of a federation or a gossip."""
    return StarTopology(agreed) if isinstance(agreed, Federation) else GraphTopology(agreed)
