"""How exactly a sum must be formed: the certificate that its error stays within what is charged.

Before anything is added, every term's error is bounded from the masses of its contributions and
the roundings that its sum would meet. Float32 products are used where the bounds of all terms
together suffice, in blocks as long as they may be; what does not fit is added in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forethought.gradients import clipping
from forethought.gradients.blocks import UNIT
from forethought.gradients.rounding import tiny
from forethought.gradients.terms import BoundedTerm, Bounds, mass_of

# Blocks shorter than the last cost more than a product in float64.
BLOCKS = (2048, 1024, 512, 256, 192, 128, 96, 64)
# Far from the largest float32, so that nothing on the way to a sum overflows.
LARGE = 2.0**120
# More than the norm of any row of finite float32 numbers.
BEYOND = 2.0**160


class Measured:
    """Bounds of all terms: norms by parameter, and masses and reach where they are not trivial."""

    def __init__(self, found: Sequence[Bounds], names: tuple[str, ...]) -> None:
        self.found = found
        self.norms = clipping.Norms(names, even([bounds.norms for bounds in found]))
        self.masses: Tensor | None = None
        if any(bounds.masses is not None for bounds in found):
            self.masses = even([mass_of(bounds) for bounds in found])

    def reach(self) -> list[float]:
        """Each term's, over all contributions."""
        # Squares beyond float32 say infinity; the numbers themselves are below 2^128.
        known = (0.0 if b.reach is None else float(b.reach.max()) for b in self.found)
        return [min(reach, BEYOND) for reach in known]


def even(found: Sequence[Tensor]) -> Tensor:
    """Rows of a table; as many columns as vectorised loops take, so that all are computed alike."""
    table = torch.stack(list(found))
    missing = -table.shape[1] % UNIT
    return torch.nn.functional.pad(table, (0, missing)) if missing else table


@dataclass(frozen=True)
class Limits:
    """What the sum must keep to.

    Attributes:
        clip_norm: at least the norm of every contribution. allowed: bound on the sum's error.
        largest: at least every factor. precise: whether everything is added in float64 anyway.
    """

    clip_norm: float
    allowed: float
    largest: float
    precise: bool


def block_lengths(
    held: Sequence[BoundedTerm], factors: Tensor, measured: Measured, limits: Limits
) -> list[int | None]:
    """How long float32 blocks may be, for each term; None adds in float64.

    Raises:
        ValueError: not even float64 keeps the error within ``limits.allowed``.
    """
    certificate = _Certificate(held, factors, measured, limits)
    longest = max(term.added for term in held)
    whole = certificate.blocks(longest)
    if certificate.at_worst(whole) <= limits.allowed:
        return whole
    certificate.weigh()
    for length in (longest, *BLOCKS):
        blocks = certificate.blocks(length)
        if certificate.fits(blocks):
            return blocks
    # The sums with the largest errors go to float64 until the others fit.
    blocks = certificate.blocks(BLOCKS[-1])
    by_error = sorted(range(len(held)), key=lambda at: certificate.one(at, BLOCKS[-1]))
    for at in reversed(by_error):
        blocks[at] = None
        if certificate.fits(blocks):
            return blocks
    raise ValueError(
        f"{longest} products cannot be added within the rounding that is charged to the clipping "
        "norm; use smaller micro-batches, and pass the size of the round as round_size"
    )


class _Certificate:
    """Bounds on the errors of the terms' sums."""

    def __init__(
        self,
        held: Sequence[BoundedTerm],
        factors: Tensor,
        measured: Measured,
        limits: Limits,
    ) -> None:
        self._held, self._factors, self._measured, self._limits = held, factors, measured, limits
        self._reach = measured.reach()
        # Underflow of a scaled number, times what it is multiplied with, and of each product.
        self._small = [
            2 * term.added * term.breadth * (1 + reach)
            for term, reach in zip(held, self._reach, strict=True)
        ]
        self._narrow = [term.dtype == torch.float32 and not limits.precise for term in held]
        # Without cancellation no mass exceeds its contribution's norm, which is at most C.
        trivial = measured.masses is None
        self._together = factors.shape[1] * limits.clip_norm if trivial else math.inf
        self._masses = [self._together] * len(held)

    def weigh(self) -> None:
        """Take the masses themselves, where they are not yet known."""
        masses = self._measured.masses
        norms = self._measured.norms.by_parameter
        each = norms if masses is None else masses
        bad = ~torch.isfinite(self._measured.norms.total)
        weighted = (self._factors * each).masked_fill(bad, 0.0).sum(1)
        # A little more, for this arithmetic.
        self._masses = (weighted * (1 + 2.0**-20)).tolist()

    def blocks(self, length: int) -> list[int | None]:
        """Float32 blocks of a length where nothing could overflow, float64 elsewhere."""
        return [
            length
            if narrow and max(min(mass, self._together), self._limits.largest * reach) < LARGE
            else None
            for narrow, mass, reach in zip(self._narrow, self._masses, self._reach, strict=True)
        ]

    def _lost(self, at: int, length: int | None) -> float:
        return tiny(torch.float64 if length is None else torch.float32) * self._small[at]

    def at_worst(self, blocks: Sequence[int | None]) -> float:
        """The error whatever the norms are: Σ_b ‖contribution_b‖ ≤ B·C bounds all masses."""
        if math.isinf(self._together):
            return math.inf
        off = max(term.off(length) for term, length in zip(self._held, blocks, strict=True))
        return off * self._together + sum(self._lost(*block) for block in enumerate(blocks))

    def one(self, at: int, length: int | None) -> float:
        """One term's error."""
        return self._held[at].off(length) * self._masses[at] + self._lost(at, length)

    def fits(self, blocks: Sequence[int | None]) -> bool:
        """Whether the error of all sums together is allowed."""
        error = math.hypot(*(self.one(at, length) for at, length in enumerate(blocks)))
        return error <= self._limits.allowed
