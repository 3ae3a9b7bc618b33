"""Entries chained by hash and signed, and the state of a book that follows from them.

Each entry's hash covers its number, kind and values, and the hash before it. In a signed book every
hash is signed by the key that entry 1 names. Replaying the entries gives accounts, sums and states
of reservations; a book or an export that shows anything else was tampered with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from forethought.accounting.adaptive import Selection
from forethought.ledger import book
from forethought.ledger.totals import Sums, TotalRule
from forethought.values.mechanism import Budget, Mechanism
from forethought.values.serialisation import build, canonical, digest, exact_keys, parse, plain
from forethought.values.signing import SignatureError, Signer, public_key_of, signed_by

EXPORT = "forethought/book/1"
_SIGNED = "application/vnd.forethought.entry"
ROLES: tuple[book.Role, ...] = get_args(book.Role)


@dataclass(frozen=True)
class TokenHolder:
    """The holder of a token. revoked: True if the token is no longer accepted."""

    name: str
    role: book.Role
    revoked: bool = False


def chained(
    number: int, kind: str, values: Mapping[str, Any], previous: str, signer: Signer | None
) -> book.Entry:
    """The entry that follows the entry with the hash ``previous``."""
    hashed = _hash(number, kind, values, previous)
    signature = signer.sign(_SIGNED, hashed.encode()) if signer else None
    return book.Entry(number, kind, values, previous, hashed, signature)


def _hash(number: int, kind: str, values: Mapping[str, Any], previous: str) -> str:
    return digest({"number": number, "kind": kind, "values": values, "previous": previous})


def pieces(persons: Iterable[bytes], most: int) -> list[list[bytes]]:
    """The different hashes of persons, sorted, in pieces of ``most``; one that is empty if none.

    Raises:
        BookError: one is no hash of 16 bytes.
    """
    found = [*persons]
    if wrong := [one for one in found if not isinstance(one, bytes) or len(one) != 16]:
        raise book.BookError(f"a person is a keyed hash of 16 bytes, not {wrong[0]!r}")
    every = sorted({*found})
    return [every[at : at + most] for at in range(0, len(every) or 1, most)]


def persons_digest(persons: Iterable[bytes]) -> str:
    """One digest of a set of persons' hashes, for the entry that registers them."""
    return "sha256:" + hashlib.sha256(b"".join(sorted(persons))).hexdigest()


def charge_values(charge: book.Charge) -> dict[str, Any]:
    """A charge as JSON values; :func:`charge_from` reads them back."""
    found, needed = charge.selection, charge.unit == "person" and charge.group == 1
    return {
        "mechanism": charge.mechanism.to_dict(),
        "group": charge.group,
        "partition": charge.partition,
        **({} if found is None else {"selection": found.to_dict()}),
        **({"unit": charge.unit} if needed else {}),
    }


def charge_from(values: Mapping[str, Any]) -> book.Charge:
    """The inverse of :func:`charge_values`. Raises ValueError."""
    more = {"selection", "unit"} & set(values)
    exact_keys("charge", values, {"mechanism", "group", "partition", *more})
    mechanism = Mechanism.from_dict(values["mechanism"])
    found = Selection.from_dict(values["selection"]) if "selection" in more else None
    unit = values.get("unit", "record")
    return book.Charge(mechanism, values["group"], values["partition"], found, unit)


def account_from(values: Mapping[str, Any]) -> book.Account:
    """The account of which these are the values. Raises ValueError."""
    return build(book.Account, {**values, "budget": build(Budget, values["budget"])}, "account")


# States of a reservation. A repeated change returns the reservation as it is.


def begun(held: book.Reservation, run: str) -> book.Reservation:
    """The reservation once its run has begun. Raises BookError: it is another run's, or over."""
    if held.status not in ("reserved", "active"):
        raise book.BookError(f"reservation {held.number} is over ({held.status}): reserve anew")
    if held.run not in (None, run):
        raise book.BookError(
            f"reservation {held.number} has been begun by run {held.run!r}: no second"
        )
    return replace(held, status="active", run=run)


