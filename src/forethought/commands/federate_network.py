"""`forethought federate keys`, `server` and `client`: a federation over a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forethought.accounting.interval import at_most
from forethought.commands.audit import judge, saved, watching
from forethought.commands.options import (
    DataDir,
    Json,
    Quiet,
    ReplayRounds,
    UsageError,
    console_for,
    fail,
    print_json,
)

if TYPE_CHECKING:
    from forethought.federated.statements import Policy

KEYS_EPILOG = (
    "Example: forethought federate keys job.toml --out keys. For real, every member makes its own "
    "(--member hospital-a --out keys/hospital-a) and hands over identity.json; then "
    "forethought federate keys job.toml --join server.json --join hospital-a.json --out shared."
)
SERVER_EPILOG = "Example: forethought federate server job.toml --keys keys/server --page 8751"
CLIENT_EPILOG = "Example: forethought federate client job.toml --keys keys/hospital-a"
Job = Annotated[Path, typer.Argument(help="Job file (TOML) with a [federation].")]
KeyFolder = Annotated[
    Path, typer.Option("--keys", help="Own folder of keys, with roster.json and federation.json.")
]
Address = Annotated[
    str | None, typer.Option(help="host:port. Default: the job's, or 127.0.0.1:8750.")
]


def keys(
    job_file: Annotated[
        Path | None, typer.Argument(help="Job file (TOML); not with --member.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder that is made.")] = Path("keys"),
    member: Annotated[
        str | None, typer.Option(help="Make this member's own keys only ('server' or a client).")
    ] = None,
    join: Annotated[
        list[Path] | None, typer.Option(help="A member's identity.json; once for each member.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Make keys, certificates and the roster of a federation."""
    from forethought.jobs import federate_network as jobs

    def everybody(roster: Any) -> list[str]:
        return ["server", *(identity.name for identity in roster.clients)]

    make_keys(
        jobs, everybody, "roster.json and federation.json", job_file, out, member, join, data_dir
    )


def make_keys(
    jobs: Any,
    everybody: Callable[[Any], list[str]],
    shared: str,
    job_file: Path | None,
    out: Path,
    member: str | None,
    join: list[Path] | None,
    data_dir: Path | None,
) -> None:
    """One member's own keys, a roster of those that were handed over, or all in one place.

    Args:
        jobs: module with ``join`` and ``make_everybody``. everybody: names in a roster.
        shared: files that every member needs.
    """
    from forethought.exchange.keys import IDENTITY, Keys
    from forethought.jobs.request import from_file

    if member is not None:
        if job_file is not None or join:
            raise UsageError("--member makes one member's keys: drop the job file and --join")
        Keys.make(out, member)
        typer.echo(f"keys of {member} in {out} (keep them); hand over {out / IDENTITY}")
        return
    if job_file is None:
        raise UsageError("give a job file, or --member NAME")
    request = from_file(job_file)
    if join:
        roster = jobs.join(request, join, out, data_dir)
        typer.echo(f"{out}/{shared}: every member puts them beside its own keys")
    else:
        roster = jobs.make_everybody(request, out, data_dir)
        typer.echo(f"keys of {', '.join(everybody(roster))} in {out}")
        typer.echo(
            "made in one place, for a trial: for real, every member makes its own (--member)"
        )
    typer.echo(f"fingerprint of the roster, to compare with the others: {roster.fingerprint}")


