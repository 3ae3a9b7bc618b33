"""Runs on altered copies: resumed exactly, in a loop of one's own, by a client, and refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.training.execution import Interrupted
from forethought.training.metrics import Event
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan

EXAMPLES = 40
HOW = ft.Augmentation(3, ("mirror", "shift", "crop"))


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(EXAMPLES, 1, 8, 8)).astype(np.float32)
    return inputs, (inputs.mean((1, 2, 3)) > 0).astype(np.int64)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(72, 2)
    return nn.Sequential(*layers)


def plan() -> Plan:
    part = Rounds(1.0, 10, Poisson(0.3))
    return Plan(Mechanism(part), EXAMPLES, 1e-5, augmentation=HOW)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.round == 4:
            os.kill(os.getpid(), signal.SIGINT)

    seeds = ft.Seeds(1, 2)
    whole = ft.train(network(), data(), plan(), seeds=seeds)
    with pytest.raises(Interrupted):
        ft.train(network(), data(), plan(), seeds=seeds, out=tmp_path / "run", progress=stop)
    resumed = ft.train(network(), data(), out=tmp_path / "run", resume=True)
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.plan.augmentation == HOW
    assert any(caveat.code == "augmented" for caveat in resumed.statement.caveats)
    plain = ft.train(network(), data(), plan().with_(augmentation=None), seeds=seeds)
    assert not torch.equal(weights(plain.model), weights(whole.model))
    assert plain.statement.epsilon == whole.statement.epsilon


def test_the_argument_of_train_goes_before_the_plan() -> None:
    run = ft.train(network(), data(), plan(), augment=["flip"])
    assert run.plan.augmentation == ft.Augmentation(kinds=("flip",))


def test_a_loop_of_ones_own_sees_the_same_copies() -> None:
    seeds, model = ft.Seeds(1, 2), network()
    loader, optimizer = ft.private(model, None, data(), plan(), seeds=seeds)
    loss = nn.CrossEntropyLoss(reduction="none")
    for _ in range(loader.epochs):
        for inputs, targets in loader:
            loss(model(inputs), targets).backward()
            optimizer.step()
    optimizer.finish()
    by_train = ft.train(network(), data(), plan(), seeds=seeds)
    assert torch.equal(weights(model), weights(by_train.model))


def test_a_client_contributes_copies_of_images_only() -> None:
    inputs, targets = map(torch.from_numpy, data())
    secrets = Secrets.draw(Seeds(1, 2))
    found = []
    for chosen in (plan(), plan().with_(augmentation=None)):
        holder = Holder(chosen, TensorRecords(inputs, targets), cross_entropy, secrets)
        shared = SharedModel(network())
        found.append(ClientTrainer(shared, holder).compute(0, shared.read()).vector)
    assert not np.array_equal(found[0], found[1])
    vectors = TensorRecords(inputs.flatten(1), targets)
    with pytest.raises(ValueError, match="augment= alters images"):
        Holder(plan(), vectors, cross_entropy, secrets)


def test_vectors_are_refused_before_the_first_round() -> None:
    inputs, targets = data()
    model = nn.Linear(64, 2)
    before = weights(model).clone()
    with pytest.raises(ValueError, match="augment= alters images"):
        ft.train(model, (inputs.reshape(EXAMPLES, -1), targets), plan())
    assert torch.equal(weights(model), before)
