"""Parts that every command shares: options, the console, JSON output, one-line errors."""

from __future__ import annotations

import errno
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

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
RecordCount = Annotated[int | None, typer.Option(help="Records to train on.")]
RecordsPerPerson = Annotated[
    int | None,
    typer.Option(help="Records that may be one person's: the promise is about all of them."),
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

# Keys of [budget] and [training] that a command line may give in place of the job's own.
_FLAGS: dict[str, tuple[type, str]] = {
    "epsilon": (float, "Budget."),
    "delta": (float, "Default: 1/(10 · examples)."),
    "epochs": (float, "Passes over the data."),
    "rounds": (int, "Releases."),
    "batch": (int, "Expected batch size."),
    "noise_multiplier": (float, "σ."),
    "sampling": (
        str,
        "poisson, without-replacement, shuffled, random-allocation, cyclic-poisson or full-batch.",
    ),
    "clipping": (str, "example or group."),
    "adjacency": (str, "add-or-remove, zero-out or replace-one."),
}
LENGTH_AND_NOISE = ("epsilon", "delta", "epochs", "rounds", "batch", "noise_multiplier")
_Command = TypeVar("_Command", bound=Callable[..., None])


def takes(*names: str, before: str) -> Callable[[_Command], _Command]:
    """A command whose ``**flags`` are these rows of the table; None is one that was not given.

    Args:
        before: the command's own option that they stand before in its help.
    """

    def made(command: _Command) -> _Command:
        own, given_as = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
        found = [
            given.replace(kind=given_as)
            for given in own.parameters.values()
            if given.kind is not given.VAR_KEYWORD
        ]
        place = [given.name for given in found].index(before)
        for name in reversed(names):
            kind, words = _FLAGS[name]
            row = typer.Option(help=words, rich_help_panel="In place of the job's own")
            kind_or_none = Annotated[kind | None, row]  # type: ignore[valid-type]
            flag = inspect.Parameter(name, given_as, default=None, annotation=kind_or_none)
            found.insert(place, flag)
        command.__signature__ = own.replace(parameters=found)  # type: ignore[attr-defined]
        command.__annotations__ = {given.name: given.annotation for given in found}
        return command

    return made


class UsageError(ValueError):
    """A combination of arguments that makes no sense; the message says what to give."""


def console_for(quiet: bool) -> Console:
    """The console that a command prints to; none when quiet."""
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
    """The operating system's refusal, by the file's own name and with a remedy if there is one.

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
