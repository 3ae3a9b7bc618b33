"""Commands about what was guaranteed: account, keygen, audit, report."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forethought import jobs, report
from forethought.commands import command
from forethought.commands.command import argument, flag, option
from forethought.values import signing
from forethought.values.checks import without_none
from forethought.values.plan import Plan

if TYPE_CHECKING:
    from forethought.auditing.replay import Replay
    from forethought.auditing.verdict import Audit


@command.app.command(
    epilog="Example: forethought account --examples 60000 --batch 256 --epochs 20 "
    "--noise-multiplier 1.1 --delta 1e-5",
    before="group",
)
def account(
    output: command.Output,
    path: Path | None = argument("Plan, statement or run folder.", default=None),
    group: int | None = option(
        "Records protected together. Default: as many as the plan says, or 1.",
        "--group",
        "--records-per-person",
    ),
    verify: bool = flag("--verify", "Recompute a statement; fail when it does not hold."),
    public_key: Path | None = option("With --verify: the key that must have signed it."),
    ledger: str | None = option(
        "With --verify: recompute the data set's total from its book.", metavar="BOOK"
    ),
    sign: Path | None = option("Sign a statement that holds; see keygen.", metavar="KEY"),
    compare: bool = flag("--compare", "Show what every other analysis says of it."),
    figure: Path | None = command.FIGURES,
    **flags: Any,
) -> None:
    """Say exactly how private something is: from numbers, a plan, a run or a statement."""
    from forethought.accounting.interval import warn_if_hollow
    from forethought.papers import comparison

    verification = None
    delta, examples = flags.pop("delta"), flags.pop("examples")
    numbers = without_none({"examples": examples, **flags})
    called = ", ".join(f"--{name.replace('_', '-')}" for name in numbers)
    checks = verify or public_key is not None or ledger is not None
    incomplete = {"examples", "noise_multiplier", "batch"} - set(numbers)
    words = f"{path} says what was done: drop {called} (--group and --delta may be asked of it)"
    command.refuse(path is not None and numbers, words)
    words = "--verify, --ledger, --sign and --public-key need the path of a statement"
    command.refuse(path is None and (checks or sign is not None), words)
    words = "give a path, or --examples, --batch, --noise-multiplier and --epochs or --rounds"
    command.refuse(path is None and incomplete, words)
    if path is None:
        statement = jobs.account.account_for(
            jobs.job.from_numbers(delta=delta, **flags), examples, group
        )
    else:
        if sign is not None:

            def drawn(page: Path) -> None:
                page.unlink()
                report.page.write_statement(page.parent)  # it names the signing key

            jobs.account.sign(path, sign, drawn)
        if checks:
            verification = jobs.account.verified(path, public_key, ledger=ledger)
            statement = jobs.account.again(verification.statement, group=group, delta=delta)
        else:
            statement = jobs.account.statement_of(path, group=group, delta=delta)
    warn_if_hollow(statement.delta, statement.examples, statement.group)
    asked = statement.mechanism, statement.delta, statement.examples, statement.group
    rows = comparison.compare(*asked) if compare else []
    if output.as_json:
        more: dict[str, object] = {}
        if compare:
            more["comparison"] = [row.to_dict() for row in rows]
        if verification is not None:
            more["checked"] = list(verification.checked)
            more["not_checked"] = dict(verification.not_checked)
        output.json(lambda: {**json.loads(statement.to_json()), **more})
    else:
        page = path and (path if path.is_dir() else path.parent) / "statement.md"
        report.terminal.show_statement(
            output.console,
            statement,
            listed="statement.md" if page and page.is_file() else "what --json prints",
            verified=verification is not None,
        )
        if verification is not None:
            report.terminal.show_verification(output.console, verification)
        report.terminal.show_comparison(output.console, rows)
    if figure is not None:
        output.show_files(report.figures.draw_statement(statement, figure))


@command.app.command(epilog="Example: forethought keygen signing.pem")
def keygen(path: Path = argument("File of the private key; .pub is put beside it.")) -> None:
    """Make a key to sign statements with: forethought account RUN --sign FILE."""
    public, fingerprint = signing.generate(path)
    typer.echo(f"private key  {path} (keep it to yourself)")
    typer.echo(f"public key   {public} (give it to those who verify), fingerprint {fingerprint}")


@command.app.command(epilog="Example: forethought audit job.toml --quick")
def audit(
    output: command.Output,
    path: Path | None = argument("Job file, plan or run folder.", default=None),
    quick: bool = flag("--quick", "A few seconds."),
    thorough: bool = flag("--thorough", "More records, more games: minutes."),
    replay: bool = flag("--replay", "Replay rounds of a job or run against a slow reference."),
    rounds: int = option("Rounds to replay.", default=3, min=1),
    one_run: bool = flag("--one-run", "Rehearse one run with canaries: how near to ε is it?"),
    canaries: str = option(
        "With --one-run: gradients (seen in every sum) or inputs (losses).", default="gradients"
    ),
    false_alarm: float | None = option(
        "Chance that a sound run is refuted, all checks together. 1e-4."
    ),
    out: Path | None = option("Folder for audit.json and the figure."),
    seed: int | None = option("Of the audit's own choices."),
    self_test: bool = flag("--self-test", "Plant faults and show which check finds each."),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Try to refute what a run claims; it never proves it. Exit status 1 if refuted."""
    other = quick or thorough or replay
    command.together(
        ("--rounds", output.given("rounds"), "--replay", replay),
        ("--canaries", output.given("canaries"), "--one-run", one_run),
    )
    command.refuse(
        self_test and (other or one_run or (path, out, false_alarm) != (None, None, None)),
        "--self-test goes by itself (with --seed, --json, --quiet)",
    )
    command.refuse(
        path is None and not self_test, "give a job file, a plan or a run folder, or --self-test"
    )
    command.refuse(quick and thorough, "give --quick or --thorough, not both")
    words = "--one-run is one run of the whole plan: it goes with --canaries and --seed"
    command.refuse(one_run and other, words)
    drawn = quick or thorough or (false_alarm, seed) != (None, None)
    words = "--replay leaves nothing to chance: it goes with --rounds alone"
    command.refuse(replay and drawn, words)
    if path is None:
        _self_test(output, seed)
        return
    if replay:
        with report.terminal.counting(output.console, "Replaying", rounds) as progress:
            audited = jobs.audit.replay(
                path, rounds=rounds, data_dir=data_dir, out=out, progress=progress
            )
    else:
        with report.terminal.counting(output.console, "Auditing", 5) as progress:
            audited = jobs.audit.audit(
                path,
                data_dir=data_dir,
                out=out,
                level="quick" if quick else "thorough" if thorough else "standard",
                false_alarm=false_alarm,
                seed=seed,
                one_run=canaries if one_run else None,
                progress=progress,
            )
    written, figure = jobs.audit.save(audited)
    if figure is not None:
        report.audit.draw_audit(audited.audit, figure)
    files = {"audit": str(written), "figure": None if figure is None else str(figure)}
    output.json(lambda: {**audited.audit.to_dict(), "files": files})
    report.audit.show_audit(output.console, audited.audit)
    output.show_files([written], "\nwritten")
    output.show_files([] if figure is None else [figure])
    _end_refuted(audited.audit)


