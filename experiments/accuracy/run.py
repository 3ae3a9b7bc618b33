"""Accuracy at a budget: each job in ``examples/accuracy_*.toml``, seed by seed, and two tables.

    python experiments/accuracy/run.py --data-dir DIR      # what is missing, then the table
    python experiments/accuracy/run.py --data-dir DIR --seeds 1 examples/accuracy_lenet5_eps….toml
    python experiments/accuracy/run.py --table             # the table only

A run is a line of results.csv: accuracy of the reported model on the test images, the exact ε that
the Statement certifies, processor time of training without loading data and features. A line is
kept with a digest of the job file's settings: another setting is another run, and lines of settings
no job has any more are dropped. A seed decides the sampling, the noise and the initial weights. The
table goes into README.md beside this file, and a short one into the project's, between two marks;
.ci/figures holds both to results.csv. ``--smoke`` runs the jobs on digits in place of their data
and keeps nothing.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import statistics
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import forethought as ft
from forethought.data import Dataset, Split
from forethought.jobs.job import Job, JobRequest
from forethought.jobs.load import Loaded
from forethought.rounds.preparation import InputConstants

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# Pages with a table each, and the marks around it.
FULL, SHORT = Path(__file__).with_name("README.md"), ROOT / "README.md"
RESULTS = Path(__file__).with_name("results.csv")
FIELDS = ("job", "settings", "seed", "asked", "certified", "rounds", "sigma", "accuracy", "seconds")
MARKS = ("<!-- accuracy table: experiments/accuracy/run.py -->", "<!-- end of accuracy table -->")
SHORT_MARKS = ("<!-- short table: experiments/accuracy/run.py -->", "<!-- end of short table -->")
# Jobs in the short table, with what they are in words.
SHOWN = {
    "handwriting_eps0.15": ("MNIST", "linear, features of synthetic handwriting"),
    "handwriting_eps2.93": ("MNIST", "the same"),
    "gabor_cnn_eps0.15": ("MNIST", "one convolution that begins with Gabor functions"),
    "deep_patches_fashion_eps2.7": ("Fashion-MNIST", "linear, features of deep patches"),
    "shifted_patches_cifar10_eps1": ("CIFAR-10", "linear, features of shifted patches"),
    "shifted_patches_cifar10_eps3": ("CIFAR-10", "the same"),
}
HEADER = (
    "| job (`examples/accuracy_….toml`) | ε | rounds | seeds | "
    "accuracy, mean (least to most) | s.d. | seconds a run |\n" + "| --- " * 7 + "|"
)
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", type=Path, help="job files; default: all of them")
    parser.add_argument("--data-dir", type=Path, help="where mnist/, … are; or FORETHOUGHT_DATA")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="write the table, run nothing")
    parser.add_argument("--smoke", action="store_true", help="digits, nothing kept")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error("--seeds must be at least 1")
    if not arguments.table:
        run_missing(arguments.jobs or jobs(), arguments.data_dir, arguments.seeds, arguments.smoke)
    if not arguments.smoke:
        write_table()


def jobs() -> list[Path]:
    return sorted(EXAMPLES.glob("accuracy_*.toml"))


def run_missing(paths: list[Path], folder: Path | None, seeds: int, smoke: bool) -> None:
    loaded: dict[tuple[str, ...], Dataset] = {}
    done = {(row["job"], row["settings"], row["seed"]) for row in results()}
    for path in paths:
        job = Job.load(path)
        for seed in range(seeds):
            if (name_of(path), settings_of(path), str(seed)) in done and not smoke:
                continue
            key = (job.data.source, str(job.data.features), str(job.data.standardise))
            if key not in loaded:
                loaded.clear()  # one data set in memory at a time
                loaded[key] = data_of(job, folder, smoke)
            row = trained(path, job, loaded[key], seed)
            print(row, flush=True)
            if not smoke:
                keep(row)


def data_of(job: Job, folder: Path | None, smoke: bool) -> Dataset:
    if smoke:
        section = job.data.model_copy(update={"source": "digits", "features": None})
        job = job.model_copy(update={"data": section})
    return standardised(job.load_data(folder), job.data.standardise)


def standardised(data: Dataset, constants: tuple[float, float] | str | None) -> Dataset:
    """Inputs less a public mean, over a public deviation, where the job names them."""
    if constants is None:
        return data
    if isinstance(constants, str):
        sys.exit(f"standardise = {constants!r} is paid for by the run: forethought train runs it")
    apply = InputConstants(*((value,) * data.shape[0] for value in constants)).apply
    train, test = (
        None if part is None else Split(apply(part.inputs), part.targets)
        for part in (data.train, data.test)
    )
    assert train is not None
    return replace(data, train=train, test=test)


def name_of(path: Path) -> str:
    return path.stem.removeprefix("accuracy_")


def settings_of(path: Path) -> str:
    """Equal for equal settings; comments do not count."""
    settings = json.dumps(tomllib.loads(path.read_text(encoding="utf-8")), sort_keys=True)
    return hashlib.blake2b(settings.encode(), digest_size=6).hexdigest()


def trained(path: Path, job: Job, data: Dataset, seed: int) -> Row:
    """Train the job with one seed and measure it."""
    if data.test is None:
        sys.exit(f"{path}: the data set has no test part")
    plan = Loaded(JobRequest("", "", job), data, job.build_model(data)).plan()
    seeded = job.model_copy(update={"run": job.run.model_copy(update={"seed": seed})})
    model = seeded.build_model(data)
    start = time.process_time()
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
    seconds = time.process_time() - start
    if run.accuracy is None:
        sys.exit(f"{path}: no accuracy was measured")
    values = (
        name_of(path),
        settings_of(path),
        seed,
        job.budget.epsilon,
        f"{run.statement.epsilon.upper:.5f}",
        plan.rounds,
        f"{plan.noise_multiplier:.4f}",
        f"{100 * run.accuracy:.2f}",
        f"{seconds:.0f}",
    )
    return {field: str(value) for field, value in zip(FIELDS, values, strict=True)}


def results() -> list[Row]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keep(row: Row) -> None:
    """Add a run, and drop those of settings that no job has."""
    current = {(name_of(path), settings_of(path)) for path in jobs()}
    rows = [old for old in results() if (old["job"], old["settings"]) in current]
    rows = sorted([*rows, row], key=lambda r: (r["job"], int(r["seed"])))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table() -> str:
    """The Markdown table of what was run; a job that was not run says so."""
    found: dict[str, list[Row]] = {}
    for row in results():
        found.setdefault(f"{row['job']} {row['settings']}", []).append(row)
    lines = [HEADER]
    for path in jobs():
        rows = found.get(f"{name_of(path)} {settings_of(path)}", [])
        if not rows:
            lines.append(f"| {name_of(path)} | {Job.load(path).budget.epsilon} | not run |||||")
            continue
        accuracies = [float(row["accuracy"]) for row in rows]
        spread = f"{statistics.stdev(accuracies):.2f}" if len(rows) > 1 else ""
        seconds = statistics.median(float(row["seconds"]) for row in rows)
        lines.append(
            f"| {name_of(path)} | {rows[0]['asked']} | {rows[0]['rounds']} | {len(rows)} | "
            f"{statistics.mean(accuracies):.2f} % ({min(accuracies):.2f} to {max(accuracies):.2f}) "
            f"| {spread} | {seconds:.0f} |"
        )
    return "\n".join(lines)


def short_table() -> str:
    """Some rows of :func:`table`, in words."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table().splitlines()]
    known = {row[0]: row for row in rows}
    lines = ["| data | model | ε | accuracy on test images |", "| --- | --- | --- | --- |"]
    for name, (data, model) in SHOWN.items():
        _, epsilon, _, _, accuracy, *_ = known[name]
        lines.append(f"| {data} | {model} | {epsilon} | {accuracy.partition(' (')[0]} |")
    return "\n".join(lines)


def write_table() -> None:
    for page, marks, made in ((FULL, MARKS, table()), (SHORT, SHORT_MARKS, short_table())):
        before, rest = page.read_text(encoding="utf-8").split(marks[0])
        _, after = rest.split(marks[1])
        page.write_text(f"{before}{marks[0]}\n{made}\n{marks[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
