"""Simulations: the same bits with any number of processes and after any interruption."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from machines import plan
from torch import nn

import forethought as ft
from drawn import randn, reseed, stream
from forethought.federated.federation import Federation, Member
from forethought.holders.simulate import rehearsed, simulate, synchronous_seconds
from forethought.holders.simulator import (
    HolderError,
    Outage,
    SimulationError,
    Times,
    Way,
    slow_ones,
)
from forethought.holders.trainer import SharedModel
from forethought.rounds.randomness import Seeds
from forethought.training.folder import CheckpointError, RunFolderExistsError, RunSecrets

CLIENTS, ROUNDS = 4, 5


def model() -> nn.Module:
    reseed(2)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def shares() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = stream(5)
    inputs = randn(CLIENTS, 40, 6, generator=generator)
    return [(part, (part.sum(1) > 0).long()) for part in inputs]


def federation(rule: str = "asynchronous", **changes: Any) -> Federation:
    shared = SharedModel(model())
    known: dict[str, Any] = {
        "members": tuple(Member(f"c{place}") for place in range(CLIENTS)),
        "plans": (plan(ROUNDS),),
        "parameters": shared.layout.size,
        "architecture": shared.architecture,
        "rounds": ROUNDS,
        "rule": rule,
        "exchanged": "weights" if rule == "synchronous" else "gradients",
    }
    return Federation(**{**known, **changes})


TIMES = Times(slow_ones(CLIENTS, 1, 3.0), Way(0.1), straggling=0.5)
SEEDS = Seeds(1, 2)


def run(agreed: Federation, **changes: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    trained = model()
    found = simulate(trained, shares(), agreed, TIMES, **{"seeds": SEEDS, **changes})
    return found, SharedModel(trained).read()


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_an_interrupted_simulation_goes_on_to_the_same_bits(rule: str, tmp_path: Path) -> None:
    averaging = ft.Averaging("exponential")
    agreed = federation(rule, averaging=averaging)
    _, expected = run(agreed)

    class StopError(Exception):
        pass

    def stop(done: int, most: int) -> None:
        if done == 9:
            raise StopError

    out = tmp_path / "run"
    with pytest.raises(StopError):
        run(agreed, out=out, progress=stop)
    with (out / "updates").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(RunFolderExistsError):
        run(agreed, out=out)
    with pytest.raises(CheckpointError, match="another one"):
        run(replace(agreed, resend=9.0), out=out, resume=True)
    found, weights = run(agreed, out=out, resume=True, seeds=None)
    assert np.array_equal(weights, expected)
    assert (out / "clients" / "c0" / "statement.json").is_file()
    assert not (out / "keys").exists() and not (out / "updates").exists()
    assert found.summary()["clients"][0]["rounds"] == ROUNDS


def test_a_simulation_that_is_resumed_with_other_times_is_refused(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(done: int, most: int) -> None:
        if done == 9:
            raise StopError

    agreed, out = federation(), tmp_path / "run"
    with pytest.raises(StopError):
        run(agreed, out=out, progress=stop)
    others = replace(TIMES, compute=slow_ones(CLIENTS, 3, 0.1))
    with pytest.raises(CheckpointError, match="other times"):
        simulate(model(), shares(), agreed, others, out=out, resume=True)
    run(agreed, out=out, resume=True)  # nothing was lost


@pytest.mark.parametrize("name", ["keys", "start.npy", "federation.toml"])
def test_a_simulation_killed_before_it_began_begins_anew(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed, out = federation(), tmp_path / "run"
    write = {"keys": RunSecrets, "start.npy": np, "federation.toml": Federation}[name]

    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(write, "write" if write is RunSecrets else "save", killed)
        with pytest.raises(KilledError):
            run(agreed, out=out)
    with pytest.raises(CheckpointError, match="holds no simulation"):
        run(agreed, out=out, resume=True)
    found, _ = run(agreed, out=out)
    assert found.summary()["clients"][0]["rounds"] == ROUNDS


@pytest.mark.slow
class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def test_a_model_of_tied_weights_is_saved(tmp_path: Path) -> None:
    reseed(0)
    shared = SharedModel(net := Tied())
    agreed = Federation(
        (Member("a"), Member("b")), (plan(2),), shared.layout.size, shared.architecture, 2
    )
    data = [(randn(40, 4), torch.arange(40) % 4) for _ in range(2)]
    simulate(net, data, agreed, Times([1.0] * 2), out=tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not (tmp_path / "out" / "keys").exists()


def test_the_bits_do_not_depend_on_the_number_of_processes() -> None:
    agreed = federation("asynchronous")
    _, expected = run(agreed)
    assert np.array_equal(run(agreed, workers=2)[1], expected)


def test_every_client_states_what_it_released() -> None:
    # The slow one is cut off for good: it spends less than it planned.
    times = Times([1.0, 1.0, 1.0, 1.2], outages=(Outage(3, 3.0),))
    agreed = federation(absence=5.0)
    found = simulate(model(), shares(), agreed, times, seeds=None)
    rows = found.summary()["clients"]
    assert [row["rounds"] for row in rows[:3]] == [ROUNDS] * 3
    assert 0 < rows[3]["rounds"] < ROUNDS
    whole = ft.account(agreed.plan(0)).guarantee
    assert rows[0]["epsilon"] == whole and 0 < rows[3]["epsilon"] < whole
    assert rows[3]["epsilon"] == ft.account(agreed.plan(3), released=rows[3]["rounds"]).guarantee


def test_a_seeded_simulation_claims_nothing() -> None:
    found, _ = run(federation())
    assert found.summary()["clients"][0]["epsilon"] == "infinity"


def test_a_client_that_never_comes_is_an_error_where_everybody_is_waited_for() -> None:
    times = replace(TIMES, outages=(Outage(3, 0.01),))
    agreed = federation("published")
    with pytest.raises(SimulationError, match="waits"):
        simulate(model(), shares(), agreed, times, seeds=SEEDS)


def test_a_slow_client_sets_the_pace_of_whoever_waits() -> None:
    times = Times(slow_ones(CLIENTS, 1, 10.0))
    agreed = federation("published")
    assert synchronous_seconds(agreed, times) == 10 * ROUNDS
    assert rehearsed(agreed, times).seconds == 10 * ROUNDS
    assert rehearsed(federation(), Times([1.0] * CLIENTS)).seconds == ROUNDS


def test_synchronous_rounds_are_compared_over_the_same_lines() -> None:
    agreed = federation("synchronous")
    times = Times([1.0] * CLIENTS, Way(0.0, 100.0))
    assert synchronous_seconds(agreed, times) == rehearsed(agreed, times).seconds > 2 * ROUNDS


def test_messages_and_bytes_are_counted() -> None:
    agreed = federation("synchronous")
    found = rehearsed(agreed, Times([1.0] * CLIENTS, Way(0.5, 1e6)))
    # Join, and for each round model, update, acknowledgement; the last model once.
    assert found.messages == CLIENTS * (2 + 3 * ROUNDS)
    assert found.sent_bytes > CLIENTS * ROUNDS * 2 * 4 * agreed.parameters
    assert found.seconds > ROUNDS * 2


def test_shares_and_members_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="for 4 clients"):
        simulate(model(), shares()[:3], federation(), TIMES)
    with pytest.raises(ValueError, match="for 2 clients"):
        simulate(model(), shares(), federation(), Times([1.0, 1.0]))
    with pytest.raises(ValueError, match="float32"):
        simulate(copy.deepcopy(model()).double(), shares(), federation(), TIMES)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.repeated)])
def test_processes_of_a_cluster_compute_the_same_bits(fused: bool) -> None:
    agreed = federation("synchronous", local_rounds=1)
    expected = run(agreed, fused=fused)[1]
    assert np.array_equal(run(agreed, workers=2, engine="ray", fused=fused)[1], expected)


def test_another_engine_is_refused() -> None:
    with pytest.raises(HolderError, match="'processes', 'ray'"):
        run(federation(), workers=2, engine="spark")
    with pytest.raises(HolderError, match="'processes', 'ray'"):
        run(federation(), engine="spark")
    with pytest.raises(ValueError, match="workers"):
        run(federation(), engine="ray")


def test_a_folder_that_holds_something_else_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"of a run")
    with pytest.raises(RunFolderExistsError, match="not empty"):
        run(federation(), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == b"of a run"


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_a_regression_has_no_accuracies(rule: str, tmp_path: Path) -> None:
    def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().sum(1)

    records = [(inputs, inputs[:, :2]) for inputs, _ in shares()]
    found = simulate(
        model(), records, federation(rule), TIMES, seeds=SEEDS, loss=squares, test=records[0]
    )
    assert found.accuracies == ()
