"""Several data holders training one model in step, each adding its own noise (Algorithm 1).

In every round each holder draws its own Poisson batch, clips, sums, adds N(0, C²σ²I), and sends;
the server adds η times every noised sum and broadcasts. The paper lets holders be one round ahead
of each other; here they wait for each other, so all of a round's gradients are taken at the same
weights. Each holder releases through private rounds of its own, with its own transcript.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

import forethought as ft
from forethought.rounds.contributions import Loss
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Indices, Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.training.optimizers import make_optimizer
from forethought.values.plan import step_sizes


@dataclass(frozen=True)
class Holders:
    """Who holds the records.

    Args:
        name: for the table.
        number: how many holders there are.
        disjoint: whether each holds its own n-th part of the records, so that a person is in one
            holder's data and the promise of the whole is that of one (parallel composition).
            Otherwise each holds all of them: in place of n different data sets of N records,
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


def secrets_of(holders: Holders, seed: int) -> list[Secrets]:
    """Each holder's randomness, of one seed for all sampling and noise."""
    seeds = Seeds(seed, seed)
    if holders is ONE:
        return [Secrets.draw(seeds)]  # as ft.train draws them
    return [Secrets.draw(seeds.part(index)) for index in range(holders.number)]


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
    parameters = {name: p for name, p in trained.named_parameters() if p.requires_grad}
    optimizer = make_optimizer(plan.optimizer, parameters.values())
    inputs, targets = data
    held = []
    parts = holders.parts(plan.examples)
    for part, secrets in zip(parts, secrets_of(holders, seed), strict=True):
        own = as_records((inputs[part], targets[part]), torch.float32, torch.device("cpu"))
        privacy = plan.with_(examples=len(part)).privacy
        held.append((PrivateRounds(privacy, parameters, loss, secrets), own))
    step_size = step_sizes(plan)
    for index in range(plan.rounds):
        received = []
        for rounds, own in held:
            total = rounds.open(index)
            total.add(trained, own)
            received.append(total.release())
        mean = torch.stack([one.vector for one in received]).sum(0) / plan.batch
        for name, part in received[0].layout.views(mean).items():
            parameters[name].grad = part.to(parameters[name].dtype)
        for group in optimizer.param_groups:
            group["lr"] = step_size(index)
        optimizer.step()
    optimizer.zero_grad()
    for rounds, _ in held:
        rounds.transcript.require(plan.mechanism)
    return trained
