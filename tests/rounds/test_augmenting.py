"""Altered copies of a record make one contribution: their mean gradient, clipped once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from drawn import randint, randn, reseed, stream
from forethought.gradients import clipped_sum
from forethought.gradients.sums import flat
from forethought.rounds.contributions import (
    augmented,
    check_loss,
    cross_entropy,
    require_images,
    uniform,
)
from forethought.rounds.private_sum import PrivateRounds, Team, share_of
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.training.records import PerPerson, person_loss
from forethought.values.mechanism import (
    Augmentation,
    FullBatch,
    Mechanism,
    Persons,
    Poisson,
    Rounds,
)
from forethought.values.plan import Clip, Plan

FALSE_ALARM = 1e-6
EXAMPLES, SIDE = 12, 6
ALL = Augmentation(3, ("mirror", "flip", "shift", "crop"), pixels=2)
FACTOR = 1 - 2**-6  # a clipped contribution may be charged so much for rounding


def images(examples: int = EXAMPLES, seed: int = 0, scale: float = 3.0) -> TensorRecords:
    generator = stream(seed)
    inputs = scale * randn(examples, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return TensorRecords(inputs, randint(3, (examples,), generator=generator))


def network() -> nn.Module:
    reseed(1)
    layers = nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 4 * 4, 3)
    return nn.Sequential(*layers).double()


def plan_of(how: Augmentation = ALL, **options: Any) -> Plan:
    clipping = "group" if "groups" in options else "example"
    part = Rounds(0.0, 3, FullBatch(), clipping)
    options.setdefault("clip", Clip(0.5))
    return Plan(Mechanism(part), EXAMPLES, 1e-5, augmentation=how, **options)


def opened(model: nn.Module, plan: Plan, loss: Any = cross_entropy, **options: Any) -> Any:
    parameters = dict(model.named_parameters())
    secrets = Secrets.draw(Seeds(3, 3))
    return PrivateRounds(plan.privacy, parameters, loss, secrets, **options).open(0)


def released(model: nn.Module, data: TensorRecords, plan: Plan, **options: Any) -> torch.Tensor:
    total = opened(model, plan, **options)
    total.add(model, data)
    return total.release().vector


def gradient(model: nn.Module, loss: Any, inputs: torch.Tensor, targets: Any) -> torch.Tensor:
    """Oracle: one ordinary backward pass of the mean loss."""
    value = loss(model(inputs), targets).mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])


def one_by_one(model: nn.Module, total: Any, data: TensorRecords, how: Augmentation) -> Any:
    """Every copy's own backward pass, (records, copies, parameters)."""
    found = []
    for index, draw in zip(total._batch.indices, total._batch.draws, strict=True):
        inputs, targets = data.take(np.array([index]))
        copies = augmented(inputs, targets, np.array([draw]), how)
        rows = [
            gradient(model, cross_entropy, x[None], y[None]) for x, y in zip(*copies, strict=True)
        ]
        found.append(torch.stack(rows))
    return torch.stack(found)


def clipped(vector: torch.Tensor, bound: float) -> torch.Tensor:
    return vector * min(1.0, bound / float(vector.norm()))


@pytest.mark.parametrize("clip", [Clip(0.5), Clip(0.5, "automatic"), Clip(1e6)])
def test_a_contribution_is_the_clipped_mean_over_copies(clip: Clip) -> None:
    model, data, plan = network(), images(), plan_of(clip=clip)
    total = opened(model, plan)
    means = one_by_one(model, total, data, ALL).mean(1)
    total.add(model, data)
    torch.testing.assert_close(total.norms, means.norm(dim=1), rtol=1e-6, atol=0)
    factors = clip.norm / (means.norm(dim=1) + (clip.gamma if clip.rule == "automatic" else 0))
    most = 1.0 if clip.rule == "flat" else torch.inf
    expected = (means * factors.clamp(max=most)[:, None]).sum(0)
    torch.testing.assert_close(total.release().vector, expected, rtol=0.02, atol=1e-9)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_a_groups_mean_is_over_all_copies(groups: int, micro_batch: int | None) -> None:
    model, data, plan = network(), images(), plan_of(groups=groups)
    total = opened(model, plan, micro_batch=micro_batch)
    each, member_of = one_by_one(model, total, data, ALL), total._batch.member_of
    total.add(model, data)
    means = [each[member_of == group].flatten(0, 1).mean(0) for group in range(groups)]
    expected = sum(clipped(mean, 0.5) for mean in means)
    torch.testing.assert_close(total.release().vector, expected, rtol=0.02, atol=1e-9)


