"""Two processes train on shards of a model, and it is the mechanism of whole models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.parametrizations import weight_norm

from forethought.gradients import clipped_sum
from forethought.gradients.boundary import shards_of
from forethought.gradients.sharded import take_shards, whole_state
from forethought.rounds.contributions import DealtBatch, cross_entropy
from forethought.rounds.private_sum import PrivateRounds, Team, share_of
from forethought.rounds.randomness import BoundNoise, Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.training.own_loop import private
from forethought.training.run import train
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Averaging, GradientFilter, Optimizer

SCRIPT = Path(__file__).with_name("sharded_processes.py")
TRANSFORMERS = bool(find_spec("transformers") and find_spec("peft"))
pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(),
    reason="needs torch.distributed with gloo",
)


def launch(cases: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(SCRIPT), cases, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def two(cases: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Case → what each of two processes found."""
    done = launch(cases, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    names = [case.split(":")[1] if ":" in case else case for case in cases.split(",")]
    return {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]
        for name in names
    }


class Found(NamedTuple):
    """The folder of two processes, and what they found in it, case by case."""

    folder: Path
    cases: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All that can share two processes; most of their time they load torch."""
    folder = tmp_path_factory.mktemp("shards")
    cases = "network,pieces,again,one,apart,halves,bfloat16,adam,few,quantile,noise"
    if TRANSFORMERS:
        cases += ",gpt2,lora"
    return Found(folder, two(f"{cases},run:straight,run:stopped:stop=3", folder))


@pytest.mark.slow
def test_sharded_sums_are_those_of_one_example_after_the_other(found: Found) -> None:
    for rank in range(2):
        for case in ("network", "pieces", "again"):
            one = found.cases[case][rank]
            assert one["off"] < 1e-5
            assert one["norms off"] < 1e-5
            assert not one["gathered"]
        # Norms and sums are in float32 at least, whatever the weights are in.
        rounded = found.cases["bfloat16"][rank]
        assert rounded["kind"] == "torch.float32"
        assert rounded["off"] < 0.03
        assert rounded["norms off"] < 0.03
        assert 0.98 < found.cases["one"][rank]["length"] <= 1
        assert found.cases["one"][rank]["norms"] == 1 - rank
        # No process's examples choose which weights the other's are computed with.
        assert "take different ways" in found.cases["apart"][rank]["refused"]
        # The same checks see a process that clips by the norm of its own shard.
        assert found.cases["halves"][rank]["off"] > 0.1
        assert found.cases["halves"][rank]["norms off"] > 0.1
        assert found.cases["halves"][rank]["length"] > 1.3


@pytest.mark.slow
def test_sharded_transformers_are_those_of_one_example_after_the_other(found: Found) -> None:
    if not TRANSFORMERS:
        pytest.skip("needs transformers and peft")
    for case in ("gpt2", "lora"):
        for one in found.cases[case]:
            assert one["off"] < 1e-4
            assert one["norms off"] < 1e-4
            assert not one["gathered"]


@pytest.mark.slow
def test_runs_on_shards_are_those_of_whole_models(found: Found) -> None:
    for rank in range(2):
        for case in ("adam", "few"):
            one = found.cases[case][rank]
            assert one["off"] < 1e-5
            assert one["losses off"] < 1e-5
            assert one["statement"]
            assert one["rows"][0] == one["rows"][1]
    # All processes move the clipping norm alike.
    first, second = (one["norms"] for one in found.cases["quantile"])
    assert first == second
    assert len(set(first)) > 1
    # Noise: drawn once (of the planned variance), another on every shard and in every round.
    shards = [np.array(one["noise"]) for one in found.cases["noise"]]
    both = np.concatenate([shard.ravel() for shard in shards])
    assert abs(both.std() - 1) < 5 / np.sqrt(2 * both.size)
    assert abs(both.mean()) < 5 / np.sqrt(both.size)
    least = min(shard.shape[1] for shard in shards)
    for one, other in (
        (shards[0][:, :least], shards[1][:, :least]),
        (shards[0][1:], shards[0][:-1]),
        (shards[1][1:], shards[1][:-1]),
    ):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(one.size)


@pytest.mark.slow
def test_a_run_on_shards_goes_on_bit_for_bit(found: Found) -> None:
    assert [one["interrupted"] for one in found.cases["stopped"]] == [3, 3]
    died = launch("run:killed:kill=120", found.folder)
    assert died.returncode != 0
    assert "another process of this run has ended" in died.stderr
    again = two("run:stopped:resume,run:killed:resume", found.folder)
    assert again["stopped"] == again["killed"] == found.cases["straight"]


@pytest.mark.slow
def test_a_loop_on_shards_is_that_of_a_whole_model(tmp_path: Path) -> None:
    spec = spec_from_file_location("sharded_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    whole = script.loop(0)
    found = two("loop,loop halves,bits,unseeded,unlike", tmp_path)

    def off(case: str) -> float:
        return max(
            float(np.abs(np.subtract(one[name], whole[name])).max())
            for one in found[case]
            for name in whole
        )

    assert off("loop") < 1e-5
    # The same comparison sees a process that clips by the norm of its own shard.
    assert off("loop halves") > 1e-3
    first, second = found["bits"]
    assert first == second
    assert len(set(first["digests"])) == 1
    assert first["saved"]
    # Nobody chose the secrets: all have those of the first process.
    assert found["unseeded"][0] == found["unseeded"][1]
    for told in found["unlike"]:
        assert "fully_shard has not cut" in told["whole"]
        assert "another loss" in told["loss"]
        assert "number of rounds" in told["end"]
        assert "changed since" in told["weight"]


@pytest.mark.slow
def test_a_loop_ends_where_another_process_is_killed(tmp_path: Path) -> None:
    died = launch("dies", tmp_path)
    assert died.returncode != 0
    assert "another process of this run has ended" in died.stderr


@pytest.mark.slow
def test_transformers_trainer_takes_shards(tmp_path: Path) -> None:
    if not find_spec("transformers"):
        pytest.skip("needs transformers")
    for one in two("trainer", tmp_path)["trainer"]:
        assert one["digests"][0] == one["digests"][1]
        assert one["moved"]
        assert (one["rounds"], one["evaluated"], one["told"]) == (6, 3, [])
        assert "save_strategy" in one["refused"]


@pytest.fixture
def by_itself() -> Iterator[None]:
    """A process group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 6, generator=generator), torch.arange(8) % 3


