"""Many holders in a job: plans, speeds, and trying it out on a public proxy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.exchange.keys import Identity
from forethought.holders.times import lognormal_speeds, slow_ones
from forethought.jobs.job import HoldersSection, Job, JobError
from forethought.jobs.load import (
    Loaded,
    arranged_for,
    asked_of,
    count_of,
    dealt,
    load_job,
    module_of,
    require_possible,
)
from forethought.jobs.request import Request
from forethought.planning import defaults
from forethought.values.mechanism import Budget
from forethought.values.plan import Plan
from forethought.values.use import kind_of

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.holders.trainer import SharedModel
    from forethought.rounds.losses import Loss
    from forethought.rounds.records import Records
    from forethought.utility.graph import UtilityGraph
    from forethought.utility.rehearsal import Rehearsal


# What a job's federation and its gossip have in common: many holders' shares, plans and speeds.


@dataclass(frozen=True)
class Dealt:
    """A job of several holders with its data dealt out.

    Args:
        loaded: the job, its data set and model.
        shared: the model, its weights as one vector.
        parts: each holder's record numbers.
        speeds: records a second, against 1.
    """

    loaded: Loaded
    shared: SharedModel
    parts: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
    speeds: tuple[float, ...]

    @property
    def sizes(self) -> list[int]:
        """The number of records, or persons, of each holder."""
        return [count_of(self.loaded.dataset, part) for part in self.parts]

    def share(self, place: int) -> Dataset:
        """One holder's own records."""
        from forethought.data.synthetic import share_of

        return share_of(self.loaded.dataset, self.parts[place])

    def simulation(self, plans: Sequence[Plan]) -> tuple[list[Any], dict[str, Any]]:
        """The data that a simulation trains on, a share for each plan, and its options."""
        from forethought.rounds.randomness import Seeds

        run, test = self.loaded.request.job.run, self.loaded.dataset.test
        own = [arranged_for(self.loaded, self.share(k), plan) for k, plan in enumerate(plans)]
        return [one.data for one in own], {
            "loss": own[0].loss,
            "test": None if test is None else (test.inputs, test.targets),
            "seeds": Seeds(run.seed, run.noise_seed),
            "micro_batch": run.micro_batch,
        }


def deal(request: Request, section: HoldersSection, data_dir: Path | None = None) -> Dealt:
    """Load a job's data and deal it out.

    Raises:
        JobError: nobody says how many take part, or data that several holders cannot train on.
        ValueError: what data or model refuse.
    """
    from forethought.holders.trainer import SharedModel

    require_possible(request.job)
    loaded = load_job(request, data_dir)
    kind, member, count = section.kind, section.member, section.count
    how, _, column = section.shares.partition(":")
    if how == "column" and column and loaded.dataset.sites is None:
        raise JobError(f"shares = {section.shares!r}: the data has no column {column!r}")
    if count is None and how != "column":
        raise JobError(f"[{kind}] needs {member}s = a number, or [[{kind}.{member}]] tables")
    generator = np.random.Generator(np.random.PCG64(section.seed))
    parts = tuple(dealt(loaded.dataset, count, section.shares, generator))
    return Dealt(loaded, SharedModel(module_of(loaded)), parts, speeds_of(section, len(parts)))


def speeds_of(section: HoldersSection, holders: int) -> tuple[float, ...]:
    """Each holder's records a second, against 1.

    Raises:
        JobError: a list of another length, or words that say nothing.
    """
    if section.tables:
        return tuple(table.speed for table in section.tables)
    match section.speeds:
        case None:
            return tuple(1 / s for s in slow_ones(holders, *section.slowed))
        case str() as words:
            kind, _, sigma = words.partition(":")
            try:
                spread = float(sigma)
            except ValueError:
                spread = -1.0
            if kind != "lognormal" or spread < 0:
                raise JobError(f"speeds = {words!r}: say a list, or 'lognormal:0.5'")
            return tuple(lognormal_speeds(holders, spread, section.seed))
        case listed:
            if len(listed) != holders:
                raise JobError(f"{len(listed)} speeds for {holders} holders: give one each")
            return tuple(float(speed) for speed in listed)


def budget_of(job: Job, section: HoldersSection, place: int, size: int) -> Budget:
    """The budget of a holder of so many records. Raises JobError: no budget."""
    own = section.tables[place].epsilon if section.tables else None
    epsilon = own or job.budget.epsilon
    if epsilon is None:
        raise JobError(
            f"a {section.kind} needs a budget: epsilon in [budget], or for each {section.member}"
        )
    return Budget(epsilon, job.budget.delta or defaults.default_delta(size))


