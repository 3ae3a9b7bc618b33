"""Error against ε of every statistic, on real columns; quantiles by four methods at one noise.

python experiments/statistics/run.py --data-dir DIR [--repeats 20]

DIR holds ``uci/adult.data.gz`` and ``libsvm/a9a.gz`` (.t). The survival table is flchain (Mayo
Clinic, 7,874 persons), as scikit-survival ships it, where that is installed; made-up Weibull times
beside it. Writes results.csv and results.md.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from forethought.accounting.exact import noise_multiplier
from forethought.statistics import (
    AUC,
    Accuracy,
    Count,
    Histogram,
    Mean,
    Quantiles,
    Statistic,
    Sum,
    Survival,
    request,
)
from forethought.values.mechanism import Budget, FullBatch

HERE = Path(__file__).parent
DELTA = 1e-6
EPSILONS = (0.1, 0.3, 1.0, 3.0)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
Columns = dict[str, np.ndarray]
Row = dict[str, object]


def adult(folder: Path) -> Columns:
    """Numbers and words of the training table, 32,561 records."""
    with gzip.open(folder / "uci" / "adult.data.gz", "rt") as file:
        table = [line.strip().split(", ") for line in file if line.strip()]
    numbers = {"age": 0, "weight": 2, "gain": 10, "hours": 12}
    columns = {name: np.array([float(row[at]) for row in table]) for name, at in numbers.items()}
    return {**columns, "sex": np.array([row[9] for row in table])}


def scores(folder: Path) -> Columns:
    """Held-out scores of a logistic regression: 2,000 records of a9a's test set."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.linear_model import LogisticRegression

    inputs, labels = load_svmlight_file(str(folder / "libsvm" / "a9a.gz"), n_features=123)
    model = LogisticRegression(max_iter=300).fit(inputs, labels > 0)
    inputs, labels = load_svmlight_file(str(folder / "libsvm" / "a9a.t.gz"), n_features=123)
    score = model.predict_proba(inputs[:2000])[:, 1]
    label = (labels[:2000] > 0).astype(int)
    return {"score": score, "label": label, "prediction": (score > 0.5).astype(int)}


def survival_tables() -> Iterator[tuple[str, Columns, float]]:
    """Name, times and events, and the last time that is asked for."""
    generator = np.random.default_rng(1)
    event, censored = 60 * generator.weibull(1.3, 5000), generator.uniform(0, 90, 5000)
    made = {"time": np.minimum(event, censored), "event": (event <= censored).astype(int)}
    yield "Weibull, 5,000 made-up", made, 72.0
    found = find_spec("sksurv")
    if found is None or found.origin is None:
        print("flchain is left out: scikit-survival is not installed")
        return
    text = (Path(found.origin).parent / "datasets" / "data" / "flchain.arff").read_text()
    lines = [line.lower() for line in text.splitlines()]
    names = [line.split()[1].strip("'") for line in lines if line.startswith("@attribute")]
    rows = [line.split(",") for line in lines[lines.index("@data") + 1 :] if line]
    days = np.array([float(row[names.index("futime")]) for row in rows])
    died = np.array([row[names.index("death")].strip("' ") in ("dead", "1") for row in rows])
    yield f"flchain, {len(rows):,} persons", {"time": days, "event": died.astype(int)}, 5000.0


def kaplan_meier(held: Columns, grid: np.ndarray) -> np.ndarray:
    """The exact curve, by its definition."""
    times, happened = held["time"], held["event"] > 0
    ends = np.unique(times[happened])
    died = np.array([(happened & (times == time)).sum() for time in ends])
    risk = np.array([(times >= time).sum() for time in ends])
    curve = np.concatenate([[1.0], np.cumprod(1 - died / risk)])
    return np.asarray(curve[np.searchsorted(ends, grid, side="right")])


