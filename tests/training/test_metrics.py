from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import nn

from drawn import randn
from forethought.rounds.contributions import correct, cross_entropy, default_loss, squared_error
from forethought.rounds.records import TensorRecords
from forethought.training.metrics import (
    PRIVATE,
    PUBLIC,
    Decisions,
    Event,
    Figure,
    Metrics,
    Results,
    as_csv,
    evaluate,
    from_csv,
    from_values,
    measured,
    to_values,
)
from forethought.training.run import event

HISTORY = [
    Metrics(3, 0.1 + 0.2, 0.1, 1.0, math.inf, 0.5, None, None, 0.25, 2),
    Metrics(6, 0.6, 1e-300, 1.0, 1.5, 0.25, 1.0, 0.125, 0.0, 0),
]


def test_files_read_back_exactly_and_keep_private_numbers_apart() -> None:
    public, private = as_csv(HISTORY, PUBLIC), as_csv(HISTORY, ("round", *PRIVATE))
    assert from_csv(public, private) == HISTORY
    assert not set(public.splitlines()[0].split(",")) & set(PRIVATE)
    assert all(getattr(row, name) is None for row in from_csv(public, None) for name in PRIVATE)
    assert from_values(to_values(HISTORY)) == HISTORY


def test_an_event_carries_the_last_row() -> None:
    assert event(1, 9, []) == Event(1, 9)
    told = event(7, 9, HISTORY[:2])
    assert (told.round, told.loss, told.accuracy, told.epsilon) == (7, 0.125, 1.0, 1.5)


def test_evaluation_uses_other_weights_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(0.9))
    inputs = torch.tensor([[3.0, 0.0], [0.0, 3.0]] * 700)
    targets = torch.tensor([0, 1] * 700)
    records = TensorRecords(inputs, targets)
    loss, accuracy = evaluate(model, {"0.weight": torch.eye(2)}, cross_entropy, records)
    assert accuracy == 1.0 and loss == pytest.approx(math.log1p(math.exp(-3)), rel=1e-5)
    assert model.training and model[1].training


def test_losses_give_one_value_an_example() -> None:
    outputs, targets = randn(4, 1), randn(4)
    assert squared_error(outputs, targets).shape == (4,)
    assert squared_error(torch.zeros(4, 2, 3), torch.ones(4, 2, 3)).tolist() == [6.0] * 4
    assert default_loss(targets) is squared_error
    assert default_loss(torch.tensor([1])) is cross_entropy
    with pytest.raises(ValueError, match="one shape"):
        squared_error(torch.zeros(4, 2), targets)
    with pytest.raises(TypeError, match="give loss="):
        default_loss({"a": targets})


def test_accuracy_is_for_labels_only() -> None:
    outputs = torch.eye(3)
    assert correct(outputs, torch.tensor([0, 1, 1])) == 2
    assert correct(outputs, torch.zeros(3, 3)) is None
    assert correct({"logits": outputs}, torch.tensor([0, 1, 1])) is None


def test_intervals_of_a_regression_are_those_of_resampled_records() -> None:
    draw = np.random.default_rng(0)
    truth = draw.gamma(2.0, 3.0, 3000)
    guess = truth + draw.standard_t(6, 3000) * (0.5 + 0.2 * truth)
    found = measured(guess, truth, None, ("mean absolute error", "root mean squared error")).figures
    again = []
    for _ in range(400):
        at = draw.integers(0, 3000, 3000)
        gaps = np.square(guess[at] - truth[at])
        again.append((1 - gaps.mean() / truth[at].var(), math.sqrt(gaps.mean())))
    # The deviation of 400 resamplings is off by 3.5 %; five of these.
    for name, values in zip(
        ("R²", "root mean squared error"), zip(*again, strict=True), strict=True
    ):
        figure = found[name]
        assert figure.low is not None and figure.high is not None
        assert (figure.high - figure.low) / 2 / 1.96 == pytest.approx(np.std(values), rel=0.18)


def test_a_sample_without_a_mistake_is_no_certainty() -> None:
    truth = np.repeat([0, 1], [12, 8])
    outputs = np.outer(np.linspace(2, 3, 20) * (2 * truth - 1), [-1.0, 1.0])
    names = ("AUC", "F1", "balanced accuracy", "precision", "average precision")
    rule = Decisions(costs=(1.0, 20.0))
    found = measured(outputs, truth, (0, 1), names, rule).figures
    for name in names:
        assert found[name].value == found[name].high == 1
        assert found[name].low is not None and 0.5 < found[name].low < 0.85
    # Clopper and Pearson's upper end for none of 20, for both classes.
    most = 1 - 0.025 ** (1 / 20)
    assert found["mean cost"] == Figure(0.0, 0.0, pytest.approx(most * math.hypot(1, 20)))
    labels = np.stack([truth, truth], 1)
    several = measured(4.0 * labels - 2, labels, ("a", "b"), (*names, "accuracy")).figures
    assert all(one.low is not None and one.low < one.high == 1 for one in several.values())


def test_an_area_near_one_lies_in_its_interval_as_often_as_said() -> None:
    draw, truth, inside = np.random.default_rng(2), np.repeat([0, 1], [12, 8]), 0
    for _ in range(300):
        score = draw.normal(size=20) + 3 * truth
        one = measured(np.stack([0 * score, score], 1), truth, (0, 1), ("AUC",)).figures["AUC"]
        assert one.low is not None and one.high is not None
        inside += one.low <= ndtr(3 / math.sqrt(2)) <= one.high
    # 95 % or more; below 91 % once in a thousand runs if it is 95 %.
    assert inside >= 0.91 * 300


def test_a_median_error_lies_in_its_interval_as_often_as_said() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(600):
        errors = draw.exponential(size=41)
        figures = measured(errors, np.zeros(41), None, ("median absolute error",)).figures
        one = figures["median absolute error"]
        assert one.low is not None and one.high is not None
        inside += one.low <= math.log(2) <= one.high
    # 95 % or more; below 92.3 % once in a thousand runs if it is 95 %.
    assert inside >= 0.923 * 600


def test_errors_are_told_in_the_units_of_what_is_predicted(tmp_path: Path) -> None:
    truth = np.arange(50.0)
    result = measured(truth + np.tile([1.0, -1.0], 25), truth, None, target="stay")
    assert "in units of stay: mean absolute error 1 (1 to 1)" in " ".join(result.sentences())
    path = tmp_path / "results.json"
    path.write_text(result.to_json())
    assert Results.load(path) == result
    assert "target" not in json.loads(measured(truth, truth + 1, None).to_json())
