"""A federation on the terminal, and the figures of its simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from forethought.accounting.interval import at_most
from forethought.federated.federation import local_words
from forethought.report.figures import BLUE, GREY, ORANGE, new_axes

if TYPE_CHECKING:
    from forethought.federated.federation import Federation
    from forethought.values.plan import Plan

# More rows than this nobody reads.
SHOWN = 20


def show_federation(console: Console, federation: Federation) -> None:
    """Show the clients, and the plan of each."""
    rows = f"{len(federation.members)} clients, {federation.rule}, {federation.rounds} rounds"
    if federation.local_rounds != 1:
        rows += f" of {local_words(federation.local_rounds)} local rounds"
    table = Table("client", "records", "batch", "noise σ", "ε planned", title=rows)
    for member in federation.members[:SHOWN]:
        plan = federation.plans[member.plan]
        budget = "" if plan.budget is None else f"{plan.budget.epsilon:g}"
        table.add_row(
            member.name,
            f"{plan.examples:,}",
            _batch(plan),
            f"{plan.mechanism.rounds[0].noise_multiplier:.4g}",
            budget,
        )
    if len(federation.members) > SHOWN:
        table.add_row(f"… {len(federation.members) - SHOWN} more", "", "", "", "")
    console.print(table)


def _batch(plan: Plan) -> str:
    """Expected batch sizes: one, or from first to last."""
    last = plan.rounds
    first, final = (
        plan.privacy.examples_before(end) - plan.privacy.examples_before(end - 1)
        for end in (1, last)
    )
    return f"{first:.4g}" if first == final else f"{first:.4g} to {final:.4g}"


def show_simulated(console: Console, summary: Mapping[str, Any]) -> None:
    """Show the outcome of a simulation."""
    table = Table("client", "rounds", "ε spent", "of a budget of", "busy, virtual s")
    for row in summary["clients"][:SHOWN]:
        spent, budget = row["epsilon"], row["budget"]
        table.add_row(
            row["name"],
            f"{row['rounds']}",
            "" if spent is None else spent if isinstance(spent, str) else at_most(spent),
            "" if budget is None else f"{budget:g}",
            f"{row['busy']:.1f}",
        )
    console.print(table)
    if "fused" in summary:
        console.print(f"[yellow]{summary['fused']}[/yellow]")
    if summary["accuracy"] is not None:
        console.print(f"accuracy {summary['accuracy']:.1%}")
    console.print(
        f"{summary['seconds']:.1f} virtual seconds; synchronous rounds of the same number would "
        f"take {summary['synchronous_seconds']:.1f}"
    )
    console.print(f"{summary['messages']:,} messages, {summary['megabytes']:.1f} MB")
    for code, text in summary["alarms"][:SHOWN]:
        console.print(f"[yellow]{code}[/yellow]: {text}")


def draw_timeline(summary: Mapping[str, Any], path: Path) -> Path:
    """Draw the computations of each client: a line a client, a bar an update, in virtual
    seconds."""
    return draw_bars(summary, summary["clients"], "client", path)


def draw_bars(
    summary: Mapping[str, Any], holders: Sequence[Mapping[str, Any]], what: str, path: Path
) -> Path:
    """Draw the computations: a line a holder (with "name" and "busy"), a bar a computation."""
    figure, axes = new_axes("Who computed when", "virtual seconds", what)
    rows: dict[int, list[tuple[float, float]]] = {}
    for client, begin, end in summary["timeline"]:
        if client < SHOWN:
            rows.setdefault(int(client), []).append((begin, end - begin))
    usual = median(row["busy"] for row in holders)
    for client, bars in rows.items():
        # Whoever is busy much longer than most is what the others may have waited for.
        slow = holders[client]["busy"] > 1.5 * usual
        axes.broken_barh(
            bars,
            (client - 0.4, 0.8),
            facecolors=ORANGE if slow else BLUE,
            edgecolor="white",
            linewidth=0.3,
        )
    names = [row["name"] for row in holders[:SHOWN]]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(summary["seconds"], color=GREY, linewidth=0.8)
    figure.savefig(path)
    return path


def draw_accuracy(summary: Mapping[str, Any], path: Path) -> Path | None:
    """Accuracy against virtual seconds."""
    return draw_accuracies(summary["accuracies"], "Accuracy of the global model", path)


def draw_accuracies(points: Sequence[tuple[float, float]], title: str, path: Path) -> Path | None:
    """Points of (virtual second, accuracy) as a curve; None where there are none."""
    if not points:
        return None
    figure, axes = new_axes(title, "virtual seconds", "accuracy")
    seconds, accuracies = zip(*points, strict=True)
    axes.plot(seconds, accuracies, color=BLUE)
    figure.savefig(path)
    return path
