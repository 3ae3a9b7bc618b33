"""Faults of local updates: clipping left out, an update counted twice, a state that outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from forethought.auditing.faults import Fault, groups_in_order, half_sensitivity, replaced
from forethought.gradients.sums import clip_and_sum
from forethought.rounds import contributions, local_updates
from forethought.rounds.local_updates import Displacement

_ADDED = contributions._added


def _unclipped() -> AbstractContextManager[None]:
    def loose(terms: Any, trained: Any, _norm: float, *rest: Any) -> Any:
        return clip_and_sum(terms, trained, 1e30, *rest)

    return replaced((contributions, "clip_and_sum", loose))


def _a_tenth_too_long() -> AbstractContextManager[None]:
    def loose(terms: Any, trained: Any, norm: float, *rest: Any) -> Any:
        return clip_and_sum(terms, trained, 1.1 * norm, *rest)

    return replaced((contributions, "clip_and_sum", loose))


def _twice() -> AbstractContextManager[None]:
    def added(*arguments: Any) -> Any:
        _ADDED(*arguments)
        return _ADDED(*arguments)

    return replaced((contributions, "_added", added))


@contextmanager
def _surviving_state() -> Iterator[None]:
    """The inner optimizer's momentum goes from group to group, and from round to round."""
    kept: list[Any] = []

    def displaced(local: Any, start: Any) -> Any:
        made = Displacement(local, start)
        if kept and len(kept[0].moved) == len(made.moved):
            for old, new in zip(kept[0].moved, made.moved, strict=True):
                if old.shape == new.shape and old in kept[0]._optimizer.state:
                    made._optimizer.state[new] = kept[0]._optimizer.state[old]
        kept[:] = [made]
        return made

    with replaced((local_updates, "Displacement", displaced)):
        yield


LOCAL_FAULTS: tuple[Fault, ...] = (
    Fault("local updates not clipped", _unclipped, "local momentum"),
    Fault("local updates clipped 10 % loose", _a_tenth_too_long, "local momentum"),
    Fault("local updates added twice", _twice, "local adam"),
    Fault("local groups cut in order", groups_in_order, "local momentum"),
    Fault("local sensitivity 1 for 2", half_sensitivity, "local momentum"),
    Fault("an inner optimizer's state survives", _surviving_state, "local momentum"),
)
"""Faults in the way from a group's records to its clipped weight change."""
