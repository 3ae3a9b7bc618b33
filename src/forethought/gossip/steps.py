"""A worker's steps along its own noised means: post-processing, torch-free.

``"sgd"`` steps along the mean, or along its momentum. Gradient tracking (Nedić, Olshevsky and
Shi 2017; DSGT) exchanges y besides w: y += u_new − u_old with every own update u, and w steps along
y, whose average over the workers is the average of all workers' newest updates.
"""

from __future__ import annotations

import numpy as np

from forethought.exchange.messages import Vector
from forethought.gossip.gossip import Gossip
from forethought.values.plan import step_sizes


class OwnSteps:
    """The steps of one worker along its own noised means.

    Args:
        gossip: has momentum, tracking and step weights. worker: its plan has the step sizes.
    """

    def __init__(self, gossip: Gossip, worker: int) -> None:
        plan = gossip.plan(worker)
        # Workers that wait for each other take up no headroom: a schedule ends with what they make.
        made = plan.privacy.mechanism.first(gossip.updates(worker))
        plan = plan.remade(mechanism=made)
        self._sizes, self._rounds = step_sizes(plan), plan.rounds
        self._weight = gossip.weight(worker)
        self._momentum = np.float32(gossip.momentum)
        self._tracking, self._parameters = gossip.tracking, gossip.parameters
        self._velocity: Vector | None = None
        self._last: Vector | None = None

    def step(self, held: Vector, round: int, mean: Vector, progress: float | None = None) -> Vector:
        """The worker's vector after an update, shape (coordinates,); ``held`` is not modified.

        Args:
            held: float32, shape (coordinates,). round: of the update.
            mean: the noised mean, float32, shape (parameters,).
            progress: fraction of all workers' updates that were made, in [0, 1]; it selects the
                step size. None: ``round`` selects it.
        """
        place = round if progress is None else int(progress * self._rounds)
        size = np.float32(self._sizes(place))
        if self._weight != 1:
            mean = np.multiply(mean, np.float32(self._weight))
        if not self._tracking:
            direction = mean
            if self._momentum:
                if self._velocity is not None:
                    direction = self._momentum * self._velocity + mean
                self._velocity = direction
            step: Vector = direction * size
            np.subtract(held, step, out=step)
            return step
        after = held.copy()
        weights, tracked = after[: self._parameters], after[self._parameters :]
        tracked += mean if self._last is None else mean - self._last
        self._last = mean
        weights -= size * tracked
        return after
