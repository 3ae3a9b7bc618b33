"""The statement of a plan, a run, a file or a job without data, computed or verified on demand."""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from forethought.accounting import verification
from forethought.accounting.accountants import AGGREGATE, NETWORK, SECURE_AGGREGATION
from forethought.accounting.adaptive import CHOSEN, SELECTION
from forethought.accounting.exact import CertificateError
from forethought.accounting.interval import at_least, at_most
from forethought.accounting.statement import (
    OF_HOLDERS,
    OF_RUN,
    STOPPED,
    Statement,
    StatementError,
    account,
    code_digest,
    content_hash,
    plan_digest,
)
from forethought.exchange.keys import POLICY, POLICY_SCHEMA, ROSTER, Roster
from forethought.federated.federation import FEDERATION, Federation
from forethought.federated.statements import VIEWS, accountant_of, notes
from forethought.gossip.decentralised import NetworkViewError
from forethought.gossip.gossip import GOSSIP, Gossip
from forethought.gossip.statements import NOTES, network_gains, outsider_gain
from forethought.jobs.job import JOB_NAME, JobRequest
from forethought.ledger.book import Account, Entry, Reservation
from forethought.ledger.history import history
from forethought.ledger.paid_run import EVIDENCE as IN_BOOK
from forethought.ledger.paid_run import book_at, in_words
from forethought.values import signing
from forethought.values.caveats import Caveat, one_line
from forethought.values.checks import real, whole
from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import TRANSCRIPT, Plan, Releases, Transcript, TranscriptError
from forethought.values.serialisation import opened_outside, parse, read_outside, write_text

PLAN, STATEMENT, MODEL = "plan.json", "statement.json", "model.safetensors"
# What people read beside a statement; signed with it, and compared where it can be.
TEXT, PAGE = "statement.md", "statement.html"
READ = (TEXT, PAGE, "report.html", "results.json")
# Accountants that rely on the noise of other holders, or on the secrecy of their updates.
OF_OTHERS = frozenset({AGGREGATE, NETWORK, SECURE_AGGREGATION})
# The entry of a verification that compares with the data set's ledger.
BOOK = "total of the data set"
# Limits for untrusted input: seconds of a verification, and bytes of a model file.
LONGEST, LARGEST_MODEL = 300.0, 1 << 36
# Largest number of sets of observers to search.
MOST_OBSERVERS = 2000


def account_for(request: JobRequest, examples: int, group: int | None) -> Statement:
    """The statement of a run that a job describes, without data.

    Raises ValueError: the group is larger than the data.
    """
    _require_so_many(group, examples)
    return account(request.job.make_plan(examples), group=group)


def statement_of(path: Path, *, group: int | None = None, delta: float | None = None) -> Statement:
    """The statement of a run folder, a plan file or a statement file.

    Args:
        path: run folder, plan.json or statement.json.
        group, delta: compute it for another group size or δ; None: its own.

    Raises:
        ValueError: neither a plan nor a statement, or a group that is larger than the data.
        OSError: no such file.
    """
    found = _file_of(path)
    if _schema_of(found).startswith("forethought/plan/"):
        plan = Plan.load(found)
        _require_so_many(group, plan.examples)
        return account(plan, delta, group=group)
    return again(Statement.load_of_run(found), group=group, delta=delta)


def again(
    statement: Statement, *, group: int | None = None, delta: float | None = None
) -> Statement:
    """The statement for another group size or δ; unchanged where both are its own.

    It is made here and now: no file that was signed or written beside the other one names it.

    Raises ValueError: a δ outside (0, 1), or a group that is larger than the data.
    """
    group = statement.group if group is None else group
    delta = statement.delta if delta is None else delta
    if (group, delta) == (statement.group, statement.delta):
        return statement
    if group != statement.group:
        _require_so_many(group, statement.examples)
    other = account(
        statement.mechanism,
        delta,
        group=group,
        accountant=statement.accountant,
        randomness=statement.randomness,
    )
    kept = ("caveats", "releases", "examples", "clip_norm", "plan", "about")
    return replace(other, **{name: getattr(statement, name) for name in kept})


