"""The library's rules for torch's functions in lanes, one family of functions after another.

A rule gives the per-example gradients of a function's parameters. Other functions run on the whole
batch, because vmap cannot run them or is slow, or are split into parts. Importing this module
registers all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients import boundary, sums, vmap_mode
from forethought.gradients.sums import Convolved, Dense, Outer, Term, fast_linear, matmul, wide
from forethought.gradients.vmap_mode import Accepts, Gradients, Rule, Use, VmapMode, always

Terms = Iterator[tuple[str, Term]]
Named = Mapping[str, Any]


def _rule(
    name: str,
    signature: str,
    parameters: str,
    saved: str,
    *functions: Any,
    accepts: Accepts = always,
) -> Callable[[Gradients], Gradients]:
    """Register a rule with these gradients (a decorator); spaces separate argument names."""
    names, roles, kept = (tuple(text.split()) for text in (signature, parameters, saved))

    def registered(gradients: Gradients) -> Gradients:
        vmap_mode.register(Rule(name, names, roles, kept, gradients, accepts), *functions)
        return gradients

    return registered


# Linear maps: ``F.linear``, ``@``, ``addmm`` and ``bilinear``.


def _rows(values: Tensor) -> Tensor:
    # (B, …, n) → (B, T, n)
    return values.reshape(values.shape[0], -1, values.shape[-1])


@_rule(
    *("linear", "input weight bias", "weight bias", "input", F.linear),
    accepts=lambda arguments, trained: arguments["weight"].dim() == 2,
)
def _linear(use: Use) -> Terms:
    # ∇W = Σ_t g_t x_tᵀ, ∇b = Σ_t g_t
    if "weight" in use.trained:
        yield "weight", Outer([(_rows(use.gradient), _rows(use.saved["input"]))])
    if "bias" in use.trained:
        yield "bias", Dense(use.reduced(use.gradient, "bias"))


def _of_examples_or_trained(*values: Tensor | None) -> bool:
    return any(p is not None and (boundary.is_lane(p) or p.requires_grad) for p in values)


def _linear_on_the_batch(
    mode: VmapMode, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Any:
    # vmap would add the bias separately, and autocast would not apply to it.
    if _of_examples_or_trained(weight, bias) or weight.dim() != 2:
        return NotImplemented
    if bias is not None and bias.dim() > 1:  # its rows would meet those of the whole batch
        return NotImplemented
    with boundary.outside():
        whole, dim = boundary.physical(input)
        if whole.dim() < 2 or torch.is_autocast_enabled(whole.device.type):
            return NotImplemented
        if dim == whole.dim() - 1:
            whole, dim = whole.movedim(dim, 0), 0
        found = fast_linear(whole.flatten(0, -2), weight, bias)
        found = found.view(*whole.shape[:-1], found.shape[-1])
    return boundary.lane(found, dim, mode.level)


vmap_mode.register_physical(_linear_on_the_batch, F.linear)


def _one_matrix(arguments: Named, parameters: Named) -> bool:
    if len(parameters) != 1:
        return False
    role = next(iter(parameters))
    dims = arguments[role].dim()
    return dims == 2 or (dims == 1 and role == "other")


@_rule(
    *("matmul", "input other", "input other", "input other"),
    *(torch.matmul, torch.mm, torch.mv, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.mv),
    torch.Tensor.__matmul__,
    accepts=_one_matrix,
)
def _matmul(use: Use) -> Terms:
    if "other" in use.trained:
        left = use.saved["input"]
        if use.parameters["other"].dim() == 1:
            product = wide(left) * wide(use.gradient).unsqueeze(-1)
            yield "other", Dense(_rows(product).sum(1))
        else:
            yield "other", Outer([(_rows(left), _rows(use.gradient))])
    else:
        right, gradient = use.saved["other"], use.gradient
        if right.dim() == 2:  # an example's vector: one column
            right, gradient = right.unsqueeze(2), gradient.unsqueeze(2)
        yield "input", Outer([(_rows(gradient.mT), _rows(right.mT))])


@_rule(
    *("addmm", "input mat1 mat2", "input mat1 mat2", "mat1"),
    *(torch.addmm, torch.Tensor.addmm),
    accepts=lambda arguments, trained: "mat1" not in trained and arguments["mat1"].dim() == 2,
)
def _addmm(use: Use) -> Terms:
    if "mat2" in use.trained:
        yield "mat2", Outer([(_rows(use.saved["mat1"]), _rows(use.gradient))])
    if "input" in use.trained:
        yield "input", Dense(use.reduced(use.gradient, "input"))


def _addmm_on_the_batch(
    mode: VmapMode, func: Any, input: Tensor, mat1: Tensor, mat2: Tensor, **scales: Any
) -> Any:
    # GPT-2's linear maps: a bias, and a weight that is stored with its inputs first.
    if scales or not boundary.is_lane(mat1) or mat1.dim() != 2 or input.dim() != 1:
        return NotImplemented
    return _linear_on_the_batch(mode, F.linear, mat1, mat2.t(), input)


vmap_mode.register_physical(_addmm_on_the_batch, torch.addmm, torch.Tensor.addmm)


@_rule("bilinear", "input1 input2 weight bias", "weight bias", "input1 input2", F.bilinear)
def _bilinear(use: Use) -> Terms:
    gradient = wide(_rows(use.gradient))
    if "weight" in use.trained:
        one, two = (wide(_rows(use.saved[name])) for name in ("input1", "input2"))
        yield "weight", Dense(torch.einsum("bto,bti,btj->boij", gradient, one, two))
    if "bias" in use.trained:
        yield "bias", Dense(gradient.sum(1))


# Embeddings: the gradient is a sum of one-hot rows, never batch × vocabulary.


def _of_table(use: Use, index: Tensor, gradient: Tensor) -> Outer:
    size = use.parameters["weight"].shape[0]
    return vmap_mode.looked_up(index, size, use.arguments.get("padding_idx"), gradient)


def _plain_bags(arguments: Named, parameters: Named) -> bool:
    return arguments.get("offsets") is None and arguments.get("mode", "mean") != "max"


_table = "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse"


@_rule("embedding", _table, "weight", "input", F.embedding)
def _embedding(use: Use) -> Terms:
    index = use.saved["input"].reshape(use.gradient.shape[0], -1)
    gradient = use.gradient.reshape(*index.shape, use.gradient.shape[-1])
    yield "weight", _of_table(use, index, gradient)


_bags = (
    "input weight offsets max_norm norm_type scale_grad_by_freq mode sparse per_sample_weights "
    "include_last_offset padding_idx"
)
_kept = "input per_sample_weights"


@_rule("embedding_bag", _bags, "weight", _kept, F.embedding_bag, accepts=_plain_bags)
def _bag(use: Use) -> Terms:
    # A bag is a weighted sum of rows; "mean" divides by the entries that are not padding.
    index = use.saved["input"]
    weights = use.saved.get("per_sample_weights")
    each = torch.ones_like(index, dtype=use.gradient.dtype) if weights is None else weights
    if use.arguments.get("mode", "mean") == "mean":
        padding = use.arguments.get("padding_idx")
        rows = len(use.parameters["weight"])  # a negative index is counted from the end
        counted = torch.ones_like(index) if padding is None else (index != padding % rows).long()
        each = each / counted.sum(-1, keepdim=True).clamp(min=1)
    gradient = use.gradient.unsqueeze(-2) * each.unsqueeze(-1)
    yield "weight", _of_table(use, index.flatten(1), wide(gradient).flatten(1, -2))


def _bag_on_the_batch(
    mode: VmapMode, func: Any, /, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> Any:
    # vmap would take one example after the other.
    given = dict(zip(_bags.split()[2:], args, strict=False)) | kwargs
    each = given.pop("per_sample_weights", None)
    if _of_examples_or_trained(weight) or input.dim() != 2 or not _plain_bags(given, {}):
        return NotImplemented
    with boundary.outside():
        whole = boundary.every(input, mode.size)
        scale = None if each is None else boundary.every(each, mode.size).flatten(0, 1)
        found = func(whole.flatten(0, 1), weight, per_sample_weights=scale, **given)
        found = found.unflatten(0, (mode.size, whole.shape[1]))
    return boundary.lane(found, 0, mode.level)


vmap_mode.register_physical(_bag_on_the_batch, F.embedding_bag)


# Activations with a parameter. Sums and products need no rule: the written-out gradient of a bias
# or a scale is no larger than the tensor that it is summed from.


@_rule("prelu", "input weight", "weight", "input", torch.prelu)
def _prelu(use: Use) -> Terms:
    # ∂/∂w of max(0, x) + w·min(0, x); one weight, or one a channel (dimension 1 in the lane).
    product = wide(use.gradient) * wide(use.saved["input"]).clamp(max=0)
    if use.parameters["weight"].numel() == 1:
        yield "weight", Dense(product.flatten(1).sum(1, keepdim=True))
    else:
        yield "weight", Dense(_over_space(use, product))


# Convolutions of one to three dimensions, with every argument, and their transposes.


def _each(value: Any, dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims if len(value) == 1 else 1)


def _images(value: Tensor, dims: int) -> tuple[Tensor, int]:
    # (B·several, C, *space), and the number of images of a lane, which may have no batch dimension.
    if value.dim() == dims + 2:
        return value, 1
    return value.flatten(0, 1), value.shape[1]


def _convolution(use: Use, transposed: bool = False) -> Terms:
    weight, given = use.parameters["weight"], use.arguments
    dims = weight.dim() - 2
    (image, several), (gradient, _) = (
        _images(value, dims) for value in (use.saved["input"], use.gradient)
    )
    if "bias" in use.trained:
        shape = (-1, several, *use.parameters["bias"].shape, math.prod(gradient.shape[2:]))
        yield "bias", Dense(wide(gradient).reshape(shape).sum((1, 3)))
    if "weight" not in use.trained:
        return
    stride, dilation = (_each(given.get(name, 1), dims) for name in ("stride", "dilation"))
    padding = given.get("padding", 0)
    if padding == "same":
        sides: list[int] = []
        for size, step in zip(reversed(weight.shape[2:]), reversed(dilation), strict=True):
            total = step * (size - 1)
            sides += [total // 2, total - total // 2]
        image, padding = F.pad(image, sides), 0
    elif padding == "valid":
        padding = 0
    if transposed:  # the same weight gradient with input and output swapped
        image, gradient = gradient, image
    window = sums.Window(tuple(weight.shape[2:]), stride, _each(padding, dims), dilation)
    yield "weight", Convolved(image, gradient, window, given.get("groups", 1), several)


for _name in ("conv1d", "conv2d", "conv3d"):
    _given = "input weight bias stride padding dilation groups"
    _rule(_name, _given, "weight bias", "input", getattr(torch, _name))(_convolution)
for _name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
    _given = "input weight bias stride padding output_padding groups dilation"
    _transposed = partial(_convolution, transposed=True)
    _rule(_name, _given, "weight bias", "input", getattr(torch, _name))(_transposed)


# Scales and shifts of layer, group, instance, RMS and (frozen) batch normalisation.


def _affine(normalise: Callable[..., Tensor], total: Callable[[Use, Tensor], Tensor]) -> Gradients:
    # y = w·x̂ + b: ∇w = Σ g·x̂ and ∇b = Σ g. x̂ is computed again instead of being kept.
    def gradients(use: Use) -> Terms:
        gradient = wide(use.gradient)
        if "weight" in use.trained:
            value = wide(use.saved["input"])
            rows = value.flatten(0, 1) if total is _over_space else value
            given = {
                name: wide(v) if isinstance(v, Tensor) else v for name, v in use.arguments.items()
            }
            yield "weight", Dense(total(use, gradient * normalise(rows, **given).view(value.shape)))
        if "bias" in use.trained:
            yield "bias", Dense(total(use, gradient))

    return gradients


def _over_positions(use: Use, values: Tensor) -> Tensor:
    scale = next(iter(use.parameters.values()))  # or the shift, which has its shape
    return values.reshape(values.shape[0], -1, *scale.shape).sum(1)


def _over_space(use: Use, values: Tensor) -> Tensor:
    # (B, several, C, *space)
    return values.flatten(3).sum((1, 3)) if values.dim() > 3 else values.sum(1)


def _own(arguments: Named, parameters: Named) -> bool:
    batched: bool = arguments["input"].dim() > 2  # a lane's image may lack a batch dimension
    return bool(arguments.get("use_input_stats", True)) and batched


def _fixed(arguments: Named, parameters: Named) -> bool:
    return not arguments.get("training", False)


_running = "input running_mean running_var weight bias"
_NORMALISATIONS: tuple[tuple[Any, str, Any, Accepts], ...] = (
    (F.layer_norm, "input normalized_shape weight bias eps", _over_positions, always),
    # Without eps, the machine epsilon of the precision that torch computes in, as here.
    (F.rms_norm, "input normalized_shape weight eps", _over_positions, always),
    (F.group_norm, "input num_groups weight bias eps", _over_space, always),
    (F.instance_norm, f"{_running} use_input_stats momentum eps", _over_space, _own),
    (F.batch_norm, f"{_running} training momentum eps", _over_space, _fixed),
)
for _function, _given, _total, _accepts in _NORMALISATIONS:
    _name = _function.__name__
    _decorate = _rule(_name, _given, "weight bias", "input", _function, accepts=_accepts)
    _decorate(_affine(_function, _total))


def _group_on_the_batch(mode: VmapMode, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    # vmap would split it into several operations; on the whole batch it is one kernel.
    given = dict(zip(("num_groups", "weight", "bias", "eps"), args, strict=False)) | kwargs
    shared = (given.get("weight"), given.get("bias"))
    if not boundary.is_lane(input) or _of_examples_or_trained(*shared):
        return NotImplemented
    with boundary.outside():
        whole = boundary.rows(input)
        normalised = func(whole.flatten(0, 1), **given).view(whole.shape)
    return boundary.lane(normalised, 0, mode.level)


vmap_mode.register_physical(_group_on_the_batch, F.group_norm)


# Dropout on the whole batch, which draws the same numbers as an ordinary pass.


def _dropout(mode: VmapMode, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("p", "training", "inplace"), args, strict=False)) | kwargs
    if given.get("inplace"):
        return NotImplemented
    chance = given.get("p", 0.5)
    if mode.draws is None or not given.get("training", True) or not 0 < chance <= 1:
        whole, dim = boundary.physical(input)
        with boundary.outside():
            return boundary.lane(func(whole, **given), dim, mode.level)
    with boundary.outside():
        whole = boundary.rows(input)
        dropped = whole * mode.draws.mask(tuple(whole.shape[1:]), chance, whole)
    return boundary.lane(dropped, 0, mode.level)


vmap_mode.register_physical(_dropout, F.dropout)


# Cross entropy on the whole batch: vmap would split it into several operations.


_CROSS_ENTROPY = ("weight", "size_average", "ignore_index", "reduce", "reduction")


def _cross_entropy(
    mode: VmapMode, func: Any, input: Tensor, target: Tensor, *args: Any, **kwargs: Any
) -> Any:
    given = dict(zip((*_CROSS_ENTROPY, "label_smoothing"), args, strict=False)) | kwargs
    if any(given.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return NotImplemented
    labels = not target.is_floating_point()
    if (
        not boundary.is_lane(input)
        or not boundary.is_lane(target)
        or input.dim() != target.dim() + labels
    ):
        return NotImplemented
    reduction, ignored = given.get("reduction", "mean"), given.get("ignore_index", -100)
    batched = input.dim() > 1
    with boundary.outside():
        logits, wanted = boundary.rows(input), boundary.rows(target)
        if batched:  # (lanes, batch, classes, …)
            batch = logits.shape[1]
            logits, wanted = logits.flatten(0, 1), wanted.flatten(0, 1)
        options = {"ignore_index": ignored, "label_smoothing": given.get("label_smoothing", 0.0)}
        values = func(logits, wanted, reduction="none", **options)
        if batched:
            values = values.unflatten(0, (mode.size, batch))
        if reduction != "none" and batched:
            values = values.flatten(1).sum(1)
            if reduction == "mean":
                every = batch * math.prod(wanted.shape[2:])  # of probabilities: one for each place
                counted = (wanted != ignored).view(mode.size, -1).sum(1) if labels else every
                values = values / counted
    return boundary.lane(values, 0, mode.level)


vmap_mode.register_physical(_cross_entropy, F.cross_entropy)


# Scaled dot-product attention on the whole batch: vmap would not use torch's fused kernels.


def _attention(
    mode: VmapMode, func: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Any:
    given = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    mask, rank, batch = given.pop("attn_mask", None), query.dim(), query.shape[0]
    draws = mode.draws if given.get("dropout_p") else None
    size = mode.size
    if rank < 3 or any(t.dim() != rank or t.shape[0] != batch for t in (key, value)):
        return NotImplemented
    if mask is not None:
        if not boundary.is_lane(mask) and mask.requires_grad:
            return NotImplemented
        if mask.dim() == rank and mask.shape[0] not in (1, batch):
            return NotImplemented
    if draws is not None and (given.get("is_causal") or given.get("enable_gqa")):
        return NotImplemented
    with boundary.outside():
        whole = [boundary.every(t, size).flatten(0, 1) for t in (query, key, value)]
        if mask is not None:
            mask = _mask(mask, rank, size, batch)
        if draws is None:
            out = func(*whole, attn_mask=mask, **given)
        else:
            out = _dropped(draws, size, whole, mask, given)
        out = out.unflatten(0, (size, batch))
    return boundary.lane(out, 0, mode.level)


def _dropped(
    draws: vmap_mode.Draws,
    size: int,
    whole: list[Tensor],
    mask: Tensor | None,
    given: dict[str, Any],
) -> Tensor:
    # The same computation as torch's attention with dropout, with our own mask.
    query, key, value = whole
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = (query * scale) @ key.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = boundary.safe_softmax(scores, -1)
    shape = (weights.shape[0] // size, *weights.shape[1:])
    kept = draws.mask(shape, given["dropout_p"], weights)
    return (weights * kept.view(weights.shape)) @ value


def _mask(mask: Tensor, rank: int, size: int, batch: int) -> Tensor:
    if not boundary.is_lane(mask) and (mask.dim() < rank or mask.shape[0] == 1):
        return mask
    whole = boundary.every(mask, size).reshape(size, *(1,) * (rank - mask.dim()), *mask.shape)
    return whole.expand(size, batch, *whole.shape[2:]).flatten(0, 1)


vmap_mode.register_physical(_attention, F.scaled_dot_product_attention)


# Recurrent layers step by step, which gives access to the gradient before each activation.
#
# torch's fused layers do not expose these gradients. Here a layer is its input projection (an
# ordinary linear map) and a scan over time; the scan's hidden weight has the gradient
# Σ_t a_t ⊗ h_{t−1}, with a_t the gradient of the pre-activation. All tensors are (time, batch, …).


tanh_backward = torch.ops.aten.tanh_backward.default
tanh_into = torch.ops.aten.tanh_backward.grad_input
sigmoid_into = torch.ops.aten.sigmoid_backward.grad_input
# Hidden states (T, B, H), last cell state, and the tensors that the backward pass needs.
Ran = tuple[Tensor, Tensor | None, tuple[Tensor, ...]]
# Gradients of a scan's outputs: hidden states, last hidden and cell state; None: an unused output.
Given = Sequence[Tensor | None]
# Gradients of the hidden map's output, of ``gates``, of h_0 and of c_0.
Went = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Scan:
    """The hidden map of a scan, its direction, and the examples that are active at each step."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, active: Tensor | None, reverse: bool
    ) -> None:
        self.weight, self.bias, self.active, self.reverse = weight, bias, active, reverse

    def times(self, length: int, backwards: bool = False) -> Iterable[int]:
        """The steps in the order of the scan, or in the opposite order."""
        return reversed(range(length)) if self.reverse != backwards else range(length)

    def keep(self, t: int, new: Tensor, old: Tensor) -> Tensor:
        """The new state, or the old state for sequences that are not active at step t."""
        return new if self.active is None else torch.where(self.active[t], new, old)

    def part(
        self, t: int, carried: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of this step's new state, and of a kept old state (None: all active)."""
        gradient = carried if out is None else carried + out[t]
        if self.active is None:
            return gradient, None
        inside = gradient * self.active[t]
        return inside, gradient - inside


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


class Long:
    """LSTM (Hochreiter and Schmidhuber 1997), gates in torch's order i, f, g, o."""

    def forward(self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan) -> Ran:
        assert c is not None
        length, batch, size = gates.shape[0], h.shape[0], h.shape[1]
        gates = gates if scan.bias is None else gates.add_(scan.bias)
        out, cells, tanhs = (gates.new_empty(length, batch, size) for _ in range(3))
        matrix, first = scan.weight.t(), c
        steps = gates.unbind(0)
        # Input and forget gates, new cell, output gate.
        ends = (slice(2 * size), slice(2 * size, 3 * size), slice(3 * size, 4 * size))
        both, news, lets = (gates[:, :, w].unbind(0) for w in ends)
        gate = gates.view(length, batch, 4, size).unbind(2)
        outs, cs, ts, i, f = (v.unbind(0) for v in (out, cells, tanhs, *gate[:2]))
        for t in scan.times(length):
            steps[t].add_(matmul(h, matrix))
            both[t].sigmoid_()
            news[t].tanh_()
            lets[t].sigmoid_()
            new = torch.mul(i[t], news[t], out=cs[t]).addcmul_(f[t], c)
            torch.mul(lets[t], torch.tanh(new, out=ts[t]), out=outs[t])
            if scan.active is not None:
                cs[t].copy_(scan.keep(t, new, c))
                outs[t].copy_(scan.keep(t, outs[t], h))
            h, c = outs[t], cs[t]
        return out, c.clone(), (gates, cells, tanhs, first)

    def backward(self, saved: Sequence[Tensor], before: Tensor, given: Given, scan: Scan) -> Went:
        gates, cells, tanhs, first = saved
        length, batch, size = cells.shape
        i, f, n, o = (v.unbind(0) for v in gates.view(length, batch, 4, size).unbind(2))
        a = torch.empty_like(gates)
        ai, af, an, ao = (v.unbind(0) for v in a.view(length, batch, 4, size).unbind(2))
        whole, cs, ts = a.unbind(0), cells.unbind(0), tanhs.unbind(0)
        product = torch.empty_like(first)
        out, dh, dc = given[0], *(_or_zeros(part, before[0]) for part in given[1:])
        # Step by step, while a step's numbers are in the cache; all at once would be memory-bound.
        for t in scan.times(length, backwards=True):
            earlier = t + 1 if scan.reverse else t - 1
            c = cs[earlier] if 0 <= earlier < length else first
            dh, past_h = scan.part(t, dh, out)
            dc, past_c = scan.part(t, dc)
            dc = dc + tanh_backward(torch.mul(dh, o[t], out=product), ts[t])
            sigmoid_into(torch.mul(dc, n[t], out=product), i[t], grad_input=ai[t])
            sigmoid_into(torch.mul(dc, c, out=product), f[t], grad_input=af[t])
            tanh_into(torch.mul(dc, i[t], out=product), n[t], grad_input=an[t])
            sigmoid_into(torch.mul(dh, ts[t], out=product), o[t], grad_input=ao[t])
            dc, dh = dc * f[t], matmul(whole[t], scan.weight)
            if past_h is not None and past_c is not None:
                dc, dh = dc + past_c, dh + past_h
        return a, a, dh, dc


class Gated:
    """GRU (Cho et al. 2014), gates in torch's order r, z, n."""

    def forward(self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan) -> Ran:
        length, batch, size = gates.shape[0], h.shape[0], h.shape[1]
        out, inner = (gates.new_empty(length, batch, size) for _ in range(2))
        matrix = scan.weight.t()
        for t in scan.times(length):
            hidden = matmul(h, matrix)
            hidden = hidden if scan.bias is None else hidden.add_(scan.bias)
            z = gates[t]
            z[:, : 2 * size].add_(hidden[:, : 2 * size]).sigmoid_()
            inner[t] = hidden[:, 2 * size :]
            z[:, 2 * size :].addcmul_(z[:, :size], inner[t]).tanh_()
            _, u, n = z.view(batch, 3, size).unbind(1)
            h = scan.keep(t, torch.lerp(n, h, u), h)
            out[t] = h
        return out, None, (gates, inner)

    def backward(self, saved: Sequence[Tensor], before: Tensor, given: Given, scan: Scan) -> Went:
        gates, inner = saved
        length, batch, size = inner.shape
        r, u, n = gates.view(length, batch, 3, size).unbind(2)
        # Every gradient of a step is dh times a factor that is known for all t at once.
        new = (1 - u) * (1 - n * n)
        reset, update = new * inner * r * (1 - r), (before - n) * u * (1 - u)
        hidden = torch.stack([reset, update, new * r], 2)
        projected = torch.stack([reset, update, new], 2)
        dh = _or_zeros(given[1], before[0])
        for t in scan.times(length, backwards=True):
            dh, past = scan.part(t, dh, given[0])
            a = hidden[t]
            a *= dh.unsqueeze(1)
            projected[t] *= dh.unsqueeze(1)
            dh = matmul(a.view(batch, -1), scan.weight).add_(dh * u[t])
            dh = dh if past is None else dh + past
        return hidden.flatten(2), projected.flatten(2), dh, None


class PlainCell:
    """The simple recurrent network (Elman 1990) with tanh or ReLU."""

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def forward(self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan) -> Ran:
        gates = gates if scan.bias is None else gates.add_(scan.bias)
        out = torch.empty_like(gates)
        matrix = scan.weight.t()
        for t in scan.times(gates.shape[0]):
            z = gates[t].add_(matmul(h, matrix))
            z = z.relu_() if self.relu else z.tanh_()
            h = scan.keep(t, z, h)
            out[t] = h
        return out, None, (gates,)

    def backward(self, saved: Sequence[Tensor], before: Tensor, given: Given, scan: Scan) -> Went:
        (gates,) = saved
        a = (gates > 0).to(gates.dtype) if self.relu else 1 - gates * gates
        dh = _or_zeros(given[1], before[0])
        for t in scan.times(gates.shape[0], backwards=True):
            dh, past = scan.part(t, dh, given[0])
            a[t] *= dh
            dh = matmul(a[t], scan.weight)
            dh = dh if past is None else dh + past
        return a, a, dh, None


# ``forward(gates, h, c, scan)`` computes all steps and overwrites ``gates``. ``backward(saved,
# before, given, scan)`` computes the gradients; ``before``: the hidden states before each step.
Cell = Long | Gated | PlainCell


class _Scanned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        steps: Cell,
        emit: Callable[[Tensor, Tensor], None] | None,
        reverse: bool,
        anchor: Tensor | None,
        gates: Tensor,
        h: Tensor,
        c: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        active: Tensor | None,
    ) -> Any:
        # No other code uses the projection, so the activations overwrite it.
        gates = gates.detach().contiguous()
        with torch.autocast(gates.device.type, enabled=False):
            kind = gates.dtype
            known = None if bias is None else bias.to(kind)
            scan = Scan(weight.to(kind), known, active, reverse)
            start = h.to(kind)
            out, cell, saved = steps.forward(gates, start, None if c is None else c.to(kind), scan)
        ctx.steps, ctx.emit, ctx.reverse = steps, emit, reverse
        ctx.save_for_backward(out, h, weight, bias, active, *saved)
        ctx.set_materialize_grads(False)
        last = out[0 if reverse else -1].clone()
        return out, last, cell

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        out, h, weight, bias, active, *saved = ctx.saved_tensors
        scan = Scan(weight.to(out.dtype), bias, active, ctx.reverse)
        start = h.to(out.dtype).unsqueeze(0)
        before = torch.cat([out[1:], start] if ctx.reverse else [start, out[:-1]])
        if all(gradient is None for gradient in given):
            return (None,) * 10
        a, gates, dh, dc = ctx.steps.backward(saved, before, given, scan)
        if ctx.emit is not None:
            ctx.emit(a, before)
        needs, flat = ctx.needs_input_grad, a.flatten(0, 1)
        return (
            *(None, None, None, None, gates),
            dh.to(h.dtype) if needs[5] else None,
            dc if needs[6] else None,
            flat.t() @ before.flatten(0, 1) if needs[7] else None,
            flat.sum(0) if bias is not None and needs[8] else None,
            None,
        )


