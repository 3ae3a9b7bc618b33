"""Weights of classes: in the loss, muted by automatic clipping, never in a contribution's bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import forethought as ft
from forethought.data.dataset import Dataset, Split
from forethought.gradients import clipped_sum
from forethought.jobs.job import Job, JobError, JobRequest
from forethought.jobs.train import prepare, run
from forethought.training.metrics import Results
from forethought.training.records import (
    MutedWeightsWarning,
    WeightedCrossEntropy,
    warn_if_muted,
    weighted,
)

JOB = """
[data]
source = "npz:{path}"
classes = [0, 1]
task = "classification"
[model]
name = "linear"
[budget]
epsilon = 50.0
[training]
rounds = 40
clip_norm = 5.0
class_weights = [1.0, 8.0]
[run]
metrics = ["recall"]
"""


def rare(count: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    targets = (draw.random(count) < 0.12).astype(np.int64)
    inputs = draw.normal(size=(count, 4)) / 3
    inputs[:, 0] += targets * 0.4
    return inputs.astype(np.float32), targets


def test_a_contribution_is_the_weighted_gradient_clipped():
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    inputs, targets = map(torch.from_numpy, rare(20))
    found, norms = clipped_sum(net, WeightedCrossEntropy((1.0, 8.0)), inputs, targets, 0.3)
    expected = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for x, y, norm in zip(inputs, targets, norms, strict=True):
        loss = F.cross_entropy(net(x[None]), y[None]) * (8.0 if y else 1.0)
        own = torch.autograd.grad(loss, list(net.parameters()))
        size = float(torch.sqrt(sum(g.square().sum() for g in own)))
        assert float(norm) == pytest.approx(size, rel=1e-4)
        for total, gradient in zip(expected.values(), own, strict=True):
            total += gradient * min(1.0, 0.3 / size)
    for name, total in expected.items():
        assert torch.allclose(found[name].to(total), total, rtol=0.02, atol=1e-4)


@pytest.mark.slow
def test_a_rare_class_is_found_more_often(tmp_path):
    inputs, targets = rare()
    np.savez(tmp_path / "t.npz", x=inputs, y=targets)
    recall = []
    for weights in ("[1.0, 1.0]", "[1.0, 8.0]"):
        text = JOB.format(path=tmp_path / "t.npz").replace("[1.0, 8.0]", weights)
        text = text.replace('["recall"]', '["balanced accuracy", "log loss"]')
        folder = tmp_path / weights
        prepared = prepare(JobRequest("t", text, Job.parse(text)))
        assert any("weights of the classes" in str(c) for c in prepared.plan.not_covered)
        run(prepared, folder)
        results = Results.load(folder / "results.json")
        assert list(results.figures) == ["accuracy", "balanced accuracy", "log loss"]
        assert set(results.baseline) == set(results.figures)
        recall.append(results.recall[1])
    assert recall[1] > recall[0] + 0.3


def test_a_figure_that_there_is_not_is_refused_before_training(tmp_path):
    inputs, targets = rare(200)
    np.savez(tmp_path / "t.npz", x=inputs, y=targets)
    text = JOB.format(path=tmp_path / "t.npz")
    with pytest.raises(JobError, match="classification there are"):
        prepare(JobRequest("t", text, Job.parse(text)))


def test_automatic_clipping_is_warned_of():
    known = {"examples": 1000, "budget": ft.Budget(1.0, 1e-5), "rounds": 10}
    with pytest.warns(MutedWeightsWarning, match="all but muted"):
        warn_if_muted((1.0, 5.0), ft.plan(**known))
    warn_if_muted((1.0, 5.0), ft.plan(**known, clip_norm=1.0))
    warn_if_muted(None, ft.plan(**known))


@pytest.mark.parametrize(
    ("classes", "message"), [(3, "2 numbers, .* 3 classes"), (None, "drop it")]
)
def test_weights_fit_the_classes(classes, message):
    targets = np.zeros(4, np.float32 if classes is None else np.int64)
    data = Dataset("t", Split(np.zeros((4, 2), np.float32), targets), None, classes)
    with pytest.raises(ValueError, match=message):
        weighted((1.0, 2.0), data)
