"""Commands before anything private is trained on: init, plan, utility, calculator, ui."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from forethought import jobs, report
from forethought.commands import command
from forethought.commands.command import argument, flag, option
from forethought.values.plan import Plan
from forethought.values.serialisation import plain, replaced


@command.app.command(epilog="Example: forethought init patients.csv --label died")
def init(
    output: command.Words,
    table: Path = argument("Your table: CSV, Parquet or Excel; or arrays of images: .npz, idx."),
    label: list[str] | None = option(
        "The column to predict; repeat for several labels of 1 and 0."
    ),
    out: Path = option("The job file to write.", default=Path("job.toml")),
    overwrite: bool = command.OVERWRITE,
) -> None:
    """Write a first job file for a table or for images, for you to correct. Reads the file here."""
    command.to_write(out, overwrite=overwrite, reads=table)
    arrays = jobs.init.holds_arrays(table)
    command.refuse(
        arrays and label, "--label is a column of a table: an archive's labels are y or y_train"
    )
    text = jobs.init.job_for_arrays(table) if arrays else jobs.init.job_for(table, label)
    _put(out, text)
    if arrays:
        output.say(f"{out} is written from the sizes in {table.name}")
        for line in text.splitlines():
            if line.startswith(("features", "# Why", "# Trained")):
                output.say(line)
    else:
        output.say(
            f"{out} is written. Its ranges and categories were taken from {table.name}, on this "
            "machine, which no guarantee covers: correct them from what you know, and set "
            "columns_measured = false"
        )
        declared = text.partition("[data.columns]")[2]
        dropped = re.findall(r'^(.+) = "drop"  # (.+)', declared, re.MULTILINE)
        if dropped:
            left = "; ".join(f"{name}: {why}" for name, why in dropped)
            output.say(f"Left out: {left}")
        if jobs.init.ALL_DROPPED in text:
            output.console.print(f"[yellow]{jobs.init.ALL_DROPPED.removeprefix('# ')}[/yellow]")
    output.say(f"Then: forethought plan {out}, and forethought train {out}")


def _put(out: Path, text: str) -> None:
    """Write a file atomically: where a link points to, with the permissions of an earlier file."""
    if out.exists() and not out.is_file():  # a pipe or a terminal: it must not be replaced
        out.write_text(text, "utf-8")
        return
    mode = out.stat().st_mode & 0o777 if out.exists() else None
    with replaced(place := out.resolve(), 0o666 if mode is None else mode) as file:
        file.write(text.encode())
    if mode is not None:  # the process may allow less by default
        place.chmod(mode)


@command.app.command(
    epilog="Example: forethought plan --examples 60000 --epsilon 1 --epochs 20", before="explain"
)
def plan(
    output: command.Output,
    job_file: Path | None = command.JOB_FILE,
    explain: bool = flag("--explain", "Say why each number is what it is."),
    pareto: bool = flag("--pareto", "Search many plans for those that none beats."),
    max_epsilon: float | None = option("Limit for --pareto."),
    max_rounds: int | None = option("Limit for --pareto."),
    max_gradients: float | None = option("Limit for --pareto."),
    weight: list[str] | None = option(
        "NAME=VALUE of an objective (epsilon, noise, rounds, gradients)."
    ),
    utility: Path | None = option("Take noise and clip norm from this utility graph."),
    tolerance: float = option("Share of accuracy that --utility may lose.", default=0.1),
    rehearse: bool = flag("--rehearse", "Run the plan on a public proxy; predict accuracy."),
    public_proxy: str | None = command.PUBLIC_PROXY,
    relation: str | None = option(
        "How the public proxy stands to the private data: 'same source' or 'same task'. "
        "With 'same shape', or without it, a rehearsal says nothing of the private data; nor "
        "of networks that are no perceptrons."
    ),
    repeats: int = option("Runs of a rehearsal.", default=5),
    figure: Path | None = command.FIGURES,
    save: Path | None = option("Write the plan here."),
    out: Path | None = option("Run folder for train: say now if it cannot be used."),
    gpu_memory: float | None = option(
        "Say what fits into a GPU of so many GB, which need not be here.", min=0.01, max=1e6
    ),
    data_dir: Path | None = command.DATA_DIR,
    **flags: Any,
) -> None:
    """Choose everything before touching private data."""
    limits = {"epsilon": max_epsilon, "rounds": max_rounds, "gradients": max_gradients}
    numbers = {name: flags.pop(name) for name in ("examples", "parameters", "persons")}
    each = flags.pop("records_per_person")
    command.together(
        *((f"--max-{name}", most is not None, "--pareto", pareto) for name, most in limits.items()),
        ("--weight", weight, "--pareto", pareto),
        ("--tolerance", output.given("tolerance"), "--utility", utility is not None),
        ("--repeats", output.given("repeats"), "--rehearse", rehearse),
        ("--public-proxy", public_proxy is not None, "--rehearse", rehearse),
        ("--relation", relation is not None, "--public-proxy", public_proxy is not None),
        ("--gpu-memory", gpu_memory is not None, "a job file", job_file is not None),
        ("--rehearse", rehearse, "a job file", job_file is not None),
    )
    words = "give a job file, or --examples and what is known (see --help)"
    command.refuse((job_file is None) == (numbers["examples"] is None), words)
    words = "--records-per-person, --persons and --parameters go with --examples: a job has its own"
    given = any(value is not None for value in (each, *numbers.values()))
    command.refuse(job_file is not None and given, words)
    command.to_write(save, "--save", kind=Plan)
    if job_file is None:
        request = jobs.job.from_numbers(records_per_person=each, **flags)
    else:
        request = jobs.job.overridden(jobs.job.from_file(job_file), flags)
    searched: dict[str, Any] = {"limits": limits, "weights": _weights(weight)} if pareto else {}
    found = jobs.train.propose(
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
        output.show_request(loaded.request, loaded.advice, request.question)
    if save is not None:
        found.plan.save(save)
    rehearsal = None
    if rehearse and loaded is not None:
        with report.terminal.counting(output.console, "Rehearsing", repeats) as progress:
            rehearsal = jobs.public_proxy.rehearse_job(
                loaded, found.plan, public_proxy, repeats, data_dir, progress, relation
            )
    if output.as_json:
        more = {} if rehearsal is None else {"rehearsal": rehearsal.to_dict()}
        output.json(lambda: {**found.to_dict(), **more})
    else:
        if found.front is not None:
            report.terminal.show_front(output.console, found.front)
        report.terminal.show_plan_and_alternatives(output.console, found.plan, found.alternatives)
        if loaded is not None:
            costs = "" if found.cost is None else found.cost.text(gpu_memory)
            report.terminal.show_forecast(output.console, found.forecasts, found.seconds, costs)
        if explain:
            output.say(found.plan.explain())
        if rehearsal is not None:
            output.say(rehearsal.text())
    if figure is not None:
        output.show_files(report.figures.draw_plan(found.plan, figure, found.front))


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
    output: command.Output,
    job_file: Path = argument("Job file (TOML)."),
    models: str = option("Models to compare, by their names in a job.", default="linear,mlp"),
    public_proxy: str | None = command.PUBLIC_PROXY,
    relation: str | None = option("How the public proxy stands to the private data, as of plan."),
    repeats: int = option("Runs of each model.", default=5),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Say which model to take, by public numbers and rehearsals, before anything is spent.

    By accuracy, or by R² of a regression: of one label a record, and of rows, not of persons.
    """
    command.together(
        ("--relation", relation is not None, "--public-proxy", public_proxy is not None)
    )
    names = [name.strip() for name in models.split(",") if name.strip()]
    request = jobs.job.from_file(job_file)
    with report.terminal.counting(output.console, "Rehearsing", repeats * len(names)) as progress:
        found = jobs.public_proxy.compare_models(
            request, names, public_proxy, repeats, data_dir, relation, progress
        )
    output.json(found.to_dict)
    output.say(found.text())


