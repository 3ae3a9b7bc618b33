"""Does the loss mean the same for one example as for a batch? A check of meaning, not of privacy.

In its lane a loss sees a batch of one. One that needs the batch (in-batch negatives, hard-example
mining, dividing by the batch) would quietly be another loss there, so it is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from forethought.gradients.boundary import is_lane, rows
from forethought.gradients.control import Refused
from forethought.gradients.trees import Loss, mapped


class _UntoldError(Exception):
    """Outputs whose batch cannot be put together."""


def _joined(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not is_lane(leaf):
        return leaf
    whole = rows(leaf).detach()
    if whole.dim() == 1:
        return whole
    if whole.shape[1] != 1:
        raise _UntoldError
    return whole.flatten(0, 1)


def check_loss(loss: Loss, outputs: Any, targets: Any, values: Tensor, size: int) -> None:
    """Compare the lanes' losses with the loss of all of them as one batch.

    Args:
        outputs: of the lanes. targets: (lanes, 1, …). values: the lanes' losses, shape (lanes,).

    Raises:
        Refused: they differ.
    """
    try:
        joined = tree_map(_joined, outputs)
    except _UntoldError:
        return
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            together = loss(joined, mapped(targets, lambda t: t.flatten(0, 1)))
    except Exception:  # a loss made for one example
        return
    finally:
        moved = not torch.equal(torch.get_rng_state(), before)
        torch.set_rng_state(before)
    if not isinstance(together, Tensor) or moved:
        return
    if tuple(together.shape) != (size,):
        raise Refused(
            f"loss(outputs, targets) must return one value per example, shape ({size},), not "
            f"{tuple(together.shape)}; with torch losses use reduction='none' and take the mean "
            "over each example's own values"
        )
    one, other = values.detach().double(), together.detach().double()
    finite = torch.isfinite(one) & torch.isfinite(other)
    scale = torch.maximum(one.abs(), other.abs())[finite]
    if scale.numel() and bool(
        ((one - other).abs()[finite] > 0.05 * scale + 1e-3 * scale.max()).any()
    ):
        raise Refused(
            "the loss gives an example another value when it sees the whole batch (in-batch "
            "negatives, mining, dividing by the batch size): give each example a loss of its own, "
            "or clip whole batches (groups=)"
        )
