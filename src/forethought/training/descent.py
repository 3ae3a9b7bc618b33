"""From noised sums to optimizer steps: what is not noised cannot reach a model here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

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

    def step(
        self,
        noised: NoisedSum | Sequence[NoisedSum],
        step_size: float,
        divisor: float | None = None,
    ) -> None:
        """Step along a noised mean, or along the sum of several holders' noised sums.

        Args:
            noised: what was released.
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
        mean = total / whole
        kinds = set(sums[0].layout.dtypes)
        if len(kinds) == 1:
            mean = mean.to(kinds.pop())
        for name, part in sums[0].layout.views(mean).items():
            parameter = self.parameters[name]
            parameter.grad = part.to(parameter.dtype)
        for group in self.optimizer.param_groups:
            group["lr"] = step_size
        self.optimizer.step()

    def clear(self) -> None:
        """Take the gradients off the parameters: the model is as it was, but for its weights."""
        for parameter in self.parameters.values():
            parameter.grad = None
