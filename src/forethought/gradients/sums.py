"""Clip every contribution and add them up, so that the computed sum keeps the bound C."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from forethought.gradients.batches import UNIT, in_a_row
from forethought.gradients.terms import (
    BoundedTerm,
    Dense,
    Outer,
    Term,
    TermBounds,
    bounded,
    exactly,
    gamma,
    lengths,
    mass_of,
    product_in_blocks,
    tiny,
)
from forethought.values.checks import real
from forethought.values.plan import Clip

# Constants of the theorem that a sum of contributions keeps its bound in floating point.
#
# docs/gradients.md, "The sum in floating point", states and proves it. In short: contributions are
# clipped to (1 − r)·C, whatever the batch the computed sum is within r·C/2 of the exact sum of the
# computed contributions, so neighbouring batches differ by at most (1 − r)·C + 2·r·C/2 = C.


CHARGE = 5 * 2.0**-9
"""r: the share of the clipping norm set aside for rounding, just under 1 %, whatever the batch."""

MASS = 2.0**10
"""A contribution's absolute mass Σ_t ‖g_t‖‖x_t‖ is held below MASS·C: see ``clipping.factors``."""

NARROW = 1 - 2.0**-22
"""Room for rounding a factor to float32."""

RECORDS = 1 << 20
"""The most contributions a round may have: up to here float64 always keeps the promise."""

# What other sums of float64 numbers (micro-batches, ranks) may add to the error of one round.
OWN = 1 - 2.0**-7


# Clipping rules: from the norms of contributions to the factors that bound them.
#
# A rule never sees a gradient, only norms, and whatever it answers is capped so that no scaled
# contribution exceeds the clipping norm: a mistaken rule costs accuracy, not privacy.


@dataclass(frozen=True)
class Norms:
    """Norms before clipping.

    Attributes:
        names: the parameters, in the order of the rows of ``by_parameter``.
        by_parameter: shape (parameters, contributions): the L2 norm of each parameter's gradient.
    """

    names: tuple[str, ...]
    by_parameter: Tensor

    @cached_property
    def total(self) -> Tensor:
        """Shape (contributions,): the L2 norm over all parameters."""
        # A norm along the first dimension takes torch six times as long.
        return self.by_parameter.square().sum(0).sqrt_()


# Smaller factors are zero.
LEAST = 2.0**-120

Sums = tuple[dict[str, Tensor], Tensor]
"""Parameter name → clipped sum, float64, and the norms before clipping, shape (contributions,)."""

ClippingRule = Callable[[Norms, float], Tensor]
"""(norms, clip_norm) → factors, shape (contributions,) or (parameters, contributions)."""


def flat(norms: Norms, clip_norm: float) -> Tensor:
    """min(1, C/‖g‖) (Abadi et al. 2016, Algorithm 1)."""
    return (clip_norm / norms.total).clamp(max=1.0)


def automatic(gamma: float = 0.01) -> ClippingRule:
    """C/(‖g‖ + gamma): every contribution is normalised (Bu et al. 2022, AUTO-S)."""
    gamma = real("gamma", gamma, above=0)

    def rule(norms: Norms, clip_norm: float) -> Tensor:
        return clip_norm / (norms.total + gamma)

    return rule


def per_layer(shares: Mapping[str, float] | None = None) -> ClippingRule:
    """Every parameter tensor is clipped to its own share of C, shape (parameters, contributions).

    Args:
        shares: parameter name → share of C; the squares sum to at most 1, so the whole stays
            within C. None gives each of n parameters 1/√n.

    Raises:
        ValueError: shares whose squares sum to more than 1; when used, a parameter without share.
    """
    chosen = None if shares is None else {name: float(share) for name, share in shares.items()}
    if chosen is not None and math.fsum(share**2 for share in chosen.values()) > 1 + 1e-12:
        raise ValueError("the squares of the per-layer shares must sum to at most 1")

    def rule(norms: Norms, clip_norm: float) -> Tensor:
        if chosen is None:
            bounds = [len(norms.names) ** -0.5] * len(norms.names)
        else:
            if set(norms.names) != set(chosen):
                raise ValueError(
                    "per-layer shares must name exactly the trainable parameters: missing "
                    f"{sorted(set(norms.names) - set(chosen))}, "
                    f"unknown {sorted(set(chosen) - set(norms.names))}"
                )
            bounds = [chosen[name] for name in norms.names]
        limit = clip_norm * norms.by_parameter.new_tensor(bounds).unsqueeze(1)
        return (limit / norms.by_parameter).clamp(max=1.0)

    return rule


