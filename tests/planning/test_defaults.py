"""The defaults make sense for every size of data, model and budget, and are near the best."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import forethought as ft
from drawn import randint, randn, reseed, stream
from forethought.data import load
from forethought.gradients.sums import CHARGE
from forethought.models import build
from forethought.planning import defaults
from forethought.planning.defaults import Trained, noise_to_signal
from forethought.planning.plan_request import noise_borne

LINEAR = Path(__file__).parents[2] / "experiments" / "defaults" / "linear.py"

sizes = st.integers(1, 10**9)
epsilons = st.floats(1e-3, 100)


@pytest.fixture(scope="module")
def linear() -> ModuleType:
    """The fast path of the experiment."""
    spec = importlib.util.spec_from_file_location("defaults_linear", LINEAR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def plan_with(sigma: float, batch: int, rounds: int, examples: int, clip: float = 1.0) -> ft.Plan:
    release = ft.Rounds(sigma, rounds, ft.Poisson(batch / examples))
    return ft.Plan(ft.Mechanism(release), examples, 1e-5, ft.Clip(clip, "automatic"))


@given(epsilon=st.floats(1e-3, 200), log_delta=st.floats(-30, -1))
def test_budget_mu_meets_its_budget(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    mu = defaults.budget_mu(ft.Budget(epsilon, delta))
    spent = norm.cdf(mu / 2 - epsilon / mu) - math.exp(
        epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
    )
    assert spent == pytest.approx(delta, rel=1e-6, abs=1e-15)


@settings(max_examples=300)
@given(examples=sizes, epsilon=epsilons, parameters=sizes, rounds=st.integers(1, 10**6))
def test_a_batch_for_rounds_is_never_nonsense(
    examples: int, epsilon: float, parameters: int, rounds: int
) -> None:
    budget = ft.Budget(epsilon, defaults.default_delta(examples))
    batch = defaults.batch_for_rounds(examples, budget, rounds, Trained(parameters))
    assert min(examples, defaults.BATCH) <= batch <= examples
    # Passes are limited, unless batches are already the smallest that make sense.
    if batch > defaults.BATCH and batch > math.ceil(examples / rounds):
        assert batch * rounds <= defaults.EPOCHS_LIMIT * examples + rounds


@pytest.mark.slow
@settings(max_examples=300)
@given(examples=sizes, epsilon=epsilons, epochs=st.floats(1e-3, 1e4))
def test_a_batch_for_epochs_leaves_enough_rounds(
    examples: int, epsilon: float, epochs: float
) -> None:
    budget = ft.Budget(epsilon, defaults.default_delta(examples))
    batch = defaults.batch_for_epochs(examples, budget, epochs)
    assert 1 <= batch <= examples
    possible = min(defaults.FEWEST_ROUNDS, epochs * examples)
    assert epochs * examples / batch >= possible * 0.5 - 1e-9


@settings(max_examples=300)
@given(examples=sizes, epsilon=epsilons, share=st.floats(0, 1))
def test_rounds_for_a_batch_are_enough_and_limited(
    examples: int, epsilon: float, share: float
) -> None:
    budget = ft.Budget(epsilon, defaults.default_delta(examples))
    batch = max(1, round(share * examples))
    rounds = defaults.rounds_for_batch(examples, budget, batch)
    assert rounds >= defaults.FEWEST_ROUNDS
    assert rounds == defaults.FEWEST_ROUNDS or (
        rounds * batch / examples <= defaults.EPOCHS_LIMIT * 1.01
    )


@given(examples=sizes, epsilon=epsilons, sigma=st.floats(0.05, 1e4))
def test_a_batch_for_a_noise_multiplier_exists(examples: int, epsilon: float, sigma: float) -> None:
    budget = ft.Budget(epsilon, defaults.default_delta(examples))
    assert 1 <= defaults.batch_for_noise(examples, budget, sigma) <= examples


@given(
    sigma=st.floats(0, 1e5),
    batch=st.integers(1, 1000),
    rounds=st.integers(1, 10**6),
    parameters=sizes,
    momentum=st.floats(0, 0.99),
    clip=st.floats(1e-6, 1e6),
)
def test_a_step_size_is_positive_and_bounded(
    sigma: float, batch: int, rounds: int, parameters: int, momentum: float, clip: float
) -> None:
    plan = plan_with(sigma, batch, rounds, 1000, clip)
    rate = defaults.learning_rate(plan, Trained(parameters), momentum)
    assert 0 < rate * clip <= defaults.STEP * 1.000001
    assert math.isfinite(rate)


@pytest.mark.parametrize("examples", [1, 2, 150, 60_000, 10**7])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_whole_plans_are_sensible_at_both_ends(examples: int, epsilon: float) -> None:
    budget = ft.Budget(epsilon, defaults.default_delta(examples))
    plan = ft.plan(examples=examples, budget=budget, parameters=650)
    assert 1 <= plan.batch <= examples
    assert plan.rounds == defaults.ROUNDS
    assert plan.epochs <= max(defaults.EPOCHS_LIMIT, defaults.ROUNDS * defaults.BATCH / examples)
    assert plan.clip.rule == "automatic"
    assert 0 < plan.optimizer.learning_rate <= defaults.STEP
    assert ft.epsilon(plan.mechanism, plan.delta).upper <= epsilon


@pytest.mark.thinned
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize(("examples", "epochs"), [(20_000, 6), (60_000, 2), (60_000, 20)])
def test_long_steps_of_a_network_are_divided_among_the_passes(
    epsilon: float, examples: int, epochs: int
) -> None:
    asked = {"examples": examples, "budget": ft.Budget(epsilon, 1e-6), "epochs": epochs}
    plan = ft.plan(**asked, parameters=44_426, untried=True)
    step = defaults.path_length(plan, Trained(44_426)) / plan.rounds
    assert step <= defaults.DIVIDED_STEP * 1.01 or plan.batch == defaults.BATCH
    assert plan.epochs == pytest.approx(epochs, rel=0.01)
    assert plan.assumed is not None and "batch" in plan.assumed.chosen
    long = ft.plan(**asked, parameters=44_426)  # perhaps of a linear model
    assert long.rounds <= plan.rounds and (long.rounds < plan.rounds / 3 or epsilon < 8)
    for other in ({"learning_rate": 1.0}, {"optimizer": "adam"}, {"clipping": "group"}):
        assert ft.plan(**asked, untried=True, **other).rounds == long.rounds
    linear = ft.plan(**asked, model=torch.nn.Linear(50, 10))
    assert linear.rounds == long.rounds


def test_a_known_networks_long_steps_are_divided_where_nothing_is_said() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 60), torch.nn.ReLU(), torch.nn.Linear(60, 5))
    asked = {"examples": 30_000, "budget": ft.Budget(4.0, 1e-6)}
    plan, unknown = ft.plan(**asked, model=model, shape=(20,)), ft.plan(**asked)
    assert unknown.rounds == defaults.ROUNDS < plan.rounds <= defaults.MOST_DIVIDED
    assert plan.batch >= defaults.BATCH
    assert ft.plan(**asked, model=model, shape=(20,), rounds=40).rounds == 40


def test_a_given_clip_norm_is_kept_and_scales_the_step() -> None:
    budget = ft.Budget(1.0, 1e-5)
    wide = ft.plan(examples=10_000, budget=budget, clip_norm=2.0, parameters=5_000)
    narrow = ft.plan(examples=10_000, budget=budget, clip_norm=0.5, parameters=5_000)
    assert (wide.clip.rule, wide.clip_norm) == ("flat", 2.0)
    assert narrow.optimizer.learning_rate == pytest.approx(4 * wide.optimizer.learning_rate)


def test_a_larger_model_takes_shorter_steps_until_noise_does_not_limit_them() -> None:
    budget = ft.Budget(1.0, 1e-6)
    small, middle, large = (
        ft.plan(examples=100_000, budget=budget, rounds=100, batch=3_000, parameters=p)
        for p in (100, 400_000, 1_600_000)
    )
    assert large.optimizer.learning_rate == pytest.approx(middle.optimizer.learning_rate / 2)
    assert defaults.path_length(small, Trained(100)) == defaults.STEP * 100


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rounds", [20, 200])
def test_the_noise_left_in_the_weights_has_the_norm_promised(momentum: float, rounds: int) -> None:
    """Steps by noise alone: the norm of 10,000 coordinates strays by 0.7 % (one deviation)."""
    size = 10_000
    plan = plan_with(20.0, 100, rounds, 1_000, clip=0.3)
    assert noise_to_signal(plan, size) * defaults.STEP * rounds > defaults.NOISE
    weights = torch.nn.Parameter(torch.zeros(size))
    optimizer = torch.optim.SGD(
        [weights], lr=defaults.learning_rate(plan, Trained(size), momentum), momentum=momentum
    )
    generator = stream(0)
    for _ in range(rounds):
        noise = randn(size, generator=generator) * plan.noise_multiplier * plan.clip_norm
        weights.grad = noise / plan.batch
        optimizer.step()
    # Momentum holds part of the last rounds' noise back, at most a tenth beyond 200 rounds.
    lowest = 1.0 if momentum == 0 else 0.9
    assert lowest * 0.96 <= float(weights.detach().norm()) / defaults.NOISE <= 1.04 * 1.15


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_fast_path_is_the_trainer_without_noise(
    linear: ModuleType, clip_norm: float | None
) -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((60, 5)).astype(np.float32)
    targets = random.integers(3, size=60)
    release = ft.Rounds(0.0, 25, ft.FullBatch())
    rule = "automatic" if clip_norm is None else "flat"
    clip = ft.Clip(clip_norm or 1.0, rule, gamma=linear.GAMMA)
    plan = ft.Plan(ft.Mechanism(release), 60, 1e-3, clip, optimizer=ft.Optimizer("sgd", 0.3))
    model = build("linear", inputs=(5,), classes=3)
    ft.train(model, (inputs, targets), plan, seed=0, noise_seed=0)
    # The trainer sets a share of the clip norm aside for rounding.
    less = 1 - CHARGE
    own = linear.Column(0.3, less * clip_norm) if clip_norm else linear.Column(0.3 * less, None)
    columns = [own, linear.Column(7.0, 2.0)]
    weights = linear.train_columns(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        3,
        rate=1.0,
        rounds=25,
        noise_multiplier=0.0,
        columns=columns,
    )[:, 0]
    layer = model[1]
    torch.testing.assert_close(weights[:-1].T, layer.weight.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights[-1], layer.bias.detach(), rtol=1e-4, atol=1e-5)


def test_the_fast_path_on_prepared_inputs_is_the_trainer_that_centres(linear: ModuleType) -> None:
    random = np.random.default_rng(0)
    inputs = (random.standard_normal((60, 5)) * 0.3 + 2).astype(np.float32)
    targets = random.integers(3, size=60)
    means = ft.Preparation("means", features=5, reach=9.0, becomes=3.0, noise_multiplier=0.0)
    release = ft.Rounds(0.0, 25, ft.FullBatch())
    plan = ft.Plan(
        ft.Mechanism(release),
        60,
        1e-3,
        ft.Clip(0.5),
        optimizer=ft.Optimizer("sgd", 0.3),
        preparation=means,
    )
    model = build("linear", inputs=(5,), classes=3)
    ft.train(model, (inputs, targets), plan, seed=0, noise_seed=0)
    prepared = ft.prepare(plan, (inputs, targets))
    centred = prepared.apply(inputs)
    torch.testing.assert_close(centred.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    weights = linear.train_columns(
        centred,
        torch.from_numpy(targets),
        3,
        rate=1.0,
        rounds=25,
        noise_multiplier=0.0,
        columns=[linear.Column(0.3, 0.5 * (1 - CHARGE))],
    )[:, 0]
    scores = centred @ weights[:-1] + weights[-1]
    torch.testing.assert_close(model(torch.from_numpy(inputs)), scores, rtol=1e-3, atol=1e-4)


def test_the_fast_path_adds_the_noise_of_the_plan(linear: ModuleType) -> None:
    """12,000 coordinates: 4 % is 6 deviations of their standard deviation, one in 10⁹."""
    weights = linear.train_columns(
        torch.zeros(40, 4000),
        torch.zeros(40, dtype=torch.long),
        3,
        rate=0.5,
        rounds=1,
        noise_multiplier=1.7,
        columns=[linear.Column(0.6, 0.2)],
    )[:-1, 0]
    moved = 1 - 2 / 11  # the average's first step
    expected = moved * 0.6 * 1.7 * 0.2 / (0.5 * 40)
    assert float(weights.std()) == pytest.approx(expected, rel=0.04)


@pytest.mark.slow
def test_the_default_on_digits_is_within_a_point_and_a_half_of_a_grid(linear: ModuleType) -> None:
    data = load("digits")
    assert data.test is not None
    inputs, targets = torch.from_numpy(data.train.inputs).flatten(1), data.train.targets
    tested = torch.from_numpy(data.test.inputs).flatten(1)
    budget = ft.Budget(3.0, defaults.default_delta(len(targets)))
    plan = ft.plan(examples=len(targets), budget=budget, parameters=650)
    own = np.mean(
        [
            ft.train(
                build("linear", inputs=(1, 8, 8), classes=10),
                (data.train.inputs, data.train.targets),
                plan,
                test=(data.test.inputs, data.test.targets),
                seed=seed,
                noise_seed=seed,
                log_every=plan.rounds,
            ).accuracy
            or 0.0
            for seed in range(3)
        ]
    )
    columns = [linear.Column(path * 0.1 / 200, None) for path in (100, 300, 1_000, 3_000, 10_000)]
    found = sum(
        linear.accuracies(
            linear.train_columns(
                inputs,
                torch.from_numpy(targets),
                10,
                rate=plan.batch / plan.examples,
                rounds=plan.rounds,
                noise_multiplier=plan.noise_multiplier,
                columns=columns,
                seed=seed,
            ),
            tested,
            torch.from_numpy(data.test.targets),
        )
        for seed in range(3)
    )
    assert 100 * own >= float(found.max()) / 3 - 1.5


@given(
    sigma=st.floats(0.1, 1e3),
    parameters=st.integers(1, 10**7),
    norm=st.floats(1e-3, 1e4),
    momentum=st.floats(0, 0.99),
)
def test_a_linear_models_scores_carry_the_noise_that_the_rule_allows(
    sigma: float, parameters: int, norm: float, momentum: float
) -> None:
    """Undoes the rule by hand: step size → path → noise in the weights → noise in a score."""
    plan = plan_with(sigma, 100, 200, 1000)
    rate = defaults.learning_rate(plan, Trained(parameters, norm), momentum)
    lag = momentum * (1 - momentum**200) / (1 - momentum)
    path = rate * (200 - lag) / (1 - momentum)
    usual = math.sqrt(norm**2 + 1)
    score = noise_to_signal(plan, parameters) * path * usual / math.sqrt(parameters)
    longest = path / 200 * usual
    assert score <= defaults.SCORE_NOISE * (1 + 1e-9)
    most = 40 * max(1, math.sqrt(parameters) / 10)
    assert longest <= most * (1 + 1e-9)
    assert score == pytest.approx(defaults.SCORE_NOISE) or longest == pytest.approx(most)


def test_scaled_features_train_the_same_scores(noise_by_round: None) -> None:
    """Features ten times larger want weights ten times smaller, nothing else."""
    reseed(0)
    inputs, targets = randn(400, 30) * 3, randint(0, 2, (400,))
    found = []
    for scale in (1.0, 10.0):
        plan = ft.plan(
            examples=400,
            budget=ft.Budget(0.3, 1e-4),
            parameters=60,
            feature_norm=scale * 3 * math.sqrt(30),
            rounds=30,
            sampling="full-batch",
            clip_norm=1e-6,  # every contribution is clipped: only directions count
        )
        model = torch.nn.Linear(30, 2, bias=False)
        torch.nn.init.zeros_(model.weight)
        ft.train(model, (inputs * scale, targets), plan, seed=1, noise_seed=1, log_every=30)
        found.append(model(inputs * scale).detach())
    assert torch.corrcoef(torch.stack([f.flatten() for f in found]))[0, 1] > 0.99
    assert found[0].std() == pytest.approx(float(found[1].std()), rel=0.02)


def test_the_norm_comes_with_the_data_where_the_model_is_linear() -> None:
    data, budget = load("digits"), ft.Budget(1.0, 1e-5)
    linear = build("linear", inputs=(1, 8, 8), classes=10)
    network = build("mlp", inputs=(1, 8, 8), classes=10)
    known = ft.plan(data=data, model=linear, budget=budget)
    sizes = {"examples": len(data.train), "parameters": 650, "features": 64, "budget": budget}
    told = ft.plan(**sizes, feature_norm=3.2)
    bare = ft.plan(examples=len(data.train), parameters=650, budget=budget)
    assert data.feature_norm == pytest.approx(3.2)
    assert known.optimizer == told.optimizer != bare.optimizer
    assert known.hyperparameters == bare.hyperparameters
    assert "feature norm" in str(told.hyperparameters)
    deep = ft.plan(data=data, model=network, budget=budget)
    size = sum(p.numel() for p in network.parameters())
    plain = ft.plan(
        examples=len(data.train),
        parameters=size,
        budget=budget,
        noise_borne=noise_borne(network, (1, 8, 8)),
    )
    assert deep.optimizer == plain.optimizer
    with pytest.raises(ValueError, match="feature_norm"):
        ft.plan(examples=100, budget=budget, feature_norm=-1.0)


def test_a_linear_model_of_known_norm_is_clipped_where_labels_are_in_doubt() -> None:
    model = build("linear", inputs=(30,), classes=2)
    data = load("breast-cancer")
    plan = ft.plan(data=data, model=model, budget=ft.Budget(1, 1e-4), centre=False)
    assert data.feature_norm is not None
    assert plan.clip == ft.Clip(math.hypot(data.feature_norm, 1) / 4, "flat")
    centred = ft.plan(data=data, model=model, budget=ft.Budget(1, 1e-4))
    assert centred.preparation is not None and centred.preparation.becomes is not None
    assert centred.clip == ft.Clip(math.hypot(centred.preparation.becomes, 1) / 4, "flat")
    # Where there is signal for thresholds, up to half the norm that is released.
    more = ft.plan(data=data, model=model, budget=ft.Budget(8, 1e-4))
    assert more.preparation is not None and more.preparation.becomes == 2.0
    assert more.clip == ft.Clip(math.hypot(2.0, 1) / 2, "flat")
    # A step size that is given was chosen for contributions of norm 1.
    given = ft.plan(data=data, model=model, budget=ft.Budget(1, 1e-4), learning_rate=1.0)
    assert given.clip.rule == "automatic"


def test_more_classes_carry_less_noise_in_each_score_of_declared_norm() -> None:
    assert defaults.score_noise(2) == defaults.SCORE_NOISE == defaults.score_noise(2, 50)
    assert defaults.score_noise(2, 400) == pytest.approx(defaults.SCORE_NOISE / math.sqrt(2))
    assert defaults.score_noise(16) == pytest.approx(defaults.SCORE_NOISE / math.sqrt(2))
    assert _noise_of_sixteen_classes(centre=False) == pytest.approx(1 / math.sqrt(2))


def test_more_classes_carry_more_noise_in_each_score_of_released_norm() -> None:
    assert _noise_of_sixteen_classes(centre=True) == pytest.approx(math.sqrt(2))


def _noise_of_sixteen_classes(centre: bool) -> float:
    """Noise of one weight, hence of one score, against that of two classes."""
    known = {"examples": 5_000, "budget": ft.Budget(1, 1e-5), "feature_norm": 3.0, "features": 15}
    two, sixteen = (
        plan.optimizer.learning_rate
        * plan.clip.norm
        * plan.noise_multiplier
        * math.sqrt(plan.rounds)
        / plan.batch
        for classes in (2, 16)
        for plan in [
            ft.plan(**known, parameters=16 * classes, batch=256, rounds=200, centre=centre)
        ]
    )
    return sixteen / two
