"""Shorter vectors lose nothing, and what is no vector is refused before it is allocated."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forethought.exchange.messages import (
    DENSE,
    HALVES,
    MOST_ZEROS,
    SPARSE,
    DecodeError,
    decode,
    encode,
    judged,
    pack,
    rounded,
    unpack,
    widened,
)
from forethought.gossip.events import Weights

BITS = arrays(np.uint32, st.integers(0, 200), elements=st.integers(0, 2**32 - 1))


@settings(max_examples=200, deadline=None)
@given(BITS, st.sampled_from(["any", "halves", "sparse"]), st.randoms())
def test_every_bit_comes_back(bits, kind, draw):
    if kind == "halves":
        bits = bits & np.uint32(0xFFFF0000)
    if kind == "sparse":
        keep = np.array([draw.random() < 0.1 for _ in bits], dtype=bool)
        bits = np.where(keep, bits, np.uint32(0))
    vector = bits.view(np.float32)
    form, content = pack(vector)
    again = unpack(form, len(vector), content)
    assert again.tobytes() == vector.tobytes() and not again.flags.writeable
    assert len(content) <= 4 * len(vector)
    message = Weights(1, 2, 3, 4, -1, vector)
    assert decode(Weights, encode(message)).vector.tobytes() == vector.tobytes()


def test_forms_are_as_short_as_they_say():
    draw = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert pack(draw)[0] == DENSE and len(pack(draw)[1]) == 4000
    assert pack(widened(rounded(draw)))[0] == HALVES
    assert len(pack(widened(rounded(draw)))[1]) == 2000
    few = np.zeros(1000, np.float32)
    few[::10] = draw[::10]
    assert pack(few)[0] == SPARSE and len(pack(few)[1]) == 800
    minus = np.full(10, -0.0, np.float32)
    assert unpack(*_said(minus)).tobytes() == minus.tobytes()


def _said(vector):
    form, content = pack(vector)
    return form, len(vector), content


@pytest.mark.parametrize(
    ("form", "length", "content", "says"),
    [
        (DENSE, 2, b"\0" * 4, "no vector of 2"),
        (HALVES, 2, b"\0" * 8, "no vector of 2"),
        (b"q", 1, b"\0" * 4, "no vector of 1"),
        (SPARSE, 8, b"\0" * 7, "cut off"),
        (SPARSE, MOST_ZEROS + 1, b"\0" * 8, "longer than it may be"),
        (SPARSE, 2**60, b"", "longer than it may be"),
        (SPARSE, 4, np.array([4, 0], "<u4").tobytes(), "beyond it"),
        (SPARSE, 4, np.array([2, 1, 0, 0], "<u4").tobytes(), "out of order"),
        (SPARSE, 4, np.array([1, 1, 0, 0], "<u4").tobytes(), "out of order"),
    ],
)
def test_what_is_no_vector_is_refused(form, length, content, says):
    with pytest.raises(ValueError, match=says):
        unpack(form, length, content)


def test_a_sparse_vector_of_another_length_is_refused_before_it_is_made():
    """Its bytes fit into a frame of the model's; written out it takes 128 times the model's."""
    count = 5000
    packed = (128 * np.arange(count)).astype("<u4").tobytes() + np.ones(count, "<f4").tobytes()
    said = encode(Weights(1, 2, 3, 4, -1, np.zeros(0, np.float32)))
    at = said.index(b"p")
    lengths = b"p%bz%b" % (struct.pack("<Q", 128 * count), struct.pack("<Q", len(packed)))
    payload = said[:at] + lengths + packed + said[at + 18 :]
    assert len(decode(Weights, payload).vector) == 128 * count
    tracemalloc.start()
    with pytest.raises(DecodeError, match="has 640000 entries"):
        judged(64, payload, count, lambda message: 1e9)
    assert tracemalloc.get_traced_memory()[1] < 20 * count
    tracemalloc.stop()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=20), st.integers(0, 200))
def test_a_damaged_message_is_refused_or_is_another_message(noise, at):
    """Nothing but DecodeError comes of bytes that somebody changed."""
    vector = np.zeros(40, np.float32)
    vector[3] = 1.5
    data = bytearray(encode(Weights(1, 2, 3, 4, -1, vector)))
    data[at : at + len(noise)] = noise
    try:
        found = decode(Weights, bytes(data))
    except DecodeError:
        return
    assert found.vector.dtype == np.float32
