"""The rules that come with the library, one file a family; importing them registers them."""

from forethought.gradients.rules import (
    activation,
    attention,
    convolution,
    dropout,
    embedding,
    linear,
    losses,
    normalisation,
    recurrent,
)

__all__ = [
    "activation",
    "attention",
    "convolution",
    "dropout",
    "embedding",
    "linear",
    "losses",
    "normalisation",
    "recurrent",
]
