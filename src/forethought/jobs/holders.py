"""The shares, the simulation and the costs of a job with a [federation] or a [gossip].

Where a job leaves out rounds, batch or step size, they are chosen as for n·√K records: the noised
sums of K holders together have the signal of K·n records and √K times one holder's noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np

from forethought.accounting.interval import warn_if_hollow
from forethought.data import Dataset
from forethought.data.columns import Category
from forethought.data.dataset import is_number
from forethought.data.files import spelled
from forethought.data.synthetic import share_of
from forethought.federated.federation import Federation
from forethought.federated.federation import Member as Client
from forethought.federated.secure_aggregation.masking import SecureAggregation
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.federated.sizes import fitted
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, Trust, digest_of
from forethought.gossip.gossip import Member as Worker
from forethought.gossip.graphs import make, read
from forethought.gossip.mixing import Mixing, given
from forethought.holders import simulator
from forethought.holders.simulate import SimulatedRun, simulate, synchronous_seconds
from forethought.holders.trainer import SharedModel
from forethought.jobs import load
from forethought.jobs.job import (
    FederationSection,
    GossipSection,
    HoldersSection,
    Job,
    JobError,
    JobRequest,
)
from forethought.planning import defaults
from forethought.planning.alternatives import in_phases
from forethought.planning.holders import FederatedPlan, GossipPlan, predict, predict_gossip
from forethought.planning.plan_request import growing
from forethought.planning.solve import plan
from forethought.rounds.randomness import Seeds
from forethought.values.checks import real
from forethought.values.mechanism import Budget, first_round, updates_of
from forethought.values.plan import Plan
from forethought.values.serialisation import canonical, digest
from forethought.values.use import kind_of

Kind = Literal["federation", "gossip"]
Agreed: TypeAlias = Federation | Gossip
Section: TypeAlias = FederationSection | GossipSection
Parts: TypeAlias = tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
# Keys of a section that the agreed federation or gossip has under the same name.
FEDERATION_KEYS = (
    *("rule", "cohort", "deadline", "absence", "resend", "seed", "cadence", "refreshes"),
)
GOSSIP_KEYS = (
    *("rule", "exchanges", "weights", "momentum", "tracking", "window", "settle", "point"),
    *("pause", "stagger", "clock", "seed"),
)
# Keys of a column that say how one member's file writes it.
_OWN_FILE = ("codes", "format", "missing", "lenient")
MOST_SPREAD = 10  # the largest σ of speeds' logarithms: beyond it times leave a double's range
# The paper's cases I to III: factors on the time of a worker, and on batch and step size.
HICCUP, SLOW, LARGE = 2.0, 10.0, 2.0


@dataclass(frozen=True)
class Network:
    """The facts about the model that the agreed terms depend on.

    Args:
        parameters, architecture: of the model. start: digest of its first weights.
        noise_borne: norm of the noise that its weights tolerate; None: linear, or not known.
        encoding: see :class:`~forethought.federated.federation.Federation`.
    """

    parameters: int
    architecture: str
    noise_borne: float | None = None
    start: str = ""
    encoding: str = ""

    @classmethod
    def of(cls, loaded: load.Loaded, shared: SharedModel) -> Network:
        """The facts about a loaded job's model."""
        known = loaded.noise_borne, digest_of(shared.read()), encoding_of(loaded)
        return cls(shared.layout.size, shared.architecture, *known)


def encoding_of(loaded: load.Loaded) -> str:
    """The way from records to inputs and losses: a digest of a declared table, else a public text.

    It leaves out how a member's own file writes them, which may differ from the others'.
    """
    encoder, data = loaded.dataset.encoder, loaded.request.job.data
    weights = loaded.class_weights
    # Without a declaration words and classes come from private records, and a digest that others
    # get would let them test guesses.
    if encoder is None or data.columns is None:
        given: dict[str, object] = {"standardise": data.standardise, "class_weights": weights}
        given["features"] = loaded.dataset.fixed_features
        return canonical(given) if any(given.values()) else ""
    columns: list[Any] = []
    for name, kind in encoder.columns:
        value = kind.to_value()
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if k not in _OWN_FILE}
        if isinstance(kind, Category):
            value["categories"] = list(map(spelled, kind.words))
        count = len(kind.titles(name))
        columns += [[name, count, value]] if count else []
    classes = encoder.classes and list(map(spelled, encoder.classes))
    known = {"columns": columns, "classes": classes, "format": None, "label": None}
    losses = [weights] if weights else []
    return digest([{**encoder.to_dict(), **known}, data.standardise, *losses])


