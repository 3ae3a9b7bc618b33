"""The facts about optimizers that planner, federation and gossip need, without torch.

A row of :data:`OPTIMIZERS` has everything that follows from an optimizer's name except its steps,
which are a class of torch.optim or of this library. Other optimizers are possible, torch's own by
name or ``"module:Class"``: nothing is known or assumed about them (:data:`UNKNOWN`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

from forethought.values.checks import described, frozen, one_of, real, require_parts, settle, whole
from forethought.values.serialisation import build, entries, exact_keys, plain

Options = Mapping[str, Any]
# Number of rounds at which a falling floor is evaluated.
_POINTS = 1000


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """The facts about an optimizer; each must be given.

    Args:
        home: ``"module:Class"``, imported where it steps.
        descends: whether it is gradient descent, with or without momentum: the planner then
            chooses the length of its path, and a sum of its steps is a step along the sum.
        options: the planner's options for it by default.
        divides: the square of the number that divides a coordinate with noise alone, from the
            noise's variance, the options and the number of rounds; None: unknown, so that the step
            size is :data:`USUAL_RATE`.
        longest: the largest L2 norm of a step of size 1, without weight decay, from the options,
            the norm of the mean and the number of weights; None: unknown.
        weight_decay: its default weight decay.
    """

    home: str
    descends: bool
    options: tuple[tuple[str, Any], ...]
    divides: Callable[[float, Options, int], float] | None
    longest: Callable[[Options, float, int], float] | None
    weight_decay: float


# Adam's default step size, used where noise does not decide it.
USUAL_RATE = 1e-3


def momentum_of(options: Options) -> float:
    """The momentum among an optimizer's options; 0 without one."""
    return float(options.get("momentum", 0.0))


def _of_momentum(options: Options, mean: float, parameters: int) -> float:
    return mean / (1 - momentum_of(options))


def _of_adam(options: Options, mean: float, parameters: int) -> float:
    # By Cauchy–Schwarz this bounds |m̂|/√v̂ after t steps for all gradients: 7.3 in the limit with
    # the usual betas, bias included. Gradients that grow by β₂/β₁ a step reach it.
    first, second = map(float, options.get("betas", (0.9, 0.999)))
    if first**2 >= second:
        return math.inf if first else math.sqrt(parameters)
    ratio = first**2 / second
    most = max(
        math.sqrt((1 - ratio**t) / (1 - ratio) * (1 - second**t)) / (1 - first**t)
        for t in range(1, 1000)
    )
    return (
        (1 - first)
        / math.sqrt(1 - second)
        * max(most, 1 / math.sqrt(1 - ratio))
        * math.sqrt(parameters)
    )


def _of_nadam(options: Options, mean: float, parameters: int) -> float:
    return 2 * _of_adam(options, mean, parameters)  # one for the moment, one for the gradient


def _of_radam(options: Options, mean: float, parameters: int) -> float:
    return max(_of_adam(options, mean, parameters), mean)  # its first steps are plain means


def _of_adamax(options: Options, mean: float, parameters: int) -> float:
    first, second = map(float, options.get("betas", (0.9, 0.999)))
    if first >= second:
        return math.inf
    return max(1.0, (1 - first) / (1 - first / second)) * math.sqrt(parameters)


def _by_noise(variance: float, options: Options, rounds: int) -> float:
    return variance


def _by_floor(variance: float, options: Options, rounds: int) -> float:
    floor = options.get("floor")
    if floor is not None:
        return float(floor)
    # The default floor falls over the rounds, so the mean of 1/√floor over the rounds is used.
    second = tuple(options.get("betas", (0.9, 0.999)))[1]
    count = min(rounds, _POINTS)
    total = 0.0
    for point in range(count):
        past = second ** (1 + point * (rounds - 1) / max(1, count - 1))
        floor = math.sqrt(2 * (1 - second) / (1 + second) * (1 + past) / (1 - past))
        total += floor**-0.5
    return variance / (total / count) ** 2


