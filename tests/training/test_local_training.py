"""Training with an algorithm inside every group: plan, run, statement, batch normalisation."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import forethought as ft
from drawn import randn, reseed, stream
from forethought.jobs.job import Job, from_file
from forethought.jobs.train import prepare
from forethought.jobs.train import run as train_job
from forethought.planning.defaults import INNER_STEP, noise_to_signal
from forethought.planning.solve import LOST, WON, PlanError
from forethought.report.terminal import plan_rows
from forethought.training.metrics import public_statistics, settle_statistics


def data(examples: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    source = stream(examples)
    inputs = randn(examples, 6, generator=source) + 3
    return inputs, (inputs[:, 0] + inputs[:, 1] > 6).long()


def normalised() -> nn.Module:
    reseed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def plan(**options: Any) -> ft.Plan:
    return ft.plan(
        examples=400,
        budget=ft.Budget(100.0, 1e-4),
        batch=200,
        rounds=30,
        clipping="group",
        learning_rate=0.2,
        options={},
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("local", ["adam", ft.Local("momentum", 0.05, step=8)])
def test_a_network_with_batch_normalisation_learns(local: Any, tmp_path: Any) -> None:
    model, (inputs, targets) = normalised(), data()
    before = {name: value.clone() for name, value in model.named_buffers()}
    public = randn(100, 6) + 3
    made = plan(local=local)
    assert made.groups == 6 and "32 records" in made.explain()
    run = ft.train(
        model,
        (inputs, targets),
        made,
        test=data(150),
        out=tmp_path / "a",
        public_inputs=public,
        noise_seed=2,
        seed=1,
    )
    assert run.accuracy > 0.75
    assert ft.epsilon(made.mechanism, 1e-4).upper <= 100
    assert run.plan.local == made.local and ft.Plan.load(tmp_path / "a" / "plan.json") == made
    # What evaluation uses are the statistics of the public batch, layer by layer.
    assert int(model[1].num_batches_tracked) == 0
    torch.testing.assert_close(model[1].running_mean, model[0](public).mean(0))
    torch.testing.assert_close(model[1].running_var, model[0](public).var(0))
    model.eval()
    assert float((model(data(150)[0]).argmax(1) == data(150)[1]).double().mean()) == pytest.approx(
        run.accuracy
    )
    again = normalised()
    other = ft.train(again, (inputs, targets), made, test=data(150), seed=1, noise_seed=2)
    for name, value in again.named_buffers():
        assert torch.equal(before[name], value)  # nothing of the private records
    assert other.accuracy > 0.7  # by the statistics of the records that are evaluated


def test_statistics_of_a_public_batch_are_those_of_training_mode() -> None:
    model, public = normalised(), randn(50, 6)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    before = copy.deepcopy(model.state_dict())
    found = public_statistics(model, weights, public)
    assert found.keys() == {"1.running_mean", "1.running_var"}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    settle_statistics(model, public)
    wanted = model(public)
    model.eval()
    unbiased = 50 / 49  # the variance that layers keep
    hidden = model[0](public)
    scaled = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) * unbiased + 1e-5).sqrt()
    torch.testing.assert_close(model(public), model[3](F.relu(scaled)))
    assert not torch.equal(wanted, model(public))
    assert public_statistics(nn.Linear(6, 2), {}, public) == {}


@pytest.mark.slow
def test_a_run_is_continued_bit_for_bit(tmp_path: Any) -> None:
    made = plan(local=ft.Local("adam", 0.01, step=4, passes=2))
    whole = normalised()
    ft.train(whole, data(), made, seed=1, noise_seed=2)
    begun, stopped = normalised(), []

    def stop(event: Any) -> None:
        stopped.append(event.round)
        if len(stopped) == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ft.train(
            begun,
            data(),
            made,
            out=tmp_path,
            seed=1,
            noise_seed=2,
            checkpoint_every=4,
            progress=stop,
        )
    again = normalised()
    ft.train(again, data(), made, out=tmp_path, resume=True, seed=1, noise_seed=2)
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def returns_nothing(model: Any, batch: Any) -> Any:
    return None


def test_an_algorithm_that_does_not_run_is_refused_before_anything_is_released() -> None:
    drawn: list[int] = []
    with pytest.raises(ValueError, match="mapping from parameter"):
        ft.train(
            normalised(),
            data(),
            plan(local=ft.Local(function=returns_nothing)),
            progress=lambda event: drawn.append(1),
        )
    with pytest.raises(ValueError, match="Nesterov"):
        ft.train(normalised(), data(), plan(local=ft.Local("sgd", options=(("nesterov", True),))))
    assert drawn == []


def by_hand(model: Any, batch: Any) -> Any:
    """One step of gradient descent."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return {name: -0.1 * g for name, g in zip(names, gradients, strict=True)}


@pytest.mark.slow
def test_an_algorithm_of_ones_own_is_named_in_the_statement() -> None:
    made = plan(local=ft.Local(function=by_hand))
    run = ft.train(normalised(), data(), made)
    assert any("by_hand" in str(caveat) for caveat in run.statement.assumptions)
    other = ft.train(normalised(), data(), plan(local="adam"))
    assert not any(caveat.code == "own-algorithm" for caveat in other.statement.caveats)


