"""Does the loss mean the same for one example as for a batch? A check of meaning, not of privacy.

In its lane a loss sees a batch of one. One that needs the batch (in-batch negatives, hard-example
mining, dividing by the batch) would quietly be another loss there, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from forethought.gradients.boundary import is_lane, rows
from forethought.gradients.control import Refused
from forethought.gradients.trees import Loss


class _UntoldError(Exception):
    """Outputs whose batch cannot be put together."""


def of_lanes(outputs: Any) -> Any:
    """What a model answered in lanes, as one batch.

    Raises:
        _UntoldError: nobody knows how.
    """

    def joined(leaf: Any) -> Any:
        return _batch(rows(leaf).detach()) if isinstance(leaf, Tensor) and is_lane(leaf) else leaf

    return tree_map(joined, outputs)


def of_one(outputs: Any) -> Any:
    """A copy of what a model answered to one example by itself, for :func:`of_all`; or None."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        if leaf is None or isinstance(leaf, bool | int | float | str):
            return leaf
        raise _UntoldError  # it may hold what it was computed from

    try:
        return tree_map(copied, outputs)
    except _UntoldError:
        return None


def of_all(outputs: Sequence[Any]) -> Any:
    """What a model answered to one example after the other, as one batch.

    Raises:
        _UntoldError: nobody knows how.
    """

    def joined(*leaves: Any) -> Any:
        if not isinstance(leaves[0], Tensor):
            return leaves[0]
        return _batch(torch.stack(leaves))

    try:
        return tree_map(joined, *outputs)
    except (TypeError, ValueError, RuntimeError):  # of several shapes or forms
        raise _UntoldError from None


def _batch(whole: Tensor) -> Tensor:
    if whole.dim() == 1:
        return whole
    if whole.shape[1] != 1:
        raise _UntoldError
    return whole.flatten(0, 1)


def check_loss(loss: Loss, together: Callable[[], Any], targets: Any, values: Tensor) -> None:
    """Compare the losses of one example at a time with the loss of all of them as one batch.

    Args:
        together: the model's outputs as one batch, from :func:`of_lanes` or :func:`of_all`.
        targets: of all. values: the losses, shape (examples,).

    Raises:
        Refused: they differ.
    """
    size = values.shape[0]
    try:
        outputs = together()
    except _UntoldError:
        return
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            found = loss(outputs, targets)
    except Exception:  # a loss made for one example
        return
    finally:
        moved = not torch.equal(torch.get_rng_state(), before)
        torch.set_rng_state(before)
    if not isinstance(found, Tensor) or moved:
        return
    if tuple(found.shape) != (size,):
        raise Refused(
            f"loss(outputs, targets) must return one value per example, shape ({size},), not "
            f"{tuple(found.shape)}; with torch losses use reduction='none' and take the mean "
            "over each example's own values"
        )
    one, other = values.detach().double(), found.detach().double()
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
