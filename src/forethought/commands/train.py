"""Commands that train a model and use it: train, tune, predict, export."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

from forethought import jobs, report
from forethought.commands import command
from forethought.commands.account import judge, saved, watching
from forethought.commands.command import argument, flag, option
from forethought.values.checks import without_none

# Largest number of rows of one statistic that are printed.
ROWS = 12


@command.app.command(
    epilog="Example: forethought train job.toml --out runs/mnist", before="data_dir"
)
def train(
    output: command.Output,
    job_file: Path | None = command.JOB_FILE,
    plan_file: Path | None = option("Run this saved plan on the job's data and model.", "--plan"),
    out: Path | None = option("Run folder. Default: runs/NAME."),
    resume: Path | None = option("Continue the interrupted run in this folder."),
    overwrite: bool = command.OVERWRITE,
    demo: bool = flag("--demo", "Run the built-in job."),
    ledger: str | None = command.PAYING,
    until_accuracy: float | None = option(
        "Go on in phases of less noise until this accuracy on held-out data."
    ),
    max_epsilon: float | None = option("Limit on ε of all phases. Default: the job's budget."),
    replay: int | None = command.REPLAYED,
    data_dir: Path | None = command.DATA_DIR,
    **flags: Any,
) -> None:
    """Plan and train a model privately; leave it with a statement of what was guaranteed."""
    from forethought.training.execution import launched, leads
    from forethought.training.folder import RunSummary

    goes_on, numbers = resume is not None, without_none(flags)
    words = "give exactly one of: a job file, --demo, --resume RUN_FOLDER"
    command.refuse((job_file is not None) + demo + goes_on != 1, words)
    own: dict[str, Any] = {"--out": out, "--overwrite": overwrite or None, "--plan": plan_file}
    own |= {"--until-accuracy": until_accuracy, "--ledger": ledger, "the numbers": numbers or None}
    given = " and ".join(without_none(own))
    words = f"a resumed run keeps the plan it began with, its folder and its ledger: drop {given}"
    command.refuse(goes_on and given, words)
    words = "a saved plan is run as it is: drop --plan, or the numbers given with it"
    command.refuse(plan_file is not None and numbers, words)
    until = until_accuracy is not None
    command.together(("--max-epsilon", max_epsilon is not None, "--until-accuracy", until))
    if resume is not None:
        request, folder = jobs.job.resumed(resume), resume
    else:
        request = jobs.job.overridden(
            jobs.job.built_in("demo") if demo else jobs.job.from_file(job_file or Path()), flags
        )
        request = jobs.job.paying(request, ledger)
        folder = out or Path("runs") / request.name
    output.console.quiet |= not leads()
    prepared = jobs.train.prepare(
        request,
        data_dir,
        until=until_accuracy,
        max_epsilon=max_epsilon,
        resume=resume,
        saved_plan=plan_file,
        out=folder,
        overwrite=overwrite,
    )
    output.show_request(prepared.loaded.request)
    report.terminal.show_plan(output.console, prepared.plan)
    start = time.perf_counter()
    try:
        with (
            launched(),
            watching(replay, prepared.plan.rounds) as seen,
            report.terminal.progress_bar(output.console, prepared.plan.rounds) as progress,
        ):
            run = jobs.train.run(
                prepared, folder, resume=goes_on, overwrite=overwrite, progress=progress
            )
    except KeyboardInterrupt:
        begun = (folder / jobs.job.JOB_NAME).is_file()
        way = f"continue with: forethought train --resume {folder}"
        way = way if begun else "its folder was not set up yet: give the same command again"
        raise typer.Exit(command.fail(f"interrupted; {way}", 130)) from None
    seconds = time.perf_counter() - start
    if not leads():
        return
    found = saved(seen, prepared.plan, folder, seconds)
    summary = RunSummary.load(folder)
    report.figures.draw_run(summary, folder / "figures")
    report.page.write_pages(summary)
    results = jobs.train.named(summary.results, prepared.loaded)
    whole = None if goes_on else seconds  # what ran before is not measured
    report.terminal.show_result(
        output.console, run.statement, run.accuracy, whole, folder, results, summary.too_wide
    )
    report.terminal.show_phases(output.console, run)
    output.json(lambda: {"folder": str(folder), "accuracy": run.accuracy, **_result(run)})
    judge(output, found)


@command.app.command(
    epilog="Example: forethought tune job.toml --learning-rate 0.1 --learning-rate 1 --trials 8",
    before="data_dir",
)
def tune(
    output: command.Output,
    job_file: Path = argument("Job file (TOML)."),
    learning_rate: list[float] | None = option("Step size to try; repeatable."),
    trials: float = option("Mean number of trials.", default=8),
    distribution: str = option(
        "Of the number of trials: negative-binomial or poisson.", default="negative-binomial"
    ),
    scoring: str = option("Held-out records: noised, public or unprotected.", default="noised"),
    out: Path | None = option("Run folder of the best trial."),
    overwrite: bool = command.OVERWRITE,
    ledger: str | None = command.PAYING,
    data_dir: Path | None = command.DATA_DIR,
    **flags: Any,
) -> None:
    """Search for the best step size privately: one budget pays for the whole search."""
    rates = learning_rate or []
    command.refuse(not rates, "give the step sizes to try: --learning-rate 0.1 --learning-rate 1")
    request = jobs.job.paying(jobs.job.overridden(jobs.job.from_file(job_file), flags), ledger)
    folder = out or Path("runs") / request.name
    output.show_request(request)
    drawn = jobs.train.trials_of(distribution, trials)
    found = jobs.train.tune_job(
        request, folder, rates, drawn, scoring=scoring, overwrite=overwrite, data_dir=data_dir
    )
    output.json(lambda: {"folder": str(folder), **_result(found)})
    report.terminal.show_plan(output.console, found.plan)
    report.terminal.show_result(output.console, found.statement, None, None, folder)


def _result(run: Any) -> dict[str, Any]:
    """A plan that was run and its statement, as a JSON-ready mapping."""
    return {"plan": run.plan.to_dict(), "statement": json.loads(run.statement.to_json())}


@command.app.command(epilog="Example: forethought release job.toml --out runs/counts")
def release(
    output: command.Output,
    job_file: Path = argument("Job file (TOML) with [\\[statistics]]."),
    out: Path | None = option("Folder of the result. Default: runs/NAME."),
    ledger: str | None = command.PAYING,
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Release statistics of a table with noise: counts, means, quantiles, survival curves …"""
    request = jobs.job.paying(jobs.job.from_file(job_file), ledger)
    folder = out or Path("runs") / request.name
    released, statement = jobs.release.release_job(request, folder, data_dir)
    output.json(lambda: released.to_dict())
    for one, found in zip(released.request.statistics, released.results, strict=True):
        for row in found[:ROWS]:
            value = min(max(row.value, row.low), row.high)  # the file has it as it was released
            name = one.name if row.name == one.name else f"{one.name}: {row.name}"
            output.say(f"{name} {value:.6g} ({row.low:.6g} to {row.high:.6g})")
        if len(found) > ROWS:
            output.say(f"{one.name}: {len(found) - ROWS} more rows in the folder")
    output.say(f"{statement.sentences()[0]}\nResult and statement in {folder}")