def _self_test(output: command.Output, seed: int | None) -> None:
    from forethought.auditing.audit import self_test

    result = self_test(seed)
    output.json(result.to_dict)
    report.audit.show_self_test(output.console, result)
    if not result.passed:
        missed = [row.name for row in result.faults if not row.caught]
        wrong = [row.name for row in result.sound if row.caught]
        text = [f"not caught: {', '.join(missed)}"] if missed else []
        text += [f"refuted without a fault: {', '.join(wrong)}"] if wrong else []
        raise typer.Exit(command.fail(f"the self-test failed; {'; '.join(text)}", 1))


def _end_refuted(found: Audit) -> None:
    if found.refuted:
        raise typer.Exit(command.fail(f"refuted: {found.reason}", 1))


def watching(replay: int | None, rounds: int) -> AbstractContextManager[Replay | None]:
    """A context that replays ``replay`` of a run's ``rounds``, evenly spread, with the last one.

    It yields None where ``replay`` is None.
    """
    if replay is None:
        return nullcontext()
    from forethought.auditing.replay import replaying

    last, parts = rounds - 1, max(1, replay - 1)
    return replaying({last - round(place * last / parts) for place in range(replay)})


def saved(seen: Replay | None, plan: Plan, folder: Path, seconds: float) -> Audit | None:
    """Write the result of a replay as audit.json into the run folder, and return it."""
    if seen is None:
        return None

    found = jobs.audit.of_replay(seen, plan, folder, seconds)
    jobs.audit.save(found)
    return found.audit


def judge(output: command.Output, found: Audit | None) -> None:
    """Print the result of a replay, and end the command if it refutes the run."""
    if found is not None:
        report.audit.show_audit(output.console, found)
        _end_refuted(found)


@command.app.command("report", epilog="Example: forethought report runs/mnist")
def report_run(
    output: command.Output,
    folder: Path = argument("Run folder."),
    pdf: bool = flag("--pdf", "Print report and statement with a browser found here."),
) -> None:
    """Show a run's result and statement and draw its figures again, or say how far it came."""
    from forethought.accounting.statement import Statement
    from forethought.training.folder import RunSummary, UnfinishedRun

    def there(*names: str) -> bool:
        return any((folder / name).is_file() for name in names)

    def drawn(write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:  # such as a folder that may only be read
            command.say("warning", "yellow", f"{command.of_the_system(error)}; it was not drawn")

    if there("statement.intoto.json"):
        if pdf:
            jobs.account.verified(folder)  # no other page is printed than the one that was signed
        output.console.print(
            "signed pages stay as they are: forethought account --sign draws them again"
        )
    if not there("statement.json"):
        command.refuse(pdf, f"the run in {folder} has not ended: there is no report to print")
        unfinished = UnfinishedRun.load(folder)
        values = unfinished.to_dict()
        report.terminal.show_unfinished(output.console, unfinished)
    elif there("federation.json", "gossip.json") or not (
        there("plan.json") and there("transcript.json")
    ):
        # The folder of a member or of released statistics has a statement but no run of its own.
        page, statement = folder / "statement.html", Statement.load(folder / "statement.json")
        drawn(lambda: report.page.write_statement(folder, statement))
        values = json.loads(statement.to_json())
        report.terminal.show_statement(output.console, statement)
        if page.is_file():  # else it could not be drawn
            shown = report.page.print_pdf(page, page.with_suffix(".pdf")) if pdf else page
            output.show_files([shown], "\npage")
    else:
        read = RunSummary.load(folder)
        drawn(lambda: report.figures.draw_run(read, folder / "figures"))
        summary = RunSummary.load(folder)
        drawn(lambda: report.page.write_pages(summary))
        values = summary.to_dict()
        pages = [folder / f"{name}.html" for name in ("report", "statement") if pdf]
        printed = [report.page.print_pdf(page, page.with_suffix(".pdf")) for page in pages]
        report.terminal.show_summary(output.console, summary)
        output.show_files(printed, "printed")
    output.json(lambda: values)
