"""A book's values as JSON and back, between the service and its clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from forethought.ledger import book
from forethought.ledger.chain import account_from, charge_from, charge_values
from forethought.values.mechanism import UnsupportedMechanismError
from forethought.values.serialisation import build


@dataclass(frozen=True)
class BookCall:
    """One method of a book in the protocol.

    Args:
        again: True if the call may be repeated after a lost answer.
        write, read: convert its result to JSON values, and back.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    again: bool = True


# Functions to write a value and to read it.
_Both = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _each(one: _Both) -> _Both:
    write, read = one
    return lambda values: [*map(write, values)], lambda values: [*map(read, values)]


def _same(value: Any) -> Any:
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise book.BookError("the service answers otherwise than a ledger does: check its address")


# Of JSON values, which are sent as they are.
UNCHANGED: _Both = _same, _same
_ACCOUNT: _Both = asdict, account_from
_RESERVATION: _Both = (
    lambda held: {**vars(held), "charge": charge_values(held.charge)},
    lambda values: build(book.Reservation, {**values, "charge": charge_from(values["charge"])}),
)
_TOTAL: _Both = vars, partial(build, book.Total)
_ENTRY: _Both = vars, partial(build, book.Entry)
# Methods of a Book → their conversion; arguments are JSON values, except those in ARGUMENTS.
CALLS: dict[str, BookCall] = {
    "open_account": BookCall(*_ACCOUNT, again=False),
    "account": BookCall(*_ACCOUNT),
    "accounts": BookCall(*_each(_ACCOUNT)),
    "fits": BookCall(_same, bool),
    "reserve": BookCall(*_RESERVATION),
    "begin": BookCall(*_RESERVATION),
    "mark": BookCall(_same, _nothing),
    "settle": BookCall(*_TOTAL),
    "end": BookCall(*_TOTAL, again=False),
    "reservation": BookCall(*_RESERVATION),
    "reservations": BookCall(*_each(_RESERVATION)),
    "total": BookCall(*_TOTAL),
    "add_persons": BookCall(_same, int),
    "add_records": BookCall(_same, int),
    "forget": BookCall(_same, int, again=False),
    "overlaps": BookCall(
        lambda found: {name: [*pair] for name, pair in found.items()},
        lambda found: {name: (int(a), int(b)) for name, (a, b) in found.items()},
    ),
    "entries": BookCall(*_each(_ENTRY)),
    "verify": BookCall(list, list),
}
# Arguments that are no JSON values → functions to write and to read them.
ARGUMENTS: dict[str, _Both] = {
    "account": _ACCOUNT,
    "charge": (charge_values, charge_from),
    "persons": (
        lambda persons: [person.hex() for person in persons],
        lambda persons: [bytes.fromhex(person) for person in persons],
    ),
}
# Name of an error in the protocol → its class and HTTP status; the first class that fits is sent.
ERRORS: dict[str, tuple[type[ValueError], int]] = {
    "over-budget": (book.OverBudgetError, 409),
    "not-allowed": (book.NotAllowedError, 403),
    "book": (book.BookError, 409),
    "unsupported": (UnsupportedMechanismError, 422),
    "value": (ValueError, 400),
}


def error_to(error: Exception) -> tuple[int, dict[str, Any]]:
    """The HTTP status and JSON values of an error."""
    fit = (name for name, (kind, _) in ERRORS.items() if isinstance(error, kind))
    values: dict[str, Any] = {"error": next(fit, "value"), "message": str(error)}
    if isinstance(error, book.OverBudgetError):
        values["epsilon_left"] = error.epsilon_left
    return ERRORS[values["error"]][1], values


def error_from(values: Mapping[str, Any]) -> ValueError:
    """The inverse of :func:`error_to`."""
    message = str(values.get("message", "the service refused"))
    if values.get("error") == "over-budget":
        return book.OverBudgetError(message, float(values["epsilon_left"]))
    return ERRORS.get(str(values.get("error")), ERRORS["book"])[0](message)
