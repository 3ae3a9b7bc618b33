"""From a batch to every example's gradients: passes over lanes, and what is done when one stops."""

from __future__ import annotations

import contextvars
import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from forethought.gradients import (
    boundary,
    fallback,
    foreign,
    refusals,
    remembered,
    trees,
)
from forethought.gradients.batch import LONG, Batch
from forethought.gradients.blocks import MULTIPLES, repeated
from forethought.gradients.control import (
    Asking,
    Parted,
    Refused,
    RefusedError,
    RuleFailed,
    Unable,
    Unshared,
)
from forethought.gradients.derived import Place, Places
from forethought.gradients.draws import Draws, Masks
from forethought.gradients.lanes import Lanes, Observer, Settings
from forethought.gradients.place import Filled, Split, Unused
from forethought.gradients.state import Generators, State, changes_itself
from forethought.gradients.surroundings import Surroundings
from forethought.gradients.terms import Separate, Term, bounded
from forethought.gradients.trees import Loss
from forethought.gradients.watching import DRAWN_FOR, WATCH
from forethought.gradients.whole_batch import check_loss, of_all, of_lanes
from forethought.turns import turns


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
    with _refusing(model):
        return _Attempt(model, loss, batch, trained, observe).gradients()


def example_losses(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Tensor:
    """The loss of every example alone, without gradients, shape (B,).

    In lanes like :func:`clipped_sum`, so that the model sees one example at a time and nothing of a
    pass survives it; the loss may also be a single number an example, as of models that compute
    their own.

    Raises:
        ValueError: what cannot be trained privately, with the module and the remedy.
    """
    batch = Batch(trees.detached(inputs), trees.detached(targets))
    if not batch.lanes:
        return torch.zeros(0)
    with _refusing(model):
        return _Attempt(model, loss, batch, {}, None).losses()


@contextmanager
def _refusing(model: nn.Module) -> Iterator[None]:
    try:
        with turns:
            yield
    except Refused as reason:
        module = refusals.module_at_fault(model, reason)
        raise RefusedError(f"{module}: {reason}") from None


def _split(index: Tensor | None, parted: Parted, count: int) -> list[Tensor]:
    """The lanes of every answer, of all that the batch has and that count."""
    lanes: dict[Any, list[int]] = {}
    for at, key in enumerate(parted.keys[: count if index is None else len(index)]):
        lanes.setdefault(key, []).append(at)
    if index is not None and len(lanes) == 1:  # it would part in the same way for ever
        raise Unable("an example that is repeated gives Python another answer every time")
    places = [torch.tensor(same) for same in lanes.values()]
    return places if index is None else [index[mine] for mine in places]


_ONLY_ALONE = (
    "an example of this batch cannot run beside others as made-up ones did before the first round "
    "({}). If all went another way because of it, they would have other last bits, which can move "
    "a sum by more than the clipping norm. Train with micro_batch=1 (every example by itself, "
    "always), or leave what cannot run out of the model"
)


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
        boundary.require_bare_torch()
        boundary.check()
        self._known = remembered.of(model)
        self._modules = list(model.named_modules())
        refusals.hooked(self._modules)
        self._generators = Generators([p.device for p in trained.values()][:1])
        self._state = State(self._modules)
        self._parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._surroundings: Surroundings | None = None
        self._masks: Masks | None = None
        self._drawn_for: Tensor | None = None
        self._unable: BaseException | None = None

    def _survey(self) -> Surroundings:
        """Note what Python could remember, before it learns anything of the examples."""
        if self._surroundings is None:
            found = Surroundings([m for _, m in self._modules], self.model, self.loss)
            if found.waits:
                raise Refused(
                    f"{found.waits} while values of the examples reach Python: a pass that begins "
                    "again could wait for it for ever. Passes run in one thread: use a list"
                )
            self._surroundings = found
        return self._surroundings

    def _asked(self) -> None:
        if self._surroundings is None:
            self._survey()
            self._known.asks = True
            raise Asking

    def _restore(self) -> None:
        if self._surroundings is not None:
            self._surroundings.restore()
        self._state.restore()

    def gradients(self) -> dict[str, Term]:
        """Every trained parameter's gradients, one for each lane."""
        # One pass a group costs no more than lanes where groups are long; copies are many groups.
        alone = self.batch.each >= LONG and not self.batch.copies
        alone = alone or self.batch.blocks.alone
        parts = None if alone else self._parts(self._pass)
        if parts is None:
            rows = self._one_at_a_time(True)
            if not alone and self._tried():
                raise Refused(_ONLY_ALONE.format(self._unable))
            return {name: Separate(torch.stack(of_name)) for name, of_name in rows.items()}
        if len(parts) == 1:
            return dict(parts[0][1])
        return {
            name: Split(
                [
                    (index, Filled(bounded(terms[name]), len(index), self._width(index)))
                    for index, terms in parts
                    if index is not None
                ],
                self.batch.lanes,
            )
            for name in self.trained
        }

    def _note(self, settings: Settings, reason: object) -> None:
        """All lanes go another way from here on: by what made-up examples do, not those of data."""
        if self._tried():
            raise Refused(_ONLY_ALONE.format(reason))
        if self.batch.blocks.sizes != (1,):  # else no example is what another one goes by
            self._known.unshared, self._known.without = settings.unshared, settings.without

    def _tried(self) -> bool:
        """Whether examples ran beside others before, in blocks, with the bits that they have there.

        Alone they may have others, so one example's failure must not be what the others go by.
        """
        blocks = self.batch.blocks
        return blocks is not MULTIPLES and blocks.sizes != (1,) and WATCH.get() is None

    def losses(self) -> Tensor:
        """Every lane's loss, without gradients."""
        parts = self._parts(self._loss_pass)
        if parts is None:
            return torch.stack(self._one_at_a_time(False)["loss"])
        if len(parts) == 1:
            return cast(Tensor, parts[0][1])[: self.batch.count]
        whole: Tensor = parts[0][1].new_zeros(self.batch.count)
        for index, values in parts:
            assert index is not None  # lanes that parted
            whole[index] = values[: len(index)]
        return whole

    def _parts(self, one: Callable[..., Any]) -> list[tuple[Tensor | None, Any]] | None:
        """``one(lanes, settings)`` for all lanes, or for each part; None: one lane at a time."""
        known = self._known
        settings = Settings(known.unshared, self.batch.mixing, known.without)
        if known.asks:
            self._survey()
        while True:
            try:
                return self._all_parts(one, settings)
            except Asking:
                pass
            except Unshared:
                settings = replace(settings, unshared=True)
                self._note(settings, "it writes to what is made for all at once")
            except RuleFailed as failed:
                warnings.warn(
                    f"{failed}; the gradients of its parameters are written out for every example",
                    fallback.SlowGradientsWarning,
                    stacklevel=7,
                )
                settings = replace(settings, without=settings.without | {failed.rule})
                self._note(settings, failed)
            except Refused:
                raise
            except (Unable, Exception) as error:  # alone, the example will tell what it is
                if boundary.refused_hooks(error):
                    raise Refused(str(error)).with_traceback(error.__traceback__) from None
                refusals.own_fault(error)
                self._say_slow(error)
                self._unable = error
                return None
            self._generators.restore()

    def _all_parts(
        self, one: Callable[..., Any], settings: Settings
    ) -> list[tuple[Tensor | None, Any]]:
        self._drawn_for, width = DRAWN_FOR.get() or (None, self.batch.lanes)
        asked = self._known.asks or self._drawn_for is not None
        self._masks = Masks(width) if asked else None
        pending: list[Tensor | None] = [None]
        done: list[tuple[Tensor | None, Any]] = []
        while pending:
            index = pending.pop()
            try:
                # In a context of its own: what a pass leaves in context variables goes with it.
                filled = index
                if index is not None:
                    filled = index[repeated(len(index), self._width(index))]
                watch = WATCH.get()
                if watch is not None:
                    watch.begin(self.batch.lanes if filled is None else len(filled))
                done.append((index, contextvars.copy_context().run(one, filled, settings)))
                if watch is not None:
                    watch.keep(index, None if index is None else len(index))
            except Parted as parted:
                pending += _split(index, parted, self.batch.count)
            if pending:
                self._generators.restore()
                torch.randint(2**62, ())  # what the masks took
        return done

    def _width(self, index: Tensor) -> int:
        """Rows of the block in which some lanes run apart."""
        return min(self.batch.lanes, self.batch.blocks.fit(len(index)))

    def _pass(self, index: Tensor | None, settings: Settings) -> dict[str, Term]:
        size = self.batch.lanes if index is None else len(index)
        places = Places(self.trained)
        with self._around(), torch.enable_grad():
            values, lanes = self._forward(index, size, places, settings)
            left = self._backward(values, lanes)
            del values
            if left:
                raise Unable(f"{', '.join(left[:3])} is used where no torch function shows it")
            self._check_state(lanes)
        terms = places.resolve(lanes.uses, size)
        return {
            name: terms.get(name) or Unused(size, parameter)
            for name, parameter in self.trained.items()
        }

    def _loss_pass(self, index: Tensor | None, settings: Settings) -> Tensor:
        size = self.batch.lanes if index is None else len(index)
        with self._around(), torch.no_grad():
            values, lanes = self._forward(index, size, Places({}), settings)
            self._check_state(lanes)
        return values

    @contextmanager
    def _around(self) -> Iterator[None]:
        compiled = "torch._dynamo" in sys.modules  # else nothing can be
        try:
            with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                yield
        finally:
            self._restore()

    def _forward(
        self,
        index: Tensor | None,
        size: int,
        places: Places,
        settings: Settings,
    ) -> tuple[Tensor, Lanes]:
        inputs, targets = self.batch.some(index)
        with boundary.entered(size) as level:
            draws = None if self._masks is None else self._draws(self._masks, index)
            observe = None if self._observe is None else _named(self._observe)
            lanes = Lanes(size, level, places, settings, draws, observe, self._asked)
            lanes.parameters = self._parameters

            if settings.unshared:
                inputs, targets = (trees.mapped(t, Tensor.clone) for t in (inputs, targets))
            else:
                leaves = (*trees.tensors(inputs), *trees.tensors(targets))
                lanes.inputs = {leaf.untyped_storage().data_ptr() for leaf in leaves}

            def wrap(leaf: Tensor) -> Tensor:
                return lanes.followed(boundary.lane(leaf, 0, level))

            with foreign.answered(lanes), lanes:
                outputs = trees.call(self.model, trees.mapped(inputs, wrap))
                wanted = trees.mapped(targets, wrap)
                found = self.loss(outputs, wanted)
            if lanes.stopped is not None:  # swallowed by a bare except
                raise lanes.stopped
            boundary.require_bare_torch()  # nor did the model leave anything behind
            values = self._values(found, lanes)
            first = index is None and self.batch.each == 1 and self.batch.count > 1
            if first and not self._known.has_judged(self.loss):
                self._judge(outputs, targets, values)
        return values, lanes

    def _draws(self, masks: Masks, index: Tensor | None) -> Draws:
        mine, apart = self._drawn_for, index is not None
        if mine is not None and index is not None:
            mine = mine[index]
        return Draws(masks, index if mine is None else mine, apart)

    def _judge(self, outputs: Any, targets: Any, values: Tensor) -> None:
        """Compare the loss with that of a whole batch, once; nothing that it sees there stays."""
        try:
            surroundings = Surroundings([m for _, m in self._modules], self.loss)
        except Refused:  # a check of meaning: no pass is less private without it
            return
        try:
            with boundary.outside():
                flat = trees.mapped(targets, lambda leaf: leaf.flatten(0, 1))
                check_loss(self.loss, partial(of_lanes, outputs), flat, values)
        finally:
            surroundings.restore()
        self._known.judge(self.loss)

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

    def _say_slow(self, reason: BaseException) -> None:
        size = self.batch.count
        cause = str(reason) or type(reason).__name__
        where = refusals.module_at_fault(self.model, reason)
        warnings.warn(
            f"{where} goes one example at a time, {size} passes a batch instead of one: "
            f"{cause.strip().splitlines()[0][:200]}",
            fallback.SlowGradientsWarning,
            stacklevel=8,
        )

    def _one_at_a_time(self, differentiate: bool) -> dict[str, list[Tensor]]:
        self._generators.restore()
        self._survey()
        first = self.batch.each == 1 and self.batch.count > 1
        first = first and not self._known.has_judged(self.loss)
        answers: list[tuple[Any, Tensor]] | None = [] if first else None
        try:
            found = fallback.one_at_a_time(
                self.model,
                self.loss,
                self.batch,
                self.trained if differentiate else None,
                self._state,
                self._restore,
                answers,
            )
            if answers:
                outputs, values = zip(*answers, strict=True)
                targets = trees.mapped(self.batch.targets, lambda leaf: leaf[: len(values)])
                check_loss(self.loss, partial(of_all, outputs), targets, torch.stack(values))
                self._known.judge(self.loss)
            return found
        finally:
            self._restore()


def _named(observe: Callable[[str, str, Term], None]) -> Observer:
    def named(place: Place, rule: str, term: Term) -> None:
        observe(getattr(place, "name", ""), rule, term)

    return named
