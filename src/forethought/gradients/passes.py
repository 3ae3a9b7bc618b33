"""From a batch to every example's gradients: passes over lanes, and what is done when one stops."""

from __future__ import annotations

import contextvars
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from forethought.gradients import boundary, checkpoints, fallback, foreign, refusals, trees
from forethought.gradients.control import (
    Asking,
    Parted,
    Refused,
    RuleFailed,
    Stopped,
    Unable,
    Unshared,
)
from forethought.gradients.derived import Place, Places
from forethought.gradients.draws import Draws, Masks
from forethought.gradients.lanes import Lanes, Observer, Settings
from forethought.gradients.place import Split, Unused
from forethought.gradients.state import Generators, State, changes_itself
from forethought.gradients.surroundings import Surroundings
from forethought.gradients.terms import Dense, Term, bounded
from forethought.gradients.trees import Loss
from forethought.gradients.whole_batch import check_loss

_LONG = 8  # examples a group
_HOOKS = (
    "hooks on saved tensors (save_on_cpu and the like) see all examples at once: leave them out of "
    "private training"
)


def _leave() -> None:
    raise Unable("values of the examples reach Python")


def _refuse_hooks(hooks: Any, enter: Any) -> None:
    raise Refused(_HOOKS)


@dataclass(frozen=True)
class Batch:
    """Examples arranged in lanes.

    Attributes:
        inputs, targets: all examples in front. members: (lanes, examples a lane), which examples
            each lane has; None: every example is a lane.
    """

    inputs: Any
    targets: Any
    members: Tensor | None = None

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        if self.members is not None:
            return len(self.members)
        return trees.batch_size(self.inputs, self.targets)

    @property
    def each(self) -> int:
        """Examples in a lane."""
        return 1 if self.members is None else self.members.shape[1]

    def some(self, index: Tensor | None) -> tuple[Any, Any]:
        """Inputs and targets of some lanes, shapes (lanes, examples a lane, …)."""
        members = self.members
        if members is None and index is not None:
            members = index.unsqueeze(1)
        elif members is not None and index is not None:
            members = members[index]

        def arranged(leaf: Tensor) -> Tensor:
            if members is None:
                return leaf.unsqueeze(1)
            picked = leaf.index_select(0, members.flatten().to(leaf.device))
            return picked.view(*members.shape, *leaf.shape[1:])

        return trees.mapped(self.inputs, arranged), trees.mapped(self.targets, arranged)


def _split(index: Tensor | None, parted: Parted) -> list[Tensor]:
    """The lanes of every answer, of all that the batch has."""
    lanes: dict[Any, list[int]] = {}
    for at, key in enumerate(parted.keys):
        lanes.setdefault(key, []).append(at)
    places = [torch.tensor(same) for same in lanes.values()]
    return places if index is None else [index[mine] for mine in places]


@dataclass
class Remembered:
    """What only speed depends on, kept between passes of a model."""

    unshared: bool = False
    asks: bool = False
    judged: list[weakref.ref[Any]] = field(default_factory=list)

    def has_judged(self, loss: Any) -> bool:
        """Whether the loss was compared with that of a whole batch."""
        self.judged = [known for known in self.judged if known() is not None]
        return any(known() == loss for known in self.judged)

    def judge(self, loss: Any) -> None:
        """It was."""
        kept = weakref.WeakMethod if isinstance(loss, MethodType) else weakref.ref
        self.judged.append(kept(loss))


_REMEMBERED: WeakKeyDictionary[nn.Module, Remembered] = WeakKeyDictionary()


def contributions(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    trained: Mapping[str, nn.Parameter],
    observe: Callable[[str, str, Term], None] | None = None,
) -> dict[str, Term]:
    """Every trained parameter's gradients, one for each lane.

    Raises:
        ValueError: what cannot be trained privately, with the module and the remedy.
    """
    try:
        return _Attempt(model, loss, batch, trained, observe).run()
    except Refused as reason:
        module = refusals.module_at_fault(model, reason)
        raise ValueError(f"{module}: {reason}") from None


def has_judged(model: nn.Module, loss: Loss) -> bool:
    """Whether the loss was compared with that of a whole batch in an earlier pass of the model."""
    known = _REMEMBERED.get(model)
    return known is not None and known.has_judged(loss)


