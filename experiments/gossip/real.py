"""The three cases in real processes: accuracy of the average against seconds on the clock.

    python experiments/gossip/real.py --data ../shared/data    # some eight minutes, asleep for most

Four processes (actors of Ray; under the rule allreduce torchrun's) train examples/gossip.toml
(MNIST, linear on pixels, ε = 2) on this computer. A gradient takes 0.1 s more than it would,
asleep, so that few cores do for all. Case I: one worker, drawn anew in every round, sleeps twice as
long; II: one sleeps ten times as long; III: batch, step size and the sleep are doubled at the same
ε, with half as many rounds, three times; and three times with steps that fall to 0 by a cosine from
where they are otherwise equal. Every worker notes when it made each update and what it held then,
and what it ended with; the average of what all had noted by a time is measured afterwards. A case
and rule are a line of real.jsonl, and not run again; run.py --write draws them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forethought.gossip.worker import Effects, OwnReleases
from forethought.holders.cluster import WorkerActor, cluster, run_workers
from forethought.holders.simulator import Hiccups
from forethought.holders.trainer import ClientTrainer
from forethought.jobs.holders import holders_of
from forethought.jobs.job import Job, JobRequest, from_file
from forethought.jobs.members import cluster_worker, launched_worker

HERE = Path(__file__).parent
REAL = HERE / "real.jsonl"
WORKERS, SLEEP, POINTS = 4, 0.1, 20
FALLING = "III, falling"
SEEDS = {"I": (1,), "II": (1,), "III": (1, 2, 3), FALLING: (1, 2, 3)}


def request_of(case: str, rule: str, seed: int) -> JobRequest:
    """The example's job under a rule, as a case has it."""
    request = from_file(HERE.parents[1] / "examples" / "gossip.toml")
    request = _changed(request, gossip={"rule": rule, "seed": seed})
    if case in ("III", FALLING):
        request = _changed(request, gossip={"case": "III", "rounds": 30})
    if case == FALLING:
        request = _changed(request, training={"schedule": "cosine"})
    return request


def _changed(request: JobRequest, **tables: dict[str, object]) -> JobRequest:
    held = request.job.model_dump(exclude_unset=True)
    for name, values in tables.items():
        held[name] = {**held.get(name, {}), **values}
    return replace(request, job=Job.model_validate(held))


def slowed(case: str, rank: int) -> list[tuple[float, int, np.ndarray[Any, Any]]]:
    """Let this process's gradients take as long as a case says; what its worker held after each."""
    hiccups = Hiccups(WORKERS, 2.0, 1)
    compute, release = ClientTrainer.compute, OwnReleases.release
    made: list[tuple[float, int, np.ndarray[Any, Any]]] = []

    def slowly(trainer: ClientTrainer, *what: Any) -> Any:
        factor = {"I": hiccups(rank, len(made)), "II": 10.0 if rank == 3 else 1.0, "III": 2.0}
        time.sleep(SLEEP * factor[case.partition(",")[0]])
        return compute(trainer, *what)

    def noted(own: OwnReleases, *what: Any) -> Effects:
        effects = release(own, *what)
        made.append((time.time(), own.updates, own.weights.copy()))
        return effects

    ClientTrainer.compute, OwnReleases.release = slowly, noted  # type: ignore[method-assign]
    return made


def left(made: list[Any], weights: np.ndarray[Any, Any], rank: int, out: Path) -> None:
    """Leave times and weights in ``out``; the last after the last exchanges, without an update."""
    made.append((time.time(), made[-1][1], weights))
    np.savez(
        out / f"{rank}.npz",
        times=[when for when, _, _ in made],
        weights=np.stack([held for _, _, held in made]),
        updates=[count for _, count, _ in made],
    )


def work(case: str, seed: int, data: Path, out: Path) -> None:
    """Be one process of SYNC, which torchrun started."""
    made = slowed(case, rank := int(os.environ["RANK"]))
    done = launched_worker(request_of(case, "allreduce", seed), out / "runs", data_dir=data)
    left(made, done.took.weights, rank, out)


