"""Groups side by side: one vmap over stacked weights makes an inner step of all of them.

Only for networks of torch's own layers that keep rows apart and for the library's own losses: what
else runs is computed one group after another. A group's numbers do not depend on the others': each
step has ``step`` places whatever a group's size, empty places hold zeros and count nothing, and a
group that has taken its steps moves no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from forethought.gradients.batches import Loss
from forethought.gradients.vmap_mode import seeded
from forethought.local.alone import steps
from forethought.local.known import separable
from forethought.local.optimizers import Displacement
from forethought.turns import turns
from forethought.values.contributions import Local

# On a CPU one call for all groups pays where the work of a step is small beside calling torch.
SHORT_STEP, SHORT_CONVOLVED_STEP, FEWEST = 16, 4, 4
# Bytes of stacked weights, gradients and optimizer state held at once.
MOST_BYTES = 2**28
_COPIES = 5


def side_by_side(model: nn.Module, loss: Loss, local: Local, count: int) -> bool:
    """True if groups run side by side; nothing in here depends on the records.

    Args:
        count: how many groups the round has.
    """
    if local.function is not None or local.step is None or count < FEWEST:
        return False
    if not separable(model, loss):
        return False
    if next(model.parameters()).device.type != "cpu":
        return True
    convolved = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in model.modules())
    return local.step <= (SHORT_CONVOLVED_STEP if convolved else SHORT_STEP)


class SideBySide:
    """Computes updates of several groups together.

    Args:
        model: of :data:`LAYERS`, at the round's weights; is not written to.
        loss: one value a record. local: with a ``step``.
        held: records whose activations are held at once. None: as many as :data:`MOST_BYTES` of
            weights allow.
    """

    def __init__(self, model: nn.Module, loss: Loss, local: Local, held: int | None = None) -> None:
        self._model, self._loss, self._local = model, loss, local
        self._trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        self._rest = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        size = sum(p.numel() * p.element_size() for p in self._trained.values())
        most = max(1, MOST_BYTES // (_COPIES * max(1, size)))
        step = local.step or 1
        self.lanes = most if held is None else max(1, min(most, held // step))
        self._slope = vmap(grad(self._mean), in_dims=(0, 0, 0, 0), randomness="different")

    def _mean(self, weights: dict[str, Tensor], rows: Tensor, wanted: Tensor, here: Tensor) -> Any:
        outputs = functional_call(self._model, {**weights, **self._rest}, (rows,))
        values = self._loss(outputs, wanted)
        # Chosen, not multiplied: what stands in an empty place must not count, whatever it is.
        return torch.where(here, values, 0.0).sum() / here.sum().clamp(min=1)

    @turns
    def updates(
        self, inputs: Tensor, targets: Tensor, groups: Sequence[Tensor], seeds: Sequence[int]
    ) -> dict[str, Tensor]:
        """Name → weight changes, shape (groups, *parameter shape).

        Args:
            inputs, targets: all records, in front. groups: which of them each group has, of
                which there are at most :attr:`lanes`. seeds: one a group.
        """
        lanes, places = len(groups), self._local.step or 1
        taken = [
            [at if order is None else at[order] for order in steps(len(at), self._local, seed)]
            if len(at)
            else []
            for at, seed in zip(groups, seeds, strict=True)
        ]
        seeded(seeds[0])  # of dropout: every lane draws in every step
        start = [value.expand(lanes, *value.shape) for value in self._trained.values()]
        weights = [value.clone() for value in start]
        taking = Displacement(self._local, start)
        kept = [moved.clone() for moved in taking.moved]
        for turn in range(max(map(len, taken))):
            at = torch.full((lanes, places), -1, dtype=torch.int64)
            for lane, own in enumerate(taken):
                if turn < len(own):
                    at[lane, : len(own[turn])] = own[turn]
            here = (at >= 0).to(inputs.device)
            rows, wanted = (_placed(leaf, at, here) for leaf in (inputs, targets))
            named = dict(zip(self._trained, weights, strict=True))
            slopes = self._slope(named, rows, wanted, here)
            taking.step([slopes[name] for name in self._trained], weights)
            active = here.any(1)
            for place, moved in enumerate(taking.moved):
                chosen = active.view(-1, *(1,) * (moved.dim() - 1))
                kept[place] = torch.where(chosen, moved, kept[place])
        return dict(zip(self._trained, kept, strict=True))


def _placed(leaf: Tensor, at: Tensor, here: Tensor) -> Tensor:
    picked = leaf[at.clamp(min=0).to(leaf.device)]
    shape = (*here.shape, *(1,) * (picked.dim() - 2))
    return torch.where(here.view(shape), picked, torch.zeros((), dtype=leaf.dtype))