def rule(clip: Clip) -> ClippingRule:
    """The function that a plan's :class:`forethought.values.plan.Clip` names.

    ``"quantile"`` clips flat; its clipping norm moves between rounds, see :func:`next_clip_norm`.
    """
    if clip.rule == "automatic":
        return automatic(clip.gamma)
    if clip.rule == "per-layer":
        return per_layer(None if clip.shares is None else dict(clip.shares))
    return flat


_ROUNDING = {kind: torch.finfo(kind).eps for kind in (torch.float32, torch.float64)}


def _margin(table: Tensor) -> float:
    # Norms of n parameters are added with n roundings, and a few more follow.
    return 1 + (32 + table.shape[0]) * _ROUNDING[table.dtype]


def flat_factors(norms: Norms, clip_norm: float) -> Tensor:
    """A row of what :func:`factors` answers for :func:`flat` where every norm is finite."""
    scaled = norms.total.reciprocal().mul_(clip_norm / _margin(norms.by_parameter))
    return torch.threshold_(scaled.clamp_(max=1.0), LEAST, 0.0)


def factors(
    norms: Norms,
    clip_norm: float,
    chosen: ClippingRule = flat,
    masses: Tensor | None = None,
    most: float = math.inf,
) -> Tensor:
    """Shape (parameters, contributions): what each gradient is multiplied by.

    Non-finite contributions get 0. The answer of ``chosen`` is capped at C/‖g‖ over the whole
    contribution, with a margin for the rounding of this arithmetic, so that no contribution
    leaves with a norm above C, if ``norms`` are upper bounds. One contribution's factors depend on
    its own norms and masses only (if the rule keeps to that).

    Args:
        masses: absolute masses Σ_t ‖g_t‖‖x_t‖ behind the gradients, shape of ``by_parameter``.
            A contribution is scaled down until its mass is at most ``most``, too: the rounding
            of a sum is relative to it.

    Raises:
        ValueError: the rule answered another shape.
    """
    table, total = norms.by_parameter, norms.total
    raw = chosen(norms, clip_norm)
    if raw.shape not in (table.shape, table.shape[1:]):
        raise ValueError(
            f"a clipping rule must answer one factor per contribution, shape "
            f"{tuple(table.shape[1:])}, or per parameter and contribution, shape "
            f"{tuple(table.shape)}, not {tuple(raw.shape)}"
        )
    scaled = raw.to(table.dtype).nan_to_num(nan=0.0, posinf=1.0, neginf=0.0).clamp_(min=0.0)
    margin = _margin(table)
    finite = total < math.inf  # false for what is not a number, too
    if scaled.dim() == 1:  # ‖f·g‖ = f·‖g‖
        scaled = torch.minimum(scaled, (clip_norm / margin) / total)
        if masses is not None:
            scaled = torch.minimum(scaled, most / torch.linalg.vector_norm(masses, dim=0))
        scaled = torch.where(finite, scaled, 0.0)
    else:
        after = torch.linalg.vector_norm(scaled * torch.nan_to_num(table), dim=0)
        cap = (clip_norm / (after * margin)).clamp(max=1.0)
        if masses is not None:
            heavy = torch.linalg.vector_norm(scaled * torch.nan_to_num(masses), dim=0)
            cap = torch.minimum(cap, most / heavy)
        scaled = torch.where(finite, scaled * cap, 0.0)
    # Below this a factor could not be rounded to float32 with a small relative error.
    return torch.threshold(scaled, LEAST, 0.0).expand_as(table)


def centred_count_below(norms: Tensor, clip_norm: float) -> float:
    """Σ (1[‖g‖ ≤ C] − 1/2), the quantile rule's count: one contribution moves it by at most 1/2.

    A norm that is not finite counts as within C, like the zero that its gradient became.
    """
    return float(((norms <= clip_norm) | ~torch.isfinite(norms)).sum()) - norms.numel() / 2


