"""One round: a private sum takes contributions and releases one noised sum, which is accounted."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from drawn import randint, randn, reseed, stream
from forethought.gradients.sums import CHARGE
from forethought.rounds.contributions import cross_entropy, squared_error
from forethought.rounds.private_sum import NoisedSum, PrivateRounds, PrivateSum, RoundError
from forethought.rounds.randomness import GaussianNoise, Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds, Sampling
from forethought.values.plan import Clip, Plan, Round, TranscriptError

FALSE_ALARM = 1e-6
EXAMPLES = 24


def records(dtype: torch.dtype = torch.float64, examples: int = EXAMPLES) -> TensorRecords:
    generator = stream(0)
    inputs = randn(examples, 5, generator=generator, dtype=dtype) * 3
    return TensorRecords(inputs, randint(3, (examples,), generator=generator))


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    reseed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def plan_of(
    sigma: float = 0.0,
    rounds: int = 3,
    sampling: Sampling = FullBatch(),  # noqa: B008 (frozen)
    examples: int = EXAMPLES,
    **options: Any,
) -> Plan:
    clipping = "group" if "groups" in options else "example"
    return Plan(Mechanism(Rounds(sigma, rounds, sampling, clipping)), examples, 1e-5, **options)


def rounds_of(
    model: nn.Module, plan: Plan, loss: Any = cross_entropy, seed: int = 3, **options: Any
) -> PrivateRounds:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return PrivateRounds(plan.privacy, parameters, loss, Secrets.draw(Seeds(seed, seed)), **options)


def first_sum(model: nn.Module, data: TensorRecords, plan: Plan, **options: Any) -> Any:
    """The first round's noised sum by parameter, and the norms before clipping."""
    total = rounds_of(model, plan, **options).open(0)
    total.add(model, data)
    norms, noised = total.norms, total.release()
    return noised.layout.views(noised.vector), norms


def one_by_one(model: nn.Module, data: TensorRecords, indices: Any, bound: float) -> dict:
    """Oracle: each example's gradient by its own backward pass, clipped and added."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for index in indices:
        inputs, targets = data.take(np.array([index]))
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        for name, p in model.named_parameters():
            total[name] += p.grad * min(1.0, bound * (1 - CHARGE) / float(norm))
    model.zero_grad(set_to_none=True)
    return total


def test_sum_is_that_of_examples_clipped_one_by_one() -> None:
    model, data = network(), records()
    expected = one_by_one(model, data, range(EXAMPLES), 0.4)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    found, norms = first_sum(model, data, plan_of(clip=Clip(0.4)))
    assert norms.shape == (EXAMPLES,)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-9)
        assert found[name].dtype == torch.float64
        assert torch.equal(p.grad, torch.full_like(p, 7.0))  # never touched


@pytest.mark.usefixtures("noise_by_round")
@pytest.mark.parametrize("micro_batch", [1, 5, 24, 100])
@pytest.mark.parametrize("clip", [Clip(0.3), Clip(0.3, "automatic"), Clip(0.3, "per-layer")])
def test_micro_batches_change_nothing(micro_batch: int, clip: Clip) -> None:
    plan, data, model = plan_of(0.5, clip=clip), records(), network()
    whole, norms = first_sum(model, data, plan)
    parts, same = first_sum(model, data, plan, micro_batch=micro_batch)
    torch.testing.assert_close(norms, same, rtol=1e-9, atol=0)
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("micro_batch", [None, 1, 3, 100])
def test_groups_clip_the_mean_of_a_whole_group(
    micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    member_of = np.array([0, 0, 0, 0, 0, 0, 2, 2, 0, 0])  # group 1 and group 3 are empty
    monkeypatch.setattr(
        "forethought.rounds.contributions.assign_groups", lambda *_, **__: member_of
    )
    data, model = records(examples=10), network()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for group in (0, 2):
        inputs, targets = data.take(np.arange(10)[member_of == group])
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        norm = float(torch.sqrt(sum(p.grad.square().sum() for p in model.parameters())))
        for name, p in model.named_parameters():
            expected[name] += p.grad * min(1.0, 0.05 * (1 - CHARGE) / norm)
    plan = plan_of(groups=4, examples=10, clip=Clip(0.05))
    found, norms = first_sum(model, data, plan, micro_batch=micro_batch)
    assert norms.shape == (4,) and norms[1] == norms[3] == 0
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-9)


def noise_pvalue(size: int, sampling: Sampling) -> float:
    """Chi-square of the noise that one round adds, against its promised scale σC."""
    model = nn.Linear(size, 1, bias=False).double()
    data = TensorRecords(torch.zeros(3, size, dtype=torch.float64), torch.zeros(3).double())
    plan = plan_of(1.3, sampling=sampling, examples=3, clip=Clip(0.7))
    # Zero inputs have zero gradients: the sum is the noise.
    found, _ = first_sum(model, data, plan, loss=squared_error, seed=11)
    chi = float((found["weight"] ** 2).sum()) / (1.3 * 0.7) ** 2
    return float(2 * min(stats.chi2.cdf(chi, size), stats.chi2.sf(chi, size)))


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(1e-9)])
def test_noise_has_scale_sigma_times_clip_norm_on_any_batch(sampling: Sampling) -> None:
    """Chi-square on 20,000 coordinates, false-alarm rate 1e-6; an empty batch gets it too."""
    assert noise_pvalue(20_000, sampling) > FALSE_ALARM


@pytest.mark.parametrize("factor", [0.0, 0.9, 1.1, 1 / 0.7])
def test_planted_faults_in_the_noise_are_seen(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise left out, a wrong scale, the clip norm forgotten: the same test fails."""
    honest = GaussianNoise.add_to

    def faulty(self: GaussianNoise, vector: torch.Tensor, std: float, generator: object) -> None:
        honest(self, vector, std * factor, generator)  # type: ignore[arg-type]

    monkeypatch.setattr(GaussianNoise, "add_to", faulty)
    assert noise_pvalue(20_000, FullBatch()) < FALSE_ALARM


