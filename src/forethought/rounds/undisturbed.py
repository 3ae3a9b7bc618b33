"""A pass over records leaves nothing in the model: what it wrote is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forethought.gradients.state import State


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Buffers, attributes and modes of all modules are afterwards as they were before.

    What a forward pass writes into them comes from the records and carries no noise.
    """
    before = State(model.named_modules())
    try:
        yield
    finally:
        with torch.no_grad():
            before.restore()
