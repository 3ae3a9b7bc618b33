"""Commands of the ledger: one budget for everything that is learned from a data set."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from forethought import ledger as books
from forethought.accounting.interval import at_least, at_most, warn_if_hollow
from forethought.commands import command
from forethought.commands.command import argument, flag, option
from forethought.values.mechanism import Budget
from forethought.values.plan import Plan
from forethought.values.serialisation import write_text

ledger = command.Commands(
    name="ledger",
    help="One budget for everything that is ever learned from a data set.",
    no_args_is_help=True,
)

PLACE = argument("File, sqlite:///FILE, postgresql://… or https://….", metavar="BOOK")
DATA = option("The data set's name.", "--data", default=...)
KEY = option("Key that signs every entry (forethought keygen).", "--key", dir_okay=False)
_MOST = 2**63 - 1  # the largest number in a database
TOKEN_FILE = option("With https://…: file of the token.", dir_okay=False)


def url_of(place: str) -> str:
    """The address of a ledger; a file's name becomes an SQLite address."""
    return place if "://" in place else f"sqlite:///{place}"


def _book(place: str, token_file: Path | None = None, key: Path | None = None) -> books.book.Book:
    """The ledger at an address, for reading and writing."""
    command.refuse(key and token_file, "a key is for a database, a token file for its service")

    return books.paid_run.book_at(url_of(place), token_file) if key is None else _store(place, key)


def _store(place: str, key: Path | None) -> books.store.Store:
    """The ledger in a database, for commands that a ledger service does not offer."""
    url = url_of(place)
    words = "this needs the database itself: run it where the book is, not through the service"
    command.refuse(url.startswith(("http://", "https://")), words)
    return books.paid_run.stored(url, key)


@ledger.command(
    "create",
    help="Make a book and open a data set's account in it.",
    epilog="Example: forethought ledger create books.db --data patients --epsilon 8 --delta 1e-6",
)
@ledger.command(
    "open",
    help="Open another data set's account in a book that exists.",
    epilog="Example: forethought ledger open books.db --data trials --epsilon 2 --delta 1e-6",
)
def open_account(
    output: command.Words,
    place: str = PLACE,
    data: str = DATA,
    epsilon: float = option("ε of everything together.", default=...),
    delta: float = option("δ of everything together.", default=...),
    until: str | None = option("Last day on which something may be reserved, YYYY-MM-DD."),
    adjacency: str = option(
        "Of every plan: add-or-remove, zero-out or replace-one.", default="add-or-remove"
    ),
    unit: str = option("Whom the budget protects: a record, or a person.", default="record"),
    rule: str | None = option("How charges add up; docs/ledger.md has the rules."),
    blocks: int | None = option(
        "Parts of a run that return if never begun when it stops. Default: 1, the "
        "cheapest; 0: as many as cost 3 % more at most.",
        min=0,
        max=100,
    ),
    key: Path | None = KEY,
) -> None:

    chosen: dict[str, Any] = {"adjacency": adjacency, "unit": unit}
    account = books.book.Account(data, Budget(epsilon, delta), until=until, **chosen)
    new = output.context.info_name == "create"
    books.store.rule_of(account, rule, blocks)  # before a new book is made
    warn_if_hollow(delta, None)
    named: dict[str, Any] = {"actor": books.paid_run.user()}
    named["key"] = key or books.paid_run.named_key()
    with closing(books.store.create(url_of(place), **named) if new else _store(place, key)) as book:
        made = book.open_account(account, rule, blocks)
    end = "" if made.until is None else f" until {made.until}"
    output.say(
        f"{place}: account of {made.data!r}, ε {made.budget.epsilon:g} at δ "
        f"{made.budget.delta:g}{end}. In a job: [ledger] url = {url_of(place)!r}, "
        f"data = {made.data!r}"
    )


