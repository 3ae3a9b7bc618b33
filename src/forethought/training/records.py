"""The records of a run: checks against model, loss and plan; persons, weights and centring."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forethought.accounting import exact
from forethought.accounting.interval import at_most
from forethought.data import Dataset
from forethought.data.dataset import EMPTY, PersonRows, by_person
from forethought.data.files import DataError
from forethought.gradients import BatchDims, check_model
from forethought.gradients.batches import LaneBatch, call, losses
from forethought.gradients.boundary import own_part, shards_of
from forethought.gradients.clipped import outputs_in_front, placed
from forethought.gradients.passes import contributions
from forethought.gradients.sums import Unused
from forethought.rounds.contributions import (
    Loss,
    cross_entropy,
    explained_targets,
    label_cross_entropy,
    mixing_layers,
    of_each,
    squared_error,
    undisturbed,
)
from forethought.rounds.preparation import InputConstants, Prepared, require_prepared
from forethought.rounds.records import (
    DatasetRecords,
    MappedRecords,
    Records,
    TensorRecords,
    as_records,
    blank,
    content,
    require_size,
)
from forethought.training.execution import check_model as check_unwrapped
from forethought.training.execution import usable
from forethought.values.caveats import Caveat
from forethought.values.checks import function
from forethought.values.mechanism import Persons
from forethought.values.plan import LEAST_NOISE, Plan
from forethought.values.use import differences, is_linear, trained_parameters

# A warning where a plan was made for another model than the one it trains.


class OtherModelWarning(UserWarning):
    """The step size or batch of a plan was chosen for another model, or for other features."""


def warn_of_another_model(
    plan: Plan, model: torch.nn.Module, data: object = None, norm: float | None = None
) -> None:
    """Warn if a plan was made for another model or other features; say the cost and the remedy.

    Of the data, only a declared value is read: the usual feature norm of a
    :class:`forethought.data.Dataset`.

    Args:
        data: as for :func:`forethought.train`; None: only the model is compared.
        norm: usual norm of the model's inputs, as declared, to warn of other features only, where
            training will get arrays and compare the model itself.
    """
    if plan.assumed is None:
        return
    told = partial(differences, plan.assumed, trained_parameters(model), is_linear(model))
    of_model = () if norm is None else told(None)
    for sentence in told(data.feature_norm if isinstance(data, Dataset) else norm):
        if sentence not in of_model:
            warnings.warn(sentence, OtherModelWarning, stacklevel=3)


# Checks that a model, its loss and the records fit together, before anything is released.


# Cross entropy ignores targets of this value.
IGNORED = -100
_NUMBERS = 1 << 20  # the size of the pieces that are looked at


class NonFiniteRecordsWarning(UserWarning):
    """Some records, or the model's outputs on them, are not finite: they contribute nothing."""


def placed_records(
    model: torch.nn.Module, data: object, plan: Plan, device: str | torch.device | None
) -> Records:
    """Check that a model can be trained privately, move it, and return its records.

    Args:
        device: the device to move the model to; None leaves it where it is.

    Raises:
        ValueError, TypeError: the model mixes examples, the noise is too small to protect anything,
            or the data has another form or size than the plan's.
    """
    check_model(model, plan.contribution.clipping == "group")
    check_unwrapped(model)
    if any(part.is_meta for part in (*model.parameters(), *model.buffers())):
        raise ValueError("the model has no weights yet (torch's meta device): load them first")
    if device is not None:
        model.to(usable(device))
    for part in plan.mechanism:
        if 0 < part.noise_multiplier < LEAST_NOISE:
            raise ValueError(
                f"a noise multiplier of {part.noise_multiplier:g} protects nothing: use at least "
                f"{LEAST_NOISE:g}, or 0 for training without privacy, which the statement says"
            )
    records = as_records(data, *form_of(model))
    require_size(records, plan.examples)
    return records


def form_of(model: torch.nn.Module) -> tuple[torch.dtype, torch.device]:
    """Precision and device of a model's first floating-point weight, which are its inputs'.

    The weights that are trained may have another precision, as adapters have.
    """
    first = next(p for p in model.parameters() if p.is_floating_point())
    return first.dtype, first.device


