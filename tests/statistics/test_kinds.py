"""Kinds of statistics: how far a record moves each, and what comes out, against plain oracles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forethought.data.columns import UndeclaredError
from forethought.statistics import (
    AUC,
    Accuracy,
    Count,
    Histogram,
    Mean,
    Quantiles,
    Statistic,
    Sum,
    Survival,
)
from forethought.statistics.table import rows
from forethought.values.mechanism import ADJACENCIES
from survival import kaplan_meier, weibull

WORDS = ("A", "B", "C", "D")
MEN = {"sex": "M"}
ASKED: tuple[Statistic, ...] = (
    Count(where=MEN),
    Count(where={"x": (0.0, 2.0), "sex": ("M", "F")}),
    Accuracy(prediction="word", label="other"),
    Sum(column="x", range=(-1, 3)),
    Sum(column="x", range=(-3, 1), missing="skip"),
    Sum(column="x", range=(1, 3), where=MEN),
    Mean(column="x", range=(-1, 3)),
    Mean(column="x", range=(-1, 3), where=MEN),
    Histogram(column="word", categories=WORDS[:3], other=True),
    Histogram(column="word", categories=("A",)),
    Histogram(column="x", range=(-1, 3), bins=5),
    Quantiles(column="x", range=(-1, 3), bins=8),
    Survival(time="t", event="died", until=10, steps=6),
    AUC(score="s", label="died", bins=7),
)


def record(**entries: Any) -> dict[str, Any]:
    usual = {"x": 0.0, "word": "A", "other": "A", "sex": "M", "t": 1.0, "died": 1, "s": 0.5}
    return {**usual, **entries}


# Records at and beyond all ends, at which a tally moves most.
RECORDS = [
    record(x=x, word=word, other=other, sex=sex, t=t, died=died, s=s)
    for x, word, other, sex, t, died, s in [
        (-9.0, "A", "A", "M", 0.0, 1, 0.0),
        (9.0, "B", "A", "M", 0.1, 0, 0.01),
        (-1.0, "C", "C", "F", 9.99, 1, 1.0),
        (3.0, "D", "A", "M", 10.0, 0, 0.99),
        (1.0, "A", "B", "M", 99.0, 1, 2.0),
        (0.0, "D", "D", "F", -1.0, 0, -2.0),
        (1e300, "B", "B", "M", 5.0, 1, 0.5),
    ]
]


def table(records: list[dict[str, Any]]) -> Mapping[str, list[Any]]:
    return {name: [one[name] for one in records] for name in record()}


def tally(one: Statistic, records: list[dict[str, Any]]) -> np.ndarray:
    if not records:
        return np.zeros(one.size)
    return one.tally(rows(table(records), set(record())))


@pytest.mark.parametrize("one", ASKED, ids=lambda one: f"{one.kind}-{one.name}")
def test_a_record_moves_a_tally_by_its_reach_and_no_further(one: Statistic) -> None:
    own = [tally(one, [record]) for record in RECORDS]
    nothing = np.zeros(one.size)
    comes = max(float(np.linalg.norm(vector)) for vector in own)
    for adjacency in ("add-or-remove", "zero-out"):
        assert comes <= one.reach(adjacency) <= comes * (1 + 1e-9)
    most = max(float(np.abs(vector).max()) for vector in own)
    assert most <= one.entry <= max(2 * most, 1)  # of running sums UNIT is a bound that is near
    # A filter, or a word that was not declared, makes nothing of a record.
    vectors = [*own, nothing] if one.where or one.missing == "skip" else own
    apart = max(float(np.linalg.norm(a - b)) for a in vectors for b in vectors)
    assert apart <= one.reach("replace-one")
    # Of running sums √2 is a bound that is not met: two columns of C are never at right angles.
    slack = 1.35 if one.kind in ("quantiles", "survival", "auc") else 1 + 1e-9
    if one.kind == "sum" and not one.where and one.missing == "refuse":
        slack = 1.34  # a range that does not hold 0
    if one.kind == "histogram" and one.size == 1:
        vectors.append(nothing)
        apart = 1.0
    assert one.reach("replace-one") <= apart * slack


@pytest.mark.slow
@given(st.lists(st.sampled_from(RECORDS), max_size=8), st.sampled_from(ASKED))
def test_a_tally_is_the_sum_of_its_records_in_whole_numbers(
    records: list[dict[str, Any]], one: Statistic
) -> None:
    found = tally(one, records)
    assert found.dtype == np.float64 and found.shape == (one.size,)
    assert (found == np.rint(found)).all()
    apart = sum((tally(one, [record]) for record in records), np.zeros(one.size))
    assert found.tolist() == apart.tolist()


ODD_WORDS = ("", "A", " A", "A\0", "A\0\0", "B", "1", "1.0")
ODD_NUMBERS = (None, math.nan, -0.0, 5e-324, 1.0, 1.0000001, 3.0, -1e300, 1e300)
WORD = st.sampled_from(ODD_WORDS)
ODD_RECORD = st.fixed_dictionaries(
    {
        "x": st.sampled_from(ODD_NUMBERS),
        "word": st.sampled_from((*ODD_WORDS, None)),
        "again": st.sampled_from((*ODD_WORDS, None)),
    }
)
NUMBER = {"column": st.just("x"), "range": st.sampled_from([(-1, 3), (1, 3), (-1e300, 1e307)])}
BINS = {"bins": st.integers(2, 5)}
FILTERS = st.sampled_from([{}, {"word": ""}, {"word": ("A", "A\0")}, {"x": (0.0, 2.0)}])
SKIPPED = {"missing": st.sampled_from(["skip", "skip", "refuse"]), "where": FILTERS}
ODD: list[tuple[type[Statistic], dict[str, st.SearchStrategy[Any]]]] = [
    (Accuracy, {"prediction": st.just("word"), "label": st.just("again")}),
    (Count, SKIPPED),
    (Sum, NUMBER | SKIPPED),
    (Mean, NUMBER | SKIPPED),
    (Histogram, NUMBER | BINS | SKIPPED),
    (
        Histogram,
        {
            "column": st.just("word"),
            "categories": st.lists(WORD, min_size=1, max_size=3, unique=True),
            "other": st.booleans(),
        }
        | SKIPPED,
    ),
    (Quantiles, NUMBER | BINS | SKIPPED),
    (
        Survival,
        {
            **{"time": st.just("x"), "event": st.just("word"), "happened": WORD},
            **{"until": st.sampled_from([2.0, 1e308]), "steps": st.integers(2, 5)},
        }
        | SKIPPED,
    ),
    (
        AUC,
        {"score": st.just("x"), "label": st.just("word"), "positive": WORD, **BINS} | SKIPPED,
    ),
]


def odd(
    found: tuple[type[Statistic], dict[str, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[type[Statistic], dict[str, Any]]]:
    return st.tuples(st.just(found[0]), st.fixed_dictionaries(found[1]))


EMPTY = {"column": "word", "categories": ("", "A"), "other": True, "missing": "skip"}
NULLS = {"column": "word", "categories": ("A", "A\0", "A\0\0")}


@given(st.sampled_from(ODD).flatmap(odd), st.lists(ODD_RECORD, max_size=4), ODD_RECORD)
@example((Histogram, EMPTY), [], {"x": 1.0, "word": "", "again": "A"})
@example((Histogram, NULLS), [], {"x": 1.0, "word": "A", "again": "A"})
@example((Mean, {"column": "x", "range": (0, 5e-324)}), [], {"x": 0.0, "word": "", "again": ""})
def test_an_odd_record_moves_no_tally_by_more_than_its_reach(
    declared: tuple[type[Statistic], dict[str, Any]],
    records: list[dict[str, Any]],
    record: dict[str, Any],
) -> None:
    kind, values = declared

    def counted(records: list[dict[str, Any]]) -> np.ndarray:
        columns = {"x": pl.Float64, "word": pl.String, "again": pl.String}
        return one.tally(rows(pl.DataFrame(records, schema=columns), set(columns)))

    try:
        one = kind(**values)
        fewer, more = counted(records), counted([*records, record])
    except ValueError:  # refused: a declaration, or a record without an entry
        return
    assert np.linalg.norm(more - fewer) <= one.reach("add-or-remove") <= one.reach("zero-out")
    assert np.abs(more - fewer).max() <= one.entry
    for old in range(len(records)):
        replaced = fewer + counted([record]) - counted([records[old]])
        assert np.array_equal(replaced, counted([*records[:old], *records[old + 1 :], record]))
        assert np.linalg.norm(replaced - fewer) <= one.reach("replace-one")


def test_a_word_is_in_one_bin_and_counts_as_itself() -> None:
    read = rows({"word": ["A", "A\0", "B", None, " A ", "1.0"]}, {"word"})
    one = Histogram(column="word", categories=("A", "1"), other=True, missing="skip")
    assert one.tally(read).tolist() == [2, 1, 2]


@pytest.mark.thinned
@pytest.mark.parametrize("true", [True, 1, 1.0, "1", "1.0", " 1", "true", "True"])
def test_a_declared_word_may_be_a_truth_or_a_number(true: Any) -> None:
    one = Histogram(column="word", categories=(true, "A"))
    for held in ([True, False], [1, 0], [1.0, 0.0], ["true", "false"], np.array([1.0, 0.0])):
        read = rows({"word": held, "t": [1.0, 2.0], "s": [0.9, 0.1]}, {"word", "t", "s"})
        assert one.tally(read).tolist() == [1, 0]
        if isinstance(true, str):
            assert Count(where={"word": true}).tally(read).tolist() == [1]
        events = Survival(time="t", event="word", happened=true, until=2, steps=2)
        assert events.estimates(events.tally(read), 0.0, 2)[0].value == pytest.approx(0.5)
        area = AUC(score="s", label="word", positive=true)
        assert area.estimates(area.tally(read), 0.0, 2)[0].value == pytest.approx(1)


def test_a_share_of_none_or_of_all_is_not_certain_for_the_population() -> None:
    """Without noise, Wilson's interval: of none of n it reaches to z²/(n + z²)."""
    square, n = 1.959963984540054**2, 100
    most = square / (n + square)
    (none,) = Count().estimates(np.array([0.0]), 0.0, n)
    assert (none.low, none.high, none.sampled_low) == (0, 0, 0)
    assert none.sampled_high == pytest.approx(n * most)
    (every,) = Accuracy().estimates(np.array([100.0]), 0.0, n)
    assert (every.low, every.sampled_high) == (1, 1)
    assert every.sampled_low == pytest.approx(1 - most)
    (bin_, _) = Histogram(column="x", range=(0, 1), bins=2).estimates(np.zeros(2), 0.0, n)
    assert bin_.sampled_high == pytest.approx(n * most)
    (total,) = Sum(column="x", range=(0, 1)).estimates(np.array([0.0]), 0.0, n)
    assert total.sampled_high == pytest.approx(n * most)


