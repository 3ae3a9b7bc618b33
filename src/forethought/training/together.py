"""Data-parallel runs: one plan, several processes, the same result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import distributed

from forethought.rounds.team import Team, present_team


@contextlib.contextmanager
def launched() -> Iterator[None]:
    """Join the processes that torchrun started, where it did; leave them at the end.

    Uses NCCL, one device a process, where there are CUDA devices, and gloo otherwise.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    if not several or not distributed.is_available() or distributed.is_initialized():
        yield
        return
    cuda = torch.cuda.is_available() and distributed.is_nccl_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
        distributed.barrier()  # nobody leaves while another still waits for it
    finally:
        distributed.destroy_process_group()


def leads() -> bool:
    """Whether this process shows and writes what a person reads."""
    return int(os.environ.get("RANK", "0")) == 0


def alone(name: str) -> None:
    """Refuse several processes where one plan after the other is run.

    Raises:
        ValueError: names the function that several processes can run.
    """
    size = present_team().size
    if size > 1:
        raise ValueError(
            f"{name} runs in one process, this is one of {size}: train one plan with "
            "forethought.train, or start a single process"
        )


def check_model(model: torch.nn.Module) -> None:
    """Refuse a model that another library has wrapped for several processes.

    Raises:
        ValueError: names the wrapper and what to do.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
            raise ValueError(
                f"{name or 'the model'} is wrapped in {kind}, which would add up gradients before "
                "they are clipped: give the model itself (.module); its processes are found by "
                "themselves"
            )


def same_start(model: torch.nn.Module, team: Team) -> None:
    """Give every process the first one's weights and buffers."""
    if team.size == 1:
        return
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            distributed.broadcast(tensor.data, src=0)