def require_fit(
    model: torch.nn.Module,
    loss: Loss,
    records: Records,
    name: str = "data",
    dims: BatchDims | None = None,
    tried: dict[object, object] | None = None,
) -> None:
    """Refuse records that the model or the default loss cannot take, before anything is released.

    The model is called on records of zeros. Labels and finiteness are checked where all records
    are in memory; the result goes only to the caller. Warns if the outputs on zeros are NaN.

    Args:
        tried: cache, form of records → the model's outputs on zeros, for many data holders that
            share one model.

    Raises:
        ValueError: inputs of a shape that the model does not take, labels that are none of its
            classes, targets that are not finite, or trained weights that are not.
    """
    tried = {} if tried is None else tried
    form = None
    if isinstance(records, TensorRecords):
        form = records.inputs.shape[1:], records.inputs.dtype, len(records) > 1
    if form is None or form not in tried:
        tried[form] = _of_zeros(model, records, name, dims)
    outputs = tried[form]
    check: Callable[[Tensor], None] | None = None
    labelled = loss in (cross_entropy, person_loss)
    if labelled and isinstance(outputs, Tensor) and outputs.ndim > 1:
        check = partial(_require_labels, shape=outputs.shape, loss=loss, name=name)
    if isinstance(records, DatasetRecords):
        records.check = check  # each batch when it is read
    if not isinstance(records, TensorRecords):
        return
    targets = records.targets
    if check is not None:
        check(targets)
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise ValueError(f"targets in {name} are not finite: drop these records, or mend them")
    pieces = torch.split(records.inputs, max(1, _NUMBERS // max(1, records.inputs[:1].numel())))
    # A sum in float64, which float32 values cannot overflow, is finite where all of them are.
    doubtful = (
        some.reshape(len(some), -1)
        for some in (pieces if records.inputs.is_floating_point() else ())
        if not bool(torch.isfinite(some.sum(dtype=torch.float64)))
    )
    if count := sum(int((~torch.isfinite(some)).any(1).sum()) for some in doubtful):
        warnings.warn(
            f"{count} of {len(records)} records in {name} hold features that are not finite "
            "(NaN or infinite): they will contribute nothing. Fill or drop them beforehand",
            NonFiniteRecordsWarning,
            stacklevel=5,
        )


def _of_zeros(model: nn.Module, records: Records, name: str, dims: BatchDims | None) -> object:
    for parameter, value in model.named_parameters():
        if value.requires_grad and not bool(torch.isfinite(own_part(value)).all()):
            raise ValueError(f"{parameter} is not finite: load or initialise the weights anew")
    inputs, _ = blank(records, 2 if mixing_layers(model) else 1)
    try:
        with undisturbed(model), torch.no_grad():
            outputs = outputs_in_front(call(model, placed(inputs, dims)), dims)
    except (RuntimeError, ValueError, TypeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"the model does not take one record of {name}, inputs of {_shapes(inputs)}: "
            f"{first_line}. {_remedy(inputs, first_line)}"
        ) from error
    leaves = torch.utils._pytree.tree_leaves(outputs)
    # Only a warning: zeros may be all padding, or have no spread to divide by.
    if any(isinstance(x, Tensor) and bool(torch.isnan(x).any()) for x in leaves):
        warnings.warn(
            "the model's outputs on a record of zeros are NaN, and records with such outputs "
            "contribute nothing: look for a division by zero or, in half precision, an overflow",
            NonFiniteRecordsWarning,
            stacklevel=6,
        )
    return outputs


# Torch's optimizers whose step of a coordinate depends only on the gradients of that coordinate.
_BY_COORDINATE = {"adadelta", "adagrad", "adam", "adam-bc", "adamax", "adamw", "asgd"}
_BY_COORDINATE |= {"nadam", "radam", "rmsprop", "rprop", "sgd", "yogi"}


def require_sharded(plan: Plan, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Refuse an optimizer or filter that needs whole parameters, for a sharded model.

    Args:
        optimizer: used instead of the plan's own; None: the plan's.

    Raises:
        ValueError: the message says what is refused, and what to do.
    """
    name, known, kind = plan.optimizer.name, _BY_COORDINATE, type(optimizer)
    if optimizer is not None:  # torch cannot shard the writes of its Rprop
        name, known = kind.__name__, known - {"rprop"}
    judged = optimizer is None or kind.__module__.startswith("torch.optim")
    if judged and name.lower() not in known:
        rest = ", ".join(sorted(known))
        raise ValueError(f"optimizer {name!r} may look at whole parameters: use one of {rest}")
    if plan.gradient_filter is not None:
        raise ValueError("gradient_filter= keeps whole sums: train without fully_shard, or it")


class UnreachedWeightsWarning(UserWarning):
    """Some trained weights take no part in the loss, so that they get only noise."""


def require_reached(model: torch.nn.Module, loss: Loss, records: Records) -> None:
    """Refuse a loss in which no trained weight takes part; warn of single ones that do not.

    The loss is computed on records of zeros, and torch's graph is read. This finds an adapter that
    is switched off, merged or attached to another copy of the model before it learns only noise.

    Raises:
        ValueError: no trained weight takes part.
    """
    inputs, targets = blank(records, 2 if mixing_layers(model) else 1)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    shards = shards_of(model)
    with undisturbed(model, loss), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        if shards is not None:  # whole parameters exist only during passes
            terms = contributions(model, loss, LaneBatch(inputs, targets), shards.whole)
            unreached = [name for name, term in terms.items() if isinstance(term, Unused)]
        else:
            with explained_targets():
                values = loss(call(model, inputs), targets).sum()
            found: Sequence[Tensor | None] = [None] * len(trained)
            if values.requires_grad:
                found = torch.autograd.grad(values, list(trained.values()), allow_unused=True)
            unreached = [name for name, part in zip(trained, found, strict=True) if part is None]
    named = ", ".join(unreached[:3]) + (" …" if len(unreached) > 3 else "")
    if len(unreached) == len(trained):
        raise ValueError(
            f"none of the trained weights ({named}) takes part in the loss, so that they would get "
            "noise alone: is an adapter switched off, merged, or of another model?"
        )
    if unreached:
        warnings.warn(
            f"{len(unreached)} of {len(trained)} trained weights ({named}) take no part in the "
            "loss: they get noise and nothing else. Freeze them (requires_grad_(False))",
            UnreachedWeightsWarning,
            stacklevel=5,
        )


def _require_labels(targets: Tensor, shape: torch.Size, loss: Loss, name: str) -> None:
    classes = shape[1 if loss is cross_entropy else -1]
    if targets.ndim != len(shape) - 1 or (loss is person_loss and targets.is_floating_point()):
        return  # values, or labels of another form, which the loss judges
    if targets.is_floating_point():
        raise ValueError(f"targets in {name} are decimals, not labels: give targets.long()")
    targets = targets[targets != IGNORED]
    if not targets.numel():
        return
    least, most = int(targets.min()), int(targets.max())
    if least >= 0 and most < classes:
        return
    remedy = f"subtract {least}" if least > 0 else f"or give the model {most + 1} outputs"
    remedy = "write −1 as 0" if (least, most) == (-1, 1) else remedy
    raise ValueError(
        f"labels in {name} go from {least} to {most}, the model has outputs for the classes 0 to "
        f"{classes - 1}: number the classes from 0 ({remedy})"
    )


def _remedy(inputs: Any, told: str) -> str:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    if "BFloat16" in told or "Half" in told:
        return "Give all of the model one precision (model.to(torch.float32)), which inputs come in"
    if any(isinstance(x, torch.Tensor) and not x.is_floating_point() for x in leaves):
        return "These are whole numbers: give them as inputs.float(), or build it for that shape"
    if "channels" in told and any(x.ndim == 4 and x.shape[-1] in (1, 3, 4) for x in leaves):
        return "Torch takes channels first: give images as inputs.permute(0, 3, 1, 2)"
    return "Build it for that shape, or reshape the inputs"


def _shapes(inputs: Any) -> str:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    shapes = [f"shape {tuple(x.shape[1:])}" for x in leaves if isinstance(x, torch.Tensor)]
    return ", ".join(shapes) or type(inputs).__name__


# The records of a run: weighted, centred, grouped by person, and compared with held-out ones.


# Class weights: the loss of a rare class counts more.
#
# A weight scales a record's gradient before it is clipped. Automatic clipping normalises every
# contribution and so removes the weight, except where gradients are small. Flat clipping keeps the
# weight of gradients below the clipping norm. No weight changes the bound of a contribution.


class MutedWeightsWarning(UserWarning):
    """Class weights have almost no effect, since the clipping rule removes them."""


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """Cross entropy of logits (batch, classes) with labels (batch,), times the class's weight.

    Args:
        weights: one a class, above 0, class 0 first.
    """

    weights: tuple[float, ...]

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One value a record, (batch,)."""
        own = torch.tensor(self.weights, dtype=outputs.dtype, device=outputs.device)
        return F.cross_entropy(outputs, targets, weight=own, reduction="none")


def weighted(weights: Sequence[float], data: Dataset) -> WeightedCrossEntropy:
    """The weighted cross entropy for a data set's classes.

    Raises:
        ValueError: not one weight a class, or data without classes.
    """
    if data.classes is None or data.multilabel:
        raise ValueError("class_weights goes with classes: drop it for a regression or labels")
    if len(weights) != data.classes:
        raise ValueError(
            f"class_weights has {len(weights)} numbers, not one a class, of {data.classes} classes"
        )
    return WeightedCrossEntropy(tuple(map(float, weights)))


def warn_if_muted(weights: Sequence[float] | None, plan: Plan) -> None:
    """Warn if the plan's clipping removes the weights."""
    if weights is None or plan.clip.rule != "automatic" or len(set(weights)) == 1:
        return
    warnings.warn(
        "class_weights is all but muted by automatic clipping, which gives every record the same "
        "say: set clip_norm (and clip_rule = 'flat') in [training]",
        MutedWeightsWarning,
        stacklevel=3,
    )


# A loaded data set as training data: its arrays, and the caveats of loading it for the Statement.


def opened(data: object, held_out: object | None) -> tuple[object, object | None, Sequence[Caveat]]:
    """Arrays, held-out arrays and caveats of a Dataset; other data as they are, without caveats.

    If the Dataset names the person of each row, the arrays come as :class:`PersonRows`.

    Args:
        held_out: records to test or score on; by default the Dataset's own test part.
    """
    if isinstance(held_out, Dataset):
        held_out = (held_out.train.inputs, held_out.train.targets)
    if not isinstance(data, Dataset):
        return data, held_out, ()
    if held_out is None and data.test is not None:
        held_out = (data.test.inputs, data.test.targets)
    return data.records, held_out, data.caveats


def usual_loss(data: object) -> Loss | None:
    """The loss for a data set's targets, if their type alone does not show it; else None."""
    return label_cross_entropy if isinstance(data, Dataset) and data.multilabel else None


def declared(plan: Plan, held_out: object | None) -> tuple[Caveat, ...]:
    """Caveats on a user's own local algorithm, and on a schedule that reads held-out accuracy.

    Raises:
        ValueError: the schedule needs held-out records, and there are none.
    """
    own = plan.local.function if plan.local is not None else None
    found = () if own is None else (Caveat("own-algorithm", own),)
    if plan.schedule.kind != "drops":
        return found
    if held_out is None:
        raise ValueError(
            "the schedule 'drops' looks at accuracy after every epoch: give public records as "
            "test=, or take another schedule"
        )
    return (*found, Caveat("public-test"))


def with_caveats(plan: Plan, found: Sequence[Caveat]) -> Plan:
    """The plan with the caveats of loading the data added, each once."""
    new = tuple(use for use in found if use not in plan.not_covered)
    return plan.with_(not_covered=(*plan.not_covered, *new)) if new else plan


# Held-out records that were also trained on are found by hashes of their content.


PIECE = 1024


class CoincidingRecordsError(ValueError):
    """Too many held-out records are also training records."""


def coincide(records: Records, held_out: Records, name: str = "test") -> bool:
    """True if some held-out records are equal to training records, targets included.

    Raises:
        CoincidingRecordsError: both are the same records; or the training records are mostly
            different, and so many held-out ones equal them that chance does not explain it.
    """
    own, others = list(_digests(records)), list(_digests(held_out))
    trained = set(own)
    found = sum(digest in trained for digest in others)
    # Equal records prove nothing where records take few values, as binary features do, nor while
    # the share is that of training records which have an equal among themselves.
    telling = len(trained) > len(own) / 2
    twins = sum(count for count in Counter(own).values() if count > 1) / len(own)
    if (telling and found > len(others) * (1 + twins) / 2) or sorted(others) == sorted(own):
        raise CoincidingRecordsError(
            f"{found} of the {len(held_out)} records in {name}= are also trained on, so that they "
            "say nothing about new ones: hold records out before training"
        )
    return found > 0


def _digests(records: Records) -> Iterator[bytes]:
    for start in range(0, len(records), PIECE):
        indices = np.arange(start, min(start + PIECE, len(records)))
        leaves = torch.utils._pytree.tree_leaves(records.take(indices))
        held = [np.frombuffer(content(x), np.uint8) for x in leaves if isinstance(x, torch.Tensor)]
        for row in np.concatenate([part.reshape(len(indices), -1) for part in held], axis=1):
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


# Training a model of rows on persons: all rows of a person together are one contribution.
#
# **Formal guarantee.** A person's contribution is the clipped gradient of the mean loss over that
# person's own kept rows, computed in one lane. It depends on no other person, and its norm is at
# most C. So the sensitivity of a round's sum to one person is the same as to one record.


class PerPerson(nn.Module):
    """Applies a model of rows to every row of a person; single rows are passed on unchanged.

    The state dict has the names of the model of rows, so that the result of a run is such a model.

    Args:
        model: takes rows (B, …).
        shape: shape of one row.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.shape = model, tuple(shape)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs (B, …) of rows (B, …), or (P, rows, …) of persons (P, rows, …)."""
        if tuple(inputs.shape[1:]) == self.shape:
            return self.model(inputs)
        flat: torch.Tensor = self.model(inputs.flatten(0, 1))
        return flat.view(*inputs.shape[:2], *flat.shape[1:])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the model of rows."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict into the model of rows."""
        return self.model.load_state_dict(state_dict, strict=strict, assign=assign)


def person_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One value for each person, the mean over their rows; given rows, one value for each row.

    Args:
        outputs: (P, rows, classes) or (P, rows, 1) of persons; of rows as for the usual losses.
        targets: labels (P, rows), or values and weights (P, rows, 2), as
            :func:`forethought.data.dataset.by_person` makes them.
    """
    if targets.is_floating_point():
        return PersonLoss(squared_error, min(targets.ndim, 2))(outputs, targets)
    return PersonLoss(cross_entropy, 1)(outputs, targets)


@dataclass(frozen=True)
class PersonLoss:
    """A loss of rows as a loss of persons: the mean of its values over each person's rows.

    Args:
        loss: gives one value a row.
        ndim: number of dimensions of the targets of a batch of rows.
    """

    loss: Loss
    ndim: int

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One value for each person; given rows, one value for each row."""
        if targets.ndim == self.ndim:
            return self.loss(outputs, targets)
        if targets.is_floating_point():
            wanted, there = targets[..., :-1], targets[..., -1]
            wanted = wanted.squeeze(-1) if self.ndim == 1 else wanted
        else:
            there = (targets != EMPTY).to(outputs.dtype)
            # The first row's label where empty, as its inputs are: any other may be none of its.
            wanted = torch.where(targets == EMPTY, targets[:, :1], targets)
        own = self.loss(outputs.flatten(0, 1), wanted.flatten(0, 1))
        values = losses(own, there.numel()).view_as(there)
        return _mean_over_rows(torch.where(there > 0, values, torch.zeros_like(values)), there)


def _mean_over_rows(values: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    return (values * there).sum(1) / there.sum(1).clamp(min=1)


@dataclass(frozen=True)
class Arranged:
    """The records that a plan counts, with the matching loss and wrapper of the model.

    Args:
        data: the records.
        loss: one value a record; None: the usual loss.
        wrapped: turns a model of rows into a model of the records.
    """

    data: object
    loss: Loss | None
    wrapped: Callable[[nn.Module], nn.Module] = lambda model: model


def arranged(data: object, plan: Plan, loss: Loss | None = None) -> Arranged:
    """Rows of persons as the records that a plan counts; other data as they are.

    Raises:
        DataError: a plan of persons and data without persons, data of persons under a plan for
            single rows, or more rows of a person than the plan allows.
        TypeError: a loss that is no function.
    """
    function("loss", loss)
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
    own: Loss = person_loss if loss is None else PersonLoss(of_each(loss), ndim)
    return Arranged((persons.inputs, persons.targets), own, lambda model: PerPerson(model, shape))


def as_rows(records: Records, model: nn.Module) -> Records:
    """The rows inside the records of a model of persons; other records as they are."""
    if not isinstance(model, PerPerson) or not isinstance(records, TensorRecords):
        return records
    inputs, targets = records.inputs.flatten(0, 1), records.targets.flatten(0, 1)
    there = targets != EMPTY
    if targets.is_floating_point():
        targets, there = targets[:, :-1], targets[:, -1] > 0
    return TensorRecords(inputs[there], targets[there])


def of_rows(model: nn.Module) -> nn.Module:
    """The model of rows inside a model of persons; other models as they are."""
    return model.model if isinstance(model, PerPerson) else model


# Linear models: trained on centred features, then converted back for features as they are.
#
# A plan may pay for the features' means (``Preparation(("means",))``). Around the means a linear
# model learns faster and its gradients have less noise. It loses nothing: its scores
# W (x − m)/c + b are those of weights W/c and intercept b − W m/c on x. So no user of the model
# sees the centring.


# File of a run folder that holds the released preparation.
PREPARED = "prepared.json"


class NotCentredWarning(UserWarning):
    """A plan pays for the features' means, but the run cannot use them."""


@contextmanager
def centred_weights(layer: Any, constants: InputConstants) -> Iterator[None]:
    """A context with a linear layer's weights for centred features; all scores stay the same.

    Args:
        layer: a torch.nn.Linear with a bias.
        constants: shift and scale of every feature.
    """
    weight, bias = layer.weight, layer.bias
    # In double precision: the features' means may be many times their spread.
    like: dict[str, Any] = {"dtype": torch.float64, "device": weight.device}
    shift = torch.tensor(constants.shift, **like)
    scale = torch.tensor(constants.scale, **like).to(weight.dtype)
    with torch.no_grad():
        bias += (weight.double() @ shift).to(bias.dtype)
        weight *= scale
    try:
        yield
    finally:
        with torch.no_grad():
            weight /= scale
            bias -= (weight.double() @ shift).to(bias.dtype)


class CentredRecords(MappedRecords):
    """Records whose inputs are centred when a batch is taken.

    Args:
        records: the records to centre.
        constants: shift and scale of every feature.
    """

    def __init__(self, records: Records, constants: InputConstants) -> None:
        super().__init__(records)
        self._shift, self._scale = torch.tensor(constants.shift), torch.tensor(constants.scale)

    def _mapped(self, inputs: Tensor, targets: Any) -> tuple[Any, Any]:
        both = (part.to(inputs.device, inputs.dtype) for part in (self._shift, self._scale))
        shift, scale = (part.view(inputs.shape[1:]) for part in both)
        return (inputs - shift).div_(scale), targets  # no second copy: features take much memory

    def digest(self, key: bytes) -> str:
        return f"{super().digest(key)} centred"


# The slack of a budget, which covers how far other versions and machines may compute another ε.
SLACK = 1e-3


def require_within_budget(plan: Plan) -> None:
    """Refuse to run a plan that spends more than the budget that it names.

    Raises:
        ValueError: its certified ε is above the budget's.
    """
    budget = plan.budget
    if budget is None:
        return
    spent = exact.epsilon(plan.mechanism, budget.delta, plan.records_per_person).upper
    if spent > budget.epsilon * (1 + SLACK):
        raise ValueError(
            f"the plan spends epsilon {at_most(spent)} at delta {budget.delta:.3g}, and its budget "
            f"is {budget.epsilon:g}: plan again with forethought.plan, or drop the budget with "
            "plan.with_(budget=None)"
        )


def require_answered(plan: Plan, prepared: Prepared | None) -> None:
    """Refuse a run above its plan's budget, or without the preparation that its plan pays for.

    A preparation that the run itself can release is not needed.

    Raises:
        ValueError: as for :func:`require_within_budget`, and
            :func:`forethought.rounds.preparation.require_prepared`.
    """
    require_within_budget(plan)
    if prepared is None and plan.preparation is not None and plan.preparation.centres:
        return
    require_prepared(plan, prepared, begun=True)


def uncentred(plan: Plan) -> Plan:
    """The plan without the means that it pays for, with a warning; it then spends less.

    Other preparations stay; running the plan needs them.
    """
    if plan.preparation is None or not plan.preparation.centres:
        return plan
    warnings.warn(
        "the plan pays for the means of a linear model's features, which cannot be used here and "
        "are not released. To spend that on rounds, make it with centre=False",
        NotCentredWarning,
        stacklevel=3,
    )
    return plan.remade(preparation=None)