def marked(
    held: book.Reservation, rounds: int, run: str | None = None, begun: int | None = None
) -> book.Reservation:
    """The reservation with its mark at ``rounds``; a higher mark stays."""
    _active(held)
    _require_run(held, run)
    if begun is not None and rounds_of(held, begun) > rounds:
        raise book.BookError(f"{begun} rounds had begun: the mark is at least {begun}")
    return replace(held, mark=max(held.mark, rounds_of(held, rounds)))


def settled(
    held: book.Reservation, rounds: int, run: str | None = None, begun: int = 0
) -> book.Reservation:
    """The reservation settled with ``rounds`` released, of which ``begun`` have begun for sure."""
    _require_run(held, run)
    if held.released == rounds:
        return held
    _active(held)
    if rounds_of(held, rounds) < begun:
        raise book.BookError(
            f"{begun} rounds of reservation {held.number} had begun: settle it with {begun} to "
            f"{held.charge.rounds}"
        )
    return replace(held, status="settled", released=rounds)


def ended(held: book.Reservation, rounds: int) -> book.Reservation:
    """The reservation ended by a decision, with at least as many rounds as its mark."""
    if held.released == rounds:
        return held
    if held.status != "reserved":
        _active(held)
    if rounds_of(held, rounds) < held.mark:
        raise book.BookError(
            f"reservation {held.number} may have released {held.mark} rounds: it cannot end with "
            f"{rounds}, only with {held.mark} to {held.charge.rounds}"
        )
    return replace(held, status="ended", released=rounds)


def _require_run(held: book.Reservation, run: str | None) -> None:
    # After a book was set back, a new run can get the number of a run that is still going.
    if run is not None and held.run not in (None, run):
        raise book.BookError(
            f"reservation {held.number} is of run {held.run!r} in this book, not of {run!r}: the "
            "book was set back; let its owner bring back the newer copy, or start a new run"
        )


def _active(held: book.Reservation) -> None:
    if held.status == "reserved":
        raise book.BookError(
            f"reservation {held.number} has not begun: begin it with its run's name"
        )
    if held.status != "active":
        raise book.BookError(
            f"reservation {held.number} is over: {held.status} with {held.released} rounds released"
        )


def rounds_of(held: book.Reservation, rounds: int) -> int:
    """The number of rounds, checked. Raises BookError: outside 0 to the charge's rounds."""
    planned = held.charge.rounds
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 0 <= rounds <= planned:
        raise book.BookError(
            f"reservation {held.number} is of {planned} rounds: say 0 to {planned}, not {rounds!r}"
        )
    return rounds


