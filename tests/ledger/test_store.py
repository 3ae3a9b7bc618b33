"""A book's changes, the same on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from sqlalchemy import delete

from forethought.ledger import store
from forethought.ledger.book import (
    Account,
    BookError,
    Charge,
    NotAllowedError,
    OverBudgetError,
)
from forethought.ledger.chain import export, verify_export
from forethought.ledger.database import PERSONS, address, connected
from forethought.ledger.store import Store, create, open_book
from forethought.ledger.totals import TotalRule
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds

DATA = "patients"


def persons(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def gaussian(epsilon: float, account: Account) -> Charge:
    """One Gaussian release of about ε, at the account's δ."""
    from forethought.accounting.dominating_pair import gaussian_mu

    noise = 1 / gaussian_mu(epsilon, account.budget.delta)
    return Charge(Mechanism(Rounds(noise, 1, FullBatch())))


def test_what_is_written_is_there_when_the_book_is_opened_again(
    url: str, book: Store, charge: Charge
) -> None:
    made = book.reserve(DATA, charge, purpose="survival  after\na stroke")
    assert (made.number, made.status, made.by) == (1, "reserved", "owner")
    assert made.purpose == "survival after a stroke"
    again = open_book(url, actor="somebody")
    assert again.reservations(DATA) == [made] == [book.reservation(1)]
    assert again.total(DATA) == book.total(DATA)
    assert again.account(DATA) == book.accounts()[0]
    assert again.entries() == book.entries() and not again.verify()
    again.close()


def test_a_reservation_lives(book: Store, charge: Charge) -> None:
    whole = book.reserve(DATA, charge)
    reserved = book.total(DATA).epsilon
    assert book.begin(whole.number, "run").run == "run"
    book.mark(whole.number, 4)
    assert book.reservation(whole.number).mark == 4
    assert book.total(DATA).epsilon == reserved
    total = book.settle(whole.number, 3)
    assert 0 < total.epsilon < reserved and total.head == book.entries()[-1].hash
    held = book.reservation(whole.number)
    assert (held.status, held.released, held.mark) == ("settled", 3, 4)
    only = Charge(charge.mechanism.first(3))
    rule = TotalRule.of(book.account(DATA))
    assert total.epsilon == pytest.approx(rule.epsilon(rule.costs(only)))
    assert [entry.kind for entry in book.entries()][2:] == ["reserve", "begin", "mark", "settle"]


def test_the_same_call_again_changes_nothing(book: Store, charge: Charge) -> None:
    number = book.reserve(DATA, charge, call="one").number
    assert book.reserve(DATA, charge, call="one").number == number
    book.begin(number, "run")
    book.begin(number, "run")
    book.mark(number, 5)
    book.mark(number, 5)
    total = book.settle(number, 5)
    assert book.settle(number, 5) == total
    assert book.end(number, 5, "said twice") == total
    assert len(book.entries()) == 6 and not book.verify()
    assert book.reserve(DATA, charge, call="one").status == "settled"
    with pytest.raises(BookError, match="another charge"):
        book.reserve(DATA, Charge(charge.mechanism.first(2)), call="one")


def test_a_call_is_its_actors(book: Store, charge: Charge) -> None:
    number = book.reserve(DATA, charge, call="one").number
    assert book.acting("other", "analyst").reserve(DATA, charge, call="one").number != number
    lab = book.acting("ann:lab", "analyst").reserve(DATA, charge, call="z")
    ann = book.acting("ann", "analyst").reserve(DATA, charge, call="lab:z")
    assert (ann.number, ann.by) == (lab.number + 1, "ann")


def test_lives_that_cannot_be(book: Store, charge: Charge) -> None:
    number = book.reserve(DATA, charge).number
    for early in (lambda: book.mark(number, 1), lambda: book.settle(number, 1)):
        with pytest.raises(BookError, match="not begun"):
            early()
    book.begin(number, "run")
    with pytest.raises(BookError, match="no second"):
        book.begin(number, "another run")
    book.mark(number, 6)
    book.mark(number, 2)
    assert book.reservation(number).mark == 6
    for rounds in (-1, 11):
        with pytest.raises(BookError, match="0 to 10"):
            book.mark(number, rounds)
        with pytest.raises(BookError, match="0 to 10"):
            book.settle(number, rounds)
    with pytest.raises(BookError, match="6 to 10"):
        book.end(number, 5, "gone")
    book.settle(number, 7)
    for late in (
        lambda: book.mark(number, 8),
        lambda: book.settle(number, 8),
        lambda: book.begin(number, "run"),
        lambda: book.end(number, 8, "gone"),
    ):
        with pytest.raises(BookError, match="is over"):
            late()
    with pytest.raises(BookError, match="no reservation 2"):
        book.settle(2, 1)
    assert not book.verify()


