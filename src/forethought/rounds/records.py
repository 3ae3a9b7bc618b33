"""Access to training and held-out records: tensors, arrays, lists, or data sets read by number."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Sized
from typing import Any, Protocol

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from forethought.gradients.boundary import own_part
from forethought.rounds.randomness import Indices

# Records that are read and hashed at a time.
PIECE = 4096

# Usual keys of the target in records that are dicts.
LABELS = ("labels", "label", "targets", "target")


class Records(Protocol):
    """The interface of data for training: its size, any batch, and a digest that identifies it."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> tuple[Any, Any]:
        """Inputs and targets of the records, batch first. An empty batch has None for both."""

    def digest(self, key: bytes) -> str:
        """A keyed hash of all records: equal for equal data; it reveals nothing without the key.

        Args:
            key: 32 bytes.
        """


def picked(rows: torch.Tensor, indices: Indices, device: torch.device) -> torch.Tensor:
    """A copy of these rows on ``device``, so that a model may write into its input."""
    first, count = int(indices[0]), len(indices)
    run = indices[-1] - first == count - 1 and 0 <= first <= len(rows) - count
    if run and np.array_equal(indices, np.arange(first, first + count)):
        # Consecutive rows, as in full batches, are copied four times faster as one piece.
        few = rows[first : first + count]
        return few.to(device, copy=True, memory_format=torch.contiguous_format)
    return rows.index_select(0, torch.from_numpy(indices).to(rows.device)).to(device)


