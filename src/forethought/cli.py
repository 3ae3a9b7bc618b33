"""The command line: plan, train, account, report. No logic of its own.

Exit status: 0 done, 1 failed, 2 bad usage or a wish that cannot be fulfilled, 130 interrupted and
resumable.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(
    name="forethought",
    help="Private training you plan before you run: plan → train → account.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JobFile = Annotated[Path | None, typer.Argument(help="Job file (TOML).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="FORETHOUGHT_DATA", help="Folder with the data sets."),
]


class UsageError(ValueError):
    """A combination of arguments that makes no sense; the message says what to give."""


def _console(quiet: bool) -> Console:
    return Console(quiet=quiet, highlight=False, soft_wrap=not sys.stdout.isatty())


@app.command(epilog="Example: forethought train job.toml --out runs/mnist")
def train(
    job_file: JobFile = None,
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
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan and train a model privately; leave it with a statement of what was guaranteed."""
    from forethought import running
    from forethought.report import terminal

    if (job_file is not None) + demo + (resume is not None) != 1:
        raise UsageError("give exactly one of: a job file, --demo, --resume RUN_FOLDER")
    if resume is not None:
        if out is not None or overwrite:
            raise UsageError("--resume names the run folder itself: drop --out and --overwrite")
        if until_accuracy is not None:
            raise UsageError("--resume goes on to the accuracy that the run began with")
        request, folder = running.resumed(resume), resume
    else:
        request = running.demo() if demo else running.from_file(job_file or Path())
        folder = out or Path("runs") / request.name
    if max_epsilon is not None and until_accuracy is None:
        raise UsageError("--max-epsilon goes with --until-accuracy; a job has its own budget")
    console = _console(quiet or as_json)
    prepared = running.prepare(
        request, data_dir, until=until_accuracy, max_epsilon=max_epsilon, resume=resume
    )
    terminal.show_plan(console, prepared.plan)
    start = time.perf_counter()
    try:
        with terminal.progress_bar(console, prepared.plan.rounds) as progress:
            run = running.run(
                prepared, folder, resume=resume is not None, overwrite=overwrite, progress=progress
            )
    except KeyboardInterrupt:
        resume_with = f"forethought train --resume {folder}"
        raise typer.Exit(_fail(f"interrupted; continue with: {resume_with}", 130)) from None
    seconds = time.perf_counter() - start
    accuracy = run.accuracy
    terminal.show_result(console, run.statement, accuracy, seconds, folder)
    terminal.show_phases(console, run)
    if as_json:
        _print_json(
            {
                "folder": str(folder),
                "accuracy": accuracy,
                "plan": prepared.plan.to_dict(),
                "statement": json.loads(run.statement.to_json()),
            }
        )


