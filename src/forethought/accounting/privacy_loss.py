"""Privacy loss distributions on a grid, from below and from above, and their composition.

*Above*: connect-the-dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022): between grid points
the profile H(α) is replaced by its chord, the smallest dominating distribution on the grid.
*Below*: each grid point is lowered by the largest gap between chord and profile on its two sides,
so every chord lies under the profile; where the lowered points are not convex they are lowered
further. Composition is a product in Fourier space of exponentially tilted distributions: the tilt
moves the mass to the loss that decides the answer, so that rounding is relative to δ itself.
Truncation, wrap-around (bounded by Chernoff) and rounding are charged to the right side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from forethought.accounting.profiles import EPS, Array, Pair, Sample, Stack

LARGEST_GRID = 2**21
_CELLS_AT_ONCE = 2**18
# Rounds from which on errors of the transform are worth avoiding.
_MANY = 1000


@dataclass(frozen=True)
class Curve:
    """A privacy profile on a grid of losses, as a bound on δ(ε) from one side.

    Args:
        first, step: losses[i] = first + i step.
        masses: P-mass at each loss.
        constant: added to δ in an upper bound, subtracted in a lower one.
        relative: relative error charged to δ.
        wrapped: log of what bounds the tilted mass that is not where it belongs: in a lower bound
            what may have wrapped around, in an upper one what lies below the first loss.
        tilt: exponent under which ``wrapped`` counts.
        shift: added to ε in an upper bound, subtracted in a lower one.
        above: whether this is an upper bound.
    """

    first: float
    step: float
    masses: Array
    constant: float
    relative: float
    wrapped: float
    tilt: float
    shift: float
    above: bool

    @property
    def losses(self) -> Array:
        """The grid, in increasing order."""
        return np.asarray(self.first + self.step * np.arange(self.masses.size, dtype=float))

    def _values(self) -> tuple[Array, Array]:
        # δ at each grid point, and Σ_{i ≥ j} m_i e^{-(l_i - l_j)}: sums of positive terms only.
        index = np.arange(self.masses.size) * self.step
        with np.errstate(over="ignore"):
            discounted = np.cumsum((self.masses * np.exp(-index))[::-1])[::-1] * np.exp(index)
        discounted = np.where(np.isfinite(discounted), discounted, 0.0)
        steps = -math.expm1(-self.step) * discounted
        above = np.concatenate([np.cumsum(steps[::-1])[::-1][1:], [0.0]])
        return above, discounted

    def _wrapped(self, losses: Array) -> Array:
        if self.wrapped == -math.inf:
            return np.zeros_like(losses)
        t = self.tilt
        peak = t * math.log(t / (t + 1)) - math.log1p(t) if t > 0 else 0.0
        return np.asarray(np.exp(np.minimum(self.wrapped + peak - t * losses, 0.0)))

    def delta(self, epsilon: float) -> float:
        """The bound on δ at ``epsilon``, in [0, 1]."""
        values, discounted = self._values()
        epsilon = epsilon - self.shift if self.above else epsilon + self.shift
        place = math.floor((epsilon - self.first) / self.step) + 1
        if place >= self.masses.size:
            value = 0.0
        elif place <= 0:
            value = float(values[0])
            value += float(discounted[0]) * -math.expm1(epsilon - self.first)
        else:
            ahead = self.first + place * self.step
            value = float(values[place] + discounted[place] * -math.expm1(epsilon - ahead))
        if self.above:
            missing = 0.0
            if epsilon < self.first:
                missing = math.exp(min(0.0, self.wrapped - self.tilt * epsilon))
            return min(1.0, max(0.0, value * (1 + self.relative) + self.constant) + missing)
        wrapped = float(self._wrapped(np.array([epsilon]))[0])
        return min(1.0, max(0.0, value * (1 - self.relative) - self.constant - wrapped))

    def epsilon(self, delta: float) -> float:
        """The bound on the smallest ε ≥ 0 that holds at ``delta``; ∞ if this grid gives none."""
        values, discounted = self._values()
        if self.above:
            wanted = (delta - self.constant) / (1 + self.relative)
            if wanted <= 0:
                return math.inf
            # Largest grid point whose δ is above the target: the answer lies in the cell after it.
            place = int(np.count_nonzero(values > wanted))
            if place >= self.masses.size:
                return math.inf
            missing = wanted - float(values[place])
        else:
            taken = self._wrapped(self.losses) + self.constant
            needed = (delta + taken) / max(1 - self.relative, 1e-300)
            good = np.nonzero(values >= needed)[0]
            if not good.size:
                return 0.0
            place = int(good[-1]) + 1
            if place >= self.masses.size:
                return max(0.0, self.first + (place - 1) * self.step - self.shift)
            missing = float(needed[place - 1] - values[place])
        if place == 0:
            # The window holds nothing below its first loss.
            return max(0.0, self.first + self.shift) if self.above else 0.0
        ahead = self.first + place * self.step
        weight = float(discounted[place])
        share = missing / weight if weight > 0 else 0.0
        loss = ahead + math.log1p(-min(share, 1 - 1e-16)) if share > 0 else ahead
        loss = max(loss, ahead - self.step)
        return max(0.0, loss + self.shift if self.above else loss - self.shift)


class Answer(NamedTuple):
    """About where the answer lies: for choosing grids, not for bounds."""

    tilt: float
    epsilon: float
    log_delta: float


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
        if not beyond(unit * math.exp(low)):
            for _ in range(20):
                middle = (low + high) / 2
                low, high = (low, middle) if beyond(unit * math.exp(middle)) else (middle, high)
            tilt = unit * math.exp(low)
        mean = self._cumulants(tilt)[1] if epsilon is None else epsilon
        return Answer(tilt, mean, log_delta(tilt) if delta is None else math.log(delta))

    def relocate(self, answer: Answer, epsilon: float, delta: float) -> Answer:
        """The same, once the answer is known better."""
        if abs(epsilon - answer.epsilon) < 0.02 * answer.epsilon:
            return answer
        tilt = self.locate(epsilon=epsilon).tilt
        return Answer(tilt, epsilon, math.log(delta))

    def step(self, answer: Answer, accuracy: float, *, of_delta: bool) -> float:
        """Grid step for which both bounds are about ``accuracy`` / 2 apart, relatively."""
        # Chords add n θ (θ + 1) h²/12 to the cumulant, lowered chords take half as much away.
        scale = 1 / answer.tilt if of_delta and answer.tilt > 0 else max(answer.epsilon, 1e-12)
        step = math.sqrt(4 * accuracy * scale / (self.count * (answer.tilt + 1)))
        return min(step, 0.5 * math.sqrt(self._cumulants(0.0)[2] / self.count))

    def window(self, answer: Answer, step: float, accuracy: float) -> Window:
        """Choose the grid so that everything charged beside discretisation stays negligible.

        A composed loss beyond the window wraps around. The window is so long that what wraps from
        above lands below the loss in question, where it is not counted, and nothing wraps from
        below, but for a tilted mass that Chernoff's bound shows to be too small to matter.
        """
        deviation = math.sqrt(self._cumulants(answer.tilt)[2])
        ladder = 2.0 ** np.arange(-2.0, 5.5, 0.5) / deviation
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
        nodes = self._nodes(tilt, step, truncated)
        return Window(tilt, step, top - length, top, high, s_up, s_down, nodes)

    def _nodes(self, tilt: float, step: float, truncated: float) -> NDArray[np.int64]:
        # Cells widen by factors of two where the tilted round has little mass.
        losses, plain, tilted = [], [], []
        for (loss, log_mass), counts in self._samples:
            exponent = log_mass + tilt * loss
            exponent = exponent - exponent.max(axis=1, keepdims=True)
            weight = np.exp(exponent)
            weight *= (counts / self.count / weight.sum(axis=1))[:, None]
            losses.append(np.broadcast_to(loss, weight.shape).ravel())
            tilted.append(weight.ravel())
            plain.append(np.exp(np.broadcast_to(log_mass, weight.shape)).max(axis=0))
            plain[-1] = np.broadcast_to(plain[-1], weight.shape).ravel()
        loss = np.concatenate(losses)
        order = np.argsort(loss, kind="stable")
        loss = loss[order]
        weight = np.concatenate(tilted)[order]
        mass = np.concatenate(plain)[order]
        above = np.cumsum(weight[::-1])[::-1]
        below = np.cumsum(weight)
        top = loss[
            min(loss.size - 1, int(np.count_nonzero(np.cumsum(mass[::-1])[::-1] > truncated)))
        ]
        bottom = loss[max(0, int(np.count_nonzero(np.cumsum(mass) <= truncated)) - 1)]
        widest = max(0, int(math.log2(max(1.0, 0.25 / (step * (tilt + 1))))))
        right, left = [0], [0]
        for side, limit in ((right, top), (left, -bottom)):
            start, end = 0, max(2, math.ceil(limit / step))
            for level in range(widest + 1):
                if level < widest:
                    level_tail = 0.02 * 4.0 ** -(level + 1)
                    if side is right:
                        reach = loss[min(loss.size - 1, int(np.count_nonzero(above > level_tail)))]
                    else:
                        reach = -loss[max(0, int(np.count_nonzero(below <= level_tail)) - 1)]
                    stop = min(end, max(start, math.ceil(reach / step)))
                else:
                    stop = end
                width = 2**level
                cells = -(-(stop - start) // width)
                if cells > 0:
                    side.extend(range(start + width, start + width * cells + 1, width))
                    start += width * cells
                if start >= end:
                    break
            # The outermost nodes are lost to the lower bound, so they must hold nothing.
            last = side[-1] - side[-2]
            side.extend(side[-1] + last * i for i in range(1, 5))
        return np.array([-i for i in reversed(left[1:])] + right, dtype=np.int64)

    def curves(self, window: Window) -> tuple[Curve, Curve]:
        """Lower and upper bound on the profile of the composition, best near the tilted mean."""
        size = next_fast_len(math.ceil((window.high - window.low) / window.step) + 8, real=True)
        start = math.floor(window.low / window.step) - 2
        lower, upper = _Product(window, size, start), _Product(window, size, start)
        shift = 0.0
        for pairs, counts in self.parts:
            rows = max(1, _CELLS_AT_ONCE // max(size, 2 * window.nodes.size))
            for at in range(0, len(pairs), rows):
                stack = Stack(pairs[at : at + rows], swapped=self.swapped)
                here = counts[at : at + rows]
                grid = discretise(stack, window.nodes, window.step)
                shift += float(here @ grid.shift)
                upper.include(grid.above, grid.infinity, here)
                lower.include(grid.below, grid.charge, here)
        return lower.curve(shift, above=False), upper.curve(shift, above=True)


class Discrete(NamedTuple):
    """Masses on the grid's nodes that bound one round from above and below, rows by pair."""

    above: Array
    below: Array
    infinity: Array
    charge: Array
    shift: Array


