"""Adam whose second moment has the noise taken out: by hand, and under nothing but noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import forethought as ft
from drawn import randn, reseed, stream
from forethought.training.optimizers import AdamBC, make_optimizer
from forethought.values.mechanism import FullBatch, Mechanism, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Optimizer

FALSE_ALARM = 1e-6


@pytest.mark.parametrize("floor", [None, 1e-3])
def test_steps_are_those_of_the_paper(floor: float | None) -> None:
    """Tang et al. (2023), Algorithm 1, with sums in place of recursions."""
    draw = np.random.default_rng(0)
    gradients, variances = draw.normal(size=(12, 5)), draw.uniform(0.1, 1.0, 12)
    first, second, rate = 0.8, 0.95, 0.1
    parameter = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = AdamBC([parameter], rate, (first, second), floor)
    weights = np.zeros(5)
    for t in range(1, 13):
        parameter.grad = torch.from_numpy(gradients[t - 1].copy())
        optimizer.expect_noise(variances[t - 1])
        optimizer.step()
        ages = np.arange(t)[::-1]
        of_mean = (1 - first) * first**ages / (1 - first**t)
        of_square = (1 - second) * second**ages / (1 - second**t)
        mean = of_mean @ gradients[:t]
        square = of_square @ gradients[:t] ** 2 - of_square @ variances[:t]
        least = floor or math.sqrt(2 * (of_square**2 @ variances[:t] ** 2))
        weights -= rate * mean / np.sqrt(np.maximum(square, least))
        np.testing.assert_allclose(parameter.detach().numpy(), weights, rtol=1e-9)


def test_without_noise_it_is_adam() -> None:
    steps = []
    for kind in (AdamBC, torch.optim.Adam):
        reseed(0)
        parameter = nn.Parameter(torch.zeros(4, dtype=torch.float64))
        optimizer = kind([parameter], lr=0.01)
        for _ in range(20):
            parameter.grad = randn(4, dtype=torch.float64)
            if isinstance(optimizer, AdamBC):
                optimizer.expect_noise(0.0)
            optimizer.step()
        steps.append(parameter.detach())
    torch.testing.assert_close(*steps, rtol=1e-6, atol=0)


def corrected(model: nn.Module, optimizer: AdamBC) -> np.ndarray:
    """v̂ − φ̂ of every weight, as the optimizer has it."""
    found = []
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        settled = 1 - 0.999 ** state["steps"]
        found.append(((state["square"] - state["noise"]) / settled).flatten().double())
    return torch.cat(found).numpy()


def noise_run(planned: Plan, told: float = 1.0) -> tuple[np.ndarray, float]:
    """A run whose gradients are zero, so that noise is all there is: v̂ − φ̂, and its deviation."""
    model = nn.Linear(200, 100)
    kept: list[AdamBC] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0 * outputs.sum(1)

    def expect(self: AdamBC, variance: float) -> None:
        kept.append(self)
        self.noise_variance = told * variance

    before = AdamBC.expect_noise
    AdamBC.expect_noise = expect  # type: ignore[method-assign]
    try:
        inputs, targets = torch.zeros(10, 200), torch.zeros(10, dtype=torch.int64)
        ft.train(model, (inputs, targets), planned, loss=loss)
    finally:
        AdamBC.expect_noise = before  # type: ignore[method-assign]
    state = kept[-1].state[model.weight]
    spread = math.sqrt(2 * state["spread"]) / (1 - 0.999 ** state["steps"])
    return corrected(model, kept[-1]), spread


def noise_plan(chosen: ft.GradientFilter | None = None) -> Plan:
    """Noise that falls: each round's own variance has to be taken out."""
    parts = [Rounds(sigma, 10, FullBatch()) for sigma in (4.0, 2.0, 1.0)]
    optimizer = Optimizer("adam-bc", 0.01, ())
    return Plan(Mechanism(*parts), 10, 1e-5, optimizer=optimizer, gradient_filter=chosen)


@pytest.mark.parametrize("chosen", [None, ft.GradientFilter(delay=3.0)])
def test_under_nothing_but_noise_the_correction_leaves_nothing(
    chosen: ft.GradientFilter | None,
) -> None:
    """A t-test over 20,100 coordinates that are independent of each other."""
    left, spread = noise_run(noise_plan(chosen))
    assert stats.ttest_1samp(left, 0.0).pvalue > FALSE_ALARM
    if chosen is None:  # and the floor is the deviation that it is said to be
        tail = abs(left.std() / spread - 1) * math.sqrt(left.size)
        assert tail < 30  # the squares of squares have heavy tails: 30 is 0.2 of the deviation


def test_planted_fault_a_variance_that_is_off_is_seen() -> None:
    left, _ = noise_run(noise_plan(), told=1.05)
    assert stats.ttest_1samp(left, 0.0).pvalue < FALSE_ALARM


def test_plain_adam_would_not_have_it() -> None:
    """Where noise outweighs the gradient, Adam's v̂ says nothing but the noise (their Figure 1)."""
    model = nn.Linear(2, 2)
    parameter = model.weight
    optimizer = AdamBC([parameter], 0.1)
    signal = torch.tensor([[0.01, 0.1], [0.01, 0.1]])
    draw = stream(0)
    for _ in range(4000):
        parameter.grad = signal + 0.3 * randn(2, 2, generator=draw)
        optimizer.expect_noise(0.09)
        optimizer.step()
    state = optimizer.state[parameter]
    with_noise = state["square"].sqrt()
    assert float(with_noise[:, 1].mean() / with_noise[:, 0].mean()) < 1.2
    without = (state["square"] - state["noise"]).clamp(min=0)
    assert float(without[:, 1].mean() / without[:, 0].mean()) > 1.5


@pytest.mark.parametrize("name", ["adam", "adam-bc"])
def test_planned_steps_go_as_far_as_gradient_descents(name: str) -> None:
    """A small steady gradient under noise, in 4,000 coordinates; far beyond chance's reach."""
    plan = ft.plan(
        examples=1000, budget=ft.Budget(1.0, 1e-5), rounds=300, batch=100, optimizer=name
    )
    plain = ft.plan(
        examples=1000,
        budget=ft.Budget(1.0, 1e-5),
        rounds=300,
        batch=100,
        options={"momentum": 0.0},
    )
    variance = plan.round(0).mean_variance
    small = 0.05 * math.sqrt(variance)
    parameter = nn.Parameter(torch.zeros(4000))
    optimizer = make_optimizer(plan.optimizer, [parameter])
    draw = stream(0)
    for _ in range(300):
        parameter.grad = small + math.sqrt(variance) * randn(4000, generator=draw)
        if isinstance(optimizer, AdamBC):
            optimizer.expect_noise(variance)
        optimizer.step()
    far = plain.optimizer.learning_rate * small * 300
    assert float(-parameter.detach().mean()) == pytest.approx(far, rel=0.1)


def test_gradients_of_unknown_noise_are_refused() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="private rounds know"):
        AdamBC([parameter]).step()


@pytest.mark.parametrize(
    "options", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"floor": 0.0}, {"floor": math.nan}]
)
def test_what_cannot_be_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="adam-bc"):
        AdamBC([nn.Parameter(torch.zeros(2))], **options)
