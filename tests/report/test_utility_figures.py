"""The figures of a utility graph are drawn for every kind of grid."""

from pathlib import Path

import numpy as np
import pytest

from forethought.report.figures import draw_utility, edges_of
from forethought.utility.graph import UtilityGraph
from forethought.values.mechanism import FullBatch, Mechanism, Rounds
from forethought.values.plan import Plan


def graph(norms: tuple[float, ...], sigmas: tuple[float, ...], scale: float) -> UtilityGraph:
    product = np.multiply.outer(np.outer(norms, sigmas), np.linspace(0.8, 1.2, 5))
    return UtilityGraph(
        norms,
        sigmas,
        np.full(len(norms), 0.9),
        0.9 * np.exp(-scale * product),
        "synthetic",
        100,
        Plan(Mechanism(Rounds(0.0, 1, FullBatch())), examples=10, delta=0.01),
    )


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("norms", "sigmas", "scale"),
    [
        (tuple(np.geomspace(0.01, 1, 10)), tuple(np.geomspace(0.5, 50, 30)), 0.1),
        ((0.1, 0.2), tuple(range(1, 31)), 0.05),
        ((0.1,), (1.0,), 0.1),
        ((0.1, 1.0), (1.0, 2.0), 50.0),
    ],
    ids=["logarithmic", "even", "one pair", "nothing admissible"],
)
def test_both_figures_are_drawn(
    tmp_path: Path, norms: tuple[float, ...], sigmas: tuple[float, ...], scale: float
) -> None:
    paths = draw_utility(graph(norms, sigmas, scale), tmp_path / "figures")
    assert [path.name for path in paths] == ["utility_curves.png", "utility_map.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


@pytest.mark.parametrize("grid", [(1.0, 2.0, 3.0), tuple(np.geomspace(0.01, 10, 7)), (4.0,)])
def test_every_grid_point_lies_in_its_cell(grid: tuple[float, ...]) -> None:
    edges = edges_of(grid)
    assert len(edges) == len(grid) + 1
    assert (edges[:-1] < grid).all() and (grid < edges[1:]).all()
