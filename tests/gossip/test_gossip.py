"""The Gossip: what workers agree on, and what is refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from workers import gossip, plan, vector

import forethought as ft
from forethought.exchange.messages import Update
from forethought.exchange.storage import LedgerState
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, GossipError, Member, Trust, digest_of
from forethought.gossip.graphs import make, read
from forethought.gossip.mixing import Mixing, given
from forethought.gossip.worker import UNIT
from forethought.holders.simulator import worker


@pytest.mark.parametrize("kind", ["matchings", "metropolis", "exponential", "given"])
def test_it_is_stored_and_read_back(kind: str, tmp_path: Path) -> None:
    graph = make("complete", 4)
    if kind == "given":
        (tmp_path / "matrix").write_text("\n".join(["1/4 1/4 1/4 1/4"] * 4), "utf-8")
        mixing = given(graph, tmp_path / "matrix")
    else:
        mixing = Mixing(kind, graph, 7)
    one = gossip(mixing=mixing, trust=Trust(2.0), tracking=True, stagger=False, clock="all")
    one.save(tmp_path / "gossip.json")
    again = Gossip.load(tmp_path / "gossip.json")
    assert again == one
    assert again.run_id == one.run_id
    assert again.mixing.weights(3, 1) == mixing.weights(3, 1)


def test_the_paper_s_stages_follow_the_epochs_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[2] / "experiments" / "gossip" / "cells.py"
    if not file.is_file():
        pytest.skip("the experiments are not in this copy")
    spec = importlib.util.spec_from_file_location("gossip_cells", file)
    assert spec is not None and spec.loader is not None
    cells = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, cells)  # its dataclasses look themselves up there
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(cells)
    shared = SimpleNamespace(layout=SimpleNamespace(size=3), architecture="test")

    def clock(rule: str, *stages: float) -> str:
        task = cells.Task("mnist", "lenet5", 100, 10, 4, 0.4, workers=4, stages=stages)
        made = cells.gossip_of(cells.Cell("task", rule, "small"), task, [100] * 4, shared)[0]
        return str(made.clock)

    assert clock("asynchronous", 2, 3) == "all"
    assert clock("asynchronous") == clock("allreduce", 2, 3) == "own"


def test_every_part_changes_its_name() -> None:
    names = {
        one.run_id
        for one in (
            gossip(),
            gossip(rounds=3),
            gossip(architecture="other"),
            gossip(start="other"),
            gossip(plans=(plan(9),)),
            gossip(graph="ring"),
            gossip(mixing=Mixing("matchings", make("complete", 4), 1)),
            gossip(nonce="other"),
            gossip(stagger=False),
            gossip(clock="all"),
        )
    }
    assert len(names) == 10


def test_graphs_from_a_file_are_kept(tmp_path: Path) -> None:
    (tmp_path / "edges").write_text("0 1\n1 2\n2 3\n", "utf-8")
    one = gossip(mixing=Mixing("metropolis", read(tmp_path / "edges")))
    assert Gossip.from_json(one.to_json()).mixing.graph.edges == ((0, 1), (1, 2), (2, 3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"members": (Member("a"), Member("a"), Member("b"), Member("c"))}, "one name"),
        ({"members": (Member("a"), Member("b"))}, "graph of 4"),
        ({"members": tuple(Member(f"w{k}", k) for k in range(4))}, "has plan 1, there are 1"),
        (
            {
                "members": tuple(Member(f"w{k}", k % 2) for k in range(4)),
                "plans": (plan(), plan(optimizer=ft.Optimizer("sgd", 0.1, ()))),
            },
            "another plan than the others",
        ),
        ({"plans": (plan(optimizer=ft.Optimizer("adam", 0.1, ())),)}, "plain 'sgd'"),
        (
            {"plans": (plan(optimizer=ft.Optimizer("sgd", 0.1, (("momentum", 0.9),))),)},
            "momentum= or tracking=",
        ),
        ({"plans": (plan(rate=0.01),)}, "too little data for its rate"),
        ({"plans": (plan(2),), "rule": "synchronous"}, "2 rounds, 4 are to be made"),
        ({"plans": (plan(schedule=ft.Schedule("drops", 0.5)),)}, "'cosine'"),
        ({"plans": (plan(3),)}, "12 rounds .* never reach 16"),
        ({"tracking": True, "momentum": 0.9}, "replaces momentum"),
        ({"tracking": True, "rule": "allreduce"}, "no tracking"),
        ({"stagger": True, "rule": "synchronous"}, "stagger = true is"),
        ({"clock": "all", "rule": "allreduce"}, "leave it out"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(GossipError, match=words) as refused:
        gossip(**changes)
    assert "\n" not in str(refused.value)


def test_words_that_are_no_choice_are_refused() -> None:
    with pytest.raises(ValueError, match="'own', 'all'"):
        gossip(clock="both")
    with pytest.raises(TypeError, match="true or false"):
        gossip(stagger="yes")


def test_a_gossip_of_before_is_read() -> None:
    assert not {"stagger", "clock"} & gossip().to_dict().keys()
    assert Gossip.from_dict(gossip().to_dict()) == gossip()


def test_sync_of_a_staggered_gossip_waits_for_all() -> None:
    one = gossip(stagger=True, clock="all").with_allreduce()
    assert one.waits(3) == 0
    assert gossip(stagger=True, point="own").waits(3) == 0.75


def test_a_worker_that_is_back_counts_its_own_updates() -> None:
    """All of them come back at once: together they know the count, and schedules go on."""
    ledger = LedgerState(2, 2, b"", 1, (Update(1, 0, vector(1, 2, 3)),), 0)
    assert worker(gossip(), 0, vector(), ledger).own.count == 2 * UNIT


def test_another_model_or_other_first_weights_are_refused() -> None:
    one = gossip(start=digest_of(vector(1, 2, 3)))
    one.require("test", vector(1, 2, 3))
    with pytest.raises(GossipError, match="another architecture"):
        one.require("other", vector(1, 2, 3))
    with pytest.raises(GossipError, match="another architecture"):
        one.require("test", vector(1, 2))
    with pytest.raises(GossipError, match="first weights"):
        one.require("test", vector(1, 2, 3.0001))


def test_a_ledger_of_something_else_is_refused() -> None:
    ledger = LedgerState(1, 1, b"", 0, (Update(0, 0, vector(1)),), 0)
    with pytest.raises(GossipError, match="weights of this"):
        worker(gossip(), 0, vector(), ledger)
    with pytest.raises(GossipError, match="parameters"):
        worker(gossip(), 0, vector(1))
    top = Compression("top-k", 0.5)
    for rule, compression in (("synchronous", top), ("allreduce", Compression())):
        with pytest.raises(GossipError, match="cannot come back"):
            worker(gossip(rule=rule, compression=compression), 0, vector(), ledger)


def test_top_k_wants_links_whose_ends_take_as_much_of_each_other(tmp_path: Path) -> None:
    turned, even = "1/2 1/2 0\n0 1/2 1/2\n1/2 0 1/2\n", "1/2 1/4 1/4\n1/4 1/2 1/4\n1/4 1/4 1/2\n"
    for rows, mutual in ((turned, False), (even, True)):
        (tmp_path / "matrix").write_text(rows, encoding="utf-8")
        mixing = given(make("complete", 3), tmp_path / "matrix")
        assert mixing.mutual == mutual
        known = {"workers": 3, "rule": "synchronous", "compression": Compression("top-k", 0.5)}
        if mutual:
            gossip(**known, mixing=mixing)
        else:
            with pytest.raises(GossipError, match="both ends"):
                gossip(**known, mixing=mixing)
