"""A run that is paid from a data set's book: reserved before data, marked ahead, settled.

A :class:`Ledger` says which book and which account. :meth:`Ledger.paid` reserves all that a plan
can release and begins; from then on the mark in the book runs ahead of the releases, and the end of
the run settles what was released. A process that dies leaves its reservation active: the charge
stays at everything, and the mark says how many rounds may have left. The same run folder goes on
with the same reservation, whose number lies in it.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forethought.accounting.interval import at_least, at_most
from forethought.ledger.book import Account, Book, BookError, Charge, OverBudgetError, Reservation
from forethought.values.checks import whole
from forethought.values.mechanism import Mechanism, UnsupportedMechanismError
from forethought.values.serialisation import parse, write_text

if TYPE_CHECKING:
    from forethought.ledger.store import Store

# In a folder: the reservation of the run in it, and what the book said when it was settled.
RESERVATION, EVIDENCE = "reservation.json", "ledger.json"
RESERVATION_SCHEMA, EVIDENCE_SCHEMA = "forethought/reservation/1", "forethought/in-book/1"
# Seconds between two marks, about.
PACE = 1.0
# Where a token and a signing key are found when no file is named.
TOKEN, KEY = "FORETHOUGHT_LEDGER_TOKEN", "FORETHOUGHT_LEDGER_KEY"
# Words on a smaller plan, from ``fits`` of a mechanism and the ε that is left.
Advice = Callable[[Callable[[Mechanism], bool], float], str | None]


def book_at(url: str, token_file: str | Path | None = None) -> Book:
    """The book at an address: a database's, or the service's (https://…).

    Args:
        token_file: holds the service's token; None: the variable FORETHOUGHT_LEDGER_TOKEN does.

    Raises:
        BookError: no such book, or no token where one is needed. OSError: no such file.
    """
    if url.startswith(("http://", "https://")):
        from forethought.ledger.remote import RemoteBook

        if token_file is not None:
            token = Path(token_file).read_text(encoding="utf-8").strip()
        else:
            token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise BookError(
                f"the service at {url} needs a token: name its token_file, or set {TOKEN}"
            )
        return RemoteBook(url, token)
    return stored(url)


def stored(url: str, key: Path | None = None) -> Store:
    """The book in a database, in the name of this machine's user.

    Args:
        key: that signs or signed it; None: the variable FORETHOUGHT_LEDGER_KEY names it.

    Raises:
        BookError: no such book, or another key.
    """
    from forethought.ledger.store import open_book

    named = os.environ.get(KEY)
    if key is None and named:
        key = Path(named)
    return open_book(url, actor=user(), key=key)


def user() -> str:
    """This machine's user, as a book at hand names them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"user {os.getuid()}"


@dataclass(frozen=True)
class Ledger:
    """The book that a run is paid from.

    Args:
        url: ``sqlite:///books.db``, ``postgresql://…`` or the service's ``https://…``.
        data: the account's name. purpose: of the run, for whoever reads the book.
        token_file: of the service; see :func:`book_at`.
        partition: ``"scheme=part"`` where the run touches one part's records only.

    >>> Ledger("sqlite:///books.db", "patients", purpose="survival after a stroke").data
    'patients'
    """

    url: str
    data: str
    purpose: str = ""
    token_file: str | Path | None = None
    partition: str | None = None

    def book(self) -> Book:
        """The opened book. Raises BookError, OSError."""
        return book_at(self.url, self.token_file)

    def require(self) -> Account:
        """The account, where it can still pay for anything; asked before data are loaded.

        Raises:
            BookError: no such account, one that has ended, or one with nothing left.
        """
        book = self.book()
        try:
            account, total = book.account(self.data), book.total(self.data)
        finally:
            book.close()
        if account.until is not None and time.strftime("%Y-%m-%d", time.gmtime()) > account.until:
            raise BookError(f"the account of {self.data!r} ended on {account.until}")
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
        folder: Path | None = None,
        resume: bool = False,
        advice: Advice | None = None,
    ) -> PaidRun:
        """Reserve a run's whole mechanism and begin; use what comes back in a ``with``.

        Args:
            folder: keeps the reservation's number; None: a run that cannot go on after its process.
            resume: go on with the reservation of the folder, where there is one.
            advice: words on a plan that would still fit; None: says how many rounds would.

        Raises:
            OverBudgetError: it does not fit; the message names what does. BookError: no such
                account, or a reservation that is over or of another plan.
        """
        charge = Charge(mechanism, whole("group", group), self.partition)
        book = self.book()
        path, held = None if folder is None else folder / RESERVATION, None
        try:
            found = _kept(path, self) if resume else _unused(path, self, book, charge)
            if found is not None and found["number"] is not None:
                held = _going_on(book.reservation(found["number"]), charge)
                found = None if held is None else found
            if found is None:
                name = "run" if folder is None else folder.resolve().name
                run = f"{name[:40]} {secrets.token_hex(8)}"
                found = {"number": None, "run": run, "call": secrets.token_hex(16)}
                _keep(path, self, found)
            if found["number"] is None:
                try:
                    made = book.reserve(self.data, charge, purpose=self.purpose, call=found["call"])
                except BookError:
                    _forget(path, None)
                    raise
                found["number"] = made.number
                _keep(path, self, found)
            if held is None or held.status != "settled":
                held = book.begin(found["number"], found["run"])
            return PaidRun(self, book, held, path, found["call"])
        except OverBudgetError as error:
            words = (advice or _fewer_rounds(mechanism))(
                lambda smaller: book.fits(self.data, Charge(smaller, group, self.partition)),
                error.epsilon_left,
            )
            book.close()
            raise OverBudgetError(
                f"{error}; {words}" if words else str(error), error.epsilon_left
            ) from None
        except BaseException:
            book.close()
            raise


