"""The figures of a finished run: how it learned, how ε grew, what an attacker can reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.accounting import exact
from forethought.accounting.interval import at_most
from forethought.mechanism import Mechanism

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from forethought.accounting.statement import Statement
    from forethought.training.summary import RunSummary

# Colour-blind safe (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
POINTS = 24


def new_axes(title: str, x: str, y: str) -> tuple[Any, Axes]:
    """An empty figure in the library's style; drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def draw_run(summary: RunSummary, folder: Path) -> list[Path]:
    """Draw every figure of a run into ``folder`` as PNG and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    learning = draw_learning(summary.metrics, folder / "learning.png")
    return [*([] if learning is None else [learning]), *draw_statement(summary.statement, folder)]


def draw_statement(statement: Statement, folder: Path) -> list[Path]:
    """Draw ε against rounds and the trade-off curve of a statement; return their paths.

    Nothing is drawn for a search or a filtered run: these are curves of rounds fixed in advance.
    """
    composed = statement.way.composed
    if composed is None:
        return []
    mechanism = composed(statement.mechanism)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        draw_epsilon(mechanism, statement.delta, folder / "epsilon.png", statement.group),
        draw_tradeoff(mechanism, folder / "tradeoff.png", statement.group),
    ]
    return [path for path in drawn if path is not None]


def draw_learning(metrics: Sequence[Mapping[str, str]], path: Path) -> Path | None:
    """Held-out accuracy (or loss, where there is none) against rounds; None without records."""
    name = next((n for n in ("accuracy", "test_loss", "loss") if _column(metrics, n)), None)
    if name is None:
        return None
    rounds, values = zip(*_column(metrics, name), strict=True)
    label = {"accuracy": "accuracy on held-out data"}.get(name, name.replace("_", " "))
    figure, axes = new_axes("What the model learned", "round", label)
    axes.plot(rounds, values, color=BLUE, linewidth=1.8)
    axes.annotate(
        f"{values[-1]:.1%}" if name == "accuracy" else f"{values[-1]:.3g}",
        (rounds[-1], values[-1]),
        textcoords="offset points",
        xytext=(-4, -14),
        ha="right",
        color=BLUE,
    )
    figure.savefig(path)
    return path


def _column(metrics: Sequence[Mapping[str, str]], name: str) -> list[tuple[int, float]]:
    return [(int(row["round"]), float(row[name])) for row in metrics if row.get(name)]


def draw_epsilon(mechanism: Mechanism, delta: float, path: Path, group: int = 1) -> Path | None:
    """Certified ε against rounds; None when no noise was added."""
    total = len(mechanism)
    if any(part.noise_multiplier == 0 for part in mechanism):
        return None
    rounds = sorted({int(t) for t in np.linspace(1, total, min(POINTS, total))})
    values = [
        interval.upper
        for interval in exact.epsilon_curve(mechanism, delta, rounds, group, accuracy=1e-3)
    ]
    figure, axes = new_axes("What it cost", "round", f"ε at δ = {at_most(delta, '.2g')}")
    axes.plot(rounds, values, color=ORANGE, linewidth=1.8)
    axes.set_ylim(bottom=0)
    axes.annotate(
        f"ε = {at_most(values[-1], '.3g')}",
        (rounds[-1], values[-1]),
        textcoords="offset points",
        xytext=(-14, 2),
        ha="right",
        color=ORANGE,
    )
    figure.savefig(path)
    return path


def draw_tradeoff(mechanism: Mechanism, path: Path, group: int = 1) -> Path | None:
    """The least detection error an attacker can reach, at every false-alarm rate."""
    if any(part.noise_multiplier == 0 for part in mechanism):
        return None
    from forethought.accounting.tradeoff import tradeoff

    curve = tradeoff(mechanism, group=group)
    alpha = np.linspace(0, 1, 401)
    figure, axes = new_axes(
        "What an attacker can reach", "false alarms (type I error)", "misses (type II error)"
    )
    axes.plot(alpha, 1 - alpha, color=GREY, linestyle=":", label="blind guessing")
    axes.plot(alpha, curve(alpha), color=GREEN, linewidth=1.8, label="no attack gets below")
    axes.fill_between(alpha, curve(alpha), 1 - alpha, color=GREEN, alpha=0.12)
    axes.set_aspect("equal")
    axes.legend(frameon=False)
    figure.savefig(path)
    return path
