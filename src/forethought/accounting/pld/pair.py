"""The dominating pair of one round, as a plain value."""

from __future__ import annotations

import math
from dataclasses import dataclass

_LARGEST_SHIFT = 3000.0
_DISCLOSING, _MANY_COMPONENTS = 300.0, 256


@dataclass(frozen=True)
class Pair:
    """Two mixtures of Gaussians that dominate one round of a mechanism.

    Args:
        up: (shift, weight) of the components of P right of 0, shifts > 0 in noise standard
            deviations; the rest of P is N(0, 1).
        down: (distance, weight) of the components of Q left of 0; the rest of Q is N(0, 1).
        symmetric: the profile for α ≥ 1 is this pair's, for α < 1 its mirror image
            H(α) = 1 - α + α H(1/α) (Zhu, Dong, Wang 2022, Theorem 11).
        idle, rest: what of P and of Q is N(0, 1); by default what the weights leave of 1, which
            loses digits where that is little.
        doubt: bound on the relative error of every weight, those of N(0, 1) included.
        lost, lost_rest: bound on the mass of P and of Q that no component holds.
    """

    up: tuple[tuple[float, float], ...]
    down: tuple[tuple[float, float], ...] = ()
    symmetric: bool = False
    idle: float = -1.0
    rest: float = -1.0
    doubt: float = 0.0
    lost: float = 0.0
    lost_rest: float = 0.0

    def __post_init__(self) -> None:
        for name, part in (("idle", self.up), ("rest", self.down)):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, max(0.0, 1 - math.fsum(w for _, w in part)))

    @property
    def two_sided(self) -> bool:
        """Both directions of the pair have the same profile."""
        return self.symmetric or self.up == self.down or self.gaussian

    @property
    def gaussian(self) -> bool:
        """N(c, 1) against N(0, 1): composes exactly."""
        return not self.down and len(self.up) == 1 and self.up[0][1] == 1.0

    @property
    def largest(self) -> float:
        """The largest shift on either side."""
        return max(c for c, _ in (*self.up, *self.down))

    @property
    def integrable(self) -> bool:
        """Whether integrals say more than closed bounds.

        They do not where noise is small beside the shifts. And a single hit discloses nearly
        everything where shifts are large: with many components besides, integrals take seconds.
        """
        heavy = self.largest > _DISCLOSING and len(self.up) > _MANY_COMPONENTS
        return self.largest <= _LARGEST_SHIFT and not heavy

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Pairs of the same shape are evaluated together."""
        return len(self.up), len(self.down), self.symmetric
