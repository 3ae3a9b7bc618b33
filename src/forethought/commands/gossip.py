"""`forethought gossip`: the group of the gossip's commands."""

from __future__ import annotations

import typer

from forethought.commands import gossip_peer, gossip_plan, gossip_simulate
from forethought.commands.options import UsageError

app = typer.Typer(
    name="gossip",
    help="Private training without a server: neighbours on a graph average and step alone.",
    no_args_is_help=True,
)
for command, epilog in (
    (gossip_plan.plan, gossip_plan.EPILOG),
    (gossip_simulate.simulate, gossip_simulate.EPILOG),
    (gossip_peer.keys, gossip_peer.KEYS_EPILOG),
    (gossip_peer.peer, gossip_peer.PEER_EPILOG),
):
    app.command(epilog=epilog)(command)


@app.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def faults() -> None:
    """Moved: `python tools/faults.py gossip`, in a checkout of the repository."""
    raise UsageError(
        "trials of faults are no longer installed: in a checkout of the repository "
        "`python tools/faults.py gossip` runs them"
    )
