"""`forethought federate` and `forethought gossip`: several holders, with a server or without."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from forethought import jobs, report
from forethought.accounting.interval import at_most
from forethought.commands import command
from forethought.commands.account import judge, saved, watching
from forethought.commands.command import argument, flag, option
from forethought.values.checks import one_of

if TYPE_CHECKING:
    from forethought.auditing.verdict import Audit
    from forethought.federated.statements import Policy
    from forethought.holders.taking_part import TookPart

federate = command.Commands(
    name="federate",
    help="Many holders, one model: plan, simulate and run a federation.",
    no_args_is_help=True,
)
gossip = command.Commands(
    name="gossip",
    help="Private training without a server: neighbours on a graph average and step alone.",
    no_args_is_help=True,
)
FEDERATION_JOB = argument("Job file (TOML) with a \\[federation].")
SERVER_KEYS = option(
    "Own folder of keys, with roster.json and federation.json.", "--keys", default=...
)
ADDRESS = option(
    "host:port. Default: the job's, or 127.0.0.1:8750; a SuperLink's: 127.0.0.1:8000.",
    callback=command.host_port,
)
CARRIER = option("Carries the messages: grpc or flower.", "--engine", default="grpc")
CERTIFICATES = option("PEM file that the SuperLink's certificate is checked against.")
ALLOWED = option("Largest ε that the own plan may spend. Default: the job's.")
AT_DELTA = option("At this δ.")
WITNESS_FOLDER = option("Folder that counts releases, to tell a restored ledger. Default: --keys.")
MEMBER_FOLDER = option("Ledger, secrets and results. Default: runs/JOB-NAME.")


# Commands of both `federate` and `gossip`.


def _kind(context: typer.Context) -> jobs.holders.Kind:
    """The kind of the command group in which a command was called."""
    family = context.parent and context.parent.info_name
    return "gossip" if family == gossip.info.name else "federation"


def plan(
    output: command.Output,
    job_file: Path = argument("Job file (TOML) with a \\[federation] or a \\[gossip]."),
    rehearse: bool = flag(
        "--rehearse", "Simulate it on a public proxy; predict accuracy, of a gossip by every graph."
    ),
    public_proxy: str | None = command.PUBLIC_PROXY,
    repeats: int = option("Runs of a rehearsal, each of every graph of a gossip.", min=1),
    observer: Annotated[
        list[str] | None,
        typer.Option(help="A distant worker; ε against what it sees. May be given again."),
    ] = None,
    save: Path | None = option("Write what all agree on here."),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Show what every client or worker would spend, send and take, before anybody trains."""
    command.together(
        ("--public-proxy", public_proxy is not None, "--rehearse", rehearse),
        ("--repeats", output.given("repeats"), "--rehearse", rehearse),
    )
    held = jobs.holders.holders_of(jobs.job.from_file(job_file), _kind(output.context), data_dir)
    found = jobs.holders.plan_job(held, observer or ())
    command.to_write(save, "--save", kind=type(held.agreed))
    if save is not None:
        held.agreed.save(save)
    rehearsal = None
    if rehearse:
        with report.terminal.counting(output.console, "Rehearsing", repeats) as progress:
            rehearsal = jobs.public_proxy.rehearse(held, public_proxy, repeats, data_dir, progress)
    output.json(
        lambda: found.to_dict() | ({} if rehearsal is None else {"rehearsal": asdict(rehearsal)})
    )
    report.holders.show_plan(output.console, found)
    if isinstance(rehearsal, jobs.public_proxy.GossipRehearsal):
        report.holders.show_rehearsal(output.console, rehearsal)
    elif rehearsal is not None:
        output.say(rehearsal.text())


