"""Composition of rounds into one privacy loss distribution: which grid, how fine, how long.

The rounds are put on a grid (:mod:`forethought.accounting.pld.discretisation`), multiplied in
Fourier space (:mod:`forethought.accounting.pld.convolution`) and read off as bounds on δ(ε)
(:mod:`forethought.accounting.pld.curve`). What is chosen here decides how tight the bounds are,
never whether they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len

from forethought.accounting.pld.convolution import CELLS_AT_ONCE, Product, Window
from forethought.accounting.pld.curve import Curve
from forethought.accounting.pld.discretisation import discretise
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.profiles import Array, Sample, Stack

LARGEST_GRID = 2**21
MOST_NODES = 2**17


class Answer(NamedTuple):
    """About where the answer lies: for choosing grids, not for bounds."""

    tilt: float
    epsilon: float
    log_delta: float


class Composition:
    """Rounds composed in one direction.

    Args:
        parts: how often each pair occurs.
        swapped: compose (Q, P) instead of (P, Q).
    """

    def __init__(self, parts: Mapping[Pair, int], *, swapped: bool = False) -> None:
        shapes: dict[tuple[int, int, bool], list[Pair]] = {}
        for pair in sorted(parts, key=lambda p: (p.up, p.down)):
            shapes.setdefault(pair.shape, []).append(pair)
        self.parts: list[tuple[list[Pair], Array]] = [
            (pairs, np.array([float(parts[p]) for p in pairs])) for pairs in shapes.values()
        ]
        self.swapped = swapped
        self.count = float(sum(parts.values()))
        self.cut = any(pair.lost or pair.lost_rest for pair in parts)
        self._samples: list[tuple[Sample, Array]] = []
        for pairs, counts in self.parts:
            # Only grids are chosen from samples, so a few of very many pairs are enough.
            every = max(1, len(pairs) // 64)
            chosen = list(range(0, len(pairs), every))
            scale = counts.sum() / counts[chosen].sum()
            sample = Stack([pairs[i] for i in chosen], swapped=swapped).sample()
            self._samples.append((sample, counts[chosen] * scale))

    def _cumulants(self, tilt: float) -> tuple[float, float, float]:
        # Log moment generating function of the total loss and its two derivatives.
        total = mean = variance = 0.0
        for (loss, log_mass), counts in self._samples:
            exponent = log_mass + tilt * loss
            top = exponent.max(axis=1, keepdims=True)
            weight = np.exp(exponent - top)
            mass = weight.sum(axis=1)
            first = (weight * loss).sum(axis=1) / mass
            second = (weight * (loss - first[:, None]) ** 2).sum(axis=1) / mass
            total += float(counts @ (top[:, 0] + np.log(mass)))
            mean += float(counts @ first)
            variance += float(counts @ second)
        return total, mean, variance

    def _totals(self, tilts: Array) -> Array:
        # The log moment generating function of the total loss at many points.
        totals = np.zeros(tilts.size)
        for (loss, log_mass), counts in self._samples:
            exponent = log_mass[:, None, :] + tilts[None, :, None] * loss[:, None, :]
            top = exponent.max(axis=2)
            totals += counts @ (top + np.log(np.exp(exponent - top[..., None]).sum(axis=2)))
        return totals

    def spread(self) -> tuple[float, float]:
        """Mean and variance of the total loss (approximate)."""
        return self._cumulants(0.0)[1:]

    def locate(self, *, delta: float | None = None, epsilon: float | None = None) -> Answer:
        """The tilt under which the loss that decides the answer is typical (saddle point)."""

        def log_delta(tilt: float) -> float:
            total, mean, variance = self._cumulants(tilt)
            spread = tilt * math.sqrt(2 * math.pi * variance)
            return total - tilt * mean - math.log1p(spread) - math.log1p(tilt)

        def beyond(tilt: float) -> bool:
            if delta is not None:
                return log_delta(tilt) < math.log(delta)
            return self._cumulants(tilt)[1] > float(epsilon or 0.0)

        unit = 1 / math.sqrt(max(self._cumulants(0.0)[2], 1e-300))
        low, high = -7.0, 12.0
        tilt = 0.0
        if beyond(unit * math.exp(low)):
            # Rare large losses: the distribution's middle says nothing of its tail.
            low, high = -40.0, low
        if not beyond(unit * math.exp(low)):
            for _ in range(22):
                middle = (low + high) / 2
                low, high = (low, middle) if beyond(unit * math.exp(middle)) else (middle, high)
            tilt = unit * math.exp(low)
        mean = self._cumulants(tilt)[1] if epsilon is None else epsilon
        if delta is not None:
            # Where one large loss among the rounds decides, no saddle point finds it.
            jump = self._jump(delta)
            if jump > 1.2 * mean:
                tilt, mean = self.locate(epsilon=jump).tilt, jump
        log = log_delta(tilt) if delta is None else math.log(delta)
        return Answer(tilt, mean, log if log > -800 else -800.0)

    def _jump(self, delta: float) -> float:
        """The ε at which the rounds' own δ(ε) add up to ``delta``."""

        def total(level: float) -> float:
            sums = 0.0
            for (loss, log_mass), counts in self._samples:
                gain = -np.expm1(np.minimum(level - loss, 0.0))
                sums += float(counts @ (np.exp(log_mass) * gain).sum(axis=1))
            return sums

        if total(0.0) <= delta:
            return 0.0
        low, high = -40.0, math.log(max(float(x.loss.max()) for x, _ in self._samples) + 1e-12)
        for _ in range(25):
            middle = (low + high) / 2
            low, high = (middle, high) if total(math.exp(middle)) > delta else (low, middle)
        return math.exp(high)

    def relocate(self, answer: Answer, epsilon: float, delta: float) -> Answer:
        """The same, once the answer is known better."""
        if abs(epsilon - answer.epsilon) < 0.02 * answer.epsilon:
            return answer
        tilt = self.locate(epsilon=epsilon).tilt
        return Answer(tilt, epsilon, math.log(delta))

    def step(self, answer: Answer, accuracy: float, *, of_delta: bool) -> float:
        """Grid step for which both bounds are about ``accuracy`` / 2 apart, relatively."""
        # Chords add n θ (θ + 1) h²/12 to the cumulant, lowered chords take half as much away.
        tilted = self._deviation(answer.tilt) ** 2
        if of_delta:
            slope = max(answer.tilt, 1 / math.sqrt(max(tilted, 1e-300)))
            scale = 1 / (slope * (slope + 1))
        else:
            scale = max(answer.epsilon, 1e-12) / (answer.tilt + 1)
        step = math.sqrt(4 * accuracy * scale / self.count)
        # Mass much closer to a node than to the next one adds less: a few rounds with large losses
        # among many with small ones, or large losses that are rare.
        wanted = accuracy * scale * (2 / 3)
        for _ in range(40):
            if 2 * step > 0.25 * math.sqrt(tilted) or self._added(answer.tilt, 2 * step) > wanted:
                break
            step *= 2
        return min(step, 0.25 * math.sqrt(tilted))

    def _deviation(self, tilt: float) -> float:
        # Beyond the largest loss nothing is left that could vary.
        floor = 1e-6 * math.sqrt(self._cumulants(0.0)[2])
        return max(math.sqrt(self._cumulants(tilt)[2]), floor, 1e-150)

    def _added(self, tilt: float, step: float) -> float:
        # What chords on a grid with this step add to the variance of the total.
        total = 0.0
        for (loss, log_mass), counts in self._samples:
            exponent = log_mass + tilt * loss
            weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
            place = loss / step
            share = place - np.floor(place)
            added = (weight * share * (1 - share)).sum(axis=1) / weight.sum(axis=1)
            total += float(counts @ added) * step * step
        return total

    def window(self, answer: Answer, step: float, accuracy: float) -> Window:
        """Choose the grid so that everything charged beside discretisation stays negligible.

        A composed loss beyond the window wraps around. The window is so long that what wraps from
        above lands below the loss in question, where it is not counted, and nothing wraps from
        below, but for a tilted mass that Chernoff's bound shows to be too small to matter.
        """
        deviation = self._deviation(answer.tilt)
        ladder = 2.0 ** np.arange(-2.0, 5.5, 0.5) / deviation
        if deviation < 1:
            ladder = np.concatenate([np.geomspace(0.1, ladder[0], 10)[:-1], ladder])
        shares = np.linspace(0, 1, 11) * answer.tilt
        tilts = np.concatenate([-ladder, answer.tilt - ladder, shares, answer.tilt + ladder])
        tilts = np.unique(tilts)
        totals = self._totals(tilts)
        small = math.log(0.01 * accuracy) + answer.log_delta
        rounding = math.log(1e-14 * self.count + 1e-11)
        margin = 0.1 * deviation + 4 * step
        best = (math.inf, 0.0, 0.0, 0.0, 1.0, 1.0)
        for tilt in shares[::-1]:
            # A smaller tilt shortens the window where the tilted losses have a heavy tail, until
            # rounding is no longer small beside δ.
            here = int(np.searchsorted(tilts, tilt))
            decay = float(totals[here]) - tilt * answer.epsilon
            peak = tilt * math.log(tilt / (tilt + 1)) - math.log1p(tilt) if tilt > 0 else 0.0
            if best[0] < math.inf and decay + peak + rounding > small:
                break
            log_tail = min(-7.0, small - decay - peak)
            need = totals - totals[here] - log_tail
            up = need[here + 1 :] / (tilts[here + 1 :] - tilt)
            down = -need[:here] / (tilt - tilts[:here])
            i, j = int(np.argmin(up)), int(np.argmax(down))
            high, low = float(up[i]) + margin, float(down[j]) - margin
            top = high
            if tilt > 0:
                top = min(high, answer.epsilon + margin + max(0.0, decay - small) / tilt)
            length = max(high - answer.epsilon + margin, top - low)
            s_up, s_down = float(tilts[here + 1 + i] - tilt), float(tilt - tilts[j])
            if length < best[0]:
                best = (length, float(tilt), top, high, s_up, s_down)
        length, tilt, top, high, s_up, s_down = best
        step = max(step, length / (LARGEST_GRID - 8))
        truncated = math.exp(max(small, -690.0)) / self.count
        nodes = self._nodes(tilt, s_up, s_down, step, truncated)
        return Window(tilt, step, top - length, top, high, s_up, s_down, nodes)

    def _nodes(
        self, tilt: float, up: float, down: float, step: float, truncated: float
    ) -> NDArray[np.int64]:
        # Cells widen by factors of two where the round has little mass, tilted for the answer and
        # for both of Chernoff's bounds, even when that mass is moved to the end of its cell.
        loss = np.concatenate(
            [np.broadcast_to(x.loss, x.log_mass.shape).ravel() for x, _ in self._samples]
        )
        order = np.argsort(loss, kind="stable")
        loss = loss[order]
        plain = np.concatenate([x.log_mass.ravel() for x, _ in self._samples])[order]
        right = [(tilt + 1, self._tails(tilt, order, from_above=True))]
        right.append((tilt + up + 1, self._tails(tilt + up, order, from_above=True)))
        left = [(tilt + 1, self._tails(tilt, order, from_above=False))]
        left.append((abs(tilt - down) + 1, self._tails(tilt - down, order, from_above=False)))
        # The heaviest of the rounds decides how far the grid must reach.
        heavy = np.exp(plain) > truncated * 1e-3
        first, last = int(np.argmax(heavy)), int(loss.size - 1 - np.argmax(heavy[::-1]))
        bottom, top = float(loss[max(0, first - 1)]), float(loss[min(loss.size - 1, last + 1)])
        # Too many cells: widen earlier, and in the end everywhere.
        left = [(slope, tail[::-1]) for slope, tail in left]
        for coarser in range(60):
            width, share = 2 ** max(0, coarser - 3), 0.02 * 8.0**coarser
            above = _widening(loss, right, top, step, share, width)
            below = _widening(-loss[::-1], left, -bottom, step, share, width)
            if above.size + below.size <= MOST_NODES:
                break
        return np.concatenate([-below[::-1], [0], above])

    def _tails(self, tilt: float, order: NDArray[np.intp], *, from_above: bool) -> Array:
        # log of the tilted mass of one round, averaged over the rounds, from each sample outwards.
        weights = []
        for (loss, log_mass), counts in self._samples:
            exponent = log_mass + tilt * loss
            exponent = exponent - exponent.max(axis=1, keepdims=True)
            weight = np.exp(exponent)
            weight *= (counts / self.count / weight.sum(axis=1))[:, None]
            weights.append(weight.ravel())
        weight = np.concatenate(weights)[order]
        total = np.cumsum(weight[::-1])[::-1] if from_above else np.cumsum(weight)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(total))

    def curves(self, window: Window) -> tuple[Curve, Curve]:
        """Lower and upper bound on the profile of the composition, best near the tilted mean."""
        size = next_fast_len(math.ceil((window.high - window.low) / window.step) + 8, real=True)
        start = math.floor(window.low / window.step) - 2
        lower, upper = Product(window, size, start), Product(window, size, start)
        shift = 0.0
        for pairs, counts in self.parts:
            rows = max(1, CELLS_AT_ONCE // max(size, 2 * window.nodes.size))
            for at in range(0, len(pairs), rows):
                stack = Stack(pairs[at : at + rows], swapped=self.swapped)
                here = counts[at : at + rows]
                grid = discretise(stack, window.nodes, window.step)
                # The weights' relative errors move losses and masses by as much.
                shift += float(here @ (grid.shift + 2 * stack.doubt))
                most = np.exp(stack.doubt)[:, None]
                upper.include(grid.above * most, grid.infinity + stack.lost, here)
                lower.include(grid.below / most, grid.charge, here)
        below, above = lower.curve(shift, above=False), upper.curve(shift, above=True)
        if self.cut:
            # Q's missing mass, below 1e-100, counts for nothing below e^180 times.
            masses = np.where(below.losses > 180, 0.0, below.masses)
            below = replace(below, masses=masses, constant=below.constant + 1e-20)
        return below, above


def _widening(
    loss: Array,
    tails: list[tuple[float, Array]],
    end: float,
    step: float,
    share: float,
    width: int,
) -> NDArray[np.int64]:
    """Nodes right of 0, in units of ``step``; ``tails`` are (slope, log tail mass at ``loss``).

    Cells are ``width`` steps wide at first. At most a little more than MOST_NODES are returned.
    """
    start, stop = 0, max(2, math.ceil(min(end / step, 1e15)))
    nodes: list[NDArray[np.int64]] = []
    for level in range(60):
        reach = 0.0
        for slope, tail in tails:
            # What the next level's cells would need.
            most = math.log(share) - (level + 1) * math.log(4) - slope * 2 * width * step
            light = int(np.count_nonzero(tail > most))
            reach = max(reach, float(loss[min(loss.size - 1, light)]))
        until = stop if 2 * width >= stop else min(stop, max(start, math.ceil(reach / step)))
        cells = -(-(until - start) // width)
        if cells > MOST_NODES:
            return np.arange(1, MOST_NODES + 2, dtype=np.int64)  # too many: not to be used
        if cells > 0:
            nodes.append(start + width * np.arange(1, cells + 1, dtype=np.int64))
            start += width * cells
        if start >= stop:
            break
        width *= 2
    # The outermost nodes are given up by the lower bound, so they must hold nothing.
    nodes.append(start + width * np.arange(1, 5, dtype=np.int64))
    return np.concatenate(nodes)
