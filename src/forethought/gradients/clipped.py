"""The sum of clipped gradients of a batch: what DP-SGD adds noise to.

Book-keeping (Bu et al. 2023): one backward pass catches every layer's input and output gradient;
norms come from these, and the weighted sum of gradients is formed once, after the factors are
known. Per layer the cost model decides whether gradients are written out or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forethought.checks import real, whole
from forethought.gradients import chain, clipping, declared, exits, refusals, rules, trees
from forethought.gradients.batch import LONG, Batch
from forethought.gradients.blocks import MULTIPLES, Blocks, filled, repeated
from forethought.gradients.groups import by_size, group_numbers
from forethought.gradients.once import Once
from forethought.gradients.passes import contributions
from forethought.gradients.probing import probed, watched
from forethought.gradients.sums import clip_and_sum
from forethought.gradients.terms import Term
from forethought.gradients.trees import Loss

_ = rules, exits, refusals  # importing them registers what the lanes intercept


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    groups: Tensor | None = None,
    *,
    clip: clipping.ClippingRule = clipping.flat,
    group_count: int | None = None,
    round_size: int | None = None,
    batch_dims: declared.BatchDims | None = None,
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
        clip: how the norms become factors, see :mod:`forethought.gradients.clipping`.
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
            (:func:`~forethought.gradients.blocks.planned`); tried before the first pass on made-up
            examples, and changed where a place in a block makes a difference. None: the batch is
            one block, filled up to a multiple of 16 rows, and nothing is tried.

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
        inputs = declared.front(inputs, batch_dims)
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
        for start, end, wide in blocks.cut(records):
            rows = filled((inputs, targets), start * copies, end * copies, wide * copies)
            terms = compute(rows, end - start, blocks)
            share = round_size or records
            if isinstance(terms, list):
                one, norms = chain.clipped(terms, trained, wide, bound, clip, share, end - start)
            else:
                one, norms = clip_and_sum(terms, trained, bound, clip, share, end - start)
            total = {name: one[name] + total[name] if total else one[name] for name in one}
            found.append(norms)
        return total, found[0] if len(found) == 1 else torch.cat(found)
    sums, norms = {}, trees.zeros_for(next(iter(trained.values())), count)
    for which, members in by_size(groups):
        here = len(members)
        if members.shape[1] < LONG:  # others run one after the other
            members = members[repeated(here, MULTIPLES.fit(here))]
        terms = contributions(model, loss, Batch(inputs, targets, members, real=here), trained)
        some, norms[which] = clip_and_sum(terms, trained, bound, clip, round_size or count, here)
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
    """What :func:`clipped_sum` computes of every example, one row each, to compare bit for bit.

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
    for start, end, wide in blocks.cut(size):
        rows = filled((inputs, targets), start, end, wide)
        which = torch.cat([torch.arange(start, end), most + torch.arange(wide - (end - start))])
        drawn_for = which, most + blocks.sizes[-1]
        found = watched(compute, rows, end - start, blocks, model, drawn_for)
        parts.append([part[: end - start] for part in found])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def computed(
    model: nn.Module,
    loss: Loss,
    trained: Mapping[str, nn.Parameter],
    dims: declared.BatchDims | None,
    copies: int,
    rows: tuple[Any, Any],
    real: int,
    blocks: Blocks,
) -> list[Once] | dict[str, Term]:
    """Gradients of one block, of which the first ``real`` contributions count."""
    inputs, targets = rows
    if dims is not None:
        return declared.contributions(model, loss, inputs, targets, trained, dims)
    if copies > 1:
        members = torch.arange(trees.batch_size(inputs, targets)).view(-1, copies)
        batch = Batch(inputs, targets, members, copies=True, real=real, blocks=blocks)
        return contributions(model, loss, batch, trained)
    uses = chain.uses_of(model, loss, inputs, targets, trained)
    if uses is not None:
        return uses
    batch = Batch(inputs, targets, real=real, blocks=blocks)
    return contributions(model, loss, batch, trained)
