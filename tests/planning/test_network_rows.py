"""The networks' experiment: rows that get more seeds."""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

KEPT = Path(__file__).parents[2] / "experiments" / "defaults"


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("defaults_networks", KEPT / "networks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(KEPT))
    spec.loader.exec_module(module)
    sys.path.remove(str(KEPT))
    return module


def test_seeds_added_to_a_row_are_as_if_all_had_been_measured_at_once(
    networks: ModuleType,
) -> None:
    generator = random.Random(0)
    whole = [generator.gauss(70, 3) for _ in range(20)]
    known, more = whole[:7], whole[7:]
    found = networks.pooled(7, statistics.mean(known), statistics.stdev(known), more)
    assert found == pytest.approx((statistics.mean(whole), statistics.stdev(whole)))


class Half:
    """A case whose accuracy is the seed's, and half as much on any plan but the default."""

    def __init__(self, networks: ModuleType) -> None:
        self.real = networks.Case(
            "mlp", SimpleNamespace(targets=[0] * 500, classes=3, name="rows", norm=2.0), (6,)
        )
        self.plan = self.real.default(1.0)
        self.seeds: list[int] = []

    def default(self, epsilon: float) -> object:
        return self.plan

    def budget(self, epsilon: float) -> object:
        return self.real.budget(epsilon)

    def accuracy(self, plan: object, seed: int) -> float:
        self.seeds.append(seed)
        return seed - 1_000.0 if plan is self.plan else (seed - 1_000.0) / 2


def test_a_row_gets_the_seeds_that_it_lacks(networks: ModuleType) -> None:
    case = Half(networks)
    step = case.plan.optimizer.learning_rate
    row = networks.Row(
        *("mlp", "rows", 500, 8_000, 1.0, 256, 200, step),
        *(1.0, 1.0, 256, 200, 2.0, "1", 3.0, 0.5, -0.5, 0.5 / 3**0.5, 6, 3),  # of seeds 0, 1, 2
    )
    found = networks.with_more_seeds(case, row, 5)
    assert case.seeds == [1_003, 1_004] * 2
    gaps = [-seed / 2 for seed in range(5)]
    assert (found.default, found.best, found.behind) == pytest.approx((2.0, 1.0, -1.0))
    assert found.spread == pytest.approx(statistics.stdev(range(5)))
    assert found.error == pytest.approx(statistics.stdev(gaps) / 5**0.5)
    assert found.seeds == 5 and found.best_path == 2.0
    with pytest.raises(ValueError, match="drop its line"):
        networks.with_more_seeds(case, networks.replace(row, step_size=1.1 * step), 5)
