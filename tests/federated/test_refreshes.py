"""A newer model in mid-round, as Algorithm 4 has it: at fixed times, for records at random."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import forethought as ft
from forethought.exchange import events as on
from forethought.exchange.messages import Update
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation, FederationError, require_contract
from forethought.federated.statements import client_statement
from forethought.holders.simulator import NoTraining, SimulatedStar, StarSimulator, Times, Way, Work
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.rounds.private_sum import PrivateRounds, RoundError
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.values.mechanism import Groups

from .machines import D, federation, from_server, model, of, sent, vector


def refreshing(refreshes: int = 3, **changes: Any) -> Federation:
    return federation(rule="published", cadence=8.0, refreshes=refreshes, **changes)


def test_each_part_begins_at_its_time_on_the_newest_model() -> None:
    machine = ClientMachine(refreshing(), 0)
    (first,) = of(machine.handle(from_server(model(0), 10.0)), on.Compute)
    assert (first.part, first.parts, first.base) == (0, 4, 0) and machine.part_at == 12.0
    assert not of(machine.handle(on.Woken(11.9)), on.Compute)
    # A model that comes at the very time, or later, is not for this part.
    (second,) = of(machine.handle(from_server(model(1, *[1.0] * D, round=0), 12.0)), on.Compute)
    assert (second.part, second.base, second.vector[0]) == (1, 0, 0.0)
    (third,) = of(machine.handle(on.Woken(14.0)), on.Compute)
    assert (third.part, third.vector[0]) == (2, 1.0)
    machine.handle(from_server(model(2, *[2.0] * D, round=0), 15.0))
    (last,) = of(machine.handle(on.Woken(16.5)), on.Compute)
    assert (last.part, last.base, last.vector[0]) == (3, 0, 2.0) and machine.part_at is None
    done = on.Computed(0, 0, vector(*[1.0] * D), 1, b"", b"", 17.0)
    assert len(of(machine.handle(done), on.Commit)) == 1
    (update,) = sent(machine.handle(on.Woken(18.0)), Update)
    assert (update.round, update.base) == (0, 0)
    # Line 15: the own step is on the newest model, which does not hold it yet.
    assert machine.weights is not None and machine.weights[0] == 2.0 - 0.5 / 3


def test_who_slept_over_several_times_takes_them_together() -> None:
    machine = ClientMachine(refreshing(), 0)
    machine.handle(from_server(model(0), 0.0))
    late = of(machine.handle(from_server(model(1, *[1.0] * D), 5.0)), on.Compute)
    assert [(one.part, one.vector[0]) for one in late] == [(1, 0.0), (2, 0.0)]


def simulated(speed: float, refreshes: int = 3) -> tuple[SimulatedStar, dict[Any, Any]]:
    agreed = refreshing(refreshes, clients=3, rounds=5)
    met: dict[Any, Any] = {}

    class Watched(NoTraining):
        def begin(self, work: Work) -> None:
            met[work.client, work.round, work.part] = work.weights.tobytes()
            super().begin(work)

    trainers = Watched(vector=lambda work: 0.1 * (work.weights + np.float32(work.client + 1)))
    compute = [speed * one for one in (1.0, 3.0, 7.0)]
    run = StarSimulator(agreed, vector(), trainers, Times(compute=compute, way=Way(0.3))).run()
    return run, met


def test_what_a_round_meets_does_not_depend_on_how_fast_its_clients_are() -> None:
    (slow, of_slow), (fast, of_fast) = simulated(1.0), simulated(0.01)
    assert of_slow == of_fast and slow.seconds == fast.seconds
    assert slow.weights.tobytes() == fast.weights.tobytes()
    # And the newer models are met: those that come after a round has begun.
    later = [key for key in of_slow if key[2] == 1 and of_slow[key] != of_slow[(*key[:2], 0)]]
    assert len(later) == 12 and simulated(1.0, 0)[0].weights.tobytes() != slow.weights.tobytes()


# ---- the trainer


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Linear(3, 2)


def data(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def holder(noise: float = 0.0) -> Holder:
    chosen = ft.Plan(
        ft.Mechanism(ft.Rounds(noise, 4, ft.Poisson(0.5))),
        40,
        1e-3,
        optimizer=ft.Optimizer("sgd", 0.5, ()),
    )
    records = as_records(data(), torch.float32, torch.device("cpu"))
    secrets = Secrets.draw(Seeds(sampling=3, noise=4))
    return Holder(chosen, records, cross_entropy, secrets, gradients=True)


def models(count: int) -> list[Any]:
    return list(np.random.default_rng(2).normal(size=(count, 8)).astype(np.float32))


def clipped(shared: SharedModel, weights: Any, record: int) -> torch.Tensor:
    shared.write(weights)
    inputs, labels = data()
    loss = cross_entropy(shared.model(inputs[record][None]), labels[record][None]).sum()
    slopes = torch.autograd.grad(loss, list(shared.parameters.values()))
    flat = torch.cat([slope.reshape(-1) for slope in slopes]).double()
    return flat / max(1.0, float(flat.norm()))


def test_parts_on_one_model_are_the_whole() -> None:
    shared = SharedModel(network())
    start = shared.read()
    whole = ClientTrainer(shared, holder()).compute(0, start)
    trainer = ClientTrainer(shared, holder())
    for part in range(3):
        found = trainer.compute_part(0, start, part, 4)
        assert found is None
    found = trainer.compute_part(0, start, 3, 4)
    assert found is not None and found.rounds == whole.rounds == len(trainer.transcript)
    np.testing.assert_allclose(found.vector, whole.vector, rtol=1e-5, atol=1e-7)
    assert trainer.compute_part(1, start, 0, 1) is not None
    with pytest.raises(RoundError, match="the next one"):
        trainer.compute_part(2, start, 1, 2)
    trainer.compute_part(2, start, 0, 3)
    with pytest.raises(RoundError, match="the next one"):
        trainer.compute_part(2, start, 2, 3)


def test_each_record_is_clipped_at_the_model_of_its_part() -> None:
    shared, own = SharedModel(network()), holder()
    trainer = ClientTrainer(shared, own)
    at = models(3)
    found = [trainer.compute_part(0, weights, part, 3) for part, weights in enumerate(at)][-1]
    assert found is not None
    expected = torch.zeros(8, dtype=torch.float64)
    for place, weights in enumerate(at):  # each part by itself, in rounds of its own
        private = PrivateRounds(own.plan.privacy, shared.parameters, own.loss, own.secrets)
        total = private.open(0)
        shared.write(weights)
        total.add(shared.model, own.records, total.parts(3)[place])
        expected += total._so_far()
    np.testing.assert_allclose(found.vector * 20.0, expected.numpy(), rtol=1e-4, atol=1e-5)
    # Other models are another question, and another name in the ledger.
    again = ClientTrainer(shared, own)
    for part, weights in enumerate([at[1], at[1], at[2]]):
        other = again.compute_part(0, weights, part, 3)
    assert other is not None and other.input_hash != found.input_hash


def test_a_record_more_changes_its_own_term_and_no_other() -> None:
    """However far apart the models are: the others stay at theirs."""
    shared, own = SharedModel(network()), holder()
    at = [weights * 50 for weights in models(4)]
    for index in range(4):
        private = PrivateRounds(own.plan.privacy, shared.parameters, own.loss, own.secrets)
        for before in range(index):
            total = private.open(before)
            total.add(shared.model, own.records)
            total.release()
        total = private.open(index)
        sums = []
        for kept in (total.indices, total.indices[:-1]):
            total.indices = kept
            parts = zip(at, total.parts(4), strict=True)
            sums.append(sum(clipped(shared, one, record) for one, part in parts for record in part))
        assert float((sums[0] - sums[1]).norm()) <= 1 + 1e-6


def test_a_simulation_trains_in_parts() -> None:
    shared = SharedModel(network())
    chosen = holder(1.0)
    agreed = replace(
        refreshing(2, clients=2, rounds=4),
        parameters=8,
        plans=(chosen.plan,),
    )
    start = shared.read()
    trainers = InProcess(shared, [chosen, chosen])
    run = StarSimulator(agreed, start, trainers, Times(compute=[1.0, 9.5])).run()
    assert run.version == 5 and (run.rounds == 4).all()
    assert not np.array_equal(run.weights, start)


# ---- what is refused


def test_refreshes_need_a_cadence_single_records_and_the_clients_own_word() -> None:
    for changes in ({"rule": "synchronous"}, {"rule": "published", "cadence": None}):
        with pytest.raises(FederationError, match="steps of a"):
            federation(**{"cadence": 5.0, "refreshes": 1, **changes})
    rounds = ft.Rounds(1.0, 3, ft.Poisson(0.5), "group", groups=4)
    grouped = ft.Plan(ft.Mechanism(rounds), 40, 1e-3, contribution=Groups(4))
    with pytest.raises(FederationError, match="clipped together"):
        refreshing(plans=(grouped,))
    with pytest.raises(ValueError, match="refreshes"):
        refreshing(-1)
    with pytest.raises(FederationError, match="refreshes"):
        require_contract(refreshing(2), refreshing(0), 0)


def test_a_federation_without_them_has_the_form_that_it_had() -> None:
    assert "refreshes" not in refreshing(0).to_dict()
    agreed = refreshing(2)
    assert agreed.to_dict()["refreshes"] == 2
    assert Federation.from_dict(agreed.to_dict()) == agreed
    assert agreed.run_id != refreshing(0).run_id


def test_the_statement_says_what_is_left() -> None:
    codes = {note.code: note.detail for note in client_statement(refreshing(2), 0).caveats}
    assert re.fullmatch("8 seconds", codes["padded-times"]) and codes["refresh-times"] == "3"
    assert "refresh-times" not in {n.code for n in client_statement(refreshing(0), 0).caveats}
