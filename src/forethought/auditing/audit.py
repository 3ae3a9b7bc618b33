"""Audit a plan, with the user's model and data: five checks, one verdict.

Every check goes through :func:`forethought.train`. An audit refutes or fails to refute; no
guarantee depends on it.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import nn

from forethought.auditing.attack import attack
from forethought.auditing.canaries import PARTS, CheckSizes, choices, sizes_of, taken
from forethought.auditing.noise import noise
from forethought.auditing.participation import participation
from forethought.auditing.replay import replayed
from forethought.auditing.sensitivity import model_sensitivity, planted_sensitivity
from forethought.auditing.verdict import FOR_THE_OPERATOR, Audit, CheckName
from forethought.gradients import check_model
from forethought.rounds.contributions import Loss, default_loss, of_each
from forethought.rounds.records import Records, as_records, blank
from forethought.training.records import arranged, form_of, opened, usual_loss
from forethought.values.checks import function, instance, real
from forethought.values.mechanism import Examples, Persons
from forethought.values.plan import Plan

FALSE_ALARM = 1e-4
# Number of the user's records with which rounds are replayed.
MODEL_RECORDS = 200

STEPS = len(get_args(CheckName))


def audit(
    plan: Plan,
    model: nn.Module | None = None,
    data: object | None = None,
    *,
    loss: Loss | None = None,
    level: str | CheckSizes = "standard",
    false_alarm: float = FALSE_ALARM,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Try to refute the claim of a plan by running it.

    Args:
        plan: the claim. Its sampling, clipping and noise are run on planted records.
        model: the user's model, with ``data``; it is copied. Rounds with it are replayed, and
            neighbouring batches go through it. Without it only planted models are audited.
        data: the user's records, as for :func:`forethought.train`. Measurements on them are for the
            operator, not for publication.
        loss: one value for each record; default as in training.
        level: ``"quick"``, ``"standard"`` or ``"thorough"``; or the sizes one by one.
        false_alarm: chance that a sound run is refuted by any check, above 0 and at most 0.1. Each
            test has an exact level, its share of this chance.
        seed: of the audit's own choices (records, coins). The run under audit draws its own
            randomness as always.
        progress: called with (steps done, steps) before each step and at the end.

    Returns:
        The audit: findings, verdict, and the attack's results.

    Raises:
        TypeError, ValueError: arguments that do not fit, or a model that training refuses.
    """
    require(plan, model, data, loss, progress)
    share, generator = real("false_alarm", false_alarm, above=0, most=0.1), choices(seed)
    sizes = level if isinstance(level, CheckSizes) else sizes_of(level)
    prepared, plan = plan.preparation is not None, plan.with_(preparation=None)
    start = time.perf_counter()
    notes: list[str] = []
    records: Records | None = None
    if model is not None:
        model, records, loss = own_records(model, data, plan, loss)
    few = None if records is None else taken(records, np.arange(min(len(records), MODEL_RECORDS)))
    if isinstance(plan.contribution, Persons):
        # Planted records have no rows: each stands for a person, and is clipped in the same way.
        plan = plan.with_(contribution=Examples(), augmentation=None)
        notes.append("a planted record stands for everything that one person has")
    if prepared:
        notes.append(
            "the private preparation of the data was not audited, only the rounds behind it"
        )
    # Planted records are no images.
    planted = plan.with_(augmentation=None)
    if planted != plan and model is None:
        notes.append("planted records have no altered copies: give model and data to audit these")
    if len(plan.mechanism.rounds) > PARTS:
        notes.append(f"replay and noise were looked at in {PARTS} of the plan's parts, not in all")

    tell = (lambda *_: None) if progress is None else progress
    # Planted gradients have unusual sizes, so warnings about them do not help the user.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tell(0, STEPS)
        short = replayed(planted if model is None else plan, model, few, loss)
        found = short.findings()
        notes += [f"not replayed: {reason}" for reason in short.refusals]
        tell(1, STEPS)
        found += participation(planted, sizes, generator)
        if plan.examples > sizes.population:
            notes.append(f"the dry run drew from {sizes.population:,} of {plan.examples:,} records")
        tell(2, STEPS)
        found += noise(planted, sizes, generator)
        tell(3, STEPS)
        found.append(planted_sensitivity(planted))
        if model is not None and records is not None and loss is not None:
            found += model_sensitivity(model, records, plan, loss, sizes, generator)
            notes.append(FOR_THE_OPERATOR)
        else:
            notes.append("no model and no data were given: only planted models were audited")
        tell(4, STEPS)
        attacked, summary, more = attack(planted, sizes, generator)
        found += attacked
        notes += more
    tell(STEPS, STEPS)
    return Audit(tuple(found), share, summary, round(time.perf_counter() - start, 2), tuple(notes))


