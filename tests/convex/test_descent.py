"""A descent against an independent loop, its noise against its plan, sums against neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import torch

import forethought as ft
from forethought import convex
from forethought.convex.descent import bounded_records
from forethought.errors import RoundError, TranscriptError
from forethought.rounds.contributions import LinearModel
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets
from forethought.values.mechanism import LinearExamples
from forethought.values.plan import Clip, Privacy

BUDGET = ft.Budget(1.0, 1e-5)


def _data(N=80, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, d))
    return X, (X @ rng.standard_normal(d) > 0.3).astype(int)


def _silent(problem, N, d, rounds, step, clip_norm, accelerated=False, adjacency="replace-one"):
    """A plan without noise: sums as they are."""
    mechanism = ft.Mechanism(ft.Rounds(0.0, rounds, ft.FullBatch()), adjacency=adjacency)
    privacy = Privacy(mechanism, N, 1e-5, Clip(clip_norm), LinearExamples())
    return convex.DescentPlan(problem, privacy, d, [step] * rounds, accelerated=accelerated)


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("radius", [None, 0.5])
def test_without_noise_it_is_gradient_descent(accelerated, radius) -> None:
    X, y = _data()
    Z, l2, C, eta, T = 2.0, 0.1, 0.8, 0.5, 30
    problem = convex.LogisticRegression(feature_bound=Z, l2=l2, intercept=0.5, radius=radius)
    run = convex.descend(_silent(problem, 80, 3, T, eta, C, accelerated), X, y)
    assert run.features_clipped == (np.linalg.norm(X, axis=1) > Z).sum() > 0
    rows = X * np.minimum(1, Z / np.linalg.norm(X, axis=1))[:, None]
    rows = np.hstack([rows, np.full((80, 1), 0.5)])
    theta = before = np.zeros(4)
    for t in range(1, T + 1):
        place = theta + (t - 1) / (t + 2) * (theta - before) if accelerated else theta
        each = (1 / (1 + np.exp(-rows @ place)) - y)[:, None] * rows
        # Contributions are clipped to C less the charge for rounding.
        norms = np.linalg.norm(each, axis=1)
        each *= np.minimum(1, C * (1 - 5 * 2.0**-9) / norms)[:, None]
        moved = place - eta * (each.mean(0) + l2 * place)
        if radius:
            moved *= min(1, radius / np.linalg.norm(moved))
        before, theta = theta, moved
    np.testing.assert_allclose(run.weights, theta[:3], rtol=1e-9)
    assert run.intercept == pytest.approx(0.5 * theta[3], rel=1e-9)
    assert not run.statement.private


def test_linear_sums_are_those_of_the_general_way() -> None:
    X, _ = _data(60, 5)
    y = np.random.default_rng(1).integers(3, size=60)
    problem = convex.SoftmaxRegression(feature_bound=1.5, classes=3)
    run = convex.descend(_silent(problem, 60, 5, 1, 1.0, 0.4), X, y)
    rows, _ = convex.bounded_rows(X, 1.5)
    layer = torch.nn.Linear(5, 3, bias=False).double()
    torch.nn.init.zeros_(layer.weight)
    sums, _ = ft.gradients.clipped_sum(
        layer,
        torch.nn.CrossEntropyLoss(reduction="none"),
        torch.from_numpy(rows),
        torch.from_numpy(y),
        0.4,
    )
    np.testing.assert_allclose(-60 * run.weights.T, sums["weight"].numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove", "zero-out"])
def test_what_is_added_has_the_noise_of_the_plan(adjacency) -> None:
    # Records of zeros and steps of 1: the weights are the noise, Σ σ_t² in variance. With 4,000
    # coordinates five standard errors are crossed by chance once in two million runs.
    d, N = 4000, 10
    problem = convex.LogisticRegression(feature_bound=1.0)
    schedule = convex.schedules.geometric(problem, 3.0, 0.9, step=1.0)
    plan = convex.plan(
        problem,
        BUDGET,
        examples=N,
        features=d,
        schedule=schedule,
        rounds=4,
        adjacency=adjacency,
    )
    run = convex.descend(plan, np.zeros((N, d)), np.zeros(N, dtype=int))
    variance = sum((3.0 * 0.9**t) ** 2 for t in range(plan.rounds))
    found = float(np.mean(run.weights**2)) / variance
    assert abs(found - 1) < 5 * math.sqrt(2 / d)
    # And σ_t is what the accountant took it for: Δ is 2C/N, or C/N.
    delta = (2 if adjacency == "replace-one" else 1) * plan.clip_norm / N
    mu = math.sqrt(sum((delta / s) ** 2 for s in plan.sigmas))
    spent = run.statement.epsilon
    assert spent.upper == pytest.approx(
        ft.accounting.epsilon(ft.Mechanism(ft.Rounds(1 / mu, 1, ft.FullBatch())), 1e-5).upper,
        rel=1e-6,
    )
    assert spent.upper <= BUDGET.epsilon


def test_budgets_are_spent_and_kept() -> None:
    for l2 in (0.0, 0.05):
        for budget in (ft.Budget(0.01, 1e-6), BUDGET, ft.Budget(30.0, 1e-3)):
            problem = convex.LogisticRegression(feature_bound=2.0, l2=l2)
            plan = convex.plan(problem, budget, examples=500, features=7)
            statement = ft.account(plan)
            assert 0.999 * budget.epsilon <= statement.epsilon.upper <= budget.epsilon
            assert convex.DescentPlan.from_json(plan.to_json()) == plan
            assert "rounds" in plan.explain()


def test_a_delta_that_promises_little_is_told_of() -> None:
    problem = convex.LogisticRegression(feature_bound=2.0)
    with pytest.warns(UserWarning, match="promises little"):
        convex.plan(problem, ft.Budget(1.0, 0.005), examples=500, features=7)


def _one_sum(problem, X, y, C, weights, slope=None):
    """The sum of one round without noise, at given weights."""
    plan = _silent(problem, len(X), X.shape[1], 1, 1.0, C)
    run = convex.descend(plan, X, y, start=weights, slope=slope)
    return -len(X) * (run.weights - weights)


@pytest.mark.parametrize("seed", range(6))
def test_no_record_moves_a_sum_by_more_than_is_accounted(seed) -> None:
    rng = np.random.default_rng(seed)
    X, y = _data(40, 4, seed)
    X *= 10.0 ** rng.integers(-3, 6)
    weights = rng.standard_normal(4) * 10.0 ** rng.integers(-2, 4)
    problem = convex.LogisticRegression(feature_bound=3.0)
    C = 3.0 * float(rng.choice([0.1, 0.5, 1.0]))
    other = X.copy()
    other[7] = -1e3 * X[7]
    flipped = y.copy()
    flipped[7] = 1 - y[7]
    moved = _one_sum(problem, X, y, C, weights) - _one_sum(problem, other, flipped, C, weights)
    assert np.linalg.norm(moved) <= 2 * C
    blank = X.copy()
    blank[7] = 0
    alone = _one_sum(problem, X, y, C, weights) - _one_sum(problem, blank, y, C, weights)
    assert np.linalg.norm(alone) <= C


def test_the_bound_of_a_record_is_met() -> None:
    # The planted fault: twice the true bound would be noticed, and so would half of it.
    X = np.array([[3.0, 0.0]] * 20)
    y = np.zeros(20, dtype=int)
    weights = np.array([50.0, 0.0])  # every slope is 1
    problem = convex.LogisticRegression(feature_bound=3.0)
    total = _one_sum(problem, X, y, 3.0, weights)
    assert 0.985 * 60 < np.linalg.norm(total) <= 60


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_slopes_that_are_no_numbers_add_nothing(value: float) -> None:
    problem = convex.DeclaredLoss(
        name="broken", feature_bound=1.0, lipschitz=1.0, curvature=1.0, gap=1.0
    )

    def slope(outputs, targets):
        found = torch.ones_like(outputs)
        found[targets == 1] = value
        return found

    X = np.eye(6)
    total = _one_sum(problem, X, np.array([0, 0, 0, 1, 1, 0]), 2.0, np.zeros(6), slope)
    np.testing.assert_allclose(total, [1, 1, 1, 0, 0, 1])


def test_a_run_and_its_statement() -> None:
    X, y = _data()
    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.01)
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    run = convex.descend(plan, scipy.sparse.csr_matrix(X), torch.from_numpy(y))
    assert run.statement.private
    assert run.statement.mechanism == plan.mechanism == run.transcript.mechanism("replace-one")
    codes = {caveat.code for caveat in run.statement.caveats}
    assert {"planned", "clipped-counts", "time-and-memory", "public-size"} <= codes
    assert ft.Statement.from_json(run.statement.to_json()) == run.statement
    seeded = [convex.descend(plan, X, y, seeds=ft.Seeds(noise=3)) for _ in range(2)]
    assert (seeded[0].weights == seeded[1].weights).all()
    assert not seeded[0].statement.private
    assert (convex.descend(plan, X, y).weights != run.weights).all()
    grid = convex.plan(problem, BUDGET, examples=80, features=3, noise="grid")
    held = convex.descend(grid, X, y).statement
    assert "floating-point-noise" not in {caveat.code for caveat in held.caveats}


def test_masked_entries_are_refused() -> None:
    X, y = _data()
    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.01)
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    hidden = np.ma.masked_array(X, mask=np.zeros_like(X, bool)), np.ma.masked_array(y)
    convex.descend(plan, *hidden)  # none is masked
    for place in range(2):
        given = [X, y]
        given[place] = hidden[place]
        given[place][3] = np.ma.masked
        with pytest.raises(ValueError, match="masked entries"):
            convex.descend(plan, *given)


def test_a_round_opens_once_and_a_transcript_must_match() -> None:
    X, y = _data()
    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.01)
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    data = bounded_records(problem, X, y, "clip")[0]
    model = LinearModel(3, 1, lambda outputs, targets: outputs)
    private = PrivateRounds(
        plan.privacy, dict(model.named_parameters()), lambda o, t: o, Secrets.draw(ft.Seeds())
    )
    total = private.open(0)
    total.add(model, data)
    with pytest.raises(RoundError):
        total.add(model, data, np.array([1]))
    total.release()
    with pytest.raises(RoundError):
        total.release()
    with pytest.raises(TranscriptError):
        private.transcript.require(plan.mechanism)
    with pytest.raises(TypeError, match="LinearModel"):
        private.open(1).add(torch.nn.Linear(3, 1), data)


def test_a_declared_loss_that_is_not_convex_descends() -> None:
    # The sigmoid loss 1/(1 + e^(yz)): bounded, smooth (φ″ ≤ 0.0963), not convex.
    X, y = _data(2000, 3)
    problem = convex.DeclaredLoss(
        name="sigmoid", feature_bound=2.0, lipschitz=0.5, curvature=0.39, gap=0.5, convex=False
    )
    with pytest.raises(ValueError, match="nonconvex"):
        convex.plan(problem, BUDGET, examples=2000, features=3)
    schedule = convex.schedules.published(problem, 3)
    plan = convex.plan(problem, BUDGET, examples=2000, features=3, schedule=schedule)

    def slope(outputs, targets):
        sign = 2 * targets.double().unsqueeze(1) - 1
        p = torch.sigmoid(sign * outputs)
        return -sign * p * (1 - p)

    with pytest.raises(ValueError, match="slope="):
        convex.descend(plan, X, y)
    run = convex.descend(plan, X, y, slope=slope, seeds=ft.Seeds(noise=1))
    assert ((X @ run.weights > 0) == y).mean() > 0.8
    assert "declared-slope" in {caveat.code for caveat in run.statement.assumptions}


X80, Y80 = _data()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"features": X80 * 100, "above": "refuse"}, ValueError, "longer than feature_bound"),
        ({"features": np.where(X80 > 2, np.nan, X80)}, ValueError, "NaN"),
        ({"features": X80[:, :2]}, ValueError, "the plan is for features of shape"),
        ({"features": X80[:79], "targets": Y80[:79]}, ValueError, "the guarantee depends on it"),
        ({"features": X80[0]}, ValueError, "a row a record"),
        ({"features": X80.astype(str)}, TypeError, "must be numbers"),
        ({"targets": Y80 + 1}, ValueError, "not among the 2 declared classes"),
        ({"targets": Y80 + 0.5}, ValueError, "not among the 2 declared classes"),
        ({"targets": np.where(Y80, np.nan, 0.0)}, ValueError, "NaN"),
        ({"targets": Y80[:40]}, ValueError, "80 rows of features and 40 targets"),
        ({"above": "drop"}, ValueError, "above must be one of"),
        ({"start": np.zeros(4)}, ValueError, "start must hold 3"),
        ({"start": -0.5}, ValueError, "start"),
        ({"start": "a"}, TypeError, "start must be numbers"),
        ({"start": [math.nan] * 3}, ValueError, "NaN"),
        ({"slope": lambda o, t: o}, ValueError, "DeclaredLoss"),
        ({"plan": "plan"}, TypeError, "forethought.convex.plan"),
        ({"watch": 3}, TypeError, "watch must be"),
        ({"slope": 3}, TypeError, "slope must be"),
        ({"seeds": 3}, TypeError, "seeds must be"),
        ({"seeds": 0}, TypeError, "seeds must be"),
    ],
)
def test_data_that_do_not_fit_are_refused_and_not_paid(change, error, words) -> None:
    class Payer:
        def paid(self, *mechanism):
            raise AssertionError("it was paid for")

    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.01)
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    given = {"plan": plan, "features": X80, "targets": Y80, "ledger": Payer(), **change}
    with pytest.raises(error, match=words):
        convex.descend(**given)


@pytest.mark.parametrize(
    "slope",
    [
        lambda outputs, targets: None,
        lambda outputs, targets: torch.cat([outputs, outputs], 1),
        lambda outputs, targets: outputs.sum(),
        lambda outputs, targets: outputs.numpy(),
        lambda outputs, targets: outputs * 1j,
    ],
)
def test_a_slope_that_is_no_derivative_of_each_output_is_refused_in_words(slope) -> None:
    problem = convex.DeclaredLoss(
        name="own", feature_bound=2.0, lipschitz=1.0, curvature=1.0, gap=1.0, l2=0.01
    )
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    with pytest.raises(ValueError, match="outputs' shape"):
        convex.descend(plan, X80, Y80, slope=slope)


def test_tensors_of_any_kind_of_numbers_are_taken() -> None:
    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.01)
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    seeds = ft.Seeds(noise=1)
    plain = convex.descend(plan, X80, Y80, start=np.ones(3), seeds=seeds)
    start = torch.ones(3, requires_grad=True)
    sparse, labels = torch.tensor(X80).to_sparse(), torch.tensor(Y80).bfloat16()
    found = convex.descend(plan, sparse, labels, start=start, seeds=seeds)
    assert found.weights.tolist() == plain.weights.tolist()
    turned = torch.complex(torch.zeros(80, 3).double(), torch.tensor(X80)).conj().imag
    assert convex.bounded_rows(turned, 1e3)[0].tolist() == (-X80).tolist()


def test_rows_without_a_bound_stay_as_they_are() -> None:
    rows, clipped = convex.bounded_rows(X80, math.inf)
    assert clipped == 0 and rows.tolist() == X80.tolist()


@pytest.mark.parametrize("bound", [-1.0, 0.0, math.nan])
def test_a_bound_on_rows_is_above_zero(bound: float) -> None:
    with pytest.raises(ValueError, match="bound must be"):
        convex.bounded_rows(X80, bound)


def test_a_preparation_of_another_kind_is_named() -> None:
    problem = convex.LogisticRegression(feature_bound=2.0)
    with pytest.raises(TypeError, match="preparation must be"):
        convex.plan(problem, BUDGET, examples=80, features=3, preparation="moments")


def test_targets_are_held_to_their_bound() -> None:
    problem = convex.LinearRegression(feature_bound=2.0, target_bound=1.0, l2=0.5)
    plan = convex.plan(problem, BUDGET, examples=80, features=3)
    run = convex.descend(plan, X80, 3.0 * Y80)
    assert run.targets_clipped == Y80.sum()
    with pytest.raises(ValueError, match="beyond target_bound"):
        convex.descend(plan, X80 / 10, 3.0 * Y80, above="refuse")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": lambda t: (1e-6, 1.0)}, "pays for no iteration"),
        ({"schedule": lambda t: 0.1}, "iteration 1:"),
        ({"schedule": lambda t: (10.0, 1.0, 2.0)}, "iteration 1:"),
        ({"schedule": lambda t: [(10.0, 1.0)][t - 1]}, "iteration 2:"),
        ({"schedule": lambda t: (1e-200, 1.0)}, "pays for no iteration"),
        ({"schedule": "constant"}, "iteration 1:"),
        ({"schedule": lambda t: (10.0 ** (100 * t), 1.0)}, "iteration 4:"),
        ({"rounds": 5}, "rounds= goes with a schedule="),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"examples": 0}, "examples must be"),
        (
            {"budget": ft.Budget(1e6, 1e-5), "schedule": lambda t: (1e-4, 1.0), "rounds": 1},
            "protects nothing",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(change, words) -> None:
    problem = convex.LogisticRegression(feature_bound=2.0, l2=0.01)
    given = {"budget": BUDGET, "examples": 80, "features": 3, **change}
    with pytest.raises(ValueError, match=words):
        convex.plan(problem, **given)


def test_features_may_be_standardised_by_moments_that_are_paid_for() -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((20_000, 3)) * [5.0, 10.0, 20.0] + [0.0, 10.0, -20.0]
    y = (X[:, 1] > 10).astype(int)
    asked = ft.Preparation(("moments",), bounds=(-60.0, 60.0), features=3)
    problem = convex.LogisticRegression(feature_bound=3.0)
    plan = convex.plan(problem, BUDGET, examples=20_000, features=3, preparation=asked)
    assert 0.999 * BUDGET.epsilon <= ft.account(plan).epsilon.upper <= BUDGET.epsilon
    assert convex.DescentPlan.from_json(plan.to_json()) == plan
    # Seeded: how well it does is not to change from run to run.
    seeds = ft.Seeds(noise=1)
    prepared = ft.prepare(plan, (X, y), seeds=seeds)
    run = convex.descend(plan, prepared.apply(X), y, prepared=prepared, seeds=seeds)
    assert not run.statement.private
    assert run.statement.mechanism == plan.mechanism
    assert len(run.statement.mechanism) == plan.rounds + 1
    assert run.statement.releases[0].name == "means and squares of the features"
    scores = prepared.apply(X).numpy() @ run.weights + run.intercept
    assert ((scores > 0) == y).mean() > 0.8
    with pytest.raises(ValueError, match="for a preparation"):
        convex.descend(plan, X, y)
    plain = convex.plan(problem, BUDGET, examples=20_000, features=3)
    with pytest.raises(ValueError, match="the plan pays"):
        convex.descend(plain, X, y, prepared=prepared)
    with pytest.raises(ValueError, match="leaves nothing"):
        convex.plan(
            problem,
            BUDGET,
            examples=20_000,
            features=3,
            preparation=ft.Preparation(
                ("moments",), bounds=(-1.0, 1.0), features=3, noise_multiplier=0.5
            ),
        )


def test_a_start_at_a_scale_is_drawn_from_it_and_the_same_every_time() -> None:
    X, y = _data(40, 400, 3)
    begun = []
    for scale in (0.05, np.float32(0.05), 0.45):
        silent = _silent(convex.LogisticRegression(feature_bound=1.0), 40, 400, 1, 1e-300, 1e-9)
        begun.append(convex.descend(silent, X, y, start=scale).weights)
    np.testing.assert_allclose(begun[0], begun[1], rtol=1e-6)
    np.testing.assert_allclose(begun[2], 9 * begun[0], atol=1e-12)
    # A standard deviation of 400 numbers is within 5 standard errors of its scale.
    assert abs(begun[0].std() / 0.05 - 1) < 5 / math.sqrt(800)


def test_a_book_given_as_text_is_refused() -> None:
    X, y = _data()
    plan = _silent(convex.LogisticRegression(feature_bound=2.0), 80, 3, 1, 0.1, 1.0)
    with pytest.raises(TypeError, match="such as ft"):
        convex.descend(plan, X, y, ledger="b.db#p")
