"""What a job's federation and its gossip have in common: many holders' plans and speeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forethought.jobs.job import Job, JobError
from forethought.jobs.members import asked_of
from forethought.mechanism import Budget
from forethought.optimizers import kind_of
from forethought.plans import Plan
from forethought.simulation.speeds import lognormal_speeds, slow_ones


def named_speeds(
    speeds: Sequence[float] | str | None, slow: int, factor: float, holders: int, seed: int
) -> tuple[float, ...]:
    """Each holder's records a second, against 1.

    Args:
        speeds: a list, or "lognormal:σ"; None: all alike but for ``slow`` of them.
        slow: how many take ``factor`` times as long. seed: of what is drawn.

    Raises:
        JobError: a list of another length, or words that say nothing.
    """
    match speeds:
        case None:
            return tuple(1 / s for s in slow_ones(holders, slow, factor))
        case str() as words:
            kind, _, sigma = words.partition(":")
            try:
                spread = float(sigma)
            except ValueError:
                spread = -1.0
            if kind != "lognormal" or spread < 0:
                raise JobError(f"speeds = {words!r}: say a list, or 'lognormal:0.5'")
            return tuple(lognormal_speeds(holders, spread, seed))
        case listed:
            if len(listed) != holders:
                raise JobError(f"{len(listed)} speeds for {holders} holders: give one each")
            return tuple(float(speed) for speed in listed)


def reference_plan(
    job: Job,
    budget: Budget,
    size: int,
    clients: int,
    parameters: int,
    gradients: bool,
    noise_borne: float | None = None,
) -> Plan:
    """What one machine would do whose signal and noise are those of all clients together.

    Args:
        noise_borne: norm of noise that the model's weights bear, from which step size and batch
            follow; see :mod:`forethought.planning.tolerance`.
    """
    from forethought.planning.solve import plan

    asked = asked_of(job, round(size * clients**0.5), parameters)
    changes: dict[str, Any] = {"budget": budget, "delta": None, "noise_borne": noise_borne}
    if asked.batch is not None:
        changes["batch"] = max(1, round(asked.batch * clients**0.5))
    if gradients and asked.options is None and kind_of(asked.optimizer).descends:
        changes["options"] = {"momentum": 0.0}  # the server steps along each gradient by itself
    return plan(asked.with_(**changes))


def holder_plan(
    job: Job, lead: Plan, size: int, batch: int, budget: Budget, rounds: int, parameters: int
) -> Plan:
    """One client's plan: its own noise for its own budget, everything else as agreed."""
    from forethought.planning.solve import plan

    asked = asked_of(job, size, parameters)
    return plan(
        asked.with_(
            budget=budget,
            delta=None,
            batch=batch,
            rounds=rounds,
            epochs=None,
            learning_rate=lead.optimizer.learning_rate,
            schedule=lead.schedule,
            averaging=lead.averaging,
            options=dict(lead.optimizer.options),
        )
    )
