"""Small federations for the machines' tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import forethought as ft
from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Model, Update
from forethought.federated.federation import Federation, Member
from forethought.federated.server import ServerMachine

D = 4


def plan(rounds: int = 6, **changes: Any) -> ft.Plan:
    return ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, rounds, ft.Poisson(0.5))),
        40,
        1e-3,
        optimizer=ft.Optimizer("sgd", 0.5, ()),
        **changes,
    )


def federation(clients: int = 3, rounds: int = 3, **changes: Any) -> Federation:
    known: dict[str, Any] = {
        "members": tuple(Member(f"c{place}") for place in range(clients)),
        "plans": (plan(rounds),),
        "parameters": D,
        "architecture": "test",
        "rounds": rounds,
    }
    if changes.get("rule", "synchronous") != "synchronous":
        known["exchanged"] = "gradients"
    return Federation(**{**known, **changes})


def vector(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values or (0.0,) * D, dtype=np.float32)


def sent(effects: list[on.Effect], kind: type) -> list[Any]:
    return [e.message for e in effects if isinstance(e, on.Send) and isinstance(e.message, kind)]


def of(effects: list[on.Effect], kind: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def from_server(message: Any, now: float = 0.0) -> on.Received:
    return on.Received(SERVER, message, now)


def model(base: int, *values: float, round: int = 0) -> Model:
    return Model(round, base, vector(*values))


def joined(machine: ServerMachine, now: float = 0.0) -> ServerMachine:
    from forethought.exchange.messages import Join

    machine.handle(on.Connected(now))
    for client in range(len(machine.federation.members)):
        machine.handle(on.Received(client, Join(0, -1), now))
    return machine


def update(machine: ServerMachine, client: int, one: Update, now: float = 0.0) -> list[on.Effect]:
    return machine.handle(on.Received(client, one, now))
