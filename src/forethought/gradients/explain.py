"""Which way each parameter's gradient goes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import trees
from forethought.gradients.batch import Batch
from forethought.gradients.passes import contributions
from forethought.gradients.terms import Term


@dataclass(frozen=True)
class Choice:
    """One parameter's row of the table.

    Attributes:
        parameter: its name. shape: its shape. rules: the functions that used it; "any function"
            has no rule and is written out, "derived" is computed from parameters first.
        way: how its norm is taken.
        held: bytes kept until the factors are known. written: bytes of batch × parameter.
        reason: why it is written out, if it is.
    """

    parameter: str
    shape: tuple[int, ...]
    rules: str
    way: str
    held: int
    written: int
    reason: str = ""


_REASONS = {
    "any function": "no rule for a function that uses it: written out for every example",
    "derived": "used through values computed from parameters: pulled back through them",
    "one at a time": "vmap cannot run the model: see the warning",
}


def explain(model: nn.Module, example: Any) -> tuple[Choice, ...]:
    """Print, for every trained parameter, how its per-example gradient is handled.

    Args:
        model: any module. example: a batch of inputs as :func:`clipped_sum` takes them, of the
            size that training will use; the choice depends on it.

    Returns:
        The rows of the printed table.

    Raises:
        ValueError: no trainable parameter, or a batch without a size.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter with requires_grad=True: nothing to explain")
    size = trees.batch_size(example, ())
    if not size:
        raise ValueError("the example batch is empty: pass at least one example")
    inputs = trees.detached(example)
    seen: dict[str, list[tuple[str, str]]] = {name: [] for name in trained}

    def observe(name: str, rule: str, term: Term) -> None:
        seen.setdefault(name, []).append((rule, term.way()))

    terms = contributions(model, _any_loss, Batch(inputs, torch.zeros(size)), trained, observe)
    rows = []
    for name, parameter in trained.items():
        width = trees.zeros_for(parameter, 0).element_size()
        uses, way = seen[name], terms[name].way()
        rules = [rule for rule, _ in uses]
        if not uses and way != "unused":
            rules = ["derived" if any(seen.values()) else "one at a time"]
        elif uses:
            way = ", ".join(dict.fromkeys(way for _, way in uses))
            way = f"{way}, joined" if len(uses) > 1 else way
        rule = ", ".join(dict.fromkeys(rules)) or "none"
        rows.append(
            Choice(
                name,
                tuple(parameter.shape),
                f"{rule} ×{len(uses)}" if len(uses) > 1 else rule,
                way,
                _held(terms[name]),
                size * parameter.numel() * width,
                next((_REASONS[r] for r in rules if r in _REASONS), ""),
            )
        )
    _show(rows, size)
    return tuple(rows)


def _any_loss(outputs: Any, targets: Tensor) -> Tensor:
    # Any loss shows the ways; squares make every output count.
    total = targets
    for leaf in trees.tensors(outputs):
        if leaf.is_floating_point() and leaf.dim() and leaf.shape[0] == len(targets):
            total = total + leaf.float().reshape(len(targets), -1).square().sum(1)
    return total


def _held(value: Any) -> int:
    # Bytes of the tensors in a term, each storage once.
    storages: dict[int, int] = {}
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, list | tuple):
            stack += item
        elif hasattr(item, "__dict__"):
            stack += vars(item).values()
    return sum(storages.values())


def _show(rows: list[Choice], size: int) -> None:
    heads = ("parameter", "shape", "function", "norm by", "held MB", "batch × parameter MB")
    cells = [
        (
            row.parameter,
            "×".join(map(str, row.shape)) or "scalar",
            row.rules,
            row.way,
            f"{row.held / 1e6:.2f}",
            f"{row.written / 1e6:.2f}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    print(f"batch of {size}")
    for line in [heads, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
