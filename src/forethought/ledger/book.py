"""The book's values, and what can be done with a book wherever it is kept.

A data set has an *account*: one budget (ε, δ) for all that is ever released from it. Before a run
may touch the data it *reserves* what its whole plan can release. The reservation begins with the
run, carries a mark that never lags behind what was released, and is settled with what the
transcript released; only a decision of an owner ends one whose run is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from forethought.accounting.adaptive import Selection
from forethought.values.mechanism import Adjacency, Budget, Mechanism

# A reservation's life. Only the last two are over; "ended" is an owner's decision.
Status = Literal["reserved", "active", "settled", "ended"]
Role = Literal["owner", "analyst", "auditor"]
# The presence that an account's budget protects is that of one:
Unit = Literal["record", "person"]


class BookError(ValueError):
    """The book cannot do what was asked; the message says what to do."""


class OverBudgetError(BookError):
    """The reservation does not fit into what is left; nothing was charged.

    Attributes:
        epsilon_left: the largest ε at the account's δ of one more Gaussian release that fits.
    """

    def __init__(self, message: str, epsilon_left: float) -> None:
        super().__init__(message)
        self.epsilon_left = epsilon_left

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.epsilon_left)  # between the processes of a run


class NotAllowedError(BookError):
    """The token's role may not do this."""


@dataclass(frozen=True)
class Account:
    """The budget of one data set.

    Args:
        data: the data set's name, unique in the book.
        budget: for all that is ever released from it.
        adjacency: of every mechanism that is charged.
        unit: whom the budget protects: one record, or one person with all of their records.
        opened: date, UTC, as YYYY-MM-DD.
        until: the last date on which something may be reserved; None: no end.
    """

    data: str
    budget: Budget
    adjacency: Adjacency = "add-or-remove"
    unit: Unit = "record"
    opened: str = ""
    until: str | None = None


@dataclass(frozen=True)
class Charge:
    """All that a reservation may release.

    Args:
        mechanism: the whole plan's. Several plans that are declared together, before any of them
            runs, are one charge with the sum of their mechanisms: they compose exactly.
        group: records protected together, as of a plan with several records a person.
        partition: ``"scheme=part"``, if only records of one part are touched: "site=A". Parts of
            one scheme are disjoint, which the book checks by the persons registered for each.
        selection: a private search, which is charged as a whole; ``mechanism`` is then that of its
            first candidate, and the group 1.
    """

    mechanism: Mechanism
    group: int = 1
    partition: str | None = None
    selection: Selection | None = None

    def __post_init__(self) -> None:
        found = self.selection
        if found is not None and (self.group, self.mechanism) != (1, found.candidates[0]):
            raise ValueError("a search is charged for single records, by its first candidate")

    @property
    def rounds(self) -> int:
        """Releases that are marked and settled one by one: rounds, or the one of a search."""
        return len(self.mechanism) if self.selection is None else 1


@dataclass(frozen=True)
class Reservation:
    """One reservation as it stands.

    Args:
        number: its name in the book, counted from 1.
        data: the account's. charge: what was reserved. status: of its life.
        by: who reserved. purpose: in their words. run: the run's name, once it has begun.
        mark: rounds that may have been released so far, never fewer than were.
        released: rounds that it was settled or ended with; None: not over.
        at: date and time of the reservation, UTC, ISO 8601.
    """

    number: int
    data: str
    charge: Charge
    status: Status
    by: str
    purpose: str = ""
    run: str | None = None
    mark: int = 0
    released: int | None = None
    at: str = ""


@dataclass(frozen=True)
class Total:
    """The sum of all that is charged to an account.

    Args:
        epsilon: at the account's δ, of everything that is reserved, active, settled and ended.
        delta: the account's. left: see :class:`OverBudgetError`.
        by_part: partition → ε of what touched its records; "" is what touched all records.
        head: hash of the book's newest entry when the total was taken; a statement names it.
    """

    epsilon: float
    delta: float
    left: float
    by_part: Mapping[str, float]
    head: str