@dataclass
class BookState:
    """The content of a book's tables after its entries.

    Attributes:
        accounts, rules: by data set.
        reservations, costs, begun: by number; the present cost of each, and the number of rounds
            that have begun for sure.
        sums: by data set, and by partition, "" for all records.
        persons: by data set and partition together.
        registered: entry → data set, partition and digest of the persons that it added.
        tokens: name → holder, and the token's hash.
        at: date of the newest entry.
    """

    accounts: dict[str, book.Account] = field(default_factory=dict)
    rules: dict[str, TotalRule] = field(default_factory=dict)
    reservations: dict[int, book.Reservation] = field(default_factory=dict)
    costs: dict[int, Sums] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    sums: dict[str, dict[str, Sums]] = field(default_factory=dict)
    persons: dict[tuple[str, str], int] = field(default_factory=dict)
    registered: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    tokens: dict[str, tuple[TokenHolder, str]] = field(default_factory=dict)
    at: str = ""

    def play(self, entry: book.Entry) -> None:
        """Apply the next entry. Raises ValueError, LookupError, TypeError: an invalid entry."""
        values = entry.values
        match entry.kind:
            case "book":
                pass
            case "account":
                account = account_from(values["account"])
                _require(account.data not in self.accounts, f"a second account {account.data!r}")
                rule = TotalRule.from_dict(values["rule"])
                same = (rule.budget, rule.adjacency) == (account.budget, account.adjacency)
                _require(same, "its charges add up to another budget than the account's")
                self.accounts[account.data], self.rules[account.data] = account, rule
                self.sums[account.data] = {"": rule.nothing}
            case "partition" | "records":
                at = values["data"], values["partition"] or ""
                self.sums[at[0]].setdefault(at[1], self.rules[at[0]].nothing)
                self.persons[at] = self.persons.get(at, 0) + values["new"]
                if values["new"]:
                    self.registered[entry.number] = *at, values["persons"]
            case "forget":
                at = values["data"], ""
                whose, part, _ = self.registered.pop(values["entry"])
                _require((whose, part) == at, "records that another data set registered")
                self.persons[at] -= values["taken"]
            case "token":
                holder = TokenHolder(values["name"], values["role"])
                _require(holder.name not in self.tokens, f"a second token of {holder.name!r}")
                self.tokens[holder.name] = holder, values["hash"]
            case "revoke":
                holder, hashed = self.tokens[values["name"]]
                self.tokens[holder.name] = replace(holder, revoked=True), hashed
            case "reserve":
                self._reserve(entry)
            case "refuse":
                charge_from(values["charge"])
                _require(values["data"] in self.accounts, "a refusal by no account")
            case "begin" | "mark" | "settle" | "end":
                self._live(entry.kind, values)
            case _:
                raise ValueError(f"an entry of kind {entry.kind!r}, which no book has")
        self.at = values["at"]

    def _reserve(self, entry: book.Entry) -> None:
        values = entry.values
        made = reserved_by(values)
        _require(made.number == len(self.reservations) + 1, "a reservation without its turn")
        rule, account = self.rules[made.data], self.accounts[made.data]
        # An entry whose machine's clock is behind has the date of the one before it.
        going = account.until is None or made.at[:10] <= account.until or made.at == self.at
        _require(going, "the account had ended")
        _require(made.charge.unit == account.unit, "a charge for another unit")
        costs = tuple(values["costs"])
        if not covers(costs, rule.costs(made.charge)):
            raise ValueError(f"reservation {made.number} costs more than it was charged")
        self.reservations[made.number], self.costs[made.number] = made, costs
        self._add(made, costs)
        _require(
            rule.fits(sum_of(rule, self.sums[made.data], made.charge.partition)),
            f"reservation {made.number} does not fit into the budget",
        )

    def _live(self, kind: str, values: Mapping[str, Any]) -> None:
        number, run, more = values["reservation"], values.get("run"), values.get("begun")
        held = self.reservations[number]
        known = self.begun.get(number, 0)
        if kind == "begin":
            after = begun(held, values["run"])
        elif kind == "mark":
            after = marked(held, values["rounds"], run, more)
            self.begun[number] = max(known, more or 0)
        else:
            rounds, costs, rule = values["rounds"], tuple(values["costs"]), self.rules[held.data]
            after = settled(held, rounds, run, known) if kind == "settle" else ended(held, rounds)
            if not covers(costs, rule.costs(held.charge, rounds)):
                raise ValueError(f"reservation {number} is charged less than it released")
            change = tuple(a - b for a, b in zip(costs, self.costs[number], strict=True))
            self._add(held, change)
            self.costs[number] = costs
        _require(after != held, f"an entry that changes nothing in reservation {number}")
        self.reservations[number] = after

    def _add(self, held: book.Reservation, change: Sums) -> None:
        sums, part = self.sums[held.data], held.charge.partition or ""
        sums[part] = tuple(map(sum, zip(sums[part], change, strict=True)))


def _require(good: bool, otherwise: str) -> None:
    if not good:
        raise ValueError(otherwise)


def covers(charged: Sums, costs: Sums) -> bool:
    """True if a charge is not too small; it allows for rounding on another machine or version."""
    return len(charged) == len(costs) and all(
        paid + 1 + (paid >> 30) >= cost for paid, cost in zip(charged, costs, strict=True)
    )


