"""Failures of files and servers: one line each, and nothing lost."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.engine.default import DefaultDialect

from forethought.ledger import migrations
from forethought.ledger.book import Account, BookError, Charge, OverBudgetError
from forethought.ledger.database import TABLES, address, connected
from forethought.ledger.migrations.versions import v0001
from forethought.ledger.store import Store, create, open_book
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds
from forethought.values.signing import generate
from trials.ledger import Server

DATA = "patients"


def test_addresses_that_are_none(tmp_path: Path) -> None:
    options = "sqlite:///a.db?mode=ro", "sqlite:///what?.db", "sqlite://host/a.db"
    none = "books.db", "", "sqlite://", "sqlite:///:memory:", "mysql://u:secret@h/d", "::"
    for url in (*none, *options):
        with pytest.raises(BookError, match="sqlite:///FILE") as error:
            open_book(url, actor="x")
        assert "secret" not in str(error.value)
    with pytest.raises(BookError, match="no such file"):
        open_book(f"sqlite:///{tmp_path / 'none.db'}", actor="x")
    assert not list(tmp_path.iterdir())
    with pytest.raises(BookError, match="cannot be made"):
        create(f"sqlite:///{tmp_path / 'none' / 'books.db'}", actor="x")
    for given in ("secret@127.0.0.1:1/books", "p@secret@127.0.0.1:1/books"):
        with pytest.raises(BookError) as error:
            open_book(f"postgresql://me:{given}?sslpassword=secret", actor="x", patience=1)
        assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_a_full_disk_is_told_where_a_book_is_made(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(BookError, match="disk"):
            create(f"sqlite:///{tmp_path / 'books.db'}", actor="x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_book(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"no book, " * 200)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BookError, match="is no book"):
            open_book(f"sqlite:///{tmp_path / name}", actor="x")
    with pytest.raises(BookError, match="exists"):
        create(f"sqlite:///{tmp_path / 'empty'}", actor="x")


def taken(place: Path, copy: Path | None = None) -> None:
    """Take a book's files away, while others have it open; a copy comes in their place."""
    for end in ("", "-wal", "-shm"):
        place.with_name(place.name + end).unlink(missing_ok=True)
    if copy is not None:
        copy.rename(place)


