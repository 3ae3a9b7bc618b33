"""The default plans of regressions on real tables: linear, additive and a network.

    python experiments/tables/values.py run FOLDER --seeds 2    # appends to values.jsonl
    python experiments/tables/values.py show

FOLDER is that of run.py; tables are of pydataset 0.2.0. On FIRST the share of a path was chosen,
first of networks, then of all; SEEN were run in between, with linear and additive models that had
the whole path. All others were named here before they were run. ``…-before`` is a model at the path
of classes, ten times as far: of networks by ten times the step size, of the other two, whose steps
have another limit, rows that were made before 33b9b190. Vocab was named, too, and left out: init
declares its label as classes. ``boosting`` is scikit-learn's
HistGradientBoostingRegressor, without privacy. R² on a quarter of the records.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from run import asked, read
from sets import MOST, fetch

from forethought.jobs.init import job_for
from forethought.jobs.job import Job, JobRequest, ModelSection
from forethought.jobs.train import prepare, run

ROWS = Path(__file__).parent / "values.jsonl"
FIRST = {
    "diamonds": "price",
    "Computers": "price",
    "Wages": "lwage",
    "OFP": "ofp",
    "BudgetFood": "wfood",
    "Housing": "price",
    "MedExp": "med",
}
HELD_OUT = {
    "VietNamH": "lnexp12m",
    "RetSchool": "wage76",
    "Males": "wage",
    "Workinghours": "income",
    "DoctorContacts": "mdu",
    "Star": "tmathssk",
    "Bwages": "wage",
    "SLID": "wages",
    "HI": "whrswk",
    "Hedonic": "mv",
    "PSID": "earnings",
}
SEEN = ("VietNamH", "RetSchool", "Males", "Workinghours", "DoctorContacts")
MODELS = ("linear", "additive", "mlp")
WAYS = (*MODELS, *(f"{model}-before" for model in MODELS))
EPSILONS = (0.3, 1.0, 8.0)


def job_of(folder: Path, name: str, label: str) -> str:
    """The job that ``forethought init`` writes, with a quarter held out."""
    path = folder / "values" / f"{name}.csv"
    if not path.is_file():
        (place,) = sorted(folder.rglob(f"{name}.csv"))[:1]
        frame = pl.read_csv(place, infer_schema=False)
        frame = frame.drop(frame.columns[0])
        path.parent.mkdir(exist_ok=True)
        frame[np.random.default_rng(0).permutation(len(frame))[:MOST]].write_csv(path)
    return job_for(path, label).replace("[data]\n", "[data]\nholdout = 0.25\n", 1)


def r_squared(job: Job, way: str, seed: int) -> float:
    """R² of a run of the library on held-out records."""
    model = ModelSection(name=way.removesuffix("-before"))
    seeds = {"seed": seed, "noise_seed": seed, "metrics": ("R²",)}
    changed = {"model": model, "run": job.run.model_copy(update=seeds)}
    job = job.model_copy(update=changed)
    if way == "mlp-before":
        rate = 10 * prepare(JobRequest("table", "", job)).plan.optimizer.learning_rate
        training = job.training.model_copy(update={"learning_rate": rate})
        job = job.model_copy(update={"training": training})
    with tempfile.TemporaryDirectory() as folder:
        run(prepare(JobRequest("table", "", job)), Path(folder) / "run")
        text = (Path(folder) / "run" / "results.json").read_text("utf-8")
    return float(json.loads(text)["figures"]["R²"]["value"])


def boosted(job: Job) -> float:
    """R² of boosted trees without privacy on the same records."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    data = job.load_data()
    model = HistGradientBoostingRegressor(random_state=0).fit(data.train.inputs, data.train.targets)
    return float(model.score(data.test.inputs, data.test.targets))


def go(given: argparse.Namespace) -> None:
    """Measure what is missing."""
    fetch(given.folder)
    done = {(row["table"], row["epsilon"], row["way"], row["seed"]) for row in read(ROWS)}
    ways = (*MODELS, "mlp-before")
    cases = [(w, e, s) for s in range(given.seeds) for e in EPSILONS for w in ways]
    for name, label in (FIRST | HELD_OUT).items():
        text = job_of(given.folder, name, label)
        for way, epsilon, seed in [("boosting", None, 0), *cases]:
            if (name, epsilon, way, seed) in done:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own = asked(text, epsilon or 1.0)
                found = boosted(own) if epsilon is None else r_squared(own, way, seed)
            row = {"table": name, "epsilon": epsilon, "way": way, "seed": seed, "R2": found}
            with ROWS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _cells(values: list[float]) -> str:
    return " | ".join("–" if math.isnan(value) else f"{value:.3f}" for value in values)


def show() -> None:
    """Print R² of every table, and the medians over tables."""
    found: dict[tuple, list[float]] = {}
    for row in read(ROWS):
        found.setdefault((row["table"], row["epsilon"], row["way"]), []).append(row["R2"])
    mean = {key: float(np.mean(values)) for key, values in found.items()}
    unseen = [name for name in HELD_OUT if name not in SEEN]
    for title, names in (("held out", unseen), ("seen", SEEN), ("looked at", FIRST)):
        print(f"\n| {title} | ε | {' | '.join(WAYS)} | boosting, not private |")
        print("| --- | ---: | " + "---: | " * (len(WAYS) + 1))
        for epsilon in EPSILONS:
            whole = [n for n in names if all((n, epsilon, way) in mean for way in MODELS)]
            rows = {n: [mean.get((n, epsilon, way), math.nan) for way in WAYS] for n in whole}
            for name, values in rows.items():
                both = [*values, mean[name, None, "boosting"]]
                print(f"| {name} | {epsilon:g} | " + _cells(both) + " |")
            if rows:
                middle = np.median(list(rows.values()), axis=0)
                trees = np.median([mean[name, None, "boosting"] for name in rows])
                both = [*middle, trees]
                print(f"| median | {epsilon:g} | " + _cells(both) + " |")


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--seeds", type=int, default=1)
    commands.add_parser("show")
    given = parser.parse_args()
    go(given) if given.command == "run" else show()


if __name__ == "__main__":
    main()
