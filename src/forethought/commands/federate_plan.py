"""`forethought federate plan`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forethought.commands.options import (
    DataDir,
    Json,
    PublicProxy,
    Quiet,
    UsageError,
    console_for,
    print_json,
)

EPILOG = "Example: forethought federate plan job.toml --rehearse"


def plan(
    job_file: Annotated[Path, typer.Argument(help="A job with a [federation].")],
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Simulate it on a public proxy; predict accuracy.")
    ] = False,
    public_proxy: PublicProxy = None,
    repeats: Annotated[int, typer.Option(help="Runs of a rehearsal.", min=1)] = 3,
    save: Annotated[Path | None, typer.Option(help="Write the federation here.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What every client would spend, send and take, before anybody trains."""
    from forethought.jobs import federate as jobs
    from forethought.jobs.federate import federation_of
    from forethought.jobs.request import from_file
    from forethought.report.federated_plan import show
    from forethought.report.terminal import counting

    if public_proxy is not None and not rehearse:
        raise UsageError("--public-proxy goes with --rehearse: add that, or drop it")
    console = console_for(quiet or as_json)
    federated = federation_of(from_file(job_file), data_dir)
    found = jobs.plan_job(federated)
    if save is not None:
        found.federation.save(save)
    rehearsal = None
    if rehearse:
        with counting(console, "Rehearsing", repeats) as progress:
            rehearsal = jobs.rehearse(federated, public_proxy, repeats, data_dir, progress)
    if as_json:
        more = {} if rehearsal is None else {"rehearsal": asdict(rehearsal)}
        print_json({**found.to_dict(), **more})
        return
    show(console, found)
    if rehearsal is not None:
        least, most = min(rehearsal.accuracies), max(rehearsal.accuracies)
        console.print(
            f"rehearsed on {rehearsal.source}: accuracy {rehearsal.predicted:.1%} "
            f"({least:.1%} to {most:.1%}), as good a prediction as that data resembles the real"
        )
