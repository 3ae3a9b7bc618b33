"""The sum of clipped gradients of a batch: what DP-SGD adds noise to.

Book-keeping (Bu et al. 2023): one backward pass catches every layer's input and output gradient;
norms come from these, and the weighted sum of gradients is formed once, after the factors are
known. Per layer the cost model decides whether gradients are written out or not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import clipping, direct, fallback, rules, survey, trees
from forethought.gradients.capture import Site, Watch
from forethought.gradients.groups import clipped_group_sum
from forethought.gradients.place import Slot, combine
from forethought.gradients.terms import Dense, Outer, Term
from forethought.mechanism import real

Loss = Callable[[Any, Any], Tensor]
Observer = Callable[[str, str, Term], None]
_ = rules  # importing the package registers the rules


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

    Returns:
        ``(gradients, norms)``: parameter name → sum, float32 (float64 for float64 parameters), in
        the parameter's shape; norms of shape (B,) or (groups,). A contribution with a non-finite
        gradient or norm adds zero, and its norm says so: count ``~isfinite(norms)``. An empty
        batch gives zeros, and so does an empty group.

    Raises:
        ValueError: no trainable parameter, inputs without a common batch dimension, losses of
            another shape than (B,), group numbers out of range. TypeError: groups not integers.
    """
    bound = real("clip_norm", clip_norm, above=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter with requires_grad=True: nothing to train")
    inputs, targets = trees.detached(inputs), trees.detached(targets)
    size = trees.batch_size(inputs, targets)
    if groups is not None:
        with survey.undisturbed(model):
            return clipped_group_sum(
                model, loss, inputs, targets, bound, groups, clip, group_count, trained
            )
    if not size:
        sums = {name: trees.zeros_for(p) for name, p in trained.items()}
        return sums, trees.zeros_for(next(iter(trained.values())), 0)
    with survey.undisturbed(model):
        terms = per_example_terms(model, loss, inputs, targets, trained)
    return _clip_and_sum(terms, trained, bound, clip)


def per_example_terms(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
    observe: Observer | None = None,
) -> dict[str, Term]:
    """Every trained parameter's per-example gradients, as terms.

    ``observe(name, rule, term)`` is told of every use before it is decided how to keep it.
    """
    kind = survey.signature(model, inputs, targets, trained)
    known = survey.known(model, kind)
    fresh = known is None
    if known is None:
        known = survey.survey(model, loss, inputs, targets)
        survey.keep(model, kind, known)
        _announce(known)
    if not fresh and observe is None and not known.unruled and not known.failure:
        layer = direct.single_linear(model, inputs)
        found = None if layer is None else direct.terms(layer, loss, inputs, targets, trained)
        if found is not None:
            return found
    terms, strange = _book(model, loss, inputs, targets, trained, known, observe)
    if strange and not fresh:
        # The pass took another way than the one surveyed: look again, once.
        survey.keep(model, kind, None)
        return per_example_terms(model, loss, inputs, targets, trained, observe)
    return terms


def _announce(known: survey.Survey) -> None:
    wrong = sorted(name for name, why in known.unruled.items() if "disagrees" in why)
    said = ""
    if wrong:
        said = (
            f"the rules disagree with autograd for {', '.join(wrong)}: vmap is used instead; a "
            "hand-written rule may be mistaken, or the model mixes examples"
        )
    elif known.failure:
        said = f"vmap is used for the whole model, since {known.failure}"
    if said:
        warnings.warn(said, fallback.SlowGradientsWarning, stacklevel=4)


def _book(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
    known: survey.Survey,
    observe: Observer | None,
) -> tuple[dict[str, Term], set[str]]:
    size = trees.batch_size(inputs, targets)
    uses: dict[str, list[tuple[Slot, Term]]] = {name: [] for name in trained}
    strange: set[str] = set()

    def report(site: Site, saved: Mapping[str, Tensor], gradient: Tensor) -> None:
        frames = known.frames.get(site.key)
        if frames is None:
            strange.update(place.name for place in site.slots.values())
            return
        try:
            use = survey.use_of(site, saved, gradient, frames, size)
        except ValueError:
            strange.update(place.name for place in site.slots.values())
            return
        for place, term in survey.terms_of(site, use):
            if observe is not None:
                observe(place.name, site.rule.name, term)
            # Linear uses of one weight are joined before it is decided how to keep them.
            joined = known.uses[place] > 1 and isinstance(term, Outer)
            uses[place.name].append((place, term if joined else term.settled()))

    names = {id(parameter): name for name, parameter in trained.items()}
    watch = Watch(names, frozenset(known.unruled), report)
    left = survey.differentiate(watch, model, loss, inputs, targets, trained)
    left |= strange | set(known.unruled)
    if left and watch.random:
        left = set(trained)  # another pass draws other numbers: all from the same one
    rows = fallback.per_example(
        model, loss, inputs, targets, tuple(n for n in trained if n in left)
    )
    terms: dict[str, Term] = {}
    for name, parameter in trained.items():
        if name in left:
            terms[name] = Dense(rows[name])
        elif uses[name]:
            terms[name] = combine(uses[name])
        else:
            terms[name] = _Unused(size, parameter)
    return terms, strange


class _Unused:
    """The gradient of a parameter that the loss does not depend on."""

    def __init__(self, size: int, parameter: Tensor) -> None:
        self._size, self._parameter = size, parameter

    def squared_norms(self) -> Tensor:
        return trees.zeros_for(self._parameter, self._size)

    def weighted(self, factors: Tensor) -> Tensor:
        return trees.zeros_for(self._parameter)

    def rows(self) -> Tensor:
        return trees.zeros_for(self._parameter, self._size, *self._parameter.shape)

    def without(self, bad: Tensor) -> _Unused:
        return self

    def settled(self) -> _Unused:
        return self

    def way(self) -> str:
        return "unused"


def _clip_and_sum(
    terms: dict[str, Term],
    trained: Mapping[str, nn.Parameter],
    bound: float,
    clip: clipping.ClippingRule,
) -> tuple[dict[str, Tensor], Tensor]:
    precise = any(p.dtype == torch.float64 for p in trained.values())
    dtype = torch.float64 if precise else torch.float32
    squares = [term.squared_norms() for term in terms.values()]
    if precise:  # a model may mix precisions
        squares = [values.to(dtype) for values in squares]
    norms = clipping.Norms(tuple(terms), torch.stack(squares).sqrt())
    total = norms.total
    factors = clipping.factors(norms, bound, clip)
    # Norms are not negative, so the greatest tells of every infinity, and of what is no number.
    if not math.isfinite(float(total.max())):
        bad = ~torch.isfinite(total)
        terms = {name: term.without(bad) for name, term in terms.items()}
    sums = {}
    for (name, term), row in zip(list(terms.items()), factors, strict=True):
        kind = trees.sum_dtype(trained[name].dtype)
        sums[name] = term.weighted(row).to(kind).reshape(trained[name].shape)
        del terms[name]  # frees what it held
    return sums, total
