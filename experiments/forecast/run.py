"""What the noise costs on tables, beside what the plan's forecast said it would cost.

The tables are those of experiments/newcomer whose last column has two classes, with the job that
``forethought init`` writes. AUC is of the held-out records, the mean of three private runs; without
privacy it is logistic regression's on the same features. Rows that are there are skipped.

    python experiments/forecast/run.py FOLDER --out experiments/forecast/rows.jsonl
    python experiments/forecast/run.py --show experiments/forecast/rows.jsonl
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from forethought.data import DataError
from forethought.jobs.init import job_for
from forethought.jobs.job import Job, Request, overridden
from forethought.jobs.train import prepare, run
from forethought.planning.defaults import noise_to_signal
from forethought.training.metrics import outputs_of

EPSILONS, REPEATS = (0.1, 0.3, 1.0, 3.0), 3


def tables(folder: Path) -> list[tuple[Path, str]]:
    """The tables of the other experiment."""
    path = Path(__file__).resolve().parents[1] / "newcomer" / "run.py"
    spec = importlib.util.spec_from_file_location("newcomer_run", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tables(folder)


def rows(path: Path, label: str, wanted: list[float], scratch: Path) -> list[dict[str, object]]:
    """One row for each ε, or one that says why there is none."""
    found: dict[str, object] = {"table": path.stem, "label": label}
    try:
        text = job_for(path, label)
        request = Request("trial", text, Job.parse(text))
        first = prepare(request)
    except (DataError, ValueError) as error:
        return [found | {"error": str(error)[:200]}]
    data = first.loaded.dataset
    if data.classes != 2 or data.test is None or len(set(data.test.targets.tolist())) < 2:
        return [found | {"error": "not two classes"}]
    model = LogisticRegression(max_iter=500).fit(data.train.inputs, data.train.targets)
    scores = model.decision_function(data.test.inputs)
    found |= {"records": len(data.train), "features": first.loaded.features}
    found["plain"] = float(roc_auc_score(data.test.targets, scores))
    lines = []
    for epsilon in wanted:
        private = []
        for repeat in range(REPEATS):
            prepared = prepare(overridden(request, {"epsilon": epsilon}))
            trained = run(prepared, scratch / f"{epsilon:g}-{repeat}", overwrite=True)
            outputs = outputs_of(trained.model, data.test.inputs)
            private.append(float(roc_auc_score(data.test.targets, outputs[:, 1] - outputs[:, 0])))
        plan = prepared.plan
        line = {"epsilon": epsilon, "private": float(np.mean(private)), "each": private}
        line |= {"noise": noise_to_signal(plan), "centred": plan.preparation is not None}
        lines.append(found | line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    asked.out.touch()
    lines = asked.out.read_text(encoding="utf-8").splitlines()
    have = {(row["table"], row["label"], row.get("epsilon")) for row in map(json.loads, lines)}
    for path, label in tables(asked.folder):
        if (path.stem, label, None) in have:
            continue
        wanted = [one for one in EPSILONS if (path.stem, label, one) not in have]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            found = rows(path, label, wanted, Path(scratch))
        with asked.out.open("a", encoding="utf-8") as file:
            for row in found:
                file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
