"""Commands that train a model and use it: train, tune, predict, export."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from forethought.commands import command
from forethought.commands.account import judge, saved, watching
from forethought.values.checks import without_none

# Largest number of rows of one statistic that are printed.
ROWS = 12


@command.app.command(epilog="Example: forethought train job.toml --out runs/mnist")
@command.takes("train", before="data_dir")
def train(
    job_file: command.JobFile = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Run this saved plan on the job's data and model.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/NAME.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the interrupted run in this folder.")
    ] = None,
    overwrite: command.Overwrite = False,
    demo: Annotated[bool, typer.Option("--demo", help="Run the built-in job.")] = False,
    ledger: command.Paying = None,
    until_accuracy: Annotated[
        float | None,
        typer.Option(help="Go on in phases of less noise until this accuracy on held-out data."),
    ] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Limit on ε of all phases. Default: the job's budget.")
    ] = None,
    replay: command.Replayed = None,
    data_dir: command.DataDir = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
    **flags: Any,
) -> None:
    """Plan and train a model privately; leave it with a statement of what was guaranteed."""
    from forethought.jobs import train as jobs
    from forethought.jobs.job import JOB_NAME, built_in, from_file, overridden, paying, resumed
    from forethought.report import terminal
    from forethought.report.figures import draw_run
    from forethought.report.page import write_pages
    from forethought.training.execution import launched, leads
    from forethought.training.folder import RunSummary

    goes_on, numbers = resume is not None, without_none(flags)
    command.refuse(
        (job_file is not None) + demo + goes_on != 1,
        "give exactly one of: a job file, --demo, --resume RUN_FOLDER",
    )
    own: dict[str, Any] = {"--out": out, "--overwrite": overwrite or None, "--plan": plan_file}
    own |= {"--until-accuracy": until_accuracy, "--ledger": ledger, "the numbers": numbers or None}
    given = " and ".join(without_none(own))
    command.refuse(
        goes_on and given,
        f"a resumed run keeps the plan it began with, its folder and its ledger: drop {given}",
    )
    command.refuse(
        plan_file is not None and numbers,
        "a saved plan is run as it is: drop --plan, or the numbers given with it",
    )
    until = until_accuracy is not None
    command.together(("--max-epsilon", max_epsilon is not None, "--until-accuracy", until))
    if resume is not None:
        request, folder = resumed(resume), resume
    else:
        request = overridden(built_in("demo") if demo else from_file(job_file or Path()), flags)
        request = paying(request, ledger)
        folder = out or Path("runs") / request.name
    console = command.console_for(quiet or as_json or not leads())
    prepared = jobs.prepare(
        request,
        data_dir,
        until=until_accuracy,
        max_epsilon=max_epsilon,
        resume=resume,
        saved_plan=plan_file,
        out=folder,
        overwrite=overwrite,
    )
    command.show_request(console, prepared.loaded.request)
    terminal.show_plan(console, prepared.plan)
    start = time.perf_counter()
    try:
        with (
            launched(),
            watching(replay, prepared.plan.rounds) as seen,
            terminal.progress_bar(console, prepared.plan.rounds) as progress,
        ):
            run = jobs.run(prepared, folder, resume=goes_on, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt:
        begun = (folder / JOB_NAME).is_file()
        way = f"continue with: forethought train --resume {folder}"
        way = way if begun else "its folder was not set up yet: give the same command again"
        raise typer.Exit(command.fail(f"interrupted; {way}", 130)) from None
    seconds = time.perf_counter() - start
    if not leads():
        return
    found = saved(seen, prepared.plan, folder, seconds)
    summary = RunSummary.load(folder)
    draw_run(summary, folder / "figures")
    write_pages(summary)
    results = jobs.named(summary.results, prepared.loaded)
    wide = summary.too_wide
    terminal.show_result(console, run.statement, run.accuracy, seconds, folder, results, wide)
    terminal.show_phases(console, run)
    if as_json:
        command.print_json({"folder": str(folder), "accuracy": run.accuracy, **_result(run)})
    judge(console, found)


@command.app.command(
    epilog="Example: forethought tune job.toml --learning-rate 0.1 --learning-rate 1 --trials 8"
)
@command.takes("tune", before="data_dir")
def tune(
    job_file: command.JobFile,
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
    overwrite: command.Overwrite = False,
    ledger: command.Paying = None,
    data_dir: command.DataDir = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
    **flags: Any,
) -> None:
    """Search for the best step size privately: one budget pays for the whole search."""
    from forethought.jobs.job import from_file, overridden, paying
    from forethought.jobs.train import trials_of, tune_job
    from forethought.report import terminal

    rates = learning_rate or []
    command.refuse(not rates, "give the step sizes to try: --learning-rate 0.1 --learning-rate 1")
    request = paying(overridden(from_file(job_file or Path()), flags), ledger)
    folder = out or Path("runs") / request.name
    console = command.console_for(quiet or as_json)
    command.show_request(console, request)
    drawn = trials_of(distribution, trials)
    found = tune_job(
        request, folder, rates, drawn, scoring=scoring, overwrite=overwrite, data_dir=data_dir
    )
    if as_json:
        command.print_json({"folder": str(folder), **_result(found)})
    else:
        terminal.show_plan(console, found.plan)
        terminal.show_result(console, found.statement, None, None, folder)


def _result(run: Any) -> dict[str, Any]:
    """A plan that was run and its statement, as a JSON-ready mapping."""
    return {"plan": run.plan.to_dict(), "statement": json.loads(run.statement.to_json())}


@command.app.command(epilog="Example: forethought release job.toml --out runs/counts")
def release(
    job_file: Annotated[Path, typer.Argument(help="Job file (TOML) with [\\[statistics]].")],
    out: Annotated[Path | None, typer.Option(help="Folder of the result. Default: runs/NAME.")] = (
        None
    ),
    ledger: command.Paying = None,
    data_dir: command.DataDir = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """Release statistics of a table with noise: counts, means, quantiles, survival curves …"""
    from forethought.jobs.job import from_file, paying
    from forethought.jobs.release import release_job

    request = paying(from_file(job_file), ledger)
    folder = out or Path("runs") / request.name
    released, statement = release_job(request, folder, data_dir)
    if as_json:
        command.print_json(released.to_dict())
        return
    console = command.console_for(quiet)
    for one, found in zip(released.request.statistics, released.results, strict=True):
        for row in found[:ROWS]:
            value = min(max(row.value, row.low), row.high)  # the file has it as it was released
            name = one.name if row.name == one.name else f"{one.name}: {row.name}"
            command.say(console, f"{name} {value:.6g} ({row.low:.6g} to {row.high:.6g})")
        if len(found) > ROWS:
            command.say(console, f"{one.name}: {len(found) - ROWS} more rows in the folder")
    command.say(console, f"{statement.sentences()[0]}\nResult and statement in {folder}")


@command.app.command(
    epilog="Example: forethought predict runs/patients new.csv --out predictions.csv"
)
def predict(
    run: command.Run,
    table: Annotated[
        Path, typer.Argument(help="New records: CSV, Parquet, Excel; images: .npy, .npz.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write, as CSV.")] = Path("predictions.csv"),
    why: Annotated[
        bool,
        typer.Option("--why", help="Add what each column adds (additive, or linear of no basis)."),
    ] = False,
    overwrite: command.Overwrite = False,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """Apply a trained model to new records: a prediction and probabilities for each row."""
    from forethought.jobs.predict import load

    command.refuse(table.suffix == ".toml", f"{table} is a job: give a table of new records")
    command.to_write(out, overwrite=overwrite, reads=table)
    predictor = load(run)
    rows = predictor.predict_file(table, out, why)
    command.say(command.console_for(quiet or as_json), f"{rows} predictions in {out}")
    if as_json:
        stated = predictor.statement
        values = {"out": str(out), "rows": rows, "classes": predictor.classes}
        values |= {"epsilon": stated.epsilon.upper if stated.private else None}
        command.print_json({**values, "guarantee": stated.sentences()[0]})


@command.app.command(epilog="Example: forethought export runs/patients --onnx patients.onnx")
def export(
    run: command.Run,
    onnx: Annotated[Path, typer.Option(help="Where to write the model, as ONNX.")],
    overwrite: command.Overwrite = False,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """Write a trained model for other systems: one ONNX file, from a table's columns to answers."""
    from forethought.jobs.onnx_export import before, write_onnx
    from forethought.jobs.predict import load

    command.to_write(onnx, "--onnx", overwrite)
    predictor = load(run)
    model, first = write_onnx(predictor, onnx), before(predictor)
    inputs = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]
    console = command.console_for(quiet or as_json)
    names = f"{', '.join(inputs)} → {', '.join(outputs)}"
    command.say(console, f"{onnx}: {names}, as forethought.load answers")
    if first:
        console.print(Text(first["before"]))
    if as_json:
        command.print_json({"onnx": str(onnx), "inputs": inputs, "outputs": outputs, **first})