@dataclass(frozen=True)
class Holders:
    """A job of several holders with its data divided, ready to be simulated or run.

    Args:
        loaded: the job, its data set and model.
        shared: the model, with its weights as one vector.
        parts: each holder's record numbers; (): each brings its own records.
        speeds: records per second of each holder, relative to 1.
        agreed: the agreed federation or gossip. budgets: the budget of each holder.
        times: of a simulation.
    """

    loaded: load.Loaded
    shared: SharedModel
    parts: Parts
    speeds: tuple[float, ...]
    agreed: Agreed
    budgets: tuple[Budget, ...]
    times: Any  # simulator.Times; for a gossip, simulator.GraphTimes

    @property
    def gossip(self) -> Gossip:
        """The agreed gossip; only for jobs with one."""
        return cast(Gossip, self.agreed)

    @property
    def fused(self) -> bool:
        """True if a simulation makes one private sum for a whole cohort."""
        federation = self.loaded.request.job.federation
        return self.agreed.CALLED == "federation" and federation is not None and federation.fused

    def share(self, place: int) -> Dataset:
        """One holder's own records.

        Raises:
            JobError: each holder brings its own, and they are not here.
        """
        if not self.parts:
            member = self.agreed.MEMBER
            raise JobError(
                f"each {member} brings its own records (examples), which are not here: leave "
                f"examples and folder out to deal the job's data, or run each {member} by itself"
            )
        return share_of(self.loaded.dataset, self.parts[place])


@overload
def section_of(job: Job, kind: Literal["federation"]) -> FederationSection: ...


@overload
def section_of(job: Job, kind: Literal["gossip"]) -> GossipSection: ...


@overload
def section_of(job: Job, kind: str) -> Section: ...


def section_of(job: Job, kind: str) -> Section:
    """A job's ``[federation]`` or ``[gossip]``. Raises JobError where there is none."""
    found = job.federation if kind == "federation" else job.gossip
    if found is None:
        least = "clients = 10" if kind == "federation" else "workers = 8"
        raise JobError(f"the job has no [{kind}]: say at least {least}")
    return found


def deal(
    request: JobRequest, section: Section, data_dir: Path | None = None
) -> tuple[load.Loaded, Parts]:
    """Load a job's data and divide it among the holders.

    Returns:
        The job, and each holder's record numbers.

    Raises:
        JobError: no number of holders, or data that several holders cannot train on.
        ValueError: as for :func:`forethought.jobs.load.load_job`.
    """
    load.require_possible(request.job)
    loaded = load.load_job(request, data_dir)
    kind, member, count = section.kind, section.member, section.count
    how, _, column = section.shares.partition(":")
    if how == "column" and column and loaded.dataset.sites is None:
        raise JobError(f"shares = {section.shares!r}: the data has no column {column!r}")
    if count is None and how != "column":
        raise JobError(f"[{kind}] needs {member}s = a number, or [[{kind}.{member}]] tables")
    generator = np.random.Generator(np.random.PCG64(section.seed))
    return loaded, tuple(load.dealt(loaded.dataset, count, section.shares, generator))


def holders_of(request: JobRequest, kind: Kind, data_dir: Path | None = None) -> Holders:
    """Load a job's data, divide it among the holders, and plan every holder's part.

    Where the job has every member's number of examples, only the model's shape is taken from the
    data, which may be a public sample.

    Raises:
        JobError: no such section, and as for :func:`deal`.
        ValueError: errors of data, model, planner, graph, federation or gossip.
    """
    section = section_of(request.job, kind)
    parts: Parts = ()
    if section.brings_own:
        loaded = load.load_job(request, data_dir)
        sizes = [table.examples or 0 for table in section.tables]
    else:
        loaded, parts = deal(request, section, data_dir)
        sizes = [load.count_of(loaded.dataset, part) for part in parts]
    shared, speeds = SharedModel(load.module_of(loaded)), speeds_of(section, len(sizes))
    found, budgets = agreed(request, section, sizes, speeds, Network.of(loaded, shared))
    if parts:  # a public sample's caveats are not those of the members' records
        found = replace(found, plans=tuple(loaded.with_caveats(plan) for plan in found.plans))
    times = times_of(section, found, speeds, request.folder)
    return Holders(loaded, shared, parts, speeds, found, budgets, times)


