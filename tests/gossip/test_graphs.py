"""Graphs by name and from files; what is not connected is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.gossip.graphs import KINDS, Graph, GraphError, make, read, sides


def adjacency(graph):
    matrix = np.zeros((graph.size, graph.size), dtype=int)
    for one, other in graph.edges:
        matrix[one, other] = matrix[other, one] = 1
    return matrix


@pytest.mark.parametrize(
    ("kind", "size", "degrees"),
    [
        ("complete", 6, {5}),
        ("ring", 7, {2}),
        ("ring", 2, {1}),
        ("torus", 12, {4}),
        ("torus", 6, {3}),
        ("hypercube", 16, {4}),
        ("exponential", 16, {7}),
        ("exponential", 6, {4}),
    ],
)
def test_every_worker_has_the_neighbours_of_its_graph(kind, size, degrees):
    graph = make(kind, size)
    assert {graph.degree(worker) for worker in range(size)} == degrees
    for worker in range(size):
        near = np.flatnonzero(adjacency(graph)[worker])
        assert graph.neighbours(worker) == tuple(near)
        assert [graph.joins(worker, other) for other in range(size)] == [
            other in near for other in range(size)
        ]


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 40), st.integers(3, 8), st.integers(0, 10**6))
def test_random_regular_graphs_are_regular_connected_and_repeat(size, degree, seed):
    if degree >= size or size * degree % 2:
        with pytest.raises(ValueError, match=r"degree|half an edge"):
            make("random-regular", size, degree=degree, seed=seed)
        return
    graph = make("random-regular", size, degree=degree, seed=seed)
    assert (adjacency(graph).sum(axis=0) == degree).all()
    assert graph == make("random-regular", size, degree=degree, seed=seed)
    assert max(graph.distances(0)) < size


def test_random_graphs_depend_on_the_seed():
    drawn = {make("random-regular", 20, degree=3, seed=seed).edges for seed in range(5)}
    assert len(drawn) == 5


def test_distances_are_those_of_matrix_powers():
    graph = make("torus", 20)
    near = adjacency(graph) + np.eye(graph.size, dtype=int)
    for worker in (0, 7):
        for other, distance in enumerate(graph.distances(worker)):
            assert (np.linalg.matrix_power(near, distance)[worker, other] > 0) and (
                distance == 0 or np.linalg.matrix_power(near, distance - 1)[worker, other] == 0
            )


def test_a_graph_from_a_file(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("# three sites\n0 1\n2,1   # by the river\n\n1 0\n")
    graph = read(path)
    assert (graph.kind, graph.size, graph.edges) == ("file", 3, ((0, 1), (1, 2)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 1\n2 3\n", "not connected.*2 of 4.*worker 2"),
        ("0 2\n", "not connected.*worker 1"),
        ("0 1\n1 1\n", "worker 1 has an edge to itself"),
        ("0 one\n", "line 1: '0 one' is not an edge"),
        ("0 1 2\n", "line 1"),
        ("-1 2\n", "line 1"),
        ("# nothing\n", "has no edge"),
        ("0 100000000\n", "at most 100,000"),
    ],
)
def test_a_file_that_is_no_graph_is_one_line(tmp_path, text, says):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(GraphError, match=says) as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_impossible_graphs_are_refused():
    with pytest.raises(GraphError, match="8 or 16"):
        make("hypercube", 9)
    with pytest.raises(GraphError, match="7 workers make"):
        make("torus", 7)
    with pytest.raises(GraphError, match="out for 'ring'"):
        make("ring", 7, degree=2)
    with pytest.raises(ValueError, match="one of 'complete'"):
        make("star", 7)
    with pytest.raises(GraphError, match="names a worker"):
        Graph("file", 2, ((0, 2),))
    with pytest.raises(ValueError, match="size"):
        make("ring", 1)


def test_a_torus_is_as_square_as_can_be():
    assert [sides(size) for size in (4, 12, 16, 36, 35)] == [(2, 2), (3, 4), (4, 4), (6, 6), (5, 7)]


def test_ten_thousand_complete_workers_need_no_list():
    graph = make("complete", 10_000)
    assert graph.listed is None
    assert graph.degree(5) == 9_999
    assert set(KINDS) >= {"complete", "ring"}
