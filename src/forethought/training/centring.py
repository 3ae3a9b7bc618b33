"""Linear models trained on centred features, and handed over for the features as they are.

A plan may pay for the features' means (``Preparation(("means",))``). A linear model learns faster,
and through less noise, around them, and loses nothing: its scores W (x − m)/c + b are those of
weights W/c and intercept b − W m/c on x. So centring goes no further than the run.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forethought.plans import Plan
from forethought.preparing.constants import Constants
from forethought.preparing.paid import require_prepared
from forethought.preparing.prepare import Prepared
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices

# What a run folder keeps of a preparation.
PREPARED = "prepared.json"


class NotCentredWarning(UserWarning):
    """A plan pays for the features' means, and what trains cannot use them."""


@dataclass(frozen=True)
class Centring:
    """A linear layer's weights around a centre, and back.

    Args:
        layer: a torch.nn.Linear with an intercept; None: nothing is centred.
        constants: shift and scale of every feature.
    """

    layer: Any = None
    constants: Constants = field(default_factory=Constants)

    @torch.no_grad()
    def begin(self) -> None:
        """Weights for features become weights for centred ones, with the same scores."""
        if self.layer is None:
            return
        weight, bias = self.layer.weight, self.layer.bias
        shift, scale = self._tensors()
        bias += (weight.double() @ shift).to(bias.dtype)
        weight *= scale.to(weight.dtype)

    @torch.no_grad()
    def end(self) -> None:
        """The inverse of :meth:`begin`."""
        if self.layer is None:
            return
        weight, bias = self.layer.weight, self.layer.bias
        shift, scale = self._tensors()
        weight /= scale.to(weight.dtype)
        bias -= (weight.double() @ shift).to(bias.dtype)

    def _tensors(self) -> tuple[Tensor, Tensor]:
        where = self.layer.weight.device
        shift, scale = self.constants.shift, self.constants.scale
        # In double precision: the features' means may be many times their spread.
        return (
            torch.tensor(shift, dtype=torch.float64, device=where),
            torch.tensor(scale, dtype=torch.float64, device=where),
        )


class CentredRecords:
    """Records whose inputs are centred when they are taken.

    Args:
        records: what is centred. constants: shift and scale of every feature.
    """

    def __init__(self, records: Records, constants: Constants) -> None:
        self._records, self._constants = records, constants
        self._shift, self._scale = torch.tensor(constants.shift), torch.tensor(constants.scale)

    def __len__(self) -> int:
        return len(self._records)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        inputs, targets = self._records.take(indices)
        if inputs is None:
            return None, None
        shift, scale = (
            part.to(inputs.device, inputs.dtype).view(inputs.shape[1:])
            for part in (self._shift, self._scale)
        )
        return (inputs - shift).div_(scale), targets  # no second copy: features take much memory

    def digest(self, key: bytes) -> str:
        return f"{self._records.digest(key)} centred"


def require_answered(plan: Plan, prepared: Prepared | None) -> None:
    """Refuse a run that has not what its plan pays for and that it cannot release by itself.

    Raises:
        ValueError: as :func:`forethought.preparing.paid.require_prepared`.
    """
    asked = plan.preparation
    if prepared is not None or asked is None or not asked.centres:
        require_prepared(plan, prepared)


def uncentred(plan: Plan) -> Plan:
    """A plan without the means that it pays for: it spends that much less.

    Other preparations stay, for whoever runs the plan to answer.
    """
    if plan.preparation is None or not plan.preparation.centres:
        return plan
    warnings.warn(
        "the plan pays for the means of a linear model's features, and here they cannot be used: "
        "they are not released, and the run spends that much less. For all of the budget plan "
        "again with forethought.plan(..., centre=False)",
        NotCentredWarning,
        stacklevel=3,
    )
    return plan.with_(preparation=None)