def noised_fraction_below(
    norms: Tensor,
    clip_norm: float,
    count_noise: float,
    expected: float,
    generator: torch.Generator | None = None,
) -> float:
    """Noised share of contributions whose norm is at most C: the quantile rule's second release.

    The released sum is Σ (1[‖g‖ ≤ C] − 1/2) + N(0, σ_b²), which one contribution moves by at most
    1/2 (Andrew et al. 2021, Section 2.2; Theorem 1 accounts for it). Non-finite norms count as
    not clipped, like the zeros they became.

    Args:
        norms: shape (contributions,), before clipping; when empty, noise is released all the same.
        count_noise: σ_b, standard deviation of the noise on the sum.
        expected: expected number of contributions, a constant of the plan (never ``len(norms)``,
            which is private under Poisson sampling).
    """
    real("clip_norm", clip_norm, above=0)
    real("count_noise", count_noise, least=0)
    real("expected", expected, above=0)
    centred = centred_count_below(norms, clip_norm)
    device = generator.device if generator is not None else "cpu"
    noise = torch.randn((), generator=generator, device=device, dtype=torch.float64)
    return (centred + count_noise * float(noise)) / expected + 0.5


def next_clip_norm(clip_norm: float, fraction: float, quantile: float, rate: float) -> float:
    """C·exp(−rate·(fraction − quantile)): the geometric update (Andrew et al. 2021, Section 2.1).

    Args:
        fraction: the noised share of contributions at most C. May lie outside [0, 1]; it is
            clamped to it, which is post-processing, so that one round's noise cannot throw C away.
    """
    real("clip_norm", clip_norm, above=0)
    real("fraction", fraction)
    clamped = min(max(fraction, 0.0), 1.0)
    return float(clip_norm * math.exp(-rate * (clamped - quantile)))


