"""A client's own steps: the bits of the plain expression, made only when somebody looks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.federated.machines import federation

from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Model, Vector
from forethought.federated.client import ClientMachine
from forethought.federated.own_model import PIECE, OwnModel, subtract_step


def vectors(length: int) -> tuple[Vector, Vector]:
    drawn = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32)
    return drawn[0], drawn[1]


@pytest.mark.parametrize("length", [1, 7, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_a_step_has_the_bits_of_the_plain_expression(length: int) -> None:
    weights, step = vectors(length)
    kept = weights.copy()
    expected = weights - step * np.float32(0.1)
    own = OwnModel(Model(0, 0, weights), step, 0.1)
    assert own.vector.tobytes() == expected.tobytes()
    assert own.vector is own.vector and np.array_equal(weights, kept)
    subtract_step(weights, step, 0.1, weights)
    assert weights.tobytes() == expected.tobytes()
    total = kept + step * np.float32(0.3)
    subtract_step(kept, step, -0.3, kept)
    assert kept.tobytes() == total.tobytes()


def test_steps_on_steps_are_made_in_order_and_travel_between_processes() -> None:
    weights, step = vectors(50)
    own = OwnModel(OwnModel(Model(0, 0, weights), step, 0.5), step, 0.25)
    sent = pickle.loads(pickle.dumps(own))
    expected = (weights - step * np.float32(0.5)) - step * np.float32(0.25)
    assert sent.vector.tobytes() == own.vector.tobytes() == expected.tobytes()


def test_nothing_is_made_until_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(weights: Vector, step: Vector, size: float, out: Vector) -> None:
        made.append(len(weights))
        subtract_step(weights, step, size, out)

    monkeypatch.setattr("forethought.federated.own_model.subtract_step", counted)
    agreed = federation(rule="asynchronous", exchanged="gradients")
    machine = ClientMachine(agreed, 0)
    start = np.ones(agreed.parameters, dtype=np.float32)
    machine.handle(on.Received(SERVER, Model(0, 0, start), 0.0))
    done = on.Computed(0, 0, np.ones_like(start), 1, b"", b"", 1.0)
    (again,) = [e for e in machine.handle(done) if isinstance(e, on.Compute)]
    assert again.base == 0 and not made
    looked = again.vector
    assert made == [len(start)] and looked[0] < 1
    assert machine.weights is looked


def test_a_federation_travels_between_processes_after_it_was_used() -> None:
    agreed = federation(rule="asynchronous", exchanged="gradients")
    assert agreed.permits(0, 0) and agreed.step_sizes[0](0) > 0
    assert pickle.loads(pickle.dumps(agreed)) == agreed
