"""Options of federations and gossips, drawn together: refused in words, or as predicted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forethought.jobs.holders import holders_of, plan_job, simulate_job
from forethought.jobs.job import Job, JobRequest

# For each kind, groups of keys of which one is drawn; the first is the usual one.
TRAINING = (
    ("", 'clip_rule = "quantile"', "clip_norm = 1.0\nfinal_clip_norm = 0.2", 'noise = "grid"'),
    ("", 'noise_schedule = "geometric"', 'sampling = "without-replacement"'),
    ("", 'clipping = "group"\ngroups = 2', 'adjacency = "replace-one"'),
    ("", 'averaging = "tail"', 'optimizer = "adam"', 'schedule = "cosine"'),
)
SECTIONS = {
    "federation": (
        ("clients = 3", "clients = 3\ncohort = 2", "clients = 3\ndeadline = 0.2"),
        ("", "secure = {dropouts = 0}", 'rule = "asynchronous"', "local_rounds = 2"),
        ("", "phases = 2", "growth = 2.0", 'robust = {kind = "median"}'),
        ("", 'server = {kind = "adam", rate = 0.1}', "cadence = 1.0", 'weights = "equal"'),
        ("", 'sizes = {kind = "signal"}', 'exchanged = "gradients"'),
    ),
    "gossip": (
        ("workers = 4", "workers = 2", 'workers = 4\nshares = "power-law:1.2"'),
        ("", 'rule = "synchronous"', 'rule = "allreduce"', "headroom = 2.0"),
        ("", 'compression = "bf16"', "difference = 0.5", "momentum = 0.5", "tracking = true"),
        ("", 'case = "II"', "pause = 2", 'graph = "ring"'),
    ),
}


def drawn(kind: str, seed: int, folder: Path) -> str:
    choose = random.Random(f"{kind} {seed}")
    rows = np.random.default_rng(1)
    labels = rows.integers(0, 2, 60)
    values = (rows.standard_normal((60, 24)) + labels[:, None]).astype(np.float32)
    np.savez(folder / "rows.npz", x_train=values, y_train=labels)

    def some(groups: Any) -> str:
        return "\n".join(choose.choice(one) if choose.random() < 0.5 else one[0] for one in groups)

    return (
        f'[data]\nsource = "npz:{folder.as_posix()}/rows.npz"\n[budget]\nepsilon = 4.0\n'
        f"[training]\nbatch = 8\nrounds = 4\n{some(TRAINING)}\n[{kind}]\n{some(SECTIONS[kind])}\n"
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["federation", "gossip"])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))]
)
def test_what_is_released_is_what_was_predicted(kind: Any, seed: int, tmp_path: Path) -> None:
    text = drawn(kind, seed, tmp_path)
    try:
        held = holders_of(JobRequest("job", text, Job.parse(text)), kind)
        costs: Any = plan_job(held)
    except (ValueError, TypeError) as problem:
        assert len(str(problem)) > 20, text
        return
    run, _ = simulate_job(held)
    assert np.isfinite(run.simulated.weights).all()
    agreed: Any = held.agreed
    for place, cost in enumerate(costs.clients if kind == "federation" else costs.workers):
        statement, transcript = run.statements[place], run.transcripts[place]
        secure = kind == "federation" and agreed.secure is not None
        predicted = cost.secure_epsilon if secure else cost.epsilon
        most = cost.rounds if kind == "federation" else cost.cap
        assert predicted <= cost.budget.epsilon and len(transcript) <= most, text
        if statement is None:
            assert not len(transcript)
            continue
        assert statement.delta == cost.budget.delta
        assert statement.guarantee <= predicted * (1 + 1e-12), text
        if len(transcript) == most and getattr(agreed, "sizes", None) is None:
            assert statement.guarantee == pytest.approx(predicted, rel=1e-9), text
