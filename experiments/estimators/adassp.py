"""PrivateLinearRegression beside AdaSSP (Wang 2018, "Revisiting differentially private linear
regression", Algorithm 2), on the same features, bounds and δ.

    python experiments/estimators/adassp.py PYDATASET    # appends what adassp.jsonl lacks
    python experiments/estimators/adassp.py --table

PYDATASET is the folder that the package pydataset 0.2.0 unpacks its resources.tar.gz into. Ranges
are those that ``forethought init`` writes; the last column is predicted, scaled to [−1, 1]; four
fifths are trained on, at most 20,000 rows. No constant of the estimator was chosen on these tables.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
ROWS, MOST, SEEDS, EPSILONS = HERE / "adassp.jsonl", 20_000, 5, (0.1, 1.0, 3.0)
TABLES = (
    *("NOxEmissions", "Vocab", "Computers", "Wages1", "Wages", "MunExp", "radarImage", "bfi"),
    *("UnempDur", "mdvis", "Tuna", "Forbes2000"),
)


def adassp(
    X: NDArray[Any],
    y: NDArray[Any],
    epsilon: float,
    delta: float,
    bounds: tuple[float, float],
    draw: np.random.Generator,
) -> NDArray[Any]:
    """Weights by sufficient statistics with noise, and a ridge that adapts to it.

    Args:
        bounds: of each record's norm and of its target. draw: of the noise.
    """
    size, target = bounds
    d, share = X.shape[1], epsilon / 3
    scale = math.sqrt(math.log(6 / delta)) / share
    gram = X.T @ X
    least = float(np.linalg.eigvalsh(gram)[0]) + scale * size**2 * draw.normal()
    least = max(least - math.log(6 / delta) / share * size**2, 0.0)
    spread = math.sqrt(d * math.log(6 / delta) * math.log(2 * d**2 / 0.05)) * size**2 / share
    ridge = max(0.0, spread - least)
    upper = np.triu(draw.normal(size=(d, d)))
    noise = upper + np.triu(upper, 1).T
    noised = gram + scale * size**2 * noise
    moment = X.T @ y + scale * size * target * draw.normal(size=d)
    found: NDArray[Any] = np.linalg.solve(noised + ridge * np.eye(d), moment)
    return found


def rows(folder: Path) -> None:
    """Append what is not there."""
    from forethought.estimators import PrivateLinearRegression
    from forethought.jobs.init import job_for
    from forethought.jobs.job import Job

    warnings.simplefilter("ignore")
    there = {(r["table"], r["epsilon"], r["seed"]) for r in read()}
    for name in TABLES:
        path = next(p for p in folder.rglob(f"{name}.csv") if not p.name.startswith("."))
        with tempfile.TemporaryDirectory() as scratch:
            job = Path(scratch) / "job.toml"
            label = path.read_text("utf-8").splitlines()[0].split(",")[-1].strip('"')
            job.write_text(job_for(path, label), encoding="utf-8")
            data = Job.load(job).load_data()
        if data.classes is not None or data.encoder is None or data.test is None:
            print(f"{name} is no regression", file=sys.stderr)
            continue
        X = np.concatenate([data.train.inputs, data.test.inputs]).astype(np.float64)
        y = np.concatenate([data.train.targets, data.test.targets]).astype(np.float64)
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(len(X))[:MOST]
            cut = len(order) * 4 // 5
            train, test = order[:cut], order[cut:]
            for epsilon in EPSILONS:
                if (name, epsilon, seed) in there:
                    continue
                delta = 1 / (10 * cut)
                own = PrivateLinearRegression(
                    epsilon=epsilon,
                    delta=delta,
                    feature_bound=data.encoder.bound,
                    target_range=(-1, 1),
                    random_state=seed,
                ).fit(X[train], y[train])
                wide = np.hstack([X, np.ones((len(X), 1))])  # its intercept
                limits = math.hypot(data.encoder.bound, 1.0), 1.0
                draw = np.random.default_rng((seed, 7))
                weights = adassp(wide[train], y[train], epsilon, delta, limits, draw)
                spread = float(np.square(y[test] - y[test].mean()).mean())
                theirs = 1 - float(np.square(y[test] - wide[test] @ weights).mean()) / spread
                row = {
                    "table": name,
                    "rows": len(order),
                    "features": X.shape[1],
                    "epsilon": epsilon,
                    "seed": seed,
                    "own": float(own.score(X[test], y[test])),
                    "adassp": theirs,
                }
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        print(name, flush=True)


def read() -> list[dict[str, Any]]:
    """The rows that there are."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def shown() -> str:
    """Mean R² of every table, and how often which is ahead."""
    lines = [
        "| table | size | ε | ours | AdaSSP | ahead |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    found = read()
    for name in TABLES:
        for epsilon in EPSILONS:
            own = [r for r in found if (r["table"], r["epsilon"]) == (name, epsilon)]
            if own:
                a, b = (float(np.mean([r[key] for r in own])) for key in ("own", "adassp"))
                size = f"{own[0]['rows']:,} × {own[0]['features']}"
                lines.append(
                    f"| {name} | {size} | {epsilon:g} | {a:.3f} | {b:.3f} | {a - b:+.3f} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        print(shown())
    else:
        rows(asked.folder)


if __name__ == "__main__":
    main()
