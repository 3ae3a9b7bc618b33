"""A book's tables, connections to SQLite and PostgreSQL, and their errors in plain words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from forethought.ledger.book import BookError
from forethought.ledger.migrations import VERSION_TABLE, forms
from forethought.ledger.migrations.versions.v0001 import TABLES as TABLES

# The tables of the newest schema. A version that changes one has all tables, as they are then.
ENTRIES, HEAD, ACCOUNTS, RESERVATIONS, SUMS, PERSONS, TOKENS = (
    TABLES.tables[name]
    for name in ("entries", "head", "accounts", "reservations", "sums", "persons", "tokens")
)


def address(url: str) -> sa.URL:
    """A book's address with its database driver. Raises BookError: not an address of a book."""
    try:
        found = sa.make_url(url)
    except ArgumentError:
        raise BookError(f"{_hidden(url)} is no address of a book: {_FORMS}") from None
    file = found.drivername == "sqlite" and found.database not in (None, "", ":memory:")
    if file and "?" not in url and not found.host:
        return found
    if "@" in (found.host or ""):  # which would be shown, with the rest of the password
        raise BookError(f"{_hidden(url)}: an @ in a password is written %40")
    if found.drivername in ("postgresql", "postgres"):
        return found.set(drivername="postgresql+psycopg")
    raise BookError(f"a book cannot be kept at {_hidden(url)}: {_FORMS}")


_FORMS = "say sqlite:///FILE (without ?) or postgresql://USER@HOST/DATABASE"


def _hidden(url: str) -> str:
    # The password is hidden even in a malformed address.
    return f"{url.split(':', 1)[0]}:…" if "@" in url else repr(url)


def shown(url: sa.URL) -> str:
    """An address to show to people, without its password."""
    if url.drivername == "sqlite":
        return str(url.database)
    bare = url.set(drivername="postgresql").difference_update_query(["password", "sslpassword"])
    return bare.render_as_string(hide_password=True)


def new_file(url: sa.URL) -> Path | None:
    """Create the empty file of a new book, its owner's only; None if a server stores the book.

    Raises:
        BookError: the file exists already, or cannot be created.
    """
    if url.drivername != "sqlite":
        return None
    path = Path(str(url.database))
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise BookError(f"{path} exists: a book is made where nothing is") from None
    except OSError as error:
        raise BookError(f"{path} cannot be made: {error.strerror}") from None
    return path


def connected(url: sa.URL, patience: float) -> sa.Engine:
    """An engine whose committed transactions are durable. It does not connect yet.

    SQLite: the write-ahead log is on the disk before a change returns; a transaction that writes
    takes the lock at its beginning. PostgreSQL: its own log does the same; the server ends a
    transaction whose connection is silent, so that it blocks no others.
    """
    if url.drivername == "sqlite":
        file = _File(Path(str(url.database)).absolute(), patience)  # the same after os.chdir
        engine = sa.create_engine("sqlite://", creator=file.connect, poolclass=sa.QueuePool)
        sa.event.listen(engine, "begin", _begin)
        sa.event.listen(engine, "checkout", file.require)
        return engine
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise BookError(
            "a book in PostgreSQL needs psycopg: pip install 'forethought[ledger]'"
        ) from None
    own = url.query.get("options", "")
    options = (
        f"{own if isinstance(own, str) else ' '.join(own)} -c synchronous_commit=on "
        f"-c lock_timeout={max(1, int(1000 * patience))} "
        "-c idle_in_transaction_session_timeout=15000"
    )
    arguments = {"connect_timeout": max(2, min(10, int(patience))), "options": options}
    return sa.create_engine(
        url.difference_update_query(["options"]),
        isolation_level="READ COMMITTED",
        connect_args=arguments,
    )


def _numbers(path: Path) -> tuple[int, int] | None:
    """Device and number of a file, which tell it from another one; None: there is none."""
    with contextlib.suppress(OSError):
        return (found := path.stat()).st_dev, found.st_ino
    return None


