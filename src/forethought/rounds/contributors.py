"""Kind of contribution → what computes it."""

from __future__ import annotations

from forethought.rounds.contributions import (
    Contributor,
    ExampleGradients,
    GroupGradients,
    LinearExampleGradients,
)
from forethought.rounds.local_contributions import GroupUpdates
from forethought.rounds.statistics import RecordVectors
from forethought.values.contributions import Examples, Groups, LinearExamples, LocalUpdates, Persons
from forethought.values.plan import Statistics

CONTRIBUTORS: dict[type, Contributor] = {
    Examples: ExampleGradients(),
    Groups: GroupGradients(),
    LinearExamples: LinearExampleGradients(),
    LocalUpdates: GroupUpdates(),
    Persons: ExampleGradients(),  # records that are persons: training arranges them so
    Statistics: RecordVectors(),
}