@command.app.command(
    epilog="Example: forethought utility job.toml --public-proxy fashion-mnist --save graph.json"
)
def utility(
    output: command.Output,
    job_file: Path = argument("Job file (TOML)."),
    public_proxy: str | None = command.PUBLIC_PROXY,
    leaks: str | None = option("'accept' allows the job's own, private data."),
    clip_norm: list[float] | None = option("C to try; repeatable."),
    noise_multiplier: list[float] | None = option("σ to try; repeatable."),
    draws: int = option("Perturbations of every model.", default=20),
    batch: int = option("Expected batch size.", default=128),
    epochs: float = option("Length of each training.", default=5),
    noise_scale: str = option(
        "What σ is the noise of: weights (C σ), round (η₀ C σ), holders-round "
        "(√holders η₀ C σ) or run (√rounds η₀ C σ), η₀ the step size over the batch; or a "
        "number of times C σ.",
        default="weights",
    ),
    holders: int = option("Of holders-round.", default=1),
    stop_at: float | None = option("Accuracy at which each training ends."),
    tolerance: float = option("Share of accuracy that may be lost.", default=0.1),
    save: Path | None = option("Write the graph here."),
    figure: Path | None = command.FIGURES,
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """See how much noise the job's model bears at each clip norm, on data that costs nothing."""
    from forethought.utility.graph import UtilityGraph

    command.to_write(save, "--save", kind=UtilityGraph)
    loaded = jobs.load.load_job(jobs.job.from_file(job_file), data_dir)
    loaded.require_rows("a utility graph")
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
        "clip_norms": clip_norm or jobs.public_proxy.CLIP_NORMS,
        "noise_multipliers": noise_multiplier or jobs.public_proxy.NOISE_MULTIPLIERS,
    }
    command.refuse(leaks not in (None, "accept"), f"--leaks knows only 'accept', not {leaks!r}")
    with report.terminal.counting(output.console, "Measuring", 0) as progress:
        graph = jobs.public_proxy.utility_of(
            loaded, public_proxy, settings, data_dir, leaks=leaks is not None, progress=progress
        )
    if save is not None:
        graph.save(save)
    if figure is not None:
        output.show_files(report.figures.draw_utility(graph, figure, tolerance))
    output.json(graph.to_dict)
    if not output.as_json:  # no pair may meet the tolerance
        report.terminal.show_utility(output.console, graph, tolerance)


