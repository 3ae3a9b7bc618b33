"""Sums over the nodes of rounds' privacy losses, at many frequencies, with what they are off by.

Everything is formed as M(s) - 1 = Σ p (e^{s l} - 1): real tilts by expm1, frequencies by sin² and
sin, so that rounding is relative to how far a round's transform is from 1 and not to 1. On an even
grid of frequencies the sums are matrix products, since e^{i(s+t)l} - 1 = E_s + E_t + E_s E_t.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forethought.accounting.pld.mixtures import EPS, Array

Complex = NDArray[np.complex128]
_SMALLEST = 1e-7
_BLOCK = 60_000


class Line(NamedTuple):
    """Log transform of a composition at c + i k h.

    Args:
        real, phase: of the logarithm.
        doubt: bound on the absolute error of the real exponential, relative to its exact size at
            each point: |M̂ - M| ≤ e^real (e^doubt - 1).
    """

    real: Array
    phase: Array
    doubt: Array

    def __add__(self, other: Line) -> Line:  # type: ignore[override]
        return Line(*(a + b for a, b in zip(self, other, strict=True)))


class Points:
    """Masses on the line, one row for each pair, tilted; with what their sums may be off by."""

    def __init__(
        self, loss: Array, log_mass: Array, slip: Array, rough: Array, tilt: float
    ) -> None:
        self.loss, self.log_mass, self.slip, self.rough = loss, log_mass, slip, rough
        self.tilt = tilt

    def rows(self, chosen: NDArray[np.intp]) -> Points:
        """Some of the rows."""
        fields = (self.loss, self.log_mass, self.slip, self.rough)
        loss, log_mass, slip, rough = (x[chosen] if len(x) > 1 else x for x in fields)
        return Points(loss, log_mass, slip, rough, self.tilt)

    @cached_property
    def tilted(self) -> Array:
        """Masses times e^{tilt·loss}."""
        return np.asarray(np.exp(self.log_mass + self.tilt * self.loss))

    @cached_property
    def rise(self) -> Array:
        """Masses times e^{tilt·loss} - 1."""
        exponent = self.tilt * self.loss
        near = np.exp(self.log_mass) * np.expm1(np.minimum(exponent, 30.0))
        return np.where(exponent < 30, near, self.tilted)

    def gaps(self, first: float, step: float, grid: tuple[int, int]) -> Complex:
        """M - 1 at tilt + i (first + k step), k < the product of ``grid``."""
        coarse, fine = grid
        here = _turns(first * self.loss, step * fine * self.loss, coarse)
        there = _turns(np.zeros_like(self.loss), step * self.loss, fine)
        weighted = np.swapaxes(here * self.tilted[:, :, None], 1, 2)
        along = np.einsum("ij,ijk->ik", self.tilted, there)
        total = _product(weighted, there)
        total += weighted.sum(axis=2)[:, :, None] + along[:, None, :]
        return np.asarray(total.reshape(self.loss.shape[0], -1) + self.rise.sum(axis=1)[:, None])

    def turns(self, first: float, step: float, grid: tuple[int, int]) -> Complex:
        """e^{i t loss} - 1 for the one row of losses that all rows share, nodes by frequency."""
        coarse, fine = grid
        here = _turns(first * self.loss[0], step * fine * self.loss[0], coarse)[:, :, None]
        there = _turns(np.zeros_like(self.loss[0]), step * self.loss[0], fine)[:, None, :]
        return np.asarray((here + there + here * there).reshape(self.loss.shape[1], -1))

    def sums(self, turns: Complex) -> Complex:
        """The same as :meth:`gaps` from :meth:`turns`."""
        parts = (_product(self.tilted[None], x[None])[0] for x in (turns.real, turns.imag))
        real, imaginary = parts
        return np.asarray(real + self.rise.sum(axis=1)[:, None] + 1j * imaginary)

    def rounding(self, frequency: Array, count: int) -> Array:
        """A bound on the rounding error of :meth:`gaps` at each frequency."""
        loss, mass = self.loss, self.tilted
        units = self.rough + loss.shape[1] + 16 + 8 * math.log2(count + 1)
        units = units + np.abs(self.log_mass) + np.abs(self.tilt * loss)
        turned = np.minimum(
            2 * (mass * units).sum(axis=1)[:, None],
            frequency * (mass * units * np.abs(loss)).sum(axis=1)[:, None],
        )
        # Where the losses themselves are off.
        plain = np.exp(self.log_mass + np.minimum(self.tilt * loss, 0))
        slips = ((mass + plain) * self.slip).sum(axis=1)[:, None]
        still = (np.abs(self.rise) * units).sum(axis=1)[:, None]
        return np.asarray(EPS * (6 * turned + (frequency + abs(self.tilt)) * slips + still))


def _product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Matrix products in blocks that BLAS does in one thread.

    On a machine whose cores are busy, threads that wait for each other take a hundred times as
    long as the product.
    """
    rows, tall, inner = left.shape
    wide = right.shape[2]
    total = np.zeros((rows, tall, wide), dtype=left.dtype)
    high = max(1, min(tall, _BLOCK // (16 * wide)))
    deep = max(16, _BLOCK // (high * wide))
    for at in range(0, tall, high):
        for start in range(0, inner, deep):
            some = left[:, at : at + high, start : start + deep]
            total[:, at : at + high] += some @ right[:, start : start + deep]
    return total


def _turn(angle: Array) -> Complex:
    """e^{i angle} - 1 to rounding, however small the angle."""
    half = np.sin(angle / 2)
    return np.asarray(-2 * half * half + 2j * half * np.cos(angle / 2))


def _turns(first: Array, step: Array, count: int) -> Complex:
    """:func:`_turn` of first + k step, k < count, along a new last axis, by doubling.

    Each doubling rounds once: a few rounding units times log2(count) in all.
    """
    found = np.empty((*first.shape, count), dtype=complex)
    found[..., 0] = _turn(first)
    jump, done = _turn(step), 1
    while done < count:
        more = min(done, count - done)
        here, by = found[..., :more], jump[..., None]
        found[..., done : done + more] = here + by + here * by
        jump = 2 * jump + jump * jump
        done += more
    return found


def composed(gap: Complex, error: Array, counts: Array) -> Line:
    """Powers and products: Σ n log(1 + gap), with what bounds the product's error."""
    x, y = gap.real, gap.imag
    near = np.maximum(2 * x + x * x + y * y, -0.75)
    far = np.log(np.maximum(np.hypot(1 + x, y), _SMALLEST))
    real = np.where(near > -0.75, 0.5 * np.log1p(near), far)
    phase = np.arctan2(y, 1 + x)
    size = np.exp(real)
    # What is smaller than this is taken for it.
    error = error + 8 * EPS * np.abs(gap) + np.where(size < 2 * _SMALLEST, 2 * _SMALLEST, 0)
    doubt = np.log1p(error / size)
    doubt = doubt + 4 * EPS * (np.abs(real) + np.abs(phase))
    # Not by BLAS, which would wake its threads for these.
    sums = [np.einsum("i,ij->j", counts, x) for x in (real, phase, doubt)]
    return Line(*sums)


def gaussian_line(distance: float, tilt: float, frequencies: Array) -> Line:
    """N(distance, 1) against N(0, 1): log M = s (s + 1) distance²/2, exactly."""
    scale = distance * distance / 2
    real = scale * (tilt * (tilt + 1) - frequencies**2)
    phase = scale * frequencies * (2 * tilt + 1)
    doubt = 8 * EPS * (np.abs(phase) + scale * (tilt * (tilt + 1) + frequencies**2))
    return Line(real, phase, doubt)