def discretise(stack: Stack, nodes: NDArray[np.int64], step: float) -> Discrete:
    """Bound each pair by a distribution on ``nodes`` (in units of ``step``) from both sides."""
    losses = np.asarray(nodes * step, dtype=float)
    half = np.empty(2 * nodes.size - 1)
    half[::2] = losses
    half[1::2] = (nodes[:-1] + nodes[1:]) * (step / 2)
    gaps = stack.gaps(half)
    slip = stack.shift_error(half)
    width = np.diff(nodes) * step
    between = width / 2
    low1, low2 = gaps.low[:, ::2], gaps.low[:, 1::2]
    high1, high2 = gaps.high[:, ::2], gaps.high[:, 1::2]
    error = np.maximum(gaps.error[:, ::2], gaps.error[:, 1::2]) + 16 * EPS
    error += 2 * (slip[:, :-1:2] + 2 * slip[:, 1::2] + slip[:, 2::2]) / between
    # Whole cells from halves: the far half's mass is seen from the far edge.
    low = low1 + low2 + np.exp(-between) * (low2 + high2)
    high = high1 + high2 + np.exp(between) * (low1 + high1)
    to_right, to_left = -np.expm1(-width), np.expm1(width)
    rows, count = low.shape[0], nodes.size
    above = np.zeros((rows, count))
    above[:, 1:] += low / to_right
    above[:, :-1] += high / to_left
    # At the kink of a symmetrised profile.
    origin = int(np.searchsorted(nodes, 0))
    atom = stack.atom()
    above[:, origin] += atom
    sag = np.zeros((rows, count))
    gap = np.maximum(low1, high2)
    sag[:, 1:] = gap
    sag[:, :-1] = np.maximum(sag[:, :-1], gap)
    left, right = stack.tails(float(half[0]), float(half[-1]))
    straight = _keep_above_lines(sag, low, high, losses, left, right, atom, origin)
    rise = np.diff(sag, axis=1)
    below = above.copy()
    below[:, :-1] -= rise / to_left
    below[:, 1:] += rise / to_right
    worst = np.zeros((rows, count))
    worst[:, 1:] = error
    worst[:, :-1] = np.maximum(worst[:, :-1], error)
    spread = worst.copy()
    spread[:, 1:] = np.maximum(spread[:, 1:], worst[:, :-1])
    spread[:, :-1] = np.maximum(spread[:, :-1], worst[:, 1:])
    doubt = above.copy()
    doubt[:, :-1] += (sag[:, 1:] + sag[:, :-1]) / to_left
    doubt[:, 1:] += (sag[:, 1:] + sag[:, :-1]) / to_right
    below -= spread * doubt
    below[straight] = 0
    below[:, :2] = 0
    below[:, -2:] = 0
    charge = _repair(below, losses)
    above *= 1 + worst
    above[:, 0] += left
    return Discrete(above, below, right, charge, slip.max(axis=1))