def test_a_run_changes_no_other_runs_reservation(book: Store, charge: Charge) -> None:
    number = book.reserve(DATA, charge).number
    book.begin(number, "run")
    book.mark(number, 1, run="run", begun=0)
    for other in (
        lambda: book.mark(number, 2, run="another"),
        lambda: book.settle(number, 3, run="another"),
    ):
        with pytest.raises(BookError, match="set back"):
            other()
    book.mark(number, 2)  # by a version that names no run
    book.settle(number, 3, run="run")
    with pytest.raises(BookError, match="set back"):
        book.settle(number, 3, run="another")
    assert [entry.values.get("run") for entry in book.entries()][-3:] == ["run", None, "run"]
    assert not book.verify()


def test_rounds_that_had_begun_are_not_returned(book: Store, charge: Charge) -> None:
    for _ in range(11):  # of whose numbers one begins as another does
        book.begin(book.reserve(DATA, charge).number, 'run "reservation":1,')
    book.mark(11, 9, begun=8)
    book.mark(1, 5, begun=4)
    book.mark(1, 8, begun=0)  # of a new process, which knows of none before it
    for begun, words in ((11, "0 to 10"), (10, "at least 10"), ([], "0 to 10"), (True, "0 to 10")):
        with pytest.raises(BookError, match=words):
            book.mark(1, 9, begun=begun)  # type: ignore[arg-type]
    with pytest.raises(BookError, match="had begun"):
        book.settle(1, 3)
    assert book.reservation(1).released is None
    book.settle(1, 4)
    book.settle(11, 8)
    assert not book.verify()


def test_an_owner_ends_what_is_gone_and_the_run_can_release_no_more(
    book: Store, charge: Charge
) -> None:
    number = book.reserve(DATA, charge).number
    book.begin(number, "run")
    book.mark(number, 4)
    book.end(number, 4, "the machine burned down")
    assert book.reservation(number).status == "ended"
    assert book.entries()[-1].values["reason"] == "the machine burned down"
    with pytest.raises(BookError, match="is over"):
        book.mark(number, 5)


def test_what_has_not_begun_returns_whole(book: Store, charge: Charge) -> None:
    number = book.reserve(DATA, charge).number
    total = book.end(number, 0, "planned anew")
    assert total.epsilon == 0
    with pytest.raises(BookError, match="is over"):
        book.begin(number, "run")


def test_a_budget_is_spent_to_its_end_and_not_beyond(book: Store, charge: Charge) -> None:
    book.reserve(DATA, charge)
    assert book.fits(DATA, charge)
    before = None
    with pytest.raises(OverBudgetError) as refused:
        for _ in range(60):
            before = book.reserve(DATA, charge).number
    assert "nothing was charged" in str(refused.value)
    assert len(book.reservations(DATA)) == before and not book.fits(DATA, charge)
    left = refused.value.epsilon_left
    account = book.account(DATA)
    assert left == book.total(DATA).left > 0
    assert not book.fits(DATA, gaussian(left * 1.05, account))
    book.reserve(DATA, gaussian(left * 0.999, account))
    assert book.total(DATA).epsilon <= 8.0 and not book.verify()
    with pytest.raises(OverBudgetError):
        book.reserve(DATA, Charge(Mechanism(Rounds(0.0, 1, FullBatch()))))