def reference_plan(
    job: Job,
    budget: Budget,
    size: int,
    clients: int,
    parameters: int,
    gradients: bool,
    noise_borne: float | None = None,
) -> Plan:
    """The plan of one machine whose signal and noise are those of all clients together.

    Args:
        noise_borne: norm of noise that the model's weights bear, from which step size and batch
            follow; see :mod:`forethought.planning.plan_request`.
    """
    from forethought.planning.solve import plan

    asked = asked_of(job, round(size * clients**0.5), parameters)
    changes: dict[str, Any] = {"budget": budget, "delta": None, "noise_borne": noise_borne}
    if asked.batch is not None:
        changes["batch"] = max(1, round(asked.batch * clients**0.5))
    if gradients and asked.options is None and kind_of(asked.optimizer).descends:
        changes["options"] = {"momentum": 0.0}  # the server steps along each gradient by itself
    return plan(asked.with_(**changes))


def holder_plan(
    job: Job, lead: Plan, size: int, batch: int, budget: Budget, rounds: int, parameters: int
) -> Plan:
    """One client's plan: its own noise for its own budget, everything else as agreed."""
    from forethought.planning.solve import plan

    asked = asked_of(job, size, parameters)
    return plan(
        asked.with_(
            budget=budget,
            delta=None,
            batch=batch,
            rounds=rounds,
            epochs=None,
            learning_rate=lead.optimizer.learning_rate,
            schedule=lead.schedule,
            averaging=lead.averaging,
            options=dict(lead.optimizer.options),
        )
    )


# What members that are processes do alike: keys, their own records, the model they leave.


MODEL = "model.safetensors"


def identities_of(files: Sequence[Path], wanted: Sequence[str]) -> list[Identity]:
    """The identities that members handed over, in the order wanted.

    Raises:
        OSError: no such file. JobError: of other members than the job's.
    """
    found = {one.name: one for one in map(Identity.load, files)}
    if sorted(found) != sorted(wanted) or len(files) != len(wanted):
        raise JobError(
            f"identities of {', '.join(sorted(found))} were given; the job needs exactly those of "
            f"{', '.join(wanted)}"
        )
    return [found[name] for name in wanted]


def require_no_payer(job: Job) -> None:
    """Refuse a job whose book would not be asked. Raises JobError."""
    if job.ledger is not None:
        raise JobError(
            "a simulation has one process for all holders, and [ledger] is of one of them: leave "
            "it out where the data are public, or run each holder by itself"
        )


def own_records(
    request: Request,
    section: HoldersSection,
    place: int,
    name: str,
    data_dir: Path | None,
) -> tuple[Loaded, Dataset]:
    """A member's own records: those it brings, or its share of what all deal out alike."""
    if not section.brings_own:
        held = deal(request, section, data_dir)
        return held.loaded, held.share(place)
    folder = next((table.folder for table in section.tables if table.name == name), None)
    own = data_dir or (None if folder is None else (request.folder or Path()) / folder)
    loaded = load_job(request, own)
    return loaded, loaded.dataset


def prepared_records(
    loaded: Loaded, own: Dataset, shared: SharedModel, plan: Plan
) -> tuple[Records, Loss]:
    """A member's records as its plan counts them, and the loss that its model is trained with."""
    from forethought.rounds.losses import default_loss
    from forethought.rounds.records import as_records, blank
    from forethought.training.records import require_fit

    first = next(iter(shared.parameters.values()))
    found = arranged_for(loaded, own, plan)
    records = as_records(found.data, first.dtype, first.device)
    loss = found.loss or default_loss(blank(records)[1])
    require_fit(shared.model, loss, records)
    return records, loss


def accuracy_of(loaded: Loaded, shared: SharedModel, loss: Loss | None = None) -> float | None:
    """The model's accuracy on the job's held-out data, if it has any."""
    from forethought.rounds.losses import default_loss
    from forethought.rounds.records import as_records, blank
    from forethought.training.metrics import evaluate

    test = loaded.dataset.test
    if test is None:
        return None
    first = next(iter(shared.parameters.values()))
    records = as_records((test.inputs, test.targets), first.dtype, first.device, "test")
    loss = loss or default_loss(blank(records)[1])
    return evaluate(shared.model, dict(shared.parameters), loss, records)[1]


def save_model(shared: SharedModel, out: Path) -> None:
    """Leave the model's weights in a folder, whole or not at all."""
    from safetensors.torch import save_file

    part = out / f".{MODEL}.part"
    save_file(shared.model.state_dict(), str(part))
    part.replace(out / MODEL)