# Optimizers that are no gradient descent, without options by default; nothing else is known.
_ADAPTIVE = partial(
    OptimizerKind, descends=False, options=(), divides=None, longest=None, weight_decay=0.0
)
OPTIMIZERS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        home="torch.optim:SGD",
        descends=True,
        options=(("momentum", 0.9),),
        divides=None,
        longest=_of_momentum,
        weight_decay=0.0,
    ),
    "adam": _ADAPTIVE(home="torch.optim:Adam", divides=_by_noise, longest=_of_adam),
    "adamw": _ADAPTIVE(
        home="torch.optim:AdamW", divides=_by_noise, longest=_of_adam, weight_decay=0.01
    ),
    "nadam": _ADAPTIVE(home="torch.optim:NAdam", longest=_of_nadam),
    "radam": _ADAPTIVE(home="torch.optim:RAdam", longest=_of_radam),
    "adamax": _ADAPTIVE(home="torch.optim:Adamax", longest=_of_adamax),
    "yogi": _ADAPTIVE(home="forethought.training.optimizers:Yogi"),
    "adam-bc": _ADAPTIVE(home="forethought.training.optimizers:AdamBC", divides=_by_floor),
}
UNKNOWN = _ADAPTIVE(home="")


def kind_of(name: str) -> OptimizerKind:
    """The facts about an optimizer, by its name in any case; :data:`UNKNOWN` for other names."""
    return OPTIMIZERS.get(name.lower(), UNKNOWN)


