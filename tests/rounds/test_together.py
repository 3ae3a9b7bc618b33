"""Several holders' sums on one model: each is what it would be by itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from drawn import randint, randn, reseed, stream
from forethought.gradients import clipped_sum
from forethought.gradients.clipped import clipped_sums
from forethought.rounds.contributions import default_loss
from forethought.rounds.private_sum import PrivateRounds, PrivateSum, RoundError, add_together
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords

SIZES = (7, 0, 1, 12)


def models() -> dict[str, nn.Module]:
    reseed(0)
    return {
        "chain": nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3)),
        "convolution": nn.Sequential(
            nn.Unflatten(1, (1, 3, 4)),
            nn.Conv2d(1, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(3),
        ),
        "embedding": nn.Sequential(nn.Embedding(5, 6), nn.Flatten(), nn.Linear(72, 3)),
        "norm": nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
    }


def batch(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = stream(size)
    inputs = randn(size, 12, generator=generator)
    if name == "embedding":
        inputs = randint(0, 5, (size, 12), generator=generator)
    return inputs, randint(0, 3, (size,), generator=generator)


@pytest.mark.parametrize("name", ["chain", "convolution", "embedding", "norm"])
def test_every_part_is_the_clipped_sum_of_its_own(name: str) -> None:
    model = models()[name]
    inputs, targets = batch(name, sum(SIZES))
    model(inputs[:1])  # lazy layers take their shape
    loss = default_loss(targets)
    found = clipped_sums(model, loss, inputs, targets, 0.3, SIZES)
    start = 0
    for size, (sums, norms) in zip(SIZES, found, strict=True):
        end = start + size
        own, own_norms = clipped_sum(model, loss, inputs[start:end], targets[start:end], 0.3)
        assert norms.shape == (size,)
        torch.testing.assert_close(norms, own_norms, rtol=1e-5, atol=1e-6)
        for key in own:
            torch.testing.assert_close(sums[key], own[key], rtol=1e-4, atol=1e-6)
        length = sum(float(part.square().sum()) for part in sums.values()) ** 0.5
        assert length <= 0.3 * max(size, 0) * (1 + 1e-9)
        start = end


def test_a_record_that_is_no_number_touches_its_own_part_alone() -> None:
    model = models()["chain"]
    inputs, targets = batch("chain", sum(SIZES))
    loss = default_loss(targets)
    clean = clipped_sums(model, loss, inputs, targets, 0.3, SIZES)
    inputs[0] = float("nan")
    spoiled = clipped_sums(model, loss, inputs, targets, 0.3, SIZES)
    for (one, _), (other, _) in zip(clean[1:], spoiled[1:], strict=True):
        for key in one:
            torch.testing.assert_close(one[key], other[key], rtol=1e-6, atol=1e-7)
    assert all(bool(torch.isfinite(part).all()) for part in spoiled[0][0].values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e13])
@pytest.mark.parametrize("name", ["chain", "convolution", "norm"])
def test_no_part_has_a_bit_that_follows_from_another_s_numbers(name: str, value: float) -> None:
    # Whether a sum is formed at once, in blocks or in float64 is each part's own affair.
    model = models()[name]
    inputs, targets = batch(name, sum(SIZES))
    model(inputs[:1])
    loss = default_loss(targets)
    clean = clipped_sums(model, loss, inputs, targets, 0.3, SIZES)
    inputs[0] *= value
    spoiled = clipped_sums(model, loss, inputs, targets, 0.3, SIZES)
    for (one, norms), (other, others) in zip(clean[1:], spoiled[1:], strict=True):
        assert torch.equal(norms, others)
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert all(bool(torch.isfinite(part).all()) for part in spoiled[0][0].values())


def test_sizes_must_be_those_of_the_batch() -> None:
    inputs, targets = batch("chain", 5)
    for sizes in ([4], [6, -1]):
        with pytest.raises(ValueError, match="not the 5"):
            clipped_sums(models()["chain"], default_loss(targets), inputs, targets, 1.0, sizes)


class Holder:
    def __init__(self, place: int, model: nn.Module) -> None:
        inputs, targets = batch("chain", 20 + place)
        plan = ft.Plan(ft.Mechanism(ft.Rounds(1.0, 4, ft.Poisson(0.4))), len(inputs), 1e-3)
        self.records = TensorRecords(inputs, targets)
        parameters = dict(model.named_parameters())
        secrets = Secrets.draw(Seeds(place, place))
        self.rounds = PrivateRounds(plan.privacy, parameters, LOSS, secrets)


LOSS = default_loss(torch.zeros(2, dtype=torch.int64))


def opened(model: nn.Module) -> tuple[list[Holder], list[PrivateSum]]:
    holders = [Holder(place, model) for place in range(4)]
    return holders, [holder.rounds.open(0) for holder in holders]


@pytest.mark.usefixtures("noise_by_round")
def test_holders_release_what_they_would_release_alone() -> None:
    model = models()["chain"]
    holders, sums = opened(model)
    add_together(sums, model, [holder.records for holder in holders])
    together = [one.release().vector for one in sums]
    holders, sums = opened(model)
    for holder, one in zip(holders, sums, strict=True):
        one.add(model, holder.records)
    for found, one in zip(together, sums, strict=True):
        # The noise is the same to the last bit, the sums up to rounding.
        torch.testing.assert_close(found, one.release().vector, rtol=0, atol=1e-5)
        assert len(one.norms) == len(one.indices)


def test_a_sum_is_added_to_once_and_only_of_data_of_its_size() -> None:
    model = models()["chain"]
    holders, sums = opened(model)
    records = [holder.records for holder in holders]
    add_together(sums, model, records)
    with pytest.raises(RoundError, match="added to before"):
        add_together(sums, model, records)
    holders, sums = opened(model)
    with pytest.raises(RoundError, match="examples"):
        add_together(sums, model, records[::-1])
    with pytest.raises(RoundError, match="3 holders"):
        add_together(sums, model, records[:3])


def test_nothing_comes_of_a_pass_that_failed() -> None:
    model = models()["chain"]
    holders, sums = opened(model)
    broken = copy.deepcopy(model)
    broken[2] = nn.Linear(5, 3)
    with pytest.raises((ValueError, RuntimeError)):
        add_together(sums, broken, [holder.records for holder in holders])
    for one in sums:
        with pytest.raises(RoundError, match="closed"):
            one.release()


def test_the_noise_depends_on_the_weights() -> None:
    released = []
    for change in (0.0, 0.0, 1e-3):
        model = models()["chain"]
        holders, sums = opened(model)
        with torch.no_grad():
            model[0].weight += change
        sums[0].add(model, holders[0].records)
        released.append(sums[0].release().vector)
    assert torch.equal(released[0], released[1])
    # Had the noise been the same, the two would differ by two nearly equal sums.
    assert float((released[0] - released[2]).norm()) > 1.0
    assert len(np.unique(released[0].numpy())) > 1
