"""The book's values, and the methods of a book, wherever it is stored.

A data set has an *account*: one budget (ε, δ) for all that is ever released from it. Before a run
reads the data, it *reserves* all that its plan can release. The reservation begins with the run.
Its mark is never lower than the number of released rounds, and it is settled with the rounds that
the transcript shows. If the run is gone, only an owner's decision ends the reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from forethought.accounting.adaptive import Selection
from forethought.values.checks import one_of, settle, whole
from forethought.values.mechanism import Adjacency, Budget, Mechanism, Persons
from forethought.values.plan import Plan

# States of a reservation. The last two are final; "ended" is an owner's decision.
Status = Literal["reserved", "active", "settled", "ended"]
Role = Literal["owner", "analyst", "auditor"]
# The budget of an account protects the presence of one:
Unit = Literal["record", "person"]


class BookError(ValueError):
    """The book cannot do what was asked; the message says what to do."""


class OverBudgetError(BookError):
    """The reservation does not fit into the rest of the budget; nothing was charged.

    Attributes:
        epsilon_left: the largest ε, at the account's δ, of one more Gaussian release that fits.
    """

    def __init__(self, message: str, epsilon_left: float) -> None:
        super().__init__(message)
        self.epsilon_left = epsilon_left

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.epsilon_left)  # to be sent between processes


class NotAllowedError(BookError):
    """The role of the caller may not do this."""


@dataclass(frozen=True)
class Account:
    """The budget of one data set.

    Args:
        data: the data set's name, unique in the book.
        budget: for all that is ever released from the data set.
        adjacency: of every mechanism that is charged.
        unit: the unit of protection: one record, or one person with all of their records.
        opened: date, UTC, as YYYY-MM-DD.
        until: the last date, UTC, on which a reservation can be made; None: no end.

    Raises:
        ValueError: an unknown unit.
    """

    data: str
    budget: Budget
    adjacency: Adjacency = "add-or-remove"
    unit: Unit = "record"
    opened: str = ""
    until: str | None = None

    def __post_init__(self) -> None:
        one_of("unit", self.unit, get_args(Unit))

    def require_going(self, at: str) -> None:
        """Raise BookError if the account had ended by a date, UTC, as YYYY-MM-DD…"""
        if self.until is not None and at[:10] > self.until:
            raise BookError(f"the account of {self.data!r} ended on {self.until}")


@dataclass(frozen=True)
class Charge:
    """All that a reservation may release.

    Args:
        mechanism: of the whole plan. Several plans that are declared together, before any of them
            runs, are one charge with the sum of their mechanisms: they compose exactly.
        group: number of records protected together, as in a plan with several records a person.
        partition: ``"scheme=part"``, such as "site=A", if only records of one part are read. Parts
            of one scheme are disjoint, which the book checks by the persons registered for each.
        selection: a private search, which is charged as a whole; ``mechanism`` is then that of its
            first candidate, and the group 1.
        unit: whom the mechanism protects, as in :class:`Account`; always "person" for groups of
            several records.

    Raises:
        ValueError: a search with another mechanism or group, or an unknown unit.
    """

    mechanism: Mechanism
    group: int = 1
    partition: str | None = None
    selection: Selection | None = None
    unit: Unit = "record"

    def __post_init__(self) -> None:
        one_of("unit", self.unit, get_args(Unit))
        if whole("group", self.group) > 1:
            settle(self, unit="person")
        found = self.selection
        if found is not None and (self.group, self.mechanism) != (1, found.candidates[0]):
            raise ValueError("a search is charged for single records, by its first candidate")

    @property
    def rounds(self) -> int:
        """Number of releases that are marked and settled separately: rounds, or 1 for a search."""
        return len(self.mechanism) if self.selection is None else 1


def unit_of(plan: Plan) -> Unit:
    """Whom a plan protects: one record, or one person with all of their records."""
    persons = isinstance(plan.contribution, Persons) or plan.records_per_person > 1
    return "person" if persons else "record"


@dataclass(frozen=True)
class Reservation:
    """The present state of one reservation.

    Args:
        number: its number in the book, from 1.
        data: the account's name.
        charge: the reserved charge.
        status: see :data:`Status`.
        by: name of the actor that reserved.
        purpose: in the actor's words.
        run: the run's name, once it has begun.
        mark: upper bound of the number of rounds released so far.
        released: number of rounds that it was settled or ended with; None: neither.
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
    """The total of all charges to an account.

    Args:
        epsilon: at the account's δ, of all that is reserved, active, settled or ended.
        delta: the account's δ.
        left: the largest ε, at that δ, of one more Gaussian release that fits.
        by_part: partition → ε of all charges to its records, those to parts of other schemes
            included; "" is for charges to all records.
        head: hash of the book's newest entry at that moment; a statement names it.
    """

    epsilon: float
    delta: float
    left: float
    by_part: Mapping[str, float]
    head: str


