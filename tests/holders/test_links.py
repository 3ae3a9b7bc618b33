from __future__ import annotations

from forethought.holders.links import Liveness


def test_nobody_is_lost_before_patience_has_gone_by():
    alive = Liveness([1, 2], now=0.0, patience=10.0)
    heard = {1: None, 2: None}
    assert alive.look(4.0, heard.get) == ((), ())
    assert alive.look(9.0, heard.get) == ((), ())
    assert alive.look(11.0, heard.get) == ((1, 2), ())
    assert alive.lost == {1, 2}


def test_a_dead_neighbour_is_lost_at_once_and_a_silent_one_after_patience():
    alive = Liveness([1, 2], now=0.0, patience=10.0)
    heard: dict[int, float | None] = {1: 1.0, 2: 1.0}
    assert alive.look(2.0, heard.get) == ((), ())
    heard[1] = None  # its connection broke
    assert alive.look(3.0, heard.get) == ((1,), ())
    assert alive.look(7.0, heard.get) == ((), ())
    assert alive.look(11.5, heard.get) == ((2,), ())


def test_one_who_speaks_again_is_back_once():
    alive = Liveness([1], now=0.0, patience=10.0)
    heard = {1: 1.0}
    for now in (4.0, 8.0):
        assert alive.look(now, heard.get) == ((), ())
    assert alive.look(11.5, heard.get) == ((1,), ())
    # What came before it was found lost does not bring it back.
    assert alive.look(12.0, heard.get) == ((), ())
    heard[1] = 13.0
    assert alive.look(13.5, heard.get) == ((), (1,))
    assert alive.look(14.0, heard.get) == ((), ())


def test_after_a_sleep_neighbours_have_as_long_as_ever():
    alive = Liveness([1], now=0.0, patience=10.0)
    heard = {1: 1.0}
    assert alive.look(2.0, heard.get) == ((), ())
    for now in (62.0, 63.0, 67.0, 71.0):  # stopped until 62
        assert alive.look(now, heard.get) == ((), ())
    assert alive.look(73.0, heard.get) == ((1,), ())


def test_whoever_slept_itself_blames_nobody():
    alive = Liveness([1], now=0.0, patience=10.0)
    heard = {1: 1.0}
    assert alive.look(2.0, heard.get) == ((), ())
    # Stopped for a minute: nothing could be heard.
    assert alive.look(62.0, heard.get) == ((), ())
    heard[1] = 63.0
    assert alive.look(64.0, heard.get) == ((), ())
    assert alive.look(66.0, heard.get) == ((), ())