def sum_of(rule: TotalRule, sums: Mapping[str, Sums], partition: str | None = None) -> Sums:
    """The sums of the record with the largest charges in an account.

    Args:
        sums: by partition, "" for charges to all records.
        partition: count only records in this part; None or "": all records.
    """
    own = dict(sums)
    whole = own.pop("")
    if partition:
        scheme = partition.split("=", 1)[0]
        own = {p: s for p, s in own.items() if p == partition or p.split("=", 1)[0] != scheme}
    return rule.total(whole, own)


def reserved_by(values: Mapping[str, Any]) -> book.Reservation:
    """The reservation that an entry of kind "reserve" makes."""
    return book.Reservation(
        values["reservation"],
        values["data"],
        charge_from(values["charge"]),
        "reserved",
        values["actor"],
        values["purpose"],
        at=values["at"],
    )


def play(
    entries: Iterable[book.Entry], head: str | None, key: str | None
) -> tuple[BookState, list[str]]:
    """Check a chain and replay it; entries after a break in the chain are not replayed.

    Args:
        head: a hash that must be in the chain; None: not checked.
        key: the public key, in hexadecimal, that must have signed all entries; None: the key that
            entry 1 names.

    Returns:
        The state, and the problems in the chain, signatures, reservations and sums.
    """
    state, problems = BookState(), list[str]()
    before: book.Entry | None = None
    seen = False
    for number, entry in enumerate(entries, 1):
        if broken := _broken(entry, number, before):
            return state, [*problems, broken]
        try:
            if before is None:
                named = entry.values["key"]
                _require(key in (None, named), "the book is not signed with the key that was given")
                key = named if key is None else key
            signature = entry.signature or ""
            signed = key is None or signed_by(key, _SIGNED, entry.hash.encode(), signature)
            _require(signed, "no signature of the book's key")
            earlier = before is not None and entry.values["at"] < before.values["at"]
            _require(not earlier, "earlier than the entry before it")
            state.play(entry)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            problems.append(f"entry {number} ({entry.kind}) cannot be: {error}")
        before, seen = entry, seen or entry.hash == head
    if before is None:
        problems.append("the book has no entries")
    if head is not None and not seen:
        problems.append(f"no entry has the hash {head}: the book was set back, or is another one")
    return state, problems


def _broken(entry: book.Entry, number: int, before: book.Entry | None) -> str | None:
    if entry.number != number:
        return f"entry {number} is missing: entry {entry.number} stands in its place"
    if entry.previous != (before.hash if before else ""):
        return f"entry {number} does not follow the one before it: one of them was replaced"
    if entry.hash != _hash(number, entry.kind, entry.values, entry.previous):
        return f"entry {number} was changed after it was written"
    if (entry.kind == "book") != (number == 1):
        return f"entry {number} is of kind {entry.kind!r}: a book begins once, with its first entry"
    return None


def export(entries: Sequence[book.Entry]) -> str:
    """A book's entries as JSON, with everything that :func:`verify_export` needs."""
    values = [plain(asdict(entry)) for entry in entries]
    return canonical({"schema": EXPORT, "entries": values, "head": entries[-1].hash})


def exported(text: str) -> list[book.Entry]:
    """Read the entries of an export. Raises BookError: not an export of a book."""
    try:
        values = parse(text)
        exact_keys("export", values, {"schema", "entries", "head"})
        if values["schema"] != EXPORT:
            raise ValueError(f"schema {values['schema']!r}, expected {EXPORT!r}")
        found = [build(book.Entry, entry, "entry") for entry in values["entries"]]
        if not found or found[-1].hash != values["head"]:
            raise ValueError("its last entry is not the head that it names")
    except (ValueError, TypeError) as error:
        raise book.BookError(f"not an export of a book: {error}") from None
    return found


def verify_export(text: str, *, head: str | None = None, key: Path | None = None) -> Sequence[str]:
    """Problems of a book's JSON export, found without its database; an empty list if none.

    Args:
        head: a hash that must be in the chain, such as a statement's.
        key: PEM file of the key (public or private) that must have signed every entry; None: the
            key that the book names, which proves only that nothing changed since.
    """
    try:
        return play(exported(text), head, public_key_of(key) if key else None)[1]
    except (book.BookError, SignatureError) as error:
        return [str(error)]
