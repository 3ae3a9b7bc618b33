"""Means that are means, and means that a hostile client cannot move far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.federated.aggregation import TOGETHER, WeightedMean, aggregate, shortened
from forethought.federated.federation import Robust, ServerOptimizer
from forethought.federated.steps import moved

D = 5


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_mean_is_the_mean(count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(count, D)).astype(np.float32)
    shares = generator.uniform(0.1, 1, size=count)
    mean = WeightedMean(None)
    for client, (vector, share) in enumerate(zip(vectors, shares, strict=True)):
        mean.add(client, vector, share)
    expected = np.average(vectors.astype(float), axis=0, weights=shares)
    assert np.allclose(mean.result(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["mean", "trimmed", "median", "norm-bound"])
@given(st.permutations(range(TOGETHER)), st.integers(2, TOGETHER), st.integers(0, TOGETHER))
@settings(max_examples=25, deadline=None)
def test_whoever_comes_first_the_bits_are_the_same(
    kind: str, order: list[int], count: int, halt: int
) -> None:
    """Also where the server is made again from a snapshot in the middle."""
    generator = np.random.default_rng(count)
    vectors = generator.normal(size=(TOGETHER, 300)).astype(np.float32)
    shares = generator.uniform(0.1, 1, size=TOGETHER).tolist()
    robust = Robust(kind, share=0.2, bound=9.0 if kind == "norm-bound" else None)

    def result(clients: list[int]) -> np.ndarray:
        found = aggregate(robust, None)
        for number, client in enumerate(clients):
            if number == halt:
                state, found = found.state(), aggregate(robust, None)
                found.restore(state)
            found.add(client, vectors[client], shares[client])
        return found.result()

    came = [client for client in order if client < count]
    np.testing.assert_array_equal(result(came), result(sorted(came)))


def test_one_vector_is_its_own_mean_bit_for_bit() -> None:
    vector = np.random.default_rng(0).normal(size=1000).astype(np.float32) * np.float32(1e-3)
    for share in (1.0, 0.3):
        mean = WeightedMean(None)
        mean.add(0, vector, share)
        exact = mean.result() == vector
        assert exact.all() if share == 1.0 else exact.mean() > 0.5


@pytest.mark.parametrize("kind", ["trimmed", "median", "norm-bound"])
def test_two_hostile_clients_of_ten_do_not_carry_the_model_away(kind: str) -> None:
    generator = np.random.default_rng(1)
    honest = generator.normal(size=(8, D)).astype(np.float32)
    hostile = np.full((2, D), 1e6, dtype=np.float32)
    robust = Robust(kind, share=0.2, bound=5.0 if kind == "norm-bound" else None)
    found = aggregate(robust, np.zeros(D, np.float32))
    plain = aggregate(Robust(), np.zeros(D, np.float32))
    for client, vector in enumerate((*honest, *hostile)):
        found.add(client, vector, 0.1)
        plain.add(client, vector, 0.1)
    assert np.linalg.norm(plain.result()) > 1e5
    assert np.linalg.norm(found.result() - honest.mean(0)) < 3


def test_trimmed_mean_and_median_are_those_of_numpy() -> None:
    values = np.random.default_rng(2).normal(size=(9, D)).astype(np.float32)
    trimmed, median = aggregate(Robust("trimmed", 0.2), None), aggregate(Robust("median"), None)
    for client, row in enumerate(values):
        trimmed.add(client, row, 1.0)
        median.add(client, row, 1.0)
    assert np.allclose(median.result(), np.median(values, axis=0))
    assert np.allclose(trimmed.result(), np.sort(values, axis=0)[2:7].mean(0), atol=1e-6)


def test_a_short_vector_is_left_as_it_is() -> None:
    centre = np.ones(D, np.float32)
    near, far = centre + np.float32(0.1), centre + np.float32(10)
    assert shortened(near, centre, 1.0) is near
    assert np.isclose(np.linalg.norm(shortened(far, centre, 1.0) - centre), 1.0)


def test_nothing_has_no_mean() -> None:
    for robust in (Robust(), Robust("median")):
        with pytest.raises(ValueError, match="update has come"):
            aggregate(robust, None).result()


def reference(kind: str, changes: np.ndarray) -> np.ndarray:
    """Reddi et al. 2021, Algorithm 2, written down again, coordinate by coordinate."""
    rate, beta1, beta2, tau = 0.1, 0.9, 0.99, 1e-3
    weights = np.zeros(changes.shape[1])
    for place in range(len(weights)):
        m, v, x = 0.0, tau * tau, 0.0
        for change in changes[:, place]:
            if kind == "avgm":
                m = beta1 * m + change
                x += rate * m
                continue
            m = beta1 * m + (1 - beta1) * change
            if kind == "adam":
                v = beta2 * v + (1 - beta2) * change**2
            else:
                v = v - (1 - beta2) * change**2 * np.sign(v - change**2)
            x += rate * m / (np.sqrt(v) + tau)
        weights[place] = x
    return weights


@pytest.mark.parametrize("kind", ["avgm", "adam", "yogi"])
def test_server_optimizers_are_those_of_the_paper(kind: str) -> None:
    changes = np.random.default_rng(3).normal(size=(6, D))
    how = ServerOptimizer(kind, rate=0.1)
    weights, moments = np.zeros(D, np.float32), {}
    for change in changes:
        weights = moved(how, moments, weights, change)
    assert np.allclose(weights, reference(kind, changes), rtol=1e-4, atol=1e-5)
