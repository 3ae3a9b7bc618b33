"""Nested inputs and targets (tensors in tuples, lists and dicts) with the batch in front."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients.boundary import gathered
from forethought.values.checks import whole

Loss = Callable[[Any, Any], Tensor]


def leaves(tree: Any) -> Iterator[Any]:
    """Every value in a nested tuple, list or dict, depth first."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in a nested tuple, list or dict, depth first."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Tensor))


def select(tree: Any, index: Tensor) -> Any:
    """The examples ``index`` (LongTensor) of every tensor in the tree; other leaves are kept."""
    return mapped(tree, lambda leaf: leaf.detach().index_select(0, index.to(leaf.device)))


def detached(tree: Any) -> Any:
    """The same values without their autograd history."""
    return mapped(tree, Tensor.detach)


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The tree with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(value, change) for key, value in tree.items()}
    if not isinstance(tree, tuple | list):
        return tree
    found = [mapped(value, change) for value in tree]
    return type(tree)(*found) if hasattr(tree, "_fields") else type(tree)(found)


def batch_size(inputs: Any, targets: Any) -> int:
    """The number of examples: the size of dimension 0, which all tensors must share.

    Raises:
        TypeError: numbers or arrays among the tensors, which every example would see.
        ValueError: no tensor at all, a tensor without dimensions, or sizes that disagree.
    """
    for leaf in leaves((inputs, targets)):
        if not (leaf is None or isinstance(leaf, Tensor | bool | str)):
            raise TypeError(
                f"inputs and targets hold a {type(leaf).__name__}, which every example would see: "
                "give a tensor with one row an example"
            )
    shapes = [tuple(leaf.shape) for leaf in (*tensors(inputs), *tensors(targets))]
    if not shapes:
        raise ValueError("inputs and targets hold no tensor, so the batch has no size")
    sizes = {shape[0] if shape else None for shape in shapes}
    if len(sizes) > 1 or None in sizes:
        raise ValueError(
            f"inputs and targets must all have the examples in dimension 0, but the shapes are "
            f"{', '.join(map(str, shapes))}; what all share belongs into the model or the loss"
        )
    return shapes[0][0]


def call(model: nn.Module, inputs: Any) -> Any:
    """``model(x)``, ``model(*tuple)`` or ``model(**dict)``, depending on the type of ``inputs``."""
    with gathered(model):
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, tuple | list):
            return model(*inputs)
        return model(inputs)


def losses(values: Any, batch: int) -> Tensor:
    """The loss's values, checked: one per example, in shape (batch,).

    Raises:
        ValueError: not a tensor of shape (batch,), or (batch, 1).
    """
    if isinstance(values, Tensor) and tuple(values.shape) == (batch, 1):
        values = values[:, 0]
    if not isinstance(values, Tensor) or tuple(values.shape) != (batch,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"loss(outputs, targets) must return one value per example, shape ({batch},), "
            f"not {got}; with torch losses use reduction='none' and take the mean over each "
            "example's own values"
        )
    return values


def own_losses(values: Any, batch: int) -> Tensor:
    """The loss's values as of :func:`losses`; of a single example, also as a plain number."""
    if isinstance(values, Tensor) and values.dim() == 0 and batch == 1:
        values = values.reshape(1)
    return losses(values, batch)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision of norms and sums: float64 stays, everything else becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def zeros_for(parameter: Tensor, *shape: int) -> Tensor:
    """Zeros in the precision of sums, on the parameter's device; its shape unless one is given."""
    size = shape or parameter.shape
    return torch.zeros(size, dtype=sum_dtype(parameter.dtype), device=parameter.device)


# The number of rows of a pass: one of a few public numbers, never the size of the drawn batch.
#
# A kernel may compute a row in another order if the number of rows changes. So a batch is filled up
# to one of the sizes of a :class:`Blocks`, which follow from the plan, and is cut if it is longer
# than the largest. Before the sizes are used, a test shows that a record's numbers have the same
# bits in all of them and at every place (:func:`~forethought.gradients.clipped.probed`).


# Vectorised loops of torch's CPU kernels and inner blocks of products end at multiples of this.
UNIT = 16
# A batch whose size is within so many standard deviations of the mean is one block.
WIDTH = 3


@dataclass(frozen=True)
class Blocks:
    """The numbers of rows that passes may have.

    Attributes:
        sizes: numbers of rows, ascending.
        alone: True if each example runs in a pass of its own, for all sizes.
    """

    sizes: tuple[int, ...]
    alone: bool = False

    def fit(self, count: int) -> int:
        """The smallest size that holds ``count`` rows; ``count`` is at most the largest size."""
        return next(size for size in self.sizes if size >= count)

    def cut(self, count: int) -> Iterator[tuple[int, int, int]]:
        """``(start, end, size)`` of each block of a batch of ``count`` examples."""
        most = self.sizes[-1]
        for start in range(0, count, most):
            end = min(start + most, count)
            yield start, end, self.fit(end - start)

    def within(self, most: int) -> Blocks:
        """Up to about eight sizes of at most ``most`` rows, a multiple of UNIT."""
        return replace(self, sizes=tuple(range(most, 0, -_up(most / 8, UNIT)))[::-1])

    def others(self) -> Iterator[Blocks]:
        """Other block sizes, cheapest first, to try if these fail the test of equal bits."""
        most = self.sizes[-1]
        tried: list[tuple[int, ...]] = [(few,) for few in (2 * UNIT, UNIT, 4, 1) if few < most]
        if len(self.sizes) > 1:  # a single size may be all that memory allows
            longer = tuple(dict.fromkeys(_up(size, 4 * UNIT) for size in self.sizes))
            tried = [longer, longer[-1:], *tried]
        for sizes in dict.fromkeys(tried):
            if sizes != self.sizes:
                yield replace(self, sizes=sizes)


