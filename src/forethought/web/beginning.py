"""The numbers that the page begins with: a job's, or the usual ones."""

from __future__ import annotations

from pathlib import Path

from forethought.web.planner import Settings
from forethought.web.saving import Place


def beginning(job_file: Path | None, folder: Path, data_dir: Path | None) -> tuple[Place, Settings]:
    """The place to save at, and the first places of the sliders.

    Args:
        job_file: its data are counted, nothing else is read of them; None: there is none.

    Raises:
        ValueError: a job that cannot be used, or data that are missing.
    """
    if job_file is None:
        return Place(folder), Settings()
    from forethought.jobs.load import load_job
    from forethought.jobs.request import from_file

    loaded = load_job(from_file(job_file), data_dir)
    job, usual = loaded.request.job, Settings()  # as settled when the data were read
    start = Settings(
        epsilon=job.budget.epsilon or usual.epsilon,
        delta=job.budget.delta,
        records=loaded.examples,
        persons=loaded.persons,
        records_per_person=job.data.most_of_one_person,
        epochs=job.training.epochs,
        features=min(1000, loaded.features),
    )
    tables = job.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    notes = (*loaded.request.settled, *((loaded.advice,) if loaded.advice else ()))
    return Place(folder, tables, notes), start
