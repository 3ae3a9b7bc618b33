"""A private search shows the best of a random number of trials, and says what it cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from drawn import reseed
from forethought.accounting.adaptive import NegativeBinomialTrials, PoissonTrials, search_epsilon
from forethought.accounting.statement import Statement, StatementError
from forethought.accounting.verification import verify
from forethought.planning.alternatives import plan_tuning
from forethought.rounds.records import as_records
from forethought.training import metrics
from forethought.training.folder import RunFolderExistsError
from forethought.training.run import Run, Task, train
from forethought.training.search import Tuned, tune
from forethought.values.mechanism import Budget, Mechanism, Poisson, Rounds
from forethought.values.plan import Plan, Transcript
from forethought.values.serialisation import digest
from forethought.values.use import Averaging, Optimizer

TRIALS = NegativeBinomialTrials.of_mean(6, shape=0)


def data(seed: int = 0, examples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(examples, 6))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(np.int64)


def model() -> nn.Module:
    made = nn.Linear(6, 2)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def plan(rate: float = 0.5, noise: float = 2.0) -> Plan:
    mechanism = Mechanism(Rounds(noise, 20, Poisson(0.25)))
    optimizer = Optimizer("sgd", rate, ())
    return Plan(mechanism, 200, 1e-5, optimizer=optimizer, averaging=Averaging("none"))


PLANS = (plan(1e-6), plan(0.5))


def search(**options: Any) -> Tuned:
    given: dict[str, Any] = {"trials": TRIALS, "holdout": data(1), "seed": 1, "noise_seed": 2}
    return tune(model, data(), PLANS, **{**given, **options})


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return search()


@pytest.mark.slow
def test_the_shown_trial_is_the_best_of_all() -> None:
    """Recorded from outside: every trial's score and weights, and which of them came back."""
    seen: list[tuple[float, torch.Tensor]] = []

    def score(trained: nn.Module) -> float:
        weight = trained.weight.detach().clone()  # type: ignore[union-attr, operator]
        value = float(weight[1, 0] - weight[0, 0])
        seen.append((value, weight))
        return value

    found = search(holdout=None, score=score, scoring="public", trials=PoissonTrials(12))
    assert len(seen) > 3 and len({value for value, _ in seen}) == len(seen)
    best, weight = max(seen, key=lambda pair: pair[0])
    assert found.score == best
    assert torch.equal(found.model.weight, weight)  # type: ignore[arg-type]
    assert found.plan.optimizer.learning_rate == 0.5


@pytest.mark.slow
def test_the_better_candidate_wins(tuned: Tuned) -> None:
    assert tuned.plan.optimizer.learning_rate == 0.5
    assert tuned.run.accuracy == tuned.score > 0.7


def test_the_statement_covers_the_search(tuned: Tuned) -> None:
    """Planted fault: what one trial costs alone is below what the search is charged."""
    alone = ft.epsilon(PLANS[0].mechanism, 1e-5).upper
    claimed = tuned.statement.epsilon
    assert claimed.upper == search_epsilon([PLANS[0].mechanism], TRIALS, 1e-5) > 1.2 * alone
    assert claimed.lower <= alone
    assert verify(Statement.from_json(tuned.statement.to_json())).epsilon == claimed
    assert "the search for it included" in tuned.statement.way.covered
    text = tuned.statement.to_markdown()
    assert "rounds of one trial" in text and "number of trials was drawn once" in text
    assert "everything the run released" not in text
    assert tuned.statement.not_covered == ()


def forged(statement: Statement, change: Callable[[Any], None]) -> Statement:
    values = json.loads(statement.to_json())
    change(values)
    del values["checksum"]
    return Statement.from_json(json.dumps({**values, "checksum": digest(values)}))


def _as_one_run(values: Any) -> None:
    alone = ft.epsilon(PLANS[0].mechanism, 1e-5)
    values["epsilon"] = {"lower": alone.lower, "upper": alone.upper}