def test_a_persons_rows_are_altered_each_by_itself() -> None:
    generator = stream(0)
    inputs = randn(EXAMPLES, 2, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)
    data = TensorRecords(inputs, randint(3, (EXAMPLES, 2), generator=generator))
    model = PerPerson(network(), (2, SIDE, SIDE))
    total = opened(model, plan_of(contribution=Persons(2)), person_loss)
    expected = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    moved_apart = 0
    for index, draw in zip(total._batch.indices, total._batch.draws, strict=True):
        taken = data.take(np.array([index]))
        x, y = augmented(*taken, np.array([draw]), ALL, rows=True)
        expected += clipped(gradient(model, person_loss, x, y), 0.5)
        same = inputs[index, :1].expand(2, -1, -1, -1)[None]
        alike, _ = augmented(same, taken[1], np.array([draw]), ALL, rows=True)
        moved_apart += int(not torch.equal(alike[:, 0], alike[:, 1]))
    assert moved_apart == EXAMPLES
    total.add(model, data)
    torch.testing.assert_close(total.release().vector, expected, rtol=0.02, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e6), st.sampled_from([None, 2, 7]))
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(seed, scale, micro_batch):
    """Whatever it holds: a record blanked (its images not a number) against a huge one."""
    model, plan = network(), plan_of()
    with_it, without = images(seed=seed, scale=scale), images(seed=seed, scale=scale)
    without.inputs[5] = torch.nan
    moved = released(model, with_it, plan, micro_batch=micro_batch) - released(
        model, without, plan, micro_batch=micro_batch
    )
    assert float(moved.norm()) <= 0.5


def test_copies_that_were_clipped_one_by_one_would_be_seen() -> None:
    """The planted fault: K contributions of a record, each clipped, move the sum by K times C."""
    model, data, plan = network(), images(scale=100.0), plan_of()
    total = opened(model, plan)
    inputs, targets = data.take(total.indices)
    x, y = augmented(inputs, targets, total._batch.draws, ALL)
    sums, _ = clipped_sum(model, cross_entropy, x, y, 0.5)
    faulty = torch.cat([part.flatten() for part in sums.values()])
    assert float(faulty.norm()) > 1.5 * float(released(model, data, plan).norm())


@pytest.mark.parametrize("groups", [None, 3])
def test_pieces_processes_and_parts_change_nothing(groups: int | None) -> None:
    """Copies follow from the round's numbers, not from who computes them or with whom."""
    model, data = network(), images()
    plan = plan_of(groups=groups) if groups else plan_of()
    whole = released(model, data, plan)
    torch.testing.assert_close(released(model, data, plan, micro_batch=5), whole)
    total = opened(model, plan)
    together = torch.zeros_like(whole)
    for rank in range(3):
        part = opened(model, plan)
        part._batch = share_of(total._batch, Team(rank=rank, size=3))
        part._left = part._batch.indices
        part.add(model, data)
        together += part.release().vector
    torch.testing.assert_close(together, whole)
    if groups is None:
        parts = opened(model, plan)
        for some in np.array_split(parts.indices, 4):
            parts.add(model, data, some[::-1])
        torch.testing.assert_close(parts.release().vector, whole)


def test_rounds_draw_other_copies_and_the_same_ones_again() -> None:
    plan = plan_of()
    parameters = dict(network().named_parameters())
    rounds = [
        PrivateRounds(plan.privacy, parameters, cross_entropy, Secrets.draw(Seeds(3, 3)))
        for _ in range(2)
    ]
    first, again = ([one.open(at)._batch.draws for at in range(2)] for one in rounds)
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])
    assert not set(first[0]) & set(first[1])


def test_a_copy_depends_on_its_own_image_and_number_only() -> None:
    inputs, targets = images().take(np.arange(EXAMPLES))
    draws = np.arange(EXAMPLES, dtype=np.uint64)
    before, _ = augmented(inputs.float(), targets, draws, ALL)
    inputs[4] = torch.inf
    draws = draws.copy()
    draws[4] = 99
    after, _ = augmented(inputs.float(), targets, draws, ALL)
    others = torch.arange(3 * EXAMPLES) // 3 != 4
    assert torch.equal(before[others], after[others])
    alone, _ = augmented(inputs[7:8].float(), targets[7:8], draws[7:8], ALL)
    assert torch.equal(alone, after[21:24])


