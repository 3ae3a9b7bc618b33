"""A loss in lanes of its own, behind outputs that are known to be apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import boundary, foreign, refusals, trees
from forethought.gradients.control import Stopped, Unable
from forethought.gradients.derived import Places
from forethought.gradients.lanes import Lanes, Settings
from forethought.gradients.trees import Loss
from forethought.turns import turns


def _leave() -> None:
    raise Unable("values of the examples reach Python")


@turns
def loss_in_lanes(
    loss: Loss,
    outputs: Tensor,
    targets: Any,
    points: list[Tensor],
    trained: Mapping[str, nn.Parameter],
) -> tuple[Tensor | None, ...] | None:
    """Gradients at ``points`` of a loss that runs in lanes behind outputs known to be apart.

    Args:
        outputs: shape (B, …), row i from example i. points: what the outputs were computed from.

    Returns:
        None where the loss needs what only a whole pass can do (parameters, lanes that part).
    """
    boundary.check()
    size = len(outputs)
    written = [(parameter, parameter._version) for parameter in trained.values()]
    lanes: Lanes | None = None
    try:
        with boundary.entered(size) as level:
            lanes = Lanes(size, level, Places(trained), Settings(), before_answer=_leave)

            def wrap(leaf: Tensor) -> Tensor:
                return lanes.followed(boundary.lane(leaf.unsqueeze(1), 0, level))

            with foreign.answered(lanes), lanes:
                found = loss(wrap(outputs), trees.mapped(targets, wrap))
            if isinstance(found, Tensor) and found.dim() == 0:
                found = found.reshape(1)
            if lanes.stopped is not None or not boundary.is_lane(trees.losses(found, 1)):
                return None
            with boundary.outside():
                total = boundary.rows(found).sum()
        del found
        if not total.requires_grad:
            return (None,) * len(points)
        leaves = (lanes.anchor, *trained.values(), *points)
        _, *gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    except (Exception, Stopped) as error:  # the general way finds out, and says, what is wrong
        refusals.own_fault(error)
        return None
    direct, at_points = gradients[: len(trained)], gradients[len(trained) :]
    used = lanes.uses or lanes.failed is not None or any(g is not None for g in direct)
    changed = any(parameter._version != version for parameter, version in written)
    if used or changed or lanes.remaining():
        return None
    return tuple(at_points)