def quantile_update(
    clip: Clip,
    norms: Tensor,
    clip_norm: float,
    expected: float,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """(noised fraction, next C) of a plan's quantile rule after one round.

    Args:
        clip: a Clip with ``rule="quantile"``. norms: shape (contributions,), of the whole round.
        clip_norm: C of this round. expected: expected contributions a round.
        generator: the noise generator.

    Raises:
        ValueError: ``clip`` has another rule.
    """
    if clip.count_noise is None:
        raise ValueError(f"only the clip rule 'quantile' adapts C, not {clip.rule!r}")
    fraction = noised_fraction_below(norms, clip_norm, clip.count_noise, expected, generator)
    return fraction, next_clip_norm(clip_norm, fraction, clip.quantile, clip.quantile_rate)


# How exactly a sum must be formed: the certificate that its error stays within what is charged.
#
# Before anything is added, every term's error is bounded from the masses of its contributions and
# the roundings that its sum would meet. Float32 products are used where the bounds of all terms
# together suffice, in blocks as long as they may be; what does not fit is added in float64.


# Blocks shorter than the last cost more than a product in float64.
BLOCKS = (2048, 1024, 512, 256, 192, 128, 96, 64)
# Far from the largest float32, so that nothing on the way to a sum overflows.
LARGE = 2.0**120
# More than the norm of any row of finite float32 numbers.
BEYOND = 2.0**160


class Measured:
    """Bounds of all terms: norms by parameter, and masses and reach where they are not trivial."""

    def __init__(self, found: Sequence[TermBounds], names: tuple[str, ...]) -> None:
        self.found = found
        self.norms = Norms(names, even([bounds.norms for bounds in found]))
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
    """The limits that the sum must keep to.

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
    """The possible length of float32 blocks, for each term; None adds in float64.

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
        self, held: Sequence[BoundedTerm], factors: Tensor, measured: Measured, limits: Limits
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
        """True if the error of all sums together is allowed."""
        error = math.hypot(*(self.one(at, length) for at, length in enumerate(blocks)))
        return error <= self._limits.allowed


# Clip and add the gradients of linear layers that each example uses once: a few operations.
#
# The general way (:func:`clip_and_sum`) with everything left out that does not occur here: the
# gradient of a layer is one outer product g xᵀ (and g for the bias), so ‖∇‖² = ‖g‖²(‖x‖² + 1),
# nothing cancels, and no mass exceeds C. The same theorem holds by the same bounds; where they are
# not met at once (long sums, numbers near the ends of float32, nothing finite), the general way
# decides.


# Between these no underflow or overflow matters.
SMALLEST, SAFE = 2.0**-60, 2.0**40


@dataclass(frozen=True)
class SingleUseLinear:
    """One layer's use: inputs (B, m), gradients of its outputs (B, n), names of its parameters."""

    inputs: Tensor
    gradients: Tensor
    weight: str | None
    bias: str | None


def clip_and_sum_once(
    uses: Sequence[SingleUseLinear],
    clip_norm: float,
    round_size: int | None,
    count: int | None = None,
) -> Sums | None:
    """As :func:`.sums.clip_and_sum` with flat clipping; None where that must be asked.

    Args:
        uses: each parameter in one of them; float32.
        count: how many of the rows count, the first ones; None: all.
    """
    count = len(uses[0].inputs) if count is None else count
    with exactly(uses[0].inputs.device.type):
        found = _scaled(uses, clip_norm, count, max(count, round_size or count), count)
        if found is None:
            return None
        norms, scaled = found
        return _summed(uses, scaled, None), norms


def clip_and_sum_once_parts(
    uses: Sequence[SingleUseLinear], clip_norm: float, sizes: Sequence[int]
) -> list[Sums] | None:
    """The same for each of several parts of a batch, one after the other; none of them is empty.

    What holds for the longest part's sum holds for shorter ones: each bound grows with the length.
    None where one part by itself might be formed in another way.
    """
    with exactly(uses[0].inputs.device.type):
        found = _scaled(uses, clip_norm, max(sizes), max(sizes), sum(sizes))
        if found is None:
            return None
        norms, scaled = found
        return [(_summed(uses, scaled, part), norms[part]) for part in in_a_row(sizes)]


def _scaled(
    uses: Sequence[SingleUseLinear], clip_norm: float, size: int, whole: int, count: int
) -> tuple[Tensor, list[Tensor]] | None:
    """Norms, float32, and every use's clipped gradients of its outputs.

    The factors are those of the general way, to the bit: which way a sum takes may follow from the
    other records, and a factor must not.

    Args:
        size: of the longest sum that is formed. whole: contributions of the round that it is of.
        count: how many rows count, the first ones; the factor of the others is 0.
    """
    # B contributions of at most C, whose products meet at most B + 4 roundings each.
    rows = uses[0].inputs.shape[0]
    products = sum(use.inputs.shape[1] * use.gradients.shape[1] for use in uses)
    lost = tiny(torch.float32) * rows * products * SAFE
    off = gamma(rows + 4, torch.float32) * size * clip_norm + lost
    allowed = clip_norm * (CHARGE / 2) * OWN * size / whole
    if off > allowed or not SMALLEST < clip_norm < SAFE:
        return None
    found: list[Tensor] = []
    longest = 0.0
    for use in uses:
        long, slope = lengths(use.inputs), lengths(use.gradients)
        longest = max(longest, float(long.max()))
        found += [long * slope] * (use.weight is not None) + [slope] * (use.bias is not None)
    norms = Norms((), even(found))
    if not longest < SAFE or not float(norms.total.max()) < SAFE:  # or they are no numbers
        return None
    factors = flat_factors(norms, clip_norm * (1 - CHARGE) * NARROW).float()
    if factors.shape[0] > count:
        factors = factors[:rows]
        factors[count:] = 0.0
    column = factors.unsqueeze(1)
    return norms.total[:count].float(), [use.gradients * column for use in uses]


def _summed(
    uses: Sequence[SingleUseLinear], scaled: Sequence[Tensor], part: slice | None
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for use, clipped in zip(uses, scaled, strict=True):
        few, inputs = (clipped, use.inputs) if part is None else (clipped[part], use.inputs[part])
        if use.weight is not None:
            sums[use.weight] = product_in_blocks(few.t(), inputs, len(inputs))
        if use.bias is not None:
            sums[use.bias] = few.sum(0).double()
    return sums


# Clip every contribution and add them up, so that the computed sum keeps the bound C.
#
# The theorem and its proof are in docs/gradients.md, "The sum in floating point". Here its three
# conditions are met: norms are proven upper bounds, factors are made from them by the numbers of
# one contribution alone, and the error of the sum is bounded before the sum is formed, which
# decides how it is formed: float32 products where their bound suffices, in blocks of so many terms,
# else float64.


def clip_and_sum(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    clip: ClippingRule = flat,
    round_size: int | None = None,
    count: int | None = None,
    keep: Callable[[str, Tensor], Tensor] | None = None,
) -> Sums:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        terms: parameter name → its gradients; emptied, so that nothing is held longer than needed.
        trained: the parameters by name, or what has their shapes and types, in the same order.
        clip_norm: C, by which one contribution more or less moves the result at most.
        clip: how norms become factors.
        round_size: contributions of the whole round, where several calls are added up.
        count: how many of the contributions count, the first ones; the others fill up a block and
            repeat these. None: all.
        keep: what is kept of each parameter's sum, as soon as that is formed; None: all of it.

    Returns:
        Sums in float64 in the parameters' shapes; norms (upper bounds), shape (contributions,),
        float32, or float64 where a parameter is. A contribution that is not finite adds zero.

    Raises:
        ValueError: more contributions than ``round_size``, or a round of more than 2^20.
    """
    ready = weighed(terms, trained, clip_norm, clip, round_size, count)
    sums = {}
    with exactly(ready.norms.device.type):
        for name, row, length in zip(ready.names, ready.factors, ready.lengths, strict=True):
            found = ready.held.pop(0).summed(row, length).view(trained[name].shape)
            sums[name] = found if keep is None else keep(name, found)
    return sums, ready.norms


@dataclass(frozen=True)
class Weighed:
    """The parts that a clipped sum is formed from.

    Attributes:
        names: of the parameters. held: their terms.
        factors: shape (parameters, contributions). lengths: of float32 blocks; None: in float64.
        norms: before clipping, as they are handed over.
    """

    names: tuple[str, ...]
    held: list[BoundedTerm]
    factors: Tensor
    lengths: list[int | None]
    norms: Tensor


def weighed(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    clip: ClippingRule,
    round_size: int | None,
    count: int | None = None,
) -> Weighed:
    """Everything of :func:`clip_and_sum` but the sums; the same arguments, and the same errors."""
    names = tuple(terms)
    first = next(iter(trained.values()))
    precise = any(p.dtype == torch.float64 for p in trained.values())
    with exactly(first.device.type):
        held = [bounded(terms.pop(name)) for name in names]
        measured = Measured([term.bounds() for term in held], names)
        rows = len(measured.found[0].norms)
        real = rows if count is None else count
        share = _share(max(real, 1), round_size)  # nothing but zeros has no error
        greatest = float(measured.norms.total.max())
        if not math.isfinite(greatest):
            held, measured = _settled(held, measured)
        # Rounding a factor to float32 moves it by less than the margin.
        bound = clip_norm * (1 - CHARGE) * (1 if precise else NARROW)
        if clip is flat and measured.masses is None and math.isfinite(greatest):
            row = flat_factors(measured.norms, bound)
            scaling, largest = row.expand_as(measured.norms.by_parameter), 1.0
        else:
            scaling = factors(measured.norms, bound, clip, measured.masses, MASS * clip_norm)
            largest = max(1.0, float(scaling.max()))
        scaling = scaling if precise else scaling.float()
        missing = scaling.shape[1] - real
        if missing:
            scaling = torch.cat([scaling[:, :real], scaling.new_zeros(len(held), missing)], 1)
        limits = Limits(clip_norm, clip_norm * (CHARGE / 2) * OWN * share, largest, precise)
        lengths = block_lengths(held, scaling, measured, limits)
    total = measured.norms.total[:real]
    if not precise:
        # A norm beyond float32 is still a number.
        limit = torch.finfo(torch.float32).max
        if not greatest < limit:
            total = torch.where(total < math.inf, total.clamp(max=limit), total)
        total = total.float()
    return Weighed(names, held, scaling[:, :rows], lengths, total)


def _settled(held: list[BoundedTerm], measured: Measured) -> tuple[list[BoundedTerm], Measured]:
    """Measure what overflowed float32 in float64, and set to zero what is no number."""
    names = measured.norms.names
    index = (~torch.isfinite(measured.norms.total)).nonzero().squeeze(1)
    found = [
        _replaced(bounds, index, [term.picked(at).bounds() for at in torch.split(index, 1)])
        if term.dtype == torch.float32
        else bounds
        for bounds, term in zip(measured.found, held, strict=True)
    ]
    measured = Measured(found, names)
    bad = ~torch.isfinite(measured.norms.total[: len(found[0].norms)])
    if bad.any():
        held = [bounded(term.without(bad)) for term in held]
        measured.found = [
            b if b.reach is None else b._replace(reach=b.reach.masked_fill(bad, 0)) for b in found
        ]
        if measured.masses is not None:
            measured.masses = measured.masses.nan_to_num(nan=0.0, posinf=0.0)
    return held, measured


def _share(size: int, round_size: int | None) -> float:
    whole = size if round_size is None else round_size
    if not size <= whole:
        raise ValueError(
            f"round_size is the number of contributions of the whole round, at least the {size} "
            f"of this call, not {round_size}"
        )
    if whole > RECORDS:
        raise ValueError(
            f"a round of {whole} contributions is more than the {RECORDS} for which the sum keeps "
            "its bound in floating point; make the expected batch smaller"
        )
    return size / whole


def _replaced(bounds: TermBounds, index: Tensor, better: Sequence[TermBounds]) -> TermBounds:
    norms = bounds.norms.index_copy(0, index, torch.cat([one.norms for one in better]))
    masses, reach = bounds.masses, bounds.reach
    if masses is not None:
        masses = masses.index_copy(0, index, torch.cat([mass_of(one) for one in better]))
    known = [one.reach for one in better if one.reach is not None]
    if reach is not None and len(known) == len(better):
        reach = reach.index_copy(0, index, torch.cat(known))
    return TermBounds(norms, masses, reach)


# Clipped sums of several parts of a batch from what is worked out once for all of it.
#
# Norms and factors are of one contribution each. Where the sum of all contributions may be formed
# in float32 at once, so may a part's, and it is what the part decides by itself: every bound of
# the certificate grows with the number of products and with the masses, and what is allowed is
# the same. Everywhere else each part is summed by itself, so that no part's bits follow from
# another's numbers.


def clip_and_sum_parts(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    sizes: Sequence[int],
    clip: ClippingRule = flat,
) -> list[Sums]:
    """For each part of a batch, what :func:`.sums.clip_and_sum` returns.

    Args:
        terms, trained, clip_norm, clip: as there, of the whole batch.
        sizes: contributions of each part, one after the other; none is 0.

    Raises:
        ValueError: see :func:`.sums.clip_and_sum`.
    """
    whole = {
        name: term if isinstance(term, Dense | Outer) else Dense(term.rows())
        for name, term in terms.items()
    }
    terms.clear()
    ready = weighed(dict(whole), trained, clip_norm, clip, None) if clip is flat else None
    if ready is None or not _at_once(ready):
        each: Iterator[dict[str, Term]] = (
            {name: term.some(at) for name, term in whole.items()} for at in in_a_row(sizes)
        )
        return [clip_and_sum(part, trained, clip_norm, clip) for part in each]
    found = []
    with exactly(ready.norms.device.type):
        for at in in_a_row(sizes):
            sums = {}
            for name, row, length in zip(ready.names, ready.factors, ready.lengths, strict=True):
                part = whole[name].some(at).summed(row[at], length)
                sums[name] = part.view(trained[name].shape)
            found.append((sums, ready.norms[at]))
    return found


def _at_once(ready: Weighed) -> bool:
    """True if every sum is formed in one block, of numbers that all are finite."""
    return bool(torch.isfinite(ready.norms).all()) and all(
        term.dtype == torch.float64 if length is None else term.added <= length
        for term, length in zip(ready.held, ready.lengths, strict=True)
    )
