"""`forethought gossip`: the group of the gossip's commands."""

from __future__ import annotations

import typer

from forethought.commands import gossip_faults, gossip_peer, gossip_plan, gossip_simulate

app = typer.Typer(
    name="gossip",
    help="Private training without a server: neighbours on a graph average and step alone.",
    no_args_is_help=True,
)
for command, epilog in (
    (gossip_plan.plan, gossip_plan.EPILOG),
    (gossip_simulate.simulate, gossip_simulate.EPILOG),
    (gossip_faults.faults, gossip_faults.EPILOG),
    (gossip_peer.keys, gossip_peer.KEYS_EPILOG),
    (gossip_peer.peer, gossip_peer.PEER_EPILOG),
):
    app.command(epilog=epilog)(command)
