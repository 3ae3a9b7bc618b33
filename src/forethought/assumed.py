"""The planner's assumptions about the model of a run, and the cost of another one.

Step size and batch follow from how many weights share the noise and, for a linear model, from the
norm of its features (docs/defaults.md). A plan keeps both, so that whoever trains a model with it
can say where they differ. Nothing here reads a record: norms are declared ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from forethought.checks import real, whole

# A step size that is off by less costs next to nothing.
TOLERATED = 1.1


@dataclass(frozen=True)
class Assumed:
    """The model that a plan's step size and batch were chosen for.

    Args:
        parameters: how many weights it trains.
        feature_norm: usual norm of its features, where the rule of linear models was used; None:
            the general rule.
        guessed: nobody said how many weights there are.
        chosen: what follows from the two: "step size", "batch".
    """

    parameters: int
    feature_norm: float | None
    guessed: bool
    chosen: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", whole("assumed parameters", self.parameters))
        if self.feature_norm is not None:
            norm = real("assumed feature_norm", self.feature_norm, above=0)
            object.__setattr__(self, "feature_norm", norm)
        object.__setattr__(self, "chosen", tuple(map(str, self.chosen)))


def is_linear(model: Any) -> bool:
    """True if a torch module is one linear layer, by the names of its parts: without torch."""
    return linear_layer(model) is not None


def linear_layer(model: Any) -> Any:
    """The one layer of a linear model, behind at most one that flattens; None for other models."""
    parts = [part for part in model.modules() if not list(part.children())]
    linear = [type(part).__name__ for part in parts] in (["Linear"], ["Flatten", "Linear"])
    return parts[-1] if linear else None


def module_of(model: Any) -> Any:
    """A torch module, or what a function of no arguments builds, which is then called once.

    Raises:
        TypeError: something else.
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
    """The count of numbers that a torch module trains, one that several layers share once.

    Raises:
        ValueError: layers whose sizes are not known yet, or nothing to train.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    # torch.nn.LazyLinear and the like have weights without a shape until their first input.
    if any(type(p).__name__ == "UninitializedParameter" for p in trained):
        raise ValueError(
            "the model has lazy layers, whose sizes nobody knows before they see an input: call it "
            "once on zeros, such as model(torch.zeros(1, 784)), or give parameters="
        )
    if not trained:
        raise ValueError("the model trains nothing: none of its parameters requires a gradient")
    return sum(p.numel() for p in trained)


def differences(
    assumed: Assumed, parameters: int, linear: bool, feature_norm: float | None
) -> tuple[str, ...]:
    """The ways in which the model is not the one that a plan was made for, their cost and remedy; a
    sentence each.

    Args:
        parameters: trained weights of the model that there is. linear: whether it is a linear one.
        feature_norm: declared usual norm of its features; None: unknown.
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
            found += (_unused(assumed, feature_norm, chosen),)
        return found
    # The noise of a linear model's scores does not depend on how many there are.
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
    factor = math.sqrt(parameters / assumed.parameters)  # the longest path goes as 1/√p
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


def _unused(assumed: Assumed, feature_norm: float, chosen: str) -> str:
    return (
        f"the plan's {chosen} chosen for features of unknown norm and {assumed.parameters:,} "
        f"weights, the model is linear and the data's features have norm {feature_norm:.3g}, as "
        "declared: the rule for known norms was not used, and steps may be several times too long "
        f"or too short. Plan again with forethought.plan(..., feature_norm={feature_norm:.6g}), or "
        "data= and model="
    )


def _off(factor: float) -> str:
    """Steps that are ``factor`` times as long as is right, and their cost, in words."""
    if factor > 1:
        return f"{factor:.2g} times too long, and leave as much more noise in the model as is meant"
    return f"{1 / factor:.2g} times too short, and the model gets only as far in as many rounds"
