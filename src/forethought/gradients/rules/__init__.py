"""The rules that come with the library, one file a family; importing them registers them."""

from forethought.gradients.rules import (
    broadcast,
    convolution,
    embedding,
    linear,
    normalisation,
    recurrent,
)

__all__ = ["broadcast", "convolution", "embedding", "linear", "normalisation", "recurrent"]
