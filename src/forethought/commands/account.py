"""`forethought account`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import (
    AdjacencyName,
    BatchSize,
    ClippingName,
    Delta,
    Epochs,
    Figures,
    Json,
    NoiseMultiplier,
    Quiet,
    RecordCount,
    RoundCount,
    SamplingKind,
    UsageError,
    console_for,
    print_json,
)

EPILOG = (
    "Example: forethought account --examples 60000 --batch 256 --epochs 20 "
    "--noise-multiplier 1.1 --delta 1e-5"
)


def account(
    path: Annotated[
        Path | None, typer.Argument(help="Plan, statement or run folder.", show_default=False)
    ] = None,
    examples: RecordCount = None,
    batch: BatchSize = None,
    epochs: Epochs = None,
    rounds: RoundCount = None,
    noise_multiplier: NoiseMultiplier = None,
    delta: Delta = None,
    sampling: SamplingKind = None,
    clipping: ClippingName = None,
    adjacency: AdjacencyName = None,
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
) -> None:
    """Say exactly how private something is: from numbers, a plan, a run or a statement."""
    from forethought.jobs.account import account_for, again, compared, statement_of, verified
    from forethought.jobs.account import sign as sign_statement
    from forethought.jobs.request import from_numbers, without_none
    from forethought.report import terminal
    from forethought.report.figures import draw_statement

    console = console_for(quiet or as_json)
    verification = None
    numbers = without_none(
        {
            "--examples": examples,
            "--batch": batch,
            "--epochs": epochs,
            "--rounds": rounds,
            "--noise-multiplier": noise_multiplier,
            "--sampling": sampling,
            "--clipping": clipping,
            "--adjacency": adjacency,
        }
    )
    if path is not None and numbers:
        raise UsageError(
            f"{path} says what was done: drop {', '.join(numbers)} (--group and --delta may be "
            "asked of it)"
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
        if examples is None or noise_multiplier is None or batch is None:
            raise UsageError(
                "give a path, or --examples, --batch, --noise-multiplier and --epochs or --rounds"
            )
        request = from_numbers(
            delta=delta,
            epochs=epochs,
            rounds=rounds,
            batch=batch,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            clipping=clipping,
            adjacency=adjacency,
        )
        statement = account_for(request, examples, group)
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
