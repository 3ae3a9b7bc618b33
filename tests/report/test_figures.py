"""Figures are drawn from what a run says, and left out where there is nothing to draw."""

from __future__ import annotations

from pathlib import Path

import pytest

import forethought as ft
from forethought.planning.alternatives import pareto
from forethought.report.figures import draw_epsilon, draw_learning, draw_plan, draw_tradeoff

MECHANISM = ft.Mechanism(ft.Rounds(2.0, 30, ft.Poisson(0.1)))
SILENT = ft.Mechanism(ft.Rounds(0.0, 30, ft.Poisson(0.1)))


def is_picture(path: Path | None) -> bool:
    return (
        path is not None and path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
    )


def test_learning_draws_the_best_measure_there_is(tmp_path: Path) -> None:
    rows = [{"round": "1", "accuracy": "0.5"}, {"round": "2", "accuracy": "0.7"}]
    assert is_picture(draw_learning(rows, tmp_path / "a.png"))
    assert is_picture(draw_learning([{"round": "1", "test_loss": "0.5"}], tmp_path / "b.png"))
    assert draw_learning([{"round": "1", "accuracy": ""}], tmp_path / "c.png") is None


def test_privacy_figures_need_noise(tmp_path: Path) -> None:
    assert is_picture(draw_epsilon(MECHANISM, 1e-5, tmp_path / "a.png"))
    assert is_picture(draw_tradeoff(MECHANISM, tmp_path / "b.png"))
    assert draw_epsilon(SILENT, 1e-5, tmp_path / "c.png") is None
    assert draw_tradeoff(SILENT, tmp_path / "d.png") is None


@pytest.mark.slow
def test_a_plan_and_its_front_are_drawn(tmp_path: Path) -> None:
    plan = ft.plan(examples=500, budget=ft.Budget(2.0, 1e-4), rounds=20)
    front = pareto(
        examples=500, batches=[10, 50], rounds=[5, 20], noise_multipliers=[1.0, 3.0], delta=1e-4
    )
    drawn = draw_plan(plan, tmp_path, front)
    assert [path.name for path in drawn] == ["epsilon.png", "noise.png", "pareto.png"]
    assert all(map(is_picture, drawn))
