"""Processes that torchrun started with jobs that differ are told at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import forethought as ft
from forethought.gossip.gossip import Gossip, GossipError, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.peers.launched import Launched
from forethought.peers.links import Refused
from forethought.peers.pairs import Meeting


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    held = TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
    )
    yield Meeting("127.0.0.1", held.port)


def gossip(rounds: int = 5, **agreed: Any) -> Gossip:
    plan = ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, 9, ft.Poisson(0.5))),
        40,
        1e-3,
        optimizer=ft.Optimizer("sgd", 0.5, ()),
    )
    members = (Member("a"), Member("b"))
    mixing = Mixing("matchings", make("complete", 2))
    return Gossip(members, (plan,), mixing, 7, "launched", rounds, **agreed)


def here(rank: int, meeting: Meeting) -> Launched:
    return Launched(rank, 2, meeting.host, meeting.port, serves=False)


def test_a_process_with_another_job_is_told_what_differs(meeting: Meeting) -> None:
    here(0, meeting).require_same(meeting, gossip(start="own weights"))
    here(1, meeting).require_same(meeting, gossip(start="other ones, which are not taken"))
    with pytest.raises(GossipError, match=r"process \(1\) has.*: rounds, rule"):
        here(1, meeting).require_same(meeting, gossip(6, rule="allreduce"))
    # The first process, started again with another job: what it said at first holds.
    with pytest.raises(GossipError, match=r"process \(0\) .*: settle differ"):
        here(0, meeting).require_same(meeting, gossip(settle=11))
    here(0, meeting).require_same(meeting, gossip())


def test_its_neighbours_are_told_as_well(meeting: Meeting) -> None:
    agreed = gossip()
    here(0, meeting).require_same(meeting, agreed)
    told: SimpleQueue[Any] = SimpleQueue()
    links = here(0, meeting).links(replace(meeting, run=agreed.run_id), agreed)
    links.start(told.put)
    with pytest.raises(GossipError):
        here(1, meeting).require_same(meeting, gossip(6))
    refused = told.get(timeout=300)
    links.close(5.0)
    assert isinstance(refused, Refused) and "worker 1 has another gossip" in refused.text
