"""One round: sum of clipped contributions, noise, mean, update."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from forethought.plans import Clip
from forethought.rounds.losses import cross_entropy, squared_error
from forethought.rounds.noise import GaussianNoise
from forethought.rounds.private_step import Groups, PrivateStep, Release
from forethought.rounds.records import TensorRecords

FALSE_ALARM = 1e-6
EXAMPLES = 24


def records(dtype: torch.dtype = torch.float64) -> TensorRecords:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, 5, generator=generator, dtype=dtype) * 3
    return TensorRecords(inputs, torch.randint(3, (EXAMPLES,), generator=generator))


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def step_of(
    model: nn.Module, clip: Clip | None = None, micro_batch: int | None = None
) -> PrivateStep:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    return PrivateStep(model, cross_entropy, clip or Clip(), optimizer, micro_batch)


def one_by_one(model: nn.Module, data: TensorRecords, indices: np.ndarray, bound: float) -> dict:
    """Oracle: each example's gradient by its own backward pass, clipped and added."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for index in indices:
        inputs, targets = data.take(np.array([index]))
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        for name, p in model.named_parameters():
            total[name] += p.grad * min(1.0, bound / float(norm))
    model.zero_grad()
    return total


def changes(step: Callable[[], None], model: nn.Module) -> torch.Tensor:
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


def test_sum_is_that_of_examples_clipped_one_by_one() -> None:
    model, data = network(), records()
    indices = np.array([3, 1, 9, 20])
    expected = one_by_one(model, data, indices, 0.4)
    step = step_of(model)
    norms = step.sum_contributions(data, indices, Release(0.4, 0.0, 4.0), None)
    assert norms.shape == (4,)
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("micro_batch", [1, 5, 24, 100])
@pytest.mark.parametrize("clip", [Clip(0.3), Clip(0.3, "automatic"), Clip(0.3, "per-layer")])
def test_micro_batches_change_nothing(micro_batch: int, clip: Clip) -> None:
    data, indices = records(), np.arange(EXAMPLES)
    whole, parts = network(), network()
    release = Release(0.3, 0.5, 10.0)
    found = []
    for model, size in ((whole, None), (parts, micro_batch)):
        step = step_of(model, clip, size)
        found.append(step.sum_contributions(data, indices, release, None))
        step.update(release, 0.1, np.random.default_rng(3))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("micro_batch", [None, 1, 3, 100])
def test_groups_clip_the_mean_of_a_whole_group(micro_batch: int | None) -> None:
    data, indices, model = records(), np.arange(10), network()
    member_of = np.array([0, 0, 0, 0, 0, 0, 2, 2, 0, 0])  # group 1 and group 3 are empty
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for group in (0, 2):
        inputs, targets = data.take(indices[member_of == group])
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        norm = float(torch.sqrt(sum(p.grad.square().sum() for p in model.parameters())))
        for name, p in model.named_parameters():
            expected[name] += p.grad * min(1.0, 0.05 / norm)
    model.zero_grad()
    step = step_of(model, micro_batch=micro_batch)
    release = Release(0.05, 0.0, 4.0)
    norms = step.sum_contributions(data, indices, release, Groups(member_of, 4))
    assert norms.shape == (4,) and norms[1] == norms[3] == 0
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-6, atol=1e-9)


