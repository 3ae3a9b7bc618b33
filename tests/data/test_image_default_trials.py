"""The experiment that measures the defaults on image features, against ``ft.train`` and theory."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import forethought as ft
from forethought.models import build
from forethought.planning import defaults

SCRIPT = Path(__file__).parents[2] / "experiments" / "patches" / "image_defaults.py"
SIZE, CLASSES = 24, 10


@pytest.fixture(scope="module", name="trainer")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_defaults", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # as for a script: what lies beside it
        spec.loader.exec_module(module)
    return module


def plan(examples: int, epsilon: float, rounds: int) -> ft.Plan:
    """At most 30 rounds: every record in each of them, so that the batches are the same."""
    found = ft.plan(
        examples=examples,
        budget=ft.Budget(epsilon, 1e-5),
        features=SIZE,
        parameters=(SIZE + 1) * CLASSES,
        feature_norm=1.0,
        image_features=True,
        rounds=rounds,
    )
    assert found.batch == examples
    return found


@pytest.mark.slow
def test_without_noise_it_is_the_trainer(
    trainer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The two runs' means differ by their noise.
    monkeypatch.setattr(defaults, "OF_IMAGES", replace(defaults.centring(True), error=1e-3))
    random = np.random.default_rng(1)
    targets = random.integers(0, CLASSES, 1500)
    rows = random.standard_normal((1500, SIZE)) + 2 * np.eye(CLASSES, SIZE)[targets] + 1
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    inputs = torch.from_numpy(rows).bfloat16()
    chosen = plan(1500, 1e5, 20)
    (moved,), norm = trainer.centred([inputs.clone()], chosen, 0)
    assert norm == chosen.preparation.becomes
    weights = trainer.trained(moved, torch.from_numpy(targets), [trainer.Column(chosen, 0)], 0)
    found = moved.float() @ weights[:-1, 0] + weights[-1, 0]
    model = build("linear", inputs=(SIZE,), classes=CLASSES)
    for weight in model.parameters():
        torch.nn.init.zeros_(weight)
    run = ft.train(model, (inputs.float().numpy(), targets), chosen, seed=0, log_every=20)
    with torch.no_grad():
        expected = run.model(inputs.float())
    assert (found - expected).norm() / expected.norm() < 0.02


def test_the_noise_of_a_round_is_the_plans(trainer: ModuleType) -> None:
    """Records of norm 0 pull nowhere: 4,000 weights of noise, their deviation within 4 s.e."""
    chosen = plan(500, 1.0, 1)
    records = torch.zeros(500, 400).bfloat16(), torch.zeros(500, dtype=torch.int64)
    columns = [trainer.Column(chosen, seed) for seed in (0, 1)]
    weights = trainer.trained(*records, columns, 0)[:-1]
    expected = chosen.optimizer.learning_rate * chosen.noise_multiplier * chosen.clip.norm / 500
    expected *= 9 / 11  # of the exponential average after one round
    for at in (0, 1):
        assert float(weights[:, at].std()) == pytest.approx(expected, rel=4 / np.sqrt(2 * 4_000))
    assert abs(float((weights[:, 0] * weights[:, 1]).mean())) < 4 * expected**2 / np.sqrt(4_000)
