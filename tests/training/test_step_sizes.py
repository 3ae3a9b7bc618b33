from __future__ import annotations

import math

import pytest

from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import Plan, step_sizes
from forethought.values.samplings import FullBatch, Poisson
from forethought.values.use import Optimizer, Schedule


def plan(schedule: Schedule, rounds: int = 100) -> Plan:
    mechanism = Mechanism(Rounds(1.0, rounds, Poisson(0.1)))
    return Plan(mechanism, 50, 1e-5, optimizer=Optimizer(learning_rate=2.0), schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "index", "value"),
    [
        (Schedule(), 99, 2.0),
        (Schedule("inverse", decay=0.5), 0, 2.0),
        (Schedule("inverse", decay=0.5), 6, 2 / 4),
        (Schedule("inverse-sqrt", decay=0.5), 16, 2 / 3),
        (Schedule("cosine"), 0, 2.0),
        (Schedule("cosine"), 50, 1.0),
        (Schedule("cosine"), 25, 1 + math.sqrt(0.5)),
        (Schedule(warmup=4), 0, 0.5),
        (Schedule(warmup=4), 3, 2.0),
        (Schedule(warmup=4), 50, 2.0),
        (Schedule("inverse", decay=0.5, warmup=4), 2, 2 * 0.75 / 2),
        (Schedule("inverse", decay=0.1, unit="examples"), 6, 2 / 4),  # 5 examples a round
        (Schedule("cosine", unit="examples"), 50, 1.0),
    ],
)
def test_step_sizes(schedule: Schedule, index: int, value: float) -> None:
    assert step_sizes(plan(schedule))(index) == pytest.approx(value, rel=1e-12)


def test_examples_are_counted_across_parts() -> None:
    mechanism = Mechanism(Rounds(1.0, 3, Poisson(0.1)), Rounds(1.0, 2, FullBatch()))
    before = Plan(mechanism, 50, 1e-5).privacy.examples_before
    assert [before(index) for index in range(6)] == pytest.approx([0, 5, 10, 15, 65, 115])
