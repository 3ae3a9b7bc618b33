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
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from forethought.data import DataError
from forethought.jobs.init import job_for
from forethought.jobs.job import Job, JobRequest, overridden
from forethought.jobs.train import prepare, run
from forethought.planning.defaults import noise_to_signal
from forethought.planning.forecast import TABLES, Forecast
from forethought.training.metrics import outputs_of

EPSILONS, REPEATS = (0.1, 0.3, 1.0, 3.0), 3
# Tables of which less can be learnt say nothing; ends of what is looked at together.
LEAST, BOUNDS = 0.55, (10.0,)


def tables(folder: Path) -> list[tuple[Path, str]]:
    """The tables of the other experiment."""
    path = Path(__file__).resolve().parents[1] / "newcomer" / "run.py"
    spec = importlib.util.spec_from_file_location("newcomer_run", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tables(folder)


def rows(path: Path, label: str, wanted: list[float], scratch: Path) -> list[dict[str, Any]]:
    """One row for each ε, or one that says why there is none."""
    found: dict[str, Any] = {"table": path.stem, "label": label}
    try:
        text = job_for(path, label)
        request = JobRequest("trial", text, Job.parse(text))
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


def show(rows: list[dict[str, Any]]) -> None:
    """What the noise alone cost beside its forecast, and what was lost by how loud it was.

    What the noise alone costs is what a run at a smaller ε loses to the same table's at the largest
    one. Every second table was looked at when the factor was chosen; the others were not.
    """
    known = [row for row in rows if "epsilon" in row and row["plain"] > LEAST]
    names = list(dict.fromkeys(row["table"] for row in known))
    best = {row["table"]: row for row in known if row["epsilon"] == max(EPSILONS)}
    for words, chosen in (("looked at", names[::2]), ("fresh", names[1::2])):
        for tables in (1.0, TABLES):
            pairs = np.array(
                [
                    (
                        best[row["table"]]["private"] - row["private"],
                        told(best[row["table"]], tables).expected - told(row, tables).expected,
                    )
                    for row in known
                    if row["table"] in set(chosen) & set(best) and row["epsilon"] < max(EPSILONS)
                ]
            )
            lost, said = 100 * pairs.mean(0)
            off = 100 * np.abs(pairs[:, 0] - pairs[:, 1])
            print(
                f"{words}, {tables:g} x the formula: {len(pairs)} runs of {len(chosen)} tables "
                f"lost {lost:.2f}, said {said:.2f}, off by {off.mean():.2f}, by at most 1 in "
                f"{(off <= 1).sum()}, at most 3 in {(off <= 3).sum()}"
            )
    low = 0.0
    for high in BOUNDS:
        lost = sorted(
            row["plain"] - row["private"] for row in known if low < told(row, TABLES).noise <= high
        )
        if lost:
            place = min(len(lost), math.ceil(0.9 * (len(lost) + 1))) - 1
            print(
                f"noise over signal up to {high:g}: {len(lost)} runs lost {100 * lost[place]:.1f} "
                f"at most in nine of ten, {100 * lost[len(lost) // 2]:.1f} at the median"
            )
        low = high


def told(row: dict[str, Any], tables: float) -> Forecast:
    """The forecast of a row's plan, of which its noise is all that is needed."""
    without = min(row["plain"], 0.9999)
    apart = float(ndtri(without)) / math.sqrt(2)
    noise = tables * row["noise"] * math.sqrt(row["features"] * (row["features"] + apart**2))
    return Forecast(without, noise / apart, row["records"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="rows to print the figures of; nothing is run")
    asked = parser.parse_args()
    if asked.show is not None:
        show([json.loads(line) for line in asked.show.read_text(encoding="utf-8").splitlines()])
        return
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
