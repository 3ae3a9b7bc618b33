"""Accuracy at a budget on MNIST: five seeds of every job in ``examples/accuracy_*.toml``.

Prints a Markdown table: accuracy of the reported model on the 10,000 test images, mean and spread
over the seeds (a seed decides the sampling, the noise and the initial weights), the exact ε that
the Statement certifies, and seconds of training without loading data and features.

    python experiments/accuracy/run.py --data-dir DIR
    python experiments/accuracy/run.py --data-dir DIR examples/accuracy_lenet5_eps0.15.toml
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import forethought as ft
from forethought.data import Dataset
from forethought.jobs.job import Job
from forethought.jobs.load import Loaded
from forethought.jobs.request import Request

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEADER = (
    "| job | ε asked | ε certified | batch | rounds | σ | accuracy, mean (min to max) | s.d. | "
    "seconds a run |\n|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", type=Path, help="job files; default: all of them")
    parser.add_argument("--data-dir", type=Path, help="where mnist/ is; or FORETHOUGHT_DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--source", help="another data set in place of the job's")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    loaded: dict[tuple[str, str | None], Dataset] = {}
    print(HEADER, flush=True)
    for path in arguments.jobs or sorted(EXAMPLES.glob("accuracy_*.toml")):
        job = Job.load(path)
        if arguments.source:
            section = job.data.model_copy(update={"source": arguments.source})
            job = job.model_copy(update={"data": section})
        key = (job.data.source, job.data.features)
        if key not in loaded:
            loaded.clear()  # one data set in memory at a time
            loaded[key] = job.load_data(arguments.data_dir)
        print(row(path.stem, job, loaded[key], arguments.seeds), flush=True)


def row(name: str, job: Job, data: Dataset, seeds: int) -> str:
    """Train the job once a seed and sum it up in a line of the table."""
    if data.test is None:
        sys.exit(f"{name}: the data set has no test part")
    plan = Loaded(Request("", "", job), data, job.build_model(data)).plan()
    accuracies, seconds = [], []
    for seed in range(seeds):
        seeded = job.model_copy(update={"run": job.run.model_copy(update={"seed": seed})})
        model = seeded.build_model(data)
        start = time.perf_counter()
        run = ft.train(
            model,
            (data.train.inputs, data.train.targets),
            plan,
            test=(data.test.inputs, data.test.targets),
            seed=seed,
            noise_seed=seed,
            log_every=plan.rounds,
            micro_batch=job.run.micro_batch,
        )
        seconds.append(time.perf_counter() - start)
        if run.accuracy is None:
            sys.exit(f"{name}: no accuracy was measured")
        accuracies.append(100 * run.accuracy)
    spread = statistics.stdev(accuracies) if seeds > 1 else 0.0
    return (
        f"| {name} | {job.budget.epsilon} | {run.statement.epsilon.upper:.4f} | {plan.batch:.0f} | "
        f"{plan.rounds} | {plan.noise_multiplier:.3f} | {statistics.mean(accuracies):.2f} % "
        f"({min(accuracies):.2f} to {max(accuracies):.2f}) | {spread:.2f} | "
        f"{statistics.median(seconds):.0f} |"
    )


if __name__ == "__main__":
    main()