def _require_so_many(group: int | None, examples: int | None) -> None:
    # Before anything is computed: the time that it takes grows with the group.
    if group is not None and examples is not None and group > examples:
        raise ValueError(
            f"{group:,} records cannot be protected together in {examples:,}: ask for fewer"
        )


def verified(
    path: Path,
    public_key: Path | None = None,
    *,
    seconds: float = LONGEST,
    ledger: str | None = None,
    anew: bool = False,
) -> verification.Verification:
    """Recompute the statement of a run folder or a file, with the run's other files.

    The folder may come from an untrusted source: files are read up to a size, never through links,
    and nothing is written.

    Args:
        path: run folder with all evidence of the statement; or statement.json, which may be alone.
        public_key: PEM file of the key that must have signed it.
        seconds: time limit.
        ledger: address of the ledger that the run reserved its budget from; the data set's total
            after the run is recomputed from it.
        anew: it is about to be signed anew: a signature beside it does not count.

    Raises:
        ValueError: no statement, one that does not hold or is not signed with that key, or a
            ledger that was reset or changed since.
        OSError: no such file.
    """
    found = _file_of(path)
    with _in_time(seconds):
        try:
            outcome = _verified(found, public_key, path.is_dir(), anew)
            rows = list(outcome.rows)
            if ledger is not None:
                row = _in_book(found, outcome.statement, ledger)
                rows = [*(one for one in rows if one.entry != row.entry), row]
            if found.name == STATEMENT and _there(found.with_name(TEXT)):
                rows.append(_text_of(found, outcome.statement))
            return replace(outcome, rows=tuple(rows))
        except (CertificateError, OSError):
            raise
        except (StatementError, signing.SignatureError) as error:
            raise StatementError(one_line(f"{found}: {error}")) from error
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StatementError(
                one_line(f"{found} or a file beside it is refused: {error}")
            ) from error
        except (ArithmeticError, RecursionError, MemoryError) as error:
            raise StatementError(
                f"{found} holds numbers that nothing can be computed from: {error!r}"
            ) from error


def _verified(
    found: Path, public_key: Path | None, whole: bool, anew: bool
) -> verification.Verification:
    text = read_outside(found)
    values = parse(text)
    if isinstance(values, dict) and str(values.get("schema")).startswith("forethought/plan/"):
        raise StatementError(
            "a plan, and there is no statement to verify: a run writes one when it ends, an "
            f"interrupted one after forethought train --resume {found.parent}"
        )
    statement = Statement.from_json(text)
    texts = _texts_of(found, statement) if found.name == STATEMENT else {}
    files = {name: content_hash(held.encode()) for name, held in texts.items()}
    signer = None if anew else _signer(found, text, statement, files, public_key)
    alone = not texts and not whole
    if not alone:
        # Checked before the files are parsed.
        verification.require_evidence(statement, files)
    plan = Plan.from_json(texts[PLAN]) if PLAN in texts else None
    if plan is not None and JOB_NAME in texts:
        _require_unit(texts[JOB_NAME], plan)
    federation = Federation.from_json(texts[FEDERATION]) if FEDERATION in texts else None
    transcript = None
    if TRANSCRIPT in texts:
        transcript = _transcript(texts[TRANSCRIPT], statement, plan, federation)
    gossip = Gossip.from_json(texts[GOSSIP]) if GOSSIP in texts else None
    if federation is not None and ROSTER in texts:
        Roster.from_json(texts[ROSTER]).require(federation)
    if POLICY in texts:
        _require_policy(texts[POLICY], statement)
    for note in notes(federation) if federation else NOTES if gossip else ():
        if note not in statement.caveats:
            raise StatementError(f"the statement leaves out what holders agreed on: {note}")
    if IN_BOOK in texts:
        words = Caveat("in-the-book", in_words(parse(texts[IN_BOOK])))
        if words not in statement.caveats:
            raise StatementError(
                f"the statement does not say of the data set's total what {IN_BOOK} says"
            )
    if found.name == STATEMENT and statement.releases:
        _require_told(found, statement)
    others = None
    if statement.accountant["kind"] in OF_OTHERS:
        others = _agreed_by_others(federation or gossip, statement)
    model = _hash_of(found.with_name(MODEL)) if found.name == STATEMENT else None
    known = plan, model, transcript, others, None if alone else files
    outcome = verification.check(statement, *known, signer)
    if IN_BOOK not in texts:
        return outcome
    why = "the book of the data set was not asked: give --ledger BOOK"
    return replace(
        outcome, rows=(*outcome.rows, verification.ComparedEntry(BOOK, "", "", None, why))
    )


