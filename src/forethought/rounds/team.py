"""Processes that compute one run together, data-parallel, and agree on every release.

Every process draws the same batch from the same secrets and adds its slice of the contributions;
one all-reduce in float64 makes the sum, to which every process adds the same noise from the same
stream. So all have the same bits, and an empty slice is a sum of zeros like any other. Guarantees
are those of one process: the machines trust each other with the data, the keys and unnoised sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed

if distributed.is_available():
    # Its functions keep the group of the moment of import as their default. Imported later (as
    # torch.func does) it holds the group beyond its end, and gloo's threads, still running while
    # the interpreter shuts down, now and then abort the process.
    import torch.distributed.nn.functional

_Value = TypeVar("_Value")


class TeamError(ValueError):
    """The processes of a run do not agree; nothing more is released."""


@dataclass(frozen=True)
class Team:
    """One process by itself; see :class:`ProcessGroup` for several.

    Args:
        rank: which process this is, from 0. The first one keeps the run folder.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True if this process keeps the folder and reports."""
        return self.rank == 0

    def first(self, work: Callable[[], _Value]) -> _Value:
        """The result of ``work`` in the first process, or the error that it raises there, for
        all."""
        return work()

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over the processes, in place."""

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The processes' one-dimensional tensors end to end."""
        return tensor

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag: whether it is set in any process. All wait for each other."""
        return flags

    def require_same(self, value: object, what: str) -> None:
        """Refuse processes that differ.

        Raises:
            TeamError: says in what.
        """

    def require_equal(self, found: bytes, what: str) -> None:
        """Refuse processes whose bytes (as many, a multiple of 4) differ; quick, for every round.

        Raises:
            TeamError: says of what they are.
        """


class ProcessGroup(Team):
    """The processes of torch's default process group, on any backend."""

    def first(self, work: Callable[[], _Value]) -> _Value:
        found: list[Any] = [None, None]
        if self.leads:
            try:
                found[0] = work()
            except Exception as error:
                found[1] = error
        distributed.broadcast_object_list(found, src=0)
        if found[1] is not None:
            raise found[1]
        value: _Value = found[0]
        return value

    def add_up(self, tensor: torch.Tensor) -> None:
        distributed.all_reduce(tensor)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, tensor.cpu())
        return torch.cat(found).to(tensor.device)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        found = torch.tensor(flags or (False,), dtype=torch.int32, device=_device())
        distributed.all_reduce(found)
        return tuple(bool(count) for count in found[: len(flags)])

    def require_same(self, value: object, what: str) -> None:
        found: list[Any] = [None] * self.size
        digest = hashlib.sha256(repr(value).encode()).hexdigest()
        distributed.all_gather_object(found, digest)
        wrong = [rank for rank, other in enumerate(found) if other != found[0]]
        if wrong:
            raise TeamError(
                f"process {wrong[0]} has another {what} than process 0: all processes of a run "
                "need the same"
            )

    def require_equal(self, found: bytes, what: str) -> None:
        words = torch.from_numpy(np.frombuffer(found, dtype=np.uint32).astype(np.int64))
        # The largest and the smallest of every word in one message.
        extremes = torch.cat([words, -words]).to(_device())
        distributed.all_reduce(extremes, op=distributed.ReduceOp.MAX)
        if not torch.equal(extremes.cpu(), torch.cat([words, -words])):
            raise TeamError(
                f"the processes of this run have another {what} each, by a last bit at least: one "
                "noise must not meet two sums, so nothing is released. Use another backend of "
                "torch.distributed, or one process"
            )


def _device() -> str:
    """The device on which the process group's messages have to be."""
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"


def present_team() -> Team:
    """The processes of torch's default process group where there is one, or this one alone."""
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size > 1:
            return ProcessGroup(distributed.get_rank(), size)
    return Team()
