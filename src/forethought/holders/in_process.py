"""All clients' trainers in this process; those whose weights are the same compute together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from forethought.holders.trainer import ClientTrainer, Holder, SharedModel, compute_together
from forethought.holders.work import Result, Work

# Clients that compute together at most: their examples' gradients are held at once.
TOGETHER = 32
# Clients are dealt into so many blocks; only within one do they compute together. It depends on
# nothing but the number of clients, and so do the bits.
BLOCKS = 32


def block_of(client: int, clients: int) -> int:
    """The block of a client: the same wherever it is computed."""
    return client // -(-clients // BLOCKS)


def groups_of(works: Sequence[Work], clients: int) -> list[list[Work]]:
    """Works that are computed together: of one block, on the same weights."""
    groups: list[list[Work]] = []
    open_at: dict[tuple[int, int], int] = {}
    for work in works:
        key = (block_of(work.client, clients), work.base)
        place = open_at.get(key)
        if place is not None:
            group = groups[place]
            if len(group) < TOGETHER and _same(group[0], work):
                group.append(work)
                continue
        open_at[key] = len(groups)
        groups.append([work])
    return groups


def _same(one: Work, other: Work) -> bool:
    return one.weights is other.weights or np.array_equal(one.weights, other.weights)


class InProcess:
    """See :class:`forethought.holders.work.Trainers`.

    Args:
        shared: the model of all clients.
        holders: what each client brings, by its place in the roster.
        local_rounds, gradients: as was agreed.
        states: of clients that go on where earlier trainers were.
        clients: how many there are in all; default: as many as holders.
    """

    def __init__(
        self,
        shared: SharedModel,
        holders: Sequence[Holder] | Mapping[int, Holder],
        local_rounds: int = 1,
        *,
        gradients: bool = False,
        states: Mapping[int, bytes] | None = None,
        clients: int | None = None,
    ) -> None:
        self._shared, self._holders = shared, holders
        self._local, self._gradients = local_rounds, gradients
        self._states = dict(states or {})
        self._clients = len(holders) if clients is None else clients
        self._works: dict[int, Work] = {}
        self._results: dict[int, Result] = {}
        self._made: dict[int, ClientTrainer] = {}

    def begin(self, work: Work) -> None:
        """Remember the work."""
        self._works[work.client] = work

    def result(self, client: int) -> Result:
        """Do all work that is there, if this is not done yet."""
        if client not in self._results:
            works, self._works = list(self._works.values()), {}
            for group in groups_of(works, self._clients):
                self.compute(group)
        return self._results.pop(client)

    def done(self) -> dict[int, Result]:
        """What was computed and not asked for yet."""
        return self._results

    def compute(self, group: Sequence[Work]) -> dict[int, Result]:
        """Compute a group's works together."""
        trainers = [self._trainer(work.client) for work in group]
        found = compute_together(trainers, [w.round for w in group], group[0].weights)
        own = {work.client: one for work, one in zip(group, found, strict=True)}
        self._results |= own
        return own

    def _trainer(self, client: int) -> ClientTrainer:
        trainer = self._made.get(client)
        if trainer is None:
            trainer = self._made[client] = ClientTrainer(
                self._shared,
                self._holders[client],
                self._local,
                gradients=self._gradients,
                state=self._states.pop(client, b""),
            )
        return trainer
