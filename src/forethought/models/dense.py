"""Models without convolutions: the linear one and the multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from forethought.models.activations import by_name


def linear(
    inputs: tuple[int, ...], classes: int, outputs: int | None = None, bias: bool = True
) -> nn.Module:
    """Logistic regression (softmax for several classes), or linear regression, from zero weights.

    Args:
        outputs: by default one for each class. 1 with two classes is the ordinary logistic model:
            its output is the log-odds of class 1, for a binary loss.
        bias: whether there is an intercept.
    """
    width = classes if outputs is None else outputs
    if width not in (classes, 1) or (width == 1 and classes > 2):
        raise ValueError(
            f"linear has one output for each of the {classes} classes, or 1 output for two "
            f"classes; not outputs={outputs!r}"
        )
    layer = nn.Linear(math.prod(inputs), width, bias=bias)
    # The loss is convex: zero is as good a start as any, and the gradient there is bounded.
    nn.init.zeros_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(
    inputs: tuple[int, ...],
    classes: int,
    hidden: int | Sequence[int] = 128,
    activation: str = "relu",
) -> nn.Module:
    """Fully connected layers of the sizes ``hidden``, with an activation behind each."""
    sizes = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise ValueError(f"hidden must be a size or several, such as [256, 128], not {hidden!r}")
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(inputs)
    for size in sizes:
        layers += [nn.Linear(width, size), by_name(activation)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))
