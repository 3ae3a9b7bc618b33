"""The sum of clipped gradients of a batch, to which DP-SGD adds noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from forethought.gradients import batches, boundary, sums, vmap_mode
from forethought.gradients import layer_rules as rules
from forethought.gradients.passes import SlowGradientsWarning, contributions
from forethought.gradients.sums import ClippingRule, SingleUseLinear, Sums, Term, clip_and_sum
from forethought.values.checks import real, whole

# The fast way for a chain of linear layers and activations, without intercepting torch functions.
#
# For a small model the interception costs more than the arithmetic. Here the layers run one after
# the other on the whole batch, their parameters detached. One backward pass gives the gradients at
# their outputs; from these the same terms are made as by the rule for ``F.linear``.
#
# No example can see another, by the structure: every layer is one of torch's own, by its exact type
# and its own ``forward``, and works on each row by itself. The loss is either declared separable by
# rows (:func:`separable`), or runs in lanes as everywhere else. Any other model or loss takes the
# general way.


Known = TypeVar("Known", bound=Callable[..., Any])

Slope = Callable[[Tensor, Any], Tensor | None]
_SEPARABLE: dict[Callable[..., Any], Slope | None] = {}


def separable(slope: Slope | None = None) -> Callable[[Known], Known]:
    """Declare that value i of a loss depends on row i of outputs and targets only (a decorator).

    The declaration must hold bit for bit, by the loss's definition: nothing checks it.

    Args:
        slope: the loss's derivative by the outputs, row by row as well, where that is known:
            ``slope(outputs, targets)``. It returns None for arguments that it does not cover.
    """

    def declare(loss: Known) -> Known:
        _SEPARABLE[loss] = slope
        return loss

    return declare


def declared_separable(loss: Any) -> bool:
    """True if a loss was declared with :func:`separable`."""
    try:
        return loss in _SEPARABLE
    except TypeError:  # not hashable
        return False


def cross_entropy_slope(outputs: Tensor, targets: Any) -> Tensor | None:
    """softmax(outputs) minus the one-hot labels, shape (B, classes).

    None for arguments of other shapes or types, and for labels outside the classes (ignored ones).
    """
    if outputs.dim() != 2 or targets.dim() != 1 or targets.dtype != torch.int64:
        return None
    try:
        return torch.softmax(outputs, 1).scatter_add_(
            1, targets.unsqueeze(1), outputs.new_full((1, 1), -1.0).expand(len(targets), 1)
        )
    except RuntimeError:
        return None


# Never in place: the input may be the output of a layer whose gradient is asked for.
_ROW_BY_ROW: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.Identity: lambda layer, x: x,
    nn.Dropout: lambda layer, x: x,  # where it drops nothing
    nn.Flatten: lambda layer, x: x.flatten(layer.start_dim, layer.end_dim),
    nn.ReLU: lambda layer, x: F.relu(x),
    nn.Tanh: lambda layer, x: torch.tanh(x),
    nn.Sigmoid: lambda layer, x: torch.sigmoid(x),
    nn.GELU: lambda layer, x: F.gelu(x, approximate=layer.approximate),
    nn.SiLU: lambda layer, x: F.silu(x),
    nn.Softplus: lambda layer, x: F.softplus(x, layer.beta, layer.threshold),
    nn.ELU: lambda layer, x: F.elu(x, layer.alpha),
    nn.LeakyReLU: lambda layer, x: F.leaky_relu(x, layer.negative_slope),
}
_KINDS: tuple[type[nn.Module], ...] = (nn.Sequential, nn.Linear, *_ROW_BY_ROW)
_FORWARD = {kind: kind.forward for kind in _KINDS}


def uses_of(
    model: nn.Module,
    loss: batches.Loss,
    inputs: Any,
    targets: Any,
    trained: Mapping[str, nn.Parameter],
) -> list[SingleUseLinear] | None:
    """Inputs (B, …, m) and output gradients (B, …, n) of every trained layer.

    None if the model or the loss needs the general way. A layer that the loss does not depend on is
    left out.
    """
    layers: list[nn.Module] = []
    if not _collect(model, layers) or not _plain(layers, inputs):
        return None
    declared = declared_separable(loss)
    known = declared or _own_cross_entropy(loss)
    if not known and not boundary.memory_of(model).found(loss, boundary.JUDGED):
        return None
    names = {id(parameter): name for name, parameter in trained.items()}
    uses: list[tuple[nn.Linear, Tensor, Tensor]] = []
    slope = _SEPARABLE[loss] if declared else None
    if slope is None and known and _plain_cross_entropy(loss):
        slope = cross_entropy_slope
    # With one linear layer, at the end, and a known derivative of the loss, autograd is not needed.
    kinds = [type(layer) for layer in layers]
    alone = slope is not None and kinds[-1] is nn.Linear and kinds.count(nn.Linear) == 1
    watch = batches.FINGERPRINT.get()
    if watch is not None:
        watch.begin(len(inputs))
    with torch.set_grad_enabled(not alone):
        x = inputs
        for layer in layers:
            if type(layer) is nn.Linear:
                before, x = x.detach(), _linear(layer, x)
                if id(layer.weight) in names or id(layer.bias) in names:
                    if not (alone or x.requires_grad):
                        x.requires_grad_()
                    uses.append((layer, before, x))
            else:
                x = _ROW_BY_ROW[type(layer)](layer, x)
            if watch is not None:
                watch.see(x)
        points = [output for _, _, output in uses]
        steep = None if slope is None else slope(x.detach(), targets)
        if steep is not None:
            found: tuple[Tensor | None, ...] | None = (
                (steep,) * len(points) if alone else _differentiated(x, points, steep)
            )
        elif known:
            if alone:
                x.requires_grad_()
            with torch.enable_grad():
                values = batches.losses(loss(x, targets), len(inputs))
            if watch is not None:
                watch.see(values)
            found = _differentiated(values, points)
        else:
            found = vmap_mode.loss_in_lanes(loss, x, targets, points, trained)
    if found is None:
        return None
    if watch is not None:
        watch.keep()
    return [
        SingleUseLinear(before, gradient, names.get(id(layer.weight)), names.get(id(layer.bias)))
        for (layer, before, _), gradient in zip(uses, found, strict=True)
        if gradient is not None
    ]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.detach()
    return sums.fast_linear(x, layer.weight.detach(), bias)


def _differentiated(
    values: Tensor, points: list[Tensor], slope: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    if not values.requires_grad:
        return (None,) * len(points)
    slope = torch.ones_like(values) if slope is None else slope
    return torch.autograd.grad(values, points, slope, allow_unused=True)


def clip_uses(
    uses: list[SingleUseLinear],
    trained: Mapping[str, nn.Parameter],
    size: int,
    clip_norm: float,
    clip: ClippingRule,
    round_size: int | None,
    count: int,
    sizes: Sequence[int] | None = None,
) -> list[Sums]:
    """The clipped sum and the norms, as :func:`.sums.clip_and_sum` returns them.

    Args:
        size: rows of every use. count: only the first ``count`` rows count.
        sizes: of non-empty parts of the batch, for the result of each, equal bit for bit; None: of
            all rows together.
    """
    if clip is sums.flat and _each_once(uses, trained):
        found = sums.clip_and_sum_once(uses, clip_norm, round_size, count, sizes)
        if found is not None:
            return [({name: one[name] for name in trained}, norms) for one, norms in found]
    if sizes is None:
        every = as_terms(uses, trained, size)
        return [clip_and_sum(every, dict(trained), clip_norm, clip, round_size, count)]
    parts = []
    for at, some in zip(batches.in_a_row(sizes), sizes, strict=True):
        own = [replace(u, inputs=u.inputs[at], gradients=u.gradients[at]) for u in uses]
        parts += clip_uses(own, trained, some, clip_norm, clip, None, some)
    return parts


def _each_once(uses: Sequence[SingleUseLinear], trained: Mapping[str, nn.Parameter]) -> bool:
    return sum((u.weight is not None) + (u.bias is not None) for u in uses) == len(trained) and all(
        u.inputs.dim() == 2 and u.inputs.dtype == torch.float32 for u in uses
    )


def as_terms(
    uses: list[SingleUseLinear], trained: Mapping[str, nn.Parameter], size: int
) -> dict[str, Term]:
    """The uses as terms of ``size`` rows, by parameter."""
    result: dict[str, Term] = {}
    for use in uses:
        rows = use.gradients.reshape(size, -1, use.gradients.shape[-1])
        if use.weight is not None:
            before = use.inputs.reshape(size, -1, use.inputs.shape[-1])
            result[use.weight] = sums.Outer([(rows, before)]).settled()
        if use.bias is not None:
            result[use.bias] = sums.Dense(
                rows[:, 0] if rows.shape[1] == 1 else sums.wide(rows).sum(1)
            )
    return {name: result.get(name) or sums.Unused(size, p) for name, p in trained.items()}


def _collect(module: nn.Module, layers: list[nn.Module]) -> bool:
    """Append the module's layers in order; False if it is not a plain chain of known layers."""
    kind = type(module)
    known = _FORWARD.get(kind)
    if known is None or known is not kind.forward or _altered(module):
        return False
    if isinstance(module, nn.Sequential):  # children() would leave out a layer's second use
        return all(_collect(part, layers) for part in module)
    if isinstance(module, nn.Dropout) and module.training and module.p:
        return False
    if isinstance(module, nn.Flatten) and module.start_dim < 1:
        return False
    layers.append(module)
    return True


