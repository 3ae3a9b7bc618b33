"""A request: a job with the text it was read from, from a file, from flags or from a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forethought.jobs.job import Job, JobError, explain

JOB_NAME = "job.toml"


@dataclass(frozen=True)
class Request:
    """A job with the text it was read from, which is stored with the run."""

    name: str
    text: str
    job: Job


def from_file(path: Path) -> Request:
    """Read a job file. Raises JobError."""
    job = Job.load(path)
    return Request(path.stem, path.read_text(encoding="utf-8"), job)


def demo() -> Request:
    """The built-in job: scikit-learn's handwritten digits at ε = 3."""
    text = resources.files("forethought").joinpath("demo.toml").read_text(encoding="utf-8")
    return Request("demo", text, Job.parse(text, "demo.toml"))


def resumed(folder: Path) -> Request:
    """The job of an interrupted run. Raises JobError when the folder holds none."""
    path = folder / JOB_NAME
    if not path.is_file():
        raise JobError(
            f"{folder} holds no interrupted run that can be resumed: there is no {JOB_NAME} in it"
        )
    return replace(from_file(path), name=folder.name)


def from_numbers(
    *, epsilon: float | None = None, delta: float | None = None, **training: Any
) -> Request:
    """A request without data: a budget and keys of a job's ``[training]``; None is left out.

    Raises:
        JobError: an unknown key or a value that is not allowed.
    """
    tables = {
        "data": {"source": "none"},
        "budget": without_none({"epsilon": epsilon, "delta": delta}),
        "training": without_none(training),
    }
    try:
        return Request("", "", Job.model_validate(tables))
    except ValidationError as error:
        raise JobError("; ".join(explain("", "", row) for row in error.errors())) from None


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that were given."""
    return {name: value for name, value in values.items() if value is not None}
