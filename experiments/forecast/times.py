"""Seconds that ``forethought plan`` says training will take, beside those that it took.

Each figure is of a process of its own, in seconds of its processor, on one thread: what a machine
would take that does nothing else. Rows that are there are skipped.

    python experiments/forecast/times.py --out experiments/forecast/times.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

_ONE = """
import sys, time
time.perf_counter = time.process_time
from pathlib import Path
from forethought.jobs.job import from_file
from forethought.jobs.train import prepare, run, seconds_of
ready = prepare(from_file(Path(sys.argv[1])))
if sys.argv[2] == "plan":
    print(seconds_of(ready.loaded, ready.plan))
else:
    begin = time.process_time()
    run(ready, Path(sys.argv[2]))
    print(time.process_time() - begin)
"""
DIGITS = '[data]\nsource = "digits"\n'
TABLE = '[data]\nsource = "npz:table.npz"\ntask = "{}"\n'
JOBS = {
    "digits": DIGITS,
    "digits, pixels": DIGITS + 'features = "pixels"\n',
    "digits, perceptron": DIGITS + 'features = "pixels"\n[model]\nname = "mlp"\n',
    "digits, convolutions": DIGITS + 'features = "pixels"\n[model]\nname = "tempered-cnn"\n',
    "2,000 x 20": TABLE.format("classification"),
    "2,000 x 20, regression": TABLE.format("regression"),
    "50,000 x 20": TABLE.format("classification").replace("table", "large"),
    "50,000 x 20, 20 epochs": TABLE.format("classification").replace("table", "large")
    + "[training]\nepochs = 20\nbatch = 2000\n",
    "50,000 x 20, perceptron": TABLE.format("classification").replace("table", "large")
    + '[model]\nname = "mlp"\n',
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=len(JOBS), help="jobs in this call")
    asked = parser.parse_args()
    asked.out.touch()
    lines = asked.out.read_text(encoding="utf-8").splitlines()
    have = {json.loads(line)["job"] for line in lines}
    wanted = [(job, text) for job, text in JOBS.items() if job not in have]
    random, out = np.random.default_rng(33), asked.out.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for name, size in (("table", 2_500), ("large", 62_500)):
            x = random.normal(size=(size, 20)).astype(np.float32)
            y = (x[:, 0] + random.normal(size=size) > 0).astype(np.int64)
            np.savez(f"{name}.npz", x=x, y=y)
        for number, (job, text) in enumerate(wanted[: asked.most]):
            Path("job.toml").write_text(text + "[budget]\nepsilon = 3.0\n", encoding="utf-8")
            found = []
            for what in ("plan", f"run-{number}"):
                command = [sys.executable, "-c", _ONE, "job.toml", what]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                if done.returncode:
                    print(done.stderr[-300:])
                    break
                found.append(done.stdout.split()[-1])
            if len(found) < 2:
                continue
            said = None if found[0] == "None" else float(found[0])
            row = {"job": job, "said": said, "took": float(found[1])}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