def simulate_job(
    held: Holders, out: Path | None = None, **options: Any
) -> tuple[SimulatedRun, float]:
    """Simulate a job's federation or gossip with real training.

    Args:
        options: resume, workers, engine and progress of
            :func:`~forethought.holders.simulate.simulate`.

    Returns:
        The run, and the virtual seconds of as many synchronous rounds (for an asynchronous
        federation: in which every client computes on the same share of its records).

    Raises:
        JobError: the job has a ``[ledger]``, or a new simulation a setting that changes nothing.
    """
    loaded, times = held.loaded, held.times
    if not options.get("resume"):
        require_used(loaded.request.job, held.agreed.CALLED)
    if loaded.request.job.ledger is not None:
        raise JobError(
            "a simulation has one process for all holders, and [ledger] is of one of them: leave "
            "it out where the data are public, or run each holder by itself"
        )
    settings = loaded.request.job.run
    plans = enumerate(held.agreed.own_plans)
    own = [load.arranged_for(loaded, held.share(place), plan) for place, plan in plans]
    options |= {"loss": own[0].loss, "test": loaded.held_out, "out": out, "fused": held.fused}
    options |= {"seeds": Seeds(settings.seed, settings.noise_seed)}
    options |= {"micro_batch": settings.micro_batch}
    run = simulate(held.shared.model, [one.data for one in own], held.agreed, times, **options)
    if isinstance(held.agreed, Federation) and held.agreed.rule == "asynchronous":
        # Sample sizes are matched to speeds; for the comparison all clients have the same share.
        typical, middle = float(np.median(times.compute)), float(np.median(held.speeds))
        times = replace(times, compute=[typical * middle / speed for speed in held.speeds])
    return run, synchronous_seconds(held.agreed, times)


def plan_job(held: Holders, observers: Sequence[str] = ()) -> FederatedPlan | GossipPlan:
    """The predicted costs of a job's federation or gossip.

    Args:
        observers: names of distant workers who share what they see.

    Raises:
        JobError: an observer that is no worker, or a setting that changes nothing.
        NetworkViewError: see :func:`~forethought.planning.holders.predict_gossip`.
    """
    require_used(held.loaded.request.job, held.agreed.CALLED)
    if isinstance(held.agreed, Federation):
        return predict(held.agreed, held.budgets, held.speeds, held.times)
    names = held.agreed.names
    for name in observers:
        if name not in names:
            raise JobError(
                f"--observer {name!r} is no worker of this gossip; there are {names[:20]}"
            )
    places = [names.index(name) for name in observers]
    return predict_gossip(held.agreed, held.budgets, held.times, places)


def speeds_of(section: HoldersSection, holders: int) -> tuple[float, ...]:
    """Each holder's records per second, relative to 1.

    Raises:
        JobError: a list of another length, or an unknown text. ValueError: a speed not above 0.
    """
    if section.tables:
        return tuple(table.speed for table in section.tables)
    match section.speeds:
        case None:
            slow = section.slow, section.slow_factor
            if isinstance(section, GossipSection) and section.case == "II":
                slow = 1, SLOW
            return tuple(1 / s for s in simulator.slow_ones(holders, *slow))
        case str() as words:
            kind, _, sigma = words.partition(":")
            if kind != "lognormal" or not is_number(sigma) or not 0 <= float(sigma) <= MOST_SPREAD:
                raise JobError(
                    f"speeds = {words!r}: say a list, or 'lognormal:0.5', at most {MOST_SPREAD}"
                )
            return tuple(simulator.lognormal_speeds(holders, float(sigma), section.seed))
        case listed:
            if len(listed) != holders:
                raise JobError(f"{len(listed)} speeds for {holders} holders: give one each")
            return tuple(real("a speed", speed, above=0) for speed in listed)


# The terms that all holders agree on.


