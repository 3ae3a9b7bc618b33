"""A federation's plan on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from forethought.federated.federation import local_words

if TYPE_CHECKING:
    from forethought.planning.holders import FederatedPlan

# More clients than this nobody reads.
SHOWN = 20


def show(console: Console, plan: FederatedPlan) -> None:
    """Each client's plan and costs, then the ways to cut it into global rounds."""
    federation = plan.federation
    clients = Table(
        title=f"{len(plan.clients)} clients, {federation.rule}, "
        f"{federation.rounds:,} rounds of {local_words(federation.local_rounds)} local ones"
    )
    for name in ("client", "records", "speed", "sample s", "noise σ", "updates", "MB"):
        clients.add_column(name)
    seen = Table(title="ε by who sees what")
    for name in ("client", "budget", "server", "secure server", "outsider"):
        if name != "secure server" or federation.secure is not None:
            seen.add_column(name)
    for row in plan.clients[:SHOWN]:
        clients.add_row(
            row.name,
            f"{row.examples:,}",
            f"{row.speed:.3g}",
            f"{row.batch:.4g}",
            f"{row.noise_multiplier:.4g}",
            f"{row.updates:,}",
            f"{row.megabytes:.4g}",
        )
        cells = [row.budget.epsilon, row.epsilon, row.secure_epsilon, row.outsider_epsilon]
        seen.add_row(row.name, *(f"{cell:.4g}" for cell in cells if cell is not None))
    console.print(clients)
    console.print(seen)
    if len(plan.clients) > SHOWN:
        console.print(f"… and {len(plan.clients) - SHOWN:,} more")
    splits = Table(title="the same ε, other splits of the private rounds")
    for name in ("", "E, local rounds", "E, epochs", "R, global", "MB a client", "virtual seconds"):
        splits.add_column(name)
    for split in plan.splits:
        splits.add_row(
            "chosen" if split.chosen else "",
            local_words(split.local_rounds),
            f"{split.local_epochs:.3g}",
            f"{split.rounds:,}",
            f"{split.megabytes:.4g}",
            f"{split.seconds:,.1f}",
        )
    console.print(splits)
    for note in plan.notes:
        console.print(f"- {note}")