def _less_noise(values: Any) -> None:
    values["mechanism"]["rounds"][0]["noise_multiplier"] = 1.9


def _more_noise(values: Any) -> None:
    values["mechanism"]["rounds"][0]["noise_multiplier"] = 2.1


def _more_rounds(values: Any) -> None:
    values["mechanism"]["rounds"][0]["rounds"] = values["rounds"] = 25


def _fewer_rounds(values: Any) -> None:
    values["mechanism"]["rounds"][0]["rounds"] = values["rounds"] = 15


def _more_trials(values: Any) -> None:
    values["accountant"]["trials"]["stopping"] /= 2


def _fewer_trials(values: Any) -> None:
    values["accountant"]["trials"]["stopping"] *= 2


def _quieter_score(values: Any) -> None:
    values["accountant"]["score_noise"] /= 2


def _smaller_delta(values: Any) -> None:
    values["delta"] = 1e-6


def _group(values: Any) -> None:
    values["group"] = 2


def _no_trials(values: Any) -> None:
    values["accountant"]["trials"] = {"kind": "fixed", "number": 1}


def _other_candidate(values: Any) -> None:
    values["accountant"]["candidates"] = [plan(noise=1.0).mechanism.to_dict()]


@pytest.mark.parametrize(
    "change",
    [
        _as_one_run,
        _less_noise,
        _more_noise,
        _more_rounds,
        _fewer_rounds,
        _more_trials,
        _fewer_trials,
        _quieter_score,
        _smaller_delta,
        _group,
        _no_trials,
        _other_candidate,
    ],
)
def test_an_edited_statement_is_rejected(tuned: Tuned, change: Callable[[Any], None]) -> None:
    with pytest.raises(StatementError):
        verify(forged(tuned.statement, change))


def test_the_worst_candidate_is_accounted() -> None:
    plans = (plan(noise=2.0), plan(noise=1.0))
    found = tune(model, data(), plans, trials=TRIALS, holdout=data(1), seed=3, noise_seed=3)
    worst = search_epsilon([plans[1].mechanism], TRIALS, 1e-5)
    assert found.statement.epsilon.upper == pytest.approx(worst, rel=1e-9)
    assert verify(found.statement).epsilon == found.statement.epsilon


@pytest.mark.slow
def test_who_is_not_protected_is_named() -> None:
    found = search(scoring="unprotected")
    assert any("scored on" in use for use in found.statement.not_covered)
    assert found.statement.accountant["score_noise"] is None
    public = search(scoring="public").statement
    assert not public.not_covered
    assert any("scored on are public" in text for text in public.assumptions)


@pytest.mark.slow
def test_the_run_folder_holds_the_best_trial_only(tmp_path: Path) -> None:
    found = search(out=tmp_path / "run", scoring="public")
    files = {path.name for path in (tmp_path / "run").rglob("*")}
    assert files == {
        "plan.json",
        "transcript.json",
        "model.safetensors",
        "statement.json",
        "statement.md",
        "metrics.csv",
    }
    loaded = Statement.load(tmp_path / "run" / "statement.json")
    assert verify(loaded).epsilon == found.statement.epsilon
    alone = ft.account(Plan.load(tmp_path / "run" / "plan.json"))
    assert any("search" in use for use in alone.not_covered)
    with pytest.raises(RunFolderExistsError):
        search(out=tmp_path / "run")


def test_no_trial_at_all_gives_the_untrained_model_and_the_same_statement() -> None:
    few = PoissonTrials(1e-9)
    found = search(trials=few)
    assert not found.model.weight.any()  # type: ignore[union-attr, operator]
    assert np.isnan(found.score) and found.run.history[0].round == 0
    assert verify(found.statement).epsilon == found.statement.epsilon


def test_the_best_trial_has_rows_where_they_are_asked_for() -> None:
    found = search(trials=PoissonTrials(3), log_every=8)
    assert [row.round for row in found.run.history] == [8, 16, 20]
    assert {row.epsilon for row in found.run.history} == {found.statement.epsilon.upper}
    assert [row.accuracy is None for row in found.run.history] == [True, True, False]


