"""The comparison table: exact first, no guarantee is marked, what does not apply is said."""

from __future__ import annotations

import pytest

import forethought as ft
from forethought.published.comparison import Row, compare


def rows(mechanism: ft.Mechanism, delta: float, examples: int | None) -> dict[str, Row]:
    return {row.name: row for row in compare(mechanism, delta, examples)}


def test_the_papers_own_setting() -> None:
    mechanism = ft.Mechanism(ft.Rounds(19.29962, 1923, ft.Poisson(26 / 10_000)))
    found = rows(mechanism, 1e-4, 10_000)
    exact = found["exact"].epsilon
    assert exact == pytest.approx(0.01026, rel=2e-3)
    for name in ("Rényi", "closed form", "strong adversary"):
        assert found[name].guarantee
        assert found[name].epsilon is not None
        assert found[name].epsilon > exact
    assert found["closed form"].epsilon == pytest.approx(0.0497, rel=1e-2)
    assert not found["CLT (approximate)"].guarantee


def test_a_closed_form_whose_conditions_fail_is_no_guarantee() -> None:
    mechanism = ft.Mechanism(ft.Rounds(3.0, 1000, ft.Poisson(0.5)))
    row = rows(mechanism, 1e-5, 10_000)["closed form"]
    assert not row.guarantee
    assert "not proven" in row.note


@pytest.mark.parametrize(
    ("mechanism", "examples", "name", "why"),
    [
        (ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.1))), 100, "closed form", "√2"),
        (ft.Mechanism(ft.Rounds(2.0, 10, ft.Poisson(0.1))), None, "closed form", "number of"),
        (ft.Mechanism(ft.Rounds(2.0, 10, ft.FullBatch())), 100, "closed form", "Poisson"),
        (ft.Mechanism(ft.Rounds(2.0, 3, ft.Poisson(0.1))), 100, "strong adversary", "whole epochs"),
        (ft.Mechanism(ft.Rounds(2.0, 10, ft.FullBatch())), 100, "strong adversary", "hide nothing"),
        (
            ft.Mechanism(ft.Rounds(2.0, 10, ft.Poisson(0.1), "group")),
            100,
            "strong adversary",
            "groups",
        ),
        (
            ft.Mechanism(ft.Rounds(2.0, 10, ft.Poisson(0.1)), ft.Rounds(3.0, 10, ft.Poisson(0.1))),
            100,
            "strong adversary",
            "equal rounds",
        ),
    ],
)
def test_what_does_not_apply_says_why(
    mechanism: ft.Mechanism, examples: int | None, name: str, why: str
) -> None:
    row = rows(mechanism, 1e-5, examples)[name]
    assert row.epsilon is None
    assert not row.guarantee
    assert why in row.note


def test_for_shuffling_the_strong_adversary_is_the_exact_figure() -> None:
    mechanism = ft.Mechanism(
        ft.Rounds(8.0, 4700, ft.Shuffled(256, 60_000)), adjacency="replace-one"
    )
    found = rows(mechanism, 1e-5, 60_000)
    assert found["strong adversary"].epsilon == pytest.approx(found["exact"].epsilon, rel=1e-6)


def test_rows_are_json_ready() -> None:
    endless = Row("x", float("inf"), False, "")
    assert endless.to_dict()["epsilon"] == "infinity"
