"""A cohort as one private sum: the same mean, the same noise in law, and no word of any client."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import forethought as ft
from drawn import randn, reseed, stream
from forethought.federated.federation import (
    Federation,
    FederationError,
    Member,
    Robust,
    ServerOptimizer,
)
from forethought.holders.fused import Cohort, cohorts, require_fusible, simulated_times
from forethought.holders.simulate import rehearsed, simulate
from forethought.holders.simulator import Outage, Times, Way, Work
from forethought.holders.trainer import Holder, SharedModel
from forethought.rounds.contributions import default_loss
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.training.folder import CheckpointError, RunFolderExistsError
from forethought.values.mechanism import Augmentation, Groups
from forethought.values.plan import Clip

SIZES = (7, 30, 12, 30, 9)
ROUNDS = 6


def plan(examples: int, sigma: float = 0.0, **changes: Any) -> ft.Plan:
    # Batches that a client draws by itself here as well, so that both ways have the same.
    sampling = ft.WithoutReplacement(max(2, examples // 3), examples)
    parts = changes.pop("parts", (ft.Rounds(sigma, ROUNDS, sampling),))
    return ft.Plan(
        ft.Mechanism(*parts),
        examples,
        1e-4,
        **{"optimizer": ft.Optimizer("sgd", 0.5, ()), **changes},
    )


def model(width: int = 4) -> nn.Module:
    reseed(2)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 2))


def shares() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = stream(5)
    inputs = [randn(size, 6, generator=generator) for size in SIZES]
    return [(part, (part.sum(1) > 0).long()) for part in inputs]


def federation(width: int = 4, noise: float = 0.0, **changes: Any) -> Federation:
    shared = SharedModel(model(width))
    own = changes.pop("own", {})
    known: dict[str, Any] = {
        "members": tuple(Member(f"c{k}", k, float(size)) for k, size in enumerate(SIZES)),
        "plans": tuple(plan(size, noise, **own) for size in SIZES),
        "parameters": shared.layout.size,
        "architecture": shared.architecture,
        "rounds": ROUNDS,
    }
    return Federation(**{**known, **changes})


TIMES = Times([1.0, 2.0, 1.5, 1.0, 3.0])
SEEDS = Seeds(1, 2)


def run(agreed: Federation, **changes: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    trained = model()
    options = {"seeds": SEEDS, "fused": True, **changes}
    found = simulate(trained, shares(), agreed, TIMES, **options)
    return found, SharedModel(trained).read()


def unlike() -> tuple[ft.Plan, ...]:
    """Plans of clients that have neither rate, noise, step size nor pull in common."""
    return tuple(
        plan(
            size,
            parts=(
                ft.Rounds(0.0, 2, ft.WithoutReplacement(2 + k, size)),
                ft.Rounds(0.0, ROUNDS - 2, ft.FullBatch()),
            ),
            optimizer=ft.Optimizer("sgd", 0.1 + 0.2 * k, (("weight_decay", 0.1 * k),)),
            schedule=ft.Schedule("inverse", 0.2),
        )
        for k, size in enumerate(SIZES)
    )


EQUAL = tuple(Member(f"c{k}", k) for k in range(len(SIZES)))


@pytest.mark.thinned
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"exchanged": "gradients"},
        {"members": EQUAL},
        {"plans": unlike()},
        {"plans": unlike(), "exchanged": "gradients", "members": EQUAL},
        {"plans": unlike(), "cohort": 3},
        {"cohort": 2, "exchanged": "gradients", "own": {"schedule": ft.Schedule("inverse", 0.3)}},
        {"server": ServerOptimizer("adam", rate=0.1), "averaging": ft.Averaging("exponential")},
        {"own": {"clip": Clip(0.5, final=0.1)}, "exchanged": "gradients"},
        {"own": {"optimizer": ft.Optimizer("sgd", 0.5)}, "exchanged": "gradients"},
        {"own": {"clip": Clip(0.3, "automatic")}},
        {"own": {"parts": (ft.Rounds(0.0, ROUNDS, ft.Poisson(1.0)),)}},
    ],
)
def test_without_noise_it_is_the_weighted_mean_of_its_clients(changes: dict[str, Any]) -> None:
    agreed = federation(**changes)
    found = []
    for fused in (True, False):
        trained = model()
        done = simulate(trained, shares(), agreed, TIMES, seeds=SEEDS, fused=fused)
        found.append((SharedModel(trained).read(), done.simulated))
    (together, ours), (apart, theirs) = found
    start = SharedModel(model()).read()
    assert np.abs(apart - start).max() > 1e-2
    # A few roundings of float32 a round; Adam divides by small numbers.
    np.testing.assert_allclose(together, apart, rtol=0, atol=2e-5 if "server" in changes else 2e-6)
    assert np.array_equal(ours.updates, theirs.updates)
    assert np.array_equal(ours.rounds, theirs.rounds)
    assert ours.version == theirs.version == ROUNDS


def cohort(agreed: Federation, width: int, seeds: Seeds, first: float = 0.0) -> Cohort:
    shared = SharedModel(model(width))
    secrets = Secrets.draw(seeds)
    data = shares()
    data[0][0].add_(first)
    loss = default_loss(data[0][1])
    holders = [
        Holder(agreed.plan(k), TensorRecords(*one), loss, secrets.of(k))
        for k, one in enumerate(data)
    ]
    return Cohort(shared, holders, agreed, cohorts(agreed), secrets)


def changed(agreed: Federation, width: int, version: int, **options: Any) -> np.ndarray[Any, Any]:
    from forethought.exchange.messages import Model

    own = cohort(agreed, width, SEEDS, **options)
    weights = SharedModel(model(width)).read()
    own.begin(Work(0, version, version, Model(version, version, weights)))
    return own.result(0).vector.astype(np.float64)


def sampled(**changes: Any) -> Federation:
    """Poisson batches: two clients of one rate and one step, the others of their own."""
    rates = (0.3, 0.2, 0.3, 0.2, 0.6)
    plans = tuple(
        plan(size, parts=(ft.Rounds(0.0, LONG, ft.Poisson(rate)),), clip=Clip(50.0))
        for size, rate in zip(SIZES, rates, strict=True)
    )
    return federation(plans=plans, rounds=LONG, **changes)


LONG = 3000


@pytest.mark.parametrize("size", [None, 3])
def test_poisson_batches_hold_every_record_by_its_own_rate_and_independently(
    size: int | None,
) -> None:
    # Pearson's chi square of all records' counts, and the normal one of the covariance between two
    # clients' batches: both beyond the bound once in a million.
    own = cohort(sampled(cohort=size), 4, Seeds(3, 3))
    asked, starts = cohorts(sampled(cohort=size)), np.cumsum([0, *SIZES])
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    rates = np.array([0.3, 0.2, 0.3, 0.2, 0.6])[owner]
    counts, rounds = np.zeros(len(owner)), np.zeros(len(owner))
    batches = np.zeros((LONG, len(SIZES)))
    for version in range(LONG):
        together = np.concatenate([batch for _, batch in own.drawn(version, own.parts(version))])
        assert len(set(together)) == len(together)
        assert np.isin(owner[together], asked[version][0]).all()
        counts[together] += 1
        rounds[np.isin(owner, asked[version][0])] += 1
        batches[version] = np.bincount(owner[together], minlength=len(SIZES))
    square = np.sum((counts - rounds * rates) ** 2 / (rounds * rates * (1 - rates)))
    assert 1e-6 / 2 < stats.chi2.sf(square, len(owner)) < 1 - 1e-6 / 2
    if size is None:
        spread = batches - batches.mean(0)
        for one, other in [(0, 2), (1, 3), (0, 1), (2, 4)]:
            product = spread[:, one] * spread[:, other]
            assert abs(product.mean()) < 5 * product.std() / math.sqrt(LONG)
        variances = np.array(SIZES) * rates[starts[:-1]] * (1 - rates[starts[:-1]])
        assert np.all(np.abs(batches.var(0) / variances - 1) < 5 * math.sqrt(3 / LONG))


def test_the_sum_is_that_of_one_backward_pass_an_example() -> None:
    agreed = sampled(members=EQUAL)
    own, net = cohort(agreed, 4, Seeds(3, 3)), model()
    weights = SharedModel(net).read()
    for version in range(3):
        parts = own.parts(version)
        inputs, targets = (torch.cat(column) for column in zip(*shares(), strict=True))
        expected = np.zeros(len(weights))
        for factor, batch in own.drawn(version, parts):
            for record in batch:
                loss = nn.functional.cross_entropy(net(inputs[record][None]), targets[[record]])
                gradients = torch.autograd.grad(loss, list(net.parameters()))
                flat = torch.cat([part.reshape(-1) for part in gradients]).double()
                expected += factor * flat.numpy()  # far below the norm
        found = own.summed(version, weights, parts).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        # Each member counts by its share, its step and its expected batch.
        factors = {k: one.factor for one in parts for k in one.clients.tolist()}
        for client, size in enumerate(SIZES):
            rate = (0.3, 0.2, 0.3, 0.2, 0.6)[client]
            assert factors[client] == pytest.approx(0.2 * 0.5 / (rate * size))


WIDE = 4_000


def noise(agreed: Federation, width: int, version: int, **options: Any) -> np.ndarray[Any, Any]:
    """A round's noise alone."""
    quiet = replace(agreed, plans=tuple(plan(one.examples) for one in agreed.plans))
    noisy = changed(agreed, width, version, **options)
    return noisy - changed(quiet, width, version, **options)


