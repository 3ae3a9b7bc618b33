"""One line integral: the transform along Re s = c and the two kernels that bound δ(ε)."""

from __future__ import annotations

import math

import numpy as np

from forethought.accounting.pld.mixtures import EPS
from forethought.accounting.pld.points import Complex, Line


def log_peak(tilt: float) -> float:
    """log of the largest e^(-tilt x)(1 - e^-x) over x ≥ 0: δ(ε) ≤ M(c) e^(-cε) times this."""
    return tilt * math.log(tilt / (tilt + 1)) - math.log1p(tilt) if tilt > 0 else 0.0


class Integral:
    """Bounds on δ(ε) of one measure from its transform along a line.

    Args:
        tilt: c. step: between the line's points. smoothing: τ.
        line: the log transform at c + i k ``step``.
        beyond: a tilt above c, and ``log_moment``, a bound on the log transform there.
    """

    def __init__(
        self,
        tilt: float,
        step: float,
        smoothing: float,
        line: Line,
        beyond: float,
        log_moment: float,
    ) -> None:
        self.tilt, self.step, self.smoothing = tilt, step, smoothing
        self.beyond, self.log_moment = beyond, log_moment
        c, tau = tilt, smoothing
        t = step * np.arange(line.real.size, dtype=float)
        s: Complex = np.asarray(c + 1j * t)
        weight = np.full(t.size, step / math.pi)
        weight[0] /= 2
        self.base = float(line.real[0])
        size = weight * np.exp(np.minimum(line.real - self.base, 50.0))
        grown = np.where(
            line.doubt < 1,
            size * np.expm1(np.minimum(line.doubt, 1.0)),
            weight * np.exp(np.minimum(line.real - self.base + line.doubt, 600.0)),
        )
        damp = np.exp(tau * tau * (c * c - t * t) / 2)
        common = damp * np.exp(1j * (tau * tau * c) * t) / (s * (s + 1))
        above = common * np.exp(tau * tau * s / 2)
        below = common * (1 - s * _expm1(tau * tau * (s + 0.5)))
        # |M| is at most its value on the real line: what is left out is a Gaussian tail.
        last = step * line.real.size
        square = (tau * last) ** 2
        tail = math.exp(tau * tau * (c * c + c) / 2 - square / 2) / (last - step) / math.pi
        tail_below = math.exp(tau * tau * (c + 1) ** 2 / 2 - (tau * (last - step)) ** 2 / 2)
        tail_below *= 2 / ((tau * (last - step)) ** 2 * math.pi)
        # Rounding of the kernels and of the sum, beside the transform's own.
        units = 32 + t.size + 2 * np.abs(line.phase) + (tau * t) ** 2 + tau * tau * c * t
        wrong = grown + size * (EPS * units)
        peak = math.exp(min(line.doubt[0], 50.0))
        self._wrong = (
            float((np.abs(above) * wrong).sum()) + tail * peak,
            float((np.abs(below) * wrong).sum()) + tail_below * peak,
        )
        above, below = above * size, below * size
        self._moved = (float((np.abs(above) * t).sum()), float((np.abs(below) * t).sum()))
        # What is too small to matter is charged and not summed again for every ε.
        weight = np.abs(above) + np.abs(below)
        kept = weight > 1e-17 * float(weight.sum()) / weight.size
        dropped = float(weight[~kept].sum())
        self._wrong = (self._wrong[0] + dropped, self._wrong[1] + dropped)
        self._t, self._phase = t[kept], line.phase[kept]
        self._above, self._below = above[kept], below[kept]

    def values(self, epsilon: float) -> tuple[float, float, float]:
        """log of a scale, and what bounds δ(ε) below and above, as multiples of the scale."""
        scale = self.base - self.tilt * epsilon
        turn = np.exp(1j * (self._phase - self._t * epsilon))
        high = float((self._above * turn).real.sum())
        low = float((self._below * turn).real.sum())
        slip = EPS * 4 * abs(epsilon)
        high += self._wrong[0] + slip * self._moved[0]
        low -= self._wrong[1] + slip * self._moved[1]
        # The scale's own rounding.
        unit = EPS * 4 * (abs(self.base) + abs(self.tilt * epsilon) + 1)
        high, low = high * (1 + unit), low - abs(low) * unit
        width = 2 * math.pi / self.step
        left = -self.tilt * width
        aliased = math.exp(min(left - math.log(-math.expm1(left)) - scale, 700.0))
        rate = -(self.beyond - self.tilt) * width
        right = self.log_moment + log_peak(self.beyond) - self.beyond * epsilon
        right += rate - math.log(-math.expm1(rate))
        aliased += math.exp(min(right - scale, 700.0))
        return scale, low - aliased * (1 + 1e-9), high


def _expm1(x: Complex) -> Complex:
    half = np.sin(x.imag / 2)
    return np.asarray(
        np.expm1(x.real) * np.cos(x.imag) - 2 * half * half + 1j * np.exp(x.real) * np.sin(x.imag)
    )
