"""Every optimizer that something is known of: its steps, and what follows from its name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import forethought as ft
from forethought.training.optimizers import NAMES, make_optimizer
from forethought.values.use import OPTIMIZERS, UNKNOWN, USUAL_RATE, OptimizerKind, kind_of

Vector = NDArray[np.float64]
PAGE = Path(__file__).parents[2] / "docs" / "adding_an_optimizer.md"
FIRST, SECOND, NOISE = 0.9, 0.999, 0.04


def moments(gradients: list[Vector]) -> tuple[Vector, Vector, float, float]:
    """Both of Adam after these gradients, written as sums, with their corrections."""
    count = len(gradients)
    age = np.arange(count)[::-1]
    first = sum((1 - FIRST) * FIRST**k * g for k, g in zip(age, gradients, strict=True))
    second = sum((1 - SECOND) * SECOND**k * g**2 for k, g in zip(age, gradients, strict=True))
    return np.asarray(first), np.asarray(second), 1 - FIRST**count, 1 - SECOND**count


def sgd(gradients: list[Vector], weights: Vector) -> Vector:
    return np.asarray(sum(0.5**k * g for k, g in enumerate(reversed(gradients))))


def adam(gradients: list[Vector], weights: Vector) -> Vector:
    first, second, begun, settled = moments(gradients)
    return first / begun / (np.sqrt(second / settled) + 1e-8)


def adamw(gradients: list[Vector], weights: Vector) -> Vector:
    return adam(gradients, weights) + 0.01 * weights


def nadam(gradients: list[Vector], weights: Vector) -> Vector:
    first, second, _, settled = moments(gradients)
    count = len(gradients)
    rates = [FIRST * (1 - 0.5 * 0.96 ** (0.004 * t)) for t in range(1, count + 2)]
    ahead = (1 - rates[-2]) / (1 - math.prod(rates[:-1])) * gradients[-1]
    return (ahead + rates[-1] / (1 - math.prod(rates)) * first) / (np.sqrt(second / settled) + 1e-8)


def radam(gradients: list[Vector], weights: Vector) -> Vector:
    first, second, begun, settled = moments(gradients)
    most = 2 / (1 - SECOND) - 1
    here = most - 2 * len(gradients) * (1 - settled) / settled
    if here <= 5:
        return first / begun
    rectified = (here - 4) * (here - 2) * most / ((most - 4) * (most - 2) * here)
    return first / begun * math.sqrt(rectified * settled) / (np.sqrt(second) + 1e-8)


def adamax(gradients: list[Vector], weights: Vector) -> Vector:
    first, _, begun, _ = moments(gradients)
    aged = [SECOND**k * (np.abs(g) + 1e-8) for k, g in enumerate(reversed(gradients))]
    return first / begun / np.max(aged, axis=0)


def yogi(gradients: list[Vector], weights: Vector) -> Vector:
    first, _, _, _ = moments(gradients)
    second = np.full(len(weights), 1e-6)
    for g in gradients:
        second = second - (1 - SECOND) * np.sign(second - g**2) * g**2
    return first / (np.sqrt(second) + 1e-3)


def adam_bc(gradients: list[Vector], weights: Vector) -> Vector:
    first, second, begun, settled = moments(gradients)
    return first / begun / np.sqrt(np.maximum(second / settled - NOISE, 0.01))


# Name → options, and the step of size 1 after these gradients, worked out another way.
ORACLES: dict[str, tuple[dict[str, Any], Callable[[list[Vector], Vector], Vector]]] = {
    "sgd": ({"momentum": 0.5}, sgd),
    "adam": ({}, adam),
    "adamw": ({}, adamw),
    "nadam": ({}, nadam),
    "radam": ({}, radam),
    "adamax": ({}, adamax),
    "yogi": ({}, yogi),
    "adam-bc": ({"floor": 0.01}, adam_bc),
}
LENGTH = 60


def sequences(generator: np.random.Generator) -> Iterator[list[Vector]]:
    """Gradients as they come, spikes after nothing, and those that move Adam furthest."""
    yield list(generator.normal(size=(LENGTH, 5)))
    yield list(generator.normal(size=(LENGTH, 5)) * 10.0 ** generator.integers(-6, 3, (LENGTH, 1)))
    yield [np.full(5, (SECOND / FIRST) ** t) for t in range(LENGTH)]
    yield [np.full(5, 1e3)] * 4


def stepped(name: str, options: dict[str, Any], gradients: list[Vector]) -> Iterator[Vector]:
    """The weights before the first step, and after each."""
    weights = torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64))
    optimizer = make_optimizer(ft.Optimizer(name, 0.1, tuple(options.items())), [weights])
    yield weights.detach().numpy().copy()
    for gradient in gradients:
        weights.grad = torch.from_numpy(gradient)
        if hasattr(optimizer, "expect_noise"):
            optimizer.expect_noise(NOISE)
        optimizer.step()
        yield weights.detach().numpy().copy()


def check(name: str) -> None:
    """What has to hold of an optimizer that has a row."""
    kind = kind_of(name)
    assert kind is OPTIMIZERS[name] and NAMES[name] == kind.home
    assert name in ORACLES, f"the optimizer {name!r} has no oracle: add a row to ORACLES"
    options, oracle = ORACLES[name]
    for gradients in sequences(np.random.default_rng(3)):
        before, *after = stepped(name, options, gradients)
        mean = max(float(np.linalg.norm(g)) for g in gradients)
        for count, now in enumerate(after, 1):
            expected = oracle(gradients[:count], before)
            np.testing.assert_allclose((before - now) / 0.1, expected, rtol=1e-6, atol=1e-9)
            moved = np.linalg.norm(expected - kind.weight_decay * before)
            if kind.longest is not None:
                assert moved <= kind.longest(options, mean, 5) * (1 + 1e-9)
            before = now
    if kind.divides is not None:
        divided_by_noise(name, kind, options)


def divided_by_noise(name: str, kind: OptimizerKind, options: dict[str, Any]) -> None:
    """Under nothing but noise it goes as far as gradient descent of the planner's step size."""
    assert kind.divides is not None
    generator, rounds, variance = np.random.default_rng(4), 300, NOISE
    gradients = list(generator.normal(0, math.sqrt(variance), (rounds, 5)))
    *_, last, _ = stepped(name, {**options, "betas": (0.0, SECOND)}, gradients)
    first = next(stepped(name, options, []))
    root = math.sqrt(kind.divides(variance, options, rounds))
    plain = 0.1 * np.sum(gradients[:-1], axis=0) / root
    away = first - last - plain
    # The second moment of so many numbers is known to an eighth; adam-bc's floor is a bound.
    assert np.linalg.norm(away) <= 0.35 * math.sqrt(rounds * variance * 5) * 0.1 / root


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizer_is_what_its_oracle_says(name: str) -> None:
    check(name)


