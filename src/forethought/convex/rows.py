"""Features and targets in the form that descent reads, held to their public bounds.

Each row and each target is treated by its own numbers alone: nothing is centred, scaled or encoded
by what others say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from forethought.checks import one_of
from forethought.convex.problems import Problem
from forethought.rounds.linear import LinearRecords

Above = Literal["clip", "refuse"]


@dataclass(frozen=True)
class Bounded:
    """Records held to their bounds.

    Attributes:
        records: what rounds read.
        features_clipped, targets_clipped: how many were beyond. Private: for the operator only.
    """

    records: LinearRecords
    features_clipped: int
    targets_clipped: int


def matrix(features: Any) -> torch.Tensor:
    """Features as a float64 matrix of its own: arrays, tensors, sparse matrices.

    Raises:
        TypeError: not numbers. ValueError: no matrix, or numbers that are not finite.
    """
    if isinstance(features, torch.Tensor):
        found = features.detach().to("cpu", torch.float64, copy=True)
    else:
        if hasattr(features, "toarray"):
            features = features.toarray()
        array = np.asarray(features)
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"features must be numbers, not an array of dtype {array.dtype}; encode text and "
                "categories first"
            )
        found = torch.from_numpy(np.array(array, dtype=np.float64, order="C"))
    if found.ndim != 2:
        raise ValueError(f"features must be a matrix, a row a record, not {tuple(found.shape)}")
    if not bool(torch.isfinite(found).all()):
        raise ValueError("the features hold NaN or infinite values: fill them in by a fixed rule")
    return found


def bounded_rows(features: Any, bound: float) -> tuple[np.ndarray[Any, Any], int]:
    """Features with every row longer than ``bound`` scaled to it, and how many there were.

    What a model predicts for a row must be computed from the row as it was trained on.
    """
    found = matrix(features)
    clipped = _clip(found, bound)
    return found.numpy(), clipped


def _clip(rows: torch.Tensor, bound: float) -> int:
    norms = torch.linalg.vector_norm(rows, dim=1)
    # A row of exactly the bound is as long as it only up to rounding.
    longer = norms > bound * (1 + 1e-12)
    if bool(longer.any()):
        # By the largest entry first, so that nothing overflows.
        few = rows[longer]
        few /= few.abs().amax(1, keepdim=True)
        rows[longer] = few * (bound / torch.linalg.vector_norm(few, dim=1, keepdim=True))
    return int(longer.sum())


def bounded_records(problem: Problem, features: Any, targets: Any, above: Above) -> Bounded:
    """Records for a problem's rounds, its constant column appended.

    Raises:
        TypeError, ValueError: what is no such data; values beyond the bounds under "refuse".
    """
    one_of("above", above, ("clip", "refuse"))
    rows = matrix(features)
    clipped = _clip(rows, problem.feature_bound)
    if clipped and above == "refuse":
        raise ValueError(
            f"some rows are longer than feature_bound = {problem.feature_bound:g}: scale the "
            'features by public constants, or clip them with above="clip"'
        )
    if problem.intercept:
        rows = torch.cat([rows, rows.new_full((len(rows), 1), problem.intercept)], 1)
    values, moved = _targets(problem, targets, above)
    if len(values) != len(rows):
        raise ValueError(f"{len(rows)} rows of features and {len(values)} targets")
    return Bounded(LinearRecords(rows, values), clipped, moved)


def _targets(problem: Problem, targets: Any, above: Above) -> tuple[torch.Tensor, int]:
    array = np.asarray(targets.detach().cpu() if isinstance(targets, torch.Tensor) else targets)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise TypeError(
            f"targets must be one number a record, not shape {array.shape} of dtype {array.dtype}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("the targets hold NaN or infinite values")
    if problem.classes:
        labels = array.astype(np.int64)
        if (labels != array).any() or (labels < 0).any() or (labels >= problem.classes).any():
            raise ValueError(
                f"some labels are not among the {problem.classes} declared classes: labels are "
                f"whole numbers from 0 to {problem.classes - 1}, their places in the declared list"
            )
        return torch.from_numpy(labels), 0
    values, bound = array.astype(np.float64), problem.target_bound
    held = np.clip(values, -bound, bound)
    moved = int((held != values).sum())
    if moved and above == "refuse":
        raise ValueError(
            f"some targets lie beyond target_bound = {bound:g}: shift and scale them by public "
            'constants, or clip them with above="clip"'
        )
    return torch.from_numpy(held), moved