_HIDDEN = Rule("recurrence", (), ("weight", "bias"), ("input",), _linear)


def scan(
    mode: VmapMode, steps: Cell, how: Scan, gates: Tensor, h: Tensor, c: Tensor | None
) -> tuple[Any, ...]:
    """Run a recurrent layer over its projected inputs, the batches of all lanes as one batch.

    Args:
        steps: of the kind of cell. how: its hidden map and direction, and the mask (T, B, 1) of
            sequences that have not ended.
        gates: W_ih·x_t + b_ih, shape (T, B, gates·H). h, c: initial states, shape (B, H).

    Returns:
        Hidden states (T, B, H), the last hidden state and the last cell state (LSTM only).
    """
    with torch._C.DisableTorchFunction():
        weight, bias = how.weight, how.bias
        if any(isinstance(t, Tensor) and boundary.is_lane(t) for t in (weight, bias, how.active)):
            raise boundary.NotVectorisable("a recurrent layer with a weight for each example")
        mode.here()
        (gates, h, c), _ = mode.written_out(scan, (gates, h, c), {})  # a learned first state
        size, batch = mode.size, gates.shape[1]
        weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        trained = {
            role: value
            for role, value in weights.items()
            if value.requires_grad and torch.is_grad_enabled()
        }

        def side_by_side(value: Tensor | None, at: int) -> Tensor | None:
            # Lanes moved to dimension ``at``, before the batch, and both flattened into one.
            if value is None:
                return None
            return boundary.every(value, size).movedim(0, at).flatten(at, at + 1)

        def in_lanes(value: Any, at: int) -> Tensor | None:
            # The inverse, as a lane tensor.
            if value is None:
                return None
            whole = value.unflatten(at, (size, batch))
            return mode.took(boundary.lane(whole, at, mode.level))

        def by_lane(value: Tensor) -> Tensor:
            # (time, lanes·batch, n) → (lanes, time·batch, n)
            apart = value.view(value.shape[0], size, batch, -1).movedim(1, 0)
            return apart.squeeze(2) if batch == 1 else apart.flatten(1, 2)

        detached = {role: value.detach() for role, value in weights.items()}

        def emit(gradient: Tensor, before: Tensor) -> None:
            saved, roles = {"input": by_lane(before)}, frozenset(trained)
            mode.report(_HIDDEN, trained, Use({}, detached, saved, by_lane(gradient), roles))

        mode.count(trained)
        with boundary.outside():
            states = (side_by_side(gates, 1), side_by_side(h, 0), side_by_side(c, 0))
            shared = (detached["weight"], detached.get("bias"), side_by_side(how.active, 1))
            told = (emit, how.reverse, mode.anchor) if trained else (None, how.reverse, None)
            found = _Scanned.apply(steps, *told, *states, *shared)  # type: ignore[no-untyped-call]
        return tuple(map(in_lanes, found, (1, 0, 0)))


