"""Several data holders training one model in step, each adding its own noise (Algorithm 1).

In every round each holder draws its own Poisson batch, clips, sums, adds N(0, C²σ²I), and sends;
the server adds η times every noised sum and broadcasts. The paper lets holders be one round ahead
of each other; here they wait for each other, so all of a round's gradients are taken at the same
weights. That makes the simulation cheap without changing its distribution: the server needs only
the sum of what it receives, which is the clipped sum over all batches plus noise of variance
n·C²σ².
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch

import forethought as ft
from forethought.rounds.losses import Loss
from forethought.rounds.private_step import PrivateStep, Release
from forethought.rounds.randomness import Secrets, Stream
from forethought.rounds.records import as_records
from forethought.rounds.sampling import Indices, sampler
from forethought.training.optimizers import make_optimizer
from forethought.training.step_sizes import step_sizes


@dataclass(frozen=True)
class Holders:
    """Who holds the records.

    Args:
        name: for the table.
        number: how many holders there are.
        disjoint: whether each holds its own n-th part of the records, so that a person is in one
            holder's data and the promise of the whole is that of one (parallel composition).
            Otherwise each holds all of them: a stand-in for n different data sets of N records,
            which is what the paper's tables speak of, and about accuracy only. A person who really
            was in all of them would be exposed n times.
    """

    name: str
    number: int
    disjoint: bool

    def parts(self, examples: int) -> list[Indices]:
        """Which records each holder has."""
        everything = np.arange(examples)
        if not self.disjoint:
            return [everything] * self.number
        return np.array_split(everything, self.number)


ONE = Holders("one holder", 1, True)
SHARES = Holders("five disjoint shares", 5, True)
COPIES = Holders("five holders of N each", 5, False)


def train(
    model: torch.nn.Module,
    data: tuple[np.ndarray, np.ndarray],
    plan: ft.Plan,
    holders: Holders,
    loss: Loss,
    seed: int,
) -> torch.nn.Module:
    """A trained copy of ``model``.

    Args:
        data: inputs and targets; the holders' parts are cut from them in order.
        plan: what *one* holder does: its sampling rate, σ, rounds; Poisson sampling. With disjoint
            shares a holder's expected batch is the plan's divided by their number. The step size
            is the plan's, on sums divided by the plan's expected batch.
        seed: of all samplings and noises.
    """
    trained = copy.deepcopy(model)
    if holders is ONE:
        ft.train(
            trained,
            data,
            plan,
            loss=loss,
            seed=seed,
            noise_seed=seed,
            log_every=plan.rounds,
            diagnostics=False,
        )
        return trained
    records = as_records(data, torch.float32, torch.device("cpu"))
    (rounds,) = plan.mechanism.rounds
    secrets = Secrets.draw(seed, seed)
    parts = holders.parts(plan.examples)
    draws = [
        sampler(rounds.sampling, len(part), Stream(secrets.sampling, f"sampling {index}"))
        for index, part in enumerate(parts)
    ]
    noise = Stream(secrets.noise, "noise")
    parameters = [p for p in trained.parameters() if p.requires_grad]
    step = PrivateStep(trained, loss, plan.clip, make_optimizer(plan.optimizer, parameters))
    spread = math.sqrt(holders.number) * rounds.noise_multiplier * plan.clip_norm
    release = Release(plan.clip_norm, spread, plan.batch)
    step_size = step_sizes(plan)
    for index in range(plan.rounds):
        batch = np.concatenate([part[draw(index)] for part, draw in zip(parts, draws, strict=True)])
        step.sum_contributions(records, batch, release, None)
        step.update(release, step_size(index), noise.at(index))
    step.clear()
    return trained
