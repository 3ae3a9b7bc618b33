"""All clients' trainers, in this process or in several, with bit-identical results."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from forethought.holders.cluster import Actors, cluster
from forethought.holders.simulator import HolderError, Result, Work
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel, compute_together

# Trainers in this process; clients with the same weights compute together.
PROCESSES = "processes"
# Most clients that compute together: the gradients of all their examples are in memory at once.
TOGETHER = 32
# Number of blocks of clients; only clients of one block compute together. The blocks depend on the
# number of clients only, so the bits do not depend on the number of processes.
BLOCKS = 32


def block_of(client: int, clients: int) -> int:
    """The block of a client; it does not depend on the number of processes."""
    return client // -(-clients // BLOCKS)


def groups_of(works: Sequence[Work], clients: int) -> list[list[Work]]:
    """Group the works that are computed together: those of one block and on the same weights."""
    groups: list[list[Work]] = []
    open_at: dict[tuple[int, int], list[Work]] = {}
    for work in works:
        key = (block_of(work.client, clients), work.base)
        # The parts of one work are on several models, so it is computed alone.
        group = open_at.get(key, []) if work.parts == 1 else []
        held = group[0].weights if group else None
        same = held is work.weights or (held is not None and np.array_equal(held, work.weights))
        if not same or len(group) >= TOGETHER:
            group = []
        if not group:
            groups.append(group)
        if work.parts == 1:
            open_at[key] = group
        group.append(work)
    return groups


class InProcess:
    """Trainers in this process; see :class:`forethought.holders.simulator.Trainers`.

    Args:
        shared: the model of all clients.
        holders: of the clients, by place in the roster.
        states: of earlier trainers, for clients that continue from them.
        clients: number of all clients; default: the number of holders.
    """

    def __init__(
        self,
        shared: SharedModel,
        holders: Sequence[Holder] | Mapping[int, Holder],
        *,
        states: Mapping[int, bytes] | None = None,
        clients: int | None = None,
    ) -> None:
        self._shared, self._holders = shared, holders
        self._states = dict(states or {})
        self._clients = len(holders) if clients is None else clients
        self._works: list[Work] = []
        self._results: dict[int, Result] = {}
        self._made: dict[int, ClientTrainer] = {}

    def begin(self, work: Work) -> None:
        """Remember the work."""
        self._works.append(work)

    def result(self, client: int) -> Result:
        """The outcome of a client's work; computes all work that was begun, if not done yet."""
        if client not in self._results:
            self._results |= self.together()
        return self._results.pop(client)

    def together(self) -> dict[int, Result]:
        """Compute all work that was begun; the outcomes by client."""
        works, self._works = self._works, []
        begun = [self._submit(group) for group in groups_of(works, self._clients)]
        return {client: one for found in begun for client, one in found.result().items()}

    def _submit(self, group: Sequence[Work]) -> Future[dict[int, Result]]:
        found: Future[dict[int, Result]] = Future()
        found.set_result(self.compute(group))
        return found

    def compute(self, group: Sequence[Work]) -> dict[int, Result]:
        """Compute a group's works together; returns their outcomes by client."""
        if group[0].parts > 1:
            done = self._trainer(group[0].client).answered(group[0])
            return {} if done is None else {group[0].client: done}
        trainers = [self._trainer(work.client) for work in group]
        places, samplings = zip(*((w.round, w.sampling) for w in group), strict=True)
        found = compute_together(trainers, places, group[0].weights, samplings)
        return {work.client: one for work, one in zip(group, found, strict=True)}

    def _trainer(self, client: int) -> ClientTrainer:
        if client not in self._made:
            known = self._states.pop(client, b"")
            own = self._holders[client]
            self._made[client] = ClientTrainer(self._shared, own, state=known)
        return self._made[client]


# Trainers in several processes, with the same bits as in one: one process computes all updates of
# a client, in order and on one thread, and the choice of the process does not change them.
class Workers(InProcess):
    """Trainers in several processes; see :class:`forethought.holders.simulator.Trainers`.

    As a context manager it ends its processes.

    Args:
        count: number of processes.
        shared: the model of all clients. holders: of all clients.
        states: see :class:`~forethought.holders.workers.InProcess`. engine: see :func:`processes`.

    Raises:
        HolderError: see :func:`processes`.
    """

    def __init__(
        self,
        count: int,
        shared: SharedModel,
        holders: Sequence[Holder],
        states: Mapping[int, bytes] | None = None,
        engine: str = PROCESSES,
    ) -> None:
        super().__init__(shared, holders)
        self._futures: dict[int, Future[dict[int, Result]]] = {}
        self._pools: list[Pool] = []
        self._held = contextlib.ExitStack()
        if engine != PROCESSES:
            self._held.enter_context(cluster(address_of(engine), count))
        for rank in range(count):
            own = {
                client: one
                for client, one in enumerate(holders)
                if block_of(client, len(holders)) % count == rank
            }
            known = {client: state for client, state in (states or {}).items() if client in own}
            make = partial(InProcess, shared, own, states=known, clients=len(holders))
            self._pools.append(processes(1, make, engine))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        self._held.close()

    def result(self, client: int) -> Result:
        """The outcome of a client's work; all work that was begun goes to the processes now."""
        if any(work.client == client for work in self._works):
            works, self._works = self._works, []
            for group in groups_of(works, self._clients):
                self._futures |= dict.fromkeys((w.client for w in group), self._submit(group))
        return self._futures.pop(client).result()[client]

    def _submit(self, group: Sequence[Work]) -> Future[dict[int, Result]]:
        block = block_of(group[0].client, self._clients)
        return self._pools[block % len(self._pools)].submit(ask, "compute", group)


# Processes that compute.
Pool: TypeAlias = ProcessPoolExecutor | Actors


def address_of(engine: str) -> str | None:
    """The address of a cluster; None: a new cluster, or the engine "processes".

    Raises:
        HolderError: an unknown engine.
    """
    name, _, address = engine.partition(":")
    if engine != PROCESSES and name != "ray":
        raise HolderError(f"engine {engine!r}: say 'processes', 'ray' or 'ray:ADDRESS'")
    return address or None


def processes(count: int, make: Callable[[], object], engine: str = PROCESSES) -> Pool:
    """Start processes that each hold what ``make``, which is pickled, makes there; see :func:`ask`.

    Args:
        engine: "processes": on this machine; "ray": of a new Ray cluster on it; "ray:ADDRESS": of
            the cluster at this address ("ray:auto": the one that runs here).

    Raises:
        HolderError: a model, a loss or records that cannot be sent to another process; an unknown
            engine; or no such cluster.
    """
    address = address_of(engine)
    try:
        packed = pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise HolderError(
            f"model, loss or records cannot be sent to a worker process ({error}): define "
            "them at the top level of a module, or use workers=0"
        ) from None
    if engine != PROCESSES:
        return Actors(address, count, _begin, packed)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(packed,))


_own: Any = None


def _begin(packed: bytes) -> None:
    global _own
    torch.set_num_threads(1)
    _own = pickle.loads(packed)()


def ask(method: str, *values: Any) -> Any:
    """Call a method of what this process holds."""
    return getattr(_own, method)(*values)
