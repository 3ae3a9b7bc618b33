"""Does an example's place in a block make a difference on this machine? Tried, on made-up examples.

Kernels promise nothing about last bits. So before blocks are used with a model, made-up examples
run in every size that passes may have, each at another place among other neighbours, at other
weights too, and all numbers are compared bit for bit: every value on the way forward, every
gradient on the way back, the norm and the factor. Shapes and types are those of the data;
nothing else is. Where there is a difference other sizes are tried, down to one example at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import remembered, trees
from forethought.gradients.blocks import Blocks
from forethought.gradients.chain import as_terms
from forethought.gradients.clipping import flat
from forethought.gradients.control import RefusedError
from forethought.gradients.fallback import SlowGradientsWarning
from forethought.gradients.ghost import OneHot
from forethought.gradients.once import Once
from forethought.gradients.place import Disjoint, Filled, Moved, Split, Unused
from forethought.gradients.state import Generators
from forethought.gradients.sums import weighed
from forethought.gradients.terms import Dense, Outer, Separate, Term
from forethought.gradients.trees import Loss
from forethought.gradients.watching import DRAWN_FOR, WATCH, Watch, bits
from forethought.turns import turns

Computed = list[Once] | dict[str, Term]
Compute = Callable[[Any, int, Blocks], Computed]
# The weights themselves, and the same with noise: zeros would hide what they are multiplied with.
_WEIGHTS = 2
# At least so many examples are compared: in short blocks few are at the places that differ.
_ROWS = 256
# How inputs and targets are made up, and below what whole numbers are: the first that the model
# takes. A run is tried on zeros before it starts, so these it does take.
_KINDS = (("normal", "uniform", 2), ("uniform", "uniform", 1), ("zero", "zero", 1))


def probed(
    blocks: Blocks,
    model: nn.Module,
    loss: Loss,
    data: Any,
    trained: Mapping[str, Tensor],
    copies: int,
    compute: Compute,
) -> Blocks:
    """The blocks, or others in which every example has the same bits at every place.

    Args:
        data: what a block is cut from: its shapes and types count, its values do not.
        trained: its trained parameters. copies: examples of one contribution.
        compute: gradients of ``(rows, real, blocks)``.

    Warns:
        SlowGradientsWarning: one example goes at a time.
    """
    known = remembered.of(model)
    leaves = [*trees.tensors(data)]
    facts = (
        blocks,
        copies,
        tuple([(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in leaves]),
        tuple([(name, p.shape, p.dtype) for name, p in trained.items()]),
        tuple([module.training for module in model.modules()]),
        torch.get_num_threads(),
        torch.is_autocast_enabled(leaves[0].device.type),
    )
    found: Blocks | None = known.found(loss, (known.unshared, known.without, facts))
    if found is None:
        found = _settled(blocks, model, data, copies, compute)
        known.note(loss, (known.unshared, known.without, facts), found)
    return found


@turns
def _settled(blocks: Blocks, model: nn.Module, data: Any, copies: int, compute: Compute) -> Blocks:
    if blocks.sizes == (1,):
        return blocks
    why = (
        "in a block of several, this machine gives an example other bits at another place, which "
        "could move a sum by more than the clipping norm. Products of odd widths do so unless the "
        "environment has MKL_CBWR=AUTO when torch computes its first product (set by importing "
        "forethought before)"
    )
    with _unnoticed(model):
        for tried in (blocks, *blocks.others()):
            try:
                if tried.sizes == (1,) or _alike(tried, model, data, copies, compute):
                    break
            except _AloneError:
                return Blocks(blocks.sizes, alone=True)
            except _UntriedError as error:
                why = f"blocks could not be tried on made-up examples: {error}"
                tried = Blocks((1,))
                break
    if tried.sizes == (1,):
        warnings.warn(
            f"{type(model).__name__} goes one example at a time: {why}",
            SlowGradientsWarning,
            stacklevel=4,
        )
    return tried


class _AloneError(Exception):
    """Every example runs by itself anyway."""


class _UntriedError(Exception):
    """The model takes no made-up example."""


class _unnoticed:  # noqa: N801 - used like a function
    """Generators and weights are afterwards as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.is_floating_point()]

    def __enter__(self) -> None:
        self._generators = Generators([p.device for p in self._parameters][:1])
        self._values = [p.detach().clone() for p in self._parameters]

    def __exit__(self, *_: object) -> None:
        for parameter, value in zip(self._parameters, self._values, strict=True):
            parameter.data.copy_(value)
        self._generators.restore()