def server(
    job_file: Job,
    key_folder: KeyFolder,
    out: Annotated[
        Path | None, typer.Option(help="Journal and results. Default: runs/JOB-server.")
    ] = None,
    address: Address = None,
    page: Annotated[
        int | None, typer.Option(help="Port of the status page on 127.0.0.1; 0: any free one.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve a federation until it is finished; started again, it goes on where it was."""
    from rich.live import Live

    from forethought.jobs import federate_network as jobs
    from forethought.jobs.request import from_file
    from forethought.report.federation_status import status_table

    request = from_file(job_file)
    folder = out or Path("runs") / f"{request.name}-server"
    console = console_for(quiet or as_json)

    def began(port: int, page_port: int | None) -> None:
        console.print(f"listening on port {port}, journal in {folder}", soft_wrap=True)
        if page_port is not None:
            console.print(f"status page: http://127.0.0.1:{page_port}/")

    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    look: Callable[[Any], None] = (
        _lines(console)
        if live is None
        else lambda status: live.update(status_table(status), refresh=True)
    )
    options: dict[str, Any] = {"address": address, "data_dir": data_dir, "page": page}
    if live is None:
        served, accuracy = jobs.serve_job(
            request, key_folder, folder, **options, began=began, look=look
        )
    else:
        with live:
            served, accuracy = jobs.serve_job(
                request, key_folder, folder, **options, began=began, look=look
            )
    if not served.finished:
        raise typer.Exit(fail("stopped; the same command goes on where it was", 130))
    if accuracy is not None:
        console.print(f"accuracy on held-out data {accuracy:.2%}")
    console.print(f"model in {folder}")
    if as_json:
        print_json({"accuracy": accuracy, **served.status.to_dict()})


def client(
    job_file: Job,
    key_folder: KeyFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="Ledger, secrets and results. Default: runs/JOB-NAME."),
    ] = None,
    address: Address = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Largest ε allowed, whatever was planned.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At this δ; goes with --epsilon.")] = None,
    leave: Annotated[
        bool, typer.Option("--leave", help="Leave for good: the server goes on without you.")
    ] = False,
    witness: Annotated[
        Path | None,
        typer.Option(help="Folder that counts releases, to tell a restored ledger. Default: keys."),
    ] = None,
    replay: ReplayRounds = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation; Ctrl-C pauses, the same command goes on."""
    from forethought.exchange.keys import Keys
    from forethought.jobs import federate_network as jobs
    from forethought.jobs.request import from_file

    request = from_file(job_file)
    name = Keys.load(key_folder).identity.name
    folder = out or Path("runs") / f"{request.name}-{name}"
    console = console_for(quiet or as_json)
    member = jobs.Membership.load(key_folder)
    roster = member.roster
    console.print(f"{name}: ledger and secrets in {folder} (keep it; it is yours alone)")
    console.print(f"roster {roster.fingerprint} (compare it with the others)")
    plan = member.federation.plan(roster.place(name))
    start = time.perf_counter()
    with watching(replay, plan.rounds) as seen:
        took = jobs.take_part_in_job(
            request,
            key_folder,
            folder,
            policy=_policy(epsilon, delta),
            address=address,
            data_dir=data_dir,
            leave=leave,
            witness=witness,
            look=_progress(console),
        )
    found = None
    if took.over:
        found = saved(seen, plan, folder, time.perf_counter() - start)
    for raised in took.alarms:
        console.print(f"[yellow]alarm[/yellow] {raised.code}: {raised.text}", highlight=False)
    if took.statement is not None:
        spent = took.statement
        console.print(
            f"released {took.updates} updates: ε {at_most(spent.guarantee)} at δ "
            f"{at_most(spent.delta, '.6g')}; statement in {folder}"
        )
    if as_json:
        print_json(
            {
                "name": name,
                "reason": took.reason,
                "updates": took.updates,
                "epsilon": None if took.statement is None else took.statement.guarantee,
                "alarms": [raised.code for raised in took.alarms],
            }
        )
    if took.reason is None:
        raise typer.Exit(fail("paused; the same command goes on where it was", 130))
    if not took.over:
        raise typer.Exit(fail(took.reason, 1))
    judge(console, found)


def _policy(epsilon: float | None, delta: float | None) -> Policy | None:
    from forethought.federated.statements import Policy

    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        raise UsageError("a policy is an epsilon at a delta: give --epsilon and --delta")
    return Policy(epsilon, delta)


def _lines(console: Any) -> Callable[[Any], None]:
    """A line for every tenth of the way, where nobody watches a terminal."""
    shown = -1

    def look(status: Any) -> None:
        nonlocal shown
        tenth = 10 * status.version // status.rounds
        if tenth > shown or status.finished:
            shown = 10 if status.finished else tenth
            there = sum(one.connected for one in status.clients)
            console.print(
                f"model {status.version} of {status.rounds}, {there} of {len(status.clients)} "
                f"clients connected, {sum(status.alarms.values())} alarms"
            )

    return look


def _progress(console: Any) -> Callable[[Any, bool], None]:
    shown: tuple[bool, int] | None = None

    def look(driver: Any, connected: bool) -> None:
        nonlocal shown
        updates = driver.machine.updates
        most = driver.machine.federation.updates(driver.machine.me)
        now = (connected, 10 * updates // most)
        if now != shown:
            shown = now
            state = "connected" if connected else "connecting"
            console.print(f"{state}, {updates} of {most} updates released")

    return look
