"""All clients' trainers in this process, one update after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forethought.federated.trainer import ClientTrainer, Holder, SharedModel
from forethought.federated.work import Result, Work


class InProcess:
    """See :class:`forethought.federated.work.Trainers`.

    Args:
        shared: the model of all clients.
        holders: what each client brings, by its place in the roster.
        local_rounds, gradients: as the federation says.
        states: of clients that go on where earlier trainers were.
    """

    def __init__(
        self,
        shared: SharedModel,
        holders: Sequence[Holder] | Mapping[int, Holder],
        local_rounds: int = 1,
        *,
        gradients: bool = False,
        states: Mapping[int, bytes] | None = None,
    ) -> None:
        self._shared, self._holders = shared, holders
        self._local, self._gradients = local_rounds, gradients
        self._states = dict(states or {})
        self._works: dict[int, Work] = {}
        self._made: dict[int, ClientTrainer] = {}

    def begin(self, work: Work) -> None:
        """Remember the work."""
        self._works[work.client] = work

    def result(self, client: int) -> Result:
        """Do it now."""
        work = self._works.pop(client)
        trainer = self._made.get(client)
        if trainer is None:
            trainer = self._made[client] = ClientTrainer(
                self._shared,
                self._holders[client],
                self._local,
                gradients=self._gradients,
                state=self._states.pop(client, b""),
            )
        return trainer.compute(work.round, work.weights)