def test_parts_that_are_disjoint_count_once(book: Store, charge: Charge) -> None:
    assert book.add_persons(DATA, "site=A", persons(1, 2)) == 2
    assert book.add_persons(DATA, "site=A", persons(2, 3)) == 1
    assert book.add_persons(DATA, "site=B", persons(4)) == 1
    assert book.add_persons(DATA, "year=1", persons(1, 4)) == 2
    with pytest.raises(BookError, match="site=A already"):
        book.add_persons(DATA, "site=B", persons(5, 3))
    assert set(book.total(DATA).by_part) == {"", "site=A", "site=B", "year=1"}
    assert book.overlaps(DATA, persons(1, 4, 9), "year=1") == {DATA: (2, 2)}
    at = {part: replace(charge, partition=part) for part in ("site=A", "site=B", "year=1")}
    book.reserve(DATA, at["site=A"])
    one = book.total(DATA)
    book.reserve(DATA, at["site=B"])
    assert book.total(DATA).epsilon == one.epsilon
    assert book.total(DATA).by_part["site=B"] == one.epsilon > book.total(DATA).by_part[""] == 0
    book.reserve(DATA, at["year=1"])
    two = book.total(DATA).epsilon
    assert two > one.epsilon
    # Records of a site may be of that year, and those of the year of either site.
    assert {*book.total(DATA).by_part.values()} == {0, two}
    book.reserve(DATA, charge)
    assert book.total(DATA).epsilon > two and not book.verify()
    with pytest.raises(BookError, match="did you mean"):
        book.reserve(DATA, replace(charge, partition="site=C"))
    for wrong in ("site", "=A", "site=", "a\n=b"):
        with pytest.raises(BookError, match="scheme=part"):
            book.add_persons(DATA, wrong, persons(9))
    with pytest.raises(BookError, match="16 bytes"):
        book.add_persons(DATA, "site=A", [b"short"])


def test_many_persons(book: Store) -> None:
    assert book.add_persons(DATA, None, persons(*range(1200))) == 1200
    assert book.add_persons(DATA, None, persons(*range(700, 1300))) == 100
    assert book.add_persons(DATA, None, persons(*range(1300))) == 0
    book.open_account(Account("other", Budget(1.0, 1e-6)))
    everyone = persons(*range(1300))
    assert book.overlaps("other", everyone) == {DATA: (1300, 1300)} and not book.verify()


def test_who_is_only_in_a_part_of_another_data_set_is_found(book: Store) -> None:
    book.open_account(Account("other", Budget(1.0, 1e-6)))
    book.add_persons(DATA, "site=A", persons(1, 2))
    book.add_persons(DATA, "site=B", persons(3))
    book.add_persons(DATA, "year=1", persons(1, 3, 4))
    assert book.overlaps("other", persons(1, 3, 9)) == {DATA: (2, 3)}
    book.add_records(DATA, persons(1, 5), "of both")
    assert book.overlaps("other", persons(1, 3, 5, 9)) == {DATA: (2, 2)}
    # The many of one scheme do not hide that all of another set are here, nor make one of all.
    assert book.overlaps("other", persons(1, 5, 9)) == {DATA: (2, 2)}
    assert book.overlaps("other", persons(4, 9)) == {DATA: (1, 3)}
    assert book.overlaps(DATA, persons(1, 3)) == {} == book.overlaps("other", [])


def test_an_owner_takes_out_records_that_are_nobodys(url: str, book: Store) -> None:
    book.add_persons(DATA, "site=A", persons(1, 2))
    book.open_account(Account("other", Budget(1.0, 1e-6)))
    for some in ((3, 4), (4, 5, 6)):
        book.add_records(DATA, persons(*some), f"of {some}")
    parts, first, second = (
        entry.number for entry in book.entries() if entry.kind in ("partition", "records")
    )
    with pytest.raises(NotAllowedError):
        book.acting("ann", "analyst").forget(DATA, second, "they stop me")
    for data, entry in ((DATA, parts), (DATA, 1), (DATA, 99), ("other", second)):
        with pytest.raises(BookError, match="registered no records"):
            book.forget(data, entry, "wrong")
    with pytest.raises(BookError, match="has a reason"):
        book.forget(DATA, second, " ")
    assert book.overlaps("other", persons(*range(3, 9))) == {DATA: (4, 4)}
    assert book.forget(DATA, second, "hashes of a test file") == 2
    assert book.overlaps("other", persons(*range(3, 9))) == {DATA: (2, 2)}
    with pytest.raises(BookError, match="registered no records"):
        book.forget(DATA, second, "again")
    assert book.overlaps(DATA, persons(1, 2), "site=A") == {DATA: (2, 2)} and not book.verify()
    assert not verify_export(export(book.entries()))
    assert book.add_records(DATA, persons(5), "once more") == 1 and not book.verify()
    engine = connected(address(url), 5.0)
    with engine.begin() as connection:  # without an entry that says so
        connection.execute(delete(PERSONS).where(PERSONS.c.entry == first))
    engine.dispose()
    assert book.verify()


