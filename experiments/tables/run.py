"""The default plan of table jobs on real tables, beside what it was, a grid, and boosted trees.

    python experiments/tables/run.py run FOLDER default before --seeds 2    # appends to rows.jsonl
    python experiments/tables/run.py run FOLDER wide --tables banana --epsilons 1 8
    python experiments/tables/run.py show                                     # the tables of docs

FOLDER keeps the downloaded tables (sets.py). A row is a table, an ε, a seed and a way; a command
skips the rows that there are. Ways:

- ``default``: the job that ``forethought init`` writes; ``before``: the same with
  ``basis = "none"`` and ``ranges = false``, the default before. Its rows were made at 9375ec1e,
  where paths of more than two classes were shorter as well;
- ``wide`` and ``wide-before``: both with ranges ten times as wide as init's;
- ``grid``: three bases by five paths around the planner's own, fifteen models;
- ``library`` and ``library-before``: the first two run by the library; all above are copies of
  their plans' rounds (copies.py), which take a tenth of the time;
- ``mlp``: the same job with ``model = "mlp"`` by the library; ``mlp-moments``: with moments that
  are released and paid for; ``mlp-longer``: with twice its plan's step size;
- ``boosting``, ``fitted``: without privacy, ε and seeds, scikit-learn's
  HistGradientBoostingClassifier, and its LogisticRegression on the features that ε 8 has.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import copies
import numpy as np
from sets import EPSILONS, HAD_A_SAY, HELD_OUT, LOOKED_AT, SETS, fetch, job_text

from forethought.jobs.job import Job, JobRequest, ModelSection
from forethought.jobs.train import prepare, run

ROWS = Path(__file__).parent / "rows.jsonl"
NETWORKS = ("mlp", "mlp-moments", "mlp-longer")
WAYS = ("default", "before", "wide", "wide-before", "grid", "library", "library-before", *NETWORKS)
FREE = ("boosting", "fitted")
BEFORE = {"basis": "none", "ranges": False}
PATHS = (0.25, 0.5, 1.0, 2.0, 4.0)
BASES = ("none", "hats", "both")
KEY = ("table", "epsilon", "seed", "way")


def asked(text: str, epsilon: float, **training: object) -> Job:
    """The job with another ε and keys of [training]."""
    job = Job.parse(text)
    budget = job.budget.model_copy(update={"epsilon": epsilon})
    own = job.training.model_copy(update=training)
    return job.model_copy(update={"budget": budget, "training": own})


def widened(job: Job) -> Job:
    """The job with every range ten times as wide, its lower end where it was."""
    columns = dict(job.data.columns or {})
    for name, value in columns.items():
        ends = value.get("range") if isinstance(value, dict) else value
        if isinstance(ends, list) and all(isinstance(end, int | float) for end in ends):
            low, high = ends
            wide = [low, low + 10 * (high - low)]
            columns[name] = value | {"range": wide} if isinstance(value, dict) else wide
    return job.model_copy(update={"data": job.data.model_copy(update={"columns": columns})})


def network(job: Job, way: str) -> Job:
    """The job with the default network, and what the way changes of its plan."""
    job = job.model_copy(update={"model": ModelSection(name="mlp")})
    if way == "mlp-moments":
        data = {"bounds": (-1.0, 1.0), "standardise": "private"}
        return job.model_copy(update={"data": job.data.model_copy(update=data)})
    if way == "mlp-longer":
        planned = prepare(JobRequest("table", "", job)).plan.optimizer.learning_rate
        training = job.training.model_copy(update={"learning_rate": 2 * planned})
        return job.model_copy(update={"training": training})
    return job


def copied(job: Job, seeds: list[int], path: float = 1.0) -> list[dict]:
    """Accuracy on held-out records, of copies of one plan.

    Args:
        path: so many times as long as planned.
    """
    prepared = prepare(JobRequest("table", "", job))
    basis = prepared.loaded.request.job.training.basis
    asked = prepared.plan.preparation is not None and prepared.plan.preparation.measures
    found = copies.accuracies(prepared, seeds, path)
    return [{"accuracy": accuracy, "basis": basis, "ranges": asked} for accuracy in found]


def by_library(job: Job, seeds: list[int]) -> list[dict]:
    """The same of runs of the library."""
    found = []
    for seed in seeds:
        given = {"seed": seed, "noise_seed": seed, "metrics": ("accuracy",)}
        own = job.model_copy(update={"run": job.run.model_copy(update=given)})
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            run(prepare(JobRequest("table", "", own)), Path(folder) / "run")
            text = (Path(folder) / "run" / "results.json").read_text("utf-8")
        seconds = round(time.perf_counter() - begun, 2)
        accuracy = json.loads(text)["figures"]["accuracy"]["value"]
        found.append({"accuracy": accuracy, "seconds": seconds})
    return found


def without_privacy(job: Job, way: str) -> float:
    """Accuracy on the same records of boosted trees, or of logistic regression on the features."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    data, model = job.load_data(), HistGradientBoostingClassifier(random_state=0)
    if way == "fitted":
        data = prepare(JobRequest("table", "", job)).loaded.dataset
        model = LogisticRegression(C=10, max_iter=300)
    model.fit(data.train.inputs, data.train.targets)
    return float(model.score(data.test.inputs, data.test.targets))