def agreed(
    request: JobRequest,
    section: Section,
    sizes: Sequence[int],
    speeds: Sequence[float],
    network: Network,
) -> tuple[Agreed, tuple[Budget, ...]]:
    """The federation or the gossip of a job, and each holder's budget; nothing private is read.

    Args:
        sizes: number of records of each holder, or of persons where the job names them.
        speeds: see :func:`speeds_of`. network: facts about the model.

    Raises:
        JobError: no budget, too little data for a worker, or settings that several holders do not
            support.

    Warns:
        UserWarning: a holder's δ is so large that it promises little.
    """
    job = request.job
    load.require_possible(job)
    if isinstance(section, GossipSection) and job.training.size_schedule != "constant":
        raise JobError(
            "[training] size_schedule: workers that make different numbers of rounds would drift "
            "apart; leave it out, or train as a federation"
        )
    budgets = tuple(_budget(job, section, place, size) for place, size in enumerate(sizes))
    for budget, size in zip(budgets, sizes, strict=True):
        if budget.delta * size <= 1:  # of a larger one the planner warns
            warn_if_hollow(budget.delta, size)
    asked = _Asked(job, sizes, budgets, network)
    if isinstance(section, FederationSection):
        return _federation(asked, section, speeds), budgets
    return _gossip(asked, section, request.folder), budgets


def require_used(job: Job, kind: str) -> Section:
    """A job's section, for a new agreement; one that goes on keeps what it began with.

    Raises:
        JobError: there is none, or a setting in it would change nothing; the message names it.
    """
    section = section_of(job, kind)
    unused: dict[str, str] = {}
    if isinstance(section, FederationSection):
        if not isinstance(section.phases, int):
            unused["shrink"] = "without phases = a number"
        if section.rule == "synchronous":
            unused["delay"] = "under the rule 'synchronous'"
        if section.sizes is not None:
            unused["growth"] = "beside [federation.sizes]"
    elif section.rule != "asynchronous":
        names = ["pause", "point"] + ["difference"] * (section.rule == "allreduce")
        unused = dict.fromkeys(names, f"under the rule {section.rule!r}")
    for name, where in unused.items():
        if getattr(section, name) != type(section).model_fields[name].default:
            raise JobError(f"[{section.kind}] {name} changes nothing {where}: leave it out")
    return section


@dataclass(frozen=True)
class _Asked:
    """A job's request to the planner for each of several holders; see :func:`agreed`."""

    job: Job
    sizes: Sequence[int]
    budgets: Sequence[Budget]
    network: Network

    def reference(self, gradients: bool) -> Plan:
        """The plan of one machine that has the signal-to-noise ratio of all holders together."""
        more, typical = len(self.sizes) ** 0.5, int(np.median(self.sizes))
        asked = load.asked_of(self.job, round(typical * more), self.network.parameters)
        changes: dict[str, Any] = {"budget": self.budgets[0], "delta": None}
        changes["noise_borne"] = self.network.noise_borne
        if asked.batch is not None:
            if asked.batch > typical:
                raise JobError(
                    f"[training] batch = {asked.batch} is more than half of the holders have, each "
                    f"by itself: choose at most {typical}"
                )
            changes["batch"] = max(1, round(asked.batch * more))
        if gradients and asked.options is None and kind_of(asked.optimizer).descends:
            changes["options"] = {"momentum": 0.0}  # the server steps along each gradient apart
        return plan(asked.with_(**changes))

    def plans(
        self, lead: Plan, batches: Sequence[int], rounds: int
    ) -> tuple[list[int], tuple[Plan, ...]]:
        """The index of each holder's plan, and the plans; equal requests share a plan.

        Each has its own noise for its own budget, everything else as agreed.
        """
        agreed_on: dict[str, Any] = {
            "delta": None,
            "rounds": rounds,
            "epochs": None,
            "learning_rate": lead.optimizer.learning_rate,
            "schedule": lead.schedule,
            "averaging": lead.averaging,
            "options": dict(lead.optimizer.options),
        }
        keys = list(zip(self.sizes, batches, self.budgets, strict=True))
        known = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        plans = []
        job = self.job.with_("training", batch=None)  # which may be more than a small holder has
        for size, batch, budget in known:
            asked = load.asked_of(job, size, self.network.parameters)
            plans.append(plan(asked.with_(budget=budget, batch=batch, **agreed_on)))
        return [known[key] for key in keys], tuple(plans)


def _budget(job: Job, section: HoldersSection, place: int, size: int) -> Budget:
    own = section.tables[place].epsilon if section.tables else None
    epsilon = own or job.budget.epsilon
    if epsilon is None:
        raise JobError(
            f"a {section.kind} needs a budget: epsilon in [budget], or for each {section.member}"
        )
    return Budget(epsilon, job.budget.delta or defaults.default_delta(size))