@app.command(epilog="Example: forethought plan --examples 60000 --epsilon 1 --epochs 20")
def plan(
    job_file: JobFile = None,
    examples: Annotated[int | None, typer.Option(help="Records to train on.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 · examples).")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Releases.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="σ.")] = None,
    sampling: Annotated[str, typer.Option(help="How batches are drawn.")] = "poisson",
    clipping: Annotated[str, typer.Option(help="example or group.")] = "example",
    adjacency: Annotated[str | None, typer.Option(help="What a neighbour is.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Numbers the model trains.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each number is what it is.")
    ] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Search many plans for those that none beats.")
    ] = False,
    max_epsilon: Annotated[float | None, typer.Option(help="Limit for --pareto.")] = None,
    max_rounds: Annotated[int | None, typer.Option(help="Limit for --pareto.")] = None,
    max_gradients: Annotated[float | None, typer.Option(help="Limit for --pareto.")] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of an objective (epsilon, noise, rounds, gradients)."),
    ] = None,
    utility: Annotated[
        Path | None, typer.Option(help="Take noise and clip norm from this utility graph.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Share of accuracy that --utility may lose.")
    ] = 0.1,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Run the plan on stand-in data; predict accuracy.")
    ] = False,
    stand_in: Annotated[
        str | None, typer.Option(help="Public data set for --rehearse. Default: synthetic.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of a rehearsal.")] = 5,
    figure: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan here.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose everything before touching private data."""
    from forethought import running
    from forethought.report import terminal

    if (job_file is None) == (examples is None):
        raise UsageError("give a job file, or --examples and what is known (see --help)")
    console = _console(quiet or as_json)
    if job_file is not None:
        request = running.from_file(job_file)
    else:
        request = running.from_tables(
            {
                "budget": {"epsilon": epsilon, "delta": delta},
                "training": {
                    "epochs": epochs,
                    "rounds": rounds,
                    "batch": batch,
                    "noise_multiplier": noise_multiplier,
                    "sampling": sampling,
                    "clipping": clipping,
                    "adjacency": adjacency,
                },
            }
        )
    if examples is None:
        examples, parameters = running.sizes(request, data_dir)
    front = None
    if pareto:
        limits = {"epsilon": max_epsilon, "rounds": max_rounds, "gradients": max_gradients}
        front = running.front(request, examples, parameters, limits, utility)
        chosen = front.best(_weights(weight)).plan
        beside = []
    else:
        chosen = running.chosen_plan(request, examples, parameters, utility, tolerance)
        beside = list(running.neighbours(chosen))
    if save is not None:
        chosen.save(save)
    rehearsal = None
    if rehearse:
        if job_file is None:
            raise UsageError("--rehearse needs a job file: it trains the job's model")
        with terminal.counting(console, "Rehearsing", repeats) as progress:
            rehearsal = running.rehearse(request, chosen, stand_in, repeats, data_dir, progress)
    if as_json:
        _print_json(running.plan_report(chosen, beside, front, rehearsal))
    else:
        if front is not None:
            terminal.show_front(console, front)
        terminal.show_plan_beside(console, chosen, beside)
        if explain:
            console.print(chosen.explain())
        if rehearsal is not None:
            console.print(rehearsal.text())
    if figure is not None:
        for path in running.draw_plan(chosen, figure, front):
            console.print(f"figure  {path}")


@app.command(
    epilog="Example: forethought tune job.toml --learning-rate 0.1 --learning-rate 1 --trials 8"
)
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
) -> None:
    """Search for the best step size privately: one budget pays for the whole search."""
    from forethought import running
    from forethought.report import terminal

    if not learning_rate:
        raise UsageError("give the step sizes to try: --learning-rate 0.1 --learning-rate 1")
    request = running.from_file(job_file or Path())
    folder = out or Path("runs") / request.name
    console = _console(quiet or as_json)
    found = running.tune(
        request,
        folder,
        learning_rate,
        running.trials_of(distribution, trials),
        scoring=scoring,
        overwrite=overwrite,
        data_dir=data_dir,
    )
    if as_json:
        _print_json(
            {
                "folder": str(folder),
                "plan": found.plan.to_dict(),
                "statement": json.loads(found.statement.to_json()),
            }
        )
    else:
        terminal.show_plan(console, found.plan)
        terminal.show_result(console, found.statement, None, None, folder)


@app.command(
    epilog="Example: forethought utility job.toml --stand-in fashion-mnist --save graph.json"
)
def utility(
    job_file: JobFile,
    stand_in: Annotated[
        str | None, typer.Option(help="Public data set, or 'synthetic'. None: the job's own data.")
    ] = None,
    leaks: Annotated[
        str | None, typer.Option(help="'accept' allows the job's own, private data.")
    ] = None,
    clip_norm: Annotated[list[float] | None, typer.Option(help="C to try; repeatable.")] = None,
    noise_multiplier: Annotated[
        list[float] | None, typer.Option(help="σ to try; repeatable.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Perturbations of every model.")] = 20,
    batch: Annotated[int, typer.Option(help="Expected batch size.")] = 128,
    epochs: Annotated[float, typer.Option(help="Length of each training.")] = 5,
    tolerance: Annotated[float, typer.Option(help="Share of accuracy that may be lost.")] = 0.1,
    save: Annotated[Path | None, typer.Option(help="Write the graph here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See how much noise the job's model bears at each clip norm, on data that costs nothing."""
    from forethought import running
    from forethought.report import terminal

    request = running.from_file(job_file or Path())
    console = _console(quiet or as_json)
    settings: dict[str, Any] = {"draws": draws, "batch": batch, "epochs": epochs}
    grids = {"clip_norms": clip_norm, "noise_multipliers": noise_multiplier}
    settings |= {name: grid or list(running.UTILITY_GRID[name]) for name, grid in grids.items()}
    if leaks not in (None, "accept"):
        raise UsageError(f"--leaks knows only 'accept', not {leaks!r}")
    with terminal.counting(console, "Measuring", 0) as progress:
        graph = running.utility_of(
            request, stand_in, settings, data_dir, leaks=leaks is not None, progress=progress
        )
    if save is not None:
        graph.save(save)
    if figure is not None:
        for path in running.draw_utility(graph, figure, tolerance):
            console.print(f"figure  {path}")
    if as_json:
        _print_json(graph.to_dict())
    else:
        terminal.show_utility(console, graph, tolerance)


