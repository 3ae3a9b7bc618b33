"""A book in a database: SQLite (one file) or PostgreSQL, with one text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forethought.ledger.book import Account, Book, Charge, Entry, Reservation, Role, Total


@dataclass(frozen=True)
class Holder:
    """Whom a token names. revoked: it no longer opens anything."""

    name: str
    role: Role
    revoked: bool = False


def create(url: str, *, actor: str, key: Path | None = None) -> Store:
    """Make an empty book where there is none.

    Args:
        url: ``sqlite:///books.db`` or ``postgresql://user@host/database``.
        actor: who writes, as entries name them.
        key: PEM file of an Ed25519 private key, which then signs every entry.

    Raises:
        BookError: there is a book already, or the database cannot be reached.
    """
    raise NotImplementedError


def open_book(
    url: str,
    *,
    actor: str,
    role: Role = "owner",
    key: Path | None = None,
    migrate: bool = False,
    patience: float = 60.0,
) -> Store:
    """The book at ``url``; see :func:`create`.

    Args:
        role: what the actor may do.
        key: the private key that signs entries (a signed book takes changes from nobody else), or
            the public one that must have signed them, for reading.
        migrate: bring a book of an older version to this one's form.
        patience: seconds to wait for others who write.

    Raises:
        BookError: no such book, no book at all, of an older or a newer version, another key.
    """
    raise NotImplementedError


class Store(Book):
    """See :class:`~forethought.ledger.book.Book`; threads may share it, processes may not."""

    def acting(self, actor: str, role: Role) -> Store:
        """The same book for somebody else, over the same connections."""
        raise NotImplementedError

    def reserve(
        self, data: str, charge: Charge, *, purpose: str = "", call: str | None = None
    ) -> Reservation:
        """See :meth:`Book.reserve`.

        Args:
            call: a name of this call, at most 64 characters, drawn at random: the same call said
                again returns the same reservation, as after an answer that was lost.
        """
        raise NotImplementedError

    def add_token(self, name: str, role: Role) -> str:
        """A new token, which is told this once: the book keeps its hash. Owners only.

        Raises:
            BookError: the name has one.
        """
        raise NotImplementedError

    def revoke_token(self, name: str) -> None:
        """Let a name's token open nothing from now on. Owners only. Raises BookError: no such."""
        raise NotImplementedError

    def holder(self, token: str) -> Holder:
        """Whom a token names. Raises NotAllowedError: nobody, or it was revoked."""
        raise NotImplementedError

    def holders(self) -> Sequence[Holder]:
        """All that were given a token, by name."""
        raise NotImplementedError

    def partitions(self, data: str) -> dict[str, int]:
        """Persons registered: partition → their number; "" is the whole data set."""
        raise NotImplementedError

    def export(self) -> str:
        """The book as JSON, with everything that ``chain.verify_export`` needs."""
        raise NotImplementedError

    def open_account(self, account: Account) -> Account:
        raise NotImplementedError

    def account(self, data: str) -> Account:
        raise NotImplementedError

    def accounts(self) -> Sequence[Account]:
        raise NotImplementedError

    def begin(self, number: int, run: str) -> Reservation:
        raise NotImplementedError

    def mark(self, number: int, rounds: int) -> None:
        raise NotImplementedError

    def settle(self, number: int, rounds: int) -> Total:
        raise NotImplementedError

    def end(self, number: int, rounds: int, reason: str) -> Total:
        """See :meth:`Book.end`; who reserved may end what has not begun, with 0 rounds."""
        raise NotImplementedError

    def reservation(self, number: int) -> Reservation:
        raise NotImplementedError

    def reservations(self, data: str) -> Sequence[Reservation]:
        raise NotImplementedError

    def total(self, data: str) -> Total:
        raise NotImplementedError

    def add_persons(self, data: str, partition: str | None, persons: Iterable[bytes]) -> int:
        raise NotImplementedError

    def entries(self, after: int = 0) -> Sequence[Entry]:
        raise NotImplementedError

    def verify(self, head: str | None = None) -> Sequence[str]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
