"""Per-example weight gradients of convolutions, without holding every patch.

Four ways, chosen by cost: the batch as groups of one grouped convolution or, with few input
channels, patches of a few examples at a time (gradients written out), the norm from Gram matrices
of pixels (no patches, no gradients), and plain products where the kernel is one pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.terms import (
    LOOSE,
    SLACK,
    BoundedTerm,
    Bounds,
    Dense,
    Moved,
    Outer,
    Term,
    bounded,
    gamma,
    gram,
    gram_product,
    in_blocks,
    in_chunks,
    lengths,
    mass_of,
    rates,
    roundings,
    tiny,
    wide,
    zeroed,
)
from forethought.gradients.trees import sum_dtype

# So many at a time go through a grouped convolution on the CPU.
EXAMPLES = 32


@dataclass(frozen=True)
class Window:
    """Kernel size, stride, padding and dilation, one number a spatial dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def cells(self) -> int:
        """Entries of one kernel."""
        return math.prod(self.size)


@dataclass
class Convolved:
    """∇W of a convolution for each example.

    Attributes:
        image: (B·several, C_in, *space). gradient: (B·several, C_out, *output space).
        groups: of the convolution. several: images of one example, next to each other.
    """

    image: Tensor
    gradient: Tensor
    window: Window
    groups: int = 1
    several: int = 1

    @property
    def _batch(self) -> int:
        return self.gradient.shape[0] // self.several

    @property
    def _shape(self) -> tuple[int, ...]:
        channels = self.image.shape[1] // self.groups
        return (self.gradient.shape[1], channels, *self.window.size)

    def _ghost_wins(self) -> bool:
        if self.several > 1:
            return False
        rate = rates(self.image.device)
        width = self.image.element_size()
        batch, time = self._batch, math.prod(self.gradient.shape[2:])
        pixels = math.prod(
            n + 2 * p for n, p in zip(self.image.shape[2:], self.window.padding, strict=True)
        )
        written = batch * math.prod(self._shape) * width
        grams = pixels**2 * self.image.shape[1] + time**2 * self.gradient.shape[1]
        shifts = self.window.cells * self.groups * time**2
        ghost = batch * (2 * grams * rate.product + shifts * width * 2.4 * rate.move)
        return ghost < written * (rate.rows + 2 * rate.move)

    @property
    def _positions(self) -> int:
        return self.several * math.prod(self.gradient.shape[2:])

    @property
    def added(self) -> int:
        return self._batch * self._positions

    @property
    def breadth(self) -> int:
        return self._positions * math.prod(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        return sum_dtype(self.gradient.dtype)

    def off(self, length: int | None) -> float:
        if self._written is not None:
            return self._written.off(length)
        if self._images(length):
            return gamma(roundings(self.added, length or 1) + 4, torch.float32)
        each = self._positions // self.several
        most = self._few() * each + math.ceil(self.gradient.shape[0] / self._few())
        return gamma(most + 4, torch.float64)

    def _images(self, length: int | None) -> int:
        # How many at a time the library may add up in float32, if any. On other devices than the
        # CPU it may choose Winograd's way, for which no such bound holds.
        if length is None or self.gradient.device.type != "cpu":
            return 0
        return length * self.several // self._positions

    def _few(self) -> int:
        # How many images at a time go through a product in float64: about 2^20 numbers.
        each = math.prod(self.gradient.shape[2:])
        cells = self.image.shape[1] * self.window.cells
        return max(1, (1 << 20) // max(1, each * cells))

    @cached_property
    def _written(self) -> Dense | None:
        # Norms are those of the numbers that are added: written once, then used for both.
        return None if self._ghost_wins() else Dense(self.rows())

    def bounds(self) -> Bounds:
        if self._written is not None:
            return self._written.bounds()
        kind, groups = self.dtype, self.groups
        image, gradient = wide(self.image), wide(self.gradient)
        padding = [side for p in reversed(self.window.padding) for side in (p, p)]
        image = F.pad(image, padding) if any(padding) else image
        image = image.reshape(-1, image.shape[1] // groups, *image.shape[2:])
        gradient = gradient.reshape(-1, gradient.shape[1] // groups, *gradient.shape[2:])
        pixels = math.prod(image.shape[2:])
        found = in_chunks(self._pixel_gram, image, gradient, cells=pixels**2)
        value, masses = found[:, :2].view(-1, groups, 2).sum(1).unbind(1)
        reach = found[:, 2].view(-1, groups).amax(1)
        most = roundings(image.shape[1]) + self.window.cells + roundings(gradient.shape[1])
        slack = gamma(most + self._positions + 8, kind) * masses.square()
        slack += 2 * tiny(kind) * (self.breadth + 1) * (1 + reach).square() * self._positions**2
        norms = (value.clamp(min=0) + slack).sqrt_().mul_(SLACK)
        if kind == torch.float32:
            # As for Outer: what cancels is taken again, by each example's own numbers.
            again = ~((slack <= LOOSE * value) & (value < math.inf)) & (masses > 2.0**-60)
            if again.any():
                index = again.nonzero().squeeze(1)
                better = self.picked(index).bounds()
                norms[index] = better.norms
                masses[index] = mass_of(better)
        return Bounds(torch.minimum(norms, masses) + masses * 0, masses, reach)

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def _pixel_gram(self, image: Tensor, gradient: Tensor) -> Tensor:
        # ⟨patch_t, patch_s⟩ = Σ over the kernel's cells of ⟨pixel_{t+cell}, pixel_{s+cell}⟩
        space, out = image.shape[2:], gradient.shape[2:]
        flat, grads = image.flatten(2), gradient.flatten(2)
        pixels = gram(flat.mT, flat.mT).view(-1, *space, *space)
        outputs = gram(grads.mT, grads.mT)
        total = torch.zeros(1)
        for number, cell in enumerate(product(*(range(n) for n in self.window.size))):
            where = [
                slice(at * d, at * d + s * (n - 1) + 1, s)
                for at, d, s, n in zip(
                    cell, self.window.dilation, self.window.stride, out, strict=True
                )
            ]
            part = pixels[(slice(None), *where, *where)]
            total = part.clone(memory_format=torch.contiguous_format) if not number else total
            if number:
                total += part
        total = total.view_as(outputs)
        # A patch's norm from its pixels' norms, which are bounds.
        longest = lengths(flat.mT).view(-1, 1, *space).square()
        ones = longest.new_ones(1, 1, *self.window.size)
        dims = len(space)
        convolution = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        long = convolution(
            longest, ones, stride=self.window.stride, dilation=self.window.dilation
        ).flatten(1)
        sides = long.clamp(min=0).sqrt() * (1 + 2.0**-30), lengths(grads.mT)
        masses = (sides[0] * sides[1]).sum(1) * (1 + 2.0**-30)
        return torch.stack([gram_product(total, outputs), masses, torch.maximum(*sides).amax(1)], 1)

    def _weight_gradient(self, image: Tensor, gradient: Tensor, groups: int) -> Tensor:
        weight = image.new_empty(gradient.shape[1], image.shape[1] // groups, *self.window.size)
        dims = len(self.window.size)
        result: Tensor = torch.ops.aten.convolution_backward(
            gradient,
            image,
            weight,
            None,
            self.window.stride,
            self.window.padding,
            self.window.dilation,
            False,
            [0] * dims,
            groups,
            [False, True, False],
        )[1]
        return result

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        if self._written is not None:
            return self._written.summed(factors, length)
        image, gradient = wide(self.image), wide(self.gradient)
        scale = (
            factors.double().repeat_interleave(self.several).view(-1, *(1,) * (gradient.dim() - 1))
        )
        count = gradient.shape[0]
        few = self._images(length)
        if few:
            gradient = gradient * scale.to(gradient.dtype)
            return in_blocks(
                count,
                few,
                lambda at, to: self._weight_gradient(image[at:to], gradient[at:to], self.groups),
            ).double()
        return self._products(image, gradient, scale)

    def _products(self, image: Tensor, gradient: Tensor, scale: Tensor) -> Tensor:
        # In float64, as products of patches.
        groups, count = self.groups, gradient.shape[0]
        padding = [side for p in reversed(self.window.padding) for side in (p, p)]
        patches = self._patches(F.pad(image, padding) if any(padding) else image)
        cells = image.shape[1] // groups * self.window.cells

        def part(at: int, to: int) -> Tensor:
            right = patches[at:to].reshape(to - at, groups, cells, -1).double()
            left = gradient[at:to].double() * scale[at:to]
            left = left.reshape(to - at, groups, -1, right.shape[3])
            left, right = (v.permute(1, 2, 0, 3).flatten(2) for v in (left, right))
            return torch.bmm(left, right.mT)

        return in_blocks(count, self._few(), part).reshape(self._shape)

    def picked(self, index: Tensor) -> BoundedTerm:
        if self._written is not None:  # of the numbers that are added, overflow included
            return self._written.picked(index)
        if self.several > 1:
            index = index.unsqueeze(1) * self.several + torch.arange(
                self.several, device=index.device
            )
            index = index.flatten()
        image, gradient = self.image[index].double(), self.gradient[index].double()
        return Convolved(image, gradient, self.window, self.groups, self.several)

    def _few_channels(self) -> bool:
        # Measured: with up to about 8 input channels, patches of a few examples at a time (they
        # stay in cache) beat a grouped convolution, and often the ordinary weight gradient.
        return self.groups == 1 and self.image.shape[1] <= 8 and self.image.device.type == "cpu"

    def _patches(self, image: Tensor) -> Tensor:
        # A view (B, C_in, *kernel, *output space) of the padded image.
        window, dims, out = self.window, len(self.window.size), self.gradient.shape[2:]
        for at in range(dims):
            reach = (out[at] - 1) * window.stride[at] + 1
            image = image.unfold(2 + at, reach, window.dilation[at])
            image = image.narrow(2 + at, 0, window.size[at])
        steps = [slice(None), slice(None), *(slice(None),) * dims]
        steps += [slice(None, None, s) for s in window.stride]
        return image[tuple(steps)]

    def _patch_rows(self) -> Tensor:
        image, gradient = wide(self.image), wide(self.gradient).flatten(2)
        padding = [side for p in reversed(self.window.padding) for side in (p, p)]
        patches = self._patches(F.pad(image, padding) if any(padding) else image)
        count, cells = gradient.shape[0], image.shape[1] * self.window.cells
        rows = gradient.new_empty(count, gradient.shape[1], cells)
        step = max(1, (1 << 18) // max(1, cells * gradient.shape[2]))
        for at in range(0, count, step):
            few = gradient[at : at + step]
            matrix = patches[at : at + step].reshape(few.shape[0], cells, -1)
            torch.bmm(few, matrix.mT, out=rows[at : at + step])
        return rows

    def _by_example(self, rows: Tensor) -> Tensor:
        if self.several == 1:
            return rows.view(self._batch, *self._shape)
        return rows.view(self._batch, self.several, *self._shape).sum(1)

    def rows(self) -> Tensor:
        if self._few_channels():
            rows = self._patch_rows()
            return self._by_example(rows)
        image, gradient = wide(self.image), wide(self.gradient)
        # The convolution copies its operands into layouts of its own: not the whole batch at once.
        count, each = gradient.shape[0], self._shape[0]
        if count <= EXAMPLES or gradient.device.type != "cpu":
            return self._by_example(self._grouped(image, gradient))
        rows = gradient.new_empty(count * each, *self._shape[1:])
        for at in range(0, count, EXAMPLES):
            few = slice(at, at + EXAMPLES)
            rows[at * each : (at + EXAMPLES) * each] = self._grouped(image[few], gradient[few])
        return self._by_example(rows)

    def _grouped(self, image: Tensor, gradient: Tensor) -> Tensor:
        count = gradient.shape[0]
        image = image.reshape(1, -1, *image.shape[2:])
        gradient = gradient.reshape(1, -1, *gradient.shape[2:])
        return self._weight_gradient(image, gradient, count * self.groups)

    def without(self, bad: Tensor) -> Convolved:
        mask = bad.repeat_interleave(self.several)
        return replace(self, image=zeroed(self.image, mask), gradient=zeroed(self.gradient, mask))

    def settled(self) -> Term:
        pointwise = self._pointwise()
        if pointwise is not None:
            return pointwise.settled()
        return self if self._ghost_wins() else Dense(self.rows())

    def way(self) -> str:
        pointwise = self._pointwise()
        if pointwise is not None:
            return pointwise.way()
        if self._ghost_wins():
            return "ghost, pixel Gram"
        return "per-example, " + ("patches" if self._few_channels() else "batch as groups")

    def _pointwise(self) -> Term | None:
        # A kernel of one cell without padding is a linear map of pixels.
        if self.window.cells > 1 or any(self.window.padding) or self.groups > 1:
            return None
        if self.several > 1:
            return None
        steps = tuple(slice(None, None, s) for s in self.window.stride)
        image = self.image[(slice(None), slice(None), *steps)]
        spaces = zip(image.shape[2:], self.gradient.shape[2:], strict=True)
        if any(one != other for one, other in spaces):
            return None
        flat = Outer([(self.gradient.flatten(2).mT, image.flatten(2).mT)])
        return _Reshaped(flat, self._shape)


@dataclass
class _Reshaped(Moved):
    """A term in another shape of the same parameter."""

    term: BoundedTerm
    shape: tuple[int, ...]

    def moved(self, rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0], *self.shape)

    def around(self, term: Term) -> _Reshaped:
        return _Reshaped(bounded(term), self.shape)
