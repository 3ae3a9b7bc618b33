"""Records that steer a run may be called public only when they are no private ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import forethought as ft
from forethought.data import Dataset, Split
from forethought.training.execution import Interrupted
from forethought.training.folder import UnfinishedRun
from forethought.training.records import CoincidingRecordsError

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(120, 3)).astype(np.float32)
Y = RANDOM.integers(2, size=120)
PLAN = ft.plan(examples=80, budget=ft.Budget(2.0, 1e-4), batch=20, rounds=6)
TRAIN, OTHER = (X[:80], Y[:80]), (X[80:], Y[80:])
# A single private record among public ones.
MIXED = (np.concatenate([X[80:], X[:1]]), np.concatenate([Y[80:], Y[:1]]))
TRIALS = ft.NegativeBinomialTrials.of_mean(2, shape=0)


def until(test: object, **options: object) -> ft.PhasedRun:
    return ft.train_until(nn.Linear(3, 2), TRAIN, PLAN, accuracy=0.01, test=test, **options)  # type: ignore[arg-type]


def test_private_records_are_not_public() -> None:
    for test in (TRAIN, MIXED):
        with pytest.raises(CoincidingRecordsError):
            until(test, decide_on="public")
        with pytest.raises(CoincidingRecordsError):
            ft.tune(
                lambda: nn.Linear(3, 2), TRAIN, [PLAN], trials=TRIALS, holdout=test,
                scoring="public",
            )  # fmt: skip


def test_public_records_are_named_as_declared_and_mixed_ones_as_such() -> None:
    found = until(OTHER, decide_on="public").statement
    assert any("are public" in str(text) for text in found.assumptions)
    mixed = until(MIXED).statement
    assert any("equal to records" in str(use) for use in mixed.not_covered)


def test_the_test_part_of_private_data_is_private() -> None:
    data = Dataset("own", Split(*TRAIN), Split(*OTHER), 2)  # type: ignore[arg-type]
    with pytest.raises(CoincidingRecordsError, match="private as the"):
        ft.train_until(nn.Linear(3, 2), data, PLAN, accuracy=0.01, decide_on="public")
    with pytest.raises(CoincidingRecordsError, match="private as the"):
        ft.tune(lambda: nn.Linear(3, 2), data, [PLAN], trials=TRIALS, scoring="public")


@pytest.mark.slow
def test_a_seeded_run_in_phases_goes_on_with_its_seeds_though_nobody_repeats_them(
    tmp_path: Path,
) -> None:
    plan = ft.plan_phases(PLAN)

    def go(folder: Path, **options: object) -> ft.PhasedRun:
        model = nn.Linear(3, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return ft.train_until(model, TRAIN, plan, accuracy=1.0, test=OTHER, out=folder, **options)  # type: ignore[arg-type]

    whole = go(tmp_path / "whole", seed=3, noise_seed=4)

    def stop(event: object) -> None:
        raise Interrupted(tmp_path / "cut", 1)

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", seed=3, noise_seed=4, progress=stop)
    found = UnfinishedRun.load(tmp_path / "cut")
    assert (found.released, found.spent) == (1, None)
    again = go(tmp_path / "cut", resume=True)
    np.testing.assert_array_equal(
        again.model.weight.detach().numpy(), whole.model.weight.detach().numpy()
    )
    assert not again.statement.private
