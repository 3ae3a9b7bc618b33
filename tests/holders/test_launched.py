"""SYNC's processes under torchrun: they agree before they compute, and take one mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch.distributed")

import torch

from forethought.holders import links as launched
from forethought.holders.links import Launched, PeersError, TeamLinks

# Each process says what it was told; the last one's job may differ.
PROGRAM = """
import json, sys
import numpy as np
import forethought as ft
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.links import Launched, mean
from forethought.training.execution import launched

rank, rounds, length = (int(word) for word in sys.argv[1:])
plan = ft.Plan(ft.Mechanism(ft.Rounds(1.0, 9, ft.Poisson(0.5))), 40, 1e-3,
               optimizer=ft.Optimizer("sgd", 0.5, ()))
members = tuple(Member(name) for name in "abc")
gossip = Gossip(members, (plan,), Mixing("matchings", make("complete", 3)), 7, "launched", rounds,
                start=f"weights of {rank}")
with launched():
    try:
        first = Launched.here().agree(gossip, np.full(length, rank + 1.0, np.float32))
        found = mean(0, np.array([1e8, 1, rank], np.float32))
        print(json.dumps([first.tolist(), found.tolist()]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def said(ports: int, *jobs: tuple[int, int]) -> list[Any]:
    """What three processes say, each with rounds and the length of its model."""
    there = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), *map(str, job)],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **{"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports), "OMP_NUM_THREADS": "1"},
                "GLOO_SOCKET_IFNAME": "lo",
            },
        )
        for rank, job in enumerate(jobs)
    ]
    try:
        return [json.loads(one.communicate(timeout=300)[0]) for one in there]
    finally:
        for one in there:
            one.kill()
            one.wait(60)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


@pytest.mark.slow
def test_all_begin_with_the_first_ones_weights_and_take_one_mean() -> None:
    found = said(free_port(), (5, 4), (5, 4), (5, 4))
    assert found == [[[1.0] * 4, [1e8, 1.0, 1.0]]] * 3


@pytest.mark.slow
def test_all_are_told_whose_job_differs_and_in_what() -> None:
    found = said(free_port(), (5, 4), (5, 4), (6, 4))
    assert (
        found
        == [
            [
                "GossipError",
                "process 2 has another gossip than the first one: rounds differ; start all with "
                "the same job and data",
            ]
        ]
        * 3
    )
    found = said(free_port(), (5, 4), (5, 3), (5, 4))
    assert {kind for kind, _ in found} == {"PeersError"} and "4, 3, 4" in found[0][1]


def test_a_mean_of_gpus_is_moved_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL itself never ran here: no machine at hand has GPUs."""
    moved: list[torch.Tensor] = []

    def cuda(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "cuda", cuda)
    monkeypatch.setattr(launched.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(launched.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(launched.distributed, "all_reduce", lambda total: total.mul_(8))
    found = TeamLinks().reduce(0, np.array([1, 2], np.float32))
    assert found.dtype == np.float32 and found.tolist() == [2, 4]
    assert [one.dtype for one in moved] == [torch.float64]

    def lost(total: torch.Tensor) -> None:
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(launched.distributed, "all_reduce", lost)
    with pytest.raises(PeersError, match="waits for everybody"):
        TeamLinks().reduce(3, np.zeros(2, np.float32))


def test_a_process_that_torchrun_did_not_start_says_so() -> None:
    with pytest.raises(PeersError, match=r"RANK.*it with torchrun"):
        Launched.here({})
    given = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert Launched.here(given) == Launched(1, 4)
    with pytest.raises(PeersError, match="at least two"):
        Launched.here({**given, "WORLD_SIZE": "1"})
