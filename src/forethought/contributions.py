"""The units that are clipped in a round: kinds of contribution, as values that a plan holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from forethought.checks import whole
from forethought.mechanism import Clipping

# The name of noised sums in transcripts.
GRADIENTS = "sums of clipped contributions"


@runtime_checkable
class Contribution(Protocol):
    """The unit that is clipped: one value says what one contribution to a round's sum is.

    A kind is a frozen dataclass of JSON-ready fields, listed in
    :data:`forethought.privacy.CONTRIBUTIONS`; how it is
    computed is registered in :mod:`forethought.rounds.contributions`.

    Attributes:
        kind: its name in files.
        clipping: what its sensitivity follows from, see :func:`forethought.mechanism.sensitivity`.
        alterable: whether it may be the mean over altered copies of a record.
    """

    kind: ClassVar[str]
    clipping: ClassVar[Clipping]
    alterable: ClassVar[bool]

    @property
    def groups(self) -> int | None:
        """The number of groups that a batch is dealt into; None: each record is for itself."""
        ...

    @property
    def released(self) -> str:
        """The name of its noised sums in transcripts."""
        ...

    def expected(self, batch: float) -> float:
        """The expected number of contributions to a round, at this expected batch size."""
        ...


@dataclass(frozen=True)
class Examples:
    """Every record's gradient is a contribution."""

    kind: ClassVar[str] = "examples"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = True
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def expected(self, batch: float) -> float:
        """One for each record of the batch."""
        return batch


@dataclass(frozen=True)
class Groups:
    """A batch is dealt into ``count`` groups, of which each one's mean gradient is a contribution.

    Each record goes to a group by itself, uniformly at random, so that one record more never moves
    another into a different group. One group is batch clipping.
    """

    count: int
    kind: ClassVar[str] = "groups"
    clipping: ClassVar[Clipping] = "group"
    alterable: ClassVar[bool] = True
    released: ClassVar[str] = GRADIENTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole("groups", self.count))

    @property
    def groups(self) -> int:
        """As many as ``count``."""
        return self.count

    def expected(self, batch: float) -> float:
        """The number of groups, empty ones included: an update is already a mean over records."""
        return float(self.count)


@dataclass(frozen=True)
class LinearExamples:
    """Every record's gradient is a contribution, and the model is a linear map of the record.

    The same contributions as those of :class:`Examples`, from one product with the matrix of all
    records (:mod:`forethought.rounds.linear`).
    """

    kind: ClassVar[str] = "linear-examples"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = False
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def expected(self, batch: float) -> float:
        """One for each record of the batch."""
        return batch


@dataclass(frozen=True)
class Persons:
    """Everything that one person has in the data is a contribution: the mean over their rows.

    The examples of such a plan are persons, so one person moves a sum by one clipping norm,
    however many rows are theirs.

    Args:
        records: how many rows of one person are kept at most.
    """

    records: int
    kind: ClassVar[str] = "persons"
    clipping: ClassVar[Clipping] = "example"
    alterable: ClassVar[bool] = True
    groups: ClassVar[int | None] = None
    released: ClassVar[str] = GRADIENTS

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", whole("records_per_person", self.records))

    def expected(self, batch: float) -> float:
        """One for each person of the batch."""
        return batch
