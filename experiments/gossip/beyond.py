"""Beyond the paper: gossip, a federation and one machine at equal exact ε, K from 4 to 256.

    python experiments/gossip/beyond.py --data ../shared/data            # some ten minutes a seed
    python experiments/gossip/beyond.py --data ../shared/data --only 4,16 --seed 1
    python experiments/gossip/beyond.py --write                          # the table

MNIST, a linear model on pixels, 12,000 training records in all, dealt to K holders at random or
with label skew (Dirichlet 0.1). Everybody spends at most ε = 3 at δ = 1e-5, certified: against its
neighbours in the gossip (whose plans pay for 1.1 × the rounds), against the server in the
federation, against whoever sees the model on one machine, which has all records. All the rest is
chosen by the planner, without data. One holder of K is ten times slower; waiting gossip is D-PSGD,
in which every worker makes all rounds. The table has accuracies of the average model and of the
worst worker's on 4,000 test records, and virtual seconds.

Finished cells are kept in beyond.jsonl; the table is beyond.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import forethought as ft
from forethought.data import load
from forethought.jobs.holders import holders_of, simulate_job
from forethought.jobs.job import JobError, from_file
from forethought.jobs.load import load_job
from forethought.values.plan import Plan

RECORDS, TEST, EPSILON, DELTA = 12_000, 4_000, 3.0, 1e-5
SIZES, SKEWS = (4, 16, 64, 256), ("iid", "dirichlet:0.1")
HERE = Path(__file__).parent

JOB = """
[data]
source = "npz:{data}"

[model]
name = "linear"

[budget]
epsilon = {epsilon}
delta = {delta}

[run]
seed = {seed}
noise_seed = {seed}
"""
GOSSIP = JOB + '\n[gossip]\nworkers = {holders}\nshares = "{skew}"\ncase = "II"\nseed = {seed}\n'
WAITING = GOSSIP.replace('case = "II"', 'case = "II"\nrule = "synchronous"')
FEDERATION = (
    JOB + '\n[federation]\nclients = {holders}\nshares = "{skew}"\nslow = 1\nlocal_rounds = 1\n'
    "seed = {seed}\n"
)

TEXTS = {
    "one machine": JOB,
    "gossip": GOSSIP,
    "synchronous gossip": WAITING,
    "federation": FEDERATION,
}


def subset(folder: Path, records: Path) -> None:
    """The first records of MNIST in an order that a seed draws."""
    whole = load("mnist", folder=folder)
    assert whole.test is not None
    draw = np.random.default_rng(0)
    some = draw.permutation(len(whole.train))[:RECORDS]
    held = draw.permutation(len(whole.test))[:TEST]
    np.savez(
        records,
        x_train=np.asarray(whole.train.inputs)[some].reshape(RECORDS, -1),
        y_train=np.asarray(whole.train.targets)[some],
        x_test=np.asarray(whole.test.inputs)[held].reshape(TEST, -1),
        y_test=np.asarray(whole.test.targets)[held],
    )


def cell(how: str, holders: int, skew: str, seed: int, records: Path) -> dict[str, Any]:
    """One figure."""
    started = time.process_time()
    text = TEXTS[how].format(
        data=records, epsilon=EPSILON, delta=DELTA, holders=holders, skew=skew, seed=seed
    )
    job = records.with_name(f"{how.replace(' ', '-')}-{holders}-{skew[0]}-{seed}.toml")
    job.write_text(text)
    request = from_file(job)
    job.unlink()
    torch.manual_seed(seed)
    found: dict[str, Any] = {"how": how, "holders": holders, "skew": skew, "seed": seed}
    if "gossip" in how:
        run, synchronous = simulate_job(holders_of(request, "gossip"))
        found |= {
            "accuracy": run.accuracy,
            "worst": min(run.each),
            "epsilon": spent(
                [run.gossip.plan(k) for k in range(holders)], list(run.simulated.rounds)
            ),
            "seconds": run.simulated.seconds,
            "synchronous_seconds": synchronous,
            "rounds": run.gossip.rounds,
        }
    elif how == "federation":
        other, synchronous = simulate_job(holders_of(request, "federation"))
        found |= {
            "accuracy": other.accuracy,
            "worst": other.accuracy,
            "epsilon": spent(
                [other.federation.plan(k) for k in range(holders)], list(other.simulated.rounds)
            ),
            "seconds": other.simulated.seconds,
            "synchronous_seconds": synchronous,
            "rounds": other.federation.rounds,
        }
    else:
        loaded = load_job(request)
        test = loaded.dataset.test
        assert test is not None
        chosen = ft.plan(
            examples=RECORDS,
            budget=ft.Budget(EPSILON, DELTA),
            parameters=sum(one.numel() for one in loaded.model.parameters()),
        )
        train = loaded.dataset.train
        trained = ft.train(
            loaded.model,
            (train.inputs, train.targets),
            chosen,
            test=(test.inputs, test.targets),
            seeds=ft.Seeds(seed, seed),
        )
        found |= {
            "accuracy": trained.accuracy,
            "worst": trained.accuracy,
            "epsilon": ft.account(chosen).guarantee,
            "seconds": None,
            "rounds": chosen.rounds,
        }
    return found | {"processor_seconds": round(time.process_time() - started, 1)}


def spent(plans: list[Plan], rounds: list[int]) -> float:
    """The largest certified ε of all holders' releases, as it is with secret random numbers."""
    most: dict[Plan, int] = {}
    for own, count in zip(plans, rounds, strict=True):
        most[own] = max(most.get(own, 0), count)
    return max(ft.account(own, released=count).guarantee for own, count in most.items() if count)


