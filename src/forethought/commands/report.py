"""`forethought report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import (
    Json,
    Quiet,
    console_for,
    print_json,
)

EPILOG = "Example: forethought report runs/mnist"


def report(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw the figures of a finished run again and show its result and statement."""
    from forethought.report import terminal
    from forethought.report.figures import draw_run
    from forethought.training.summary import RunSummary

    draw_run(RunSummary.load(folder), folder / "figures")
    summary = RunSummary.load(folder)
    if as_json:
        print_json(summary.to_dict())
    else:
        terminal.show_summary(console_for(quiet), summary)
