"""ft.train with a callback that logs to MLflow: `pip install mlflow-skinny`.

Run me with `python examples/watched_by_mlflow.py [FOLDER]`. A callback is any function of an
event: the round, and what was measured last. Loss on private batches and the like stay with the
operator; what follows from the released model may be shown.
"""

import os
import sys
from pathlib import Path

import mlflow
import torch
from sklearn.datasets import load_digits
from torch import nn

import forethought as ft
from forethought.training.metrics import Event

# What follows from the released model and held-out records.
SHOWN = ("accuracy", "epsilon", "learning_rate")


def log(event: Event) -> None:
    if event.round % 10 and event.round < event.rounds:
        return
    values = {name: getattr(event, name) for name in SHOWN}
    shown = {name: float(value) for name, value in values.items() if value is not None}
    mlflow.log_metrics(shown, step=event.round)


def main(folder: Path) -> ft.Run:
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype("float32")
    plan = ft.plan(examples=1500, budget=ft.Budget(3.0, 1e-5), epochs=10)
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # of MLflow 3: no data base needed
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing leaves this machine
    mlflow.set_tracking_uri(folder.resolve().as_uri())
    mlflow.set_experiment("digits")
    torch.manual_seed(0)
    with mlflow.start_run():
        mlflow.log_params({"epsilon": 3.0, "rounds": plan.rounds, "batch": plan.batch})
        run = ft.train(
            nn.Linear(64, 10),
            (pixels[:1500], labels[:1500]),
            plan,
            test=(pixels[1500:], labels[1500:]),
            progress=log,
        )
        mlflow.log_text(run.statement.to_markdown(), "statement.md")
        mlflow.log_text(run.statement.to_json(), "statement.json")
    print(f"held-out accuracy {run.accuracy:.1%}", *run.statement.sentences(), sep="\n")
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/mlflow"))
