"""One process of a data-parallel run; started twice by torchrun, or once by itself.

``python two_processes.py CASE,… FOLDER`` trains each CASE into FOLDER/CASE; of CASE:STOP it sends
itself SIGTERM after round STOP. Every process writes what it ended with to FOLDER/CASE-RANK.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from forethought.auditing.replay import Replay, replaying
from forethought.rounds import private_sum
from forethought.rounds.private_sum import PrivateRounds, ProcessGroup
from forethought.rounds.randomness import BoundNoise
from forethought.training.execution import Interrupted, launched
from forethought.training.metrics import Event
from forethought.training.run import train
from forethought.values.mechanism import (
    Augmentation,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Shuffled,
)
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging

EXAMPLES, ROUNDS = 120, 12


def plan(*rounds: Rounds, **options: Any) -> Plan:
    return Plan(Mechanism(*rounds, adjacency="zero-out"), EXAMPLES, 1e-5, **options)


CASES: dict[str, Plan] = {
    "examples": plan(Rounds(1.0, ROUNDS, Poisson(0.2))),
    # About one record a round: one of two slices is empty most of the time, often both.
    "empty slices": plan(Rounds(1.0, ROUNDS, Poisson(1 / EXAMPLES))),
    "groups": plan(Rounds(1.0, ROUNDS, Poisson(0.2), "group"), groups=3),
    "quantile": plan(
        Rounds(1.0, 6, Shuffled(50, EXAMPLES)),
        Rounds(1.2, ROUNDS - 6, FullBatch()),
        clip=Clip(1.0, "quantile", count_noise=3.0),
    ),
    "grid": plan(Rounds(1.0, ROUNDS, Poisson(0.2)), noise="grid"),
    # Images of 2 by 3: which copies a record has must not depend on who computes it.
    "copies": plan(
        Rounds(1.0, ROUNDS, Poisson(0.2)), augmentation=Augmentation(3, ("mirror", "shift"))
    ),
}


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(EXAMPLES, 6))
    inputs[7] = np.inf  # counted once, whoever meets it
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


WHOLE = "every slice is the whole batch"


def given(case: str, chosen: Plan, out: Path) -> dict[str, Any]:
    """The plan and the run folder that a process is given, and whether it continues a run."""
    if case == "other average":
        chosen = chosen.with_(averaging=Averaging("tail"))
    resume = (out / "checkpoint").exists()
    return {"plan": chosen, "out": None if case == "other folder" else out, "resume": resume}


def main(case: str, out: Path) -> None:
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # the first process's weights are everybody's
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    inputs, targets = data()
    name, _, stop = case.partition(":")
    name = name if name in CASES else "examples"
    found: dict[str, Any] = {"rank": rank}

    def progress(event: Event) -> None:
        found["rounds"] = event.round
        if str(event.round) == stop:
            os.kill(os.getpid(), signal.SIGTERM)

    options: dict[str, Any] = {"seed": 1, "noise_seed": 2, "log_every": 3, "progress": progress}
    if case == "other data" and rank:
        inputs = inputs + 1
    if case == "other sum" and rank:
        honest = ProcessGroup.add_up

        def add_up(self: ProcessGroup, tensor: torch.Tensor) -> None:
            honest(self, tensor)
            tensor[0] = torch.nextafter(tensor[0], tensor[0] + 1)

        ProcessGroup.add_up = add_up  # type: ignore[method-assign]
    if case == "wrapped":
        model = DistributedDataParallel(model)
    share_of = private_sum.share_of
    if case == WHOLE:
        private_sum.share_of = lambda batch, *_: batch
    generator = np.random.default_rng(5)
    held = generator.normal(size=(20, 6)), generator.integers(2, size=20)
    if case == "copies":
        inputs, held = inputs.reshape(-1, 1, 2, 3), (held[0].reshape(-1, 1, 2, 3), held[1])
        model = nn.Sequential(nn.Flatten(), model)
    shown = replaying() if "REPLAY" in os.environ else nullcontext(Replay())
    try:
        with shown as seen:
            options |= given(case if rank else "", CASES[name], out)
            run = train(model, (inputs, targets), test=held, **options)
        found["replay"] = [seen.replayed, seen.refuted, seen.refusals]
    except Interrupted as error:
        found["interrupted"] = error.rounds
    except (RuntimeError, ValueError) as error:
        found["refused"] = f"{type(error).__name__}: {error}"
    else:
        weights = torch.cat([p.detach().flatten() for p in run.model.parameters()])
        found["weights"] = weights.tolist()
        found["digest"] = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
        # Without what follows from the weights' last bits, which the order of a sum decides.
        found["statement"] = replace(run.statement, about=None).to_json()
        found["history"] = [[row.round, row.clipped, row.non_finite] for row in run.history]
    private_sum.share_of = share_of
    (out.parent / f"{case}-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    if "NOISE_BY_ROUND" in os.environ:
        # Noise of secret and round alone, so that the sums of one process and of two compare.
        PrivateRounds._about = lambda _, chosen: chosen.index.to_bytes(32, "big")
        BoundNoise.bind = lambda _, about, _sum: about[31::-1]
    with launched():
        for each in sys.argv[1].split(","):
            main(each, Path(sys.argv[2]) / each)
    assert not distributed.is_initialized()
    # The group ended with its threads: one that outlives it aborts the process now and then.
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").glob("*")]
    assert not any("gloo" in thread for thread in threads), threads