@pytest.mark.slow
def test_shifts_and_mirrors_are_numpys() -> None:
    """Each copy is one of those that padding by reflection and cropping gives, and all occur."""
    inputs, targets = images(1).take(np.arange(1))
    copies, labels = augmented(
        inputs, targets, np.array([5], np.uint64), Augmentation(600, ("mirror", "shift"), pixels=2)
    )
    assert labels.tolist() == targets.tolist() * 600
    image = inputs[0].numpy()
    padded = np.pad(image, ((0, 0), (2, 2), (2, 2)), "symmetric")
    possible = {}
    for down in range(5):
        for across in range(5):
            window = padded[:, down : down + SIDE, across : across + SIDE]
            mirrored = np.pad(image[:, :, ::-1], ((0, 0), (2, 2), (2, 2)), "symmetric")
            possible[window.tobytes()] = (down, across, 0)
            turned = mirrored[:, down : down + SIDE, across : across + SIDE]
            possible[turned.tobytes()] = (down, across, 1)
    found = [possible[copy.numpy().tobytes()] for copy in copies]
    assert len(set(found)) == 50
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_a_crop_of_all_is_the_image_and_a_smaller_one_lies_inside() -> None:
    inputs, targets = images(2).take(np.arange(2))
    draws = np.array([1, 2], np.uint64)
    whole, _ = augmented(inputs, targets, draws, Augmentation(2, ("crop",), least=1.0))
    torch.testing.assert_close(whole, inputs.repeat_interleave(2, 0))
    ramp = torch.arange(SIDE, dtype=torch.float64).expand(2, 1, SIDE, SIDE)
    parts, _ = augmented(ramp, targets, draws, Augmentation(50, ("crop",), least=0.5))
    steps = parts.diff(dim=-1)[..., 1:-1].mean((1, 2, 3))  # the share of the side
    assert float(steps.min()) >= 0.5 - 1e-9 and float(steps.max()) <= 1
    assert float(parts.min()) >= 0 and float(parts.max()) <= SIDE - 1


def test_the_numbers_are_uniform() -> None:
    draws = np.random.default_rng(0).integers(0, 2**64, 5000, dtype=np.uint64)
    for column in uniform(draws, 4).T:
        assert stats.kstest(column, "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(3, 5), "channels, height, width"),
        (torch.zeros(3, 1, 28, 1), "channels first"),
        (torch.zeros(3, 28, 28, 3), "came last"),
        (torch.zeros(3, 1, 2, 2), "by 2 pixels"),
        (torch.zeros(3, 1, 8, 8, dtype=torch.int64), "int64"),
        ((torch.zeros(3, 1, 8, 8),), "tuple"),
    ],
)
def test_what_is_no_image_is_refused(inputs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_images(inputs, ALL)


def test_copies_may_not_see_each_other() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3))
    x, y = randn(6, 2, SIDE, SIDE), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ValueError, match="batch normalisation"):
        clipped_sum(model, cross_entropy, x, y, 1.0, copies=3)


@pytest.mark.parametrize("copies", [2, 9])
def test_long_and_short_sets_of_copies_are_lanes(copies: int) -> None:
    """As the groups of the same examples have it, whose every gradient is computed apart."""
    model = network()
    generator = stream(4)
    size = 3 * copies
    x = randn(size, 2, SIDE, SIDE, generator=generator, dtype=torch.float64)
    y = randint(3, (size,), generator=generator)
    groups = torch.arange(3).repeat_interleave(copies)
    found, norms = clipped_sum(model, cross_entropy, x, y, 0.3, copies=copies)
    wanted, as_groups = clipped_sum(model, cross_entropy, x, y, 0.3, groups=groups, clip=flat)
    torch.testing.assert_close(norms, as_groups, rtol=1e-6, atol=0)
    for name, part in found.items():
        torch.testing.assert_close(part, wanted[name], rtol=1e-6, atol=1e-12)


def test_copies_that_do_not_add_up_are_refused() -> None:
    model, (x, y) = network(), images(5).take(np.arange(5))
    with pytest.raises(ValueError, match="5 examples are"):
        clipped_sum(model, cross_entropy, x, y, 1.0, copies=2)
    with pytest.raises(ValueError, match="groups"):
        clipped_sum(model, cross_entropy, x, y, 1.0, torch.zeros(5, dtype=torch.long), copies=5)


def test_a_round_is_refused_before_it_begins() -> None:
    flat_records = TensorRecords(torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="augment= alters images"):
        check_loss(nn.Linear(6, 2), cross_entropy, flat_records, augmentation=ALL)


def test_an_empty_batch_releases_noise_alone() -> None:
    part = Rounds(1.0, 1, Poisson(1e-9))
    plan = Plan(Mechanism(part), EXAMPLES, 1e-5, augmentation=ALL)
    vector = released(network(), images(), plan)
    assert torch.isfinite(vector).all() and float(vector.std()) > 0.5
