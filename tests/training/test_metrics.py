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
from forethought.gradients import clipped, clipped_sum
from forethought.gradients.batches import planned
from forethought.rounds.contributions import correct, cross_entropy, default_loss, squared_error
from forethought.rounds.records import Indices, TensorRecords
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
    measured,
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


class Noted(TensorRecords):
    """Records that note how many are taken at once."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        super().__init__(inputs, targets)
        self.rows: list[int] = []

    def take(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        self.rows.append(len(indices))
        return super().take(indices)


def test_a_model_that_a_pass_was_tried_on_answers_as_many_rows_as_a_processor_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clipped, "MOST_NUMBERS", 64 * 300)  # 64 rows of the convolution's numbers
    layers = nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 3, 1), nn.Tanh(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(300, 2))
    records = Noted(randn(1500, 100), torch.zeros(1500, dtype=torch.int64))
    before = evaluate(model, {}, cross_entropy, records)
    assert set(records.rows) == {500}
    inputs, targets = records.take(np.arange(40))
    clipped_sum(model, cross_entropy, inputs, targets, 1.0, blocks=planned(40, 0.0))
    records.rows.clear()
    after = evaluate(model, {}, cross_entropy, records)
    assert set(records.rows) <= {62, 63} and sum(records.rows) == 1500
    assert after == pytest.approx(before)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_area_near_one_lies_in_its_interval_as_often_as_said() -> None:
    draw, truth, inside = np.random.default_rng(2), np.repeat([0, 1], [12, 8]), 0
    for _ in range(300):
        score = draw.normal(size=20) + 3 * truth
        one = measured(np.stack([0 * score, score], 1), truth, (0, 1), ("AUC",)).figures["AUC"]
        assert one.low is not None and one.high is not None
        inside += one.low <= ndtr(3 / math.sqrt(2)) <= one.high
    # 95 % or more; below 91 % once in a thousand runs if it is 95 %.
    assert inside >= 0.91 * 300


@pytest.mark.thinned
@pytest.mark.parametrize(("values", "alike"), [(False, 1.0), (True, 1.0), (True, 0.5), (True, 0.0)])
def test_figures_of_persons_lie_in_their_intervals_as_often_as_said(
    values: bool, alike: float
) -> None:
    """Rows of a person share labels and mistakes with probability ``alike`` each."""
    draw, names = np.random.default_rng(3), ("mean absolute error",) if values else ("accuracy",)
    persons, inside, outside = np.repeat(np.arange(40), 20), 0, 0
    owner = draw.permutation(40)[persons]  # a person's rows need not stand beside each other

    def mixed(share: float) -> np.ndarray:
        own, rows = draw.random(40) < share, draw.random(len(owner)) < share
        return np.where(draw.random(len(owner)) < alike, own[owner], rows).astype(int)

    for _ in range(100):
        truth, wrong = mixed(0.5), mixed(0.3)
        outputs = np.where(truth ^ wrong, 1.0, -1.0)
        given, called = np.stack([-outputs, outputs], 1), ("a", "b")
        if values:
            given, called = truth + wrong / 0.3, None
        for told in (owner, None):
            one = measured(given, truth, called, names, persons=told).figures[names[0]]
            assert one.low is not None and one.high is not None
            held = one.low <= (1.0 if values else 0.7) <= one.high
            inside, outside = inside + (told is owner) * held, outside + (told is None) * held
    # 95 % or more; below 86 % once in seven thousand runs if it is 95 %.
    assert inside >= 86
    assert (outside < 75) == (alike > 0.4)


def test_rows_of_persons_leave_an_interval_inside_what_a_figure_can_be() -> None:
    """Without a mistake, and where errors have no upper end."""
    truth, persons = np.repeat([0, 1], 200), np.repeat(np.arange(20), 20)
    outputs = np.stack([-9.0 * (2 * truth - 1), 9.0 * (2 * truth - 1)], 1)
    names = ("accuracy", "log loss")
    plain = measured(outputs, truth, ("a", "b"), names).figures
    found = measured(outputs, truth, ("a", "b"), names, persons=persons).figures
    # As of 20 answers: of 400 the share may be 1 % below, of 20 a sixth.
    assert plain["accuracy"].low == pytest.approx(0.025 ** (1 / 400))
    assert found["accuracy"].low == pytest.approx(1 - 20 * (1 - 0.025 ** (1 / 400)))
    assert found["accuracy"].high == 1.0 and found["log loss"].low is not None
    assert 0 <= found["log loss"].low <= found["log loss"].value
    far = measured(np.full(400, 9.0), truth.astype(float), None, persons=persons).figures
    assert far["mean absolute error"].high is not None and far["mean absolute error"].high > 8.5
    alone = measured(outputs, truth, ("a", "b"), names, persons=np.arange(400)).figures
    assert alone == plain


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


@pytest.mark.parametrize("records", [1, 4])
def test_results_where_nothing_varies_among_persons(records: int) -> None:
    persons = np.arange(records) // 2
    found = measured(np.zeros((records, 2)), np.zeros(records, int), ["a", "b"], persons=persons)
    assert found.examples == records
