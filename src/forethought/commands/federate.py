"""`forethought federate`: the group of the federation's commands."""

from __future__ import annotations

import typer

from forethought.commands import federate_network, federate_plan, federate_simulate
from forethought.commands.options import UsageError

app = typer.Typer(
    name="federate",
    help="Many holders, one model: plan, simulate and run a federation.",
    no_args_is_help=True,
)
for command in (
    (federate_plan.plan, federate_plan.EPILOG),
    (federate_simulate.simulate, federate_simulate.EPILOG),
    (federate_network.keys, federate_network.KEYS_EPILOG),
    (federate_network.server, federate_network.SERVER_EPILOG),
    (federate_network.client, federate_network.CLIENT_EPILOG),
):
    app.command(epilog=command[1])(command[0])


@app.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def faults() -> None:
    """Moved: `python tools/faults.py federation`, in a checkout of the repository."""
    raise UsageError(
        "trials of faults are no longer installed: in a checkout of the repository "
        "`python tools/faults.py federation` runs them"
    )