def check_options(optimizer: str, options: Options) -> None:
    """Refuse invalid options of optimizers; a user's own (``"module:Class"``) are not checked.

    Raises:
        TypeError, ValueError: a momentum, betas or a floor outside its range.
    """
    if ":" in optimizer:
        return
    if options.get("momentum") is not None:
        real(f"momentum of {optimizer}", options["momentum"], least=0, below=1)
    if options.get("floor") is not None:
        real(f"floor of {optimizer}", options["floor"], above=0)
    if "betas" in options:
        betas = options["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"betas of {optimizer} must be two numbers in [0, 1), not {betas!r}")
        for beta in betas:
            real(f"each of the betas of {optimizer}", beta, least=0, below=1)


# The planner's assumptions about the model of a run, and the cost where the model is another one.


# A step size that is wrong by a smaller factor costs almost nothing.
TOLERATED = 1.1


@dataclass(frozen=True)
class Assumed:
    """The model that a plan's step size and batch were chosen for.

    Args:
        parameters: number of weights that it trains.
        feature_norm: usual norm of its features, where the rule for linear models was used; None:
            the general rule was used.
        guessed: whether ``parameters`` is the planner's guess.
        chosen: the numbers that were chosen from these: "step size", "batch".
    """

    parameters: int
    feature_norm: float | None
    guessed: bool
    chosen: tuple[str, ...]

    def __post_init__(self) -> None:
        settle(self, parameters=whole("assumed parameters", self.parameters))
        if self.feature_norm is not None:
            settle(self, feature_norm=real("assumed feature_norm", self.feature_norm, above=0))
        settle(self, chosen=tuple(map(str, self.chosen)))


def is_linear(model: Any) -> bool:
    """True if a torch module is one linear layer, judged by its class names, without torch."""
    return linear_layer(model) is not None


def linear_layer(model: Any) -> Any:
    """The layer of a linear model, after at most one Flatten; None for other models."""
    parts = [part for part in model.modules() if not list(part.children())]
    linear = [type(part).__name__ for part in parts] in (["Linear"], ["Flatten", "Linear"])
    return parts[-1] if linear else None


def module_of(model: Any) -> Any:
    """The torch module itself, or the one that a function without arguments builds.

    Raises:
        TypeError: ``model`` is neither.
    """
    built = model
    if not hasattr(model, "parameters") and callable(model):
        built = model()
    if isinstance(built, type) or not hasattr(built, "parameters"):
        what = built.__name__ if isinstance(built, type) else type(built).__name__
        raise TypeError(
            f"model must be a torch module, or a function without arguments that builds one, not "
            f"{what}"
        )
    return built


def trained_parameters(model: Any) -> int:
    """The number of trained parameters of a torch module; shared ones count once.

    Raises:
        ValueError: layers whose sizes are not known yet, or nothing to train.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    # torch.nn.LazyLinear and the like have weights without a shape until their first input.
    if any(type(p).__name__ == "UninitializedParameter" for p in trained):
        raise ValueError(
            "the model has lazy layers, whose sizes nobody knows before they see an input: call it "
            "once on zeros, such as model(torch.zeros(1, 784)), or plan with parameters="
        )
    if not trained:
        raise ValueError("the model trains nothing: none of its parameters requires a gradient")
    return sum(p.numel() for p in trained)


def differences(
    assumed: Assumed, parameters: int, linear: bool, feature_norm: float | None
) -> tuple[str, ...]:
    """The differences between a model and the one that a plan assumed, with cost and remedy.

    Args:
        assumed: the plan's assumptions.
        parameters: number of trained weights of the model. linear: whether it is linear.
        feature_norm: declared usual norm of its features; None: unknown.

    Returns:
        One text for each difference.
    """
    chosen = " and ".join(assumed.chosen) + (" was" if len(assumed.chosen) == 1 else " were")
    known = assumed.feature_norm
    if known is not None and not linear:
        return (
            f"the plan's {chosen} chosen for a linear model on features of norm {known:.3g}, "
            f"and the model, of {parameters:,} weights, is none: its scores may be many times as "
            "noisy as is meant. Plan again with forethought.plan(..., model=model)",
        )
    if known is None:
        found = _size(assumed, parameters, chosen)
        if linear and feature_norm is not None:
            found += (
                f"the plan's {chosen} chosen for features of unknown norm and "
                f"{assumed.parameters:,} weights, the model is linear and the data's features have "
                f"norm {feature_norm:.3g}, as declared: the rule for known norms was not used, and "
                "steps may be several times too long or too short. Plan again with "
                f"forethought.plan(..., feature_norm={feature_norm:.6g}), or data= and model=",
            )
        return found
    # The noise in a linear model's scores does not depend on the number of weights.
    if feature_norm is None:
        return ()
    factor = math.hypot(feature_norm, 1.0) / math.hypot(known, 1.0)
    if 1 / TOLERATED <= factor <= TOLERATED:
        return ()
    return (
        f"the plan's {chosen} chosen for features of norm {known:.3g}, the data's have norm "
        f"{feature_norm:.3g}, as declared: its steps are {_off(factor)}. Plan again with "
        f"forethought.plan(..., feature_norm={feature_norm:.6g})",
    )


def _size(assumed: Assumed, parameters: int, chosen: str) -> tuple[str, ...]:
    factor = math.sqrt(parameters / assumed.parameters)  # the longest path is proportional to 1/√p
    if 1 / TOLERATED <= factor <= TOLERATED:
        return ()
    guess = " (a guess, since neither model= nor parameters= was given)" if assumed.guessed else ""
    cost = (
        f"where noise limits them, its steps are {_off(factor)}"
        if "step size" in assumed.chosen
        else "for so many another batch may leave less noise, or cost less"
    )
    return (
        f"the plan's {chosen} chosen for {assumed.parameters:,} weights{guess}, the model "
        f"trains {parameters:,}: {cost}. Plan again "
        f"with forethought.plan(..., model=model), or parameters={parameters}",
    )


def _off(factor: float) -> str:
    """The cost, in words, of steps that are ``factor`` times the right length."""
    if factor > 1:
        return f"{factor:.2g} times too long, and leave as much more noise in the model as is meant"
    return f"{1 / factor:.2g} times too short, and the model gets only as far in as many rounds"


# The use of noised sums: optimizer, step sizes, averaging. All of it is post-processing.


ScheduleKind = Literal["constant", "inverse", "inverse-sqrt", "cosine", "stages", "drops"]
AveragingKind = Literal["none", "exponential", "tail"]
FilterKind = Literal["low-pass", "kalman"]


@dataclass(frozen=True)
class Schedule:
    """The step size as a function of time t, which starts at 0 and is counted in ``unit``.

    ``constant`` η₀; ``inverse`` η₀/(1 + decay·t); ``inverse-sqrt`` η₀/(1 + decay·√t); ``cosine``
    from η₀ to 0 over the run; ``stages`` multiplies by ``decay`` at each of the shares of the run
    in ``stages``, such as 0.1 at (0.5, 0.75); ``drops`` multiplies by ``decay`` (for example 0.9)
    after every epoch in which the accuracy on held-out records fell; these records must then be
    public. Over the first ``warmup`` rounds η grows linearly to its value.

    Raises:
        ValueError, TypeError: an unknown kind or unit, a number outside its range, or ``stages``
            with another kind.
    """

    kind: ScheduleKind = "constant"
    decay: float = 0.0
    warmup: int = 0
    unit: Literal["rounds", "examples"] = "rounds"
    stages: tuple[float, ...] = ()
    LATER: ClassVar[tuple[str, ...]] = ("stages",)

    def __post_init__(self) -> None:
        one_of("schedule", self.kind, get_args(ScheduleKind))
        stages = tuple(real("each of the stages", at, above=0, below=1) for at in self.stages)
        settle(self, stages=stages)
        if (self.kind == "stages") != bool(stages):
            raise ValueError(
                "stages= says at which shares of the run the schedule 'stages' multiplies by "
                "decay, such as (0.5, 0.75): give both, or neither"
            )
        if any(later <= earlier for earlier, later in pairwise(stages)):
            raise ValueError(f"the stages are shares of the run in ascending order, not {stages}")
        settle(self, decay=real("decay", self.decay, least=0))
        if self.kind in ("drops", "stages") and not 0 < self.decay < 1:
            raise ValueError(
                f"the schedule {self.kind!r} multiplies by decay: above 0 and below 1, not "
                f"{self.decay:g}"
            )
        settle(self, warmup=whole("warmup", self.warmup, least=0))
        one_of("schedule unit", self.unit, ("rounds", "examples"))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; empty ``stages`` are left out."""
        return entries(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schedule:
        """The inverse of :meth:`to_dict`; refuses unknown keys."""
        return build(cls, values)


@dataclass(frozen=True)
class Averaging:
    """The average of the iterates that is the reported model: post-processing, without a cost in ε.

    ``exponential`` weights by ``decay`` per round (with warm-up of the weight); ``tail`` averages
    the last ``fraction`` of the rounds evenly; ``none`` reports the last iterate.
    """

    kind: AveragingKind = "exponential"
    decay: float = 0.95
    fraction: float = 0.25

    def __post_init__(self) -> None:
        one_of("averaging", self.kind, get_args(AveragingKind))
        settle(self, decay=real("averaging decay", self.decay, least=0, below=1))
        settle(self, fraction=real("averaging fraction", self.fraction, above=0, most=1))


@dataclass(frozen=True)
class Optimizer:
    """A torch optimizer by name: ``"sgd"``, ``"adam"``, … or ``"module:Class"``, with options."""

    name: str = "sgd"
    learning_rate: float = 0.1
    options: tuple[tuple[str, Any], ...] = OPTIMIZERS["sgd"].options

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"optimizer must be a name, not {self.name!r}")
        settle(self, learning_rate=real("learning_rate", self.learning_rate, above=0))
        settle(self, options=frozen(self.options))
        check_options(self.name, dict(self.options))

    @property
    def momentum(self) -> float:
        """The momentum among the options; 0 without one."""
        return momentum_of(dict(self.options))


@dataclass(frozen=True)
class GradientFilter:
    """The filter of noised means before the optimizer steps along them: post-processing.

    The noise of each round is independent of that of the others, but gradients change slowly, so
    that averaging over rounds removes noise. Each kind lags behind by ``delay`` rounds.

    ``low-pass``: a Butterworth filter of first or second order, corrected for its start (DOPPLER,
    Zhang, Bu, Hong and Razaviyayn 2024, Algorithm 1). ``kalman``: a running estimate whose gain
    follows from each round's known noise. Gradients are computed at weights that are ahead by as
    many steps as the estimate lags behind (DiSK, Zhang et al. 2025, with γ = (1 − κ)/κ, for which
    one gradient per round is enough).

    Args:
        kind: ``"low-pass"`` or ``"kalman"``. delay: in rounds, at least 0.5 for ``low-pass``; None:
            a hundredth of the run's rounds and at least one. In the limit of many rounds the gain κ
            gives delay = (1 − κ)/κ.
        order: order of ``low-pass``, 1 or 2.

    Raises:
        ValueError, TypeError: an unknown kind, or a number outside its range.
    """

    kind: FilterKind = "low-pass"
    delay: float | None = None
    order: int = 1

    def __post_init__(self) -> None:
        one_of("gradient_filter", self.kind, get_args(FilterKind))
        if self.delay is not None:
            least = 0.5 if self.kind == "low-pass" else 1e-3
            settle(self, delay=real("delay of gradient_filter", self.delay, least=least))
        settle(self, order=whole("order of gradient_filter", self.order, most=2))
        if self.kind == "kalman" and self.order != 1:
            raise ValueError("order goes with the gradient_filter 'low-pass': drop it")

    @classmethod
    def of(cls, asked: object) -> GradientFilter | None:
        """A filter from a GradientFilter, a kind or a mapping of fields; None stays None.

        Raises:
            ValueError, TypeError: another value.
        """
        return described("gradient_filter", cls, asked, "kind", '"low-pass", "kalman"')

    def noise_left(self, rounds: int) -> float:
        """The share of the variance of independent noise that remains, long after the start."""
        delay = self.rounds_late(rounds)
        if self.kind == "kalman":  # κ/(2 − κ)
            return 1 / (1 + 2 * delay)
        # (2/π) ∫₀^∞ dx/((1 + x²)(1 + (x/w)²ⁿ)), with x the tangent of half the frequency.
        if self.order == 1:
            w = 0.5 / delay
            return w / (1 + w)
        w = math.sqrt(0.5) / delay
        return w**4 / (1 + w**4) * (1 + math.sqrt(0.5) * (1 - w * w) / w**3)

    def rounds_late(self, rounds: int) -> float:
        """The delay in rounds, given or by default, of a run of ``rounds`` rounds."""
        return max(1.0, rounds / 100) if self.delay is None else self.delay


_PARTS: dict[str, type[Any]] = {
    "optimizer": Optimizer,
    "schedule": Schedule,
    "averaging": Averaging,
    "assumed": Assumed,
    "gradient_filter": GradientFilter,
}


@dataclass(frozen=True)
class ReleaseUse:
    """The use of the noised means of a run.

    Args:
        optimizer: steps along a noised mean. schedule: its step sizes.
        averaging: the average of the iterates that is reported.
        assumed: the model that the planner assumed; None: no number depends on a model's size.
        gradient_filter: filter of noised means before the optimizer; None: none.

    Raises:
        TypeError: a part of another class.
    """

    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    averaging: Averaging = Averaging()
    assumed: Assumed | None = None
    gradient_filter: GradientFilter | None = None

    def __post_init__(self) -> None:
        require_parts(self, _PARTS)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        values = entries(self)
        values["optimizer"]["options"] = plain(dict(self.optimizer.options))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReleaseUse:
        """The inverse of :meth:`to_dict`; refuses unknown keys."""
        exact_keys("use", values, _PARTS)
        read: dict[str, Any] = {
            name: None if part is None else build(_PARTS[name], part)
            for name, part in values.items()
        }
        return cls(**read)
