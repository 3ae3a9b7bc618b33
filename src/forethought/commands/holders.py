"""`forethought federate` and `forethought gossip`: several holders, with a server or without."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forethought.accounting.interval import at_most
from forethought.commands.account import judge, saved, watching
from forethought.commands.command import (
    DataDir,
    JobFile,
    Json,
    Paying,
    PublicProxy,
    Quiet,
    Replayed,
    UsageError,
    console_for,
    fail,
    print_json,
)

if TYPE_CHECKING:
    from rich.console import Console

    from forethought.federated.statements import Policy
    from forethought.jobs.request import Request

federate = typer.Typer(
    name="federate",
    help="Many holders, one model: plan, simulate and run a federation.",
    no_args_is_help=True,
)
gossip = typer.Typer(
    name="gossip",
    help="Private training without a server: neighbours on a graph average and step alone.",
    no_args_is_help=True,
)
Save = Annotated[Path | None, typer.Option(help="Write the federation here.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the simulation in --out.")]
SimulationFolder = Annotated[
    Path | None, typer.Option(help="Folder for results, and to go on from. Default: none.")
]
Processes = Annotated[int, typer.Option(help="Processes that compute; 0: this one.", min=0)]
Engine = Annotated[
    str, typer.Option(help="Of these processes: processes, ray, or ray:ADDRESS of a cluster.")
]
KeysJob = Annotated[
    Path | None, typer.Argument(help="Job file (TOML); not with --member.", show_default=False)
]
Made = Annotated[Path, typer.Option(help="Folder that is made.")]
FederationJob = Annotated[Path, typer.Argument(help="Job file (TOML) with a [federation].")]
ServerKeys = Annotated[
    Path, typer.Option("--keys", help="Own folder of keys, with roster.json and federation.json.")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="host:port. Default: the job's, or 127.0.0.1:8750; Flower's SuperLink: 127.0.0.1:8000."
    ),
]
Carrier = Annotated[str, typer.Option("--engine", help="Carries the messages: grpc or flower.")]
Certificates = Annotated[
    Path | None, typer.Option(help="PEM file that the SuperLink's certificate is checked against.")
]
MemberFolder = Annotated[
    Path | None, typer.Option(help="Ledger, secrets and results. Default: runs/JOB-NAME.")
]


# What both families do.


def _rehearse(
    jobs: Any,
    ready: Any,
    proxy: str | None,
    repeats: int,
    runs: int,
    data_dir: Path | None,
    console: Console,
) -> Any:
    from forethought.report.terminal import counting

    with counting(console, "Rehearsing", runs) as progress:
        return jobs.rehearse(ready, proxy, repeats, data_dir, progress)


def _require_rehearsal(proxy: str | None, rehearse: bool) -> None:
    if proxy is not None and not rehearse:
        raise UsageError("--public-proxy goes with --rehearse: add that, or drop it")


def _print_plan(found: Any, rehearsal: Any) -> None:
    more = {} if rehearsal is None else {"rehearsal": asdict(rehearsal)}
    print_json({**found.to_dict(), **more})


def _request(
    job_file: Path | None,
    demo: bool,
    built_in: Callable[[], Request],
    out: Path | None,
    go_on: bool,
) -> Request:
    from forethought.jobs.request import from_file

    if (job_file is not None) == demo:
        raise UsageError("give a job file or --demo")
    if go_on and out is None:
        raise UsageError("--resume goes on in a folder: give --out")
    return built_in() if demo else from_file(job_file or Path())


def _simulated(
    simulate: Callable[..., tuple[Any, float]],
    ready: Any,
    updates: int,
    console: Console,
    out: Path | None,
    **options: Any,
) -> dict[str, Any]:
    """A simulation's summary; interrupted, the words to go on with."""
    from forethought.report.terminal import counting

    try:
        with counting(console, "updates", updates) as progress:
            run, synchronous = simulate(ready, out, progress=progress, **options)
    except KeyboardInterrupt:
        if out is None:
            raise
        words = f"interrupted; go on with: --out {out} --resume"
        raise typer.Exit(fail(words, 130)) from None
    return {**run.summary(), "synchronous_seconds": synchronous}


def _print_simulated(summary: dict[str, Any]) -> None:
    print_json({name: value for name, value in summary.items() if name != "timeline"})


