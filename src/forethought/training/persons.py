"""A model of rows trained on persons: each person's rows together are one contribution.

**Formal guarantee.** A person's contribution is the clipped gradient of the mean loss over that
person's own kept rows, computed in one lane; it depends on no other person, and its norm is at most
C. So the sensitivity of a round's sum to one person is that to one record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from forethought.contributions import Persons
from forethought.data.error import DataError
from forethought.data.persons import EMPTY, PersonRows, by_person
from forethought.plans import Plan
from forethought.rounds.losses import Loss, cross_entropy, squared_error


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
    return _mean_over_rows(values, there)


@dataclass(frozen=True)
class PersonLoss:
    """A loss of rows as one of persons: the mean of its values over each person's rows.

    Args:
        loss: one value a row. ndim: dimensions that the targets of a batch of rows have.
    """

    loss: Loss
    ndim: int

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One value for each person; for each row where rows are given."""
        if targets.ndim == self.ndim:
            return self.loss(outputs, targets)
        if targets.is_floating_point():
            wanted, there = targets[..., :-1], targets[..., -1]
            wanted = wanted.squeeze(-1) if self.ndim == 1 else wanted
        else:
            there = (targets != EMPTY).to(outputs.dtype)
            wanted = targets.clamp(min=0)
        values = self.loss(outputs.flatten(0, 1), wanted.flatten(0, 1)).view_as(there)
        return _mean_over_rows(torch.where(there > 0, values, torch.zeros_like(values)), there)


def _mean_over_rows(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    return (values * there).sum(1) / there.sum(1).clamp(min=1)


@dataclass(frozen=True)
class Arranged:
    """What a plan is trained on: records as it counts them, with a model and a loss of these.

    Args:
        data: records. loss: one value a record; None: the usual one.
        wrapped: from a model of rows to one of the records.
    """

    data: object
    loss: Loss | None
    wrapped: Callable[[nn.Module], nn.Module] = lambda model: model


def arranged(data: object, plan: Plan, loss: Loss | None = None) -> Arranged:
    """Rows of persons as the records that a plan speaks of; anything else as it is.

    Raises:
        DataError: a plan of persons without whose each row is, data of persons under a plan for
            single rows, or more rows of a person than the plan says.
    """
    kind = plan.contribution
    if not isinstance(data, PersonRows):
        if isinstance(kind, Persons):
            raise DataError(
                "the plan's examples are persons, the data are rows: say whose each is with "
                "forethought.data.of_persons(inputs, targets, persons, records_per_person)"
            )
        return Arranged(data, loss)
    rows, most = data.rows, data.most
    promised = kind.records if isinstance(kind, Persons) else plan.records_per_person
    if promised < most:
        raise DataError(
            f"the data have up to {most} rows of one person, the plan promises something to "
            f"{promised} of them: make the plan with data=, or with records_per_person={most}"
        )
    if not isinstance(kind, Persons):
        return Arranged((rows.inputs, rows.targets), loss)
    persons = by_person(rows, data.persons.tolist(), most)
    shape, ndim = rows.inputs.shape[1:], rows.targets.ndim
    own: Loss = person_loss if loss is None else PersonLoss(loss, ndim)
    return Arranged((persons.inputs, persons.targets), own, lambda model: PerPerson(model, shape))


def of_rows(model: nn.Module) -> nn.Module:
    """The model of rows inside a model of persons; any other as it is."""
    return model.model if isinstance(model, PerPerson) else model
