"""`forethought account`."""

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

EPILOG = (
    "Example: forethought account --examples 60000 --batch 256 --epochs 20 "
    "--noise-multiplier 1.1 --delta 1e-5"
)


def account(
    path: Annotated[
        Path | None, typer.Argument(help="Plan, statement or run folder.", show_default=False)
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Records trained on.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Releases.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="σ.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 · examples).")] = None,
    sampling: Annotated[str, typer.Option(help="How batches were drawn.")] = "poisson",
    clipping: Annotated[str, typer.Option(help="example or group.")] = "example",
    adjacency: Annotated[str | None, typer.Option(help="What a neighbour is.")] = None,
    group: Annotated[int, typer.Option(help="Records protected together.")] = 1,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute a statement; fail when it does not hold.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show what every other analysis says beside it.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say exactly how private something is: from numbers, a plan, a run or a statement."""
    from forethought import attest, wishes
    from forethought.report import terminal
    from forethought.report.figures import draw_statement

    console = console_for(quiet or as_json)
    if path is not None:
        statement = attest.statement_of(path, verify=verify, group=group, delta=delta)
    else:
        if examples is None or noise_multiplier is None or batch is None:
            raise UsageError(
                "give a path, or --examples, --batch, --noise-multiplier and --epochs or --rounds"
            )
        request = wishes.from_tables(
            {
                "budget": {"delta": delta},
                "training": {
                    "epochs": epochs,
                    "rounds": rounds,
                    "batch": batch,
                    "noise_multiplier": noise_multiplier,
                    "sampling": sampling,
                    "clipping": clipping,
                    "adjacency": adjacency,
                },
            }
        )
        statement = attest.account_for(request, examples, group)
    rows = attest.compared(statement) if compare else []
    if as_json:
        said = {"comparison": [row.to_dict() for row in rows]} if compare else {}
        print_json({**json.loads(statement.to_json()), **said})
    else:
        terminal.show_statement(console, statement, verified=verify)
        terminal.show_comparison(console, rows)
    if figure is not None:
        for drawn in draw_statement(statement, figure):
            console.print(f"figure  {drawn}")
