"""Random numbers for tests, the same bits on every machine: NumPy's.

torch's normal draws differ in the last digit with the processor's instructions, its Bernoulli
draws with the processor's maker. ``reseed`` begins the stream that the other functions draw from;
each also takes a generator of its own (``stream``).
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)

stream = np.random.default_rng
_stream = stream(0)


def reseed(number: int) -> None:
    """Begin the stream anew, and torch's, from which layers and dropout draw."""
    global _stream
    _stream = stream(number)
    torch.manual_seed(number)


def _tensor(values: Any, dtype: torch.dtype | None) -> Tensor:
    return torch.from_numpy(np.asarray(values)).to(dtype or torch.get_default_dtype())


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape


def randn(
    *shape: Any,
    generator: np.random.Generator | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers, in torch's default dtype unless told; complex ones of variance 1."""
    draw = (generator or _stream).standard_normal
    values = draw(_shape(shape))
    if dtype is not None and dtype.is_complex:
        values = (values + 1j * draw(_shape(shape))) / math.sqrt(2)
    return _tensor(values, dtype).requires_grad_(requires_grad)


def rand(
    *shape: Any, generator: np.random.Generator | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Uniform numbers in [0, 1); rounding down to the dtype keeps 1 out."""
    drawn = (generator or _stream).random(_shape(shape))
    return _tensor(np.floor(drawn * 2**24) / 2**24, dtype)


def randint(low: int, *rest: Any, generator: np.random.Generator | None = None) -> Tensor:
    """Whole numbers: ``randint(high, shape)`` or ``randint(low, high, shape)``."""
    bounds = (0, low) if len(rest) == 1 else (low, rest[0])
    return _tensor((generator or _stream).integers(*bounds, rest[-1]), torch.int64)


def randperm(length: int, generator: np.random.Generator | None = None) -> Tensor:
    """The whole numbers below ``length`` in random order."""
    return _tensor((generator or _stream).permutation(length), torch.int64)


def initialised(module: Module) -> Module:
    """The module, its parameters drawn anew; those that are constant, such as a norm's, stay.

    A weight has the standard deviation 1/√(inputs of an output), at which signals keep their size
    from layer to layer; a vector 1/√(its length).
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.numel() and not bool((parameter == parameter.flatten()[0]).all()):
                outputs = parameter.shape[0] if parameter.dim() > 1 else 1
                scale = 1 / math.sqrt(parameter.numel() / outputs)
                parameter.copy_(scale * randn(parameter.shape, dtype=torch.float64))
    return module