def _altered(module: nn.Module) -> bool:
    forward = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def _plain(layers: list[nn.Module], inputs: Any) -> bool:
    """True if only torch's own arithmetic on plain tensors would run."""
    if boundary.global_hooks():
        return False
    if type(inputs) is not Tensor or inputs.dim() < 2 or inputs.layout is not torch.strided:
        return False
    kind, device = inputs.dtype, inputs.device
    seen = set()
    for layer in layers:
        if type(layer) is not nn.Linear:
            continue
        weight, bias = layer.weight, layer.bias
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            return False
        for p in (weight, bias):
            if p is None:
                continue
            plain = type(p) is nn.Parameter and type(p.data) is Tensor
            hooks = p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
            if not plain or hooks or (p.dtype, p.device) != (kind, device) or id(p) in seen:
                return False  # a parameter that is seen already is used twice
            seen.add(id(p))
    return bool(seen) and not torch.is_autocast_enabled(device.type) and not boundary.interrupted()


def _own_cross_entropy(loss: Any) -> bool:
    kind = type(loss)
    own = kind is nn.CrossEntropyLoss and kind.forward is _CROSS_ENTROPY
    return own and loss.reduction == "none" and not _altered(loss)


def _plain_cross_entropy(loss: Any) -> bool:
    plain = _own_cross_entropy(loss) and loss.weight is None
    return plain and loss.label_smoothing == 0 and loss.ignore_index < 0


