"""The sum of clipped gradients of a batch: what DP-SGD adds noise to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from forethought.gradients import chain, rules, sums, trees
from forethought.gradients.blocks import (
    LONG,
    MULTIPLES,
    Batch,
    Blocks,
    by_size,
    filled,
    group_numbers,
    repeated,
)
from forethought.gradients.boundary import RefusedError
from forethought.gradients.chain import as_terms
from forethought.gradients.lanes import DRAWN_FOR, WATCH, Watch, bits, vjp_rows
from forethought.gradients.passes import SlowGradientsWarning, contributions
from forethought.gradients.state import Generators, State, changes_itself
from forethought.gradients.sums import Once, clip_and_sum, clip_and_sum_parts, flat, weighed
from forethought.gradients.terms import (
    Dense,
    Disjoint,
    Filled,
    Moved,
    OneHot,
    Outer,
    Separate,
    Split,
    Term,
    Unused,
    wide,
)
from forethought.gradients.trees import Loss
from forethought.turns import turns
from forethought.values.checks import real, whole

_ = rules  # importing them registers what the lanes intercept

# Does an example's place in a block make a difference on this machine? Tried, on made-up examples.
#
# Kernels promise nothing about last bits. So before blocks are used with a model, made-up examples
# run in every size that passes may have, each at another place among other neighbours, at other
# weights too, and all numbers are compared bit for bit: every value on the way forward, every
# gradient on the way back, the norm and the factor. Shapes and types are those of the data;
# nothing else is. Where there is a difference other sizes are tried, down to one example at a time.


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
    *,
    mixing: bool = False,
) -> Blocks:
    """The blocks, or others in which every example has the same bits at every place.

    Args:
        data: what a block is cut from: its shapes and types count, its values do not.
        trained: its trained parameters. copies: examples of one contribution.
        mixing: these may see each other: a group.
        compute: gradients of ``(rows, real, blocks)``.

    Warns:
        SlowGradientsWarning: one example goes at a time.
    """
    known = chain.memory_of(model)
    leaves = [*trees.tensors(data)]
    facts = (
        blocks,
        copies,
        mixing,
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
    """True if made-up examples have the same bits in all sizes, at all places."""
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
                if turn == 0:  # the first pass of a model may go another way, to learn of it
                    run(torch.arange(most))
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
    """True if ``compute(rows)`` has the same bits for a row at every place of this many rows."""
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
            spread = float(parameter.detach().float().std(correction=0)) or 0.05
            noise = torch.randn(parameter.shape, generator=generator) * (0.3 * spread)
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


# A model that is batched in a form only its owner knows: an assumption, checked at every step.
#
# Such a model sees all examples at once, outside the lanes. That the examples stay apart in it is
# the owner's word; each example's gradient is that of its own loss. Every step then computes one
# random example alone and stops on a difference.


Dims = int | tuple["Dims", ...] | Mapping[str, "Dims"]


@dataclass(frozen=True)
class BatchDims:
    """The dimensions in which a model has its examples, as declared by its owner.

    Attributes:
        inputs: the dimension of the examples in every input, one number for all, or a tuple or
            dict like the inputs. outputs: likewise in what the model returns. Targets always have
            the examples in dimension 0, and the loss sees outputs with the examples in front.
    """

    inputs: Dims = 0
    outputs: Dims = 0

    @property
    def assumption(self) -> str:
        """The words of a statement about it."""
        return (
            "as declared by the model's owner, examples do not affect each other inside the model "
            f"(batch dimensions: inputs {self.inputs}, outputs {self.outputs}); one random example "
            "of every step was recomputed alone"
        )


def _moved(tree: Any, dims: Dims, source: bool) -> Any:
    """The tree with the examples in front (``source``: where they are now) or put where they go."""
    if isinstance(tree, Tensor):
        if not isinstance(dims, int):
            raise ValueError(f"batch_dims gives {dims!r} for one tensor; give one number")
        return tree.movedim(dims, 0) if source else tree.movedim(0, dims)
    if isinstance(tree, Mapping):
        each = {key: dims[key] if isinstance(dims, Mapping) else dims for key in tree}
        return {key: _moved(value, each[key], source) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        all_dims = dims if isinstance(dims, tuple | list) else (dims,) * len(tree)
        return type(tree)(_moved(v, d, source) for v, d in zip(tree, all_dims, strict=True))
    return tree


def front(inputs: Any, dims: BatchDims) -> Any:
    """The inputs with the examples in dimension 0."""
    return _moved(inputs, dims.inputs, True)


def placed(inputs: Any, dims: BatchDims | None) -> Any:
    """The inverse of :func:`front`: inputs as the model takes them; None leaves them."""
    return inputs if dims is None else _moved(inputs, dims.inputs, False)


def outputs_in_front(outputs: Any, dims: BatchDims | None) -> Any:
    """The model's outputs with the examples in dimension 0; None leaves them."""
    return outputs if dims is None else _moved(outputs, dims.outputs, True)