def simulate(
    output: command.Output,
    job_file: Path | None = command.JOB_FILE,
    demo: bool = flag("--demo", "The digits over ten clients, or eight workers."),
    out: Path | None = option("Folder for results, and to go on from. Default: none."),
    resume: bool = flag("--resume", "Go on with the simulation in --out."),
    workers: int = option("Processes that compute; 0: this one.", default=0, min=0),
    engine: str = option(
        "Of these processes: processes, ray, or ray:ADDRESS of a cluster.", default="processes"
    ),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Train all holders of a job in virtual time on this computer."""
    command.refuse((job_file is not None) == demo, "give a job file or --demo")
    command.refuse(resume and out is None, "--resume goes on in a folder: give --out")
    kind = _kind(output.context)
    name = "federated_demo" if kind == "federation" else "gossip_demo"
    request = jobs.job.built_in(name) if demo else jobs.job.from_file(job_file or Path())
    held = jobs.holders.holders_of(request, kind, data_dir)
    report.holders.show_agreed(output.console, held.agreed)
    options: dict[str, Any] = {"resume": resume, "workers": workers, "engine": engine}
    try:
        with report.terminal.counting(output.console, "updates", held.agreed.total) as progress:
            run, synchronous = jobs.holders.simulate_job(held, out, progress=progress, **options)
    except KeyboardInterrupt:
        if out is None:
            raise
        words = f"interrupted; go on with: --out {out} --resume"
        raise typer.Exit(command.fail(words, 130)) from None
    summary = {**run.summary(), "synchronous_seconds": synchronous}
    if out is not None:
        report.holders.draw_simulation(summary, out)
    report.holders.show_simulated(output.console, summary)
    output.json(lambda: {name: value for name, value in summary.items() if name != "timeline"})


def keys(
    context: typer.Context,
    job_file: Path | None = argument("Job file (TOML); not with --member.", default=None),
    out: Path = option("Folder that is made.", default=Path("keys")),
    member: str | None = option(
        "Make this member's own keys only: a client, a worker or 'server'."
    ),
    join: list[Path] | None = option("A member's identity.json; once for each member."),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Make keys, certificates, the roster, and what all agree on.

    One member's own keys, a roster of those that were handed over, or all in one place.
    """
    from forethought.exchange.keys import IDENTITY, Keys

    if member is not None:
        words = "--member makes one member's keys: drop the job file and --join"
        command.refuse(job_file is not None or join, words)
        Keys.make(out, member)
        typer.echo(f"keys of {member} in {out} (keep them); hand over {out / IDENTITY}")
        return
    command.refuse(job_file is None, "give a job file, or --member NAME")
    request, kind = jobs.job.from_file(job_file or Path()), _kind(context)
    if join:
        roster = jobs.members.join(request, kind, join, out, data_dir)
        shared = " and federation.json" if kind == "federation" else ", gossip.json and first.npy"
        typer.echo(f"{out}/roster.json{shared}: every member puts them beside its own keys")
    else:
        roster = jobs.members.make_everybody(request, kind, out, data_dir)
        typer.echo(f"keys of {', '.join(roster.names)} in {out}")
        typer.echo(
            "made in one place, for a trial: for real, every member makes its own (--member)"
        )
    typer.echo(f"fingerprint of the roster, to compare with the others: {roster.fingerprint}")


def faults(context: typer.Context) -> None:
    """Moved: `python tools/faults.py`, in a checkout of the repository."""
    words = f"in a checkout of the repository `python tools/faults.py {_kind(context)}` runs them"
    raise command.UsageError(f"trials of faults are no longer installed: {words}")


_WAY = "forethought {0} keys job.toml --out keys. For real, every member makes its own (--member "
_WAY += "hospital-a --out keys/hospital-a) and hands over identity.json; then forethought {0} keys "
_WAY += "job.toml --join {1}.json --join hospital-a.json --out shared."
_AS_WRITTEN = {"ignore_unknown_options": True, "allow_extra_args": True}
for _family, _first in ((federate, "server"), (gossip, "hospital-b")):
    _name = _family.info.name
    _example = f"Example: forethought {_name} simulate job.toml --out runs/hospitals --workers 4"
    _words = f"Example: forethought {_name} plan job.toml --rehearse"
    _own = ("observer", 3) if _family is federate else ("", 1)
    _family.command(epilog=_words, without=_own[0], defaults={"repeats": _own[1]})(plan)
    _family.command("simulate", epilog=_example)(simulate)
    _family.command("keys", epilog="Example: " + _WAY.format(_name, _first))(keys)
    _family.command("faults", hidden=True, context_settings=_AS_WRITTEN)(faults)


def _take_part(
    output: command.Output,
    take: Callable[..., Any],
    kind: jobs.holders.Kind,
    job_file: Path,
    key_folder: Path,
    out: Path | None,
    ledger: str | None,
    replay: int | None,
    **options: Any,
) -> tuple[str, Any, Audit | None]:
    """Run ``take`` for a member and print its progress and result.

    Returns:
        The member's name, the result of ``take``, and the audit of a replay (None: no replay).
    """
    request = jobs.job.paying(jobs.job.from_file(job_file), ledger)
    member = jobs.members.Membership.load(key_folder, kind)
    name, plan = member.keys.identity.name, member.agreed.plan(member.place)
    folder = out or Path("runs") / f"{request.name}-{name}"
    output.say(f"{name}: ledger and secrets in {folder} (keep it; it is yours alone)")
    output.console.print(f"roster {member.roster.fingerprint} (compare it with the others)")
    start = time.perf_counter()
    with watching(replay, plan.rounds) as seen:
        done = take(request, key_folder, folder, **options)
    took, found = done if kind == "federation" else done.took, None
    if took.over:
        found = saved(seen, plan, folder, time.perf_counter() - start)
    _show_part(output, took, folder)
    return name, done, found


def _progress(
    output: command.Output, told: Callable[..., tuple[object, str]]
) -> Callable[..., None]:
    """A callback that prints a state whenever its key changes.

    Args:
        told: state → (key, text).
    """
    shown: object = None

    def look(*state: Any) -> None:
        nonlocal shown
        now, text = told(*state)
        if now != shown:
            shown = now
            output.console.print(text)

    return look


def _of_server(status: Any) -> tuple[object, str]:
    there, alarms = sum(one.connected for one in status.clients), sum(status.alarms.values())
    return (10 * status.version // status.rounds, status.finished), (
        f"model {status.version} of {status.rounds}, {there} of {len(status.clients)} clients "
        f"connected, {alarms} alarms"
    )


def _of_client(driver: Any, connected: bool, trouble: str) -> tuple[object, str]:
    if trouble and not connected:
        return trouble, f"{trouble} Trying again."
    updates = driver.machine.updates
    most = driver.machine.federation.updates(driver.machine.me)
    state = "connected" if connected else "connecting"
    return (state, 10 * updates // most), f"{state}, {updates} of {most} updates released"


def _of_worker(drove: Any) -> tuple[object, str]:
    alarms = sum(drove.counts.values())
    text = f"{drove.rounds} updates released, {drove.averaged} exchanges, {alarms} alarms"
    return (drove.rounds // 10, alarms), text


def _of_cluster(updates: list[int]) -> tuple[object, str]:
    return list(updates), f"{sum(updates)} updates released: {', '.join(map(str, updates))}"


def _show_part(output: command.Output, took: TookPart, folder: Path) -> None:
    """Print a member's alarms and its spent ε."""
    for *_, code, text in took.alarms:
        output.console.print(Text.assemble(("alarm", "yellow"), f" {code}: {text}"))
    spent, outsider = took.statement, took.outsider
    if spent is None:
        return
    text = f"released {took.updates} updates: ε {at_most(spent.guarantee)} at δ "
    text += at_most(spent.delta, ".6g")
    if outsider is not None:
        text += (
            f" against the neighbours, {at_most(outsider.guarantee)} against somebody who sees one "
            "final model"
        )
    text += f"; statement{'' if outsider is None else 's'} in {folder}"
    output.say(text)


def _end_unfinished(*reasons: str | None) -> None:
    """End the command if a member paused, or if its ledger was set back."""
    if None in reasons:
        raise typer.Exit(command.fail("paused; the same command goes on where it was", 130))
    if "ledger set back" in reasons:
        raise typer.Exit(command.fail("a ledger was set back: restore the newest one", 1))


# Commands of a federation, with a server.


@federate.command(
    epilog="Example: forethought federate server job.toml --keys keys/server --page 8751"
)
def server(
    output: command.Output,
    job_file: Path = FEDERATION_JOB,
    key_folder: Path = SERVER_KEYS,
    out: Path | None = option("Journal and results. Default: runs/JOB-server."),
    address: str | None = ADDRESS,
    engine: str = CARRIER,
    certificates: Path | None = CERTIFICATES,
    page: int | None = option(
        "Port of the status page on 127.0.0.1; 0: any free one.", max=65535, min=0
    ),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Serve a federation until it is finished; started again, it goes on where it was."""
    from rich.live import Live

    one_of("engine", engine, jobs.members.ENGINES)
    grpc = engine == "grpc"
    command.together(
        ("--certificates", certificates, "--engine flower", not grpc),
        ("--page", page is not None, "--engine grpc", grpc),
        ("--data-dir", output.given("data_dir"), "--engine grpc", grpc),
        ("--json", output.as_json, "--engine grpc", grpc),
    )
    request = jobs.job.from_file(job_file)
    folder = out or Path("runs") / f"{request.name}-server"
    if not grpc:
        _by_flower(output, job_file, key_folder, folder, address, certificates)
        return

    def began(port: int, page_port: int | None) -> None:
        words = f"listening on port {port}, journal in {folder}"
        output.console.print(words, soft_wrap=True, markup=False)
        if page_port is not None:
            output.console.print(f"status page: http://127.0.0.1:{page_port}/")

    terminal = output.console.is_terminal
    live = Live(console=output.console, auto_refresh=False) if terminal else None
    look: Callable[[Any], None] = (
        _progress(output, _of_server)
        if live is None
        else lambda status: live.update(report.holders.status_table(status), refresh=True)
    )
    with live or nullcontext():
        served, accuracy = jobs.members.serve_job(
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
        raise typer.Exit(command.fail("stopped; the same command goes on where it was", 130))
    if accuracy is not None:
        output.console.print(f"accuracy on held-out data {accuracy:.2%}")
    output.say(f"model in {folder}")
    output.json(lambda: {"accuracy": accuracy, **served.status.to_dict()})


def _by_flower(
    output: command.Output,
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
        raise typer.Exit(command.fail(words, 130)) from None
    if status:
        raise typer.Exit(command.fail("flwr run failed; what it printed says why", 1))
    output.say(f"journal and model in {folder}, on the SuperLink's machine")


@federate.command(epilog="Example: forethought federate client job.toml --keys keys/hospital-a")
def client(
    output: command.Output,
    job_file: Path = FEDERATION_JOB,
    key_folder: Path = SERVER_KEYS,
    out: Path | None = MEMBER_FOLDER,
    address: str | None = ADDRESS,
    engine: str = CARRIER,
    certificates: Path | None = CERTIFICATES,
    node_key: Path | None = option(
        "Private key that Flower's SuperLink knows this node by (OpenSSH)."
    ),
    epsilon: float | None = ALLOWED,
    delta: float | None = AT_DELTA,
    leave: bool = flag(
        "--leave", "The server goes on without you; without masks you may begin again."
    ),
    witness: Path | None = WITNESS_FOLDER,
    ledger: str | None = command.PAYING,
    replay: int | None = command.REPLAYED,
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Take part in a federation; Ctrl-C pauses, the same command goes on."""
    from forethought.holders.topology import LEFT

    command.together(
        ("--certificates", certificates, "--engine flower", engine != "grpc"),
        ("--node-key", node_key, "--engine flower", engine != "grpc"),
    )
    name, took, found = _take_part(
        output,
        jobs.members.take_part_in_job,
        "federation",
        *(job_file, key_folder, out, ledger, replay),
        policy=_policy(epsilon, delta),
        address=address,
        engine=engine,
        certificates=certificates,
        node_key=node_key,
        data_dir=data_dir,
        leave=leave,
        witness=witness,
        look=_progress(output, _of_client),
    )
    output.json(
        lambda: {
            "name": name,
            "reason": took.reason,
            "updates": took.updates,
            "epsilon": None if took.statement is None else took.statement.guarantee,
            "alarms": [raised.code for raised in took.alarms],
        }
    )
    _end_unfinished(took.reason)
    if took.reason == LEFT:
        output.say("left: the others go on without this client")
    elif not took.over:
        raise typer.Exit(command.fail(took.reason, 1))
    judge(output, found)


def _policy(epsilon: float | None, delta: float | None) -> Policy | None:
    from forethought.federated.statements import Policy

    words = "a policy is an epsilon at a delta: give --epsilon and --delta"
    command.refuse((epsilon is None) != (delta is None), words)
    return None if epsilon is None or delta is None else Policy(epsilon, delta)


# Commands of a gossip, without a server.


@gossip.command("train", epilog="Example: forethought gossip train job.toml --out runs/cluster")
def gossip_train(
    output: command.Output,
    job_file: Path = argument("Job file (TOML) with a \\[gossip]."),
    out: Path | None = option("Folder with a folder of each worker. Default: runs/JOB-NAME."),
    address: str | None = option(
        "Ray cluster: host:port or auto. Default: processes of this machine."
    ),
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Train a job's gossip on a Ray cluster; Ctrl-C pauses, the same command goes on."""
    request = jobs.job.from_file(job_file)
    folder = out or Path("runs") / request.name
    # Refuses a job without one, before anything is told.
    jobs.holders.section_of(request.job, "gossip")
    output.say(f"ledgers and secrets in {folder} (keep it)")
    look = _progress(output, _of_cluster)
    done = jobs.members.cluster_workers(
        request, folder, address=address, data_dir=data_dir, look=look
    )
    found = [one.summary() for one in done]
    for one in found:
        spent = "nothing" if one["epsilon"] is None else f"ε {at_most(one['epsilon'])}"
        accuracy = "" if one["accuracy"] is None else f", accuracy {one['accuracy']:.1%}"
        output.say(
            f"{one['name']}: {one['reason'] or 'paused'}, {one['updates']} updates, {spent} "
            f"against the neighbours{accuracy}"
        )
    output.json(lambda: {"workers": found})
    _end_unfinished(*(one["reason"] for one in found))


@gossip.command(epilog="Example: forethought gossip peer job.toml --keys keys/hospital-a")
def peer(
    output: command.Output,
    job_file: Path = argument("Job file (TOML) with a \\[gossip]."),
    key_folder: Path = option(
        "Own folder of keys, with roster, gossip, first weights.", "--keys", default=...
    ),
    out: Path | None = MEMBER_FOLDER,
    listen: str | None = option(
        "host:port to listen on. Default: the roster's.", callback=command.host_port
    ),
    epsilon: float | None = ALLOWED,
    delta: float | None = AT_DELTA,
    witness: Path | None = WITNESS_FOLDER,
    ledger: str | None = command.PAYING,
    replay: int | None = command.REPLAYED,
    data_dir: Path | None = command.DATA_DIR,
) -> None:
    """Be one worker of a gossip between sites; Ctrl-C pauses, the same command goes on."""
    _, done, found = _take_part(
        output,
        jobs.members.site_worker,
        "gossip",
        *(job_file, key_folder, out, ledger, replay),
        listen=listen,
        epsilon=epsilon,
        delta=delta,
        data_dir=data_dir,
        look=_progress(output, _of_worker),
        witness=witness,
    )
    if done.accuracy is not None:
        output.console.print(f"accuracy {done.accuracy:.1%} of this worker's model")
    output.json(done.summary)
    drove = done.took.drove
    if "alone" in drove.counts:
        words = "nobody is there; if all have finished, the statement is the last word of this one"
        raise typer.Exit(command.fail(words, 1))
    _end_unfinished(drove.reason)
    judge(output, found)
