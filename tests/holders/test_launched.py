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

# Each process says what it was told of one job after the other; one process's may differ.
PROGRAM = """
import json, sys
import numpy as np
import forethought as ft
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.links import Launched, mean
from forethought.training.execution import launched

rank, jobs = int(sys.argv[1]), json.loads(sys.argv[2])
plan = ft.Plan(ft.Mechanism(ft.Rounds(1.0, 9, ft.Poisson(0.5))), 40, 1e-3,
               optimizer=ft.Optimizer("sgd", 0.5, ()))
members = tuple(Member(name) for name in "abc")


def told(rounds, length):
    mixing = Mixing("matchings", make("complete", 3))
    start = f"weights of {rank}"
    gossip = Gossip(members, (plan,), mixing, 7, "launched", rounds, start=start)
    try:
        first = Launched.here().agree(gossip, np.full(length, rank + 1.0, np.float32))
        found = mean(0, np.array([1e8, 1, rank], np.float32))
        return [first.tolist(), found.tolist()]
    except Exception as error:
        return [type(error).__name__, str(error)]


with launched():
    print(json.dumps([told(*job) for job in jobs]))
"""


def said(ports: int, *turns: tuple[tuple[int, int], ...]) -> list[list[Any]]:
    """Turn by turn what three processes say, each of its rounds and the length of its model."""
    there = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), json.dumps(jobs)],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **{"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank)},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports), "OMP_NUM_THREADS": "1"},
                "GLOO_SOCKET_IFNAME": "lo",
            },
        )
        for rank, jobs in enumerate(zip(*turns, strict=True))
    ]
    try:
        found = [json.loads(one.communicate(timeout=300)[0]) for one in there]
        return [list(turn) for turn in zip(*found, strict=True)]
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
def test_all_agree_or_are_told_whose_job_differs_and_in_what() -> None:
    """All begin with the first one's weights and take one mean; after a refusal, too."""
    alike = ((5, 4), (5, 4), (5, 4))
    jobs = alike, ((5, 4), (5, 4), (6, 4)), ((5, 4), (5, 3), (5, 4)), alike
    same, rounds, lengths, again = said(free_port(), *jobs)
    assert same == again == [[[1.0] * 4, [1e8, 1.0, 1.0]]] * 3
    refusal = (
        "process 2 has another gossip than the first one: rounds differ; start all with "
        "the same job and data"
    )
    assert rounds == [["GossipError", refusal]] * 3
    assert {kind for kind, _ in lengths} == {"PeersError"} and "4, 3, 4" in lengths[0][1]


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
    for name in given:
        with pytest.raises(PeersError, match=f"\\({name}\\)"):
            Launched.here({key: value for key, value in given.items() if key != name})
    with pytest.raises(PeersError, match="at least two"):
        Launched.here({**given, "WORLD_SIZE": "1"})
