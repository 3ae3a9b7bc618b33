"""Yogi (Zaheer, Reddi, Sachan, Kale and Kumar 2018, Algorithm 2), which torch.optim lacks.

As an outer optimizer of local updates it is FedYogi (Reddi et al. 2021, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Yogi(torch.optim.Optimizer):
    """Adam whose second moment moves by its difference's sign: it never jumps.

    Args:
        params: as for torch's optimizers. lr: step size.
        betas: of the two moments. eps: added to the root of the second moment (τ of FedYogi).
        initial: what the second moment starts from.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
        initial: float = 1e-6,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("initial", initial)):
            if not value >= 0:
                raise ValueError(f"{name} of yogi must be at least 0, not {value!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas of yogi must be two numbers in [0, 1), not {betas!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "initial": initial})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step along the parameters' gradients; a closure is not called."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.full_like(parameter, group["initial"])
                square = parameter.grad.square()
                state["mean"].lerp_(parameter.grad, 1 - first)
                towards = torch.sign(state["square"] - square)
                state["square"].addcmul_(towards, square, value=second - 1)
                root = state["square"].sqrt().add_(group["eps"])
                parameter.addcdiv_(state["mean"], root, value=-group["lr"])
