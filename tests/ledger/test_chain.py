"""A book that was tampered with is found, in its database and in its export."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from forethought.ledger.book import Account, BookError, Charge
from forethought.ledger.chain import chained, exported, verify_export
from forethought.ledger.chain import export as export_of
from forethought.ledger.database import address, connected
from forethought.ledger.store import Store, create, open_book
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds
from forethought.values.serialisation import canonical
from forethought.values.signing import Signer, generate

DATA = "patients"


TEN = Charge(Mechanism(Rounds(10.0, 10, FullBatch())))


@pytest.fixture
def full(book: Store, charge: Charge) -> Store:
    return filled(book, charge)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same book's export, which does not depend on the database."""
    place = tmp_path_factory.mktemp("book") / "books.db"
    with contextlib.closing(create(f"sqlite:///{place}", actor="owner")) as book:
        book.open_account(Account(DATA, Budget(8.0, 1e-6)))
        return export_of(filled(book, TEN).entries())


def filled(book: Store, charge: Charge) -> Store:
    """A book in which there is something of everything; entries 1 to 13."""
    book.add_persons(DATA, "site=A", [bytes(15) + b"1", bytes(15) + b"2"])
    book.add_token("ann", "analyst")
    number = book.reserve(DATA, charge).number
    book.begin(number, "run")
    book.mark(number, 4)
    book.settle(number, 3)
    ended = book.reserve(DATA, Charge(charge.mechanism, partition="site=A")).number
    book.begin(ended, "other run")
    book.end(ended, 2, "gone")
    book.reserve(DATA, Charge(charge.mechanism.first(2)))
    book.revoke_token("ann")
    return book


TAMPERED = {
    "a value in an entry": "UPDATE entries SET content = replace(content, 'other run', 'a run') "
    "WHERE number = 10",
    "an entry's kind": "UPDATE entries SET kind = 'settle' WHERE number = 11",
    "an entry that is gone": "DELETE FROM entries WHERE number = 7",
    "the first entry": "DELETE FROM entries WHERE number = 1",
    "the last entry": "DELETE FROM entries WHERE number = 13",
    "all entries": "DELETE FROM entries",
    "entries that changed places": "UPDATE entries SET number = "
    "CASE number WHEN 6 THEN 107 WHEN 7 THEN 106 ELSE number END",
    "an entry's hash": "UPDATE entries SET hash = 'sha256:00' WHERE number = 5",
    "content that is none": "UPDATE entries SET content = '{' WHERE number = 5",
    "sums": "UPDATE sums SET sums = '[0]' WHERE part = ''",
    "sums of a part": "UPDATE sums SET sums = '[0]' WHERE part = 'site=A'",
    "sums that are gone": "DELETE FROM sums WHERE part = 'site=A'",
    "a charge": "UPDATE reservations SET charge = replace(charge, '10.0', '20.0') WHERE number = 1",
    "costs": "UPDATE reservations SET costs = '[0]' WHERE number = 3",
    "a status": "UPDATE reservations SET status = 'settled', released = 0 WHERE number = 3",
    "rounds": "UPDATE reservations SET released = 1 WHERE number = 1",
    "a mark": "UPDATE reservations SET mark = 0 WHERE number = 1",
    "a reservation that is gone": "DELETE FROM reservations WHERE number = 3",
    "a budget": "UPDATE accounts SET account = replace(account, '8.0', '80.0')",
    "a rule": "UPDATE accounts SET rule = replace(rule, '8.0', '80.0')",
    "a person that is gone": "DELETE FROM persons",
    "a person in another part": "UPDATE persons SET part = 'B'",
    "a token's role": "UPDATE tokens SET role = 'owner'",
    "a token that opens again": "UPDATE tokens SET revoked = FALSE",
    "the head": "UPDATE head SET number = 12",
    "the head's time": "UPDATE head SET at = ''",
}


@pytest.mark.thinned
@pytest.mark.parametrize("what", TAMPERED, ids=lambda what: what.replace(" ", "_"))
def test_an_edit_is_found(url: str, full: Store, what: str) -> None:
    assert not full.verify(full.entries()[4].hash)
    engine = connected(address(url), 5.0)
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            connection.execute(text("PRAGMA defer_foreign_keys = ON"))
        assert connection.execute(text(TAMPERED[what])).rowcount
        if "places" in what:
            connection.execute(text("UPDATE entries SET number = number - 100 WHERE number > 100"))
    engine.dispose()
    again = open_book(url, actor="judge") if "first" not in what and "all" not in what else full
    assert again.verify()
    again.close()


def test_a_book_that_was_set_back_is_found_by_its_head(
    url: str, full: Store, charge: Charge
) -> None:
    """All tables as they were once: nothing is wrong but what somebody else remembers."""
    head = full.total(DATA).head
    entries = full.entries()[:-1]
    engine = connected(address(url), 5.0)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM entries WHERE number = 13"))
        connection.execute(text("UPDATE tokens SET revoked = FALSE"))
        connection.execute(
            text("UPDATE head SET number = 12, hash = :hash, at = :at"),
            {"hash": entries[-1].hash, "at": entries[-1].values["at"]},
        )
    engine.dispose()
    assert not full.verify()
    assert "set back" in full.verify(head)[0]


def rechained(entries: list[dict[str, Any]], signer: Signer | None = None) -> str:
    """An export whose hashes fit, as whoever rewrites a book would make it."""
    made, previous = [], ""
    for number, entry in enumerate(entries, 1):
        new = chained(number, entry["kind"], entry["values"], previous, signer)
        made.append({**entry, "number": number, "previous": previous, "hash": new.hash})
        made[-1]["signature"] = new.signature
        previous = new.hash
    return canonical({"schema": "forethought/book/1", "entries": made, "head": previous})


