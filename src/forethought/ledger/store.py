"""A book in a database, SQLite (one file) or PostgreSQL, with the same code for both.

Every change is one transaction: it locks the book's head, appends one entry to the chain and
updates the tables accordingly. The costs of a charge are computed before the transaction; inside,
whole numbers are added and compared, in a time that does not depend on the number of entries.
"""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from forethought.ledger import book, chain
from forethought.ledger.chain import TokenHolder, sum_of
from forethought.ledger.database import (
    ACCOUNTS,
    ENTRIES,
    HEAD,
    PERSONS,
    RESERVATIONS,
    SUMS,
    TABLES,
    TOKENS,
    address,
    connected,
    durable,
    failure,
    form_of,
    new_file,
    one,
    reading,
    shown,
)
from forethought.ledger.migrations import upgrade
from forethought.ledger.totals import Sums, TotalRule
from forethought.values.checks import one_of, suggestion, whole, without_none
from forethought.values.mechanism import ADJACENCIES
from forethought.values.serialisation import canonical, parse
from forethought.values.signing import SignatureError, Signer, public_key_of

_Found = TypeVar("_Found")
_LOG = logging.getLogger(__name__)
# A clock may be behind another machine's by so much before a warning is logged.
_SKEW = timedelta(minutes=5)
# The largest number of refusals of one actor that are written in so many seconds; further refusals
# hold too, but have no entry.
_NOTED, _HOUR = 60, 3600.0
# The number of persons that one SQL statement looks up.
_AT_ONCE = 500
# The largest number that a database holds.
LARGEST = 2**63 - 1
# Entries that analysts write too; they change only reservations that they made.
_BY_ANALYSTS = frozenset({"reserve", "refuse", "records", "begin", "mark", "settle", "end"})


def now() -> datetime:
    """The time of this machine's clock, in UTC."""
    return datetime.now(UTC)


def create(url: str, *, actor: str, key: Path | None = None) -> Store:
    """Create an empty book where there is none.

    Args:
        url: ``sqlite:///books.db`` or ``postgresql://user@host/database``.
        actor: name of the person or program that writes, for the entries.
        key: PEM file of an Ed25519 private key, which then signs every entry.

    Returns:
        The book, open for its owner.

    Raises:
        BookError: there is a book already, or the database cannot be reached.
    """
    where, (public, signer) = address(url), _keys(key)
    file = new_file(where)
    kept = _Connections(connected(where, 60.0), shown(where), 60.0, signer)
    values = {
        "book": secrets.token_hex(16),
        "key": public,
        "actor": _name("the actor", actor),
        "at": _text(now()),
    }
    first = chain.chained(1, "book", values, "", signer)
    try:
        with kept.told():
            if file:
                with closing(kept.engine.raw_connection()) as made:
                    made.cursor().execute("PRAGMA journal_mode = WAL")
            with kept.engine.begin() as connection:
                durable(connection)
                names = set(sa.inspect(connection).get_table_names())
                if taken := sorted(names & set(TABLES.tables)):
                    raise book.BookError(
                        f"{kept.url} has {', '.join(taken)} already: a book has a database, or a "
                        "schema, of its own"
                    )
                upgrade(connection)
                connection.execute(sa.insert(HEAD).values(id=1, number=0, hash="", at=""))
                _append(connection, first, "book")
    except BaseException:
        if file:
            for end in ("", "-wal", "-shm"):
                file.with_name(file.name + end).unlink(missing_ok=True)
        raise
    finally:
        kept.engine.dispose()
    return open_book(url, actor=actor, key=key)


def open_book(
    url: str, *, actor: str, key: Path | None = None, migrate: bool = False, patience: float = 60.0
) -> Store:
    """Open the book at ``url`` for its owner; see :func:`create`.

    Args:
        key: the private key that signs entries (a signed book cannot be changed without it), or
            the public key that must have signed them, for reading.
        migrate: upgrade a book of an older version to the schema of this one.
        patience: seconds to wait for other writers, and for a server that cannot be reached.

    Raises:
        BookError: no such book, not a book, a book of an older or newer version, or another key.
    """
    where, (public, signer) = address(url), _keys(key, reading=True)
    kept = _Connections(connected(where, patience), shown(where), patience, signer)
    try:
        with kept.told():
            with kept.reads.connect() as connection:
                form = form_of(connection)
                durable(connection)
            if form == "older" and migrate:
                with kept.engine.begin() as connection:
                    upgrade(connection)
                form = "current"
            if form != "current":
                raise book.BookError(f"{kept.url} {_FORMS[form]}")
            with kept.reads.connect() as connection:
                kept.key = kept.key_in(connection)
        if public is not None and kept.key != public:
            signed = "with another key than" if kept.key else "by nobody: it was made without"
            raise book.BookError(f"{kept.url} is signed {signed} {key}")
    except BaseException:
        kept.engine.dispose()
        raise
    return Store(kept, _name("the actor", actor), "owner")