def measure(folder: Path, way: str, name: str, epsilon: float, seeds: list[int]) -> list[dict]:
    """The rows of a table and a way."""
    text = job_text(folder, name)
    at = {"table": name, "epsilon": epsilon, "way": way}
    if way in FREE:
        job = asked(text, 8.0)
        rows = [{"accuracy": without_privacy(job, way), "records": len(job.load_data().train)}]
        return [at | {"seed": 0, "epsilon": None} | row for row in rows]
    if way == "grid":
        rows = []
        numbers = asked(text, epsilon).load_data().encoder.numbers
        for basis in BASES if numbers else ("none",):
            for path in PATHS:
                own = copied(asked(text, epsilon, basis=basis), seeds, path)
                rows += [{"seed": s, "path": path} | r for s, r in zip(seeds, own, strict=True)]
        return [at | row for row in rows]
    job = asked(text, epsilon, **(BEFORE if way.endswith("before") else {}))
    if way in NETWORKS:
        job = network(job, way)
    if way.startswith("wide"):
        job = widened(job)
    measured = by_library if way.startswith(("library", "mlp")) else copied
    own = measured(job, seeds)
    return [at | {"seed": s} | row for s, row in zip(seeds, own, strict=True)]


def read(rows: Path = ROWS) -> list[dict]:
    """The rows that there are."""
    lines = rows.read_text("utf-8").splitlines() if rows.is_file() else []
    return [json.loads(line) for line in lines]


def go(given: argparse.Namespace) -> None:
    """Measure what is missing."""
    fetch(given.folder)
    done = {tuple(row[part] for part in KEY) for row in read()}
    for way in given.ways:
        for epsilon in (None,) if way in FREE else given.epsilons:
            for name in given.tables:
                seeds = [0] if way in FREE else list(range(given.seeds))
                seeds = [s for s in seeds if (name, epsilon, s, way) not in done]
                if not seeds:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    rows = measure(given.folder, way, name, epsilon or 1.0, seeds)
                with ROWS.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
                print(way, name, epsilon, [round(100 * row["accuracy"], 1) for row in rows][:3])
                sys.stdout.flush()


# Records of a table that the goal beside boosted trees is about.
LARGE = 5_000


def line(what: str, gaps: dict[str, float]) -> None:
    """A row of differences by table."""
    if gaps:
        values, worst = list(gaps.values()), min(gaps, key=lambda name: gaps[name])
        print(
            f"| {what} | {len(gaps)} | {np.mean(values):+.1f} | {np.median(values):+.1f} "
            f"| {gaps[worst]:+.1f} ({worst}) |"
        )