_CROSS_ENTROPY = nn.CrossEntropyLoss.forward


_ = rules  # the import registers the functions that the lanes intercept

# A test on made-up examples: does an example's place in a block change its bits on this machine?
#
# Kernels give no guarantee about the last bits. So before blocks are used with a model, made-up
# examples run in every size that passes may have, each at other places, among other neighbours and
# at other weights. All numbers are compared bit for bit: the values of the forward pass, the
# gradients of the backward pass, the norms and the factors. The made-up examples share only shapes
# and types with the data. If there is a difference, other sizes are tried, down to one example at a
# time.


Computed = list[SingleUseLinear] | dict[str, Term]


@dataclass(frozen=True)
class Subject:
    """A model, its loss, and the number of examples that form one contribution.

    Attributes:
        trained: the parameters whose gradients are wanted, by name.
        each: number of examples of one contribution.
        mixing: True if these examples may see each other, as in a group.
        dims: the batch dimensions of a model that takes a whole batch; None: it runs in lanes.
    """

    model: nn.Module
    loss: batches.Loss
    trained: Mapping[str, nn.Parameter]
    each: int = 1
    mixing: bool = False
    dims: BatchDims | None = None

    def gradients(self, rows: tuple[Any, Any], real: int, blocks: batches.Blocks) -> Computed:
        """Gradients of one block, of which the first ``real`` contributions count."""
        model, loss, trained = self.model, self.loss, self.trained
        if self.dims is not None:
            return declared_contributions(self, *rows)
        if self.each == 1 and not self.mixing:
            uses = uses_of(model, loss, *rows, trained)
            if uses is not None:
                return uses
        batch = batches.LaneBatch(*rows, self.each, self.mixing, max(real, 1), blocks)
        return contributions(model, loss, batch, trained)

    def pieces(
        self, data: Any, blocks: batches.Blocks | None, count: int | None = None
    ) -> Iterator[Piece]:
        """Contributions in their order, in filled-up blocks; only the first ``count`` count."""
        shape, each = self.tried(data, blocks), self.each
        for start, end, size in shape.cut(batches.batch_size(*data) // each):
            rows = batches.filled(data, start * each, end * each, size * each)
            real = end - start if count is None else min(max(count - start, 0), end - start)
            yield Piece(self, rows, real, size, shape)

    def tried(self, data: Any, blocks: batches.Blocks | None) -> batches.Blocks:
        """Blocks in which every example has the same bits at every place; untested for None."""
        return batches.MULTIPLES if blocks is None else probed(blocks, self, data)


@dataclass(frozen=True)
class Piece:
    """A block of contributions.

    Attributes:
        real: only the first ``real`` of them count. size: number of contributions in the block.
    """

    subject: Subject
    rows: tuple[Any, Any]
    real: int
    size: int
    blocks: batches.Blocks

    def clipped(self, clip_norm: float, clip: ClippingRule, round_size: int) -> Sums:
        """The clipped sum and the norms of the contributions, see :func:`clipped_sum`."""
        trained = self.subject.trained
        found = self.subject.gradients(self.rows, self.real, self.blocks)
        if isinstance(found, list):
            return clip_uses(found, trained, self.size, clip_norm, clip, round_size, self.real)[0]
        shards = boundary.shards_of(self.subject.model)
        keep = None if shards is None else shards.scattered
        return clip_and_sum(found, trained, clip_norm, clip, round_size, self.real, keep)


# The test runs at the weights themselves and at the weights with noise added: weights of zero would
# hide differences in the numbers that they are multiplied with.
_WEIGHTS = 2
# At least this many examples are compared: in short blocks, few examples are at the places that
# differ. A caller that only measures memory and time may set a smaller number, at which a rare
# difference can be missed.
COMPARED: ContextVar[int] = ContextVar("COMPARED", default=256)
# Kinds of made-up (inputs, targets) and the bound below which their whole numbers lie. The first
# kind that the model accepts is used. It accepts zeros: a run is tried on zeros before it starts.
_MADE_UP = (("normal", "uniform", 2), ("uniform", "uniform", 1), ("zero", "zero", 1))


def probed(blocks: batches.Blocks, subject: Subject, data: Any) -> batches.Blocks:
    """The blocks, or others if an example's place in these blocks changes its bits.

    Args:
        data: inputs and targets from which blocks are cut; only their shapes and types matter.

    Warns:
        SlowGradientsWarning: the examples run one at a time.
    """
    known = boundary.memory_of(subject.model)
    leaves = [*batches.tensors(data)]
    facts = (
        *(blocks, subject.each, subject.mixing),
        tuple([(leaf.shape[1:], leaf.dtype, leaf.device) for leaf in leaves]),
        tuple([(name, p.shape, p.dtype) for name, p in subject.trained.items()]),
        tuple([module.training for module in subject.model.modules()]),
        *(torch.get_num_threads(), torch.backends.mkldnn.enabled),
        torch.is_autocast_enabled(leaves[0].device.type),
    )
    found: batches.Blocks | None = known.found(subject.loss, (known.unshared, known.without, facts))
    while found is None:
        try:
            found = _settled(blocks, subject, data)
        except _LongError as error:
            blocks = blocks.within(*error.args)
            continue
        known.note(subject.loss, (known.unshared, known.without, facts), found)
    return found


@boundary.turns
def _settled(blocks: batches.Blocks, subject: Subject, data: Any) -> batches.Blocks:
    if blocks.sizes == (1,):
        return blocks
    why = (
        "in a block, this machine gives an example other bits at another place (products of odd "
        "widths: import forethought before torch computes, or set MKL_CBWR=AUTO)"
    )
    with _unnoticed(subject.model):
        for tried in (blocks, *blocks.others()):
            try:
                if tried.sizes == (1,) or _alike(tried, subject, data):
                    break
            except _AloneError:
                return batches.Blocks(blocks.sizes, alone=True)
            except _UntriedError as error:
                why = f"blocks could not be tried on made-up examples: {error}"
                tried = batches.Blocks((1,))
                break
    if tried.sizes == (1,):
        warnings.warn(
            f"{type(subject.model).__name__} goes one example at a time: {why}",
            SlowGradientsWarning,
            stacklevel=6,
        )
    return tried


class _AloneError(Exception):
    """Every example of this model runs by itself, so its place cannot matter."""


class _LongError(Exception):
    """Blocks of at most so many rows are faster on a processor."""


class _UntriedError(Exception):
    """The model accepts no kind of made-up examples."""


@contextmanager
def _unnoticed(model: nn.Module) -> Iterator[None]:
    """A context that restores generators and weights at its end."""
    parameters = [p for p in boundary.own_parameters(model) if p.is_floating_point()]
    generators = boundary.Generators([p.device for p in parameters][:1])
    values = [p.detach().clone() for p in parameters]
    try:
        yield
    finally:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data.copy_(value)
        generators.restore()


def _turns(most: int) -> int:
    return max(_WEIGHTS, COMPARED.get() // most)


def trial_size(blocks: batches.Blocks) -> int:
    """The number of made-up examples that blocks are tried on before their first use."""
    most = blocks.sizes[-1]
    return 0 if blocks.sizes == (1,) else most + _turns(most) * (2 * most + sum(blocks.sizes))


def _alike(blocks: batches.Blocks, subject: Subject, data: Any) -> bool:
    """True if made-up examples have the same bits in all sizes, at all places."""
    model, copies = subject.model, subject.each
    generator = torch.Generator().manual_seed(len(blocks.sizes) + blocks.sizes[-1])
    most = blocks.sizes[-1]
    kinds = iter(_MADE_UP)
    kind: tuple[str, str, int] | None = next(kinds)
    rows: Any = None

    def run(index: Tensor) -> list[Tensor]:
        whole = (index.unsqueeze(1) * copies + torch.arange(copies)).flatten()
        chosen = batches.select(rows, whole)
        return watched(subject, chosen, len(index), blocks, (index, most))

    same = True
    for turn in range(_turns(most)):
        if turn == 1:
            _disturb(model, generator)
        rows = _made_up(data, most * copies, kind, generator)
        expected: list[Tensor] | None = None
        while expected is None:
            try:
                if turn == 0:  # the first pass may take another way, to learn about the model
                    run(torch.arange(min(most, batches.UNIT)))
                    short = shortened(most, boundary.memory_of(model).widest, data)
                    if short < most:
                        raise _LongError(short)
                    run(torch.arange(most))
                expected = run(torch.arange(most))
            except (_AloneError, _LongError):
                raise
            except Exception as error:  # the model does not accept such values
                kind = next(kinds, None)
                if kind is None and isinstance(error, boundary.RefusedError):
                    raise
                if kind is None:
                    raise _UntriedError(str(error)) from None
                rows = _made_up(data, most * copies, kind, generator)
        for size in (most, *blocks.sizes):
            index = torch.randperm(most, generator=generator)[:size]
            found = run(index)
            equal = all(map(partial(_equal, index=index), found, expected))
            same = same and len(found) == len(expected) and equal
        if not boundary.agreed(model, same, True):
            return False
    return True


# Numbers of a value whose memory the C library keeps after use. That of a larger one goes back to
# the system and is cleared for the next: a CNN by 512 images takes 1.4 times as long as by 128.
MOST_NUMBERS = 1 << 22


def shortened(most: int, widest: int, data: Any) -> int:
    """The rows of a block of at most ``most`` in which no value has more than MOST_NUMBERS.

    At least four UNIT, and all ``most`` where data is on another device than a processor.
    """
    if any(leaf.device.type != "cpu" for leaf in batches.tensors(data)):
        return most
    return min(most, max(4, MOST_NUMBERS // widest // batches.UNIT) * batches.UNIT)


def rows_alike(compute: Callable[[Tensor], Tensor], rows: Tensor) -> bool:
    """True if ``compute`` gives each row the same bits at every place it was tried at.

    The rows are tried in their own order and in four random orders.
    """
    generator = torch.Generator().manual_seed(len(rows))
    expected = compute(rows)
    orders = (torch.randperm(len(rows), generator=generator) for _ in range(4))
    return all(_equal(compute(rows[order]), expected, order) for order in orders)


def _equal(one: Tensor, other: Tensor, index: Tensor) -> bool:
    if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
        return False
    return torch.equal(
        batches.bits(one), batches.bits(other.index_select(0, index.to(other.device)))
    )


def watched(
    subject: Subject, rows: Any, real: int, blocks: batches.Blocks, drawn_for: tuple[Tensor, int]
) -> list[Tensor]:
    """All numbers of a block of contributions, one row each, to compare bit for bit.

    These are the numbers that a sum is formed from (gradients as stored, norms, factors) and a
    fingerprint of all intermediate values.

    Args:
        drawn_for: the contributions' numbers, and out of how many: each contribution has its own
            random numbers.
    """
    watch = batches.BatchFingerprint(len(drawn_for[0]))
    kept, drawn = batches.FINGERPRINT.set(watch), batches.DRAWN_FOR.set(drawn_for)
    generators = boundary.Generators([])
    torch.default_generator.manual_seed(0)
    try:
        found = subject.gradients(rows, real, blocks)
    finally:
        batches.FINGERPRINT.reset(kept)
        batches.DRAWN_FOR.reset(drawn)
        generators.restore()
    if not isinstance(found, list):  # a chain of linear layers is fastest in one product
        known = boundary.memory_of(subject.model)
        known.widest = max(known.widest, watch.widest)
    return [*_numbers(found, subject.model), watch.marks]


def _numbers(computed: Computed, model: nn.Module) -> list[Tensor]:
    trained = boundary.trained_of(model, "train")
    if isinstance(computed, list):
        computed = as_terms(computed, trained, len(computed[0].inputs))
    if any(isinstance(term, sums.Separate) for term in computed.values()):
        raise _AloneError
    ready = sums.weighed(dict(computed), trained, 1.0, sums.flat, None)
    size = ready.factors.shape[1]
    return [*(_fingerprint(term, size) for term in ready.held), ready.norms, ready.factors.t()]


def _fingerprint(term: Any, size: int) -> Tensor:
    """A fingerprint of the numbers that the term holds for each of ``size`` examples, (size,)."""
    if isinstance(term, sums.SplitTerms):
        whole = torch.zeros(size, dtype=torch.int64)
        for part, index, width in term.parts:
            whole[index] = _fingerprint(part, width)[: len(index)]
        return whole
    watch = batches.BatchFingerprint(size)
    for held in _stored(term):
        watch.see(held.detach())
    watch.keep()
    return watch.marks


def _stored(term: Any) -> Iterator[Tensor]:
    if isinstance(term, sums.Outer):
        for left, right in term.blocks:
            yield left.index if isinstance(left, sums.OneHot) else left
            yield right
    elif isinstance(term, sums.Moved):
        for part in term.terms:
            yield from _stored(part)
    elif isinstance(term, sums.Convolved):
        yield from term.stored
    elif not isinstance(term, sums.Unused):
        yield term.rows()


def _disturb(model: nn.Module, generator: torch.Generator) -> None:
    # Shards may be longer in another process. A generator of its own keeps the numbers that are
    # drawn after this the same in all processes.
    own = torch.Generator().manual_seed(generator.initial_seed())
    for parameter in boundary.own_parameters(model):
        if parameter.is_floating_point() and parameter.numel():
            spread = float(parameter.detach().float().std(correction=0)) or 0.05
            noise = torch.randn(parameter.shape, generator=own) * (0.3 * spread)
            parameter.data.add_(noise.to(parameter))


def _made_up(data: Any, size: int, kind: Any, generator: torch.Generator) -> Any:
    *names, most = kind

    def made(leaf: Tensor, name: str) -> Tensor:
        shape = (size, *leaf.shape[1:])
        if leaf.dtype == torch.bool:
            return torch.ones(shape, dtype=torch.bool, device=leaf.device)
        if not leaf.is_floating_point():
            return torch.randint(most, shape, generator=generator).to(leaf)
        if name == "zero":
            return torch.zeros(shape).to(leaf)
        draw = torch.randn if name == "normal" else torch.rand
        return draw(shape, generator=generator).to(leaf)

    both = zip(data, names, strict=True)
    return tuple(batches.mapped(part, partial(made, name=name)) for part, name in both)


# Models whose batch dimensions the owner declares: an assumption that is checked at every step.
#
# Such a model sees all examples at once, outside the lanes. The owner asserts that the examples do
# not affect each other in it; each example's gradient is that of its own loss. Every step computes
# one random example alone as well, and stops if its gradient differs.


Dims = int | tuple["Dims", ...] | Mapping[str, "Dims"]


@dataclass(frozen=True)
class BatchDims:
    """The dimensions in which a model has its examples, as declared by its owner.

    Attributes:
        inputs: the dimension of the examples in every input, one number for all, or a tuple or
            dict like the inputs.
        outputs: likewise in the model's outputs. Targets always have the examples in dimension 0,
            and the loss sees outputs with the examples in dimension 0.
    """

    inputs: Dims = 0
    outputs: Dims = 0

    @property
    def assumption(self) -> str:
        """The sentence about this assumption in a privacy statement."""
        return (
            "as declared by the model's owner, examples do not affect each other inside the model "
            f"(batch dimensions: inputs {self.inputs}, outputs {self.outputs}); one random example "
            "of every step was recomputed alone"
        )


def _moved(tree: Any, dims: Dims, source: bool) -> Any:
    """The tree with the examples moved from ``dims`` to dimension 0 (``source``), or back."""
    if isinstance(dims, int):
        ends = (dims, 0) if source else (0, dims)
        return batches.mapped(tree, lambda leaf: leaf.movedim(*ends))
    if isinstance(tree, Mapping) and isinstance(dims, Mapping):
        return {key: _moved(value, dims[key], source) for key, value in tree.items()}
    if isinstance(tree, tuple | list) and isinstance(dims, tuple | list):
        found = [_moved(v, d, source) for v, d in zip(tree, dims, strict=True)]
        return type(tree)(*found) if hasattr(tree, "_fields") else type(tree)(found)
    raise ValueError(f"batch_dims gives {dims!r} for a {type(tree).__name__}; give one number")


def placed(inputs: Any, dims: BatchDims | None) -> Any:
    """Inputs with the examples in dimension 0 as the model takes them; unchanged for None."""
    return inputs if dims is None else _moved(inputs, dims.inputs, False)


def outputs_in_front(outputs: Any, dims: BatchDims | None) -> Any:
    """The model's outputs with the examples in dimension 0; unchanged for None."""
    if dims is None:
        return outputs
    move = partial(_moved, dims=dims.outputs, source=True)
    known = isinstance(outputs, Tensor | Mapping | tuple | list)
    return move(outputs) if known else tree_map(move, outputs)


@boundary.turns
def declared_contributions(subject: Subject, inputs: Any, targets: Any) -> dict[str, Term]:
    """Each trained parameter's gradients, one for each example.

    Args:
        subject: with ``dims``. inputs: with the examples in dimension 0.

    Raises:
        ValueError: the model changes itself or draws random numbers, or its loss has another shape
            than (B,).
        RuntimeError: an example alone has another gradient than in its batch.
    """
    size = batches.batch_size(inputs, targets)
    leaves = list(subject.trained.values())
    state = boundary.ModuleState(subject.model.named_modules())
    before = torch.get_rng_state()
    try:
        with torch.enable_grad():
            values = _losses(subject, inputs, targets, size)
            watch = batches.FINGERPRINT.get()
            if watch is not None:
                watch.begin(size)
                watch.see(values)
                watch.keep()
            rows = vmap_mode.vjp_rows(values, leaves, torch.eye(size).to(values))
            drawn = not torch.equal(torch.get_rng_state(), before)
            changed = [*state.changes(), *state.parameters_changed()]
            state.restore()
            which = int(torch.randint(size, (), generator=_CHOICE))
            index = torch.tensor([which])
            some, wanted = (batches.select(tree, index) for tree in (inputs, targets))
            one = _losses(subject, some, wanted, 1)
            alone = vmap_mode.vjp_rows(one, leaves, torch.ones(1, 1).to(one))
    finally:
        state.restore()
    if changed:
        raise ValueError(str(boundary.changes_itself(changed, "is another after a pass")))
    if drawn:
        raise ValueError("a model with batch_dims= must not draw random numbers: set dropout to 0")
    _compare([None if row is None else row[which] for row in rows], alone, which)
    return {
        name: sums.Dense(
            sums.wide(row)
            if row is not None
            else batches.zeros_for(parameter, size, *parameter.shape)
        )
        for (name, parameter), row in zip(subject.trained.items(), rows, strict=True)
    }


_CHOICE = torch.Generator()
_CHOICE.seed()


def _losses(subject: Subject, inputs: Any, targets: Any, size: int) -> Tensor:
    outputs = batches.call(subject.model, placed(inputs, subject.dims))
    return batches.losses(subject.loss(outputs_in_front(outputs, subject.dims), targets), size)


def _compare(together: list[Tensor | None], alone: list[Tensor | None], which: int) -> None:
    pairs = [
        (torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)
        for a, b in zip(together, alone, strict=True)
    ]
    squares = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    scale = sum(float(b.double().square().sum()) for _, b in pairs)
    width = max((torch.finfo(b.dtype).eps for _, b in pairs), default=1e-7)
    lost = any(bool((a.isfinite() ^ b.isfinite()).any()) for a, b in pairs)
    if lost or (not squares <= (1e4 * width) ** 2 * scale and squares > 0):
        raise RuntimeError(
            f"example {which} alone has another gradient than in its batch (off by "
            f"{(squares / max(scale, 1e-300)) ** 0.5:.1e} of its norm): the model mixes examples, "
            "so what batch_dims= declares is not true of it"
        )


# The sum of clipped gradients of a batch, by book-keeping (Bu et al. 2023).
#
# One backward pass records every layer's input and output gradient. The norms follow from these,
# and the weighted sum of gradients is formed once, after the factors are known. For each layer the
# cost model decides whether per-example gradients are written out.


def clipped_sum(
    model: nn.Module,
    loss: batches.Loss,
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
    blocks: batches.Blocks | None = None,
    counted: int | None = None,
) -> Sums:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        model: any module; the call does not change it. Parameters with ``requires_grad=False``
            are skipped.
        loss: ``loss(outputs, targets)`` → one value per example, shape (B,).
        inputs: a tensor (``model(x)``), a tuple (``model(*x)``) or a dict (``model(**x)``), every
            tensor with the examples in dimension 0.
        targets: a tensor, tuple or dict likewise.
        clip_norm: C, the bound on one contribution's L2 norm.
        groups: LongTensor (B,): the group of each example. A group's *mean* gradient is clipped
            as one contribution. None: every example is its own contribution.
        clip: the rule that turns norms into factors, see :mod:`forethought.gradients.sums`. It is
            given all norms, and must form a contribution's factor from that contribution's own
            norms: the bound C on one contribution's influence rests on that, and nothing checks it.
        group_count: number of groups; needed if the last ones may be empty. Default: highest + 1.
        round_size: contributions of the whole round, if several calls (micro-batches, processes)
            form its sum: each call may then add its share of the rounding that is charged to
            ``clip_norm``. Default: this call is the whole round.
        batch_dims: the dimensions of the examples, for a model that takes a whole batch in its own
            form. That examples do not affect each other is then an assumption
            (``batch_dims.assumption``): one random example of every call is computed alone as well
            and compared.
        copies: the number of altered copies of each record; the copies of one record follow each
            other. Their *mean* gradient is clipped as one contribution (De et al. 2022,
            augmentation multiplicity). Unlike a group's examples, copies may not see each other.
        blocks: the numbers of rows that passes may have, from public numbers
            (:func:`~forethought.gradients.batches.planned`). Groups of one size, below eight
            examples, run together in such blocks; longer groups run one after the other. Before
            the first pass the blocks are tested on made-up examples, and changed if an example's
            place in a block changes its bits. None: the batch is one block, filled up to a
            multiple of 16 rows, without a test.
        counted: only the first ``counted`` contributions count; None: all. The processes of a
            sharded model all make the same number of passes, some with examples that add zero.

    Returns:
        ``(gradients, norms)``: parameter name → sum, float64, in the parameter's shape; norms of
        shape (contributions,), upper bounds, float32 (float64 for float64 parameters). A
        contribution with a non-finite gradient or norm adds zero, and its norm is not finite:
        count ``~isfinite(norms)``. An empty batch gives zeros, and so does an empty group.

    Raises:
        ValueError: no trainable parameter, inputs without a common batch dimension, losses of
            another shape than (B,), group numbers out of range; a model or loss that cannot be
            trained privately, with the module and the remedy; torch.inference_mode(); a
            ``round_size`` below the number of contributions, or ``counted`` below 0.
        TypeError: groups not integers; numbers or arrays among the inputs; a ``round_size`` or
            ``counted`` that is no whole number.
        RuntimeError: the declaration ``batch_dims`` is not true of the model.
    """
    shards = boundary.shards_of(model)
    trained = boundary.trained_of(model, "train") if shards is None else shards.whole
    # Plain valid numbers skip the slower checks: a round's own were checked when it was planned.
    if type(clip_norm) is not float or not 0 < clip_norm < math.inf:
        clip_norm = real("clip_norm", clip_norm, above=0)
    if type(copies) is not int or copies < 1:
        copies = whole("copies", copies)
    if counted is not None and (type(counted) is not int or counted < 0):
        counted = whole("counted", counted, least=0)
    inputs, targets = batches.detached(inputs), batches.detached(targets)
    if batch_dims is not None:
        if groups is not None:
            raise ValueError("batch_dims= and groups= cannot be used together")
        inputs = _moved(inputs, batch_dims.inputs, True)
    if copies != 1 and not (groups is None and batch_dims is None):
        raise ValueError("copies= goes without groups= and batch_dims=: a group's mean has them")
    if counted is not None and groups is not None:
        raise ValueError("counted= goes without groups=: leave out the groups that do not count")
    size = batches.batch_size(inputs, targets)
    if size % copies:
        raise ValueError(f"{size} examples are not {copies} copies of each record")
    count = None if groups is None else batches.group_numbers(groups, size, group_count)
    if not size:
        nothing = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.items()}
        return nothing, batches.zeros_for(next(iter(trained.values())), count or 0)
    subject = Subject(model, loss, trained, copies, dims=batch_dims)
    work = subject.pieces((inputs, targets), blocks, counted)
    places: list[Tensor] = []
    if groups is not None:
        work = _of_groups(subject, (inputs, targets), groups, blocks, places)
    share = round_size or count or size // copies
    if round_size is not None and (type(round_size) is not int or round_size < 1):
        share = whole("round_size", round_size)
    total: dict[str, Tensor] = {}
    found = []
    for piece in work:
        one, norms = piece.clipped(clip_norm, clip, share)
        total = {name: one[name] + total[name] if total else one[name] for name in one}
        found.append(norms)
    norms = found[0] if len(found) == 1 else torch.cat(found)
    if count is not None:
        norms = norms.new_zeros(count).index_copy_(0, torch.cat(places), norms)
    return total, norms


def _of_groups(
    subject: Subject, data: Any, groups: Tensor, blocks: batches.Blocks | None, places: list[Tensor]
) -> Iterator[Piece]:
    """Pieces of groups, one group size after the other; appends group numbers to ``places``."""
    for which, members in batches.by_size(groups):
        own = replace(subject, each=members.shape[1], mixing=True)
        long = own.each >= batches.LONG  # long groups run one after the other
        shape = batches.Blocks((len(members),)) if long else own.tried(data, blocks)
        for start, end, width in shape.cut(len(members)):
            places.append(which[start:end])
            lanes = members[start:end][batches.repeated(end - start, width)]
            yield Piece(own, batches.select(data, lanes.flatten()), end - start, width, shape)


def numbers_behind(
    model: nn.Module,
    loss: batches.Loss,
    inputs: Any,
    targets: Any,
    blocks: batches.Blocks | None = None,
    of: int | None = None,
) -> list[Tensor]:
    """The numbers that :func:`clipped_sum` computes for each example, to compare bit for bit.

    Each tensor has one row for each example. A record's rows must not depend on the other records
    of the batch, on its place, or on how the batch is cut: the bound of the sum needs that. The
    list is empty if the model runs one example at a time.

    Args:
        of: number of examples of which these are the first, for a model that draws random numbers
            for each. None: these are all.
    """
    subject = Subject(model, loss, boundary.trained_of(model, "train"))
    parts, start, size = [], 0, batches.batch_size(inputs, targets)
    most = of or size
    for piece in subject.pieces((inputs, targets), blocks):
        if piece.blocks.alone:
            return []
        end = start + piece.real
        which = torch.cat([torch.arange(start, end), most + torch.arange(piece.size - piece.real)])
        drawn_for = which, most + piece.blocks.sizes[-1]
        found = watched(subject, piece.rows, piece.real, piece.blocks, drawn_for)
        parts.append([part[: piece.real] for part in found])
        start = end
    return [torch.cat(column) for column in zip(*parts, strict=True)]


# Clipped sums of several parts of one batch: one pass over all examples, a sum for each part.
#
# The theorem of :func:`~forethought.gradients.clipped.clipped_sum` holds for every part: its sum is
# formed from its own examples' gradients by the same proven steps, and no lane sees another.


def clipped_sums(
    model: nn.Module,
    loss: batches.Loss,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    sizes: Sequence[int],
    *,
    clip: sums.ClippingRule = sums.flat,
    blocks: batches.Blocks | None = None,
) -> list[Sums]:
    """The result of :func:`~forethought.gradients.clipped.clipped_sum` for each part of a batch.

    Args:
        model, loss, clip_norm, clip: as for ``clipped_sum``.
        inputs, targets: of all parts, one after the other.
        sizes: number of examples of each part; a part may be empty.
        blocks: as for ``clipped_sum``, for all parts together.

    Raises:
        ValueError: sizes that do not add up to the batch, and the errors of ``clipped_sum``.
    """
    bound, trained = real("clip_norm", clip_norm, above=0), boundary.trained_of(model, "train")
    inputs, targets = batches.detached(inputs), batches.detached(targets)
    size = batches.batch_size(inputs, targets)
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ValueError(f"parts of {list(sizes)} examples are not the {size} of the batch")
    some = [count for count in sizes if count]
    found: Iterator[Sums] = iter(())
    if size:
        subject = Subject(model, loss, trained)
        shape = subject.tried((inputs, targets), blocks)
        [*cut] = shape.cut(size)
        data = inputs, targets
        options: dict[str, Any] = {"clip": clip, "blocks": shape}
        if len(cut) > 1:  # more examples than one block holds: each part by itself
            parts = (batches.mapped(data, itemgetter(at)) for at in batches.in_a_row(sizes))
            return [clipped_sum(model, loss, x, y, bound, **options) for x, y in parts]
        found_of = subject.gradients(batches.filled(data, 0, size, cut[0][2]), size, shape)
        if isinstance(found_of, list):
            found = iter(clip_uses(found_of, trained, size, bound, clip, None, size, some))
        else:
            found = iter(sums.clip_and_sum_parts(found_of, trained, bound, some, clip))
    nothing = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in trained.items()}
    empty = nothing, batches.zeros_for(next(iter(trained.values())), 0)
    return [next(found) if count else empty for count in sizes]
