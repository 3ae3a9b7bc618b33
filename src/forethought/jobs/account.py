"""The statement of a plan, a run, a file or a bare description, recomputed on demand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forethought.accounting.statement import Statement
from forethought.accounting.statement import account as exact_account
from forethought.accounting.statement import verify as verified
from forethought.jobs.request import Request
from forethought.plans import Plan

if TYPE_CHECKING:
    from forethought.published.comparison import Row


def compared(statement: Statement) -> list[Row]:
    """What every analysis says of a statement's mechanism, for one record."""
    from forethought.published.comparison import compare

    return compare(statement.mechanism, statement.delta, statement.examples)


def account_for(request: Request, examples: int, group: int) -> Statement:
    """The statement of a run that a job describes, without data."""
    return exact_account(request.job.make_plan(examples), group=group)


def statement_of(
    path: Path, *, verify: bool = False, group: int = 1, delta: float | None = None
) -> Statement:
    """The statement of a run folder, a plan file or a statement file.

    Args:
        path: run folder, plan.json or statement.json.
        verify: recompute the statement and fail when it does not hold.
        group, delta: account again for another group size or δ.

    Raises:
        ValueError: neither a plan nor a statement, or (with ``verify``) it does not hold.
        OSError: no such file.
    """
    if path.is_dir():
        finished = path / "statement.json"
        plan_file = path / "plan.json"
        if finished.is_file():
            statement = Statement.load(finished)
            if verify and plan_file.is_file():
                _check_plan(statement, Plan.load(plan_file))
        elif plan_file.is_file():
            return exact_account(Plan.load(plan_file), delta, group=group)
        else:
            raise ValueError(f"{path} is no run folder: it holds no statement.json or plan.json")
    else:
        schema = _schema_of(path)
        if schema.startswith("forethought/plan/"):
            return exact_account(Plan.load(path), delta, group=group)
        statement = Statement.load(path)
    if verify:
        statement = verified(statement)
    if (group, delta) == (1, None) or (group, delta) == (statement.group, statement.delta):
        return statement
    again = exact_account(
        statement.mechanism,
        delta or statement.delta,
        group=group,
        accountant=statement.accountant,
    )
    return replace(
        statement,
        delta=again.delta,
        epsilon=again.epsilon,
        group=again.group,
        attack=again.attack,
        theorems=again.theorems,
        accountant=again.accountant,
    )


def _check_plan(statement: Statement, plan: Plan) -> None:
    planned = plan.mechanism
    released = len(statement.mechanism)
    if released > len(planned) or planned.first(released) != statement.mechanism:
        raise ValueError("the statement's mechanism is not that of the plan.json in its folder")


def _schema_of(path: Path) -> str:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    return str(values.get("schema", "")) if isinstance(values, dict) else ""
