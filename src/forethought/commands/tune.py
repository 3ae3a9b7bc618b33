"""`forethought tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.commands.options import (
    BatchSize,
    DataDir,
    Delta,
    Epochs,
    Epsilon,
    JobFile,
    Json,
    NoiseMultiplier,
    Quiet,
    RoundCount,
    UsageError,
    console_for,
    print_json,
    show_overrides,
)

EPILOG = "Example: forethought tune job.toml --learning-rate 0.1 --learning-rate 1 --trials 8"


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
    epsilon: Epsilon = None,
    delta: Delta = None,
    epochs: Epochs = None,
    rounds: RoundCount = None,
    batch: BatchSize = None,
    noise_multiplier: NoiseMultiplier = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the best step size privately: one budget pays for the whole search."""
    from forethought.jobs.request import from_file, overridden
    from forethought.jobs.train import trials_of, tune_job
    from forethought.report import terminal

    if not learning_rate:
        raise UsageError("give the step sizes to try: --learning-rate 0.1 --learning-rate 1")
    flags: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "epochs": epochs,
        "rounds": rounds,
        "batch": batch,
        "noise_multiplier": noise_multiplier,
    }
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
