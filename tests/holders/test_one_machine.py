"""A federation of one client is training on one machine, bit for bit."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from drawn import randn, reseed, stream
from forethought.exchange.events import Computed
from forethought.federated.federation import Federation, Member
from forethought.holders.simulator import SimulationError, StarSimulator, Times
from forethought.holders.trainer import Holder, ReportedAverage, SharedModel
from forethought.holders.workers import InProcess
from forethought.rounds.contributions import default_loss
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import LocalRounds, updates_of

ROUNDS = 12


def data(examples: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = stream(3)
    inputs = randn(examples, 7, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


def small_model() -> nn.Module:
    reseed(1)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 2))


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("local_rounds", "averaging", "optimizer"),
    [
        (1, "exponential", "sgd"),
        (1, "none", "adam"),
        (1, "tail", "adam"),
        (4, "none", "sgd"),
        ((1, 1, 2), "none", "sgd"),
        ((5, 1, 3), "none", "adam"),
    ],
)
def test_one_client_is_train(local_rounds: LocalRounds, averaging: str, optimizer: str) -> None:
    options = (("momentum", 0.9),) if optimizer == "sgd" else ()
    plan = ft.Plan(
        ft.Mechanism(ft.Rounds(1.3, ROUNDS, ft.Poisson(0.3))),
        60,
        1e-4,
        optimizer=ft.Optimizer(optimizer, 0.3, options),
        schedule=ft.Schedule("inverse", 0.1),
        averaging=ft.Averaging(averaging),
    )
    inputs, targets = data()
    model = small_model()
    alone = copy.deepcopy(model)
    seeds = Seeds(4, 5)
    ft.train(alone, (inputs, targets), plan, seeds=seeds)

    shared = SharedModel(model)
    start = shared.read()
    federation = Federation(
        (Member("one"),),
        (plan,),
        len(start),
        shared.architecture,
        updates_of(local_rounds, ROUNDS),
        local_rounds,
        averaging=plan.averaging,
    )
    records, loss = TensorRecords(inputs, targets), default_loss(targets)
    holder = Holder(plan, records, loss, Secrets.draw(seeds), local_rounds=local_rounds)
    average = None
    if plan.averaging.kind != "none":
        average = ReportedAverage(federation, shared.layout, start)
    done = StarSimulator(
        federation,
        start,
        InProcess(shared, [holder]),
        Times([1.0]),
        average=average,
    ).run()
    assert np.array_equal(done.weights, SharedModel(alone).read())
    assert done.rounds.tolist() == [ROUNDS] and not done.alarms


def test_a_simulation_that_waits_says_which_update_was_refused() -> None:
    plan = ft.Plan(ft.Mechanism(ft.Rounds(1.3, 2, ft.Poisson(0.3))), 60, 1e-4)
    federation = Federation((Member("one"),), (plan,), 3, "none", 2, 1)
    result = SimpleNamespace(
        answer=lambda asked, now: Computed(
            asked.round, asked.base, np.full(3, 1e9, np.float32), 1, bytes(32), b"", now
        )
    )
    trainers = SimpleNamespace(begin=lambda work: None, result=lambda client: result)
    start = np.zeros(3, np.float32)
    with pytest.raises(SimulationError, match="refused: norm"):
        StarSimulator(federation, start, trainers, Times([1.0])).run()
