"""One private sum for a whole cohort: a simulated federation at nearly the cost of one machine.

The mean of K clients' noised sums is the weighted sum of all their clipped gradients plus K
independent Gaussians, whose sum is one Gaussian with the sum of their variances. So one sum with
that noise gives the global models exactly the same law, if they depend on a round's updates only
through this mean: see :func:`require_fusible`. Every client has a batch by its own plan. Its own
noise is not drawn, so nothing here is a release of a client, and no statement may be about one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.exchange.messages import Vector
from forethought.federated.federation import Federation, FederationError
from forethought.federated.rules import cohort_of
from forethought.gradients import rule as clipping_rule
from forethought.gradients.batches import UNIT, Blocks
from forethought.gradients.boundary import Generators, turns
from forethought.gradients.clipped import clipped_sum
from forethought.holders.simulator import OVERHEAD, LogNormal, Result, SimulatedStar, Times, Work
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import PROCESSES, Pool, ask, processes
from forethought.rounds import randomness
from forethought.rounds.contributions import Loss, accumulate
from forethought.rounds.private_sum import generator_of, input_hash
from forethought.rounds.records import Records, TensorRecords
from forethought.training.records import warn_of_another_model
from forethought.values.mechanism import Examples, Poisson
from forethought.values.plan import Clip, Round, step_sizes

LAW = (
    "simulated, fused: the law of the global model only; no client's own noise was drawn, so no "
    "client has a statement"
)


# Most examples of one pass, and passes of one sum in one task of a process. They do not depend on
# the number of processes, so the bits of the sum do not either.
PASS, PASSES = 512, 4


# Settings that look at single clients, and why their models have another law then.
_ALONE = {
    "secure": "secure aggregation masks every client's own noised sum",
    "deadline": "after a deadline a round goes on with those who came",
    "sizes": "clients choose their own sizes",
    "phases": "clients may leave phases out",
}


def require_fusible(federation: Federation, times: Times) -> None:
    """Refuse a federation whose global models would have another law with one sum per round.

    Raises:
        FederationError: names the first setting that prevents it, and what to set instead.
    """
    plans = [federation.plans[place] for place in sorted({m.plan for m in federation.members})]
    rule, robust, most = federation.rule, federation.robust.kind, federation.rounds
    moving = plans[0].clip.final is not None
    apart = federation.cohort is not None or len({plan.rounds for plan in plans}) > 1
    others = any(type(plan.contribution) is not Examples or plan.augmentation for plan in plans)
    linear = all(_linear(plan.optimizer.name, plan.optimizer.options) for plan in plans)
    refused = {
        f"the rule {rule!r} applies updates one by one; set rule to 'synchronous'": (
            rule != "synchronous"
        ),
        "after one local round a client goes on from its own noise; set local_rounds to 1": (
            federation.local_rounds != 1
        ),
        f"robust {robust!r} looks at single updates; set it to 'mean'": robust != "mean",
        **{f"{why}; drop {name}": getattr(federation, name) for name, why in _ALONE.items()},
        "clients that are away delay or miss rounds; drop the outages": times.outages,
        f"clients with fewer rounds than {most} leave earlier; plan as many for all": (
            any(plan.rounds < most for plan in plans)
        ),
        "it clips single examples; use the clipping 'example' without altered copies": others,
        "the clip rule 'quantile' follows every client's own noise; use 'flat'": (
            any(plan.clip.rule == "quantile" for plan in plans)
        ),
        "all examples are clipped to one norm; plan with the same for all clients": (
            len({plan.clip for plan in plans}) > 1
        ),
        "clients are at different places of a clip norm that moves; keep the norm": moving
        and apart,
        "noises on a grid do not add up to one on a grid; plan with noise 'gaussian'": (
            any(plan.noise != "gaussian" for plan in plans)
        ),
        "a client's step must be linear in its noised sum; use the optimizer 'sgd' without "
        "momentum, or exchange 'gradients'": federation.exchanged == "weights" and not linear,
    }
    for words, wrong in refused.items():
        if wrong:
            raise FederationError(f"fused = true makes one sum of a cohort's updates: {words}")


def _linear(name: str, options: Sequence[tuple[str, Any]]) -> bool:
    return name == "sgd" and not any(value for key, value in options if key != "weight_decay")


Asked = tuple[NDArray[np.int64], NDArray[np.int64]]


def cohorts(federation: Federation) -> list[Asked]:
    """For each global round the members that it asks, and the index of each one's own round.

    Both are int64, shape (members asked,).
    """
    everybody = np.arange(len(federation.members))
    taken = np.zeros(len(everybody), dtype=np.int64)
    found: list[Asked] = []
    for version in range(federation.rounds):
        if federation.cohort is None:
            found.append((everybody, np.broadcast_to(np.int64(version), everybody.shape)))
            continue
        asked = np.array(cohort_of(federation, version, everybody), dtype=np.int64)
        found.append((asked, taken[asked]))
        taken[asked] += 1
    return found


def simulated_times(federation: Federation, times: Times, asked: Sequence[Asked]) -> SimulatedStar:
    """The durations and messages of synchronous rounds that wait for all clients; no training.

    They are those of the machines in virtual time, but factors of jitter and straggling are drawn
    in the order of the roster.
    """
    members, way = len(federation.members), times.way
    compute = np.array(times.compute, dtype=np.float64)
    factor = LogNormal(times.straggling, [times.seed, 0])
    jitter = LogNormal(way.jitter, [times.seed, 1])
    size = OVERHEAD + 4 * federation.parameters

    def on_the_way(bytes_: int, count: int) -> NDArray[np.float64]:
        return way.seconds(bytes_) * np.array([jitter() for _ in range(count)])

    begin = on_the_way(OVERHEAD, members)  # all clients join
    now, busy = 0.0, np.zeros(members)
    seconds: list[float] = []
    updates = np.zeros(members, dtype=np.int64)
    messages = 2 * members
    for clients, rounds in asked:
        there = (begin[clients] if not seconds else now) + on_the_way(size, len(clients))
        spent = compute[clients] * np.array([factor() for _ in clients])
        if times.factors is not None:
            spent *= [times.factors(*pair) for pair in zip(clients, rounds, strict=True)]
        spent *= _sizes(federation, clients, rounds)
        busy[clients] += spent
        done = there + spent
        if federation.cadence is not None:
            beats = np.maximum(1, np.ceil((done - there) / federation.cadence))
            done = there + beats * federation.cadence
        now = float((done + on_the_way(size, len(clients))).max())
        seconds.append(now)
        updates[clients] += 1
        messages += 3 * len(clients)
    vectors = members + 2 * int(updates.sum())
    sent = OVERHEAD * messages + 4 * federation.parameters * vectors
    return SimulatedStar(
        weights=np.zeros(0, dtype=np.float32),
        seconds=now,
        version=len(seconds),
        updates=updates,
        applied=updates,
        rounds=updates,
        busy=busy,
        messages=messages,
        sent_bytes=sent,
        alarms=(),
        timeline=(),
        versions=tuple(seconds),
    )


def _sizes(
    federation: Federation, clients: NDArray[np.int64], rounds: NDArray[np.int64]
) -> NDArray[np.float64] | float:
    """The expected records of each update, relative to the mean update of the client's plan."""
    if all(len(plan.mechanism.rounds) == 1 for plan in federation.plans):
        return 1.0
    keys = [(federation.members[k].plan, i) for k, i in zip(clients, rounds.tolist(), strict=True)]
    found = {key: federation.relative_size(federation.plans[key[0]], key[1]) for key in set(keys)}
    return np.array([found[key] for key in keys])