@turns
def declared_contributions(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
    dims: BatchDims,
) -> dict[str, Term]:
    """Every trained parameter's gradients, one an example.

    Args:
        inputs: with the examples in front (:func:`front`).

    Raises:
        ValueError: the model changes itself, or its loss has another shape than (B,).
        RuntimeError: an example alone has another gradient than in its batch.
    """
    size = trees.batch_size(inputs, targets)
    leaves = list(trained.values())
    state = State(model.named_modules())
    before = torch.get_rng_state()
    try:
        with torch.enable_grad():
            values = _losses(model, loss, inputs, targets, dims, size)
            watch = WATCH.get()
            if watch is not None:
                watch.begin(size)
                watch.see(values)
                watch.keep()
            rows = vjp_rows([values], leaves, [torch.eye(size).to(values)], size)
            drawn = not torch.equal(torch.get_rng_state(), before)
            changed = [*state.changes(), *state.parameters_changed()]
            state.restore()
            which = int(torch.randint(size, (), generator=_CHOICE))
            index = torch.tensor([which])
            one = _losses(
                model, loss, trees.select(inputs, index), trees.select(targets, index), dims, 1
            )
            alone = torch.autograd.grad(one.sum(), leaves, allow_unused=True)
    finally:
        state.restore()
    if changed:
        raise ValueError(str(changes_itself(changed, "is another after a pass")))
    if drawn:
        raise ValueError(
            "a model with batch_dims= must not draw random numbers, since an example alone is "
            "compared with the example in its batch: set dropout to 0"
        )
    _compare([None if row is None else row[which] for row in rows], alone, which)
    return {
        name: Dense(
            wide(row) if row is not None else trees.zeros_for(parameter, size, *parameter.shape)
        )
        for (name, parameter), row in zip(trained.items(), rows, strict=True)
    }


_CHOICE = torch.Generator()
_CHOICE.seed()


def _losses(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, dims: BatchDims, size: int
) -> Tensor:
    outputs = trees.call(model, _moved(inputs, dims.inputs, False))
    if isinstance(outputs, Tensor | Mapping | tuple | list):
        outputs = _moved(outputs, dims.outputs, True)
    elif dims.outputs != 0:
        leaves, spec = tree_flatten(outputs)
        outputs = tree_unflatten([_moved(leaf, dims.outputs, True) for leaf in leaves], spec)
    return trees.losses(loss(outputs, targets), size)


def _compare(together: list[Tensor | None], alone: tuple[Tensor | None, ...], which: int) -> None:
    pairs = [
        (torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)
        for a, b in zip(together, alone, strict=True)
    ]
    squares = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    scale = sum(float(b.double().square().sum()) for _, b in pairs)
    width = max((torch.finfo(b.dtype).eps for _, b in pairs), default=1e-7)
    if not squares <= (1e4 * width) ** 2 * scale and squares > 0:
        raise RuntimeError(
            f"example {which} alone has another gradient than in its batch (off by "
            f"{(squares / max(scale, 1e-300)) ** 0.5:.1e} of its norm): the model mixes examples, "
            "so what batch_dims= declares is not true of it"
        )


