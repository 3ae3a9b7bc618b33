"""Clipped gradients of a linear model: one product with the matrix of records for all of them.

The gradient of record b is x_b ⊗ s_b, with s_b the derivative of its loss by its outputs x_bᵀW, so
its norm is ‖x_b‖‖s_b‖ and the clipped sum is Xᵀ(c·S). Norms, factors and sum are those of
:mod:`forethought.gradients.sums`, with the same proof that one record moves the sum by at most C
whatever is rounded; only the rows' norms, which never change, are taken once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from forethought.gradients import ClippingRule
from forethought.gradients.batches import Blocks, even_parts, filled
from forethought.gradients.clipped import rows_alike
from forethought.gradients.sums import clip_and_sum
from forethought.gradients.terms import Bounds, Outer, Term, lengths
from forethought.rounds.records import PIECE, digest_of
from forethought.rounds.sampling import Indices

# Rows of a product at a time, at most.
ROWS = 1 << 12

Slope = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, k), targets (B, …)) → the derivative of each record's loss, (B, k), row by row."""


class LinearModel(torch.nn.Module):
    """Outputs X @ weight, and the derivative of the loss by them.

    Args:
        inputs, outputs: the weight's shape; it starts at zero, in float64.
        slope: of the loss. Row b of what it returns must depend on row b of its arguments only.
    """

    def __init__(self, inputs: int, outputs: int, slope: Slope) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(inputs, outputs, dtype=torch.float64))
        self.slope = slope
        self._blocks: dict[int, Blocks] = {}

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.weight

    def slopes(self, features: Tensor, targets: Tensor, examples: int) -> Tensor:
        """The derivative of every record's loss by its outputs, (B, k).

        In blocks whose rows follow from the number of all records, so that a record's bits do not
        depend on how many others there are.

        Args:
            examples: of which the batch is drawn.
        """
        blocks = self._blocks.get(examples)
        if blocks is None:
            blocks = self._blocks[examples] = self._tried(even_parts(examples, ROWS), targets)
        found = []
        for start, end, rows in blocks.cut(len(features)):
            part, wanted = filled((features, targets), start, end, rows)
            found.append(self.slope(part @ self.weight, wanted)[: end - start])
        return found[0] if len(found) == 1 else torch.cat(found)

    def _tried(self, blocks: Blocks, targets: Tensor) -> Blocks:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(self.weight.shape, generator=generator).to(self.weight)
        for tried in (blocks, *blocks.others()):
            size = tried.sizes[0]
            rows = torch.randn(size, len(weight), generator=generator).to(weight)
            wanted = torch.zeros((size, *targets.shape[1:])).to(targets)

            def compute(rows: Tensor, wanted: Tensor = wanted) -> Tensor:
                outputs = rows @ weight
                return torch.cat([outputs, self.slope(outputs, wanted).reshape(outputs.shape)], 1)

            if size == 1 or rows_alike(compute, rows):
                return tried
        return Blocks((1,))


class LinearRecords:
    """Records of a linear model: a matrix in float64, whose rows' norms are taken once.

    Args:
        features: shape (N, d), finite. targets: one row a record.
    """

    def __init__(self, features: Tensor, targets: Tensor) -> None:
        if features.ndim != 2 or not targets.ndim or len(features) != len(targets):
            raise ValueError(
                "a linear model needs a matrix of features and one target a row: shapes "
                f"{tuple(features.shape)} and {tuple(targets.shape)}"
            )
        # Whole blocks, so that none has to be filled up in every round.
        count, blocks = len(features), even_parts(len(features), ROWS)
        rows = sum(size for _, _, size in blocks.cut(count))
        self.filled = filled((features.double(), targets), 0, count, rows)
        self.features, self.targets = (leaf[:count] for leaf in self.filled)
        self.lengths = torch.cat([lengths(part) for part in torch.split(self.features, PIECE)])

    def __len__(self) -> int:
        return len(self.features)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        if not len(indices):
            return None, None
        rows = torch.from_numpy(indices)
        return self.features[rows], self.targets[rows]

    def some(self, indices: Indices) -> tuple[Tensor, Tensor, Tensor]:
        """Features, targets and proven norms of the rows; all of them without a copy."""
        if len(indices) == len(self.features):  # every one once: a sum has no order
            return self.features, self.targets, self.lengths
        rows = torch.from_numpy(indices)
        return self.features[rows], self.targets[rows], self.lengths[rows]

    def digest(self, key: bytes) -> str:
        return digest_of((self.features, self.targets), key)


@dataclass
class MeasuredOuter(Outer):
    """x_b ⊗ s_b in the shape of a linear model's weight, with norms of the x_b that are known.

    ``measured``: proven upper bounds of ‖x_b‖, shape (B,).
    """

    measured: Tensor | None = None

    def bounds(self) -> Bounds:
        left, _ = self.blocks[0]
        if self.measured is None or not isinstance(left, Tensor):
            return super().bounds()
        slopes = lengths(left[:, 0])
        return Bounds(slopes * self.measured, None, slopes + self.measured)


def linear_sums(
    model: torch.nn.Module,
    records: Any,
    indices: Indices,
    clip_norm: float,
    rule: ClippingRule,
    round_size: int,
) -> tuple[dict[str, Tensor], Tensor]:
    """The clipped sum of a linear model's gradients, and their norms.

    Args:
        model: a :class:`LinearModel`. records: :class:`LinearRecords`.
        indices: of the batch. clip_norm: C. rule: turns norms into factors.
        round_size: contributions of the whole round.

    Returns:
        "weight" → float64, shape (d, k); norms before clipping, shape (batch,), float64.

    Raises:
        TypeError: another model, or other records.
    """
    if not isinstance(model, LinearModel) or not isinstance(records, LinearRecords):
        _refuse(model, records)
    features, targets, measured = records.some(indices)
    with torch.no_grad():
        whole = len(indices) == len(records)
        rows, wanted = records.filled if whole else (features, targets)
        slopes = model.slopes(rows, wanted, len(records))[: len(features)]
        if slopes.shape != (len(features), model.weight.shape[1]):
            raise ValueError(
                f"the slope must have the outputs' shape {(len(features), model.weight.shape[1])}, "
                f"not {tuple(slopes.shape)}"
            )
        block = (slopes.double().unsqueeze(1), features.unsqueeze(1))
        terms: dict[str, Term] = {"weight": MeasuredOuter([block], True, measured)}
        return clip_and_sum(terms, {"weight": model.weight}, clip_norm, rule, round_size)


def _refuse(model: object, records: object) -> NoReturn:
    raise TypeError(
        "a plan of linear examples sums over a LinearModel and LinearRecords, not "
        f"{type(model).__name__} and {type(records).__name__}"
    )
