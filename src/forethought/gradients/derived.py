"""What is computed from parameters alone: weight normalisation, ``1 + w``, positions, LoRA merges.

In the lanes such a tensor is shared by all examples. It is treated as a parameter of its own, and
every example's gradient of it is pulled back through its derivation by one vectorised product
(vector-Jacobian, all examples at once), before any norm is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import outside
from forethought.gradients.ghost import OneHot, wide
from forethought.gradients.place import Slot, combine, slot
from forethought.gradients.terms import Dense, Outer, Term


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor computed from parameters."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class LookedUp:
    """Rows of a table picked by an index that all examples share."""

    tensor: Tensor
    table: Tensor
    index: Tensor
    padding: int | None


Place = Slot | Derived | LookedUp


class Places:
    """Which parameter, or what of the parameters, a tensor is.

    Args:
        trained: the trained parameters by name.
    """

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        self.trained = dict(trained)
        self._names = {id(parameter): name for name, parameter in trained.items()}
        self._known: dict[int, Derived | LookedUp] = {}

    def of(self, value: Tensor) -> Place:
        """The place of a tensor that needs gradients and belongs to no example."""
        found: Place | None = self._known.get(id(value)) or slot(value, self._names)
        if found is None:
            found = self._known[id(value)] = Derived(value)  # kept: an id is no name otherwise
        return found

    def look_up(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The rows that a shared index picks from a large table; None for any other call.

        Pulled back like everything else, the gradients of a table would be as large as the batch
        times the table.
        """
        padding = None
        if func is F.embedding:
            given = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | dict(kwargs)
            index, table, padding = given["input"], given["weight"], given.get("padding_idx")
            if given.get("max_norm") is not None or len(args) > 3:
                return None
        elif func is torch.Tensor.__getitem__ and len(args) == 2:
            table, index = args
        else:
            return None
        whole = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
        if not whole or table.dim() != 2 or index.numel() >= table.shape[0] or index.requires_grad:
            return None
        if bool((index < 0).any()):
            return None
        with outside():
            picked = table.detach()[index].requires_grad_()
        self._known[id(picked)] = LookedUp(picked, table, index.long(), padding)
        return picked

    def resolve(self, uses: list[tuple[Place, Term]], size: int) -> dict[str, Term]:
        """Every used parameter's term, from the terms of all places."""
        placed: dict[str, list[tuple[Slot, Term]]] = defaultdict(list)
        while uses:
            derived: dict[int, list[tuple[Derived, Term]]] = defaultdict(list)
            ahead: list[tuple[Place, Term]] = []
            for place, term in uses:
                if isinstance(place, Slot):
                    placed[place.name].append((place, term))
                elif isinstance(place, LookedUp):
                    ahead.append((self.of(place.table), _table_term(place, term)))
                else:
                    derived[id(place)].append((place, term))
            if derived:
                ahead += self._pulled_back(derived, size)
            uses = ahead
        return {name: combine(of_name) for name, of_name in placed.items()}

    def _pulled_back(
        self, derived: Mapping[int, list[tuple[Derived, Term]]], size: int
    ) -> list[tuple[Place, Term]]:
        tensors = [same[0][0].tensor for same in derived.values()]
        rows = []
        for tensor, same in zip(tensors, derived.values(), strict=True):
            total = same[0][1].rows()
            for _, term in same[1:]:
                total = total + term.rows()
            rows.append(total.reshape(size, *tensor.shape).to(tensor.dtype))
        leaves = [*self.trained.values()]
        leaves += [known.tensor for known in self._known.values() if isinstance(known, LookedUp)]
        found = vjp_rows(tensors, leaves, rows, size)
        return [
            (self.of(leaf), Dense(wide(gradient)))
            for leaf, gradient in zip(leaves, found, strict=True)
            if gradient is not None
        ]


def vjp_rows(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], rows: Sequence[Tensor], size: int
) -> list[Tensor | None]:
    """Σ over outputs of J^T·row, for every row at once: shapes (size, *leaf shape), None if unused.

    Where a derivative has no batching rule, one row after another.
    """
    kept: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(outputs, leaves, rows, is_grads_batched=True, **kept))
    except RuntimeError:
        each = [
            torch.autograd.grad(outputs, leaves, [row[i] for row in rows], **kept)
            for i in range(size)
        ]
    return [
        None if column[0] is None else torch.stack(column) for column in zip(*each, strict=True)
    ]


def _table_term(place: LookedUp, term: Term) -> Term:
    rows = term.rows()
    gradient = rows.reshape(rows.shape[0], -1, place.table.shape[1])
    index = place.index.flatten()
    if place.padding is not None:
        blank = index == place.padding % place.table.shape[0]
        gradient = gradient.masked_fill(blank.view(1, -1, 1), 0)
    index = index.unsqueeze(0).expand(rows.shape[0], -1)
    return Outer([(OneHot(index, place.table.shape[0]), gradient)])