def loss_in_lanes(
    loss: Loss,
    outputs: Tensor,
    targets: Any,
    points: list[Tensor],
    trained: Mapping[str, nn.Parameter],
) -> tuple[Tensor | None, ...] | None:
    """Gradients at ``points`` of a loss that runs in lanes behind outputs known to be apart.

    Args:
        outputs: shape (B, …), row i from example i. points: what the outputs were computed from.

    Returns:
        None where the loss needs what only a whole pass can do (parameters, lanes that part).
    """
    size = len(outputs)
    written = [(parameter, parameter._version) for parameter in trained.values()]
    lanes: Lanes | None = None
    try:
        with boundary.saving_hooks_by(_refuse_hooks), boundary.entered(size) as level:
            lanes = Lanes(size, level, Places(trained), Settings(), before_answer=_leave)

            def wrap(leaf: Tensor) -> Tensor:
                return lanes.followed(boundary.lane(leaf.unsqueeze(1), 0, level))

            with lanes:
                found = loss(wrap(outputs), trees.mapped(targets, wrap))
            if isinstance(found, Tensor) and found.dim() == 0:
                found = found.reshape(1)
            if lanes.stopped is not None or not boundary.is_lane(trees.losses(found, 1)):
                return None
            with boundary.outside():
                total = boundary.rows(found).sum()
        del found
        if not total.requires_grad:
            return (None,) * len(points)
        leaves = (lanes.anchor, *trained.values(), *points)
        _, *gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    except (Exception, Stopped):  # the general way finds out, and says, what is wrong
        return None
    direct, at_points = gradients[: len(trained)], gradients[len(trained) :]
    used = lanes.uses or lanes.failed is not None or any(g is not None for g in direct)
    changed = any(parameter._version != version for parameter, version in written)
    if used or changed or lanes.remaining():
        return None
    return tuple(at_points)


