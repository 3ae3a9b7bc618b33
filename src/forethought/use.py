"""The use of a noised sum: optimizer, step sizes, averaging. Post-processing, hence free.

Nothing in here can change a guarantee; what privacy depends on is in :mod:`forethought.privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from forethought.assumed import Assumed
from forethought.checks import one_of, real, whole
from forethought.optimizers import check_options
from forethought.serialisation import build, exact_keys, plain

ScheduleKind = Literal["constant", "inverse", "inverse-sqrt", "cosine", "drops"]
AveragingKind = Literal["none", "exponential", "tail"]
FilterKind = Literal["low-pass", "kalman"]


@dataclass(frozen=True)
class Schedule:
    """Step size as a function of time t, counted in ``unit`` and starting at 0.

    ``constant`` η₀; ``inverse`` η₀/(1 + decay·t); ``inverse-sqrt`` η₀/(1 + decay·√t); ``cosine``
    from η₀ to 0 over the run; ``drops`` multiplies by ``decay`` (0.9, say) after every epoch in
    which accuracy on held-out records fell, which must then be public. Over the first ``warmup``
    rounds η grows linearly to its value.
    """

    kind: ScheduleKind = "constant"
    decay: float = 0.0
    warmup: int = 0
    unit: Literal["rounds", "examples"] = "rounds"

    def __post_init__(self) -> None:
        one_of("schedule", self.kind, get_args(ScheduleKind))
        object.__setattr__(self, "decay", real("decay", self.decay, least=0))
        if self.kind == "drops" and not 0 < self.decay < 1:
            raise ValueError(
                f"the schedule 'drops' multiplies by decay: above 0 and below 1, not {self.decay:g}"
            )
        object.__setattr__(self, "warmup", whole("warmup", self.warmup, least=0))
        one_of("schedule unit", self.unit, ("rounds", "examples"))


@dataclass(frozen=True)
class Averaging:
    """The average of the iterates that is the reported model: free post-processing.

    ``exponential`` weights by ``decay`` a round (with warm-up of the weight); ``tail`` averages
    the last ``fraction`` of the rounds evenly; ``none`` reports the last iterate.
    """

    kind: AveragingKind = "exponential"
    decay: float = 0.95
    fraction: float = 0.25

    def __post_init__(self) -> None:
        one_of("averaging", self.kind, get_args(AveragingKind))
        real("averaging decay", self.decay, least=0, below=1)
        real("averaging fraction", self.fraction, above=0, most=1)


@dataclass(frozen=True)
class Optimizer:
    """A torch optimizer by name: ``"sgd"``, ``"adam"``, … or ``"module:Class"``, with options."""

    name: str = "sgd"
    learning_rate: float = 0.1
    options: tuple[tuple[str, Any], ...] = (("momentum", 0.9),)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"optimizer must be a name, not {self.name!r}")
        rate = real("learning_rate", self.learning_rate, above=0)
        object.__setattr__(self, "learning_rate", rate)
        pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
        frozen = tuple(
            (str(name), tuple(value) if isinstance(value, list) else value) for name, value in pairs
        )
        object.__setattr__(self, "options", frozen)
        check_options(self.name, dict(frozen))


@dataclass(frozen=True)
class GradientFilter:
    """The filter of noised means before the optimizer steps along them: post-processing.

    What noise there is in each round is independent of that in the others, and the gradient is
    not, so later rounds tell of earlier ones. Each kind lags behind by ``delay`` rounds.

    ``low-pass``: a Butterworth filter of first or second order, corrected for its start (DOPPLER,
    Zhang, Bu, Hong and Razaviyayn 2024, Algorithm 1). ``kalman``: a running estimate whose gain
    follows from each round's known noise, of gradients that are taken ahead of the weights by as
    many steps as the estimate lags behind (DiSK, Zhang et al. 2025, with γ = (1 − κ)/κ, which takes
    one gradient a round as ever).

    Args:
        kind: which. delay: in rounds, at least 0.5 for ``low-pass``; None: a hundredth of the
            run's rounds and at least one. Where the gain κ has settled, delay = (1 − κ)/κ.
        order: of ``low-pass``, 1 or 2.

    Raises:
        ValueError, TypeError: no such kind, or a number outside its range.
    """

    kind: FilterKind = "low-pass"
    delay: float | None = None
    order: int = 1

    def __post_init__(self) -> None:
        one_of("gradient_filter", self.kind, get_args(FilterKind))
        if self.delay is not None:
            least = 0.5 if self.kind == "low-pass" else 1e-3
            delay = real("delay of gradient_filter", self.delay, least=least)
            object.__setattr__(self, "delay", delay)
        object.__setattr__(self, "order", whole("order of gradient_filter", self.order, most=2))
        if self.kind == "kalman" and self.order != 1:
            raise ValueError("order goes with the gradient_filter 'low-pass': drop it")

    @classmethod
    def of(cls, asked: object) -> GradientFilter | None:
        """A filter from one of these, from a kind, or from the fields by name.

        Raises:
            ValueError, TypeError: none of these.
        """
        if asked is None or isinstance(asked, GradientFilter):
            return asked
        if isinstance(asked, str):
            return cls(asked)  # type: ignore[arg-type]
        if isinstance(asked, Mapping):
            unknown = sorted(set(asked) - {"kind", "delay", "order"})
            if unknown:
                raise ValueError(
                    "gradient_filter has kind, delay and order, not "
                    f"{', '.join(map(repr, unknown))}"
                )
            return cls(**asked)
        raise TypeError(
            'gradient_filter must be "low-pass", "kalman" or a forethought.GradientFilter, not '
            f"{asked!r}"
        )

    def noise_left(self, rounds: int) -> float:
        """The share of independent noise's variance that is left, far from the run's beginning."""
        delay = self.rounds_late(rounds)
        if self.kind == "kalman":  # κ/(2 − κ)
            return 1 / (1 + 2 * delay)
        # (2/π) ∫ dx/((1 + x²)(1 + (x/w)²ⁿ)), with x the tangent of half a frequency.
        if self.order == 1:
            w = 0.5 / delay
            return w / (1 + w)
        w = math.sqrt(0.5) / delay
        return w**4 / (1 + w**4) * (1 + math.sqrt(0.5) * (1 - w * w) / w**3)

    def rounds_late(self, rounds: int) -> float:
        """The delay, given or the default, in a run of so many rounds."""
        return max(1.0, rounds / 100) if self.delay is None else self.delay


@dataclass(frozen=True)
class Use:
    """The use of the noised means of a run.

    Args:
        optimizer: steps along a noised mean. schedule: its step sizes.
        averaging: which average of the iterates is reported.
        assumed: the model that the planner chose for; None: nothing follows from a model's size.
        gradient_filter: what noised means go through first; None: nothing.
    """

    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    averaging: Averaging = Averaging()
    assumed: Assumed | None = None
    gradient_filter: GradientFilter | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        values: dict[str, Any] = plain({name: getattr(self, name) for name in _PARTS})
        values["optimizer"]["options"] = plain(dict(self.optimizer.options))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Use:
        """The inverse of :meth:`to_dict`; refuses unknown keys."""
        exact_keys("use", values, _PARTS)
        parts = {name: part for name, part in values.items() if part is not None}
        return cls(**{name: build(_PARTS[name], part) for name, part in parts.items()})


_PARTS: dict[str, type[Any]] = {
    "optimizer": Optimizer,
    "schedule": Schedule,
    "averaging": Averaging,
    "assumed": Assumed,
    "gradient_filter": GradientFilter,
}
