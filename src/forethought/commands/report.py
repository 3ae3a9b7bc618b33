"""`forethought report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import (
    Json,
    Quiet,
    UsageError,
    console_for,
    print_json,
)

EPILOG = "Example: forethought report runs/mnist"


def report(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Print report and statement with a browser found here.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a run's result and statement and draw its figures again, or say how far it came."""
    from forethought.accounting.statement import Statement
    from forethought.report import terminal
    from forethought.report.figures import draw_run
    from forethought.report.page import print_pdf, write_pages, write_statement
    from forethought.training.folder import RunSummary, UnfinishedRun

    if not (folder / "statement.json").is_file():
        if pdf:
            raise UsageError(f"the run in {folder} has not ended: there is no report to print")
        unfinished = UnfinishedRun.load(folder)
        if as_json:
            print_json(unfinished.to_dict())
        else:
            terminal.show_unfinished(console_for(quiet), unfinished)
        return
    agreed = ("federation.json", "gossip.json")
    if (
        any((folder / name).is_file() for name in agreed)
        or not (folder / "transcript.json").is_file()
    ):
        # Of one who took part with others: a statement, and no run of its own.
        page = write_statement(folder)
        statement = Statement.load(folder / "statement.json")
        console = console_for(quiet or as_json)
        if as_json:
            print_json(json.loads(statement.to_json()))
        terminal.show_statement(console, statement)
        console.print(f"\nwritten  {print_pdf(page, page.with_suffix('.pdf')) if pdf else page}")
        return
    draw_run(RunSummary.load(folder), folder / "figures")
    summary = RunSummary.load(folder)
    write_pages(summary)
    printed = []
    if pdf:
        for name in ("report", "statement"):
            printed.append(print_pdf(folder / f"{name}.html", folder / f"{name}.pdf"))
    if as_json:
        print_json(summary.to_dict())
    else:
        console = console_for(quiet)
        terminal.show_summary(console, summary)
        for path in printed:
            console.print(f"printed  {path}")