def test_a_mean_of_few_records_has_the_interval_of_a_ratio() -> None:
    """Fieller's: all means m for which the sum less m times the count is within its noise."""
    one, std, scale = Mean(column="x", range=(2, 4), where=MEN), 3.0, float(1 << 20)
    for total, count in ((20.0, 40.0), (9.0, 15.0), (-14.0, 14.0), (5.0, 6.0), (0.5, -1.0)):
        tally = np.array([total, count / 2]) * scale
        (found,) = one.estimates(tally, std * scale, 1000)
        means = np.linspace(-1, 1, 20_001)
        held = max(1.0, count)
        off = (max(-held, min(held, total)) - means * held) ** 2 / 1.959963984540054**2
        near = 3 + means[off <= std**2 * (1 + 4 * means**2)]
        far = 3 + means[off <= std**2 * (1 + 4 * means**2) + held * (1 - means**2)]
        if count > 12:
            assert [found.low, found.high] == pytest.approx([near.min(), near.max()], abs=2e-4)
            assert [found.sampled_low, found.sampled_high] == pytest.approx(
                [far.min(), far.max()], abs=2e-4
            )
        else:  # the count may be 0
            assert [found.low, found.high] == [2, 4]


def test_what_comes_out_without_noise_is_what_was_asked() -> None:
    generator = np.random.default_rng(3)
    n = 4000
    x = generator.normal(1, 1, n)
    sex = generator.choice(["M", "F"], n)
    word = generator.choice(WORDS, n)
    held = {"x": x, "sex": sex, "word": word, "other": np.where(x > 1, word, "A")}
    read = rows(held, set(held))

    def values(one: Statistic) -> list[float]:
        return [found.value for found in one.estimates(one.tally(read), 0.0, n)]

    men, inside = sex == "M", x.clip(-1, 3)
    assert values(Count(where=MEN)) == [men.sum()]
    assert values(Count(where={"x": (0, 2)})) == [((x >= 0) & (x < 2)).sum()]
    assert values(Accuracy(prediction="word", label="other")) == [
        pytest.approx((word == held["other"]).mean())
    ]
    # A record's number is rounded by half a step, 2⁻²¹ of what the range is measured in.
    assert values(Sum(column="x", range=(-1, 3))) == [pytest.approx(inside.sum(), abs=n * 3e-6)]
    assert values(Mean(column="x", range=(-1, 3))) == [pytest.approx(inside.mean(), abs=2e-6)]
    assert values(Mean(column="x", range=(-1, 3), where=MEN)) == [
        pytest.approx(inside[men].mean(), abs=2e-6)
    ]
    assert values(Histogram(column="word", categories=WORDS[:2], other=True)) == [
        *((word == one).sum() for one in WORDS[:2]),
        np.isin(word, WORDS[2:]).sum(),
    ]
    edges = np.linspace(-1, 3, 9)
    assert values(Histogram(column="x", range=(-1, 3), bins=8)) == list(
        np.histogram(inside, edges)[0]
    )
    fine = values(Quantiles(column="x", range=(-1, 3), at=(0.1, 0.5, 0.9)))
    assert fine == pytest.approx(np.quantile(inside, [0.1, 0.5, 0.9]), abs=2 * 4 / 1024)


