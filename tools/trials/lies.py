"""What one hostile member may say: true messages, changed; and messages that nobody asked for.

A liar holds its own keys and nobody else's, and signs what it says. So it can say anything of
itself, and of others only what they signed. See the doors in the trials.
"""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import (
    Acknowledgement,
    Finished,
    Join,
    Leave,
    Model,
    Refusal,
    Update,
)
from forethought.gossip.events import ANSWER, LAST, Hello, Known, Weights

REASONS = ("late", "twice", "future", "conflict", "norm", "shape", "beyond plan", "stale", "")


def number(draw: random.Random, true: int) -> int:
    """A number near the true one, or absurd."""
    return draw.choice((true, true + 1, true - 1, true + draw.randint(-3, 9), 0, -1, -2, 10**12))


def vector(draw: random.Random, true: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vector near the true one, far away, none, or of another shape."""
    size = len(true)
    kind = draw.randrange(7)
    if kind == 0:
        return true
    if kind == 1:
        return true + np.float32(draw.uniform(-1, 1))
    if kind == 2:
        return np.full(size + draw.choice((-1, 1)), 0.5, dtype=np.float32)
    value = (np.nan, np.inf, 1e17, -1e30)[kind - 3]
    return np.full(size, value, dtype=np.float32)


def changed(draw: random.Random, message: Any) -> Any:
    """A message with one field or more that is not true."""
    lies: dict[str, Any] = {}
    names = [field.name for field in fields(message) if field.name != "proof"]
    for name in draw.sample(names, draw.randint(1, len(names))):
        true = getattr(message, name)
        if isinstance(true, str):
            lies[name] = draw.choice(REASONS)
        elif isinstance(true, int):
            lies[name] = number(draw, true)
        else:
            lies[name] = vector(draw, true)
    return replace(message, **lies)


def of_client(draw: random.Random, round: int, base: int, weights: NDArray[np.float32]) -> Any:
    """Something that a lying client says unasked."""
    message = draw.choice(
        (
            Join(round, base),
            Update(round, base, weights),
            Leave(round, base, "plan used up"),
            Acknowledgement(round, base),
            Finished(round, base, weights),
        )
    )
    return changed(draw, message)


def of_server(draw: random.Random, round: int, base: int, weights: NDArray[np.float32]) -> Any:
    """Something that a lying server says unasked."""
    message = draw.choice(
        (
            Model(round, base, weights),
            Acknowledgement(round, base),
            Refusal(round, base, "late"),
            Finished(round, base, weights),
            Update(round, base, weights),
        )
    )
    return changed(draw, message)


def of_worker(draw: random.Random, round: int, base: int, weights: NDArray[np.float32]) -> Any:
    """Something that a lying worker says unasked."""
    step = draw.choice((base, base + 1, ANSWER, LAST))
    message = draw.choice(
        (
            Weights(round, step, 0, round << 20, draw.choice((-1, 0, 1)), weights),
            Weights(round, step, round, round << 40, 0, weights),
            Hello(round, base, draw.randrange(2)),
            Known(round, base, round + 1, 1),
        )
    )
    return changed(draw, message)
