"""A model of rows trained on persons: each person's rows together are one contribution.

**Formal guarantee.** A person's contribution is the clipped gradient of the mean loss over that
person's own kept rows, computed in one lane; it depends on no other person, and its norm is at most
C. So the sensitivity of a round's sum to one person is that to one record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from forethought.data.persons import EMPTY
from forethought.rounds.losses import cross_entropy, squared_error


class PerPerson(nn.Module):
    """Applies a model of rows to every row of a person; single rows go through as they are.

    Its weights are saved under the names that the model's own have, so that a finished run is one
    of the model of rows.

    Args:
        model: of rows (B, …). shape: of one row.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.shape = model, tuple(shape)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (B, …) of rows (B, …), or (P, rows, …) of persons (P, rows, …)."""
        if tuple(inputs.shape[1:]) == self.shape:
            outputs: torch.Tensor = self.model(inputs)
            return outputs
        flat: torch.Tensor = self.model(inputs.flatten(0, 1))
        return flat.view(*inputs.shape[:2], *flat.shape[1:])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model of rows."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Into the model of rows."""
        return self.model.load_state_dict(state_dict, strict=strict, assign=assign)


def person_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One value for each person, the mean over their rows; for each row where rows are given.

    Args:
        outputs: (P, rows, classes) or (P, rows, 1) of persons; of rows as for the usual losses.
        targets: labels (P, rows), or values and weights (P, rows, 2), as
            :func:`forethought.data.persons.by_person` makes them.
    """
    labels = not targets.is_floating_point()
    if targets.ndim == 1:
        return cross_entropy(outputs, targets) if labels else squared_error(outputs, targets)
    if labels:
        there = (targets != EMPTY).to(outputs.dtype)
        values = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=EMPTY
        ).view_as(there)
    else:
        wanted, there = targets.unbind(-1)
        values = (outputs.reshape(wanted.shape) - wanted).square()
    return (values * there).sum(1) / there.sum(1).clamp(min=1)