def plan(**options: Any) -> Plan:
    mechanism = Mechanism(Rounds(1.0, 3, Poisson(0.5)), adjacency="zero-out")
    return Plan(mechanism, 8, 1e-5, **options)


def test_a_single_process_takes_shards(by_itself: None) -> None:
    model, whole = network(), network()
    fully_shard(model[0])
    fully_shard(model)
    assert take_shards(model) is take_shards(model) is shards_of(model)
    wanted, norms = clipped_sum(whole, cross_entropy, *data(), 0.1)
    found, same = clipped_sum(model, cross_entropy, *data(), 0.1)
    assert torch.allclose(norms, same, rtol=1e-6)
    for name, part in wanted.items():
        assert torch.allclose(found[name], part, atol=1e-7)
    before = whole_state(model)["0.weight"].clone()
    train(model, data(), plan(), seed=1, noise_seed=2)
    assert not torch.equal(before, whole_state(model)["0.weight"])


class Gone(nn.Tanh):
    """Fails as a collective does whose other process has ended."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:2")


def test_a_process_that_is_gone_is_not_taken_for_a_fault_of_the_model(by_itself: None) -> None:
    model = network()
    model[1] = Gone()
    fully_shard(model)
    take_shards(model)
    with pytest.raises(RuntimeError, match="Connection closed"):
        clipped_sum(model, cross_entropy, *data(), 0.1)


@pytest.mark.parametrize("own", [False, True])
def test_a_loop_of_a_single_process_takes_shards(by_itself: None, own: bool) -> None:
    """The same bits as forethought.train, though each round leaves the outermost module whole."""
    trained, looped = network(), network()
    for model in (trained, looped):
        fully_shard(model[0])
        fully_shard(model)
    chosen = plan(optimizer=Optimizer("sgd", 0.1, {}), averaging=Averaging("none"))
    train(trained, data(), chosen, seed=1, noise_seed=2)
    before = network().state_dict()
    sgd = torch.optim.SGD(looped.parameters(), 0.1) if own else None
    loader, optimizer = private(looped, sgd, data(), chosen, seed=1, noise_seed=2)
    for inputs, targets in (batch for _ in range(loader.epochs) for batch in loader):
        nn.functional.cross_entropy(looped(inputs), targets).backward()
        optimizer.step()
        looped(data()[0])
    optimizer.finish()
    for name, value in whole_state(trained).items():
        assert torch.equal(value, whole_state(looped)[name])
        assert not torch.equal(value, before[name])


class Beside(Team):
    """A process that hears of another one's shard."""

    def __init__(self, other: bytes, rank: int = 0) -> None:
        super().__init__(rank)
        object.__setattr__(self, "other", other)

    def joined(self, found: bytes) -> bytes:
        return found + self.other  # type: ignore[attr-defined]


