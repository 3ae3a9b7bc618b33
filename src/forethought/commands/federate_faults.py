"""`forethought federate faults`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from forethought.commands.options import Json, Quiet, console_for, fail, print_json

EPILOG = "Example: forethought federate faults --seeds 100000"


def faults(
    seeds: Annotated[int, typer.Option(help="Trials, one a seed.", min=1)] = 1000,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try the federation's machines against crashes, lost messages, backups and jumping clocks."""
    from forethought.federated.trial import run_trials
    from forethought.report.terminal import counting
    from forethought.simulation.violation import ViolationError

    console = console_for(quiet or as_json)
    start = time.process_time()
    try:
        with counting(console, "trials", seeds) as progress:
            total = run_trials(first, seeds, lambda done: progress(done, seeds))
    except ViolationError as error:
        raise typer.Exit(fail(f"violated: {error}", 1)) from None
    rate = seeds / (time.process_time() - start)
    console.print(
        f"{seeds:,} trials without a violation: {total.events:,} events, {total.crashes:,} "
        f"crashes, {total.accepted:,} updates applied; {rate:.0f} trials a second of processor time"
    )
    if as_json:
        print_json(
            {
                "trials": seeds,
                "events": total.events,
                "crashes": total.crashes,
                "accepted": total.accepted,
                "trials_a_second": rate,
            }
        )
