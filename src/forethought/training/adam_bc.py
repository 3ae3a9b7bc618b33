"""Adam without the noise in its second moment: DP-AdamBC (Tang, Shpilevskiy and Lécuyer 2023).

Noise of variance φ on a gradient adds φ to the expected second moment. Where noise outweighs the
gradient, Adam then divides every coordinate by the same number, and is gradient descent with
momentum. The variance is public, so it can be subtracted: post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

# What is divided by is never below its square root, as Adam's eps.
_LEAST = 1e-16


class AdamBC(torch.optim.Optimizer):
    """Steps along m̂/√max(v̂ − φ̂, floor), with φ̂ the noise's own share of v̂ (their Algorithm 1).

    φ̂ is averaged over rounds with the weights of v̂, so E[v̂ − φ̂] is the second moment of the
    gradients without noise whatever schedule the noise has.

    Args:
        params: as for torch's optimizers. lr: step size. betas: of the two moments.
        floor: γ′ of the paper, in squared units of the gradient. None: a standard deviation of
            v̂ where a coordinate has nothing but independent noise, √2 φ̂ in the first round and
            φ̂√(2(1 − β₂)/(1 + β₂)) later on.
    """

    noise_variance: float | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | None = None,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr of adam-bc must be at least 0, not {lr!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas of adam-bc must be two numbers in [0, 1), not {betas!r}")
        if floor is not None and not 0 < floor < math.inf:
            raise ValueError(f"floor of adam-bc must be a number above 0, not {floor!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor})

    def expect_noise(self, variance: float) -> None:
        """Say what variance the noise on every coordinate of the next step's gradients has."""
        self.noise_variance = variance

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step along the parameters' gradients; a closure is not called.

        Raises:
            RuntimeError: nobody said how much noise these gradients have.
        """
        if self.noise_variance is None:
            raise RuntimeError(
                "adam-bc subtracts the noise's variance, which only private rounds know: use it in "
                "a plan or with forethought.private"
            )
        variance, self.noise_variance = self.noise_variance, None
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                    state["steps"], state["noise"], state["spread"] = 0, 0.0, 0.0
                state["steps"] += 1
                state["mean"].lerp_(parameter.grad, 1 - first)
                state["square"].lerp_(parameter.grad.square(), 1 - second)
                state["noise"] += (1 - second) * (variance - state["noise"])
                state["spread"] *= second**2
                state["spread"] += ((1 - second) * variance) ** 2
                begun, settled = (1 - beta ** state["steps"] for beta in (first, second))
                floor = group["floor"]
                if floor is None:
                    floor = math.sqrt(2 * state["spread"]) / settled
                without = (state["square"] - state["noise"]) / settled
                root = without.clamp_(min=max(floor, _LEAST)).sqrt_()
                parameter.addcdiv_(state["mean"], root, value=-group["lr"] / begun)
