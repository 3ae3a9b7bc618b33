"""A rehearsal runs the very plan on a public proxy and says what its prediction is about."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.data import Dataset
from forethought.data.dataset import Split
from forethought.data.synthetic import clusters, like
from forethought.models import build
from forethought.training.run import Run
from forethought.utility import rehearsal
from forethought.utility.rehearsal import Rehearsal, SyntheticSource, rehearse


def small_plan(examples: int = 200, sigma: float = 1.0) -> ft.Plan:
    release = ft.Rounds(sigma, 15, ft.Poisson(0.3))
    return ft.Plan(
        ft.Mechanism(release),
        examples,
        1e-4,
        ft.Clip(1.0, "automatic"),
        optimizer=ft.Optimizer("sgd", 0.5),
    )


def model() -> nn.Module:
    return build("linear", inputs=(5,), classes=3)


def pool(size: int, tested: int | None = None) -> Dataset:
    split = clusters(size, 5, 3, seed=7)
    test = None if tested is None else clusters(tested, 5, 3, seed=7)
    return Dataset("proxy", split, test, 3)


def result(*accuracies: float, level: float = 0.9, tested: int = 10**9) -> Rehearsal:
    baselines = (0.4,) * len(accuracies)
    return Rehearsal(accuracies, baselines, level, "proxy", 200, tested, 1.0, True, small_plan())


def test_the_very_plan_is_run_on_as_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[ft.Plan, int, int]] = []
    real_train = rehearsal.train

    def spy(module: nn.Module, data: object, plan: ft.Plan, **options: object) -> Run:
        inputs, _ = data  # type: ignore[misc]
        seen.append((plan, len(inputs), len(options["test"][0])))  # type: ignore[index]
        return real_train(module, data, plan, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsal, "train", spy)
    plan = small_plan()
    found = rehearse(plan, model, pool(400, 60), repeats=3)
    assert seen == [(plan, 200, 60)] * 3
    assert (found.train_examples, found.test_examples, found.distinct) == (200, 60, 1.0)
    assert found.plan == plan and found.linear and found.network is None


def test_training_and_test_records_never_overlap() -> None:
    data = pool(300)
    draw = rehearsal.draws(data, 230, 70, 0)
    for repeat in range(5):
        train_part, test_part, distinct, _ = draw(repeat)
        rows = {row.tobytes() for row in train_part.inputs}
        assert len(rows) == 230 and distinct == 1.0
        assert not rows & {row.tobytes() for row in test_part.inputs}


def test_repeats_share_no_test_record_while_the_pool_lasts() -> None:
    def rows(draw: rehearsal.DrawRecords, repeat: int) -> tuple[set[bytes], set[bytes]]:
        train_part, test_part, _, _ = draw(repeat)
        return {row.tobytes() for row in train_part.inputs}, {
            row.tobytes() for row in test_part.inputs
        }

    # 300 records: four test parts of 70, then they are dealt anew; training parts share.
    draw = rehearsal.draws(pool(300), 200, 70, 0)
    tested = [rows(draw, repeat)[1] for repeat in range(5)]
    assert all(not a & b for k, a in enumerate(tested[:4]) for b in tested[:k])
    assert len(tested[4]) == 70 and tested[4] not in tested[:4]
    # Three repeats of 70 + 20 fit into a pool of 300: nothing is shared at all.
    draw = rehearsal.draws(pool(300), 70, 20, 0)
    parts = [train | test for train, test in (rows(draw, repeat) for repeat in range(3))]
    assert all(len(part) == 90 for part in parts)
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_repeats_differ_and_a_rehearsal_repeats_itself() -> None:
    data, plan = pool(400, 100), small_plan(sigma=20.0)
    found = rehearse(plan, model, data, repeats=4, seed=3)
    assert len(set(found.accuracies)) > 1
    assert rehearse(plan, model, data, repeats=4, seed=3) == found
    assert rehearse(plan, model, data, repeats=4, seed=4) != found


def test_a_small_pool_is_drawn_from_more_than_once_and_says_so() -> None:
    found = rehearse(small_plan(), model, pool(120, 40), repeats=2)
    assert found.train_examples == 200
    assert 0.3 < found.distinct < 0.6
    assert "smaller than the plan's data" in found.text()


def test_generated_data_is_another_task_each_time() -> None:
    seeds: list[int] = []

    def make(seed: int) -> Dataset:
        seeds.append(seed)
        return like((5,), 3, 200, seed=seed)

    found = rehearse(
        small_plan(), lambda: build("mlp", inputs=(5,), classes=3, hidden=4), make, repeats=3
    )
    assert len(set(seeds)) == 3 and not found.linear and found.network == "perceptron"
    assert not found.one_pool
    assert found.source == "synthetic"
    assert (
        found.relation is None
        and rehearse(small_plan(), model, SyntheticSource((5,), 3, 200), repeats=2).relation
        == "synthetic"
    )
    assert SyntheticSource((5,), 3, 200)(1).train.inputs.shape == (200, 5)


def test_the_interval_is_students_for_one_more_run() -> None:
    low, high = result(0.6, 0.7, 0.8).run_interval
    half = 2.919986 * 0.1 * math.sqrt(1 + 1 / 3)  # t of 2 degrees of freedom at 95 %
    assert (low, high) == (pytest.approx(0.7 - half), pytest.approx(1.0))
    # Repeats that agree by chance: a test part of 100 records alone leaves a deviation of 0.046.
    half = 6.313752 * math.sqrt(0.7 * 0.3 / 100) * math.sqrt(1.5)
    assert result(0.7, 0.7, tested=100).run_interval == (pytest.approx(0.7 - half), 1.0)
    wide, narrow = result(0.5, 0.51, 0.52, level=0.99), result(0.5, 0.51, 0.52, level=0.5)
    assert wide.run_interval[0] < narrow.run_interval[0]


def test_the_interval_holds_as_often_as_it_says() -> None:
    """2,000 draws at level 0.9: 0.87 is 4.5 deviations away, false alarm below 10⁻⁵."""
    random = np.random.default_rng(0)
    held = 0
    for _ in range(2_000):
        *seen, next_one = random.normal(0.5, 0.01, size=6)
        low, high = result(*seen).run_interval
        held += low <= next_one <= high
    assert 0.87 <= held / 2_000 <= 0.93


@pytest.mark.slow
def test_the_prediction_holds_for_a_run_on_data_of_the_same_kind() -> None:
    """The achieved accuracy of eight runs, against an interval meant for 99 % of them."""
    whole, plan = clusters(1_100, 5, 3, seed=1), small_plan()
    private, tests = slice(0, 200), slice(200, 300)
    proxy = Dataset("public", Split(whole.inputs[300:], whole.targets[300:]), None, 3)
    found = rehearse(plan, model, proxy, repeats=10, test_examples=100, level=0.99)
    achieved = [
        ft.train(
            model(),
            (whole.inputs[private], whole.targets[private]),
            plan,
            test=(whole.inputs[tests], whole.targets[tests]),
            seed=seed,
            noise_seed=seed,
        ).accuracy
        for seed in range(8)
    ]
    low, high = found.run_interval
    assert sum(low <= (accuracy or 0) <= high for accuracy in achieved) >= 7


def test_it_says_what_the_interval_covers_and_what_not(tmp_path: Path) -> None:
    found = result(0.6, 0.7, 0.8)
    assert rehearsal.COVERS in found.text()
    assert rehearsal.KNOWS_NOTHING in found.text() and found.interval == (0.0, 1.0)
    assert Rehearsal.from_json(found.to_json()) == found
    found.save(tmp_path / "rehearsal.json")
    values = json.loads((tmp_path / "rehearsal.json").read_text(encoding="utf-8"))
    assert values["predicted"] == pytest.approx(0.7)
    assert values["interval"] == [0.0, 1.0] and values["relation"] is None
    assert values["run_interval"] == list(found.run_interval)
    with pytest.raises(ValueError, match="schema"):
        Rehearsal.from_dict({**values, "schema": "other"})
    with pytest.raises(ValueError, match="unknown"):
        Rehearsal.from_dict({**values, "more": 1})


def test_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    rehearse(small_plan(), lambda: nn.Linear(5, 3), pool(300, 50), repeats=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    rehearse(
        small_plan(),
        model,
        pool(300, 50),
        repeats=2,
        progress=lambda done, repeats: told.append((done, repeats)),
    )
    assert told == [(1, 2), (2, 2)]


def test_what_does_not_fit_is_refused_in_the_users_words() -> None:
    plan, data = small_plan(), pool(300, 50)
    with pytest.raises(TypeError, match="Plan"):
        rehearse("plan", model, data)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data must be"):
        rehearse(plan, model, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="repeats"):
        rehearse(plan, model, data, repeats=1)
    with pytest.raises(ValueError, match="level"):
        rehearse(plan, model, data, level=1.0)
    with pytest.raises(ValueError, match="relation must be"):
        rehearse(plan, model, data, relation="alike")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave none to"):
        rehearse(plan, model, data, test_examples=350)
    with pytest.raises(ValueError, match="is for 200"):
        rehearse(plan, model, lambda seed: like((5,), 3, 100, seed=seed))
    with pytest.raises(ValueError, match="leave test_examples out"):
        rehearse(plan, model, lambda seed: like((5,), 3, 200, seed=seed), test_examples=5)
    with pytest.raises(ValueError, match="does not take"):
        rehearse(plan, lambda: nn.Linear(4, 3), data)
    with pytest.raises(TypeError, match="data must be"):
        rehearse(plan, model, lambda seed: (np.ones((200, 5)), np.ones(200)))  # type: ignore
    with pytest.raises(TypeError, match="not a torch"):
        rehearse(plan, lambda: None, data)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="nothing to train"):
        rehearse(plan, nn.Flatten, data)
    with pytest.raises(TypeError, match="progress must be"):
        rehearse(plan, model, data, progress=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be"):
        rehearse(plan, model, data, seed=-1)
    with pytest.raises(ValueError, match="number the classes"):
        rehearse(plan, lambda: nn.Linear(5, 2), data)
    real = Split(data.train.inputs, data.train.inputs[:, 0])
    with pytest.raises(ValueError, match="have one shape"):
        rehearse(plan, model, Dataset("numbers", real, None, None))


def test_a_regression_is_rehearsed_by_r_squared(tmp_path: Path) -> None:
    plan = small_plan(sigma=0.3)
    source = SyntheticSource((5,), None, plan.examples)
    found = rehearse(plan, lambda: nn.Linear(5, 1), source, repeats=3)
    assert found.measure == "R²" and found.baseline == 0 and 0.1 < found.predicted < 1
    # By hand, for one repeat: the same records, first weights, batches and noise.
    seed = rehearsal.mixed(0, 0)
    data = source(seed)
    torch.manual_seed(seed)
    run = ft.train(
        nn.Linear(5, 1),
        (data.train.inputs, data.train.targets),
        plan,
        seed=seed,
        noise_seed=seed,
        log_every=plan.rounds,
    )
    assert data.test is not None
    answers = run.model(torch.from_numpy(data.test.inputs)).detach().numpy()[:, 0]
    left = ((answers - data.test.targets) ** 2).sum()
    whole = ((data.test.targets - data.test.targets.mean()) ** 2).sum()
    assert found.accuracies[0] == pytest.approx(1 - left / whole, abs=1e-5)
    # Below 0 counts as such, and nothing is promised of the private data.
    worse = Rehearsal(
        (-1.0, -2.0, -1.5), (0.0,) * 3, 0.9, "s", 200, 40, 1.0, False, plan, measure="R²"
    )
    assert worse.run_interval[0] < -2 and "R² -1.500" in worse.text()
    assert "Nothing is known" in found.text() and "the mean gives 0.000" in found.text()
    found.save(tmp_path / "rehearsal.json")
    assert Rehearsal.load(tmp_path / "rehearsal.json") == found


def test_a_model_that_mixes_records_and_one_that_diverges_are_rehearsed_or_refused() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    budget = ft.Budget(8, 1e-3)
    plan = ft.plan(examples=200, budget=budget, batch=64, rounds=2, clipping="group")
    assert 0 <= rehearse(plan, normalised, pool(300, 50), repeats=2).predicted <= 1
    inputs = pool(300).train.inputs
    values = Dataset("values", Split(inputs, inputs[:, 0]), None, None)
    plan = small_plan().with_(optimizer=ft.Optimizer("sgd", 1e6))
    with pytest.raises(ValueError, match="not finite"):
        rehearse(plan, lambda: nn.Sequential(*map(nn.Linear, (5,) * 12, (5,) * 11 + (1,))), values)


def test_what_has_no_r_squared_is_refused() -> None:
    plan, inputs = small_plan(), pool(300).train.inputs

    def of(targets: np.ndarray, classes: int | None, outputs: int) -> None:
        data = Dataset("p", Split(inputs, targets), None, classes)
        rehearse(plan, lambda: nn.Linear(5, outputs), data, repeats=2)

    for kind in (np.float32, np.int64):
        with pytest.raises(ValueError, match="one label a"):
            of((inputs[:, :2] > 0).astype(kind), 2, 2)
    for constant in (np.full(300, 2.0, np.float32), np.full(300, True)):
        with pytest.raises(ValueError, match="no R²"):
            of(constant, None, 1)


def test_generated_data_need_only_the_parts_of_a_data_set() -> None:
    made = pool(200, 50)
    parts = SimpleNamespace(train=made.train, test=made.test, name="parts")
    found, wanted = (
        rehearse(small_plan(), model, lambda seed, one=one: one, repeats=2) for one in (parts, made)
    )
    assert found.accuracies == wanted.accuracies
    with pytest.raises(TypeError, match="data must be"):
        rehearse(small_plan(), model, lambda seed: SimpleNamespace(train=made.train), repeats=2)


def test_a_module_is_copied_for_every_repeat() -> None:
    begun = model()
    before = {name: one.clone() for name, one in begun.state_dict().items()}
    found = rehearse(small_plan(), begun, pool(300, 50), repeats=2)
    assert found.linear
    assert all(torch.equal(one, before[name]) for name, one in begun.state_dict().items())


def test_a_regression_is_measured_without_dropout() -> None:
    def dropping() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 1))

    seen = []

    def built() -> nn.Module:
        made = dropping()
        made.register_forward_hook(lambda one, *_: seen.append(one.training))
        return made

    plan = small_plan(sigma=0.3)
    rehearse(plan, built, SyntheticSource((5,), None, plan.examples), repeats=2)
    assert not seen[-1]


def test_synthetic_values_are_hard_by_as_much_as_they_say() -> None:
    drawn = [like((6,), None, 20_000, noise=noise, seed=1).train for noise in (0.0, 1.0)]
    assert np.array_equal(drawn[0].inputs, drawn[1].inputs)
    inside = np.maximum(abs(drawn[0].targets), abs(drawn[1].targets)) < 1
    left = (drawn[1].targets - drawn[0].targets)[inside].var() / drawn[1].targets[inside].var()
    assert 0.15 < left < 0.25
    with pytest.raises(ValueError, match="of classes"):
        like((1, 8, 8), None, 100)
