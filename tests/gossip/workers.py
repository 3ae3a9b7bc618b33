"""Small gossips for the machines' tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import forethought as ft
from forethought.gossip import events as on
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing

D = 3
Vector = NDArray[np.float32]


def plan(rounds: int = 6, rate: float = 0.5, examples: int = 40, **changes: Any) -> ft.Plan:
    mechanism = ft.Mechanism(ft.Rounds(1.0, rounds, ft.Poisson(rate)))
    optimizer = ft.Optimizer("sgd", 0.5, ())
    return ft.Plan(mechanism, examples, 1e-3, **{"optimizer": optimizer, **changes})


def gossip(
    workers: int = 4,
    rounds: int = 4,
    graph: str = "complete",
    kind: str = "matchings",
    **changes: Any,
) -> Gossip:
    known: dict[str, Any] = {
        "members": tuple(Member(f"w{place}") for place in range(workers)),
        "plans": (plan(rounds + 2),),
        "mixing": Mixing(kind, make(graph, workers)),
        "parameters": D,
        "architecture": "test",
        "rounds": rounds,
    }
    return Gossip(**{**known, **changes})


def vector(*values: float) -> Vector:
    return np.array(values or (0.0,) * D, dtype=np.float32)


def done(round: int, *values: float) -> on.GradientDone:
    return on.GradientDone(round, vector(*values), round + 1, b"", b"state")


def of(effects: list[on.Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: list[on.Effect], kind: type) -> list[Any]:
    return [e.message for e in effects if isinstance(e, on.Send) and isinstance(e.message, kind)]