def test_batch_normalisation_still_needs_groups() -> None:
    with pytest.raises(ValueError, match="GroupNorm"):
        ft.train(normalised(), data(), ft.plan(examples=400, budget=ft.Budget(1.0, 1e-5)))


JOB = """
[data]
source = "none"

[budget]
epsilon = 3.0
delta = 1e-5

[training]
sampling = "{sampling}"
clipping = "group"
groups = 4
batch = 128
local = {local}
"""


SAMPLINGS = (
    *("poisson", "without-replacement", "shuffled", "full-batch"),
    *("random-allocation", "cyclic-poisson"),
)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("local", "wanted"),
    [
        ('"adamw"', ft.Local("adamw", step=INNER_STEP)),
        (
            '{ optimizer = "adam", step = 8, passes = 2, options = { betas = [0.8, 0.9] } }',
            ft.Local("adam", None, (("betas", (0.8, 0.9)),), 2, 8),
        ),
    ],
)
def test_every_cell_comes_from_a_job(sampling: str, local: str, wanted: ft.Local) -> None:
    text = JOB.format(sampling=sampling, local=local)
    text = text.replace("batch = 128\n", "") if sampling == "full-batch" else text
    text += "parts = 2\n" if sampling == "cyclic-poisson" else ""
    made = Job.parse(text).make_plan(500)
    assert made.local == wanted and made.groups == 4
    assert made.sampling.kind == sampling
    assert ft.epsilon(made.mechanism, 1e-5).upper <= 3.0


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_trains_from_a_job_and_is_accounted(sampling: str, tmp_path: Any) -> None:
    text = JOB.format(sampling=sampling, local='"sgd"').replace('"none"', '"digits"')
    text = text.replace("batch = 128\n", "") if sampling == "full-batch" else text
    text += "rounds = 5\n" + ("parts = 4\n" if sampling == "cyclic-poisson" else "")
    job = tmp_path / "job.toml"
    job.write_text(text)
    ready = prepare(from_file(job))
    run = train_job(ready, tmp_path / "run")
    assert run.statement.mechanism == ready.plan.mechanism
    assert {part.groups for part in run.statement.mechanism} == {4}
    assert run.statement.epsilon.upper <= 3.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"local": "adam"}, "clipping='group'"),
        ({"local": {"optimiser": "adam"}, "clipping": "group"}, "it takes optimizer"),
        ({"local": 3, "clipping": "group"}, "name of an inner optimizer"),
        ({"groups": 600, "clipping": "group"}, "600 groups are more than the 500"),
        ({"groups": 65, "batch": 64, "clipping": "group"}, "65 groups are more than the 64"),
        ({"groups": 480, "rounds": 500, "clipping": "group"}, "records of a batch as planned"),
    ],
)
def test_requests_that_contradict_themselves(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        ft.plan(examples=500, budget=ft.Budget(1.0, 1e-5), **options)
    assert "\n" not in str(caught.value)


def test_neighbours_keep_the_groups() -> None:
    from forethought.planning.solve import neighbours

    made = plan(local="adam")
    *others, examples = neighbours(made)
    for near in others:
        assert near.plan.local == made.local
        assert near.plan.batch / near.plan.groups == pytest.approx(made.batch / made.groups)
    assert examples.plan.local is None and examples.plan.groups is None
    assert np.isfinite(ft.epsilon(made.mechanism, 1e-4).upper)


def test_the_plan_table_shows_what_runs_inside() -> None:
    shown = dict(plan_rows(plan(local="adam")))
    assert shown["groups"] == "6 of about 33 records"
    assert shown["inside a group"] == "adam at 0.001, one pass, steps of 8 records"
    assert "groups" not in dict(plan_rows(ft.plan(examples=400, budget=ft.Budget(3.0, 1e-4))))


def test_the_planner_says_what_groups_cost() -> None:
    text = plan(local="adam").explain()
    assert "sensitivity of 2" in text and "about 67 times" in text
    # Noise against signal decides, as it was measured.
    few = {"examples": 2000, "budget": ft.Budget(1.0, 1e-5), "parameters": 2000}
    many = {"examples": 10_000_000, "budget": ft.Budget(3.0, 1e-9), "parameters": 2000}
    for request, words in ((few, "clipped examples did better"), (many, "did better than clipped")):
        chosen = ft.plan(**request, clipping="group", local="sgd")
        assert words in dict(chosen.reasons)["groups against examples"]
        noise = noise_to_signal(chosen, 2000)
        assert noise < WON or noise > LOST


def test_inner_steps_are_the_planners_where_only_an_optimizer_is_named() -> None:
    named = plan(local="adam")
    assert named.local == ft.Local("adam", step=INNER_STEP)
    assert "inner steps" in dict(named.reasons)
    for given in (ft.Local("adam"), {"optimizer": "adam"}):
        chosen = plan(local=given)
        assert chosen.local == ft.Local("adam") and "inner steps" not in dict(chosen.reasons)
    assert "groups against" not in ft.plan(examples=400, budget=ft.Budget(3.0, 1e-4)).explain()


@pytest.mark.slow
def test_a_front_of_groups_keeps_them() -> None:
    found = ft.pareto(
        examples=4000,
        clipping="group",
        groups=8,
        local="momentum",
        batches=[256, 1024],
        rounds=[50, 200],
        noise_multipliers=[2.0, 6.0],
    )
    assert found.candidates
    assert all(row.plan.groups == 8 and row.plan.local for row in found.candidates)