def exact_area(held: Columns) -> float:
    """The exact AUC, ties counted as half."""
    positive, negative = (held["score"][held["label"] == one] for one in (1, 0))
    apart = positive[:, None] - negative
    return float(((apart > 0) + 0.5 * (apart == 0)).mean())


def off_rank(column: np.ndarray, values: Sequence[float], shares: Sequence[float]) -> np.ndarray:
    """Share of the records between each value and a true quantile."""
    ordered = np.sort(column)
    below = np.searchsorted(ordered, values, side="left") / len(column)
    upto = np.searchsorted(ordered, values, side="right") / len(column)
    wanted = np.array(shares)
    return np.maximum(0, np.maximum(below - wanted, wanted - upto))


def released(
    one: Statistic, held: Columns, exact: np.ndarray, where: str, repeats: int, unit: str
) -> Iterator[Row]:
    """Errors of a statistic at every ε: the largest of its numbers in each of the releases."""
    size = len(next(iter(held.values())))
    for epsilon in EPSILONS:
        asked = request([one], examples=size, budget=epsilon, delta=DELTA)
        worst, inside, stated = [], [], 1.0
        for seed in range(repeats):
            found = asked.release(held, seed=seed).results[0]
            known = np.array(["not stated" not in each.name for each in found])
            stated = min(stated, float(known.mean()))
            values = np.array([each.value for each in found])
            if known.any():
                worst.append(float(np.abs(values - exact)[known].max()))
                ends = zip(found, exact, known, strict=True)
                inside += [each.low <= true <= each.high for each, true, use in ends if use]
        if not worst:
            continue
        expected, _ = asked.expected()[one.name]
        yield {
            "statistic": one.kind,
            "data": where,
            "method": "library",
            "epsilon": epsilon,
            "unit": unit,
            "median": np.median(worst),
            "95 %": np.quantile(worst, 0.95),
            "expected 95 %": expected,
            "in the interval": np.mean(inside),
            "stated": stated,
        }


def by_flat(column: np.ndarray, ends: tuple[float, float], sigma: float, generator) -> list[float]:
    """Naive: separate noise on each of 1,024 counts, added up."""
    counts, edges = np.histogram(column.clip(*ends), 1024, ends)
    sums = np.maximum.accumulate(np.cumsum(counts + sigma * generator.standard_normal(1024)))
    return _crossings(sums, edges, len(column))


def by_tree(column: np.ndarray, ends: tuple[float, float], sigma: float, generator) -> list[float]:
    """A binary tree over 1,024 counts, made consistent (Hay et al. 2010)."""
    counts, edges = np.histogram(column.clip(*ends), 1024, ends)
    levels = [counts.astype(float)]
    while len(levels[-1]) > 1:
        levels.append(levels[-1].reshape(-1, 2).sum(axis=1))
    std = sigma * np.sqrt(len(levels))
    noised = [level + std * generator.standard_normal(len(level)) for level in levels]
    up = [noised[0]]
    for height, level in enumerate(noised[1:], 2):
        from_below = up[-1].reshape(-1, 2).sum(axis=1)
        keep = (2**height - 2 ** (height - 1)) / (2**height - 1)
        up.append(keep * level + (1 - keep) * from_below)
    down = up[-1]
    for level in reversed(up[:-1]):
        gap = (down - level.reshape(-1, 2).sum(axis=1)) / 2
        down = level + np.repeat(gap, 2)
    return _crossings(np.maximum.accumulate(np.cumsum(down)), edges, len(column))


def by_search(
    column: np.ndarray, ends: tuple[float, float], sigma: float, generator
) -> list[float]:
    """Noisy binary search on the grid: ten counts for each quantile, all of one budget."""
    std = sigma * np.sqrt(10 * len(SHARES))
    found = []
    for share in SHARES:
        low, high = ends
        for _ in range(10):
            middle = (low + high) / 2
            below = (column < middle).sum() + std * generator.standard_normal()
            low, high = (middle, high) if below < share * len(column) else (low, middle)
        found.append((low + high) / 2)
    return found


