"""A torch module from a model's name: the registry, and ``module:function`` for your own models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from forethought.gradients.boundary import turns
from forethought.models import networks
from forethought.values.checks import imported, meant

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": networks.linear,
    "mlp": networks.mlp,
    "additive": networks.additive,
    "lenet5": networks.lenet5,
    "cnn": networks.cnn,
    "tempered-cnn": networks.tempered_cnn,
    "gabor-cnn": networks.gabor_cnn,
    **networks.PRESETS,
}
# Installed up to 0.2, and in tools/published_networks.py of the repository since: name → function.
PUBLISHED = {
    **{name: name for name in ("alexnet", "googlenet", "mobilenet", "shufflenet")},
    **{"efficientnet-b0": "efficientnet_b0", "mobilenet-v2": "mobilenet_v2"},
    **{"resnet-18": "resnet18", "resnext-29": "resnext29", "senet-18": "senet18"},
    **{"shufflenet-v2": "shufflenet_v2", "vgg-19": "vgg19"},
}


def names() -> tuple[str, ...]:
    """The names of all models of the zoo."""
    return tuple(MODELS)


def build(
    name: str, *, inputs: tuple[int, ...], classes: int, seed: int | None = None, **options: Any
) -> nn.Module:
    """A freshly initialised model.

    Args:
        name: one of :func:`names`, or ``"module:function"``: a function that is called with
            ``inputs=``, ``classes=`` and the options, and returns a ``torch.nn.Module``. The module
            is imported from the environment or from the working directory.
        inputs: shape of one example: (features,) or (channels, height, width).
        classes: number of classes; 1 for regression.
        seed: makes the initial weights reproducible. Torch's global generator is not changed.
        options: further arguments of the model's function.

    Raises:
        ValueError: unknown name (suggests the nearest), an option that the model does not have, a
            shape that it cannot take, or a module that cannot be imported.
        TypeError: the name is not a string, or the user's function returns no module.

    >>> build("linear", inputs=(1, 28, 28), classes=10)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=784, out_features=10, bias=True)
    )
    """
    shape = tuple(inputs)
    if not shape or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"inputs must be one example's shape, such as (1, 28, 28), not {inputs}")
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise ValueError(f"classes must be a whole number of at least 1, not {classes!r}")
    if not isinstance(name, str):
        raise TypeError(f"a model is named by a string such as 'linear', not {name!r}")
    make = imported("model", name) if ":" in name else _of_the_zoo(name)
    _check_call(name, make, shape, classes, options)
    with turns, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        model = make(inputs=shape, classes=classes, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name!r} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _of_the_zoo(name: str) -> Callable[..., nn.Module]:
    if name in MODELS:
        return MODELS[name]
    if name in PUBLISHED:
        try:
            return imported("model", f"published_networks:{PUBLISHED[name]}")
        except ValueError as error:
            raise ValueError(
                f"model {name!r} is no longer installed: put tools/published_networks.py of the "
                "repository into the working directory or next to the job file, and it is found "
                f"({error})"
            ) from None
    raise ValueError(
        f"unknown model {name!r}.{meant(name, (*MODELS, *PUBLISHED))} The models are "
        f"{', '.join(MODELS)}, or module:function for your own"
    )


def _check_call(
    name: str,
    make: Callable[..., Any],
    shape: tuple[int, ...],
    classes: int,
    options: dict[str, Any],
) -> None:
    """Refuse options that the model does not have; the error names those that it has."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # a callable without a signature cannot be checked
        return
    try:
        signature.bind(inputs=shape, classes=classes, **options)
    except TypeError as error:
        allowed = [option for option in signature.parameters if option not in ("inputs", "classes")]
        unknown = [option for option in options if option not in allowed]
        hint = meant(unknown[0], allowed) if unknown else ""
        choice = f"its options are {', '.join(allowed)}" if allowed else "it has no options"
        raise ValueError(
            f"model {name!r} cannot be built: {error}.{hint} It is called with inputs=, classes= "
            f"and options; {choice}"
        ) from None
