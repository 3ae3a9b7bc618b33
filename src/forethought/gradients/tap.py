"""What the backward pass reports: the gradient of a ruled call's output, one row an example.

These Functions are the only code besides torch's own derivatives that runs in the backward pass.
They see physical tensors, and leave every row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forethought.gradients.registry import Rule, Use


@dataclass(frozen=True)
class Site:
    """One call that a rule covers.

    Attributes:
        rule: the rule. trained: role → the tensor whose gradient is wanted, a parameter or
            computed from parameters. arguments: the rest of the call, by name.
        parameters: role → detached value. saved: names of the saved arguments, in order.
        dims: where the examples are in the output and in every saved argument; None for one that
            all examples share. size: how many examples.
    """

    rule: Rule
    trained: Mapping[str, Tensor]
    arguments: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    saved: tuple[str, ...]
    dims: tuple[int | None, ...]
    size: int

    def use(self, gradient: Tensor, saved: tuple[Tensor, ...]) -> Use:
        """What the rule sees: the examples in front everywhere."""
        out, *dims = self.dims
        assert out is not None  # an output without examples is never tapped
        values = {
            name: self._front(value, dim)
            for name, value, dim in zip(self.saved, saved, dims, strict=True)
        }
        return Use(
            self.arguments,
            self.parameters,
            values,
            gradient.movedim(out, 0) if out else gradient,
            frozenset(self.trained),
        )

    def _front(self, value: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            return value.expand(self.size, *value.shape)
        return value.movedim(dim, 0) if dim else value


Report = Callable[[Site, Use], None]


class Tap(torch.autograd.Function):
    """The same output, whose gradient is reported on the way back."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, report: Report, site: Site, *saved: Tensor
    ) -> Tensor:
        # Saving through autograd keeps the check for in-place changes working. The result shares
        # memory with the output but is no view of it, so that in-place activations may follow.
        ctx.save_for_backward(*saved)
        ctx.report, ctx.site = report, site
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.report(ctx.site, ctx.site.use(gradient.detach(), ctx.saved_tensors))
        return gradient, *(None,) * (3 + len(ctx.site.saved))


class Rows(torch.autograd.Function):
    """A value that all examples share, once for each: its gradient is written out."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, anchor: Tensor, size: int, report: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.report = report
        return value.detach().expand(size, *value.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.report(gradient.detach())
        return None, None, None, None
