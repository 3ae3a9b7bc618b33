"""Figures of plans, runs and utility graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.accounting import exact
from forethought.accounting.interval import at_most
from forethought.planning.alternatives import Front
from forethought.planning.plan_request import noise_of
from forethought.utility.graph import UtilityGraph
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Poisson, Rounds
from forethought.values.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from forethought.accounting.statement import Statement
    from forethought.training.folder import RunSummary


# The figures of a finished run: learning curve, ε against rounds, and trade-off curve.


# Colours for colour-blind readers, too (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
POINTS = 24


def new_axes(title: str, x: str, y: str) -> tuple[Any, Axes]:
    """An empty figure in the library's style and its axes; it needs no display."""
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


def errors_axes(title: str) -> tuple[Any, Axes]:
    """An empty figure for an attacker's two error rates, with the line of blind guessing."""
    figure, axes = new_axes(title, "false alarms (type I error)", "misses (type II error)")
    axes.plot([0, 1], [1, 0], color=GREY, linestyle=":", label="blind guessing")
    axes.set_aspect("equal")
    return figure, axes


def saved(figure: Any, path: Path) -> Path:
    """Write a figure to a file, in a folder that is made if missing; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _drawn(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]


def _over_rounds(
    titles: tuple[str, str], points: Sequence[tuple[int, float]], colour: str, at: Any, last: str
) -> tuple[Any, Axes]:
    """A curve over rounds, its last value beside it; ``at`` is an offset in typographic points."""
    figure, axes = new_axes(titles[0], "round", titles[1])
    axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.8)
    where: dict[str, Any] = {"textcoords": "offset points", "xytext": at}
    axes.annotate(last, points[-1], ha="right", color=colour, **where)
    return figure, axes


def draw_run(summary: RunSummary, folder: Path) -> list[Path]:
    """Draw every figure of a run into ``folder`` as PNG and return their paths."""
    learning = draw_learning(summary.metrics, folder / "learning.png")
    return _drawn(learning, *draw_statement(summary.statement, folder))


def draw_statement(statement: Statement, folder: Path) -> list[Path]:
    """Draw ε against rounds and the trade-off curve of a statement; return their paths.

    Nothing is drawn for a search or a filtered run, since the curves are for rounds that are fixed
    in advance.
    """
    composed = statement.way.composed
    if composed is None:
        return []
    mechanism = composed(statement.mechanism)
    return _drawn(
        draw_epsilon(mechanism, statement.delta, folder / "epsilon.png", statement.group),
        draw_tradeoff(mechanism, folder / "tradeoff.png", statement.group),
    )


def draw_learning(metrics: Sequence[Mapping[str, str]], path: Path) -> Path | None:
    """Draw held-out accuracy, or else loss, against rounds; None: there are no such metrics."""
    name = next((n for n in ("accuracy", "test_loss", "loss") if column(metrics, n)), None)
    if name is None:
        return None
    points = column(metrics, name)
    label = {"accuracy": "accuracy on held-out data"}.get(name, name.replace("_", " "))
    last = format(points[-1][1], ".1%" if name == "accuracy" else ".3g")
    titles = "What the model learned", label
    return saved(_over_rounds(titles, points, BLUE, (-4, -14), last)[0], path)


def column(metrics: Sequence[Mapping[str, str]], name: str) -> list[tuple[int, float]]:
    """Pairs (round, value) of a figure in the rows of metrics.csv that have it."""
    return [(int(row["round"]), float(row[name])) for row in metrics if row.get(name)]


def draw_epsilon(mechanism: Mechanism, delta: float, path: Path, group: int = 1) -> Path | None:
    """Draw certified ε against rounds; None: a round has no noise."""
    total = len(mechanism)
    if any(part.noise_multiplier == 0 for part in mechanism):
        return None
    rounds = sorted({int(t) for t in np.linspace(1, total, min(POINTS, total))})
    values = [
        interval.upper
        for interval in exact.epsilon_curve(mechanism, delta, rounds, group, accuracy=1e-3)
    ]
    titles = "What it cost", f"ε at δ = {at_most(delta, '.3g')}"
    points, last = list(zip(rounds, values, strict=True)), f"ε = {at_most(values[-1], '.3g')}"
    figure, axes = _over_rounds(titles, points, ORANGE, (-14, 2), last)
    axes.set_ylim(bottom=0)
    return saved(figure, path)


def draw_tradeoff(mechanism: Mechanism, path: Path, group: int = 1) -> Path | None:
    """Draw the least miss rate of an attacker at every false-alarm rate; None: without noise."""
    if any(part.noise_multiplier == 0 for part in mechanism):
        return None
    from forethought.accounting.tradeoff import tradeoff

    curve = tradeoff(mechanism, group=group)
    alpha = np.linspace(0, 1, 401)
    figure, axes = errors_axes("What an attacker can reach")
    axes.plot(alpha, curve(alpha), color=GREEN, linewidth=1.8, label="no attack gets below")
    axes.fill_between(alpha, curve(alpha), 1 - alpha, color=GREEN, alpha=0.12)
    axes.legend(frameon=False)
    return saved(figure, path)


# The figures of a plan before it runs: ε against rounds, σ against batch, the Pareto front.


BATCHES = 12


def draw_plan(plan: Plan, folder: Path, front: Front | None = None) -> list[Path]:
    """Draw the figures of a plan into ``folder`` as PNG and return their paths."""
    return _drawn(
        draw_epsilon(plan.mechanism, plan.delta, folder / "epsilon.png", plan.records_per_person),
        draw_noise(plan, folder / "noise.png"),
        None if front is None else draw_front(front, folder / "pareto.png"),
    )


def draw_noise(plan: Plan, path: Path) -> Path | None:
    """Draw the noise for the same budget at other batch sizes.

    Returns:
        None unless the plan has a budget and equal rounds of Poisson sampling or full batches.
    """
    part, *others = plan.mechanism.rounds
    if plan.budget is None or others or not isinstance(part.sampling, Poisson | FullBatch):
        return None
    budget = Budget(plan.budget.epsilon, plan.delta)
    least = max(1.0, plan.batch / 30)
    batches = np.geomspace(least, plan.examples, BATCHES)
    samplings = (Poisson(min(1.0, batch / plan.examples)) for batch in batches)
    kinds = [Rounds(1.0, part.count, one, part.clipping, groups=part.groups) for one in samplings]
    given = plan.mechanism.adjacency, budget, plan.records_per_person
    sigmas = np.array([noise_of(kind, *given) for kind in kinds])
    title = f"Noise for ε = {at_most(budget.epsilon)} in {part.count:,} rounds"
    figure, axes = new_axes(title, "batch", "σ, and σ a record")
    axes.loglog(batches, sigmas, color=BLUE, linewidth=1.8, label="noise multiplier σ")
    relative = sigmas / batches
    axes.loglog(
        batches, relative, color=ORANGE, linewidth=1.8, label="σ / batch: noise a record meets"
    )
    axes.axvline(plan.batch, color=GREY, linestyle=":", label="this plan")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return saved(figure, path)


def draw_front(front: Front, path: Path) -> Path:
    """Draw the front: noise-to-signal ratio against ε, with gradient computations as colour."""
    figure, axes = new_axes(
        f"{len(front.candidates)} plans of those that none of {front.considered} beats",
        "ε",
        "noise for the signal (less is better)",
    )
    rows = front.candidates
    dots = axes.scatter(
        [row.epsilon for row in rows],
        [row.noise for row in rows],
        c=np.log10([row.gradients for row in rows]),
        s=[12 + 10 * np.log10(row.rounds) for row in rows],
        cmap="viridis",
        alpha=0.85,
        linewidths=0,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    figure.colorbar(dots, ax=axes, label="log₁₀ gradient computations")
    return saved(figure, path)


# The figures of a utility graph: curves with their spread, and a heat map with the admissible set.


# More curves cannot be distinguished, so that at most this many evenly spaced clip norms are drawn.
MOST_CURVES = 6
# Largest number of cells of a map in which accuracies are written as numbers.
MOST_LABELS = 80


def draw_utility(graph: UtilityGraph, folder: Path, tolerance: float = 0.1) -> list[Path]:
    """Draw ``utility_curves.png`` and ``utility_map.png`` into ``folder``; returns their paths."""
    return [
        draw_utility_curves(graph, folder / "utility_curves.png", tolerance),
        draw_utility_map(graph, folder / "utility_map.png", tolerance),
    ]


def draw_utility_curves(graph: UtilityGraph, path: Path, tolerance: float = 0.1) -> Path:
    """Draw F(w + n)/F(w) against σ, a curve per clip norm, with one standard deviation of draws."""
    from matplotlib import colormaps

    figure, axes = new_axes(
        "What noise leaves of the accuracy", "noise multiplier σ", "accuracy fraction F(w+n)/F(w)"
    )
    sigmas, count = graph.noise_multipliers, len(graph.clip_norms)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST_CURVES)).round().astype(int))
    colours = colormaps["viridis"](np.linspace(0, 0.88, len(rows)))
    for row, colour in zip(rows, colours, strict=True):
        mean, spread = graph.mean[row], graph.spread[row]
        label = f"{graph.clip_norms[row]:.3g}  ({graph.noiseless[row]:.1%})"
        # A single σ gives no line, so a marker shows it.
        marker = "o" if len(sigmas) < 3 else None
        axes.plot(sigmas, mean, color=colour, linewidth=1.8, marker=marker, label=label)
        least = np.maximum(mean - spread, 0)
        axes.fill_between(sigmas, least, mean + spread, color=colour, alpha=0.18, linewidth=0)
    axes.axhline(1 - tolerance, color=GREY, linestyle=":", linewidth=1.2)
    right: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    axes.text(1.01, 1 - tolerance, f"loses {tolerance:.0%}", fontsize=8, color=GREY, **right)
    _scale(axes, "x", sigmas)
    axes.set_ylim(0, max(1.05, float((graph.mean + graph.spread)[rows].max()) + 0.02))
    axes.legend(
        frameon=False,
        title="C  (F(w))",
        fontsize=8,
        title_fontsize=8,
        loc="lower left",
        bbox_to_anchor=(1.0, 0.0),
    )
    return saved(figure, path)


def draw_utility_map(graph: UtilityGraph, path: Path, tolerance: float = 0.1) -> Path:
    """Draw the accuracy of the perturbed model over (σ, C), with an outline of the admissible set.

    The line joins each norm's largest admissible σ; the dot is the pair that
    :meth:`~forethought.utility.graph.UtilityGraph.choose` returns.
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
    across, up = edges_of(graph.noise_multipliers), edges_of(graph.clip_norms)
    whole: dict[str, Any] = {"vmin": 0, "vmax": 1, "rasterized": True}
    mesh = axes.pcolormesh(across, up, values, cmap="cividis", **whole)
    _scale(axes, "x", graph.noise_multipliers)
    _scale(axes, "y", graph.clip_norms)
    if values.size <= MOST_LABELS:
        for (row, column), value in np.ndenumerate(values):
            place = graph.noise_multipliers[column], graph.clip_norms[row]
            colour = "black" if value > 0.6 else "white"
            axes.text(*place, f"{value:.0%}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(mesh, ax=axes, label="accuracy F(w+n)").outline.set_visible(False)
    if found:
        # A staircase along the edges of the cells.
        least, *edges = across
        right = dict(zip(graph.noise_multipliers, edges, strict=True))
        largest = {pair.clip_norm: right[pair.noise_multipliers[1]] for pair in found}
        ends = [largest.get(norm, least) for norm in graph.clip_norms]
        options: dict[str, Any] = {"orientation": "horizontal", "baseline": None}
        axes.stairs(ends, up, color="white", linewidth=2.0, **options)
        choice = graph.choose(tolerance)
        options = {"marker": "o", "markersize": 7, "markeredgecolor": "white", "clip_on": False}
        axes.plot(choice.noise_multiplier, choice.clip_norm, color=ORANGE, zorder=4, **options)
    return saved(figure, path)


def edges_of(grid: tuple[float, ...]) -> Any:
    """The borders of the cells around grid points: midpoints, on log grids of the logarithms."""
    if len(grid) == 1:
        return grid[0] * np.array([0.5, 1.5])
    points = np.log(grid) if _logarithmic(grid) else np.asarray(grid)
    middle = (points[1:] + points[:-1]) / 2
    edges = np.concatenate([[2 * points[0] - middle[0]], middle, [2 * points[-1] - middle[-1]]])
    return np.exp(edges) if _logarithmic(grid) else edges


def _logarithmic(grid: tuple[float, ...]) -> bool:
    """True if the points span at least a decade, and their logarithms are no less evenly spaced."""
    if len(grid) < 2 or grid[-1] < 10 * grid[0]:
        return False
    steps, ratios = np.diff(grid), np.diff(np.log(grid))
    return bool(ratios.max() / ratios.min() <= steps.max() / steps.min())


def _scale(axes: Axes, name: str, grid: tuple[float, ...]) -> None:
    """Make an axis logarithmic where its grid is, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if _logarithmic(grid):
        axis = axes.xaxis if name == "x" else axes.yaxis
        getattr(axes, f"set_{name}scale")("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