def _keep_above_lines(
    sag: Array,
    low: Array,
    high: Array,
    losses: Array,
    left: Array,
    right: Array,
    atom: Array,
    origin: int,
) -> NDArray[np.bool_]:
    # Every profile lies above the lines 1 - α and 0. Where the density falls so fast that lowering
    # by the sag would cross them, the lowered profile follows the line; on the cell where it leaves
    # the line, it must also pass below the tangent at the line's end.
    safe = np.abs(losses) < 600
    clipped = np.where(safe, losses, 0.0)
    width = np.diff(losses)
    q = (low + high) * np.exp(-clipped[:-1]) / np.expm1(width)
    kink = np.zeros_like(sag)
    kink[:, origin] = atom
    below = np.zeros_like(sag)
    below[:, 1:] = np.cumsum(q, axis=1)
    below += np.cumsum(kink, axis=1) + (left * np.exp(-clipped[0]))[:, None]
    beyond = np.zeros_like(sag)
    beyond[:, :-1] = np.cumsum(q[:, ::-1], axis=1)[:, ::-1]
    beyond += np.cumsum(kink[:, ::-1], axis=1)[:, ::-1] + (right * np.exp(-clipped[-1]))[:, None]
    alpha = np.exp(clipped)
    over_one = np.zeros_like(sag)
    over_one[:, 1:] = np.cumsum(alpha[:-1] * np.expm1(width) * below[:, :-1] + high, axis=1)
    over_one += left[:, None]
    over_zero = np.zeros_like(sag)
    steps = alpha[:-1] * np.expm1(width) * beyond[:, 1:] + low
    over_zero[:, :-1] = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
    over_zero += right[:, None]
    over_one[:, ~safe] = np.inf
    over_zero[:, ~safe] = np.inf
    one, zero = over_one < sag, over_zero < sag
    leaves = one[:, :-1] & ~one[:, 1:]
    enters = ~zero[:, :-1] & zero[:, 1:]
    np.minimum(sag, np.minimum(over_one, over_zero), out=sag)
    sag[:, 1:] = np.where(leaves, np.maximum(sag[:, 1:], high), sag[:, 1:])
    sag[:, :-1] = np.where(enters, np.maximum(sag[:, :-1], low), sag[:, :-1])
    straight = np.zeros(sag.shape, dtype=bool)
    for line in (one, zero):
        straight[:, 1:-1] |= line[:, :-2] & line[:, 1:-1] & line[:, 2:]
    return straight