@dataclass(frozen=True)
class Entry:
    """One line of the book; nothing is ever changed or taken out.

    Args:
        number: counted from 1 without gaps. kind: "account", "reserve", "begin", "mark", "settle",
            "end", "refuse", "partition", "records", "forget", "token", …
        values: JSON-ready, everything that the entry says, with actor and time.
        previous: hash of the entry before. hash: of this one with ``previous``.
        signature: of the hash, in base64, where the book has a key.
    """

    number: int
    kind: str
    values: Mapping[str, Any]
    previous: str
    hash: str
    signature: str | None = None


class Book(Protocol):
    """A book in a database, or one behind the service: the same methods, the same errors.

    Every change is one transaction: it is in the book for good when the method returns, or not at
    all when it raises.
    """

    def open_account(self, account: Account) -> Account:
        """Open a data set's account. Raises BookError: the name is taken."""

    def account(self, data: str) -> Account:
        """The account of a data set. Raises BookError: none, with the names that are near."""

    def accounts(self) -> Sequence[Account]:
        """All accounts, by name."""

    def fits(self, data: str, charge: Charge) -> bool:
        """True if :meth:`reserve` would take the charge now; nothing is taken."""

    def reserve(
        self, data: str, charge: Charge, *, purpose: str = "", call: str | None = None
    ) -> Reservation:
        """Take a charge from what is left.

        Args:
            call: a name of this call, at most 64 characters, drawn at random: the same call said
                again returns the same reservation, as after an answer that was lost.

        Raises:
            OverBudgetError: it does not fit. BookError: no such account, another adjacency or
                unit, an account that has ended, an unknown partition.
        """

    def begin(self, number: int, run: str) -> Reservation:
        """Say that a run starts; the same run may say so again. Raises BookError: another run
        has it, or it is over."""

    def mark(self, number: int, rounds: int) -> None:
        """Raise the mark, *before* round ``rounds`` reaches anything outside the process."""

    def settle(self, number: int, rounds: int) -> Total:
        """End a reservation with the rounds that were released; the rest returns.

        Saying it again with the same number changes nothing. Raises BookError: it has not begun,
        or it is over with another number.
        """

    def end(self, number: int, rounds: int, reason: str) -> Total:
        """An owner's decision about a reservation whose run is gone; never fewer than its mark."""

    def reservation(self, number: int) -> Reservation:
        """The reservation of a number. Raises BookError: no such number."""

    def reservations(self, data: str) -> Sequence[Reservation]:
        """All of an account, oldest first."""

    def total(self, data: str) -> Total:
        """The sum of everything that is charged to an account."""

    def add_persons(self, data: str, partition: str | None, persons: Iterable[bytes]) -> int:
        """Register persons (keyed hashes of 16 bytes) of a data set or of one of its parts.

        Returns the number of new ones. Raises BookError: one is in another part of the scheme.
        """

    def add_records(self, data: str, persons: Iterable[bytes], fingerprint: str) -> int:
        """Note whose records a run on a data set has, as persons of the whole data set.

        Args:
            persons: keyed hashes of records or of persons, 16 bytes each.
            fingerprint: of all records, as :mod:`forethought.ledger.identity` names it.
        """

    def forget(self, data: str, entry: int, reason: str) -> int:
        """An owner's decision to take out what an entry registered for the whole data set.

        As of hashes that nobody's records have. Returns their number. Raises BookError: the entry
        registered no records of the data set, or they are taken out.
        """

    def overlaps(self, data: str, persons: Iterable[bytes]) -> Mapping[str, tuple[int, int]]:
        """Other data sets that have any of these: name → how many of them, and how many it has."""

    def entries(self, after: int = 0) -> Sequence[Entry]:
        """The book's lines, oldest first."""

    def verify(self, head: str | None = None) -> Sequence[str]:
        """Problems found: chain, signatures, sums, lives of reservations; none: an empty list.

        Args:
            head: a hash that must be in the chain, such as a statement's.
        """

    def close(self) -> None:
        """Give connections back."""
