"""Clients' trainers in several processes: the same bits as in one.

A client's updates are computed by one process, in order, on one thread; which process that is makes
no difference to them.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

import torch

from forethought.exchange.messages import Vector
from forethought.federated.federation import FederationError
from forethought.federated.in_process import InProcess
from forethought.federated.trainer import Holder, SharedModel
from forethought.federated.work import Result, Work

_own: InProcess | None = None


class Workers:
    """See :class:`forethought.federated.work.Trainers`. A context: it ends its processes.

    Args:
        count: of processes.
        shared: the model of all clients. holders: what each client brings.
        local_rounds, gradients, states: see :class:`~forethought.federated.in_process.InProcess`.

    Raises:
        FederationError: a model or a loss that cannot be sent to another process.
    """

    def __init__(
        self,
        count: int,
        shared: SharedModel,
        holders: Sequence[Holder],
        local_rounds: int = 1,
        *,
        gradients: bool = False,
        states: Mapping[int, bytes] | None = None,
    ) -> None:
        self._pools: list[ProcessPoolExecutor] = []
        self._futures: dict[int, Future[Result]] = {}
        context = multiprocessing.get_context("spawn")
        for rank in range(count):
            own = {client: one for client, one in enumerate(holders) if client % count == rank}
            known = {client: state for client, state in (states or {}).items() if client in own}
            try:
                packed = pickle.dumps((shared.model, own, local_rounds, gradients, known))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise FederationError(
                    f"model, loss or records cannot be sent to a worker process ({error}): define "
                    "them at the top level of a module, or use workers=0"
                ) from None
            self._pools.append(
                ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(packed,))
            )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def begin(self, work: Work) -> None:
        """Hand the work to the client's process."""
        pool = self._pools[work.client % len(self._pools)]
        self._futures[work.client] = pool.submit(
            _compute, work.client, work.round, work.base, work.weights
        )

    def result(self, client: int) -> Result:
        """Wait for what came of it."""
        return self._futures.pop(client).result()


def _begin(packed: bytes) -> None:
    global _own
    torch.set_num_threads(1)
    model, holders, local_rounds, gradients, states = pickle.loads(packed)
    _own = InProcess(SharedModel(model), holders, local_rounds, gradients=gradients, states=states)


def _compute(client: int, round: int, base: int, weights: Vector) -> Result:
    if _own is None:
        raise RuntimeError("this worker process was not begun")
    _own.begin(Work(client, round, base, weights))
    return _own.result(client)