@dataclass
class _File:
    """A book's file, which another one may replace while the book is open.

    Args:
        path: absolute.
        patience: seconds to wait for other writers.
        seen: the file, and the write-ahead log beside it, when a connection was last used.
    """

    path: Path
    patience: float
    seen: tuple[object, object] = (None, None)

    def _now(self) -> tuple[object, object]:
        # SQLite has the log of a link's target beside the target.
        return _numbers(self.path), _numbers(Path(f"{self.path.resolve()}-wal"))

    def require(self, _: object, record: sa.pool.ConnectionPoolEntry, __: object) -> None:
        """Have the pool connect anew where another file has the place of the connection's."""
        # A moved or deleted file stays writable, and whoever opens the book never reads it.
        now = self._now()
        if record.info.setdefault("file", now[0]) != now[0]:
            raise sa.exc.DisconnectionError(f"{self.path} is another file now")
        self.seen = now

    def connect(self) -> sqlite3.Connection:
        """Open the file, but not beside the former one's log, which SQLite would write into it."""
        path, (file, log), (before, its_log) = self.path, self._now(), self.seen
        if file is None and before is not None:
            self.seen = (), its_log  # gone: what comes in its place may get its number
        if file not in (None, before) and log is not None and log == its_log:
            raise BookError(
                f"{path} was replaced, and {path}-wal is of the former file: stop all that have it "
                "open, and take the log away"
            )
        mode = "mode=rw"
        may_write = all(os.access(at, os.W_OK, effective_ids=True) for at in (path, path.parent))
        if file is not None and not may_write:
            # Without a write-ahead log, no process has the book open: this is an auditor's copy.
            there = Path(f"{path.resolve()}-wal")
            mode = "mode=ro" if there.exists() and there.stat().st_size else "immutable=1"
        uri = f"file:{quote(str(path))}?{mode}"
        connection = sqlite3.connect(
            uri, timeout=self.patience, isolation_level=None, check_same_thread=False, uri=True
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("book_reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def reading(engine: sa.Engine) -> sa.Engine:
    """The same engine for read-only transactions, each of which sees one state of the book."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(book_reads=True)
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def form_of(connection: sa.Connection) -> Literal["none", "older", "current", "newer"]:
    """Compare a database's tables with the schema of this version of the library."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return "none"
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    known = forms()
    if found == known[-1]:
        return "current"
    return "older" if found in known else "newer"


def durable(connection: sa.Connection) -> None:
    """Refuse a server that may lose committed changes in a crash. Raises BookError."""
    if connection.dialect.name == "sqlite":
        return
    for name in ("fsync", "full_page_writes"):
        if connection.execute(sa.text(f"SHOW {name}")).scalar() != "on":
            raise BookError(
                f"the server runs with {name} = off, so a crash could lose charges: switch it on"
            )


@dataclass(frozen=True)
class Failure:
    """A database error.

    Args:
        kind: "again": a concurrent change; "lost": no connection; "busy": others write; "stop": a
            retry would fail again.
        words: for the user.
    """

    kind: Literal["again", "lost", "busy", "stop"]
    words: str


# Beginning of an error's name (SQLite) or SQLSTATE (PostgreSQL) → words for the user.
_WORDS = {
    "FULL": "the disk is full: make room, nothing else is needed",
    "READONLY": "its file, or the folder, may only be read: changes need the right to write both",
    "CANTOPEN": "there is no such file, or its folder cannot be written",
    "NOTADB": "its file is no book",
    "CORRUPT": "its file is damaged: go back to a copy, and verify it with the newest known head",
    "IOERR": "the disk fails",
    "AUTH": "access is refused",
    "PERM": "access is refused",
    "53100": "the server's disk is full: make room, nothing else is needed",
    "25006": "the server takes no changes at present (it is a stand-by, or read-only)",
    "42501": "the user may not do this: grant the tables' rights",
    "28": "the user or the password is refused",
    "3D000": "there is no such database",
    "42P01": "the database is no book",
    "XX": "the server reports damage: go back to a copy, and verify it with the newest known head",
}
_AGAIN, _BUSY = ("40001", "40P01"), ("BUSY", "LOCKED", "55P03")
# SQLSTATE of: connections, shutdown, crash, start-up, too many clients, idle in a transaction.
_LOST = ("08", "57P", "53300", "25P03", "25P04")


def failure(error: DBAPIError | sqlite3.Error) -> Failure:
    """A database's error as one line, and whether a retry can help."""
    cause: Any = getattr(error, "orig", error)
    first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    local = isinstance(cause, sqlite3.Error)
    name = getattr(cause, "sqlite_errorname" if local else "sqlstate", None) or ""
    name = name.removeprefix("SQLITE_")
    if name in _AGAIN:
        return Failure("again", first)
    if name.startswith(_BUSY):
        return Failure("busy", "others have been writing to it all the time: try again")
    invalidated = getattr(error, "connection_invalidated", False)
    if not local and (invalidated or not name or name.startswith(_LOST)):
        return Failure("lost", first)
    words = next((words for key, words in _WORDS.items() if name.startswith(key)), None)
    return Failure("stop", f"{words} ({first})" if words else first)


def one(connection: sa.Connection, table: sa.Table, *conditions: Any) -> Any:
    """The only row of a table that meets the conditions, or None."""
    return connection.execute(sa.select(table).where(*conditions)).one_or_none()
