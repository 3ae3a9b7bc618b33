"""One cell of the gossip experiments: workers that are trained in the simulator.

The paper's σ is the standard deviation per coordinate of a *sum* of gradients that nobody clipped;
its theorem calibrates to the sensitivity of a mean, so that the printed noise promises nothing by
itself (Algorithm 1 beside Theorem 2). Here every gradient is clipped to C = 1 and σ·C is added to
the sum: the same noise on the same sum, and the noise multiplier is σ/C = σ. Each cell's ε is that
of the worker that made most updates: its own steps at its own rate, certified, at δ = 1/n.

Shares, first weights, batches and noise come from the seed, so a cell repeats exactly; a seeded run
promises nothing, and these are about accuracy. ε is certified for secret numbers.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import forethought as ft
from forethought.data import load
from forethought.data.synthetic import shares
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.gossip.worker import Machine
from forethought.holders.simulate import synchronous_seconds
from forethought.holders.simulator import GraphSimulator, GraphTimes, Hiccups, average, slow_ones
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.models import build
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records

# Published networks are there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

CLIP, POINTS = 1.0, 10
# Test records of the curves; the last average and the worst worker are measured on all.
LOOKED = 1000
#: The paper's σ by name: of CIFAR-10, and of SWB300 for the LSTM.
NOISE = {"none": 0.0, "small": 1.0, "medium": 2.0, "large": 4.0}
SEQUENCE_NOISE = {"none": 0.0, "small": 0.08, "medium": 0.16, "large": 0.32}
CASES = ("even", "I", "II", "III")
FRAMES, FEATURES, STATES = 21, 260, 32


@dataclass(frozen=True)
class Task:
    """What is trained.

    Args:
        data, model: by name. records: of each worker; 0: all there are. batch: expected, of each.
        epochs: over the whole data. rate: step size at first, which falls along a cosine to 0.
        stages: epochs at which it is multiplied by ``fall`` instead, as in the paper; over the
            first ``warmup`` epochs it rises.
        skew: "iid", or Dirichlet shares. options: of the model.
        workers: K. tested: held-out records; 0: all there are.
        micro_batch: examples whose gradients are held at once; None: what fits.
    """

    data: str
    model: str
    records: int
    batch: int
    epochs: float
    rate: float
    skew: str = "iid"
    options: tuple[tuple[str, int], ...] = ()
    workers: int = 16
    tested: int = 0
    micro_batch: int | None = None
    stages: tuple[float, ...] = ()
    fall: float = 0.1
    warmup: float = 0.0

    def schedule(self, rounds: int) -> ft.Schedule:
        """The step sizes of so many rounds of a worker, which the epochs take."""
        if not self.stages:
            return ft.Schedule("cosine")
        shares = tuple(epoch / self.epochs for epoch in self.stages)
        warmup = round(self.warmup / self.epochs * rounds)
        return ft.Schedule("stages", self.fall, warmup, stages=shares)


@dataclass(frozen=True)
class Cell:
    """One figure: a task, a rule, the paper's noise, a case of its Section 5.3, and whether
    gradients are taken where Algorithm 1 prints it, with two exchanges in a computation; otherwise
    as the library does by default. Whether first rounds are staggered: they were not in rows that
    do not say so."""

    task: str
    rule: str
    noise: str
    case: str = "even"
    seed: int = 0
    printed: bool = False
    stagger: bool = False


@dataclass(frozen=True)
class Records:
    """Inputs and targets for training, and for testing."""

    train: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    test: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def records_of(task: Task, folder: Path | None) -> Records:
    """The data set, or the synthetic sequences."""
    if task.data == "sequences":
        return sequences(task.workers * task.records, 5000)
    data = load(task.data, folder=folder)
    if data.test is None:
        raise SystemExit(f"{task.data} has no test part")
    test = slice(task.tested or None)
    return Records(
        (data.train.inputs, data.train.targets),
        (data.test.inputs[test], data.test.targets[test]),
    )


def sequences(train: int, test: int) -> Records:
    """In place of SWB300, which is not public: 21 frames of 260 features, a class a sequence.

    The class is the state of the middle frame. A hidden chain of 32 states stays in its state with
    chance 0.8; a frame is its state's mean, a third of a standard deviation long in every
    direction, and noise. 32 classes stand for 32,000.
    """
    draw = np.random.default_rng(300)
    means = draw.normal(size=(STATES, FEATURES)) / 3
    count = train + test
    states = np.empty((count, FRAMES), dtype=np.int64)
    states[:, 0] = draw.integers(STATES, size=count)
    for frame in range(1, FRAMES):
        stays = draw.random(count) < 0.8
        states[:, frame] = np.where(stays, states[:, frame - 1], draw.integers(STATES, size=count))
    inputs = means[states] + draw.normal(size=(count, FRAMES, FEATURES))
    inputs = inputs.astype(np.float32)
    targets = states[:, FRAMES // 2]
    return Records((inputs[:train], targets[:train]), (inputs[train:], targets[train:]))


def run(cell: Cell, task: Task, records: Records) -> dict[str, Any]:
    """Train and measure."""
    started = time.process_time()
    generator = np.random.default_rng([cell.seed, 13])
    inputs, targets = records.train
    if task.records:
        chosen = generator.permutation(len(targets))[: task.workers * task.records]
        inputs, targets = inputs[chosen], targets[chosen]
    parts = shares(targets, task.workers, task.skew, generator)
    classes = int(records.train[1].max()) + 1
    model = build(
        task.model,
        inputs=tuple(inputs.shape[1:]),
        classes=classes,
        seed=cell.seed,
        **dict(task.options),
    )
    shared = SharedModel(model)
    gossip, times = gossip_of(cell, task, [len(part) for part in parts], shared)
    holders = [
        Holder(
            gossip.plan(k),
            as_records((inputs[part], targets[part]), torch.float32, torch.device("cpu")),
            cross_entropy,
            Secrets.draw(Seeds(cell.seed, cell.seed).part(k)),
            micro_batch=task.micro_batch,
            gradients=True,
        )
        for k, part in enumerate(parts)
    ]
    curve: list[tuple[float, float, float, float]] = []
    few = (records.test[0][:LOOKED], records.test[1][:LOOKED])

    def looked(count: int, seconds: float, machines: list[Machine]) -> None:
        loss, accuracy = measured(shared, average(machines), few)
        epoch = count * task.batch / sum(len(part) for part in parts)
        curve.append((round(seconds, 3), round(epoch, 3), accuracy, loss))

    torch.set_num_threads(1)
    done = GraphSimulator(
        gossip,
        shared.read(),
        InProcess(shared, holders),
        times,
        looked=looked,
        every=max(1, gossip.total // POINTS),
    ).run()
    loss, accuracy = measured(shared, done.weights, records.test)
    # Who is worst is found on few records, and then measured on all.
    each = [measured(shared, one, few)[1] for one in done.models]
    worst = measured(shared, done.models[int(np.argmin(each))], records.test)[1]
    most = int(done.updates.max())
    worker = int(done.updates.argmax())
    plan = gossip.plan(worker)
    epsilon = None
    if plan.noise_multiplier:
        epsilon = ft.epsilon(plan.mechanism.first(most), plan.delta).upper
    return {
        "accuracy": accuracy,
        "loss": loss,
        "worst": min(worst, accuracy),
        "seconds": done.seconds,
        "synchronous_seconds": synchronous_seconds(gossip, times),
        "epsilon": epsilon,
        "delta": plan.delta,
        "rate": plan.batch / plan.examples,
        "rounds": most,
        "fewest": int(done.updates.min()),
        "parameters": shared.layout.size,
        "processor": time.process_time() - started,
        "curve": curve,
    }


def gossip_of(
    cell: Cell, task: Task, sizes: list[int], shared: SharedModel
) -> tuple[Gossip, GraphTimes]:
    """What the workers agree on, and how long everything takes: a usual computation one second."""
    large = 2 if cell.case == "III" else 1
    sigma = (SEQUENCE_NOISE if task.data == "sequences" else NOISE)[cell.noise]
    total = sum(sizes)
    rounds = max(1, round(task.epochs * total / (task.workers * task.batch * large)))
    headroom = 1.2 if cell.rule == "asynchronous" else 1.0
    plans = []
    for size in sizes:
        rate = min(1.0, task.batch * large * task.workers / total)
        part = ft.Rounds(sigma / CLIP, round(headroom * rounds), ft.Poisson(rate))
        plans.append(
            ft.Plan(
                ft.Mechanism(part),
                size,
                1 / size,
                ft.Clip(CLIP),
                optimizer=ft.Optimizer("sgd", large * task.rate, ()),
                schedule=task.schedule(part.count),
            )
        )
    gossip = Gossip(
        tuple(Member(f"worker-{k}", k) for k in range(task.workers)),
        tuple(plans),
        Mixing("matchings", make("complete", task.workers), cell.seed),
        shared.layout.size,
        shared.architecture,
        rounds,
        rule=cell.rule,  # type: ignore[arg-type]
        point="own" if cell.printed else "average",
        stagger=cell.stagger and cell.rule == "asynchronous",
        # The paper's epochs are of all workers; rows without stages followed each worker's own.
        clock="all" if task.stages and cell.rule == "asynchronous" else "own",
    )
    usual = float(large)
    times = GraphTimes(
        slow_ones(task.workers, 1 if cell.case == "II" else 0, 10.0, usual),
        straggling=0.1 if cell.case == "even" else 0.0,
        factors=Hiccups(task.workers, 2.0, cell.seed) if cell.case == "I" else None,
        exchange=usual / 2 if cell.printed else None,
        seed=cell.seed,
    )
    return gossip, times


def measured(
    shared: SharedModel,
    weights: np.ndarray[Any, Any],
    records: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> tuple[float, float]:
    """Mean loss, and accuracy in per cent."""
    shared.write(weights)
    targets = torch.from_numpy(records[1])
    with torch.no_grad():
        outputs = torch.cat([shared.model(p) for p in torch.from_numpy(records[0]).split(500)])
    loss = float(nn.functional.cross_entropy(outputs, targets))
    return loss, 100 * float((outputs.argmax(1) == targets).double().mean())
