"""Terminal output of a federation or a gossip: plan, progress, and result of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from forethought.accounting.interval import at_most, first_to_last
from forethought.federated.federation import Federation, local_words
from forethought.planning.holders import FederatedPlan, GossipPlan
from forethought.report.figures import BLUE, GREY, ORANGE, new_axes
from forethought.report.terminal import figures

if TYPE_CHECKING:
    from forethought.gossip.gossip import Gossip
    from forethought.holders.server import Status
    from forethought.jobs.public_proxy import GossipRehearsal
    from forethought.values.plan import Plan

# Largest number of rows of a table.
SHOWN = 20


# The holders and their plans.


def show_agreed(console: Console, agreed: Federation | Gossip) -> None:
    """Print the holders, the plan of each, and the graph of a gossip."""
    title = f"{len(agreed.members)} clients, {agreed.rule}, {agreed.rounds} rounds"
    own: dict[str, str] = {}
    if isinstance(agreed, Federation):
        if agreed.local_rounds != 1:
            title += f" of {local_words(agreed.local_rounds)} local rounds"
    else:
        mixing = agreed.mixing
        title = (
            f"{agreed.workers} workers, {agreed.rule}, {mixing.graph.kind} graph, {mixing.kind}; "
            f"all stop at {agreed.total:,} updates"
        )
        own = {"rounds at most": "{0[1].rounds}"}
    columns = {
        "client" if isinstance(agreed, Federation) else "worker": "{0[0]}",
        "records": "{0[1].examples:,}",
        "batch": lambda row: _batch(row[1]),
        **own,
        "noise σ": "{0[1].mechanism.rounds[0].noise_multiplier:.4g}",
        "ε planned": lambda row: _spent(row[1].budget and row[1].budget.epsilon),
    }
    members = agreed.members
    rows = [(member.name, agreed.plans[member.plan]) for member in members[:SHOWN]]
    console.print(figures(rows, columns, title=title))
    _more(console, len(members))


def _batch(plan: Plan) -> str:
    """The expected batch size, or the first and the last one, in words."""
    before = plan.privacy.examples_before
    return first_to_last([before(end) - before(end - 1) for end in (1, plan.rounds)], ".4g")


# The predicted costs of all holders.


def show_plan(console: Console, plan: FederatedPlan | GossipPlan) -> None:
    """Print each holder's plan and costs, and alternatives with the same ε."""
    if isinstance(plan, FederatedPlan):
        _show_federation_plan(console, plan)
    else:
        _show_gossip_plan(console, plan)
    for note in plan.notes:
        console.print(f"- {note}")


def _show_federation_plan(console: Console, plan: FederatedPlan) -> None:
    """Print each client's plan and costs, then other divisions into global rounds."""
    federation = plan.federation
    clients = {
        "client": "{0.name}",
        "records": "{0.examples:,}",
        "speed": "{0.speed:.3g}",
        "sample s": "{0.batch:.4g}",
        "noise σ": "{0.noise_multiplier:.4g}",
        "updates": "{0.updates:,}",
        "MB": "{0.megabytes:.4g}",
    }
    title = (
        f"{len(plan.clients)} clients, {federation.rule}, "
        f"{federation.rounds:,} rounds of {local_words(federation.local_rounds)} local ones"
    )
    console.print(figures(plan.clients[:SHOWN], clients, title=title))
    seen: dict[str, Any] = {
        "client": "{0.name}",
        "budget": _bound("budget.epsilon"),
        "server": _bound("epsilon"),
        "secure server": _bound("secure_epsilon"),
        "outsider": _bound("outsider_epsilon"),
    }
    if federation.secure is None:
        del seen["secure server"]
    console.print(figures(plan.clients[:SHOWN], seen, title="ε by who sees what"))
    _more(console, len(plan.clients))
    splits = {
        "": lambda split: "chosen" if split.chosen else "",
        "E, local rounds": lambda split: local_words(split.local_rounds),
        "E, epochs": "{0.local_epochs:.3g}",
        "R, global": "{0.rounds:,}",
        "MB a client": "{0.megabytes:.4g}",
        "virtual seconds": "{0.seconds:,.1f}",
    }
    title = "the same ε, other splits of the private rounds"
    console.print(figures(plan.splits, splits, title=title))


def _show_gossip_plan(console: Console, plan: GossipPlan) -> None:
    """Print each worker's plan and costs, then other possible graphs."""
    gossip = plan.gossip
    workers = {
        "worker": "{0.name}",
        "records": "{0.examples:,}",
        "batch": "{0.batch:.4g}",
        "noise σ": "{0.noise_multiplier:.4g}",
        "rounds at most": "{0.cap:,}",
        "expected": "{0.expected_rounds:,}",
        "busy": "{0.busy:.0%}",
    }
    title = f"{gossip.workers} workers, {gossip.rule}, R = {gossip.rounds:,} rounds"
    console.print(figures(plan.workers[:SHOWN], workers, title=title))
    seen: dict[str, Any] = {
        "worker": "{0.name}",
        "budget": _bound("budget.epsilon"),
        "neighbours": _bound("epsilon"),
        "of R rounds": _bound("epsilon_without_headroom"),
        "outsider": _bound("outsider_epsilon"),
        "paper, not claimed": _bound("paper_epsilon"),
    }
    if any(row.network_epsilon is not None for row in plan.workers):
        seen["observers"] = _bound("network_epsilon")
    console.print(figures(plan.workers[:SHOWN], seen, title="ε by who sees what"))
    _more(console, len(plan.workers))
    routes = {
        "": lambda route: "chosen" if route.own else "",
        "graph": "{0.graph}",
        "mixing": "{0.mixing}",
        "neighbours": "{0.neighbours:,}",
        "ρ": "{0.eigenvalue:.4f}",
        "steps to 1 %": "{0.steps:,}",
        "virtual s": "{0.seconds:,.1f}",
        "MB": "{0.megabytes:,.4g}",
    }
    console.print(figures(plan.routes, routes, title="the same ε on other graphs"))
    console.print(
        f"{plan.seconds:,.1f} virtual seconds; SYNC would take {plan.synchronous_seconds:,.1f}"
    )


