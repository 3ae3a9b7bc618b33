"""A gossip on the terminal, and the figures of its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from forethought.accounting.interval import at_most
from forethought.report.federation import SHOWN, draw_accuracies, draw_bars

if TYPE_CHECKING:
    from forethought.gossip.gossip import Gossip


def show_gossip(console: Console, gossip: Gossip) -> None:
    """Show the workers, the plan of each, and the graph."""
    mixing = gossip.mixing
    title = (
        f"{gossip.workers} workers, {gossip.rule}, {mixing.graph.kind} graph, {mixing.kind}; "
        f"all stop at {gossip.total:,} updates"
    )
    table = Table(
        "worker", "records", "batch", "rounds at most", "noise σ", "ε planned", title=title
    )
    for member in gossip.members[:SHOWN]:
        plan = gossip.plans[member.plan]
        budget = "" if plan.budget is None else f"{plan.budget.epsilon:g}"
        table.add_row(
            member.name,
            f"{plan.examples:,}",
            f"{plan.batch:.4g}",
            f"{plan.rounds}",
            f"{plan.mechanism.rounds[0].noise_multiplier:.4g}",
            budget,
        )
    if gossip.workers > SHOWN:
        table.add_row(f"… {gossip.workers - SHOWN} more", "", "", "", "", "")
    console.print(table)


def show_simulated(console: Console, summary: Mapping[str, Any]) -> None:
    """Show the outcome of a simulation."""
    table = Table("worker", "rounds", "ε spent", "of a budget of", "accuracy", "busy, virtual s")
    for row in summary["workers"][:SHOWN]:
        spent, budget, accuracy = row["epsilon"], row["budget"], row["accuracy"]
        table.add_row(
            row["name"],
            f"{row['rounds']}",
            spent if isinstance(spent, str) else at_most(spent),
            "" if budget is None else f"{budget:g}",
            "" if accuracy is None else f"{accuracy:.1%}",
            f"{row['busy']:.1f}",
        )
    console.print(table)
    if summary["accuracy"] is not None:
        console.print(
            f"accuracy {summary['accuracy']:.1%} of the average model, {summary['worst']:.1%} of "
            "the worst worker's"
        )
    ratio = summary["synchronous_seconds"] / summary["seconds"]
    console.print(
        f"{summary['seconds']:.1f} virtual seconds; SYNC would take "
        f"{summary['synchronous_seconds']:.1f}, {ratio:.1f} times as long"
    )
    console.print(f"{summary['messages']:,} messages, {summary['megabytes']:.1f} MB")
    for worker, code, text in summary["alarms"][:SHOWN]:
        console.print(f"[yellow]{summary['workers'][worker]['name']}: {code}[/yellow]: {text}")


def draw_simulation(summary: Mapping[str, Any], folder: Path) -> None:
    """Draw the computations of each worker, and accuracy against virtual seconds."""
    draw_bars(summary, summary["workers"], "worker", folder / "timeline.png")
    draw_accuracies(
        [(seconds, accuracy) for seconds, _, accuracy in summary["accuracies"]],
        "Accuracy of the average model",
        folder / "accuracy.png",
    )