# The sum of clipped gradients of a batch: what DP-SGD adds noise to.
#
# Book-keeping (Bu et al. 2023): one backward pass catches every layer's input and output gradient;
# norms come from these, and the weighted sum of gradients is formed once, after the factors are
# known. Per layer the cost model decides whether gradients are written out or not.


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    groups: Tensor | None = None,
    *,
    clip: sums.ClippingRule = sums.flat,
    group_count: int | None = None,
    round_size: int | None = None,
    batch_dims: BatchDims | None = None,
    copies: int = 1,
    blocks: Blocks | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        model: any module; it is left exactly as it was. Parameters with ``requires_grad=False``
            are skipped.
        loss: ``loss(outputs, targets)`` → one value per example, shape (B,).
        inputs: a tensor (``model(x)``), a tuple (``model(*x)``) or a dict (``model(**x)``), every
            tensor with the examples in dimension 0.
        targets: a tensor, tuple or dict likewise.
        clip_norm: C, the bound on one contribution's L2 norm.
        groups: LongTensor (B,): the group of each example. A group's *mean* gradient is clipped
            as one contribution. None: every example is its own contribution.
        clip: how the norms become factors, see :mod:`forethought.gradients.sums`.
        group_count: number of groups, for when the last ones may be empty. Default: highest + 1.
        round_size: contributions of the whole round, where its sum is put together from several
            calls (micro-batches, processes): each may then add its share of the rounding that is
            charged to ``clip_norm``. Default: this call is the round.
        batch_dims: for a model that takes a whole batch in a form of its own: where the examples
            are. That they stay apart is then an assumption (``batch_dims.assumption``), and one
            random example of every call is computed alone and compared.
        copies: the examples are so many altered copies of each record, one record's after the
            other; the *mean* gradient over them is clipped as one contribution (De et al. 2022,
            augmentation multiplicity). Unlike a group's examples they may not see each other.
        blocks: how many rows passes may have, from public numbers
            (:func:`~forethought.gradients.blocks.planned`), and of groups with fewer than eight
            examples how many of one size (longer ones run one after the other); tried before the
            first pass on made-up examples, and changed where a place in a block makes a difference.
            None: the batch is one block, filled up to a multiple of 16 rows, and nothing is tried.

    Returns:
        ``(gradients, norms)``: parameter name → sum, float64, in the parameter's shape; norms of
        shape (B,) or (groups,), upper bounds, float32 (float64 for float64 parameters). A
        contribution with a non-finite gradient or norm adds zero, and its norm says so: count
        ``~isfinite(norms)``. An empty batch gives zeros, and so does an empty group.

    Raises:
        ValueError: no trainable parameter, inputs without a common batch dimension, losses of
            another shape than (B,), group numbers out of range; a model or loss that cannot be
            trained privately, with the module and the remedy. TypeError: groups not integers;
            numbers or arrays among the inputs. RuntimeError: what batch_dims declares is not true.
    """
    bound = real("clip_norm", clip_norm, above=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter with requires_grad=True: nothing to train")
    inputs, targets = trees.detached(inputs), trees.detached(targets)
    if batch_dims is not None:
        if groups is not None:
            raise ValueError("batch_dims= and groups= cannot be used together")
        inputs = front(inputs, batch_dims)
    if copies != 1 and not (groups is None and batch_dims is None):
        raise ValueError("copies= goes without groups= and batch_dims=: a group's mean has them")
    size = trees.batch_size(inputs, targets)
    if size % whole("copies", copies):
        raise ValueError(f"{size} examples are not {copies} copies of each record")
    count = None if groups is None else group_numbers(groups, size, group_count)
    if not size:
        sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.items()}
        return sums, trees.zeros_for(next(iter(trained.values())), count or 0)
    if groups is None or count is None:
        records = size // copies
        compute = partial(computed, model, loss, trained, batch_dims, copies)
        if blocks is None:
            blocks = MULTIPLES
        else:
            blocks = probed(blocks, model, loss, (inputs, targets), trained, copies, compute)
        total: dict[str, Tensor] = {}
        found = []
        for start, end, width in blocks.cut(records):
            rows = filled((inputs, targets), start * copies, end * copies, width * copies)
            terms = compute(rows, end - start, blocks)
            share = round_size or records
            if isinstance(terms, list):
                one, norms = chain.clipped(terms, trained, width, bound, clip, share, end - start)
            else:
                one, norms = clip_and_sum(terms, trained, bound, clip, share, end - start)
            total = {name: one[name] + total[name] if total else one[name] for name in one}
            found.append(norms)
        return total, found[0] if len(found) == 1 else torch.cat(found)
    sums, norms, data = {}, trees.zeros_for(next(iter(trained.values())), count), (inputs, targets)
    for which, members in by_size(groups):
        each = members.shape[1]
        grouped = partial(side_by_side, model, loss, trained, each, True)
        shape = blocks or MULTIPLES
        if each >= LONG:  # one after the other
            shape = Blocks((len(members),))
        elif blocks is not None:
            shape = probed(blocks, model, loss, data, trained, each, grouped, mixing=True)
        for start, end, width in shape.cut(len(members)):
            lanes = members[start:end][repeated(end - start, width)]
            rows = trees.select(data, lanes.flatten())
            terms = grouped(rows, end - start, shape)
            share = round_size or count
            some, norms[which[start:end]] = clip_and_sum(
                terms, trained, bound, clip, share, end - start
            )
            sums = {name: some[name] + sums[name] if sums else some[name] for name in some}
    return sums, norms


def numbers_behind(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    blocks: Blocks | None = None,
    of: int | None = None,
) -> list[Tensor]:
    """The numbers that :func:`clipped_sum` computes of every example, one row each, to compare bit
    for bit.

    A record's rows must be the same whatever else is in the batch, wherever it stands, and however
    the batch is cut: the sum's bound rests on that. Nothing is returned of a model that goes one
    example at a time.

    Args:
        of: the examples are the first of so many, for a model that draws random numbers for each.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    compute = partial(computed, model, loss, trained, None, 1)
    if blocks is None:
        blocks = MULTIPLES
    else:
        blocks = probed(blocks, model, loss, (inputs, targets), trained, 1, compute)
    if blocks.alone:
        return []
    parts = []
    size = trees.batch_size(inputs, targets)
    most = of or size
    for start, end, width in blocks.cut(size):
        rows = filled((inputs, targets), start, end, width)
        which = torch.cat([torch.arange(start, end), most + torch.arange(width - (end - start))])
        drawn_for = which, most + blocks.sizes[-1]
        found = watched(compute, rows, end - start, blocks, model, drawn_for)
        parts.append([part[: end - start] for part in found])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def computed(
    model: nn.Module,
    loss: Loss,
    trained: Mapping[str, nn.Parameter],
    dims: BatchDims | None,
    copies: int,
    rows: tuple[Any, Any],
    real: int,
    blocks: Blocks,
) -> list[Once] | dict[str, Term]:
    """Gradients of one block, of which the first ``real`` contributions count."""
    inputs, targets = rows
    if dims is not None:
        return declared_contributions(model, loss, inputs, targets, trained, dims)
    if copies > 1:
        return side_by_side(model, loss, trained, copies, False, rows, real, blocks)
    uses = chain.uses_of(model, loss, inputs, targets, trained)
    if uses is not None:
        return uses
    batch = Batch(inputs, targets, real=real, blocks=blocks)
    return contributions(model, loss, batch, trained)


