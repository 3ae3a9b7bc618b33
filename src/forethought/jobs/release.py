"""The release of a job's ``[[statistics]]`` of a table into a folder."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

from forethought.accounting.interval import warn_if_hollow
from forethought.accounting.statement import Statement
from forethought.data.files import TABLES
from forethought.jobs.job import JOB_NAME, JobError, JobRequest
from forethought.jobs.load import statistics_of
from forethought.ledger.book import Unit
from forethought.statistics.released import Released, needed
from forethought.statistics.released import request as asked_of
from forethought.statistics.table import rows
from forethought.training.folder import PAID, locked
from forethought.values.caveats import Caveat
from forethought.values.checks import require_only


def release_job(
    request: JobRequest, out: Path, data_dir: Path | None = None
) -> tuple[Released, Statement]:
    """Release the statistics that a job asks for; write result and statement to ``out``.

    Where the job has a ``[ledger]``, the budget is reserved before a record is read.

    Raises:
        JobError: no statistics, no budget, or no table. RunFolderExistsError: ``out`` is not empty.
        ValueError: columns that differ from their declaration, or too little budget left.
    """
    job = request.job
    budget, schema = job.budget, job.data.table_schema()
    if not job.statistics:
        raise JobError('the job asks for no statistics: add [[statistics]] with kind = "count", …')
    if budget.delta is None:
        raise JobError("give delta in [budget]: it is fixed before the records are counted")
    if job.data.source.partition(":")[0] not in TABLES:
        raise JobError(
            f'statistics are of a table: source = "csv:patients.csv", not {job.data.source!r}'
        )
    # ε of one round does not depend on the number of records, so 1 will do; intervals depend on it.
    planned = asked_of(
        statistics_of(job),
        examples=1,
        budget=budget.epsilon,
        delta=budget.delta,
        adjacency=job.training.adjacency or "add-or-remove",
        group=job.data.most_of_one_person,
        schema=schema,
    )
    with contextlib.ExitStack() as held:
        held.enter_context(locked(out))
        require_only(out)
        paid = None
        if job.payer is not None:
            unit: Unit = "record" if job.data.person is None else "person"
            paying = job.payer.paid(planned.mechanism, group=planned.group, unit=unit)
            paid = held.enter_context(paying)
        job.recognise(data_dir)
        found = rows(job.table(data_dir), needed(planned.statistics), schema)
        planned = replace(planned, examples=len(found))
        warn_if_hollow(planned.delta, planned.examples, planned.group)
        # A table that is refused costs nothing: it is marked as released where noise is drawn.
        before = None if paid is None else partial(paid.ahead, 1)
        released = planned.release(found, schema=schema, seed=job.run.noise_seed, before=before)
        files = {**released.files, JOB_NAME: request.released_text()}
        statement = replace(released.statement, about=job.about.about())
        if paid is not None:
            files[PAID], words = paid.settle()
            caveats = (*statement.caveats, Caveat("in-the-book", words))
            statement = replace(statement, caveats=caveats)
        statement = statement.save(out, files)
    return released, statement