def _alike(blocks: Blocks, model: nn.Module, data: Any, copies: int, compute: Compute) -> bool:
    """Whether made-up examples have the same bits in all sizes, at all places."""
    generator = torch.Generator().manual_seed(len(blocks.sizes) + blocks.sizes[-1])
    most = blocks.sizes[-1]
    kinds = iter(_KINDS)
    kind: tuple[str, str, int] | None = next(kinds)
    rows: Any = None

    def run(index: Tensor) -> list[Tensor]:
        whole = (index.unsqueeze(1) * copies + torch.arange(copies)).flatten()
        chosen = trees.select(rows, whole)
        return watched(compute, chosen, len(index), blocks, model, (index, most))

    for turn in range(max(_WEIGHTS, _ROWS // most)):
        if turn == 1:
            _disturb(model, generator)
        rows = _made_up(data, most * copies, kind, generator)
        expected: list[Tensor] | None = None
        while expected is None:
            try:
                expected = run(torch.arange(most))
            except _AloneError:
                raise
            except Exception as error:  # values that the model does not take
                kind = next(kinds, None)
                if kind is None and isinstance(error, RefusedError):
                    raise
                if kind is None:
                    raise _UntriedError(str(error)) from None
                rows = _made_up(data, most * copies, kind, generator)
        for size in (most, *blocks.sizes):
            index = torch.randperm(most, generator=generator)[:size]
            found = run(index)
            if len(found) != len(expected) or not all(
                _equal(one, other, index) for one, other in zip(found, expected, strict=True)
            ):
                return False
    return True


def rows_alike(compute: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """Whether ``compute(rows)`` has the same bits for a row at every place of this many rows."""
    generator = torch.Generator().manual_seed(len(rows))
    expected = compute(rows)
    orders = (torch.randperm(len(rows), generator=generator) for _ in range(4))
    return all(_equal(compute(rows[order]), expected, order) for order in orders)


def _equal(one: Tensor, other: Tensor, index: Tensor) -> bool:
    if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
        return False
    return torch.equal(bits(one), bits(other.index_select(0, index.to(other.device))))


def watched(
    compute: Compute,
    rows: Any,
    real: int,
    blocks: Blocks,
    model: nn.Module,
    drawn_for: tuple[Tensor, int],
) -> list[Tensor]:
    """All numbers of a block of contributions, one row each, to compare bit for bit.

    What a sum is formed from (gradients as stored, norms, factors), and a fingerprint of
    everything that was computed on the way.

    Args:
        drawn_for: which of how many contributions they are: each has its own random numbers.
    """
    watch = Watch(len(drawn_for[0]))
    kept, drawn, generators = WATCH.set(watch), DRAWN_FOR.set(drawn_for), Generators([])
    torch.default_generator.manual_seed(0)
    try:
        found = compute(rows, real, blocks)
    finally:
        WATCH.reset(kept)
        DRAWN_FOR.reset(drawn)
        generators.restore()
    return [*_numbers(found, model), watch.marks]


def _numbers(computed: Computed, model: nn.Module) -> list[Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if isinstance(computed, list):
        computed = as_terms(computed, trained, len(computed[0].inputs))
    if any(isinstance(term, Separate) for term in computed.values()):
        raise _AloneError
    ready = weighed(dict(computed), trained, 1.0, flat, None)
    size = ready.factors.shape[1]
    stored = [_fingerprint(term, size) for term in ready.held]
    return [*stored, ready.norms, ready.factors.t()]


def _fingerprint(term: Any, size: int) -> Tensor:
    """Of the numbers that the term holds of each of ``size`` examples."""
    if isinstance(term, Split):
        whole = torch.zeros(size, dtype=torch.int64)
        for index, part in term.parts:
            inner = part.term if isinstance(part, Filled) else part
            width = part.size if isinstance(part, Filled) else len(index)
            whole[index] = _fingerprint(inner, width)[: len(index)]
        return whole
    watch = Watch(size)
    for held in _stored(term):
        watch.see(held.detach())
    watch.keep()
    return watch.marks


def _stored(term: Any) -> Iterator[Tensor]:
    if isinstance(term, Dense):
        yield term.values
    elif isinstance(term, Outer):
        for left, right in term.blocks:
            yield left.index if isinstance(left, OneHot) else left
            yield right
    elif isinstance(term, Moved):
        yield from _stored(term.term)
    elif isinstance(term, Disjoint):
        for part in term.terms:
            yield from _stored(part)
    elif not isinstance(term, Unused):
        yield term.rows()


def _disturb(model: nn.Module, generator: torch.Generator) -> None:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            wide = float(parameter.detach().float().std(correction=0)) or 0.05
            noise = torch.randn(parameter.shape, generator=generator) * (0.3 * wide)
            parameter.data.add_(noise.to(parameter))


def _made_up(data: Any, size: int, kind: Any, generator: torch.Generator) -> Any:
    of_inputs, of_targets, most = kind

    def tree(given: Any, kind: str) -> Any:
        def made(leaf: Tensor) -> Tensor:
            shape = (size, *leaf.shape[1:])
            if leaf.dtype == torch.bool:
                return torch.ones(shape, dtype=torch.bool, device=leaf.device)
            if not leaf.is_floating_point():
                return torch.randint(most, shape, generator=generator).to(leaf)
            if kind == "zero":
                return torch.zeros(shape).to(leaf)
            draw = torch.randn if kind == "normal" else torch.rand
            return draw(shape, generator=generator).to(leaf)

        return trees.mapped(given, made)

    return tree(data[0], of_inputs), tree(data[1], of_targets)