class NamedRecords:
    """Several tensors of inputs in memory, by name or in a tuple, picked by index.

    Args:
        inputs: a dict or tuple of tensors, which may be nested. targets: a tensor.
        device: the device of batches.
        label: the key of the targets, if they came in a dict with the inputs.

    Raises:
        ValueError: tensors without one row for each record.
    """

    def __init__(
        self,
        inputs: Any,
        targets: torch.Tensor,
        device: torch.device | str = "cpu",
        label: str | None = None,
    ) -> None:
        self.inputs, self.targets, self.label = inputs, targets, label
        self._device = torch.device(device)
        tensors = tree_leaves((inputs, targets))
        if any(not part.ndim or len(part) != len(targets) for part in tensors):
            raise ValueError(
                "inputs and targets must have one row a record: shapes "
                f"{', '.join(str(tuple(part.shape)) for part in tensors)}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        if not len(indices):
            return None, None
        return tree_map(
            lambda part: picked(part, indices, self._device), (self.inputs, self.targets)
        )

    def digest(self, key: bytes) -> str:
        tensors, structure = tree_flatten((self.inputs, self.targets))
        return digest_of(tensors, key, str(structure))


class TensorRecords(NamedRecords):
    """Inputs and targets in memory, one tensor each, picked by index.

    Args:
        inputs, targets: tensors with the records in dimension 0.
        device: the device of batches.
    """

    inputs: torch.Tensor

    def digest(self, key: bytes) -> str:
        return digest_of((self.inputs, self.targets), key)


def digest_of(tensors: Sequence[torch.Tensor], key: bytes, structure: str = "") -> str:
    """A keyed hash of all records in some tensors, and of a description of their structure."""
    state = blake3(structure.encode(), key=key)
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        # In pieces, so that data on another device or with strides is not copied as a whole.
        for piece in torch.split(tensor.detach(), PIECE):
            state.update(content(piece))
    return state.hexdigest()


class MappedRecords(ABC):
    """Records whose batches are computed from those of others, row by row.

    A subclass says how, in ``_mapped``.

    Args:
        records: the records to compute from.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        inputs, targets = self._records.take(indices)
        return (None, None) if inputs is None else self._mapped(inputs, targets)

    @abstractmethod
    def _mapped(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The batch of these records, from the other's."""

    def digest(self, key: bytes) -> str:
        return self._records.digest(key)


class DatasetRecords:
    """A map-style torch Dataset of (input, target) pairs, or of dicts, read record by record.

    Every read of a record must give the same values. The user's own ``collate`` gets one record at
    a time: given several (padding to the longest, statistics of the batch), it could let one record
    change another's contribution. For the same reason the keys, shapes and types of every record
    must be those of record 0.

    Args:
        dataset: an object with a length and records by number.
        dtype: the model's; floating-point values are converted to it.
        device: the device of batches.
        collate: a list of records → a batch; default: torch's.

    Raises:
        TypeError: an iterable data set, or one without a length.

    Attributes:
        label: the key of the targets if records are dicts, known after the first batch; else None.
        check: refuses a batch's targets; None: nothing is known of them.
    """

    def __init__(
        self,
        dataset: Any,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise TypeError(
                "data must be a map-style Dataset with __len__ and __getitem__: private sampling "
                f"picks records by number, which {type(dataset).__name__} cannot do"
            )
        self._dataset: Any = dataset
        self._size, self._dtype = len(dataset), dtype
        self._device, self._collate = torch.device(device), collate
        self._form: Any = None
        self.label: str | None = None
        self.check: Callable[[torch.Tensor], object] | None = None

    def __len__(self) -> int:
        return self._size

    def take(self, indices: Indices) -> tuple[Any, Any]:
        if not len(indices):
            return None, None
        batch = self._collated(indices)
        if isinstance(batch, Mapping):
            self.label = label_of(batch)
            targets = batch[self.label]
            inputs: Any = {name: part for name, part in batch.items() if name != self.label}
        elif isinstance(batch, (tuple, list)) and len(batch) == 2:
            inputs, targets = batch
        else:
            raise TypeError(
                "a Dataset must give (input, target) pairs, or dicts with the target under one of "
                f"{', '.join(LABELS)}, one a record"
            )
        inputs = tree_map(lambda leaf: as_input(leaf, self._dtype), inputs)
        targets = as_target(targets, self._dtype)
        if self.check is not None and isinstance(targets, torch.Tensor):
            self.check(targets)
        inputs, targets = tree_map(lambda leaf: _on(leaf, self._device), (inputs, targets))
        return inputs, targets

    def _collated(self, indices: Indices) -> Any:
        held = [self._read(int(index)) for index in indices]
        if self._form is None:
            self._form = _form_of(self._read(0))
        for record in held:
            if (form := _form_of(record)) != self._form:
                raise ValueError(f"{_ONE_FORM}, not {form} beside {self._form}: {_PAD}")
        if self._collate is default_collate:
            return _together(held)
        parts, structures = zip(*map(tree_flatten, held), strict=True)
        joined = [torch.cat(leaves) for leaves in zip(*parts, strict=True)]
        return tree_unflatten(joined, structures[0])

    def _read(self, index: int) -> Any:
        """One record of the data set; with the user's own ``collate``, a batch of this record.

        Copied before the next one is read: a data set or a ``collate`` that refills one buffer
        would otherwise make every record of a batch the last one.
        """
        record = _copied(self._dataset[index])
        if self._collate is not default_collate:
            record = _copied(self._collate([record]))
        return _plain(record)

    def digest(self, key: bytes) -> str:
        state = blake3(str(self._size).encode(), key=key)
        # A coin flipped in every reading spares one record with a chance of 1/2, and all 64 with
        # 2⁻⁶⁴. A change of few records, or a rare one, may stay unseen.
        some = np.arange(min(64, self._size))
        if self._content(some) != self._content(some):
            raise ValueError(
                "the Dataset gave two different values for one record; a run that can be "
                "resumed needs records that do not change. Move random augmentation into the "
                "model, or train without out="
            )
        for index in range(self._size):
            state.update(self._content(np.array([index])))
        return state.hexdigest()

    def _content(self, indices: Indices) -> bytes:
        leaves = tree_leaves(self.take(indices))
        return b"".join(
            f"{leaf.dtype}{tuple(leaf.shape)}".encode() + content(leaf)
            for leaf in leaves
            if isinstance(leaf, torch.Tensor)
        )


_ONE_FORM = "every record must have one form and one shape"
_PAD = (
    "pad to one length that is public, such as tokenizer(..., padding='max_length', "
    "max_length=128). A batch's longest record would change what all others contribute"
)


def _on(leaf: Any, device: torch.device) -> Any:
    if not hasattr(leaf, "to"):
        raise TypeError(
            f"records must hold numbers and tensors, not {type(leaf).__name__}: encode text "
            "first, or leave it out"
        )
    return leaf.to(device)


def _copied(part: Any) -> Any:
    """A part of a record with tensors and arrays of its own, in containers of the same kind."""
    if isinstance(part, torch.Tensor):
        return part.clone()
    if isinstance(part, np.ndarray):
        return np.array(_array("a record", part))
    if isinstance(part, Mapping):
        own: Any = copy.copy(part) if isinstance(part, MutableMapping) else dict(part)
        own.update({key: _copied(entry) for key, entry in part.items()})
        return own
    if isinstance(part, tuple | list):
        parts = [_copied(entry) for entry in part]
        return part._make(parts) if hasattr(part, "_make") else type(part)(parts)
    return part


def _plain(record: Any) -> Any:
    """Mappings of other libraries (as of a tokenizer) as plain dicts, with sorted keys."""
    if not isinstance(record, Mapping):
        return record
    return {key: _plain(record[key]) for key in sorted(record, key=str)}


def _form_of(record: Any) -> Any:
    """Keys, shapes and types of a record; if they are equal, torch collates all records alike."""
    if isinstance(record, torch.Tensor | np.ndarray | np.generic):
        return str(record.dtype), tuple(record.shape)
    if isinstance(record, Mapping):
        return {key: _form_of(part) for key, part in record.items()}
    if isinstance(record, tuple | list):
        return [_form_of(part) for part in record]
    return type(record).__name__


def _together(records: list[Any]) -> Any:
    """Records as a batch, by torch's own collate function, which only stacks them.

    Raises:
        ValueError: records that cannot be stacked.
    """
    try:
        return default_collate(records)
    except (RuntimeError, TypeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ValueError(f"{_ONE_FORM}, or be tensors and numbers ({first}): {_PAD}") from error


class ArrowRecords(DatasetRecords):
    """A ``datasets.Dataset``, on disk or in memory, read by index, one batch at a time.

    Columns of text are left out, because they cannot become tensors.

    Args:
        dataset: a data set with the columns of the model's inputs and of the target.
        dtype, device: as for :class:`DatasetRecords`.

    Raises:
        TypeError: there is no column of numbers, or one of neither numbers nor text (images,
            dates). ValueError: a column has missing entries.
    """

    def __init__(
        self, dataset: Any, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        given = {name: _entries(dataset.features[name]) for name in dataset.format["columns"]}
        if others := [name for name, kind in given.items() if not kind.startswith(_KNOWN)]:
            raise TypeError(
                f"columns of the data set hold neither numbers nor text ({', '.join(others)}): "
                "make tensors of them with dataset.with_transform(…), or leave them out with "
                "dataset.remove_columns(…)"
            )
        chosen = [name for name, kind in given.items() if kind.startswith(_NUMBERS)]
        if not chosen:
            raise TypeError(
                f"the data set has no column of numbers, only {', '.join(given)}: "
                "encode text first, with dataset.map(tokenizer, …)"
            )
        _require_whole(dataset, chosen)
        super().__init__(dataset.with_format("torch", columns=chosen), dtype, device)

    def _collated(self, indices: Indices) -> Any:
        columns = self._dataset[indices.tolist()]
        ragged = [name for name, part in columns.items() if not isinstance(part, torch.Tensor)]
        if ragged:
            raise ValueError(f"{_ONE_FORM}, unlike {', '.join(ragged)}: {_PAD}")
        if self._form is None:
            self._form = _row_forms(self._dataset[[0]])
        if (form := _row_forms(columns)) != self._form:
            raise ValueError(f"{_ONE_FORM}, not {form} beside {self._form}: {_PAD}")
        names = list(columns)
        if len(names) == 2 and any(name in LABELS for name in names):
            # A single column besides the target is the input itself, as in (input, target) pairs.
            target = label_of(columns)
            (other,) = (name for name in names if name != target)
            if other not in _NAMED_INPUTS:
                return columns[other], columns[target]
        return columns


def _row_forms(columns: Mapping[str, torch.Tensor]) -> Any:
    return {name: (str(part.dtype), tuple(part.shape[1:])) for name, part in columns.items()}


def _require_whole(dataset: Any, names: Sequence[str]) -> None:
    """Refuse missing entries: one of them would turn a column of whole numbers into floats.

    Raises:
        ValueError: columns have missing entries; the message names them.
    """
    in_arrow = dataset.with_format("arrow", columns=list(names))
    if not any(map(_misses, dataset.data.table.columns)):  # all rows, also those not selected
        return
    if missing := [name for name in names if _misses(in_arrow[:][name])]:
        raise ValueError(
            f"the data set misses entries in {', '.join(missing)}: fill or drop them beforehand"
        )


def _misses(column: Any) -> bool:
    """True if an Arrow column, or a list in it, has a null."""
    if column.null_count:
        return True
    listed = "list" in str(column.type).partition("<")[0]
    return listed and any(_misses(chunk.flatten()) for chunk in getattr(column, "chunks", [column]))


# Columns that models of text and images take by name, even if it is the only input.
_NAMED_INPUTS = frozenset({"input_ids", "pixel_values", "input_values", "input_features"})


# The first letters of the Arrow types of numbers, and of those that may be in a data set.
_NUMBERS = ("int", "uint", "float", "double", "bool")
_KNOWN = (*_NUMBERS, "string", "large_string")


def _entries(kind: Any) -> str:
    """The Arrow type of a column's entries, or of those of its lists."""
    while hasattr(kind, "feature"):
        kind = kind.feature
    return str(getattr(kind, "dtype", ""))


def label_of(record: Mapping[str, Any]) -> str:
    """The key of the target in a record that is a dict.

    Raises:
        TypeError: the record has none of the usual keys, or several.
    """
    found = [name for name in LABELS if name in record]
    if len(found) != 1:
        raise TypeError(
            f"records are dicts with the keys {', '.join(map(str, record))}: the target must be "
            f"under one of {', '.join(LABELS)}"
        )
    return found[0]


def require_size(
    records: Records, examples: int, refusal: Callable[[str], Exception] = ValueError
) -> None:
    """Refuse data of another size than the plan's, with an error of the kind ``refusal``."""
    if len(records) != examples:
        raise refusal(
            f"the plan is for {examples} examples, the data has {len(records)}: the guarantee "
            "depends on it. Make the plan with examples=len(data)"
        )


def blank(records: Records, size: int = 2) -> tuple[Any, Any]:
    """At most ``size`` records of zeros in the form of the given ones, without their values."""
    count = min(size, len(records))
    return tree_map(
        lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf,
        records.take(np.arange(count)),
    )


def as_records(
    data: object, dtype: torch.dtype, device: torch.device | str = "cpu", name: str = "data"
) -> Records:
    """Training or held-out data in the form that the loop reads.

    Args:
        data: ``(inputs, targets)`` as arrays or tensors, with inputs also in dicts or tuples; a
            dict of these with the targets under a usual key (:data:`LABELS`); a map-style torch
            Dataset of pairs or dicts; a list of such records; a ``datasets.Dataset``; any object
            with a length and records by number; or a DataLoader, of which only the data set and
            ``collate_fn`` are used: a sampler of the user's own is refused.
        dtype: the model's; floating-point values are converted to it.
        device: the device of batches.
        name: name of the argument, for messages.

    Raises:
        TypeError: data of another kind. ValueError: shapes that do not fit, no records, or a
            DataLoader that leaves some out.
    """
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    label: str | None = None
    if isinstance(data, Mapping):
        if data and all(map(_in_arrow, data.values())):
            raise TypeError(
                f"{name} holds the data sets {', '.join(map(str, data))}: give one of them, such "
                f"as {name}[{next(iter(data))!r}]"
            )
        label = label_of(data)
        data = ({key: part for key, part in data.items() if key != label}, data[label])
    if isinstance(data, DataLoader):
        # With batch_size=None torch leaves the records as they are: a batch is made of them here.
        single = data.collate_fn is torch.utils.data.default_convert
        own = default_collate if single else data.collate_fn
        records: Records = DatasetRecords(data.dataset, dtype, device, own)
        _require_all(data, name)
    elif _in_arrow(data):
        records = ArrowRecords(data, dtype, device)
    elif isinstance(data, Dataset) or _by_number(data) or _list_of_records(data):
        records = DatasetRecords(data, dtype, device)
    elif isinstance(data, (tuple, list)) and len(data) == 2:
        inputs, targets = data[0], as_target(_tensor(name, data[1]), dtype)
        tensors = isinstance(inputs, tuple) and all(isinstance(x, torch.Tensor) for x in inputs)
        if isinstance(inputs, Mapping) or tensors:
            inputs = tree_map(lambda part: as_input(_tensor(name, part), dtype), inputs)
            records = NamedRecords(inputs, targets, device, label)
        else:
            records = TensorRecords(as_input(_tensor(name, inputs), dtype), targets, device)
    else:
        raise TypeError(
            f"{name} must be a pair (inputs, targets) of arrays or tensors, a list of such pairs "
            f"or of dicts, or a map-style torch Dataset, not {type(data).__name__}"
        )
    if not len(records):
        raise ValueError(f"{name} holds no records")
    return records


# Samplers of all records alike, and libraries whose trainers put their own in.
_OF_ALL = ("BatchSampler", "DistributedSampler", "RandomSampler", "SequentialSampler")
_TRAINERS = ("accelerate", "transformers")


def _samplers(one: object) -> Iterator[object]:
    """A loader or sampler, and all samplers inside it."""
    yield one
    for part in ("batch_sampler", "sampler"):
        if (inner := getattr(one, part, None)) is not None:
            yield from _samplers(inner)


def _require_all(loader: DataLoader[Any], name: str) -> None:
    """Refuse a sampler that leaves records out: the plan's sampling replaces it, and takes all."""
    known = [getattr(torch.utils.data, name) for name in _OF_ALL]
    data: Any = loader.dataset
    for one in [*_samplers(loader)][1:]:
        kind, over = type(one), getattr(one, "data_source", getattr(one, "dataset", data))
        every = kind in known and len(over) == len(data) and not getattr(one, "replacement", False)
        if isinstance(one, torch.utils.data.RandomSampler):
            every = every and one.num_samples == len(data)
        if not every and kind.__module__.partition(".")[0] not in _TRAINERS:
            raise ValueError(
                f"{name} is a DataLoader with a {kind.__name__}, which the plan's own sampling "
                "would replace, so that all of its data set would be drawn: give a part of it as "
                "torch.utils.data.Subset(dataset, indices), without a sampler"
            )


def _by_number(data: object) -> bool:
    # True for data sets of other libraries. Indexing arrays, sequences and tables means something
    # else.
    plain = isinstance(data, (tuple, list, str, bytes, np.ndarray, torch.Tensor))
    table = hasattr(data, "columns")
    return not (plain or table) and isinstance(data, Sized) and hasattr(data, "__getitem__")


def _in_arrow(data: Any) -> bool:
    """True for a ``datasets.Dataset``, unless the user's own function makes its records."""
    found = getattr(data, "format", None)
    return isinstance(found, Mapping) and found.get("type") != "custom" and hasattr(data, "data")


def _list_of_records(data: object) -> bool:
    """True for a list of records: dicts, or pairs.

    Raises:
        TypeError: a list of two lists of two, which is ambiguous: inputs and targets, or records.
    """
    if not isinstance(data, list) or not data:
        return False
    if isinstance(data[0], Mapping):
        return True
    pairs = all(isinstance(one, tuple | list) and len(one) == 2 for one in data[:2])
    if len(data) != 2 or not pairs:
        return pairs
    if isinstance(data[0], list) or isinstance(data[1], list):
        raise TypeError(
            "a list of two lists of two may be inputs and targets or two records: write a tuple, "
            "(inputs, targets), or each record as one, [(input, target), (input, target)]"
        )
    return True


def as_input(tensor: Any, dtype: torch.dtype) -> Any:
    """Floating-point values in the model's precision; whole numbers (tokens) unchanged."""
    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor


def as_target(tensor: Any, dtype: torch.dtype) -> Any:
    """Floating-point values in the model's precision, labels as int64."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return tensor.to(dtype if tensor.is_floating_point() else torch.int64)


def _tensor(name: str, part: object) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return part.detach()
    array = _array(name, part)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{name} must hold numbers, not an array of dtype {array.dtype}; encode text and "
            "categories first"
        )
    # torch shares the memory and warns about read-only arrays; these are copied here.
    return torch.from_numpy(np.require(array, requirements=("C", "W")))


def require_unmasked(name: str, part: object) -> None:
    """Refuse masked entries: arrays without masks, and torch, would take their values.

    Raises:
        ValueError: some entries are masked.
    """
    if np.ma.is_masked(part):
        raise ValueError(
            f"{name} has masked entries, whose values would be trained on: fill them "
            "(array.filled(…)), or drop these records"
        )


def _array(name: str, part: object) -> NDArray[Any]:
    """An array as torch takes it: in this machine's byte order, and with at most 64 bits a number.

    Raises:
        ValueError: some entries are masked.
    """
    require_unmasked(name, part)
    array = np.asarray(part)
    long = array.dtype.kind == "f" and array.dtype.itemsize > 8
    return array.astype(np.float64 if long else array.dtype.newbyteorder("="), copy=False)


# Types for which the way through NumPy is faster.
_IN_NUMPY = {torch.float32, torch.float64, torch.int64}


def content(tensor: torch.Tensor) -> bytes:
    """A tensor's values as bytes; for a sharded tensor, those of this process's shard."""
    tensor = own_part(tensor)
    if tensor.dtype in _IN_NUMPY:
        return tensor.numpy(force=True).tobytes()
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
