"""A federation's server in a terminal: one table that is drawn again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from forethought.holders.server import Status


def status_table(status: Status) -> Group:
    """A table of the run's progress, its members, and the newest alarms."""
    head = f"federation {status.run}, {status.rule}: model {status.version} of {status.rounds}"
    table = Table(box=None)
    for name in ("client", "state", "updates", "heard of"):
        table.add_column(name)
    for one in status.clients:
        state = "connected" if one.connected else "absent" if one.absent else "not connected"
        heard = "never" if one.heard is None else f"{one.heard:.0f} s ago"
        table.add_row(one.name, state, f"{one.updates} of {one.of}", heard)
    alarms = [Text(text, style="yellow") for text in status.last[-3:]]
    return Group(Text(head), table, *alarms)
