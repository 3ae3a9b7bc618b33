"""A lower bound on ε from one training run of the user's own model, loss and data.

*Canaries* take the places of some records; for each, its own fair coin decides if it is there. One
run of the whole plan is made, a rehearsal whose weights are discarded. An attacker guesses the
coins, and abstains if it is not sure. The bound on ε from the number of right guesses does not need
independent canaries (:func:`forethought.auditing.attack.one_run_p_value`; Steinke, Nasr and
Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2024).

White box: a canary's gradient has its own coordinate ("Dirac canary", Nasr et al. 2023) in a table
of parameters beside the model's, with a norm far above the clipping norm, and the attacker sees
every noised sum. Black box: a canary is a record with a wrong target, and the attacker sees its
loss before and after the run.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from forethought.accounting.tradeoff import tradeoff
from forethought.auditing import attack
from forethought.auditing.audit import FALSE_ALARM, own_records, require
from forethought.auditing.canaries import LARGE, ROWS, choices, holding
from forethought.auditing.verdict import AttackSummary, Audit, Finding
from forethought.gradients.batches import call
from forethought.rounds.contributions import Loss
from forethought.rounds.private_sum import WITNESS, NoisedSum
from forethought.training.run import train
from forethought.values.checks import one_of, real, whole
from forethought.values.mechanism import Examples, Persons
from forethought.values.plan import Plan

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Canaries = Literal["gradients", "inputs"]

# Default number of canaries: at most MOST, and at most this share of the records.
MOST, SHARE = 2_000, 0.5
# Records whose losses are computed at once.
PIECE = 256

REHEARSAL = (
    "a rehearsal: one run of the whole plan was made on the given data with canaries among them, "
    "and thrown away. Nothing was released, so nothing of a budget is spent; publishing what was "
    "measured would be one more run of the plan on these data"
)


class Canaried(nn.Module):
    """The user's model with a table of numbers beside it, one for each canary.

    Args:
        model: the user's model. canaries: number of canaries.
    """

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        first = next(p for p in model.parameters() if p.requires_grad)
        self.model = model
        self.table = nn.Embedding(max(ROWS, canaries), 1, dtype=first.dtype, device=first.device)
        nn.init.zeros_(self.table.weight)

    def forward(
        self, row: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, inputs: Any
    ) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The model's outputs, the factor ``own`` of its loss (B,), and weight·table[row] (B,)."""
        return call(self.model, inputs), own, weight * self.table(row).squeeze(-1)


