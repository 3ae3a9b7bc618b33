"""Sample sizes that clients choose on the fly: no release that the filter does not allow."""

from __future__ import annotations

import itertools
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import forethought as ft
from forethought.accounting.adaptive import BudgetExceededError
from forethought.accounting.renyi import rdp
from forethought.accounting.statement import Statement
from forethought.accounting.verification import verify
from forethought.exchange import events as on
from forethought.exchange.messages import Leave, Update
from forethought.exchange.storage import ClientLedger, LedgerError
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation, FederationError, require_contract
from forethought.federated.sizes import Guard, Past, Sizes, charged, fitted, text_of
from forethought.federated.statements import Policy, client_statement, shared
from forethought.holders.simulate import simulate
from forethought.holders.simulator import Times
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.rounds.contributions import default_loss
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.values.mechanism import Budget
from forethought.values.plan import Transcript
from trials.storage import CrashError, MemoryStorage, UnsignedEndpoint

from .machines import D, federation, from_server, model, of, plan, sent, vector

BUDGET = Budget(8.0, 1e-3)


def sized(rounds: int = 6, kind: str = "signal", **changes: Any) -> Federation:
    own = fitted(plan(rounds).with_(budget=BUDGET))
    known = {"plans": (own,), "sizes": Sizes(kind), "exchanged": "gradients"}
    return federation(2, rounds, **{**known, **changes})


def state_of(agreed: Federation, chosen: list[ft.Rounds], norms: list[float]) -> bytes:
    """What a trainer's state says after these rounds."""
    transcript, own = Transcript(), agreed.plan(0)
    for index, part in enumerate(chosen):
        one = replace(own.round(index), sampling=part.sampling)
        transcript.append(one, one.noise_std, one.clip_norm)
    held = json.dumps({"transcript": transcript.to_values(), "norms": norms})
    header = json.dumps({"__metadata__": {"values": held}}).encode()
    return len(header).to_bytes(8, "little") + header


def module(monkeypatch: pytest.MonkeyPatch, rule: Any) -> str:
    """The name of a rule of the user's own."""
    monkeypatch.setitem(sys.modules, "own_sizes", SimpleNamespace(rule=rule))
    return "own_sizes:rule"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_rule_chooses_the_budget_is_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    kind = module(monkeypatch, lambda past: past.planned * draw.choice((0.1, 1.0, 3.0, 50.0)))
    agreed = sized(40, kind)
    guard, done = agreed.guard(0), []
    assert guard is not None
    state = b""
    while len(done) < 40 and (chosen := guard.next(len(done), state)) is not None:
        done.append(chosen)
        state = state_of(agreed, done, [1.0] * len(done))
        guard.after(state, text_of(chosen))
    kept = charged(agreed.plan(0), None)
    (order,), (limit,) = kept.details()["orders"], kept.limits  # one order, fixed before
    spent = sum(rdp(ft.Mechanism(one), (order,)).values[0] for one in done)
    assert spent <= limit * (1 + 1e-12)
    # It stops where the next round of that size would be too much, and not much earlier.
    assert len(done) < 40 and spent > 0.3 * limit
    largest = max(one.sampling.rate for one in done)  # type: ignore[attr-defined]
    assert largest <= 1.0
    made = client_statement(agreed, 0, transcript=_transcript(state))
    assert made.guarantee == BUDGET.epsilon and verify(made).guarantee == BUDGET.epsilon


def _transcript(state: bytes) -> Transcript:
    values = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])
    return Transcript.from_values(json.loads(values["__metadata__"]["values"])["transcript"])


@pytest.mark.parametrize("delay", [1, 3])
def test_a_rule_sees_releases_up_to_the_delay_and_nothing_else(
    delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Past] = []

    def rule(past: Past) -> float:
        seen.append(past)
        return past.planned

    agreed = sized(kind=module(monkeypatch, rule))
    agreed = replace(agreed, sizes=replace(agreed.sizes, delay=delay))  # type: ignore[type-var]
    guard = agreed.guard(0)
    assert guard is not None
    done = [agreed.plan(0).round_at(0)] * 4
    guard.next(4, state_of(agreed, done, [0.5, 1.5, 2.5, 3.5]))
    assert seen[0].norms == (0.5, 1.5, 2.5, 3.5)[: 5 - delay]
    assert seen[0].sizes == (20.0,) * 4 and (seen[0].update, seen[0].examples) == (4, 40)


def test_the_rule_by_name_saves_while_there_is_signal_and_never_runs_out() -> None:
    agreed = sized(12)
    guard, done, state = agreed.guard(0), [], b""
    assert guard is not None
    for number in range(12):
        chosen = guard.next(number, state)
        assert chosen is not None
        done.append(chosen)
        norms = [100.0 if k < 6 else 0.0 for k in range(len(done))]
        state = state_of(agreed, done, norms)
    rates = [one.sampling.rate for one in done]  # type: ignore[attr-defined]
    assert max(rates[1:7]) < 0.9 * rates[0] and min(rates[8:]) > 1.05 * rates[0]
    assert charged(agreed.plan(0), _transcript(state)).fraction_used > 0.9