@app.command(
    epilog="Example: forethought account --examples 60000 --batch 256 --epochs 20 "
    "--noise-multiplier 1.1 --delta 1e-5"
)
def account(
    path: Annotated[
        Path | None, typer.Argument(help="Plan, statement or run folder.", show_default=False)
    ] = None,
    examples: Annotated[int | None, typer.Option(help="Records trained on.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Releases.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="σ.")] = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 · examples).")] = None,
    sampling: Annotated[str, typer.Option(help="How batches were drawn.")] = "poisson",
    clipping: Annotated[str, typer.Option(help="example or group.")] = "example",
    adjacency: Annotated[str | None, typer.Option(help="What a neighbour is.")] = None,
    group: Annotated[int, typer.Option(help="Records protected together.")] = 1,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute a statement; fail when it does not hold.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show what every other analysis says beside it.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say exactly how private something is: from numbers, a plan, a run or a statement."""
    from forethought import running
    from forethought.report import terminal

    console = _console(quiet or as_json)
    if path is not None:
        statement = running.statement_of(path, verify=verify, group=group, delta=delta)
    else:
        if examples is None or noise_multiplier is None or batch is None:
            raise UsageError(
                "give a path, or --examples, --batch, --noise-multiplier and --epochs or --rounds"
            )
        request = running.from_tables(
            {
                "budget": {"delta": delta},
                "training": {
                    "epochs": epochs,
                    "rounds": rounds,
                    "batch": batch,
                    "noise_multiplier": noise_multiplier,
                    "sampling": sampling,
                    "clipping": clipping,
                    "adjacency": adjacency,
                },
            }
        )
        statement = running.account_for(request, examples, group)
    rows = running.compared(statement) if compare else []
    if as_json:
        said = {"comparison": [row.to_dict() for row in rows]} if compare else {}
        _print_json({**json.loads(statement.to_json()), **said})
    else:
        terminal.show_statement(console, statement, verified=verify)
        terminal.show_comparison(console, rows)
    if figure is not None:
        for drawn in running.draw_statement(statement, figure):
            console.print(f"figure  {drawn}")


@app.command(epilog="Example: forethought calculator --examples 10000 --epochs 5 --epsilon 0.1")
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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The published DP calculators, with conditions, margins and the exact figures beside."""
    from forethought.planning.calculator import calculate, earlier_phase
    from forethought.report.calculator import show

    plans = calculate(
        examples=examples,
        epochs=epochs,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        power=power,
        steps=steps,
        earlier=[earlier_phase(text) for text in after or ()],
    )
    if as_json:
        _print_json([plan.to_dict() for plan in plans])
    else:
        show(_console(quiet), plans)


@app.command(epilog="Example: forethought report runs/mnist")
def report(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw the figures of a finished run again and show its result and statement."""
    from forethought import running
    from forethought.report import terminal

    summary = running.report(folder)
    if as_json:
        _print_json(summary.to_dict())
    else:
        terminal.show_summary(_console(quiet), summary)


def _weights(said: list[str] | None) -> dict[str, float] | None:
    weights = {}
    for text in said or []:
        name, _, value = text.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise UsageError(
                f"--weight takes NAME=VALUE, for example epsilon=2, not {text!r}"
            ) from None
    return weights or None


def _version(wanted: bool) -> None:
    if wanted:
        from forethought import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _print_json(values: Any) -> None:
    print(json.dumps(values, indent=2))


def _fail(message: object, status: int) -> int:
    Console(stderr=True).print("[bold red]error[/bold red]", end=": ")
    print(message, file=sys.stderr)
    return status


def _show_warning(message: Warning | str, *_where: object) -> None:
    Console(stderr=True).print("[yellow]warning[/yellow]", end=": ")
    print(message, file=sys.stderr)


def main() -> None:
    """Entry point: every expected failure is one clear line and an exit status."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            app()
    except ValueError as error:
        raise SystemExit(_fail(error, 2)) from None
    except OSError as error:
        raise SystemExit(_fail(error, 1)) from None


if __name__ == "__main__":
    main()
