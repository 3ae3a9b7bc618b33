"""The facts of an optimizer that planner, federation and gossip know, without torch.

A row of :data:`OPTIMIZERS` says all that follows from an optimizer's name besides its steps, which
are a class of torch.optim or of ours. Any other optimizer may step as well, torch's own by name or
``"module:Class"``: nothing is known of it, and nothing is assumed (:data:`UNKNOWN`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forethought.checks import real

Options = Mapping[str, Any]
# Rounds at which a floor that falls is looked at.
_POINTS = 1000


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """The consequences of an optimizer's name; each has to be said.

    Args:
        home: ``"module:Class"``, imported where it steps.
        descends: whether it is gradient descent, with or without momentum: the planner then
            chooses its path, and a sum of its steps is a step along the sum.
        options: what the planner gives it where nobody says.
        divides: what a coordinate with nothing but noise is divided by, squared, from the noise's
            variance, the options and the number of rounds; None: unknown, it steps by
            :data:`USUAL_RATE`.
        longest: how far a step of size 1 moves the weights at most, from the options, the norm of
            the mean and the number of weights, without weight decay; None: unknown.
        weight_decay: by default.
    """

    home: str
    descends: bool
    options: tuple[tuple[str, Any], ...]
    divides: Callable[[float, Options, int], float] | None
    longest: Callable[[Options, float, int], float] | None
    weight_decay: float


# Adam's own, where noise is not what decides.
USUAL_RATE = 1e-3


def _of_momentum(options: Options, mean: float, parameters: int) -> float:
    return mean / (1 - float(options.get("momentum", 0.0)))


def _of_adam(options: Options, mean: float, parameters: int) -> float:
    # By Cauchy and Schwarz |m̂|/√v̂ is at most this after t steps, whatever the gradients are: 7.3
    # at last with the usual betas, bias included. Gradients that grow by β₂/β₁ a step reach it.
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
    return 2 * _of_adam(options, mean, parameters)  # of the moment, and of the gradient itself


def _of_radam(options: Options, mean: float, parameters: int) -> float:
    return max(_of_adam(options, mean, parameters), mean)  # which is what it begins with


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
    # The default floor falls over the rounds; what counts is the mean of what steps are divided by.
    second = tuple(options.get("betas", (0.9, 0.999)))[1]
    count = min(rounds, _POINTS)
    total = 0.0
    for point in range(count):
        past = second ** (1 + point * (rounds - 1) / max(1, count - 1))
        floor = math.sqrt(2 * (1 - second) / (1 + second) * (1 + past) / (1 - past))
        total += floor**-0.5
    return variance / (total / count) ** 2


OPTIMIZERS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        home="torch.optim:SGD",
        descends=True,
        options=(("momentum", 0.9),),
        divides=None,
        longest=_of_momentum,
        weight_decay=0.0,
    ),
    "adam": OptimizerKind(
        home="torch.optim:Adam",
        descends=False,
        options=(),
        divides=_by_noise,
        longest=_of_adam,
        weight_decay=0.0,
    ),
    "adamw": OptimizerKind(
        home="torch.optim:AdamW",
        descends=False,
        options=(),
        divides=_by_noise,
        longest=_of_adam,
        weight_decay=0.01,
    ),
    "nadam": OptimizerKind(
        home="torch.optim:NAdam",
        descends=False,
        options=(),
        divides=None,
        longest=_of_nadam,
        weight_decay=0.0,
    ),
    "radam": OptimizerKind(
        home="torch.optim:RAdam",
        descends=False,
        options=(),
        divides=None,
        longest=_of_radam,
        weight_decay=0.0,
    ),
    "adamax": OptimizerKind(
        home="torch.optim:Adamax",
        descends=False,
        options=(),
        divides=None,
        longest=_of_adamax,
        weight_decay=0.0,
    ),
    "yogi": OptimizerKind(
        home="forethought.training.descent:Yogi",
        descends=False,
        options=(),
        divides=None,
        longest=None,
        weight_decay=0.0,
    ),
    "adam-bc": OptimizerKind(
        home="forethought.training.descent:AdamBC",
        descends=False,
        options=(),
        divides=_by_floor,
        longest=None,
        weight_decay=0.0,
    ),
}
UNKNOWN = OptimizerKind(
    home="", descends=False, options=(), divides=None, longest=None, weight_decay=0.0
)


def kind_of(name: str) -> OptimizerKind:
    """The facts of an optimizer, by its name."""
    return OPTIMIZERS.get(name.lower(), UNKNOWN)


def check_options(optimizer: str, options: Options) -> None:
    """Refuse options of torch's optimizers that are outside their range; own ones are not known.

    Raises:
        TypeError, ValueError: a momentum, betas or a floor that nothing can step with.
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