@pytest.mark.slow
@pytest.mark.parametrize("exchanged", ["weights", "gradients"])
def test_its_noise_has_the_covariance_of_all_clients_noises_together(exchanged: str) -> None:
    # Clients of other noise, weight and divisor each, of whom each has a seventh of the variance or
    # more. The ratio of variances of n numbers is a chi square over n: beyond 1 ± 5·√(2/n) once in
    # a million; so are correlations beyond 5/√n.
    weights = [size * (1.3 - 0.15 * k) for k, size in enumerate(SIZES)]
    plans = tuple(plan(size, 20.0 + 4 * k) for k, size in enumerate(SIZES))
    members = tuple(Member(f"c{k}", k, weight) for k, weight in enumerate(weights))
    agreed = federation(WIDE, plans=plans, members=members, exchanged=exchanged)
    drawn = [noise(agreed, WIDE, version) for version in range(3)]
    deviations = [
        0.5 * weights[k] / sum(weights) * (20.0 + 4 * k) / max(2, size // 3)
        for k, size in enumerate(SIZES)
    ]
    variances = [deviation**2 for deviation in deviations]
    assert min(variances) > sum(variances) / 7
    # The oracle: every client's own noise, drawn by itself.
    generator = stream(8)
    apart = sum(each * generator.standard_normal(10**5) for each in deviations)
    joined = np.concatenate(drawn)
    n = len(joined)
    assert abs(np.mean(joined**2) / math.fsum(variances) - 1) < 5 * math.sqrt(2 / n)
    ratio = np.mean(joined**2) / np.mean(apart**2)
    assert abs(ratio - 1) < 5 * math.sqrt(2 / n + 2 / len(apart))
    deviation = math.sqrt(math.fsum(variances))
    assert abs(joined.mean()) < 5 * deviation / math.sqrt(n)
    for one, other in [(drawn[0], drawn[1]), (drawn[1], drawn[2]), (joined[1:], joined[:-1])]:
        assert abs(np.mean(one * other)) < 5 * deviation**2 / math.sqrt(len(one))


def test_another_sum_has_another_noise_and_the_same_sum_the_same() -> None:
    agreed = federation(400, noise=5.0)
    found = [noise(agreed, 400, 0, first=first) for first in (0.0, 0.0, 1e-3)]
    assert np.array_equal(found[0], found[1])
    assert abs(np.corrcoef(found[0], found[2])[0, 1]) < 6 / math.sqrt(len(found[0]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rule": "asynchronous", "exchanged": "gradients"}, "one by one"),
        ({"rule": "published", "exchanged": "gradients"}, "one by one"),
        ({"local_rounds": 2}, "local_rounds"),
        ({"robust": Robust("median")}, "single updates"),
        ({"robust": Robust("trimmed")}, "single updates"),
        ({"robust": Robust("norm-bound", bound=1.0)}, "single updates"),
        ({"secure": {"clients": 5, "dropouts": 1}, "exchanged": "gradients"}, "secure"),
        ({"deadline": 9.0}, "drop deadline"),
        ({"rounds": ROUNDS + 1}, "leave earlier"),
        ({"own": {"clip": Clip(1.0, "quantile", count_noise=9.0)}}, "quantile"),
        ({"own": {"noise": "grid"}}, "grid"),
        ({"own": {"optimizer": ft.Optimizer("sgd", 0.5)}}, "without momentum"),
        ({"own": {"optimizer": ft.Optimizer("adam", 0.5, ())}}, "linear"),
        ({"own": {"augmentation": Augmentation(2)}}, "altered copies"),
        ({"own": {"clip": Clip(0.5, final=0.1)}, "cohort": 3}, "keep the norm"),
        ({"plans": tuple(plan(s, clip=Clip(1.0 + s)) for s in SIZES)}, "one norm"),
    ],
)
def test_another_law_is_refused_with_what_to_set(changes: dict[str, Any], words: str) -> None:
    agreed = federation(noise=1.0, **changes)
    with pytest.raises(FederationError, match=words) as refused:
        simulate(model(), shares(), agreed, TIMES, fused=True)
    assert "fused = true" in str(refused.value) and "\n" not in str(refused.value)


def test_a_loss_and_a_progress_are_functions() -> None:
    for name in ("loss", "progress"):
        with pytest.raises(TypeError, match=f"{name} must be"):
            simulate(model(), shares(), federation(noise=1.0), TIMES, **{name: 0})


def test_clients_that_are_away_and_groups_are_refused() -> None:
    away = replace(TIMES, outages=(Outage(1, 2.0, 3.0),))
    with pytest.raises(FederationError, match="outages"):
        require_fusible(federation(), away)
    groups = ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, ROUNDS, ft.Poisson(0.4), "group")),
        7,
        1e-4,
        contribution=Groups(2),
        optimizer=ft.Optimizer("sgd", 0.5, ()),
    )
    with pytest.raises(FederationError, match="single examples"):
        require_fusible(federation(plans=(groups,) * len(SIZES)), TIMES)


