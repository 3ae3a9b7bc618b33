"""What members of a federation or a gossip train on: records, or persons with all their rows.

Where the job names a ``person``, a member's examples are its persons, and everything that a member
has of one person is one contribution; a deal gives each person to one member, rows and all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.data.dataset import Dataset
from forethought.data.persons import PersonRows
from forethought.data.shares import Indices, shares
from forethought.jobs.job import Job, JobError
from forethought.planning.persons import of_persons
from forethought.planning.plan_request import PlanRequest

if TYPE_CHECKING:
    from torch import nn

    from forethought.jobs.load import Loaded
    from forethought.plans import Plan
    from forethought.training.records import Arranged


def require_possible(job: Job) -> None:
    """Refuse what a federation, or a gossip, cannot do with its members' data.

    Raises:
        JobError: says what, and what would go.
    """
    if isinstance(job.data.standardise, str):
        raise JobError(
            f"[data] standardise = {job.data.standardise!r}: every member would standardise by "
            "figures of its own, and one model would be fed different inputs; give public "
            "constants, standardise = [mean, deviation], or declare ranges in [data.columns]"
        )
    if job.data.person is None and job.data.most_of_one_person > 1:
        raise JobError(
            "[data] records_per_person: many holders protect rows, or persons that a column tells "
            'apart: say which, person = "patient", or leave records_per_person out'
        )
    if job.data.person is not None and job.training.person_as == "group":
        raise JobError(
            "person_as = 'group': among many holders a person is one contribution: leave it out"
        )


def asked_of(job: Job, size: int, parameters: int | None) -> PlanRequest:
    """What a job asks of the planner for a client of so many records, or persons."""
    request = job.plan_request(size, parameters)
    return request if job.data.person is None else of_persons(request)


def dealt(
    dataset: Dataset, clients: int | None, how: str, generator: np.random.Generator
) -> list[Indices]:
    """Which records each client holds, no person at two of them; see :func:`shares`."""
    targets, persons = dataset.train.targets, dataset.persons
    if persons is None:
        return shares(targets, clients, how, generator, dataset.sites)
    _, firsts, owners = np.unique(persons, return_index=True, return_inverse=True)
    # Data with persons have no column of sites: a person could be at two of them.
    parts = shares(targets[firsts], clients, how, generator)
    return [np.flatnonzero(np.isin(owners, part)).astype(np.int64) for part in parts]


def count_of(dataset: Dataset, part: Indices | None = None) -> int:
    """How many records, or different persons, a client has."""
    if dataset.persons is None:
        return len(dataset.train) if part is None else len(part)
    own = dataset.persons if part is None else dataset.persons[part]
    return len(np.unique(own))


def module_of(loaded: Loaded) -> nn.Module:
    """The model that members exchange and train; see :class:`PerPerson` where they are persons."""
    if loaded.dataset.persons is None:
        return loaded.model
    from forethought.training.records import PerPerson

    return PerPerson(loaded.model, loaded.dataset.train.inputs.shape[1:])


def arranged_for(loaded: Loaded, own: Dataset, plan: Plan) -> Arranged:
    """A member's data as its plan counts them, and the loss of these."""
    from forethought.training.records import arranged

    data: Any = (own.train.inputs, own.train.targets)
    if own.persons is not None:
        data = PersonRows(own.train, own.persons, own.records_per_person)
    return arranged(data, plan, loaded.loss)