class AllRecords:
    """All holders' records, concatenated; tensors of one shape and type are copied into one tensor.

    Args:
        records: of each holder. device: of the batches.

    Attributes:
        starts: index of each holder's first record, int64, shape (holders,).
    """

    def __init__(self, records: Sequence[Records], device: torch.device) -> None:
        sizes = [len(one) for one in records]
        self.starts = np.cumsum([0, *sizes[:-1]])
        self._records = records
        self._whole: TensorRecords | None = None
        tensors = [one for one in records if isinstance(one, TensorRecords)]
        kinds = {(one.inputs.shape[1:], one.inputs.dtype) for one in tensors}
        if len(tensors) == len(records) and len(kinds) == 1:
            inputs = torch.cat([one.inputs for one in tensors])
            targets = torch.cat([one.targets for one in tensors])
            self._whole = TensorRecords(inputs, targets, device)
            self._records = ()

    def take(self, indices: randomness.Indices) -> tuple[Any, Any]:
        """Inputs and targets of the records with these indices, in this order; at least one."""
        if self._whole is not None:
            return self._whole.take(indices)
        owner = np.searchsorted(self.starts, indices, side="right") - 1
        cuts = np.flatnonzero(np.diff(owner)) + 1
        taken = [
            self._records[int(own[0])].take(some - self.starts[own[0]])
            for own, some in zip(np.split(owner, cuts), np.split(indices, cuts), strict=True)
        ]
        return torch.utils._pytree.tree_map(lambda *leaves: torch.cat(leaves), *taken)


