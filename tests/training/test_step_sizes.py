from __future__ import annotations

import math

import pytest

from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds
from forethought.values.plan import Plan, step_sizes
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
        # 0.4, 0.04, 0.004 of A(DP)²SGD, at 160 and 240 of 300 epochs: a stage begins with a round.
        (Schedule("stages", decay=0.1, stages=(0.5, 0.75)), 49, 2.0),
        (Schedule("stages", decay=0.1, stages=(0.5, 0.75)), 50, 0.2),
        (Schedule("stages", decay=0.1, stages=(0.5, 0.75)), 74, 0.2),
        (Schedule("stages", decay=0.1, stages=(0.5, 0.75)), 99, 0.02),
        (Schedule("stages", decay=0.5, stages=(0.07,), unit="examples"), 7, 1.0),
        (Schedule("stages", decay=0.5, stages=(0.29,), warmup=60), 29, 2 * 0.5 * 0.5),
    ],
)
def test_step_sizes(schedule: Schedule, index: int, value: float) -> None:
    assert step_sizes(plan(schedule))(index) == pytest.approx(value, rel=1e-12)


def test_examples_are_counted_across_parts() -> None:
    mechanism = Mechanism(Rounds(1.0, 3, Poisson(0.1)), Rounds(1.0, 2, FullBatch()))
    before = Plan(mechanism, 50, 1e-5).privacy.examples_before
    assert [before(index) for index in range(6)] == pytest.approx([0, 5, 10, 15, 65, 115])


def test_stages_of_half_roots_fall_as_the_paper_says() -> None:
    """× √½ an epoch, from the tenth of twenty on."""
    stages = tuple(epoch / 20 for epoch in range(10, 20))
    sizes = step_sizes(plan(Schedule("stages", math.sqrt(0.5), 50, stages=stages)))
    assert [sizes(5 * epoch) for epoch in range(10, 20)] == pytest.approx(
        [2 * 0.5 ** (k / 2) for k in range(1, 11)]
    )


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "stages", "decay": 0.1},
        {"stages": (0.5,)},
        {"kind": "stages", "decay": 0.1, "stages": (0.75, 0.5)},
        {"kind": "stages", "decay": 0.1, "stages": (1.0,)},
        {"kind": "stages", "decay": 2.0, "stages": (0.5,)},
        {"kind": "stages", "stages": (0.5,)},
    ],
)
def test_stages_that_make_no_schedule_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="stages"):
        Schedule(**given)  # type: ignore[arg-type]


def test_plans_with_stages_are_stored_and_others_as_ever() -> None:
    with_stages = plan(Schedule("stages", decay=0.1, stages=(0.5, 0.75)))
    assert Plan.from_dict(with_stages.to_dict()) == with_stages
    assert "stages" not in plan(Schedule("cosine")).to_dict()["use"]["schedule"]
