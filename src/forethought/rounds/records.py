"""Access to training and held-out records: tensors, arrays, or a map-style torch Dataset."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

import numpy as np
import torch
from blake3 import blake3
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from forethought.rounds.sampling import Indices

# Records that are read and hashed at a time.
PIECE = 4096


class Records(Protocol):
    """What training needs of data: its size, any batch, and a digest to recognise it by."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> tuple[Any, Any]:
        """Inputs and targets of the records, batch first. An empty batch has None for both."""
        ...

    def digest(self, key: bytes) -> str:
        """A keyed hash of every record: equal for equal data, and saying nothing without the key.

        Args:
            key: 32 bytes.
        """
        ...


class TensorRecords:
    """Inputs and targets in memory, picked by index.

    Args:
        inputs, targets: first dimension is the record.
        device: where batches go.
    """

    def __init__(
        self, inputs: torch.Tensor, targets: torch.Tensor, device: torch.device | str = "cpu"
    ) -> None:
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
            raise ValueError(
                "inputs and targets must have one row a record: shapes "
                f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
            )
        self.inputs, self.targets = inputs, targets
        self._device = torch.device(device)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        if not len(indices):
            return None, None
        index = torch.from_numpy(indices)
        if self.inputs.device.type != "cpu":
            index = index.to(self.inputs.device)
        inputs = self.inputs.index_select(0, index)
        targets = self.targets.index_select(0, index)
        return inputs.to(self._device), targets.to(self._device)

    def digest(self, key: bytes) -> str:
        state = blake3(key=key)
        for tensor in (self.inputs, self.targets):
            state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            # In pieces, so that data on a device or with strides is never copied whole.
            for piece in torch.split(tensor.detach(), PIECE):
                state.update(content(piece))
        return state.hexdigest()


class DatasetRecords:
    """A map-style torch Dataset of (input, target) pairs, read record by record.

    A record must be the same whenever it is read.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise TypeError(
                "data must be a map-style Dataset with __len__ and __getitem__: private sampling "
                f"picks records by number, which {type(dataset).__name__} cannot do"
            )
        self._dataset, self._size, self._dtype = dataset, len(dataset), dtype
        self._device = torch.device(device)

    def __len__(self) -> int:
        return self._size

    def take(self, indices: Indices) -> tuple[Any, Any]:
        if not len(indices):
            return None, None
        pairs = [self._dataset[int(index)] for index in indices]
        if not isinstance(pairs[0], (tuple, list)) or len(pairs[0]) != 2:
            raise TypeError("a Dataset must give (input, target) pairs, one a record")
        inputs, targets = default_collate(pairs)
        inputs = torch.utils._pytree.tree_map(lambda leaf: as_input(leaf, self._dtype), inputs)
        moved = torch.utils._pytree.tree_map(
            lambda leaf: leaf.to(self._device), (inputs, as_target(targets, self._dtype))
        )
        return moved[0], moved[1]

    def digest(self, key: bytes) -> str:
        state = blake3(str(self._size).encode(), key=key)
        if self._content(np.arange(1)) != self._content(np.arange(1)):
            raise ValueError(
                "the Dataset gave two different values for one record; a run that can be "
                "resumed needs records that do not change. Move random augmentation into the "
                "model, or train without out="
            )
        for index in range(self._size):
            state.update(self._content(np.array([index])))
        return state.hexdigest()

    def _content(self, indices: Indices) -> bytes:
        leaves = torch.utils._pytree.tree_leaves(self.take(indices))
        return b"".join(
            f"{leaf.dtype}{tuple(leaf.shape)}".encode() + content(leaf)
            for leaf in leaves
            if isinstance(leaf, torch.Tensor)
        )


def blank(records: Records, size: int = 2) -> tuple[Any, Any]:
    """``size`` records of zeros in the form of the given ones: no value of theirs is in them."""
    count = min(size, len(records))
    zeros: tuple[Any, Any] = torch.utils._pytree.tree_map(
        lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf,
        records.take(np.arange(count)),
    )
    return zeros


def as_records(
    data: object, dtype: torch.dtype, device: torch.device | str = "cpu", name: str = "data"
) -> Records:
    """Training or held-out data in the form that the loop reads.

    Args:
        data: ``(inputs, targets)``, arrays or tensors, or a map-style torch Dataset.
        dtype: of the model: floating-point values are converted to it.
        device: where batches go.
        name: of the argument, for messages.

    Raises:
        TypeError: something else. ValueError: shapes that do not fit, or no records at all.
    """
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, Dataset):
        records: Records = DatasetRecords(data, dtype, device)
    elif isinstance(data, (tuple, list)) and len(data) == 2:
        inputs, targets = (_tensor(name, part) for part in data)
        records = TensorRecords(as_input(inputs, dtype), as_target(targets, dtype), device)
    else:
        raise TypeError(
            f"{name} must be a pair (inputs, targets) of arrays or tensors, or a map-style torch "
            f"Dataset, not {type(data).__name__}"
        )
    if not len(records):
        raise ValueError(f"{name} holds no records")
    return records


def as_input(tensor: Any, dtype: torch.dtype) -> Any:
    """Floating-point values in the model's precision; whole numbers (tokens) as they are."""
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
    array = np.asarray(part)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{name} must hold numbers, not an array of dtype {array.dtype}; encode text and "
            "categories first"
        )
    # torch shares the memory, and warns of arrays that cannot be written.
    return torch.from_numpy(np.require(array, requirements=("C", "W")))


def content(tensor: torch.Tensor) -> bytes:
    """A tensor's values as bytes."""
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return raw.numpy().tobytes()
