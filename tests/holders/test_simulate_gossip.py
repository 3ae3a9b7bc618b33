"""Simulations with real training: same bits for any number of processes, after any interruption."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from workers import gossip, plan

import forethought as ft
from drawn import randn, reseed, stream
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, GossipError, digest_of
from forethought.holders.simulate import (
    SimulatedRun,
    simulate,
    synchronous_seconds,
)
from forethought.holders.simulator import Times, Way, slow_ones
from forethought.holders.trainer import SharedModel
from forethought.training.folder import CheckpointError, RunFolderExistsError

K, ROUNDS = 4, 5
TIMES = Times(slow_ones(K, 1, 4.0), Way(0.1), straggling=0.5)
SEEDS = ft.Seeds(1, 2)


def model() -> nn.Module:
    reseed(2)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def shares() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = stream(5)
    inputs = randn(K, 40, 6, generator=generator)
    return [(part, (part.sum(1) > 0).long()) for part in inputs]


def agreed(**changes: Any) -> Gossip:
    shared = SharedModel(model())
    known: dict[str, Any] = {
        "plans": (plan(8),),
        "parameters": shared.layout.size,
        "architecture": shared.architecture,
        "start": digest_of(shared.read()),
    }
    return gossip(K, **{"rounds": ROUNDS, **known, **changes})


def run(one: Gossip | None = None, **changes: Any) -> tuple[SimulatedRun, Any]:
    trained = model()
    test = shares()[0]
    found = simulate(
        trained, shares(), one or agreed(), TIMES, **{"seeds": SEEDS, "test": test, **changes}
    )
    return found, SharedModel(trained).read()


@pytest.mark.parametrize("rule", ["asynchronous", "synchronous", "allreduce"])
def test_each_worker_has_a_statement_for_what_it_released(rule: str, tmp_path: Path) -> None:
    found, weights = run(agreed(rule=rule), out=tmp_path / "run", seeds=ft.Seeds(1, None))
    assert weights.tobytes() == found.simulated.weights.tobytes()
    for k, one in enumerate(found.statements):
        released = int(found.simulated.rounds[k])
        if one is None:
            assert released == 0
            continue
        assert 0 < released <= 8
        assert len(one.mechanism) == released
        whole = ft.account(
            agreed().plan(k).mechanism.first(released),
            1e-3,
        )
        assert one.guarantee >= whole.epsilon.lower
        folder = tmp_path / "run" / "workers" / f"w{k}"
        assert (folder / "statement.json").exists()
    summary = found.summary()
    assert summary["worst"] <= summary["accuracy"] + 0.2
    assert not (tmp_path / "run" / "keys").exists()
    with pytest.raises(RunFolderExistsError):
        run(agreed(rule=rule), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="that was interrupted"):
        run(agreed(rule=rule), out=tmp_path / "run", resume=True)


class _EnoughError(Exception):
    pass


def test_an_interrupted_simulation_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, weights = run()

    def stop(done: int, most: int) -> None:
        if done == 9:
            raise _EnoughError

    with pytest.raises(_EnoughError):
        run(out=tmp_path / "run", progress=stop)
    with pytest.raises(CheckpointError, match="another one"):
        run(agreed(settle=3), out=tmp_path / "run", resume=True)
    again, resumed = run(out=tmp_path / "run", resume=True, seeds=None)
    assert resumed.tobytes() == weights.tobytes()
    assert again.simulated.updates.tolist() == whole.simulated.updates.tolist()
    assert again.accuracy == whole.accuracy


@pytest.mark.slow
def test_processes_do_not_change_a_bit() -> None:
    here, weights = run()
    there, other = run(workers=2)
    assert other.tobytes() == weights.tobytes()
    assert there.simulated.seconds == here.simulated.seconds
    assert [a.tobytes() for a in there.simulated.models] == [
        a.tobytes() for a in here.simulated.models
    ]


def test_one_round_of_sync_is_the_mean_of_everybodys_noised_means() -> None:
    """An oracle: without noise and with full batches, SYNC is gradient descent on all the data."""
    mechanism = ft.Mechanism(ft.Rounds(0.0, 3, ft.FullBatch()), adjacency="zero-out")
    exact = ft.Plan(mechanism, 40, 1e-3, ft.Clip(1e6), optimizer=ft.Optimizer("sgd", 0.5, ()))
    start = model()
    found, weights = run(agreed(rule="allreduce", plans=(exact,), rounds=3))
    inputs = torch.cat([x for x, _ in shares()])
    targets = torch.cat([y for _, y in shares()])
    optimizer = torch.optim.SGD(start.parameters(), 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(start(inputs), targets).backward()
        optimizer.step()
    assert weights == pytest.approx(SharedModel(start).read(), abs=1e-5)
    assert found.simulated.disagreement == 0


def test_other_models_shares_and_weights_are_refused() -> None:
    with pytest.raises(GossipError, match="for 4 workers"):
        simulate(model(), shares()[:3], agreed(), TIMES)
    with pytest.raises(GossipError, match="another architecture"):
        simulate(nn.Linear(6, 2), shares(), agreed(), TIMES)
    other = copy.deepcopy(model())
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    with pytest.raises(GossipError, match="first weights"):
        simulate(other, shares(), agreed(), TIMES)
    few = [(x[:30], y[:30]) for x, y in shares()]
    with pytest.raises(ValueError, match="the guarantee depends"):
        simulate(model(), few, agreed(), TIMES)


def test_sync_takes_as_long_as_its_slowest() -> None:
    assert synchronous_seconds(agreed(), Times(slow_ones(K, 1, 4.0))) == pytest.approx(20)
    few = agreed(compression=Compression("top-k", 0.5))
    assert synchronous_seconds(few, Times(slow_ones(K, 1, 4.0))) == pytest.approx(20)
    assert isinstance(run()[0].simulated.weights, np.ndarray)
