"""A pass over records leaves nothing in the model: what it wrote is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forethought.gradients.boundary import Refused
from forethought.gradients.state import ExternalState, State
from forethought.turns import turns


@contextmanager
def undisturbed(model: torch.nn.Module, loss: object = None) -> Iterator[None]:
    """Buffers, attributes and modes of all modules are afterwards as they were before.

    What a forward pass writes into them comes from the records and carries no noise. So does what
    it leaves in objects, closures and generators that the model or the loss can reach.

    Raises:
        ValueError: an iterator among these, which cannot be put back.
    """
    with turns:
        before = State(model.named_modules())
        try:
            surroundings = ExternalState(model.modules(), model, loss)
        except Refused as reason:
            raise ValueError(str(reason)) from None
        try:
            yield
        finally:
            surroundings.restore()
            with torch.no_grad():
                before.restore()
