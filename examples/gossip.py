"""SYNC, what gossip is compared with: a process for each worker, and a mean of all in every round.

    torchrun --nproc-per-node=4 examples/gossip.py

MNIST is read from --data-dir or FORETHOUGHT_DATA; where it is not, scikit-learn's digits are taken.
Every worker ends with a statement and a model of its own in runs/gossip. Where nobody waits for
anybody: forethought gossip train examples/gossip.toml
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from forethought.data import DataError
from forethought.jobs.job import Job, JobRequest, from_file
from forethought.jobs.load import load_job
from forethought.jobs.members import launched_worker


def main() -> None:
    parser = argparse.ArgumentParser(description="SYNC under torchrun.")
    parser.add_argument("--job", type=Path, default=Path(__file__).with_name("gossip.toml"))
    parser.add_argument("--out", type=Path, default=Path("runs/gossip"))
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    request = changed(from_file(chosen.job), gossip={"rule": "allreduce"})
    try:
        load_job(request, chosen.data_dir)
    except DataError as missing:
        request = changed(request, data={"source": "digits"})
        if os.environ.get("RANK") == "0":
            print(f"scikit-learn's digits in place of the job's data: {missing}", flush=True)
    done = launched_worker(request, chosen.out, data_dir=chosen.data_dir)
    print(json.dumps(done.summary()), flush=True)


def changed(request: JobRequest, **tables: dict[str, object]) -> JobRequest:
    """The same request with other values in some of its tables."""
    held = request.job.model_dump(exclude_unset=True)
    for name, values in tables.items():
        held[name] = {**held.get(name, {}), **values}
    return dataclasses.replace(request, job=Job.model_validate(held))


if __name__ == "__main__":
    main()
