"""Per-example weight gradients of convolutions, without holding every patch.

Four ways, chosen by cost: the batch as groups of one grouped convolution or, with few input
channels, patches of a few examples at a time (gradients written out), the norm from Gram matrices
of pixels (no patches, no gradients), and plain products where the kernel is one pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.cost import rates
from forethought.gradients.terms import Dense, Outer, Term, gram_product, in_chunks, wide, zeroed

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

    def squared_norms(self) -> Tensor:
        if not self._ghost_wins():
            return Dense(self.rows()).squared_norms()
        groups = self.groups
        image, gradient = wide(self.image), wide(self.gradient)
        padding = [side for p in reversed(self.window.padding) for side in (p, p)]
        image = F.pad(image, padding) if any(padding) else image
        image = image.reshape(-1, image.shape[1] // groups, *image.shape[2:])
        gradient = gradient.reshape(-1, gradient.shape[1] // groups, *gradient.shape[2:])
        pixels = math.prod(image.shape[2:])
        squares = in_chunks(self._pixel_gram, image, gradient, cells=pixels**2)
        return squares.view(-1, groups).sum(1)

    def _pixel_gram(self, image: Tensor, gradient: Tensor) -> Tensor:
        # ⟨patch_t, patch_s⟩ = Σ over the kernel's cells of ⟨pixel_{t+cell}, pixel_{s+cell}⟩
        space, out = image.shape[2:], gradient.shape[2:]
        flat, grads = image.flatten(2), gradient.flatten(2)
        pixels = torch.bmm(flat.mT, flat).view(-1, *space, *space)
        outputs = torch.bmm(grads.mT, grads)
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
        return gram_product(total.view_as(outputs), outputs)

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
        image, gradient = wide(self.image), wide(self.gradient)
        scale = factors.to(gradient.dtype).repeat_interleave(self.several)
        gradient = gradient * scale.view(-1, *(1,) * (gradient.dim() - 1))
        return self._weight_gradient(image, gradient, self.groups)

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
class _Reshaped:
    """A term in another shape of the same parameter."""

    term: Term
    shape: tuple[int, ...]

    def squared_norms(self) -> Tensor:
        return self.term.squared_norms()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.term.weighted(factors).reshape(self.shape)

    def rows(self) -> Tensor:
        rows = self.term.rows()
        return rows.reshape(rows.shape[0], *self.shape)

    def without(self, bad: Tensor) -> _Reshaped:
        return _Reshaped(self.term.without(bad), self.shape)

    def settled(self) -> _Reshaped:
        return _Reshaped(self.term.settled(), self.shape)

    def way(self) -> str:
        return self.term.way()
