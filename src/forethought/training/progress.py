"""The view of a rule that chooses the next phase. No torch in here: planners write rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forethought.accounting.adaptive import Filter
from forethought.values.mechanism import Rounds


@dataclass(frozen=True)
class Progress:
    """A run in phases, between two of them.

    Args:
        examples: records in the training set.
        wanted: the accuracy that would end the run.
        done: the phases so far, each with the accuracy after it; at least one.
        filter: a copy of the run's filter: ask it what fits, spending from it changes nothing.
    """

    examples: int
    wanted: float
    done: tuple[tuple[Rounds, float], ...]
    filter: Filter


NextPhaseRule = Callable[[Progress], Rounds | None]
