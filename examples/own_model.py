"""A network of one's own for `forethought train examples/own_model.toml`."""

from torch import nn


def network(inputs: tuple[int, ...], classes: int, width: int = 16) -> nn.Module:
    """Any torch module; `inputs` is one example's shape, `width` comes from the job file."""
    return nn.Sequential(nn.Linear(inputs[0], width), nn.Tanh(), nn.Linear(width, classes))