# Trying a job out on a public proxy of its data: a named public data set, or synthetic data.
#
# Rehearsals and utility graphs train without paying for it, so they run on a proxy of the private
# data's shape. What they read of the private data itself is its shape, classes and size.


SYNTHETIC = "synthetic"
# Clip norms and noise that a utility graph tries when none are given.
UTILITY_GRID = {
    "clip_norms": (0.01, 0.03, 0.1, 0.3, 1.0),
    "noise_multipliers": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
}


def rehearse_job(
    loaded: Loaded,
    plan: Plan,
    proxy: str | None,
    repeats: int,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    relation: str | None = None,
) -> Rehearsal:
    """Run a job's plan on a public proxy of its data.

    Args:
        proxy: a named public data set; None or ``"synthetic"`` draws data of the job's shape.
        relation: how a named proxy stands to the private data, as declared.
    """
    from forethought.utility.rehearsal import rehearse, synthetic

    loaded.require_rows("a public proxy")
    private = loaded.dataset
    shape = private.train.inputs.shape[1:]
    return rehearse(
        plan,
        lambda: loaded.request.job.build_model(private),
        synthetic(shape, private.classes or 2, plan.examples)
        if proxy in (None, SYNTHETIC)
        else _named(loaded, str(proxy), data_dir),
        repeats=repeats,
        relation=relation,  # type: ignore[arg-type]  # rehearse refuses another
        progress=progress,
    )


def utility_of(
    loaded: Loaded,
    proxy: str | None,
    settings: Mapping[str, Any],
    data_dir: Path | None = None,
    leaks: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> UtilityGraph:
    """The utility graph of a job's model on a public proxy of its data.

    Args:
        proxy: a named public data set; ``"synthetic"`` draws one of the job's shape; None takes
            the private data itself, which needs ``leaks``.
        settings: clip_norms, noise_multipliers, draws, batch, epochs, optimizer, seed.
    """
    from forethought.data.synthetic import like
    from forethought.utility.perturbing import utility_graph

    loaded.require_rows("a public proxy")
    private = loaded.dataset
    if proxy is None:
        data, source = private, "private"
    elif proxy == SYNTHETIC:
        shape = private.train.inputs.shape[1:]
        data, source = like(shape, private.classes or 2, len(private.train)), "synthetic"
    else:
        data, source = _named(loaded, proxy, data_dir), "public"
    test = data.test
    return utility_graph(
        lambda: loaded.request.job.build_model(private),
        (data.train.inputs, data.train.targets),
        source=source,  # type: ignore[arg-type]
        leaks="accept" if leaks else None,
        test=None if test is None else (test.inputs, test.targets),
        progress=progress,
        **settings,
    )


def public_shares(
    loaded: Loaded,
    proxy: str | None,
    sizes: Sequence[int],
    repeat: int,
    data_dir: Path | None = None,
) -> tuple[list[tuple[Any, Any]], tuple[Any, Any] | None]:
    """Public data in the place of a job's, dealt to several holders at random, and held-out ones.

    Args:
        proxy: a named public data set; None or ``"synthetic"`` draws one for every ``repeat``.
        sizes: how many records each holder needs.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    data = _public_records(loaded, proxy, sum(sizes), repeat, data_dir)
    order = np.random.default_rng(repeat).permutation(len(data.train))[: sum(sizes)]
    parts = np.split(order, np.cumsum(sizes)[:-1])
    shares = [(data.train.inputs[part], data.train.targets[part]) for part in parts]
    return shares, None if data.test is None else (data.test.inputs, data.test.targets)


def _public_records(
    loaded: Loaded, proxy: str | None, records: int, repeat: int, data_dir: Path | None
) -> Dataset:
    private = loaded.dataset
    shape = private.train.inputs.shape[1:]
    if proxy in (None, SYNTHETIC):
        from forethought.data.synthetic import like

        return like(shape, private.classes or 2, records, seed=repeat)
    from forethought.data import load

    data = load(str(proxy), folder=data_dir, features=loaded.request.job.data.features)
    found = data.train.inputs.shape[1:]
    if found != shape or data.classes != private.classes or len(data.train) < records:
        raise ValueError(
            f"the public proxy {proxy!r} has {len(data.train):,} records of shape {tuple(found)} "
            f"in {data.classes} classes; {records:,} of {tuple(shape)} in {private.classes} are "
            "needed: choose another, or 'synthetic'"
        )
    return data


def _named(loaded: Loaded, name: str, data_dir: Path | None) -> Dataset:
    job = loaded.request.job
    data = job.data.model_copy(update={"source": name, "test": None})
    return job.model_copy(update={"data": data}).load_data(data_dir)
