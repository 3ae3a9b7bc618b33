"""`forethought audit`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forethought.commands.options import (
    DataDir,
    Json,
    Quiet,
    UsageError,
    console_for,
    fail,
    print_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from forethought.auditing.replay import Replay
    from forethought.auditing.verdict import Audit
    from forethought.values.plan import Plan

EPILOG = "Example: forethought audit job.toml --quick"


def audit(
    path: Annotated[
        Path | None, typer.Argument(help="Job file, plan or run folder.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="More records, more games: minutes.")
    ] = False,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Replay rounds of a job or run against a slow reference."),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to replay.")] = 3,
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="Rehearse one run with canaries: how near to ε is it?"),
    ] = False,
    canaries: Annotated[
        str, typer.Option(help="With --one-run: gradients (seen in every sum) or inputs (losses).")
    ] = "gradients",
    false_alarm: Annotated[
        float | None,
        typer.Option(help="Chance that a sound run is refuted, all checks together. 1e-4."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for audit.json and the figure.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the audit's own choices.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Plant faults and show which check finds each.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try to refute what a run claims; it never proves it. Exit status 1 if refuted."""
    from forethought.report import audit as report

    console = console_for(quiet or as_json)
    if self_test:
        others = (path, out, false_alarm, replay or one_run or quick or thorough or None)
        if any(given is not None for given in others):
            raise UsageError("--self-test goes by itself (with --seed, --json, --quiet)")
        from forethought.auditing.self_test import self_test as plant

        result = plant(seed)
        if as_json:
            print_json(result.to_dict())
        else:
            report.show_self_test(console, result)
        if not result.passed:
            missed = [row.name for row in result.faults if not row.caught]
            wrong = [row.name for row in result.sound if row.caught]
            text = [f"not caught: {', '.join(missed)}"] if missed else []
            text += [f"refuted without a fault: {', '.join(wrong)}"] if wrong else []
            raise typer.Exit(fail(f"the self-test failed; {'; '.join(text)}", 1))
        return
    if path is None:
        raise UsageError("give a job file, a plan or a run folder, or --self-test")
    if quick and thorough:
        raise UsageError("give --quick or --thorough, not both")
    from forethought.jobs import audit as jobs
    from forethought.report.terminal import counting

    if one_run and (quick or thorough or replay):
        raise UsageError(
            "--one-run is one run of the whole plan: it goes with --canaries and --seed"
        )
    level = "quick" if quick else "thorough" if thorough else "standard"
    if replay:
        if quick or thorough or false_alarm is not None or seed is not None:
            raise UsageError("--replay leaves nothing to chance: it goes with --rounds alone")
        with counting(console, "Replaying", rounds) as progress:
            audited = jobs.replay(
                path, rounds=rounds, data_dir=data_dir, out=out, progress=progress
            )
    else:
        with counting(console, "Auditing", 5) as progress:
            audited = jobs.audit(
                path,
                data_dir=data_dir,
                out=out,
                level=level,
                false_alarm=false_alarm,
                seed=seed,
                one_run=canaries if one_run else None,
                progress=progress,
            )
    written, figure = jobs.save(audited)
    if figure is not None:
        report.draw_audit(audited.audit, figure)
    if as_json:
        files = {"audit": str(written), "figure": None if figure is None else str(figure)}
        print_json({**audited.audit.to_dict(), "files": files})
    else:
        report.show_audit(console, audited.audit)
        console.print(f"\n[bold]Written[/bold]  {written}")
        if figure is not None:
            console.print(f"[bold]Figure[/bold]   {figure}")
    if audited.audit.refuted:
        raise typer.Exit(fail(f"refuted: {audited.audit.reason}", 1))


def watching(replay: int | None, rounds: int) -> AbstractContextManager[Replay | None]:
    """The replay of so many of a run's ``rounds``, evenly spread, the last among them."""
    if replay is None:
        return nullcontext()
    from forethought.auditing.replay import replaying

    last, parts = rounds - 1, max(1, replay - 1)
    return replaying({last - round(place * last / parts) for place in range(replay)})


def saved(seen: Replay | None, plan: Plan, folder: Path, seconds: float) -> Audit | None:
    """The result of a replay, as audit.json in the run folder."""
    if seen is None:
        return None
    from forethought.jobs.audit import of_replay, save

    found = of_replay(seen, plan, folder, seconds)
    save(found)
    return found.audit


def judge(console: Console, found: Audit | None) -> None:
    """Print what was replayed, and end the command where it refutes the run."""
    from forethought.report.audit import show_audit

    if found is not None:
        show_audit(console, found)
        if found.refuted:
            raise typer.Exit(fail(f"refuted: {found.reason}", 1))