def one_run(
    plan: Plan,
    model: nn.Module | None = None,
    data: object | None = None,
    *,
    loss: Loss | None = None,
    canaries: Canaries = "gradients",
    number: int | None = None,
    false_alarm: float = FALSE_ALARM,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Attack one rehearsed run and report how close to the claim the attack comes.

    The trained weights are discarded.

    Args:
        plan: the claim; the whole plan is run.
        model: the user's model, with ``data``; a copy is trained. Without both, planted records are
            used.
        data: the user's records, as for :func:`forethought.train`.
        loss: one value for each record; default as in training.
        canaries: ``"gradients"``: observed in every noised sum (white box). ``"inputs"``: records
            with wrong targets, observed by their losses before and after the run (black box).
        number: number of canaries, in the places of random records. None: half of the records, at
            most 2,000; without model and data up to all of them.
        false_alarm: chance that a sound run is refuted by any test, above 0 and at most 0.1.
        seed: of coins and choices. The run draws its own randomness.
        progress: called with (rounds done, rounds).

    Returns:
        The audit. ``attack.fdp_epsilon`` is the lower bound, ``attack.claimed_epsilon`` the claim.

    Raises:
        ValueError, TypeError: arguments that do not fit, a plan whose runs play only one game each,
            or a plan without noise.
    """
    require(plan, model, data, loss, progress)
    one_of("canaries", canaries, get_args(Canaries))
    if model is None and canaries == "inputs":
        raise ValueError('canaries="inputs" are records of yours: give model and data')
    if attack.directed(plan):
        raise ValueError(
            "one run plays one game of this plan: records of a group share its update, and one "
            "record less moves batches of a fixed size. Use forethought.audit, or a plan that "
            "clips examples, by Poisson sampling or under zero-out"
        )
    if any(part.noise_multiplier == 0 for part in plan.mechanism):
        raise ValueError("a plan without noise claims nothing: there is nothing to come close to")
    share = real("false_alarm", false_alarm, above=0, most=0.1)
    most = plan.examples if model is None else max(2, int(SHARE * plan.examples))
    count = min(MOST, most) if number is None else whole("number", number)
    if not 2 <= count <= plan.examples:
        raise ValueError(f"number must be from 2 to the plan's {plan.examples} records: {count}")
    start, generator = time.perf_counter(), choices(seed)
    notes = [REHEARSAL]
    if plan.preparation is not None or plan.augmentation is not None:
        notes.append("altered copies and the preparation of the data were left out of it")
    if plan.clip.shares:
        notes.append("each parameter had the same share of the clipping norm, the canaries' too")
    clip = replace(plan.clip, shares=None)  # they name the model's parameters, not the canaries'
    plan = plan.with_(preparation=None, augmentation=None, budget=None, clip=clip)
    told = None if progress is None else lambda event: progress(event.round, plan.rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # planted gradients have unusual sizes
        if model is None:
            games = attack.orthogonal_games(plan, count, generator, progress=told)
        else:
            games = _games(plan, model, data, loss, canaries, count, generator, told)
    if not len(games.outside) or not len(games.inside):
        raise ValueError(f"all {count} coins fell alike: take a larger number of canaries")
    findings, summary = _judged(plan, games, canaries)
    seconds = round(time.perf_counter() - start, 2)
    return Audit(tuple(findings), share, summary, seconds, tuple(notes))


def _judged(
    plan: Plan, games: attack.Games, canaries: Canaries
) -> tuple[list[Finding], AttackSummary]:
    claim, found = tradeoff(plan.mechanism), attack.guessed(games)
    right = ", ".join(f"{v:,} of {r:,}" for r, v in found)
    total = games.count
    reason = (
        f"Of one run with {total:,} canaries {right} guesses about them are right, which the "
        "claim makes improbable."
    )
    p_value = attack.one_run_refutation(found, total, claim)
    findings = [Finding("attack", "guesses in one run", f"{right} right", "fewer", reason, p_value)]
    fdp = attack.one_run_fdp_epsilon(plan.mechanism, found, total, plan.delta)
    chosen = None
    if canaries == "gradients":  # scores with a known distribution
        finding, chosen = attack.judge(plan, games)
        findings.append(finding)
    return findings, attack.summarise(plan, games, chosen, fdp=fdp)


def _games(
    plan: Plan,
    model: nn.Module,
    data: object,
    loss: Loss | None,
    canaries: Canaries,
    count: int,
    generator: np.random.Generator,
    progress: Callable[[Any], None] | None,
) -> attack.Games:
    """One run of the plan on the user's model; every canary is a game."""
    model, records, usual = own_records(model, data, plan, loss)
    if isinstance(plan.contribution, Persons):  # each person is one record here
        plan = plan.with_(contribution=Examples())
    inputs, targets = records.take(np.arange(plan.examples))
    chosen = generator.permutation(plan.examples)[:count]
    there = generator.random(count) < 0.5
    weight, counted = np.zeros(plan.examples), np.ones(plan.examples)
    row = np.zeros(plan.examples, dtype=np.int64)
    table, wrong, trained_on = count if canaries == "gradients" else 0, targets, targets
    if table:
        row[chosen] = np.arange(count)
        counted[chosen] = 0
        weight[chosen] = np.where(there, *attack.contributions(plan)) * LARGE * plan.clip.norm
    else:
        wrong = trained_on = mistaken(targets, chosen, generator)
        if attack.contributions(plan)[1]:  # replace-one: the original record takes part instead
            kept = torch.from_numpy(chosen[~there]).to(targets.device)
            # The attacker looks at every wrong target: which one took part is the secret.
            trained_on = wrong.index_copy(0, kept, targets[kept])
        else:
            counted[chosen[~there]] = 0
    masks = {"row": torch.from_numpy(row), "own": counted, "weight": weight}
    trained = Canaried(copy.deepcopy(model), table)

    def value(outputs: Any, targets: Any) -> torch.Tensor:
        inner, own, planted = outputs
        return own * usual(inner, targets) + planted

    seen: list[Array] = []

    def keep(noised: NoisedSum) -> None:
        sums = noised.layout.views(noised.vector)["table.weight"].reshape(-1)[:table]
        seen.append(sums.detach().cpu().numpy() / noised.round.clip_norm)

    # The attacker sees what is released, and nothing before.
    listener = SimpleNamespace(met=_unseen, summed=_unseen, released=keep)
    before = losses(trained.model, usual, inputs, wrong, chosen)
    options: dict[str, Any] = {"diagnostics": False, "log_every": plan.rounds, "progress": progress}
    with holding(WITNESS, (lambda *_: listener) if table else None):
        train(trained, ({**masks, "inputs": inputs}, trained_on), plan, loss=value, **options)
    if canaries == "inputs":
        score = before - losses(trained.model, usual, inputs, wrong, chosen)
        return attack.Games(score[~there], score[there], independent=False)
    return attack.games_of(plan, np.array(seen), there)


def mistaken(
    targets: torch.Tensor, chosen: Indices, generator: np.random.Generator
) -> torch.Tensor:
    """Targets with wrong values for the chosen records: other classes, or each other's numbers."""
    wrong, places = targets.clone(), torch.from_numpy(chosen).to(targets.device)
    some = targets[places]
    if targets.is_floating_point():
        wrong[places] = some.roll(1, 0)
        return wrong
    # Two at least: were all of one class, the others' places would keep the right one.
    classes = max(2, int(targets.max()) + 1)
    shift = torch.from_numpy(generator.integers(1, classes, size=tuple(some.shape)))
    wrong[places] = torch.where(some < 0, some, (some + shift.to(some.device)) % classes)
    return wrong


def losses(
    model: nn.Module, loss: Loss, inputs: Any, targets: torch.Tensor, chosen: Indices
) -> Array:
    """The losses of the chosen records in evaluation mode, shape (chosen,)."""
    training, found = model.training, []
    model.eval()
    with torch.no_grad():
        for some in np.array_split(chosen, -(-len(chosen) // PIECE)):
            places = torch.from_numpy(some).to(targets.device)
            piece = torch.utils._pytree.tree_map(lambda leaf, at=places: leaf[at], inputs)
            found.append(loss(call(model, piece), targets[places]).double().cpu().numpy())
    model.train(training)
    return np.asarray(np.concatenate(found), dtype=np.float64)


def _unseen(*_: object) -> None:
    """Do nothing."""
