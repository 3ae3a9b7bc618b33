"""diffprivlib's side of the comparison: run by run.py, with the Python of its own environment.

    python rival.py TABLE.npz TASK EPSILON SEEDS

prints one JSON line a seed: the score, or null where it failed, and processor seconds of ``fit``.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split


def main(path: str, task: str, epsilon: float, seeds: range) -> None:
    """Fit and score once a seed."""
    warnings.simplefilter("ignore")
    held = np.load(path)
    X, y, bound = held["X"], held["y"], float(held["bound"])
    for seed in seeds:
        train_x, test_x, train_y, test_y = train_test_split(X, y, test_size=0.2, random_state=seed)
        if task == "classification":
            model = LogisticRegression(epsilon=epsilon, data_norm=bound, max_iter=1000)
        else:
            model = LinearRegression(
                epsilon=epsilon,
                bounds_X=(float(held["lowest"]), float(held["highest"])),
                bounds_y=tuple(held["target_range"]),
            )
        began = time.process_time()
        try:
            score = model.fit(train_x, train_y).score(test_x, test_y)
        except (ValueError, np.linalg.LinAlgError) as error:
            print(f"{path}, seed {seed}: {error}", file=sys.stderr)
            score = None
        seconds = time.process_time() - began
        print(json.dumps({"seed": seed, "score": score, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), range(int(sys.argv[4])))
