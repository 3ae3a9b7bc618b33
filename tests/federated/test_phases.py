"""Phases with budgets of their own: who takes part in which, and what that releases and costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forethought as ft
from forethought.accounting import exact
from forethought.accounting.statement import Statement
from forethought.accounting.verification import verify
from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Join, Leave, Refusal, Update
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import (
    Federation,
    FederationError,
    Member,
    require_contract,
)
from forethought.federated.server import ServerMachine
from forethought.federated.statements import client_statement, shared
from forethought.holders.simulate import simulate
from forethought.holders.simulator import Times
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.planning.alternatives import in_phases
from forethought.planning.plan_request import PlanError
from forethought.rounds.private_sum import RoundError
from forethought.rounds.randomness import Secrets, Seeds
from forethought.values.mechanism import Budget
from forethought.values.plan import Transcript, TranscriptError

from .machines import federation, from_server, joined, model, of, plan, sent, update, vector

TAKING = ((0, 1, 2), (0, 2), (1,))


def phased(rounds: int = 6, **changes: Any) -> Federation:
    parts = [ft.Rounds(2.0 - k / 2, rounds // 3, ft.Poisson(0.5)) for k in range(3)]
    own = plan(rounds).with_(mechanism=ft.Mechanism(*parts))
    known = {"plans": (own,), "phases": (rounds // 3,) * 3, "taking": TAKING}
    return federation(3, rounds, **{**known, **changes})


def computed(asked: on.Compute) -> on.Computed:
    return on.Computed(asked.round, asked.base, vector(), asked.planned + 1, b"", b"s", 0.0)


def test_a_phase_that_a_client_left_out_is_not_made_up() -> None:
    machine = ClientMachine(phased(), 1)
    places = []
    for version in range(6):
        for asked in of(machine.handle(from_server(model(version))), on.Compute):
            places.append((version, asked.round, asked.planned))
            machine.handle(computed(asked))
    assert places == [(0, 0, 0), (1, 1, 1), (4, 2, 4), (5, 3, 5)]


def test_rounds_left_over_from_a_phase_that_ended_keep_no_server() -> None:
    """b returns in the first phase, and dies with a round of it left; a goes on and ends."""
    known = {"rule": "asynchronous", "exchanged": "gradients", "absence": 10.0}
    agreed = federation(2, 4, phases=(2, 2), taking=((0, 1), (0,)), plans=(plan(4),), **known)
    server = ServerMachine(agreed, vector())

    def told(client: int, message: Any, now: float) -> None:
        server.handle(on.Received(client, message, now))

    server.handle(on.Connected(0.0))
    told(0, Join(0, -1, 1), 0.0)
    told(1, Join(0, -1, 1), 0.0)
    told(0, Update(0, 0, vector()), 1.0)
    told(0, Join(1, 0, 1), 12.0)
    server.handle(on.Woken(12.0))
    told(1, Join(0, -1, 1), 13.0)
    told(1, Update(0, 1, vector()), 14.0)
    for round, now in ((1, 15.0), (2, 30.0), (3, 61.0)):
        told(0, Update(round, round, vector()), now)
    assert server.finished


def test_a_base_before_the_first_model_is_refused() -> None:
    server = ServerMachine(federation(2, 4, rule="asynchronous", exchanged="gradients"), vector())
    server.handle(on.Connected(0.0))
    effects = server.handle(on.Received(1, Update(0, -1, vector()), 1.0))
    assert sent(effects, Refusal)


def test_a_plan_that_ends_before_its_phases_is_refused() -> None:
    with pytest.raises(FederationError, match="ends before"):
        federation(
            2, 4, phases=(2, 2), taking=((0, 1), (1,)),
            plans=(plan(4), plan(2)), members=(Member("a"), Member("b", 1)),
        )  # fmt: skip


def test_who_was_away_goes_on_with_the_phase_that_the_others_are_in() -> None:
    ledger = LedgerState(updates=1, rounds=1, base=0, acknowledged=1)
    machine = ClientMachine(phased(taking=()), 0, ledger)
    (asked,) = of(machine.handle(from_server(model(4))), on.Compute)
    assert (asked.round, asked.planned) == (1, 4)
    machine.handle(computed(asked))
    again = ClientMachine(phased(taking=()), 0, replace(ledger, updates=2, rounds=5, base=4))
    (asked,) = of(again.handle(from_server(model(5))), on.Compute)
    assert (asked.round, asked.planned) == (2, 5)
    machine = ClientMachine(phased(rule="asynchronous", taking=()), 0, replace(ledger, rounds=6))
    assert sent(machine.handle(from_server(model(6))), Leave)[0].reason == "plan used up"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["synchronous", "asynchronous", "published"])
def test_each_client_releases_its_phases_and_no_other_round(rule: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rule": rule}
    if rule != "synchronous":
        changes["exchanged"] = "gradients"
    torch.manual_seed(3)
    agreed = phased(parameters=8, architecture="", **changes)
    net = torch.nn.Linear(3, 2)
    agreed = replace(agreed, architecture=SharedModel(net).architecture)
    data = [(torch.randn(40, 3), torch.randint(0, 2, (40,))) for _ in range(3)]
    run = simulate(net, data, agreed, Times([1.0] * 3), out=tmp_path / "out")
    made = [[(r.start, r.stop) for r in one.ranges()] for one in run.transcripts]
    assert made == [[(0, 6)], [(0, 2), (4, 6)], [(2, 4)]]
    for client, statement in enumerate(run.statements):
        assert statement is not None
        own = agreed.planned(client)
        assert statement.mechanism == own
        assert statement.guarantee == exact.epsilon(own, statement.delta).upper
        folder = tmp_path / "out" / "clients" / f"c{client}"
        kept = Statement.load(folder / "statement.json")
        beside = ft.Plan.from_json((folder / "plan.json").read_text())
        assert verify(kept, beside).guarantee == statement.guarantee
        again = Transcript.from_json((folder / "transcript.json").read_text())
        assert again.ranges() == run.transcripts[client].ranges()
    assert run.statements[2] is not None and run.statements[0] is not None
    assert run.statements[2].guarantee < run.statements[0].guarantee
    said = " ".join(map(str, run.statements[1].caveats if run.statements[1] else ()))
    assert "phase 1: 2 of 2 rounds" in said and "phase 2 left out" in said


def trainer(skips: bool) -> ClientTrainer:
    torch.manual_seed(5)
    net = torch.nn.Linear(3, 2)
    from forethought.rounds.contributions import default_loss
    from forethought.rounds.records import as_records

    targets = torch.arange(40) % 2
    records = as_records((torch.randn(40, 3), targets), torch.float32, torch.device("cpu"))
    own, secrets = phased().plan(0), Secrets.draw(Seeds())
    holder = Holder(own, records, default_loss(targets), secrets, gradients=True, skips=skips)
    return ClientTrainer(SharedModel(net), holder)


def test_rounds_are_left_out_forwards_only_and_only_by_phases() -> None:
    one = trainer(skips=True)
    start = one.shared.read()
    one.compute(0, start)
    one.compute(4, start)
    assert one.transcript.ranges() == [range(1), range(4, 5)] and len(one.transcript) == 2
    for round in (4, 2, 0):
        with pytest.raises(RoundError, match="round 5 is"):
            one.compute(round, start)
    again = ClientTrainer(one.shared, one.holder, state=one.state())
    assert again.transcript.next == 5
    with pytest.raises(RoundError, match="round 0 is"):
        trainer(skips=False).compute(1, start)


def test_a_statement_counts_all_phases_that_were_agreed_on_and_says_what_was_released() -> None:
    one = trainer(skips=True)
    start = one.shared.read()
    for round in (0, 4, 5):
        one.compute(round, start)
    agreed = phased(taking=((0, 2), (0, 1, 2), (1,)))
    made = client_statement(agreed, 0, transcript=one.transcript)
    # Who leaves may do so for what results showed: what it left out counts, too.
    assert made.mechanism == agreed.planned(0) and len(made.mechanism) == 4
    said = next(str(c) for c in made.caveats if c.code == "phases-fixed")
    assert "phase 1: 1 of 2 rounds" in said and "phase 3: 2 of 2 rounds" in said
    assert verify(made).guarantee == made.guarantee
    with pytest.raises(TranscriptError, match="of them in"):
        client_statement(replace(agreed, taking=((0,), (1, 2), (1,))), 0, transcript=one.transcript)
    whole = client_statement(phased(), 0).guarantee
    assert made.guarantee < whole
    assert shared(agreed, 1).guarantee >= whole - 1e-9


@pytest.mark.parametrize("rule", ["asynchronous", "published"])
def test_steps_that_move_do_not_go_with_phases_where_an_update_has_no_place(rule: str) -> None:
    for schedule in (ft.Schedule("inverse", 0.5), ft.Schedule(warmup=2)):
        with pytest.raises(FederationError, match="schedule 'constant'"):
            phased(rule=rule, exchanged="gradients", plans=(plan(6, schedule=schedule),))
        assert phased(plans=(plan(6, schedule=schedule),)).phases


def test_phases_have_a_budget_of_their_own_or_share_one() -> None:
    made = plan(9).with_(budget=Budget(4.0, 1e-3))
    own = in_phases(made, (3, 3, 3), [1.0, 0.5, 2.0])
    for part, epsilon in zip(own.mechanism.rounds, (1.0, 0.5, 2.0), strict=True):
        alone = exact.epsilon(ft.Mechanism(part), 1e-3).upper
        assert 0.99 * epsilon < alone <= epsilon and part.count == 3
    assert exact.epsilon(own.mechanism, 1e-3).upper <= 4.0
    together = in_phases(made, (4, 3, 2), 3)
    assert [part.count for part in together.mechanism] == [4, 3, 2]
    assert exact.epsilon(together.mechanism, 1e-3).upper <= 4.0
    with pytest.raises(PlanError, match="spend"):
        in_phases(made, (3, 3, 3), [4.0, 4.0, 4.0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phases": (2, 2)}, "are not the 6 rounds"),
        ({"taking": ((0,), (1,))}, "every phase needs somebody"),
        ({"taking": ((0,), (1,), (1,))}, "every phase needs somebody"),
        ({"taking": ((0, 1, 2, 3), (1,), (1,))}, "every phase needs somebody"),
        ({"taking": ((0, 1, 2), (), (1,))}, "every phase needs somebody"),
        ({"phases": (), "taking": TAKING}, "are not the 6 rounds"),
        ({"secure": {"clients": 3}}, "secure aggregation shares one noise"),
    ],
)
def test_phases_that_contradict_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(FederationError, match=words):
        phased(**changes)


def test_a_client_takes_phases_of_its_own_job_only() -> None:
    agreed = phased()
    for name, value in (("phases", (1, 2, 3)), ("taking", ()), ("taking", (TAKING[0],) * 3)):
        other = replace(agreed, **{name: value})
        with pytest.raises(FederationError, match=f"has {name}"):
            require_contract(other, agreed, 0)
        assert other.run_id != agreed.run_id
    values = json.loads(agreed.to_json())
    assert Federation.from_dict(values) == agreed
    assert not {"phases", "taking"} & set(json.loads(federation().to_json()))


def test_the_server_asks_those_of_a_phase() -> None:
    from forethought.exchange.messages import Join, Model
    from forethought.federated.server import ServerMachine

    server = ServerMachine(phased(), vector())
    asked = []
    for client in range(3):
        effects = server.handle(on.Received(client, Join(0, -1), 0.0))
        asked += [e.to for e in of(effects, on.Send) if isinstance(e.message, Model)]
    assert asked == [0, 1] and SERVER == -1


def test_a_phase_whose_clients_all_left_ends_and_the_next_one_begins() -> None:
    from forethought.exchange.messages import Model, Update
    from forethought.federated.server import ServerMachine

    server = joined(ServerMachine(phased(), vector()))
    server.handle(on.Received(0, Leave(0, -1, "stopped"), 0.0))
    update(server, 1, Update(0, 0, vector()))
    update(server, 1, Update(1, 1, vector()))
    assert (server.version, server.finished) == (2, False)
    asked = sent(server.handle(on.Received(2, Leave(0, 2, "stopped"), 0.0)), Model)
    assert [model.base for model in asked] == [4] and not server.finished
    restored = ServerMachine.restored(phased(), vector(), server.snapshot(), ())
    assert (restored.version, restored.finished) == (4, False)
    server.handle(on.Received(1, Leave(2, 4, "stopped"), 0.0))
    assert (server.version, server.finished) == (4, True)