def changed(number: int, /, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        entries[number - 1]["values"].update(values)

    return change


def without(at: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda entries: entries.__delitem__(at - 1)


def again(at: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda entries: entries.append(json.loads(json.dumps(entries[at - 1])))


# What no rewriting of hashes hides: lives, sums and costs that cannot be.
IMPOSSIBLE = {
    "a charge that costs less": changed(5, costs=[1]),
    "a charge with other numbers": changed(5, costs=[]),
    "a settlement that returns too much": changed(8, costs=[0]),
    "fewer rounds than the mark in a decision": lambda e: (
        changed(11, rounds=2)(e),
        e.insert(10, {**e[6], "values": {**e[6]["values"], "reservation": 2, "rounds": 9}}),
    ),
    "a charge for a person in an account of records": lambda e: e[4]["values"]["charge"].update(
        unit="person"
    ),
    "a mark of another run": changed(7, run="another"),
    "a settlement of another run": changed(8, run="another"),
    "a settlement with fewer rounds than had begun": changed(7, begun=4),
    "a mark below what had begun": changed(7, begun=5),
    "a second run": lambda e: e.insert(
        6, {**e[5], "values": {**e[5]["values"], "run": "a second"}}
    ),
    "a mark before the beginning": without(6),
    "a settlement that is said twice": again(8),
    "a reservation that is left out": without(5),
    "a second account": again(2),
    "a second token": again(4),
    "a partition without an account": changed(3, data="others"),
    "a second beginning": again(1),
    "no beginning": without(1),
    "a kind that no book has": lambda e: e[4].update(kind="gift"),
    "a reservation after the account's end": lambda e: e[1]["values"]["account"].update(
        until="2020-01-01"
    ),
    "a time that goes back": changed(6, at="2020-01-01T00:00:00.000000+00:00"),
    "more than the budget": lambda e: e.extend(
        {**e[11], "values": {**e[4]["values"], "reservation": n, "at": e[12]["values"]["at"]}}
        for n in range(4, 60)
    ),
    "an account whose charges add up to another budget": lambda e: e[1]["values"]["account"].update(
        budget={"epsilon": 1.0, "delta": 1e-6}
    ),
    "an account whose charges are under another adjacency": lambda e: e[1]["values"][
        "account"
    ].update(adjacency="zero-out"),
    "an account that protects a house": lambda e: e[1]["values"]["account"].update(unit="house"),
    "values that are missing": lambda e: e[5].update(values={"at": e[5]["values"]["at"]}),
}


@pytest.mark.parametrize("what", IMPOSSIBLE, ids=lambda what: what.replace(" ", "_"))
def test_an_export_that_cannot_be_is_found(export: str, what: str) -> None:
    values = json.loads(export)
    assert not verify_export(rechained(values["entries"]))
    IMPOSSIBLE[what](values["entries"])
    assert verify_export(rechained(values["entries"]))


def test_an_export_that_was_edited_is_found(export: str) -> None:
    whole = json.loads(export)
    for at in range(len(whole["entries"])):
        edited = json.loads(json.dumps(whole))
        edited["entries"][at]["values"]["actor"] = "nobody"
        assert "was changed" in verify_export(json.dumps(edited))[0]


def test_an_entry_that_is_left_out_between_others_is_found(export: str) -> None:
    """Every hash fits its entry, and lives can be so: only the links tell."""
    values = json.loads(export)
    del values["entries"][6]
    for number, entry in enumerate(values["entries"], 1):
        new = chained(number, entry["kind"], entry["values"], entry["previous"], None)
        entry.update(number=number, hash=new.hash)
    values["head"] = values["entries"][-1]["hash"]
    assert "does not follow" in verify_export(json.dumps(values))[0]


def test_an_export_is_whole(full: Store) -> None:
    whole = export_of(full.entries())
    assert not verify_export(whole, head=full.entries()[3].hash)
    assert [entry.hash for entry in exported(whole)] == [entry.hash for entry in full.entries()]
    assert verify_export(whole, head="sha256:00")
    for wrong in ("", "[]", "{}", whole[:-1], whole.replace("forethought/book/1", "book/2")):
        assert "not an export" in verify_export(wrong)[0]
        with pytest.raises(BookError):
            exported(wrong)
    cut = json.loads(whole)
    del cut["entries"][-1]
    assert "head" in verify_export(json.dumps(cut))[0]


def test_a_signature_cannot_be_forged_or_left_out(tmp_path: Path, charge: Charge) -> None:
    private, forger = tmp_path / "key", tmp_path / "forger"
    public, _ = generate(private)
    generate(forger)
    book = create(f"sqlite:///{tmp_path / 'books.db'}", actor="owner", key=private)
    book.open_account(Account(DATA, Budget(8.0, 1e-6)))
    book.reserve(DATA, charge)
    values = json.loads(export_of(book.entries()))
    for key in (None, private, public):
        assert not verify_export(export_of(book.entries()), key=key)
        assert not verify_export(rechained(values["entries"], Signer(private)), key=key)
    # Whoever has another key must name it, which a known key refutes.
    for signer in (None, Signer(forger)):
        assert "signature" in verify_export(rechained(values["entries"], signer))[0]
    values["entries"][0]["values"]["key"] = Signer(forger).public_key
    forged = rechained(values["entries"], Signer(forger))
    assert not verify_export(forged) and "key" in verify_export(forged, key=public)[0]
    values["entries"][0]["values"]["key"] = None
    assert verify_export(rechained(values["entries"]), key=public)
    book.close()
