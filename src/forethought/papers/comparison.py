"""ε of one mechanism by every analysis: the exact interval beside the other results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from forethought.accounting import exact
from forethought.accounting.interval import at_least
from forethought.accounting.renyi import rdp, zcdp
from forethought.papers import closed_form
from forethought.papers.adaptive_noise import paper_epsilon
from forethought.papers.strong_adversary import KnownHits
from forethought.values.mechanism import Mechanism, Poisson, Rounds, UnsupportedMechanismError
from forethought.values.serialisation import entries


@dataclass(frozen=True)
class ComparisonRow:
    """The ε of one analysis.

    Args:
        name: the analysis.
        epsilon: its ε; None if it does not apply.
        guarantee: True if the number is a proven upper bound for the stated attacker.
        note: a remark, or the reason why the analysis does not apply.
    """

    name: str
    epsilon: float | None
    guarantee: bool
    note: str

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON."""
        return entries(self)


class _Answer(NamedTuple):
    """ε, True if it is a proven upper bound, and a remark."""

    epsilon: float
    guarantee: bool
    note: str


class _DoesNotApplyError(ValueError):
    """An analysis does not apply to the mechanism; the message is the reason."""


def compare(
    mechanism: Mechanism, delta: float, examples: int | None = None, group: int = 1
) -> list[ComparisonRow]:
    """ε by every analysis of this library.

    Args:
        mechanism: the released rounds.
        delta: in (0, 1).
        examples: number of records; the closed form needs it.
        group: number of records in which neighbours differ; most analyses are for one record only.

    Returns:
        One row for each analysis, the exact one first.

    Raises:
        UnsupportedMechanismError: no theorem covers the mechanism.
    """
    interval = exact.epsilon(mechanism, delta, group)
    note = f"certified; at least {at_least(interval.lower, '.6g')}"
    rows = [ComparisonRow("exact", interval.upper, True, note)]
    analyses: dict[str, Callable[[], _Answer]] = {
        "Rényi": lambda: _Answer(
            rdp(mechanism).epsilon(delta), True, "loses what orders cannot see"
        ),
        "zCDP": lambda: _zcdp(mechanism, delta),
        "closed form": lambda: _closed_form(mechanism, delta, examples),
        "CLT (approximate)": lambda: _Answer(
            closed_form.approximate_clt_epsilon(mechanism, delta),
            False,
            "no bound: may be too small as well as too large",
        ),
        "strong adversary": lambda: _strong_adversary(mechanism, delta),
    }
    for name, analyse in analyses.items():
        try:
            if group > 1:
                raise _DoesNotApplyError(f"speaks of one record, not of {group} together")
            rows.append(ComparisonRow(name, *analyse()))
        except (_DoesNotApplyError, UnsupportedMechanismError) as error:
            rows.append(ComparisonRow(name, None, False, str(error)))
    return rows


def _zcdp(mechanism: Mechanism, delta: float) -> _Answer:
    rho = zcdp(mechanism)
    if not math.isfinite(rho):
        raise _DoesNotApplyError("there is no noise")
    return _Answer(paper_epsilon(rho, delta), True, f"ρ = {rho:.6g}; sampling does not lower ρ")


def _only(mechanism: Mechanism) -> Rounds:
    if len(mechanism.rounds) != 1:
        raise _DoesNotApplyError("speaks of equal rounds only")
    return mechanism.rounds[0]


def _closed_form(mechanism: Mechanism, delta: float, examples: int | None) -> _Answer:
    part = _only(mechanism)
    if (
        not isinstance(part.sampling, Poisson)
        or part.clipping != "example"
        or mechanism.adjacency == "replace-one"
    ):
        raise _DoesNotApplyError("speaks of Poisson batches and clipped examples only")
    if examples is None:
        raise _DoesNotApplyError("needs the number of examples")
    sigma = part.noise_multiplier
    if sigma**2 <= 2:
        raise _DoesNotApplyError("needs σ above √2")
    epsilon = closed_form.closed_form_epsilon(sigma, delta)
    sizes = closed_form.SampleSizes.constant(part.sampling.rate * examples, part.count, examples)
    for theorem in (closed_form.theorem_b_4, closed_form.theorem_3_1):
        found = theorem(epsilon, delta, sigma, sizes)
        if found.holds:
            return _Answer(epsilon, True, f"{found.theorem} of the proactive paper holds")
    found = closed_form.theorem_b_4(epsilon, delta, sigma, sizes)
    failed = next(condition for condition in found.conditions if not condition.holds)
    return _Answer(epsilon, False, f"not proven here: Theorem B.4 lacks {failed.name}")


def _strong_adversary(mechanism: Mechanism, delta: float) -> _Answer:
    part = _only(mechanism)
    if part.noise_multiplier == 0:
        raise _DoesNotApplyError("there is no noise")
    known = KnownHits.of_rounds(part, mechanism.adjacency)
    note = "the attacker also knows which batches held the record"
    return _Answer(known.epsilon(delta).upper, True, note)
