"""Which way each parameter's gradient goes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import clipped, survey, trees
from forethought.gradients.terms import Term


@dataclass(frozen=True)
class Choice:
    """One parameter's row of the table.

    Attributes:
        parameter: its name. shape: its shape. rules: the functions that used it.
        way: how its norm is taken; "vmap" for the fallback.
        held: bytes kept until the factors are known. written: bytes of batch × parameter.
        reason: why the fallback, if it is.
    """

    parameter: str
    shape: tuple[int, ...]
    rules: str
    way: str
    held: int
    written: int
    reason: str = ""


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
    targets = torch.zeros(size)
    seen: dict[str, list[tuple[str, str]]] = {name: [] for name in trained}

    def observe(name: str, rule: str, term: Term) -> None:
        seen[name].append((rule, term.way()))

    with survey.undisturbed(model):
        terms = clipped.per_example_terms(model, _any_loss, inputs, targets, trained, observe)
    known = survey.known(model, survey.signature(model, inputs, targets, trained))
    reasons = {} if known is None else known.unruled
    rows = []
    for name, parameter in trained.items():
        width = trees.zeros_for(parameter, 0).element_size()
        written = size * parameter.numel() * width
        uses = seen[name]
        if name in reasons or not uses:
            way = "vmap" if name in reasons else terms[name].way()
            rule = "none"
        else:
            rule = ", ".join(dict.fromkeys(rule for rule, _ in uses))
            way = ", ".join(dict.fromkeys(way for _, way in uses))
            rule += f" ×{len(uses)}" if len(uses) > 1 else ""
            way = f"{way}, joined" if len(uses) > 1 else way
        held = _held(terms[name])
        row = Choice(name, tuple(parameter.shape), rule, way, held, written)
        rows.append(Choice(**{**row.__dict__, "reason": reasons[name]}) if name in reasons else row)
    _show(rows, size)
    return tuple(rows)


def _any_loss(outputs: Any, targets: Tensor) -> Tensor:
    # Any loss shows the layouts; squares make every output count.
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
            row.way + (f" ({row.reason})" if row.reason else ""),
            f"{row.held / 1e6:.2f}",
            f"{row.written / 1e6:.2f}",
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    print(f"batch of {size}")
    for line in [heads, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