def test_trials_differ_in_their_randomness() -> None:
    """Planted fault: one seed for all trials would make them copies, and the search worthless."""
    scores: list[float] = []

    def score(trained: nn.Module) -> float:
        scores.append(float(trained.weight.detach().sum()))  # type: ignore[union-attr, operator]
        return 0.0

    search(holdout=None, score=score, scoring="public", trials=PoissonTrials(12))
    assert len(set(scores)) == len(scores) > 3


@pytest.mark.slow
def test_the_noise_of_the_score_is_what_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search of about 400 trials that all score alike: the best of K noised counts lies
    above every quantile q of one with chance 1 − E[q^K]. The best of 300 or more exceeds 1.5
    standard deviations but with chance below 1e-9, and 6 with chance below 1e-6."""
    untrained = [plan(1e-9).with_(mechanism=PLANS[0].mechanism.first(1))]
    trained = train(model(), data(), untrained[0])

    assert trained.transcript is not None
    values = trained.transcript.to_values()

    def shown(task: Task) -> Run:
        return replace(trained, model=task.model, transcript=Transcript.from_values(values))

    monkeypatch.setattr("forethought.training.run.run_plan", shown)
    monkeypatch.setattr("forethought.training.folder.remember", lambda *_: None)
    found = tune(
        model, data(), untrained, trials=PoissonTrials(400), holdout=data(1, 50),
        score_noise=5.0, seed=1, noise_seed=1,
    )  # fmt: skip
    share = float((data(1, 50)[1] == 0).mean())  # zero weights always answer class 0
    assert 1.5 * 5 < (found.score - share) * 50 < 6 * 5


@pytest.mark.slow
def test_bad_arguments_are_refused_before_any_trial() -> None:
    with pytest.raises(TypeError, match="fixed number"):
        search(trials=10)
    with pytest.raises(ValueError, match="either holdout"):
        search(score=lambda _model: 0.0)
    with pytest.raises(ValueError, match="scoring='public'"):
        search(holdout=None, score=lambda _model: 0.0)
    with pytest.raises(ValueError, match="score_noise goes with"):
        search(scoring="public", score_noise=1.0)
    with pytest.raises(ValueError, match="same delta"):
        tune(model, data(), [plan(), plan().with_(delta=1e-6)], trials=TRIALS, holdout=data(1))
    both = data()
    with pytest.raises(ValueError, match="also trained on"):
        tune(model, both, PLANS, trials=TRIALS, holdout=both)
    with pytest.raises(ValueError, match="no labels"):
        search(holdout=(data(1)[0], data(1)[0][:, :2]))
    with pytest.raises(ValueError, match="targets in holdout"):
        search(holdout=(data(1)[0], data(1)[1].astype(np.float32)))
    for make in (model(), None):
        with pytest.raises(TypeError, match="make_model must"):
            tune(make, data(), PLANS, trials=TRIALS, holdout=data(1))  # type: ignore[arg-type]
    rounds: list[int] = []
    for score in ("accuracy", lambda _model: None):
        with pytest.raises(TypeError, match="score must"):
            search(
                holdout=None, score=score, scoring="public", progress=lambda *_: rounds.append(1)
            )
    assert not rounds
    same = model()
    shared = nn.Linear(6, 6)

    def on_shared() -> nn.Module:
        return nn.Sequential(shared, nn.Linear(6, 2))

    for make in (lambda: same, on_shared):
        with pytest.raises(ValueError, match="earlier trial"):
            tune(make, data(), [plan()], trials=PoissonTrials(30), holdout=data(1), seed=1)
    shared.requires_grad_(False)  # a frozen part may be shared
    tune(on_shared, data(), [plan()], trials=PoissonTrials(3), holdout=data(1), seed=1)


class Centred(nn.Module):
    """Moves each row by the mean of its batch; in training every record is a batch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + 100 * (x - x.mean(0))[:, :2]


