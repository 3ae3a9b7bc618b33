"""All clients' trainers in this process, one update after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forethought.federated.trainer import ClientTrainer, Holder, SharedModel
from forethought.federated.work import Result, Work


class InProcess:
    """See :class:`forethought.federated.work.Trainers`.

    Args:
        shared: the model of all clients.
        holders: what each client brings.
        local_rounds, gradients: as the federation says.
    """

    def __init__(
        self,
        shared: SharedModel,
        holders: Sequence[Holder],
        local_rounds: int = 1,
        *,
        gradients: bool = False,
    ) -> None:
        self._works: dict[int, Work] = {}
        self._made: dict[int, ClientTrainer] = {}
        self._make: Callable[[int], ClientTrainer] = lambda client: ClientTrainer(
            shared, holders[client], local_rounds, gradients=gradients
        )

    def begin(self, work: Work) -> None:
        self._works[work.client] = work

    def result(self, client: int) -> Result:
        work = self._works.pop(client)
        if client not in self._made:
            self._made[client] = self._make(client)
        return self._made[client].compute(work.round, work.weights)