def _name(section: HoldersSection, place: int) -> str:
    return section.tables[place].name if section.tables else f"{section.member}-{place}"


def _federation(asked: _Asked, section: FederationSection, speeds: Sequence[float]) -> Federation:
    sizes, network = asked.sizes, asked.network
    weights = section.rule == "synchronous" and section.secure is None
    exchanged = section.exchanged or ("weights" if weights else "gradients")
    lead = asked.reference(exchanged == "gradients")
    local = section.local_rounds or 1
    if section.local_epochs is not None:
        local = max(1, round(section.local_epochs * lead.examples / lead.mean_batch))
    fewest = updates_of(local, lead.rounds)
    nearest = min(fewest, fewest + 1, key=lambda n: abs(first_round(local, n) - lead.rounds))
    rounds = section.rounds or max(1, nearest)
    lengths = _phase_lengths(section, rounds)
    rate, typical = lead.mean_batch / lead.examples, float(np.median(speeds))

    def batch(client: int, size: int) -> int:
        if section.rule == "synchronous":
            return max(1, round(rate * size))
        # A batch in proportion to the speed: all clients' rounds take the same time.
        return min(size, max(1, round(rate * size * speeds[client] / typical)))

    def shaped(found: Plan) -> Plan:
        if section.sizes is not None:
            return fitted(found) if section.sizes.value.refusal(found) is None else found
        if lengths:
            ends = [first_round(local, sum(lengths[:k])) for k in range(len(lengths) + 1)]
            each = [end - begin for begin, end in pairwise(ends)]
            return in_phases(found, each, section.phases, section.shrink)
        return growing(found, section.growth, local if isinstance(local, int) else 1)

    batches = [batch(client, size) for client, size in enumerate(sizes)]
    places, found = asked.plans(lead, batches, first_round(local, rounds))
    plans = tuple(map(shaped, found))
    if section.rule == "synchronous":
        counted = [float(size if section.weights == "size" else 1) for size in sizes]
    else:
        counted = list(map(float, batches))
    federation = Federation(
        tuple(Client(_name(section, k), places[k], counted[k]) for k in range(len(sizes))),
        plans,
        network.parameters,
        network.architecture,
        rounds,
        local,
        exchanged=exchanged,
        averaging=lead.averaging,
        encoding=network.encoding,
        phases=lengths,
        taking=_taken(section, len(lengths)),
        sizes=None if section.sizes is None else section.sizes.value,
        **{name: getattr(section, name).value for name in ("delay", "server", "robust")},
        **{name: getattr(section, name) for name in FEDERATION_KEYS},
    )
    if section.secure is None:
        return federation
    return secured(federation, _secure_aggregation(section, len(sizes)))


