from __future__ import annotations

import numpy as np
import pytest

from forethought.exchange.codec import DecodeError, rounded, widened
from forethought.exchange.messages import Acknowledgement, Leave, Update
from forethought.gossip.messages import Weights
from forethought.peers import wire

VECTOR = np.array([1.0, -2.5, 0.0], np.float32)


def test_a_message_comes_back():
    header, vector = wire.encode(Update(7, 3, VECTOR))
    assert vector is not None and wire.length_of(header, 3) == 3
    again = wire.decode(header, vector.copy(), 10.0)
    assert (again.round, again.base) == (7, 3)
    np.testing.assert_array_equal(again.vector, VECTOR)
    assert not again.vector.flags.writeable


def test_weights_of_sixteen_bits_take_two_bytes_each():
    halves = np.array([1.0, -2.5, 0.0078125, 3e20], np.float32)
    halves = widened(rounded(halves))
    header, sent = wire.encode(Weights(7, 3, 0, 5, -1, halves))
    assert sent is not None and sent.nbytes == 8 and wire.halves(header)
    again = wire.decode(header, sent.copy(), 1e30)
    assert again.vector.tobytes() == halves.tobytes() and again.count == 5
    header, sent = wire.encode(Weights(7, 3, 0, 5, -1, np.array([0.1], np.float32)))
    assert sent is not None and sent.nbytes == 4 and not wire.halves(header)


def test_a_message_without_a_vector_comes_back():
    header, vector = wire.encode(Acknowledgement(2, 5))
    assert vector is None and wire.length_of(header, 0) == 0
    again = wire.decode(header, None, 1.0)
    assert (again.round, again.base) == (2, 5)


@pytest.mark.parametrize("sign", [wire.BEAT, wire.BYE])
def test_signs_carry_nothing(sign):
    assert wire.length_of(wire.sign(sign), 0) == 0


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 1, "no message of this library"),
        (1, 999, "kind 999 is unknown"),
        (2, 4, "4 entries, where 3 are the most"),
        (2, -1, "-1 entries"),
        (3, 2, "3 entries"),
    ],
)
def test_a_lying_header_is_refused_before_anything_is_allocated(place, value, message):
    header, _ = wire.encode(Update(7, 3, VECTOR))
    header[place] = value
    with pytest.raises(DecodeError, match=message):
        wire.length_of(header, 3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.nan, "NaN or ∞"),
        (np.inf, "NaN or ∞"),
        (-np.inf, "NaN or ∞"),
        (-1e6, "norm 1e.06; 10 is the largest"),
        (3e20, "norm 3e.20"),
        (10.5, "has norm 1[01]"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_no_honest_model_holds_is_refused(place, bad, message):
    vector = VECTOR.copy()
    vector[place] = bad
    header, _ = wire.encode(Update(0, 0, vector))
    with pytest.raises(DecodeError, match=message):
        wire.decode(header, vector, 10.0)


def test_a_missing_or_a_second_vector_is_refused():
    header, _ = wire.encode(Update(0, 0, VECTOR))
    with pytest.raises(DecodeError, match="without a vector"):
        wire.decode(header, None, 10.0)
    header, _ = wire.encode(Acknowledgement(0, 0))
    with pytest.raises(DecodeError, match="with a vector"):
        wire.decode(header, VECTOR.copy(), 10.0)


def test_what_has_more_than_numbers_and_a_vector_is_not_sent():
    with pytest.raises(ValueError, match="than whole numbers"):
        wire.encode(Leave(0, 0, "why"))
    with pytest.raises(ValueError, match="no registered message"):
        wire.encode("hello")
