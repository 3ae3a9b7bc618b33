"""Commands before anything private is trained on: init, plan, utility, calculator, ui."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.commands import command


@command.app.command(epilog="Example: forethought init patients.csv --label died")
def init(
    table: Annotated[
        Path,
        typer.Argument(help="Your table: CSV, Parquet or Excel; or arrays of images: .npz, idx."),
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(help="The column to predict; repeat for several labels of 1 and 0."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The job file to write.")] = Path("job.toml"),
    overwrite: command.Overwrite = False,
    quiet: command.Quiet = False,
) -> None:
    """Write a first job file for a table or for images, for you to correct. Reads the file here."""
    from forethought.jobs.init import ALL_DROPPED, holds_arrays, job_for, job_for_arrays

    command.to_write(out, overwrite=overwrite, reads=table)
    arrays = holds_arrays(table)
    command.refuse(
        arrays and label, "--label is a column of a table: an archive's labels are y or y_train"
    )
    text = job_for_arrays(table) if arrays else job_for(table, label)
    out.write_text(text, encoding="utf-8")
    console = command.console_for(quiet)
    if arrays:
        command.say(console, f"{out} is written from the sizes in {table.name}")
        for line in text.splitlines():
            if line.startswith(("features", "# Why", "# Trained")):
                command.say(console, line)
    else:
        command.say(
            console,
            f"{out} is written. Its ranges and categories were taken from {table.name}, on this "
            "machine, which no guarantee covers: correct them from what you know, and set "
            "columns_measured = false",
        )
        declared = text.partition("[data.columns]")[2]
        dropped = re.findall(r'^(.+) = "drop"  # (.+)', declared, re.MULTILINE)
        if dropped:
            left = "; ".join(f"{name}: {why}" for name, why in dropped)
            command.say(console, f"Left out: {left}")
        if ALL_DROPPED in text:
            console.print(f"[yellow]{ALL_DROPPED.removeprefix('# ')}[/yellow]")
    command.say(console, f"Then: forethought plan {out}, and forethought train {out}")


@command.app.command(epilog="Example: forethought plan --examples 60000 --epsilon 1 --epochs 20")
@command.takes("plan", before="explain")
def plan(
    context: typer.Context,
    job_file: command.JobFile = None,
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
        bool, typer.Option("--rehearse", help="Run the plan on a public proxy; predict accuracy.")
    ] = False,
    public_proxy: command.PublicProxy = None,
    relation: Annotated[
        str | None,
        typer.Option(
            help="How the public proxy stands to the private data: 'same source' or 'same task'. "
            "With 'same shape', or without it, a rehearsal says nothing of the private data; nor "
            "of networks that are no perceptrons."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of a rehearsal.")] = 5,
    figure: command.Figures = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan here.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder for train: say now if it cannot be used.")
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            help="Say what fits into a GPU of so many GB, which need not be here.",
            min=0.01,
            max=1e6,
        ),
    ] = None,
    data_dir: command.DataDir = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
    **flags: Any,
) -> None:
    """Choose everything before touching private data."""
    from forethought.jobs.job import from_file, from_numbers, overridden
    from forethought.jobs.public_proxy import rehearse_job
    from forethought.jobs.train import propose
    from forethought.report import terminal
    from forethought.report.figures import draw_plan
    from forethought.values.plan import Plan

    limits = {"epsilon": max_epsilon, "rounds": max_rounds, "gradients": max_gradients}
    numbers = {name: flags.pop(name) for name in ("examples", "parameters", "persons")}
    each = flags.pop("records_per_person")
    command.together(
        *((f"--max-{name}", most is not None, "--pareto", pareto) for name, most in limits.items()),
        ("--weight", weight, "--pareto", pareto),
        ("--tolerance", command.given(context, "tolerance"), "--utility", utility is not None),
        ("--repeats", command.given(context, "repeats"), "--rehearse", rehearse),
        ("--public-proxy", public_proxy is not None, "--rehearse", rehearse),
        ("--relation", relation is not None, "--public-proxy", public_proxy is not None),
        ("--gpu-memory", gpu_memory is not None, "a job file", job_file is not None),
        ("--rehearse", rehearse, "a job file", job_file is not None),
    )
    command.refuse(
        (job_file is None) == (numbers["examples"] is None),
        "give a job file, or --examples and what is known (see --help)",
    )
    command.refuse(
        job_file is not None and any(value is not None for value in (each, *numbers.values())),
        "--records-per-person, --persons and --parameters go with --examples: a job's data say "
        "whose each record is, with person under [data], and its model has its own number",
    )
    command.to_write(save, "--save", kind=Plan)
    console = command.console_for(quiet or as_json)
    if job_file is None:
        request = from_numbers(records_per_person=each, **flags)
    else:
        request = overridden(from_file(job_file), flags)
    searched: dict[str, Any] = {"limits": limits, "weights": _weights(weight)} if pareto else {}
    found = propose(
        request,
        data_dir=data_dir,
        utility=utility,
        tolerance=tolerance,
        out=out,
        timed=True,
        measured=gpu_memory is not None,
        **numbers,
        **searched,
    )
    loaded = found.loaded
    if loaded is not None:
        command.show_request(console, loaded.request, loaded.advice, request.question)
    if save is not None:
        found.plan.save(save)
    rehearsal = None
    if rehearse and loaded is not None:
        with terminal.counting(console, "Rehearsing", repeats) as progress:
            rehearsal = rehearse_job(
                loaded, found.plan, public_proxy, repeats, data_dir, progress, relation
            )
    if as_json:
        more = {} if rehearsal is None else {"rehearsal": rehearsal.to_dict()}
        command.print_json({**found.to_dict(), **more})
    else:
        if found.front is not None:
            terminal.show_front(console, found.front)
        terminal.show_plan_and_alternatives(console, found.plan, found.alternatives)
        if loaded is not None:
            costs = "" if found.cost is None else found.cost.text(gpu_memory)
            terminal.show_forecast(console, found.forecasts, found.seconds, costs)
        if explain:
            command.say(console, found.plan.explain())
        if rehearsal is not None:
            command.say(console, rehearsal.text())
    if figure is not None:
        command.show_files(console, draw_plan(found.plan, figure, found.front))


def _weights(given: list[str] | None) -> dict[str, float] | None:
    weights = {}
    for text in given or []:
        name, _, value = text.partition("=")
        with contextlib.suppress(ValueError):
            weights[name] = float(value)
        command.refuse(
            name not in weights, f"--weight takes NAME=VALUE, for example epsilon=2, not {text!r}"
        )
    return weights or None


@command.app.command(epilog="Example: forethought compare job.toml --models linear,mlp")
def compare(
    job_file: command.JobFile,
    models: Annotated[
        str, typer.Option(help="Models to compare, by their names in a job.")
    ] = "linear,mlp",
    public_proxy: command.PublicProxy = None,
    relation: Annotated[
        str | None,
        typer.Option(help="How the public proxy stands to the private data, as of plan."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each model.")] = 5,
    data_dir: command.DataDir = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """Say which model to take, by public numbers and rehearsals, before anything is spent.

    By accuracy, or by R² of a regression: of one label a record, and of rows, not of persons.
    """
    from forethought.jobs.job import from_file
    from forethought.jobs.public_proxy import compare_models
    from forethought.report import terminal

    command.together(
        ("--relation", relation is not None, "--public-proxy", public_proxy is not None)
    )
    names = [name.strip() for name in models.split(",") if name.strip()]
    console = command.console_for(quiet or as_json)
    request = from_file(job_file or Path())
    with terminal.counting(console, "Rehearsing", repeats * len(names)) as progress:
        found = compare_models(request, names, public_proxy, repeats, data_dir, relation, progress)
    if as_json:
        command.print_json(found.to_dict())
    else:
        command.say(console, found.text())


@command.app.command(
    epilog="Example: forethought utility job.toml --public-proxy fashion-mnist --save graph.json"
)
def utility(
    job_file: command.JobFile,
    public_proxy: command.PublicProxy = None,
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
    noise_scale: Annotated[
        str,
        typer.Option(
            help="What σ is the noise of: weights (C σ), round (η₀ C σ), holders-round "
            "(√holders η₀ C σ) or run (√rounds η₀ C σ), η₀ the step size over the batch; or a "
            "number of times C σ."
        ),
    ] = "weights",
    holders: Annotated[int, typer.Option(help="Of holders-round.")] = 1,
    stop_at: Annotated[
        float | None, typer.Option(help="Accuracy at which each training ends.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Share of accuracy that may be lost.")] = 0.1,
    save: Annotated[Path | None, typer.Option(help="Write the graph here.")] = None,
    figure: command.Figures = None,
    data_dir: command.DataDir = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """See how much noise the job's model bears at each clip norm, on data that costs nothing."""
    from forethought.jobs.job import from_file
    from forethought.jobs.load import load_job
    from forethought.jobs.public_proxy import UTILITY_GRID, utility_of
    from forethought.report import terminal
    from forethought.report.figures import draw_utility
    from forethought.utility.graph import UtilityGraph

    command.to_write(save, "--save", kind=UtilityGraph)
    loaded = load_job(from_file(job_file or Path()), data_dir)
    loaded.require_rows("a utility graph")
    console = command.console_for(quiet or as_json)
    scale: float | str = noise_scale
    with contextlib.suppress(ValueError):  # no number: the name of a scale
        scale = float(noise_scale)
    settings: dict[str, Any] = {
        "draws": draws,
        "batch": batch,
        "epochs": epochs,
        "noise_scale": scale,
        "holders": holders,
        "stop_at": stop_at,
        "clip_norms": clip_norm or list(UTILITY_GRID["clip_norms"]),
        "noise_multipliers": noise_multiplier or list(UTILITY_GRID["noise_multipliers"]),
    }
    command.refuse(leaks not in (None, "accept"), f"--leaks knows only 'accept', not {leaks!r}")
    with terminal.counting(console, "Measuring", 0) as progress:
        graph = utility_of(
            loaded, public_proxy, settings, data_dir, leaks=leaks is not None, progress=progress
        )
    if save is not None:
        graph.save(save)
    if figure is not None:
        command.show_files(console, draw_utility(graph, figure, tolerance))
    if as_json:
        command.print_json(graph.to_dict())
    else:
        terminal.show_utility(console, graph, tolerance)


