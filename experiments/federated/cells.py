"""One cell of the federated tables: a federation, trained in the simulator, and its accuracy.

Shares, first weights, batches and noise come from the cell's seed, so a cell repeats exactly; a
seeded run promises nothing, and these are about accuracy only. ε is certified for secret numbers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import forethought as ft
from forethought.data import Dataset, load
from forethought.data.synthetic import shares
from forethought.federated.federation import Federation, Member
from forethought.federated.statements import client_statement
from forethought.holders.simulator import StarSimulator, Times
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.models import build
from forethought.models.networks import TemperedSigmoid
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import Records, as_records

EPOCHS = 20
# δ of the earlier work that the paper takes its ε from (Tramèr and Boneh 2021).
DELTA = 1e-5
# Not printed in the paper: the batch of its own settings, so that an epoch is 24 or 20 rounds.
PAPER_BATCH = 250
MODELS = {
    "CNN+ReLU": ("tempered-cnn", None),
    "CNN+TS": ("tempered-cnn", None),
    "SN+Linear": ("linear", "scattering"),
    "SN+CNN": ("tempered-cnn", "scattering"),
}


@dataclass(frozen=True)
class Cell:
    """One figure of a table.

    Args:
        data, model: by name. epsilon: of every client, at δ = 1e-5; infinite for FedAvg.
        local_epochs: E; R = 20/E. clients: k, each holding 10 % drawn at random; 1: all records.
        settings: ``"paper"``, ``"planned"``, or ``"fedavg"``, the paper's without noise and clip.
            Further words change one thing: ``batch=500``; ``shorter=3``, a third of the step size;
            ``flat``, clipping at 1 in place of normalisation; ``told``, a planner that knows the
            norm of the features.
    """

    data: str
    model: str
    epsilon: float
    local_epochs: int
    clients: int
    settings: str

    @property
    def key(self) -> tuple[str, ...]:
        """How a row of results names it."""
        return tuple(map(str, vars(self).values()))


@dataclass(frozen=True)
class Outcome:
    """What one seed of a cell came to: accuracy, certified ε, batch, σ, step size, seconds."""

    accuracy: float
    certified: float
    batch: float
    noise_multiplier: float
    learning_rate: float
    seconds: float


def dataset(name: str, model: str, folder: Path | None) -> Dataset:
    """Images, or their scattering coefficients."""
    return load(name, folder=folder, features=MODELS[model][1])


def network(model: str, inputs: tuple[int, ...], seed: int) -> nn.Module:
    """The paper's four: two CNNs of Papernot et al., linear and CNN on scattering coefficients.

    For CIFAR-10 those sources have six convolutions, 32-32-64-64-128-128, and on scattering
    coefficients 64-M-64 behind a group normalisation (Tramèr and Boneh 2021, Appendix).
    """
    if inputs[1:] in ((32, 32), (8, 8)) and model != "SN+Linear":  # CIFAR-10's shapes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _of_cifar(inputs[0], relu=model == "CNN+ReLU")
    made = build(MODELS[model][0], inputs=inputs, classes=10, seed=seed)
    if model == "CNN+ReLU":
        assert isinstance(made, nn.Sequential)
        made = nn.Sequential(*(nn.ReLU() if isinstance(m, TemperedSigmoid) else m for m in made))
    return made


def _of_cifar(channels: int, *, relu: bool) -> nn.Sequential:
    """The CNN of Tramèr and Boneh for pixels (3 channels) or for scattering coefficients."""
    pixels = channels == 3
    widths = (32, 32, 0, 64, 64, 0, 128, 128, 0) if pixels else (64, 0, 64)  # 0: a pooling
    layers: list[nn.Module] = [] if pixels else [nn.GroupNorm(27, channels, affine=False)]
    for width in widths:
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU() if relu else nn.Tanh()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    hidden = 16 * channels  # 4 × 4 places are left
    if pixels:
        layers += [nn.Linear(hidden, 128), nn.ReLU() if relu else nn.Tanh()]
        hidden = 128
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


def plan_of(
    cell: Cell, records: int, parameters: int, feature_norm: float | None = None
) -> ft.Plan:
    """What every client does; ``feature_norm`` is of the data's features."""
    kind, *changes = cell.settings.split()
    given = dict(change.split("=") for change in changes if "=" in change)
    if kind == "fedavg":
        rounds = EPOCHS * (records // PAPER_BATCH)
        drawn = ft.Poisson(PAPER_BATCH / records)
        return ft.Plan(
            ft.Mechanism(ft.Rounds(0.0, rounds, drawn)),
            records,
            DELTA,
            ft.Clip(1e6),
            optimizer=ft.Optimizer(
                "sgd", 0.3 / float(given.get("shorter", 1)), (("momentum", 0.5),)
            ),
            averaging=ft.Averaging("none"),
        )
    budget = ft.Budget(cell.epsilon, DELTA)
    if kind == "paper":
        batch = int(given.get("batch", PAPER_BATCH))
        return ft.plan(
            examples=records,
            budget=budget,
            batch=batch,
            rounds=EPOCHS * (records // batch),
            clip_norm=1.0,
            learning_rate=0.3,
            options={"momentum": 0.5},
            averaging=ft.Averaging("none"),
            parameters=parameters,
        )
    known = {"parameters": parameters}
    if "told" in changes:
        known["feature_norm"] = feature_norm
    # K clients' sums have the signal of K·n records and √K times one client's noise: as n·√K.
    lead = ft.plan(
        examples=round(records * math.sqrt(cell.clients)), budget=budget, epochs=EPOCHS, **known
    )
    an_epoch = max(1, round(lead.examples / lead.batch))
    found = ft.plan(
        examples=records,
        budget=budget,
        batch=max(1, round(records / an_epoch)),
        rounds=EPOCHS * an_epoch,
        learning_rate=lead.optimizer.learning_rate / float(given.get("shorter", 1)),
        options=dict(lead.optimizer.options),
        **known,
    )
    return found.with_(clip=ft.Clip(1.0) if "flat" in changes else lead.clip)


class Chosen:
    """A client's records, by their numbers, since a hundred copies of a tenth fill the memory."""

    def __init__(self, records: Records, numbers: NDArray[np.int64]) -> None:
        self._records, self._numbers = records, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        """Inputs and targets of some of these."""
        return self._records.take(self._numbers[indices])


def run(cell: Cell, data: Dataset, seed: int) -> Outcome:
    """Train and measure.

    Raises:
        SystemExit: the data set has no test part.
    """
    if data.test is None:
        raise SystemExit(f"{cell.data} has no test part")
    started = time.process_time()
    generator = np.random.default_rng([seed, cell.clients])
    count = len(data.train)
    how = "drawn:0.1" if cell.clients > 1 else "iid"
    parts = shares(data.train.targets, cell.clients, how, generator)
    shape = tuple(data.train.inputs.shape[1:])
    shared = SharedModel(network(cell.model, shape, seed))
    plan = plan_of(cell, len(parts[0]), shared.layout.size, data.feature_norm)
    local = cell.local_epochs * plan.rounds // EPOCHS
    federation = Federation(
        members=tuple(Member(f"client {client}") for client in range(cell.clients)),
        plans=(plan,),
        parameters=shared.layout.size,
        architecture=shared.architecture,
        rounds=plan.rounds // local,
        local_rounds=local,
        averaging=plan.averaging if local == 1 else ft.Averaging("none"),
    )
    holders = []
    whole = as_records((data.train.inputs, data.train.targets), torch.float32, torch.device("cpu"))
    for client, part in enumerate(parts):
        records = Chosen(whole, part) if len(part) < count else whole
        secrets = Secrets.draw(Seeds(seed, seed).part(client))
        holders.append(Holder(plan, records, cross_entropy, secrets, None, local))
    trainers = InProcess(shared, holders)
    end = StarSimulator(federation, shared.read(), trainers, Times([1.0] * cell.clients)).run()
    shared.write(end.weights)
    accuracy = _accuracy(shared.model, data)
    return Outcome(
        accuracy,
        client_statement(federation, 0).guarantee,
        plan.batch,
        plan.noise_multiplier,
        plan.optimizer.learning_rate,
        time.process_time() - started,
    )


def _accuracy(model: nn.Module, data: Dataset) -> float:
    assert data.test is not None
    inputs = torch.from_numpy(data.test.inputs)
    with torch.no_grad():
        outputs = torch.cat([model(piece) for piece in inputs.split(1000)])
    right = outputs.argmax(1) == torch.from_numpy(data.test.targets)
    return 100 * float(right.double().mean())


def with_settings(cell: Cell, settings: str) -> Cell:
    """The same cell at other settings."""
    return replace(cell, settings=settings)