@pytest.mark.parametrize("more", [{}, {"where": MEN}])
def test_noise_does_not_move_quantiles_upwards(more: dict[str, Any]) -> None:
    """Means of 200 draws spread by 0.3; with a total that is too high they are off by up to 1.7."""
    generator, n, at = np.random.default_rng(8), 200, (0.25, 0.5, 0.75, 0.9)
    one = Quantiles(column="x", range=(0, 100), at=at, **more)
    tally = one.tally(rows({"x": np.linspace(0, 100, n), "sex": ["M"] * n}, {"x", "sex"}))
    std = 3.6 * one.reach("add-or-remove")
    made = [
        one.estimates(tally + std * noise, std, n)
        for noise in generator.standard_normal((200, one.size))
    ]
    found = [[each.value for each in draw] for draw in made]
    assert np.mean(found, axis=0) == pytest.approx(100 * np.array(at), abs=0.8)
    # An interval that reaches over all records ends with the range.
    assert all(draw[-1].high == draw[-1].sampled_high == 100 for draw in made)


@pytest.mark.parametrize(
    ("low", "high", "bins"),
    [(0, 100, 100), (0, 49, 49), (0, 1, 100), (1_000_000, 1_000_001, 100)],
)
def test_a_number_on_an_edge_is_in_the_bin_that_begins_there(
    low: float, high: float, bins: int
) -> None:
    edges = [float(f"{low + (high - low) * place / bins:.10g}") for place in range(bins)]
    one = Histogram(column="x", range=(low, high), bins=bins)
    assert one.tally(rows({"x": edges}, {"x"})).tolist() == [1.0] * bins