class _Attempt:
    """One batch's passes, until every lane has run to its end."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batch: Batch,
        trained: Mapping[str, nn.Parameter],
        observe: Callable[[str, str, Term], None] | None,
    ) -> None:
        self.model, self.loss, self.batch, self.trained = model, loss, batch, trained
        self._observe = observe
        self._known = _REMEMBERED.setdefault(model, Remembered())
        if boundary.saving_hooks_in_force():
            raise Refused(_HOOKS)
        self._modules = list(model.named_modules())
        refusals.hooked(self._modules)
        self._generators = Generators([p.device for p in trained.values()][:1])
        self._state = State(self._modules)
        self._surroundings: Surroundings | None = None
        self._masks: Masks | None = None

    def _survey(self) -> None:
        """Note what Python could remember, before it learns anything of the examples."""
        if self._surroundings is None:
            modules = [module for _, module in self._modules]
            self._surroundings = Surroundings(modules, self.model, self.loss)

    def _asked(self) -> None:
        if self._surroundings is None:
            self._survey()
            self._known.asks = True
            raise Asking

    def _restore(self) -> None:
        if self._surroundings is not None:
            self._surroundings.restore()
        self._state.restore()

    def run(self) -> dict[str, Term]:
        if self.batch.each >= _LONG:  # one pass a group costs no more than lanes
            return self._by_fallback()
        settings = Settings(self._known.unshared, self.batch.members is not None)
        if self._known.asks:
            self._survey()
        while True:
            try:
                return self._all_parts(settings)
            except Asking:
                pass
            except Unshared:
                self._known.unshared = True
                settings = replace(settings, unshared=True)
            except RuleFailed as failed:
                warnings.warn(
                    f"{failed}; the gradients of its parameters are written out for every example",
                    fallback.SlowGradientsWarning,
                    stacklevel=6,
                )
                settings = replace(settings, without=settings.without | {failed.rule})
            except Unable as reason:
                return self._alone(reason)
            except Refused:
                raise
            except Exception as error:  # vmap's, or the model's own: alone, the example will tell
                return self._alone(error)
            self._generators.restore()

    def _all_parts(self, settings: Settings) -> dict[str, Term]:
        self._masks = Masks(self.batch.lanes) if self._known.asks else None
        pending: list[Tensor | None] = [None]
        done: list[tuple[Tensor | None, dict[str, Term]]] = []
        while pending:
            index = pending.pop()
            try:
                # In a context of its own: what a pass leaves in context variables goes with it.
                terms = contextvars.copy_context().run(self._pass, index, settings)
                done.append((index, terms))
            except Parted as parted:
                pending += _split(index, parted)
            if pending:
                self._generators.restore()
                torch.randint(2**62, ())  # what the masks took
        if len(done) == 1:
            return done[0][1]
        return {
            name: Split(
                [(index, bounded(terms[name])) for index, terms in done if index is not None],
                self.batch.lanes,
            )
            for name in self.trained
        }

    def _pass(self, index: Tensor | None, settings: Settings) -> dict[str, Term]:
        size = self.batch.lanes if index is None else len(index)
        places = Places(self.trained)
        observe = None if self._observe is None else _named(self._observe)
        try:
            with ExitStack() as stack:
                stack.enter_context(boundary.saving_hooks_by(_refuse_hooks))
                if "torch._dynamo" in sys.modules:  # else nothing can be compiled
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                stack.enter_context(torch.enable_grad())
                values, lanes = self._forward(index, size, places, settings, observe, stack)
                left = self._backward(values, lanes)
                del values
            if left:
                raise Unable(f"{', '.join(left[:3])} is used where no torch function shows it")
            self._check_state(lanes)
        finally:
            self._restore()
        terms = places.resolve(lanes.uses, size)
        return {
            name: terms.get(name) or Unused(size, parameter)
            for name, parameter in self.trained.items()
        }

    def _forward(
        self,
        index: Tensor | None,
        size: int,
        places: Places,
        settings: Settings,
        observe: Observer | None,
        stack: ExitStack,
    ) -> tuple[Tensor, Lanes]:
        inputs, targets = self.batch.some(index)
        with boundary.entered(size) as level:
            draws = None if self._masks is None else Draws(self._masks, index)
            lanes = Lanes(size, level, places, settings, draws, observe, self._asked)
            stack.enter_context(checkpoints.in_lanes(lanes))
            stack.enter_context(boundary.functions_by(partial(foreign.call, lanes)))

            if settings.unshared:
                inputs, targets = (trees.mapped(t, Tensor.clone) for t in (inputs, targets))
            else:
                leaves = (*trees.tensors(inputs), *trees.tensors(targets))
                lanes.inputs = {leaf.untyped_storage().data_ptr() for leaf in leaves}

            def wrap(leaf: Tensor) -> Tensor:
                return lanes.followed(boundary.lane(leaf, 0, level))

            with lanes:
                outputs = trees.call(self.model, trees.mapped(inputs, wrap))
                wanted = trees.mapped(targets, wrap)
                found = self.loss(outputs, wanted)
            if lanes.stopped is not None:  # swallowed by a bare except
                raise lanes.stopped
            values = self._values(found, lanes)
            first = index is None and not settings.grouped and size > 1
            if first and not self._known.has_judged(self.loss):
                with boundary.outside():
                    check_loss(self.loss, outputs, targets, values, size)
                self._known.judge(self.loss)
        return values, lanes

    def _values(self, found: Any, lanes: Lanes) -> Tensor:
        each = self.batch.each
        if isinstance(found, Tensor) and found.dim() == 0 and each == 1:
            found = found.reshape(1)
        found = trees.losses(found, each)
        if not boundary.is_lane(found):
            if not found.requires_grad:
                return torch.mean(found.detach().expand(lanes.size, each), 1)
            found = lanes.rows_of(found)
        with boundary.outside():
            values: Tensor = boundary.rows(found).mean(1)
        return values

    def _backward(self, values: Tensor, lanes: Lanes) -> list[str]:
        """Differentiate; the parameters that a gradient reached without being reported."""
        total = values.sum()
        if not total.requires_grad:
            return []
        leaves = (lanes.anchor, *self.trained.values())
        found = torch.autograd.grad(total, leaves, allow_unused=True)[1:]
        if lanes.failed is not None:
            raise lanes.failed
        return [n for n, g in zip(self.trained, found, strict=True) if g is not None]

    def _check_state(self, lanes: Lanes) -> None:
        if lanes.remaining():
            gc.collect()
            if lanes.remaining():
                changed = self._state.changes() or ["something outside the model"]
                raise changes_itself(changed, "keeps values of the examples")
        written = self._state.parameters_changed()
        if written:
            raise changes_itself(written, "is written to in the forward pass")

    def _alone(self, reason: BaseException) -> dict[str, Term]:
        self._generators.restore()
        size = self.batch.lanes
        cause = str(reason) or type(reason).__name__
        where = refusals.module_at_fault(self.model, reason)
        warnings.warn(
            f"{where} goes one example at a time, {size} passes a batch instead of one: "
            f"{cause.strip().splitlines()[0][:200]}",
            fallback.SlowGradientsWarning,
            stacklevel=7,
        )
        return self._by_fallback()

    def _by_fallback(self) -> dict[str, Term]:
        self._survey()
        rows = fallback.one_at_a_time(
            self.model, self.loss, self.batch, self.trained, self._state, self._restore
        )
        return {name: Dense(values) for name, values in rows.items()}


def _named(observe: Callable[[str, str, Term], None]) -> Observer:
    def named(place: Place, rule: str, term: Term) -> None:
        observe(getattr(place, "name", ""), rule, term)

    return named
