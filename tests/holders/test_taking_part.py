from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import forethought as ft
from forethought.exchange.keys import SIGNING, Keys
from forethought.federated.federation import Federation, FederationError, Member
from forethought.federated.sizes import Sizes
from forethought.holders import taking_part
from forethought.holders.links import Pace, TeamLinks
from trials.processes import Setting


def test_keys_that_a_kill_cut_off_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "member"

    def killed(self: object, path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("forethought.exchange.keys.Identity.save", killed)
        taking_part.own_keys(folder, "worker-0")
    made = taking_part.own_keys(folder, "worker-0")
    assert taking_part.own_keys(folder, "worker-0").identity == made.identity
    assert Keys.load(folder).identity == made.identity and (folder / SIGNING).exists()


class Alone(TeamLinks):
    """Its mean is the own vector; ``paused``: it is not there before the links are closed."""

    def __init__(self, paused: bool) -> None:
        self.paused, self.asked, self.closed = paused, threading.Event(), threading.Event()

    def reduce(self, round: int, vector: Any) -> Any:
        if self.paused:
            self.asked.set()
            self.closed.wait()
        return vector

    def close(self, seconds: float) -> None:
        self.closed.set()


@pytest.mark.parametrize("paused", [False, True])
def test_only_who_has_the_last_average_is_hidden_from_outsiders(
    tmp_path: Path, paused: bool
) -> None:
    setting = Setting(tmp_path, "torchrun", 1, rounds=1, rule="allreduce")
    links = Alone(paused)
    took = taking_part.take_part(
        *(setting.gossip(), 0, setting.shared(), setting.share(0), tmp_path / "own"),
        lambda keys: links,
        pace=Pace(linger=0.0),
        stop=links.asked.is_set,
    )
    assert (took.reason, took.updates) == (None if paused else "rounds", 1)
    seen, own = (one.accountant["kind"] for one in (took.outsider, took.statement))
    assert (seen == own) is paused


def test_no_book_pays_for_rates_that_results_choose(tmp_path: Path) -> None:
    """Its total would be that of the planned rates, whatever was released at higher ones."""
    mechanism = ft.Mechanism(ft.Rounds(2.0, 9, ft.Poisson(0.1)))
    plan = ft.Plan(mechanism, 40, 1e-3, budget=ft.Budget(4.0, 1e-3))
    shared = {"parameters": 3, "architecture": "", "rounds": 9, "exchanged": "gradients"}
    planned = Federation((Member("a"),), (plan,), **shared, rule="asynchronous")
    chosen = replace(planned, sizes=Sizes("constant"))
    free = taking_part.Share(range(40), lambda outputs, targets: outputs)
    paid = replace(free, payer=ft.Ledger(f"sqlite:///{tmp_path / 'books.db'}", "patients"))
    paid.require(planned, 0)
    free.require(chosen, 0)
    with pytest.raises(FederationError, match="leave out"):
        paid.require(chosen, 0)
