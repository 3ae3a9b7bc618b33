"""Seconds that ``forethought plan`` says training will take, beside those that it took.

Each figure is of a process of its own, in seconds of its processor, on one thread: what a machine
would take that does nothing else. Counted is what ``forethought train``
calls "trained in": the rounds and what stands before, between and after them (evaluation, results,
pages). ``whole`` is the process, with its start, loading and planning. A call adds what is missing
to so many rows of each job; ``--show`` prints their medians.

    python experiments/forecast/times.py --out experiments/forecast/times.jsonl
    python experiments/forecast/times.py --show experiments/forecast/times.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

_ONE = """
import sys, time
time.perf_counter = time.process_time
from pathlib import Path
from forethought.jobs.job import from_file
from forethought.jobs.train import prepare, run, seconds_of
ready = prepare(from_file(Path(sys.argv[1])))
begin = time.process_time()
if sys.argv[2] == "plan":
    print(seconds_of(ready.loaded, ready.plan), 0)
else:
    run(ready, Path(sys.argv[2]))
    print(time.process_time() - begin, time.process_time())
"""
DIGITS = '[data]\nsource = "digits"\n'
PIXELS = DIGITS + 'features = "pixels"\n'
TABLE = '[data]\nsource = "npz:small.npz"\ntask = "classification"\n'
LARGE = TABLE.replace("small", "large")
IMAGES = '[data]\nsource = "npz:images.npz"\ntask = "classification"\n'
NAMED = """[data]
source = "csv:named.csv"
label = "y"
classes = ["no", "yes"]
task = "classification"
holdout = 0.2
[data.columns]
a = [-4, 4]
b = [-4, 4]
c = [-4, 4]
d = [-4, 4]
e = [-4, 4]
f = [-4, 4]
"""
PERSONS = NAMED.replace("holdout", 'person = "who"\nrecords_per_person = 4\nholdout')
NAMED += 'who = "drop"\n'
MLP = '[model]\nname = "mlp"\n'
JOBS = {
    "digits": DIGITS,
    "digits, pixels": PIXELS,
    "digits, perceptron": PIXELS + MLP,
    "digits, perceptron, momentum": PIXELS + MLP + "[training]\noptions = { momentum = 0.9 }\n",
    "digits, perceptron, adam": PIXELS + MLP + '[training]\noptimizer = "adam"\n',
    "digits, perceptron, micro-batches": PIXELS + MLP + "[run]\nmicro_batch = 32\n",
    "digits, convolutions": PIXELS + '[model]\nname = "tempered-cnn"\n',
    "images 28 x 28, convolutions": IMAGES
    + 'features = "pixels"\n[model]\nname = "cnn"\n[training]\nepochs = 2\n',
    "images 28 x 28, scattering": IMAGES + 'features = "scattering"\n',
    "2,000 x 20": TABLE,
    "2,000 x 20, regression": TABLE.replace("classification", "regression"),
    "50,000 x 20": LARGE,
    "50,000 x 20, 20 epochs": LARGE + "[training]\nepochs = 20\nbatch = 2000\n",
    "50,000 x 20, perceptron": LARGE + MLP,
    "named columns": NAMED,
    "named columns, additive": NAMED + '[model]\nname = "additive"\n',
    "named columns, persons": PERSONS,
    "named columns, persons, perceptron": PERSONS + MLP,
}


def tables() -> None:
    """The files that the jobs read."""
    random = np.random.default_rng(33)
    for name, size in (("small", 2_500), ("large", 62_500)):
        x = random.normal(size=(size, 20)).astype(np.float32)
        y = (x[:, 0] + random.normal(size=size) > 0).astype(np.int64)
        np.savez(f"{name}.npz", x=x, y=y)
    x = random.integers(0, 256, (4_000, 28, 28), dtype=np.uint8)
    np.savez("images.npz", x=x, y=np.arange(4_000) % 10)
    x = random.normal(size=(10_000, 6)).clip(-4, 4)
    named = {name: x[:, place] for place, name in enumerate("abcdef")}
    named["y"] = np.where(x[:, 0] + random.normal(size=10_000) > 0, "yes", "no")
    pl.DataFrame({"who": [f"p{row // 3}" for row in range(10_000)], **named}).write_csv("named.csv")


def one(what: str) -> tuple[float, float] | None:
    """Seconds said or taken, and of the whole process; None: it failed, or nothing was said."""
    command = [sys.executable, "-c", _ONE, "job.toml", what]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        print(done.stderr[-300:])
        return None
    seconds, whole = done.stdout.split()[-2:]
    return None if seconds == "None" else (float(seconds), float(whole))


def rows(path: Path) -> list[dict[str, Any]]:
    """What was measured before."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def show(path: Path) -> None:
    """Medians by job, as a table in Markdown."""
    print("| job | said | took | off by | whole process | rows |")
    print("| --- | --- | --- | --- | --- | --- |")
    for job in JOBS:
        of = [row for row in rows(path) if row["job"] == job]
        if of:
            said, took, whole = (median(row[n] for row in of) for n in ("said", "took", "whole"))
            print(
                f"| {job} | {said:.1f} s | {took:.1f} s | {said / took - 1:+.0%} | {whole:.1f} s "
                f"| {len(of)} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--times", type=int, default=3, help="rows of each job")
    asked = parser.parse_args()
    if asked.out is None:
        return show(asked.show)
    asked.out.touch()
    out = asked.out.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        tables()
        for turn in range(asked.times):
            for number, (job, text) in enumerate(JOBS.items()):
                if sum(row["job"] == job for row in rows(out)) > turn:
                    continue
                Path("job.toml").write_text(text + "[budget]\nepsilon = 3.0\n", encoding="utf-8")
                said, took = one("plan"), one(f"run-{number}-{turn}")
                if said is None or took is None:
                    continue
                row = {"job": job, "said": said[0], "took": took[0], "whole": took[1]}
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)
    return None


if __name__ == "__main__":
    main()