def act(
    case: str, seed: int, data: Path, out: Path, planned: Any, me: int, here: WorkerActor
) -> None:
    """Be one actor of a cluster."""
    made = slowed(case, me)
    request = request_of(case, "asynchronous", seed)
    done = cluster_worker(request, *planned, me, out / "runs", data, here)
    left(made, done.took.weights, me, out)


def run_actors(case: str, seed: int, data: Path, out: Path) -> None:
    """All workers of a gossip as actors of this machine."""
    gossiping = holders_of(request_of(case, "asynchronous", seed), "gossip", data)
    planned = gossiping.gossip, gossiping.shared.read()
    works = [partial(act, case, seed, data, out, planned, me) for me in range(WORKERS)]
    with cluster(None, WORKERS):
        for outcome in run_workers(out.name, works):
            if outcome.error is not None:
                raise outcome.error


def measure(case: str, rule: str, seed: int, data: Path) -> dict[str, Any]:
    """Run the processes, and measure what their average was at a score of times."""
    with tempfile.TemporaryDirectory() as folder:
        if rule == "allreduce":
            here = [str(Path(__file__).resolve()), "--data", str(data.resolve())]
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc-per-node={WORKERS}", *here, "--case", case]
            command += ["--seed", str(seed)]
            subprocess.run([*command, "--out", folder], check=True, timeout=600)
        else:
            run_actors(case, seed, data.resolve(), Path(folder))
        found = [np.load(Path(folder) / f"{rank}.npz") for rank in range(WORKERS)]
        made = [(one["times"], one["weights"], one["updates"]) for one in found]
    gossiping = holders_of(request_of(case, rule, seed), "gossip", data)
    shared, test = gossiping.shared, gossiping.loaded.dataset.test
    plans = [gossiping.gossip.plan(k) for k in range(WORKERS)]
    assert test is not None
    first, inputs = shared.read(), torch.as_tensor(np.asarray(test.inputs), dtype=torch.float32)
    targets = torch.as_tensor(np.asarray(test.targets))
    # The first gradients began a sleep before the first of them was done.
    begin = min(float(times[0]) for times, _, _ in made) - SLEEP
    end = max(float(times[-1]) for times, _, _ in made)
    curve = []
    for when in np.linspace(begin, end, POINTS + 1)[1:]:
        places = [int(np.searchsorted(times, when, side="right")) - 1 for times, _, _ in made]
        held = [
            first if place < 0 else weights[place]
            for place, (_, weights, _) in zip(places, made, strict=True)
        ]
        shared.write(np.mean(held, axis=0, dtype=np.float64).astype(np.float32))
        with torch.no_grad():
            right = (shared.model(inputs).argmax(1) == targets).double().mean()
        counts = [
            0 if place < 0 else int(updates[place])
            for place, (_, _, updates) in zip(places, made, strict=True)
        ]
        seen = sum(count * plan.batch for count, plan in zip(counts, plans, strict=True))
        epoch = seen / sum(plan.examples for plan in plans)
        curve.append([round(float(when) - begin, 3), round(epoch, 3), 100 * float(right)])
    return {
        "case": case,
        "rule": rule,
        "seed": seed,
        "seconds": end - begin,
        "updates": [int(updates[-1]) for _, _, updates in made],
        "load": os.getloadavg()[0],
        "curve": curve,
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--case")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.out is not None:
        work(asked.case, asked.seed, asked.data, asked.out)
        return
    rows = []
    if REAL.exists():
        rows = [json.loads(line) for line in REAL.read_text(encoding="utf-8").splitlines()]
    known = {(row["case"], row["rule"], row["seed"]) for row in rows}
    for case, seeds in SEEDS.items():
        for seed, rule in product(seeds, ("allreduce", "asynchronous")):
            if (case, rule, seed) not in known:
                row = measure(case, rule, seed, asked.data)
                rows.append(row)
                with REAL.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    print("| case | rule | seed | seconds | updates of each | accuracy at the end | load |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        updates = ", ".join(map(str, row["updates"]))
        print(
            f"| {row['case']} | {row['rule']} | {row['seed']} | {row['seconds']:.1f} | {updates} | "
            f"{row['curve'][-1][2]:.2f} | {row['load']:.0f} |"
        )


if __name__ == "__main__":
    main()
