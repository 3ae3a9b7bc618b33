"""From noised sums to optimizer steps: what is not noised cannot reach a model here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from forethought.rounds.flat import Layout
from forethought.rounds.private_sum import NoisedSum


class Descent:
    """Steps an optimizer along noised means; memory does not grow with the number of rounds.

    Args:
        parameters: name → trainable parameter, those that the noised sums are about.
        optimizer: over the same parameters.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        self.parameters, self.optimizer = dict(parameters), optimizer
        self._kept: tuple[Layout, torch.Tensor, dict[str, torch.Tensor]] | None = None

    def step(
        self,
        noised: NoisedSum | Sequence[NoisedSum],
        step_size: float | None,
        divisor: float | None = None,
    ) -> None:
        """Step along a noised mean, or along the sum of several holders' noised sums.

        Args:
            noised: what was released.
            step_size: None leaves the optimizer its own.
            divisor: what the sum is divided by; default: the divisors of the rounds together.

        Raises:
            TypeError: anything but noised sums. ValueError: sums about other parameters.
        """
        sums = [noised] if isinstance(noised, NoisedSum) else list(noised)
        for one in sums:
            if not isinstance(one, NoisedSum):
                raise TypeError(
                    f"an optimizer steps along a NoisedSum, not {type(one).__name__}: release it "
                    "from a PrivateSum"
                )
            if one.layout.names != tuple(self.parameters):
                raise ValueError("a noised sum about other parameters than the optimizer's")
        total = sums[0].vector if len(sums) == 1 else torch.stack([s.vector for s in sums]).sum(0)
        whole = sum(one.round.divisor for one in sums) if divisor is None else divisor
        for name, part in self._mean(total / whole, sums[0].layout).items():
            self.parameters[name].grad = part
        if step_size is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = step_size
        self.optimizer.step()

    def _mean(self, mean: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
        # Where all parameters have one precision, one vector is converted and kept.
        if len(set(layout.dtypes)) > 1:
            views = layout.views(mean)
            return {name: view.to(self.parameters[name].dtype) for name, view in views.items()}
        if self._kept is None or self._kept[0] is not layout:
            flat = layout.zeros(layout.dtypes[0])
            self._kept = (layout, flat, layout.views(flat))
        self._kept[1].copy_(mean)
        return self._kept[2]

    def clear(self) -> None:
        """Take the gradients off the parameters: the model is as it was, but for its weights."""
        for parameter in self.parameters.values():
            parameter.grad = None