@ledger.command(
    epilog="Example: forethought ledger reserve books.db --data patients --plan plan.json"
)
def reserve(
    output: command.Output,
    place: str = PLACE,
    data: str = DATA,
    plan: list[Path] = option(
        "Saved plan whose whole mechanism is reserved; repeated: a series, fixed now, "
        "released in this order, which composes exactly.",
        default=...,
    ),
    purpose: str = option("Of the run, for whoever reads the book.", default=""),
    partition: str | None = option('Records of one part only: "site=A".'),
    token_file: Path | None = TOKEN_FILE,
    key: Path | None = KEY,
) -> None:
    """Reserve plans by hand, for what this program does not run itself."""
    first, *others = plans = [*map(Plan.load, plan)]
    mechanism = sum((other.mechanism for other in others), first.mechanism)
    group = max(one.records_per_person for one in plans)
    units = set(map(books.book.unit_of, plans))
    command.refuse(
        len(units) > 1, "some plans protect a record, others a person: reserve them one by one"
    )
    charge = books.book.Charge(mechanism, group, partition, unit=units.pop())
    with closing(_book(place, token_file, key)) as book:
        made = book.reserve(data, charge, purpose=purpose)
        total = book.total(data)
    output.json(lambda: {"reservation": made.number, "total": asdict(total)})
    output.say(
        f"reservation {made.number}; {data!r} has ε {at_least(total.left)} left for one more "
        "release"
    )


@ledger.command(epilog="Example: forethought ledger show books.db --data patients")
def show(
    output: command.Output,
    place: str = PLACE,
    data: str | None = option("One data set. Default: all.", "--data"),
    token_file: Path | None = TOKEN_FILE,
) -> None:
    """Show what is spent, what is left, and what that can still buy."""
    with closing(_book(place, token_file)) as book:
        names = [account.data for account in book.accounts()] if data is None else [data]
        found = [books.page.shown(book, name) for name in names]
    for text, _ in found:
        output.say(text)
    if not found:
        output.console.print("no account yet: forethought ledger open")
    output.json(lambda: [values for _, values in found])


@ledger.command(epilog="Example: forethought ledger verify books.db --head sha256:…")
def verify(
    output: command.Output,
    place: str = PLACE,
    head: str | None = option("A hash that must be in it, such as a statement's."),
    public_key: Path | None = option("Key that must have signed every entry.", dir_okay=False),
    token_file: Path | None = TOKEN_FILE,
) -> None:
    """Find edits, gaps and reordering in a book, or in its JSON export; by --head, an older copy.

    Without --public-key, whoever keeps the book can write it anew, and it verifies.
    """
    path = Path(place)
    held = path.read_bytes() if path.suffix == ".json" and path.is_file() else b"SQLite"
    if not held.startswith(b"SQLite"):  # a book's own file may have any name
        command.refuse(token_file, "a JSON export needs no token: leave --token-file out")
        text = held.decode("utf-8", "replace")
        problems = books.chain.verify_export(text, head=head, key=public_key)
    else:
        with closing(_book(place, token_file, public_key)) as book:
            problems = book.verify(head)
    output.json(lambda: {"problems": list(problems)})
    if problems:
        raise typer.Exit(command.fail(f"{place} does not verify: {'; '.join(problems)}", 1))
    signed = "signatures, " if public_key else ""
    older = "" if head else "; an older copy would, too: give the newest --head you know of"
    output.say(f"{place} verifies: chain, {signed}sums and lives{older}")


@ledger.command(
    epilog="Example: forethought ledger export books.db --data patients --out patients.html"
)
def export(
    output: command.Words,
    place: str = PLACE,
    out: Path = option("patients.html for one data set, book.json for all.", default=...),
    data: str | None = option("Of the page.", "--data"),
    overwrite: bool = command.OVERWRITE,
    token_file: Path | None = TOKEN_FILE,
) -> None:
    """For an auditor: the year of a data set as one page, or the whole book as JSON."""
    words = f"--out is a page (.html) or the book (.json), not {out.name}"
    command.refuse(out.suffix not in (".html", ".json"), words)
    command.refuse(out.suffix == ".html" and data is None, "a page is of one data set: give --data")
    whole = out.suffix == ".json"
    command.refuse(whole and data is not None, "the JSON is of the whole book: drop --data")
    read = Path(url_of(place).removeprefix("sqlite:///"))
    command.to_write(out, overwrite=overwrite, reads=read)
    with closing(_book(place, token_file)) as book:
        page = None if data is None else books.page.account_page(book, data)
        write_text(out, page or books.chain.export(book.entries()))
    output.say(f"written  {out}")


