"""A gossip's plan on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from forethought.report.federation import SHOWN

if TYPE_CHECKING:
    from forethought.jobs.gossip import GossipRehearsal, Tried
    from forethought.planning.holders import GossipPlan


def show(console: Console, plan: GossipPlan) -> None:
    """Each worker's plan and what it costs, then the graphs that it could run on."""
    gossip = plan.gossip
    workers = Table(title=f"{gossip.workers} workers, {gossip.rule}, R = {gossip.rounds:,} rounds")
    for name in ("worker", "records", "batch", "noise σ", "rounds at most", "expected", "busy"):
        workers.add_column(name)
    seen = Table(title="ε by who sees what")
    observed = any(row.network_epsilon is not None for row in plan.workers)
    for name in ("worker", "budget", "neighbours", "of R rounds", "outsider", "paper, not claimed"):
        seen.add_column(name)
    if observed:
        seen.add_column("observers")
    for row in plan.workers[:SHOWN]:
        workers.add_row(
            row.name,
            f"{row.examples:,}",
            f"{row.batch:.4g}",
            f"{row.noise_multiplier:.4g}",
            f"{row.cap:,}",
            f"{row.expected_rounds:,}",
            f"{row.busy:.0%}",
        )
        cells = [
            row.budget.epsilon,
            row.epsilon,
            row.epsilon_without_headroom,
            row.outsider_epsilon,
            row.paper_epsilon,
            *((row.network_epsilon,) if observed else ()),
        ]
        seen.add_row(row.name, *("–" if cell is None else f"{cell:.4g}" for cell in cells))
    console.print(workers)
    console.print(seen)
    if len(plan.workers) > SHOWN:
        console.print(f"… and {len(plan.workers) - SHOWN:,} more")
    routes = Table(title="the same ε on other graphs")
    for name in ("", "graph", "mixing", "neighbours", "ρ", "steps to 1 %", "virtual s", "MB"):
        routes.add_column(name)
    for route in plan.routes:
        routes.add_row(
            "chosen" if route.own else "",
            route.graph,
            route.mixing,
            f"{route.neighbours:,}",
            f"{route.eigenvalue:.4f}",
            f"{route.steps:,}",
            f"{route.seconds:,.1f}",
            f"{route.megabytes:,.4g}",
        )
    console.print(routes)
    console.print(
        f"{plan.seconds:,.1f} virtual seconds; SYNC would take {plan.synchronous_seconds:,.1f}"
    )
    for note in plan.notes:
        console.print(f"- {note}")


def show_rehearsal(console: Console, rehearsal: GossipRehearsal) -> None:
    """Show the graph that comes within 0.01 of SYNC in the least time."""
    table = Table(title=f"rehearsed on {rehearsal.source} data")
    for name in (
        "graph",
        "mixing",
        "accuracy",
        "± against SYNC",
        "worst worker",
        "s to SYNC − 0.01",
        "s in all",
    ):
        table.add_column(name)
    for one in (rehearsal.synchronous, *rehearsal.tried):
        table.add_row(*_cells(one))
    console.print(table)
    best = rehearsal.chosen
    if best is None:
        console.print("no graph came within 0.01 of SYNC: give more rounds, or more exchanges")
    else:
        console.print(
            f"quickest: graph = {best.graph!r}, mixing = {best.mixing!r}; as good a prediction as "
            "that data resembles the real"
        )
        console.print(
            f"it rests on {rehearsal.repeats} runs of {rehearsal.records:,} held-out records each: "
            + (
                "at the end it is within 0.01 of SYNC even two standard errors below what was seen"
                if rehearsal.certain
                else "that it comes within 0.01 of SYNC may be chance; give more --repeats"
            )
        )
    if rehearsal.alike:
        names = ", ".join(f"{one.graph} ({one.mixing})" for one in rehearsal.alike)
        console.print(f"two standard errors would bring these within reach, too: {names}")


def _cells(one: Tried) -> tuple[str, ...]:
    reached = "never" if one.seconds is None else f"{one.seconds:,.1f}"
    return (
        one.graph,
        one.mixing,
        f"{one.accuracy:.1%}",
        f"{2 * one.error:.1%}",
        f"{one.worst:.1%}",
        reached,
        f"{one.whole:,.1f}",
    )