def _make_keys(
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


def _member(
    job_file: Path,
    key_folder: Path,
    out: Path | None,
    jobs: Any,
    console: Console,
    ledger: str | None = None,
) -> tuple[Request, str, Path, Any]:
    """A member's request, name, folder and what its keys' folder holds; the first lines shown."""
    from forethought.exchange.keys import Keys
    from forethought.jobs.request import from_file, paying

    request = paying(from_file(job_file), ledger)
    name = Keys.load(key_folder).identity.name
    folder = out or Path("runs") / f"{request.name}-{name}"
    member = jobs.Membership.load(key_folder)
    console.print(f"{name}: ledger and secrets in {folder} (keep it; it is yours alone)")
    console.print(f"roster {member.roster.fingerprint} (compare it with the others)")
    return request, name, folder, member


def _moved(kind: str) -> None:
    raise UsageError(
        "trials of faults are no longer installed: in a checkout of the repository "
        f"`python tools/faults.py {kind}` runs them"
    )


_AS_WRITTEN = {"ignore_unknown_options": True, "allow_extra_args": True}


@federate.command("faults", hidden=True, context_settings=_AS_WRITTEN)
def federate_faults() -> None:
    """Moved: `python tools/faults.py federation`, in a checkout of the repository."""
    _moved("federation")


@gossip.command("faults", hidden=True, context_settings=_AS_WRITTEN)
def gossip_faults() -> None:
    """Moved: `python tools/faults.py gossip`, in a checkout of the repository."""
    _moved("gossip")


# With a server.


@federate.command("plan", epilog="Example: forethought federate plan job.toml --rehearse")
def federate_plan(
    job_file: Annotated[Path, typer.Argument(help="A job with a [federation].")],
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Simulate it on a public proxy; predict accuracy.")
    ] = False,
    public_proxy: PublicProxy = None,
    repeats: Annotated[int, typer.Option(help="Runs of a rehearsal.", min=1)] = 3,
    save: Save = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what every client would spend, send and take, before anybody trains."""
    from forethought.jobs import federate as jobs
    from forethought.jobs.request import from_file
    from forethought.report.holders import show_federation_plan

    _require_rehearsal(public_proxy, rehearse)
    console = console_for(quiet or as_json)
    federated = jobs.federation_of(from_file(job_file), data_dir)
    found = jobs.plan_job(federated)
    if save is not None:
        found.federation.save(save)
    rehearsal = None
    if rehearse:
        rehearsal = _rehearse(jobs, federated, public_proxy, repeats, repeats, data_dir, console)
    if as_json:
        _print_plan(found, rehearsal)
        return
    show_federation_plan(console, found)
    if rehearsal is not None:
        least, most = min(rehearsal.accuracies), max(rehearsal.accuracies)
        console.print(
            f"rehearsed on {rehearsal.source}: accuracy {rehearsal.predicted:.1%} "
            f"({least:.1%} to {most:.1%}), as good a prediction as that data resembles the real"
        )


@federate.command(
    "simulate",
    epilog="Example: forethought federate simulate job.toml --out runs/hospitals --workers 4",
)
def federate_simulate(
    job_file: JobFile = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The digits over ten clients, one of them slow.")
    ] = False,
    out: SimulationFolder = None,
    resume: Resume = False,
    workers: Processes = 0,
    engine: Engine = "processes",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a job's federation in virtual time on this computer."""
    from forethought.jobs.federate import federation_of, simulate_job
    from forethought.jobs.request import federated_demo
    from forethought.report import holders as report

    request = _request(job_file, demo, federated_demo, out, resume)
    console = console_for(quiet or as_json)
    federated = federation_of(request, data_dir)
    report.show_federation(console, federated.federation)
    most = sum(map(federated.federation.updates, range(len(federated.federation.members))))
    summary = _simulated(
        simulate_job, federated, most, console, out, resume=resume, workers=workers, engine=engine
    )
    if out is not None:
        report.draw_simulation(summary, out)
    report.show_simulated(console, summary)
    if as_json:
        _print_simulated(summary)


@federate.command(
    "keys",
    epilog="Example: forethought federate keys job.toml --out keys. For real, every member makes "
    "its own (--member hospital-a --out keys/hospital-a) and hands over identity.json; then "
    "forethought federate keys job.toml --join server.json --join hospital-a.json --out shared.",
)
def federate_keys(
    job_file: KeysJob = None,
    out: Made = Path("keys"),
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

    _make_keys(
        jobs, everybody, "roster.json and federation.json", job_file, out, member, join, data_dir
    )


@federate.command(
    epilog="Example: forethought federate server job.toml --keys keys/server --page 8751"
)
def server(
    job_file: FederationJob,
    key_folder: ServerKeys,
    out: Annotated[
        Path | None, typer.Option(help="Journal and results. Default: runs/JOB-server.")
    ] = None,
    address: Address = None,
    engine: Carrier = "grpc",
    certificates: Certificates = None,
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
    from forethought.report.holders import status_table

    request = from_file(job_file)
    folder = out or Path("runs") / f"{request.name}-server"
    console = console_for(quiet or as_json)
    if engine == "flower":
        _by_flower(console, job_file, key_folder, folder, address, certificates)
        return
    jobs.require_engine(engine)

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
    with live or nullcontext():
        served, accuracy = jobs.serve_job(
            request,
            key_folder,
            folder,
            address=address,
            data_dir=data_dir,
            page=page,
            began=began,
            look=look,
        )
    if not served.finished:
        raise typer.Exit(fail("stopped; the same command goes on where it was", 130))
    if accuracy is not None:
        console.print(f"accuracy on held-out data {accuracy:.2%}")
    console.print(f"model in {folder}")
    if as_json:
        print_json({"accuracy": accuracy, **served.status.to_dict()})


def _by_flower(
    console: Any,
    job_file: Path,
    key_folder: Path,
    folder: Path,
    address: str | None,
    certificates: Path | None,
) -> None:
    from forethought.holders.flower import submit

    places = {"job": job_file, "keys": key_folder, "out": folder}
    config = {name: str(place.resolve()) for name, place in places.items()}
    try:
        status = submit(config, address, certificates)
    except KeyboardInterrupt:
        words = "not watched any more; the run goes on in the SuperLink (flwr list, flwr stop)"
        raise typer.Exit(fail(words, 130)) from None
    if status:
        raise typer.Exit(fail("flwr run failed; what it printed says why", 1))
    console.print(f"journal and model in {folder}, on the SuperLink's machine")


@federate.command(epilog="Example: forethought federate client job.toml --keys keys/hospital-a")
def client(
    job_file: FederationJob,
    key_folder: ServerKeys,
    out: MemberFolder = None,
    address: Address = None,
    engine: Carrier = "grpc",
    certificates: Certificates = None,
    node_key: Annotated[
        Path | None,
        typer.Option(help="Private key that Flower's SuperLink knows this node by (OpenSSH)."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Largest ε allowed, whatever was planned.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At this δ; goes with --epsilon.")] = None,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave", help="The server goes on without you; without masks you may begin again."
        ),
    ] = False,
    witness: Annotated[
        Path | None,
        typer.Option(help="Folder that counts releases, to tell a restored ledger. Default: keys."),
    ] = None,
    ledger: Paying = None,
    replay: Replayed = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation; Ctrl-C pauses, the same command goes on."""
    from forethought.jobs import federate_network as jobs

    console = console_for(quiet or as_json)
    request, name, folder, member = _member(job_file, key_folder, out, jobs, console, ledger)
    plan = member.federation.plan(member.roster.place(name))
    start = time.perf_counter()
    with watching(replay, plan.rounds) as seen:
        took = jobs.take_part_in_job(
            request,
            key_folder,
            folder,
            policy=_policy(epsilon, delta),
            address=address,
            engine=engine,
            certificates=certificates,
            node_key=node_key,
            data_dir=data_dir,
            leave=leave,
            witness=witness,
            look=_client_progress(console),
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


def _client_progress(console: Any) -> Callable[[Any, bool], None]:
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


# Without one.


@gossip.command("plan", epilog="Example: forethought gossip plan job.toml --rehearse")
def gossip_plan(
    job_file: Annotated[Path, typer.Argument(help="A job with a [gossip].")],
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Try every graph, and SYNC, on a public proxy."),
    ] = False,
    public_proxy: PublicProxy = None,
    repeats: Annotated[int, typer.Option(help="Runs of each graph.", min=1)] = 1,
    observer: Annotated[
        list[str] | None,
        typer.Option(help="A distant worker; ε against what it sees. May be given again."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the gossip here.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what every worker would spend, what headroom costs, and which graph is quickest."""
    from forethought.jobs import gossip as jobs
    from forethought.jobs.request import from_file
    from forethought.report import holders as report

    _require_rehearsal(public_proxy, rehearse)
    console = console_for(quiet or as_json)
    gossiping = jobs.gossip_of(from_file(job_file), data_dir)
    found = jobs.plan_job(gossiping, observer or ())
    if save is not None:
        found.gossip.save(save)
    rehearsal = None
    if rehearse:
        runs = repeats * (1 + len(found.routes))
        rehearsal = _rehearse(jobs, gossiping, public_proxy, repeats, runs, data_dir, console)
    if as_json:
        _print_plan(found, rehearsal)
        return
    report.show_gossip_plan(console, found)
    if rehearsal is not None:
        report.show_rehearsal(console, rehearsal)


@gossip.command(
    "simulate",
    epilog="Example: forethought gossip simulate job.toml --out runs/hospitals --workers 4",
)
def gossip_simulate(
    job_file: JobFile = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The digits over eight workers, one of them slow.")
    ] = False,
    out: SimulationFolder = None,
    resume: Resume = False,
    workers: Processes = 0,
    engine: Engine = "processes",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a job's gossip in virtual time on this computer."""
    from forethought.jobs.gossip import gossip_of, simulate_gossip
    from forethought.jobs.request import gossip_demo
    from forethought.report import holders as report

    request = _request(job_file, demo, gossip_demo, out, resume)
    console = console_for(quiet or as_json)
    gossiping = gossip_of(request, data_dir)
    report.show_gossip(console, gossiping.gossip)
    updates = gossiping.gossip.total
    summary = _simulated(
        simulate_gossip,
        gossiping,
        updates,
        console,
        out,
        resume=resume,
        workers=workers,
        engine=engine,
    )
    if out is not None:
        report.draw_simulation(summary, out)
    report.show_simulated(console, summary)
    if as_json:
        _print_simulated(summary)


@gossip.command(
    "keys",
    epilog="Example: forethought gossip keys job.toml --out keys. For real, every worker makes its "
    "own (--member hospital-a --out keys/hospital-a) and hands over identity.json; then "
    "forethought gossip keys job.toml --join hospital-a.json --join hospital-b.json --out shared.",
)
def gossip_keys(
    job_file: KeysJob = None,
    out: Made = Path("keys"),
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
    _make_keys(jobs, everybody, shared, job_file, out, member, join, data_dir)


@gossip.command("train", epilog="Example: forethought gossip train job.toml --out runs/cluster")
def gossip_train(
    job_file: Annotated[Path, typer.Argument(help="Job file (TOML) with a [gossip].")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder of each worker. Default: runs/JOB-NAME."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster: host:port or auto. Default: processes of this machine."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a job's gossip on a Ray cluster; Ctrl-C pauses, the same command goes on."""
    from forethought.jobs.gossip_peer import cluster_workers
    from forethought.jobs.request import from_file

    console = console_for(quiet or as_json)
    request = from_file(job_file)
    folder = out or Path("runs") / request.name
    console.print(f"ledgers and secrets in {folder} (keep it)")
    done = cluster_workers(
        request, folder, address=address, data_dir=data_dir, look=_cluster_progress(console)
    )
    found = [one.summary() for one in done]
    for one in found:
        spent = "nothing" if one["epsilon"] is None else f"ε {at_most(one['epsilon'])}"
        accuracy = "" if one["accuracy"] is None else f", accuracy {one['accuracy']:.1%}"
        console.print(
            f"{one['name']}: {one['reason'] or 'paused'}, {one['updates']} updates, {spent} "
            f"against the neighbours{accuracy}",
            highlight=False,
        )
    if as_json:
        print_json({"workers": found})
    if any(one["reason"] is None for one in found):
        raise typer.Exit(fail("paused; the same command goes on where it was", 130))
    if any(one["reason"] == "ledger set back" for one in found):
        raise typer.Exit(fail("a ledger was set back: restore the newest one", 1))


def _cluster_progress(console: Any) -> Callable[[list[int]], None]:
    """A line whenever somebody has released."""
    shown: list[int] = []

    def look(updates: list[int]) -> None:
        nonlocal shown
        if updates != shown:
            shown = list(updates)
            console.print(f"{sum(shown)} updates released: {', '.join(map(str, shown))}")

    return look


@gossip.command(epilog="Example: forethought gossip peer job.toml --keys keys/hospital-a")
def peer(
    job_file: Annotated[Path, typer.Argument(help="Job file (TOML) with a [gossip].")],
    key_folder: Annotated[
        Path, typer.Option("--keys", help="Own folder of keys, with roster, gossip, first weights.")
    ],
    out: MemberFolder = None,
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
    ledger: Paying = None,
    replay: Replayed = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Be one worker of a gossip between sites; Ctrl-C pauses, the same command goes on."""
    from forethought.jobs import gossip_peer as jobs

    console = console_for(quiet or as_json)
    request, _, folder, member = _member(job_file, key_folder, out, jobs, console, ledger)
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
            look=_worker_progress(console),
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


def _worker_progress(console: Any) -> Callable[[Any], None]:
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
