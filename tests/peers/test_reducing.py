"""The mean over all workers; NCCL's part with a stand-in, for no machine here has GPUs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.distributed")

import torch
from torch.distributed import TCPStore

from forethought.peers import reducing
from forethought.peers.pairs import Meeting
from forethought.peers.reducing import GroupReduce, own_gpu

VECTORS = [np.array([1e8, 1, k], np.float32) for k in range(3)]


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    held = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
    )
    yield Meeting("127.0.0.1", held.port)


def means(meeting: Meeting, gpus: list[int | None]) -> tuple[list[Any], set[str | None]]:
    reduces = [GroupReduce(meeting, k, 3, gpu) for k, gpu in enumerate(gpus)]
    found: dict[int, Any] = {}

    def run(k: int) -> None:
        found[k] = reduces[k](0, VECTORS[k])

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    return [found[k] for k in range(3)], {one.backend for one in reduces}


class StandIn:
    """What NCCL's group is to a caller; ranks add up through the store."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        assert timeout > timedelta(days=30)  # a time-out of one operation would break the group
        self.store, self.rank, self.size = store, rank, size

    def allreduce(self, tensors: list[Any]) -> Any:
        (tensor,) = tensors
        assert tensor.dtype == torch.float64
        self.store.set(f"part/{self.rank}", tensor.numpy().tobytes())
        parts = [np.frombuffer(self.store.get(f"part/{k}")) for k in range(self.size)]
        tensor.copy_(torch.from_numpy(np.sum(parts, axis=0)))
        return self

    def wait(self) -> None:
        pass


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every machine has four GPUs, whose memory is the processor's."""
    chosen: list[Any] = []
    to = torch.Tensor.to

    def moved(tensor: Any, where: Any, *more: Any) -> Any:
        if isinstance(where, str) and where.startswith("cuda:"):
            chosen.append(where)
            return tensor
        return to(tensor, where, *more)

    monkeypatch.setattr(reducing.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(reducing.distributed, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: None)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    return chosen


def test_nccl_is_chosen_where_every_worker_has_a_gpu(meeting: Meeting, nccl: list[Any]) -> None:
    found, backends = means(meeting, [0, 1, 2])
    assert backends == {"nccl"} and sorted(nccl) == ["cuda:0", "cuda:1", "cuda:2"]
    for one in found:
        np.testing.assert_array_equal(one, np.array([1e8, 1, 1], np.float32))


def test_all_take_gloo_where_one_worker_has_no_gpu(meeting: Meeting, nccl: list[Any]) -> None:
    found, backends = means(meeting, [0, None, 1])
    assert backends == {"gloo"} and not nccl
    for one in found:
        np.testing.assert_array_equal(one, np.array([1e8, 1, 1], np.float32))


def test_a_process_takes_its_own_gpu_or_none(nccl: list[Any]) -> None:
    launched = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert own_gpu(launched) == 1
    assert own_gpu({**launched, "LOCAL_WORLD_SIZE": "8"}) is None  # two processes on one GPU
    assert own_gpu({"RANK": "2", "WORLD_SIZE": "4"}) == 2


def test_there_is_no_gpu_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_gpu({"RANK": "0", "WORLD_SIZE": "2"}) is None