def test_noise_belongs_to_all_shards_and_to_one(by_itself: None) -> None:
    """The same shard has other noise beside another sum, and in another place."""
    model = network()
    fully_shard(model)
    shards = take_shards(model)
    assert shards is not None
    found = []
    for team in (Beside(b"a" * 32), Beside(b"a" * 32), Beside(b"b" * 32), Beside(b"a" * 32, 1)):
        secrets = Secrets.draw(Seeds(1, 2))
        own = plan().privacy, shards.local, cross_entropy, secrets
        with PrivateRounds(*own, team=team, shards=shards) as rounds:
            total = rounds.open(0)
            total.add(model, TensorRecords(*data()))
            found.append(total.release().vector.tolist())
    assert found[0] == found[1]
    assert len({tuple(one) for one in found}) == 3


def test_what_needs_whole_parameters_is_refused(by_itself: None) -> None:
    derived = network()
    weight_norm(derived[0])
    model = network()
    partly = network()
    fully_shard(partly[0])
    for one in (derived, model):
        fully_shard(one)
    with pytest.raises(ValueError, match="computed from sharded"):
        train(derived, data(), plan())
    with pytest.raises(ValueError, match="is not sharded"):
        train(partly, data(), plan())
    with pytest.raises(ValueError, match="whole parameters"):
        train(model, data(), plan(optimizer=Optimizer("adafactor", 0.1, {})))
    with pytest.raises(ValueError, match="whole model"):
        train(model, data(), plan(noise="grid"))
    with pytest.raises(ValueError, match="whole parameters"):
        private(model, torch.optim.Adafactor(model.parameters()), data(), plan())
    with pytest.raises(ValueError, match="gradient_filter"):
        private(model, None, data(), plan(gradient_filter=GradientFilter("low-pass", 0.5)))


def test_shards_offloaded_from_where_they_are_computed_are_refused(
    by_itself: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    fully_shard(model)
    monkeypatch.setattr(DeviceMesh, "device_type", "cuda")
    with pytest.raises(ValueError, match="is offloaded"):
        take_shards(model)


def test_lanes_that_part_are_refused(by_itself: None) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x if x.sum() > 0 else -x)

    model = Branches()
    fully_shard(model)
    take_shards(model)
    with pytest.raises(ValueError, match="side by side"):
        clipped_sum(model, cross_entropy, *data(), 0.1)


def test_writing_into_gathered_weights_is_refused(by_itself: None) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.inner.weight.mul_(0.5)
            return self.inner(x)

    model = Writes()
    fully_shard(model)
    take_shards(model)
    with pytest.raises(ValueError, match="parameter is written"):
        clipped_sum(model, cross_entropy, *data(), 0.1)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("drawn", [0, 1, 5, 6])
def test_even_shares_hold_every_record_once(size: int, drawn: int) -> None:
    indices = np.arange(10, 10 + drawn)
    batch = DealtBatch(indices, None, drawn)
    shares = [share_of(batch, Team(rank, size), even=True) for rank in range(size)]
    assert len({len(share.indices) for share in shares}) == 1
    counted = np.concatenate([share.indices[: share.count] for share in shares])
    assert sorted(counted) == sorted(indices)
    assert {share.round_size for share in shares} == {drawn}


def test_each_shard_has_noise_of_its_own() -> None:
    vector = torch.zeros(3, dtype=torch.float64)
    draws = []
    for shard in (None, 0, 1):
        noise = BoundNoise(bytes(32), shard=shard)
        draws.append(noise.at(noise.bind(b"round", vector)).normal(size=4))
    assert len({tuple(one) for one in draws}) == 3
