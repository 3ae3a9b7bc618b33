"""`forethought gossip faults`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from forethought.commands.options import Json, Quiet, UsageError, console_for, fail, print_json

EPILOG = "Example: forethought gossip faults --kills 100 --engine torchrun"


def faults(
    seeds: Annotated[int, typer.Option(help="Trials of the machines, one a seed.", min=0)] = 1000,
    kills: Annotated[
        int, typer.Option(help="Kill and stop real processes so often instead.", min=0)
    ] = 0,
    engine: Annotated[
        str, typer.Option(help="Of real processes: torchrun (gloo) or sites (gRPC).")
    ] = "torchrun",
    rule: Annotated[str, typer.Option(help="Of real processes; see [gossip] rule.")] = (
        "asynchronous"
    ),
    compression: Annotated[str, typer.Option(help="Of real processes; see [gossip].")] = "none",
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try a gossip's workers against lost messages, crashes and backups; or kill real processes."""
    from forethought.report.terminal import counting
    from forethought.simulation.violation import ViolationError

    console = console_for(quiet or as_json)
    if not kills:
        from forethought.gossip.trial import run_trials

        start = time.process_time()
        try:
            with counting(console, "trials", seeds) as progress:
                total = run_trials(first, seeds, lambda done: progress(done, seeds))
        except ViolationError as error:
            raise typer.Exit(fail(f"violated: {error}", 1)) from None
        rate = seeds / (time.process_time() - start)
        console.print(
            f"{seeds:,} trials without a violation: {total.events:,} events, {total.crashes:,} "
            f"crashes, {total.releases:,} releases; {rate:.0f} trials a second of processor time"
        )
        if as_json:
            print_json({**_counts(total), "trials": seeds, "trials_a_second": rate})
        return
    from forethought.peers.kills import run_kills
    from forethought.peers.mortal import ENGINES, possible

    if engine not in ENGINES:
        raise UsageError(f"--engine is {' or '.join(ENGINES)}, not {engine!r}")
    problem = possible(engine, rule)
    if problem is not None:
        raise UsageError(problem)
    if rule == "allreduce":
        _endings(kills, first, console, as_json)
        return
    try:
        with counting(console, "kills", kills) as progress:
            found = run_kills(
                kills,
                engine,
                first,
                report=lambda done: progress(done, kills),
                rule=rule,
                compression=compression,
            )
    except ViolationError as error:
        raise typer.Exit(fail(f"violated: {error}", 1)) from None
    console.print(
        f"{found.killed} kills ({found.together} times two at once) and {found.stopped} stops in "
        f"{found.trials} trials, rule {rule}, {engine}, without a violation: {found.releases:,} "
        f"releases, {found.exchanges:,} exchanges, {found.events:,} events played again; "
        f"{found.returned} lives after a kill released again, {found.alone} workers came back when "
        f"all others had gone; {found.settled} trials had time to agree: final models at most "
        f"{found.apart:.2g} of an update's noise apart"
    )
    if as_json:
        print_json({**asdict(found), "reasons": dict(found.reasons)})


def _endings(blows: int, first: int, console: Any, as_json: bool) -> None:
    """Trials of SYNC, which a blow ends."""
    from forethought.peers.endings import run_endings
    from forethought.report.terminal import counting
    from forethought.simulation.violation import ViolationError

    try:
        with counting(console, "kills", blows) as progress:
            found = run_endings(blows, first, report=lambda done: progress(done, blows))
    except ViolationError as error:
        raise typer.Exit(fail(f"violated: {error}", 1)) from None
    console.print(
        f"{found.killed} kills and {found.stopped} stops in {found.trials} trials, rule allreduce, "
        f"torchrun, without a violation: {found.ended} gossips ended, every process with its "
        f"reason; {found.refused} killed workers were refused when they came back; "
        f"{found.releases:,} releases, {found.events:,} events played again"
    )
    if as_json:
        print_json({**asdict(found), "reasons": dict(found.reasons)})


def _counts(total: Any) -> dict[str, int]:
    return {name: getattr(total, name) for name in ("events", "crashes", "releases", "exchanges")}
