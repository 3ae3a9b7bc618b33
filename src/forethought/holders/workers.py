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

from forethought.holders.error import HolderError
from forethought.holders.in_process import InProcess, block_of, groups_of
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.work import Result, Work

_own: InProcess | None = None


class Workers:
    """See :class:`forethought.holders.work.Trainers`. A context: it ends its processes.

    Args:
        count: of processes.
        shared: the model of all clients. holders: what each client brings.
        local_rounds, gradients, states: see :class:`~forethought.holders.in_process.InProcess`.

    Raises:
        HolderError: a model or a loss that cannot be sent to another process.
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
        self._futures: dict[int, Future[dict[int, Result]]] = {}
        self._works: dict[int, Work] = {}
        self._results: dict[int, Result] = {}
        self._clients = len(holders)
        context = multiprocessing.get_context("spawn")
        for rank in range(count):
            own = {
                client: one
                for client, one in enumerate(holders)
                if block_of(client, len(holders)) % count == rank
            }
            known = {client: state for client, state in (states or {}).items() if client in own}
            try:
                packed = pickle.dumps(
                    (shared.model, own, local_rounds, gradients, known, len(holders))
                )
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise HolderError(
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
        """Remember the work."""
        self._works[work.client] = work

    def result(self, client: int) -> Result:
        """Hand all work that is there to the processes; wait for this."""
        if client not in self._futures and client not in self._results:
            works, self._works = list(self._works.values()), {}
            for group in groups_of(works, self._clients):
                block = block_of(group[0].client, self._clients)
                future = self._pools[block % len(self._pools)].submit(_compute, group)
                for work in group:
                    self._futures[work.client] = future
        if client in self._futures:
            # All of a group come at once.
            for one, result in self._futures.pop(client).result().items():
                self._results[one] = result
                self._futures.pop(one, None)
        return self._results.pop(client)

    def done(self) -> dict[int, Result]:
        """What was computed and not asked for yet; waits for all that was handed out."""
        for future in {id(f): f for f in self._futures.values()}.values():
            self._results |= future.result()
        self._futures.clear()
        return self._results


def _begin(packed: bytes) -> None:
    global _own
    torch.set_num_threads(1)
    model, holders, local_rounds, gradients, states, clients = pickle.loads(packed)
    _own = InProcess(
        SharedModel(model),
        holders,
        local_rounds,
        gradients=gradients,
        states=states,
        clients=clients,
    )


def _compute(group: list[Work]) -> dict[int, Result]:
    if _own is None:
        raise RuntimeError("this worker process was not begun")
    found = _own.compute(group)
    _own.done().clear()
    return found