def _require_unit(text: str, plan: Plan) -> None:
    """Refuse a plan for persons where the job beside it is about records, or the other way round.

    Raises:
        StatementError: one of them was exchanged. ValueError: the job is no TOML.
    """
    data = tomllib.loads(text).get("data", {})
    own = {"person", "records_per_person"} & set(data)
    alone = plan.records_per_person == 1 and data.get("records_per_person") != 1
    if data and (not own if plan.contribution.kind == "persons" else own and alone):
        asked = "persons" if own else "records"
        raise StatementError(
            f"{JOB_NAME} asks for a promise to {asked}, {PLAN} makes another: restore both files"
        )


def _require_told(found: Path, statement: Statement) -> None:
    """Refuse a statement that leaves out what a run's figures beside it say of its records."""
    for name, code in (("results.json", "held-out-accuracy"), ("diagnostics.csv", "diagnostics")):
        for one in (Caveat(code), Caveat("time-and-memory")):
            if one not in statement.caveats and _there(found.with_name(name)):
                raise StatementError(
                    f"beside a {name} the statement must say what it leaves out ({one.code}): {one}"
                )


def _text_of(found: Path, statement: Statement) -> verification.ComparedEntry:
    """The comparison of the statement.md beside a statement.json.

    Raises:
        StatementError: it is another text than this source code wrote for the statement.
    """
    if read_outside(found.with_name(TEXT)) == statement.to_markdown():
        return verification.ComparedEntry(TEXT, "", "", verification.FOLLOWS)
    evidence = statement.evidence
    if evidence is not None and evidence.code == code_digest():
        raise StatementError(f"{TEXT} beside it is not its text: it was changed")
    why = "its words are not those of the source code that is installed here"
    return verification.ComparedEntry(TEXT, "", "", None, why)