def test_a_file_that_was_replaced_is_written_no_more(tmp_path: Path, charge: Charge) -> None:
    place, copy = tmp_path / "books.db", tmp_path / "copy.db"
    url = f"sqlite:///{place}"
    with contextlib.closing(create(url, actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    shutil.copy(place, copy)
    with contextlib.closing(open_book(url, actor="a service")) as service:
        assert [service.reserve(DATA, charge).number for _ in range(2)] == [1, 2]
        taken(place, copy)
        with contextlib.closing(open_book(url, actor="other")) as other:
            other.reserve(DATA, charge)
            assert service.reserve(DATA, charge).number == 2
            assert other.reservations(DATA) == service.reservations(DATA)
            assert not other.verify()
        taken(place)
        with pytest.raises(BookError, match="no such file"):
            service.reserve(DATA, charge)


def test_the_log_of_a_replaced_file_is_not_written_into_the_copy(
    tmp_path: Path, charge: Charge
) -> None:
    """The keeper brings a copy back, and the log stays: also where the book is a link's target."""
    place, copy, link = (tmp_path / name for name in ("books.db", "copy.db", "link.db"))
    with contextlib.closing(create(f"sqlite:///{place}", actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    shutil.copy(place, copy)
    link.symlink_to(place)
    for url in (f"sqlite:///{place}", f"sqlite:///{link}"):
        shutil.copy(copy, again := tmp_path / "again.db")
        with contextlib.closing(open_book(url, actor="a service")) as service:
            service.reserve(DATA, charge)
            again.rename(place)
            for _ in range(2):
                with pytest.raises(BookError, match="former file"):
                    service.reserve(DATA, charge)
            assert place.read_bytes() == copy.read_bytes()
            place.with_name("books.db-wal").unlink()
            assert service.reserve(DATA, charge).number == 1 and not service.verify()


def test_a_file_that_was_gone_is_another_one_whatever_its_number(
    tmp_path: Path, charge: Charge
) -> None:
    """A file system gives the number of a deleted file to the next one."""
    place, copy = tmp_path / "books.db", tmp_path / "copy.db"
    with contextlib.closing(create(f"sqlite:///{place}", actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    shutil.copy(place, copy)
    with contextlib.closing(open_book(f"sqlite:///{place}", actor="a service")) as service:
        service.reserve(DATA, charge)
        place.unlink()
        with pytest.raises(BookError):
            service.entries()
        shutil.copy(copy, place)
        with pytest.raises(BookError, match="former file"):
            service.entries()
        place.with_name("books.db-wal").unlink()
        assert len(service.entries()) == 2 and not service.verify()


def test_a_book_stays_the_same_in_another_folder(
    tmp_path: Path, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(create("sqlite:///books.db", actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
        (tmp_path / "sub").mkdir()
        shutil.copy("books.db", "sub/books.db")
        monkeypatch.chdir(tmp_path / "sub")
        number = book.reserve(DATA, charge).number
    with contextlib.closing(open_book(f"sqlite:///{tmp_path / 'books.db'}", actor="x")) as here:
        assert here.reservation(number).charge == charge


def test_a_book_of_another_key_in_the_place_is_not_written(tmp_path: Path, charge: Charge) -> None:
    place, signed, key = (tmp_path / name for name in ("books.db", "signed.db", "book.pem"))
    generate(key)
    with contextlib.closing(create(f"sqlite:///{signed}", actor="owner", key=key)) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    with contextlib.closing(create(f"sqlite:///{place}", actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
        taken(place, signed)
        with pytest.raises(BookError, match="open it anew"):
            book.reserve(DATA, charge)
    with contextlib.closing(open_book(f"sqlite:///{place}", actor="x", key=key)) as book:
        assert not book.verify()


def test_an_account_is_what_the_book_says_now(tmp_path: Path) -> None:
    """Also where an older copy came in its place, and the account was opened anew."""
    place, copy = tmp_path / "books.db", tmp_path / "copy.db"
    url = f"sqlite:///{place}"
    create(url, actor="owner").close()
    shutil.copy(place, copy)
    dear = Charge(Mechanism(Rounds(1.0, 10, FullBatch())))
    with contextlib.closing(open_book(url, actor="a service")) as service:
        service.open_account(Account(DATA, Budget(80.0, 1e-6)))
        assert service.fits(DATA, dear)
        taken(place, copy)
        with contextlib.closing(open_book(url, actor="owner")) as owner:
            owner.open_account(Account(DATA, Budget(8.0, 1e-6)))
        with pytest.raises(OverBudgetError):
            service.reserve(DATA, dear)
        assert service.account(DATA).budget.epsilon == 8.0


def test_a_database_that_has_other_tables(url: str, book: Store) -> None:
    engine = connected(address(url), 5.0)
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {migrations.VERSION_TABLE}"))
    engine.dispose()
    with pytest.raises(BookError, match="is no book"):
        open_book(url, actor="x")


def test_migrations_make_the_tables_that_are_used(url: str, book: Store) -> None:
    engine = connected(address(url), 5.0)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": migrations.VERSION_TABLE}
        )
        assert compare_metadata(context, TABLES) == []
    engine.dispose()


# Version 1, as books hold it: who changes a table adds a version, and leaves this as it is.
FIRST = {
    "accounts": "data TEXT key|account TEXT|rule TEXT",
    "entries": "number BIGINT key|kind TEXT|content TEXT|previous TEXT unique|hash TEXT unique|"
    "call TEXT unique|signature TEXT null",
    "head": "id BIGINT key|number BIGINT|hash TEXT|at TEXT",
    "persons": "data TEXT key >accounts.data|scheme TEXT key|person BLOB key|part TEXT|"
    "entry BIGINT",
    "reservations": "number BIGINT key|data TEXT index >accounts.data|charge TEXT|costs TEXT|"
    "status TEXT|actor TEXT|purpose TEXT|run TEXT null|mark BIGINT|released BIGINT null|at TEXT",
    "sums": "data TEXT key >accounts.data|part TEXT key|sums TEXT|persons BIGINT",
    "tokens": "name TEXT key|role TEXT|hash TEXT unique|revoked BOOLEAN",
}


def test_the_first_version_makes_the_tables_that_its_books_have() -> None:
    def words(column: sa.Column[Any]) -> str:
        flags = {
            "key": column.primary_key,
            "null": column.nullable,
            "unique": column.unique,
            "index": column.index,
        }
        names = [name for name, held in flags.items() if held]
        names += [f">{key.target_fullname}" for key in column.foreign_keys]
        return " ".join([column.name, str(column.type), *names])

    found = {name: "|".join(map(words, one.columns)) for name, one in v0001.TABLES.tables.items()}
    assert found == FIRST


def test_an_older_book_is_migrated_when_asked_and_a_newer_one_refused(
    url: str, book: Store, charge: Charge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.reserve(DATA, charge)
    later = tmp_path / "migrations"
    shutil.copytree(migrations.PLACE, later)
    (later / "versions" / "v9999.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision, down_revision = '9999', '{migrations.forms()[-1]}'\n"
        "def upgrade():\n    op.add_column('tokens', sa.Column('note', sa.Text()))\n",
        encoding="utf-8",
    )
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "PLACE", later)
        with pytest.raises(BookError, match="older version"):
            open_book(url, actor="x")
        assert open_book(url, actor="x", migrate=True).reservation(1).number == 1
        assert not open_book(url, actor="x").verify()
    with pytest.raises(BookError, match="newer version"):
        open_book(url, actor="x", migrate=True)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, which nothing is closed to."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_may_only_be_read(charge: Charge) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'books.db'}"
        with contextlib.closing(create(url, actor="owner")) as book:
            book.open_account(Account(DATA, Budget(8.0, 1e-6)))
            book.reserve(DATA, charge)
        (folder / "books.db").chmod(0o444)
        folder.chmod(0o555)
        with as_nobody(), contextlib.closing(open_book(url, actor="aud")) as book:
            assert not book.verify() and book.total(DATA).epsilon > 0
            with pytest.raises(BookError, match=r"only be read.*was written"):
                book.reserve(DATA, charge)
        folder.chmod(0o755)


def test_a_full_disk_loses_nothing(
    tmp_path: Path, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    with contextlib.closing(create(url, actor="owner")) as book:
        book.open_account(Account(DATA, Budget(800.0, 1e-6)))
    ordinary = sqlite3.connect

    def small(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        made = ordinary(*arguments, **keywords)
        made.execute("PRAGMA max_page_count = 50")
        return made

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", small)
        with contextlib.closing(open_book(url, actor="owner")) as book:
            done = 0
            with pytest.raises(BookError, match=r"disk is full.*was written"):
                while True:
                    book.reserve(DATA, charge)
                    done += 1
    with contextlib.closing(open_book(url, actor="owner")) as book:
        assert len(book.reservations(DATA)) == done > 0 and not book.verify()
        book.reserve(DATA, charge)


def test_a_disk_that_is_really_full(charge: Charge) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", folder]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no small disk can be mounted here")
        try:
            url = f"sqlite:///{folder}/books.db"
            with contextlib.closing(create(url, actor="owner")) as book:
                book.open_account(Account(DATA, Budget(800.0, 1e-6)))
                done = 0
                with pytest.raises(BookError, match=r"disk.*was written"):
                    for _ in range(1000):
                        book.reserve(DATA, charge)
                        done += 1
                assert len(book.reservations(DATA)) == done > 0 and not book.verify()
        finally:
            subprocess.run(["umount", folder], check=True)


def test_others_who_write_all_the_time(url: str, book: Store, charge: Charge) -> None:
    engine = connected(address(url), 5.0)
    hasty = open_book(url, actor="hasty", patience=0.2)
    with engine.begin() as connection:
        connection.execute(text("UPDATE head SET at = at"))
        assert hasty.total(DATA).epsilon == 0
        with pytest.raises(BookError, match=r"try again.*was written"):
            hasty.reserve(DATA, charge)
    hasty.reserve(DATA, charge)
    hasty.close()
    engine.dispose()


class Line:
    """A connection to a server that breaks when it is told to.

    Attributes:
        cut: "before": what says COMMIT does not arrive; "after": its answer does not; None: whole.
        for_good: nobody comes through after that.
        then: is called when the server has done what says COMMIT, and nobody knows yet.
    """

    def __init__(self, path: str) -> None:
        self._path, self._listener = path, socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut: str | None = None
        self.for_good = self.closed = False
        self.then: Callable[[], object] = lambda: None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.closed:
                    client.close()
                    return
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        muted, answered = threading.Event(), threading.Event()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._path)

            def back() -> None:
                with contextlib.suppress(OSError):
                    while data := server.recv(65536):
                        if muted.is_set():
                            answered.set()
                            return
                        client.sendall(data)

            threading.Thread(target=back, daemon=True).start()
            with contextlib.suppress(OSError):
                while (data := client.recv(65536)) and not self.closed:
                    if self.cut and b"COMMIT\0" in data:
                        how, self.cut = self.cut, None
                        self.closed = self.for_good
                        if how == "after":
                            muted.set()
                            server.sendall(data)
                            assert answered.wait(60)
                            self.then()
                        client.shutdown(socket.SHUT_RDWR)
                        break
                    server.sendall(data)
            # Another thread reads from it: closing alone would not end it.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def line(server: Server, new_schema: str) -> Iterator[tuple[Line, str]]:
    made = Line(server.socket)
    with contextlib.closing(create(new_schema, actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    yield made, server.url_at("127.0.0.1", made.port, new_schema)
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_that_is_lost_in_a_commit(
    line: tuple[Line, str], charge: Charge, how: str
) -> None:
    made, url = line
    with contextlib.closing(open_book(url, actor="x")) as book:
        book.reserve(DATA, charge)
        for change in (
            lambda: book.reserve(DATA, charge).number == 2,
            lambda: book.begin(2, "run").run == "run",
            lambda: book.mark(2, 3) is None,
            lambda: book.settle(2, 3).epsilon > 0,
            lambda: book.open_account(Account("more", Budget(1.0, 1e-6))).data == "more",
            lambda: book.add_persons(DATA, "site=A", [bytes(16)]) == 1,
            lambda: book.holder(book.add_token("ann", "analyst")).name == "ann",
        ):
            entries = len(book.entries())
            made.cut = how
            assert change() and made.cut is None
            assert len(book.entries()) == entries + 1
        assert not book.verify()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_that_does_not_come_back(
    line: tuple[Line, str], charge: Charge, how: str
) -> None:
    made, url = line
    with contextlib.closing(open_book(url, actor="x", patience=0.5)) as book:
        made.cut, made.for_good = how, True
        with pytest.raises(BookError, match=r"not known.*charged") as error:
            book.reserve(DATA, charge)
        assert "\n" not in str(error.value)


def test_a_change_whose_answer_is_lost_is_unknown_while_others_write(
    line: tuple[Line, str], new_schema: str, charge: Charge
) -> None:
    made, url = line
    engine = connected(address(new_schema), 5.0)
    with engine.connect() as other, contextlib.closing(open_book(url, actor="x")) as calm:
        head = text("SELECT * FROM head FOR UPDATE")
        made.cut, made.then = "after", lambda: other.execute(head)
        hasty = contextlib.closing(open_book(url, actor="x", patience=0.05))
        with hasty as book, pytest.raises(BookError, match="not known"):
            book.reserve(DATA, charge)
        assert len(calm.reservations(DATA)) == 1
    engine.dispose()


def test_an_answer_that_is_lost_with_the_read_after_it(
    tmp_path: Path, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is in the book, the disk says that it failed, and fails once more."""

    def failing(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with contextlib.closing(create(f"sqlite:///{tmp_path / 'books.db'}", actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
        with monkeypatch.context() as patch:

            def commit(_: Any, connection: Any) -> None:
                connection.commit()
                patch.setattr(DefaultDialect, "do_execute", failing)
                failing()

            patch.setattr(DefaultDialect, "do_commit", commit)
            with pytest.raises(BookError, match="not known"):
                book.reserve(DATA, charge)
        assert len(book.reservations(DATA)) == 1


def test_a_server_that_is_not_careful_is_refused(server: Server, new_schema: str) -> None:
    create(new_schema, actor="owner").close()
    with server.careless(), pytest.raises(BookError, match="full_page_writes"):
        open_book(new_schema, actor="owner")
    open_book(new_schema, actor="owner").close()


@pytest.fixture
def new_schema(server: Server) -> str:
    return server.url(f"book{os.urandom(4).hex()}")
