"""`forethought train` and `forethought tune`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.commands.audit import judge, saved, watching
from forethought.commands.options import (
    LENGTH_AND_NOISE,
    DataDir,
    JobFile,
    Json,
    Quiet,
    ReplayRounds,
    UsageError,
    console_for,
    fail,
    print_json,
    show_overrides,
    show_settled,
    takes,
)

EPILOG = "Example: forethought train job.toml --out runs/mnist"
TUNE_EPILOG = "Example: forethought tune job.toml --learning-rate 0.1 --learning-rate 1 --trials 8"


@takes(*LENGTH_AND_NOISE, before="data_dir")
def train(
    job_file: JobFile = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Run this saved plan on the job's data and model.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/NAME.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the interrupted run in this folder.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing run folder.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Run the built-in job.")] = False,
    until_accuracy: Annotated[
        float | None,
        typer.Option(help="Go on in phases of less noise until this accuracy on held-out data."),
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Limit on ε of all phases. Default: the job's budget.")
    ] = None,
    replay: ReplayRounds = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Plan and train a model privately; leave it with a statement of what was guaranteed."""
    from forethought.jobs import train as jobs
    from forethought.jobs.request import demo as demo_request
    from forethought.jobs.request import from_file, overridden, resumed, without_none
    from forethought.report import terminal
    from forethought.report.figures import draw_run
    from forethought.report.page import write_pages
    from forethought.training.execution import launched, leads
    from forethought.training.folder import RunSummary

    if (job_file is not None) + demo + (resume is not None) != 1:
        raise UsageError("give exactly one of: a job file, --demo, --resume RUN_FOLDER")
    if resume is not None:
        if out is not None or overwrite:
            raise UsageError("--resume names the run folder itself: drop --out and --overwrite")
        if until_accuracy is not None:
            raise UsageError("--resume goes on to the accuracy that the run began with")
        if without_none(flags) or plan_file is not None:
            raise UsageError("a resumed run keeps the plan it began with: drop the other options")
        request, folder = resumed(resume), resume
    else:
        request = overridden(demo_request() if demo else from_file(job_file or Path()), flags)
        folder = out or Path("runs") / request.name
    if plan_file is not None and without_none(flags):
        raise UsageError("a saved plan is run as it is: drop --plan, or the numbers given with it")
    if max_epsilon is not None and until_accuracy is None:
        raise UsageError("--max-epsilon goes with --until-accuracy; a job has its own budget")
    console = console_for(quiet or as_json or not leads())
    prepared = jobs.prepare(
        request,
        data_dir,
        until=until_accuracy,
        max_epsilon=max_epsilon,
        resume=resume,
        saved_plan=plan_file,
    )
    show_overrides(console, prepared.loaded.request.overrides)
    show_settled(console, prepared.loaded.request.settled)
    terminal.show_plan(console, prepared.plan)
    start = time.perf_counter()
    try:
        with (
            launched(),
            watching(replay, prepared.plan.rounds) as seen,
            terminal.progress_bar(console, prepared.plan.rounds) as progress,
        ):
            run = jobs.run(
                prepared, folder, resume=resume is not None, overwrite=overwrite, progress=progress
            )
    except KeyboardInterrupt:
        resume_with = f"forethought train --resume {folder}"
        raise typer.Exit(fail(f"interrupted; continue with: {resume_with}", 130)) from None
    seconds = time.perf_counter() - start
    if not leads():
        return
    found = saved(seen, prepared.plan, folder, seconds)
    summary = RunSummary.load(folder)
    draw_run(summary, folder / "figures")
    write_pages(summary)
    terminal.show_result(console, run.statement, run.accuracy, seconds, folder, summary.results)
    terminal.show_phases(console, run)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "accuracy": run.accuracy,
                "plan": prepared.plan.to_dict(),
                "statement": json.loads(run.statement.to_json()),
            }
        )
    judge(console, found)


@takes(*LENGTH_AND_NOISE, before="data_dir")
def tune(
    job_file: JobFile,
    learning_rate: Annotated[
        list[float] | None, typer.Option(help="Step size to try; repeatable.")
    ] = None,
    trials: Annotated[float, typer.Option(help="Mean number of trials.")] = 8,
    distribution: Annotated[
        str, typer.Option(help="Of the number of trials: negative-binomial or poisson.")
    ] = "negative-binomial",
    scoring: Annotated[
        str, typer.Option(help="Held-out records: noised, public or unprotected.")
    ] = "noised",
    out: Annotated[Path | None, typer.Option(help="Run folder of the best trial.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing run folder.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Search for the best step size privately: one budget pays for the whole search."""
    from forethought.jobs.request import from_file, overridden
    from forethought.jobs.train import trials_of, tune_job
    from forethought.report import terminal

    if not learning_rate:
        raise UsageError("give the step sizes to try: --learning-rate 0.1 --learning-rate 1")
    request = overridden(from_file(job_file or Path()), flags)
    folder = out or Path("runs") / request.name
    console = console_for(quiet or as_json)
    show_overrides(console, request.overrides)
    found = tune_job(
        request,
        folder,
        learning_rate,
        trials_of(distribution, trials),
        scoring=scoring,
        overwrite=overwrite,
        data_dir=data_dir,
    )
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "plan": found.plan.to_dict(),
                "statement": json.loads(found.statement.to_json()),
            }
        )
    else:
        terminal.show_plan(console, found.plan)
        terminal.show_result(console, found.statement, None, None, folder)
