"""Private training without a server, a process for each worker, over torch.distributed.

    torchrun --nproc-per-node=4 examples/gossip.py
    torchrun --nproc-per-node=4 examples/gossip.py --sleep 0.1 --slow 3

MNIST is read from --data-dir or FORETHOUGHT_DATA; where it is not, scikit-learn's digits are taken.
Every worker keeps its own ledger, and ends with a statement and a model of its own in runs/gossip.
--sleep makes each gradient take so many seconds more, and --slow one worker ten times as many.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

from forethought.data import DataError
from forethought.holders.trainer import ClientTrainer
from forethought.jobs.gossip_peer import launched_worker
from forethought.jobs.job import Job
from forethought.jobs.load import load_job
from forethought.jobs.request import Request, from_file


def main() -> None:
    parser = argparse.ArgumentParser(description="Gossip under torchrun.")
    parser.add_argument("--job", type=Path, default=Path(__file__).with_name("gossip.toml"))
    parser.add_argument("--out", type=Path, default=Path("runs/gossip"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rule", help="asynchronous, synchronous or allreduce")
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--slow", type=int)
    chosen = parser.parse_args()
    request = from_file(chosen.job)
    if chosen.rule:
        request = changed(request, gossip={"rule": chosen.rule})
    try:
        load_job(request, chosen.data_dir)
    except DataError as missing:
        request = changed(request, data={"source": "digits"})
        if os.environ.get("RANK") == "0":
            print(f"scikit-learn's digits in place of the job's data: {missing}", flush=True)
    straggle(chosen.sleep * (10 if os.environ.get("RANK") == str(chosen.slow) else 1))
    done = launched_worker(request, chosen.out, data_dir=chosen.data_dir)
    print(json.dumps(done.summary()), flush=True)


def changed(request: Request, **tables: dict[str, object]) -> Request:
    """The same request with other values in some of its tables."""
    held = request.job.model_dump(exclude_unset=True)
    for name, values in tables.items():
        held[name] = {**held.get(name, {}), **values}
    return dataclasses.replace(request, job=Job.model_validate(held))


def straggle(seconds: float) -> None:
    """Let every gradient of this process take so many seconds more."""
    compute = ClientTrainer.compute

    def slowly(trainer: ClientTrainer, *what: object) -> object:
        time.sleep(seconds)
        return compute(trainer, *what)

    ClientTrainer.compute = slowly


if __name__ == "__main__":
    main()
