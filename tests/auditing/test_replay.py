"""Replay: sound runs of every kind agree with the reference, and planted faults do not.

No threshold and no statistics: what is allowed follows from C and from floating point.
"""

from __future__ import annotations

import ast
import inspect
import math
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from drawn import randint, randn
from forethought import convex
from forethought.auditing import holders, reference, replay
from forethought.auditing.canaries import CanaryRecords
from forethought.auditing.replay import Replay, replaying
from forethought.data.dataset import of_persons
from forethought.gradients import BatchDims
from forethought.gradients.sums import Ones
from forethought.rounds import contributions, private_sum, randomness
from forethought.rounds.randomness import BoundNoise, GaussianNoise
from forethought.training import records as person_records
from forethought.training.run import Loop
from forethought.values.mechanism import Examples, LinearExamples, Local, Persons
from forethought.values.plan import Plan, Preparation, Privacy
from forethought.values.use import Averaging, Optimizer, ReleaseUse
from trials.audits import replaced

N = 90
INPUTS, LABELS = randn(N, 12), randint(0, 4, (N,))
SEEDS = {"seed": 1, "noise_seed": 2}
IMAGES = randn(N, 1, 8, 8)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


def linear() -> nn.Module:
    return nn.Linear(12, 4)


def plan_of(kind: Any, rounds: int = 2, examples: int = N, **options: Any) -> Plan:
    adjacency = options.pop("adjacency", "add-or-remove")
    clipping = "group" if "groups" in options else "example"
    part = ft.Rounds(1.0, rounds, kind, clipping)
    return Plan(ft.Mechanism(part, adjacency=adjacency), examples, 1e-5, **options)


def spoiled() -> torch.Tensor:
    inputs = INPUTS.clone()
    inputs[::5] = math.nan
    inputs[1] = math.inf
    return inputs


