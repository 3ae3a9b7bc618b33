"""The algorithm inside a group, as a value: what it takes, refuses and how it is stored."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from forethought.values.mechanism import (
    INNER,
    FullBatch,
    Local,
    LocalUpdates,
    Mechanism,
    Rounds,
    imported,
)
from forethought.values.plan import Plan


def own(model: Any, batch: Any) -> Any:
    """A module's own function."""


@pytest.mark.parametrize("name", INNER)
def test_names_are_torch_optims(name: str) -> None:
    kind, preset, allowed = INNER[name].home, INNER[name].preset, INNER[name].options
    torch_options = getattr(torch.optim, kind).__init__.__code__.co_varnames
    assert {*preset, *allowed} <= set(torch_options)
    assert Local(name).learning_rate == INNER[name].rate


def test_a_plan_keeps_its_local_algorithm() -> None:
    local = Local("adam", 0.01, {"betas": [0.5, 0.9]}, passes=2, step=8)  # type: ignore[arg-type]
    mechanism = Mechanism(Rounds(1.0, 3, FullBatch(), "group"))
    plan = Plan(mechanism, 40, 1e-5, groups=4, local=local)
    assert plan.contribution == LocalUpdates(4, local) and plan.groups == 4
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.local == local
    assert plan.with_(groups=2).contribution == LocalUpdates(2, local)
    assert plan.with_(local=None).local is None
    with pytest.raises(ValueError, match="clipping='group'"):
        Plan(Mechanism(Rounds(1.0, 3, FullBatch())), 40, 1e-5, local=local)
    assert plan.round(0).divisor == 4


def test_a_plan_with_a_function_inside_groups_is_read_back() -> None:
    mechanism = Mechanism(Rounds(1.0, 3, FullBatch(), "group"))
    plan = Plan(mechanism, 40, 1e-5, groups=4, local=Local(function="mine:grown"))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": "lbfgs"}, "closure"),
        ({"optimizer": "adm"}, "one of sgd, momentum"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1.0)}, "survive the round"),
        ({"options": {"betas": (0.5, 0.9)}}, "it takes momentum"),
        ({"optimizer": "adam", "options": {"betas": 0.9}}, "two numbers"),
        ({"options": {"momentum": 2.0}}, "at most 1"),
        ({"options": {"nesterov": 1}}, "true or false"),
        ({"passes": 0}, "passes of local"),
        ({"step": 0}, "step of local"),
        ({"learning_rate": 0.0}, "learning_rate of local"),
        ({"function": own, "passes": 2}, "whole algorithm"),
        ({"function": lambda model, batch: {}}, "importable by name"),
        ({"function": functools.partial(own)}, "keep a state"),
        ({"function": "nowhere"}, "module:function"),
    ],
)
def test_refusals(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        Local(**arguments)
    assert "\n" not in str(caught.value)


def test_a_function_is_found_by_its_name() -> None:
    assert imported(Local(function=own).function or "") is own  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no function"):
        imported(f"{__name__}:nothing")


def test_one_plain_step_of_size_one_is_a_gradient() -> None:
    assert Local(learning_rate=1.0).is_gradient
    for other in (
        Local(),
        Local("adam", 1.0),
        Local(learning_rate=1.0, passes=2),
        Local(learning_rate=1.0, step=4),
        Local(learning_rate=1.0, options=(("weight_decay", 0.1),)),
        Local(function=own),  # type: ignore[arg-type]
    ):
        assert not other.is_gradient
