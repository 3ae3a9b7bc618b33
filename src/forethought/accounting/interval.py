"""An interval that is certified to hold the true value."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The true value is at least ``lower`` and at most ``upper``, both proven."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise ValueError(f"no interval: lower {self.lower}, upper {self.upper}")

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    @property
    def relative_width(self) -> float:
        """(upper − lower)/upper; 0 when both ends are equal."""
        return 0.0 if self.upper == self.lower else (self.upper - self.lower) / self.upper
