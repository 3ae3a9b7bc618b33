"""The server's side of a round: outer optimizers, step sizes, the clipping norm's schedule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import forethought as ft
from drawn import randn, reseed, stream
from forethought.planning.solve import PlanError
from forethought.training.optimizers import Yogi, make_optimizer
from forethought.values.mechanism import FullBatch, Mechanism, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging, Optimizer, Schedule


def data(examples: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    source = stream(examples)
    inputs = randn(examples, 4, generator=source, dtype=torch.float64)
    return inputs, (inputs[:, 0] > 0).long()


def plan_of(rounds: int = 4, sigma: float = 0.0, **options: Any) -> Plan:
    mechanism = Mechanism(Rounds(sigma, rounds, FullBatch(), "group"))
    defaults = {"local": ft.Local("sgd", 0.5, passes=3), "averaging": Averaging("none")}
    return Plan(mechanism, 60, 1e-5, **{"clip": Clip(1e6), "groups": 1, **defaults, **options})


def linear() -> nn.Module:
    reseed(0)
    return nn.Linear(4, 2).double()


def test_one_group_and_an_outer_step_of_one_is_ordinary_training() -> None:
    """FedAvg of one holder: the inner optimizer's own way, round after round."""
    model, twin = linear(), linear()
    ft.train(model, data(), plan_of(optimizer=Optimizer("sgd", 1.0, ())))
    inputs, targets = data()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(4 * 3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(inputs), targets).backward()
        optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options"), [("sgd", (("momentum", 0.9),)), ("adam", ()), ("yogi", ())]
)
def test_federated_averaging_with_an_outer_optimizer(name: str, options: Any) -> None:
    """FedAvgM, FedAdam, FedYogi (Reddi et al. 2021): the server steps along the mean."""
    model, twin = linear(), linear()
    ft.train(model, data(), plan_of(optimizer=Optimizer(name, 0.1, options)))
    inputs, targets = data()
    outer = make_optimizer(Optimizer(name, 0.1, options), twin.parameters())
    for _ in range(4):
        client = copy.deepcopy(twin)
        inner = torch.optim.SGD(client.parameters(), lr=0.5)
        for _ in range(3):
            inner.zero_grad()
            nn.functional.cross_entropy(client(inputs), targets).backward()
            inner.step()
        for mine, theirs in zip(twin.parameters(), client.parameters(), strict=True):
            mine.grad = (mine - theirs).detach()
        outer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_yogi_moves_its_second_moment_by_the_sign() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = Yogi([weight], lr=0.1, betas=(0.0, 0.9), eps=0.0, initial=1.0)
    for gradient in (2.0, 0.5):
        weight.grad = torch.full((3,), gradient)
        optimizer.step()
    # v: 1 + 0.1·4 = 1.4, then 1.4 − 0.1·0.25 = 1.375.
    wanted = -0.1 * (2 / 1.4**0.5 + 0.5 / 1.375**0.5)
    torch.testing.assert_close(weight.detach(), torch.full((3,), wanted))
    for options in ({"lr": -1.0}, {"betas": (0.9, 1.0)}):
        with pytest.raises(ValueError, match="yogi"):
            Yogi([weight], **options)  # type: ignore[arg-type]


def test_the_clipping_norm_follows_its_schedule_and_costs_nothing() -> None:
    clip = Clip(1.0, final=0.01)
    plan = plan_of(5, sigma=1.5, clip=clip)
    norms = [plan.round(index).clip_norm for index in range(5)]
    assert norms == pytest.approx([1.0, 10**-0.5, 0.1, 10**-1.5, 0.01])
    stds = [plan.round(index).noise_std for index in range(5)]
    assert stds == pytest.approx([1.5 * norm for norm in norms])
    assert plan.mechanism == plan_of(5, sigma=1.5).mechanism
    run = ft.train(linear(), data(), plan, log_every=1)
    assert [row.clip_norm for row in run.history] == pytest.approx(norms)
    assert run.statement.epsilon == ft.epsilon(plan.mechanism, 1e-5)
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(ValueError, match="drop final"):
        Clip(1.0, "quantile", count_noise=1.0, final=0.5)


def test_steps_shrink_where_public_accuracy_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(
        6,
        optimizer=Optimizer("sgd", 1.0, ()),
        schedule=Schedule("drops", decay=0.5),
        averaging=Averaging("none"),
    )
    accuracies = iter([0.5, 0.6, 0.4, 0.3, 0.3, 0.9])
    monkeypatch.setattr(
        "forethought.training.run.Loop._evaluated", lambda *_: (1.0, next(accuracies, 0.0))
    )
    run = ft.train(linear(), data(), plan, test=data(30), diagnostics=False, log_every=100)
    sizes: list[float] = []
    accuracies = iter([0.5, 0.6, 0.4, 0.3, 0.3, 0.9])
    monkeypatch.setattr(
        "forethought.training.optimizers.Descent.step",
        lambda self, noised, size: sizes.append(size),
    )
    ft.train(linear(), data(), plan, test=data(30), diagnostics=False, log_every=100)
    assert sizes == [1.0, 1.0, 1.0, 0.5, 0.25, 0.25]
    assert any(caveat.code == "public-test" for caveat in run.statement.caveats)
    with pytest.raises(ValueError, match="give public records"):
        ft.train(linear(), data(), plan)
    with pytest.raises(ValueError, match="above 0 and"):
        Schedule("drops", decay=1.5)


def test_a_filter_is_refused_with_its_reason() -> None:
    with pytest.raises(PlanError, match="amplifies as batches"):
        ft.plan(examples=500, budget=ft.Budget(1.0, 1e-5), filter=0.5)  # type: ignore[call-arg]
    # The reason, in figures: what a filter of 1/2 at rate 0.2 is accounted as, and rate 0.1 itself.
    filtered = Rounds(1.0, 100, ft.Poisson(0.1), "group")
    theirs = ft.epsilon(Mechanism(filtered, adjacency="replace-one"), 1e-5)
    plain = ft.epsilon(Mechanism(filtered), 1e-5)
    assert plain.upper < theirs.lower
