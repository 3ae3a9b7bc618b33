"""Shares of a secret."""

from __future__ import annotations

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.federated.secure_aggregation.masking import combine, opened, split


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 6), st.randoms())
def test_any_threshold_of_the_shares_gives_the_secret_back(secret, threshold, more, random):
    points = random.sample(range(1, 256), threshold + more)
    shares = split(secret, points, threshold, secrets.token_bytes)
    chosen = random.sample(points, threshold)
    assert combine({point: shares[point] for point in chosen}, threshold) == secret


def test_fewer_shares_say_nothing():
    # Two of three shares: for every secret there is exactly one polynomial through them, so each
    # pair of shares comes up equally often whatever the secret was. Exhaustive over one byte.
    for secret in (0, 1, 200):
        seen = set()
        for one, two in itertools.product(range(0, 256, 5), range(0, 256, 5)):
            shares = split(bytes([secret]), [3, 9, 77], 3, lambda _n, c=bytes([one, two]): c)
            seen.add((shares[3], shares[9]))
        assert len(seen) == len(range(0, 256, 5)) ** 2


def test_the_field_is_that_of_aes():
    # FIPS 197, Section 4.2: {57}·{83} = {c1}. With secret 0 and coefficient 0x83 the share at the
    # point 0x57 is their product.
    assert split(b"\x00", [0x57, 1], 2, lambda _n: b"\x83")[0x57] == b"\xc1"


def test_false_shares_are_named_and_cost_one_search_for_all_secrets():
    false, suspects, tries = {2, 5}, set(), []
    for secret in (b"one", b"two"):
        shares = split(secret, [*range(1, 13)], 9, secrets.token_bytes)
        shares |= dict.fromkeys(false, b"bad")

        def right(found: bytes, secret: bytes = secret) -> bool:
            tries.append(found)
            return found == secret

        found, named = opened(shares, 9, right, suspects)
        assert (found, named) == (secret, false)
        suspects |= named
    before = len(tries)
    assert opened(shares, 9, right, suspects)[0] == b"two" and len(tries) == before + 1
    assert opened({**shares, 9: b"no!"}, 9, right)[0] is None


def test_wrong_arguments_are_refused():
    for points, threshold in (([1, 1], 1), ([0, 1], 1), ([256], 1), ([1, 2], 3), ([1], 0)):
        with pytest.raises(ValueError, match=r"shares"):
            split(b"x", points, threshold, secrets.token_bytes)
    with pytest.raises(ValueError, match="shares of 2"):
        combine({1: b"a"}, 2)
    with pytest.raises(ValueError, match="one length"):
        combine({1: b"a", 2: b"ab"}, 2)


def test_a_coefficient_comes_from_the_entropy():
    asked = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return np.zeros(count, np.uint8).tobytes()

    split(b"four", [1, 2, 3], 3, entropy)
    assert asked == [8]
