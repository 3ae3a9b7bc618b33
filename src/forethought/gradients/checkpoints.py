"""Gradient checkpointing in the lanes: a checkpointed part runs again in lanes of its own.

torch's non-reentrant checkpointing is used as it is, outside vmap, where it saves physical tensors;
what it runs again re-enters the lanes. Random numbers are drawn again from the same state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch.utils.checkpoint import noop_context_fn

from forethought.gradients.boundary import Checkpoint, checkpoints_by, entered, outside
from forethought.gradients.control import Unable
from forethought.gradients.lanes import Lanes


def in_lanes(lanes: Lanes) -> AbstractContextManager[None]:
    """While active, ``torch.utils.checkpoint.checkpoint`` works inside the lanes."""

    def make(generator: Checkpoint) -> Checkpoint:
        def ours(
            function: Checkpoint,
            preserve_rng_state: bool = True,
            context_fn: Any = None,
            determinism_check: str = "default",
            debug: bool = False,
            early_stop: bool = True,
            *args: Any,
            **kwargs: Any,
        ) -> Iterator[None]:
            lanes.here()
            taken = 0 if lanes.draws is None else lanes.draws.number

            def again() -> None:
                if lanes.draws is not None:
                    lanes.draws.number = taken
                with entered(lanes.size) as level:
                    if level != lanes.level:
                        raise Unable("the backward pass runs inside another torch.func transform")
                    with lanes:
                        function(*args, **kwargs)

            options = (preserve_rng_state, noop_context_fn, determinism_check, False, early_stop)
            parts = generator(again, *options)
            with outside():
                next(parts)
            try:
                yield
            finally:
                with outside():
                    for _ in parts:
                        pass

        return ours

    return checkpoints_by(make)