@dataclass(frozen=True)
class Pass:
    """Computes clipped sums of examples, in any process.

    Args:
        model: of all. loss: one value per example. records: of all holders. clip: the rule.
        most: most examples of one pass.
    """

    model: torch.nn.Module
    loss: Loss
    records: AllRecords
    clip: Clip
    most: int

    @cached_property
    def shared(self) -> SharedModel:
        """The model, with its weights as one vector."""
        return SharedModel(self.model)

    @cached_property
    def blocks(self) -> Blocks:
        """The numbers of rows that a pass may have: ``most``, and its half, quarter and eighth."""
        sizes = [self.most >> halvings for halvings in (3, 2, 1)]
        return Blocks((*(size for size in sizes if size >= 64 and not size % UNIT), self.most))

    @turns
    def summed(
        self, weights: Vector, indices: randomness.Indices, norm: float, count: int, seed: int
    ) -> NDArray[np.float64]:
        """The clipped sum of some records, pass after pass, float64, shape (parameters,).

        Args:
            norm: clipping norm. count: examples of the whole sum.
            seed: of random numbers in the model, such as dropout's.
        """
        layout = self.shared.layout
        total, kept = layout.zeros(), Generators([layout.device])
        views = layout.views(total)
        try:
            self.shared.write(weights)
            generator_of(layout.device).manual_seed(seed)
            for start in range(0, len(indices), self.most):
                inputs, targets = self.records.take(indices[start : start + self.most])
                sums, _ = clipped_sum(
                    self.model,
                    self.loss,
                    inputs,
                    targets,
                    norm,
                    clip=clipping_rule(self.clip),
                    round_size=count,
                    blocks=self.blocks,
                )
                accumulate(views, sums)
        finally:
            kept.restore()
        return np.asarray(total.cpu().numpy())


