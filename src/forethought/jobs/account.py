"""The statement of a plan, a run, a file or a bare description, recomputed on demand."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought import signing
from forethought.accounting.exact import CertificateError
from forethought.accounting.releases import STOPPED
from forethought.accounting.statement import Statement, StatementError, account, plan_digest
from forethought.accounting.summed import AGGREGATE, NETWORK, SECURE_AGGREGATION
from forethought.accounting.verification import Verification, check
from forethought.caveats import one_line
from forethought.federated.federation import Federation
from forethought.federated.statements import VIEWS, accountant_of
from forethought.gossip.decentralised import NetworkViewError
from forethought.gossip.gossip import Gossip
from forethought.gossip.statements import network_gains, outsider_gain
from forethought.jobs.request import Request
from forethought.plans import Plan
from forethought.rounds.transcript import Releases, Transcript, TranscriptError
from forethought.serialisation import exact_keys, opened_outside, parse, read_outside, write_text

if TYPE_CHECKING:
    from forethought.published.comparison import Row

PLAN, STATEMENT, MODEL = "plan.json", "statement.json", "model.safetensors"
TRANSCRIPT, TRANSCRIPT_SCHEMA = "transcript.json", "forethought/transcript/1"
FEDERATION, GOSSIP, OUTSIDER = "federation.json", "gossip.json", "outsider"
# Accountants that count on the noise of other holders, or on what they hide.
OF_OTHERS = frozenset({AGGREGATE, NETWORK, SECURE_AGGREGATION})
# Seconds that a stranger's statement may take, and bytes that a model file may have.
LONGEST, LARGEST_MODEL = 300.0, 1 << 36


def compared(statement: Statement) -> list[Row]:
    """What every analysis says of a statement's mechanism, for as many records."""
    from forethought.published.comparison import compare

    return compare(statement.mechanism, statement.delta, statement.examples, statement.group)


def account_for(request: Request, examples: int, group: int | None) -> Statement:
    """The statement of a run that a job describes, without data."""
    return account(request.job.make_plan(examples), group=group)


def statement_of(path: Path, *, group: int | None = None, delta: float | None = None) -> Statement:
    """The statement of a run folder, a plan file or a statement file.

    Args:
        path: run folder, plan.json or statement.json.
        group, delta: account again for another group size or δ; None: its own.

    Raises:
        ValueError: neither a plan nor a statement.
        OSError: no such file.
    """
    found = _file_of(path)
    if _schema_of(found).startswith("forethought/plan/"):
        return account(Plan.load(found), delta, group=group)
    return again(Statement.load(found), group=group, delta=delta)


def again(
    statement: Statement, *, group: int | None = None, delta: float | None = None
) -> Statement:
    """The statement for another group size or δ; as it is where both are its own."""
    group = statement.group if group is None else group
    if group == statement.group and delta in (None, statement.delta):
        return statement
    other = account(
        statement.mechanism,
        delta or statement.delta,
        group=group,
        accountant=statement.accountant,
        randomness=statement.randomness,
    )
    return replace(
        statement,
        delta=other.delta,
        epsilon=other.epsilon,
        group=other.group,
        attack=other.attack,
        signature=None,
    )


def verified(
    path: Path, public_key: Path | None = None, *, seconds: float = LONGEST
) -> Verification:
    """Recompute the statement of a run folder or a file, with what the run wrote beside it.

    The folder may be a stranger's: files are read up to a size, never through links, and nothing
    is written.

    Args:
        path: run folder or statement.json.
        public_key: PEM file of the key that must have signed it.
        seconds: after which it gives up.

    Raises:
        ValueError: no statement, or one that does not hold or is not signed with that key.
        OSError: no such file.
    """
    found = _file_of(path)
    with _in_time(seconds):
        try:
            return _verified(found, public_key)
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


def _verified(found: Path, public_key: Path | None) -> Verification:
    text = read_outside(found)
    values = parse(text)
    if isinstance(values, dict) and str(values.get("schema")).startswith("forethought/plan/"):
        raise StatementError(f"{found} is a plan: there is no statement to verify")
    statement = Statement.from_json(text)
    if public_key is not None:
        if statement.signature is None:
            raise StatementError(f"{found} is not signed")
        signing.check(statement.signature, statement.content(), public_key)
    plan, model, transcript = None, None, None
    if found.name == STATEMENT:
        if _there(found.with_name(PLAN)):
            plan = Plan.from_json(read_outside(found.with_name(PLAN)))
        if _there(found.with_name(TRANSCRIPT)):
            transcript = _transcript(found.with_name(TRANSCRIPT), statement)
        if _there(found.with_name(MODEL)):
            with opened_outside(found.with_name(MODEL), LARGEST_MODEL) as file:
                model = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    others = None
    if statement.accountant["kind"] in OF_OTHERS:
        others = _agreed_by_others(found, statement)
    return check(statement, plan, model, transcript, others)


