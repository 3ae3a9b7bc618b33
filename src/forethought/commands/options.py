"""What every command shares: options, the console, JSON output, one-line errors."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

JobFile = Annotated[Path | None, typer.Argument(help="Job file (TOML).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="FORETHOUGHT_DATA", help="Folder with the data sets."),
]
_PANEL = "In place of the job's own"
RecordCount = Annotated[int | None, typer.Option(help="Records to train on.")]
RecordsPerPerson = Annotated[
    int | None,
    typer.Option(help="Records that may be one person's: the promise is about all of them."),
]
Epsilon = Annotated[float | None, typer.Option(help="Budget.", rich_help_panel=_PANEL)]
Delta = Annotated[
    float | None, typer.Option(help="Default: 1/(10 · examples).", rich_help_panel=_PANEL)
]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data.", rich_help_panel=_PANEL)]
RoundCount = Annotated[int | None, typer.Option(help="Releases.", rich_help_panel=_PANEL)]
BatchSize = Annotated[int | None, typer.Option(help="Expected batch size.", rich_help_panel=_PANEL)]
NoiseMultiplier = Annotated[float | None, typer.Option(help="σ.", rich_help_panel=_PANEL)]
SamplingKind = Annotated[
    str | None,
    typer.Option(
        help="poisson, without-replacement, shuffled, random-allocation, cyclic-poisson or "
        "full-batch.",
        rich_help_panel=_PANEL,
    ),
]
ClippingName = Annotated[str | None, typer.Option(help="example or group.", rich_help_panel=_PANEL)]
AdjacencyName = Annotated[
    str | None,
    typer.Option(help="add-or-remove, zero-out or replace-one.", rich_help_panel=_PANEL),
]
ReplayRounds = Annotated[
    int | None,
    typer.Option(
        "--replay",
        min=1,
        help="Replay so many rounds, from first to last, against a slow reference.",
    ),
]
Figures = Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")]


PublicProxy = Annotated[
    str | None,
    typer.Option(help="Public data set in place of the job's own, or 'synthetic'."),
]


class UsageError(ValueError):
    """A combination of arguments that makes no sense; the message says what to give."""


def console_for(quiet: bool) -> Console:
    """Where a command prints; nowhere when quiet."""
    return Console(quiet=quiet, highlight=False, soft_wrap=not sys.stdout.isatty())


def show_overrides(console: Console, overrides: Sequence[str]) -> None:
    """Say what the command line put in place of the job's own."""
    for text in overrides:
        console.print(f"[yellow]from the command line[/yellow]: {text}")


def show_settled(console: Console, settled: Sequence[str]) -> None:
    """Say what was chosen when the job's data were seen."""
    for text in settled:
        console.print(f"[yellow]chosen[/yellow]: {text}")


def show_advice(console: Console, advice: str | None) -> None:
    """Say what the job might have instead."""
    if advice is not None:
        console.print("[yellow]consider[/yellow]:", Text(advice))


def print_json(values: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(values, indent=2))


def of_the_system(error: OSError) -> str:
    """What the operating system refused, by the file's own name and with a remedy if there is one.

    Files are written under a name of their own first; what is told is the name they would get.
    """
    if error.filename is None or error.strerror is None:
        return str(error)
    path = Path(str(error.filename))
    written = re.fullmatch(r"\.(.+?)(\.\d+)?\.part", path.name)
    if written:
        path = path.with_name(written.group(1))
    text = f"{path}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if error.errno == errno.ENOSPC:
        text += ". Free some space; an interrupted run goes on with: forethought train --resume"
    elif written and error.errno == errno.ENOENT:
        text += ". Make the folder first"
    return text


def fail(message: object, status: int) -> int:
    """Print one line on standard error and hand back the exit status."""
    Console(stderr=True).print("[bold red]error[/bold red]", end=": ")
    print(message, file=sys.stderr)
    return status