def require(plan: object, model: object, data: object, loss: object, progress: object) -> None:
    """Refuse arguments that do not fit together: TypeError or ValueError."""
    instance("plan", plan, Plan)
    if (model is None) != (data is None):
        raise ValueError("give model and data, or neither")
    function("loss", loss)
    function("progress", progress)
    if model is None and loss is not None:
        raise ValueError("a loss is of a model's outputs: give model and data with it")


def own_records(
    model: nn.Module, data: object, plan: Plan, loss: Loss | None
) -> tuple[nn.Module, Records, Loss]:
    """The user's model, records and loss in the form in which they are trained.

    Raises:
        TypeError, ValueError: a model that training refuses, or another number of records than the
            plan's.
    """
    own = arranged(opened(data, None)[0], plan, usual_loss(data) if loss is None else loss)
    check_model(model, plan.contribution.clipping == "group")
    model = own.wrapped(model)
    records = as_records(own.data, *form_of(model))
    if len(records) != plan.examples:
        raise ValueError(
            f"the plan is for {plan.examples} examples, the data has {len(records)}: audit the "
            "plan with the data that it is for"
        )
    each = default_loss(blank(records)[1]) if own.loss is None else of_each(own.loss)
    return model, records, each


# The self-test of audits: audits must find faults that are planted into the running code.


TRIAL = Path(__file__).parents[3] / "tools" / "trials" / "audits.py"


@dataclass(frozen=True)
class Outcome:
    """The outcome of the audit of one fault, or of one sound job.

    Args:
        name: of the fault or job.
        caught: True if the audit refuted the run.
        check: the check that refuted; empty if none did.
        checks: all checks that refuted.
        reason: the sentence that a user would read.
        seconds: duration of the audit.
    """

    name: str
    caught: bool
    check: str
    checks: tuple[str, ...]
    reason: str
    seconds: float


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test: every fault, and the sound jobs."""

    faults: tuple[Outcome, ...]
    sound: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """True if every fault was caught and no sound job was refuted."""
        return all(f.caught for f in self.faults) and not any(s.caught for s in self.sound)

    def to_dict(self) -> dict[str, Any]:
        """The result as values for JSON."""
        return {"passed": self.passed, **asdict(self)}


def self_test(seed: int | None = None, *, more: bool = True) -> SelfTest:
    """Plant every fault, one after the other, and audit it; audit jobs without a fault, too.

    Args:
        seed: of the audits' own choices.
        more: False: only faults that are known from practice.

    Raises:
        ValueError: the library is installed without its repository.
    """
    if not TRIAL.is_file():
        raise ValueError(
            "the faults that the self-test plants are not installed: they are in the repository "
            "(tools/trials/audits.py); run forethought audit --self-test from a checkout of it"
        )
    sys.path.append(str(TRIAL.parents[1]))
    trial = importlib.import_module("trials.audits")
    return SelfTest(tuple(trial.outcomes(seed, more=more)), tuple(trial.sound_outcomes(seed)))
