"""Kind of contribution → what computes it."""

from __future__ import annotations

from forethought.contributions import Examples, Groups, LinearExamples, Persons
from forethought.local_updates import LocalUpdates
from forethought.preparation import Statistics
from forethought.rounds.contributions import (
    Contributor,
    ExampleGradients,
    GroupGradients,
    LinearExampleGradients,
)
from forethought.rounds.local_contributions import GroupUpdates
from forethought.rounds.statistics import RecordVectors

CONTRIBUTORS: dict[type, Contributor] = {
    Examples: ExampleGradients(),
    Groups: GroupGradients(),
    LinearExamples: LinearExampleGradients(),
    LocalUpdates: GroupUpdates(),
    Persons: ExampleGradients(),  # records that are persons: training arranges them so
    Statistics: RecordVectors(),
}
