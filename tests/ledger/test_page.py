"""The auditor's page in a real browser: narrow and wide, light and dark; and its history."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from forethought.accounting.interval import at_most
from forethought.ledger.book import Account, BookError, Charge, OverBudgetError, Reservation
from forethought.ledger.history import history
from forethought.ledger.page import account_page, index_page, shown
from forethought.ledger.store import Store, create
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds
from seen import sideways, unreadable

CHROMIUM = shutil.which("chromium")
LONG = "an-unbreakable-word-" + 20 * "abcdefgh"


def charge(noise: float, rounds: int = 10, partition: str | None = None) -> Charge:
    return Charge(Mechanism(Rounds(noise, rounds, FullBatch())), partition=partition)


@pytest.fixture
def book(tmp_path: Path) -> Store:
    made = create(f"sqlite:///{tmp_path / 'books.db'}", actor="owner")
    made.open_account(Account("patients", Budget(8.0, 1e-6), until="2999-12-31"))
    made.open_account(Account("others", Budget(1.0, 1e-6)))
    for part, first in (("site=A", 0), ("site=B", 9)):
        made.add_persons("patients", part, [bytes([first + one]) * 16 for one in range(9)])
    for number, (one, released) in enumerate(
        [
            (charge(20.0), 10),
            (charge(30.0), 0),
            (charge(25.0, partition="site=A"), 10),
            (charge(15.0, partition="site=B"), 10),
        ]
    ):
        held = made.reserve("patients", one, purpose=f"{LONG} {number}")
        made.begin(held.number, f"run {number}")
        made.settle(held.number, released)
        made.reserve("others", charge(1000.0))
    with pytest.raises(OverBudgetError):
        made.reserve("patients", charge(0.5), purpose="a much larger network")
    for fingerprint in ("first", "second"):
        made.add_records("patients", [fingerprint.encode().ljust(16)], fingerprint)
    made.forget("patients", made.entries()[-1].number, "hashes of a test file")
    return made


def test_an_auditor_sees_whose_records_are_known(book: Store) -> None:
    page = account_page(book, "patients")
    known = page[page.index("Records that are known") :]
    assert "site=A" in known and "<code>first</code>" in known
    assert "taken out by owner: hashes of a test file" in known
    assert "None: no run said" in account_page(book, "others")


def test_a_link_leads_to_an_account_of_any_name(book: Store) -> None:
    book.open_account(Account("a b/c?d#e%f", Budget(1.0, 1e-6)))
    assert 'href="/accounts/a%20b%2Fc%3Fd%23e%25f"' in index_page(book)


def test_an_auditor_sees_rounds_above_what_a_run_settled_with(book: Store) -> None:
    held = book.reserve("patients", charge(1000.0))
    book.begin(held.number, "run")
    book.mark(held.number, 7)
    book.settle(held.number, 3)
    assert "3 (mark 7) of 10" in account_page(book, "patients")


def test_a_page_is_of_one_moment(book: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody reserves between the total that was read and the list of reservations."""
    read, late = Store.reservations, [charge(40.0), charge(40.0)]

    def reservations(self: Store, data: str) -> Sequence[Reservation]:
        if late:
            book.reserve(data, late.pop())
        return read(self, data)

    monkeypatch.setattr(Store, "reservations", reservations)
    page = account_page(book, "patients")
    total = book.total("patients")
    assert not late and f"<dt>Spent, as an upper bound</dt><dd>ε {at_most(total.epsilon)}<" in page
    assert total.head in page and "<dt>Reservations</dt><dd>6<" in page
    late.append(charge(40.0))
    assert book.total("patients").head not in (text := shown(book, "patients")[0])
    assert book.total("patients").head in text


def test_a_page_of_a_book_that_others_write_all_the_time(
    book: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, late = Store.reservations, 20 * [charge(1000.0)]

    def reservations(self: Store, data: str) -> Sequence[Reservation]:
        book.reserve(data, late.pop())
        return read(self, data)

    monkeypatch.setattr(Store, "reservations", reservations)
    assert "left: one more release" in shown(book, "patients")[0]
    assert "The book verifies" in account_page(book, "patients") and late


@pytest.mark.slow
def test_the_history_of_a_full_account_ends_at_its_budget(tmp_path: Path) -> None:
    book = create(f"sqlite:///{tmp_path / 'full.db'}", actor="owner")
    book.open_account(Account("patients", Budget(1e-4, 0.3)), rule="gaussian")
    book.reserve("patients", Charge(Mechanism(Rounds(1.29746210463895, 1, FullBatch()))))
    (point,) = history(book.entries(), "patients").points
    assert point.epsilon == book.total("patients").epsilon == 1e-4


def test_the_history_ends_at_the_total_and_is_that_of_each_moment(book: Store) -> None:
    found = history(book.entries(), "patients")
    total = book.total("patients")
    assert found.points[-1].epsilon == total.epsilon
    # What was given back whole is as if it had never been.
    assert found.points[3].epsilon == found.points[1].epsilon < found.points[2].epsilon
    for point in found.points:
        then = history(book.entries(), "patients", book.entries()[point.number - 1].hash)
        assert then.points[-1] == point
    more = found.more(charge(20.0))
    for _ in range(more):
        book.reserve("patients", charge(20.0))
    assert more > 0 and not book.fits("patients", charge(20.0))
    with pytest.raises(BookError, match="set back"):
        history(book.entries(), "patients", "sha256:none")
    with pytest.raises(BookError, match="no account"):
        history(book.entries(), "nobody")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_nothing_is_wider_than_the_window(
    book: Store, tmp_path: Path, scheme: str, width: int
) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    troubles: list[str] = []
    pages = {"year.html": account_page(book, "patients"), "index.html": index_page(book)}
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        shown.set_default_timeout(120_000)
        shown.on("console", lambda told: troubles.append(told.text))
        shown.on("pageerror", lambda error: troubles.append(str(error)))
        for name, text in pages.items():
            path = tmp_path / name
            path.write_text(text, "utf-8")
            shown.goto(path.as_uri())
            assert sideways(shown) == 0 and unreadable(shown) == []
            assert shown.locator("table").count() >= 1
            assert shown.locator("th:not([scope])").count() == 0
        colors = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (colors == "rgb(255, 255, 255)") == (scheme == "light")
        browser.close()
    assert troubles == []