def _phase_lengths(section: FederationSection, rounds: int) -> tuple[int, ...]:
    """The number of global rounds of each phase, as equal as possible; (): no phases."""
    count = section.phases if isinstance(section.phases, int) else len(section.phases or ())
    if count > rounds:
        raise JobError(f"{rounds} rounds do not make {count} phases: ask for more rounds")
    return tuple(rounds // count + (k < rounds % count) for k in range(count))


def _taken(section: FederationSection, phases: int) -> tuple[tuple[int, ...], ...]:
    """The phases, from 0, of each client; (): all clients take part in all phases."""
    if all(table.phases is None for table in section.client):
        return ()
    everything = tuple(range(phases))
    return tuple(
        everything if table.phases is None else tuple(number - 1 for number in table.phases)
        for table in section.client
    )


def _secure_aggregation(section: FederationSection, clients: int) -> SecureAggregation:
    asked = {"clients": section.cohort or clients, **(section.secure or {})}
    known = {one.name for one in fields(SecureAggregation)}
    try:
        return SecureAggregation(**asked)
    except (TypeError, ValueError) as error:
        wrong = error if asked.keys() <= known else "take dropouts, colluders, bits and patience"
        raise JobError(f"secure = {section.secure!r}: {wrong}") from None


def _gossip(asked: _Asked, section: GossipSection, folder: Path | None) -> Gossip:
    sizes, network = asked.sizes, asked.network
    lead = asked.reference(True)
    rounds = own_rounds = section.rounds or lead.rounds
    rate = lead.mean_batch / lead.examples
    if section.rule == "asynchronous":
        lead = _half_of_the_longest(lead, network.parameters)
        own_rounds = max(rounds, round(section.headroom * rounds))
    if section.case == "III":
        rate = min(1.0, LARGE * rate)
        lead = _with_step_size(lead, LARGE * lead.optimizer.learning_rate)

    for worker, size in enumerate(sizes):
        if rate * size < 1:
            raise JobError(
                f"worker {_name(section, worker)!r} has too little data: {size} records at rate "
                f"{rate:.3g} are no batch; raise [training] batch, or leave the worker out"
            )
    batches = [min(size, round(rate * size)) for size in sizes]
    places, plans = asked.plans(lead, batches, own_rounds)
    mixing = mixing_of(section, len(sizes), folder)
    return Gossip(
        tuple(Worker(_name(section, k), places[k]) for k in range(len(sizes))),
        plans,
        mixing,
        network.parameters,
        network.architecture,
        rounds,
        trust=Trust(section.difference, section.largest),
        compression=compression_of(section),
        start=network.start,
        encoding=network.encoding,
        **{name: getattr(section, name) for name in GOSSIP_KEYS},
    )


def _with_step_size(lead: Plan, rate: float) -> Plan:
    return lead.remade(use=replace(lead.use, optimizer=replace(lead.optimizer, learning_rate=rate)))


def _half_of_the_longest(lead: Plan, parameters: int) -> Plan:
    """The plan with at most half of SYNC's longest step size, where the planner chose it.

    With gradients that are one round old, descent is stable for η times the curvature below 1; with
    fresh gradients, below 2.
    """
    chosen = lead.assumed
    if chosen is None or "step size" not in chosen.chosen:
        return lead
    most = defaults.Trained(parameters, chosen.feature_norm).step / lead.clip.norm / 2
    return lead if lead.optimizer.learning_rate <= most else _with_step_size(lead, most)


def mixing_of(section: GossipSection, workers: int, folder: Path | None = None) -> Mixing:
    """The graph and the mixing that a job names.

    Args:
        folder: of the job's files.

    Raises:
        GraphError, MixingError: an invalid graph or matrix. OSError: no such file.
    """
    here = folder or Path()
    if section.edges is not None:
        graph = read(here / section.edges)
    else:
        graph = make(section.graph, workers, degree=section.degree, seed=section.seed)
    if section.matrix is not None:
        return given(graph, here / section.matrix)
    return Mixing(section.mixing, graph, section.seed)


def compression_of(section: GossipSection) -> Compression:
    """The compression of a job. Raises JobError for an unknown text."""
    words = section.compression
    kind, colon, share = words.partition(":")
    try:
        return Compression(kind, float(share) if colon else None)
    except ValueError as problem:
        raise JobError(
            f"compression = {words!r}: say 'none', 'bf16', or 'top-k:0.1' ({problem})"
        ) from None


# Times of a simulation.


def times_of(
    section: Section, agreed: Agreed, speeds: Sequence[float], folder: Path | None = None
) -> simulator.Times:
    """The times of a simulation: computation by records over speed, messages by size.

    Raises:
        JobError: an outage of an unknown worker.
    """
    seconds = [
        section.record_seconds * plan.epochs * plan.examples
        / (agreed.updates_of(plan) if isinstance(agreed, Federation) else plan.rounds)
        for plan in agreed.plans
    ]  # fmt: skip
    places = [member.plan for member in agreed.members]
    compute = [seconds[plan] / speed for plan, speed in zip(places, speeds, strict=True)]
    known = compute, simulator.Way(section.latency, section.bandwidth), section.straggling
    if isinstance(section, FederationSection):
        return simulator.Times(*known, seed=section.seed)
    names, outages = agreed.names, []
    for row in section.outage:
        if row.worker not in names:
            raise JobError(f"[[gossip.outage]]: no worker {row.worker!r}; there are {names[:20]}")
        end = {} if row.end is None else {"end": row.end}
        outages.append(simulator.Outage(names.index(row.worker), row.begin, **end))
    factors = _factors(section, len(names), folder)
    last = section.exchange, section.deadline
    return simulator.GraphTimes(*known, tuple(outages), section.seed, factors, *last)


def _factors(section: GossipSection, workers: int, folder: Path | None) -> simulator.Factors | None:
    if section.trace is not None:
        return simulator.read_trace((folder or Path()) / section.trace)
    factor = HICCUP if section.case == "I" else section.hiccup
    return None if factor == 1 else simulator.Hiccups(workers, factor, section.seed)