def _transcript(path: Path, statement: Statement) -> tuple[Releases, ...]:
    """Rows of a transcript, which must be rounds of the stated sampling and clipping too."""
    values = parse(read_outside(path))
    exact_keys("transcript", values, {"schema", "rounds", "others"})
    if values.pop("schema") != TRANSCRIPT_SCHEMA:
        raise StatementError(f"{path} holds no transcript that this version can read")
    transcript = Transcript.from_values(values)
    stopped = any(caveat.code in STOPPED for caveat in statement.caveats)
    try:
        transcript.require(statement.mechanism, stopped=stopped)
    except TranscriptError as error:
        raise StatementError(f"{path} is of other rounds than the statement: {error}") from None
    return transcript.releases()


def _agreed_by_others(found: Path, statement: Statement) -> str:
    """Where the accountant's details were found again in what all holders agreed on.

    Raises:
        StatementError: nothing beside the statement says that others took part, or not so.
    """
    # A worker's statement against outsiders is in a folder of its own.
    for folder in (found.parent, found.parent.parent)[: 1 + (found.parent.name == OUTSIDER)]:
        if _there(folder / FEDERATION):
            federation = Federation.from_json(read_outside(folder / FEDERATION))
            made = (
                accountant_of(federation, client, view)
                for client in range(len(federation.members))
                if plan_digest(federation.plan(client).to_dict()) == statement.plan
                for view in VIEWS
                if view != "secure-server" or federation.secure is not None
            )
            return _among(statement, made, folder / FEDERATION)
        if _there(folder / GOSSIP):
            gossip = Gossip.from_json(read_outside(folder / GOSSIP))
            of_views = (
                made
                for worker in range(gossip.workers)
                if plan_digest(gossip.plan(worker).to_dict()) == statement.plan
                for made in _views_of(gossip, worker, statement)
            )
            return _among(statement, of_views, folder / GOSSIP)
    raise StatementError(
        f"the accountant {statement.accountant['kind']!r} counts on other holders, and neither "
        f"{FEDERATION} nor {GOSSIP} beside the statement says that there were any"
    )


def _views_of(gossip: Gossip, worker: int, statement: Statement) -> Iterator[dict[str, Any] | None]:
    """The accountants that a worker's statement may have: against outsiders and one observer."""
    gain = outsider_gain(gossip, worker)
    yield {"kind": AGGREGATE, "gain": gain}
    for other in range(gossip.workers):
        if other == worker or statement.accountant["kind"] != NETWORK:
            continue
        with suppress(NetworkViewError):
            gains = network_gains(gossip, worker, [other], len(statement.mechanism))
            yield {"kind": NETWORK, "gains": [list(pair) for pair in gains], "observers": 1}


def _among(statement: Statement, made: Iterable[Mapping[str, Any] | None], where: Path) -> str:
    if any(one == dict(statement.accountant) for one in made):
        return where.name
    raise StatementError(
        f"{where} gives no holder of the stated plan the accountant that the statement has"
    )


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Stop what takes longer. Only the main thread can be stopped, and only where there are timers.

    Raises:
        StatementError: it took longer.
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
            f"the statement is not verified: recomputing it takes longer than {seconds:g} s. "
            "forethought.accounting.verification.check(statement) in Python has no limit"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _TooLong(BaseException):
    """The time is over; no handler of errors on the way takes it for one."""


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def sign(path: Path, key: Path) -> Statement:
    """Verify a statement, sign it, and write it back.

    Args:
        path: run folder or statement.json. key: PEM file of an Ed25519 private key.

    Raises:
        ValueError: no statement, one that does not hold, or no such key.
        OSError: no such file.
    """
    found = _file_of(path)
    verified(found)
    statement = Statement.load(found)
    signed = replace(statement, signature=signing.sign(statement.content(), key))
    if found.name == STATEMENT:
        signed.save(found.parent)
    else:
        write_text(found, signed.to_json() + "\n")
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
        raise ValueError(f"{path} is no JSON file: {error}") from None
    return str(values.get("schema", "")) if isinstance(values, dict) else ""