class Cohort:
    """One trainer for all members; see :class:`forethought.holders.simulator.Trainers`.

    A work's round is the global round. Its outcome is the change of the global model before the
    server's optimizer, float32, shape (parameters,). As a context manager it ends its processes.

    Args:
        shared: the model of all. holders: of all members. federation: the agreement.
        asked: from :func:`cohorts`. secrets: of the simulation. workers: processes; 0: this one.
        engine: starts these; see :func:`~forethought.holders.workers.processes`.

    Raises:
        HolderError: a model, a loss or records that cannot be sent to another process.
    """

    def __init__(
        self,
        shared: SharedModel,
        holders: Sequence[Holder],
        federation: Federation,
        asked: Sequence[Asked],
        secrets: randomness.Secrets,
        workers: int = 0,
        engine: str = PROCESSES,
    ) -> None:
        lead = holders[0]
        for plan in federation.plans:
            warn_of_another_model(plan, shared.model)
        self._federation, self._asked = federation, asked
        kinds = [(member.plan, member.weight) for member in federation.members]
        self._kinds = list(dict.fromkeys(kinds))
        numbers = {kind: number for number, kind in enumerate(self._kinds)}
        self._kind_of = np.array([numbers[kind] for kind in kinds])
        self._sizes = np.array([len(holder.records) for holder in holders])
        self._joined = AllRecords([holder.records for holder in holders], shared.layout.device)
        self._size = shared.layout.size
        most = lead.micro_batch or PASS
        if most > UNIT:
            most -= most % UNIT
        make = partial(Pass, shared.model, lead.loss, self._joined, lead.plan.clip, most)
        self._pass = make()
        self._noise = randomness.BoundNoise(secrets.noise, "cohort")
        self._secret = secrets.sampling
        self._sampling = randomness.Stream(secrets.sampling, "cohort")
        self._holders, self._own = holders, dict[int, randomness.Batches]()
        self._first = step_sizes(federation.plan(0))
        self._pool: Pool | None = processes(workers, make, engine) if workers else None
        self._work: Work | None = None

    def __enter__(self) -> Cohort:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def begin(self, work: Work) -> None:
        """Remember the work."""
        self._work = work

    def together(self) -> dict[int, Result]:
        """The outcome of the round that was begun, as that of client 0."""
        return {0: self.result(0)}

    def result(self, client: int) -> Result:
        """The change of the global model in the round that was begun.

        Raises:
            ValueError: no work was begun.
        """
        work = self._work
        if work is None:
            raise ValueError("no work was begun")
        parts = self.parts(work.round)
        vector = self.summed(work.round, work.weights, parts)
        hashed = input_hash(self._pass.model)
        std = math.sqrt(
            math.fsum(len(one.clients) * (one.factor * one.chosen.noise_std) ** 2 for one in parts)
        )
        clients = self._asked[work.round][0].astype(np.int64).tobytes()
        about = randomness.encoded((self._federation.run_id, work.round, clients, hashed))
        generator = self._noise.at(self._noise.bind(about, vector))
        if std:
            randomness.GaussianNoise().add_to(vector, std, generator)
        pull = math.fsum(len(one.clients) * one.pull for one in parts)
        change = -vector.numpy() - pull * work.weights.astype(np.float64)
        return Result(change.astype(np.float32), work.round + 1, hashed, b"")

    def parts(self, version: int) -> list[CohortPart]:
        """The members that a round asks, in groups of one plan, weight and own round."""
        federation, (clients, rounds) = self._federation, self._asked[version]
        whole = math.fsum(federation.members[client].weight for client in clients)
        keys = np.stack([self._kind_of[clients], rounds])
        order = np.lexsort(keys)
        cuts = np.flatnonzero(np.diff(keys[:, order]).any(0)) + 1
        found = []
        for some in np.split(order, cuts):
            kind, index = keys[:, some[0]].tolist()
            place, weight = self._kinds[kind]
            plan, share = federation.plans[place], weight / whole
            step, pull = self._first(version), 0.0
            if federation.exchanged == "weights":
                step = federation.step_sizes[place](index)
                pull = share * step * float(dict(plan.optimizer.options).get("weight_decay", 0.0))
            chosen = plan.round(index)
            found.append(CohortPart(clients[some], chosen, share * step / chosen.divisor, pull))
        return found

    def drawn(
        self, version: int, parts: Sequence[CohortPart]
    ) -> list[tuple[float, randomness.Indices]]:
        """The records of a round's batches, grouped by their factor in the sum.

        Poisson samples of several members' records at one rate are one Poisson sample of all these
        records, and are drawn as one. Any other batch is drawn as the member itself would draw it.
        """
        # Rounding merges factors that differ in their last bits only.
        sampled: dict[tuple[float, float], list[NDArray[np.int64]]] = {}
        found: dict[float, list[randomness.Indices]] = {}
        for one in parts:
            factor, sampling = float(f"{one.factor:.11e}"), one.chosen.sampling
            if type(sampling) is Poisson:
                sampled.setdefault((factor, sampling.rate), []).append(one.clients)
                continue
            for client in one.clients.tolist():
                found.setdefault(factor, []).append(
                    self._batch(client, one.chosen) + self._joined.starts[client]
                )
        generator = self._sampling.at(version)
        for (factor, rate), clients in sampled.items():
            members = np.sort(np.concatenate(clients))
            ends = np.cumsum(self._sizes[members])
            count = randomness.poisson_count(int(ends[-1]), rate, generator)
            taken = np.sort(randomness.uniform_subset(int(ends[-1]), count, generator))
            owner = np.searchsorted(ends, taken, side="right")
            first = self._joined.starts[members] - (ends - self._sizes[members])
            found.setdefault(factor, []).append(taken + first[owner])
        return [(factor, np.concatenate(batches)) for factor, batches in found.items()]

    def _batch(self, client: int, chosen: Round) -> randomness.Indices:
        own = self._own.get(client)
        if own is None:
            stream = randomness.Stream(self._holders[client].secrets.sampling, "sampling")
            own = self._own[client] = randomness.Batches(stream)
        return own(chosen)

    def summed(self, version: int, weights: Vector, parts: Sequence[CohortPart]) -> torch.Tensor:
        """The weighted sum of all members' clipped gradients, without noise.

        float64, shape (parameters,).
        """
        drawn = self.drawn(version, parts)
        norm, count = parts[0].chosen.clip_norm, sum(len(batch) for _, batch in drawn)
        each = self._pass.most * PASSES
        tasks: list[tuple[float, Any]] = []
        for factor, batch in drawn:
            for start in range(0, len(batch), each):
                seed = randomness.seed_of(self._secret, f"cohort {len(tasks)}", version)
                tasks.append((factor, (weights, batch[start : start + each], norm, count, seed)))
        total = np.zeros(self._size)
        for (factor, _), part in zip(tasks, self._computed(tasks), strict=True):
            total += factor * part
        self._pass.shared.write(weights)
        return torch.from_numpy(total)

    def _computed(self, tasks: Sequence[tuple[float, Any]]) -> Sequence[NDArray[np.float64]]:
        if self._pool is None:
            return [self._pass.summed(*task) for _, task in tasks]
        begun = [self._pool.submit(ask, "summed", *task) for _, task in tasks]
        return [one.result() for one in begun]


@dataclass(frozen=True, slots=True, eq=False)
class CohortPart:
    """The part of some members in a round's change of the model.

    They have one plan and one weight, and are at the same round of the plan.

    Args:
        clients: their places in the roster. chosen: their round.
        factor: of each one's noised sum: share · step size / divisor.
        pull: share of the weights that each one's weight decay subtracts.
    """

    clients: NDArray[np.int64]
    chosen: Round
    factor: float
    pull: float
