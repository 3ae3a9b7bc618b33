"""Likelihood ratios with finitely many values, as rows of the engine.

A :class:`Law` stands for a pair (P, Q) by the values and Q-masses of W = dP/dQ. Convexity makes
such laws bounds: δ(ε) = E_Q[(ΠW - e^ε)+], composed with anything, is convex in each round's W, and
so is the reverse E_Q[(1 - e^ε ΠW)+]. So a law that is larger in convex order bounds both directions
from above and one that is smaller bounds both from below, at every ε at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from forethought.accounting.limits import Bounds, total_variation
from forethought.accounting.pld.mixtures import EPS, Array
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.points import Line, Points, composed
from forethought.accounting.pld.quadrature import UnresolvedError

_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Law:
    """Values of log(dP/dQ) and what mass each has.

    Args:
        loss: log of the likelihood ratio W at each value.
        first, second: P- and Q-mass of each.
        doubt: bound on the relative error of every mass, and on the error of every loss.
        lost, lost_rest: bound on the mass of P and of Q that no value holds; 0 in a law that is a
            lower bound, where leaving out mass only lowers.
        two_sided: whether both directions have the same profile.
    """

    loss: Array
    first: Array
    second: Array
    doubt: float
    lost: float
    lost_rest: float
    two_sided: bool = False

    @property
    def gaussian(self) -> bool:
        """Never: it has finitely many values."""
        return False

    def delta(self, epsilon: float, *, swapped: bool) -> float:
        """About δ(ε) of one round in one direction."""
        loss, mass = (-self.loss, self.second) if swapped else (self.loss, self.first)
        return float(mass @ -np.expm1(np.minimum(epsilon - loss, 0.0)))

    def profile(self, epsilon: float) -> Bounds:
        """δ(ε) of one round, the larger of both directions, less and plus what it may be off by."""
        off = self.doubt + 64 * EPS
        low = max(self.delta(epsilon + off, swapped=side) for side in (False, True))
        high = max(
            self.delta(max(0.0, epsilon - off), swapped=side) + lost
            for side, lost in ((False, self.lost), (True, self.lost_rest))
        )
        slack = off + self.loss.size * EPS
        return Bounds(low * (1 - slack), min(1.0, high * (1 + slack)))


def varies(pair: Pair | Law) -> float:
    """An upper bound on δ(0) of one round."""
    return pair.profile(0.0).upper if isinstance(pair, Law) else total_variation(pair)


class LawRows:
    """One law, composed ``count`` times in one direction; has what `contour.Total` asks of rows."""

    size = 1
    farthest = 0.0

    def __init__(self, law: Law, count: int, *, swapped: bool) -> None:
        self.counts = self.few_counts = np.array([float(count)])
        loss, mass = (-law.loss, law.second) if swapped else (law.loss, law.first)
        kept = mass > 1e-290
        order = np.argsort(mass[kept], kind="stable")
        self._all = loss[kept][order], mass[kept][order]
        self._lost = float(mass[~kept].sum())
        self._take(0)

    def _take(self, first: int) -> None:
        loss, mass = (x[first:] for x in self._all)
        self._loss, self._mass = loss[None, :], mass[None, :]
        self._log_mass = np.log(self._mass)
        self._gap = 1 - float(mass.sum())  # its rounding is charged with the masses'

    def truncate(self, cut: float) -> tuple[float, float, float]:
        """Leave out the least likely losses, of as much mass in all as a normal has beyond ``cut``.

        Returns:
            As `transform.Rows.truncate`: what is left out of the measure, summed over the rounds;
            from below nothing is made of it.
        """
        mass = self._all[1]
        first = int(np.searchsorted(np.cumsum(mass), float(ndtr(-cut))))
        self._take(min(first, mass.size - 1))
        gone = float(mass[:first].sum()) + self._lost
        return float(self.counts[0]) * gone * (1 + 1e-9), 0.0, 0.0

    def sample(self) -> tuple[Array, Array]:
        """Losses and log masses, shape (1, values)."""
        return self._loss, self._log_mass

    def cumulant(self, tilts: Array) -> Array:
        """About log E e^{tilt·loss}, summed over the rounds."""
        return np.array([float(self.counts[0]) * self._log_moment(float(t)) for t in tilts])

    def _log_moment(self, tilt: float) -> float:
        exponent = tilt * self._loss[0]
        top = float(np.max(self._log_mass[0] + exponent))
        if top > 30:
            return top + math.log(float(np.exp(self._log_mass[0] + exponent - top).sum()))
        rise = float(self._mass[0] @ np.expm1(np.minimum(exponent, 700.0)))
        return math.log1p(max(rise - self._gap, -0.999999))

    def spread(self) -> tuple[float, float]:
        """About the mean and the variance of the summed loss."""
        mass, loss = self._mass[0], self._loss[0]
        mean = float(mass @ loss)
        return mean * self.counts[0], (float(mass @ loss**2) - mean**2) * self.counts[0]

    def variance(self, tilt: float) -> float:
        """About the variance of the summed loss under the tilted measure."""
        size = self._log_mass[0] + tilt * self._loss[0]
        mass = np.exp(size - size.max())
        mass = mass / mass.sum()
        loss = self._loss[0]
        return float(self.counts[0] * (mass @ (loss - mass @ loss) ** 2))

    def log_moment_above(self, tilt: float, _log_error: float) -> float:
        """A certain upper bound on the log of the summed rounds' E e^{tilt·loss}."""
        value = self._log_moment(tilt)
        if not value < 600:
            raise UnresolvedError(f"a moment of e^{value:.0f}")
        units = self._loss.shape[1] + 16 + float(np.max(np.abs(tilt * self._loss)))
        return float(self.counts[0] * (value + 8 * EPS * units * (1 + math.exp(-value))))

    def swing(self, tilt: float) -> Array:
        """A bound on how fast the transform can change along the line, but for a turn."""
        mass, loss = self._mass[0] * np.exp(tilt * self._loss[0]), self._loss[0]
        moment = float(mass.sum())
        square = float(mass @ (loss - float(mass @ loss) / moment) ** 2)
        units = 1 + EPS * (loss.size + 16 + float(np.max(np.abs(tilt * loss))))
        return np.array([math.sqrt(moment * square) * units * (1 + 1e-9)])

    def along(
        self,
        tilt: float,
        step: float,
        first: int,
        last: int,
        _log_error: float,
        most_work: float,
        _every: int = 1,
        slack: Array | None = None,
    ) -> tuple[Line, float]:
        """The log transform at tilt + i k step for first ≤ k < last, and the work it took.

        ``slack`` is added to what it may be off by.

        Raises:
            UnresolvedError: it would take more than ``most_work`` products.
        """
        count, values = last - first, self._loss.shape[1]
        work = float(values) * (count + 300)
        if work > most_work:
            raise UnresolvedError(f"{values} x {count} products")
        slip = 4 + np.abs(self._loss)
        points = Points(self._loss, self._log_mass, slip, 8 + np.abs(self._log_mass), tilt)
        fine = max(1, min(64, math.isqrt(count)))
        chunk = max(fine, _AT_ONCE // values // fine * fine)
        total = Line(np.zeros(0), np.zeros(0), np.zeros(0))
        for at in range(first, last, chunk):
            some = min(chunk, last - at)
            grid = (-(-some // fine), fine)
            gap = points.gaps(step * at, step, grid)[:, :some] - self._gap
            error = points.rounding(step * np.arange(at, at + some, dtype=float), some)
            error = error + EPS * (1 + values) + (0.0 if slack is None else slack[:, None])
            found = composed(gap, error, self.counts)
            total = Line(*(np.concatenate(x) for x in zip(total, found, strict=True)))
        return total, work