@ledger.command(
    epilog='Example: forethought ledger end books.db 17 --rounds 250 --reason "disk lost"'
)
def end(
    output: command.Words,
    place: str = PLACE,
    number: int = argument("The reservation.", min=1, max=_MOST),
    rounds: int = option("Rounds to charge, its mark at least.", default=..., min=0),
    reason: str = option("Why its run does not settle itself.", default=...),
    token_file: Path | None = TOKEN_FILE,
    key: Path | None = KEY,
) -> None:
    """Decide about a reservation whose run is gone for good; its owner's own decision."""
    with closing(_book(place, token_file, key)) as book:
        total = book.end(number, rounds, reason)
    output.console.print(
        f"reservation {number} ended with {rounds} rounds; ε {at_most(total.epsilon)} is spent, "
        f"{at_least(total.left)} left for one more release"
    )


@ledger.command(
    epilog="Example: forethought ledger forget books.db 40 --data patients "
    '--reason "hashes of a test file"'
)
def forget(
    output: command.Words,
    place: str = PLACE,
    data: str = DATA,
    entry: int = argument("The entry that registered them.", min=1, max=_MOST),
    reason: str = option("Why they are nobody's.", default=...),
    token_file: Path | None = TOKEN_FILE,
    key: Path | None = KEY,
) -> None:
    """Take out hashes of records that a run registered; its owner's own decision."""
    with closing(_book(place, token_file, key)) as book:
        taken = book.forget(data, entry, reason)
    output.say(f"{taken:,} hashes of {data!r} are known no more")


@ledger.command(epilog="Example: forethought ledger identity hospital.identity")
def identity(
    output: command.Words, path: Path = argument("New file of the key.", metavar="FILE")
) -> None:
    """Make the key by which a book's users recognise records and persons; keep it from the book."""
    books.identity.new_key(path)
    output.say(
        f"{path}: for every machine that trains on the book's data sets. In a job: [ledger] "
        f"identity = {str(path)!r}"
    )


@ledger.command(epilog="Example: forethought ledger token books.db oncology --role analyst")
def token(
    output: command.Words,
    place: str = PLACE,
    name: str = argument("Who will have it, as the book names them."),
    role: str | None = option("owner, analyst (reserves and trains) or auditor (reads)."),
    revoke: bool = flag("--revoke", "Let it open nothing any more."),
    key: Path | None = KEY,
) -> None:
    """Make a token for the service; it is printed this once, the book keeps its hash."""
    command.refuse(revoke and role is not None, "--revoke goes without --role")
    command.refuse(not revoke and role is None, "say which role: --role owner, analyst or auditor")
    with closing(_store(place, key)) as book:
        if revoke:
            book.revoke_token(name)
            output.say(f"the token of {name!r} opens nothing any more")
            return
        chosen: Any = role
        typer.echo(book.add_token(name, chosen))


@ledger.command(
    epilog="Example: forethought ledger serve books.db --certificate site.pem "
    "--certificate-key site.key"
)
def serve(
    output: command.Words,
    place: str = PLACE,
    host: str = option("Address to listen on.", default="127.0.0.1"),
    port: int = option("0: any that is free.", default=8760, min=0, max=65535),
    certificate: Path | None = option("PEM file; https instead of http.", dir_okay=False),
    certificate_key: Path | None = option("Its private key.", dir_okay=False),
    plain_http: bool = flag(
        "--plain-http", "Tokens in plain text to other machines, all the same."
    ),
    log: Path | None = option("File of a JSON line a request. Default: standard error."),
    key: Path | None = KEY,
) -> None:
    """Let training machines use the book with a token and no database credentials."""
    try:
        service = books.service
    except ImportError as error:
        raise ValueError(
            f"the service needs more packages ({error.name}): pip install 'forethought[ledger]'"
        ) from None
    with closing(_store(place, key)) as book:
        keys: dict[str, Any] = {"certificate": certificate, "key": certificate_key}
        listener = service.listening(host, port, plain=plain_http, **keys)
        scheme, found = "http" if certificate is None else "https", listener.getsockname()[1]
        output.say(f"{place} at {scheme}://{host}:{found}; Ctrl-C ends it")
        with listener, nullcontext() if log is None else log.open("a", encoding="utf-8") as file:
            service.server(book, **keys, log=file).run(sockets=[listener])
