"""From a job to the processes of its gossip: under torchrun, or between sites with keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.exchange.keys import ROSTER as ROSTER
from forethought.exchange.keys import Identity, Keys
from forethought.gossip.gossip import GOSSIP as GOSSIP
from forethought.gossip.gossip import Gossip, GossipError, digest_of
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
from forethought.peers.driving import Drove, Pace
from forethought.peers.roster import PeerRoster
from forethought.plans import other_terms, promised

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.exchange.messages import Vector
    from forethought.holders.trainer import SharedModel
    from forethought.peers.taking_part import TookPart

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


# ---- under torchrun


def launched_worker(
    request: Request,
    out: Path,
    *,
    data_dir: Path | None = None,
    pace: Pace | None = None,
    look: Look | None = None,
) -> PeerResult:
    """Be the worker that torchrun says, of a job whose data all processes can read.

    SIGINT and SIGTERM pause it; started again with the same folder, it goes on.

    Args:
        out: each worker has a folder of its own in it, ``out/NAME``.

    Raises:
        PeersError, StoreError: torchrun did not start this process, or others are not there.
        GossipError: this process has another gossip than the first one.
        JobError and what data, planner and gossip refuse.
    """
    from forethought.peers.launched import Launched
    from forethought.peers.memory import keep_memory

    here = Launched.here()
    keep_memory()
    gossiping = gossip_of(request, data_dir)
    shared = gossiping.shared
    with here.meeting(gossiping.gossip.workers) as meeting:
        here.require_same(meeting, gossiping.gossip)
        first = here.first_weights(meeting, shared.read())
        shared.write(first)
        gossip = replace(gossiping.gossip, start=digest_of(first))
        meeting = replace(meeting, run=gossip.run_id)
        return _take_part(
            gossiping.loaded,
            gossiping.share(here.rank),
            shared,
            gossip,
            here.rank,
            out / gossip.members[here.rank].name,
            lambda keys: here.links(meeting, gossip),
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
    from forethought.holders.trainer import SharedModel
    from forethought.peers.sites import SiteLinks

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
    loaded, own = own_records(request, section, me, name, data_dir, gossip_of)
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
            "pause", "seed",
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
            f"[gossip] {name} differs from what these keys were made for{words}: take the job that "
            "all agreed on, or make the gossip anew with forethought gossip keys"
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
    **options: Any,
) -> PeerResult:
    from forethought.holders.trainer import end
    from forethought.peers.taking_part import Share, take_part
    from forethought.rounds.randomness import Seeds
    from forethought.training.execution import InterruptGuard

    run = loaded.request.job.run
    records, loss = prepared_records(loaded, own, shared, gossip.plan(me))
    seeds = Seeds(run.seed, run.noise_seed).part(me)
    share = Share(records, loss, *allowed, seeds, run.micro_batch, witness)
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
            stop=lambda: guard.requested,
            **options,
        )
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
