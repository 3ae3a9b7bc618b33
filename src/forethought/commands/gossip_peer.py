"""`forethought gossip keys` and `forethought gossip peer`: gossip between sites, a process each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from forethought.accounting.interval import at_most
from forethought.commands.audit import judge, saved, watching
from forethought.commands.federate_network import make_keys
from forethought.commands.options import (
    DataDir,
    Json,
    Quiet,
    ReplayRounds,
    console_for,
    fail,
    print_json,
)

KEYS_EPILOG = (
    "Example: forethought gossip keys job.toml --out keys. For real, every worker makes its own "
    "(--member hospital-a --out keys/hospital-a) and hands over identity.json; then "
    "forethought gossip keys job.toml --join hospital-a.json --join hospital-b.json --out shared."
)
PEER_EPILOG = "Example: forethought gossip peer job.toml --keys keys/hospital-a"
Out = Annotated[Path, typer.Option(help="Folder that is made.")]


def keys(
    job_file: Annotated[
        Path | None, typer.Argument(help="Job file (TOML); not with --member.", show_default=False)
    ] = None,
    out: Out = Path("keys"),
    member: Annotated[str | None, typer.Option(help="Make this worker's own keys only.")] = None,
    join: Annotated[
        list[Path] | None, typer.Option(help="A worker's identity.json; once for each worker.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Make keys, certificates, the roster and the first weights of a gossip between sites."""
    from forethought.jobs import gossip_peer as jobs

    def everybody(roster: Any) -> list[str]:
        return [identity.name for identity in roster.workers]

    shared = f"{jobs.ROSTER}, {jobs.GOSSIP} and {jobs.FIRST}"
    make_keys(jobs, everybody, shared, job_file, out, member, join, data_dir)


def peer(
    job_file: Annotated[Path, typer.Argument(help="Job file (TOML) with a [gossip].")],
    key_folder: Annotated[
        Path, typer.Option("--keys", help="Own folder of keys, with roster, gossip, first weights.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Ledger, secrets and results. Default: runs/JOB-NAME.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port to listen on. Default: the roster's.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The most that the own plan may spend. Default: the job's.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At this δ.")] = None,
    witness: Annotated[
        Path | None,
        typer.Option(help="Folder for the count that tells a restored ledger. Default: --keys."),
    ] = None,
    replay: ReplayRounds = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Be one worker of a gossip between sites; Ctrl-C pauses, the same command goes on."""
    from forethought.exchange.keys import Keys
    from forethought.jobs import gossip_peer as jobs
    from forethought.jobs.request import from_file

    request = from_file(job_file)
    name = Keys.load(key_folder).identity.name
    folder = out or Path("runs") / f"{request.name}-{name}"
    console = console_for(quiet or as_json)
    member = jobs.Membership.load(key_folder)
    console.print(f"{name}: ledger and secrets in {folder} (keep it; it is yours alone)")
    console.print(f"roster {member.roster.fingerprint} (compare it with the others)")
    plan = member.gossip.plan(member.roster.place(member.keys))
    start = time.perf_counter()
    with watching(replay, plan.rounds) as seen:
        done = jobs.site_worker(
            request,
            key_folder,
            folder,
            listen=listen,
            epsilon=epsilon,
            delta=delta,
            data_dir=data_dir,
            look=_progress(console),
            witness=witness,
        )
    took, found = done.took, None
    if took.over:
        found = saved(seen, plan, folder, time.perf_counter() - start)
    for code, text in took.drove.alarms:
        console.print(f"[yellow]alarm[/yellow] {code}: {text}", highlight=False)
    if took.statement is not None and took.outsider is not None:
        console.print(
            f"released {took.updates} updates: ε {at_most(took.statement.guarantee)} at "
            f"δ {at_most(took.statement.delta, '.6g')} against the neighbours, "
            f"{at_most(took.outsider.guarantee)} against somebody who sees one final model; "
            f"statements in {folder}"
        )
    if done.accuracy is not None:
        console.print(f"accuracy {done.accuracy:.1%} of this worker's model")
    if as_json:
        print_json(done.summary())
    if "alone" in took.drove.counts:
        words = "nobody is there; if all have finished, the statement is the last word of this one"
        raise typer.Exit(fail(words, 1))
    if took.drove.reason is None:
        raise typer.Exit(fail("paused; the same command goes on where it was", 130))
    if took.drove.reason == "ledger set back":
        raise typer.Exit(fail("the ledger was set back: restore the newest one", 1))
    judge(console, found)


def _progress(console: Any) -> Callable[[Any], None]:
    """A line whenever a tenth more of this worker's exchanges was begun, or an alarm came."""
    shown = (-1, -1)

    def look(drove: Any) -> None:
        nonlocal shown
        now = (drove.rounds // 10, sum(drove.counts.values()))
        if now != shown:
            shown = now
            console.print(
                f"{drove.rounds} updates released, {drove.averaged} exchanges, {now[1]} alarms"
            )

    return look