@pytest.mark.slow
def test_no_client_has_a_statement_and_the_results_say_what_they_are(tmp_path: Path) -> None:
    out = tmp_path / "run"
    found, _ = run(federation(noise=1.0), seeds=None, out=out, test=shares()[1])
    assert found.statements == (None,) * len(SIZES)
    assert all(not len(transcript) for transcript in found.transcripts)
    kept = json.loads((out / "simulation.json").read_text())
    assert "global model only" in kept["fused"]
    assert [row["epsilon"] for row in kept["clients"]] == [None] * len(SIZES)
    assert len(kept["accuracies"]) == ROUNDS and kept["accuracy"] is not None
    files = {path.name for path in out.rglob("*") if path.is_file()}
    assert files == {"federation.json", "model.safetensors", "simulation.json", "start.npy"}
    assert "fused" not in run(federation(noise=1.0), fused=False)[0].summary()


@pytest.mark.parametrize("changes", [{}, {"cohort": 3, "exchanged": "gradients"}])
def test_an_interrupted_one_goes_on_to_the_same_bits(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    how = {"server": ServerOptimizer("yogi"), "averaging": ft.Averaging("exponential"), **changes}
    agreed = federation(noise=1.0, **how)
    whole, expected = run(agreed, test=shares()[1])
    encoded = replace(agreed, encoding="of a table")  # nobody else has to have the same

    class StopError(Exception):
        pass

    def stop(done: int, most: int) -> None:
        if done > most // 2:
            raise StopError

    out = tmp_path / "run"
    with pytest.raises(StopError):
        run(agreed, out=out, progress=stop)
    with (out / "fused-updates").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(RunFolderExistsError):
        run(agreed, out=out)
    with pytest.raises(CheckpointError, match="with fused"):
        run(agreed, out=out, resume=True, fused=False)
    found, weights = run(encoded, out=out, resume=True, seeds=None, test=shares()[1])
    assert np.array_equal(weights, expected)
    assert np.array_equal(run(encoded, test=shares()[1])[1], expected)
    assert found.summary() == whole.summary()
    assert not (out / "keys").exists() and not (out / "fused-updates").exists()


def test_one_that_was_begun_without_goes_on_without(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(done: int, most: int) -> None:
        raise StopError

    agreed = federation(noise=1.0)
    with pytest.raises(StopError):
        run(agreed, out=tmp_path, fused=False, progress=stop)
    with pytest.raises(CheckpointError, match="without fused"):
        run(agreed, out=tmp_path, resume=True)


@pytest.mark.slow
@pytest.mark.repeated
def test_the_bits_do_not_depend_on_the_number_of_processes() -> None:
    agreed = federation(noise=1.0)
    options = {"micro_batch": 16}
    _, expected = run(agreed, **options)
    for workers in (1, 2):
        assert np.array_equal(run(agreed, workers=workers, **options)[1], expected)


class Pairs(torch.utils.data.Dataset[Any]):
    """Records by number, which no tensor holds."""

    def __init__(self, share: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._share = share

    def __len__(self) -> int:
        return len(self._share[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._share[0][index], int(self._share[1][index])


def test_records_of_any_form_are_put_together() -> None:
    agreed = federation()
    _, expected = run(agreed)
    trained = model()
    others = [Pairs(share) for share in shares()]
    simulate(trained, others, agreed, TIMES, seeds=SEEDS, fused=True)
    assert np.array_equal(SharedModel(trained).read(), expected)


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, {}),
        ({"cadence": 0.7}, {"straggling": 0.6, "way": Way(0.1, 1e4)}),
        ({"cohort": 2}, {"straggling": 0.6, "way": Way(0.1, 1e4), "seed": 3}),
        ({"plans": unlike()}, {"factors": lambda client, round: 1 + 0.1 * client + round}),
    ],
)
def test_its_seconds_and_messages_are_those_of_the_machines(
    changes: dict[str, Any], times: dict[str, Any]
) -> None:
    agreed = federation(**changes)
    given = replace(TIMES, **times)
    ours, theirs = simulated_times(agreed, given, cohorts(agreed)), rehearsed(agreed, given)
    assert ours.versions == pytest.approx(theirs.versions, rel=1e-12)
    assert ours.seconds == pytest.approx(theirs.seconds, rel=1e-12)
    assert (ours.messages, ours.sent_bytes) == (theirs.messages, theirs.sent_bytes)
    np.testing.assert_allclose(ours.busy, theirs.busy, rtol=1e-12)
    for name in ("updates", "applied", "rounds"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
