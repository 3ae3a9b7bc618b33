"""Places for books: a folder, and a PostgreSQL server of the session's own."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forethought.ledger.book import Account, Charge
from forethought.ledger.store import Store, create
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds
from trials.ledger import ENGINES, Server, impossible

NAMES = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if reason := impossible():
        pytest.skip(reason)
    # A socket's path has 107 characters at most, which a test's folder may exceed.
    with tempfile.TemporaryDirectory(prefix="book") as folder:
        server = Server(Path(folder))
        yield server
        server.stop()


@pytest.fixture(params=ENGINES)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Addresses where no book is yet."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path / f'{next(NAMES)}.db'}"
    server = request.getfixturevalue("server")
    return lambda: server.url(f"book{next(NAMES)}")


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


@pytest.fixture
def book(url: str) -> Iterator[Store]:
    """A book with the account of "patients", ε 8 at δ 10⁻⁶."""
    book = create(url, actor="owner")
    book.open_account(Account("patients", Budget(8.0, 1e-6)))
    yield book
    book.close()


@pytest.fixture
def charge() -> Charge:
    """Ten rounds, which fit some twenty times."""
    return Charge(Mechanism(Rounds(10.0, 10, FullBatch())))