class Branching(Centred):
    """Runs in no lanes: it asks about its input, and keeps the last one."""

    last = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, self.last = self.last, x.mean(0)
        if x.sum() > 0:
            x = x * 1.0
        return self.layer(x) + 100 * (x - x.mean(0) - before)[:, :2]


@pytest.mark.parametrize("kind", [Centred, Branching])
def test_an_answer_to_a_held_out_record_is_about_it_alone(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record more, of any size, changes the number of right answers by at most 1."""
    monkeypatch.setattr(metrics, "EVALUATION_BATCH", 16)
    reseed(3)
    made = kind()
    inputs, targets = data(1, 50)
    right = []
    for far in ([], [1e4], [1e4, -1e4]):
        rows = np.concatenate([np.full((len(far), 6), np.array(far)[:, None]), inputs])
        labels = np.concatenate([np.zeros(len(far), dtype=np.int64), targets])
        held = as_records((rows, labels), torch.float32, torch.device("cpu"))
        share = metrics.share_alone(made, nn.CrossEntropyLoss(reduction="none"), held)
        right.append(round(share * len(held)))
    assert 0 < right[0] < 50
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(right))


def test_a_noised_score_counts_each_record_alone() -> None:
    """With next to no noise on the count it is that of single passes, not of a batch."""
    inputs, labels = data(1, 50)
    held = np.concatenate([np.full((1, 6), 1e4), inputs]), np.concatenate([labels[:1], labels])
    given: dict[str, Any] = {"holdout": held, "score_noise": 1e-3, "seed": 1, "noise_seed": 2}
    found = tune(Centred, data(), [plan(1e-6)], trials=NegativeBinomialTrials(0.9), **given)
    rows = torch.as_tensor(held[0], dtype=torch.float32)
    with torch.no_grad():
        single = [int(found.model(row[None])[0].argmax()) for row in rows]
    assert round(found.score * 51) == sum(map(int.__eq__, single, held[1].tolist()))


def test_noised_counts_need_a_model_without_batch_normalisation() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))

    grouped = ft.plan(
        **{"examples": 200, "batch": 50, "rounds": 20, "noise_multiplier": 2.0, "delta": 1e-5},
        clipping="group",
        groups=1,
    )
    with pytest.raises(ValueError, match="batch normalisation"):
        tune(make, data(), [grouped], trials=TRIALS, holdout=data(1), seed=1)


@pytest.mark.slow
def test_planned_candidates_keep_the_budget() -> None:
    budget = Budget(3.0, 1e-5)
    plans = plan_tuning(
        examples=200,
        budget=budget,
        trials=TRIALS,
        candidates=[{"learning_rate": 0.1}, {"learning_rate": 1.0}],
        rounds=20,
        batch=50,
    )
    found = tune(model, data(), plans, trials=TRIALS, holdout=data(1), seed=1, noise_seed=1)
    assert 0.995 * budget.epsilon <= found.statement.epsilon.upper <= budget.epsilon
    assert found.statement.not_covered == ()


@pytest.mark.parametrize(
    "odd",
    [{"loss": 0}, {"progress": 5}, {"about": "Ward 3"}, {"ledger": "sqlite:///book.db"}],
)
def test_what_is_of_another_kind_is_refused_before_a_trial(odd: dict[str, Any]) -> None:
    begun = []

    def make() -> nn.Module:
        begun.append(1)
        return model()

    with pytest.raises(TypeError, match=next(iter(odd))):
        tune(make, data(), [plan()], trials=TRIALS, **odd)
    assert not begun


def test_who_searches_among_plans_that_spend_the_budget_each_is_warned() -> None:
    known = {"examples": 200, "model": model(), "budget": ft.Budget(3.0, 1e-5), "epochs": 2}
    plans = [ft.plan(**known, learning_rate=rate, centre=False) for rate in (0.1, 1.0)]
    with pytest.warns(UserWarning, match="plan_tuning"):
        tune(model, data(), plans, trials=TRIALS, holdout=data(1), seed=3)
