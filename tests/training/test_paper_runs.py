"""The first paper's logistic regressions trained in step, against the library's trainer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import forethought as ft
from forethought.models import build

FOLDER = Path(__file__).parents[2] / "experiments" / "proactive_dp"
EXAMPLES, FEATURES, ROUNDS = 203, 6, 8  # five shares of two sizes
# Of the weights' norm: float32 in the trainer, float64 in step.
ROUNDING = 1e-5
STRONGLY = ft.Schedule("inverse", decay=0.05, unit="rounds"), (("weight_decay", 0.02),)
CONVEX = ft.Schedule("inverse-sqrt", decay=0.1, unit="examples"), ()


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    """``side_by_side`` and ``clients``, which import each other by their bare names."""
    names = [path.stem for path in FOLDER.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("side_by_side"), importlib.import_module("clients")
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    targets = random.integers(0, 2, EXAMPLES)
    inputs = random.standard_normal((EXAMPLES, FEATURES)) + 0.7 * targets[:, None]
    inputs[::9] /= 40  # gradients below the clip norm
    return inputs.astype(np.float32), targets


def logistic(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(
        outputs[:, 0], targets.float(), reduction="none"
    )


def plans(size: int) -> list[ft.Plan]:
    """Both step sizes, with noise and without."""
    return [
        ft.Plan(
            ft.Mechanism(ft.Rounds(sigma, ROUNDS, ft.Poisson(size / EXAMPLES))),
            EXAMPLES,
            1e-4,
            clip=ft.Clip(0.6),
            optimizer=ft.Optimizer("sgd", 0.1 * size, options),
            schedule=schedule,
            averaging=ft.Averaging("none"),
        )
        for schedule, options in (STRONGLY, CONVEX)
        for sigma in (2.5, 0.0)
    ]


def in_step(modules: tuple[ModuleType, ModuleType], data, holders, size: int, late: int = 0):
    """Weights of every plan of seed 4; ``late``: rounds by which the draws are wrong."""
    together, clients = modules
    own = plans(size)
    parts, secrets = holders.parts(EXAMPLES), clients.secrets_of(holders, 4)
    chance = together.Chance(own[0], parts, secrets, FEATURES + 1)
    return together.logistic_weights(data, own, [lambda index: chance(index + late)])[0]


def off(modules: tuple[ModuleType, ModuleType], data, holders, size: int, found) -> list[float]:
    """How far each plan's weights are from the trainer's, relative."""
    model = build("linear", inputs=(FEATURES,), classes=2, outputs=1)
    apart = []
    for plan, own in zip(plans(size), found, strict=True):
        trained = modules[1].train(model, data, plan, holders, logistic, 4)
        expected = torch.cat([p.detach().flatten() for p in trained.parameters()])
        apart.append(float((own - expected).norm() / expected.norm()))
    return apart


@pytest.mark.thinned
@pytest.mark.usefixtures("noise_by_round")
@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("name", ["ONE", "SHARES", "COPIES"])
def test_weights_are_the_trainers(modules, data, name: str, size: int) -> None:
    holders = getattr(modules[1], name)
    found = in_step(modules, data, holders, size)
    assert max(off(modules, data, holders, size, found)) < ROUNDING


@pytest.mark.usefixtures("noise_by_round")
def test_the_comparison_notices_a_round_s_delay_and_another_clip_norm(
    modules, data, monkeypatch
) -> None:
    holders = modules[1].ONE
    late = in_step(modules, data, holders, 16, late=1)
    assert min(off(modules, data, holders, 16, late)) > 100 * ROUNDING
    monkeypatch.setattr(modules[0], "CHARGE", 0.0)
    unclipped = in_step(modules, data, holders, 16)
    assert min(off(modules, data, holders, 16, unclipped)) > 100 * ROUNDING


def test_plans_that_it_does_not_know_are_refused(modules, data) -> None:
    first = plans(16)[0]
    for other in (
        first.with_(optimizer=ft.Optimizer("sgd", 1.0, (("momentum", 0.9),))),
        first.with_(optimizer=ft.Optimizer("adam", 0.1)),
        first.with_(clip=ft.Clip(0.5)),
        first.with_(clip=ft.Clip(0.6, "automatic")),
        first.with_(averaging=ft.Averaging("exponential")),
        first.with_(mechanism=first.mechanism.first(3)),
        plans(1)[0],
    ):
        with pytest.raises(ValueError, match="run in step"):
            modules[0].logistic_weights(data, [first, other], [])


def test_seeds_that_were_kept_together_are_found_one_by_one(modules, tmp_path: Path) -> None:
    cells = importlib.import_module("cells")
    own = [cells.Cell("a", 10, "one holder", "exact", 0.5, 4, seed) for seed in range(3)]
    cells.Cells(tmp_path / "kept.jsonl").keep_all(own, [91.25, 92.5, 90.0], 1.0)
    assert cells.Cells(tmp_path / "kept.jsonl").done == dict(
        zip(own, (91.25, 92.5, 90), strict=True)
    )
