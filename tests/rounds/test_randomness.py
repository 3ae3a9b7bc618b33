from __future__ import annotations

import numpy as np
import pytest

from forethought.rounds.randomness import Secrets, Stream


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
    one, other = Secrets.draw(None, None), Secrets.draw(None, None)
    assert one.noise != other.noise and one.sampling != other.sampling and not one.seeded
    assert len(one.noise) == 32
    seeded = Secrets.draw(1, 1)
    assert seeded == Secrets.draw(1, 1) and seeded.seeded
    assert seeded.noise != seeded.sampling
    assert Secrets.draw(1, None).seeded and Secrets.draw(None, 0).seeded


@pytest.mark.parametrize(("seed", "error"), [(1.5, TypeError), (-1, ValueError), (True, TypeError)])
def test_bad_seeds_are_refused(seed: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="noise_seed"):
        Secrets.draw(None, seed)  # type: ignore[arg-type]
