"""The lean training of the networks' experiment against `forethought.train`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forethought as ft  # noqa: E402
from forethought.models import build  # noqa: E402

RUNS = Path(__file__).parents[2] / "experiments" / "defaults" / "network_runs.py"


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("defaults_network_runs", RUNS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def plan(
    examples: int, rounds: int, clip: ft.Clip, sigma: float = 0.0, rate: float = 1.0
) -> ft.Plan:
    sampling = ft.FullBatch() if rate == 1 else ft.Poisson(rate)
    return ft.Plan(
        ft.Mechanism(ft.Rounds(sigma, rounds, sampling)),
        examples,
        1e-3,
        clip,
        optimizer=ft.Optimizer("sgd", 0.3, (("momentum", 0.9),)),
    )


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (1, 5, 5)), ("mlp", (7,)), ("lenet5", (1, 13, 12)), ("cnn", (2, 8, 9))],
)
@pytest.mark.parametrize("clip", [ft.Clip(0.05), ft.Clip(1.0, rule="automatic")])
def test_without_noise_it_is_the_trainer(
    runs: ModuleType, name: str, shape: tuple[int, ...], clip: ft.Clip
) -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((16, *shape)).astype(np.float32)
    targets = random.integers(3, size=16)
    asked = plan(16, 3, clip)
    wanted, found = (build(name, inputs=shape, classes=3, seed=1) for _ in range(2))
    ft.train(wanted, (inputs, targets), asked, seed=0, noise_seed=0)
    runs.train(found, torch.from_numpy(inputs), torch.from_numpy(targets), asked, seed=0)
    start = build(name, inputs=shape, classes=3, seed=1)
    moved = zip(found.parameters(), wanted.parameters(), start.parameters(), strict=True)
    for own, trained, first in moved:
        torch.testing.assert_close(own - first, trained - first, rtol=1e-4, atol=1e-6)
        assert float((trained - first).detach().abs().max()) > 0


def test_it_adds_the_noise_of_the_plan(runs: ModuleType) -> None:
    """12,000 weights: 4 % is 6 deviations of their standard deviation, one in 10⁹."""
    model = build("linear", inputs=(4_000,), classes=3)
    asked = plan(40, 1, ft.Clip(0.2), sigma=1.7, rate=0.5)
    runs.train(model, torch.zeros(40, 4_000), torch.zeros(40, dtype=torch.long), asked, seed=0)
    moved = 1 - 2 / 11  # the average's first step
    expected = moved * 0.3 * 1.7 * 0.2 / (0.5 * 40)
    weights = torch.cat([p.flatten() for p in model.parameters()][:1])
    assert float(weights.std()) == pytest.approx(expected, rel=0.04)


def test_its_samples_are_the_plans(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 records, 30 rounds at 0.1: 6,000 ± 6 × 73, one in 10⁹."""
    taken = []
    monkeypatch.setattr(
        runs._Layers,
        "clipped_sum",
        lambda self, chosen, *_: taken.append(chosen) or torch.zeros_like(self.weights),
    )
    model = build("linear", inputs=(4,), classes=2)
    asked = plan(2_000, 30, ft.Clip(1.0), rate=0.1)
    runs.train(model, torch.zeros(2_000, 4), torch.zeros(2_000, dtype=torch.long), asked, seed=3)
    assert abs(sum(map(len, taken)) - 6_000) < 6 * 73
    assert len({tuple(chosen.tolist()) for chosen in taken}) == 30
