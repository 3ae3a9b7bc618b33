"""The mean over all workers of a cluster: one allreduce, on GPUs where every worker has its own.

Only SYNC uses it. Exchanges between neighbours stay with gloo, whatever there is: an operation of
NCCL occupies its communicator until both sides have come to it, so a receiver that is always ready
would keep the sender from sending; and a communicator whose other side died cannot be left without
aborting what is under way. "Nobody waits for anybody" needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from forethought.exchange.messages import Vector
from forethought.peers.driving import PeersError
from forethought.peers.pairs import Meeting

_FOR_EVER = timedelta(days=365)


def own_gpu(environment: Mapping[str, str]) -> int | None:
    """The number of the GPU that this process has for itself; None: it has none.

    Args:
        environment: where torchrun says the place among this machine's processes, and how many.
    """
    if not (distributed.is_nccl_available() and torch.cuda.is_available()):
        return None
    place = int(environment.get("LOCAL_RANK", environment.get("RANK", "0")))
    processes = int(environment.get("LOCAL_WORLD_SIZE", environment.get("WORLD_SIZE", "1")))
    # NCCL refuses two processes on one GPU.
    return place if processes <= torch.cuda.device_count() else None


class GroupReduce:
    """The mean of a vector over all workers; everybody waits for everybody.

    The group is NCCL's where every worker has a GPU for itself, else gloo's: all say what they have
    and take the same.

    Args:
        meeting: where workers find each other. rank, size: this worker, of how many.
        gpu: the number of its own GPU; None: it has none.

    Attributes:
        backend: "nccl" or "gloo"; None before the first mean.
    """

    def __init__(self, meeting: Meeting, rank: int, size: int, gpu: int | None = None) -> None:
        self._meeting, self._rank, self._size, self._gpu = meeting, rank, size, gpu
        self._group: Any = None
        self.backend: str | None = None

    def __call__(self, round: int, vector: Vector) -> Vector:
        """The mean, added up in float64 and rounded once.

        Raises:
            PeersError: one of the workers is gone.
        """
        try:
            if self._group is None:
                self._group = self._made()
            total = torch.from_numpy(vector.astype("float64"))
            if self.backend == "nccl":
                total = total.to(f"cuda:{self._gpu}")
            self._group.allreduce([total]).wait()
        except RuntimeError as error:
            raise PeersError(
                f"a worker was lost in round {round}, and under the rule 'allreduce' everybody "
                f"waits for everybody: begin again, or use the rule 'asynchronous' ({error})"
            ) from None
        mean: Vector = (total / self._size).to(torch.float32).cpu().numpy()
        return mean

    def _made(self) -> Any:
        store = self._meeting.store()
        store.set(f"gpu/{self._rank}", "0" if self._gpu is None else "1")
        own = [store.get(f"gpu/{other}") == b"1" for other in range(self._size)]
        self.backend = "nccl" if all(own) else "gloo"
        inside = PrefixStore(f"reduce/{self.backend}", store)
        if self.backend == "gloo":
            return ProcessGroupGloo(inside, self._rank, self._size, _FOR_EVER)
        torch.cuda.set_device(self._gpu)
        return distributed.ProcessGroupNCCL(  # type: ignore[call-arg]
            inside, self._rank, self._size, timeout=_FOR_EVER
        )