def test_a_time_on_the_grid_is_in_the_step_that_ends_there() -> None:
    """1.8 / 0.6 is above 3 in doubles."""
    one = Survival(until=60, steps=100)
    on, before = (
        {"time": [float(f"{0.6 * step - less:.10g}") for step in range(1, 101)], "event": [1] * 100}
        for less in (0.0, 0.3)
    )
    found = [one.tally(rows(held, {*held})).tolist() for held in (on, before)]
    assert found[0] == found[1]


def test_numbers_in_single_precision_are_on_the_edges_that_they_stand_for() -> None:
    held = {
        "x": np.array([step / 10 for step in range(10)], dtype=np.float32),
        "time": np.array([step / 10 for step in range(1, 11)], dtype=np.float32),
        "event": [1] * 10,
    }
    bins = Histogram(column="x", range=(0, 1), bins=10)
    assert bins.tally(rows(held, {*held})).tolist() == [1.0] * 10
    grid = Survival(until=1, steps=10)
    doubled = {**held, "time": [(step - 0.5) / 10 for step in range(1, 11)]}
    found = [grid.tally(rows(one, {*held})).tolist() for one in (held, doubled)]
    assert found[0] == found[1]
    # Where the type is coarser than a bin, a number stays within one bin of its own.
    fine = Histogram(column="x", range=(1e6, 1e6 + 1), bins=100)
    (at,) = np.flatnonzero(fine.tally(rows({"x": np.float32([1e6 + 0.5])}, {"x"})))
    assert abs(at - 50) <= 1