def _in_book(found: Path, statement: Statement, place: str) -> verification.ComparedEntry:
    """The data set's total after a run, recomputed from its ledger.

    Raises:
        StatementError: the ledger has another run than the statement, or was reset or changed.
    """
    path = found.with_name(IN_BOOK)
    if not path.is_file():
        raise StatementError(f"there is no {IN_BOOK} beside it: no book paid for this run")
    noted = parse(read_outside(path))
    url = place if "://" in place else f"sqlite:///{place}"
    with closing(book_at(url)) as book:
        head, number = noted["total"]["head"], noted["reservation"]
        if problems := book.verify(head):
            raise StatementError(f"the book does not verify: {'; '.join(problems)}")
        held = book.reservation(number)
        planned = held.charge.mechanism
        earlier = [book.reservation(one) for one in noted.get("earlier", ())]
        for before in reversed(earlier):
            planned = before.charge.mechanism + planned
        again = [book.reservation(one) for one in noted["again"]]
        paying = [book.reservation(one) for one in noted.get("also", ())]
        opened, entries = book.account(noted["data"]), book.entries()
        points = history(entries, noted["data"], head).points
    ran = statement.mechanism
    if "part" in noted:  # one part of a series, which may not have ended
        first, end = noted["part"]
        rest = planned.after(first) if first else planned
        own, done = rest.first(len(ran)), held.mark if held.released is None else held.released
        same = first + len(ran) == end and done >= end
    else:
        own = planned if len(ran) >= len(planned) else planned.after(len(planned) - len(ran))
        same = held.released == noted["released"]
        if earlier:
            same = same and len(planned) == len(ran)
    if statement.accountant["kind"] == SELECTION or held.charge.selection is not None:
        searched = held.charge.selection
        same = same and searched is not None and searched.is_of(ran, statement.accountant)
    elif again:
        same = same and _paid_again(ran, own, [one.charge.mechanism for one in again])
    else:
        same = same and (statement.accountant["kind"] in CHOSEN or own == ran)
    # As many other accounts pay for every phase, each what the run's own account pays.
    phases = [one for one in (*earlier, held) for _ in range(len(paying) // (1 + len(earlier)))]
    of_others, own_charges = (
        [(one.released, one.charge.mechanism, one.charge.selection) for one in some]
        for some in (paying, phases)
    )
    same = same and of_others == own_charges
    # All other reservations of the run must be of the same account, different and fully released.
    more = (*earlier, *again)
    same = same and len({held.number, *(one.number for one in more)}) == 1 + len(more)
    same = same and all(one.data == held.data and one.released == one.charge.rounds for one in more)
    if held.data != noted["data"] or not same:
        raise StatementError(f"reservation {number} in the book is of another run than this")
    _require_noted(noted, held, opened, entries)
    total, stated = points[-1].epsilon, float(noted["total"]["epsilon"])
    if total > stated * (1 + 1e-9):
        raise StatementError(
            f"its data set's total after it is stated as ε {at_most(stated)}, by the book it was "
            f"{at_most(total)}"
        )
    return verification.ComparedEntry(BOOK, at_most(stated), at_most(total), f"the book at {place}")


def _require_noted(
    noted: Mapping[str, Any], held: Reservation, opened: Account, entries: Sequence[Entry]
) -> None:
    """Refuse evidence of other terms than the book's, or of a total without the run."""
    terms: dict[str, Any] = {
        "budget": asdict(opened.budget),
        "adjacency": opened.adjacency,
        "unit": opened.unit,
        "partition": held.charge.partition,
        "delta": opened.budget.delta,
    }
    for name, value in terms.items():
        found = noted["total"][name] if name == "delta" else noted[name]
        if found != value:
            raise StatementError(f"{IN_BOOK} has the {name} {found!r}, the book {value!r}")
    kinds, least = {"settle", "end"}, 0
    if "part" in noted:  # marked before the total was taken, and settled with the whole series
        kinds, least = {"mark", *kinds}, noted["part"][1]
    for entry in entries:
        own = entry.kind in kinds and entry.values["reservation"] == held.number
        if own and entry.values["rounds"] >= least:
            return  # at the head, or before it
        if entry.hash == noted["total"]["head"]:
            break
    raise StatementError(f"the head in {IN_BOOK} is older than what the book has of this run")


def _paid_again(ran: Mechanism, planned: Mechanism, again: Sequence[Mechanism]) -> bool:
    """True if further reservations cover every round that has less noise than planned.

    Such a round was released again; one reserved round of its own must have at most its noise
    multiplier.
    """
    if len(ran) != len(planned) or any(not isinstance(one, Rounds) for one in (*ran, *planned)):
        return False
    spare = [round for one in again for round in _one_by_one(one)]
    both = zip(_one_by_one(ran), _one_by_one(planned), strict=True)
    changed = [round for round, asked in both if round != asked]
    # The least noise first: what covers it would cover the later ones, too.
    for round in sorted(changed, key=lambda one: one.noise_multiplier):
        for one in spare:
            same = replace(one, noise_multiplier=round.noise_multiplier) == round
            if same and one.noise_multiplier <= round.noise_multiplier * (1 + 1e-9):
                spare.remove(one)
                break
        else:
            return False
    return True


def _one_by_one(mechanism: Mechanism) -> Iterator[Rounds]:
    for part in mechanism:
        yield from (replace(part, count=1) for _ in range(part.count))


def _require_policy(text: str, statement: Statement) -> None:
    """Refuse a statement whose ε exceeds its holder's policy.

    Raises:
        StatementError: it does; the message names both figures. ValueError, KeyError: no policy.
    """
    values = parse(text)
    if values["schema"] != POLICY_SCHEMA:
        raise StatementError(f"{POLICY} has another schema than {POLICY_SCHEMA}")
    if values["epsilon"] is None:  # the policy allows what the plan spends
        return
    allowed = real("policy epsilon", values["epsilon"], above=0)
    delta = statement.delta if values["delta"] is None else values["delta"]
    spent = again(statement, delta=real("policy delta", delta, above=0, below=1)).guarantee
    # The tolerance allows for numerical differences between machines.
    if spent > allowed * (1 + 2e-3):
        raise StatementError(
            f"{POLICY} allows ε = {at_least(allowed)} at δ = {at_most(delta, '.6g')}; the stated "
            f"rounds spend {at_most(spent)}"
        )


def _texts_of(found: Path, statement: Statement) -> dict[str, str]:
    """The possible evidence beside a statement, as file name → text."""
    named = () if statement.evidence is None else statement.evidence.files
    paths = map(found.with_name, dict.fromkeys((*named, *OF_RUN, *OF_HOLDERS)))
    return {path.name: read_outside(path) for path in paths if _there(path)}


def _hash_of(path: Path) -> str | None:
    """The SHA-256 of a file, after ``sha256:``; None: there is no file."""
    if not _there(path):
        return None
    with opened_outside(path, LARGEST_MODEL) as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _envelope_of(found: Path) -> Path:
    return found.with_name(f"{found.stem}.intoto.json")


def _signer(
    found: Path, text: str, statement: Statement, files: Mapping[str, str], key: Path | None
) -> verification.SignatureOwner | None:
    """The owner of the signature of the statement and its files; None: it is not signed.

    Raises:
        ValueError: the signature is of other files, or there is none and a key was given.
    """
    if statement.signature is not None:
        signing.check(statement.signature, statement.content(), key)
        return verification.SignatureOwner(statement.signature.fingerprint, key is not None)
    path = _envelope_of(found)
    if not _there(path):
        if key is not None:
            raise StatementError("the statement is not signed")
        return None
    signed = signing.attested(read_outside(path), key)
    present = {**files, found.name: content_hash(text.encode())}
    for name in signed.subjects:
        if name in (MODEL, *READ):  # these may be withheld
            present[name] = _hash_of(found.with_name(name)) or f"sha256:{signed.subjects[name]}"
    differs = [name for name, value in present.items() if signed.subjects.get(name) != value[7:]]
    missing = [name for name in signed.subjects if name not in present]
    if differs or missing or signed.predicate != parse(text):
        raise StatementError(
            f"{path.name} signs another folder: "
            f"{', '.join((*differs, *missing)) or 'the statement'} is not what was signed. Its "
            "signer signs again what was changed on purpose"
        )
    return verification.SignatureOwner(signed.fingerprint, key is not None)


def _transcript(
    text: str, statement: Statement, plan: Plan | None, federation: Federation | None
) -> tuple[Releases, ...]:
    """The releases of a transcript, after a check that its rounds are those of the statement."""
    transcript = Transcript.from_json(text)
    codes = {caveat.code for caveat in statement.caveats}
    planned = [] if plan is None else [plan] if federation is None else federation.plans
    most = max((len(one.mechanism) for one in planned), default=transcript.next)
    try:
        transcript.require(statement.mechanism, stopped=bool(codes & STOPPED))
        if transcript.again and "released-again" not in codes:
            raise TranscriptError("it has rounds that were released again")
        if transcript.again and plan is not None:
            transcript.require(plan.mechanism, once=True)
        if transcript.next > most:
            raise TranscriptError(f"it leaves out rounds up to {transcript.next:,} of {most:,}")
    except TranscriptError as error:
        raise StatementError(
            f"{TRANSCRIPT} is of other rounds than the statement: {error}"
        ) from None
    return transcript.releases()


def _agreed_by_others(agreed: Federation | Gossip | None, statement: Statement) -> str:
    """The name of the file with the agreed terms from which the accountant's details follow.

    Raises:
        StatementError: there is no such file beside the statement, or they do not follow from it.
    """
    if agreed is None:
        raise StatementError(
            f"the accountant {statement.accountant['kind']!r} counts on other holders, and no "
            f"{FEDERATION} or {GOSSIP} beside the statement says that there were any"
        )
    for me, plan in enumerate(agreed.own_plans):
        stated = plan_digest(plan.to_dict()) == statement.plan
        if stated and dict(statement.accountant) in _views_of(agreed, me, statement):
            return agreed.file
    raise StatementError(
        f"{agreed.file} gives no holder of the stated plan the accountant that the statement has"
    )


def _views_of(
    agreed: Federation | Gossip, me: int, statement: Statement
) -> Iterator[Mapping[str, Any] | None]:
    """The accountants that a holder's statement may have: of a worker, against any observers.

    Raises:
        StatementError: too many possible sets of observers.
    """
    kind = statement.accountant["kind"]
    if isinstance(agreed, Federation):
        rounds = sum(row.count for row in statement.releases)
        for view in VIEWS:
            if view != "secure-server" or agreed.secure is not None:
                yield accountant_of(agreed, me, view, released=rounds or None)
    elif kind == AGGREGATE:
        yield {"kind": AGGREGATE, "gain": outsider_gain(agreed, me, len(statement.mechanism))}
    elif kind == NETWORK:
        count = whole("observers", statement.accountant["observers"])
        workers = [other for other in range(agreed.workers) if other != me]
        if math.comb(len(workers), count) > MOST_OBSERVERS:
            raise StatementError(
                f"which {count} of {len(workers)} workers it is about cannot be found again: more "
                f"than {MOST_OBSERVERS:,} choices"
            )
        for observers in combinations(workers, count):
            with suppress(NetworkViewError):
                gains = network_gains(agreed, me, observers, len(statement.mechanism))
                yield {"kind": NETWORK, "gains": [list(pair) for pair in gains], "observers": count}


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Limit the time of a block; only in the main thread and where the system has timers.

    Raises:
        StatementError: the block took longer.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooLong:
        raise StatementError(
            f"not verified: it takes longer than {seconds:g} s. In Python, without a limit: "
            "forethought.accounting.verification.check(statement)"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _TooLong(BaseException):
    """Ends a block at its time limit; a BaseException, so that no handler of errors catches it."""


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def sign(path: Path, key: Path, draw: Callable[[Path], object] | None = None) -> Path:
    """Verify a statement, and sign it and the files beside it as an in-toto attestation.

    Args:
        path: run folder or statement.json. key: PEM file of an Ed25519 private key.
        draw: draws the page of a signed statement again; called with its path if there is one. What
            it drew is signed as well.

    Returns:
        The envelope's file, beside the statement.

    Raises:
        ValueError: no statement, one that does not hold, or no Ed25519 key.
        OSError: no such file.
    """
    found, signed = _file_of(path), _envelope_of(_file_of(path))
    verified(path, anew=True)
    text = read_outside(found)
    texts = _texts_of(found, Statement.from_json(text)) if found.name == STATEMENT else {}
    files = {
        name: content_hash(held.encode()) for name, held in {found.name: text, **texts}.items()
    }

    def attest() -> None:
        for name in (MODEL, *READ) if found.name == STATEMENT else ():
            file = found.with_name(name)
            value = None if name in READ and file.is_symlink() else _hash_of(file)
            if value is not None:
                files[name] = value
        write_text(signed, signing.attest(files, parse(text), key) + "\n")

    attest()
    if draw is not None and PAGE in files:
        draw(found.with_name(PAGE))
        attest()
    return signed


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in (STATEMENT, PLAN):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"{path} is no run folder: it holds no {STATEMENT} or {PLAN}")


def _schema_of(path: Path) -> str:
    try:
        values = parse(read_outside(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}. Give a plan, statement or run folder; of a job ask forethought plan"
        ) from None
    return str(values.get("schema", "")) if isinstance(values, dict) else ""
