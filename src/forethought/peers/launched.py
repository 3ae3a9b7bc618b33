"""Workers that torchrun started, or whoever else sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

Each process is a worker, its rank its place. The store where they meet is torchrun's, or else the
first process's: then nobody can come back once that one is gone, while those who have met go on.
torchrun itself ends all workers of one agent when one of them dies; under an agent for each worker
(``--nnodes=K --nproc-per-node=1 --rdzv-backend=static``) the others go on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from forethought.exchange.messages import Vector
from forethought.gossip.gossip import Gossip, GossipError
from forethought.peers.driving import PeersError
from forethought.peers.pairs import GlooPairs, Meeting, StoreError
from forethought.peers.reducing import GroupReduce, own_gpu
from forethought.serialisation import canonical


@dataclass(frozen=True)
class Launched:
    """The worker that this process is.

    Args:
        rank, size: place and number. host, port: of the store.
        serves: whether this process is the one that serves the store.
    """

    rank: int
    size: int
    host: str
    port: int
    serves: bool

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Launched:
        """As torchrun says.

        Raises:
            PeersError: it did not start this process.
        """
        given = os.environ if environment is None else environment
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in given]
        try:
            rank, size, port = (int(given.get(names[i], "")) for i in (0, 1, 3))
        except ValueError:
            raise PeersError(
                f"this process does not know which worker it is ({', '.join(missing or names)}): "
                "start it with torchrun, for example torchrun --nproc-per-node=4 ..."
            ) from None
        if not 0 <= rank < size or size < 2:
            raise PeersError(f"rank {rank} of {size}: gossip needs at least two workers")
        agent = given.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(rank, size, given["MASTER_ADDR"], port, rank == 0 and not agent)

    @contextmanager
    def meeting(self, workers: int) -> Iterator[Meeting]:
        """The place where the workers meet; while it is open, the store is served where this one
        serves it.

        Raises:
            PeersError: the port is taken, or there are other workers than processes.
        """
        if workers != self.size:
            raise PeersError(
                f"{self.size} processes for {workers} workers: start as many as the gossip has"
            )
        held: Any = None
        if self.serves:
            try:
                held = TCPStore(
                    self.host,
                    self.port,
                    is_master=True,
                    timeout=timedelta(seconds=60),
                    wait_for_workers=False,
                )
            except RuntimeError as error:
                raise PeersError(
                    f"cannot serve the workers' store at {self.host}:{self.port}: {error}"
                ) from None
        try:
            yield Meeting(self.host, self.port)
        finally:
            del held

    def require_same(self, meeting: Meeting, gossip: Gossip) -> None:
        """Refuse a gossip that is not the first process's, before anything is computed or sent.

        Args:
            gossip: of this process's job; its first weights are not compared, since all take the
                first process's.

        Raises:
            StoreError: the first process did not say what it has. GossipError: names what differs.
        """
        store = meeting.store()
        text = canonical(replace(gossip, start="").to_dict())
        own = json.loads(text)
        # The first process may be one that was started again: what it said before stays.
        if self.rank == 0 and not store.check(["gossip"]):
            store.set("gossip", text)
        try:
            first = json.loads(store.get("gossip"))
        except RuntimeError as error:
            raise StoreError(f"the first process did not say what it trains: {error}") from None
        differs = sorted(name for name in own.keys() | first if own.get(name) != first.get(name))
        if differs:
            # The others need not wait for this one until their patience ends: see GlooPairs.
            store.set(f"run/{self.rank}", "another gossip")
            store.add(f"life/{self.rank}", 1)
            raise GossipError(
                f"this process ({self.rank}) has another gossip than the first one: "
                f"{', '.join(differs)} differ; start all with the same job and data"
            )

    def first_weights(self, meeting: Meeting, own: Vector) -> Vector:
        """The weights that everybody begins with: the first process's.

        Args:
            own: what this process would begin with; of the same length everywhere.

        Raises:
            StoreError: nobody has brought them. PeersError: another architecture.
        """
        store = meeting.store()
        # The first process may have been killed since it brought them: they stay what they were.
        if self.rank == 0 and not store.check(["first"]):
            data = np.ascontiguousarray(own, "<f4").tobytes()
            store.set("first", data)  # type: ignore[arg-type]  # bytes are taken as well
        try:
            data = store.get("first")
        except RuntimeError as error:
            raise StoreError(f"the first process brought no weights: {error}") from None
        found: Vector = np.frombuffer(data, "<f4").astype(np.float32)
        if len(found) != len(own):
            raise PeersError(
                f"this process's model has {len(own)} parameters, the first one's {len(found)}: "
                "all workers train one model"
            )
        return found

    def links(self, meeting: Meeting, gossip: Gossip) -> GlooPairs:
        """Links to this worker's neighbours."""
        near = gossip.mixing.graph.neighbours(self.rank)
        found = GlooPairs(meeting, self.rank, near, gossip.coordinates, gossip.trust.largest)
        if gossip.rule == "allreduce":
            gpu = own_gpu(os.environ)
            found.reduce = GroupReduce(meeting, self.rank, self.size, gpu)
        return found
