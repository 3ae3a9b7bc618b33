"""Products of tilted characteristic functions, with what bounds their errors.

Composition is a product in Fourier space of exponentially tilted distributions: the tilt moves the
mass to the loss that decides the answer, so that rounding is relative to δ itself. Truncation,
wrap-around (bounded by Chernoff) and rounding are charged to the right side.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from forethought.accounting.pld.curve import Curve
from forethought.accounting.pld.profiles import EPS, Array

CELLS_AT_ONCE = 2**18
# Rounds from which on errors of the transform are worth avoiding.
_MANY = 1000


class Window(NamedTuple):
    """Where the composed, tilted distribution lies, and how finely it is resolved."""

    tilt: float
    step: float
    low: float
    high: float
    reach: float
    up: float
    down: float
    nodes: NDArray[np.int64]


def _log_sum(exponent: Array) -> Array:
    top = exponent.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(exponent - top).sum(axis=1)))


class Product:
    """The running product of tilted characteristic functions, with what bounds its error."""

    def __init__(self, window: Window, size: int, start: int) -> None:
        self.window, self.size, self.start = window, size, start
        self.total = np.ones(size // 2 + 1, dtype=complex)
        self.wrong = np.zeros(size // 2 + 1)  # bounds how far `total` is off
        self.mass = 0.0  # log of the tilted mass of the product
        self.up = self.down = 0.0  # log moment generating functions for the two Chernoff bounds
        self.lost = 0.0
        self.rounding = 0.0  # relative, in units of EPS

    def include(self, masses: Array, lost: Array, counts: Array) -> None:
        """Multiply by ``counts`` copies of each row; ``lost`` is the mass not on the grid."""
        window, nodes = self.window, self.window.nodes
        losses = nodes * window.step
        with np.errstate(divide="ignore"):
            exponent = np.log(masses) + window.tilt * losses
        top = exponent.max(axis=1, keepdims=True)
        tilted = np.exp(exponent - top)
        total = tilted.sum(axis=1)
        tilted /= total[:, None]
        self.mass += float(counts @ (top[:, 0] + np.log(total)))
        self.lost += float(counts @ lost)
        with np.errstate(divide="ignore"):
            exponent = np.log(tilted)
        self.up += float(counts @ _log_sum(exponent + window.up * losses))
        self.down += float(counts @ _log_sum(exponent - window.down * losses))
        # Tilting multiplies each mass by a rounding error of the size of its exponent.
        size = np.where(tilted > 0, np.abs(top) + np.abs(exponent), 0).max(axis=1)
        size += 2 * window.tilt * max(abs(float(losses[0])), abs(float(losses[-1])))
        self.rounding += float(counts @ (64 + 2 * size))
        place = nodes % self.size
        placed = np.zeros((tilted.shape[0], self.size))
        if nodes[-1] - nodes[0] < self.size:
            placed[:, place] = tilted
        else:
            for row, line in enumerate(tilted):
                placed[row] = np.bincount(place, weights=line, minlength=self.size)
        spectrum = rfft(placed, axis=1)
        # Higham, Accuracy and Stability of Numerical Algorithms, Theorem 24.2.
        wrong = 8 * EPS * math.log2(self.size + 1) * math.sqrt(self.size)
        wrong = wrong * np.sqrt((placed * placed).sum(axis=1))[:, None]
        size = np.abs(spectrum)
        once = counts == 1
        if once.any():
            exact = np.multiply.reduce(size[once], axis=0)
            most = np.multiply.reduce(size[once] + wrong[once], axis=0)
            factor = np.multiply.reduce(spectrum[once], axis=0)
            self._multiply(factor, most - exact + 16 * EPS * (1 + once.sum()) * most)
        for row in np.nonzero(~once)[0].tolist():
            self._power(spectrum[row], size[row], float(wrong[row, 0]), tilted[row], counts[row])

    def _power(
        self, spectrum: Array, size: Array, wrong: float, tilted: Array, count: float
    ) -> None:
        # Where the power is below e^-80 it is replaced by 0; elsewhere a high power is taken of a
        # directly summed transform, whose error is the rounding unit and not its multiple by the
        # square root of the grid's size.
        with np.errstate(divide="ignore"):
            active = np.nonzero(count * np.log(size + wrong) > -80)[0]
        values, sizes = spectrum[active], size[active]
        nodes = self.window.nodes
        if count > _MANY and active.size * nodes.size <= 8 * CELLS_AT_ONCE:
            angle = (2 * np.pi / self.size) * (active[:, None] * nodes % self.size)
            values = (np.cos(angle) * tilted).sum(axis=1) - 1j * (np.sin(angle) * tilted).sum(
                axis=1
            )
            sizes, wrong = np.abs(values), 64 * EPS
        factor, doubt = np.zeros_like(spectrum), np.full(size.shape, math.exp(-80))
        values = np.where(sizes > 0, values, 1e-300)
        power = np.exp(count * np.log(values))
        most = np.exp(count * np.log(sizes + wrong))
        factor[active] = power
        doubt[active] = most - np.abs(power) + 16 * EPS * (count + 80) * most
        self._multiply(factor, np.maximum(doubt, 0))

    def _multiply(self, factor: Array, doubt: Array) -> None:
        self.wrong = self.wrong * (np.abs(factor) + doubt) + np.abs(self.total) * doubt
        self.total = self.total * factor

    def curve(self, shift: float, *, above: bool) -> Curve:
        """Bring the product back and undo the tilt."""
        window, size = self.window, self.size
        density = np.roll(irfft(self.total, n=size), -(self.start % size))
        floor = 2 * float(self.wrong.sum()) / size
        floor += 8 * EPS * math.log2(size + 1) * float(np.sqrt((density * density).sum()))
        losses = (self.start + np.arange(size)) * window.step
        exponent = np.minimum(self.mass - window.tilt * losses, 690.0)
        if above:
            density = np.maximum(density, 0) + floor
        else:
            # What wraps from above lands here; δ below this loss is bounded by δ at it.
            density = np.where(losses > window.reach - size * window.step, density - floor, 0)
            np.maximum(density, 0, out=density)
        with np.errstate(under="ignore"):
            masses = density * np.exp(exponent)
        # Cramér-Chernoff, for the tilted total beyond either end of the window.
        high, low = float(losses[-1]), float(losses[0])
        relative = EPS * (8 * size + self.rounding + 8 * abs(self.mass))
        relative += EPS * 8 * window.tilt * max(abs(high), abs(low))
        up = min(0.0, self.up - window.up * (high if above else window.reach) + 0.01)
        down = min(0.0, self.down + window.down * low + 0.01)
        if above:
            beyond = math.exp(min(up + self.mass - window.tilt * high, 0.0))
            constant, wrapped = self.lost + beyond, down + self.mass
        else:
            constant, wrapped = self.lost, float(np.logaddexp(up, down)) + self.mass
        return Curve(
            low,
            window.step,
            masses,
            constant,
            relative,
            wrapped,
            window.tilt,
            shift,
            above,
        )