def test_the_bound_of_adam_is_reached_and_holds_for_other_betas() -> None:
    adams = OPTIMIZERS["adam"].longest
    assert adams is not None
    growing = [np.full(5, (FIRST / SECOND) ** age) for age in reversed(range(3000))]
    furthest = np.linalg.norm(adam(growing, np.zeros(5)))
    assert 0.95 * adams({}, 1.0, 5) <= furthest <= adams({}, 1.0, 5)
    assert adams({"betas": (0.99, 0.9)}, 1.0, 5) == math.inf
    assert adams({"betas": (0.0, 0.0)}, 1.0, 4) == 2.0


def test_nothing_is_assumed_of_an_unknown_optimizer() -> None:
    assert kind_of("rmsprop") is UNKNOWN and kind_of("mine:Optimizer") is UNKNOWN
    asked = {"examples": 1000, "budget": ft.Budget(3.0, 1e-5), "rounds": 20}
    plan = ft.plan(**asked, optimizer="rmsprop")
    assert plan.optimizer.learning_rate == USUAL_RATE and plan.optimizer.options == ()


@pytest.fixture
def added() -> Iterator[None]:
    """Rows, names and oracles that a test adds go with it."""
    tables: list[dict[str, Any]] = [OPTIMIZERS, NAMES, ORACLES]
    kept = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, kept, strict=True):
        table.clear()
        table.update(before)


@pytest.mark.usefixtures("added")
def test_the_optimizer_on_the_page_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, row, oracle = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    (tmp_path / "lion.py").write_text(steps, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    scope: dict[str, Any] = {"OPTIMIZERS": OPTIMIZERS, "ORACLES": ORACLES, "moments": moments}
    exec(compile(row, str(PAGE), "exec"), scope)
    # In the tree a row is there before the names are gathered, and its home is in the library.
    OPTIMIZERS["lion"] = replace(OPTIMIZERS["lion"], home="lion:Lion")
    NAMES["lion"] = "lion:Lion"
    with pytest.raises(AssertionError, match="'lion' has no"):
        check("lion")
    exec(compile(oracle, str(PAGE), "exec"), scope)
    check("lion")


@pytest.mark.parametrize("part", ["longest", "divides", "descends", "weight_decay", "options"])
def test_a_row_that_leaves_something_out_is_refused(part: str) -> None:
    said = {name: getattr(OPTIMIZERS["sgd"], name) for name in vars(OPTIMIZERS["sgd"])}
    del said[part]
    with pytest.raises(TypeError, match=part):
        OptimizerKind(**said)
