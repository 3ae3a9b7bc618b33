"""Parts that all commands share: the program, flags from the table of options, output, errors."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import typer
from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from typer.models import ParameterInfo

from forethought.options import flags
from forethought.values.checks import harmless
from forethought.values.serialisation import Stored

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
_Command = TypeVar("_Command", bound=Callable[..., None])


def option(help: str, *names: str, default: Any = None, **rules: Any) -> Any:
    """The default of a parameter that is an option; ``...`` makes it a required one."""
    return typer.Option(default, *names, help=help, **rules)


def flag(name: str, help: str) -> Any:
    """The default of a parameter that is true where its flag is given."""
    return typer.Option(False, name, help=help)


def argument(help: str, default: Any = ..., **rules: Any) -> Any:
    """The default of a parameter that is an argument."""
    return typer.Argument(default, help=help, **rules)


JOB_FILE = argument("Job file (TOML).", default=None)
RUN = argument("Run folder of a finished training.")
# Not envvar=: the loader reads FORETHOUGHT_DATA, behind a folder that a person named.
DATA_DIR = option("Folder with the data sets. Default: FORETHOUGHT_DATA.", "--data-dir")
REPLAYED = option(
    "Replay so many rounds, from first to last, against a slow reference.", "--replay", min=1
)
FIGURES = option("Draw the figures into this folder.")
OVERWRITE = option("Replace what is there.", default=False)
PAYING = option(
    "Pay from this data set's budget. Default: the job's \\[ledger].",
    "--ledger",
    metavar="BOOK#DATA",
)
PUBLIC_PROXY = option("Public data set in place of the job's own, or 'synthetic'.")


class Output:
    """The output of a command, for a person or as JSON, and what the person typed.

    Args:
        context: of the call. as_json: print one JSON object and nothing else. quiet: print nothing.
    """

    FLAGS: ClassVar[Mapping[str, Any]] = {"as_json": Json, "quiet": Quiet}

    def __init__(self, context: typer.Context, as_json: bool = False, quiet: bool = False) -> None:
        self.context, self.as_json = context, as_json
        self.console = console_for(quiet or as_json)

    def given(self, name: str) -> bool:
        """True if a parameter was typed: it is no default, no variable of the environment."""
        return getattr(self.context.get_parameter_source(name), "name", "") == "COMMANDLINE"

    def say(self, words: str) -> None:
        """Print words as they are: names in them may have brackets, which are no markup."""
        self.console.print(words, markup=False)

    def json(self, values: Callable[[], Any]) -> None:
        """Print the values of a function as JSON on standard output, if that was asked for."""
        if self.as_json:
            print(json.dumps(values(), indent=2))

    def show_files(self, paths: Sequence[Path], what: str = "figure") -> None:
        """Print a line for each file that was written."""
        for path in paths:  # a path that is broken at the terminal's width could not be copied
            self.console.print(f"{what}  {path}", markup=False, soft_wrap=True)

    def show_request(
        self, request: Any, advice: str | None = None, question: str | None = None
    ) -> None:
        """Print what replaces or leaves out the job's keys, its choices, advice and a question."""
        lines = [("from the command line", text) for text in request.overrides]
        lines += [("chosen", text) for text in request.settled]
        lines += [("not here", text) for text in request.aside]
        lines += [] if advice is None else [("consider", advice)]
        lines += [] if question is None else [("question", question)]
        for head, text in lines:
            self.console.print(Text.assemble((head, "yellow"), f": {text}"))


class Words(Output):
    """The output of a command that has no JSON."""

    FLAGS: ClassVar[Mapping[str, Any]] = {"quiet": Quiet}


