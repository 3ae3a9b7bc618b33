"""Augmentation as a value: what may be asked for, in plans, files and statements."""

from __future__ import annotations

from typing import Any

import pytest

import forethought as ft
from forethought.accounting.statement import account
from forethought.jobs.job import Job, JobError
from forethought.report.terminal import plan_rows
from forethought.values.mechanism import Augmentation, Local
from forethought.values.plan import Plan


def test_a_plan_keeps_what_was_asked_for() -> None:
    asked = {"augment": ["mirror", "crop"], "augmentations": 4}
    plan = ft.plan(examples=1000, budget=ft.Budget(3.0, 1e-5), epochs=2, **asked)
    assert plan.augmentation == Augmentation(4, ("mirror", "crop"))
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.round(0).augmentation == plan.augmentation


def test_the_guarantee_is_the_same_and_the_statement_says_so() -> None:
    plan = ft.plan(examples=1000, budget=ft.Budget(3.0, 1e-5), epochs=2)
    altered = plan.with_(augmentation=Augmentation(4))
    assert altered.mechanism == plan.mechanism
    before, after = account(plan), account(altered)
    assert after.epsilon == before.epsilon
    new = [caveat for caveat in after.caveats if caveat not in before.caveats]
    assert [(one.code, one.role) for one in new] == [("augmented", "fact")]
    assert "4 copies, mirrored, shifted at random" in new[0].sentence


def test_a_job_asks_for_copies() -> None:
    tables: dict[str, Any] = {
        "data": {"source": "mnist"},
        "budget": {"epsilon": 1.0},
        "training": {"augmentations": 3, "augment": {"kinds": ["shift"], "pixels": 2}},
    }
    found = Job(**tables).make_plan(60_000)
    assert found.augmentation == Augmentation(3, ("shift",), pixels=2)
    tables["training"] = {"augmentations": 3}
    assert Job(**tables).make_plan(60_000).augmentation == Augmentation(3)
    tables["data"]["features"] = "scattering"
    with pytest.raises(JobError, match="alter pixels"):
        Job(**tables).make_plan(60_000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"augment": "rotate"}, "rotate"),
        ({"augment": []}, "at least one"),
        ({"augment": ["mirror", "mirror"]}, "once"),
        ({"augmentations": 0}, "augmentations"),
        ({"augment": {"kinds": ["mirror"], "pixels": 2}}, "pixels"),
        ({"augment": {"angle": 2}}, "angle"),
        ({"augment": Augmentation(2), "augmentations": 3}, "drop one"),
        ({"augment": {"copies": 2}, "augmentations": 3}, "once"),
        ({"augment": {"kinds": ["crop"], "least": 0}}, "least"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ft.plan(examples=1000, budget=ft.Budget(3.0, 1e-5), epochs=2, **given)


def test_what_runs_inside_a_group_takes_no_copies() -> None:
    with pytest.raises(ValueError, match="local"):
        ft.plan(
            examples=1000,
            budget=ft.Budget(3.0, 1e-5),
            epochs=2,
            clipping="group",
            local=Local("adam"),
            augmentations=2,
        )


def test_the_printed_plan_says_what_becomes_of_records_and_means() -> None:
    options = {"augmentations": 4, "gradient_filter": {"kind": "kalman", "delay": 2.5}}
    plan = ft.plan(examples=1000, budget=ft.Budget(3.0, 1e-5), epochs=2, **options)
    rows = dict(plan_rows(plan))
    assert rows["each record"] == "4 copies, mirrored, shifted at random"
    assert rows["gradient filter"] == "kalman, 2.5 rounds late"