def test_a_time_just_past_the_end_by_rounding_is_at_the_end() -> None:
    grid = Survival(until=0.3, steps=3)
    found = [
        grid.tally(rows({"time": [time], "event": [1]}, {"time", "event"})).tolist()
        for time in (0.3, 0.1 + 0.2, 0.31)
    ]
    assert found[0] == found[1] != found[2]


def test_names_of_bins_are_of_their_edges() -> None:
    one = Histogram(column="x", range=(1_000_000, 1_000_001), bins=4)
    names = [found.name for found in one.estimates(np.zeros(4), 1.0, 5)]
    assert names[:2] == ["[1000000, 1000000.25)", "[1000000.25, 1000000.5)"]


def test_bins_far_from_zero_have_names_of_their_own() -> None:
    one = Histogram(column="x", range=(1_600_000_000, 1_600_000_010), bins=10)
    names = [found.name for found in one.estimates(np.zeros(10), 1.0, 5)]
    assert names[:2] == ["[1600000000, 1600000001)", "[1600000001, 1600000002)"]
    assert len(set(names)) == 10


def test_a_sum_lies_between_those_of_the_ends_of_its_range() -> None:
    (found,) = Sum(column="x", range=(1, 3), where=MEN).estimates(np.array([0.0]), 1e8, 10)
    assert (found.low, found.high) == (found.sampled_low, found.sampled_high) == (0, 30)
    (found,) = Sum(column="x", range=(-6.23, 0.41)).estimates(np.array([0.0]), 1e12, 788)
    assert found.sampled_high <= 788 * 0.41


def test_a_survival_curve_without_noise_is_kaplan_meiers() -> None:
    times, happened = weibull(1500, 4)
    asked = Survival(until=60, steps=120)
    found = asked.estimates(
        asked.tally(rows({"time": times, "event": happened}, {"time", "event"})), 0.0, 1500
    )
    exact = kaplan_meier(times, happened, np.linspace(0, 60, 121)[1:])
    # On a grid, a step's censored count as at risk for half of it.
    assert np.abs([one.value for one in found] - exact).max() < 2e-3
    assert [float(one.name) for one in found][-1] == 60


def test_an_auc_without_noise_is_the_share_of_pairs() -> None:
    generator = np.random.default_rng(5)
    label = generator.integers(0, 2, 800)
    score = 1 / (1 + np.exp(-(generator.normal(size=800) + label)))
    pairs = score[label == 1][:, None] - score[label == 0]
    exact = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    asked = AUC(bins=512)
    (found,) = asked.estimates(
        asked.tally(rows({"score": score, "label": label}, {"score", "label"})), 0.0, 800
    )
    assert found.value == pytest.approx(exact, abs=2e-3)
    assert found.low <= exact <= found.high


