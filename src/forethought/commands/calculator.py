"""`forethought calculator`."""

from __future__ import annotations

from typing import Annotated

import typer

from forethought.commands.options import (
    Json,
    Quiet,
    console_for,
    print_json,
)

EPILOG = "Example: forethought calculator --examples 10000 --epochs 5 --epsilon 0.1"


def calculator(
    examples: Annotated[int, typer.Option(help="Records, N.")],
    epochs: Annotated[float, typer.Option(help="Passes over the data, k = K/N.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Target: finds σ and the sample size (Appendix E.1).")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ; alone: finds ε and the rounds (Appendix D.4).")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1/examples.")] = None,
    power: Annotated[float, typer.Option(help="Sample sizes grow as q N i^power.")] = 0.0,
    steps: Annotated[int, typer.Option(help="In so many steps at most.")] = 16,
    after: Annotated[
        list[str] | None,
        typer.Option(help="An earlier phase, SIZE:ROUNDS; repeat for several.", show_default=False),
    ] = None,
    as_printed: Annotated[
        bool,
        typer.Option("--as-printed", help="Read the rules to the letter: the paper's own tables."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The published DP calculators, with conditions, margins and the exact figures."""
    from forethought.papers.calculators import calculate, earlier_phase
    from forethought.report.terminal import show_calculated

    plans = calculate(
        examples=examples,
        epochs=epochs,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        power=power,
        steps=steps,
        earlier=[earlier_phase(text) for text in after or ()],
        reading="as-printed" if as_printed else "converged",
    )
    if as_json:
        print_json([plan.to_dict() for plan in plans])
    else:
        show_calculated(console_for(quiet), plans)