def test_who_may_what(book: Store, charge: Charge) -> None:
    analyst, auditor = book.acting("ann", "analyst"), book.acting("aud", "auditor")
    number = book.reserve(DATA, charge).number
    own = analyst.reserve(DATA, charge).number
    assert analyst.reservation(own).by == "ann"
    for denied in (
        lambda: analyst.open_account(Account("more", Budget(1.0, 1e-6))),
        lambda: analyst.add_persons(DATA, None, persons(1)),
        lambda: analyst.add_token("x", "owner"),
        lambda: analyst.revoke_token("x"),
        lambda: analyst.begin(number, "run"),
        lambda: analyst.end(number, 0, "not mine"),
        lambda: auditor.reserve(DATA, charge),
        lambda: auditor.begin(number, "run"),
        lambda: auditor.mark(number, 1),
        lambda: auditor.settle(number, 1),
        lambda: auditor.end(number, 0, "no"),
    ):
        with pytest.raises(NotAllowedError):
            denied()
    analyst.begin(own, "run")
    analyst.mark(own, 2)
    with pytest.raises(NotAllowedError):
        analyst.end(own, 2, "I say so")
    analyst.settle(own, 2)
    unbegun = analyst.reserve(DATA, Charge(charge.mechanism.first(1))).number
    analyst.end(unbegun, 0, "planned anew")
    assert not auditor.verify() and auditor.total(DATA).epsilon > 0
    with pytest.raises(ValueError, match="one of"):
        book.acting("x", "king")  # type: ignore[arg-type]


def test_tokens_open_until_they_are_revoked(book: Store) -> None:
    token = book.add_token("ann", "analyst")
    other = book.add_token("aud", "auditor")
    found = book.holder(token)
    assert (found.name, found.role) == ("ann", "analyst") and len(token) > 40
    assert token not in export(book.entries())
    with pytest.raises(BookError, match="another name"):
        book.add_token("ann", "owner")
    book.revoke_token("ann")
    book.revoke_token("ann")
    for wrong in (token, "", other[:-1], "ft_"):
        with pytest.raises(NotAllowedError):
            book.holder(wrong)
    assert book.holder(other).name == "aud"
    assert [one.revoked for one in book.holders()] == [True, False] and not book.verify()
    with pytest.raises(BookError, match="nobody"):
        book.revoke_token("bob")


def test_accounts_refuse_what_is_not_theirs(
    book: Store, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "now", lambda: datetime(2026, 6, 1, tzinfo=UTC))
    with pytest.raises(BookError, match="already"):
        book.open_account(Account(DATA, Budget(1.0, 1e-6)))
    with pytest.raises(BookError, match="mean 'patients'"):
        book.account("patient")
    other = Charge(Mechanism(Rounds(10.0, 1, FullBatch()), adjacency="zero-out"))
    with pytest.raises(BookError, match="adjacency"):
        book.reserve(DATA, other)
    with pytest.raises(BookError, match="groups of 3"):
        book.reserve(DATA, replace(charge, group=3))
    book.open_account(Account("people", Budget(8.0, 1e-6), unit="person"), "gaussian")
    book.reserve("people", replace(charge, mechanism=charge.mechanism.first(1), group=3))
    book.reserve("people", replace(charge, unit="person"))
    with pytest.raises(BookError, match="protects a person"):
        book.reserve("people", charge)
    with pytest.raises(BookError, match="protects a record"):
        book.fits(DATA, replace(charge, unit="person"))
    with pytest.raises(ValueError, match="unit must"):
        replace(charge, unit="house")
    for never in ("2020-01-01", "2026-05-31"):
        with pytest.raises(BookError, match="to come"):
            book.open_account(Account("more", Budget(1.0, 1e-6), until=never))
    for day in ("31.12.2027", "2027-02-30", "20271231", "", date(2027, 12, 31)):
        with pytest.raises(BookError, match="such as"):
            book.open_account(Account("more", Budget(1.0, 1e-6), until=day))  # type: ignore[arg-type]
    for name in ("", " ", "a\nb", "x" * 201, "\ud800"):
        with pytest.raises(BookError, match="printable"):
            book.open_account(Account(name, Budget(1.0, 1e-6)))
    with pytest.raises(BookError, match="printable"):
        book.reserve(DATA, charge, purpose="a\x00b")
    with pytest.raises(BookError, match="64 characters"):
        book.reserve(DATA, charge, call="x" * 65)
    with pytest.raises(BookError, match="a reason"):
        book.end(book.reserve(DATA, charge).number, 0, " ")
    assert [account.data for account in book.accounts()] == [DATA, "people"]


