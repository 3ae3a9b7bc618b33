"""Linear models trained on centred features: the same scores, paid for, released once."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import forethought as ft
from drawn import rand, reseed
from forethought.accounting.verification import verify
from forethought.data.dataset import Dataset, Split
from forethought.models import build
from forethought.rounds import preparation
from forethought.rounds.preparation import SPREAD, Vectors, centre, rescaled
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import TensorRecords
from forethought.training.execution import Interrupted
from forethought.training.folder import CheckpointError
from forethought.training.records import InputConstants, NotCentredWarning, centred_weights
from forethought.values.plan import NAMES, Preparation

N, D = 1_500, 6
BUDGET = ft.Budget(0.1, 1e-5)


def corner(seed: int = 0) -> Dataset:
    """Two classes whose numbers lie together near one end of their range."""
    source = np.random.default_rng(seed)
    labels = source.integers(2, size=2 * N)
    side = np.linspace(-1, 1, D)
    inputs = -0.8 + 0.02 * (3 * np.outer(2 * labels - 1, side) / np.linalg.norm(side))
    inputs = (inputs + 0.02 * source.normal(size=inputs.shape)).astype(np.float32)
    parts = [Split(inputs[part], labels[part]) for part in (slice(N), slice(N, None))]
    return Dataset("corner", *parts, 2, feature_norm=math.sqrt(D / 3))


def model() -> nn.Module:
    return build("linear", inputs=(D,), classes=2)


def planned(**options: object) -> ft.Plan:
    return ft.plan(data=corner(), model=model(), budget=BUDGET, **options)  # type: ignore[arg-type]


def accuracy(trained: nn.Module) -> float:
    test = corner().test
    assert test is not None
    right = trained(torch.as_tensor(test.inputs)).argmax(1) == torch.as_tensor(test.targets)
    return float(right.double().mean())


def weights(trained: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trained.parameters()])


@pytest.mark.slow
def test_the_model_takes_features_as_they_are_and_the_statement_names_the_means() -> None:
    plan, trained = planned(), model()
    run = ft.train(trained, corner(), plan, seed=1, noise_seed=2, log_every=plan.rounds)
    assert run.accuracy is not None
    assert accuracy(trained) == pytest.approx(run.accuracy, abs=2 / N)
    assert run.statement.epsilon.upper <= BUDGET.epsilon
    verify(run.statement)
    plain = planned(centre=False)
    others = [
        ft.train(model(), corner(), plain, seed=1, noise_seed=draw, log_every=plain.rounds)
        for draw in range(8)
    ]
    # What centring is for: 0.99 each time, and 0.52 in three draws of four. That none of eight
    # draws guesses has a chance of about (1/4)^8.
    assert run.accuracy > min(other.accuracy or 0.0 for other in others) + 0.3
    other = others[0]
    assert len(other.statement.releases) == 1
    assert [one.name for one in run.statement.releases[:2]] == [NAMES["means"], NAMES["norms"]]


def test_centred_weights_have_the_same_scores_and_come_back() -> None:
    reseed(0)
    layer = nn.Linear(D, 3).double()
    inputs = rand(5, D, dtype=torch.float64)
    shift, scale = rand(D).double(), rand(D).double() + 0.1
    before, scores = weights(layer), layer(inputs)
    with centred_weights(layer, InputConstants(tuple(shift.tolist()), tuple(scale.tolist()))):
        torch.testing.assert_close(layer((inputs - shift) / scale), scores)
    torch.testing.assert_close(weights(layer), before)


def test_a_run_that_breaks_off_leaves_weights_for_features_as_they_are(tmp_path: Path) -> None:
    def stop(event: ft.Event) -> None:
        if event.round == 12:
            raise KeyError

    plan = planned(rounds=12, batch=100).with_(averaging=ft.Averaging("none"))
    trained, whole, out = model(), model(), tmp_path / "run"
    seeds: dict[str, int] = {"seed": 1, "noise_seed": 2}
    with pytest.raises(KeyError):
        ft.train(trained, corner(), plan, out=out, checkpoint_every=1, progress=stop, **seeds)
    ft.train(whole, corner(), plan, **seeds)
    assert torch.equal(weights(trained), weights(whole))
    reseed(0)
    begun = nn.Linear(D, 2)
    before = weights(begun)
    with pytest.raises(CheckpointError, match="changed since"):
        ft.train(begun, corner(seed=1), out=out, resume=True)
    torch.testing.assert_close(weights(begun), before)


def test_a_continued_run_releases_its_means_once(tmp_path: Path) -> None:
    plan, whole = planned(rounds=12, batch=100), model()
    ft.train(whole, corner(), plan, seed=1, noise_seed=2)

    def stop(event: ft.Event) -> None:
        if event.round == 5:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        ft.train(model(), corner(), plan, out=out, progress=stop, seed=1, noise_seed=2)
    kept = (out / "prepared.json").read_text("utf-8")
    (out / "prepared.json").unlink()
    with pytest.raises(CheckpointError, match="would be released"):
        ft.train(model(), corner(), out=out, resume=True)
    (out / "prepared.json").write_text(kept, "utf-8")
    again = model()
    run = ft.train(again, corner(), out=out, resume=True)
    assert torch.equal(weights(again), weights(whole))
    assert (out / "prepared.json").read_text("utf-8") == kept
    assert [one.count for one in run.statement.releases] == [1, 1, 12]
    # A finished run is read back as it was handed over.
    back = model()
    ft.train(back, corner(), out=out, resume=True)
    assert torch.equal(weights(back), weights(whole))


def test_no_record_moves_the_sum_further_than_the_reach() -> None:
    asked = Preparation(("means",), features=3, reach=2.0, noise_multiplier=1.0)
    inputs = torch.tensor([[0.0, 0, 0], [1, 1, 1], [30, 40, 0], [1e30, 0, 0]])
    found = Vectors(TensorRecords(inputs, torch.zeros(4)), asked, "means").of(inputs, inputs[:, 0])
    assert found.norm(dim=1).tolist() == pytest.approx([0, math.sqrt(3), 2, 2])
    torch.testing.assert_close(found[2], torch.tensor([1.2, 1.6, 0], dtype=torch.float64))


def released_means(plan: ft.Plan, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """What is released, before anything is made of it."""
    caught: list[torch.Tensor] = []

    def catch(asked: Preparation, means: torch.Tensor, examples: int) -> InputConstants:
        caught.append(means)
        return centre(asked, means, examples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "centre", catch)
        ft.prepare(plan, data)
    return caught[0]


def test_means_have_the_noise_that_is_accounted() -> None:
    d, sigma, reach, count = 2_000, 3.0, 2.0, 50
    asked = Preparation(("means",), features=d, reach=reach, noise_multiplier=sigma)
    rounds = ft.Mechanism(ft.Rounds(1.0, 1, ft.Poisson(0.1)))
    plan = ft.Plan(rounds, count, 1e-5, preparation=asked)
    inputs = torch.full((count, d), 0.01)
    # Two-sided, false alarms of one in a million.
    low, high = stats.chi2(d).ppf([5e-7, 1 - 5e-7])
    found = released_means(plan, (inputs, torch.zeros(count)))
    left = (found - 0.01) / (sigma * reach / count * (1 + 2e-3))
    assert low <= float(left.square().sum()) <= high


def test_means_are_believed_as_far_as_their_noise_allows() -> None:
    asked = Preparation(("means",), features=4, reach=3.0, noise_multiplier=0.0)
    clear = centre(asked, torch.ones(4), 100)
    assert clear.shift == (1, 1, 1, 1) and clear.scale == (1, 1, 1, 1)
    other = Preparation(("means",), features=4, reach=3.0, becomes=4.0, noise_multiplier=0.0)
    assert centre(other, torch.ones(4), 100).scale == (0.5, 0.5, 0.5, 0.5)
    # An error as long as a usual record, 2: half of what was released, were it long.
    noisy = Preparation(("means",), features=4, reach=3.0, noise_multiplier=100 / 3)
    assert centre(noisy, torch.full((4,), 9.0), 100).shift == pytest.approx([4.5] * 4)
    # As long as the noise itself: 1 - 2/4 of it; shorter: nothing.
    assert centre(noisy, torch.ones(4), 100).shift == pytest.approx([0.5] * 4)
    assert centre(noisy, torch.full((4,), 0.6), 100).shift == (0, 0, 0, 0)


def norms_of(inputs: torch.Tensor, shift: float) -> torch.Tensor:
    asked = Preparation(("means", "norms"), features=4, reach=3.0, noise_multiplier=1.0)
    records = TensorRecords(inputs, torch.zeros(len(inputs)))
    return Vectors(records, asked, "norms", (shift,) * 4).of(inputs, inputs[:, 0])[:, 0]


def test_a_records_norm_counts_as_a_logarithm_around_the_centre_within_its_bound() -> None:
    # Usual records have norm 3/1.5 = 2, the likely norm is 1: bounds of a quarter and of four.
    inputs = 0.5 + torch.tensor([[1.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0], [1e30, 0, 0, 0]])
    found = norms_of(inputs, 0.5)
    assert found.tolist() == pytest.approx([0, math.log(2), -math.log(4), math.log(4)])
    assert Preparation(("means", "norms"), features=4, reach=3.0).norm("norms") == math.log(4)
    # Around another centre other norms: it is the released one that counts.
    assert norms_of(inputs, 0.0)[2] == pytest.approx(0.0)


def test_a_norm_is_believed_as_far_as_its_noise_allows() -> None:
    asked = Preparation(("means", "norms"), features=4, reach=3.0, noise_multiplier=0.0)
    means = InputConstants((1.0,) * 4, (1.0,) * 4)
    assert rescaled(asked, means, math.log(2), 100).scale == pytest.approx((1,) * 4)
    assert rescaled(asked, means, math.log(2), 100).shift == means.shift
    assert rescaled(asked, means, 50.0, 100).scale == pytest.approx((2,) * 4)
    # Noise of the prior's own variance, twice the means' multiplier: half of what was released.
    sigma = math.sqrt(SPREAD) * 100 / (2 * math.log(4))
    noisy = replace(asked, noise_multiplier=sigma)
    assert rescaled(noisy, means, 1.0, 100).scale == pytest.approx((0.5 * math.exp(0.5),) * 4)


def test_the_norms_noise_is_twice_the_means_and_both_cost_what_is_planned() -> None:
    asked = planned().preparation
    assert asked is not None and asked.statistics == ("means", "norms")
    first, second = asked.parts()
    assert second.noise_multiplier == 2 * first.noise_multiplier
    assert asked.releases == 1.25
    found = ft.prepare(planned(), (corner().train.inputs, corner().train.targets))
    noises = [one.noise_multiplier for one in found.transcript.releases()]
    assert noises == [first.noise_multiplier, second.noise_multiplier]
    with pytest.raises(ValueError, match='"means" before'):
        Preparation(("norms", "means"), features=4, reach=3.0)


def test_the_norm_has_the_noise_that_is_accounted() -> None:
    sigma, count, tries = 3.0, 40, 300
    asked = Preparation(("means", "norms"), features=2, reach=3.0, noise_multiplier=sigma)
    rounds = ft.Mechanism(ft.Rounds(1.0, 1, ft.Poisson(0.1)))
    plan = ft.Plan(rounds, count, 1e-5, preparation=asked)
    caught: list[float] = []

    def catch(
        asked: Preparation, means: InputConstants, norm: float, examples: int
    ) -> InputConstants:
        caught.append(norm)
        return rescaled(asked, means, norm, examples)

    data = torch.full((count, 2), 1e9), torch.zeros(count)  # every record's norm is the greatest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "rescaled", catch)
        for seed in range(tries):
            ft.prepare(plan, data, seeds=Seeds(None, seed))
    left = (np.array(caught) - math.log(4)) / (2 * sigma * math.log(4) / count)
    # Two-sided, false alarms of one in a million.
    low, high = stats.chi2(tries).ppf([5e-7, 1 - 5e-7])
    assert low <= float(np.square(left).sum()) <= high


def test_what_cannot_centre_runs_for_less() -> None:
    plan = planned(rounds=5, batch=50)
    assert plan.preparation is not None and plan.preparation.centres
    with pytest.warns(NotCentredWarning, match="centre=False"):
        run = ft.train(nn.Linear(D, 2, bias=False), corner(), plan)
    assert run.statement.epsilon.upper < BUDGET.epsilon
    assert len(run.statement.releases) == 1
    with pytest.warns(NotCentredWarning):
        ft.private(model(), None, corner(), plan)


def test_means_are_planned_where_they_are_worth_their_price() -> None:
    known = {"budget": BUDGET, "parameters": 14, "features": 6, "feature_norm": 1.4}
    assert ft.plan(examples=50_000, **known).preparation is not None  # type: ignore[arg-type]
    assert ft.plan(examples=20, **known).preparation is None  # type: ignore[arg-type]
    other = {**known, "parameters": 12}  # no intercept
    assert ft.plan(examples=50_000, **other).preparation is None  # type: ignore[arg-type]
    for given in ({"learning_rate": 1.0}, {"clip_norm": 1.0}, {"optimizer": "adam"}):
        found = ft.plan(examples=50_000, **known, **given)  # type: ignore[arg-type]
        assert found.preparation is None
    # Asked for, they are released beside a step size that is given, and no number changes.
    own = ft.plan(examples=50_000, **known)  # type: ignore[arg-type]
    again = ft.plan(  # type: ignore[arg-type]
        examples=50_000, **known, centre=True, learning_rate=own.optimizer.learning_rate
    )
    assert (again.privacy, again.optimizer) == (own.privacy, own.optimizer)
    # On a long path an intercept is given more weight.
    wide = {**known, "features": 20, "parameters": 42, "budget": ft.Budget(1, 1e-6)}
    for count, norm in ((300, math.sqrt(20)), (50_000, 2.0)):
        means = ft.plan(examples=count, **wide).preparation  # type: ignore[arg-type]
        assert means is not None and means.becomes == norm
    # Fixed features of images: their declared norm is believed.
    images = ft.plan(examples=50_000, **wide, image_features=True)  # type: ignore[arg-type]
    assert images.preparation is not None and images.preparation.statistics == ("means",)
    assert images.clip.norm == pytest.approx(math.hypot(3.0, 1) / 4)
    tables = ft.plan(examples=50_000, **wide)  # type: ignore[arg-type]
    assert tables.clip.norm == pytest.approx(math.hypot(2.0, 1) / 2)
    with pytest.raises(ft.errors.PlanError, match="centre=True needs"):
        ft.plan(examples=50_000, budget=BUDGET, centre=True)
