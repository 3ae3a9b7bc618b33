"""The table and the figures of finished cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from cells import CASES, NOISE, SEQUENCE_NOISE, Cell

CALLED = {
    "even": "even (workers alike)",
    "I": "I (a random worker two times slower)",
    "II": "II (one worker ten times slower)",
    "III": "III (batch and step size doubled)",
}
RULES = {"allreduce": "SYNC", "asynchronous": "A(DP)²SGD"}
Found = Mapping[Cell, dict[str, Any]]


def table(
    found: Found, places: Mapping[str, int], tiny: tuple[str, ...], goals: Iterable[list[Cell]]
) -> str:
    """The form of Table 1: rows are models, columns noise and rule; the goals; then every cell's
    promise.

    Args:
        places: of the tasks. tiny: tasks whose figures are of runs, not of what a model can do.
        goals: the cells of each, SYNC's and A(DP)²SGD's in turn.
    """
    heads = [f"{noise}, {short}" for noise in NOISE for short in RULES.values()]
    lines = [
        "# Table 1",
        "",
        "`python experiments/gossip/run.py --write` prints this. Accuracy in per cent of the "
        "average of all workers' models (the LSTM: held-out loss as well), and in brackets the "
        "worst worker's. σ is the paper's: per coordinate of a sum of gradients, here of gradients "
        "clipped to C = 1, so that the noise multiplier is the same number. A printed σ says "
        "nothing about ε; the last table does. A(DP)²SGD with the library's defaults; first rounds "
        "are staggered where a row says so, since the others are older. A star: the worst worker "
        "on the first 1,000 or 2,500 test records, which are harder than the rest; "
        "the others on all.",
        "",
        f"| model | {' | '.join(heads)} |",
        "| --- |" + " --- |" * (2 * len(NOISE)),
    ]
    names = [task for task in places if any(cell.task == task for cell in found)]
    for task in names:
        texts = []
        for noise, rule in product(NOISE, RULES):
            either = (Cell(task, rule, noise, stagger=stagger) for stagger in (False, True))
            row = next(((cell, found[cell]) for cell in either if cell in found), None)
            texts.append(_figure(*row) if row else "")
        lines.append(f"| {task} | {' | '.join(texts)} |")
    if any(task in tiny for task in names):
        lines += [
            "",
            "Rows of two rounds of four workers (16 images each, batches of 4, tested on 50) show "
            "that the networks of that row run whole, and at what ε; their accuracies are chance. "
            "`--full` has the paper's sizes.",
        ]
    for cells in goals:
        if beside := _goal(found, cells):
            lines += ["", *beside]
    lines += [
        "",
        "Every cell's ε is certified for the worker with most updates, at its own rate and "
        "δ = 1/n; virtual seconds count a usual worker's computation as 1 (2 where the batch is "
        "doubled). As printed: gradients at a worker's own weights, two exchanges a computation.",
        "",
        "| model | rule | case | seed | σ | rate | rounds, least to most | ε | δ | "
        "accuracy (worst) | virtual s | SYNC's s | processor s |",
        "| --- |" + " --- |" * 12,
    ]
    for cell, row in sorted(found.items(), key=lambda pair: _place(pair[0], places)):
        noise = (SEQUENCE_NOISE if cell.task.startswith("seq") else NOISE)[cell.noise]
        epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        lines.append(
            f"| {cell.task} | {_called(cell)} | "
            f"{cell.case} | {cell.seed} | {noise:g} | {row['rate']:.4f} | "
            f"{row['fewest']} to {row['rounds']} | {epsilon} | {row['delta']:.2g} | "
            f"{_figure(cell, row)} | {row['seconds']:.0f} | "
            f"{row['synchronous_seconds']:.0f} | {row['processor']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _goal(found: Found, cells: list[Cell]) -> list[str]:
    """A case beside SYNC, by noise: each seed's SYNC, and A(DP)²SGD after it."""
    pairs = [
        pair
        for pair in zip(cells[::2], cells[1::2], strict=True)
        if all(cell in found for cell in pair)
    ]
    if not pairs:
        return []
    asynchronous = pairs[0][1]
    lines = [
        f"Case {CALLED[asynchronous.case]}, {asynchronous.task}, seeds that nothing was chosen on"
        f"{', first rounds staggered' if asynchronous.stagger else ''}:",
        "",
        "| σ | seeds | SYNC | A(DP)²SGD | difference of the means | of each seed | SYNC's seconds "
        "over A(DP)²SGD's |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for noise, sigma in NOISE.items():
        ours = [(found[one], found[two]) for one, two in pairs if one.noise == noise]
        if not ours:
            continue
        gaps = [two["accuracy"] - one["accuracy"] for one, two in ours]
        seeds = ", ".join(str(one.seed) for one, _ in pairs if one.noise == noise)
        faster = [two["synchronous_seconds"] / two["seconds"] for _, two in ours]
        lines.append(
            f"| {sigma:g} | {seeds} | {mean(one['accuracy'] for one, _ in ours):.2f} | "
            f"{mean(two['accuracy'] for _, two in ours):.2f} | {mean(gaps):+.2f} | "
            f"{', '.join(f'{gap:+.2f}' for gap in gaps)} | {min(faster):.1f} to {max(faster):.1f} |"
        )
    return lines


def _called(cell: Cell) -> str:
    return (
        RULES[cell.rule]
        + (", as printed" if cell.printed else "")
        + (", staggered" if cell.stagger else "")
    )


def _figure(cell: Cell, row: dict[str, Any]) -> str:
    if cell.task.startswith("seq"):
        return f"loss {row['loss']:.3f}, {row['accuracy']:.1f} ({row['worst']:.1f})"
    star = "*" if "worst_of" in row else ""
    return f"{row['accuracy']:.2f} ({row['worst']:.2f}{star})"


def _place(cell: Cell, places: Mapping[str, int]) -> tuple[int, ...]:
    return (
        places[cell.task],
        CASES.index(cell.case),
        list(NOISE).index(cell.noise),
        list(RULES).index(cell.rule),
        cell.printed,
        cell.stagger,
        cell.seed,
    )


def figures(found: Found, tasks: tuple[str, ...], real: list[dict[str, Any]], folder: Path) -> None:
    """Figure 1: against epochs at every noise. Figures 2 to 4: the three cases, against epochs,
    virtual seconds, and seconds of real processes.

    Args:
        real: rows of real.jsonl.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = tuple(task for task in tasks if any(cell.task == task for cell in found))
    if not tasks:
        return
    figure, panels = pyplot.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 4), squeeze=False)
    for panel, task in zip(panels[0], tasks, strict=True):
        for shade, (noise, sigma) in enumerate(NOISE.items()):
            for rule, short in RULES.items():
                curve = curve_of(found, Cell(task, rule, noise))
                _line(panel, curve, 1, rule, f"{short}, σ = {sigma:g}", f"C{shade}")
        _labelled(panel, f"{task}, workers alike", "epochs")
    _saved(figure, folder / "figure_1.png")
    for number, case, noise in ((2, "I", "medium"), (3, "II", "medium"), (4, "III", "small")):
        measured = [row for row in real if (row["case"], row["seed"]) == (case, 1)]
        columns = len(tasks) + bool(measured)
        figure, panels = pyplot.subplots(2, columns, figsize=(4.6 * columns, 6.6), squeeze=False)
        for place, task in enumerate(tasks):
            for rule, short in RULES.items():
                curve = curve_of(found, Cell(task, rule, noise, case))
                _line(panels[0][place], curve, 1, rule, short, _shade(rule))
                _line(panels[1][place], curve, 0, rule, short, _shade(rule))
            title = f"{task}, σ = {NOISE[noise]:g}, case {case}"
            _labelled(panels[0][place], title, "epochs")
            length = 2 if case == "III" else 1
            _labelled(panels[1][place], "", f"virtual seconds (a computation: {length} s)")
        for row in measured:
            for panel, column in ((panels[0][-1], 1), (panels[1][-1], 0)):
                _line(
                    panel,
                    row["curve"],
                    column,
                    row["rule"],
                    RULES[row["rule"]],
                    _shade(row["rule"]),
                )
        if measured:
            title = f"MNIST, linear, ε = 2, case {case}: four processes"
            _labelled(panels[0][-1], title, "epochs")
            _labelled(panels[1][-1], "", "real seconds")
        _saved(figure, folder / f"figure_{number}.png")


def _shade(rule: str) -> str:
    return "C3" if rule == "asynchronous" else "C0"


def _line(
    panel: Any, curve: list[list[float]], column: int, rule: str, label: str, shade: str
) -> None:
    if curve:
        style = "-" if rule == "asynchronous" else "--"
        heights = [point[2] for point in curve]
        panel.plot(
            [point[column] for point in curve], heights, style, color=shade, label=label, marker="."
        )


def _labelled(panel: Any, title: str, axis: str) -> None:
    panel.set(xlabel=axis, ylabel="accuracy of the average, %")
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.3)
    if panel.lines:
        panel.legend(fontsize=8)


def _saved(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def curve_of(found: Found, cell: Cell) -> list[list[float]]:
    """A cell's curve. SYNC's in the cases I and II is that of even workers at other times: its
    updates do not depend on who is slow, and every round takes as long as the slowest."""
    if cell in found:
        return list(found[cell]["curve"])
    even = found.get(Cell(cell.task, cell.rule, cell.noise))
    if cell.rule != "allreduce" or even is None or cell.case == "III":
        return []
    slower = {"I": 2.0, "II": 10.0}[cell.case] * even["rounds"] / even["seconds"]
    return [[slower * seconds, *rest] for seconds, *rest in even["curve"]]
