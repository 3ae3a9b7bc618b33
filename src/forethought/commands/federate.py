"""`forethought federate`: the group of the federation's commands."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="federate",
    help="Many holders, one model: simulate, plan and run a federation.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
