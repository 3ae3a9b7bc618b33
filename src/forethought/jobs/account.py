"""The statement of a plan, a run, a file or a bare description, recomputed on demand."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forethought import signing
from forethought.accounting.statement import Statement, StatementError, account
from forethought.accounting.verification import Verification, check
from forethought.jobs.request import Request
from forethought.plans import Plan
from forethought.serialisation import write_text

if TYPE_CHECKING:
    from forethought.published.comparison import Row

PLAN, STATEMENT, MODEL = "plan.json", "statement.json", "model.safetensors"


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


def verified(path: Path, public_key: Path | None = None) -> Verification:
    """Recompute the statement of a run folder or a file, with the plan.json beside it.

    Args:
        path: run folder or statement.json.
        public_key: PEM file of the key that must have signed it.

    Raises:
        ValueError: no statement, or one that does not hold or is not signed with that key.
        OSError: no such file.
    """
    found = _file_of(path)
    if _schema_of(found).startswith("forethought/plan/"):
        raise ValueError(f"{found} is a plan: there is no statement to verify")
    statement = Statement.load(found)
    planned = found.with_name(PLAN)
    plan, model = None, None
    if found.name == STATEMENT and planned.is_file():
        plan = Plan.load(planned)
    weights = found.with_name(MODEL)
    if found.name == STATEMENT and weights.is_file():
        model = f"sha256:{hashlib.sha256(weights.read_bytes()).hexdigest()}"
    if public_key is not None:
        if statement.signature is None:
            raise StatementError(f"{found} is not signed")
        signing.check(statement.signature, statement.content(), public_key)
    return check(statement, plan, model)


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
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    return str(values.get("schema", "")) if isinstance(values, dict) else ""