def ledger_of(agreed: Federation, storage: Any) -> ClientLedger:
    return ClientLedger(storage, UnsignedEndpoint(b"x" * 32, 0), "", agreed.guard(0))  # type: ignore[arg-type]


def test_the_ledger_allows_what_was_begun_and_fits_and_nothing_else() -> None:
    agreed = sized()
    guard, storage = agreed.guard(0), MemoryStorage()
    ledger = ledger_of(agreed, storage)
    assert guard is not None
    chosen = guard.next(0, b"")
    assert chosen is not None
    one = on.ClientRelease(0, 0, 1, b"", state_of(agreed, [chosen], [1.0]), Update(0, 0, vector()))
    with pytest.raises(LedgerError, match="was never begun"):
        ledger.commit(one)
    larger = replace(chosen, sampling=ft.Poisson(1.0))
    wide = replace(larger, noise_multiplier=0.2)
    with pytest.raises(BudgetExceededError):
        ledger.begin(0, text_of(wide))
    assert ledger_of(agreed, storage).read().begun == ""
    ledger.begin(0, text_of(chosen))
    ledger.begin(0, text_of(chosen))
    for wrong in (0, 1):
        with pytest.raises(LedgerError, match="cannot begin"):
            ledger.begin(wrong, text_of(larger))
    assert ledger_of(agreed, storage).read().begun == text_of(chosen)
    other = replace(one, state=state_of(agreed, [larger], [1.0]))
    with pytest.raises(BudgetExceededError, match="was begun"):
        ledger.commit(other)
    many = replace(one, state=state_of(agreed, [*[larger] * 5, chosen], [1.0] * 6))
    with pytest.raises(BudgetExceededError, match="does not fit"):
        ledger.commit(many)
    assert ledger.read().updates == 0
    ledger.commit(one)
    again = ledger_of(agreed, storage).read()
    assert (again.updates, again.begun) == (1, "")