def test_the_sum_is_divided_by_the_expected_number_not_the_batch() -> None:
    model, data = network(), records()
    plan = plan_of(sampling=Poisson(0.25))
    total = rounds_of(model, plan).open(0)
    expected = one_by_one(model, data, total.indices, 1.0)
    total.add(model, data)
    noised = total.release()
    assert noised.round.divisor == EXAMPLES / 4 != len(total.indices)
    for name, gradient in noised.gradients().items():
        torch.testing.assert_close(gradient, expected[name] / 6, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_non_finite_contributions_add_nothing(value: float, micro_batch: int | None) -> None:
    data, model = records(torch.float32, 6), network(torch.float32)
    data.inputs[4] = value
    found, norms = first_sum(model, data, plan_of(examples=6), micro_batch=micro_batch)
    assert torch.isfinite(norms).tolist() == [True] * 4 + [False, True]
    rest = np.array([0, 1, 2, 3, 5])
    without = TensorRecords(data.inputs[rest], data.targets[rest])
    fewer, _ = first_sum(model, without, plan_of(examples=5))
    for name in found:
        torch.testing.assert_close(found[name], fewer[name], rtol=1e-5, atol=1e-7)


def test_a_long_group_with_a_non_finite_member_adds_nothing() -> None:
    data, model = records(torch.float32, 6), network(torch.float32)
    data.inputs[4] = float("nan")
    found, norms = first_sum(model, data, plan_of(groups=1, examples=6), micro_batch=2)
    assert not torch.isfinite(norms).any()
    assert all(not part.any() for part in found.values())


def test_one_record_moves_the_sum_by_at_most_the_clip_norm() -> None:
    data, model = records(examples=11), network()
    fewer = TensorRecords(data.inputs[:10], data.targets[:10])
    plans = [plan_of(examples=size, clip=Clip(0.25)) for size in (10, 11)]
    one, other = (first_sum(model, d, p)[0] for d, p in zip((fewer, data), plans, strict=True))
    assert float(sum((one[n] - other[n]).square().sum() for n in one)) ** 0.5 <= 0.25


def test_frozen_parameters_are_no_part_of_the_sum() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    found, _ = first_sum(model, records(), plan_of(1.0))
    assert set(found) == {"0.bias", "2.weight", "2.bias"}


def test_parameters_of_low_precision_get_gradients_of_their_own_kind() -> None:
    model = nn.Linear(4, 3).to(torch.bfloat16)
    data = TensorRecords(randn(6, 4, dtype=torch.bfloat16), randint(3, (6,)))
    total = rounds_of(model, plan_of(1.0, examples=6)).open(0)
    total.add(model, data)
    noised = total.release()
    assert noised.vector.dtype == torch.float64
    assert noised.gradients()["weight"].dtype == torch.bfloat16


# What a private sum refuses.


def test_contributions_may_be_added_in_parts_and_at_different_weights() -> None:
    """An asynchronous client moves on to newer weights in the middle of a round."""
    early, late, data = network(), network(), records()
    with torch.no_grad():
        for p in late.parameters():
            p.add_(0.3)
    total = rounds_of(early, plan_of(clip=Clip(0.4))).open(0)
    total.add(early, data, np.arange(10))
    total.add(late, data, np.array([12, 11, 10]))
    total.add(late, data)
    assert total.norms.shape == (EXAMPLES,)
    noised = total.release()
    one = one_by_one(early, data, range(10), 0.4)
    other = one_by_one(late, data, range(10, EXAMPLES), 0.4)
    views = noised.layout.views(noised.vector)
    for name in one:
        torch.testing.assert_close(views[name], one[name] + other[name], rtol=1e-6, atol=1e-9)


def test_a_record_adds_once_and_only_if_it_was_drawn() -> None:
    model, data = network(), records()
    total = rounds_of(model, plan_of(sampling=Poisson(0.5))).open(0)
    absent = np.setdiff1d(np.arange(EXAMPLES), total.indices)
    with pytest.raises(ValueError, match="batch"):
        total.add(model, data, absent[:1])
    with pytest.raises(ValueError, match="once"):
        total.add(model, data, total.indices[[0, 0]])
    total.add(model, data, total.indices[:2])
    with pytest.raises(RoundError, match="once a round"):
        total.add(model, data, total.indices[1:3])
    with pytest.raises(RoundError, match="not added"):
        total.release()
    total.add(model, data)
    total.release()


def test_a_group_is_added_whole() -> None:
    model, data = network(), records()
    total = rounds_of(model, plan_of(groups=2)).open(0)
    members = total._batch.member_of
    assert members is not None
    mixed = np.array([int(np.flatnonzero(members == group)[0]) for group in (0, 1)])
    with pytest.raises(ValueError, match="together"):
        total.add(model, data, mixed)
    for group in (0, 1):
        total.add(model, data, np.flatnonzero(members == group))
    whole = rounds_of(model, plan_of(groups=2)).open(0)
    whole.add(model, data)
    torch.testing.assert_close(total.release().vector, whole.release().vector)


def test_a_round_is_released_once() -> None:
    model, data = network(), records()
    rounds = rounds_of(model, plan_of(1.0))
    total = rounds.open(0)
    total.add(model, data)
    total.release()
    with pytest.raises(RoundError, match="closed"):
        total.release()
    with pytest.raises(RoundError, match="closed"):
        total.add(model, data)
    with pytest.raises(RoundError, match="round 1 is"):
        rounds.open(0)  # the same noise would meet another sum
    with pytest.raises(RoundError, match="round 1 is"):
        rounds.open(2)
    assert len(rounds.transcript) == 1


def test_a_round_that_was_opened_is_not_opened_again() -> None:
    model, data = network(), records()
    rounds = rounds_of(model, plan_of(1.0))
    rounds.open(0)
    with pytest.raises(RoundError, match="round 1 is"):
        rounds.open(0)
    later = rounds.open(1)
    later.add(model, data)
    with pytest.raises(TranscriptError, match="before its turn"):
        later.release()


def test_a_failed_contribution_closes_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = network(), records()
    calls = []

    def failing(outputs: Any, targets: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise MemoryError("no memory left")
        return cross_entropy(outputs, targets)

    total = rounds_of(model, plan_of(1.0), failing, micro_batch=EXAMPLES // 2).open(0)
    with pytest.raises(MemoryError):
        total.add(model, data)
    with pytest.raises(RoundError, match="closed"):
        total.add(model, data)
    with pytest.raises(RoundError, match="closed"):
        total.release()


def test_another_models_parameters_are_refused() -> None:
    model, data = network(), records()
    total = rounds_of(model, plan_of(1.0)).open(0)
    other = nn.Sequential(nn.Linear(5, 1), nn.Tanh(), nn.Linear(1, 3)).double()
    with pytest.raises(ValueError, match="shape"):
        total.add(other, data)
    total = rounds_of(model, plan_of(1.0)).open(0)
    with pytest.raises(ValueError, match="trainable parameters"):
        total.add(nn.Linear(5, 3).double(), data)
    with pytest.raises(RoundError, match="24 examples, the"):
        rounds_of(model, plan_of(1.0)).open(0).add(model, records(examples=6))


def test_nobody_else_makes_a_noised_sum() -> None:
    model, data = network(), records()
    total = rounds_of(model, plan_of(1.0)).open(0)
    total.add(model, data)
    noised = total.release()
    with pytest.raises(RoundError):
        NoisedSum(noised.round, noised.layout, noised.vector, 1.0)
    with pytest.raises(RoundError):

        class Forged(NoisedSum):
            pass

    with pytest.raises(AttributeError):
        noised.vector = torch.zeros(3)
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(RoundError):
            way(noised)


def test_rounds_and_their_sums_have_no_copies() -> None:
    """Two that do not see each other's releases would count each round once."""
    rounds = rounds_of(network(), plan_of(1.0))
    for held in (rounds, rounds.open(0)):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(RoundError, match="copied or pickled"):
                way(held)


def test_the_norm_of_a_round_is_the_plans() -> None:
    with pytest.raises(ValueError, match="keeps its norm"):
        plan_of(1.0).round(0, clip_norm=0.5)
    moved = plan_of(1.0, clip=Clip(1.0, "quantile", count_noise=2.0)).round(1, clip_norm=0.5)
    assert moved.noise_std == pytest.approx(0.5 * (1 - 4.0**-2) ** -0.5)


# Planted faults: each must be noticed before a statement is written.


def run_all(rounds: PrivateRounds, model: nn.Module, data: TensorRecords) -> None:
    for index in range(rounds.privacy.rounds):
        total = rounds.open(index)
        total.add(model, data)
        total.release()


def fault_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise drawn with half the standard deviation that the plan says."""
    monkeypatch.setattr(
        Round, "noise_std", property(lambda self: self.noise_multiplier * self.clip_norm / 2)
    )


def fault_count_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise on the quantile count drawn too small."""
    monkeypatch.setattr(Round, "count_noise", property(lambda self: self.clip.count_noise / 2))


def fault_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last release does not reach the transcript."""
    honest = PrivateRounds._finish

    def finish(self: PrivateRounds, chosen: Round, *rest: Any) -> NoisedSum:
        kept = self.transcript.to_values()
        noised = honest(self, chosen, *rest)
        if chosen.index == 2:
            self.transcript = type(self.transcript).from_values(kept)
        return noised

    monkeypatch.setattr(PrivateRounds, "_finish", finish)


def fault_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches drawn by another sampling than the plan's."""
    honest = PrivateSum.__init__

    def other(self: PrivateSum, rounds: PrivateRounds, chosen: Round, *rest: Any) -> None:
        honest(self, rounds, replace(chosen, sampling=Poisson(0.5)), *rest)

    monkeypatch.setattr(PrivateSum, "__init__", other)


@pytest.mark.parametrize("fault", [fault_noise, fault_count_noise, fault_missing, fault_sampling])
def test_a_fault_never_gets_a_statement(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = network(), records()
    plan = plan_of(1.0, clip=Clip(1.0, "quantile", count_noise=2.0))
    honest = rounds_of(model, plan)
    run_all(honest, model, data)
    honest.transcript.require(plan.mechanism)
    fault(monkeypatch)
    rounds = rounds_of(model, plan)
    run_all(rounds, model, data)
    with pytest.raises(TranscriptError, match="no statement"):
        rounds.transcript.require(plan.mechanism)


def test_a_grid_too_coarse_is_refused_before_the_first_round() -> None:
    with pytest.raises(ValueError, match="noise='gaussian'"):
        rounds_of(nn.Linear(5, 3).double(), plan_of(1e9, noise="grid"))
    rounds_of(nn.Linear(5, 3).double(), plan_of(1.0, noise="grid"))
