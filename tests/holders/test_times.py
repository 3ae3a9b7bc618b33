"""Virtual time: in order, drawn from public seeds, with the distributions that were asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.holders.simulator import (
    Agenda,
    GraphTimes,
    LogNormal,
    Outage,
    Times,
    Way,
    lognormal_speeds,
    slow_ones,
)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_things_happen_in_order_and_equal_times_as_they_were_added(times: list[float]) -> None:
    agenda = Agenda()
    for place, at in enumerate(times):
        agenda.add(at, 0, place)
    seen = []
    while len(agenda):
        _, place, _ = agenda.next()
        seen.append((agenda.now, place))
    assert seen == sorted((at, place) for place, at in enumerate(times))


def test_what_is_due_in_the_past_happens_now() -> None:
    agenda = Agenda()
    agenda.add(5.0, 0, 0)
    agenda.next()
    agenda.add(1.0, 0, 1)
    agenda.next()
    assert agenda.now == 5.0


def test_lognormal_factors_have_median_one_and_the_spread() -> None:
    draw = LogNormal(0.7, 3)
    logs = np.log([draw() for _ in range(20_000)])
    # 5 standard errors: a false alarm in 1.7 million.
    assert abs(np.mean(logs)) < 5 * 0.7 / math.sqrt(20_000)
    assert abs(np.std(logs) - 0.7) < 5 * 0.7 / math.sqrt(40_000)
    again = LogNormal(0.7, 3)
    assert np.allclose([again() for _ in range(3)], np.exp(logs[:3]))
    assert LogNormal(0, 1)() == 1.0


def test_speeds_of_many_machines() -> None:
    assert slow_ones(3, 1, 10.0) == (1.0, 1.0, 10.0)
    assert lognormal_speeds(4, 0.5, 1) == lognormal_speeds(4, 0.5, 1)
    with pytest.raises(ValueError, match="cannot be slow"):
        slow_ones(2, 3, 2.0)


def test_times_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="after it began"):
        Outage(0, 2.0, 1.0)
    with pytest.raises(ValueError, match="latency"):
        Way(-1.0)
    with pytest.raises(ValueError, match="bandwidth"):
        Way(0.0, 0.0)


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
def test_seconds_that_are_none_are_refused(wrong: float) -> None:
    for kind in (Times, GraphTimes):
        with pytest.raises(ValueError, match="seconds of an"):
            kind([1.0, wrong])
        with pytest.raises(ValueError, match="straggling"):
            kind([1.0], straggling=wrong)
