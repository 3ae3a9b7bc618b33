"""Many writers at once, and kills; `python tools/faults.py ledger` runs the large ones."""

from __future__ import annotations

import time

import pytest

from forethought.ledger.store import Store
from trials import ViolationError
from trials.ledger import ENGINES, impossible, run_contended, run_kills

pytestmark = pytest.mark.slow


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql" and (reason := impossible()):
        pytest.skip(reason)
    return str(request.param)


def test_as_many_reservations_as_fit_and_not_one_more(engine: str) -> None:
    found = run_contended(engine, writers=8, each=12, fits=60)
    assert (found.reservations, found.refusals) == (60, 36)


def test_kills_lose_nothing_and_double_nothing(engine: str) -> None:
    found = run_kills(25, engine)
    assert found.writers + found.servers == 25 and found.calls > 25


def test_a_sum_that_is_not_under_the_lock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what fits is looked up before the turn."""
    ordinary = Store.reserve

    def hasty(book: Store, data: str, charge: object, **keywords: object) -> object:
        if not book.fits(data, charge):  # type: ignore[arg-type]
            return ordinary(book, data, charge, **keywords)  # type: ignore[arg-type]
        with monkeypatch.context() as patched:
            patched.setattr("forethought.ledger.totals.TotalRule.fits", lambda *_: True)
            return ordinary(book, data, charge, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "reserve", hasty)
    with pytest.raises(ViolationError):
        for _ in range(5):
            run_contended("sqlite", writers=8, each=10, fits=20)


def test_an_answer_before_the_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a settlement is answered and is not written."""
    ordinary = Store.settle

    def forgetful(book: Store, number: int, rounds: int) -> object:
        return book.total("patients") if number % 3 == 0 else ordinary(book, number, rounds)

    monkeypatch.setattr(Store, "settle", forgetful)
    with pytest.raises(ViolationError, match="was answered"):
        run_kills(20, "sqlite")


def test_a_call_that_is_reserved_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: calls have no names, and answers are slow, so that some are lost."""
    ordinary = Store.reserve

    def nameless(book: Store, data: str, charge: object, *, call: str | None = None) -> object:
        made = ordinary(book, data, charge)  # type: ignore[arg-type]
        time.sleep(0.03)
        return made

    monkeypatch.setattr(Store, "reserve", nameless)
    with pytest.raises(ViolationError, match="nobody's"):
        run_kills(30, "sqlite")
