from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from forethought.rounds.randomness import Secrets, Seeds, Stream


def test_a_round_is_the_same_whenever_it_is_drawn() -> None:
    one, other = Stream(b"k" * 32, "noise"), Stream(b"k" * 32, "noise")
    first = [one.at(index).standard_normal(5).copy() for index in range(6)]
    one.at(2).integers(10, size=3, dtype=np.uint32)  # leaves half a word buffered
    for index in (5, 0, 3):
        assert np.array_equal(other.at(index).standard_normal(5), first[index])
        assert np.array_equal(one.at(index).standard_normal(5), first[index])


def test_rounds_purposes_and_secrets_differ() -> None:
    values = {
        float(Stream(secret, purpose).at(index).standard_normal())
        for secret in (b"a" * 32, b"b" * 32)
        for purpose in ("noise", "sampling")
        for index in range(50)
    }
    assert len(values) == 200


def test_secrets_come_from_the_system_unless_seeded() -> None:
    one, other = Secrets.draw(Seeds(None, None)), Secrets.draw(Seeds(None, None))
    assert one.noise != other.noise and one.sampling != other.sampling
    assert not one.seeded_noise and not one.seeded_sampling
    assert len(one.noise) == 32
    seeded = Secrets.draw(Seeds(1, 1))
    assert seeded == Secrets.draw(Seeds(1, 1)) and seeded.seeded_noise and seeded.seeded_sampling
    assert seeded.noise != seeded.sampling
    one, other = Secrets.draw(Seeds(1, None)), Secrets.draw(Seeds(None, 0))
    assert one.seeded_sampling and not one.seeded_noise
    assert other.seeded_noise and not other.seeded_sampling


@pytest.mark.parametrize(("seed", "error"), [(1.5, TypeError), (-1, ValueError), (True, TypeError)])
def test_bad_seeds_are_refused(seed: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="noise_seed"):
        Secrets.draw(Seeds(None, seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [0, 1, 2, 77, 2**40, 2**63 + 5])
def test_it_is_aes_in_counter_mode(index: int) -> None:
    """Bit for bit what another implementation of AES-128 makes of the same counters."""
    secret = bytes(range(32))
    key = hashlib.blake2b(b"noise", key=secret, digest_size=16).digest()
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = (((index << 64) + block).to_bytes(16, "little") for block in range(9))
    expected = b"".join(cipher.update(counter) for counter in counters)
    stream = Stream(secret, "noise")
    stream.at(3).standard_normal(7)
    assert stream.at(index).bit_generator.random_raw(18).tobytes() == expected


def test_normals_are_normal_far_into_the_tails() -> None:
    """Kolmogorov-Smirnov, and counts beyond 4 and 5 (binomial), on 4 million; 1e-6 each."""
    drawn = Stream(b"t" * 32, "noise").at(0).standard_normal(4_000_000)
    assert stats.kstest(drawn[:200_000], "norm").pvalue > 1e-6
    for edge in (3.6, 4.0, 5.0):
        for beyond in (drawn > edge, drawn < -edge):
            found = stats.binomtest(int(beyond.sum()), len(drawn), stats.norm.sf(edge))
            assert found.pvalue > 1e-6
