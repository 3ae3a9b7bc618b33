"""Inner optimizers: torch.optim's own, fresh for every group, stepping a displacement.

The optimizer holds w − w₀, which starts at zero, so that one plain step of size 1 is minus the
gradient to the last bit. Weight decay, which is about w, is added here as torch.optim defines it.
The same object steps stacked displacements of many groups: all seven rules are elementwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forethought.values.contributions import INNER, Local


class Displacement:
    """The displacement of the weights by an inner optimizer.

    Args:
        local: the algorithm. start: the weights before the first step, in any shapes.

    Raises:
        ValueError: options that torch.optim refuses together.

    Attributes:
        moved: w − w₀, in the shapes of ``start``.
    """

    def __init__(self, local: Local, start: Sequence[Tensor]) -> None:
        kind = INNER[local.optimizer]
        options: dict[str, Any] = {**kind.preset, **dict(local.options)}
        self._decay = float(options.pop("weight_decay", 0.0))
        self._decoupled = kind.decoupled
        if self._decoupled:
            options["weight_decay"] = 0.0
        self._start = list(start)
        self.moved = [torch.zeros_like(value) for value in start]
        rate = self._rate = local.learning_rate
        try:
            self._optimizer = getattr(torch.optim, kind.home)(self.moved, lr=rate, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"inner optimizer {local.optimizer!r}: {error}") from error

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Step, and write the new weights into ``weights``.

        Args:
            gradients: at ``weights``.
        """
        for moved, gradient, weight in zip(self.moved, gradients, weights, strict=True):
            slope = gradient
            if self._decay and self._decoupled:
                moved.add_(weight, alpha=-float(self._rate or 0.0) * self._decay)
            elif self._decay:
                slope = slope.add(weight, alpha=self._decay)
            moved.grad = slope
        self._optimizer.step()
        for moved, start, weight in zip(self.moved, self._start, weights, strict=True):
            moved.grad = None
            torch.add(start, moved, out=weight)