def _repair(masses: Array, losses: Array) -> Array:
    """Make the masses nonnegative without raising the profile; what cannot be repaired is returned.

    Dropping a node with negative mass replaces the profile around it by the chord of its two
    neighbours, which lies below; the limit is the largest convex minorant.
    """
    lost = np.zeros(masses.shape[0])
    for row in np.nonzero((masses < 0).any(axis=1))[0]:
        line = masses[row].tolist()
        before = list(range(-1, len(line) - 1))
        after = list(range(1, len(line) + 1))
        todo = np.nonzero(masses[row] < 0)[0].tolist()[::-1]
        while todo:
            i = todo.pop()
            mass = line[i]
            if mass >= 0:
                continue
            left, right = before[i], after[i]
            line[i] = 0.0
            if right >= len(line):
                lost[row] -= mass
                continue
            y = losses[right] - losses[i]
            if left < 0:  # the same Q-mass, taken away further right
                line[right] += mass * math.exp(y)
                before[right] = -1
                if line[right] < 0:
                    todo.append(right)
                continue
            x = losses[i] - losses[left]
            total = math.expm1(y) - math.expm1(-x)
            line[left] += mass * math.exp(-x) * math.expm1(y) / total
            line[right] -= mass * math.exp(y) * math.expm1(-x) / total
            after[left], before[right] = right, left
            todo += [j for j in (right, left) if line[j] < 0]
        masses[row] = line
    return lost


def _log_sum(exponent: Array) -> Array:
    top = exponent.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(exponent - top).sum(axis=1)))


class _Product:
    """The running product of tilted characteristic functions, with what bounds its error."""

    def __init__(self, window: Window, size: int, start: int) -> None:
        self.window, self.size, self.start = window, size, start
        self.total = np.ones(size // 2 + 1, dtype=complex)
        self.wrong = np.zeros(size // 2 + 1)  # bounds how far `total` is off
        self.mass = 0.0  # log of the tilted mass of the product
        self.up = self.down = 0.0  # log moment generating functions for the two Chernoff bounds
        self.lost = 0.0
        self.rounds = 0.0

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
        self.rounds += float(counts.sum())
        with np.errstate(divide="ignore"):
            exponent = np.log(tilted)
        self.up += float(counts @ _log_sum(exponent + window.up * losses))
        self.down += float(counts @ _log_sum(exponent - window.down * losses))
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
        if count > _MANY and active.size * nodes.size <= 8 * _CELLS_AT_ONCE:
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
        up = min(0.0, self.up - window.up * (high if above else window.reach))
        down = min(0.0, self.down + window.down * low)
        relative = EPS * (8 * size + 64 * self.rounds + 8 * abs(self.mass))
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