@pytest.mark.slow
def test_a_crash_at_any_write_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that was begun keeps its size, also where the rule would now say another one."""
    draw = random.Random(0)
    agreed = sized(4, module(monkeypatch, lambda past: past.planned * draw.uniform(0.3, 1.2)))
    for number, share in itertools.product(range(1, 9), (0.0, 0.5, 1.0)):
        hit = {"at": number}

        def fault(write: int, length: int, hit: Any = hit, share: float = share) -> int | None:
            if hit["at"] == write:
                hit["at"] = -1
                return round(share * length)
            return None

        storage, begun = MemoryStorage(None, fault), dict[int, list[str]]()
        for _ in range(2):
            try:
                ledger = ledger_of(agreed, storage)
                run_through(agreed, ClientMachine(agreed, 0, ledger.read()), ledger, begun)
                break
            except CrashError:
                storage = MemoryStorage(storage.contents())
        kept = rounds_in(ledger_of(agreed, storage).read().state)
        assert len(kept) == 4
        # The size that was written down is the one that was released, and the last that was asked.
        assert [text_of(one) for one in kept] == [begun[update][-1] for update in range(4)]
        assert all(len(set(texts)) == 1 for texts in begun.values()) or share < 1


def rounds_in(state: bytes) -> list[ft.Rounds]:
    mechanism = _transcript(state).mechanism("add-or-remove") if state else ()
    return [replace(part, count=1) for part in mechanism for _ in range(part.count)]


def run_through(agreed: Federation, machine: ClientMachine, ledger: Any, begun: Any) -> None:
    chosen = rounds_in(ledger.read().state)
    waiting: list[on.Event] = [from_server(model(base)) for base in range(len(chosen), 4)]
    while waiting:
        for effect in machine.handle(waiting.pop(0)):
            if isinstance(effect, on.Begin):
                begun.setdefault(effect.round, []).append(effect.rounds)
                ledger.begin(effect.round, effect.rounds)
            elif isinstance(effect, on.Compute):
                like = replace(agreed.plan(0).round_at(0), count=1, sampling=effect.sampling)
                chosen.append(like)
                state = state_of(agreed, chosen, [1.0] * len(chosen))
                about = effect.round, effect.base, vector(), effect.round + 1, b"", state, 0.0
                waiting.insert(0, on.Computed(*about))
            elif isinstance(effect, on.Commit):
                ledger.commit(effect.release)


def test_who_cannot_afford_another_round_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("synchronous", "asynchronous"):
        agreed = sized(6, module(monkeypatch, lambda past: 2 * past.planned), rule=rule)
        machine, done = ClientMachine(agreed, 0), list[ft.Rounds]()
        effects = machine.handle(from_server(model(0)))
        while not sent(effects, Leave):
            for asked in of(effects, on.Compute):
                assert asked.sampling.rate == 1.0
                done.append(replace(agreed.plan(0).round_at(0), count=1, sampling=asked.sampling))
                state = state_of(agreed, done, [1.0] * len(done))
                about = asked.round, asked.base, vector(), asked.round + 1, b"", state, 0.0
                effects = machine.handle(on.Computed(*about))
                break
            else:
                effects = machine.handle(from_server(model(len(done))))
        assert 0 < len(done) < 6
        # A goodbye that is lost is said again.
        assert sent(machine.handle(on.Woken(9.0)), Leave)


def trained(**changes: Any) -> ClientTrainer:
    torch.manual_seed(5)
    net = torch.nn.Linear(3, 2)
    targets = torch.arange(40) % 2
    records = as_records((torch.randn(40, 3), targets), torch.float32, torch.device("cpu"))
    own = sized(**changes).plan(0)
    secrets, loss = Secrets.draw(Seeds(1, 2)), default_loss(targets)
    holder = Holder(own, records, loss, secrets, gradients=True, sized=True)
    return ClientTrainer(SharedModel(net), holder)


def test_the_sum_is_divided_as_planned_whatever_the_size() -> None:
    trainer = trained()
    start = trainer.shared.read()
    found = trainer.compute(0, start, ft.Poisson(0.9))
    assert trainer.noised is not None
    chosen = trainer.noised.round
    assert (chosen.divisor, chosen.sampling) == (20.0, ft.Poisson(0.9))
    np.testing.assert_allclose(trainer.norms, [np.linalg.norm(found.vector)], rtol=1e-6)
    again = ClientTrainer(trainer.shared, trainer.holder, state=trainer.state())
    assert again.norms == trainer.norms
    # The noise of another size is another one: it is bound to the round as it is.
    other = trained()
    assert not np.allclose(other.compute(0, start, ft.Poisson(0.91)).vector, found.vector)
    third = trained()
    trainer.compute(1, start, ft.Poisson(0.1))
    third.compute(0, start, ft.Poisson(0.9))
    assert third.private._about(chosen) != third.private._about(
        replace(chosen, sampling=ft.Poisson(0.1))
    )


@pytest.mark.parametrize("rule", ["synchronous", "published"])
def test_a_simulation_keeps_the_budget_and_its_statements_verify(rule: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    net = torch.nn.Linear(3, 2)
    agreed = sized(parameters=8, architecture=SharedModel(net).architecture, rule=rule)
    data = [(torch.randn(40, 3), torch.randint(0, 2, (40,))) for _ in range(2)]
    run = simulate(net, data, agreed, Times([1.0] * 2), out=tmp_path / "out")
    assert [len(one) for one in run.transcripts] == [6, 6]
    for client, statement in enumerate(run.statements):
        assert statement is not None and statement.guarantee == BUDGET.epsilon
        folder = tmp_path / "out" / "clients" / f"c{client}"
        kept = Statement.load(folder / "statement.json")
        beside = ft.Plan.from_json((folder / "plan.json").read_text())
        assert verify(kept, beside).guarantee == BUDGET.epsilon


def test_what_the_theorem_does_not_cover_is_refused() -> None:
    agreed = sized()
    with pytest.raises(FederationError, match="adds filters up"):
        shared(agreed, 1)
    own, moving = agreed.plan(0), ft.Clip(1.0, rule="quantile", count_noise=20.0)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"phases": (3, 3)}, "one sample size"),
        ({"secure": {"clients": 2}}, "masks share one noise"),
        ({"rule": "published", "cadence": 3.0, "refreshes": 1}, "one planned batch"),
        ({"local_rounds": 2, "exchanged": "weights", "rounds": 3}, "set local_rounds to 1"),
        ({"plans": (own.with_(budget=None),)}, "plan with one"),
        ({"plans": (own.with_(records_per_person=2),)}, "one record a person"),
        (
            {"plans": (own.with_(clip=moving),)},
            "single clipped records",
        ),
        (
            {"plans": (own.with_(mechanism=ft.Mechanism(ft.Rounds(3.0, 6, ft.FullBatch()))),)},
            "planned Poisson rate",
        ),
    ]
    for changes, words in refused:
        with pytest.raises((FederationError, ValueError), match=words):
            replace(agreed, **changes)
    for wrong in ({"kind": "nothing"}, {"most": 0.5}, {"delay": 0}):
        with pytest.raises(ValueError, match=r"sizes|most|delay"):
            Sizes(**wrong)  # type: ignore[arg-type]


def test_a_client_takes_sizes_of_its_own_job_and_within_its_policy_only() -> None:
    agreed = sized()
    for other in (None, Sizes("constant"), Sizes(most=5.0), Sizes(delay=2)):
        with pytest.raises(FederationError, match="has sizes"):
            require_contract(replace(agreed, sizes=other), agreed, 0)
    Policy(8.0, 1e-3).require(agreed, 0)
    with pytest.raises(FederationError, match="spends"):
        Policy(7.9, 1e-3).require(agreed, 0)
    with pytest.raises(ValueError, match="nothing is proven"):
        Policy(8.0, 1e-4).require(agreed, 0)
    assert Federation.from_dict(json.loads(agreed.to_json())) == agreed
    assert Guard(agreed.plan(0), Sizes(), D).next(0, b"") is not None
