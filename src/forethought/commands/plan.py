"""`forethought plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.commands.options import (
    LENGTH_AND_NOISE,
    DataDir,
    Figures,
    JobFile,
    Json,
    PublicProxy,
    Quiet,
    RecordCount,
    RecordsPerPerson,
    UsageError,
    console_for,
    print_json,
    show_advice,
    show_overrides,
    show_settled,
    takes,
)

EPILOG = "Example: forethought plan --examples 60000 --epsilon 1 --epochs 20"


@takes(*LENGTH_AND_NOISE, "sampling", "clipping", "adjacency", before="parameters")
def plan(  # noqa: C901, PLR0915
    job_file: JobFile = None,
    examples: RecordCount = None,
    parameters: Annotated[int | None, typer.Option(help="Numbers the model trains.")] = None,
    records_per_person: RecordsPerPerson = None,
    persons: Annotated[
        int | None, typer.Option(help="Different persons among the records.")
    ] = None,
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
    public_proxy: PublicProxy = None,
    relation: Annotated[
        str | None,
        typer.Option(
            help="How the public proxy stands to the private data: 'same source' or 'same task'. "
            "With 'same shape', or without it, a rehearsal says nothing of the private data; nor "
            "of networks that are no perceptrons."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of a rehearsal.")] = 5,
    figure: Figures = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan here.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Choose everything before touching private data."""
    from forethought.jobs import train as jobs
    from forethought.jobs.holders import rehearse_job
    from forethought.jobs.load import load_job
    from forethought.jobs.request import from_file, from_numbers, overridden
    from forethought.planning.solve import neighbours
    from forethought.report import terminal
    from forethought.report.figures import draw_plan

    for name, given, goes_with in (
        ("--max-epsilon", max_epsilon is not None, pareto or "--pareto"),
        ("--max-rounds", max_rounds is not None, pareto or "--pareto"),
        ("--max-gradients", max_gradients is not None, pareto or "--pareto"),
        ("--weight", bool(weight), pareto or "--pareto"),
        ("--public-proxy", public_proxy is not None, rehearse or "--rehearse"),
        ("--relation", relation is not None, public_proxy is not None or "--public-proxy"),
    ):
        if given and isinstance(goes_with, str):
            raise UsageError(f"{name} goes with {goes_with}: add that, or drop it")
    if (job_file is None) == (examples is None):
        raise UsageError("give a job file, or --examples and what is known (see --help)")
    console = console_for(quiet or as_json)
    if job_file is None:
        request = from_numbers(records_per_person=records_per_person, **flags)
    else:
        if records_per_person is not None or persons is not None:
            raise UsageError(
                "--records-per-person and --persons go with --examples: a job's data "
                "say whose each record is, with person under [data]"
            )
        if parameters is not None:
            raise UsageError("--parameters goes with --examples: a job's model has its own number")
        request = overridden(from_file(job_file), flags)
        show_overrides(console, request.overrides)
    loaded = None
    if examples is None:
        loaded = load_job(request, data_dir)
        show_settled(console, loaded.request.settled)
        show_advice(console, loaded.advice)
        parameters, asked = loaded.parameters, loaded.plan_request()
    else:
        asked = request.job.plan_request(examples, parameters, persons=persons)
    front = None
    if pareto:
        limits = {"epsilon": max_epsilon, "rounds": max_rounds, "gradients": max_gradients}
        front = jobs.front(asked, limits, utility)
        chosen = front.best(_weights(weight)).plan
        alternatives = []
    else:
        chosen = jobs.chosen_plan(asked, utility, tolerance)
        made = asked.with_(preparation=chosen.preparation)
        alternatives = list(neighbours(chosen, made.size, made.feature_norm, made.score_rule.noise))
    if loaded is not None:
        chosen = loaded.with_caveats(chosen)
    if save is not None:
        chosen.save(save)
    rehearsal = None
    if rehearse:
        if loaded is None:
            raise UsageError("--rehearse needs a job file: it trains the job's model")
        with terminal.counting(console, "Rehearsing", repeats) as progress:
            rehearsal = rehearse_job(
                loaded, chosen, public_proxy, repeats, data_dir, progress, relation
            )
    if as_json:
        print_json(jobs.plan_report(chosen, alternatives, front, rehearsal))
    else:
        if front is not None:
            terminal.show_front(console, front)
        terminal.show_plan_and_alternatives(console, chosen, alternatives)
        if explain:
            console.print(chosen.explain())
        if rehearsal is not None:
            console.print(rehearsal.text())
    if figure is not None:
        for path in draw_plan(chosen, figure, front):
            console.print(f"figure  {path}")


def _weights(given: list[str] | None) -> dict[str, float] | None:
    weights = {}
    for text in given or []:
        name, _, value = text.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise UsageError(
                f"--weight takes NAME=VALUE, for example epsilon=2, not {text!r}"
            ) from None
    return weights or None
