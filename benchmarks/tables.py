"""Seconds of a default job on a table, phase by phase: reading, planning, training, reporting.

    python benchmarks/tables.py                              # 100,000 rows of 50 columns
    python benchmarks/tables.py --smoke
    python benchmarks/tables.py --rows 20000 --columns 20 --epsilon 1

The job is the one that ``forethought init`` writes for a made-up table of numbers and words; every
phase is what ``forethought train`` does there. Processor seconds count all threads and stay the
same beside other work on the machine; seconds on the wall do not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl

from forethought.jobs.init import job_for
from forethought.jobs.job import Job, JobRequest
from forethought.jobs.load import load_job
from forethought.jobs.train import PreparedJob, run
from forethought.report.figures import draw_run
from forethought.report.page import write_pages
from forethought.training.folder import RunSummary


class Phases:
    """Seconds on the wall and of the processor since the last phase, printed."""

    def __init__(self) -> None:
        self._begun = self._last = time.perf_counter(), time.process_time()

    def done(self, name: str) -> None:
        now = time.perf_counter(), time.process_time()
        wall, processor = (b - a for a, b in zip(self._last, now, strict=True))
        print(f"| {name} | {wall:.1f} | {processor:.1f} |", flush=True)
        self._last = now

    def whole(self) -> None:
        self._last = self._begun
        self.done("all")


def write_table(path: Path, rows: int, columns: int) -> None:
    """Four fifths of the columns are numbers, the others words; a label that a tenth decide."""
    draw = np.random.default_rng(0)
    words = columns // 5
    numbers = draw.normal(size=(rows, columns - words))
    kinds = draw.integers(5, size=(rows, words))
    told = max(1, columns // 10)
    scores = numbers[:, :told].sum(1) + (kinds == 2).sum(1) + draw.logistic(size=rows)
    frame = {f"x{at}": np.round(50 + 10 * column, 2) for at, column in enumerate(numbers.T)}
    frame |= {f"c{at}": np.array(list("abcde"))[column] for at, column in enumerate(kinds.T)}
    frame["label"] = np.where(scores > np.median(scores), "yes", "no")
    pl.DataFrame(frame).write_csv(path)


def measure(folder: Path, rows: int, columns: int, epsilon: float) -> None:
    """Print the phases of one job."""
    write_table(folder / "table.csv", rows, columns)
    print("| phase | seconds | processor seconds |\n| --- | ---: | ---: |")
    phases = Phases()
    (folder / "job.toml").write_text(job_for(folder / "table.csv", "label"), encoding="utf-8")
    phases.done("init")
    job = Job.load(folder / "job.toml")
    budget = job.budget.model_copy(update={"epsilon": epsilon})
    loaded = load_job(JobRequest("table", "", job.model_copy(update={"budget": budget})))
    phases.done("read, split, encode")
    plan = loaded.plan()
    phases.done("plan")
    first: list[int] = []

    def watch(event: object) -> None:
        if not first:
            first.append(1)
            phases.done("releases, checks, first round")

    out = folder / "run"
    run(PreparedJob(loaded, plan), out, progress=watch)
    phases.done(f"{plan.rounds - 1} rounds of {plan.mean_batch:,.0f} records, evaluation")
    summary = RunSummary.load(out)
    draw_run(summary, out / "figures")
    write_pages(summary)
    phases.done("figures, report")
    phases.whole()


def main() -> None:
    """Measure one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    if given.smoke:
        given.rows, given.columns = 2_000, 10
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure(Path(folder), given.rows, given.columns, given.epsilon)


if __name__ == "__main__":
    main()
