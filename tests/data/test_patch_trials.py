"""The experiment that trains many models in one pass, against ``ft.train`` and against theory."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import forethought as ft
from forethought.models import build

SIDE_BY_SIDE = Path(__file__).parents[2] / "experiments" / "patches" / "side_by_side.py"


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("patches_side_by_side", SIDE_BY_SIDE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_without_noise_it_is_the_trainer(trainer: ModuleType) -> None:
    random = np.random.default_rng(1)
    targets = random.integers(0, 10, 1500)
    rows = random.standard_normal((1500, 24)) + 2 * np.eye(10, 24)[targets]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    inputs = torch.from_numpy(rows).bfloat16()
    runs = [trainer.Run(float("inf"), spread) for spread in (0.02, 0.2)]
    found = trainer.trained(inputs, torch.from_numpy(targets), runs)
    for at, run in enumerate(runs):
        plan = ft.plan(
            examples=1500,
            budget=ft.Budget(1e5, trainer.DELTA),
            sampling="full-batch",
            rounds=trainer.ROUNDS,
            clip_norm=trainer.CLIP,
            learning_rate=trainer.step_size(run, 1500),
            averaging=ft.Averaging("none"),
            options={"momentum": trainer.MOMENTUM},
            parameters=240,
        )
        model = build("linear", inputs=(24,), classes=10, bias=False)
        for weight in model.parameters():
            torch.nn.init.zeros_(weight)
        ft.train(model, (inputs.float().numpy(), targets), plan, seed=0, log_every=trainer.ROUNDS)
        (weight,) = model.parameters()
        expected = weight.detach().T
        off = (found[:, at] - expected).norm() / expected.norm()
        assert off < 0.02, f"{run}: {off}"


def test_noise_alone_leaves_the_spread_that_it_is_named_for(trainer: ModuleType) -> None:
    """Records of norm 0 pull nowhere: 40,000 weights of noise, their deviation within 4 s.e."""
    run = trainer.Run(1.0, 0.5)
    weights = trainer.trained(
        torch.zeros(50, 4000).bfloat16(), torch.zeros(50, dtype=torch.int64), [run], 1000
    )
    # The last rounds' noise has not had all its momentum yet.
    left = [1 - trainer.MOMENTUM**rounds for rounds in range(1, trainer.ROUNDS + 1)]
    expected = 0.5 * np.sqrt(np.mean(np.square(left)))
    assert float(weights.std()) == pytest.approx(expected, rel=4 / np.sqrt(2 * 40_000))
