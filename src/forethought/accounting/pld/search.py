"""ε at δ, or δ at ε, of one direction of a composition: lines, sharper and sharper."""

from __future__ import annotations

import math

from forethought.accounting.pld.charges import Charged
from forethought.accounting.pld.contour import Place, Total
from forethought.accounting.pld.quadrature import UnresolvedError

_TRIES = 7
_ROUGH = 0.02
_SMALLEST = 1e-9
_TINY = -745.0
# How far the ε of a saddle point may be off, relatively, on a line that starts from it.
_NEAR = 0.1


class Search:
    """Bounds on one direction's ε at ``delta``, or on its δ at ``epsilon``.

    Every line gives valid bounds; what is chosen here decides how sharp they are.
    """

    def __init__(
        self, total: Total, *, delta: float | None = None, epsilon: float | None = None
    ) -> None:
        self.total, self.delta, self.epsilon = total, delta, epsilon
        self.lower, self.upper = 0.0, math.inf if delta is not None else 1.0
        self.place: Place | None = None
        self.smoothing, self.gap = 0.0, 1.0
        self._coarser = 1.0  # after lines that were too much work
        self._stale = False  # a rough answer was enough so far
        self._blind = 0  # lines that gave no lower end, as they lay too far off
        # Mass that no component holds settles it: no line shows less.
        self.finished = delta is not None and total.lost >= delta
        self.lines: list[Charged] = []
        self._cut_at = math.inf
        self._retreats = 0

    def refine(self, accuracy: float, *, beaten_by: float = -1.0) -> None:
        """Go on until the bounds are ``accuracy`` apart, relatively, or no line helps."""
        for _ in range(_TRIES):
            width = self.upper - self.lower
            if (
                self.finished
                or self.upper < beaten_by
                or (
                    width < math.inf
                    and width
                    <= max(accuracy * self.upper, 0.0 if self.delta is None else _SMALLEST)
                )
            ):
                return
            self._next(accuracy)

    def _next(self, accuracy: float) -> None:
        if self._stale and self.place is not None:
            self._stale = False
            self._replace(self.place)
        place = self.place or self._first()
        relative = accuracy / 4
        if self.delta is not None:
            # An error of δ moves ε by 1/c of it.
            relative *= max(place.epsilon * place.tilt, 1e-3)
            if place.epsilon == 0:
                relative = 0.1  # δ(0) is likely to be enough
        relative = min(relative, 0.1)
        bend = place.tilt * (place.tilt + 1) + 0.1 / self.total.spread(place.tilt) ** 2
        natural = math.sqrt(2 * relative / bend)
        smoothing = self._coarser * natural / 4.0 ** max(0, self._blind - 1)
        if self._coarser == 1 and not self._blind and self.smoothing:
            # The smoothing's part of the gap goes with its square.
            wanted = self.smoothing * math.sqrt(0.6 * accuracy / self.gap)
            smoothing = min(max(wanted, 0.04 * self.smoothing), 0.9 * self.smoothing)
        try:
            integral = self.total.integral(place, smoothing, 0.03 * relative)
            line = Charged(integral, self.total.charges)
        except (UnresolvedError, FloatingPointError, OverflowError):
            self._retreat(place, smoothing)
            return
        self._retreats = 0
        before = self.upper - self.lower
        self.lines.append(line)
        low, high = self._epsilons(line, place) if self.delta is not None else self._deltas(line)
        self.lower, self.upper = max(self.lower, low), min(self.upper, high)
        self._blind = self._blind + 1 if self.lower == 0 else 0
        width = self.upper - self.lower
        if width <= min(accuracy, _ROUGH / 2) * self.upper < math.inf:
            return
        if width <= accuracy * self.upper < math.inf:
            self.place, self._stale = place, True
            self.smoothing, self.gap = smoothing, width / self.upper
            return
        self._replace(place)
        self.smoothing, self._coarser = smoothing, 1.0
        self.gap = width / self.upper if 0 < width < math.inf else 1.0
        self.finished = self.place == place and width > 0.9 * before and width < math.inf

    def _retreat(self, place: Place, smoothing: float) -> None:
        # Where one rare loss decides, Chernoff's bound is far off; otherwise a line that is less
        # sharp may still be affordable.
        self._retreats += 1
        self.finished = self._retreats > 2
        if self._retreats == 1 and self.delta is not None and self.place is None:
            jump = self.total.jump(self.delta)
            if jump < 0.7 * place.epsilon:
                self._truncate(place.log_delta, jump)
                found = self.total.locate(epsilon=jump)
                self.place = Place(found.tilt, jump, place.log_delta, 0.3)
                return
        self._coarser *= 8

    def _first(self) -> Place:
        place = self.total.locate(delta=self.delta, epsilon=self.epsilon, rough=True)
        self._truncate(place.log_delta, place.epsilon)
        place = self.total.locate(delta=self.delta, epsilon=self.epsilon, near=place.tilt)
        if self.delta is None or not self.total.many:
            return place
        # The saddle point's ε is far nearer than Chernoff's: one line may be enough.
        about = self.total.estimate(self.delta)
        if not 0.2 * place.epsilon < about < place.epsilon:
            return place
        self._truncate(place.log_delta, about)
        found = self.total.locate(epsilon=about, near=place.tilt)
        return Place(found.tilt, about, place.log_delta, _NEAR)

    def _truncate(self, log_delta: float, epsilon: float) -> None:
        # What is cut off counts as disclosed: losses that are rarer than δ, or as good as infinite.
        self._cut_at = max(log_delta - 14.0, _TINY + 5)
        second = log_delta - epsilon - 16.0
        self.total.truncate(self._cut_at, second if second > _TINY + 45 else -math.inf)

    def _replace(self, place: Place) -> None:
        if self.delta is not None:
            if not 0 < self.upper < math.inf:
                return
            # The window has to hold all that the answer may still be.
            slack = min(1.0, max(0.02, 1.2 * (1 - self.lower / self.upper)))
            if self.place and abs(self.upper - place.epsilon) <= 0.01 * self.upper:
                self.place = place._replace(slack=slack)
            else:
                self._truncate(math.log(self.delta), self.upper)
                found = self.total.locate(epsilon=self.upper)
                self.place = Place(found.tilt, self.upper, math.log(self.delta), slack)
            return
        if not self.upper > 0:
            return
        log_delta = math.log(self.upper)
        if log_delta < self._cut_at + 11:
            self._truncate(log_delta, float(self.epsilon or 0.0))
        found = self.total.locate(epsilon=float(self.epsilon or 0.0))
        self.place = Place(found.tilt, found.epsilon, log_delta, 0.0)

    def _deltas(self, line: Charged) -> tuple[float, float]:
        low, high = line.at(float(self.epsilon or 0.0))
        upper = math.exp(min(high, 0.0)) * (1 + 1e-13) if high > _TINY else 5e-324
        return math.exp(min(low, 0.0)) * (1 - 1e-13) if low > -700 else 0.0, min(upper, 1.0)

    def _epsilons(self, line: Charged, place: Place) -> tuple[float, float]:
        wanted = math.log(self.delta or 1.0)
        if line.at(0.0)[1] <= wanted:
            return 0.0, 0.0
        high = self._crossing(line, place.epsilon, wanted, upper=True)
        start = high if high < math.inf else place.epsilon
        low = self._crossing(line, start, wanted, upper=False)
        return low, high

    def _crossing(self, line: Charged, start: float, wanted: float, *, upper: bool) -> float:
        """Where a bound crosses log δ: the side of it on which the bound certainly holds."""
        low, high = 0.0, math.inf
        above = below = math.nan  # log of the bound over δ, at low and at high
        at, stride = max(start, 0.0), 0.25
        tilt = line.integral.tilt
        for step in range(80):
            gap = line.at(at)[1 if upper else 0] - wanted
            if gap > 0:
                low, above = max(low, at), gap
            else:
                high, below = min(high, at), gap
            near = abs(gap) < 1e-7 * at * tilt and (gap <= 0) == upper
            if near or (high < math.inf and high - low <= 1e-12 * high):
                break
            if math.isfinite(above - below) and step % 3:
                # Between two that are known, a little towards the side that is wanted.
                share = above / (above - below)
                share = share * (1 - 1e-8) + (1e-8 if upper else 0.0)
                following = low + share * (high - low)
            elif math.isfinite(gap):
                # Newton with a slope of -c, a little beyond, so that both sides are found.
                following = at + 1.02 * gap / tilt + (1e-10 if gap > 0 else -1e-10) * at
            else:
                # No bound here: the window in which there is one may be narrow.
                following, stride = at - stride / tilt, 2 * stride
            if not low < following < high:
                following = (low + high) / 2 if high < math.inf else 2 * at + 1 / tilt
            at = following
        return high if upper else low
