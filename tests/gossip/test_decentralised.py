"""What distant workers learn, against independent linear algebra; why some views are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.gossip import decentralised
from forethought.gossip.decentralised import NetworkViewError, averages_exactly, gain
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing


def simulated_view(mixed, first, steps, observers):
    """The rows that observers are sent, by mixing unit vectors in floating point."""
    size = mixed.graph.size
    here, rows = np.eye(size), []
    for step in range(first, first + steps):
        matrix = np.zeros((size, size))
        for worker in range(size):
            for other, weight in mixed.weights(step, worker).items():
                matrix[worker, other] = float(weight)
        for observer in observers:
            rows += [here[j] for j in np.flatnonzero(matrix[observer]) if j not in observers]
        here = matrix @ here
    return np.array(rows).reshape(-1, size), here


def information(rows, observers, noise, worker):
    """1/variance of the best unbiased estimate of the worker's sum, known noise taken away.

    By the posterior of a Gaussian: the worker's sum has a wide prior, the others' sums their noise.
    """
    hidden = [j for j in range(rows.shape[1]) if j not in observers]
    place = hidden.index(worker)
    seen = rows[:, hidden] * np.array(noise)[hidden]
    _, values, right = np.linalg.svd(seen, full_matrices=False)
    basis = right[values > 1e-9]
    return float(np.sum(basis[:, place] ** 2))  # in units of the worker's own noise


GRAPHS = [
    ("matchings", make("ring", 6)),
    ("matchings", make("complete", 7)),
    ("metropolis", make("torus", 9)),
    ("metropolis", make("ring", 8)),
    ("exponential", make("exponential", 8)),
    ("exponential", make("exponential", 6)),
    ("matchings", make("random-regular", 10, degree=3)),
]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 5), st.integers(1, 6), st.data())
def test_the_gain_is_that_of_independent_linear_algebra(case, first, steps, data):
    kind, graph = case
    mixed = Mixing(kind, graph, seed=4)
    workers = range(graph.size)
    observers = data.draw(st.lists(st.sampled_from(workers), min_size=1, max_size=2, unique=True))
    worker = data.draw(st.sampled_from([w for w in workers if w not in observers]))
    noise = data.draw(
        st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=graph.size, max_size=graph.size)
    )
    found = gain(mixed, first, steps, worker, observers, noise)
    rows, _ = simulated_view(mixed, first, steps, observers)
    told = information(rows, observers, noise, worker) if len(rows) else 0.0
    if found == math.inf:
        assert told < 1e-9
    else:
        assert found >= 1
        assert 1 / found**2 == pytest.approx(told, rel=1e-6)


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("worker", range(1, 16))
def test_on_an_exponential_graph_it_is_half_the_workers_at_most(first, worker):
    """Offset d is reached once, with 2^(e−1) workers, e the last of its bits to have its turn."""
    mixed = Mixing("exponential", make("exponential", 16))
    order = [(first + step) % 4 for step in range(4)]
    offset = (0 - worker) % 16
    last = max(order.index(bit) for bit in range(4) if offset >> bit & 1)
    assert gain(mixed, first, 4, worker, [0], [1.0] * 16) == pytest.approx(2 ** (last / 2))


def test_the_gain_never_rounds_up():
    mixed = Mixing("exponential", make("exponential", 16))
    assert gain(mixed, 0, 4, 1, [0], [1.0] * 16) ** 2 <= 8
    assert gain(mixed, 0, 4, 15, [0], [1.0] * 16) == 1  # a direct neighbour in the first exchange


def test_more_observers_and_more_steps_never_learn_less():
    mixed = Mixing("metropolis", make("torus", 16))
    noise = [1.0] * 16
    by_steps = [gain(mixed, 0, steps, 10, [0], noise) for steps in range(1, 12)]
    assert by_steps == sorted(by_steps, reverse=True)
    assert by_steps[0] == math.inf and by_steps[-1] < math.inf
    alone = gain(mixed, 0, 4, 10, [0], noise)
    assert gain(mixed, 0, 4, 10, [0, 3], noise) <= alone
    assert gain(mixed, 0, 4, 10, [0, 11], noise) == 1  # 11 is its neighbour


def test_noisier_others_hide_more():
    mixed = Mixing("exponential", make("exponential", 8))
    quiet = gain(mixed, 0, 3, 1, [0], [1.0] * 8)
    assert gain(mixed, 0, 3, 1, [0], [1.0, 1.0] + [4.0] * 6) > quiet
    assert gain(mixed, 0, 3, 1, [0], [1.0, 4.0] + [1.0] * 6) < quiet


@pytest.mark.parametrize(
    ("kind", "graph", "steps", "exact"),
    [
        ("exponential", make("exponential", 16), 4, True),
        ("exponential", make("exponential", 16), 3, False),
        ("exponential", make("exponential", 16), 5, True),
        ("exponential", make("exponential", 12), 4, False),
        ("metropolis", make("complete", 5), 1, True),
        ("metropolis", make("ring", 5), 50, False),
        ("matchings", make("ring", 2), 1, True),
    ],
)
def test_exact_averaging_is_told_in_fractions(kind, graph, steps, exact):
    mixed = Mixing(kind, graph)
    assert averages_exactly(mixed, 2, steps) is exact
    _, product = simulated_view(mixed, 2, steps, [])
    far = np.abs(product - 1 / graph.size).max()
    assert far < 1e-12 or not exact


def test_rounds_do_not_compose_where_gradients_are_taken_at_hidden_weights():
    """The counterexample behind the refusal, played 20,000 times.

    Eleven workers, σ = C = 1, an observer that only ever sees the average of the ten others. In
    round 1 a record moves worker 0's sum by 1. In round 2 no gradient depends on that record, but
    worker 0's batch of 200 examples pulls each with force ±1 towards its own unmixed weights. Were
    rounds to compose at the gain √10, μ would be √(2/10) and no test's errors could sum to less
    than 2Φ(−μ/2) = 0.82. They sum to 0.62: the observer read round 1's sum as its neighbours did.
    """
    draw = np.random.default_rng(0)
    games, hidden, batch = 20_000, 10, 200
    said = draw.random(games) < 0.5
    first = said + draw.standard_normal(games)
    second = batch * np.clip(first / 10, -1, 1) + draw.standard_normal(games)
    seen = (second + draw.standard_normal((hidden - 1, games)).sum(axis=0)) / hidden
    guess = seen * hidden / batch * 10 > 0.5
    errors = np.mean(guess[~said]) + np.mean(~guess[said])
    claimed = math.erfc(math.sqrt(2 / hidden) / 2 / math.sqrt(2))
    assert claimed == pytest.approx(0.823, abs=1e-3)
    assert errors < claimed - 0.1  # fifteen standard errors


def test_views_that_cannot_be_solved_are_refused(monkeypatch):
    monkeypatch.setattr(decentralised, "MOST_MESSAGES", 10)
    mixed = Mixing("metropolis", make("complete", 8))
    with pytest.raises(NetworkViewError, match="sees its own"):
        gain(mixed, 0, 1, 3, [3], [1.0] * 8)
    with pytest.raises(NetworkViewError, match="least one observer"):
        gain(mixed, 0, 1, 3, [8], [1.0] * 8)
    with pytest.raises(NetworkViewError, match="14 messages"):
        gain(mixed, 0, 2, 3, [0], [1.0] * 8)
    with pytest.raises(NetworkViewError, match="must add noise"):
        gain(mixed, 0, 1, 3, [0], [0.0] * 8)
    with pytest.raises(NetworkViewError, match="at most 256"):
        averages_exactly(Mixing("exponential", make("exponential", 512)), 0, 9)