def test_a_missing_entry_is_refused_or_adds_nothing() -> None:
    held = {"x": [1.0, None, 2.0], "word": ["A", "", "B"]}
    read = rows(held, set(held))
    for one in (
        Sum(column="x", range=(0, 4)),
        Histogram(column="word", categories=("A", "B")),
        Histogram(column="word", categories=("A",), other=True),
        Count(where={"x": (0, 3)}),
        Count(where={"word": "A"}),
    ):
        with pytest.raises(UndeclaredError, match='missing = "skip"'):
            one.tally(read)
    kept = Histogram(column="word", categories=("A",), other=True, missing="skip")
    assert kept.tally(read).tolist() == [1, 1]
    mean = Mean(column="x", range=(0, 4), missing="skip")
    (found,) = mean.estimates(mean.tally(read), 0.0, 3)
    assert found.value == pytest.approx(1.5, abs=1e-5)
    total = Sum(column="x", range=(0, 4), missing="skip")
    assert total.estimates(total.tally(read), 0.0, 3)[0].value == pytest.approx(3)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (Sum, {"column": "x"}, "range = None: declare it as"),
        (Sum, {"column": "x", "range": (3, 1)}, "the smaller one first"),
        (Sum, {"column": "x", "range": (0, math.inf)}, "finite"),
        (Mean, {"range": (0, 1)}, "column is the name of a column"),
        (Histogram, {"column": "x"}, "either categories or a range"),
        (Histogram, {"column": "x", "categories": "AB"}, "as a list of words"),
        (Histogram, {"column": "x", "categories": ("A", "A")}, "different words"),
        (Histogram, {"column": "x", "categories": ("A", " ")}, "an empty word stands for"),
        (Mean, {"column": "x", "range": (0, 5e-324)}, "the width of range must be"),
        (Sum, {"column": "x", "range": (-1e308, 1e308)}, "the width of range must be"),
        (Histogram, {"column": "x", "range": (0, 1), "bins": 0}, "bins must be at least 1"),
        (Quantiles, {"column": "x", "range": (0, 1), "at": 1.5}, "at must be"),
        (Quantiles, {"column": "x", "range": (0, 1), "at": []}, "name the shares"),
        (Quantiles, {"column": "x", "range": (0, 1), "at": [0.5, 0.5]}, "each once"),
        (Histogram, {"column": "x", "range": (0, 1), "other": True}, "goes with categories"),
        (Histogram, {"column": "x", "categories": ("A",), "bins": 3}, "bins= goes"),
        (Mean, {"column": "x", "range": np.array([0, 1, 2])}, "declare it as"),
        (Count, {"where": {"x": 1}}, "its word"),
        (Survival, {}, "until: declare the last time"),
        (Accuracy, {"where": MEN}, "over all records"),
        (Count, {"where": {"x": 3}}, "a word, several words"),
        (Count, {"where": {"x": (3, 1)}}, "a word, several words"),
        (Count, {"where": "age"}, "declare conditions"),
        (Count, {"where": 5}, "declare conditions"),
        (Count, {"where": (("g", "a"), ("g", "b"))}, "two conditions"),
        (Histogram, {"column": "x", "categories": 5}, "list of words"),
        (Histogram, {"column": "x", "categories": (1, "1.0")}, "different words"),
        (Count, {"missing": "drop"}, "missing must be one of"),
        (Count, {"weight": 0}, "weight must be"),
        (Count, {"noise_multiplier": -1}, "noise_multiplier must be"),
        (Count, {"name": "two\nlines"}, "one line"),
    ],
)
def test_a_wrong_declaration_is_refused_in_words(
    kind: type[Statistic], values: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        kind(**values)


def test_other_is_true_or_false() -> None:
    said = Histogram(column="x", categories=("A",), other=np.True_)  # type: ignore[arg-type]
    assert said.to_dict()["other"] is True
    with pytest.raises(TypeError, match="other must be"):
        Histogram(column="x", categories=("A",), other="true")  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [None, True, "median"])
def test_shares_of_quantiles_are_numbers(at: Any) -> None:
    with pytest.raises(TypeError, match="at must be"):
        Quantiles(column="x", range=(0, 1), at=at)


def test_numbers_of_any_kind_are_declared_as_numbers() -> None:
    one = Quantiles(column="x", range=np.array([0, 1]), at=np.float32(0.5))
    assert one == Quantiles(column="x", range=(0, 1), at=0.5)
    near = Quantiles(column="x", range=(0, 1), at=[0, 0.9999999, 0.99999999, 1])
    names = [found.name for found in near.estimates(np.zeros(near.size), 1.0, 10)]
    assert names == ["0", "0.9999999", "0.99999999", "1"]


def test_no_more_records_are_counted_than_there_are() -> None:
    (found,) = Count(where=MEN).estimates(np.array([9.0]), 1e6, 500)
    assert (found.low, found.high, found.sampled_high) == (0, 500, 500)


def test_every_adjacency_has_a_reach() -> None:
    assert all(one.reach(adjacency) > 0 for one in ASKED for adjacency in ADJACENCIES)