@command.app.command(
    epilog="Example: forethought calculator --examples 10000 --epochs 5 --epsilon 0.1"
)
def calculator(
    output: command.Output,
    examples: int = option("Records, N.", default=...),
    epochs: float = option("Passes over the data, k = K/N.", default=...),
    epsilon: float | None = option("Target: finds σ and the sample size (Appendix E.1)."),
    noise_multiplier: float | None = option("σ; alone: finds ε and the rounds (Appendix D.4)."),
    delta: float | None = option("Default: 1/examples."),
    power: float = option("Sample sizes grow as q N i^power.", default=0.0),
    steps: int = option("In so many steps at most.", default=16),
    after: list[str] | None = option("An earlier phase, SIZE:ROUNDS; repeat for several."),
    as_printed: bool = flag(
        "--as-printed", "Read the rules to the letter: the paper's own tables."
    ),
) -> None:
    """The published DP calculators, with conditions, margins and the exact figures."""
    from forethought.papers.calculators import calculate, earlier_phase

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
    output.json(lambda: [plan.to_dict() for plan in plans])
    report.terminal.show_calculated(output.console, plans)


@command.app.command(epilog="Example: forethought papers 000 --table 6")
def papers(
    output: command.Output,
    name: str | None = argument("A paper's number, 000 to 004.", default=None),
    table: str | None = option("One of its tables, printed beside ours."),
) -> None:
    """The five papers: what each claims, where it is wrong, its tables beside ours."""
    from forethought.papers import published

    command.refuse(
        table is not None and name is None, "--table goes with a paper: forethought papers 000"
    )
    if name is None:
        found: Any = list(published.papers().values())
        report.terminal.show_papers(output.console, found)
    elif table is None:
        found = published.paper(name)
        report.terminal.show_paper(output.console, found)
    else:
        found = published.paper(name).table(table)
        report.terminal.show_paper_table(output.console, found)
    output.json(lambda: plain(found))


@command.app.command(epilog="Example: forethought ui job.toml")
def ui(
    output: command.Words,
    job_file: Path | None = command.JOB_FILE,
    port: int = option("On 127.0.0.1; 0: any that is free.", default=0, min=0, max=65535),
    folder: Path = option("Where plans and jobs are saved.", default=Path()),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Plan in a browser, on this machine alone: sliders, and what follows from them."""
    from forethought.web.site import PlannerServer, beginning

    command.refuse(
        not folder.is_dir(), f"{folder} is no folder: make it first, or give another --folder"
    )
    place, start = beginning(job_file, folder, data_dir)
    try:
        server = PlannerServer(place, start, port)
    except OSError as error:
        why = str(error.strerror).lower()
        raise command.UsageError(
            f"--port {port}: {why}. Leave it out for any that is free"
        ) from None
    # The browser is not started here: other users could see the token in its arguments.
    output.console.print("Open this address in your browser; it is for you alone:")
    output.console.print(server.address, markup=False, soft_wrap=True)  # whole, to be opened
    output.console.print("Ctrl-C ends it.")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
