"""LSTM, GRU and RNN layers and cells, padded and packed, as linear maps and scans over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.boundary import Unable, is_lane, lane, outside, physical
from forethought.gradients.lanes import HANDLERS, Lanes, Site
from forethought.gradients.recurrence import Gated, Long, Plain, Steps, scan
from forethought.gradients.terms import Dense, Outer, Rule, Term, Use, register_parts, wide


def _hidden(use: Use) -> Iterator[tuple[str, Term]]:
    if "weight" in use.trained:
        yield "weight", Outer([(use.gradient, use.saved["before"])])
    if "bias" in use.trained:
        yield "bias", Dense(wide(use.gradient).sum(1))


_RULE = Rule("recurrence", (), ("weight", "bias"), ("before",), _hidden)


def _in_lanes(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The scan over all lanes at once: their batches side by side in one."""
    steps, reverse, gates, h, c, weight, bias, active = args[:8]
    if any(isinstance(t, Tensor) and is_lane(t) for t in (weight, bias, active)):
        raise Unable("a recurrent layer with a weight for each example")
    lanes.here()
    size, batch = lanes.size, gates.shape[1]
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    trained = {
        role: value
        for role, value in weights.items()
        if value.requires_grad and torch.is_grad_enabled()
    }

    def side_by_side(value: Tensor, at: int) -> Tensor:
        # (…, lanes, batch, …) with the lanes at dimension ``at``, then both as one.
        whole, dim = physical(value) if is_lane(value) else (None, 0)
        if whole is None:
            whole = value.unsqueeze(at).expand(*value.shape[:at], size, *value.shape[at:])
        else:
            whole = whole.movedim(dim, at)
        return whole.flatten(at, at + 1)

    def by_lane(value: Tensor) -> Tensor:
        # (time, lanes·batch, n) → (lanes, time·batch, n)
        apart = value.view(value.shape[0], size, batch, -1).movedim(1, 0)
        return apart.squeeze(2) if batch == 1 else apart.flatten(1, 2)

    site = Site(_RULE, trained, {}, {r: w.detach() for r, w in weights.items()}, (), (), size)
    emit: Any = None
    if trained:
        lanes.count(trained)

        def emit(gradient: Tensor, before: Tensor) -> None:
            saved = {"before": by_lane(before)}
            parameters, roles = site.parameters, frozenset(trained)
            lanes.report(site, Use({}, parameters, saved, by_lane(gradient), roles))

    with outside():
        out, last, cell = func(
            steps,
            reverse,
            side_by_side(gates, 1),
            side_by_side(h, 0),
            None if c is None else side_by_side(c, 0),
            weight.detach(),
            None if bias is None else bias.detach(),
            None if active is None else side_by_side(active, 1),
            emit,
            lanes.anchor if trained else None,
        )
        out = out.unflatten(1, (size, batch))
        last = last.unflatten(0, (size, batch))
        cell = None if cell is None else cell.unflatten(0, (size, batch))
    return (
        lane(out, 1, lanes.level),
        lane(last, 0, lanes.level),
        None if cell is None else lane(cell, 0, lanes.level),
    )


HANDLERS[scan] = _in_lanes


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
    def layers(lanes: Lanes, x: Tensor, second: Any, third: Any, *rest: Any) -> Any:
        if isinstance(third, bool):  # x, states, weights would put has_biases fourth
            raise TypeError("a recurrent layer is called with states and a list of weights")
        if isinstance(second, Tensor) and second.dtype == torch.long and second.dim() == 1:
            return _packed(steps, cell, x, second, third, *rest)
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
    data: Tensor,
    sizes: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    *options: Any,
) -> Any:
    # Unpacked to (time, batch), longest first, run with a mask, packed again. A lane's own batch:
    # lanes of unlike lengths have parted before.
    length, batch = sizes.numel(), int(sizes[0])
    valid = torch.arange(batch) < sizes.unsqueeze(1)
    place = (sizes.cumsum(0) - sizes).unsqueeze(1) + torch.arange(batch)
    rows = place.where(valid, 0).flatten().to(data.device)
    active = valid.unsqueeze(2).to(data.device)
    x = data.index_select(0, rows).view(length, batch, -1) * active
    h, c = states if cell else (states, None)
    out, h, c = _layers(steps, x, h, c, weights, options, None if batch == 1 else active)
    out = out.flatten(0, 1).index_select(0, valid.flatten().nonzero().flatten().to(data.device))
    return (out, h, c) if c is not None else (out, h)


def _two_maps(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, biases: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor]:
    return F.linear(x, w_ih, biases[0]), F.linear(h, w_hh, biases[1])


def _long_cell(
    lanes: Lanes,
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
    lanes: Lanes,
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
        lanes: Lanes,
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
