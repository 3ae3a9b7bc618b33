"""Passes that compute the gradients of every example of a batch, and the reactions if one stops."""

from __future__ import annotations

import contextvars
import copy
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from forethought.gradients import batches, boundary, vmap_mode
from forethought.gradients.batches import FINGERPRINT, LONG, MULTIPLES, LaneBatch, Loss, repeated
from forethought.gradients.sharded import of_lost_process
from forethought.gradients.sums import Separate, SplitTerms, Term, Unused, bounded
from forethought.gradients.vmap_mode import ParameterViews, PassSettings, VmapMode

# A check that the loss is the same function of one example as of a batch; privacy does not need it.
#
# In its lane a loss sees a batch of one. A loss that needs the batch (in-batch negatives,
# hard-example mining, division by the batch size) would silently be another loss there, so it is
# refused.


class _UntoldError(Exception):
    """The outputs of single examples cannot be joined into a batch."""


def of_lanes(outputs: Any, count: int) -> Any:
    """The model's outputs in the first ``count`` lanes, as one batch.

    Raises:
        _UntoldError: the outputs have an unknown form.
    """

    def joined(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and boundary.is_lane(leaf):
            return _batch(boundary.rows(leaf)[:count].detach())
        return leaf

    return tree_map(joined, outputs)


def of_one(outputs: Any) -> Any:
    """A copy of a model's outputs for one example, for :func:`of_all`; None for unknown forms."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        if leaf is None or isinstance(leaf, bool | int | float | str):
            return leaf
        raise _UntoldError  # another object may hold values of the example

    try:
        return tree_map(copied, outputs)
    except _UntoldError:
        return None


def of_all(outputs: Sequence[Any]) -> Any:
    """The model's outputs for one example after the other, as one batch.

    Raises:
        _UntoldError: the outputs have an unknown form, or several.
    """

    def joined(*leaves: Any) -> Any:
        if not isinstance(leaves[0], Tensor):
            return leaves[0]
        return _batch(torch.stack(leaves))

    try:
        return tree_map(joined, *outputs)
    except (TypeError, ValueError, RuntimeError):  # of several shapes or forms
        raise _UntoldError from None


def _batch(whole: Tensor) -> Tensor:
    if whole.dim() == 1:
        return whole
    if whole.shape[1] != 1:
        raise _UntoldError
    return whole.flatten(0, 1)


def check_loss(loss: Loss, together: Callable[[], Any], targets: Any, values: Tensor) -> None:
    """Compare the losses of one example at a time with the loss of all of them as one batch.

    Outputs of shape (1, 1, n) of single examples do not tell where the batch is: in front, or in
    dimension 1, as in the last state of an LSTM. The loss may be that of either.

    Args:
        together: the model's outputs as one batch, from :func:`of_lanes` or :func:`of_all`.
        targets: of all examples. values: the losses, shape (examples,).

    Raises:
        Refused: the losses differ, or the loss has another shape than (examples,).
    """
    try:
        outputs = together()
    except _UntoldError:
        return
    reason = _difference(loss, outputs, targets, values)
    if reason and _difference(loss, tree_map(_turned, outputs), targets, values) == "":
        return
    if reason:
        raise boundary.Refused(reason)


def _turned(leaf: Any) -> Any:
    flat = not isinstance(leaf, Tensor) or leaf.dim() < 3 or leaf.shape[1] != 1
    return leaf if flat else leaf.transpose(0, 1)


def _difference(loss: Loss, outputs: Any, targets: Any, values: Tensor) -> str | None:
    """The reason to refuse the loss; empty if there is none, None if nothing can be told."""
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            found = loss(outputs, targets)
    except Exception:  # a loss that is made for one example
        return None
    finally:
        moved = not torch.equal(torch.get_rng_state(), before)
        torch.set_rng_state(before)
    if not isinstance(found, Tensor) or moved:
        return None
    try:
        found = batches.losses(found, len(values))
    except ValueError as error:
        return str(error)
    one, other = values.detach().double(), found.detach().double()
    finite = torch.isfinite(one) & torch.isfinite(other)
    scale, gap = torch.maximum(one.abs(), other.abs())[finite], (one - other).abs()[finite]
    # Numbers only beside other examples, as of what is divided by a standard deviation over them.
    never = not bool(torch.isfinite(one).any()) and bool(torch.isfinite(other).all())
    if never or (scale.numel() and bool((gap > 0.05 * scale + 1e-3 * scale.max()).any())):
        return (
            "the loss gives an example another value when it sees the whole batch: give each "
            "example a loss of its own, or clip whole batches (groups=)"
        )
    return ""


# Passes over lanes that compute every example's gradients, and the reactions if one stops.


def contributions(
    model: nn.Module,
    loss: Loss,
    batch: LaneBatch,
    trained: Mapping[str, nn.Parameter],
    observe: Callable[[str, str, Term], None] | None = None,
) -> dict[str, Term]:
    """Every trained parameter's gradients, one for each lane.

    Args:
        observe: called with (parameter's name, rule's name, term) for every use; None: nothing.

    Raises:
        ValueError: the model or loss cannot be trained privately; names the module and the remedy.
    """
    with _refusing(model):
        return _Attempt(model, loss, batch, trained, observe).gradients()


def example_losses(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> Tensor:
    """The loss of every example by itself, without gradients, shape (B,).

    It runs in lanes as in :func:`clipped_sum`: the model sees one example at a time, and the pass
    leaves no trace. The loss may also return a single number for each example, as for models that
    compute their own loss.

    Raises:
        ValueError: the model or loss cannot be trained privately; names the module and the remedy.
    """
    batch = LaneBatch(batches.detached(inputs), batches.detached(targets))
    if not batch.lanes:
        return torch.zeros(0)
    with _refusing(model):
        return _Attempt(model, loss, batch, {}).losses()


@contextmanager
def _refusing(model: nn.Module) -> Iterator[None]:
    try:
        with boundary.turns:
            yield
    except boundary.Refused as reason:
        module = vmap_mode.module_at_fault(model, reason)
        raise boundary.RefusedError(f"{module}: {reason}") from None


def _split(index: Tensor | None, parted: boundary.DivergentControlFlow, count: int) -> list[Tensor]:
    """The lanes of each answer, among the first ``count`` lanes or, if given, of ``index``."""
    lanes: dict[Any, list[int]] = {}
    for at, key in enumerate(parted.keys[: count if index is None else len(index)]):
        lanes.setdefault(key, []).append(at)
    if index is not None and len(lanes) == 1:  # the next pass would diverge in the same way
        raise boundary.NotVectorisable(
            "an example that is repeated gives Python another answer every time"
        )
    places = [torch.tensor(same) for same in lanes.values()]
    return places if index is None else [index[mine] for mine in places]


_ONLY_ALONE = (
    "an example of this batch cannot run beside others as made-up ones did ({}), and must not "
    "change the others' bits: train with micro_batch=1 (each by itself), or leave out what cannot"
)


_ONLY_TOGETHER = (
    "a sharded model runs its examples side by side, and this one cannot ({}): train it without "
    "fully_shard"
)


class SlowGradientsWarning(UserWarning):
    """Gradients are exact but slow: vmap cannot run a part of the model, or a rule failed."""


@dataclass
class _Attempt:
    """The passes over one batch, until every lane has run to its end."""

    model: nn.Module
    loss: Loss
    batch: LaneBatch
    trained: Mapping[str, nn.Parameter]
    observe: Callable[[str, str, Term], None] | None = None

    def __post_init__(self) -> None:
        model = self.model
        boundary.require_gradients(model)
        boundary.require_bare_torch()
        boundary.check()
        self._known = boundary.memory_of(model)
        self._modules = list(model.named_modules())
        self._shards = boundary.shards_of(model)
        vmap_mode.hooked(self._modules, sharded=self._shards is not None)
        self._generators = boundary.Generators([p.device for p in self.trained.values()][:1])
        self._state = boundary.ModuleState(self._modules)
        self._parameters = {p.untyped_storage().data_ptr() for p in boundary.own_parameters(model)}
        self._surroundings: boundary.ExternalState | None = None
        self._masks: vmap_mode.Masks | None = None
        self._drawn_for: Tensor | None = None
        self._unable: BaseException | None = None

    def _survey(self) -> boundary.ExternalState:
        """Note the state that Python can remember, before values of the examples reach it."""
        if self._surroundings is None:
            found = boundary.ExternalState([m for _, m in self._modules], self.model, self.loss)
            if found.waits:
                raise boundary.Refused(
                    f"{found.waits} while values of the examples reach Python: use a list"
                )
            self._surroundings = found
        return self._surroundings

    def _asked(self, keys: Sequence[Hashable]) -> None:
        if self._surroundings is None:
            self._survey()
            self._known.asks = True
            raise boundary.NeedsStateSnapshot
        # Examples of another process must not decide which weights are gathered in this one.
        if self._shards is not None and not boundary.agreed(self.model, *keys):
            raise boundary.Refused(_ONLY_TOGETHER.format("the examples take different ways"))

    def _restore(self) -> None:
        if self._surroundings is not None:
            self._surroundings.restore()
        self._state.restore()

    def gradients(self) -> dict[str, Term]:
        """Every trained parameter's gradients, one for each lane."""
        # For long groups one pass for each costs no more than lanes. With copies there is a group
        # for every record, so that lanes are faster.
        alone = self.batch.each >= LONG and self.batch.mixing
        alone = alone or self.batch.blocks.alone
        parts = None if alone else self._parts()
        if parts is None:
            rows = self._one_at_a_time()
            if not alone and self._tried():
                raise boundary.Refused(_ONLY_ALONE.format(self._unable))
            return {name: Separate(torch.stack(of_name)) for name, of_name in rows.items()}
        if len(parts) == 1:
            return dict(parts[0][1])
        apart = [(index, terms, self._width(index)) for index, terms in parts if index is not None]
        return {
            name: SplitTerms(
                [(bounded(terms[name]), index, width) for index, terms, width in apart],
                self.batch.lanes,
            )
            for name in self.trained
        }

    def _note(self, settings: PassSettings, reason: object) -> None:
        """Use other settings for all lanes from here on; only made-up examples may cause this."""
        if self._tried():
            raise boundary.Refused(_ONLY_ALONE.format(reason))
        if self.batch.blocks.sizes != (1,):  # a single example must not change other examples' way
            self._known.unshared, self._known.without = settings.unshared, settings.without

    def _tried(self) -> bool:
        """True if this is a pass over data in blocks of several examples that were tested before.

        Outside blocks the examples may have other bits, so the failure of one example must not
        change how the others run.
        """
        blocks = self.batch.blocks
        return blocks is not MULTIPLES and blocks.sizes != (1,) and FINGERPRINT.get() is None

    def losses(self) -> Tensor:
        """Every lane's loss, without gradients; no parameter is trained."""
        parts = self._parts()
        if parts is None:
            return torch.stack(self._one_at_a_time()["loss"])
        if len(parts) == 1:
            return cast(Tensor, parts[0][1])[: self.batch.count]
        whole: Tensor = parts[0][1].new_zeros(self.batch.count)
        for index, values in parts:
            assert index is not None  # several parts: the lanes diverged
            whole[index] = values[: len(index)]
        return whole

    def _parts(self) -> list[tuple[Tensor | None, Any]] | None:
        """The results of :meth:`_pass` for all lanes, or for each part of them.

        None if the lanes can run only one at a time.
        """
        known = self._known
        settings = PassSettings(known.unshared, self.batch.mixing, known.without)
        if known.asks:
            self._survey()
        while True:
            try:
                return self._all_parts(settings)
            except boundary.NeedsStateSnapshot:
                pass
            except boundary.SharedBufferWrite:
                settings = replace(settings, unshared=True)
                self._note(settings, "it writes to what is made for all at once")
            except boundary.RuleFailed as failed:
                warnings.warn(
                    f"{failed}; the gradients of its parameters are written out for every example",
                    SlowGradientsWarning,
                    stacklevel=8,
                )
                settings = replace(settings, without=settings.without | {failed.rule})
                self._note(settings, failed)
            except boundary.Refused:
                raise
            except (boundary.NotVectorisable, Exception) as error:
                # If it is the model's error, the example alone will raise it, too.
                if boundary.refused_hooks(error):
                    raise boundary.Refused(str(error)).with_traceback(error.__traceback__) from None
                if self._shards is not None and of_lost_process(error):
                    raise  # not the model's: the caller says what to do
                vmap_mode.own_fault(error)
                self._say_slow(error)
                self._unable = error
                return None
            self._generators.restore()

    def _all_parts(self, settings: PassSettings) -> list[tuple[Tensor | None, Any]]:
        self._drawn_for, width = batches.DRAWN_FOR.get() or (None, self.batch.lanes)
        asked = self._known.asks or self._drawn_for is not None
        self._masks = vmap_mode.Masks(width) if asked else None
        pending: list[Tensor | None] = [None]
        done: list[tuple[Tensor | None, Any]] = []
        while pending:
            index = pending.pop()
            try:
                # In a copy of the context, so that changes of context variables end with the pass.
                filled = index
                if index is not None:
                    filled = index[repeated(len(index), self._width(index))]
                watch = FINGERPRINT.get()
                if watch is not None:
                    watch.begin(self.batch.lanes if filled is None else len(filled))
                found = contextvars.copy_context().run(self._pass, filled, settings)
                done.append((index, found))
                if watch is not None:
                    watch.keep(index, None if index is None else len(index))
            except boundary.DivergentControlFlow as parted:
                pending += _split(index, parted, self.batch.count)
            if pending:
                self._generators.restore()
                torch.randint(2**62, ())  # the number that Masks has drawn
        return done

    def _width(self, index: Tensor) -> int:
        """The number of rows of the block in which the lanes ``index`` run separately."""
        return min(self.batch.lanes, self.batch.blocks.fit(len(index)))

    def _pass(self, index: Tensor | None, settings: PassSettings) -> dict[str, Term] | Tensor:
        """The gradients of the lanes ``index`` (None: all); their losses if nothing is trained."""
        size = self.batch.lanes if index is None else len(index)
        places = ParameterViews(self.trained, derived=self._shards is None)
        with self._around(), torch.set_grad_enabled(bool(self.trained)):
            values, mode = self._forward(index, size, places, settings)
            left = self._backward(values, mode)
            if not self.trained:
                self._check_state(mode)
                return values
            del values
            if left:
                raise boundary.NotVectorisable(
                    f"{', '.join(left[:3])} is used where no torch function shows it"
                )
            self._check_state(mode)
        terms = places.resolve(mode.uses, size)
        return {
            name: terms.get(name) or Unused(size, parameter)
            for name, parameter in self.trained.items()
        }

    @contextmanager
    def _around(self) -> Iterator[None]:
        compiled = "torch._dynamo" in sys.modules  # only then can code be compiled
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        try:
            with eager, boundary.gathered(self.model):
                yield
        finally:
            self._restore()

    def _forward(
        self, index: Tensor | None, size: int, places: ParameterViews, settings: PassSettings
    ) -> tuple[Tensor, VmapMode]:
        inputs, targets = self.batch.some(index)
        with boundary.entered(size) as level:
            draws = None if self._masks is None else self._draws(self._masks, index, level)
            mode = VmapMode(size, level, places, settings, draws, self.observe, self._asked)
            mode.parameters = {*self._parameters}
            if self._shards is not None:
                self._shards.lanes(mode)

            if settings.unshared:
                inputs, targets = (batches.mapped(t, Tensor.clone) for t in (inputs, targets))
            else:
                leaves = (*batches.tensors(inputs), *batches.tensors(targets))
                mode.inputs = {leaf.untyped_storage().data_ptr() for leaf in leaves}

            def wrap(leaf: Tensor) -> Tensor:
                return mode.followed(boundary.lane(leaf, 0, level))

            with vmap_mode.answered(mode), mode:
                outputs = batches.call(self.model, batches.mapped(inputs, wrap))
                wanted = batches.mapped(targets, wrap)
                found = self.loss(outputs, wanted)
            if mode.stopped is not None:  # user code caught it with a bare except
                raise mode.stopped
            boundary.require_bare_torch()  # the model may have left a mode or hook behind
            values = self._values(found, mode)
            first = index is None and self.batch.each == 1 and self.batch.count > 1
            if first and not self._known.found(self.loss, boundary.JUDGED):
                self._judge(outputs, targets, values)
        return values, mode

    def _draws(self, masks: vmap_mode.Masks, index: Tensor | None, level: int) -> vmap_mode.Draws:
        mine, apart = self._drawn_for, index is not None
        if mine is not None and index is not None:
            mine = mine[index]
        return vmap_mode.Draws(masks, index if mine is None else mine, apart, level)

    def _judge(self, outputs: Any, targets: Any, values: Tensor) -> None:
        """Compare the loss with that of a whole batch, once; restore all that it may have kept."""
        try:
            surroundings = boundary.ExternalState([m for _, m in self._modules], self.loss)
        except boundary.Refused:  # privacy does not need this check
            return
        try:
            with boundary.outside():
                count = self.batch.count  # without those that fill up the block
                flat = batches.mapped(targets, lambda leaf: leaf.flatten(0, 1)[:count])
                together = partial(of_lanes, outputs, count)
                check_loss(self.loss, together, flat, values[:count])
        finally:
            surroundings.restore()
        self._known.note(self.loss, boundary.JUDGED, True)

    def _values(self, found: Any, mode: VmapMode) -> Tensor:
        each = self.batch.each
        found = batches.own_losses(found, each)
        if not boundary.is_lane(found):
            if not found.requires_grad:
                return torch.mean(found.detach().expand(mode.size, each), 1)
            found = mode.rows_of(found)
        with boundary.outside():
            values: Tensor = boundary.rows(found).mean(1)
        return values

    def _backward(self, values: Tensor, mode: VmapMode) -> list[str]:
        """Differentiate; returns the parameters that a gradient reached without a report."""
        total = values.sum()
        if not total.requires_grad:
            return []
        shared = mode.places.leaves()
        found = torch.autograd.grad(total, (mode.anchor, *shared.values()), allow_unused=True)[1:]
        if mode.failed is not None:
            raise mode.failed
        return [n for n, g in zip(shared, found, strict=True) if g is not None]

    def _check_state(self, mode: VmapMode) -> None:
        if mode.remaining():
            gc.collect()
            if mode.remaining():
                changed = self._state.changes() or ["something outside the model"]
                raise boundary.changes_itself(changed, "keeps values of the examples")
        written = self._state.parameters_changed()
        if written:
            raise boundary.changes_itself(written, "is written to in the forward pass")

    def _say_slow(self, reason: BaseException) -> None:
        cause = str(reason) or type(reason).__name__
        where = vmap_mode.module_at_fault(self.model, reason)
        warnings.warn(
            f"{where} goes one example at a time, {self.batch.count} passes a batch, not one: "
            f"{cause.strip().splitlines()[0][:200]}",
            SlowGradientsWarning,
            stacklevel=9,
        )

    def _one_at_a_time(self) -> dict[str, list[Tensor]]:
        """Every lane's gradients by one ordinary backward pass each, by name.

        If nothing is trained, every lane's loss instead, under the name "loss".
        """
        self._generators.restore()
        if self._shards is not None:
            raise boundary.Refused(_ONLY_TOGETHER.format(self._unable or "it was told to"))
        self._survey()
        first = self.batch.each == 1 and self.batch.count > 1
        first = first and not self._known.found(self.loss, boundary.JUDGED)
        answers: list[tuple[Any, Tensor]] | None = [] if first else None
        try:
            found = self._rows(answers)
            if answers:
                outputs, values = zip(*answers, strict=True)
                targets = batches.mapped(self.batch.targets, lambda leaf: leaf[: len(values)])
                check_loss(self.loss, partial(of_all, outputs), targets, torch.stack(values))
                self._known.note(self.loss, boundary.JUDGED, True)
            return found
        finally:
            self._restore()

    # Every lane runs alone, from the same state of the model, with its own examples only: slow, but
    # exact, for models that vmap cannot run. A mode checks every write (:class:`Alone`).

    def _rows(self, answers: list[tuple[Any, Tensor]] | None) -> dict[str, list[Tensor]]:
        """Every lane's gradients or loss; restores ``.grad``.

        Args:
            answers: a list to which copies of the model's outputs and the loss of each lane are
                added; None: they are not kept.

        Raises:
            Refused: the model changes itself, or keeps values of an example.
        """
        rows: dict[str, list[Tensor]] = {name: [] for name in self.trained or ("loss",)}
        first: dict[str, Any] | None = None
        # Each lane has its own seed, so that the numbers one lane draws do not affect the next.
        seeds = torch.randint(2**62, (self.batch.count + 1,)).tolist()
        for at in range(self.batch.count):
            vmap_mode.seeded(seeds[at])
            alone = Alone(self.model, self.batch.mixing)
            found = contextvars.copy_context().run(self._lane, alone, at, answers)
            changed = self._changed(alone)
            first = changed if first is None else first
            if not boundary.alike(changed, first):
                raise boundary.changes_itself(
                    {**changed, **first}, "depends on the examples that it has seen"
                )
            for name, value in found.items():
                rows[name].append(value)
        vmap_mode.seeded(seeds[-1])
        return rows

    def _lane(
        self, alone: Alone, at: int, answers: list[tuple[Any, Tensor]] | None
    ) -> dict[str, Tensor]:
        parameters = list(self.model.parameters())
        kept = [parameter.grad for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.grad = None
            with torch.set_grad_enabled(bool(self.trained)), alone:
                lane = self.batch.some(torch.tensor([at]))
                inputs, targets = batches.mapped(lane, itemgetter(0))
                outputs = batches.call(self.model, inputs)
                values = self.loss(outputs, targets)
            value = batches.own_losses(values, self.batch.each).mean()
            if answers is not None:
                answers.append((of_one(outputs), value.detach().clone()))
            del outputs
            if not self.trained:
                return {"loss": value.detach().clone()}
            if value.requires_grad:
                value.backward()  # type: ignore[no-untyped-call]
            return {
                name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense().detach()
                for name, p in self.trained.items()
            }
        finally:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

    def _changed(self, alone: Alone) -> dict[str, Any]:
        """The changes of the model by a lane, which are restored."""
        changed: dict[str, Any] = boundary.copied(self._state.changes())
        written = self._state.parameters_changed()
        self._restore()
        if written:
            raise boundary.changes_itself(written, "is written to in the forward pass")
        if alone.kept():
            raise boundary.changes_itself(
                ["something outside the model"], "keeps values of an example"
            )
        return changed


# The mode of a lane that runs alone: it checks every write. A tensor that existed before and is not
# the model's own could carry values from one lane to the next.


_DATA = boundary.GETTERS["data"].__get__
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)


def _normalised_alone(given: Mapping[str, Any]) -> Tensor:
    """Batch normalisation of a single value for each channel: zero, then weight and bias.

    torch raises an error for it.
    """
    value: Tensor = given["input"] - given["input"]
    shape = (1, -1, *(1,) * (value.dim() - 2))
    for part, by in ((given.get("weight"), torch.mul), (given.get("bias"), torch.add)):
        value = value if part is None else by(value, part.view(shape))
    return value


def _storage(value: Tensor) -> int:
    """The address of a tensor's storage; 0 for sparse tensors and those of torch.func."""
    if value.layout is not torch.strided or boundary.wrapped(value):
        return 0
    return value.untyped_storage().data_ptr()


class Alone(TorchFunctionMode):
    """A mode that tracks the tensors that one lane's pass makes, and refuses writes to others.

    Args:
        model: a pass may write to its buffers and attributes, because they are restored.
        grouped: True if the lane is a group, whose examples batch normalisation may mix.
    """

    def __init__(self, model: nn.Module, grouped: bool) -> None:
        super().__init__()
        self._grouped = grouped
        # The model's own tensors are restored after every lane.
        self._parameters = {*map(_storage, model.parameters())} - {0}
        owned = list(model.buffers())
        for module in model.modules():
            owned += batches.tensors(list(vars(module).values()))
        self._owned = {*map(_storage, owned)} - {0} - self._parameters
        self._known = self._owned | self._parameters
        self._made: dict[int, weakref.ref[Tensor]] = {}
        self._storages: set[int] = {0}

    def again(self) -> Alone:
        """A copy for another lane, after the model's own tensors were restored."""
        other = copy.copy(self)
        other._made, other._storages = {}, {0}
        return other

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operator = vmap_mode.operator_name(func) if type(func) in boundary.OPERATORS else None
        if operator is not None and boundary.unseen_kernel(operator):
            raise boundary.Refused(
                f"{operator} was made with torch.library.Library, whose code cannot be seen: make "
                "it with torch.library.custom_op"
            )
        if func is _DATA:
            return args[0].detach()  # the same memory; unlike .data, its changes are counted
        if func is F.batch_norm and self._grouped:
            given = dict(zip((*vmap_mode.BATCH_NORM, "eps"), args, strict=False)) | kwargs
            if given.get("training"):  # by the group's own statistics, which are not kept
                if given["input"].numel() == given["input"].shape[1]:
                    return _normalised_alone(given)
                return func(**{**given, "running_mean": None, "running_var": None})
        if vmap_mode.writes(func, kwargs):
            target = kwargs.get("out", args[0] if args else None)
            if not all(map(self._mine, batches.tensors(target))):
                raise boundary.Refused(
                    "values of the examples are written into a tensor that is neither the "
                    "example's nor put back: compute a new tensor instead"
                )
        result = func(*args, **kwargs)
        if func in _ARRAYS:
            return result.copy()  # writes to the array must not change the tensor
        for leaf in batches.tensors(result):
            place = _storage(leaf)
            if place not in self._known:  # in-place functions may return a tensor of the model
                self._made[id(leaf)] = weakref.ref(leaf)
                self._storages.add(place)
        return result

    def _mine(self, target: Tensor) -> bool:
        known = self._made.get(id(target))
        if known is not None and known() is target:
            return True
        place = _storage(target)
        return place in self._storages or place in self._owned

    def kept(self) -> bool:
        """True if tensors of the pass are still alive, without the garbage that Python holds."""
        if all(made() is None for made in self._made.values()):
            return False
        gc.collect()
        return any(made() is not None for made in self._made.values())


# A table of the way in which each parameter's gradient is computed, with reasons.


@dataclass(frozen=True)
class Choice:
    """One parameter's row of the table.

    Attributes:
        parameter: its name. shape: its shape.
        rules: the functions that use it; "any function" has no rule, so that gradients are written
            out; "derived": the parameter is used through values computed from parameters.
        way: the way in which its norm is computed.
        held: bytes kept until the factors are known. written: bytes of batch × parameter.
        reason: the reason for which gradients are written out; empty if they are not.
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
    """Print a table of the way in which each trained parameter's gradients are computed.

    Args:
        model: any module.
        example: a batch of inputs as for :func:`clipped_sum`, of the size that training will use;
            the way depends on it.

    Returns:
        The rows of the printed table.

    Raises:
        ValueError: no trainable parameter, an empty batch or one without a size, or a model that
            cannot be trained privately.
    """
    trained = boundary.trained_of(model, "explain")
    size = batches.batch_size(example, ())
    if not size:
        raise ValueError("the example batch is empty: pass at least one example")
    inputs = batches.detached(example)
    seen: dict[str, list[tuple[str, str]]] = {name: [] for name in trained}

    def observe(name: str, rule: str, term: Term) -> None:
        seen.setdefault(name, []).append((rule, term.way()))

    terms = contributions(model, _any_loss, LaneBatch(inputs, torch.zeros(size)), trained, observe)
    rows = []
    for name, parameter in trained.items():
        width = batches.zeros_for(parameter, 0).element_size()
        uses, way = seen[name], terms[name].way()
        rules = [rule for rule, _ in uses]
        if not uses and way != "unused":
            rules = ["derived" if any(seen.values()) else "one at a time"]
        elif uses:
            way = ", ".join(dict.fromkeys(way for _, way in uses))
            way = f"{way}, joined" if len(uses) > 1 else way
        rule = ", ".join(dict.fromkeys(rules)) or "none"
        rule = f"{rule} ×{len(uses)}" if len(uses) > 1 else rule
        held, written = _held(terms[name]), size * parameter.numel() * width
        reason = next((_REASONS[r] for r in rules if r in _REASONS), "")
        rows.append(Choice(name, tuple(parameter.shape), rule, way, held, written, reason))
    _show(rows, size)
    return tuple(rows)


def _any_loss(outputs: Any, targets: Tensor) -> Tensor:
    # The ways do not depend on the loss; squares make every output count.
    total = targets
    for leaf in batches.tensors(outputs):
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
    cells = []
    for row in rows:
        shape = "×".join(map(str, row.shape)) or "scalar"
        sizes = f"{row.held / 1e6:.2f}", f"{row.written / 1e6:.2f}"
        cells.append((row.parameter, shape, row.rules, row.way, *sizes))
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(heads))]
    print(f"batch of {size}")
    for line in [heads, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
