"""Trains in child processes that are killed with SIGKILL, resumes them, and reports as JSON.

Run as a program: ``python killed_runs.py FOLDER SEED``. This process only imports; each run is a
fork of it, so that dozens of kills cost one import of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from forethought.training.folder import Checkpoint
from forethought.training.metrics import Event
from forethought.training.run import train
from forethought.values.mechanism import Mechanism, Poisson, Rounds, Shuffled, WithoutReplacement
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging, Optimizer, Schedule

EXAMPLES, ROUNDS = 150, 40


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))


def plan(*rounds: Rounds, **options: Any) -> Plan:
    return Plan(Mechanism(*rounds, adjacency="zero-out"), EXAMPLES, 1e-5, **options)


CASES: dict[str, tuple[Plan, dict[str, Any]]] = {
    "sgd, checkpoint by rounds": (
        plan(Rounds(1.0, ROUNDS, Poisson(0.2))),
        {"checkpoint_every": 7},
    ),
    "adam, tail, one checkpoint only": (
        plan(
            Rounds(1.0, ROUNDS, WithoutReplacement(20, EXAMPLES)),
            optimizer=Optimizer("adam", 0.02, ()),
            averaging=Averaging("tail"),
            schedule=Schedule("cosine", warmup=5),
        ),
        {"checkpoint_every": 1000},
    ),
    "quantile, shuffled, two parts": (
        plan(
            Rounds(1.5, 15, Shuffled(40, EXAMPLES)),
            Rounds(1.0, ROUNDS - 15, Poisson(0.1)),
            clip=Clip(1.0, "quantile", count_noise=5.0),
        ),
        {"checkpoint_every": 3},
    ),
    "groups, micro-batches": (
        plan(Rounds(1.0, ROUNDS, Poisson(0.3), "group"), groups=2),
        {"checkpoint_every": 1, "micro_batch": 8},
    ),
}


def go(name: str, out: Path, *, resume: bool, kill_at: int | None, log: Path | None) -> None:
    """One run in this process, logging the weights after every round."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(EXAMPLES, 6))
    inputs[5] = np.inf
    targets = (inputs[:, 0] > 0).astype(np.int64)
    torch.set_num_threads(1)
    # A resumed run takes its weights from the checkpoint, whatever it is started with.
    begun = (out / "checkpoint" / "state.safetensors").exists()
    torch.manual_seed(1 if begun else 0)
    model = network()

    def progress(event: Event) -> None:
        if log is not None:
            state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
            with log.open("a") as file:
                file.write(f"{event.round} {hashlib.sha256(state).hexdigest()}\n")
        if event.round == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    chosen, options = CASES[name]
    train(
        model,
        (inputs, targets),
        chosen,
        test=(inputs[20:60] + 1, targets[20:60]),
        out=out,
        resume=resume,
        seed=1,
        noise_seed=2,
        log_every=4,
        progress=progress,
        **options,
    )


def in_child(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Exit status of ``work`` in a forked child; negative is a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print(f"child: {error!r}", file=sys.stderr)
        finally:
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder: Path) -> dict[str, str]:
    """Name → hash of every file, checkpoints' folder included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def scenario(name: str, folder: Path, chooser: random.Random, blind: bool) -> dict[str, Any]:
    """Kill a run several times, let it end, and compare with the run that nobody touched."""
    log, killed, straight = folder / "log", folder / "killed", folder / "straight"
    folder.mkdir(parents=True)
    reference = folder / "reference"
    started = time.perf_counter()
    whole = in_child(partial(go, name, straight, resume=False, kill_at=None, log=reference))
    duration = time.perf_counter() - started
    kills, resume, done = 0, False, 0
    for _ in range(4):
        # Either at a random moment, or right after a random one of the next 15 rounds.
        at = None if blind else min(done + chooser.randrange(1, 16), ROUNDS)
        status = in_child(
            partial(go, name, killed, resume=resume, kill_at=at, log=log),
            kill_after=chooser.uniform(0, duration) if blind else None,
        )
        kills += status == -signal.SIGKILL
        resume = (killed / "checkpoint").exists() or (killed / "plan.json").exists()
        done = Checkpoint.read(killed / "checkpoint").round if at is not None else 0
    last = in_child(partial(go, name, killed, resume=resume, kill_at=None, log=log))
    rounds = dict(line.split() for line in reference.read_text().splitlines())
    repeated = [line.split() for line in log.read_text().splitlines()]
    return {
        "name": name,
        "statuses": [whole, last],
        "kills": kills,
        "repeats": len(repeated) - len(dict(repeated)),
        "differing rounds": sorted({n for n, digest in repeated if rounds[n] != digest}),
        "same files": contents(killed) == contents(straight),
    }


if __name__ == "__main__":
    # Warms up torch on one thread, which leaves nothing behind that a fork could not copy.
    torch.set_num_threads(1)
    warm = Plan(Mechanism(Rounds(1.0, 2, Poisson(0.5))), 4, 1e-5)
    train(network(), (np.zeros((4, 6)), np.zeros(4, dtype=np.int64)), warm)
    root, seed = Path(sys.argv[1]), int(sys.argv[2])
    chooser = random.Random(seed)
    found = [
        scenario(name, root / f"{number}-{blind}", chooser, blind)
        for number, name in enumerate(CASES)
        for blind in (False, True)
    ]
    print(json.dumps(found))