def show() -> None:
    """Print the tables that docs/defaults.md quotes."""
    found: dict[tuple, list[float]] = {}
    for row in read():
        if "path" not in row:
            key = row["table"], row["epsilon"], row["way"]
            found.setdefault(key, []).append(100 * row["accuracy"])
    mean = {key: float(np.mean(values)) for key, values in found.items()}
    unseen = [name for name in HELD_OUT if name not in HAD_A_SAY]
    for title, names in (("held out", unseen), ("looked at", (*LOOKED_AT, *HAD_A_SAY))):
        print(f"\nTables that were {title}\n")
        print("| ε | tables | before | default | mean gain | median gain | worst | best |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |")
        for epsilon in EPSILONS:
            both = [n for n in names if {(n, epsilon, w) for w in WAYS[:2]} <= set(mean)]
            if both:
                old, new = ([mean[n, epsilon, w] for n in both] for w in ("before", "default"))
                gains = np.subtract(new, old)
                ends = [f"{gains[at]:+.1f} ({both[at]})" for at in (gains.argmin(), gains.argmax())]
                print(
                    f"| {epsilon:g} | {len(both)} | {np.mean(old):.1f} | {np.mean(new):.1f} "
                    f"| {gains.mean():+.1f} | {np.median(gains):+.1f} | {ends[0]} | {ends[1]} |"
                )
    print("\nHeld-out tables\n\n| what | tables | mean | median | worst |")
    print("| --- | ---: | ---: | ---: | --- |")
    pairs = (
        ("ranges ten times too wide, ε 1", "wide", 1.0, "default", 1.0),
        ("the same before", "wide-before", 1.0, "before", 1.0),
        ("default at ε 8 over boosted trees without privacy", "default", 8.0, "boosting", None),
        ("such trees over before at ε 8", "boosting", None, "before", 8.0),
        ("such trees over before at ε 1", "boosting", None, "before", 1.0),
        ("its own features without privacy over before at ε 8", "fitted", None, "before", 8.0),
        *(
            (f"a network {what}, ε {at:g}", f"mlp-{way}", at, "mlp", at)
            for way, what in (("moments", "with paid moments"), ("longer", "with twice the path"))
            for at in (0.1, 1.0, 8.0)
        ),
        *(
            (f"the library's runs over copies, {way}, ε {at:g}", f"library{end}", at, way, at)
            for way, end in (("default", ""), ("before", "-before"))
            for at in (0.1, 1.0, 8.0)
        ),
    )
    for what, way, epsilon, other, at in pairs:
        both = [n for n in unseen if (n, epsilon, way) in mean and (n, at, other) in mean]
        line(what, {n: mean[n, epsilon, way] - mean[n, at, other] for n in both})
        if other == "mlp":
            both = [n for n in LOOKED_AT if {(n, at, way), (n, at, other)} <= set(mean)]
            gaps = {n: mean[n, at, way] - mean[n, at, other] for n in both}
            line(f"{what}, looked at", gaps)
        if way == "default":
            large = {row["table"] for row in read() if row.get("records", 0) >= LARGE}
            gaps = {n: mean[n, epsilon, way] - mean[n, at, other] for n in both if n in large}
            line(f"the same, {LARGE:,} records or more", gaps)
    best, same = besides()
    gaps = {case: same[case] - best[case] for case in same if case[0] in unseen}
    for at in EPSILONS:
        line(
            f"default over the best of fifteen, ε {at:g}",
            {n: g for (n, e), g in gaps.items() if e == at},
        )
    near = sum(gap >= -1.5 for gap in gaps.values())
    print(f"\nWithin 1.5 of the best of fifteen: {near} of {len(gaps)}")
    fair = chosen_apart()
    near = sum(gap >= -1.5 for gap in fair)
    print(f"Of fifteen chosen on two seeds, on the third: {near} of {len(fair)}")
    print("\n| table | ε | seeds | before | default |\n| --- | ---: | ---: | ---: | ---: |")
    for name, epsilon, way in sorted(k for k in mean if k[2] == "default"):
        if (name, epsilon, "before") in mean:
            old, new = (f"{mean[name, epsilon, w]:.1f}" for w in ("before", way))
            seeds = len(found[name, epsilon, way])
            print(f"| {name} | {epsilon:g} | {seeds} | {old} | {new} |")


def besides() -> tuple[dict[tuple, float], dict[tuple, float]]:
    """The best mean of a grid by table and ε, and the default's over the same seeds."""
    models: dict[tuple, dict[tuple, dict[int, float]]] = {}
    for row in read():
        model = models.setdefault((row["table"], row["epsilon"]), {})
        which = (row["basis"], row["path"]) if row["way"] == "grid" else (row["way"],)
        model.setdefault(which, {})[row["seed"]] = 100 * row["accuracy"]
    best, same = {}, {}
    for case, found in models.items():
        grid = {which: own for which, own in found.items() if len(which) == 2}
        if grid and ("default",) in found:
            best[case] = max(float(np.mean(list(own.values()))) for own in grid.values())
            seeds = set.intersection(*(set(own) for own in grid.values()))
            same[case] = float(np.mean([found["default",][seed] for seed in seeds]))
    return best, same


def chosen_apart() -> list[float]:
    """The default less the best of a grid by all seeds but one, on that one, in the mean."""
    models: dict[tuple, dict[tuple, dict[int, float]]] = {}
    for row in read():
        if row["way"] in ("grid", "default") and row["table"] not in HAD_A_SAY:
            model = models.setdefault((row["table"], row["epsilon"]), {})
            which = (row["basis"], row["path"]) if row["way"] == "grid" else ("default",)
            model.setdefault(which, {})[row["seed"]] = 100 * row["accuracy"]
    gaps = []
    for found in models.values():
        default, grid = found.pop(("default",), {}), list(found.values())
        seeds = sorted(set.intersection(*map(set, (default, *grid)))) if grid else []
        if len(seeds) < 2:
            continue
        apart = []
        for seed in seeds:
            rest = [each for each in seeds if each != seed]
            best = max(grid, key=lambda own, rest=rest: np.mean([own[each] for each in rest]))
            apart.append(default[seed] - best[seed])
        gaps.append(float(np.mean(apart)))
    return gaps


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("ways", nargs="+", choices=WAYS + FREE)
    running.add_argument("--tables", nargs="+", choices=list(SETS), default=list(HELD_OUT))
    running.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    running.add_argument("--seeds", type=int, default=1)
    commands.add_parser("show")
    given = parser.parse_args()
    go(given) if given.command == "run" else show()


if __name__ == "__main__":
    main()
