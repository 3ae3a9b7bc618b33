"""Where values of the examples reach Python, or decide on a shape: every lane gets its own answer.

Lanes with one answer go on together; where they disagree, they part (:class:`.control.Parted`),
so that each computes exactly what it would alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from forethought.gradients.boundary import PACK, PAD, is_lane, lane, outside, physical, rows
from forethought.gradients.control import Unable
from forethought.gradients.lanes import Lanes, handles

T = torch.Tensor


def _key(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        if plain.dtype == torch.bool:
            plain = plain.to(torch.uint8)
        return (tuple(value.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return repr(value)


def _one(value: Any, at: int) -> Any:
    # One lane's own value of an argument, outside vmap.
    if isinstance(value, Tensor):
        if not is_lane(value):
            return value
        whole, dim = physical(value)
        return whole.select(dim, at)
    if isinstance(value, tuple | list):
        return type(value)(_one(leaf, at) for leaf in value)
    return value


def each(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The function, for one lane after another, outside vmap."""
    lanes.here()
    with outside():
        return [
            func(*(_one(v, at) for v in args), **{k: _one(v, at) for k, v in kwargs.items()})
            for at in range(lanes.size)
        ]


@handles(T.__bool__, T.is_nonzero, torch.is_nonzero)
def _truth(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    lanes.here()
    if args[0].numel() != 1:
        return NotImplemented
    with outside():
        keys = (rows(args[0]).detach().reshape(lanes.size) != 0).tolist()
    lanes.decide(keys)
    return keys[0]


@handles(
    T.item,
    T.tolist,
    T.__int__,
    T.__float__,
    T.__complex__,
    T.__index__,
    T.numpy,
    T.__array__,
    T.__format__,
    T.__repr__,
    T.__contains__,
    T.equal,
    torch.equal,
    T.allclose,
    torch.allclose,
)
def _value(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        answers = each(lanes, func, args, kwargs)
    array = func in (T.numpy, T.__array__)
    lanes.decide([(a.shape, a.tobytes()) if array else _key(a) for a in answers])
    return answers[0].copy() if array else answers[0]


@handles(
    T.nonzero,
    torch.nonzero,
    torch.argwhere,
    T.argwhere,
    T.masked_select,
    torch.masked_select,
    T.unique,
    torch.unique,
    T.unique_consecutive,
    torch.unique_consecutive,
    T.bincount,
    torch.bincount,
)
def _shaped(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions whose result has a shape that the values decide on."""
    return _stacked(lanes, each(lanes, func, args, kwargs))


def _stacked(lanes: Lanes, answers: list[Any]) -> Any:
    if isinstance(answers[0], Tensor):
        lanes.decide([tuple(answer.shape) for answer in answers])
        with outside():
            whole = torch.stack(answers)
        return lane(whole, 0, lanes.level)
    if isinstance(answers[0], tuple):
        lanes.decide([len(answer) for answer in answers])
        return tuple(_stacked(lanes, list(column)) for column in zip(*answers, strict=True))
    lanes.decide([_key(answer) for answer in answers])
    return answers[0]


@handles(torch.where)
def _where(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return _shaped(lanes, func, args, kwargs)
    return NotImplemented


@handles(torch.repeat_interleave, T.repeat_interleave)
def _repeated(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
    if isinstance(repeats, Tensor) and is_lane(repeats):
        return _shaped(lanes, func, args, kwargs)
    return NotImplemented


def _index(lanes: Lanes, index: Any) -> Any:
    """The index with masks of the examples turned into positions; None if there are none."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(
        isinstance(p, Tensor)
        and is_lane(p)
        and (p.dtype in (torch.bool, torch.uint8) or not p.dim())
        for p in parts
    ):
        return None
    found: list[Any] = []
    for part in parts:
        if not isinstance(part, Tensor) or not is_lane(part):
            found.append(part)
        elif part.dtype in (torch.bool, torch.uint8):
            if not part.dim():
                raise Unable("an example's truth value is used as an index")
            places = _shaped(lanes, T.nonzero, (part,), {})
            found += places.unbind(1)
        elif part.dim() == 0:
            found.append(_value(lanes, T.item, (part,), {}))
        else:
            found.append(part)
    return tuple(found)


@handles(T.__getitem__)
def _get(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = _index(lanes, args[1])
    if index is None:
        return NotImplemented
    with lanes:
        return args[0][index]


@handles(T.__setitem__)
def _set(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    index = _index(lanes, args[1])
    if index is None:
        return NotImplemented
    with lanes:
        args[0][index] = args[2]
    return None


@handles(PACK)
def _packed(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, lengths, batch_first = args
    if is_lane(lengths):
        lengths = torch.tensor(_value(lanes, T.tolist, (lengths,), {}))
    if not is_lane(values):
        return NotImplemented
    answers = each(lanes, func, (values, lengths, batch_first), {})
    with outside():
        whole = torch.stack([data for data, _ in answers])
    return lane(whole, 0, lanes.level), answers[0][1]


@handles(PAD)
def _padded(lanes: Lanes, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    answers = each(lanes, func, args, kwargs)
    with outside():
        whole = torch.stack([data for data, _ in answers])
    return lane(whole, 0, lanes.level), answers[0][1]
