"""The table of graphs in docs/gossip.md is what their mixing says."""

from __future__ import annotations

from pathlib import Path

import pytest

from forethought.gossip import mixing
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing


def test_the_table_in_the_documentation_is_what_mixing_says():
    text = (Path(__file__).parents[2] / "docs" / "gossip.md").read_text(encoding="utf-8")
    part = text.partition("| graph, mixing |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.count("|") == 4]
    known = {}
    for first, rho, steps in rows:
        graph, _, kind = first.partition(", ")
        if kind not in mixing.KINDS:
            continue
        name, _, degree = graph.partition(" (")
        made = make(name, 16, degree=int(degree.rstrip(")")) if degree else None)
        mixed = Mixing(kind, made)
        assert float(rho) == pytest.approx(mixed.second_eigenvalue(), abs=6e-4)
        assert int(steps.split()[0]) == mixed.time()
        known[first] = mixed
    assert len(known) == 9
