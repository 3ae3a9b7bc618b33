"""From a job to the processes of its gossip: on a cluster, under torchrun, or between sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.exchange.keys import ROSTER as ROSTER
from forethought.exchange.keys import Identity, Keys
from forethought.exchange.ledger import LEDGER, counted
from forethought.exchange.storage import FolderStorage
from forethought.gossip.gossip import GOSSIP as GOSSIP
from forethought.gossip.gossip import Gossip, GossipError, digest_of
from forethought.holders.grpc import PeerRoster
from forethought.holders.links import Drove, Pace
from forethought.jobs.gossip import (
    agreed_gossip,
    compression_of,
    gossip_of,
    gossip_section,
    mixing_of,
)
from forethought.jobs.holders import (
    accuracy_of,
    identities_of,
    own_records,
    prepared_records,
    save_model,
)
from forethought.jobs.job import JobError
from forethought.jobs.load import Loaded, load_job, module_of, require_possible
from forethought.jobs.request import Request
from forethought.values.plan import other_terms, promised

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.exchange.messages import Vector
    from forethought.holders.cluster import Here
    from forethought.holders.taking_part import TookPart
    from forethought.holders.trainer import SharedModel

FIRST, FIRST_PORT = "first.npy", 8760
Look = Callable[[Drove], None]


@dataclass(frozen=True)
class PeerResult:
    """The outcome of a worker of a job.

    Args:
        name: its. took: what became of it.
        accuracy: of its own model on the job's held-out data; None: there are none.
    """

    name: str
    took: TookPart
    accuracy: float | None

    def summary(self) -> dict[str, Any]:
        """The outcome, JSON-ready."""
        took = self.took
        return {
            "name": self.name,
            "reason": took.drove.reason,
            "updates": took.updates,
            "exchanges": took.drove.averaged,
            "seconds": took.drove.seconds,
            "epsilon": None if took.statement is None else took.statement.guarantee,
            "outsider": None if took.outsider is None else took.outsider.guarantee,
            "accuracy": self.accuracy,
            "alarms": dict(took.drove.counts),
        }


# ---- on a cluster, and under torchrun


def cluster_workers(
    request: Request,
    out: Path,
    *,
    address: str | None = None,
    data_dir: Path | None = None,
    pace: Pace | None = None,
    look: Callable[[list[int]], None] | None = None,
) -> list[PeerResult]:
    """Train a job's gossip on a Ray cluster, to the end of all workers.

    SIGINT and SIGTERM pause all; the same call goes on where they were.

    Args:
        out: what all agree on, and a folder of each worker, ``out/NAME``, on the node where it
            runs.
        address: of a cluster ("auto": the one that runs here); None: of processes of this machine.
        data_dir: where the job's data is, on every node.
        look: called about once a second with every worker's updates.

    Returns:
        What became of every worker, in the order of the job.

    Raises:
        GossipError: ``out`` is of another gossip.
        HolderError: no Ray, no cluster, or too small a one. JobError: the rule is "allreduce".
        Exception: what the first of the workers raised that failed, once all have ended.
    """
    from forethought.holders.cluster import cluster, run_workers
    from forethought.training.execution import InterruptGuard

    if gossip_section(request.job).rule == "allreduce":
        raise JobError("rule = 'allreduce' is run under torchrun: see examples/gossip.py")
    gossiping = gossip_of(request, data_dir)
    gossip, first = begun_in(request, gossiping.gossip, gossiping.shared.read(), out)
    folder = None if data_dir is None else data_dir.resolve()
    options = {"data_dir": folder, "pace": pace}
    works = [
        partial(cluster_worker, request, gossip, first, me, out.resolve(), options)
        for me in range(gossip.workers)
    ]
    with cluster(address, gossip.workers), InterruptGuard() as guard:
        run = f"{request.name}-{gossip.run_id.hex()[:16]}"
        outcomes = run_workers(run, works, stop=lambda: guard.requested, look=look)
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    if failed:
        raise failed[0]
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def begun_in(request: Request, gossip: Gossip, first: Vector, out: Path) -> tuple[Gossip, Vector]:
    """The gossip and the first weights with which these workers began, kept in ``out``.

    Step sizes follow from weights that may be drawn, so another planning finds other ones: those
    of the beginning hold.

    Raises:
        JobError, GossipError: the job says otherwise now.
    """
    if not (out / GOSSIP).exists():
        out.mkdir(parents=True, exist_ok=True)
        np.save(out / FIRST, first)
        gossip.save(out / GOSSIP)
        return gossip, first
    kept = Gossip.load(out / GOSSIP)
    _require_same(request, kept)
    if [member.name for member in kept.members] != [member.name for member in gossip.members]:
        raise GossipError(f"{out} holds a gossip of other workers: choose another folder")
    for me in range(gossip.workers):
        now, then = gossip.plan(me), kept.plan(me)
        problem = other_terms(promised(now), promised(then), GOSSIP)
        if problem is None and (now.budget, now.examples) != (then.budget, then.examples):
            problem = f"the job's budget or data are not those of {GOSSIP}: choose another folder"
        if problem is not None:
            raise GossipError(f"{out}: {problem}")
    return kept, np.load(out / FIRST, allow_pickle=False)


def cluster_worker(
    request: Request,
    gossip: Gossip,
    first: Vector,
    me: int,
    out: Path,
    options: Mapping[str, Any],
    here: Here,
) -> PeerResult:
    """Be one worker in an actor; see :func:`cluster_workers`.

    Args:
        gossip, first: what was planned, and the first weights. out: folder of all workers.
        options: data_dir and pace. here: of the actor.
    """
    from forethought.holders.trainer import SharedModel

    # The same job planned this gossip: nobody else's word is taken, and nothing planned again.
    section, name = gossip_section(request.job), gossip.members[me].name
    loaded, own = own_records(request, section, me, name, options["data_dir"])
    shared = SharedModel(module_of(loaded))
    shared.write(first)
    return _take_part(
        loaded,
        own,
        shared,
        gossip,
        me,
        out / name,
        lambda keys: here.links(gossip, me),
        pace=_pace(request, options["pace"]),
        look=lambda drove: here.tell(drove.rounds),
        halted=here.stop,
    )


def launched_worker(
    request: Request,
    out: Path,
    *,
    data_dir: Path | None = None,
    pace: Pace | None = None,
    look: Look | None = None,
) -> PeerResult:
    """Be the worker of SYNC that torchrun says, of a job whose data all processes can read.

    Args:
        out: each worker has a folder of its own in it, ``out/NAME``.

    Raises:
        PeersError: torchrun did not start this process, or a worker was lost.
        GossipError: a process has another gossip than the first one, or a worker is back.
        JobError: another rule than "allreduce"; and what data, planner and gossip refuse.
    """
    from forethought.holders.links import Launched, TeamLinks
    from forethought.training.execution import launched

    here = Launched.here()
    if gossip_section(request.job).rule != "allreduce":
        raise JobError(
            "torchrun carries rule = 'allreduce' alone, since it ends all workers with the first "
            "that dies: run the other rules with forethought gossip train"
        )
    gossiping = gossip_of(request, data_dir)
    shared, name = gossiping.shared, gossiping.gossip.members[here.rank].name
    # One that is back finds nobody to join: it is told why before it tries.
    if (out / name / LEDGER).exists() and counted(FolderStorage(out / name)):
        raise GossipError(
            f"{out / name} holds releases, and under the rule 'allreduce' a worker that was lost "
            "cannot come back: begin again with another folder and new plans"
        )
    with launched():
        first = here.agree(gossiping.gossip, shared.read())
        shared.write(first)
        gossip = replace(gossiping.gossip, start=digest_of(first))
        return _take_part(
            gossiping.loaded,
            gossiping.share(here.rank),
            shared,
            gossip,
            here.rank,
            out / name,
            lambda keys: TeamLinks(),
            pace=_pace(request, pace),
            look=look,
        )


# ---- between sites


@dataclass(frozen=True)
class Membership:
    """The content of a worker's folder of keys.

    Args:
        keys: its own. roster, gossip, first: everybody's; the last are the first weights.
    """

    keys: Keys
    roster: PeerRoster
    gossip: Gossip
    first: Vector

    @classmethod
    def load(cls, folder: Path) -> Membership:
        """Read a folder that ``forethought gossip keys`` made.

        Raises:
            OSError: something is missing. ValueError: something is damaged.
        """
        first = np.load(folder / FIRST, allow_pickle=False)
        return cls(
            Keys.load(folder),
            PeerRoster.load(folder / ROSTER),
            Gossip.load(folder / GOSSIP),
            np.ascontiguousarray(first, dtype=np.float32),
        )


def make_everybody(request: Request, out: Path, data_dir: Path | None = None) -> PeerRoster:
    """Keys for all workers in one place, for a trial: whoever has the folder can act for anyone.

    Returns:
        The roster; it, the gossip and the first weights are in every folder, ``out/NAME``.

    Raises:
        FileExistsError: there are keys. JobError and what data and planner refuse.
    """
    gossip, first = planned(request, data_dir)
    names = [member.name for member in gossip.members]
    identities = [Keys.make(out / name, name).identity for name in names]
    return _agree(request, gossip, first, identities, (out, *(out / name for name in names)))


def join(
    request: Request, identities: Sequence[Path], out: Path, data_dir: Path | None = None
) -> PeerRoster:
    """A roster, a gossip and first weights from the identities that workers handed over.

    Args:
        identities: files, in any order.

    Raises:
        OSError: no such file. JobError: other workers than the job's. RosterError: keys twice.
    """
    gossip, first = planned(request, data_dir)
    found = identities_of(identities, [member.name for member in gossip.members])
    return _agree(request, gossip, first, found, (out,))


def planned(request: Request, data_dir: Path | None = None) -> tuple[Gossip, Vector]:
    """A job's gossip, not signed by anybody yet, and the first weights.

    Where every worker's number of examples is in the job, nothing but the model's shape is taken
    from the data at hand, which may be a public sample; else the data is dealt out.
    """
    from forethought.holders.trainer import SharedModel

    section = gossip_section(request.job)
    if section.rule == "allreduce":
        raise JobError(
            "rule = 'allreduce' needs links that can reduce: run it under torchrun, or take "
            "'synchronous' or 'asynchronous' between sites"
        )
    if not section.brings_own:
        gossiping = gossip_of(request, data_dir)
        return gossiping.gossip, gossiping.shared.read()
    require_possible(request.job)
    loaded = load_job(request, data_dir)
    shared = SharedModel(module_of(loaded))
    sizes = [table.examples or 0 for table in section.tables]
    gossip = agreed_gossip(
        request.job,
        sizes,
        shared.layout.size,
        shared.architecture,
        request.folder,
        loaded.noise_borne,
    )
    first = shared.read()
    return replace(gossip, start=digest_of(first)), first


def site_worker(
    request: Request,
    folder: Path,
    out: Path,
    *,
    listen: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    data_dir: Path | None = None,
    pace: Pace | None = None,
    look: Look | None = None,
    witness: Path | None = None,
) -> PeerResult:
    """Be one site's worker; leave statement and model in ``out``.

    SIGINT and SIGTERM pause it; the same call goes on where it was.

    Args:
        folder: its keys, with roster, gossip and first weights. out: ledger, secrets and results.
        listen: host:port to listen on; its address in the roster by default.
        epsilon, delta: the most that its plan may spend; the job's budget by default.
        data_dir: where the job's data is: this worker's own, or what all deal out alike.
        witness: folder for the count that a restored ledger is told by; the keys' by default.
    """
    from forethought.holders.grpc import SiteLinks
    from forethought.holders.trainer import SharedModel

    member = Membership.load(folder)
    gossip, me = member.gossip, member.roster.place(member.keys)
    if member.roster.with_keys(gossip) != gossip:
        raise GossipError(
            "this roster's keys are not those of the gossip: take roster.json and gossip.json from "
            "one place, made together"
        )
    _require_same(request, gossip)
    require_possible(request.job)
    section, name = gossip_section(request.job), gossip.members[me].name
    loaded, own = own_records(request, section, me, name, data_dir)
    shared = SharedModel(module_of(loaded))
    if len(member.first) != shared.layout.size:
        raise GossipError("the job's model is not the gossip's: another number of parameters")
    _require_promise(request, gossip, me, loaded, shared)
    shared.write(member.first)
    budget = request.job.budget
    return _take_part(
        loaded,
        own,
        shared,
        gossip,
        me,
        out,
        lambda keys: SiteLinks(gossip, member.roster, keys, listen),
        keys=member.keys,
        allowed=(epsilon or budget.epsilon, delta or budget.delta),
        pace=_pace(request, pace),
        look=look,
        witness=witness or folder,
    )


def _require_promise(
    request: Request, gossip: Gossip, me: int, loaded: Loaded, shared: SharedModel
) -> None:
    """Refuse a plan whose guarantee is about something else than the worker's own job says.

    Its noise, rates and rounds are not compared: their ε is held against the budget.

    Raises:
        GossipError: names the first term that differs.
    """
    sizes = [gossip.plan(worker).examples for worker in range(gossip.workers)]
    parts = (shared.layout.size, shared.architecture, request.folder, loaded.noise_borne)
    own = promised(agreed_gossip(request.job, sizes, *parts).plan(me))
    given = promised(gossip.plan(me))
    if (problem := other_terms(own, given, GOSSIP)) is not None:
        raise GossipError(problem)


def _require_same(request: Request, gossip: Gossip) -> None:
    """Refuse a job that says otherwise than the gossip that was agreed on: it would not be heeded.

    Raises:
        JobError: names what differs.
    """
    section = gossip_section(request.job)
    compared: dict[str, tuple[object, object]] = {
        name: (getattr(section, name), getattr(gossip, name))
        for name in (
            "rule", "exchanges", "weights", "momentum", "tracking", "window", "settle", "point",
            "pause", "stagger", "clock", "seed",
        )
    }  # fmt: skip
    compared["rounds"] = (section.rounds or gossip.rounds, gossip.rounds)
    compared["workers"] = (section.workers or gossip.workers, gossip.workers)
    compared["difference"] = (section.difference, gossip.trust.difference)
    compared["largest"] = (section.largest, gossip.trust.largest)
    compared["compression"] = (compression_of(section), gossip.compression)
    compared["graph and mixing"] = (
        mixing_of(section, gossip.workers, request.folder), gossip.mixing,
    )  # fmt: skip
    other = [name for name, (here, agreed) in compared.items() if here != agreed]
    if other:
        name = other[0]
        here, agreed = compared[name]
        words = "" if name == "graph and mixing" else f" ({here!r} here, {agreed!r} agreed)"
        raise JobError(
            f"[gossip] {name} differs from what was agreed on{words}: take the job that all agreed "
            "on; or begin anew, with other keys or in another folder"
        )


def _take_part(
    loaded: Loaded,
    own: Dataset,
    shared: SharedModel,
    gossip: Gossip,
    me: int,
    out: Path,
    links: Any,
    *,
    allowed: tuple[float | None, float | None] = (None, None),
    witness: Path | None = None,
    halted: Callable[[], bool] = lambda: False,
    **options: Any,
) -> PeerResult:
    from forethought.holders.taking_part import Share, take_part
    from forethought.holders.trainer import end
    from forethought.rounds.randomness import Seeds
    from forethought.training.execution import InterruptGuard

    run = loaded.request.job.run
    records, loss = prepared_records(loaded, own, shared, gossip.plan(me))
    seeds = Seeds(run.seed, run.noise_seed).part(me)
    payer = loaded.request.job.payer
    share = Share(records, loss, *allowed, seeds, run.micro_batch, witness, payer)
    plans = tuple(loaded.with_caveats(plan) for plan in gossip.plans)
    stated = replace(gossip, plans=plans)
    with InterruptGuard() as guard:
        took = take_part(
            gossip,
            me,
            shared,
            share,
            out,
            links,
            stated=stated,
            stop=lambda: guard.requested or halted(),
            **options,
        )
    if took.weights is not None:
        shared.write(took.weights)
    if took.over:
        save_model(shared, out)
        end(out)
    accuracy = accuracy_of(loaded, shared, loaded.loss)
    return PeerResult(gossip.members[me].name, took, accuracy)


def _agree(
    request: Request,
    gossip: Gossip,
    first: Vector,
    identities: Sequence[Identity],
    folders: Sequence[Path],
) -> PeerRoster:
    tables = gossip_section(request.job).worker
    addresses = [
        (tables[k].address if tables else None) or f"127.0.0.1:{FIRST_PORT + k}"
        for k in range(gossip.workers)
    ]
    roster = PeerRoster.of(identities, addresses)
    agreed_on = roster.with_keys(gossip)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        roster.save(folder / ROSTER)
        agreed_on.save(folder / GOSSIP)
        np.save(folder / FIRST, first)
    return roster


def _pace(request: Request, given: Pace | None) -> Pace:
    section = gossip_section(request.job)
    if given is not None:
        return given
    pace = Pace(deadline=section.deadline)
    return pace if section.exchange is None else replace(pace, exchange=section.exchange)