def noise_pvalue(size: int, indices: np.ndarray) -> float:
    """Chi-square of the noise that one round adds, against its promised scale σC."""
    torch.manual_seed(0)
    model = nn.Linear(size, 1, bias=False).double()
    data = TensorRecords(torch.zeros(3, size, dtype=torch.float64), torch.zeros(3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = PrivateStep(model, squared_error, Clip(0.7), optimizer)
    release = Release(0.7, 1.3 * 0.7, 8.0)

    def run() -> None:
        step.sum_contributions(data, indices, release, None)
        step.update(release, 0.5, np.random.default_rng(11))

    # Zero inputs have zero gradients: the update is the noise, divided and scaled.
    drawn = (changes(run, model) / -0.5 * 8.0).numpy()
    chi = float((drawn**2).sum()) / (1.3 * 0.7) ** 2
    return float(2 * min(stats.chi2.cdf(chi, size), stats.chi2.sf(chi, size)))


@pytest.mark.parametrize("indices", [np.arange(3), np.empty(0, dtype=np.int64)])
def test_noise_has_scale_sigma_times_clip_norm_on_any_batch(indices: np.ndarray) -> None:
    """Chi-square on 20,000 coordinates, false-alarm rate 1e-6; an empty batch gets it too."""
    assert noise_pvalue(20_000, indices) > FALSE_ALARM


@pytest.mark.parametrize("factor", [0.0, 0.9, 1.1, 1 / 0.7])
def test_planted_faults_in_the_noise_are_seen(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise left out, a wrong scale, the clip norm forgotten: the same test fails."""
    honest = GaussianNoise.add_to

    def faulty(self: GaussianNoise, vector: torch.Tensor, std: float, generator: object) -> None:
        honest(self, vector, std * factor, generator)  # type: ignore[arg-type]

    monkeypatch.setattr(GaussianNoise, "add_to", faulty)
    assert noise_pvalue(20_000, np.arange(3)) < FALSE_ALARM


def test_the_sum_is_divided_by_the_given_number_not_the_batch() -> None:
    model, data = network(), records()
    expected = one_by_one(model, data, np.array([0, 1]), 1.0)
    step, release = step_of(model), Release(1.0, 0.0, 16.0)

    def run() -> None:
        step.sum_contributions(data, np.array([0, 1]), release, None)
        step.update(release, 1.0, np.random.default_rng(0))

    flat = torch.cat([expected[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(changes(run, model), -flat / 16, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_non_finite_contributions_add_nothing(value: float, micro_batch: int | None) -> None:
    data, model = records(torch.float32), network(torch.float32)
    data.inputs[4] = value
    step, release = step_of(model, micro_batch=micro_batch), Release(1.0, 0.0, 1.0)
    norms = step.sum_contributions(data, np.array([3, 4, 5]), release, None)
    assert torch.isfinite(norms).tolist() == [True, False, True]
    found = [p.grad.clone() for p in model.parameters()]
    step.sum_contributions(data, np.array([3, 5]), release, None)
    for one, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad, rtol=1e-5, atol=1e-7)


def test_a_long_group_with_a_non_finite_member_adds_nothing() -> None:
    data, model = records(torch.float32), network(torch.float32)
    data.inputs[4] = float("nan")
    step, release = step_of(model, micro_batch=2), Release(1.0, 0.0, 1.0)
    norms = step.sum_contributions(data, np.arange(6), release, Groups(np.zeros(6, int), 1))
    assert not torch.isfinite(norms).any()
    assert all(not p.grad.any() for p in model.parameters())


def test_one_record_moves_the_sum_by_at_most_the_clip_norm() -> None:
    data, model = records(), network()
    step, release = step_of(model), Release(0.25, 0.0, 1.0)
    sums = []
    for indices in (np.arange(10), np.arange(11)):
        step.sum_contributions(data, indices, release, None)
        sums.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert float((sums[0] - sums[1]).norm()) <= 0.25


def test_frozen_parameters_stay_and_gradients_are_cleared() -> None:
    model, data = network(), records()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    step, release = step_of(model), Release(1.0, 1.0, 1.0)
    step.sum_contributions(data, np.arange(4), release, None)
    step.update(release, 0.1, np.random.default_rng(0))
    step.clear()
    assert torch.equal(model[0].weight, before)
    assert all(p.grad is None for p in model.parameters())


def test_mixed_precision_parameters_get_gradients_of_their_own_kind() -> None:
    model = nn.Linear(4, 3).to(torch.bfloat16)
    data = TensorRecords(torch.randn(6, 4, dtype=torch.bfloat16), torch.randint(3, (6,)))
    step, release = step_of(model), Release(1.0, 1.0, 6.0)
    step.sum_contributions(data, np.arange(6), release, None)
    step.update(release, 0.1, np.random.default_rng(0))
    assert model.weight.grad.dtype == torch.bfloat16