def _crossings(sums: np.ndarray, edges: np.ndarray, total: int) -> list[float]:
    places = [min(1023, int(np.searchsorted(sums, share * total))) for share in SHARES]
    return [float(edges[place] + edges[place + 1]) / 2 for place in places]


METHODS: dict[str, Callable[..., list[float]]] = {
    "separate noise": by_flat,
    "binary tree": by_tree,
    "binary search": by_search,
}


def quantiles(
    column: np.ndarray, ends: tuple[float, float], where: str, repeats: int
) -> Iterator[Row]:
    """Four methods at the same ε, by the share of records between what comes out and the truth."""
    one = Quantiles(column="x", range=ends, at=SHARES)
    for epsilon in EPSILONS:
        sigma = noise_multiplier(Budget(epsilon, DELTA), FullBatch(), 1)
        asked = request([one], examples=len(column), budget=epsilon, delta=DELTA)
        errors: dict[str, list[float]] = {"running sums (library)": []}
        for seed in range(repeats):
            found = asked.release({"x": column}, seed=seed).results[0]
            values = [each.value for each in found]
            errors["running sums (library)"].append(off_rank(column, values, SHARES).max())
            for name, method in METHODS.items():
                values = method(column, ends, sigma, np.random.default_rng(seed))
                errors.setdefault(name, []).append(off_rank(column, values, SHARES).max())
        for name, worst in errors.items():
            yield {
                "statistic": "quantiles",
                "data": where,
                "method": name,
                "epsilon": epsilon,
                "unit": "share of records",
                "median": np.median(worst),
                "95 %": np.quantile(worst, 0.95),
                "expected 95 %": asked.expected()[one.name][0] if "library" in name else "",
                "in the interval": "",
                "stated": "",
            }


def rows(folder: Path, repeats: int) -> Iterator[Row]:
    """All of them."""
    own = scores(folder)
    yield from released(AUC(), own, np.array([exact_area(own)]), "a9a, 2,000", repeats, "area")
    right = np.array([(own["prediction"] == own["label"]).mean()])
    yield from released(Accuracy(), own, right, "a9a, 2,000", repeats, "share")
    for where, table, until in survival_tables():
        one = Survival(until=until)
        grid = np.linspace(0, until, one.steps + 1)[1:]
        yield from released(one, table, kaplan_meier(table, grid), where, repeats, "survival")
    held = adult(folder)
    women, age = held["sex"] == "Female", held["age"]
    for one, exact, unit in [
        (Count(where={"sex": "Female"}), [women.sum()], "records"),
        (Sum(column="hours", range=(0, 100)), [held["hours"].sum()], "hours"),
        (Mean(column="age", range=(0, 120)), [age.mean()], "years"),
        (Mean(column="age", range=(0, 120), where={"sex": "Female"}), [age[women].mean()], "years"),
        (
            Histogram(column="age", range=(0, 120), bins=24),
            np.histogram(age, 24, (0, 120))[0],
            "records",
        ),
    ]:
        where = "Adult" if one.where == () else "Adult, women"
        yield from released(one, held, np.array(exact, dtype=float), where, repeats, unit)
    yield from quantiles(held["weight"], (0.0, 2e6), "Adult, weight", repeats)


def table(found: list[Row]) -> str:
    """The rows as Markdown."""
    names = list(found[0])
    lines = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
    for row in found:
        shown = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compute and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    found = []
    for row in rows(given.data_dir, given.repeats):
        print(row, flush=True)
        found.append(row)
        write(found, given.repeats)


def write(found: list[Row], repeats: int) -> None:
    """Both files, with what is there so far."""
    with (HERE / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    head = f"δ = {DELTA:g}, {repeats} releases each; the largest error of a result's numbers."
    (HERE / "results.md").write_text(f"{head}\n\n{table(found)}")


if __name__ == "__main__":
    main()
