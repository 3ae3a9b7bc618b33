"""`forethought gossip simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import (
    DataDir,
    JobFile,
    Json,
    Quiet,
    UsageError,
    console_for,
    fail,
    print_json,
)

EPILOG = "Example: forethought gossip simulate job.toml --out runs/hospitals --workers 4"


def simulate(
    job_file: JobFile = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The digits over eight workers, one of them slow.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, and to go on from. Default: none.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the simulation in --out.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes that compute; 0: this one.", min=0)] = 0,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a job's gossip in virtual time on this computer."""
    from forethought.jobs.gossip import gossip_of, simulate_gossip
    from forethought.jobs.request import from_file, gossip_demo
    from forethought.report import gossip as report
    from forethought.report.terminal import counting

    if (job_file is not None) == demo:
        raise UsageError("give a job file or --demo")
    if resume and out is None:
        raise UsageError("--resume goes on in a folder: give --out")
    request = gossip_demo() if demo else from_file(job_file or Path())
    console = console_for(quiet or as_json)
    gossiping = gossip_of(request, data_dir)
    report.show_gossip(console, gossiping.gossip)
    try:
        with counting(console, "updates", gossiping.gossip.total) as progress:
            run, synchronous = simulate_gossip(
                gossiping, out, resume=resume, workers=workers, progress=progress
            )
    except KeyboardInterrupt:
        if out is None:
            raise
        words = f"interrupted; go on with: --out {out} --resume"
        raise typer.Exit(fail(words, 130)) from None
    summary = {**run.summary(), "synchronous_seconds": synchronous}
    if out is not None:
        report.draw_simulation(summary, out)
    report.show_simulated(console, summary)
    if as_json:
        print_json({name: value for name, value in summary.items() if name != "timeline"})
