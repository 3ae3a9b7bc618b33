"""Compressed exchanges: both ends hold the same bits, and the mean of all workers stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forethought.exchange.messages import SPARSE, DecodeError, encode, judged, pack, unpack
from forethought.gossip.compression import Compression, mixed
from forethought.gossip.events import Weights
from forethought.gossip.gossip import NeighbourError, Trust

EVERY = [Compression(), Compression("bf16"), Compression("top-k", 0.1), Compression("top-k", 1.0)]
VECTORS = arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


def sent(compression, vector, replica):
    """What a message holds, and what the receiver then has of the sender."""
    if compression.kind != "top-k":
        return compression.received(vector), compression.received(vector)
    change = compression.change(vector, replica)
    return change, replica + change


@pytest.mark.parametrize("compression", EVERY)
@settings(max_examples=40, deadline=None)
@given(vector=VECTORS, data=st.data())
def test_both_ends_hold_the_same_bits(compression, vector, data):
    replica = data.draw(arrays(np.float32, vector.shape, elements=st.floats(-10, 10, width=32)))
    told, _ = sent(compression, vector, replica)
    form, content = pack(told)
    if form != SPARSE and 4 * np.count_nonzero(told) >= len(told) > 1:
        assert compression.fraction or len(content) <= compression.size(len(vector))
    assert np.count_nonzero(told) <= compression.kept(len(vector))
    received = unpack(form, len(told), content)
    assert received.tobytes() == told.tobytes()
    assert received.dtype == np.float32


def test_sixteen_bits_are_torchs_bfloat16():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    vector = bits.view(np.float32)
    vector = vector[np.isfinite(vector) & (np.abs(vector) < 3e38)]
    found = Compression("bf16").received(vector)
    wanted = torch.from_numpy(vector.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    assert (found == wanted).all()
    largest = np.array([np.finfo(np.float32).max], dtype=np.float32)
    assert np.isfinite(Compression("bf16").received(largest)).all()


def test_error_feedback_sends_what_was_left_out():
    """Weights that stand still are there after 1/fraction messages; without feedback never."""
    compression = Compression("top-k", 0.1)
    vector = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    replica = np.zeros(100, dtype=np.float32)
    rest = []
    for _ in range(10):
        _, replica = sent(compression, vector, replica)
        rest.append(float(np.linalg.norm(vector - replica)))
    assert rest == sorted(rest, reverse=True)
    assert rest[-1] == 0


@pytest.mark.parametrize("compression", EVERY)
def test_exchanges_agree_and_keep_the_mean(compression):
    """Two workers far apart: the mean stays to rounding, the difference vanishes."""
    draw = np.random.default_rng(2)
    start = np.zeros(200, dtype=np.float32)
    one, other = (draw.standard_normal(200).astype(np.float32) for _ in range(2))
    mean, apart = (one + other) / 2, np.linalg.norm(one - other)
    at_other, at_one = start, start
    for _ in range(100):
        _, at_other = sent(compression, one, at_other)
        _, at_one = sent(compression, other, at_one)
        one, other = (
            mixed(one, at_other, at_one, 0.1),
            mixed(other, at_one, at_other, 0.1),
        )
        assert (one + other) / 2 == pytest.approx(mean, abs=1e-5)
    assert np.linalg.norm(one - other) < 0.02 * apart


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ([1, 2, 3], "3 entries.*4 parameters"),
        ([1, 2, np.nan, 0], "NaN"),
        ([1, 2, 0, np.inf], "NaN"),
        ([9, 9, 9, 9], "norm"),
    ],
)
def test_what_is_no_message_is_refused(vector, says):
    content = encode(Weights(1, 2, 3, 4, -1, np.array(vector, np.float32)))
    with pytest.raises(DecodeError, match=says):
        judged(64, content, 4, lambda message: 10.0)


def test_kinds_and_fractions_are_told_apart():
    with pytest.raises(ValueError, match="kind must be"):
        Compression("zip")
    for kind, fraction in (("top-k", None), ("bf16", 0.5)):
        with pytest.raises(ValueError, match="fraction is for"):
            Compression(kind, fraction)
    with pytest.raises(ValueError, match="fraction must be"):
        Compression("top-k", 0.0)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.floats(1e-3, 1e3))
def test_a_clipped_difference_is_no_longer_than_the_bound_and_both_ends_agree(data, bound):
    vectors = arrays(np.float32, 7, elements=st.floats(-8192, 8192, width=32))
    own, received = data.draw(vectors), data.draw(vectors)
    trust = Trust(difference=bound)
    admitted = trust.admit(own, received)
    change = admitted.astype(np.float64) - own
    slack = 1e-6 * (np.abs(own).max() + np.abs(received).max() + bound) * 7
    assert np.linalg.norm(change) <= bound + slack
    back = trust.admit(received, own).astype(np.float64) - received
    assert np.abs(change + back).max() <= slack
    if np.linalg.norm(received.astype(np.float64) - own) <= bound:
        assert (admitted == received).all()


@pytest.mark.parametrize(
    ("received", "says"),
    [
        ([1, np.nan], "peer 3 sent weights that are not finite"),
        ([np.inf, 0], "not finite"),
        ([3e38, 3e38], "norm"),
        ([1, 2, 3], "3 weights, this model has 2"),
    ],
)
def test_weights_that_nobody_trains_are_refused(received, says):
    with pytest.raises(NeighbourError, match=says):
        Trust().admit(np.zeros(2, np.float32), np.array(received, np.float32), "peer 3")
    with pytest.raises(NeighbourError, match="at most 1 "):
        Trust(largest=1).admit(np.zeros(2, np.float32), np.array([3, 4], np.float32))
    with pytest.raises(ValueError, match="difference"):
        Trust(difference=0)


def test_a_long_vector_in_pieces_is_the_whole_one() -> None:
    draw = np.random.default_rng(5)
    own, sent, received = draw.standard_normal((3, 70_001), dtype=np.float32)
    for weight in (0.5, 1 / 3):
        whole = own + np.float32(weight) * (received - sent)
        assert mixed(own, sent, received, weight).tobytes() == whole.tobytes()
        few = mixed(own[:9], sent[:9], received[:9], weight)
        assert few.tobytes() == whole[:9].tobytes()
