"""LSTM, GRU and RNN layers and cells, padded and packed, as linear maps and scans over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.capture import Site, Watch
from forethought.gradients.recurrence import Gated, Long, Plain, Steps, scan
from forethought.gradients.registry import Rule, Use, register, register_parts
from forethought.gradients.terms import Dense, Outer, Term, wide


def _hidden(use: Use) -> Iterator[tuple[str, Term]]:
    if "weight" in use.parameters:
        yield "weight", Outer([(use.gradient, use.saved["before"])])
    if "bias" in use.parameters:
        yield "bias", Dense(wide(use.gradient).sum(1))


def _watched_scan(function: Any, site: Site, watch: Watch) -> Any:
    # The gates are overwritten, and nothing of the call is needed but its parameters.
    kept = replace(site, arguments={}, args=(), kwargs={})

    def emit(gradient: Tensor, before: Tensor) -> None:
        watch.report(kept, {"before": before}, gradient)

    return function(*site.args[:8], emit, watch.anchor)


register(
    Rule(
        "recurrence",
        ("steps", "reverse", "gates", "h", "c", "weight", "bias", "active", "emit", "anchor"),
        ("weight", "bias"),
        ("before",),
        _hidden,
        run=_watched_scan,
    ),
    scan,
)


def _layers(
    steps: Steps,
    x: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    weights: Sequence[Tensor],
    options: Sequence[Any],
    active: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    has_biases, num_layers, dropout, train, bidirectional = options
    # x is (T, B, D). torch lists W_ih, W_hh (, b_ih, b_hh)(, W_hr) for each layer and direction.
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    projected = each == (5 if has_biases else 3)
    hs, cs = [], []
    for layer in range(num_layers):
        outs = []
        for reverse in range(directions):
            at = layer * directions + reverse
            w_ih, w_hh, *rest = weights[at * each : (at + 1) * each]
            b_ih, b_hh = rest[:2] if has_biases else (None, None)
            h, c = h0[at], None if c0 is None else c0[at]
            gates = F.linear(x, w_ih, b_ih)
            if projected:
                out, h, c = _projected(gates, h, c, w_hh, b_hh, rest[-1], bool(reverse), active)
            else:
                out, h, c = scan(steps, bool(reverse), gates, h, c, w_hh, b_hh, active)
            outs.append(out)
            hs.append(h)
            cs.append(c)
        x = torch.cat(outs, -1) if bidirectional else outs[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout, True)
    cells = [c for c in cs if c is not None]
    return x, torch.stack(hs), torch.stack(cells) if cells else None


def _projected(
    gates: Tensor,
    h: Tensor,
    c: Tensor | None,
    w_hh: Tensor,
    b_hh: Tensor | None,
    w_hr: Tensor,
    reverse: bool,
    active: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    # An LSTM whose hidden state is projected down: two maps a step, so step by step.
    assert c is not None
    length = gates.shape[0]
    out: list[Tensor] = [h] * length
    for t in reversed(range(length)) if reverse else range(length):
        new_h, new_c = _long_step(gates[t] + F.linear(h, w_hh, b_hh), c)
        new_h = F.linear(new_h, w_hr)
        if active is not None:
            new_h, new_c = (
                torch.where(active[t], new_h, h),
                torch.where(active[t], new_c, c),
            )
        h, c = new_h, new_c
        out[t] = h
    return torch.stack(out), h, c


def _long_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _whole(steps: Steps, cell: bool) -> Callable[..., Any]:
    def layers(watch: Watch, x: Tensor, second: Any, third: Any, *rest: Any) -> Any:
        if isinstance(third, bool):  # x, states, weights would put has_biases fourth
            raise TypeError("a recurrent layer is called with states and a list of weights")
        if isinstance(second, Tensor) and second.dtype == torch.long and second.dim() == 1:
            return _packed(steps, cell, watch, x, second, third, *rest)
        states, weights = second, third
        *options, batch_first = rest
        h, c = states if cell else (states, None)
        x = x.transpose(0, 1) if batch_first else x
        out, h, c = _layers(steps, x, h, c, weights, options, None)
        out = out.transpose(0, 1) if batch_first else out
        return (out, h, c) if cell else (out, h)

    return layers


def _packed(
    steps: Steps,
    cell: bool,
    watch: Watch,
    data: Tensor,
    sizes: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    *options: Any,
) -> Any:
    # Unpacked to (time, batch) in the order of the examples, run with a mask, packed again.
    length, batch = sizes.numel(), int(sizes[0])
    order = watch.packing_order(sizes)
    order = torch.arange(batch) if order is None else order.cpu()
    inverse = order.argsort()
    place = (sizes.cumsum(0) - sizes).unsqueeze(1) + torch.arange(batch)
    valid = torch.arange(batch) < sizes.unsqueeze(1)
    packed_rows = (torch.arange(length).unsqueeze(1) * batch + order)[valid]
    device = data.device
    rows = place.where(valid, 0)[:, inverse].flatten().to(device)
    active = valid[:, inverse].unsqueeze(2).to(device)
    x = data.index_select(0, rows).view(length, batch, -1) * active
    back, forth = inverse.to(device), order.to(device)
    h, c = states if cell else (states, None)
    h = h.index_select(1, back)
    c = None if c is None else c.index_select(1, back)
    out, h, c = _layers(steps, x, h, c, weights, options, active)
    out = out.flatten(0, 1).index_select(0, packed_rows.to(device))
    h = h.index_select(1, forth)
    return (out, h, c.index_select(1, forth)) if c is not None else (out, h)


def _two_maps(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, biases: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor]:
    return F.linear(x, w_ih, biases[0]), F.linear(h, w_hh, biases[1])


def _long_cell(
    watch: Watch,
    x: Tensor,
    states: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    one, two = _two_maps(x, states[0], w_ih, w_hh, (b_ih, b_hh))
    return _long_step(one + two, states[1])


def _gated_cell(
    watch: Watch,
    x: Tensor,
    h: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    one, two = _two_maps(x, h, w_ih, w_hh, (b_ih, b_hh))
    (r, u, n), (hr, hu, hn) = one.chunk(3, 1), two.chunk(3, 1)
    r, u = (r + hr).sigmoid(), (u + hu).sigmoid()
    return torch.lerp((n + r * hn).tanh(), h, u)


def _plain_cell(relu: bool) -> Callable[..., Tensor]:
    def cell(
        watch: Watch,
        x: Tensor,
        h: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        one, two = _two_maps(x, h, w_ih, w_hh, (b_ih, b_hh))
        return (one + two).relu() if relu else (one + two).tanh()

    return cell


register_parts(_whole(Long(), True), torch.lstm)
register_parts(_whole(Gated(), False), torch.gru)
register_parts(_whole(Plain(False), False), torch.rnn_tanh)
register_parts(_whole(Plain(True), False), torch.rnn_relu)
register_parts(_long_cell, torch.lstm_cell)
register_parts(_gated_cell, torch.gru_cell)
register_parts(_plain_cell(False), torch.rnn_tanh_cell)
register_parts(_plain_cell(True), torch.rnn_relu_cell)