@command.app.command(
    epilog="Example: forethought predict runs/patients new.csv --out predictions.csv"
)
def predict(
    output: command.Output,
    run: Path = command.RUN,
    table: Path = argument("New records: CSV, Parquet, Excel; images: .npy, .npz."),
    out: Path = option("Where to write, as CSV.", default=Path("predictions.csv")),
    why: bool = flag("--why", "Add what each column adds (additive, or linear of no basis)."),
    overwrite: bool = command.OVERWRITE,
) -> None:
    """Apply a trained model to new records: a prediction and probabilities for each row."""
    command.refuse(table.suffix == ".toml", f"{table} is a job: give a table of new records")
    command.to_write(out, overwrite=overwrite, reads=table)
    predictor = jobs.predict.load(run)
    rows = predictor.predict_file(table, out, why)
    output.say(f"{rows} predictions in {out}")
    if output.as_json:
        stated = predictor.statement
        values = {"out": str(out), "rows": rows, "classes": predictor.classes}
        values |= {"epsilon": stated.epsilon.upper if stated.private else None}
        output.json(lambda: {**values, "guarantee": stated.sentences()[0]})


@command.app.command(epilog="Example: forethought export runs/patients --onnx patients.onnx")
def export(
    output: command.Output,
    run: Path = command.RUN,
    onnx: Path = option("Where to write the model, as ONNX.", default=...),
    overwrite: bool = command.OVERWRITE,
) -> None:
    """Write a trained model for other systems: one ONNX file, from a table's columns to answers."""
    command.to_write(onnx, "--onnx", overwrite)
    predictor = jobs.predict.load(run)
    model, first = jobs.onnx_export.write_onnx(predictor, onnx), jobs.onnx_export.before(predictor)
    inputs = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]
    names = f"{', '.join(inputs)} → {', '.join(outputs)}"
    output.say(f"{onnx}: {names}, as forethought.load answers")
    if first:
        output.say(first["before"])
    output.json(lambda: {"onnx": str(onnx), "inputs": inputs, "outputs": outputs, **first})
