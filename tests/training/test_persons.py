"""A person's rows are one contribution: against autograd, and against what they could move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import forethought as ft
from forethought.accounting.adaptive import NegativeBinomialTrials
from forethought.data import DataError, TableSchema, load
from forethought.data.dataset import EMPTY, Split, by_person
from forethought.gradients import clipped_sum
from forethought.jobs.audit import audit
from forethought.jobs.job import Job, JobError, JobRequest
from forethought.jobs.load import load_job
from forethought.jobs.train import prepare, run
from forethought.planning.alternatives import plan_tuning
from forethought.rounds.contributions import cross_entropy
from forethought.training.records import (
    CoincidingRecordsError,
    PerPerson,
    PersonLoss,
    person_loss,
)
from forethought.training.search import train_until
from forethought.utility.perturbing import utility_graph
from forethought.values.mechanism import Persons


def rows(count: int, seed: int = 0, kind: str = "labels") -> tuple[Split, list[str]]:
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count, 3)).astype(np.float32)
    labels = draw.integers(3, size=count)
    targets = labels if kind == "labels" else inputs[:, 0] * 2
    return Split(inputs, targets), [f"p{n}" for n in draw.integers(max(1, count // 3), size=count)]


def model(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return PerPerson(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)), (3,))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 10**6))
def test_every_person_has_their_own_rows_and_no_more_than_may_be(count, most, seed):
    split, persons = rows(count, seed)
    found = by_person(split, persons, most)
    names = list(dict.fromkeys(persons))
    assert found.inputs.shape == (len(names), most, 3)
    for number, name in enumerate(names):
        mine = [n for n in range(count) if persons[n] == name]
        own = {tuple(row) for row in split.inputs[mine].tolist()}
        there = found.targets[number] != EMPTY
        kept = {tuple(row) for row in found.inputs[number][there].tolist()}
        assert kept <= own and len(kept) == there.sum() == min(most, len(own))
        assert (found.inputs[number][~there] == found.inputs[number][0]).all() and there[0]


def test_which_rows_are_kept_depends_on_that_person_alone():
    split, persons = rows(60)
    whole = by_person(split, persons, 2)
    left = [n for n, person in enumerate(persons) if person != persons[0]]
    without = by_person(split.at(np.array(left)), [persons[n] for n in left], 2)
    names, others = list(dict.fromkeys(persons)), list(dict.fromkeys(persons[n] for n in left))
    for name in others:
        one, two = whole.inputs[names.index(name)], without.inputs[others.index(name)]
        assert np.array_equal(one, two)
    shuffled = np.random.default_rng(1).permutation(60)
    again = by_person(split.at(shuffled), [persons[n] for n in shuffled], 2)
    order = list(dict.fromkeys(persons[n] for n in shuffled))
    assert all(
        np.array_equal(whole.inputs[names.index(name)], again.inputs[order.index(name)])
        for name in names
    )


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_a_contribution_is_the_clipped_gradient_of_a_persons_mean_loss(kind):
    split, persons = rows(30, kind=kind)
    data = by_person(split, persons, 4)
    net = model(3 if kind == "labels" else 1)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    found, norms = clipped_sum(net, person_loss, inputs, targets, 0.5)
    expected = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for number in range(len(inputs)):
        there = (
            data.targets[number] != EMPTY if kind == "labels" else data.targets[number][:, 1] > 0
        )
        outputs = net.model(inputs[number][there])
        if kind == "labels":
            loss = nn.functional.cross_entropy(outputs, targets[number][there])
        else:
            loss = (outputs[:, 0] - targets[number][there][:, 0]).square().mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        assert norms[number] == pytest.approx(float(norm), rel=1e-4)
        for total, gradient in zip(expected.values(), gradients, strict=True):
            total += gradient * min(1.0, 0.5 / float(norm))
    for name, total in expected.items():
        assert torch.allclose(
            found[name].to(total), total, rtol=0.02, atol=1e-5
        )  # 1 % goes to rounding


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30])
def test_one_person_moves_a_sum_by_no_more_than_the_clipping_norm(scale):
    """Whatever their rows hold, and however many they are."""
    split, persons = rows(40)
    net = model()
    data = by_person(split, persons, 5)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    inputs[0] *= scale
    whole, _ = clipped_sum(net, person_loss, inputs, targets, 0.5)
    without, _ = clipped_sum(net, person_loss, inputs[1:], targets[1:], 0.5)
    moved = sum(float((whole[name] - without[name]).double().square().sum()) for name in whole)
    assert moved**0.5 <= 0.5


def table(path: Path, count: int = 400) -> Path:
    draw = np.random.default_rng(0)
    lines = ["patient,age,ward,died"]
    for _ in range(count):
        age = round(float(draw.uniform(20, 90)), 2)
        died = "yes" if age + draw.normal(0, 10) > 60 else "no"
        lines.append(f"P{draw.integers(count // 4)},{age},{'AB'[draw.integers(2)]},{died}")
    path.write_text("\n".join(lines) + "\n")
    return path


JOB = """
[data]
source = "csv:{path}"
label = "died"
classes = ["no", "yes"]
person = "patient"
records_per_person = 3
[data.columns]
age = [0, 110]
ward = ["A", "B"]
[budget]
epsilon = 8.0
[training]
rounds = 15
"""


def test_a_job_promises_something_to_persons(tmp_path):
    path = table(tmp_path / "t.csv")
    text = JOB.format(path=path)
    job = Job.parse(text)
    data = job.load_data()
    persons = {line.split(",")[0] for line in path.read_text().splitlines()[1:]}
    assert data.persons is not None and data.shape == (3,)
    own, rows_each = np.unique(data.persons, return_counts=True)
    assert rows_each.max() == 3 and 0.6 * len(persons) < len(own) < 0.95 * len(persons)
    assert data.test is not None and data.test.inputs.shape[1:] == (3,)
    prepared = prepare(JobRequest("t", text, job))
    assert isinstance(prepared.plan.contribution, Persons)
    assert prepared.plan.examples == len(own)
    assert dict(prepared.plan.reasons)["persons"].startswith("one contribution a person: people")
    found = run(prepared, tmp_path / "run")
    assert found.accuracy is not None and found.accuracy > 0.6
    assert not isinstance(found.model, PerPerson)
    said = (tmp_path / "run" / "statement.md").read_text()
    assert "a record here is one person, with at most 3 of their rows" in said
    predictor = ft.load(tmp_path / "run")
    assert set(predictor.predict([{"age": 30, "ward": "A"}, {"age": 85, "ward": "B"}])) <= {
        "no",
        "yes",
    }
    hits = predictor.predict(path) == [
        line.split(",")[-1] for line in path.read_text().splitlines()[1:]
    ]
    assert hits.mean() > 0.6


def test_a_job_may_take_groups_of_rows_and_standardise(tmp_path):
    path = table(tmp_path / "t.csv")
    text = JOB.format(path=path).replace("rounds = 15", 'rounds = 15\nperson_as = "group"')
    text = text.replace(
        "[data.columns]", 'standardise = "private"\nbounds = [-1, 1]\n[data.columns]'
    )
    for each, group in ((text, 3), (text.replace('"group"', '"contribution"'), 1)):
        prepared = prepare(JobRequest("t", each, Job.parse(each)))
        out = tmp_path / f"run{group}"
        found = run(prepared, out)
        rows = prepared.loaded.examples
        assert found.plan.examples == (rows if group == 3 else prepared.loaded.persons)
        assert found.statement.group == group and found.statement.epsilon.upper <= 8.0
        last = float((out / "metrics.csv").read_text().splitlines()[-1].split(",")[4])
        assert last == found.statement.epsilon.upper


@pytest.mark.slow
@pytest.mark.parametrize("way", ["contribution", "group"])
def test_a_job_for_persons_is_audited_with_its_own_model(tmp_path, way):
    text = JOB.format(path=table(tmp_path / "t.csv"))
    (tmp_path / "job.toml").write_text(
        text.replace("rounds = 15", f'rounds = 9\nperson_as = "{way}"')
    )
    found = audit(tmp_path / "job.toml", level="quick", seed=1).audit
    assert not found.refuted
    said = any("everything that one person has" in note for note in found.notes)
    assert said == (way == "contribution")


def of(count: int = 90, **options):
    split, persons = rows(count, **options)
    return ft.data.of_persons(split.inputs, split.targets, persons, 3), split, persons


@pytest.mark.parametrize("way", ["contribution", "group"])
def test_arrays_of_persons_go_the_same_way(way):
    data, _, _ = of()
    budget = ft.Budget(8.0, 1e-3)
    plan = ft.plan(data=data, budget=budget, rounds=4, person_as=way, parameters=33)
    net = model().model
    found = ft.train(net, data, plan, seed=1)
    assert found.model is net
    assert found.statement.group == (3 if way == "group" else 1)
    words = [str(text) for text in found.statement.assumptions]
    wanted = "a record here is one person" if way == "contribution" else "no person has more than 3"
    assert any(text.startswith(wanted) for text in words)
    assert ft.account(plan).epsilon == found.statement.epsilon
    assert ft.account(plan, records_per_person=6).epsilon.upper > found.statement.epsilon.upper


def test_a_training_on_persons_that_was_broken_off_is_named():
    data, _, _ = of()
    plan = ft.plan(data=data, budget=ft.Budget(8.0, 1e-3), rounds=4, parameters=33)
    net = model().model

    def stop(event):
        if event.round == 2:
            raise KeyError

    with pytest.raises(KeyError):
        ft.train(net, data, plan, seed=1, progress=stop)
    (named,) = [
        c for c in ft.train(net, data, plan).statement.caveats if c.code == "trained-before"
    ]
    assert "did not end" in named.detail


def test_held_out_values_are_no_labels():
    data, split, _ = of(kind="values")
    plan = ft.plan(data=data, budget=ft.Budget(8.0, 1e-3), rounds=2, parameters=4)
    net = nn.Linear(3, 1)
    found = ft.train(net, data, plan, test=(split.inputs, np.abs(split.targets) + 1), seed=1)
    assert found.model is net


def test_a_person_moves_the_noised_sum_by_one_clipping_norm_through_train():
    """With and without one person, the same seeds: with σ next to nothing the step is the sum."""
    _, split, persons = of(60)
    split.inputs[[name == persons[0] for name in persons]] *= 50
    plan = ft.Plan(
        ft.Mechanism(ft.Rounds(0.011, 1, ft.FullBatch())),
        len(set(persons)),
        1e-3,
        ft.Clip(0.5, rule="automatic"),
        contribution=Persons(3),
        optimizer=ft.Optimizer("sgd", 1.0),
    )
    steps = []
    for names in (persons, [name for name in persons if name != persons[0]]):
        keep = np.isin(persons, names)
        own = ft.data.of_persons(split.inputs[keep], split.targets[keep], names, 3)
        net = model().model
        before = [p.detach().clone() for p in net.parameters()]
        count = len(set(names))
        ft.train(net, own, plan.with_(examples=count), seed=1, noise_seed=1, diagnostics=False)
        steps.append([(a - b) * count for a, b in zip(before, net.parameters(), strict=True)])
    moved = sum(
        float((a - b).detach().double().square().sum()) for a, b in zip(*steps, strict=True)
    )
    assert 0.3 < moved**0.5 <= 0.5 * 1.01


def test_a_loss_of_ones_own_is_meant_over_a_persons_rows():
    split, persons = rows(30)
    data = by_person(split, persons, 4)
    net = model()
    own = PersonLoss(cross_entropy, 1)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    assert torch.allclose(own(net(inputs), targets), person_loss(net(inputs), targets))
    flat = torch.from_numpy(split.inputs), torch.from_numpy(split.targets)
    assert torch.equal(own(net(flat[0]), flat[1]), cross_entropy(net(flat[0]), flat[1]))


class Cosine(nn.Linear):
    """Not finite for a row of zeros."""

    def forward(self, inputs):
        return super().forward(inputs / inputs.norm(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("made", "kind", "loss"),
    [
        (Cosine, "labels", None),
        (Cosine, "labels", cross_entropy),
        (Cosine, "values", None),
        (nn.Linear, "values", lambda outputs, values: (outputs[:, 0] - values.log()).square()),
        # Not finite for rows of class 0, of which there are none.
        (nn.Linear, "labels", lambda outputs, labels: outputs[:, 0].exp() / labels.sqrt()),
    ],
)
def test_a_person_with_few_rows_counts_where_a_model_or_loss_is_not_finite_at_zero(
    made, kind, loss
):
    split, persons = rows(60, kind=kind)
    targets = split.targets + 1 if kind == "labels" else np.abs(split.targets) + 1
    data = ft.data.of_persons(split.inputs, targets, persons, 6)
    plan = ft.plan(
        data=data, budget=ft.Budget(8.0, 1e-3), rounds=2, person_as="contribution", parameters=16
    )
    found = ft.train(made(3, 4 if kind == "labels" else 1), data, plan, loss=loss, seed=1)
    assert [row.non_finite for row in found.history] == [0] * len(found.history)


def trained(data, loss=None, outputs=3):
    plan = ft.plan(
        data=data, budget=ft.Budget(8.0, 1e-3), rounds=3, person_as="contribution", parameters=16
    )
    net = model(outputs).model
    ft.train(net, data, plan, loss=loss, seed=1, noise_seed=1)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_a_criterion_is_one_value_a_row():
    data, _, _ = of()
    assert torch.equal(trained(data, nn.CrossEntropyLoss()), trained(data, cross_entropy))
    with pytest.raises(ValueError, match="one value"):
        trained(data, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets))


def test_a_loss_of_ones_own_gets_the_labels_as_they_are():
    split, persons = rows(60)
    data = by_person(split, persons, 6)
    scores, labels = model()(torch.from_numpy(data.inputs)), torch.from_numpy(data.targets)
    signs = torch.where(labels == EMPTY, EMPTY, 2 * labels - 1)
    one = PersonLoss(lambda out, y: nn.functional.softplus(-out[:, 0] * y), 1)(scores, signs)
    other = PersonLoss(lambda out, y: nn.functional.softplus(-out[:, 0] * (2 * y - 1)), 1)
    assert torch.equal(one, other(scores, labels))


def test_several_values_a_row_have_the_usual_loss():
    split, persons = rows(60)
    data = ft.data.of_persons(split.inputs, split.inputs[:, :2], persons, 3)
    own = trained(data, lambda outputs, values: (outputs - values).square().sum(1), 2)
    assert torch.allclose(trained(data, None, 2), own, atol=1e-5)


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_rows_of_persons_are_no_held_out_rows(kind):
    data, split, _ = of(kind=kind)
    plan = ft.plan(
        data=data, budget=ft.Budget(8.0, 1e-3), rounds=2, person_as="contribution", parameters=16
    )
    net = model(3 if kind == "labels" else 1).model
    own = split.inputs, split.targets
    with pytest.raises(CoincidingRecordsError):
        ft.train(net, data, plan, test=own)
    with pytest.raises(CoincidingRecordsError):
        train_until(net, data, plan, accuracy=0.9, test=own, decide_on="public")
    others = np.concatenate([split.inputs + 9, data.train.inputs[:1]])
    targets = np.concatenate([split.targets, data.train.targets[:1]])
    mixed = ft.train(net, data, plan, test=(others, targets)).statement
    assert any("equal to records" in str(use) for use in mixed.not_covered)


def test_rows_of_persons_score_no_search():
    data, split, _ = of()
    trials = NegativeBinomialTrials.of_mean(2, shape=1)
    candidates = plan_tuning(
        data=data,
        budget=ft.Budget(20.0, 1e-3),
        rounds=2,
        person_as="contribution",
        trials=trials,
        candidates=[{"learning_rate": 0.1}],
    )
    with pytest.raises(CoincidingRecordsError):
        ft.tune(
            lambda: model().model, data, candidates, trials=trials,
            holdout=(split.inputs, split.targets), scoring="public",
        )  # fmt: skip


@pytest.mark.parametrize("nobody", [None, float("nan"), np.datetime64("NaT"), "NA", " n/a ", ""])
def test_rows_without_a_person_are_not_one_persons(nobody):
    split, persons = rows(20)
    whose = [nobody if place in (3, 7) else name for place, name in enumerate(persons)]
    with pytest.raises(DataError, match="no person"):
        ft.data.of_persons(split.inputs, split.targets, whose, 3)


def test_a_column_of_persons_with_a_gap_is_refused(tmp_path):
    path = table(tmp_path / "t.csv")
    path.write_text(path.read_text().replace("P1,", "NA,"))
    with pytest.raises(DataError, match="no person"):
        Job.parse(JOB.format(path=path)).load_data()


def test_labels_may_be_true_and_false_but_not_several_a_row():
    split, persons = rows(20)
    data = ft.data.of_persons(split.inputs, split.targets > 0, persons, 3)
    assert data.classes == 2 and data.train.targets.dtype == np.int64
    with pytest.raises(DataError, match="one a row"):
        ft.data.of_persons(split.inputs, split.targets[:, None], persons, 3)


def test_masked_entries_of_persons_are_refused():
    split, persons = rows(20)
    masked = np.ma.masked_array(split.inputs, mask=split.inputs > 0)
    with pytest.raises(DataError, match="masked"):
        ft.data.of_persons(masked, split.targets, persons, 3)


def test_a_search_is_over_persons_with_public_scores():
    data, split, _ = of()
    candidates = plan_tuning(
        data=data,
        budget=ft.Budget(20.0, 1e-3),
        rounds=2,
        person_as="contribution",
        trials=NegativeBinomialTrials.of_mean(2, shape=1),
        candidates=[{"learning_rate": 0.1}],
    )
    options = {"trials": NegativeBinomialTrials.of_mean(2, shape=1), "seed": 3}
    public = (split.inputs + 9, split.targets)
    found = ft.tune(
        lambda: model().model, data, candidates, holdout=public, scoring="public", **options
    )
    assert not isinstance(found.model, PerPerson)
    with pytest.raises(ValueError, match="person may have"):
        ft.tune(lambda: model().model, data, candidates, holdout=public, **options)


def test_what_does_not_go_together_is_refused():
    data, split, persons = of()
    budget = ft.Budget(8.0, 1e-3)
    arrays = (split.inputs, split.targets)
    one = ft.plan(data=data, budget=budget, rounds=2, person_as="contribution")
    with pytest.raises(DataError, match=r"data\.of_persons"):
        ft.train(model().model, arrays, one)
    plain = ft.plan(examples=len(data.train), budget=budget, rounds=2)
    with pytest.raises(DataError, match=r"to 3 rows.* something to 1"):
        ft.train(model().model, data, plain)
    grouped = ft.plan(data=data, budget=budget, rounds=2, person_as="group")
    with pytest.raises(ValueError, match="phases promise something"):
        train_until(model().model, data, grouped, accuracy=0.9, test=arrays)
    with pytest.raises(ValueError, match="search promises something"):
        plan_tuning(
            data=data, budget=budget, rounds=2, person_as="group",
            trials=NegativeBinomialTrials.of_mean(2, shape=1), candidates=[{"learning_rate": 1.0}],
        )  # fmt: skip
    with pytest.raises(ValueError, match="utility graph works"):
        grid = {"clip_norms": [1.0], "noise_multipliers": [1.0]}
        utility_graph(lambda: model().model, data, source="public", **grid)
    wrong = ft.data.of_persons(split.inputs, split.targets + 1, persons, 3)
    with pytest.raises(ValueError, match="1 to 3"):
        ft.train(model().model, wrong, one)


def test_what_knows_rows_only_refuses_persons(tmp_path):
    path = table(tmp_path / "t.csv")
    loaded = load_job(JobRequest("t", "", Job.parse(JOB.format(path=path))))
    with pytest.raises(JobError, match="works on rows,"):
        loaded.require_rows("a federation")
    schema = TableSchema({"age": [0, 110], "ward": ["A", "B"]}, person="patient")
    for options, message in (
        ({"label": "patient", "schema": schema}, "the label and the person at once"),
        ({"label": "died", "schema": schema, "site": "ward"}, "goes without"),
    ):
        with pytest.raises(DataError, match=message):
            load(f"csv:{path}", classes=["no", "yes"], **options)
    text = JOB.format(path=path).replace("[data.columns]", "[model]").replace("age = [0, 110]", "")
    with pytest.raises(JobError, match="person goes with"):
        Job.parse(text.replace('ward = ["A", "B"]', "")).load_data()
