"""The records of a run: weighed, centred, gathered by person, apart from held-out ones."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forethought.data import Dataset
from forethought.data.dataset import EMPTY, PersonRows, by_person
from forethought.data.files import DataError
from forethought.preparing.prepare import Constants, Prepared, require_prepared
from forethought.rounds.losses import Loss, cross_entropy, label_cross_entropy, squared_error
from forethought.rounds.records import Records, content
from forethought.rounds.sampling import Indices
from forethought.values.caveats import Caveat
from forethought.values.contributions import Persons
from forethought.values.plan import Plan

# Classes of different weight: the loss of a rare one counts more.
#
# A weight scales a record's gradient before it is clipped. Automatic clipping normalises every
# contribution, and takes the weight away again: it only matters there where gradients are small.
# Under flat clipping it matters below the norm. No weight moves the bound of a contribution.


class MutedWeightsWarning(UserWarning):
    """Weights of classes that the clipping rule takes away again."""


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """Cross entropy of logits (batch, classes) with labels (batch,), times the class's weight.

    Args:
        weights: one a class, above 0, class 0 first.
    """

    weights: tuple[float, ...]

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One value a record."""
        own = torch.tensor(self.weights, dtype=outputs.dtype, device=outputs.device)
        return F.cross_entropy(outputs, targets, weight=own, reduction="none")


def weighted(weights: Sequence[float], data: Dataset) -> WeightedCrossEntropy:
    """The loss with these weights.

    Raises:
        ValueError: not one weight a class, or data without classes.
    """
    if data.classes is None or data.multilabel:
        raise ValueError("class_weights goes with classes: drop it for a regression or labels")
    if len(weights) != data.classes:
        raise ValueError(
            f"class_weights has {len(weights)} numbers, the data have {data.classes} classes: give "
            "one a class, class 0 first"
        )
    return WeightedCrossEntropy(tuple(map(float, weights)))


def warn_if_muted(weights: Sequence[float] | None, plan: Plan) -> None:
    """Warn where the plan's clipping takes the weights away."""
    if weights is None or plan.clip.rule != "automatic" or len(set(weights)) == 1:
        return
    warnings.warn(
        "class_weights is all but muted by automatic clipping, which gives every record the same "
        "say whatever its weight: set clip_norm (and clip_rule = 'flat') in [training], so that "
        "what is below the norm keeps its weight",
        MutedWeightsWarning,
        stacklevel=3,
    )


# A loaded data set as training data: its arrays, and what the Statement must say of loading it.


def opened(data: object, held_out: object | None) -> tuple[object, object | None, Sequence[Caveat]]:
    """Pairs of arrays, and caveats, where ``data`` is a Dataset; anything else as it is.

    Where the Dataset says whose each row is, the rows with that.

    Args:
        held_out: records to test or score on; by default the Dataset's own test part.
    """
    if isinstance(held_out, Dataset):
        held_out = (held_out.train.inputs, held_out.train.targets)
    if not isinstance(data, Dataset):
        return data, held_out, ()
    if held_out is None and data.test is not None:
        held_out = (data.test.inputs, data.test.targets)
    if data.persons is not None:
        return PersonRows(data.train, data.persons, data.records_per_person), held_out, data.caveats
    return (data.train.inputs, data.train.targets), held_out, data.caveats


def usual_loss(data: object) -> Loss | None:
    """The loss that a data set's targets call for, where that is not to be seen from their type."""
    return label_cross_entropy if isinstance(data, Dataset) and data.multilabel else None


def declared(plan: Plan, held_out: object | None) -> tuple[Caveat, ...]:
    """The notes of the Statement on an algorithm of the user's own, and on steps that follow
    accuracy on held-out records.

    Raises:
        ValueError: there are none.
    """
    own = plan.local.function if plan.local is not None else None
    found = () if own is None else (Caveat("own-algorithm", own),)
    if plan.schedule.kind != "drops":
        return found
    if held_out is None:
        raise ValueError(
            "the schedule 'drops' looks at accuracy after every epoch: give public records as "
            "test=, or another schedule. Private ones would have to be paid for (forethought.tune "
            "scores with noise)"
        )
    return (*found, Caveat("public-test"))


def with_caveats(plan: Plan, found: Sequence[Caveat]) -> Plan:
    """The plan with what loading read from the private data, or was declared, each thing once."""
    new = tuple(use for use in found if use not in plan.not_covered)
    return plan.with_(not_covered=(*plan.not_covered, *new)) if new else plan


# Whether held-out records are records that were trained on: found by hashes of their content.


PIECE = 1024


class CoincidingRecordsError(ValueError):
    """Held-out records are the training records."""


def coincide(records: Records, held_out: Records, name: str = "test") -> bool:
    """True if some held-out records are equal to training records, targets included.

    Raises:
        CoincidingRecordsError: they are the same records; or more than half of them are, where the
            training records themselves are mostly different from each other.
    """
    own, others = list(_digests(records)), list(_digests(held_out))
    trained = set(own)
    found = sum(digest in trained for digest in others)
    # Where records take few values, as binary features do, equal ones are no sign of anything.
    telling = len(trained) > len(own) / 2
    if (telling and found > len(others) / 2) or sorted(others) == sorted(own):
        raise CoincidingRecordsError(
            f"{found} of the {len(held_out)} records in {name}= are also trained on: accuracy on "
            "them says nothing about new records. Hold records out before training; loss on "
            "training batches is in diagnostics"
        )
    return found > 0


def _digests(records: Records) -> Iterator[bytes]:
    for start in range(0, len(records), PIECE):
        indices = np.arange(start, min(start + PIECE, len(records)))
        leaves = [
            leaf
            for leaf in torch.utils._pytree.tree_leaves(records.take(indices))
            if isinstance(leaf, torch.Tensor)
        ]
        rows = [_rows(leaf, len(indices)) for leaf in leaves]
        for place in range(len(indices)):
            row = b"".join(part[place] for part in rows)
            yield hashlib.blake2b(row, digest_size=16).digest()


def _rows(leaf: torch.Tensor, count: int) -> list[bytes]:
    raw = content(leaf)
    width = len(raw) // count
    return [raw[place * width : (place + 1) * width] for place in range(count)]


# A model of rows trained on persons: each person's rows together are one contribution.
#
# **Formal guarantee.** A person's contribution is the clipped gradient of the mean loss over that
# person's own kept rows, computed in one lane; it depends on no other person, and its norm is at
# most C. So the sensitivity of a round's sum to one person is that to one record.


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
            :func:`forethought.data.dataset.by_person` makes them.
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
    """The records that a plan is trained on, as it counts them, with a model and a loss of these.

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


# Linear models trained on centred features, and handed over for the features as they are.
#
# A plan may pay for the features' means (``Preparation(("means",))``). A linear model learns
# faster, and through less noise, around them, and loses nothing: its scores W (x − m)/c + b are
# those of weights W/c and intercept b − W m/c on x. So centring goes no further than the run.


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
        ValueError: as :func:`forethought.preparing.prepare.require_prepared`.
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
