"""Examples that show a callback or a loop of one's own run, and what they wrote can be read."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[1] / "examples"


def ran(name: str, folder: Path) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](folder)


@pytest.mark.slow
def test_tensorboard_holds_accuracy_and_what_was_spent(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = ran("watched_by_tensorboard", tmp_path)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"held-out/accuracy", "step size", "privacy/epsilon"}
    spent = [row.value for row in found.Scalars("privacy/epsilon")]
    assert spent == sorted(spent) and spent[-1] == pytest.approx(run.statement.epsilon.upper, 1e-2)
    assert found.Scalars("held-out/accuracy")[-1].value > 0.75
    assert "statement/text_summary" in found.Tags()["tensors"]


@pytest.mark.slow
def test_mlflow_holds_metrics_and_the_statement(tmp_path: Path) -> None:
    import mlflow

    run = ran("watched_by_mlflow", tmp_path)
    client = mlflow.MlflowClient(tmp_path.resolve().as_uri())
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert set(logged.data.metrics) == {"accuracy", "epsilon", "learning_rate"}
    assert logged.data.metrics["accuracy"] == pytest.approx(run.accuracy)
    assert logged.data.metrics["epsilon"] == pytest.approx(run.statement.epsilon.upper)
    folder = Path(logged.info.artifact_uri.removeprefix("file://"))
    assert (folder / "statement.json").read_text().strip() == run.statement.to_json()


def test_growing_samples_are_planned_from_the_job() -> None:
    from forethought.jobs.job import Job

    plan = Job.load(EXAMPLES / "growing.toml").make_plan(1_437, 650)
    sizes = [plan.round(index).divisor for index in range(plan.rounds)]
    assert plan.rounds == 120 and sizes == sorted(sizes) and sizes[-1] > 4 * sizes[0]