# torch's recurrent layers and cells, for padded and packed inputs, as linear maps and scans.


def _layers(
    mode: VmapMode,
    steps: Cell,
    x: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    options: Sequence[Any],
    active: Tensor | None,
) -> tuple[Tensor, ...]:
    has_biases, num_layers, dropout, train, bidirectional = options
    h0, c0 = states if isinstance(steps, Long) else (states, None)
    # x is (T, B, D). torch lists W_ih, W_hh (, b_ih, b_hh)(, W_hr) for each layer and direction.
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    projected = each == (5 if has_biases else 3)
    hs: list[Tensor] = []
    cs: list[Any] = []
    for layer in range(num_layers):
        outs = []
        for reverse in range(directions):
            at = layer * directions + reverse
            w_ih, w_hh, *rest = weights[at * each : (at + 1) * each]
            b_ih, b_hh = rest[:2] if has_biases else (None, None)
            h, c = h0[at], None if c0 is None else c0[at]
            gates = F.linear(x, w_ih, b_ih)
            how = Scan(w_hh, b_hh, active, bool(reverse))
            if projected:
                out, h, c = _projected(how, gates, h, c, rest[-1])
            else:
                out, h, c = scan(mode, steps, how, gates, h, c)
            outs.append(out)
            hs.append(h)
            cs.append(c)
        x = torch.cat(outs, -1) if bidirectional else outs[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    return x, *map(torch.stack, (hs, cs) if isinstance(steps, Long) else (hs,))


def _projected(
    how: Scan, gates: Tensor, h: Tensor, c: Tensor | None, w_hr: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    # An LSTM whose hidden state is projected: each step has two linear maps.
    assert c is not None
    length = gates.shape[0]
    out: list[Tensor] = [h] * length
    for t in how.times(length):
        new_h, new_c = _long_step(gates[t] + F.linear(h, how.weight, how.bias), c)
        h, c = how.keep(t, F.linear(new_h, w_hr), h), how.keep(t, new_c, c)
        out[t] = h
    return torch.stack(out), h, c


def _long_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _time_first(mode: VmapMode, x: Tensor) -> Tensor:
    # In memory too, so that projections are in the scan's order: they are the larger ones.
    if not boundary.is_lane(x):
        return x
    with boundary.outside():
        whole, dim = boundary.physical(x)
        return boundary.lane(whole.movedim(dim, 1).contiguous(), 1, mode.level)


def _whole(steps: Cell, mode: VmapMode, x: Tensor, second: Any, third: Any, *rest: Any) -> Any:
    if isinstance(third, bool):  # in a supported call the third argument is no bool
        raise TypeError("a recurrent layer is called with states and a list of weights")
    if isinstance(second, Tensor) and second.dtype == torch.long and second.dim() == 1:
        return _packed(mode, steps, x, second, third, *rest)
    *options, batch_first = rest
    x = _time_first(mode, x.transpose(0, 1) if batch_first else x)
    out, *last = _layers(mode, steps, x, second, third, options, None)
    return (out.transpose(0, 1) if batch_first else out, *last)


def _packed(
    mode: VmapMode,
    steps: Cell,
    data: Tensor,
    sizes: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    *options: Any,
) -> Any:
    # The sequences are unpacked to (time, batch), longest first, run with a mask, and packed again.
    # This is the batch of each lane; lanes with different lengths run in separate passes.
    length, batch = sizes.numel(), int(sizes[0])
    valid = torch.arange(batch) < sizes.unsqueeze(1)
    place = (sizes.cumsum(0) - sizes).unsqueeze(1) + torch.arange(batch)
    rows = place.where(valid, 0).flatten().to(data.device)
    active = valid.unsqueeze(2).to(data.device)
    x = data.index_select(0, rows).view(length, batch, -1) * active
    out, *last = _layers(mode, steps, x, states, weights, options, None if batch == 1 else active)
    out = out.flatten(0, 1).index_select(0, valid.flatten().nonzero().flatten().to(data.device))
    return (out, *last)


def _two_maps(
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)


def _long_cell(
    mode: VmapMode, x: Tensor, states: Sequence[Tensor], *weights: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    one, two = _two_maps(x, states[0], *weights, **named)
    return _long_step(one + two, states[1])


def _gated_cell(mode: VmapMode, x: Tensor, h: Tensor, *weights: Any, **named: Any) -> Tensor:
    one, two = _two_maps(x, h, *weights, **named)
    (r, u, n), (hr, hu, hn) = one.chunk(3, 1), two.chunk(3, 1)
    r, u = (r + hr).sigmoid(), (u + hu).sigmoid()
    return torch.lerp((n + r * hn).tanh(), h, u)


def _plain_cell(
    relu: bool, mode: VmapMode, x: Tensor, h: Tensor, *weights: Any, **named: Any
) -> Tensor:
    one, two = _two_maps(x, h, *weights, **named)
    return (one + two).relu() if relu else (one + two).tanh()


vmap_mode.register_parts(partial(_whole, Long()), torch.lstm)
vmap_mode.register_parts(partial(_whole, Gated()), torch.gru)
vmap_mode.register_parts(partial(_whole, PlainCell(False)), torch.rnn_tanh)
vmap_mode.register_parts(partial(_whole, PlainCell(True)), torch.rnn_relu)
vmap_mode.register_parts(_long_cell, torch.lstm_cell)
vmap_mode.register_parts(_gated_cell, torch.gru_cell)
vmap_mode.register_parts(partial(_plain_cell, False), torch.rnn_tanh_cell)
vmap_mode.register_parts(partial(_plain_cell, True), torch.rnn_relu_cell)