_OTHER_UNIT: dict[book.Unit, str] = {
    "record": "plan it for one record, or open an account for persons",
    "person": "plan it for persons ([data] person in a job, persons= of forethought.plan; convex "
    "descents and the estimators know records only), or open an account for records",
}
_FORMS = {
    "none": "is no book: make one with forethought ledger create",
    "older": "is a book of an older version of forethought: say migrate, after a copy of it",
    "newer": "is a book of a newer version of forethought: update forethought",
}


def _keys(key: Path | None, *, reading: bool = False) -> tuple[str | None, Signer | None]:
    """A key's public part and its signer, which a public key lacks: it suffices for reading."""
    if key is None:
        return None, None
    try:
        private = not reading or b"PRIVATE" in key.read_bytes()
        return public_key_of(key), Signer(key) if private else None
    except (OSError, SignatureError) as error:
        raise book.BookError(
            f"the book's key (--key, or FORETHOUGHT_LEDGER_KEY) cannot be read: {error}"
        ) from None


@dataclass
class _Connections:
    """A book's connections, and what this process knows of its callers.

    Args:
        signer: signs entries with the private key; None: not given.
        key: the public key that verifies all entries; None: the book is not signed.
        refused: actor → times at which refusals were written, in seconds of a monotonic clock.
    """

    engine: sa.Engine
    url: str
    patience: float
    signer: Signer | None = None
    key: str | None = None
    refused: dict[str, deque[float]] = field(default_factory=dict)

    def noting(self, actor: str) -> bool:
        """True if a refusal may be written; the limit keeps the book from filling up."""
        noted, here = self.refused.setdefault(actor, deque(maxlen=_NOTED)), time.monotonic()
        if len(noted) == _NOTED and here - noted[0] < _HOUR:
            _LOG.warning("refusals of %s are not written any more for a while", actor)
            return False
        noted.append(here)
        return True

    @property
    def reads(self) -> sa.Engine:
        return reading(self.engine)

    def key_in(self, connection: sa.Connection) -> str | None:
        """The public key that the book's first entry names."""
        row = one(connection, ENTRIES, ENTRIES.c.number == 1)
        if row is None:
            raise book.BookError(f"{self.url} has no first entry: go back to a copy of it")
        return parse(row.content).get("key")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turn a database's errors into :class:`BookError`."""
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            raise book.BookError(f"{self.url}: {failure(error).words}") from None


@dataclass(frozen=True)
class _Turn:
    """The context of one change: its transaction, which locks the head, and its new entry."""

    connection: sa.Connection
    number: int
    at: str