@dataclass(frozen=True)
class Entry:
    """One entry of the book; entries are never changed or removed.

    Args:
        number: from 1, without gaps.
        kind: "account", "reserve", "begin", "mark", "settle", "end", "refuse", "partition",
            "records", "forget", "token", …
        values: JSON values of the entry, with actor and time.
        previous: hash of the entry before; "" for the first.
        hash: hash of this entry and ``previous``.
        signature: of the hash, in base64; None if the book has no key.
    """

    number: int
    kind: str
    values: Mapping[str, Any]
    previous: str
    hash: str
    signature: str | None = None


class Book(Protocol):
    """A book in a database or behind the service: the same methods, the same errors.

    Every change is one transaction: it is durable in the book when the method returns, and not in
    the book when it raises, unless the error says that this is unknown.
    """

    def open_account(self, account: Account) -> Account:
        """Open a data set's account. Raises BookError: the name is taken."""

    def account(self, data: str) -> Account:
        """The account of a data set. Raises BookError: no such account; suggests near names."""

    def accounts(self) -> Sequence[Account]:
        """All accounts, by name."""

    def fits(self, data: str, charge: Charge) -> bool:
        """True if :meth:`reserve` would accept the charge now; nothing is reserved."""

    def reserve(
        self, data: str, charge: Charge, *, purpose: str = "", call: str | None = None
    ) -> Reservation:
        """Reserve a charge.

        Args:
            call: a random name of this call, at most 64 characters: repeating the call with the
                same name, as after a lost answer, returns the same reservation.

        Raises:
            OverBudgetError: the charge does not fit.
            BookError: no such account, another adjacency or unit, an account that has ended, or an
                unknown partition.
        """

    def begin(self, number: int, run: str) -> Reservation:
        """Begin a reservation; the same run may repeat it.

        Raises BookError: another run has it, or it is over.
        """

    def mark(
        self,
        number: int,
        rounds: int,
        *,
        run: str | None = None,
        begun: int | None = None,
        seen: int | None = None,
        call: str | None = None,
    ) -> None:
        """Raise the mark, *before* the result of round ``rounds`` leaves the process.

        Args:
            run: the run's name; refused if the reservation is another run's, as in a book that was
                set back. None: not checked.
            begun: number of rounds that had begun before this one; the reservation cannot be
                settled with fewer. None: not known.
            seen: the highest mark that the caller knows of; refused if the book's is above it, as
                another copy of the run has then marked rounds. None: not checked.
            call: as for :meth:`reserve`.
        """

    def settle(
        self, number: int, rounds: int, *, run: str | None = None, seen: int | None = None
    ) -> Total:
        """Settle a reservation with the number of released rounds; the rest is refunded.

        A repeated call with the same number changes nothing. For ``run`` and ``seen`` see `mark`.
        Raises BookError: it has not begun, it is over with another number or another run's, or
        more rounds had begun.
        """

    def end(self, number: int, rounds: int, reason: str) -> Total:
        """End a reservation whose run is gone, with at least its mark; for owners only."""

    def reservation(self, number: int) -> Reservation:
        """The reservation with this number. Raises BookError: no such number."""

    def reservations(self, data: str) -> Sequence[Reservation]:
        """All reservations of an account, oldest first."""

    def total(self, data: str) -> Total:
        """The total of all charges to an account."""

    def add_persons(self, data: str, partition: str | None, persons: Iterable[bytes]) -> int:
        """Register persons (keyed hashes of 16 bytes) of a data set or of one of its parts.

        Returns the number of new ones. Raises BookError: one is in another part of the scheme.
        """

    def add_records(self, data: str, persons: Iterable[bytes], fingerprint: str) -> int:
        """Register the records or persons of a run's data, as persons of the whole data set.

        Args:
            persons: keyed hashes of records or of persons, 16 bytes each.
            fingerprint: name of the fingerprint of all records; see
                :mod:`forethought.ledger.identity`.

        Returns the number of new ones.
        """

    def forget(self, data: str, entry: int, reason: str) -> int:
        """Remove the hashes that an entry registered for the whole data set; for owners only.

        For example hashes that belong to no real record. Returns their number. Raises BookError:
        the entry registered no records of the data set, or they were removed already.
        """

    def overlaps(
        self, data: str, persons: Iterable[bytes], partition: str | None = None
    ) -> Mapping[str, tuple[int, int]]:
        """Other data sets with any of these: name → number in common, and number that it has.

        Of sets that it has by several schemes, both are of the one that has the largest share in
        common: no large set hides what is shared with a small one. With ``partition``, the same of
        that part of the data set itself, under its own name.
        """

    def entries(self, after: int = 0) -> Sequence[Entry]:
        """The book's entries with numbers above ``after``, oldest first."""

    def verify(self, head: str | None = None) -> Sequence[str]:
        """Problems in the chain, signatures, sums and reservations; an empty list if none.

        Args:
            head: a hash that must be in the chain, such as a statement's.
        """

    def close(self) -> None:
        """Close the connections."""
