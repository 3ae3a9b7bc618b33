"""Figures that can be read: no legend over a line, nothing cut off, no empty map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import forethought as ft
from forethought.planning.alternatives import pareto
from forethought.report.figures import draw_learning, draw_plan, draw_tradeoff, draw_utility
from forethought.utility.graph import UtilityGraph
from forethought.values.mechanism import FullBatch, Mechanism, Rounds
from forethought.values.plan import Plan


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Figure]]:
    """Every figure that is saved, by its file's name."""
    found: dict[str, Figure] = {}
    saved = Figure.savefig

    def save(figure: Figure, path: Path, **options: Any) -> None:
        saved(figure, path, **options)
        found[Path(path).name] = figure

    monkeypatch.setattr(Figure, "savefig", save)
    yield found


def covered(figure: Figure) -> list[str]:
    """Lines of which a piece lies under a legend."""
    figure.canvas.draw()
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    boxes = [legend.get_window_extent() for legend in legends if legend is not None]
    found = []
    for axes in figure.axes:
        for line in axes.get_lines():
            points = line.get_transform().transform(line.get_xydata())
            # Between the points as well, and only where the axes show them.
            between = np.linspace(points[:-1], points[1:], 20).reshape(-1, 2)
            inside = axes.bbox.contains
            shown = [point for point in between if inside(*point)]
            if any(box.contains(*point) for box in boxes for point in shown):
                found.append(str(line.get_label()))
    return found


def cut_off(figure: Figure) -> list[str]:
    """Texts that reach beyond the picture."""
    figure.canvas.draw()
    wide, high = figure.canvas.get_width_height()
    texts = [
        text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)
    ]
    texts += [text for axes in figure.axes for text in axes.texts]
    found = []
    for text in texts:
        box = text.get_window_extent()
        if text.get_text() and not (
            box.x0 > -1 and box.y0 > -1 and box.x1 < wide + 1 and box.y1 < high + 1
        ):
            found.append(text.get_text())
    return found


def filled(axes: Axes) -> float:
    """The share of the axes' area that is not white."""
    canvas: Any = axes.figure.canvas
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    box = axes.bbox
    inside = pixels[int(box.y0) + 2 : int(box.y1) - 2, int(box.x0) + 2 : int(box.x1) - 2]
    return float((inside < 250).any(axis=2).mean())


PLANS = (
    {"examples": 500, "budget": ft.Budget(2.0, 1e-4), "rounds": 20},
    {"examples": 60_000, "budget": ft.Budget(0.5, 1e-6), "epochs": 3},
    {"examples": 5000, "budget": ft.Budget(8.0, 1e-5), "records_per_person": 3},
    {"examples": 300, "budget": ft.Budget(1.0, 1e-4), "sampling": "full-batch", "rounds": 30},
)


@pytest.mark.slow
@pytest.mark.parametrize("request_", PLANS, ids=["small", "large", "persons", "full batch"])
def test_no_legend_lies_over_a_line_of_a_plan(tmp_path, drawn, request_):
    plan = ft.plan(**request_)
    draw_plan(plan, tmp_path)
    draw_tradeoff(plan.mechanism, tmp_path / "tradeoff.png")
    assert {"epsilon.png", "noise.png", "tradeoff.png"} <= set(drawn)
    for name, figure in drawn.items():
        assert (name, covered(figure), cut_off(figure)) == (name, [], [])


def test_the_check_notices_a_legend_over_a_line():
    """The figure as it once was: a legend inside, over the plan's own line."""
    from forethought.report.figures import new_axes

    figure, axes = new_axes("t", "x", "y")
    axes.plot([0, 1], [0, 1], label="a line")
    axes.legend(loc="center")
    assert covered(figure) == ["a line"]


@pytest.mark.slow
def test_a_front_and_a_curve_are_readable(tmp_path, drawn):
    front = pareto(examples=500, batches=[10, 50], rounds=[5, 20], noise_multipliers=[1.0, 3.0])
    draw_plan(ft.plan(**PLANS[0]), tmp_path, front)
    rows = [{"round": str(n), "accuracy": str(1 - 0.5 / n)} for n in range(1, 30)]
    draw_learning(rows, tmp_path / "learning.png")
    for name in ("pareto.png", "learning.png"):
        assert (covered(drawn[name]), cut_off(drawn[name])) == ([], [])


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("norms", "sigmas"),
    [((0.1,), (1.0,)), ((0.1,), (1.0, 2.0)), ((0.1, 1.0), (1.0,)), ((0.1, 1, 10), (0.5, 5, 50))],
)
@pytest.mark.parametrize("scale", [0.05, 50.0])
def test_a_utility_map_is_never_empty(tmp_path, drawn, norms, sigmas, scale):
    product = np.multiply.outer(np.outer(norms, sigmas), np.linspace(0.8, 1.2, 5))
    draw_utility(
        UtilityGraph(
            tuple(norms),
            tuple(sigmas),
            np.full(len(norms), 0.9),
            0.9 * np.exp(-scale * product),
            "synthetic",
            100,
            Plan(Mechanism(Rounds(0.0, 1, FullBatch())), examples=10, delta=0.01),
        ),
        tmp_path,
    )
    assert filled(drawn["utility_map.png"].axes[0]) > 0.9
    for figure in drawn.values():
        assert (covered(figure), cut_off(figure)) == ([], [])
