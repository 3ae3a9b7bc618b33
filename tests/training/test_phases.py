"""A run in phases stops when it may, resumes exactly, and claims what it was allowed to spend."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.accounting.adaptive import Progress, RenyiFilter
from forethought.accounting.statement import Statement, StatementError
from forethought.accounting.verification import verify
from forethought.planning.alternatives import next_by_shortfall, plan_phases
from forethought.planning.solve import plan as solve
from forethought.rounds.randomness import Seeds
from forethought.training.execution import Interrupted
from forethought.training.folder import (
    Checkpointer,
    CheckpointError,
    RunFolder,
    RunFolderExistsError,
    UnfinishedRun,
)
from forethought.training.metrics import Event
from forethought.training.own_loop import private
from forethought.training.run import train
from forethought.training.search import PhasedRun, PhaseState, train_until
from forethought.values.mechanism import Budget, Mechanism, Poisson, Rounds, WithoutReplacement
from forethought.values.plan import Plan
from forethought.values.serialisation import digest

EXAMPLES = 200
BUDGET = Budget(2.0, 1e-4)


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(EXAMPLES, 6))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(np.int64)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(6, 2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    whole = solve(examples=EXAMPLES, budget=BUDGET, rounds=24, batch=50, learning_rate=0.3)
    return plan_phases(whole, phases=3)


def go(plan: Plan, accuracy: float = 1.0, **options: Any) -> PhasedRun:
    given: dict[str, Any] = {"test": data(1), "seed": 1, "noise_seed": 1, **options}
    started = given.pop("model", None) or model()
    return train_until(started, data(), plan, accuracy=accuracy, **given)


def test_a_phase_that_ended_counts_while_the_run_does_not_know_it(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(PhaseState, "finish", killed)
    with pytest.raises(KeyError):
        go(plan, out=tmp_path / "run")
    assert UnfinishedRun.load(tmp_path / "run").released == plan.mechanism.rounds[0].count


def test_it_stops_at_the_first_phase_that_is_good_enough(plan: Plan) -> None:
    run = go(plan, 0.01)
    assert run.reached and len(run.phases) == 1
    assert run.phases[0].rounds == plan.mechanism.rounds[0]
    assert run.accuracy == run.phases[0].accuracy
    assert "after 1 of them because the wanted accuracy was reached" in (
        run.statement.hyperparameters
    )


def test_it_stops_when_the_budget_is_used_up(plan: Plan) -> None:
    run = go(plan)
    assert not run.reached and run.stopped == "the budget was used up"
    assert [phase.rounds for phase in run.phases] == list(plan.mechanism.rounds)
    assert run.statement.epsilon.upper <= BUDGET.epsilon
    assert [row.round for row in run.history] == sorted({row.round for row in run.history})
    assert run.history[-1].round == plan.rounds
    assert run.history[-1].epoch == pytest.approx(plan.epochs)


def test_a_phase_has_rows_where_they_are_asked_for(plan: Plan) -> None:
    run = go(plan, 0.01, log_every=2)
    count = run.phases[0].rounds.count
    assert [row.round for row in run.history] == sorted({*range(2, count, 2), count})


def test_stopping_early_does_not_shrink_the_claim(plan: Plan) -> None:
    """Planted fault: accounting only what was run, as if it had been fixed, claims less."""
    run = go(plan, 0.01)
    assert run.statement.mechanism == plan.mechanism
    alone = ft.epsilon(Mechanism(run.phases[0].rounds), BUDGET.delta).upper
    assert alone < 0.5 * run.statement.epsilon.upper
    assert verify(Statement.from_json(run.statement.to_json())).epsilon == run.statement.epsilon


def test_phases_are_runs_one_after_another(plan: Plan) -> None:
    """By hand: each phase a run of its own, from the reported model of the one before."""
    by_hand = model()
    for index, part in enumerate(plan.mechanism):
        phase = plan.with_(mechanism=Mechanism(part))
        seed = Seeds(1).part(index).sampling
        train(by_hand, data(), phase, seed=seed, noise_seed=seed, diagnostics=False)
    run = go(plan)
    assert len(run.phases) == 3
    assert torch.equal(run.model.weight, by_hand.weight)  # type: ignore[arg-type]


def test_a_plan_above_its_own_budget_is_not_run(plan: Plan) -> None:
    louder = plan.with_(budget=Budget(0.5, 1e-4))
    for start in (
        lambda: go(louder),
        lambda: train(model(), data(), louder),
        lambda: private(model(), None, data(), louder),
    ):
        with pytest.raises(ValueError, match="spends epsilon"):
            start()


def adaptive(plan: Plan, accuracy: float = 1.0, **options: Any) -> PhasedRun:
    return go(plan, accuracy, next_phase=next_by_shortfall, **options)


@pytest.fixture(scope="module")
def filtered(plan: Plan) -> PhasedRun:
    return adaptive(plan)


def test_chosen_phases_keep_the_budget_of_the_filter(plan: Plan, filtered: PhasedRun) -> None:
    assert len(filtered.phases) >= 3
    noise = [phase.rounds.noise_multiplier for phase in filtered.phases]
    assert noise == sorted(noise, reverse=True)
    statement = filtered.statement
    assert statement.epsilon.upper == BUDGET.epsilon
    assert statement.accountant["kind"] == "renyi-filter"
    ledger = RenyiFilter(BUDGET, orders=statement.accountant["orders"])
    for phase in filtered.phases:
        ledger.spend(phase.rounds)
    assert ledger.fraction_used > 0.9
    assert verify(Statement.from_json(statement.to_json())).epsilon == statement.epsilon
    text = statement.to_markdown()
    assert "Rényi filter at order" in text and "chosen adaptively" in text
    assert "Feldman and Zrnic" in text
    assert {row.epsilon for row in filtered.history} == {BUDGET.epsilon}


def forged(statement: Statement, change: Callable[[Any], None]) -> Statement:
    values = json.loads(statement.to_json())
    change(values)
    del values["checksum"]
    return Statement.from_json(json.dumps({**values, "checksum": digest(values)}))


def _epsilon(values: Any) -> None:
    values["epsilon"]["upper"] *= 0.9
    values["epsilon"]["lower"] *= 0.9


def _as_if_fixed(values: Any) -> None:
    mechanism = Mechanism.from_dict(values["mechanism"])
    values["epsilon"] = {"lower": 0.0, "upper": ft.epsilon(mechanism, values["delta"]).upper}


def _less_noise(values: Any) -> None:
    values["mechanism"]["rounds"][1]["noise_multiplier"] *= 0.9


def _more_noise(values: Any) -> None:
    values["mechanism"]["rounds"][1]["noise_multiplier"] *= 1.1


def _more_rounds(values: Any) -> None:
    values["mechanism"]["rounds"][1]["count"] += 1
    values["rounds"] += 1


def _fewer_rounds(values: Any) -> None:
    values["mechanism"]["rounds"][1]["count"] -= 1
    values["rounds"] -= 1


def _delta(values: Any) -> None:
    values["delta"] /= 10


def _group(values: Any) -> None:
    values["group"] = 2


def _filter_budget(values: Any) -> None:
    values["accountant"]["epsilon"] /= 2


def _filter_order(values: Any) -> None:
    values["accountant"]["orders"] = [2.0]


@pytest.mark.parametrize(
    "change",
    [
        _epsilon,
        _as_if_fixed,
        _less_noise,
        _more_noise,
        _more_rounds,
        _fewer_rounds,
        _delta,
        _group,
        _filter_budget,
        _filter_order,
    ],
)
def test_an_edited_statement_is_rejected(
    filtered: PhasedRun, change: Callable[[Any], None]
) -> None:
    with pytest.raises(StatementError):
        verify(forged(filtered.statement, change))


def test_a_phase_that_does_not_fit_is_never_run(plan: Plan) -> None:
    seen: list[int] = []

    def greedy(progress: Progress) -> Rounds:
        with pytest.raises(RuntimeError, match="does not fit"):
            progress.filter.spend(Rounds(0.5, 100, Poisson(0.5)))
        return Rounds(0.5, 100, Poisson(0.5))

    run = go(plan, next_phase=greedy, progress=lambda event: seen.append(event.round))
    assert len(run.phases) == 1 and seen[-1] == plan.mechanism.rounds[0].count
    assert run.stopped == "the budget was used up"


@pytest.mark.slow
def test_a_phase_of_another_plan_leaves_the_run_whole(plan: Plan, tmp_path: Path) -> None:
    """The rule is mended and the run resumed: the phase before it was paid for."""
    for words, wrong in {
        "speaks of 100": Rounds(30, 2, WithoutReplacement(10, EXAMPLES // 2)),
        "batch clipping": Rounds(30, 2, Poisson(0.1), "group", groups=1),
    }.items():
        out = tmp_path / wrong.clipping
        with pytest.raises(ValueError, match=words):
            go(plan, next_phase=lambda _, wrong=wrong: wrong, out=out)
        run = go(plan, next_phase=lambda _: None, out=out, resume=True)
        assert [phase.rounds for phase in run.phases] == list(plan.mechanism.rounds[:1])


def test_a_rule_that_stops_is_not_called_a_budget_used_up(plan: Plan) -> None:
    run = go(plan, next_phase=lambda _: None)
    assert len(run.phases) == 1 and not run.reached
    assert run.stopped.endswith("or next_phase chose no further phase")
    assert run.stopped in run.statement.hyperparameters


def test_spending_from_the_copy_changes_nothing(plan: Plan) -> None:
    def spender(progress: Progress) -> Rounds | None:
        last = progress.done[-1][0]
        affordable = progress.filter.affordable(last)
        progress.filter.spend(Rounds(last.noise_multiplier, affordable, last.sampling))
        return last if len(progress.done) < 2 else None

    assert len(go(plan, next_phase=spender).phases) == 2


def test_who_steers_is_named(plan: Plan) -> None:
    private, public = go(plan, 0.01), go(plan, 0.01, decide_on="public", diagnostics=False)
    assert any("not protected" in use for use in private.statement.not_covered)
    assert [use.code for use in public.statement.not_covered] == ["time-and-memory"]
    assert any("are public" in text for text in public.statement.assumptions)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


FINISHED = {
    "plan.json",
    "phases.json",
    "model.safetensors",
    "metrics.csv",
    "diagnostics.csv",
    "transcript.json",
    "statement.json",
    "statement.md",
}


@pytest.mark.slow
def test_a_finished_folder_is_complete_and_keeps_no_secret(plan: Plan, tmp_path: Path) -> None:
    run = adaptive(plan, out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").rglob("*")} == FINISHED
    again = adaptive(plan, out=tmp_path / "run", resume=True, model=model(7))
    assert again.phases == run.phases and again.statement == run.statement
    assert torch.equal(again.model.weight, run.model.weight)  # type: ignore[arg-type]
    alone = ft.account(Plan.load(tmp_path / "run" / "plan.json"))
    assert any("choice of these phases" in use for use in alone.not_covered)
    with pytest.raises(RunFolderExistsError):
        adaptive(plan, out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="accuracy was"):
        adaptive(plan, 0.5, out=tmp_path / "run", resume=True)
    (tmp_path / "run" / "phases.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is damaged"):
        adaptive(plan, out=tmp_path / "run", resume=True)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("mode", ["fixed", "filter"])
def test_a_killed_run_ends_exactly_like_one_that_was_not(
    mode: str, plan: Plan, tmp_path: Path
) -> None:
    """Killed in every phase, before and after its boundaries; files agree to the last bit."""
    rule = next_by_shortfall if mode == "filter" else None
    straight = go(plan, next_phase=rule, out=tmp_path / "straight")
    ends = np.cumsum([phase.rounds.count for phase in straight.phases])
    kills = sorted(
        {1, *(int(e) for e in ends[:-1]), *(int(e) + 1 for e in ends[:-1]), int(ends[-1])}
    )
    killed = tmp_path / "killed"
    for resume, at in enumerate(kills):
        child = os.fork()
        if child == 0:

            def die(event: Event, at: int = at) -> None:
                if event.round >= at:
                    os.kill(os.getpid(), signal.SIGKILL)

            torch.set_num_threads(1)
            go(
                plan,
                next_phase=rule,
                out=killed,
                resume=resume > 0,
                progress=die,
                model=model(resume),
            )
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        state = json.loads((killed / "plan.json").read_text())
        assert state["schema"] == "forethought/plan/2"
    go(plan, next_phase=rule, out=killed, resume=True, model=model(9))
    assert contents(killed) == contents(tmp_path / "straight")
    assert set(contents(killed)) == FINISHED


def dying(place: str, time: int) -> Callable[..., None]:
    """Make the ``time``-th call of a function that writes or deletes the last thing done."""
    owner: type = {"write": Checkpointer}.get(place, RunFolder)
    function = getattr(owner, place)
    calls = [0]

    def call(*arguments: Any, **options: Any) -> Any:
        # A phase's own checkpoints are not the state of the whole run.
        mine = place != "write" or arguments[0].folder.path.parent.name != "phases"
        calls[0] += mine
        if mine and calls[0] == -time:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*arguments, **options)
        if mine and calls[0] == time:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, place, call)
    return call


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_between_its_steps_ends_the_same(plan: Plan, tmp_path: Path) -> None:
    """After the n-th write of the state (n > 0) or before it (n < 0), and while it ends."""
    go(plan, next_phase=next_by_shortfall, out=tmp_path / "straight")
    places = [("write", n) for n in (1, 2, 3, -3, 4, -5)]
    # Results and secrets of each of the phases come first: the fourth time is the whole run's.
    phases = len(json.loads((tmp_path / "straight" / "phases.json").read_text())["phases"])
    places += [("save_results", phases + 1), ("erase_secrets", phases + 1), ("erase_phases", -1)]
    for number, (place, time) in enumerate(places):
        killed = tmp_path / f"killed {number}"
        child = os.fork()
        if child == 0:
            dying(place, time)
            torch.set_num_threads(1)
            go(plan, next_phase=next_by_shortfall, out=killed)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, place
        # Before the first phase began there are no weights on disk: they are the caller's again.
        seed = 0 if place == "write" and time in (1, 2) else 9
        go(plan, next_phase=next_by_shortfall, out=killed, resume=True, model=model(seed))
        assert contents(killed) == contents(tmp_path / "straight"), (place, time)


def test_a_lost_state_is_not_made_up(plan: Plan, tmp_path: Path) -> None:
    """Phases that were begun cannot be begun again with other noise under the same claim."""

    def stop(event: Event) -> None:
        if event.round == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        go(plan, out=tmp_path / "run", progress=stop)
    (tmp_path / "run" / "checkpoint" / "state.safetensors").unlink()
    with pytest.raises(CheckpointError, match="run to resume"):
        go(plan, out=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_an_interrupted_run_resumes_and_another_is_refused(plan: Plan, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.round == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        go(plan, out=tmp_path / "run", progress=stop)
    for changes in ({"accuracy": 0.5}, {"decide_on": "public"}, {"next_phase": next_by_shortfall}):
        with pytest.raises(CheckpointError, match="cannot resume"):
            go(plan, out=tmp_path / "run", resume=True, **changes)
    with pytest.raises(CheckpointError, match="data changed"):
        train_until(
            model(), data(5), plan, accuracy=1.0, test=data(1), out=tmp_path / "run", resume=True
        )
    run = go(plan, out=tmp_path / "run", resume=True)
    assert len(run.phases) == 3
    assert any("from a seed" in text for text in run.statement.breaks)


def test_bad_arguments_are_refused_before_anything(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="at most 1"):
        go(plan, 90, out=out)
    with pytest.raises(ValueError, match="decide_on"):
        go(plan, decide_on="secret", out=out)
    with pytest.raises(ValueError, match="needs a plan"):
        adaptive(plan.with_(budget=None), out=out)
    with pytest.raises(ValueError, match="201 examples"):
        go(plan.with_(examples=201), out=out)
    with pytest.raises(ValueError, match="phase alone exceeds"):
        loud = Mechanism(Rounds(0.3, 10, Poisson(0.5)))
        adaptive(plan.with_(mechanism=loud), out=out)
    with pytest.raises(CheckpointError, match="run to resume"):
        go(plan, out=out, resume=True)
    with pytest.raises(ValueError, match="no labels"):
        go(plan, test=(data(1)[0], data(1)[0][:, :2]), out=out)
    assert not out.exists()
