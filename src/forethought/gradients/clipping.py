"""Clipping rules: from the norms of contributions to the factors that bound them.

A rule never sees a gradient, only norms, and whatever it answers is capped so that no scaled
contribution exceeds the clipping norm: a mistaken rule costs accuracy, not privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from forethought.checks import real
from forethought.privacy import Clip


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
    """The function that a plan's :class:`forethought.privacy.Clip` names.

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
