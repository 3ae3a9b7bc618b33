"""A run that a data set's book pays for: reserved before data is read, marked ahead, settled.

A :class:`Ledger` names a book and an account. :meth:`Ledger.paid` reserves all that a plan can
release, and begins the reservation. From then on the mark in the book stays ahead of the releases,
and the end of the run settles the rounds that were released. If the process dies, its reservation
stays active: the whole charge stays, and the mark says how many rounds may have been released. The
same run folder, which holds the reservation's number, continues the same reservation.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import math
import os
import re
import secrets
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from forethought.accounting.adaptive import Selection
from forethought.accounting.interval import at_least, at_most
from forethought.ledger.book import (
    Account,
    Book,
    BookError,
    Charge,
    NotAllowedError,
    OverBudgetError,
    Reservation,
    Total,
    Unit,
)
from forethought.values.checks import one_of, optional, require_parts, settle, whole
from forethought.values.mechanism import Mechanism, UnsupportedMechanismError
from forethought.values.serialisation import parse, write_text

if TYPE_CHECKING:
    from forethought.ledger.store import Store

# Files of a run folder: the reservation of its run, and the book's answer when it was settled.
RESERVATION, EVIDENCE = "reservation.json", "ledger.json"
RESERVATION_SCHEMA, EVIDENCE_SCHEMA = "forethought/reservation/1", "forethought/in-book/1"
# Approximate seconds between two marks.
PACE = 1.0
# Environment variables that hold a token, and name the file of a signing key.
TOKEN, KEY = "FORETHOUGHT_LEDGER_TOKEN", "FORETHOUGHT_LEDGER_KEY"
# Words on a smaller plan, from a test whether a charge fits and the ε that is left.
Advice = Callable[[Callable[[Charge], bool], float], str | None]


def book_at(url: str, token_file: str | Path | None = None) -> Book:
    """Open the book at an address: a database's, or the service's (https://…).

    Args:
        token_file: file of the service's token; None: the token is in the environment variable
            FORETHOUGHT_LEDGER_TOKEN.

    Raises:
        BookError: no such book, no token where one is needed, or a token file for a database.
        OSError: the token file cannot be read.
    """
    if url.startswith(("http://", "https://")):
        from forethought.ledger.remote import RemoteBook

        held = Path(token_file).read_text("utf-8") if token_file else os.environ.get(TOKEN, "")
        if not (token := held.strip()):
            raise BookError(
                f"the service at {url} needs a token: name its token_file, or set {TOKEN}"
            )
        return RemoteBook(url, token)
    if token_file is not None:
        raise BookError(
            "a database takes no token: leave the token file out, or give the service's https://…"
        )
    return stored(url)


def stored(url: str, key: Path | None = None) -> Store:
    """Open the book in a database; entries name this machine's user.

    Args:
        key: file of the key that signs the book or verifies it; None: the environment variable
            FORETHOUGHT_LEDGER_KEY names it.

    Raises:
        BookError: no such book, or another key.
    """
    from forethought.ledger.store import open_book

    return open_book(url, actor=user(), key=key or named_key())


def named_key() -> Path | None:
    """The key's file that the environment variable FORETHOUGHT_LEDGER_KEY names, if it does."""
    named = os.environ.get(KEY)
    return Path(named) if named else None


def user() -> str:
    """The name of this machine's user, for entries of a book in a database."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"user {os.getuid()}"


class RunTerms(TypedDict, total=False):
    """Keywords of a run that asks for its payment; see :meth:`Ledger.paid`."""

    group: int
    unit: Unit
    selection: Selection | None
    folder: Path | None
    resume: bool


def _charge(mechanism: Mechanism, asked: RunTerms, partition: str | None = None) -> Charge:
    found, unit = asked.get("selection"), asked.get("unit", "record")
    return Charge(mechanism, asked.get("group", 1), partition, found, unit)


@dataclass(frozen=True)
class Ledger:
    """The book and account that a run is paid from.

    Args:
        url: ``sqlite:///books.db``, ``postgresql://…`` or the service's ``https://…``.
        data: the account's name.
        purpose: purpose of the run, for readers of the book.
        token_file: of the service; see :func:`book_at`.
        partition: ``"scheme=part"`` if the run reads only one part's records; believed without
            ``identity``.
        also: other accounts of the book whose data sets share persons with this one. The run is
            charged to them too, so that each adds up all that is released about a person.
        identity: file of the key that hashes records and persons (`forethought ledger identity`),
            the same for all users of the book; None: nothing is compared.

    Raises:
        TypeError: the address, the account's name or the purpose is no text.

    >>> Ledger("sqlite:///books.db", "patients", purpose="survival after a stroke").data
    'patients'
    """

    url: str
    data: str
    purpose: str = ""
    token_file: str | Path | None = None
    partition: str | None = None
    also: tuple[str, ...] = ()
    identity: str | Path | None = None

    def __repr__(self) -> str:  # which notebooks show and keep
        return f"Ledger({self.without_password().url!r}, {self.data!r})"

    def without_password(self) -> Ledger:
        """The same ledger without its database's password, for whoever gets a model."""
        bare = re.sub(r"(://[^:/@]*):[^?]*@", r"\1@", self.url)
        return replace(self, url=re.sub(r"(?<=[?&])(ssl)?password=[^&]*&?", "", bare))

    def __post_init__(self) -> None:
        require_parts(self, {"url": str, "data": str, "purpose": str})
        settle(self, also=(self.also,) if isinstance(self.also, str) else tuple(self.also or ()))

    def recognise(self, records: Sequence[bytes], persons: Sequence[bytes] | None = None) -> None:
        """Register records or persons; refuse if another account has them, or the part has not.

        Does nothing without ``identity``. The book gets keyed hashes only.

        Args:
            records: each as bytes, in any order (`forethought.ledger.identity.contents`).
            persons: the person of each record, compared instead of the records; None: records are
                compared, and fewer than 1 in 20 equal ones count as a coincidence.

        Raises:
            BookError: another account has them and ``also`` does not name it, or not all are
                registered to ``partition``; says what to do.
        """
        if self.identity is None:
            return
        from forethought.ledger.identity import Overlap, fingerprint, hashes

        key = Path(self.identity).read_bytes()
        unit: Literal["record", "person"] = "record" if persons is None else "person"
        listed = hashes(key, records if persons is None else persons, unit)
        name = fingerprint(key, records)
        book = self.book()

        def ask() -> None:
            found = {**book.overlaps(self.data, listed, self.partition)}
            apart = len(listed) - found.pop(self.data, (0, 0))[0]
            if self.partition is not None and apart:
                raise BookError(
                    f"{apart:,} of the {len(listed):,} {unit}s are not in {self.partition} of "
                    f"{self.data!r}: leave them out, pay without a partition, or let an owner "
                    "register them in it (Book.add_persons)"
                )
            for other, (shared, size) in sorted(found.items()):
                seen = Overlap(len(listed), size, shared)
                few = persons is None and 20 * shared < min(seen.of, seen.other)
                if other in self.also or few:
                    continue
                raise BookError(
                    f"{seen.words(other, unit)}. If it is that data set, pay from its account: "
                    f"data = {other!r}. If it is another one about the same {unit}s, say that both "
                    f"pay: also = [{other!r}] in [ledger], or --ledger BOOK#{self.data}+{other}"
                )

        with contextlib.closing(book):
            ask()
            book.add_records(self.data, listed, name)
            ask()  # if two runs register at the same time, at least one of them sees the other

    def book(self) -> Book:
        """Open the book. Raises BookError, OSError."""
        return book_at(self.url, self.token_file)

    def require(self) -> Account:
        """Check, before data are loaded, that the account can still pay; return it.

        Raises:
            BookError: no such account, or one that has ended.
            OverBudgetError: nothing is left of its budget.
        """
        with contextlib.closing(self.book()) as book:
            account, total = book.account(self.data), book.total(self.data)
        account.require_going(time.strftime("%Y-%m-%d", time.gmtime()))
        if not total.left > 0:
            raise OverBudgetError(
                f"nothing is left of ε {account.budget.epsilon:g} of {self.data!r}", 0.0
            )
        return account

    def paid(
        self,
        mechanism: Mechanism,
        *,
        group: int = 1,
        unit: Unit = "record",
        selection: Selection | None = None,
        folder: Path | None = None,
        resume: bool = False,
        advice: Advice | None = None,
    ) -> PaidRun:
        """Reserve a run's whole mechanism and begin it; use the result in a ``with`` statement.

        Args:
            group: size of the groups of records that the guarantee protects.
            unit: "person" where all records of a person are one contribution; groups of several
                records are persons in any case. Must be the account's.
            selection: a private search, of which ``mechanism`` is the first candidate.
            folder: keeps the reservation's number; None: the run cannot be continued after its
                process.
            resume: continue the reservation of the folder, if there is one.
            advice: words on a plan that would still fit; None: says how many rounds would fit.

        Raises:
            OverBudgetError: the charge does not fit; the message says what would.
            BookError: no such account, or a reservation that is over or of another plan.
        """
        charge = Charge(mechanism, group, self.partition, selection, unit)
        book = self.book()
        path, held = None if folder is None else folder / RESERVATION, None
        try:
            found = _kept(path, self) if resume else _unused(path, self, book, charge)
            if found is not None and found["number"] is not None:
                held = _going_on(book.reservation(found["number"]), charge)
                found = None if held is None else found
            if found is None:
                # What no retry can mend is refused before the folder keeps this reservation's name.
                self._fit(book, charge)
                found = {"number": None, "run": "", "call": secrets.token_hex(16)}
                _keep(path, self, found)
            if found["number"] is None:
                try:
                    made = book.reserve(self.data, charge, purpose=self.purpose, call=found["call"])
                except (OverBudgetError, NotAllowedError):
                    _forget(path, None)  # after any other error it may be in the book
                    raise
                name = "run" if folder is None else folder.resolve().name
                # Drawn here: of several copies of a folder whose answer was lost, one can begin.
                found |= {"number": made.number, "run": f"{name[:40]} {secrets.token_hex(8)}"}
                _keep(path, self, found)
            others = self._others(book, charge, found, path)
            if held is None or held.status != "settled":
                held = book.begin(found["number"], found["run"])
            # A settled reservation of another run, in a book that was set back, is not this run's.
            own = replace(held, run=found["run"])
            return PaidRun(self.data, book, own, path, found["call"], others)
        except OverBudgetError as error:
            fits, left = partial(self._fit, book), error.epsilon_left
            words = advice(fits, left) if advice else _fewer_rounds(charge, fits)
            book.close()
            raise OverBudgetError(f"{error}; {words}" if words else str(error), left) from None
        except BaseException:
            book.close()
            raise

    def _fit(self, book: Book, charge: Charge) -> bool:
        """True if a charge fits into all accounts that pay. Raises BookError: one can never pay."""
        others = replace(charge, partition=None)
        return book.fits(self.data, replace(charge, partition=self.partition)) and all(
            book.fits(one, others) for one in self.also
        )

    def _others(
        self, book: Book, charge: Charge, found: dict[str, Any], path: Path | None
    ) -> tuple[int, ...]:
        """The run's reservations in accounts that share persons with its own, all begun.

        A resumed run finds them in its folder, or by the names of their calls, which are derived
        from the name of its own call. If one does not fit, all new reservations are ended with 0
        rounds. After any other error the same folder asks again.
        """
        made: list[Reservation] = []
        try:
            for name in sorted(set(self.also) - {self.data}):
                if name in found.get("others", ()):  # whoever resumes the run
                    made.append(book.reservation(found["others"][name]))
                    continue
                call = f"{found['call'][:32]} {hashlib.sha256(name.encode()).hexdigest()[:24]}"
                everyone = replace(charge, partition=None)
                words = self.purpose or f"shares persons with {self.data}"
                made.append(book.reserve(name, everyone, purpose=words, call=call))
        except (OverBudgetError, NotAllowedError):
            own = book.reservation(found["number"])
            for one in (*made, own):
                if one.status == "reserved":
                    book.end(one.number, 0, "another account that has to pay did not")
            if own.status == "reserved":
                _forget(path, own.number)
            raise
        if made:
            found["others"] = {one.data: one.number for one in made}
            _keep(path, self, found)
        return tuple(
            one.number
            for one in made
            if one.status == "settled" or book.begin(one.number, found["run"])
        )


def _going_on(found: Reservation, charge: Charge) -> Reservation | None:
    """The reservation that a folder's run continues; None if it was settled with 0 rounds."""
    if charge != found.charge:
        raise BookError(
            f"reservation {found.number} of this run folder is for another plan: go on with the "
            "plan that the run began with, or start a new run in another folder"
        )
    if found.status == "ended":
        raise BookError(
            f"reservation {found.number} of this run folder is over: it was ended with "
            f"{found.released} of {charge.rounds} rounds. Start a new run in another folder"
        )
    # A settled one lacks at most its statement: the book marks no further round of it.
    return None if found.status == "settled" and found.released == 0 else found


def _unused(path: Path | None, ledger: Ledger, book: Book, charge: Charge) -> dict[str, Any] | None:
    """A folder's reservation for the same plan whose run died before any round; else None."""
    with contextlib.suppress(ValueError, TypeError):  # damaged, or of another book
        if found := _kept(path, ledger):
            if found["number"] is None:  # the answer was lost: the same name finds what it was
                held = book.reserve(ledger.data, charge, purpose=ledger.purpose, call=found["call"])
                return found if held.status == "reserved" else None
            held = book.reservation(found["number"])
            fits = held.charge == charge and not held.mark
            return found if fits and held.status in ("reserved", "active") else None
    return None


def _kept(path: Path | None, ledger: Ledger) -> dict[str, Any] | None:
    """The reservation noted in a folder; None if none. Raises BookError: of another book."""
    if path is None or not path.is_file():
        return None
    try:
        values = parse(path.read_text(encoding="utf-8"))
        require_parts(SimpleNamespace(**values), dict.fromkeys(("url", "data", "run", "call"), str))
        optional(whole, "number", values["number"], most=2**63 - 1)
        one_of("schema", values["schema"], (RESERVATION_SCHEMA,))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BookError(f"{path} holds no reservation ({error}): restore a copy") from error
    # A password may have changed since, and older versions kept it.
    began = replace(ledger, url=values["url"], data=values["data"]).without_password()
    own = ledger.without_password()
    if began != own:
        raise BookError(
            f"the run was reserved for {began.data!r} in {began.url}, not for "
            f"{own.data!r} in {own.url}: go on with the ledger that it began with"
        )
    found = {name: values[name] for name in ("number", "run", "call")}
    return {**found, "others": values.get("others", {})}


def _keep(path: Path | None, ledger: Ledger, found: dict[str, Any]) -> None:
    if path is not None:
        url, data = ledger.without_password().url, ledger.data
        values = {"schema": RESERVATION_SCHEMA, "url": url, "data": data, **found}
        write_text(path, json.dumps(values, indent=2) + "\n")


def _forget(path: Path | None, number: int | None) -> None:
    """Delete a reservation's file, unless another run of the folder has written its own."""
    if path and path.is_file() and parse(path.read_text(encoding="utf-8"))["number"] == number:
        path.unlink()


def _fewer_rounds(charge: Charge, fits: Callable[[Charge], bool]) -> str:
    if charge.selection is not None:
        return "plan the search for a smaller epsilon or fewer trials, or train one plan"
    mechanism = charge.mechanism
    found = most_rounds(mechanism, lambda first: fits(replace(charge, mechanism=first)))
    if not found:
        return "not one round of this plan fits"
    return f"of this plan {found:,} of {len(mechanism):,} rounds still fit"


def most_rounds(mechanism: Mechanism, fits: Callable[[Mechanism], bool]) -> int:
    """The largest number of a mechanism's first rounds that fit; 0 if not even one fits."""
    counts = range(1, len(mechanism) + 1)
    return bisect_left(counts, True, key=lambda count: not fits(mechanism.first(count)))


class PaidRun:
    """A reservation that has begun, for one run; made by :meth:`Ledger.paid`.

    ``with`` statements on it can be nested; the outermost one closes it. If a run fails before its
    first release, or can never continue because it has no folder, the rounds that it did not
    release are refunded. Any other end without :meth:`settle` leaves the reservation active.
    """

    def __init__(
        self,
        data: str,
        book: Book,
        held: Reservation,
        path: Path | None,
        call: str,
        others: tuple[int, ...] = (),
    ) -> None:
        # Reservations in accounts that share persons with its own; all get the same changes.
        self._others = others
        self.data, self.book, self._path, self._call = data, book, path, call
        self.number, self.charge, self.mechanism = held.number, held.charge, held.charge.mechanism
        self._run = held.run
        # Rounds that may have been released before this process; they can be released again.
        self._before = held.mark if held.released is None else held.released
        self.marked, self._noted = self._before, 0
        self._again: list[int] = []
        self._twice = 1, 0, 1  # (first round, last, times): these are paid for so many times
        self._stride, self._at, self._depth = 1, -PACE, 0
        self._used = False  # True once a run has begun from it
        self._over = False  # settled by this process; a run settled earlier may lack a statement
        self._recorded = False  # see recorded()
        self._taken = 0  # number of rounds in the plans of a series that were handed out

    def part(self, mechanism: Mechanism) -> SeriesPart:
        """The next plan of a series that was reserved together, for ``ledger=`` of its run.

        Several plans that are fixed before the first of them runs compose exactly: reserve the sum
        of their mechanisms, run them in this order, and settle when all are done:

            with ledger.paid(one.mechanism + other.mechanism) as series:
                ft.train(model, data, one, ledger=series.part(one.mechanism))
                ft.train(model, data, other, ledger=series.part(other.mechanism))
                series.settle()

        Raises:
            BookError: it is not the next plan of the series, or a run of the whole has begun.
        """
        self._require_unused(self._used)
        before, end = self._taken, self._taken + len(mechanism)
        if end > len(self.mechanism) or self.mechanism.between(before, end) != mechanism:
            raise BookError(
                f"this is not the next plan of the series that reservation {self.number} is for, "
                f"of which {before} of {len(self.mechanism)} rounds were handed on"
            )
        self._taken = end
        return SeriesPart(self, mechanism, before)

    def paid(self, mechanism: Mechanism, **asked: Unpack[RunTerms]) -> Self:
        """This object, for a run whose rounds are its last ones. Raises BookError: another run."""
        ahead = len(self.mechanism) - len(mechanism)
        own = self.mechanism.after(ahead) if ahead > 0 else self.mechanism
        charge = _charge(mechanism, asked, self.charge.partition)
        of_it = replace(self.charge, mechanism=own) if charge.selection is None else self.charge
        if ahead < 0 or of_it != charge:
            raise BookError(f"reservation {self.number} is for another plan than this one")
        self._require_open()
        self._require_unused(self._used or self._taken)
        self._used = True
        return self

    def _require_unused(self, used: bool | int) -> None:
        if used:
            raise BookError(
                f"a run has begun from reservation {self.number}: another one would release the "
                "same rounds again, unpaid. Reserve anew for it"
            )

    def _require_open(self) -> None:
        if self._over:
            raise BookError(f"reservation {self.number} is over: nothing more is released from it")

    @property
    def begun(self) -> int:
        """The number of first rounds that may have been released, by this process or before it."""
        return max(self._noted, self._before)

    @property
    def known(self) -> int:
        """The number of first rounds that were released for sure, by any copy of the run."""
        # Each of these was written after the record had the round.
        counts = (
            entry.values.get("begun" if entry.kind == "mark" else "rounds", 0)
            for entry in self.book.entries()
            if entry.kind in ("mark", "settle") and entry.values["reservation"] == self.number
        )
        return max(counts, default=0)

    def recorded(self, rounds: int) -> None:
        """Go on from the run's own record, in which earlier processes released so many rounds.

        From then on the file of the reservation stays where the record is, also if it is settled:
        what comes after may fail, and be done again.

        Raises:
            BookError: more rounds were released for sure, so the record was set back.
        """
        self._recorded, self._noted = True, rounds
        if rounds < self._before and (known := self.known) > rounds:
            raise BookError(
                f"by the book {known} rounds of reservation {self.number} were released, by this "
                f"folder {rounds}: the folder was set back. Nothing more is released: restore its "
                "newest copy, or start a new run in another folder"
            )

    def ahead(self, rounds: int) -> None:
        """Make sure that the mark is at least ``rounds``, before that round is released.

        The mark moves ahead in strides, so that the book is written about once a second.

        Raises:
            BookError: more rounds than were reserved, or the book cannot be written.
        """
        self._require_open()
        if rounds > self.marked:
            if rounds > self.charge.rounds:
                raise BookError(
                    f"round {rounds} is not among the {self.charge.rounds} that were reserved: "
                    "nothing more is released"
                )
            now = time.monotonic()
            passed = now - self._at
            if passed < PACE:
                self._stride *= 2
            elif passed > 2 * PACE:
                self._stride = max(1, self._stride // 2)
            mark = min(rounds - 1 + self._stride, self.charge.rounds)
            run, begun = self._run, self._noted
            for number in self._others:
                self.book.mark(number, mark, run=run, begun=begun)
            # Refused if a copy of the run has marked rounds since this process's last mark.
            self.book.mark(self.number, mark, run=run, begun=begun, seen=self.marked)
            self.marked, self._at = mark, now
        self._noted = max(self._noted, rounds)

    def again(self, rounds: int, times: int) -> None:
        """Pay for release number ``times`` of round ``rounds``, before it is made.

        All releases of a round use the same batch, so together they are one release of noise
        σ/√times, which is paid anew: the first payment alone assumes independently drawn batches.
        All later rounds that a former process may have released are paid in the same way; if a copy
        of this process releases them too, all later rounds of the mechanism.

        Raises:
            OverBudgetError: the payment does not fit.
            BookError: rounds that no theorem covers without the others.
        """
        self._require_open()
        first, end, paid = self._twice
        if first <= rounds <= end and times <= paid:
            return
        last = self._before if rounds <= self._before else len(self.mechanism)
        # A part of an epoch, paid by itself, can cost less than it adds to the rest of the epoch.
        while last < len(self.mechanism):
            with contextlib.suppress(UnsupportedMechanismError):
                self.mechanism.after(last)
                break
            last += 1
        try:
            part = self.mechanism.between(rounds - 1, last)
        except UnsupportedMechanismError as error:
            raise BookError(
                f"round {rounds} would be released again with another sum, which cannot be paid "
                f"for by itself ({error}): set back what changed, or start a new run"
            ) from None
        root = math.sqrt(times) * (1 + 2.0**-50)  # rounded up, never below √times
        joined = [replace(one, noise_multiplier=one.noise_multiplier / root) for one in part]
        whole = Mechanism(*joined, adjacency=part.adjacency)
        for number in (*self._others, self.number):
            held = self.book.reservation(number)
            made = self.book.reserve(
                held.data,
                replace(held.charge, mechanism=whole),
                purpose=f"rounds of reservation {number} released again",
                call=f"{self._call[:24]} again {secrets.token_hex(8)}",
            )
            run = f"again {secrets.token_hex(8)}"
            self.book.begin(made.number, run)
            self.book.settle(made.number, len(part), run=run)
        self._again.append(made.number)  # its own
        self._twice = rounds, last, times

    def settle(self, rounds: int | None = None) -> tuple[str, str]:
        """Settle with the number of rounds in the transcript; None: all that were reserved.

        Returns:
            The book's evidence for the run's statement, as JSON and in words.

        Raises:
            BookError: fewer rounds than may have been released, or the book cannot be written.
        """
        released = self.charge.rounds if rounds is None else rounds
        if released < self._noted:
            raise BookError(
                f"{self._noted} rounds may have been released, and the transcript has {released}"
            )
        for number in (*self._others, self.number):
            total = self.book.settle(number, released, run=self._run)
        self._over = True
        return self.evidence(total, released=released)

    def evidence(self, total: Total, **more: Any) -> tuple[str, str]:
        """The book's evidence on a run, as JSON and in words.

        Args:
            total: the account's total after the run.
            more: ``released`` of the reservation, or ``part`` of a series.
        """
        account = self.book.account(self.data)
        values = {
            "schema": EVIDENCE_SCHEMA,
            "data": account.data,
            "budget": asdict(account.budget),
            "adjacency": account.adjacency,
            "unit": account.unit,
            "partition": self.charge.partition,
            "reservation": self.number,
            "again": self._again,
            **more,
            **({"also": list(self._others)} if self._others else {}),
            "total": asdict(total),
        }
        return joined_evidence([json.dumps(values)])

    def __enter__(self) -> Self:
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        over = kind is None and self._over and not self._recorded
        try:
            if kind is not None and not self._over and not (self._path and self.begun):
                # The model of an interrupted run has seen at most the noted rounds. If the book
                # cannot be reached, it keeps the whole charge.
                with contextlib.suppress(BookError):
                    # Its own first: not where a copy has marked rounds, which would return, too.
                    self.book.settle(self.number, self.begun, run=self._run, seen=self.marked)
                    for number in self._others:
                        self.book.settle(number, self.begun, run=self._run)
                    self._over = over = True
            if over:
                _forget(self._path, self.number)
        finally:
            self.book.close()


class SeriesPart:
    """One plan of a series that was reserved together; see :meth:`PaidRun.part`."""

    def __init__(self, series: PaidRun, mechanism: Mechanism, before: int) -> None:
        self._series, self.mechanism, self._first = series, mechanism, before
        self._used = False

    @property
    def begun(self) -> int:
        """See :attr:`Paid.begun`."""
        return max(0, self._series.begun - self._first)

    known = begun  # no other process goes on with a series

    @contextlib.contextmanager
    def paid(self, mechanism: Mechanism, **asked: Unpack[RunTerms]) -> Iterator[Self]:
        """This part, for the run of its plan. Raises BookError: another plan, or a resumed run."""
        whole, own = self._series.charge, _charge(mechanism, asked)
        fits = own.group <= whole.group and own.unit == whole.unit and own.selection is None
        if mechanism != self.mechanism or asked.get("resume") or not fits:
            raise BookError("this part of a series is for another plan, or its series is over")
        self._series._require_unused(self._used)
        self._used = True
        yield self

    def ahead(self, rounds: int) -> None:
        """See :meth:`PaidRun.ahead`."""
        if rounds > len(self.mechanism):
            raise BookError(f"round {rounds} is not among the {len(self.mechanism)} of this part")
        self._series.ahead(self._first + rounds)

    def again(self, rounds: int, times: int) -> None:
        """See :meth:`PaidRun.again`."""
        self._series.again(self._first + rounds, times)

    def settle(self, rounds: int | None = None) -> tuple[str, str]:
        """The book's evidence after this part; the series itself stays active."""
        end = self._first + (len(self.mechanism) if rounds is None else rounds)
        self._series.ahead(end)
        total = self._series.book.total(self._series.data)
        return self._series.evidence(total, part=[self._first, end])


def in_words(found: Mapping[str, Any]) -> str:
    """The data set's total after a run, in the words of its statement.

    Args:
        found: the values of the evidence of :meth:`PaidRun.settle`.
    """
    total, budget = found["total"], found["budget"]
    numbers = [*found.get("earlier", ()), found["reservation"]]
    which = f"reservation {numbers[0]}"
    if len(numbers) > 1:
        which = f"reservations {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    if "also" in found:
        which += f" (and {', '.join(map(str, found['also']))}, of accounts that share persons)"
    return (
        f"everything that the book has of {found['data']!r} comes to ε {at_most(total['epsilon'])} "
        f"of {at_least(budget['epsilon'])} at δ {at_most(total['delta'], '.3g')} after this run, "
        f"which is its {which}; the book's head is {total['head']}"
    )


def joined_evidence(texts: Sequence[str]) -> tuple[str, str]:
    """The evidence of a run whose parts were paid separately, as JSON and in words.

    Args:
        texts: the JSON that :meth:`PaidRun.settle` gave for each part, in order; at least one.
    """
    parts = [json.loads(text) for text in texts]
    last = parts[-1]
    if earlier := [part["reservation"] for part in parts[:-1]]:
        for key in {"again", "also"} & {key for part in parts for key in part}:
            last[key] = [number for part in parts for number in part.get(key, ())]
        last["earlier"] = earlier
    return json.dumps(last, indent=2, sort_keys=True) + "\n", in_words(last)
