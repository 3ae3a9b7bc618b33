"""DP-EBM's side of the comparison: run by run.py, with the Python of its own environment.

    python rival.py FOLDER

reads train.csv, test.csv and asked.json, and prints one JSON line: accuracy and AUC in per cent,
processor seconds of ``fit``.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import pandas as pd
from interpret.privacy import DPExplainableBoostingClassifier
from sklearn.metrics import roc_auc_score


def main(folder: Path) -> None:
    """Fit with its defaults on the declared ranges, and score."""
    warnings.simplefilter("ignore")
    asked = json.loads((folder / "asked.json").read_text())
    names, bounds = asked["columns"], asked["bounds"]
    parts = [pd.read_csv(folder / f"{part}.csv") for part in ("train", "test")]
    inputs = [part[names].copy() for part in parts]
    for part in inputs:
        for name in names:
            if name in bounds:
                # What lies outside is clipped, what is missing is the middle: as on the other side.
                numbers = pd.to_numeric(part[name], errors="coerce").clip(*bounds[name])
                part[name] = numbers.fillna(sum(bounds[name]) / 2)
            else:
                part[name] = part[name].astype(object).fillna("missing").astype(str)
    model = DPExplainableBoostingClassifier(
        feature_names=names,
        feature_types=["continuous" if name in bounds else "nominal" for name in names],
        epsilon=asked["epsilon"],
        delta=asked["delta"],
        privacy_bounds={name: tuple(ends) for name, ends in bounds.items()},
        random_state=asked["seed"],
        n_jobs=1,
    )
    began = time.process_time()
    model.fit(inputs[0], parts[0]["label"].to_numpy())
    seconds = time.process_time() - began
    truth = parts[1]["label"].to_numpy()
    scores = model.predict_proba(inputs[1])[:, 1]
    accuracy = 100 * float((model.predict(inputs[1]) == truth).mean())
    auc = 100 * float(roc_auc_score(truth, scores))
    print(json.dumps({"accuracy": accuracy, "auc": auc, "seconds": seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