class Store(book.Book):
    """See :class:`~forethought.ledger.book.Book`; threads can share it, processes cannot."""

    def __init__(self, kept: _Connections, actor: str, role: book.Role) -> None:
        self._kept, self.actor, self.role = kept, actor, role

    def acting(self, actor: str, role: book.Role) -> Store:
        """The same book for another actor, over the same connections."""
        one_of("role", role, chain.ROLES)
        return Store(self._kept, _name("the actor", actor), role)

    def close(self) -> None:
        """Close the connections, also for other actors that use them."""
        self._kept.engine.dispose()

    # Accounts, persons and tokens.

    def open_account(
        self, account: book.Account, rule: str | None = None, blocks: int | None = None
    ) -> book.Account:
        """See :meth:`Book.open_account`.

        Args:
            rule: the name of the rule that adds charges up; see
                :data:`forethought.ledger.totals.RULES`; None: the rule for most kinds of charges.
            blocks: see :meth:`forethought.ledger.totals.TotalRule.of`.
        """
        chosen = rule_of(account, rule, blocks)

        def work(turn: _Turn) -> Mapping[str, Any]:
            if one(turn.connection, ACCOUNTS, ACCOUNTS.c.data == account.data):
                raise book.BookError(f"{account.data!r} has an account already")
            opened = replace(account, opened=account.opened or turn.at[:10])
            values = {"account": asdict(opened), "rule": chosen.to_dict()}
            texts = {name: canonical(value) for name, value in values.items()}
            turn.connection.execute(sa.insert(ACCOUNTS).values(data=account.data, **texts))
            _new_sums(turn, account.data, "", chosen)
            return values

        return chain.account_from(self._write("account", work)["account"])

    def account(self, data: str) -> book.Account:
        return self._known(data)[0]

    def accounts(self) -> Sequence[book.Account]:
        rows = self._rows(sa.select(ACCOUNTS).order_by(ACCOUNTS.c.data))
        return [chain.account_from(parse(row.account)) for row in rows]

    def add_persons(self, data: str, partition: str | None, persons: Iterable[bytes]) -> int:
        return self._register("partition", data, partition, persons, {})

    def add_records(self, data: str, persons: Iterable[bytes], fingerprint: str) -> int:
        named = {"fingerprint": _name("a fingerprint", fingerprint)}
        return self._register("records", data, None, persons, named)

    def forget(self, data: str, entry: int, reason: str) -> int:
        self._known(data)
        words = _reason(reason)
        # Persons of a partition stay, since the proof that its parts are disjoint needs them.
        own = PERSONS.c.entry == entry, PERSONS.c.data == data, PERSONS.c.scheme == ""

        def work(turn: _Turn) -> Mapping[str, Any]:
            taken = 0
            if 0 <= entry <= LARGEST:
                taken = turn.connection.execute(sa.delete(PERSONS).where(*own)).rowcount
            if not taken:
                raise book.BookError(f"entry {entry} registered no records of {data!r} (any more)")
            _put(turn, data, "", persons=SUMS.c.persons - taken)
            return {"data": data, "entry": entry, "taken": taken, "reason": words}

        return int(self._write("forget", work)["taken"])

    def overlaps(
        self, data: str, persons: Iterable[bytes], partition: str | None = None
    ) -> Mapping[str, tuple[int, int]]:
        self._known(data)
        wanted, found = chain.pieces(persons, _AT_ONCE), dict[str, tuple[int, int]]()
        asked = (SUMS.c.data != data) | (SUMS.c.part == partition)
        rows = self._rows(sa.select(SUMS).where(asked, SUMS.c.persons > 0).order_by(SUMS.c.data))
        counted = sa.select(sa.func.count(PERSONS.c.person.distinct()))
        for name, held in groupby(rows, key=lambda row: str(row.data)):
            own = [(*_parts(row.part or None), row.persons) for row in held]
            pairs = []
            for scheme in {scheme for scheme, _, _ in own}:
                parts = {part: size for one, part, size in own if one == scheme}
                here = PERSONS.c.scheme == scheme, PERSONS.c.part.in_(parts)
                of = counted.where(PERSONS.c.data == name, *here)
                shared = (self._rows(of.where(PERSONS.c.person.in_(some)))[0][0] for some in wanted)
                pairs.append((sum(shared), sum(parts.values())))
            if any(shared for shared, _ in pairs):
                found[name] = max(pairs, key=lambda pair: pair[0] / pair[1])
        return found

    def _register(
        self,
        kind: str,
        data: str,
        partition: str | None,
        persons: Iterable[bytes],
        more: Mapping[str, str],
    ) -> int:
        _, rule = self._known(data)
        scheme, part = _parts(partition)
        wanted = chain.pieces(persons, _AT_ONCE)

        def work(turn: _Turn) -> Mapping[str, Any] | None:
            new = list[bytes]()
            for some in wanted:
                here = PERSONS.c.data == data, PERSONS.c.scheme == scheme
                rows = turn.connection.execute(
                    sa.select(PERSONS).where(*here, PERSONS.c.person.in_(some))
                ).all()
                if others := [row.part for row in rows if row.part != part]:
                    raise book.BookError(
                        f"{len(others):,} of the persons or more are in {scheme}={others[0]} "
                        f"already, so {partition} would not be disjoint from it: leave them out"
                    )
                known = {bytes(row.person) for row in rows}
                new += [person for person in some if person not in known]
            same = {"data": data, "scheme": scheme, "part": part, "entry": turn.number}
            known_part = one(turn.connection, SUMS, *_at(data, partition or ""))
            if known_part is None:
                _new_sums(turn, data, partition or "", rule)
            elif not new:
                return None
            if new:
                turn.connection.execute(
                    sa.insert(PERSONS), [{**same, "person": person} for person in new]
                )
            _put(turn, data, partition or "", persons=SUMS.c.persons + len(new))
            digest = chain.persons_digest(new)
            own = {"data": data, "partition": partition, "new": len(new), "persons": digest}
            return {**own, **more}

        found = self._write(kind, work)
        return int(found["new"]) if found else 0

    def add_token(self, name: str, role: book.Role) -> str:
        """Create a token, which only this call returns: the book keeps its hash. Owners only.

        Raises:
            BookError: the name has, or had, a token.
        """
        _name("the token's holder", name)
        one_of("role", role, chain.ROLES)
        # A plain hash suffices: 256 random bits cannot be guessed.
        token = f"ft_{secrets.token_urlsafe(32)}"
        hashed = _token_hash(token)

        def work(turn: _Turn) -> Mapping[str, Any]:
            if one(turn.connection, TOKENS, TOKENS.c.name == name):
                raise book.BookError(f"{name!r} has, or had, a token: choose another name")
            values = {"name": name, "role": role, "hash": hashed}
            turn.connection.execute(sa.insert(TOKENS).values(revoked=False, **values))
            return values

        self._write("token", work)
        return token

    def revoke_token(self, name: str) -> None:
        """Revoke a name's token. Owners only. Raises BookError: the name has no token."""

        def work(turn: _Turn) -> Mapping[str, Any] | None:
            row = one(turn.connection, TOKENS, TOKENS.c.name == name)
            if row is None:
                raise book.BookError(f"nobody named {name!r} has a token")
            if row.revoked:
                return None
            turn.connection.execute(
                sa.update(TOKENS).where(TOKENS.c.name == name).values(revoked=True)
            )
            return {"name": name}

        self._write("revoke", work)

    def holder(self, token: str) -> TokenHolder:
        """The holder of a token. Raises NotAllowedError: the token is unknown or was revoked."""
        row = self._read(lambda on: one(on, TOKENS, TOKENS.c.hash == _token_hash(token)))
        if row is None or row.revoked:
            raise book.NotAllowedError("the token opens nothing: it is unknown, or was revoked")
        return TokenHolder(row.name, row.role)

    def holders(self) -> Sequence[TokenHolder]:
        """All names that were given a token, in order of name, revoked ones included."""
        rows = self._rows(sa.select(TOKENS).order_by(TOKENS.c.name))
        return [TokenHolder(row.name, row.role, row.revoked) for row in rows]

    # The life of a reservation.

    def reserve(
        self, data: str, charge: book.Charge, *, purpose: str = "", call: str | None = None
    ) -> book.Reservation:
        account, rule, costs = self._priced(data, charge)
        purpose = _words("a purpose", purpose)
        own = {"data": data, "purpose": purpose, "charge": chain.charge_values(charge)}
        part = charge.partition or ""

        def work(turn: _Turn) -> Mapping[str, Any]:
            # Not the entry's date: a wrong clock elsewhere may have moved it, for all later ones.
            account.require_going(_text(now()))
            sums = _sums(turn.connection, data)
            after = _with(data, sums, charge, costs)
            if not rule.fits(sum_of(rule, after, part)):
                raise _FullError(sums)
            newest = sa.select(sa.func.max(RESERVATIONS.c.number))
            number = 1 + (turn.connection.execute(newest).scalar() or 0)
            texts = {"charge": canonical(own["charge"]), "costs": canonical(costs)}
            life = {"actor": self.actor, "status": "reserved", "mark": 0, "at": turn.at}
            row = {**own, **texts, **life, "number": number}
            turn.connection.execute(sa.insert(RESERVATIONS).values(**row))
            _put(turn, data, part, sums=canonical(after[part]))
            return {**own, "reservation": number, "costs": [*costs]}

        try:
            found = self._write("reserve", work, call)
        except _FullError as full:
            left = rule.left(sum_of(rule, full.args[0], part))
            budget = account.budget
            over = book.OverBudgetError(
                f"this does not fit into the budget of {data!r} (ε {budget.epsilon:g} at δ "
                f"{budget.delta:g}): what is left is one Gaussian release of ε {left:.4g} at that "
                "δ; nothing was charged",
                left,
            )
            if self._kept.noting(self.actor):
                with suppress(book.BookError):  # the refusal holds, even if it cannot be written
                    self._write("refuse", lambda _: {**own, "left": left})
            raise over from None
        made = chain.reserved_by(found)
        if (made.data, made.charge) != (data, charge):
            raise book.BookError(
                f"the call {call!r} was for another charge: reservation {made.number}"
            )
        return made if call is None else self.reservation(made.number)

    def fits(self, data: str, charge: book.Charge) -> bool:
        account, rule, costs = self._priced(data, charge)
        account.require_going(_text(now()))
        after = _with(data, self._read(lambda on: _sums(on, data)), charge, costs)
        return rule.fits(sum_of(rule, after, charge.partition))

    def begin(self, number: int, run: str) -> book.Reservation:
        _name("the run", run)
        self._change("begin", number, lambda _, held: chain.begun(held, run), {"run": run})
        return self.reservation(number)

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
        values = without_none({"rounds": rounds, "run": run, "begun": begun})
        self._change(
            "mark", number, lambda _, it: chain.marked(it, rounds, run, begun), values, seen, call
        )

    def settle(
        self, number: int, rounds: int, *, run: str | None = None, seen: int | None = None
    ) -> book.Total:
        def settled(turn: _Turn, held: book.Reservation) -> book.Reservation:
            # No round has begun above the mark, so only a lower number asks for the marks.
            known = _begun(turn.connection, number) if rounds < held.mark else 0
            return chain.settled(held, rounds, run, known)

        values = without_none({"rounds": rounds, "run": run})
        return self.total(self._change("settle", number, settled, values, seen))

    def end(self, number: int, rounds: int, reason: str) -> book.Total:
        """See :meth:`Book.end`; analysts can end own reservations before they begin (0 rounds)."""
        values = {"rounds": rounds, "reason": _reason(reason)}

        def ended(_: _Turn, held: book.Reservation) -> book.Reservation:
            if self.role != "owner" and (held.status != "reserved" or rounds):
                raise book.NotAllowedError("only an owner ends a reservation that has begun")
            return chain.ended(held, rounds)

        return self.total(self._change("end", number, ended, values))

    def _change(
        self,
        kind: str,
        number: int,
        changed: Callable[[_Turn, book.Reservation], book.Reservation],
        values: Mapping[str, Any],
        seen: int | None = None,
        call: str | None = None,
    ) -> str:
        """Change a reservation, and its costs where it is over; returns its data set.

        Args:
            seen, call: as for :meth:`Book.mark`.
        """
        # A reservation's charge never changes, so its costs are computed before the transaction.
        first = self.reservation(number)
        data, charge = first.data, first.charge
        part = charge.partition or ""
        rule, costs = self._known(data)[1], Sums()
        if kind in ("settle", "end"):
            costs = rule.costs(charge, chain.rounds_of(first, values["rounds"]))

        def work(turn: _Turn) -> Mapping[str, Any] | None:
            row = _row(turn.connection, number)
            if self.role == "analyst" and row.actor != self.actor:
                raise book.NotAllowedError(
                    f"reservation {number} is {row.actor}'s: an owner may change it"
                )
            held, before = _reservation(row), parse(row.costs)
            new = changed(turn, held)
            if seen is not None and held.status == "active" and held.mark > seen:
                raise book.BookError(
                    f"another process has marked rounds of reservation {number} since this one "
                    "began: one copy of a run goes on. Nothing is released here"
                )
            if new == held:
                return None
            life = {name: getattr(new, name) for name in ("status", "run", "mark", "released")}
            own: dict[str, Any] = {"reservation": number, **values}
            if costs:
                own["costs"], life["costs"] = [*costs], canonical(costs)
                more = tuple(a - b for a, b in zip(costs, before, strict=True))
                sums = _with(data, _sums(turn.connection, data), charge, more)
                _put(turn, data, part, sums=canonical(sums[part]))
            here = RESERVATIONS.c.number == number
            turn.connection.execute(sa.update(RESERVATIONS).where(here).values(**life))
            return own

        self._write(kind, work, call)
        return data

    def reservation(self, number: int) -> book.Reservation:
        return _reservation(self._read(lambda on: _row(on, number)))

    def reservations(self, data: str) -> Sequence[book.Reservation]:
        self._known(data)
        query = sa.select(RESERVATIONS).where(RESERVATIONS.c.data == data)
        return list(map(_reservation, self._rows(query.order_by(RESERVATIONS.c.number))))

    def total(self, data: str) -> book.Total:
        account, rule = self._known(data)
        sums, head = self._read(
            lambda on: (_sums(on, data), on.execute(sa.select(HEAD.c.hash)).scalar_one())
        )
        epsilon, most = cache(rule.total_epsilon), sum_of(rule, sums)
        by_part = {
            part: epsilon(sum_of(rule, sums, part) if part else held) for part, held in sums.items()
        }
        return book.Total(epsilon(most), account.budget.delta, rule.left(most), by_part, head)

    # The chain.

    def entries(self, after: int = 0) -> Sequence[book.Entry]:
        above = ENTRIES.c.number > whole("after", after, least=0, most=LARGEST)
        query = sa.select(ENTRIES).where(above).order_by(ENTRIES.c.number)
        return list(map(_entry, self._rows(query)))

    def verify(self, head: str | None = None) -> Sequence[str]:
        def work(connection: sa.Connection) -> list[str]:
            rows = connection.execute(sa.select(ENTRIES).order_by(ENTRIES.c.number)).all()
            try:
                entries = [_entry(row) for row in rows]
            except (ValueError, TypeError) as error:
                return [f"the book holds entries that are none: {error}"]
            state, problems = chain.play(entries, head, self._kept.key)
            return problems or [*_differing(connection, state, entries[-1])]

        return self._read(work)

    # Helpers.

    def _known(self, data: str) -> tuple[book.Account, TotalRule]:
        """The account of a data set and its rule."""
        row = self._read(lambda on: one(on, ACCOUNTS, ACCOUNTS.c.data == data))
        if row is None:
            names = [row.data for row in self._rows(sa.select(ACCOUNTS.c.data))]
            hint = suggestion(data, names) if names else "the book has no account yet"
            raise book.BookError(f"the book has no account of {data!r}: {hint}")
        return _opened(row.account, row.rule)

    def _priced(self, data: str, charge: book.Charge) -> tuple[book.Account, TotalRule, Sums]:
        """An account, its rule, and the costs of a charge under it.

        Raises:
            BookError: the charge does not fit the account's adjacency, unit or rule.
        """
        account, rule = self._known(data)
        _parts(charge.partition)
        if charge.unit != account.unit:
            whom = f"groups of {charge.group}" if charge.group > 1 else f"a {charge.unit}"
            raise book.BookError(
                f"the account of {data!r} protects a {account.unit}, the plan {whom}: "
                f"{_OTHER_UNIT[account.unit]}"
            )
        try:
            return account, rule, rule.costs(charge)
        except ValueError as error:
            raise book.BookError(f"{data!r} cannot be charged with it: {error}") from None

    def _rows(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return self._read(lambda connection: connection.execute(query).all())

    def _read(self, work: Callable[[sa.Connection], _Found]) -> _Found:
        """Read the book in one transaction; retry while the server cannot be reached."""
        until = time.monotonic() + self._kept.patience
        while True:
            try:
                with self._kept.reads.connect() as connection:
                    return work(connection)
            except DBAPIError as error:
                trouble = failure(error)
            if trouble.kind == "stop" or time.monotonic() > until:
                raise book.BookError(f"{self._kept.url}: {trouble.words}")
            time.sleep(random.uniform(0.01, 0.2))

    def _write(
        self, kind: str, work: Callable[[_Turn], Mapping[str, Any] | None], call: str | None = None
    ) -> Mapping[str, Any]:
        """Make one change in one transaction.

        If this returns, the change is in the book. Otherwise the error says that it is not, or that
        this is unknown. After a lost answer, the entry is looked up by the call's name while the
        head is locked, when the transaction of the lost answer must have ended.

        Args:
            work: updates the tables and returns the entry's values; None: nothing is to be changed.
            call: a repeated call with the same name returns the values written the first time.

        Returns:
            The values of the entry; empty if nothing was to be changed.
        """
        kept = self._kept
        may = ("owner", "analyst") if kind in _BY_ANALYSTS else ("owner",)
        if self.role not in may:
            who = " and ".join(may)
            raise book.NotAllowedError(f"{self.actor} is {self.role} here: {kind!r} is for {who}s")
        if kept.key is not None and kept.signer is None:
            raise book.BookError(f"{kept.url} is signed: open it with its private key to change it")
        if call is not None and not 1 <= len(call) <= 64:
            raise book.BookError("a call's name has 1 to 64 characters")
        # No actor's name has a line break.
        name = f"{self.actor}\n{call}" if call else secrets.token_hex(16)
        until, looked, lost = time.monotonic() + kept.patience, call is not None, False
        while True:
            sent = False
            try:
                with kept.engine.begin() as connection:
                    head = connection.execute(sa.select(HEAD).with_for_update()).one()
                    if looked and (found := self._earlier(connection, name)):
                        return found
                    lost = False
                    if kept.key_in(connection) != kept.key:
                        raise book.BookError(f"{kept.url} is another book now: open it anew")
                    turn = _Turn(connection, head.number + 1, _moment(head.at))
                    found = work(turn)
                    if not found:
                        return {}
                    values = {**found, "actor": self.actor, "at": turn.at}
                    entry = chain.chained(turn.number, kind, values, head.hash, kept.signer)
                    _append(connection, entry, name)
                    sent = True
                return values
            except DBAPIError as error:
                trouble = failure(error)
            looked, lost = True, lost or (sent and trouble.kind in ("lost", "stop"))
            if trouble.kind == "stop" and sent:
                # The transaction has ended and locks nothing, so the book can be read at once.
                with suppress(book.BookError):  # it cannot be read either: not known
                    if earlier := self._read(lambda connection: self._earlier(connection, name)):
                        return earlier
                    lost = False
            if trouble.kind == "stop" or time.monotonic() > until:
                where, by = f"{kept.url}: {trouble.words}", name.replace("\n", ":")
                raise book.BookError(
                    f"{where}. It is not known whether this is in the book ({kind}, call {by}): "
                    "count it as charged, and look with forethought ledger show when the book can "
                    "be reached"
                    if lost
                    else f"{where}; nothing was written"
                )
            time.sleep(random.uniform(0.01, 0.2))

    def _earlier(self, connection: sa.Connection, name: str) -> Mapping[str, Any] | None:
        """The values of the entry that a call with this name wrote."""
        row = one(connection, ENTRIES, ENTRIES.c.call == name)
        return None if row is None else _entry(row).values


# The texts are the key: another book in the place of this one has other rules under its names.
@lru_cache(maxsize=256)
def _opened(account: str, rule: str) -> tuple[book.Account, TotalRule]:
    """An account and its rule from their rows' texts."""
    return chain.account_from(parse(account)), TotalRule.from_dict(parse(rule))


class _FullError(Exception):
    """The charge does not fit; its argument is the present sums of the data set."""


def _name(what: str, name: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
        raise book.BookError(
            f"{what} has a name of 1 to 200 printable characters, not {name!r:.80}"
        )
    return name


def _words(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} is text, not {text!r:.80}")
    line = " ".join(text.split())
    if len(line) > 2000 or not line.isprintable():
        raise book.BookError(f"{what} has 2,000 printable characters at most")
    return line


def rule_of(account: book.Account, rule: str | None, blocks: int | None) -> TotalRule:
    """The rule of a new account. Raises ValueError: an account that cannot be opened."""
    _name("an account", account.data)
    one_of("adjacency", account.adjacency, ADJACENCIES)
    today = now().date().isoformat()
    for name, day in (("opened", account.opened or None), ("until", account.until)):
        with suppress(ValueError, TypeError):
            if day is None or date.fromisoformat(day).isoformat() == day:
                continue
        raise book.BookError(f"{name} is a day such as 2027-12-31, not {day!r}")
    if account.until and account.until < today:
        raise book.BookError(f"until is {account.until}, and it is {today}: give a day to come")
    return TotalRule.of(account, rule, blocks)


def _parts(partition: str | None) -> tuple[str, str]:
    """Scheme and part of a partition's name; both are empty for the whole data set."""
    if partition is None:
        return "", ""
    if not isinstance(partition, str):
        raise TypeError(f"a partition is text, scheme=part, not {partition!r:.80}")
    scheme, _, part = partition.partition("=")
    if not scheme.strip() or not part.strip() or not partition.isprintable():
        raise book.BookError(
            f"a partition is named scheme=part, such as site=A, not {partition!r:.80}"
        )
    return scheme, part


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds")


def _moment(before: str) -> str:
    """The time of a new entry: the clock's, but not earlier than that of the entry before."""
    clock = now()
    if (here := _text(clock)) >= before:
        return here
    if (behind := datetime.fromisoformat(before) - clock) > _SKEW:
        _LOG.warning(
            "this machine's clock says %s, %s behind the book's newest entry: set it; the entry "
            "is dated %s",
            *(here, behind, before),
        )
    return before


def _token_hash(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def _append(connection: sa.Connection, entry: book.Entry, call: str) -> None:
    row = {**vars(entry), "content": canonical(entry.values), "call": call}
    del row["values"]
    connection.execute(sa.insert(ENTRIES).values(**row))
    newest = {"number": entry.number, "hash": entry.hash, "at": entry.values["at"]}
    connection.execute(sa.update(HEAD).values(**newest))


def _entry(row: sa.Row[Any]) -> book.Entry:
    values = parse(row.content)
    return book.Entry(row.number, row.kind, values, row.previous, row.hash, row.signature)


def _row(connection: sa.Connection, number: int) -> sa.Row[Any]:
    found: sa.Row[Any] | None = None
    if 0 <= number <= LARGEST:
        found = one(connection, RESERVATIONS, RESERVATIONS.c.number == number)
    if found is None:
        raise book.BookError(f"the book has no reservation {number}")
    return found


def _begun(connection: sa.Connection, number: int) -> int:
    """The number of rounds of a reservation that have begun for sure, by its marks' entries."""
    # Canonical JSON: nothing else than the value of this key reads so, whatever names hold.
    of_it = ENTRIES.c.kind == "mark", ENTRIES.c.content.contains(f'"reservation":{number},')
    rows = connection.execute(sa.select(ENTRIES.c.content).where(*of_it))
    return max((parse(row.content).get("begun", 0) for row in rows), default=0)


def _reservation(row: sa.Row[Any]) -> book.Reservation:
    # Row order: number, data, charge, costs, then the other fields of a Reservation in order.
    own: tuple[Any, ...] = tuple(row)[4:]
    return book.Reservation(row.number, row.data, chain.charge_from(parse(row.charge)), *own)


def _reason(text: str) -> str:
    words = _words("a decision's reason", text)
    if not words:
        raise book.BookError("a decision has a reason")
    return words


def _at(data: str, part: str) -> tuple[Any, Any]:
    return SUMS.c.data == data, SUMS.c.part == part


def _new_sums(turn: _Turn, data: str, part: str, rule: TotalRule) -> None:
    values = {"data": data, "part": part, "sums": canonical(rule.nothing), "persons": 0}
    turn.connection.execute(sa.insert(SUMS).values(**values))


def _put(turn: _Turn, data: str, part: str, **values: Any) -> None:
    turn.connection.execute(sa.update(SUMS).where(*_at(data, part)).values(**values))


def _sums(connection: sa.Connection, data: str) -> dict[str, Sums]:
    """The sums of a data set by partition, "" for charges to all records."""
    rows = connection.execute(sa.select(SUMS).where(SUMS.c.data == data))
    return {row.part: tuple(parse(row.sums)) for row in rows}


def _with(data: str, sums: dict[str, Sums], charge: book.Charge, costs: Sums) -> dict[str, Sums]:
    """The sums of a data set after a charge. Raises BookError: an unknown partition."""
    part = charge.partition or ""
    if part not in sums:
        known = [name for name in sums if name]
        hint = suggestion(part, known) if known else "none is registered yet"
        raise book.BookError(f"{data!r} has no partition {part!r}: {hint}")
    return {**sums, part: tuple(map(sum, zip(sums[part], costs, strict=True)))}


def _differing(
    connection: sa.Connection, state: chain.BookState, newest: book.Entry
) -> Iterator[str]:
    """Sentences on rows of the tables that differ from the state that the entries give."""
    held = {
        (
            *(number, made.data),
            canonical(chain.charge_values(made.charge)),
            canonical(state.costs[number]),
            *(made.status, made.by, made.purpose, made.run, made.mark, made.released, made.at),
        )
        for number, made in state.reservations.items()
    }
    accounts = {
        (data, canonical(asdict(one)), canonical(state.rules[data].to_dict()))
        for data, one in state.accounts.items()
    }
    sums = {
        (data, part, canonical(one), state.persons.get((data, part), 0))
        for data, own in state.sums.items()
        for part, one in own.items()
    }
    tokens = {(n, one.role, hashed, one.revoked) for n, (one, hashed) in state.tokens.items()}
    head = {(1, newest.number, newest.hash, newest.values["at"])}
    every: list[Set[Any]] = [accounts, held, sums, tokens, head]
    for table, expected in zip((ACCOUNTS, RESERVATIONS, SUMS, TOKENS, HEAD), every, strict=True):
        found = {tuple(row) for row in connection.execute(sa.select(table))}
        for at in sorted({row[: len(table.primary_key)] for row in found ^ expected}, key=str):
            name = at if len(at) > 1 else at[0]
            yield f"{table.name} {name!r} holds something else than its entries say"
    yield from _other_persons(connection, state)


def _other_persons(connection: sa.Connection, state: chain.BookState) -> Iterator[str]:
    order = PERSONS.c.entry, PERSONS.c.data, PERSONS.c.scheme, PERSONS.c.part, PERSONS.c.person
    rows = connection.execute(sa.select(*order).order_by(*order))
    found = {
        at[0]: (at[1], f"{at[2]}={at[3]}" if at[2] else "", digest)
        for at, some in groupby(rows, key=lambda row: tuple(row[:4]))
        if (digest := chain.persons_digest(bytes(row[4]) for row in some))
    }
    for entry in sorted({*found, *state.registered}):
        if found.get(entry, ()) != state.registered.get(entry, ()):
            yield f"the persons that entry {entry} registered are others now"
