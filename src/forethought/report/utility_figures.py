"""The utility graph as pictures: curves with their spread, a heat map with the admissible set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.report.figures import GREY, ORANGE, new_axes
from forethought.utility.graph import UtilityGraph

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More curves than this cannot be told apart: evenly spaced clip norms are drawn.
MOST_CURVES = 6
# In up to so many cells of the map the accuracy is written out.
MOST_LABELS = 80


def draw_utility(graph: UtilityGraph, folder: Path, tolerance: float = 0.1) -> list[Path]:
    """Draw ``utility_curves.png`` and ``utility_map.png`` into ``folder``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        draw_utility_curves(graph, folder / "utility_curves.png", tolerance),
        draw_utility_map(graph, folder / "utility_map.png", tolerance),
    ]


def draw_utility_curves(graph: UtilityGraph, path: Path, tolerance: float = 0.1) -> Path:
    """F(w + n)/F(w) against σ, a curve a clip norm, with one standard deviation of the draws."""
    figure, axes = new_axes(
        "What noise leaves of the accuracy", "noise multiplier σ", "accuracy fraction F(w+n)/F(w)"
    )
    count = len(graph.clip_norms)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST_CURVES)).round().astype(int))
    colours = _colours(len(rows))
    for row, colour in zip(rows, colours, strict=True):
        mean, spread = graph.mean[row], graph.spread[row]
        label = f"{graph.clip_norms[row]:.3g}  ({graph.noiseless[row]:.1%})"
        # One σ makes no line: a dot shows it all the same.
        marker = "o" if len(graph.noise_multipliers) < 3 else None
        axes.plot(
            graph.noise_multipliers, mean, color=colour, linewidth=1.8, marker=marker, label=label
        )
        axes.fill_between(
            graph.noise_multipliers,
            np.maximum(mean - spread, 0),
            mean + spread,
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    axes.axhline(1 - tolerance, color=GREY, linestyle=":", linewidth=1.2)
    axes.annotate(
        f"loses {tolerance:.0%}",
        (1.0, 1 - tolerance),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(4, 0),
        va="center",
        fontsize=8,
        color=GREY,
    )
    if _logarithmic(graph.noise_multipliers):
        axes.set_xscale("log")
        _plain_ticks(axes, "x")
    axes.set_ylim(0, max(1.05, float((graph.mean + graph.spread)[rows].max()) + 0.02))
    axes.legend(
        frameon=False,
        title="C  (F(w))",
        fontsize=8,
        title_fontsize=8,
        loc="lower left",
        bbox_to_anchor=(1.0, 0.0),
    )
    figure.savefig(path)
    return path


def draw_utility_map(graph: UtilityGraph, path: Path, tolerance: float = 0.1) -> Path:
    """Accuracy of the perturbed model over (σ, C); the admissible set is outlined.

    The line joins each norm's largest admissible σ; the dot is the pair that
    :meth:`~forethought.utility.graph.UtilityGraph.choose` takes.
    """
    found = graph.admissible(tolerance)
    bound = f"the line bounds a loss of {tolerance:.0%}"
    figure, axes = new_axes(
        f"Accuracy after noise; {bound if found else f'all lose more than {tolerance:.0%}'}",
        "noise multiplier σ",
        "clip norm C",
    )
    axes.grid(visible=False)
    values = graph.accuracy.mean(axis=-1)
    mesh = axes.pcolormesh(
        edges_of(graph.noise_multipliers),
        edges_of(graph.clip_norms),
        values,
        cmap="cividis",
        vmin=0,
        vmax=1,
        rasterized=True,
    )
    for name, grid in (("x", graph.noise_multipliers), ("y", graph.clip_norms)):
        if _logarithmic(grid):
            getattr(axes, f"set_{name}scale")("log")
            _plain_ticks(axes, name)
    if values.size <= MOST_LABELS:
        for (row, column), value in np.ndenumerate(values):
            axes.annotate(
                f"{value:.0%}",
                (graph.noise_multipliers[column], graph.clip_norms[row]),
                ha="center",
                va="center",
                fontsize=7,
                color="black" if value > 0.6 else "white",
            )
    bar = figure.colorbar(mesh, ax=axes, label="accuracy F(w+n)")
    bar.outline.set_visible(False)
    if found:
        _outline(graph, axes, {pair.clip_norm: pair.noise_multipliers[1] for pair in found})
        choice = graph.choose(tolerance)
        axes.plot(
            choice.noise_multiplier,
            choice.clip_norm,
            marker="o",
            markersize=7,
            color=ORANGE,
            markeredgecolor="white",
            clip_on=False,
            zorder=4,
        )
    figure.savefig(path)
    return path


def _outline(graph: UtilityGraph, axes: Axes, largest: dict[float, float]) -> None:
    # A staircase along the edges of the cells.
    sigmas, norms = edges_of(graph.noise_multipliers), edges_of(graph.clip_norms)
    x, y = [], []
    for row, norm in enumerate(graph.clip_norms):
        right = (
            sigmas[graph.noise_multipliers.index(largest[norm]) + 1]
            if norm in largest
            else sigmas[0]
        )
        x += [right, right]
        y += [norms[row], norms[row + 1]]
    axes.plot(x, y, color="white", linewidth=2.0)


def edges_of(grid: tuple[float, ...]) -> Any:
    """Borders of the cells around grid points: halfway, in the logarithm where that is even."""
    points = np.log(grid) if _logarithmic(grid) else np.asarray(grid)
    if len(points) == 1:
        edges = points[0] + np.array([-0.5, 0.5]) * (1.0 if _logarithmic(grid) else points[0])
    else:
        middle = (points[1:] + points[:-1]) / 2
        edges = np.concatenate([[2 * points[0] - middle[0]], middle, [2 * points[-1] - middle[-1]]])
    return np.exp(edges) if _logarithmic(grid) else edges


def _logarithmic(grid: tuple[float, ...]) -> bool:
    """Whether the points are spread over more than a decade and evener in the logarithm."""
    if len(grid) < 2 or grid[-1] < 10 * grid[0]:
        return False
    if len(grid) == 2:
        return True
    steps, ratios = np.diff(grid), np.diff(np.log(grid))
    return bool(ratios.max() / ratios.min() < steps.max() / steps.min())


def _plain_ticks(axes: Axes, name: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["viridis"](at) for at in np.linspace(0, 0.88, count)]
