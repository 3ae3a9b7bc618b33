"""Whatever a run folder holds, its statement is that of the plan beside it, and an edit is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.accounting.adaptive import NegativeBinomialTrials
from forethought.accounting.statement import StatementError
from forethought.jobs.account import verified
from forethought.mechanism import Budget, Mechanism, Rounds
from forethought.planning.phase_plans import next_by_shortfall, plan_phases
from forethought.plans import Plan
from forethought.privacy import Clip
from forethought.samplings import Poisson
from forethought.use import Optimizer

EXAMPLES = 200


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(EXAMPLES, 6))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(np.int64)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 2)


def plan(**changes: Any) -> Plan:
    mechanism = Mechanism(Rounds(2.0, 8, Poisson(0.25)))
    return Plan(mechanism, EXAMPLES, 1e-5, optimizer=Optimizer("sgd", 0.3, ()), **changes)


def phases() -> Plan:
    whole = ft.plan(
        examples=EXAMPLES, budget=Budget(2.0, 1e-4), rounds=12, batch=50, learning_rate=0.3
    )
    return plan_phases(whole, phases=3)


def one(out: Path, **options: Any) -> None:
    ft.train(model(), data(), plan(), test=data(1), out=out, **options)


def quantile(out: Path) -> None:
    chosen = plan(clip=Clip(1.0, "quantile", count_noise=20.0), not_covered=("means of columns",))
    ft.train(model(), data(), chosen, out=out)


def grid(out: Path) -> None:
    ft.train(model(), data(), plan(noise="grid"), out=out)


def fixed(out: Path) -> None:
    ft.train_until(model(), data(), phases(), accuracy=1.0, test=data(1), out=out)


def stopped(out: Path) -> None:
    ft.train_until(model(), data(), phases(), accuracy=0.01, test=data(1), out=out)


def filtered(out: Path) -> None:
    ft.train_until(
        model(), data(), phases(), accuracy=1.0, test=data(1), next_phase=next_by_shortfall, out=out
    )


def searched(out: Path) -> None:
    ft.tune(
        model,
        data(),
        [plan(), plan().with_(optimizer=Optimizer("sgd", 0.1, ()))],
        trials=NegativeBinomialTrials.of_mean(3, 0.0),
        holdout=data(1),
        out=out,
    )


RUNS: dict[str, Callable[[Path], None]] = {
    "one": one,
    "seeded batches": lambda out: one(out, seed=1),
    "seeded noise": lambda out: one(out, noise_seed=1),
    "quantile": quantile,
    "grid": grid,
    "fixed phases": fixed,
    "stopped phases": stopped,
    "filtered phases": filtered,
    "search": searched,
}


@pytest.fixture(scope="module", params=RUNS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    RUNS[request.param](path)
    return path


def test_a_run_folder_verifies_with_its_plan(folder: Path) -> None:
    found = verified(folder)
    assert {"plan", "clip_norm", "examples", "epsilon", "attack"} <= set(found.checked)
    assert found.statement.releases
    assert "Nothing is known" not in (folder / "statement.md").read_text()


def test_a_seed_is_said_and_never_written(folder: Path) -> None:
    statement = ft.Statement.load(folder / "statement.json")
    if statement.randomness.seeded_noise:
        assert statement.sentences()[0].startswith("Not private: seeded.")
    elif statement.randomness.seeded_sampling:
        assert statement.accountant["kind"] == "known-batches"
    else:
        assert "seed" not in statement.to_markdown()


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "clip norm": lambda p: p["privacy"]["clip"].__setitem__("norm", 0.5),
    "learning rate": lambda p: p["use"]["optimizer"].__setitem__("learning_rate", 9.0),
    "delta": lambda p: p["privacy"].__setitem__("delta", 1e-7),
    "examples": lambda p: p["privacy"].__setitem__("examples", 199),
    "use of data": lambda p: p["not_covered"].append({"code": "stated", "detail": "more"}),
    "chosen by": lambda p: p.__setitem__("hyperparameters", {"code": "planned", "detail": ""}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_beside_it_is_noticed(folder: Path, tmp_path: Path, edit: str) -> None:
    for name in ("plan.json", "statement.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    verified(tmp_path)
    values = json.loads((tmp_path / "plan.json").read_text())
    before = json.dumps(values)
    EDITS[edit](values)
    if json.dumps(values) == before:
        pytest.skip("the plan says so already")
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises((StatementError, ValueError)):
        verified(tmp_path)


def test_another_delta_or_group_is_accounted_from_the_statement(tmp_path: Path) -> None:
    from forethought.jobs.account import statement_of

    one(tmp_path / "run")
    pair = statement_of(tmp_path / "run", group=2)
    assert pair.group == 2
    assert pair.epsilon.upper > statement_of(tmp_path / "run").epsilon.upper
    assert pair.epsilon == ft.epsilon(plan().mechanism, 1e-5, 2)
