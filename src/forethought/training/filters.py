"""Filters of noised means: what they make of earlier rounds, and how much noise is left.

A filter sees noised means, their public noise and its own state, so what comes out is
post-processing. Each says what variance the noise in its output has, for optimizers that subtract
it (:mod:`forethought.training.adam_bc`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from forethought.use import GradientFilter

Tensors = dict[str, torch.Tensor]


class MeanFilter(Protocol):
    """Filters the noised means of a run, in order."""

    def ahead(self, variance: float) -> float:
        """How many of the last step's lengths ahead of the weights the next gradient is taken.

        Args:
            variance: of the noise on its mean.
        """
        ...

    def filtered(self, mean: torch.Tensor, variance: float) -> tuple[torch.Tensor, float]:
        """The mean of the next round filtered, and the variance of the noise that is left in it."""
        ...

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """What a continued run needs: tensors, and JSON-ready values."""
        ...

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        ...


class LowPass:
    """A Butterworth low-pass filter, divided by its answer to ones: DOPPLER's Algorithm 1.

    m_t = −Σ a_τ m_{t−τ} + Σ b_τ g_{t−τ}, c_t the same of ones, and out comes m_t/c_t. By the
    bilinear transform of 1/(1 + s/ω) and of 1/(1 + √2 s/ω + s²/ω²), whose delay at frequency 0 is
    1/ω and √2/ω rounds.

    Args:
        delay: at frequency 0, in rounds, at least 0.5. order: 1 or 2.
    """

    def __init__(self, delay: float, order: int) -> None:
        if order == 1:
            w = 0.5 / delay
            b, a = [w / (1 + w)] * 2, [(w - 1) / (1 + w)]
        else:
            w, root = math.sqrt(0.5) / delay, math.sqrt(2)
            whole = 1 + root * w + w * w
            b = [w * w / whole, 2 * w * w / whole, w * w / whole]
            a = [2 * (w * w - 1) / whole, (1 - root * w + w * w) / whole]
        self._a, self._b, self._order = a, b, order
        self._ones = [0.0] * order, [0.0] * order  # c and ones so far, the latest first
        self._past: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []  # m and g likewise
        # Covariance of the noise in (m_{t−1}, …, g_{t−1}, …), of any one coordinate.
        self._spread = np.zeros((2 * order, 2 * order))

    def ahead(self, variance: float) -> float:
        return 0.0

    def filtered(self, mean: torch.Tensor, variance: float) -> tuple[torch.Tensor, float]:
        c, ones = self._ones
        answer = self._next(c, ones, 1.0)
        moments, means = self._past
        out = self._b[0] * mean
        for b, earlier in zip(self._b[1:], means, strict=False):
            out.add_(earlier, alpha=b)
        for a, earlier in zip(self._a, moments, strict=False):
            out.add_(earlier, alpha=-a)
        self._past = [out, *moments][: self._order], [mean.clone(), *means][: self._order]
        self._ones = [answer, *c][: self._order], [1.0, *ones][: self._order]
        return out / answer, self._noise(variance) / answer**2

    def _next(self, moments: list[float], means: list[float], value: float) -> float:
        earlier = math.fsum(b * g for b, g in zip(self._b[1:], means, strict=True))
        back = math.fsum(a * m for a, m in zip(self._a, moments, strict=True))
        return self._b[0] * value + earlier - back

    def _noise(self, variance: float) -> float:
        """Variance of the noise in m_t; moves the covariance on by a round."""
        n = self._order
        row = np.array([*(-a for a in self._a), *self._b[1:]])
        move = np.zeros((2 * n, 2 * n))
        move[0] = row
        enters = np.zeros(2 * n)
        enters[0], enters[n] = self._b[0], 1.0
        if n == 2:
            move[1, 0] = move[3, 2] = 1.0
        self._spread = move @ self._spread @ move.T + variance * np.outer(enters, enters)
        return float(self._spread[0, 0])

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        tensors = {
            f"{name}{at}": value
            for name, past in zip(("moment", "mean"), self._past, strict=True)
            for at, value in enumerate(past)
        }
        c, ones = self._ones
        return tensors, {"answers": c, "ones": ones, "spread": self._spread.tolist()}

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        def past(name: str) -> list[torch.Tensor]:
            return [tensors[f"{name}{at}"] for at in range(2) if f"{name}{at}" in tensors]

        self._past = past("moment"), past("mean")
        self._ones = list(values["answers"]), list(values["ones"])
        self._spread = np.array(values["spread"])


class Kalman:
    """An estimate that moves toward each round's mean by the gain of a Kalman filter: DiSK.

    The gradient is a random walk seen through noise of known variance φ_t: with P the variance of
    the estimate before a round, κ = P/(P + φ_t), then P ← (1 − κ)P + q. The walk's variance q is
    that at which κ settles at 1/(1 + delay) under the noise of the first round that has any. What
    the gradient's change owes to the weights' is not left to chance: the gradient is taken at
    x_t + γ(x_t − x_{t−1}) with γ = (1 − κ)/κ, which is to first order the prediction with the
    Hessian and its correction (Zhang et al. 2025, Section 3).

    Args:
        delay: in rounds, where the gain has settled.
    """

    def __init__(self, delay: float) -> None:
        self._settled = 1 / (1 + delay)
        self._before = 0.0  # P
        self._walk = 0.0  # q; 0: there was no noise yet, and nothing to weigh it against
        self._estimate: torch.Tensor | None = None
        self._left = 0.0  # variance of the noise in the estimate

    def _gain(self, variance: float) -> float:
        return self._before / (self._before + variance) if self._walk else 1.0

    def ahead(self, variance: float) -> float:
        gain = self._gain(variance)
        return (1 - gain) / gain

    def filtered(self, mean: torch.Tensor, variance: float) -> tuple[torch.Tensor, float]:
        gain = self._gain(variance)
        self._walk = self._walk or variance * self._settled**2 / (1 - self._settled)
        self._before = gain * variance + self._walk  # κφ = (1 − κ)P
        estimate = self._estimate
        self._estimate = mean.clone() if estimate is None else estimate.lerp(mean, gain)
        self._left = (1 - gain) ** 2 * self._left + gain**2 * variance
        return self._estimate.clone(), self._left

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        tensors = {} if self._estimate is None else {"estimate": self._estimate}
        return tensors, {"before": self._before, "walk": self._walk, "left": self._left}

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        self._estimate = tensors.get("estimate")
        self._before, self._walk = values["before"], values["walk"]
        self._left = values["left"]


def make_filter(how: GradientFilter | None, rounds: int) -> MeanFilter | None:
    """The filter of a run of so many rounds; None: none."""
    if how is None:
        return None
    delay = how.rounds_late(rounds)
    return Kalman(delay) if how.kind == "kalman" else LowPass(delay, how.order)
