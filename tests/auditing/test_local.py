"""The audit over local updates: every algorithm, and every sampling twice; sound ones pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import forethought as ft
from forethought.auditing.audit import audit
from forethought.auditing.participation import proportional
from forethought.values.mechanism import (
    INNER,
    Local,
    Mechanism,
    Rounds,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.plan import Plan
from trials import audits

FALSE_ALARM = 1e-6
EXAMPLES = 240
SAMPLINGS: dict[str, tuple[Any, Any]] = {
    "poisson": (ft.Poisson(0.1), "add-or-remove"),
    "without-replacement": (WithoutReplacement(24, EXAMPLES), "replace-one"),
    "shuffled": (Shuffled(24, EXAMPLES), "zero-out"),
    "full-batch": (ft.FullBatch(), "replace-one"),
    "cyclic-poisson": (ft.CyclicPoisson(0.5, 5), "add-or-remove"),
}


def shrinks(model: Any, batch: Any) -> Any:
    """A user's algorithm: three steps of gradient descent, by hand."""
    weight = model.table.weight
    start = weight.detach().clone()
    for _ in range(3):
        outputs = model(batch[0])
        (gradient,) = torch.autograd.grad((outputs[:, 0] * batch[1]).mean(), weight)
        weight.data = weight.data - 0.1 * gradient
    return {"table.weight": weight.detach() - start}


def audited(local: Local, sampling: str, groups: int = 3) -> Any:
    kind, adjacency = SAMPLINGS[sampling]
    mechanism = Mechanism(Rounds(1.0, 20, kind, "group"), adjacency=adjacency)
    plan = Plan(mechanism, EXAMPLES, 1e-4, groups=groups, local=local)
    sizes = audits.sizes_of_job(audits.Job(plan))
    return audit(plan, level=sizes, false_alarm=FALSE_ALARM, seed=0)


def test_which_updates_lie_along_the_mean() -> None:
    plan = Plan(Mechanism(Rounds(1.0, 1, ft.FullBatch(), "group")), 10, 1e-5, groups=2)
    assert proportional(plan)
    assert proportional(plan.with_(local=Local("momentum", 0.1, passes=3)))
    for local in (
        Local("adam"),
        Local("sgd", 0.1, step=4),
        Local("sgd", 0.1, (("weight_decay", 0.1),)),
        Local(function=shrinks),  # type: ignore[arg-type]
    ):
        assert not proportional(plan.with_(local=local))


# Each way of sampling once; a second rule shows it again.
COMBINED = list(zip([*INNER, "function"], [*SAMPLINGS] * 2, strict=False))
AGAIN = [pytest.param(*one, marks=pytest.mark.repeated) for one in COMBINED[len(SAMPLINGS) :]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampling"), [*COMBINED[: len(SAMPLINGS)], *AGAIN])
def test_no_sound_combination_is_refuted(name: str, sampling: str) -> None:
    local = Local(function=shrinks) if name == "function" else Local(name, 0.1, passes=2)  # type: ignore[arg-type]
    found = audited(local, sampling)
    assert not found.refuted, found.reason
