"""Filters of noised means: against scipy, against the noise they say is left, and over a run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import signal as scipy_signal
from scipy import stats
from torch import nn

import forethought as ft
from forethought.accounting.statement import account
from forethought.jobs.job import Job
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.training.execution import Interrupted
from forethought.training.metrics import Event
from forethought.training.optimizers import Kalman, LowPass, MeanFilter, descent_of, make_filter
from forethought.values.mechanism import (
    Correlated,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
)
from forethought.values.plan import Plan
from forethought.values.use import Optimizer

FALSE_ALARM = 1e-6
EXAMPLES = 40


def answers(one: MeanFilter, means: np.ndarray, variances: Any) -> tuple[np.ndarray, list[float]]:
    """What comes of means (rounds, coordinates), and the variances said to be left."""
    found = [
        one.filtered(torch.from_numpy(mean), float(variance))
        for mean, variance in zip(means, variances, strict=True)
    ]
    return np.stack([mean.numpy() for mean, _ in found]), [left for _, left in found]


@pytest.mark.parametrize(("delay", "order"), [(0.5, 1), (9.5, 1), (2.0, 2), (20.0, 2)])
def test_a_low_pass_filter_is_scipys_over_its_answer_to_ones(delay: float, order: int) -> None:
    w = (1 if order == 1 else np.sqrt(2)) / delay
    b, a = scipy_signal.bilinear(*scipy_signal.butter(order, w, analog=True), fs=1)
    means = np.random.default_rng(0).normal(size=(60, 3))
    expected = scipy_signal.lfilter(b, a, means, axis=0)
    expected /= scipy_signal.lfilter(b, a, np.ones(60))[:, None]
    found, _ = answers(LowPass(delay, order), means, np.ones(60))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("delay", "order"), [(3.0, 1), (4.0, 2), (12.0, 2)])
def test_a_steady_gradient_comes_out_and_a_growing_one_late_by_the_delay(delay, order):
    steady, _ = answers(LowPass(delay, order), np.ones((30, 1)), np.zeros(30))
    np.testing.assert_allclose(steady, 1, rtol=1e-9)
    ramp = np.arange(2000.0)[:, None]
    late, _ = answers(LowPass(delay, order), ramp, np.zeros(2000))
    assert float(ramp[-1, 0] - late[-1, 0]) == pytest.approx(delay, rel=1e-6)


FILTERS = {
    "low-pass": lambda: LowPass(4.0, 1),
    "second order": lambda: LowPass(4.0, 2),
    "kalman": lambda: Kalman(4.0),
}


@pytest.mark.parametrize("name", FILTERS)
def test_the_noise_that_is_left_has_the_variance_that_is_said(name: str) -> None:
    """Under noise that falls over the run; 20,000 coordinates, false alarms 1e-6 in all."""
    variances = np.geomspace(4, 0.25, 40)
    noise = np.random.default_rng(1).normal(size=(40, 20_000)) * np.sqrt(variances)[:, None]
    found, left = answers(FILTERS[name](), noise, variances)
    for row, variance in zip(found, left, strict=True):
        tail = stats.chi2(row.size).cdf((row**2).sum() / variance)
        assert min(tail, 1 - tail) > FALSE_ALARM / 80


def test_planted_fault_a_gain_that_is_off_is_seen() -> None:
    variances = np.ones(30)
    noise = np.random.default_rng(1).normal(size=(30, 20_000))
    found, left = answers(LowPass(4.0, 1), noise, 1.1 * variances)
    tails = stats.chi2(20_000).cdf((found**2).sum(1) / np.array(left))
    assert min(tails) < FALSE_ALARM


@pytest.mark.parametrize(
    "chosen",
    [
        ft.GradientFilter(delay=0.5),
        ft.GradientFilter(delay=7.0),
        ft.GradientFilter(delay=1.0, order=2),
        ft.GradientFilter(delay=9.0, order=2),
        ft.GradientFilter("kalman", 3.0),
        ft.GradientFilter(),
    ],
)
def test_what_is_left_in_the_end_is_what_a_plan_counts_on(chosen: ft.GradientFilter) -> None:
    one = make_filter(chosen, 1000)
    assert one is not None
    _, left = answers(one, np.zeros((1000, 1)), np.ones(1000))
    assert left[-1] == pytest.approx(chosen.noise_left(1000), rel=1e-6)


def test_kalmans_estimate_is_the_best_of_a_random_walk() -> None:
    """By hand: the mean of a Gaussian vector given noisy values of it, from its covariance."""
    rounds, delay = 12, 3.0
    variances = np.random.default_rng(2).uniform(0.5, 2, rounds)
    settled = 1 / (1 + delay)
    walk = variances[0] * settled**2 / (1 - settled)
    at = np.arange(rounds)
    covariance = 1e8 + walk * np.minimum.outer(at, at)  # nothing is known of its beginning
    means = np.random.default_rng(3).normal(size=(rounds, 2))
    found, _ = answers(Kalman(delay), means, variances)
    for t in range(rounds):
        some = covariance[: t + 1, : t + 1] + np.diag(variances[: t + 1])
        best = covariance[t, : t + 1] @ np.linalg.solve(some, means[: t + 1])
        np.testing.assert_allclose(found[t], best, rtol=1e-4, atol=1e-5)


def test_the_gain_settles_at_the_delay_and_noise_alone_moves_it() -> None:
    one = Kalman(4.0)
    assert one.ahead(1.0) == 0  # nothing to look ahead from
    answers(one, np.zeros((200, 1)), np.ones(200))
    assert one.ahead(1.0) == pytest.approx(4.0)
    assert one.ahead(0.5) < 4 < one.ahead(2.0)
    assert one.ahead(0.0) == 0
    assert Kalman(4.0).filtered(torch.ones(1), 0.0)[1] == 0


def test_rounds_without_noise_are_believed_and_later_ones_weighed() -> None:
    means, variances = np.random.default_rng(0).normal(size=(60, 1)), np.ones(60)
    variances[:5] = 0
    found, left = answers(Kalman(4.0), means, variances)
    np.testing.assert_array_equal(found[:6], means[:6])
    assert left[:6] == [0, 0, 0, 0, 0, 1] and left[-1] == pytest.approx(0.2 / 1.8, rel=1e-3)


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_goes_on_where_it_was(name: str) -> None:
    means, variances = np.random.default_rng(0).normal(size=(10, 3)), np.linspace(1, 2, 10)
    whole, left = answers(FILTERS[name](), means, variances)
    for cut in (0, 1, 5):
        first, second = FILTERS[name](), FILTERS[name]()
        answers(first, means[:cut], variances[:cut]) if cut else None
        second.restore(*first.state())
        rest, later = answers(second, means[cut:], variances[cut:])
        assert np.array_equal(rest, whole[cut:]) and later == left[cut:]


def data() -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


def plan(*rounds: Rounds, **options: Any) -> Plan:
    return Plan(Mechanism(*(rounds or (Rounds(1.0, 20, Poisson(0.3)),))), EXAMPLES, 1e-5, **options)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


CASES = {
    "low-pass, sgd": (ft.GradientFilter(order=2), Optimizer()),
    "kalman, adam": (ft.GradientFilter("kalman", 2.0), Optimizer("adam", 0.01, ())),
    "kalman, adam-bc": (ft.GradientFilter("kalman"), Optimizer("adam-bc", 0.01, ())),
    "adam-bc alone": (None, Optimizer("adam-bc", 0.01, ())),
}


@pytest.mark.thinned
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    chosen, optimizer = CASES[case]
    asked = plan(gradient_filter=chosen, optimizer=optimizer)
    seeds = ft.Seeds(1, 2)

    def stop(event: Event) -> None:
        if event.round == 7:
            os.kill(os.getpid(), signal.SIGINT)

    whole = ft.train(network(), data(), asked, seeds=seeds)
    with pytest.raises(Interrupted):
        ft.train(network(), data(), asked, seeds=seeds, out=tmp_path / "run", progress=stop)
    resumed = ft.train(network(), data(), out=tmp_path / "run", resume=True)
    assert torch.equal(weights(resumed.model), weights(whole.model))
    plain = ft.train(network(), data(), plan(), seeds=seeds)
    assert not torch.equal(weights(plain.model), weights(whole.model))
    assert plain.statement.epsilon == whole.statement.epsilon
    assert plain.statement.caveats == whole.statement.caveats


@pytest.mark.parametrize("case", CASES)
def test_a_loop_of_ones_own_ends_with_the_same_bits(case: str) -> None:
    chosen, optimizer = CASES[case]
    asked = plan(gradient_filter=chosen, optimizer=optimizer)
    seeds, model = ft.Seeds(1, 2), network()
    loader, private = ft.private(model, None, data(), asked, seeds=seeds)
    loss = nn.CrossEntropyLoss(reduction="none")
    for _ in range(loader.epochs):
        for inputs, targets in loader:
            loss(model(inputs), targets).backward()
            private.step()
    private.finish()
    by_train = ft.train(network(), data(), asked, seeds=seeds)
    assert torch.equal(weights(model), weights(by_train.model))


def test_gradients_are_taken_ahead_of_the_weights_and_these_stay() -> None:
    """By hand: x_t + γ(x_t − x_{t−1}), with the γ of a filter of its own."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    parameters = dict(model.named_parameters())
    asked = plan(Rounds(1.0, 3, FullBatch()), gradient_filter=ft.GradientFilter("kalman", 2.0))
    descent = descent_of(asked, parameters)
    private = PrivateRounds(asked.privacy, parameters, cross_entropy, Secrets.draw(Seeds(1, 1)))
    records = TensorRecords(*map(torch.from_numpy, data()))
    path = [model.weight.detach().clone()]
    twin = Kalman(2.0)
    for index in range(3):
        total = private.open(index)
        with descent.ahead(total.round):
            where = model.weight.detach().clone()
            total.add(model, records)
        steps = twin.ahead(total.round.mean_variance)
        expected = path[-1] + steps * (path[-1] - path[-2]) if index else path[-1]
        torch.testing.assert_close(where, expected)
        assert torch.equal(model.weight, path[-1])
        noised = total.release()
        twin.filtered(noised.mean(), noised.round.mean_variance)
        descent.step(noised, 0.5)
        path.append(model.weight.detach().clone())