class Commands(typer.Typer):
    """Commands whose flags come from the kinds of their parameters, too."""

    def command(
        self,
        name: str | None = None,
        *,
        before: str = "",
        without: str = "",
        defaults: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Callable[[_Command], _Command]:
        """A decorator that adds a command.

        A parameter ``output`` becomes the flags of its class of :class:`Output`, and ``**flags``
        become those of the command in the table of options; one that is not given is None.

        Args:
            name: of the command. settings: as for typer.
            before: the command's own option before which its help lists the flags of the table.
            without: an option that it does not have. defaults: of options, by name.
        """
        add = super().command(name, **settings)
        return lambda run: add(_with_flags(run, before, without, defaults))


app = Commands(
    name="forethought",
    help="Private training you plan before you run: plan → train → account.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _with_flags(command: Any, before: str, without: str, defaults: Mapping[str, Any] | None) -> Any:
    """A command with the parameters that its flags are read from."""
    own = inspect.signature(command, eval_str=True)
    found = {name: given for name, given in own.parameters.items() if name != without}
    kind: type[Output] | None = found.pop("output").annotation if "output" in found else None

    def row(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    rows = []
    for name, given in found.items():
        kind_of, default = given.annotation, given.default
        if isinstance(default, ParameterInfo):  # typer's, which has the default in it
            described = copy(default)
            default, described.default = described.default, ...
            kind_of = Annotated[kind_of, described]
        default = inspect.Parameter.empty if default is ... else default
        rows.append(row(name, kind_of, (defaults or {}).get(name, default)))
    if found.pop("flags", None) is not None:
        table = []
        for option in flags(command.__name__).values():
            words = f"{option.row.help} {', '.join(option.words)}".strip()
            panel = "In place of the job's own" if option.row.section else None
            value: Any = str if option.words else option.kind
            flag = typer.Option(help=words, rich_help_panel=panel)
            table.append(row(option.name, Annotated[value | None, flag]))
        place = [given.name for given in rows].index(before)
        rows[place:] = [*table, *rows[place:-1]]
    if kind is not None:
        rows.append(row("context", typer.Context, inspect.Parameter.empty))
        rows += [row(name, flag, False) for name, flag in kind.FLAGS.items()]

    @wraps(command)
    def run(**values: Any) -> None:
        if kind is not None:
            known = {name: values.pop(name) for name in ("context", *kind.FLAGS)}
            values["output"] = kind(**known)
        command(**values)

    run.__signature__ = own.replace(parameters=rows)  # type: ignore[attr-defined]
    run.__annotations__ = {given.name: given.annotation for given in rows}
    return run


class UsageError(ValueError):
    """An invalid combination of arguments; the message says which arguments to give."""


def refuse(wrong: object, words: str) -> None:
    """Raise a UsageError with these words if the combination of arguments is ``wrong``."""
    if wrong:
        raise UsageError(words)


def together(*pairs: tuple[str, object, str, object]) -> None:
    """Refuse a flag without the one that it needs.

    Args:
        pairs: (flag, its value, name of the flag that it needs, value of that flag).
    """
    for flag, given, needs, other in pairs:
        refuse(given and not other, f"{flag} goes with {needs}: add that, or drop it")


def host_port(address: str | None) -> str | None:
    """The given address, refused unless it is host:port; gRPC would make something of any other."""
    found = re.fullmatch(r"(\[[\da-fA-F:.]+\]|[^][:/\s]+):(\d{1,5})", address or "")
    words = f"{address!r} is no address: give host:port, such as 127.0.0.1:8750, a port up to 65535"
    refuse(address is not None and (found is None or int(found[2]) > 65535), words)
    return address


def to_write(
    path: Path | None,
    flag: str = "--out",
    overwrite: bool = False,
    *,
    reads: Path | None = None,
    kind: type[Stored] | None = None,
) -> None:
    """Refuse a file that cannot be written, or in whose place nothing may be put.

    What the command itself reads is never replaced, nor a file of a run, a simulation or a member.

    Args:
        path: None is no file. flag: names it. overwrite: another file may be replaced.
        reads: what the command reads. kind: a saved value of this kind, and nothing else, may be
            replaced without ``overwrite``.
    """
    if path is None:
        return
    refuse(path.is_dir(), f"{path} is a folder: give the name of a file")
    refuse(not path.parent.is_dir(), f"{path}: there is no folder {path.parent}: make it first")
    refuse(not os.access(path.parent, os.W_OK), f"{path}: {path.parent} cannot be written")
    if not path.exists():
        return
    from forethought.accounting.statement import OF_HOLDERS, OF_RUN
    from forethought.training.folder import WRITTEN

    refuse(kind is None and not overwrite, f"{path} exists: give another {flag}, or --overwrite")
    marks = ("statement.json", "checkpoint/keys", "keys", "simulation.json", "roster.json")
    folder, named = path.resolve().parent, path.resolve().name in (*WRITTEN, *OF_RUN, *OF_HOLDERS)
    what = ""
    if reads is not None and reads.exists() and path.samefile(reads):
        what = "what is read here"
    elif kind is not None and not _holds(path, kind):
        what = f"no {kind.CALLED}"
    elif named and any((folder / mark).is_file() for mark in marks):
        what = f"of the run in {path.parent}"
    refuse(what, f"{path} is {what}, and would be replaced: give another {flag}")


def _holds(path: Path, kind: type[Stored]) -> bool:
    """True if a file is a saved ``kind``, of any version."""
    try:
        held = str(json.loads(path.read_text(encoding="utf-8"))["schema"])
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return held.rpartition("/")[0] == kind.SCHEMA.rpartition("/")[0]


class _Terminal(Console):
    """A console where names from files, of columns for example, cannot control the terminal."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=harmless(part.text))


def console_for(quiet: bool) -> Console:
    """The console that a command prints to; it prints nothing if ``quiet``."""
    wide = sys.stdout is None or not sys.stdout.isatty()  # None: closed by whoever started this
    return _Terminal(quiet=quiet, highlight=False, soft_wrap=wide)


def of_the_system(error: OSError) -> str:
    """The operating system's error in words, with a remedy if one is known.

    Files are first written under a temporary name; the message has their final name.
    """
    if error.strerror is None:
        return str(error)
    path = Path(str(error.filename))
    written = re.fullmatch(r"\.(.+?)(\.\d+)?\.part", path.name)
    if written:
        path = path.with_name(written.group(1))
    where = "" if error.filename is None else f"{path}: "  # a write does not know its file
    text = f"{where}{error.strerror[:1].lower()}{error.strerror[1:]}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text += ". Free some space and start again: the same command, or forethought train --resume"
    elif written and error.errno == errno.ENOENT:
        text += ". Make the folder first"
    return text


def say(kind: str, style: str, message: object) -> None:
    """Print one line on standard error; ``kind`` stands before it in the style."""
    Console(stderr=True).print(kind, style=style, end=": ")
    print(harmless(str(message)), file=sys.stderr)


def fail(message: object, status: int) -> int:
    """Print one line on standard error and return the exit status."""
    say("error", "bold red", message)
    return status
