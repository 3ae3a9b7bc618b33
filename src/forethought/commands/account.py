"""`forethought account`, and `forethought keygen` for the keys that it signs with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.commands.options import (
    Figures,
    Json,
    Quiet,
    RecordCount,
    UsageError,
    console_for,
    print_json,
    takes,
)

EPILOG = (
    "Example: forethought account --examples 60000 --batch 256 --epochs 20 "
    "--noise-multiplier 1.1 --delta 1e-5"
)
KEYGEN_EPILOG = "Example: forethought keygen signing.pem"


@takes(
    *("batch", "epochs", "rounds", "noise_multiplier", "delta"),
    *("sampling", "clipping", "adjacency"),
    before="group",
)
def account(
    path: Annotated[
        Path | None, typer.Argument(help="Plan, statement or run folder.", show_default=False)
    ] = None,
    examples: RecordCount = None,
    group: Annotated[
        int | None,
        typer.Option(
            "--group",
            "--records-per-person",
            help="Records protected together. Default: as many as the plan says, or 1.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute a statement; fail when it does not hold.")
    ] = False,
    public_key: Annotated[
        Path | None,
        typer.Option(help="With --verify: the key that must have signed it.", show_default=False),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            metavar="KEY", help="Sign a statement that holds; see keygen.", show_default=False
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show what every other analysis says of it.")
    ] = False,
    figure: Figures = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Say exactly how private something is: from numbers, a plan, a run or a statement."""
    from forethought.jobs.account import account_for, again, compared, statement_of, verified
    from forethought.jobs.account import sign as sign_statement
    from forethought.jobs.request import from_numbers, without_none
    from forethought.report import terminal
    from forethought.report.figures import draw_statement

    console = console_for(quiet or as_json)
    verification = None
    delta = flags.pop("delta")
    numbers = list(without_none({"examples": examples, **flags}))
    if path is not None and numbers:
        raise UsageError(
            f"{path} says what was done: drop {', '.join(map(_flag, numbers))} "
            "(--group and --delta may be asked of it)"
        )
    if path is not None:
        if sign is not None:
            envelope = sign_statement(path, sign)
            page = envelope.with_name("statement.html")
            if envelope.stem == "statement.intoto" and page.is_file() and not page.is_symlink():
                from forethought.report.page import write_statement

                write_statement(envelope.parent)  # the page says who signed
        if verify or public_key is not None:
            verification = verified(path, public_key)
            statement = again(verification.statement, group=group, delta=delta)
        else:
            statement = statement_of(path, group=group, delta=delta)
    elif verify or sign is not None or public_key is not None:
        raise UsageError("--verify, --sign and --public-key need the path of a statement")
    else:
        if examples is None or flags["noise_multiplier"] is None or flags["batch"] is None:
            raise UsageError(
                "give a path, or --examples, --batch, --noise-multiplier and --epochs or --rounds"
            )
        statement = account_for(from_numbers(delta=delta, **flags), examples, group)
    rows = compared(statement) if compare else []
    if as_json:
        more: dict[str, object] = {}
        if compare:
            more["comparison"] = [row.to_dict() for row in rows]
        if verification is not None:
            more["checked"] = list(verification.checked)
            more["not_checked"] = dict(verification.not_checked)
        print_json({**json.loads(statement.to_json()), **more})
    else:
        terminal.show_statement(console, statement, verified=verification is not None)
        if verification is not None:
            terminal.show_verification(console, verification)
        terminal.show_comparison(console, rows)
    if figure is not None:
        for drawn in draw_statement(statement, figure):
            console.print(f"figure  {drawn}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def keygen(
    path: Annotated[Path, typer.Argument(help="File of the private key; .pub is put beside it.")],
) -> None:
    """Make a key to sign statements with: forethought account RUN --sign FILE."""
    from forethought.values import signing

    public, fingerprint = signing.generate(path)
    typer.echo(f"private key  {path} (keep it to yourself)")
    typer.echo(f"public key   {public} (give it to those who verify), fingerprint {fingerprint}")
