"""People with several records: two ways to promise something to each, and the better of them.

- *One contribution a person*: all of a person's rows in a batch are one clipped contribution, so a
  person moves a sum by one clipping norm. The plan's examples are then persons.
- *Groups of rows*: every row is a contribution, and the promise is about as many rows together as
  one person may have (group accounting), which needs more noise, on more contributions.

Which has less noise for its signal depends on how many rows people have on average and at most;
:func:`better` plans both. At the same noise a person's mean gradient says more than one row's, so
ties go to persons.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from forethought.caveats import Caveat
from forethought.contributions import Persons
from forethought.mechanism import UnsupportedMechanismError
from forethought.planning.noise_to_signal import noise_to_signal
from forethought.planning.plan_request import PlanRequest
from forethought.plans import Plan

# In a plan's reasons.
PERSONS = "persons"


def caveat(request: PlanRequest) -> tuple[Caveat, ...]:
    """What a Statement says of persons; nothing where every record is somebody else's."""
    if request.person_as == "contribution":
        return (Caveat("persons", f"at most {request.records_per_person}"),)
    if request.records_per_person > 1:
        return (Caveat("rows-of-persons", f"{request.records_per_person}"),)
    return ()


def of_rows(request: PlanRequest) -> PlanRequest:
    """The same request, by groups of as many rows as one person may have."""
    return request.with_(person_as="group", persons=None)


def of_persons(request: PlanRequest) -> PlanRequest:
    """The same request with persons in place of rows: as large a share of them in a batch."""
    rows, persons = request.examples, request.persons
    if persons is None:
        return request.with_(person_as="contribution")
    batch = request.batch
    if batch is not None:
        batch = min(persons, max(1, math.ceil(batch * persons / rows)))
    return request.with_(examples=persons, batch=batch, persons=None, person_as="contribution")


def contribution(request: PlanRequest) -> Persons | None:
    """What is clipped where a person is one contribution."""
    own = request.person_as == "contribution"
    return Persons(request.records_per_person) if own else None


def planned(request: PlanRequest, make: Callable[[PlanRequest], Plan]) -> Plan:
    """The plan of the way that is asked for, or of the better one."""
    if request.person_as == "contribution":
        return make(of_persons(request))
    if request.person_as == "group":
        return make(of_rows(request))
    return better(request, make)


def better(request: PlanRequest, make: Callable[[PlanRequest], Plan]) -> Plan:
    """The plan of the way with less noise for its signal; of persons where no ε is asked for.

    Args:
        request: with both the number of rows and of persons. make: the planner for one way.
    """
    if request.clipping != "example":
        return make(of_rows(request))
    persons = make(of_persons(request))
    if request.budget is None:
        why = "one contribution a person: at this noise its ε is the smaller one"
        return persons.with_(reasons=(*persons.reasons, (PERSONS, why)))
    try:
        rows = make(of_rows(request))
    except UnsupportedMechanismError:
        why = "one contribution a person: no theorem is known for groups of these rows"
        return persons.with_(reasons=(*persons.reasons, (PERSONS, why)))
    ratio = noise_to_signal(rows) / noise_to_signal(persons)
    most, mean = request.records_per_person, request.examples / (request.persons or 1)
    have = f"people have {mean:.3g} rows on average and at most {most}"
    if ratio < 1:
        why = (
            f"groups of {most} rows: {have}, so rows protected together have {ratio:.2f} times "
            "the noise for the signal that one contribution a person has"
        )
        return rows.with_(reasons=(*rows.reasons, (PERSONS, why)))
    why = (
        f"one contribution a person: {have}, so groups of {most} rows would have {ratio:.2f} "
        "times the noise for the signal"
    )
    return persons.with_(reasons=(*persons.reasons, (PERSONS, why)))
