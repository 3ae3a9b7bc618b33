"""Linear models on fixed features of images: large batches, since passes over them are cheap."""

from __future__ import annotations

import math

import numpy as np
import pytest

import forethought as ft
from forethought.data.dataset import Dataset, Split
from forethought.planning import defaults
from forethought.planning.defaults import noise_to_signal
from forethought.planning.solve import neighbours

EXAMPLES, FEATURES, CLASSES = 50_000, 3_969, 10
KNOWN = {
    "examples": EXAMPLES,
    "budget": ft.Budget(1.0, 1e-5),
    "features": FEATURES,
    "parameters": (FEATURES + 1) * CLASSES,
    "feature_norm": 0.75 * math.sqrt(FEATURES),
}


def test_all_passes_are_taken_at_the_same_promise():
    plan = ft.plan(**KNOWN, image_features=True, feature_norm_known=True)
    assert (plan.rounds, plan.batch) == (200, 0.15 * EXAMPLES)
    assert plan.rounds * plan.batch == pytest.approx(defaults.EPOCHS_LIMIT * EXAMPLES)
    assert plan.preparation is not None and plan.preparation.centres
    assert 0.99 < ft.account(plan.mechanism, plan.delta).epsilon.upper <= 1.0
    assert "computed once" in plan.explain()
    assert plan.hyperparameters is not None and plan.hyperparameters.code == "planned"
    half = ft.plan(**KNOWN, image_features=True, rounds=100)
    assert half.batch == 2 * plan.batch
    few = ft.plan(**{**KNOWN, "examples": 300, "rounds": 20}, image_features=True)
    assert few.batch == 300


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_that_leaves_less_noise_beside_the_signal(epsilon):
    budget = ft.Budget(epsilon, 1e-5)
    large, usual = (
        noise_to_signal(ft.plan(**{**KNOWN, "budget": budget}, image_features=images), 39_700)
        for images in (True, False)
    )
    limit = math.sqrt(39_700) / (defaults.budget_mu(budget) * EXAMPLES)
    assert usual > 1.08 * limit
    assert large < 0.97 * usual


@pytest.mark.parametrize(
    "given",
    [
        {"batch": 500},
        {"epochs": 5},
        {"sampling": "full-batch"},
        {"optimizer": "adam"},
        {"learning_rate": 0.1},
        {"clipping": "group"},
        {"records_per_person": 2},
        {"feature_norm": None},
        {"budget": None, "noise_multiplier": 2.0, "batch": 500, "rounds": 10},
    ],
    ids=str,
)
def test_what_is_given_keeps_the_usual_rules(given):
    plan, usual = (ft.plan(**{**KNOWN, **given}, image_features=images) for images in (True, False))
    assert (plan.batch, plan.rounds) == (usual.batch, usual.rounds)
    assert plan.mechanism.rounds[-1].sampling == usual.mechanism.rounds[-1].sampling


def test_fixed_features_say_it_by_themselves():
    pytest.importorskip("torch")
    from forethought.models import build

    random = np.random.default_rng(0)
    part = Split(random.random((2000, 5, 2, 2), np.float32), np.arange(2000) % 2)
    known = {"classes": 2, "feature_norm": 1.0}
    model = build("linear", inputs=(5, 2, 2), classes=2, seed=0)
    budget = ft.Budget(3.0, 1e-4)
    for fixed, batch in ((None, 256), ("patches", 300)):
        data = Dataset("made up", part, None, **known, fixed_features=fixed)
        assert ft.plan(data=data, model=model, budget=budget).batch == batch
        # What is not linear keeps its batches.
        network = build("mlp", inputs=(5, 2, 2), classes=2, seed=0)
        assert ft.plan(data=data, model=network, budget=budget).batch == 256


def test_more_than_a_thousand_features_want_no_shorter_path():
    of = [defaults.score_noise(10, features) for features in (500, 1_000, 16_384)]
    assert of[0] > of[1] == of[2]
    # About what held-out training images want, experiments/patches/trial.csv.
    assert of[1] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("norm", [0.5, 1.0, 7.0])
def test_steps_along_a_squared_error_do_not_swing(norm: float) -> None:
    asked = {"examples": 20_000, "budget": ft.Budget(3.0, 1e-6), "parameters": 20, "features": 19}
    asked["centre"] = False
    logistic = ft.plan(**asked, feature_norm=norm)
    squared = ft.plan(**asked, feature_norm=norm, squared_error=True)
    longest = 1 / (norm**2 + 1)  # of the gradient 2 (θ·x − y) x, where all features lie together
    assert squared.optimizer.learning_rate == pytest.approx(
        min(0.75 * longest * (1 - squared.optimizer.momentum), logistic.optimizer.learning_rate)
    )
    for near in neighbours(squared, 20, norm):
        assert near.plan.optimizer.learning_rate <= longest