def test_an_account_ends(book: Store, charge: Charge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "now", lambda: datetime(2027, 12, 31, tzinfo=UTC))
    book.open_account(Account("old", Budget(8.0, 1e-6), until="2027-12-31"))
    number = book.reserve("old", charge).number
    monkeypatch.setattr(store, "now", lambda: datetime(2028, 1, 1, tzinfo=UTC))
    for ask in (book.reserve, book.fits):
        with pytest.raises(BookError, match="ended on 2027-12-31"):
            ask("old", charge)
    book.begin(number, "run")
    book.settle(number, 10)


def test_a_wrong_clock_elsewhere_ends_no_account(
    book: Store, charge: Charge, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = datetime(2027, 12, 31, tzinfo=UTC)
    monkeypatch.setattr(store, "now", lambda: today)
    book.open_account(Account("old", Budget(8.0, 1e-6), until="2027-12-31"))
    monkeypatch.setattr(store, "now", lambda: datetime(2099, 1, 1, tzinfo=UTC))
    book.begin(book.reserve(DATA, charge).number, "run")
    monkeypatch.setattr(store, "now", lambda: today)
    made = book.reserve("old", charge)
    assert made.at.startswith("2099") and not book.verify()


def test_a_clock_that_goes_back_moves_no_entry(
    book: Store, charge: Charge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = book.entries()[-1].values["at"]
    monkeypatch.setattr(store, "now", lambda: datetime(2020, 1, 1, tzinfo=UTC))
    assert book.reserve(DATA, charge).at == before
    assert "clock" in caplog.text and len(caplog.records) == 1
    assert not book.verify()


def test_threads_share_a_book(book: Store) -> None:
    charge = Charge(Mechanism(Rounds(100.0, 1, FullBatch())))
    made = [
        threading.Thread(target=lambda: [book.reserve(DATA, charge) for _ in range(5)])
        for _ in range(4)
    ]
    for one in made:
        one.start()
    for one in made:
        one.join()
    assert [one.number for one in book.reservations(DATA)] == list(range(1, 21))
    assert not book.verify()


def test_a_book_is_made_once(url: str, book: Store, new_url: Callable[[], str]) -> None:
    with pytest.raises(BookError, match=r"exists|already"):
        create(url, actor="owner")
    assert not open_book(url, actor="owner").verify()
    with pytest.raises(BookError, match="printable"):
        create(new_url(), actor="")


def test_a_signed_book_takes_changes_from_its_key_only(
    url: str, tmp_path: Path, charge: Charge
) -> None:
    from forethought.values.signing import generate

    private, other = tmp_path / "key", tmp_path / "other"
    public, _ = generate(private)
    generate(other)
    book = create(url, actor="owner", key=private)
    book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    book.reserve(DATA, charge)
    assert all(entry.signature for entry in book.entries()) and not book.verify()
    for key in (None, public):
        reader = open_book(url, actor="reader", key=key)
        assert not reader.verify() and reader.total(DATA).epsilon > 0
        with pytest.raises(BookError, match="is signed"):
            reader.reserve(DATA, charge)
    with pytest.raises(BookError, match="another key"):
        open_book(url, actor="owner", key=other)
    with pytest.raises(BookError, match="cannot be read"):
        open_book(url, actor="owner", key=tmp_path / "none")


def test_a_book_that_nobody_signs_needs_no_key(url: str, book: Store, tmp_path: Path) -> None:
    from forethought.values.signing import generate

    generate(tmp_path / "key")
    with pytest.raises(BookError, match="by nobody"):
        open_book(url, actor="owner", key=tmp_path / "key")


def test_refusals_in_a_loop_do_not_fill_the_book(book: Store) -> None:
    dear = Charge(Mechanism(Rounds(0.1, 10, FullBatch())))
    for _ in range(70):
        with pytest.raises(OverBudgetError):
            book.reserve(DATA, dear)
    with pytest.raises(OverBudgetError):  # others' are written all the same
        book.acting("kim", "analyst").reserve(DATA, dear)
    kinds = [(entry.kind, entry.values["actor"]) for entry in book.entries()]
    assert kinds.count(("refuse", "owner")) == 60 and kinds.count(("refuse", "kim")) == 1
