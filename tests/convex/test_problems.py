"""Constants from public bounds: no record within them may exceed what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import forethought as ft
from drawn import randn, stream
from forethought import convex
from forethought.convex.descent import loss_and_slope
from forethought.convex.problems import problem_from_dict
from forethought.values.mechanism import Budget

Z = 1.7
PROBLEMS = [
    convex.LogisticRegression(feature_bound=Z, l2=0.3),
    convex.LogisticRegression(feature_bound=Z, intercept=2.0),
    convex.SoftmaxRegression(feature_bound=Z, classes=4),
    convex.SmoothedHinge(feature_bound=Z, smoothing=0.5),
    convex.SmoothedHinge(feature_bound=Z, smoothing=1.5, l2=0.1),
    convex.LinearRegression(feature_bound=Z, target_bound=3.0, radius=2.0),
    convex.LinearRegression(feature_bound=Z, target_bound=3.0, l2=0.2),
    convex.HuberRegression(feature_bound=Z, target_bound=3.0, threshold=0.7),
]
DECLARED = {"name": "mine", "feature_bound": 1.0, "lipschitz": 1.0, "curvature": 1.0, "gap": 1.0}


def _records(problem, count, seed):
    """Rows on the bound (with the constant column), targets at the ends and between."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 3))
    rows *= problem.feature_bound / np.linalg.norm(rows, axis=1, keepdims=True)
    if problem.intercept:
        rows = np.hstack([rows, np.full((count, 1), problem.intercept)])
    if problem.classes:
        targets = torch.from_numpy(rng.integers(problem.classes, size=count))
    else:
        bound = problem.target_bound
        targets = torch.from_numpy(rng.choice([-bound, bound, bound / 2], size=count))
    return torch.from_numpy(rows), targets


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.kind}-{p.l2:g}")
def test_slopes_are_derivatives_and_constants_hold(problem) -> None:
    loss, slope = loss_and_slope(problem)
    for seed, scale in enumerate((0.0, 0.3, 1.0, 5.0)):
        rows, targets = _records(problem, 60, seed)
        rng = stream(seed)
        weight = randn(rows.shape[1], problem.outputs, dtype=torch.float64, generator=rng)
        weight = scale * weight
        if problem.radius is not None:
            weight *= min(1.0, problem.radius / max(1e-9, float(weight.norm())))
        outputs = (rows @ weight).requires_grad_()
        values = loss(outputs, targets)
        (found,) = torch.autograd.grad(values.sum(), outputs)
        torch.testing.assert_close(slope(outputs.detach(), targets), found)
        norms = found.norm(dim=1) * rows.norm(dim=1)
        assert float(norms.max()) <= problem.lipschitz * (1 + 1e-12)
        if scale == 0:
            worst = float(values.detach().max())
            assert worst <= problem.loss_at_zero * (1 + 1e-12)

        def whole(flat, rows=rows, targets=targets):
            here = loss(rows @ flat.view(-1, problem.outputs), targets)
            return here.sum() / len(rows) + problem.l2 / 2 * flat.square().sum()

        hessian = torch.autograd.functional.hessian(whole, weight.flatten())
        eigenvalues = torch.linalg.eigvalsh(hessian)
        assert float(eigenvalues.max()) <= problem.smoothness * (1 + 1e-12)
        assert float(eigenvalues.min()) >= problem.convexity - 1e-9
        data = float(hessian.trace()) - problem.l2 * len(hessian)
        assert data <= problem.trace * (1 + 1e-12)


def test_constants_are_attained() -> None:
    # One record at zero weights: bounds that were twice as large would double the noise.
    p = convex.LogisticRegression(feature_bound=2.0)
    assert p.smoothness == 1.0  # φ″(0) = 1/4 and Z² = 4
    assert p.lipschitz == 2.0
    assert convex.LogisticRegression(feature_bound=3.0, intercept=4.0).lipschitz == 5.0
    ridge = convex.LinearRegression(feature_bound=1.0, target_bound=2.0, l2=0.25)
    assert ridge.radius == 4.0
    assert ridge.lipschitz == 6.0


@pytest.mark.parametrize("problem", [*PROBLEMS, convex.DeclaredLoss(**DECLARED)])
def test_problems_survive_a_file(problem) -> None:
    assert problem_from_dict(problem.to_dict()) == problem


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: convex.LogisticRegression(feature_bound=1.0, l2=-0.1), "l2 must be"),
        (lambda: convex.LogisticRegression(feature_bound=0.0), "feature_bound must be"),
        (lambda: convex.LogisticRegression(feature_bound=math.nan), "feature_bound must be"),
        (lambda: convex.LogisticRegression(feature_bound=1e100), "feature_bound must be"),
        (lambda: convex.LogisticRegression(feature_bound=1e-100), "feature_bound must be"),
        (lambda: convex.LogisticRegression(feature_bound=1.0, intercept=-1e100), "intercept"),
        (lambda: convex.LogisticRegression(feature_bound=1.0, radius=0.0), "radius must be"),
        (lambda: convex.LogisticRegression(feature_bound=1.0, intercept=math.inf), "intercept"),
        (lambda: convex.LinearRegression(feature_bound=1.0, target_bound=1.0), "radius="),
        (lambda: convex.LinearRegression(feature_bound=1.0, target_bound=0.0, l2=1.0), "target_b"),
        (lambda: convex.SoftmaxRegression(feature_bound=1.0, classes=1), "classes must be"),
        (lambda: convex.SmoothedHinge(feature_bound=1.0, smoothing=0.0), "smoothing must be"),
        (
            lambda: convex.DeclaredLoss(**{**DECLARED, "strong_convexity": 2.0}),
            "contradict each other",
        ),
        (lambda: convex.DeclaredLoss(**{**DECLARED, "convex": False, "l2": 0.1}), "not convex"),
        (lambda: problem_from_dict({"kind": "ridge"}), "must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_plan_does_not_depend_on_the_unit_of_the_features() -> None:
    def planned(bound: float) -> convex.DescentPlan:
        problem = convex.LogisticRegression(feature_bound=bound)
        return convex.plan(problem, Budget(1.0, 1e-4), examples=1000, features=3)

    wanted = planned(1.0)
    for unit in (1e-60, 1e60):
        found = planned(unit)
        assert found.rounds == wanted.rounds
        for index in range(wanted.rounds):
            one, other = found.round(index), wanted.round(index)
            assert one.noise_multiplier == pytest.approx(other.noise_multiplier, rel=1e-3)
        assert found.steps[0] * unit**2 == pytest.approx(wanted.steps[0], rel=1e-3)


def test_classes_and_bounds_have_no_silent_default() -> None:
    with pytest.raises(TypeError, match="classes"):
        convex.SoftmaxRegression(feature_bound=1.0)
    with pytest.raises(TypeError, match="target_bound"):
        convex.LinearRegression(feature_bound=1.0, l2=1.0)


def test_a_descent_promises_nothing_to_several_records_together():
    problem = convex.LogisticRegression(feature_bound=1.0)
    found = convex.plan(problem, ft.Budget(1.0, 1e-5), examples=100, features=3)
    with pytest.raises(ValueError, match="records_per_person"):
        replace(found, privacy=replace(found.privacy, records_per_person=5))
