"""Whether an asynchronous gossip's steps should fall where a linear job leaves its schedule open.

    python experiments/gossip/falling.py --data ../shared/data    # some fifteen minutes of one core

Linear models on Fashion-MNIST's pixels: 24,000 of its training images dealt to K workers, measured
on 10,000 others of them; the test images are not looked at. Batch, rounds and the equal steps are
the planner's. "Equal" steps, the default, are compared with half of them, with a cosine that begins
at the planner's step (``schedule = "cosine"`` alone), and with one whose steps are as long together
as equal ones over the rounds that are made on average ("cosine, as far"); SYNC has equal steps, and
the last of these. Nobody is slower, one is 10 × slower (case II), or batch and step are doubled
(case III).

Finished runs are kept in falling.jsonl; falling.md is the table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from forethought.data import load
from forethought.jobs.holders import holders_of, simulate_job
from forethought.jobs.job import Job, JobRequest
from forethought.values.plan import SHAPES

HERE = Path(__file__).parent
ROWS = HERE / "falling.jsonl"
SEEDS, EPSILONS, WORKERS, CASES = (0, 1, 2), (2.0, 0.5), (4, 16), ("", "II", "III")
STEPS = {
    "asynchronous": ("equal", "half", "cosine", "cosine, as far"),
    "allreduce": ("equal", "cosine, as far"),
}

JOB = """
[data]
source = "npz:{data}"
[model]
name = "linear"
[budget]
epsilon = {epsilon}
delta = 1e-5
[training]
{training}
[run]
seed = {seed}
noise_seed = {seed}
[gossip]
workers = {workers}
rule = "{rule}"
seed = {seed}
"""


def subset(folder: Path, records: Path) -> None:
    """Training images in an order that a seed draws, and others of them to measure on."""
    train = load("fashion-mnist", folder=folder).train
    order = np.random.default_rng(0).permutation(len(train))
    inputs = np.asarray(train.inputs, dtype=np.float32).reshape(len(train), -1)
    targets = np.asarray(train.targets)
    some, held = order[:24_000], order[24_000:34_000]
    np.savez(
        records,
        x_train=inputs[some],
        y_train=targets[some],
        x_test=inputs[held],
        y_test=targets[held],
    )


def ready(names: dict[str, Any], records: Path, training: str) -> Any:
    """A gossip, with what its job says of steps."""
    text = JOB.format(data=records, training=training, **names)
    text += f'case = "{names["case"]}"\n' if names["case"] else ""
    return holders_of(JobRequest("job", text, Job.parse(text, "job.toml")), "gossip")


def measured(names: dict[str, Any], records: Path) -> dict[str, Any]:
    """One run: accuracies in per cent."""
    began = time.process_time()
    equal = ready(names, records, 'schedule = "constant"').gossip
    rate, plan = equal.plan(0).optimizer.learning_rate, equal.plan(0)
    rate /= 2 if names["case"] == "III" else 1  # which doubles what the job says, too
    kind = "constant"
    if names["steps"] == "half":
        rate /= 2
    elif names["steps"] != "equal":
        kind = "cosine"
        if names["steps"] == "cosine, as far":
            shape = SHAPES["cosine"]
            rate *= equal.rounds / sum(shape(t, plan.rounds, 0.0) for t in range(equal.rounds))
    training = f'schedule = "{kind}"\nlearning_rate = {rate!r}'
    torch.manual_seed(names["seed"])
    run, _ = simulate_job(ready(names, records, training))
    return {
        **names,
        "accuracy": 100 * (run.accuracy or 0.0),
        "worst": 100 * min(run.each),
        "rounds": run.gossip.rounds,
        "first_step": run.gossip.plan(0).optimizer.learning_rate,
        "seconds": round(time.process_time() - began, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each setting, means over the seeds."""
    settings: dict[tuple[Any, ...], dict[tuple[str, str], list[float]]] = defaultdict(dict)
    for row in rows:
        key = (row["epsilon"], row["workers"], row["case"] or "none")
        cell = settings[key].setdefault((row["rule"], row["steps"]), [])
        cell.append(row["accuracy"])
    columns = [(rule, steps) for rule, all_steps in STEPS.items() for steps in all_steps]
    titles = [f"{'SYNC: ' if rule == 'allreduce' else ''}{steps}" for rule, steps in columns]
    lines = [f"| ε | workers | case | seeds | {' | '.join(titles)} |"]
    lines.append("| --- |" + " --- |" * (3 + len(columns)))
    for (epsilon, workers, case), cells in sorted(settings.items()):
        seeds = max(map(len, cells.values()))
        means = [f"{fmean(cells[one]):.2f}" if one in cells else "" for one in columns]
        lines.append(f"| {epsilon:g} | {workers} | {case} | {seeds} | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if ROWS.exists():
        rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.npz"
        subset(asked.data, records)
        for seed, epsilon, case, workers, rule in product(SEEDS, EPSILONS, CASES, WORKERS, STEPS):
            if (rule, case) == ("allreduce", "II"):
                continue  # the same weights as if nobody were slow
            for steps in STEPS[rule]:
                names = {"seed": seed, "epsilon": epsilon, "case": case, "workers": workers}
                names |= {"rule": rule, "steps": steps}
                if any(names.items() <= row.items() for row in rows):
                    continue
                rows.append(measured(names, records))
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(rows[-1], flush=True)
    (HERE / "falling.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
