"""A hospital's table at ε = 3 against logistic regression without privacy, seed by seed.

python experiments/hospital/run.py            # five seeds, rows and persons; resumes results.csv
python experiments/hospital/run.py --seeds 20

The table is that of tests/jobs/test_predict.py: age, bmi, creatinine, platelets, ward, missing
values, about three stays a patient; 6,000 rows to train on and 4,000 new ones. Jobs are those that
`forethought init` writes; of persons with person = "patient_id".
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import tempfile
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.linear_model import LogisticRegression

import forethought as ft
from forethought.jobs.init import job_for
from forethought.jobs.job import Job, JobRequest
from forethought.jobs.train import prepare, run

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
FIELDS = ("seed", "protects", "accuracy", "scikit_learn", "way")


def hospital(path: Path, count: int, seed: int) -> None:
    """The table of the tests."""
    place = HERE.parents[1] / "tests" / "jobs" / "test_predict.py"
    spec = importlib.util.spec_from_file_location("hospital", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.hospital(path, count, seed)


def job_text(table: Path, protects: str) -> str:
    """The job that init writes, for rows or for persons."""
    text = job_for(table, "died")
    if protects == "rows":
        return text
    lines = [line for line in text.splitlines() if not line.startswith("patient_id")]
    at = lines.index("[data.columns]")
    return "\n".join([*lines[:at], 'person = "patient_id"', *lines[at:], ""])


def measured(seed: int, protects: str) -> dict[str, object]:
    """One trained model beside one without privacy."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        hospital(folder / "patients.csv", 6000, seed=2 * seed)
        hospital(folder / "new.csv", 4000, seed=2 * seed + 1)
        text = job_text(folder / "patients.csv", protects)
        prepared = prepare(JobRequest("hospital", text, Job.parse(text)))
        run(prepared, folder / "run")
        predictor = ft.load(folder / "run")
        new = pl.read_csv(folder / "new.csv", infer_schema=False)
        truth = new["died"].to_numpy()
        data = prepared.loaded.request.job.load_data()
        train = data.train
        other = LogisticRegression(C=1e3, max_iter=5000).fit(train.inputs, train.targets)
        features = data.encoder.encode(new, "new.csv")
        theirs = np.mean((other.predict(features) == 1) == (truth == "yes"))
        return {
            "seed": seed,
            "protects": protects,
            "accuracy": f"{np.mean(predictor.predict(new) == truth):.4f}",
            "scikit_learn": f"{theirs:.4f}",
            "way": prepared.plan.contribution.kind,
        }


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    done = list(csv.DictReader(RESULTS.open())) if RESULTS.is_file() else []
    for seed in range(seeds):
        for protects in ("rows", "persons"):
            if any((row["seed"], row["protects"]) == (str(seed), protects) for row in done):
                continue
            done.append(measured(seed, protects))
            with RESULTS.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(done)
    for protects in ("rows", "persons"):
        rows = [row for row in done if row["protects"] == protects]
        gaps = np.array([float(row["accuracy"]) - float(row["scikit_learn"]) for row in rows])
        mean = np.mean([float(row["accuracy"]) for row in rows])
        print(
            f"{protects}: {mean:.1%} over {len(rows)} seeds, {100 * gaps.mean():+.1f} points from "
            f"scikit-learn (worst {100 * gaps.min():+.1f})"
        )


if __name__ == "__main__":
    main()
