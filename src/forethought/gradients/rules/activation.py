"""Activations with a parameter. Sums, products and the like need no rule: written out for every
example, a bias or a scale is as large as what its gradient is summed from."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from forethought.gradients.terms import Dense, Rule, Term, Use, register, wide


def _prelu(use: Use) -> Iterator[tuple[str, Term]]:
    # ∂/∂w of max(0, x) + w·min(0, x); one weight, or one a channel (dimension 1 in the lane).
    product = wide(use.gradient) * wide(use.saved["input"]).clamp(max=0)
    if use.parameters["weight"].numel() == 1:
        yield "weight", Dense(product.flatten(1).sum(1, keepdim=True))
    else:
        yield (
            "weight",
            Dense(product.flatten(3).sum((1, 3)) if product.dim() > 3 else product.sum(1)),
        )


register(Rule("prelu", ("input", "weight"), ("weight",), ("input",), _prelu), torch.prelu)
