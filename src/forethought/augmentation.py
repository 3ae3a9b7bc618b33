"""Augmentation multiplicity, as a value: several altered copies of a record make one contribution.

De, Berrada, Hayes, Smith and Balle (2022), Section 3: the gradients of K augmentations of a record
are averaged *before* clipping. Their mean is a function of that record and of random numbers that
no record decides, so the sensitivity of a round's sum is what it was and ε does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from forethought.checks import one_of, real, whole

AugmentationKind = Literal["mirror", "flip", "shift", "crop"]
MOST_COPIES = 1024


@dataclass(frozen=True)
class Augmentation:
    """The altered copies of an image: how many enter, and how each is altered, independently at
    random.

    Args:
        copies: K, the copies of a record whose mean gradient is its contribution.
        kinds: ``"mirror"``: left and right are exchanged with probability 1/2; ``"flip"``: top and
            bottom; ``"shift"``: moved by a whole number of pixels each way, uniformly, what is
            uncovered reflected at the edge (padding by reflection and a crop of the old size, as
            De et al. do); ``"crop"``: a window with a share of both sides, enlarged
            to the old size bilinearly.
        pixels: the farthest that ``"shift"`` moves. None: an eighth of the shorter side (4 of 32).
        least: the least share of a side that ``"crop"`` keeps.

    Raises:
        ValueError, TypeError: no such kind, one twice, or a number outside its range.
    """

    copies: int = 8
    kinds: tuple[AugmentationKind, ...] = ("mirror", "shift")
    pixels: int | None = None
    least: float = 0.75

    def __post_init__(self) -> None:
        copies = whole("augmentations", self.copies, most=MOST_COPIES)
        object.__setattr__(self, "copies", copies)
        kinds = (self.kinds,) if isinstance(self.kinds, str) else tuple(self.kinds)
        for kind in kinds:
            one_of("augment", kind, get_args(AugmentationKind))
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError(
                f"augment names each kind once, and at least one of "
                f"{', '.join(get_args(AugmentationKind))}: not {list(kinds)}"
            )
        object.__setattr__(self, "kinds", kinds)
        if self.pixels is not None:
            object.__setattr__(self, "pixels", whole("pixels of augment", self.pixels))
            if "shift" not in kinds:
                raise ValueError("pixels= says how far 'shift' moves: add that kind, or drop it")
        real("least of augment", self.least, above=0, most=1)

    @classmethod
    def of(cls, asked: object, copies: int | None = None) -> Augmentation | None:
        """An augmentation from one of these, from names of kinds, or from the fields by name; and
        K.

        Raises:
            ValueError, TypeError: none of these, or K twice.
        """
        if asked is None and copies is None:
            return None
        if isinstance(asked, Augmentation):
            if copies is not None:
                raise ValueError("augmentations= is said in augment= already: drop one of them")
            return asked
        number: dict[str, Any] = {} if copies is None else {"copies": copies}
        if asked is None:
            return cls(**number)
        if isinstance(asked, Mapping):
            unknown = sorted(set(asked) - {"copies", "kinds", "pixels", "least"})
            if unknown or (number and "copies" in asked):
                raise ValueError(
                    "augment takes kinds, pixels and least, and the number of copies once: not "
                    f"{', '.join(map(repr, unknown)) or 'copies beside augmentations'}"
                )
            return cls(**{**number, **asked})
        if isinstance(asked, str) or (
            isinstance(asked, Sequence) and all(isinstance(kind, str) for kind in asked)
        ):
            return cls(**number, kinds=asked)  # type: ignore[arg-type]
        raise TypeError(
            'augment must be names of kinds such as ["mirror", "shift"], or a '
            f"forethought.Augmentation, not {asked!r}"
        )

    def describe(self) -> str:
        """In a few words: how many copies, altered how."""
        kinds = {"mirror": "mirrored", "flip": "flipped", "shift": "shifted", "crop": "cropped"}
        return f"{self.copies} copies, {', '.join(kinds[kind] for kind in self.kinds)} at random"