def _going_on(found: Reservation, charge: Charge) -> Reservation | None:
    """The reservation of a folder whose run goes on; None: it was given back whole."""
    if found.charge != charge:
        raise BookError(
            f"reservation {found.number} of this run folder is for another plan: go on with the "
            "plan that the run began with, or start a new run in another folder"
        )
    if found.status == "ended":
        raise BookError(
            f"reservation {found.number} of this run folder is over: it was ended with "
            f"{found.released} of {len(charge.mechanism)} rounds. Start a new run in another folder"
        )
    # One that was settled lacks its statement at most: the book marks no further round of it.
    return None if found.status == "settled" and found.released == 0 else found


def _unused(path: Path | None, ledger: Ledger, book: Book, charge: Charge) -> dict[str, Any] | None:
    """A folder's reservation for the same plan whose run died before it released anything."""
    if path is None or not path.is_file():
        return None
    try:
        found = _kept(path, ledger)
        held = None if found is None else book.reservation(found["number"])
    except (BookError, ValueError, TypeError, KeyError):
        return None
    going = held is not None and held.status in ("reserved", "active")
    return found if held is not None and going and held.charge == charge and not held.mark else None


def _kept(path: Path | None, ledger: Ledger) -> dict[str, Any] | None:
    """The reservation that lies in a folder. Raises BookError: of another book."""
    if path is None or not path.is_file():
        return None
    values = parse(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or values.get("schema") != RESERVATION_SCHEMA:
        raise BookError(f"{path} holds no reservation of this version: restore it from a copy")
    if (values["url"], values["data"]) != (ledger.url, ledger.data):
        raise BookError(
            f"the run was reserved for {values['data']!r} in {values['url']}, not for "
            f"{ledger.data!r} in {ledger.url}: go on with the ledger that it began with"
        )
    return {name: values[name] for name in ("number", "run", "call")}


def _keep(path: Path | None, ledger: Ledger, found: dict[str, Any]) -> None:
    if path is not None:
        place = {"schema": RESERVATION_SCHEMA, "url": ledger.url, "data": ledger.data}
        write_text(path, json.dumps({**place, **found}, indent=2) + "\n")


def _forget(path: Path | None, number: int | None) -> None:
    """Remove a reservation's file, unless another run of the folder has written its own."""
    if path is None or not path.is_file():
        return
    if parse(path.read_text(encoding="utf-8"))["number"] == number:
        path.unlink()


def _fewer_rounds(mechanism: Mechanism) -> Advice:
    def advice(fits: Callable[[Mechanism], bool], left: float) -> str | None:
        found = most_rounds(mechanism, fits)
        if not found:
            return "not one round of this plan fits"
        return f"of this plan {found:,} of {len(mechanism):,} rounds still fit"

    return advice


def most_rounds(mechanism: Mechanism, fits: Callable[[Mechanism], bool]) -> int:
    """The largest number of a mechanism's first rounds that fit; 0: not one does."""
    low, high = 0, len(mechanism)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(mechanism.first(middle)) else (low, middle - 1)
    return low


class PaidRun:
    """A reservation that has begun, for one run; made by :meth:`Ledger.paid`.

    In a ``with`` it may be entered again by whoever it is handed on to; the outermost end closes
    it. Where a run fails before its first release, or can never go on because it has no folder,
    what it did not release returns; any other end leaves the reservation active.
    """

    def __init__(
        self, ledger: Ledger, book: Book, held: Reservation, path: Path | None, call: str
    ) -> None:
        self._ledger, self.book, self._path, self._call = ledger, book, path, call
        self.number, self.mechanism = held.number, held.charge.mechanism
        self._group = held.charge.group
        # What may have left before this process; rounds up to there can be released again.
        self._before = held.mark if held.released is None else held.released
        self.marked, self._noted, self._settled = self._before, 0, held.status == "settled"
        self._again: list[int] = []
        self._twice = 0, 1  # rounds up to there are paid for so many times
        self._stride, self._at, self._depth = 1, -PACE, 0

    def paid(
        self,
        mechanism: Mechanism,
        *,
        group: int = 1,
        folder: Path | None = None,
        resume: bool = False,
    ) -> Self:
        """Itself, for a run whose rounds are its last ones. Raises BookError: another run's."""
        ahead = len(self.mechanism) - len(mechanism)
        own = self.mechanism
        if ahead > 0:
            own = own.after(ahead)
        if ahead < 0 or own != mechanism or group != self._group:
            raise BookError(f"reservation {self.number} is for another plan than this one")
        return self

    def ahead(self, rounds: int) -> None:
        """Have the mark at ``rounds``, before the round of that number reaches anything outside.

        The mark runs ahead in strides, so that the book is written about once a second.

        Raises:
            BookError: more rounds than were reserved, or the book cannot be written.
        """
        if rounds > self.marked:
            if rounds > len(self.mechanism):
                raise BookError(
                    f"round {rounds} is not among the {len(self.mechanism)} that were reserved: "
                    "nothing more is released"
                )
            now = time.monotonic()
            passed = now - self._at
            if passed < PACE:
                self._stride *= 2
            elif passed > 2 * PACE:
                self._stride = max(1, self._stride // 2)
            mark = min(rounds - 1 + self._stride, len(self.mechanism))
            self.book.mark(self.number, mark)
            self.marked, self._at = mark, now
        self._noted = max(self._noted, rounds)

    def again(self, rounds: int, times: int) -> None:
        """Pay for release number ``times`` of round ``rounds``, before it is made.

        Releases of a round are about one batch, so together they are one of σ/√times, which is paid
        anew: the first payment alone would count on batches that are drawn apart. With it are paid
        all rounds after it that a former process may have released, or all that there are where it
        is a copy of this process that releases them too.

        Raises:
            OverBudgetError: it does not fit. BookError: rounds that mean nothing by themselves.
        """
        if rounds <= self._twice[0] and times <= self._twice[1]:
            return
        last = self._before if rounds <= self._before else len(self.mechanism)
        try:
            part = self.mechanism.first(last)
            part = part if rounds == 1 else part.after(rounds - 1)
        except UnsupportedMechanismError as error:
            raise BookError(
                f"round {rounds} would be released again with another sum, which cannot be paid "
                f"for by itself ({error}): set back what changed, or start a new run"
            ) from None
        root = math.sqrt(times) * (1 + 2.0**-50)  # never less than it is
        joined = [replace(one, noise_multiplier=one.noise_multiplier / root) for one in part]
        made = self.book.reserve(
            self._ledger.data,
            Charge(
                Mechanism(*joined, adjacency=part.adjacency), self._group, self._ledger.partition
            ),
            purpose=f"rounds of reservation {self.number} released again",
            call=f"{self._call[:24]} again {secrets.token_hex(8)}",
        )
        self.book.begin(made.number, f"again {secrets.token_hex(8)}")
        self.book.settle(made.number, len(part))
        self._again.append(made.number)
        self._twice = last, times

    def settle(self, rounds: int | None = None) -> tuple[str, str]:
        """Settle with the rounds that the transcript has; None: all.

        Returns:
            What the book then says: the evidence for the run's statement, as JSON, and in words.
        """
        released = len(self.mechanism) if rounds is None else rounds
        if released < self._noted:
            raise BookError(
                f"{self._noted} rounds may have been released, and the transcript has {released}"
            )
        total = self.book.settle(self.number, released)
        self._settled = True
        account = self.book.account(self._ledger.data)
        values = {
            "schema": EVIDENCE_SCHEMA,
            "data": account.data,
            "budget": asdict(account.budget),
            "adjacency": account.adjacency,
            "unit": account.unit,
            "partition": self._ledger.partition,
            "reservation": self.number,
            "again": self._again,
            "released": released,
            "total": {**asdict(total), "by_part": dict(total.by_part)},
        }
        text = json.dumps(values, indent=2, sort_keys=True) + "\n"
        return text, in_words(values)

    def __enter__(self) -> Self:
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        over = kind is None and self._settled
        try:
            lost = self._path is None or (self._noted == 0 and self._before == 0)
            if kind is not None and not self._settled and lost:
                # Whoever kept the model of an interrupted run kept no more than was noted. A book
                # that cannot be reached keeps the whole charge.
                with contextlib.suppress(BookError):
                    self.book.settle(self.number, max(self._noted, self._before))
                    self._settled = over = True
            if over:
                _forget(self._path, self.number)
        finally:
            self.book.close()


def in_words(found: Mapping[str, Any]) -> str:
    """The data set's total after a run, as its statement says it.

    Args:
        found: the values of the evidence of :meth:`PaidRun.settle`.
    """
    total, budget = found["total"], found["budget"]
    return (
        f"everything that the book has of {found['data']!r} comes to ε {at_most(total['epsilon'])} "
        f"of {at_least(budget['epsilon'])} at δ {at_most(total['delta'], '.3g')} after this run, "
        f"which is its reservation {found['reservation']}; the book's head is {total['head']}"
    )
