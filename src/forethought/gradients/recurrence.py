"""Recurrent layers step by step, with the gradient before each activation at hand.

torch's fused layers keep these gradients to themselves. Here a layer is its input projection (an
ordinary linear map) and a scan over time; the scan's hidden weight has the gradient
Σ_t a_t ⊗ h_{t−1}, with a_t the gradient of the pre-activation. All tensors are (time, batch, …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

tanh_backward = torch.ops.aten.tanh_backward.default
tanh_into = torch.ops.aten.tanh_backward.grad_input
sigmoid_into = torch.ops.aten.sigmoid_backward.grad_input
Emit = Callable[[Tensor, Tensor], None]


class Steps(Protocol):
    """One kind of cell."""

    def forward(
        self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """Hidden states (T, B, H), last cell state, and what the way back needs."""

    def backward(
        self, saved: tuple[Tensor, ...], before: Tensor, g: Gradients, scan: Scan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of the hidden map's output, of ``gates``, of h_0 and of c_0."""


class Scan:
    """The hidden map, the direction, and which examples are active at each step."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, active: Tensor | None, reverse: bool
    ) -> None:
        self.weight, self.bias, self.active, self.reverse = weight, bias, active, reverse

    def times(self, length: int, backwards: bool = False) -> Iterable[int]:
        """The steps in order of time, or against it."""
        return reversed(range(length)) if self.reverse != backwards else range(length)

    def keep(self, t: int, new: Tensor, old: Tensor) -> Tensor:
        """The old state where a sequence has ended."""
        return new if self.active is None else torch.where(self.active[t], new, old)

    def part(self, t: int, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """(what reached this step's new state, what passed it by, if anything can)."""
        if self.active is None:
            return gradient, None
        inside = gradient * self.active[t]
        return inside, gradient - inside


class Gradients:
    """Of a scan's outputs; those that nobody used are None."""

    def __init__(self, out: Tensor | None, h: Tensor | None, c: Tensor | None) -> None:
        self.out, self.h, self.c = out, h, c

    def arriving(self, t: int, carried: Tensor) -> Tensor:
        return carried if self.out is None else carried + self.out[t]


class Long:
    """LSTM (Hochreiter and Schmidhuber 1997), gates in torch's order i, f, g, o."""

    def forward(
        self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        assert c is not None
        length, batch, size = gates.shape[0], h.shape[0], h.shape[1]
        gates = gates if scan.bias is None else gates.add_(scan.bias)
        out, cells, tanhs = (gates.new_empty(length, batch, size) for _ in range(3))
        matrix, first = scan.weight.t(), c
        steps = gates.unbind(0)
        both, news, lets = (gates[:, :, w].unbind(0) for w in _parts(size))
        gate = gates.view(length, batch, 4, size).unbind(2)
        outs, cs, ts, i, f = (v.unbind(0) for v in (out, cells, tanhs, *gate[:2]))
        for t in scan.times(length):
            steps[t].addmm_(h, matrix)
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

    def backward(
        self, saved: tuple[Tensor, ...], before: Tensor, g: Gradients, scan: Scan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        gates, cells, tanhs, first = saved
        length, batch, size = cells.shape
        i, f, n, o = (v.unbind(0) for v in gates.view(length, batch, 4, size).unbind(2))
        a = torch.empty_like(gates)
        ai, af, an, ao = (v.unbind(0) for v in a.view(length, batch, 4, size).unbind(2))
        whole, cs, ts = a.unbind(0), cells.unbind(0), tanhs.unbind(0)
        product = torch.empty_like(first)
        dh = torch.zeros_like(before[0]) if g.h is None else g.h
        dc = torch.zeros_like(before[0]) if g.c is None else g.c
        # Step by step, while a step's numbers are in cache; over all of them it is memory-bound.
        for t in scan.times(length, backwards=True):
            earlier = t + 1 if scan.reverse else t - 1
            c = cs[earlier] if 0 <= earlier < length else first
            dh, past_h = scan.part(t, g.arriving(t, dh))
            dc, past_c = scan.part(t, dc)
            dc = dc + tanh_backward(torch.mul(dh, o[t], out=product), ts[t])
            sigmoid_into(torch.mul(dc, n[t], out=product), i[t], grad_input=ai[t])
            sigmoid_into(torch.mul(dc, c, out=product), f[t], grad_input=af[t])
            tanh_into(torch.mul(dc, i[t], out=product), n[t], grad_input=an[t])
            sigmoid_into(torch.mul(dh, ts[t], out=product), o[t], grad_input=ao[t])
            dc, dh = dc * f[t], whole[t] @ scan.weight
            if past_h is not None and past_c is not None:
                dc, dh = dc + past_c, dh + past_h
        return a, a, dh, dc


def _parts(size: int) -> tuple[slice, slice, slice]:
    # Input and forget gates, new cell, output gate.
    return slice(2 * size), slice(2 * size, 3 * size), slice(3 * size, 4 * size)


class Gated:
    """GRU (Cho et al. 2014), gates in torch's order r, z, n."""

    def forward(
        self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        length, batch, size = gates.shape[0], h.shape[0], h.shape[1]
        out, inner = (gates.new_empty(length, batch, size) for _ in range(2))
        matrix = scan.weight.t()
        for t in scan.times(length):
            hidden = h @ matrix if scan.bias is None else torch.addmm(scan.bias, h, matrix)
            z = gates[t]
            z[:, : 2 * size].add_(hidden[:, : 2 * size]).sigmoid_()
            inner[t] = hidden[:, 2 * size :]
            z[:, 2 * size :].addcmul_(z[:, :size], inner[t]).tanh_()
            _, u, n = z.view(batch, 3, size).unbind(1)
            h = scan.keep(t, torch.lerp(n, h, u), h)
            out[t] = h
        return out, None, (gates, inner)

    def backward(
        self, saved: tuple[Tensor, ...], before: Tensor, g: Gradients, scan: Scan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        gates, inner = saved
        length, batch, size = inner.shape
        r, u, n = gates.view(length, batch, 3, size).unbind(2)
        # Every gradient of a step is dh times what is known for all t at once.
        new = (1 - u) * (1 - n * n)
        reset, update = new * inner * r * (1 - r), (before - n) * u * (1 - u)
        hidden = torch.stack([reset, update, new * r], 2)
        projected = torch.stack([reset, update, new], 2)
        dh = torch.zeros_like(before[0]) if g.h is None else g.h
        for t in scan.times(length, backwards=True):
            dh, past = scan.part(t, g.arriving(t, dh))
            a = hidden[t]
            a *= dh.unsqueeze(1)
            projected[t] *= dh.unsqueeze(1)
            dh = torch.addmm(dh * u[t], a.view(batch, -1), scan.weight)
            dh = dh if past is None else dh + past
        return hidden.flatten(2), projected.flatten(2), dh, None


class Plain:
    """The simple recurrent network (Elman 1990) with tanh or ReLU."""

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def forward(
        self, gates: Tensor, h: Tensor, c: Tensor | None, scan: Scan
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        gates = gates if scan.bias is None else gates.add_(scan.bias)
        out = torch.empty_like(gates)
        matrix = scan.weight.t()
        for t in scan.times(gates.shape[0]):
            z = gates[t].addmm_(h, matrix)
            z = z.relu_() if self.relu else z.tanh_()
            h = scan.keep(t, z, h)
            out[t] = h
        return out, None, (gates,)

    def backward(
        self, saved: tuple[Tensor, ...], before: Tensor, g: Gradients, scan: Scan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        (gates,) = saved
        a = (gates > 0).to(gates.dtype) if self.relu else 1 - gates * gates
        dh = torch.zeros_like(before[0]) if g.h is None else g.h
        for t in scan.times(gates.shape[0], backwards=True):
            dh, past = scan.part(t, g.arriving(t, dh))
            a[t] *= dh
            dh = a[t] @ scan.weight
            dh = dh if past is None else dh + past
        return a, a, dh, None


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        steps: Steps,
        emit: Emit | None,
        reverse: bool,
        anchor: Tensor | None,
        gates: Tensor,
        h: Tensor,
        c: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        active: Tensor | None,
    ) -> Any:
        # The projection is ours alone, so it becomes the activations in place.
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
        g = Gradients(*given)
        if g.out is None and g.h is None and g.c is None:
            return (None,) * 10
        a, gates, dh, dc = ctx.steps.backward(tuple(saved), before, g, scan)
        if ctx.emit is not None:
            ctx.emit(a, before)
        needs = ctx.needs_input_grad
        flat = a.flatten(0, 1)
        return (
            None,
            None,
            None,
            None,
            gates,
            dh.to(h.dtype) if needs[5] else None,
            dc if needs[6] else None,
            flat.t() @ before.flatten(0, 1) if needs[7] else None,
            flat.sum(0) if bias is not None and needs[8] else None,
            None,
        )


def scan(
    steps: Steps,
    reverse: bool,
    gates: Tensor,
    h: Tensor,
    c: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    active: Tensor | None,
    emit: Emit | None = None,
    anchor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a recurrent layer over its projected inputs; ``gates`` is overwritten.

    Args:
        gates: W_ih·x_t + b_ih, shape (T, B, gates·H). h, c: initial states, shape (B, H).
        weight, bias: of the hidden map. active: (T, B, 1) mask of sequences that have not ended.
        emit: receives, on the way back, the gradient of the hidden map's output (T, B, gates·H)
            and the hidden states before each step (T, B, H).

    Returns:
        Hidden states (T, B, H), the last hidden state and the last cell state (LSTM only).
    """
    if has_torch_function((gates,)):
        result: Any = handle_torch_function(
            scan, (gates,), steps, reverse, gates, h, c, weight, bias, active, emit, anchor
        )
    else:
        result = _Function.apply(  # type: ignore[no-untyped-call]
            steps, emit, reverse, anchor, gates, h, c, weight, bias, active
        )
    return result[0], result[1], result[2]
