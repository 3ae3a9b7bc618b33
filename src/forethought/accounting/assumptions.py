"""What every Statement rests on: it follows from mechanism, accountant and randomness alone.

So :func:`required` is recomputed when a statement is verified, and none of it can be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forethought.accounting.accountants import ACCOUNTANTS, Accountant, amplified
from forethought.caveats import Caveat
from forethought.mechanism import Correlated, Mechanism
from forethought.samplings import FullBatch
from forethought.serialisation import build


@dataclass(frozen=True)
class Randomness:
    """Where a run's random numbers come from, as far as the guarantee depends on it.

    Args:
        seeded_noise: a person chose the seed of the noise: there is no guarantee.
        seeded_sampling: a person chose the seed of the batches: no amplification is claimed.
        grid: the noise is a discrete Gaussian added to a sum on a grid, all in whole numbers.
    """

    seeded_noise: bool = False
    seeded_sampling: bool = False
    grid: bool = False

    def __post_init__(self) -> None:
        for name in ("seeded_noise", "seeded_sampling", "grid"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be true or false, not {getattr(self, name)!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Randomness:
        """From a JSON object that has exactly the fields. Raises ValueError, TypeError."""
        return build(cls, values, "randomness")


# Everything from the operating system's entropy, noise in floating-point numbers.
SECRET = Randomness()


def suited(accountant: Mapping[str, Any], randomness: Randomness) -> dict[str, Any]:
    """The accountant that fits the randomness: another one takes over where batches are known."""
    known = ACCOUNTANTS[accountant["kind"]].batches_known
    if known is not None and randomness.seeded_sampling and not randomness.seeded_noise:
        return {"kind": known}
    return dict(accountant)


def required(
    mechanism: Mechanism, accountant: Mapping[str, Any], randomness: Randomness
) -> tuple[Caveat, ...]:
    """Caveats that a statement of this mechanism must have.

    Args:
        mechanism: what was released.
        accountant: its kind and details; the kind is a registered one.
        randomness: where its random numbers came from.
    """
    way: Accountant = ACCOUNTANTS[accountant["kind"]]
    found = list(way.implied(mechanism))
    if any(isinstance(part, Correlated) for part in mechanism):
        found.append(Caveat("correlated-noise"))
    if any(part.noise_multiplier == 0 for part in mechanism):
        found.append(Caveat("no-noise"))
    if randomness.seeded_noise:
        found.append(Caveat("seeded-noise"))
    elif randomness.seeded_sampling and way.batches_known is None:
        found.append(Caveat("seeded-search"))
    always = ("public-size", "pseudo-random", "separate-records", "other-runs")
    found += [Caveat(code) for code in always]
    if not randomness.seeded_noise:
        found.append(Caveat("secret-noise"))
    if amplified(mechanism) and not randomness.seeded_sampling:
        found.append(Caveat("secret-batches"))
    elif any(not isinstance(part.sampling, FullBatch) for part in mechanism):
        found.append(Caveat("stated-batches"))
    if not randomness.grid:
        found.append(Caveat("floating-point-noise"))
    return tuple(found)