def _bound(name: str) -> Any:
    """A cell with an ε of a row, rounded up; a dash where there is none."""
    of = attrgetter(name)
    return lambda row: "–" if (value := of(row)) is None else at_most(value)


def _more(console: Console, rows: int) -> None:
    if rows > SHOWN:
        console.print(f"… and {rows - SHOWN:,} more")


def show_rehearsal(console: Console, rehearsal: GossipRehearsal) -> None:
    """Print the rehearsal of all graphs, and the one within 0.01 of SYNC in the least time."""
    columns = {
        "graph": "{0.graph}",
        "mixing": "{0.mixing}",
        "accuracy": "{0.accuracy:.1%}",
        "± against SYNC": lambda one: f"{2 * one.error:.1%}",
        "worst worker": "{0.worst:.1%}",
        "s to SYNC − 0.01": lambda one: "never" if one.seconds is None else f"{one.seconds:,.1f}",
        "s in all": "{0.whole:,.1f}",
    }
    rows = (rehearsal.synchronous, *rehearsal.tried)
    console.print(figures(rows, columns, title=f"rehearsed on {rehearsal.source} data"))
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


# The progress of a server.


def status_table(status: Status) -> Group:
    """A table of the run's progress, its clients, and the latest alarms."""
    head = f"federation {status.run}, {status.rule}: model {status.version} of {status.rounds}"
    columns = {
        "client": "{0.name}",
        "state": "{0.state}",
        "updates": "{0.updates} of {0.of}",
        "heard of": "{0.last_heard}",
    }
    alarms = [Text(text, style="yellow") for text in status.last[-3:]]
    return Group(Text(head), figures(status.clients, columns, box=None), *alarms)


# The result of a simulation.


def show_simulated(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the outcome of a simulation of clients or of workers."""
    what, holders = _holders(summary)
    columns = {
        what: "{0[name]}",
        "rounds": "{0[rounds]}",
        "ε spent": lambda row: _spent(row["epsilon"]),
        "of a budget of": lambda row: _spent(row["budget"]),
        "accuracy": lambda row: "" if row["accuracy"] is None else f"{row['accuracy']:.1%}",
        "busy, virtual s": "{0[busy]:.1f}",
    }
    if what == "client":
        del columns["accuracy"]
    console.print(figures(holders[:SHOWN], columns))
    if what == "client" and "fused" in summary:
        console.print(f"[yellow]{summary['fused']}[/yellow]")
    if summary["accuracy"] is not None:
        text = f"accuracy {summary['accuracy']:.1%}"
        if what == "worker":
            text += f" of the average model, {summary['worst']:.1%} of the worst worker's"
        console.print(text)
    slow, seconds = summary["synchronous_seconds"], summary["seconds"]
    other = f"synchronous rounds of the same number would take {slow:.1f}"
    if what == "worker":
        other = f"SYNC would take {slow:.1f}, {slow / seconds:.1f} times as long"
    console.print(f"{seconds:.1f} virtual seconds; {other}")
    console.print(f"{summary['messages']:,} messages, {summary['megabytes']:.1f} MB")
    for *whose, code, text in summary["alarms"][:SHOWN]:
        names = [f"{holders[place]['name']}: " for place in whose]
        console.print(f"[yellow]{''.join(names)}{code}[/yellow]: {text}")


def _spent(epsilon: float | str | None) -> str:
    return at_most(epsilon) if isinstance(epsilon, int | float) else epsilon or ""


def _holders(summary: Mapping[str, Any]) -> tuple[str, list[Any]]:
    what = "client" if "clients" in summary else "worker"
    return what, summary[f"{what}s"]


def draw_simulation(summary: Mapping[str, Any], folder: Path) -> None:
    """Draw ``timeline.png`` of all computations and, if accuracies are known, ``accuracy.png``."""
    what, holders = _holders(summary)
    figure, axes = new_axes("Who computed when", "virtual seconds", what)
    bars: dict[int, list[tuple[float, float]]] = {}
    for holder, begin, end in summary["timeline"]:
        if holder < SHOWN:
            bars.setdefault(int(holder), []).append((begin, end - begin))
    usual = median(row["busy"] for row in holders)
    for holder, spans in bars.items():
        # A holder that is busy much longer than most may have delayed the others.
        colour = ORANGE if holders[holder]["busy"] > 1.5 * usual else BLUE
        at = (holder - 0.4, 0.8)
        axes.broken_barh(spans, at, facecolors=colour, edgecolor="white", linewidth=0.3)
    names = [row["name"] for row in holders[:SHOWN]]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(summary["seconds"], color=GREY, linewidth=0.8)
    figure.savefig(folder / "timeline.png")
    if not summary["accuracies"]:
        return
    model = "global" if what == "client" else "average"
    figure, axes = new_axes(f"Accuracy of the {model} model", "virtual seconds", "accuracy")
    points = summary["accuracies"]
    axes.plot([point[0] for point in points], [point[-1] for point in points], color=BLUE)
    figure.savefig(folder / "accuracy.png")