class _Multiples(Blocks):
    """Any multiple of :data:`UNIT`: the batch is one block. For calls without a plan."""

    def fit(self, count: int) -> int:
        return _up(count, UNIT)

    def cut(self, count: int) -> Iterator[tuple[int, int, int]]:
        yield 0, count, self.fit(count)


MULTIPLES = _Multiples((UNIT,))


@cache
def planned(expected: float, spread: float, most: int | None = None) -> Blocks:
    """The sizes for batches of ``expected`` ± ``spread`` rows, which follow from public numbers.

    On average a batch is filled up by half a step, and a step is about the spread: a share
    1/(2√B) of a Poisson batch of B. About seven sizes hold all but three batches in a thousand;
    those are cut.

    Args:
        expected: mean of the number of rows. spread: its standard deviation.
        most: rows that may be held at once. If the largest size exceeds it, there is one size only,
            the largest multiple of ``UNIT`` within it.
    """
    step = UNIT * max(1, round(spread / UNIT))
    low = _up(expected - WIDTH * spread, step)
    high = max(low, _up(expected + WIDTH * spread, step))
    if most is not None and most < high:
        return Blocks((most if most < UNIT else most - most % UNIT,))
    return Blocks(tuple(range(low, high + 1, step)))


def together(parts: Iterable[Blocks]) -> Blocks:
    """The sizes for one pass over the batches of several plans."""
    sizes = [(part.sizes[0], part.sizes[-1]) for part in parts]
    expected = sum(low + high for low, high in sizes) / 2
    return planned(expected, math.hypot(*((high - low) / 2 / WIDTH for low, high in sizes)))