def side_by_side(
    model: nn.Module,
    loss: Loss,
    trained: Mapping[str, nn.Parameter],
    each: int,
    mixing: bool,
    rows: tuple[Any, Any],
    real: int,
    blocks: Blocks,
) -> dict[str, Term]:
    """Gradients of contributions of ``each`` examples, which may see each other or not."""
    members = torch.arange(trees.batch_size(*rows)).view(-1, each)
    batch = Batch(*rows, members, copies=not mixing, real=real, blocks=blocks)
    return contributions(model, loss, batch, trained)


# Clipped sums of several parts of one batch: one pass over all examples, a sum for each part.
#
# Every part has the theorem of :func:`~forethought.gradients.clipped.clipped_sum`: its sum is
# formed from its own examples' gradients by the same proven steps, and no lane sees another.


Sums = tuple[dict[str, Tensor], Tensor]


def clipped_sums(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    sizes: Sequence[int],
    *,
    clip: sums.ClippingRule = sums.flat,
    blocks: Blocks | None = None,
) -> list[Sums]:
    """For each part of a batch, what :func:`~forethought.gradients.clipped.clipped_sum` returns.

    Args:
        model, loss, clip_norm, clip: as there. inputs, targets: of all parts, one after the other.
        sizes: examples of each part; 0 is a part without any.
        blocks: as there, of all parts together.

    Raises:
        ValueError: sizes that do not add up to the batch, and what ``clipped_sum`` refuses.
    """
    bound = real("clip_norm", clip_norm, above=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter with requires_grad=True: nothing to train")
    inputs, targets = trees.detached(inputs), trees.detached(targets)
    size = trees.batch_size(inputs, targets)
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ValueError(f"parts of {list(sizes)} examples are not the {size} of the batch")
    some = [count for count in sizes if count]
    found: Iterator[Sums] = iter(())
    if size:
        compute = partial(computed, model, loss, trained, None, 1)
        if blocks is None:
            blocks = MULTIPLES
        else:
            blocks = probed(blocks, model, loss, (inputs, targets), trained, 1, compute)
        [*cut] = blocks.cut(size)
        if len(cut) > 1:  # more than were planned for: each part by itself
            ends = list(accumulate(sizes))
            pairs = zip([0, *ends[:-1]], ends, strict=True)
            return [
                clipped_sum(
                    model,
                    loss,
                    _part(inputs, *at),
                    _part(targets, *at),
                    bound,
                    clip=clip,
                    blocks=blocks,
                )
                for at in pairs
            ]
        rows = filled((inputs, targets), 0, size, cut[0][2])
        terms = compute(rows, size, blocks)
        if isinstance(terms, list):
            found = iter(chain.clipped_parts(terms, trained, some, bound, clip))
        else:
            found = iter(clip_and_sum_parts(terms, trained, bound, some, clip))
    nothing = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in trained.items()}
    empty = nothing, trees.zeros_for(next(iter(trained.values())), 0)
    return [next(found) if count else empty for count in sizes]


def _part(tree: Any, start: int, end: int) -> Any:
    return trees.mapped(tree, lambda leaf: leaf[start:end])