def shown(rows: list[dict[str, Any]], form: str, apart: bool = False) -> str:
    """A cell of the table: the mean of its seeds; the worst of all workers; how far seeds are
    apart."""
    if not rows:
        return "not run"
    found = [row for row in rows if "refused" not in row]
    if not found:
        return "refused"
    mean = {name: fmean(row[name] for row in found) for name in ("accuracy", "seconds")}
    text = form.format(worst=min(row["worst"] for row in found), **mean)
    if apart and len(found) > 1:
        scores = [row["accuracy"] for row in found]
        text += f" {100 * (max(scores) - min(scores)):.1f}"
    if len(found) < len(rows):
        text += f" [{len(rows) - len(found)} refused]"
    return text


def table(done: list[dict[str, Any]]) -> str:
    """Markdown: a size a row; means of the seeds."""
    lines = [
        "| K | shares | seeds | gossip (worst) | waiting gossip (worst) | federation | virtual s: "
        "gossip | of all who wait |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    by = defaultdict(list)
    for row in done:
        by[row["how"], row["holders"], row["skew"]].append({"seconds": 0.0} | row)
    for row in by.values():
        for one in row:
            one["seconds"] = one["seconds"] or 0.0
    one = by["one machine", 1, "iid"]
    if one:
        text = shown(one, "{accuracy:.1%}", True)
        lines.append(f"| 1 | all | {len(one)} | one machine: {text} | | | | |")
    for skew in SKEWS:
        for holders in SIZES:
            found = [by[how, holders, skew] for how in list(TEXTS)[1:]]
            if not any(found):
                continue
            seeds = ", ".join(str(len(rows)) for rows in found)
            cells = [
                shown(
                    rows,
                    "{accuracy:.1%} ({worst:.1%})" if "gossip" in how else "{accuracy:.1%}",
                    True,
                )
                for how, rows in zip(list(TEXTS)[1:], found, strict=True)
            ]
            cells += [shown(rows, "{seconds:,.0f}") for rows in (found[0], found[2])]
            lines.append(f"| {holders} | {skew} | {seeds} | {' | '.join(cells)} |")
    lines += [
        "",
        "Means of the seeds (how many of each, in the order of the columns); in brackets the worst "
        "worker of all seeds; then how many points the seeds are apart.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--write", action="store_true", help="the table of what is there")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--only", default=",".join(map(str, SIZES)), help="numbers of holders")
    parser.add_argument("--how", default=",".join(TEXTS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kept = arguments.out / "beyond.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if arguments.write:
        (arguments.out / "beyond.md").write_text(table(done))
        print(table(done))
        return
    if arguments.data is None:
        parser.error("--data: where MNIST is")
    folder = tempfile.TemporaryDirectory()
    records = Path(folder.name) / "beyond.npz"
    subset(arguments.data, records)
    known = {(row["how"], row["holders"], row["skew"], row["seed"]) for row in done}
    wanted = [("one machine", 1, "iid")] + [
        (how, holders, skew)
        for holders in map(int, arguments.only.split(","))
        for skew in SKEWS
        for how in list(TEXTS)[1:]
    ]
    for how, holders, skew in wanted:
        if (how, holders, skew, arguments.seed) in known or how not in arguments.how.split(","):
            continue
        try:
            row = cell(how, holders, skew, arguments.seed, records)
        except JobError as problem:  # a holder with one record has too little data for its rate
            row = {"how": how, "holders": holders, "skew": skew, "seed": arguments.seed}
            row |= {"refused": str(problem)}
        done.append(row)
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
    (arguments.out / "beyond.md").write_text(table(done))
    print(table(done))


if __name__ == "__main__":
    main()