@command.app.command(
    epilog="Example: forethought calculator --examples 10000 --epochs 5 --epsilon 0.1"
)
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
        list[str] | None, typer.Option(help="An earlier phase, SIZE:ROUNDS; repeat for several.")
    ] = None,
    as_printed: Annotated[
        bool,
        typer.Option("--as-printed", help="Read the rules to the letter: the paper's own tables."),
    ] = False,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """The published DP calculators, with conditions, margins and the exact figures."""
    from forethought.papers.calculators import calculate, earlier_phase
    from forethought.report.terminal import show_calculated

    plans = calculate(
        examples=examples,
        epochs=epochs,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        power=power,
        steps=steps,
        earlier=[earlier_phase(text) for text in after or ()],
        reading="as-printed" if as_printed else "converged",
    )
    if as_json:
        command.print_json([plan.to_dict() for plan in plans])
    else:
        show_calculated(command.console_for(quiet), plans)


@command.app.command(epilog="Example: forethought papers 000 --table 6")
def papers(
    name: Annotated[str | None, typer.Argument(help="A paper's number, 000 to 004.")] = None,
    table: Annotated[
        str | None, typer.Option(help="One of its tables, printed beside ours.")
    ] = None,
    as_json: command.Json = False,
    quiet: command.Quiet = False,
) -> None:
    """The five papers: what each claims, where it is wrong, its tables beside ours."""
    from forethought.papers import published
    from forethought.report.terminal import show_paper, show_paper_table, show_papers
    from forethought.values.serialisation import plain

    command.refuse(
        table is not None and name is None, "--table goes with a paper: forethought papers 000"
    )
    console = command.console_for(quiet or as_json)
    if name is None:
        found: Any = list(published.papers().values())
        show_papers(console, found)
    elif table is None:
        found = published.paper(name)
        show_paper(console, found)
    else:
        found = published.paper(name).table(table)
        show_paper_table(console, found)
    if as_json:
        command.print_json(plain(found))


@command.app.command(epilog="Example: forethought ui job.toml")
def ui(
    job_file: command.JobFile = None,
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0: any that is free.")] = 0,
    folder: Annotated[Path, typer.Option(help="Where plans and jobs are saved.")] = Path(),
    data_dir: command.DataDir = None,
    quiet: command.Quiet = False,
) -> None:
    """Plan in a browser, on this machine alone: sliders, and what follows from them."""
    from forethought.web.site import PlannerServer, beginning

    command.refuse(
        not folder.is_dir(), f"{folder} is no folder: make it first, or give another --folder"
    )
    command.refuse(not 0 <= port <= 65535, f"--port is 0 (any that is free) to 65535, not {port}")
    place, start = beginning(job_file, folder, data_dir)
    try:
        server = PlannerServer(place, start, port)
    except OSError as error:
        why = str(error.strerror).lower()
        raise command.UsageError(
            f"--port {port}: {why}. Leave it out for any that is free"
        ) from None
    console = command.console_for(quiet)
    # The browser is not started here: other users could see the token in its arguments.
    console.print("Open this address in your browser; it is for you alone:")
    console.print(server.address, markup=False, soft_wrap=True)  # whole, to be opened
    console.print("Ctrl-C ends it.")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