def of_people() -> Any:
    return of_persons(INPUTS.numpy(), LABELS.numpy(), [i // 3 for i in range(N)], 4)


@dataclass(frozen=True)
class Job:
    plan: Plan
    model: Callable[[], nn.Module] = mlp
    data: Callable[[], Any] = lambda: (INPUTS, LABELS)
    resumed: bool = False
    options: dict[str, Any] = field(default_factory=dict)


BANDS = ft.Banded((1.0, 0.6, 0.4, 0.2))
CORRELATED = ft.Correlated(1.0, 4, ft.CyclicPoisson(0.5, 4), "example", BANDS)
POISSON = plan_of(ft.Poisson(0.2))
PEOPLE = plan_of(ft.Poisson(0.4), examples=N // 3, clip=ft.Clip(50.0), contribution=Persons(4))
MEANS = Preparation(("means",), features=12, reach=4.0, noise_multiplier=20.0)
RANGES = Preparation(("ranges",), bins=16, numbers=12, ranges_noise=20.0)
QUANTILE = plan_of(ft.Poisson(0.2), 8, clip=ft.Clip(2.0, "quantile", count_noise=5.0))
JOBS = {
    "poisson": Job(POISSON),
    "eight rounds": Job(plan_of(ft.Poisson(0.2), 8)),
    "micro-batches": Job(POISSON, options={"micro_batch": 7}),
    "without replacement": Job(plan_of(ft.WithoutReplacement(20, N), adjacency="zero-out")),
    "shuffled": Job(plan_of(ft.Shuffled(40, N), 6, adjacency="zero-out")),
    "random allocation": Job(plan_of(ft.RandomAllocation(5), 6)),
    "parts in turn": Job(plan_of(ft.CyclicPoisson(0.5, 4), 6)),
    "full batch": Job(plan_of(ft.FullBatch(), 1)),
    "groups": Job(plan_of(ft.Poisson(0.3), groups=4)),
    "quantile": Job(QUANTILE),
    "automatic": Job(plan_of(ft.Poisson(0.2), clip=ft.Clip(0.3, "automatic"))),
    "per layer": Job(plan_of(ft.Poisson(0.2), clip=ft.Clip(1.0, "per-layer"))),
    "a norm that falls": Job(plan_of(ft.Poisson(0.2), 3, clip=ft.Clip(1.0, final=0.5))),
    "short gradients": Job(plan_of(ft.Poisson(0.2), clip=ft.Clip(50.0))),
    "momentum in groups": Job(
        plan_of(ft.Poisson(0.3), groups=3, local=Local("momentum", 0.1, passes=2))
    ),
    "adam in groups": Job(plan_of(ft.Poisson(0.3), groups=3, local=Local("adam", 0.1, step=4))),
    "not a number": Job(POISSON, data=lambda: (spoiled(), LABELS)),
    "copies": Job(
        plan_of(
            ft.Poisson(0.1),
            augmentation=ft.Augmentation(3, ("mirror", "flip", "shift", "crop")),
        ),
        cnn,
        lambda: (IMAGES, LABELS),
    ),
    "persons": Job(PEOPLE, data=of_people),
    "copies in groups": Job(
        plan_of(ft.Poisson(0.1), groups=2, augmentation=ft.Augmentation(2)),
        cnn,
        lambda: (IMAGES, LABELS),
    ),
    "correlated": Job(Plan(ft.Mechanism(CORRELATED), N, 1e-5), resumed=True),
    "resumed": Job(plan_of(ft.Poisson(0.2), 4), resumed=True),
    "preparation": Job(plan_of(ft.Poisson(0.2), preparation=MEANS), linear),
}


def run(job: Job) -> Replay:
    torch.manual_seed(1)
    with replaying() as found, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if job.resumed:
            replay.interrupted(
                lambda resume, progress: ft.train(
                    job.model(),
                    job.data(),
                    job.plan,
                    out=out,
                    checkpoint_every=2,
                    resume=resume,
                    progress=progress,
                    **SEEDS,
                ),
                job.plan.rounds,
            )
        else:
            ft.train(job.model(), job.data(), job.plan, diagnostics=False, **SEEDS, **job.options)
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("name", JOBS)
def test_sound_runs_agree_with_the_reference(name: str) -> None:
    found = run(JOBS[name])
    assert not found.refusals
    assert not found.refuted, [f.reason for f in found.findings() if f.violated]
    assert found.replayed >= JOBS[name].plan.rounds
    assert len(found.findings()) >= 4


def ranges_replayed() -> Replay:
    with replaying() as found:
        ft.prepare(plan_of(ft.Poisson(0.2), preparation=RANGES), (spoiled(), LABELS))
    assert not found.refusals and found.replayed == 1
    return found


def test_released_ranges_are_replayed() -> None:
    """Their vectors are listed by the places of their ones."""
    assert not ranges_replayed().refuted
    once = Ones.summed
    with replaced((Ones, "summed", lambda *words: 3 * once(*words))):
        assert ranges_replayed().refuted


# --- planted faults

Planted = AbstractContextManager[None]
Fault = tuple[str, Callable[[], Planted], str]
_NOISE, _AT = GaussianNoise.add_to, BoundNoise.at
_BIND = BoundNoise.bind


def noise_by(broken: Callable[..., None]) -> Planted:
    return replaced((randomness.GaussianNoise, "add_to", broken))


def last_ten_as_the_first() -> Planted:
    def broken(self: Any, vector: torch.Tensor, std: float, source: Any) -> None:
        before = vector.clone()
        _NOISE(self, vector, std, source)
        vector[-10:] = before[-10:] + (vector[:10] - before[:10])

    return noise_by(broken)


def noise_in_single_precision() -> Planted:
    def broken(self: Any, vector: torch.Tensor, std: float, source: Any) -> None:
        drawn = source.standard_normal(len(vector)).astype(np.float32).astype(np.float64)
        vector += std * torch.from_numpy(drawn)

    return noise_by(broken)


def noise_not_bound_to_the_sum() -> Planted:
    def bind(self: BoundNoise, about: bytes, vector: torch.Tensor) -> bytes:
        return _BIND(self, about, torch.zeros_like(vector))

    return replaced((BoundNoise, "bind", bind))


def noise_not_bound_to_the_weights() -> Planted:
    return replaced((private_sum, "input_hash", lambda model: bytes(32)))


def new_noise_after_a_resume() -> Planted:
    again: set[bytes] = set()

    def at(self: BoundNoise, bound: bytes) -> np.random.Generator:
        new = np.random.default_rng(5) if bound in again else _AT(self, bound)
        again.add(bound)
        return new

    return replaced((BoundNoise, "at", at))


def correlation_forgotten_on_resume() -> Planted:
    restore = Loop.restore

    def restored(self: Loop, saved: Any) -> None:
        restore(self, saved)
        self.private.bound = [bytes(32)] * len(self.private.bound)

    return replaced((Loop, "restore", restored))


def count_noise_times(factor: float) -> Planted:
    right = private_sum.noised_share

    def share(count: float, chosen: Any, count_noise: float, source: Any) -> float:
        return right(count, chosen, factor * count_noise, source)

    return replaced((private_sum, "noised_share", share))


def count_of_one_record_less() -> Planted:
    right = private_sum.centred_count_below
    return replaced(
        (private_sum, "centred_count_below", lambda norms, bound: right(norms, bound) - 1)
    )


_COUNT = randomness.poisson_count


def rate_and_one_more() -> Planted:
    def count(examples: int, rate: float, source: Any) -> int:
        return _COUNT(examples, rate + 1 / examples, source)

    return replaced((randomness, "poisson_count", count))


def poisson_by(broken: Callable[[Any, Any], Any]) -> Planted:
    """Batches as they are and a generator, to batches as they should not be."""
    right = randomness.SAMPLERS[ft.Poisson]

    def sampler(kind: Any, examples: int, stream: Any, first: int) -> Any:
        drawn, source = right(kind, examples, stream, first), np.random.default_rng(7)
        return lambda index: broken(drawn(index), source)

    return mock.patch.dict(randomness.SAMPLERS, {ft.Poisson: sampler})


def half_of_the_records_more_often() -> Planted:
    return poisson_by(
        lambda batch, source: np.union1d(batch, np.flatnonzero(source.random(N // 2) < 0.01))
    )


def batch_without_its_last_record() -> Planted:
    return poisson_by(lambda batch, _: batch[:-1])


def batch_from_another_stream() -> Planted:
    return poisson_by(lambda batch, source: source.choice(N, len(batch), replace=False))


_SUMMED = contributions.clipped_sum


def sums_by(broken: Callable[..., Any]) -> Planted:
    return replaced((contributions, "clipped_sum", broken))


def last_micro_batch_unclipped() -> Planted:
    right = contributions.example_gradients

    def add(addition: Any) -> Any:
        left = len(addition.batch.indices)

        def broken(model: Any, loss: Any, inputs: Any, targets: Any, norm: float, **rest: Any):
            nonlocal left
            left -= len(targets)
            return _SUMMED(model, loss, inputs, targets, norm if left else 1e9, **rest)

        with sums_by(broken):
            return right(addition)

    return mock.patch.dict(contributions.CONTRIBUTORS, {Examples: add})


def boundary_of_micro_batches_twice() -> Planted:
    before: list[Any] = []

    def broken(model: Any, loss: Any, inputs: Any, targets: Any, norm: float, **rest: Any):
        if before:
            inputs = torch.cat([before[0][0], inputs])
            targets = torch.cat([before[0][1], targets])
        before[:] = [(inputs[-1:], targets[-1:])]
        return _SUMMED(model, loss, inputs, targets, norm, **rest)

    return sums_by(broken)


def not_a_number_adds_three() -> Planted:
    def broken(model: Any, loss: Any, inputs: Any, targets: Any, norm: float, **rest: Any):
        sums, norms = _SUMMED(model, loss, inputs, targets, norm, **rest)
        if not torch.isfinite(inputs).all():
            first = next(iter(sums))
            sums[first].view(-1)[0] += 3 * norm
        return sums, norms

    return sums_by(broken)


def two_per_cent_loose() -> Planted:
    def broken(model: Any, loss: Any, inputs: Any, targets: Any, norm: float, **rest: Any):
        return _SUMMED(model, loss, inputs, targets, 1.02 * norm, **rest)

    return sums_by(broken)


def one_class_not_clipped() -> Planted:
    def broken(model: Any, loss: Any, inputs: Any, targets: Any, norm: float, **rest: Any):
        first, second = targets == 0, targets != 0
        sums, norms = _SUMMED(model, loss, inputs[second], targets[second], norm, **rest)
        more, _ = _SUMMED(model, loss, inputs[first], targets[first], 1e9, **rest)
        return {name: value + more[name] for name, value in sums.items()}, norms

    return sums_by(broken)


def copies_clipped_one_by_one() -> Planted:
    def broken(*arguments: Any, copies: int = 1, **options: Any) -> Any:
        if copies > 1:  # in a round, and not where a model is tried
            options["round_size"] *= copies
        return _SUMMED(*arguments, **options)

    return sums_by(broken)


def copies_by_place_in_the_piece() -> Planted:
    right = contributions.augmented

    def broken(inputs: Any, targets: Any, draws: Any, *rest: Any) -> Any:
        return right(inputs, targets, np.arange(len(draws), dtype=np.uint64), *rest)

    return replaced((contributions, "augmented", broken))


def empty_places_as_rows() -> Planted:
    def broken(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        return (values * there).mean(1)

    return replaced((person_records, "_mean_over_rows", broken))


def groups_by_place() -> Planted:
    def broken(size: int, groups: int, _source: Any) -> Any:
        return np.arange(size) % groups

    return replaced((contributions, "assign_groups", broken))


def half_noise_on_a_statistic() -> Planted:
    def broken(self: Any, vector: torch.Tensor, std: float, source: Any) -> None:
        _NOISE(self, vector, std / 2 if len(vector) == 12 else std, source)

    return noise_by(broken)


TWENTY: tuple[Fault, ...] = (
    ("the last ten numbers have the first ten's noise", last_ten_as_the_first, "poisson"),
    ("noise in single precision", noise_in_single_precision, "poisson"),
    ("noise that is not bound to its sum", noise_not_bound_to_the_sum, "poisson"),
    ("noise that is not bound to the weights", noise_not_bound_to_the_weights, "poisson"),
    ("new noise after a resume", new_noise_after_a_resume, "resumed"),
    ("correlated noise that forgets on resume", correlation_forgotten_on_resume, "correlated"),
    ("noise on the count × 0.8", lambda: count_noise_times(0.8), "quantile"),
    ("a count of one record less", count_of_one_record_less, "quantile"),
    ("rate + 1/N", rate_and_one_more, "eight rounds"),
    ("half of the records 5 % more often", half_of_the_records_more_often, "eight rounds"),
    ("a batch without its last record", batch_without_its_last_record, "poisson"),
    ("batches from another stream", batch_from_another_stream, "poisson"),
    ("the last micro-batch unclipped", last_micro_batch_unclipped, "micro-batches"),
    ("micro-batches that overlap", boundary_of_micro_batches_twice, "micro-batches"),
    ("what is no number adds 3 C", not_a_number_adds_three, "not a number"),
    ("clipping 2 % loose", two_per_cent_loose, "poisson"),
    ("one class is not clipped", one_class_not_clipped, "poisson"),
    ("copies clipped one by one", copies_clipped_one_by_one, "copies"),
    ("copies by their place", copies_by_place_in_the_piece, "copies"),
    ("empty places count as rows", empty_places_as_rows, "persons"),
    ("groups by place", groups_by_place, "groups"),
    ("half of the noise on a statistic", half_noise_on_a_statistic, "preparation"),
)


@pytest.mark.thinned
@pytest.mark.parametrize("fault", TWENTY, ids=lambda fault: fault[0])
def test_a_planted_fault_is_refuted(fault: Fault) -> None:
    _, plant, name = fault
    with plant():
        found = run(JOBS[name])
    assert found.refuted
    reasons = [finding.reason for finding in found.findings() if finding.violated]
    assert all(reason.endswith(".") for reason in reasons)


def test_there_are_twenty_faults_and_the_code_is_whole_after_them() -> None:
    assert len(TWENTY) >= 20
    for _, plant, _ in TWENTY:
        with plant():
            pass
    assert not run(JOBS["poisson"]).refuted


def test_the_reference_shares_no_code_with_what_trains() -> None:
    """Of the library it imports plain values only."""
    tree = ast.parse(inspect.getsource(reference))
    modules = {
        f"{node.module}.{name.name}" if node.module == "forethought.values" else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forethought")
        for name in node.names
    }
    assert modules == {f"forethought.values.{name}" for name in ("mechanism", "plan")}


def test_a_replayed_run_is_the_run_without() -> None:
    job = JOBS["micro-batches"]

    def weights() -> list[torch.Tensor]:
        torch.manual_seed(3)
        trained = ft.train(job.model(), job.data(), job.plan, seed=1, noise_seed=2)
        return [torch.rand(1), *(p.detach() for p in trained.model.parameters())]

    plainly = weights()
    with replaying([1]) as found:
        replayed = weights()
    assert found.replayed == 1
    assert all(torch.equal(one, other) for one, other in zip(plainly, replayed, strict=True))


def test_what_is_not_replayed_is_refused_in_words() -> None:
    model = nn.Sequential(nn.Linear(12, 4), nn.Dropout(0.5))
    with replaying() as found:
        ft.train(model, (INPUTS, LABELS), POISSON)
        ft.train(mlp(), (INPUTS, LABELS), POISSON.with_(noise="grid"))
        ft.train(mlp().bfloat16(), (INPUTS.bfloat16(), LABELS), POISSON)
    assert found.replayed == 0 and not found.refuted
    random, grid, precision = found.refusals
    assert "model.eval()" in random and "grid" in grid and "float32" in precision


def test_a_model_that_cannot_be_computed_again_stops_no_run() -> None:
    class Alone(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("one of a kind")

    with replaying() as found:
        trained = ft.train(Alone(12, 4), (INPUTS, LABELS), POISSON)
    assert trained.statement.epsilon.upper > 0
    assert found.replayed == 0 and any("cannot be copied" in text for text in found.refusals)


def test_a_kink_within_rounding_is_no_fault() -> None:
    """A bias that puts every record on the kink of an L1 loss moves signs by a last bit."""
    inputs = INPUTS.clone()
    inputs[:, 1:] = inputs[:, :1] * torch.tensor([0.1 * (i + 1) for i in range(11)])
    model = nn.Linear(12, 1)
    with torch.no_grad():
        targets = model(inputs)
    with replaying([0]) as found:
        ft.train(
            model,
            (inputs, targets),
            plan_of(ft.Poisson(0.3), 1, clip=ft.Clip(0.1)),
            loss=lambda outputs, wanted: (outputs - wanted).abs().sum(1),
        )
    assert found.replayed == 1
    assert not found.refuted, [f.reason for f in found.findings() if f.violated]


def test_a_sum_may_be_off_by_half_the_charge_along_every_way() -> None:
    size, count, norm = 100_000, 6, 2.0
    signs = np.random.default_rng(3).integers(2, size=(count, size)) * 2 - 1
    rows = signs * norm / math.sqrt(size)
    middle, half = rows.sum(0), reference.CHARGE / 2 * norm
    found = reference.ReferenceSum(
        middle, np.zeros(size), np.zeros(size), rows, [], np.zeros(count)
    )
    some = np.zeros(size)
    for share, within in ((0.99, True), (1.01, False)):
        some[7] = share * half
        assert (replay.apart(middle + some, found, norm) <= 1) is within
        assert (replay.apart(middle - some, found, norm) <= 1) is within
    # A record that is missing, or counts twice, is less than that in every coordinate.
    assert np.abs(rows).max() < half
    assert replay.apart(middle - rows[2], found, norm) > 1
    assert replay.apart(middle + rows[2], found, norm) > 1
    # Norms that are taken too long shorten what is clipped, and lengthen nothing.
    assert replay.apart(0.995 * middle, found, norm) > 1
    found.loose[:], found.shorter = reference.LOOSE, reference.LOOSE * np.abs(rows).sum(0)
    assert replay.apart(0.995 * middle, found, norm) <= 1
    assert replay.apart(1.005 * middle, found, norm) > 1
    assert replay.apart(middle * math.nan, found, norm) == math.inf


def test_a_batch_that_is_not_the_laws_is_named() -> None:
    with rate_and_one_more():
        found = run(JOBS["eight rounds"])
    (batch,) = (finding for finding in found.findings() if finding.name == "batch")
    assert batch.violated and "too many" in batch.reason


class TimeMajor(nn.Module):
    """Takes (time, batch, features); gives (time, batch, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNN(3, 5), nn.Linear(5, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert inputs.shape[0] == 4, "time comes first"
        hidden: torch.Tensor = self.head(self.cell(inputs)[0])
        return hidden


def last_step(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs[:, -1], targets, reduction="none")


def declared_dims() -> None:
    inputs, dims = INPUTS.view(N, 4, 3), BatchDims(inputs=1, outputs=1)
    options: dict[str, Any] = {"loss": last_step, "batch_dims": dims, "diagnostics": False}
    ft.train(TimeMajor(), (inputs, LABELS), POISSON, **SEEDS, **options)


def in_phases() -> None:
    parts = [ft.Rounds(sigma, 2, ft.Poisson(0.2)) for sigma in (2.0, 1.0)]
    held = (randn(30, 12), randint(0, 4, (30,)))
    plan = Plan(ft.Mechanism(*parts), N, 1e-5)
    ft.train_until(mlp(), (INPUTS, LABELS), plan, accuracy=1.0, test=held, **SEEDS)


def linear_without_tuning() -> None:
    part = ft.Rounds(1.0, 3, ft.FullBatch())
    mechanism = ft.Mechanism(part, adjacency="replace-one")
    privacy = Privacy(mechanism, N, 1e-5, ft.Clip(0.8), LinearExamples())
    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.1, intercept=0.5)
    plan = convex.DescentPlan(problem, privacy, 12, [0.5] * 3)
    convex.descend(plan, INPUTS.double().numpy(), (LABELS > 1).long().numpy())


def linear_records_loose() -> Planted:
    right = contributions.linear_sums

    def broken(model: Any, records: Any, indices: Any, norm: float, *rest: Any) -> Any:
        return right(model, records, indices, 1.05 * norm, *rest)

    return replaced((contributions, "linear_sums", broken))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "rounds", "fault"),
    [
        (declared_dims, 2, two_per_cent_loose),
        (in_phases, 4, last_ten_as_the_first),
        (linear_without_tuning, 3, linear_records_loose),
    ],
    ids=["batch_dims", "phases", "linear"],
)
def test_other_ways_to_train_are_replayed(
    train: Callable[[], None], rounds: int, fault: Callable[[], Planted]
) -> None:
    with replaying() as found:
        train()
    assert found.replayed == rounds and not found.refusals
    assert not found.refuted, [f.reason for f in found.findings() if f.violated]
    with fault(), replaying() as found:
        train()
    assert found.refuted


@pytest.mark.parametrize("listen", [holders.received, holders.recovered])
def test_clients_and_workers_are_replayed(listen: Callable[..., Any]) -> None:
    plain = ReleaseUse(Optimizer("sgd", 1.0, ()), averaging=Averaging("none"))
    plan = plan_of(ft.Poisson(0.3), 3, examples=40).with_(use=plain)
    held = [CanaryRecords(np.arange(40), np.arange(40), 0.1, 41)] * 2
    with replaying() as found:
        listen(plan, held)
    assert found.replayed == 2 * plan.rounds and not found.refuted and not found.refusals
    with last_ten_as_the_first(), replaying() as found:
        listen(plan, held)
    assert found.refuted


def test_a_loop_of_ones_own_is_replayed() -> None:
    with replaying() as found:
        model, criterion = mlp(), nn.CrossEntropyLoss(reduction="none")
        loader, optimizer = ft.private(model, None, (INPUTS, LABELS), POISSON)
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            if found.replayed == POISSON.rounds:
                break
    assert found.replayed == POISSON.rounds
    assert not found.refuted and not found.refusals


def test_a_round_to_which_nothing_was_added_is_compared_with_its_batch() -> None:
    """A fault: batches are empty, so that nothing is ever added."""
    secrets = randomness.Secrets.draw(randomness.Seeds())
    weights = {"a": torch.zeros(3)}
    with (
        mock.patch.object(randomness, "poisson_count", lambda *_: 0),
        replaying() as found,
    ):
        plan = Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.Poisson(0.5))), 60, 1e-5)
        loss = contributions.cross_entropy
        private_sum.PrivateRounds(plan.privacy, weights, loss, secrets).open(0).release()
    assert [one.name for one in found.findings() if one.violated][:1] == ["batch"]