def test_plans_jobs_and_statements_have_the_filter() -> None:
    budget = ft.Budget(3.0, 1e-5)
    found = ft.plan(examples=1000, budget=budget, epochs=2, gradient_filter="kalman")
    assert found.gradient_filter == ft.GradientFilter("kalman")
    assert Plan.from_dict(found.to_dict()) == found
    without = found.with_(gradient_filter=None)
    assert without.to_dict()["use"]["gradient_filter"] is None
    assert account(found).epsilon == account(without).epsilon
    tables: dict[str, Any] = {
        "data": {"source": "mnist"},
        "budget": {"epsilon": 1.0},
        "training": {"gradient_filter": {"kind": "low-pass", "order": 2}, "optimizer": "adam-bc"},
    }
    asked = Job(**tables).make_plan(60_000)
    assert (asked.gradient_filter, asked.optimizer.name) == (ft.GradientFilter(order=2), "adam-bc")
    assert asked.rounds >= 100 and make_filter(asked.gradient_filter, asked.rounds) is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("median", "median"),
        ({"kind": "kalman", "order": 2}, "order"),
        ({"delay": 0.1}, "delay"),
        ({"kind": "low-pass", "order": 3}, "order"),
        ({"cutoff": 0.1}, "cutoff"),
    ],
)
def test_what_is_no_filter_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ft.plan(examples=1000, budget=ft.Budget(3.0, 1e-5), epochs=2, gradient_filter=given)


def test_where_it_cannot_be_used_it_is_refused() -> None:
    part = Correlated(1.0, 8, CyclicPoisson(1.0, 8), strategy=ft.Banded((1.0, 0.3)))
    parameters = dict(network().named_parameters())
    optimizer = Optimizer("adam-bc", 0.1, ())
    for options in ({"gradient_filter": ft.GradientFilter()}, {"optimizer": optimizer}):
        with pytest.raises(ValueError, match="independent noise"):
            descent_of(plan(part, **options), parameters)
