"""Releases: they are the accounted rounds, or they are not, whatever way they are cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forethought as ft
from forethought.accounting.statement import SCORE, StatedRelease, account, difference, listed
from forethought.values.mechanism import Mechanism, Poisson, Rounds

MECHANISM = Mechanism(Rounds(1.1, 200, Poisson(0.01)), Rounds(1.3, 20, Poisson(0.02)))
PARTS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.5, 1.0, 2.0])), min_size=1)


@given(PARTS, st.lists(st.integers(1, 4), max_size=30), st.floats(0.1, 10))
def test_rounds_are_recognised_however_they_are_cut(
    parts: list[tuple[int, float]], cuts: list[int], count_noise: float
) -> None:
    mechanism = Mechanism(*(Rounds(sigma, n, Poisson(0.1)) for n, sigma in parts))
    sums = [StatedRelease("sums", 1, sigma) for n, sigma in parts for _ in range(n)]
    merged = listed(sums)
    assert difference(merged, mechanism) is None
    assert difference(sums, mechanism) is None
    assert difference(sums[1:], mechanism) is not None
    wrong = [StatedRelease("sums", row.count, row.noise_multiplier * 1.001) for row in merged]
    assert difference(wrong, mechanism) is not None
    # A count beside every sum: both together are the accounted noise.
    joined = Mechanism(
        *(Rounds(1 / math.sqrt(sigma**-2 + count_noise**-2), n, Poisson(0.1)) for n, sigma in parts)
    )
    counts = [StatedRelease("counts", len(sums), count_noise)]
    assert difference([*counts, *merged], joined) is None
    assert difference([*counts, *merged], mechanism) is not None


def test_a_statement_takes_the_releases_of_its_rounds_only() -> None:
    planned = account(MECHANISM, 1e-5)
    assert "Nothing is known to have been released" in planned.to_markdown()
    assert planned.sentences()[0].startswith("A model from these rounds would be (")
    rows = [StatedRelease("sums", 200, 1.1), StatedRelease("sums", 20, 1.3)]
    run = planned.of_run(rows)
    assert "| sums | 220 | 1.1 to 1.3 |" in run.to_markdown()
    assert run.sentences()[0].startswith("This model is (")
    assert ft.Statement.from_json(run.to_json()) == run
    for fault, said in (
        (rows[:1], "once in each round"),
        ([StatedRelease("sums", 220, 1.1)], r"rounds 201 to 220 were released with noise 1\.1"),
        (rows[1::-1], "rounds 1 to 20"),
        ([StatedRelease("sums", 221, 1.1)], "220 times"),
    ):
        with pytest.raises(ValueError, match=said):
            planned.of_run(fault)


def test_a_run_that_results_ended_early_released_the_first_rounds() -> None:
    mechanism = Mechanism(Rounds(1.1, 6, Poisson(0.1)), Rounds(1.3, 4, Poisson(0.1)))
    early = [StatedRelease("sums", 6, 1.1), StatedRelease("sums", 1, 1.3)]
    assert difference(early, mechanism) is not None
    assert difference(early, mechanism, stopped=True) is None
    assert difference([StatedRelease("sums", 7, 1.1)], mechanism, stopped=True) is not None
    # Rounds that were skipped, beside a score, which belongs to no round.
    skipped = [StatedRelease("sums", 2, 1.1), StatedRelease("sums", 3, 1.3)]
    for rows in (skipped, [*skipped, StatedRelease(SCORE, 1, 7.0)]):
        noise = 7.0 if rows is not skipped else None
        assert difference(rows, mechanism, stopped=True, score_noise=noise) is None


def test_a_score_belongs_to_no_round() -> None:
    one = Mechanism(Rounds(1.1, 1, Poisson(0.1)))
    rows = [StatedRelease("sums", 1, 1.1), StatedRelease(SCORE, 1, 7.0)]
    assert difference(rows, one, score_noise=7.0) is None
    for accounted in (None, 7.5):
        assert "not accounted" in str(difference(rows, one, score_noise=accounted))


def test_every_row_is_accounted() -> None:
    rounds = Mechanism(Rounds(1.1, 3, Poisson(0.1)))
    for name in ("raw data", "sums of something else"):
        rows = [StatedRelease("sums", 3, 1.1), StatedRelease(name, 1, 0.0)]
        assert "not accounted" in str(difference(rows, rounds))
