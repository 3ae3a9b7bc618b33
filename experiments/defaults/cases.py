"""One data set at one ε: how it is planned, how it is split, how a run of it is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from linear import Column, accuracies, train_columns
from sets import Task
from torch import Tensor

import forethought as ft
from forethought.planning.defaults import default_delta
from forethought.rounds.randomness import Seeds

# Sets with fewer records are split anew for every seed: one test part of 24 says little.
SPLIT_ANEW = 1_000
# Of all columns, as SGD has it where nothing is said.
MOMENTUM = 0.9


def planned(task: Task, epsilon: float, **given: Any) -> ft.Plan:
    """The plan of a linear model with an intercept, from sizes and declarations."""
    examples = len(task.targets)
    known = {"feature_norm": task.norm} if task.norm else {}
    return ft.plan(
        examples=examples,
        budget=ft.Budget(epsilon, default_delta(examples)),
        parameters=task.parameters,
        features=task.inputs.shape[1],
        image_features=task.name in ("mnist", "fashion-mnist"),  # by scattering
        **known,
        **given,
    )


def split(task: Task, seed: int) -> Task:
    """The set as it is, or where it is small another split of the same sizes."""
    inputs = torch.cat([task.inputs, task.test_inputs])
    if len(inputs) >= SPLIT_ANEW:
        return task
    targets = torch.cat([task.targets, task.test_targets])
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    held, kept = order[: len(task.test_targets)], order[len(task.test_targets) :]
    return replace(
        task,
        inputs=inputs[kept],
        targets=targets[kept],
        test_inputs=inputs[held],
        test_targets=targets[held],
    )


def own_column(plan: ft.Plan) -> Column:
    """The plan's own step size and clipping."""
    flat = plan.clip.rule == "flat"
    return Column(plan.optimizer.learning_rate, plan.clip.norm if flat else None)


def measure(task: Task, plan: ft.Plan, columns: list[Column], seed: int) -> Tensor:
    """Accuracy of every column in per cent, of one run with the plan's batches and noise.

    What the plan pays for to centre features is released by `forethought.prepare`.
    """
    part = split(task, seed)
    if plan.preparation is not None:
        released = ft.prepare(plan, (part.inputs, part.targets), seeds=Seeds(None, seed))
        part = replace(
            part,
            inputs=released.apply(part.inputs),
            test_inputs=released.apply(part.test_inputs),
        )
    weights = train_columns(
        part.inputs,
        part.targets,
        part.classes,
        rate=plan.batch / plan.examples,
        rounds=plan.rounds,
        noise_multiplier=plan.noise_multiplier,
        columns=columns,
        momentum=MOMENTUM,
        seed=seed,
    )
    return accuracies(weights, part.test_inputs, part.test_targets)
