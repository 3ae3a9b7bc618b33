"""`forethought gossip plan`."""

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

EPILOG = "Example: forethought gossip plan job.toml --rehearse"


def plan(
    job_file: Annotated[Path, typer.Argument(help="A job with a [gossip].")],
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Try every graph, and SYNC, on a public proxy."),
    ] = False,
    public_proxy: PublicProxy = None,
    repeats: Annotated[int, typer.Option(help="Runs of each graph.", min=1)] = 1,
    observer: Annotated[
        list[str] | None,
        typer.Option(help="A distant worker; ε against what it sees. May be given again."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the gossip here.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What every worker would spend, what headroom costs, and which graph is quickest."""
    from forethought.jobs import gossip as jobs
    from forethought.jobs.gossip import gossip_of
    from forethought.jobs.request import from_file
    from forethought.report import gossip_plan as report
    from forethought.report.terminal import counting

    if public_proxy is not None and not rehearse:
        raise UsageError("--public-proxy goes with --rehearse: add that, or drop it")
    console = console_for(quiet or as_json)
    gossiping = gossip_of(from_file(job_file), data_dir)
    found = jobs.plan_job(gossiping, observer or ())
    if save is not None:
        found.gossip.save(save)
    rehearsal = None
    if rehearse:
        runs = repeats * (1 + len(found.routes))
        with counting(console, "Rehearsing", runs) as progress:
            rehearsal = jobs.rehearse(gossiping, public_proxy, repeats, data_dir, progress)
    if as_json:
        more = {} if rehearsal is None else {"rehearsal": asdict(rehearsal)}
        print_json({**found.to_dict(), **more})
        return
    report.show(console, found)
    if rehearsal is not None:
        report.show_rehearsal(console, rehearsal)