def _up(count: float, step: int) -> int:
    return max(1, -int(-count // step)) * step


def even_parts(count: int, most: int) -> Blocks:
    """One size: ``count`` rows in the fewest even parts of at most ``most``, rounded up to UNIT."""
    return Blocks((_up(count / -(-count // most), UNIT),)) if count else MULTIPLES


def filled(tree: Any, start: int, end: int, size: int) -> Any:
    """Examples ``start`` to ``end`` of every tensor, repeated until there are ``size``.

    The model accepts the repeated examples as it accepts the originals, and they show Python no new
    values; in a sum they have the factor 0. Every block begins at a multiple of 64 bytes in memory.
    """

    count, missing = end - start, size - (end - start)

    def change(leaf: Tensor) -> Tensor:
        part = leaf if count == leaf.shape[0] else leaf[start:end]
        if not missing:
            return part if _even(part) else part.clone(memory_format=_layout(part))
        if missing <= count:
            return torch.cat([part, part[:missing]])
        return part.index_select(0, repeated(count, size).to(leaf.device))

    return mapped(tree, change)


def in_a_row(sizes: Sequence[int]) -> list[slice]:
    """Slices of consecutive parts of these sizes."""
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def repeated(count: int, size: int) -> Tensor:
    """The ``size`` numbers 0, 1, …, count − 1, 0, 1, …."""
    return torch.arange(size) % count


def _layout(leaf: Tensor) -> torch.memory_format:
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if leaf.dim() == dims and leaf.is_contiguous(memory_format=layout):
            return layout
    return torch.contiguous_format


def _even(leaf: Tensor) -> bool:
    if leaf.layout is not torch.strided:
        return True
    return leaf.is_contiguous(memory_format=_layout(leaf)) and leaf.data_ptr() % 64 == 0


# Examples arranged in lanes.


# Groups of at least so many examples run one after the other.
LONG = 8


@dataclass(frozen=True)
class LaneBatch:
    """Examples arranged in lanes.

    Attributes:
        inputs, targets: all examples, in dimension 0, those of a lane next to each other.
        each: number of examples in a lane.
        mixing: True if the examples of a lane may see each other, as in a group; False if they are
            one record, or its altered copies.
        real: only the first ``real`` lanes count; the others repeat these and fill up a block.
            None: all.
        blocks: the sizes of passes over a part of the lanes.
    """

    inputs: Any
    targets: Any
    each: int = 1
    mixing: bool = False
    real: int | None = None
    blocks: Blocks = MULTIPLES

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return batch_size(self.inputs, self.targets) // self.each

    @property
    def count(self) -> int:
        """The number of lanes that count, without those that fill up a block."""
        return self.lanes if self.real is None else self.real

    def some(self, index: Tensor | None) -> tuple[Any, Any]:
        """Inputs and targets of the lanes ``index`` (None: all), (lanes, examples a lane, …)."""

        def arranged(leaf: Tensor) -> Tensor:
            shape = len(leaf) // self.each, self.each, *leaf.shape[1:]
            lanes = leaf.unsqueeze(1) if self.each == 1 else leaf.view(shape)
            return lanes if index is None else lanes.index_select(0, index.to(leaf.device))

        return mapped(self.inputs, arranged), mapped(self.targets, arranged)


# Groups as lanes of several examples: a group's mean gradient is one contribution.
#
# This is batch clipping and mixed clipping. The examples of one group may see each other (batch
# normalisation is allowed there); groups are isolated from each other as lanes are.


def group_numbers(groups: Tensor, size: int, group_count: int | None) -> int:
    """The number of groups.

    Raises:
        TypeError: not one integer an example. ValueError: numbers out of range.
    """
    if groups.dtype != torch.long or tuple(groups.shape) != (size,):
        raise TypeError(
            f"groups must be a LongTensor of shape ({size},), one group number per example, not "
            f"{groups.dtype} of shape {tuple(groups.shape)}"
        )
    highest = int(groups.max()) if size else -1
    count = highest + 1 if group_count is None else whole("group_count", group_count)
    if size and (int(groups.min()) < 0 or highest >= count):
        raise ValueError(
            f"group numbers must lie in 0 … {count - 1}, not {int(groups.min())} … {highest}"
        )
    return count


def by_size(groups: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Group numbers and examples (groups, examples) of the groups of each size, smallest first."""
    numbers, sizes = torch.unique(groups, return_counts=True)
    order = torch.argsort(groups, stable=True)
    starts = sizes.cumsum(0) - sizes
    for size in sizes.unique().tolist():
        same = sizes == size
        yield numbers[same], order[starts[same].unsqueeze(1) + torch.arange(size)]


# A fingerprint of all numbers that a pass computes, for each example, to compare two passes.
#
# The numbers that a sum is formed from do not show every difference: where a loss has a kink, a
# difference in the last bit may stay hidden and, for other records, change a whole contribution. So
# the fingerprint includes every value of the forward pass and every gradient of the backward pass.


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_ODD = 0x5851F42D4C957F2D


def bits(values: Tensor) -> Tensor:
    """The same memory as whole numbers: two values are equal if all bits are, for NaN too."""
    values = values.detach().contiguous()
    if values.is_complex():
        values = torch.view_as_real(values)
    return values.view(_BITS[values.element_size()])


class BatchFingerprint:
    """Fingerprints of the numbers that passes over the examples compute.

    Attributes:
        marks: one fingerprint for each example, int64. Equal numbers have equal fingerprints;
            different ones have the same with a chance of 2^-32 at most.
        widest: the most numbers of one example that a value has.
    """

    widest = 1

    def __init__(self, size: int) -> None:
        self.marks = torch.zeros(size, dtype=torch.int64)
        self.begin(size)

    def begin(self, width: int) -> None:
        """Begin a pass over ``width`` examples, and drop values that were not kept."""
        self._now = torch.zeros(width, dtype=torch.int64)
        self._number = 0

    def see(self, whole: Tensor, dim: int = 0) -> None:
        """Include a value with the examples along ``dim``, and its gradient once it is known."""
        self._number += 2
        number = self._number
        self._add(whole, dim, number)
        if whole.requires_grad:
            whole.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._add(gradient, dim, number + 1)
            )

    def keep(self, index: Tensor | None = None, count: int | None = None) -> None:
        """End the pass: keep the marks of its first ``count`` examples at the places ``index``."""
        places = slice(None) if index is None else index
        self.marks[places] = self._now[:count]

    def _add(self, whole: Tensor | None, dim: int, number: int) -> None:
        # An output that nothing uses, as of chunk(), has no gradient.
        if whole is None or whole.layout is not torch.strided or not whole.numel():
            return
        rows = bits(whole.movedim(dim, 0)).flatten(1) if whole.dim() > 1 else bits(whole)[:, None]
        if len(rows) != len(self._now):
            return
        self.widest = max(self.widest, rows.shape[1])
        together = 8 // rows.element_size()
        if not (rows.shape[1] % together or rows.storage_offset() % together):
            rows = rows.reshape(-1).view(torch.int64).view(len(rows), -1)
        places = torch.arange(rows.shape[1], device=rows.device) * (2 * number + 1) * _ODD
        # Sums of whole numbers modulo 2^64 are the same in any order.
        self._now += (rows * (places | 1)).sum(1).to(self._now.device) * (2 * number + 1)


FINGERPRINT: ContextVar[BatchFingerprint | None] = ContextVar("WATCH", default=None)


# (numbers of the examples in the rows of a pass, out of how many): each example gets its own random
# numbers at every place.
DRAWN_FOR: ContextVar[tuple[Tensor, int] | None] = ContextVar("DRAWN_FOR", default=None)
