"""SYNC's workers under torchrun: a process each, whose means are torch.distributed's allreduce.

Everybody waits for everybody, so whoever is lost ends all: torchrun ends the processes of an agent
when one of them dies. The rules under which a worker may be lost run on a cluster
(:mod:`forethought.peers.cluster`) or between sites (:mod:`forethought.peers.sites`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import distributed

from forethought.exchange.messages import Vector
from forethought.gossip.gossip import Gossip, GossipError
from forethought.peers.driving import PeersError
from forethought.peers.links import Deliver, Reduce


@dataclass(frozen=True)
class Launched:
    """The worker that this process is.

    Args:
        rank, size: place and number.
    """

    rank: int
    size: int

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
            rank, size, _ = (int(given.get(names[i], "")) for i in (0, 1, 3))
        except ValueError:
            raise PeersError(
                f"this process does not know which worker it is ({', '.join(missing or names)}): "
                "start it with torchrun, for example torchrun --nproc-per-node=4 ..."
            ) from None
        if not 0 <= rank < size or size < 2:
            raise PeersError(f"rank {rank} of {size}: gossip needs at least two workers")
        return cls(rank, size)

    def agree(self, gossip: Gossip, own: Vector) -> Vector:
        """The weights that everybody begins with: the first process's.

        Args:
            gossip: of this process's job; its first weights are not compared.
            own: what this process would begin with.

        Raises:
            GossipError: names what differs from the first process's gossip, on every process.
            PeersError: another architecture, or other workers than processes.
        """
        if gossip.workers != self.size:
            raise PeersError(
                f"{self.size} processes for {gossip.workers} workers: start as many as it has"
            )
        gossips: list[Any] = [None] * self.size
        lengths: list[Any] = [None] * self.size
        distributed.all_gather_object(gossips, replace(gossip, start="").to_dict())
        distributed.all_gather_object(lengths, len(own))
        for rank, other in enumerate(gossips):
            differs = sorted(
                name
                for name in gossips[0].keys() | other
                if gossips[0].get(name) != other.get(name)
            )
            if differs:
                raise GossipError(
                    f"process {rank} has another gossip than the first one: {', '.join(differs)} "
                    "differ; start all with the same job and data"
                )
        if len(set(lengths)) > 1:
            raise PeersError(
                f"the processes' models have {', '.join(map(str, lengths))} parameters: all "
                "workers train one model"
            )
        first: list[Any] = [np.ascontiguousarray(own, np.float32)]
        distributed.broadcast_object_list(first, src=0)
        found: Vector = first[0]
        return found


def mean(round: int, vector: Vector) -> Vector:
    """The mean over all processes, added up in float64 and rounded once; of NCCL where they have
    GPUs.

    Raises:
        PeersError: one of the workers is gone.
    """
    try:
        total = torch.from_numpy(vector.astype("float64"))
        if distributed.get_backend() == "nccl":
            total = total.cuda()
        distributed.all_reduce(total)
        found: Vector = (total / distributed.get_world_size()).to(torch.float32).cpu().numpy()
    except RuntimeError as error:
        raise PeersError(
            f"a worker was lost in round {round}, and under the rule 'allreduce' everybody "
            f"waits for everybody: begin again, or use the rule 'asynchronous' ({error})"
        ) from None
    return found


class TeamLinks:
    """Links that carry means and nothing else; see :class:`~forethought.peers.links.Links`.

    Who is lost is told by a mean that fails, so everybody counts as heard.
    """

    reduce: Reduce | None = staticmethod(mean)

    def start(self, deliver: Deliver) -> None:
        """See Links."""

    def send(self, to: int, message: Any) -> None:
        """See Links."""

    def heard(self, peer: int) -> float | None:
        """See Links."""
        return time.monotonic()

    def finish(self) -> None:
        """See Links."""

    def over(self, peer: int) -> bool:
        """See Links."""
        return True

    def close(self, seconds: float) -> None:
        """See Links."""
