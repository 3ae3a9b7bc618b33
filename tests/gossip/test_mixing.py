"""Averaging matrices: doubly stochastic in fractions, known to all, and as fast as they say."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from forethought.gossip import mixing, pairing
from forethought.gossip.graphs import KINDS as GRAPHS
from forethought.gossip.graphs import Graph, make
from forethought.gossip.mixing import KINDS, Mixing, MixingError
from forethought.gossip.pairing import colour


@st.composite
def graphs(draw, most=12):
    size = draw(st.integers(2, most))
    edges = {(draw(st.integers(0, one - 1)), one) for one in range(1, size)}
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    edges |= set(draw(st.lists(st.sampled_from(pairs), max_size=3 * size)))
    return Graph("file", size, tuple(edges))


def matrix(weights, size, here):
    found = np.zeros((size, size))
    for worker in here:
        for other, weight in weights(worker).items():
            found[worker, other] = float(weight)
    return found


def every_matrix(mixed):
    """All matrices of a mixing, each as often as it is drawn."""
    size = mixed.graph.size
    if mixed.kind != "matchings":
        return [
            matrix(lambda worker, step=step: mixed.weights(step, worker), size, range(size))
            for step in range(mixed.period)
        ]
    found = []
    if mixed.graph.kind == "complete":
        classes = [
            [(a, b) for a in range(size) if a < (b := pairing.opponent(a, size, shade))]
            for shade in range(mixed.period)
        ]
    else:
        classes = colour(mixed.graph)
    for pairs in classes:
        one = np.eye(size)
        for a, b in pairs:
            one[a, a] = one[b, b] = one[a, b] = one[b, a] = 0.5
        found.append(one)
    return found


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_matchings_share_no_worker_hold_every_edge_once_and_are_as_large(graph):
    classes = colour(graph)
    assert sorted(edge for pairs in classes for edge in pairs) == list(graph.edges)
    for pairs in classes:
        workers = [worker for pair in pairs for worker in pair]
        assert len(workers) == len(set(workers))
    sizes = [len(pairs) for pairs in classes]
    assert max(sizes) - min(sizes) <= 1
    assert len(classes) <= 1 + max(graph.degree(worker) for worker in range(graph.size))


@pytest.mark.parametrize(
    ("kind", "size", "colours"), [("ring", 8, 2), ("hypercube", 16, 4), ("torus", 16, 4)]
)
def test_bipartite_graphs_need_no_colour_more_than_neighbours(kind, size, colours):
    assert len(colour(make(kind, size))) == colours


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from(["matchings", "metropolis"]), st.data())
def test_every_matrix_is_doubly_stochastic_whoever_lives(graph, kind, data):
    mixed = Mixing(kind, graph, seed=3)
    living = data.draw(st.frozensets(st.integers(0, graph.size - 1), min_size=1))
    for here in (None, living):
        mixed.check(here)
        workers = range(graph.size) if here is None else sorted(here)
        for step in range(4):
            rows = {worker: mixed.weights(step, worker, here) for worker in workers}
            assert all(sum(row.values()) == 1 for row in rows.values())
            for worker in workers:
                assert sum(row.get(worker, 0) for row in rows.values()) == 1
                assert set(rows[worker]) <= set(workers)
                assert mixed.receivers(step, worker, here) == tuple(
                    other for other in workers if other != worker and worker in rows[other]
                )


@pytest.mark.parametrize("kind", ["exponential", "complete"])
@pytest.mark.parametrize("size", [2, 3, 6, 8, 11])
def test_exponential_mixing_is_doubly_stochastic_whoever_lives(kind, size):
    mixed = Mixing("exponential", make(kind, size))
    draw = np.random.default_rng(size)
    for _ in range(10):
        living = frozenset(np.flatnonzero(draw.random(size) < 0.7).tolist()) or frozenset({0})
        for here in (None, living):
            mixed.check(here)
            for step in range(mixed.period):
                for worker in here or range(size):
                    for other in mixed.receivers(step, worker, here):
                        assert worker in mixed.weights(step, other, here)


def test_exponential_mixing_averages_exactly_in_a_period_of_a_power_of_two():
    product = np.eye(16)
    for one in every_matrix(Mixing("exponential", make("exponential", 16))):
        product = one @ product
    assert product == pytest.approx(np.full((16, 16), 1 / 16))
    assert Mixing("exponential", make("exponential", 16)).time(1e-9) == 4


@pytest.mark.parametrize(
    ("kind", "size"), [("complete", 7), ("complete", 8), ("ring", 6), ("torus", 9)]
)
def test_partners_agree_with_the_matching_and_with_each_other(kind, size):
    mixed = Mixing("matchings", make(kind, size), seed=5)
    for living in (None, frozenset(range(size)), frozenset({0, 1, 2, 5}), frozenset({3})):
        for step in range(40):
            pairs = mixed.matching(step, living)
            partner = {**dict(pairs), **{b: a for a, b in pairs}}
            for worker in living or range(size):
                assert mixed.partner(step, worker, living) == partner.get(worker)
    assert mixed.matching(3) == mixed.matching(3, frozenset(range(size)))


def test_survivors_on_a_complete_graph_are_paired_anew():
    mixed = Mixing("matchings", make("complete", 8), seed=1)
    living = frozenset({1, 2, 4, 7})
    assert all(len(mixed.matching(step, living)) == 2 for step in range(20))


@pytest.mark.parametrize("players", [1, 2, 3, 4, 7, 8, 21])
def test_in_a_tournament_every_two_meet_exactly_once(players):
    met = np.zeros((players, players), dtype=int)
    for round in range(pairing.rounds(players)):
        everybody = np.array([pairing.opponent(one, players, round) for one in range(players)])
        assert (everybody[everybody] == np.arange(players)).all()
        met[np.arange(players), everybody] += np.arange(players) != everybody
    assert (met == 1 - np.eye(players)).all() or players == 1


def test_matchings_are_drawn_uniformly_and_differ_by_seed():
    """Chi-square over 6 colours; false alarm 1e-6, and the seed is fixed."""
    graph = make("complete", 6)
    mixed = Mixing("matchings", graph, seed=7)
    drawn = [mixed.partner(step, 0) for step in range(5000)]
    counts = [drawn.count(other) for other in range(1, 6)]
    assert chisquare(counts).pvalue > 1e-6
    assert drawn[:20] != [Mixing("matchings", graph, seed=8).partner(step, 0) for step in range(20)]


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("mix", KINDS)
def test_the_second_eigenvalue_is_that_of_all_matrices(kind, mix):
    """Every registered kind on every registered graph, against its matrices one by one."""
    graph = make(kind, 16, degree=3 if kind == "random-regular" else None)
    if mix == "exponential" and kind not in ("complete", "exponential"):
        with pytest.raises(MixingError, match="exponential or complete"):
            Mixing(mix, graph)
        return
    mixed = Mixing(mix, graph)
    mixed.check()
    matrices = every_matrix(mixed)
    assert len(matrices) == mixed.period
    assert all(np.allclose(one.sum(0), 1) and np.allclose(one.sum(1), 1) for one in matrices)
    assert mixed.mutual == all((one == one.T).all() for one in matrices)
    for worker in range(16):
        for other in mixed.receivers(0, worker):
            assert mixed.weights(0, other)[worker] > 0
    if mix == "exponential":
        assert mixed.second_eigenvalue() == 0
        return
    mean = sum(one.T @ one for one in matrices) / len(matrices)
    second = np.sort(np.abs(np.linalg.eigvalsh(mean)))[-2]
    assert mixed.second_eigenvalue() == pytest.approx(second, abs=1e-10)


@pytest.mark.parametrize("size", [2, 3, 5, 12])
def test_closed_forms_hold_at_awkward_sizes(size):
    for kind in ("complete", "ring", "exponential"):
        mixed = Mixing("matchings", make(kind, size))
        mean = sum(every_matrix(mixed)) / mixed.period
        assert mixed.second_eigenvalue() == pytest.approx(
            np.sort(np.linalg.eigvalsh(mean))[-2], abs=1e-10
        )
    torus = Mixing("matchings", make("torus", 6))
    mean = sum(every_matrix(torus)) / torus.period
    assert torus.second_eigenvalue() == pytest.approx(np.sort(np.linalg.eigvalsh(mean))[-2])


def test_large_sparse_graphs_agree_with_dense_eigenvalues():
    graph = make("random-regular", 700, degree=4)
    laplacian = 4 * np.eye(700)
    for one, other in graph.edges:
        laplacian[one, other] = laplacian[other, one] = -1
    second = np.linalg.eigvalsh(laplacian)[1]
    mixed = Mixing("matchings", graph)
    assert mixed.second_eigenvalue() == pytest.approx(1 - second / (2 * mixed.period), abs=1e-6)
    metropolis = Mixing("metropolis", graph)
    assert metropolis.second_eigenvalue() == pytest.approx((1 - second / 5) ** 2, abs=1e-6)


def test_disagreement_after_the_mixing_time_is_at_most_what_it_says():
    """The mean over 400 runs of the squared rest; the bound is on the expectation, and a run's rest
    is heavy-tailed, so twice the bound is allowed."""
    mixed = Mixing("matchings", make("torus", 16), seed=2)
    steps = mixed.time(0.1)
    draw = np.random.default_rng(0)
    rests = []
    for run in range(400):
        here = draw.standard_normal(16)
        here -= here.mean()
        before = np.sum(here**2)
        for step in range(steps):
            for a, b in mixed.matching(run * steps + step):
                here[a] = here[b] = (here[a] + here[b]) / 2
        rests.append(np.sum(here**2) / before)
    assert np.mean(rests) <= 2 * 0.1**2


@pytest.mark.parametrize("kind", ["metropolis", "exponential"])
def test_fixed_matrices_mix_in_their_time(kind):
    mixed = Mixing(kind, make("exponential", 12))
    product = np.eye(12)
    for step in range(mixed.time(0.01)):
        product = matrix(lambda w, step=step: mixed.weights(step, w), 12, range(12)) @ product
    assert np.linalg.norm(product - 1 / 12, 2) <= 0.01 * (1 + 1e-9)


def write(tmp_path, text):
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    return path


def test_a_matrix_from_a_file_is_exact(tmp_path):
    path = write(tmp_path, "1/2 1/2 0  # first\n0.5 1/6 1/3\n0 1/3 2/3\n")
    mixed = mixing.given(make("ring", 3), path)
    assert mixed.weights(9, 1) == {0: Fraction(1, 2), 1: Fraction(1, 6), 2: Fraction(1, 3)}
    assert mixed.receivers(0, 0) == (1,)
    mixed.check(frozenset({1, 2}))
    assert mixed.weights(0, 1, frozenset({1, 2})) == {1: Fraction(2, 3), 2: Fraction(1, 3)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.333 0.333 0.334\n0.333 0.334 0.333\n0.334 0.333 0.334\n", "row 2 sums to 1001/1000"),
        ("1/2 1/2 0\n1/2 1/2 0\n1/2 0 1/2\n", "column 0 sums to 3/2"),
        ("2 -1 0\n-1 2 0\n0 0 1\n", "no weight may be negative"),
        ("1 0\n0 1\n", "each of 3 workers, not 2"),
        ("1 0 0\n0 1 0\n", "as many rows, not 2"),
        ("1 0 zero\n", "line 1: weights are fractions"),
        ("1/0 0 0\n", "line 1: weights are fractions"),
    ],
)
def test_a_matrix_that_is_not_doubly_stochastic_is_one_line(tmp_path, text, says):
    with pytest.raises(MixingError, match=says) as raised:
        mixing.given(make("ring", 3), write(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_a_weight_needs_an_edge_and_an_idle_matrix_never_mixes(tmp_path):
    path = write(tmp_path, "1/2 0 1/2 0\n0 1 0 0\n1/2 0 1/2 0\n0 0 0 1\n")
    with pytest.raises(MixingError, match="edge between them"):
        mixing.given(make("ring", 4), path)
    with pytest.raises(MixingError, match="brings the workers"):
        mixing.given(make("complete", 4), path)


@pytest.mark.parametrize("rows", ["1 0 0\n0 1 0\n0 0 1", "0 1 0\n0 0 1\n1 0 0", "0 1\n1 0"])
def test_a_matrix_that_never_mixes_is_refused_when_it_is_read(rows, tmp_path):
    """Nothing passes between parts, or weights only change places."""
    with pytest.raises(MixingError, match="brings the workers"):
        mixing.given(make("complete", len(rows.split("\n"))), write(tmp_path, rows))


def test_a_matrix_mixes_also_where_two_workers_take_the_same(tmp_path):
    path = write(tmp_path, "0 1 0\n1/2 0 1/2\n1/2 0 1/2\n")
    assert mixing.given(make("complete", 3), path).period == 1


def test_kinds_are_told_apart():
    with pytest.raises(ValueError, match="kind must be"):
        Mixing("random", make("ring", 4))
    with pytest.raises(MixingError, match="has its rows"):
        Mixing("given", make("ring", 4))
    with pytest.raises(MixingError, match="has no pairs"):
        Mixing("metropolis", make("ring", 4)).matching(0)
    assert Mixing("metropolis", make("complete", 5)).second_eigenvalue() == 0
    assert Mixing("metropolis", make("complete", 5)).time() == 1


def test_a_broken_tournament_would_be_noticed(monkeypatch):
    monkeypatch.setattr(pairing, "opponent", lambda player, players, round: 0)
    with pytest.raises(MixingError, match="doubly stochastic"):
        Mixing("matchings", make("complete", 5)).check()
