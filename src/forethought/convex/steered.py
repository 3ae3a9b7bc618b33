"""Noise that follows the gradient's norm as it is found on the way.

Proposition 1 makes the noise proportional to the gradient, σ_t = ‖∇F(θ_t)‖/√d. Taken from the data
that leaks, so :func:`descend_unprotected` is for comparison and its statement says that there is no
guarantee. :func:`descend_steered` estimates the norm from what was released anyway: a noised
gradient g̃ has E‖g̃‖² = ‖∇F‖² + dσ², so ‖g̃‖² − dσ² costs nothing. The noise then depends on outputs,
which composition with fixed parameters does not cover: a Gaussian filter is charged before each
round, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forethought.accounting.adaptive import GaussianFilter, filter_details
from forethought.accounting.assumptions import Randomness
from forethought.accounting.closed_bounds import gaussian_mu
from forethought.accounting.statement import account
from forethought.caveats import Caveat
from forethought.checks import real, whole
from forethought.contributions import LinearExamples
from forethought.convex.descent import (
    Descended,
    Path,
    beginning,
    finished,
    functions_of,
    uses_of_data,
)
from forethought.convex.descent_plan import DescentPlan
from forethought.convex.problems import Problem
from forethought.convex.rows import Above, Bounded, bounded_records
from forethought.gradients.clipping import flat
from forethought.mechanism import Adjacency, Budget, Mechanism, Rounds, sensitivity
from forethought.privacy import LEAST_NOISE, Clip, Privacy
from forethought.rounds.linear import LinearModel, Slope, linear_sums
from forethought.rounds.private_sum import NoisedSum, PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.transcript import Transcript
from forethought.samplings import FullBatch

# Weight of the newest estimate of the squared norm.
NEWEST = 0.3
# σ_t = RATIO·‖∇F‖/√d, and never below what would spend this share of the budget in one round.
RATIO, MOST_SHARE = 1.0, 0.25


@dataclass
class _Run:
    """A run whose rounds are decided one after the other."""

    problem: Problem
    records: Bounded
    model: LinearModel
    path: Path
    clip_norm: float
    delta: float
    adjacency: Adjacency
    seeds: Seeds
    transcript: Transcript
    seeded: bool = False

    def privacy(self, *rounds: Rounds, budget: Budget | None = None) -> Privacy:
        mechanism = Mechanism(*rounds, adjacency=self.adjacency)
        size = len(self.records.records)
        clip = Clip(self.clip_norm)
        return Privacy(mechanism, size, self.delta, clip, LinearExamples(), budget=budget)

    def release(self, rounds: Rounds) -> NoisedSum:
        """One round at the path's present place, with secrets of its own."""
        index = len(self.transcript)
        # Every round has number 0 here: with one secret, two that are alike would be one release.
        secrets = Secrets.draw(self.seeds.part(index))
        self.seeded |= secrets.seeded_noise
        privacy, slope = self.privacy(rounds), self.model.slope
        private = PrivateRounds(privacy, dict(self.model.named_parameters()), slope, secrets)
        with private, torch.no_grad():
            self.model.weight.copy_(self.path.place(index + 1))
            total = private.open(0)
            total.add(self.model, self.records.records)
            noised = total.release()
        self.transcript.extend(private.transcript)
        return noised

    def plan(self, steps: list[float], chosen: Caveat, budget: Budget | None) -> DescentPlan:
        """What was run, as a plan."""
        parts = tuple(self.transcript.mechanism(self.adjacency))
        columns = self.records.records.features.shape[1] - bool(self.problem.intercept)
        return DescentPlan(
            self.problem,
            self.privacy(*parts, budget=budget),
            columns,
            steps,
            hyperparameters=chosen,
        )


def descend_steered(
    problem: Problem,
    budget: Budget,
    features: Any,
    targets: Any,
    *,
    rounds: int = 1000,
    adjacency: Adjacency = "replace-one",
    above: Above = "clip",
    seeds: Seeds | None = None,
    slope: Slope | None = None,
) -> Descended:
    """Gradient descent with noise that follows a private estimate of the gradient's norm.

    Steps are 1/(2M), gradients are clipped at L. σ_1 = L/(2√d): half the bound on a gradient.

    Args:
        problem, features, targets, above, seeds, slope: as in
            :func:`forethought.convex.descend`.
        budget: (ε, δ), which a Gaussian filter keeps.
        rounds: at most so many.
        adjacency: what a neighbour is.

    Returns:
        The weights; the statement's accountant is the filter.

    Raises:
        ValueError, TypeError: data that do not fit. Any budget pays for a few rounds.
    """
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget(epsilon, delta), not {budget!r}")
    most = whole("rounds", rounds)
    run = _begun(problem, features, targets, budget.delta, adjacency, above, seeds, slope)
    N, d = len(run.records.records), run.model.weight.numel()
    moved = sensitivity(Rounds(1.0, 1, FullBatch()), adjacency)
    mu = gaussian_mu(budget.epsilon, budget.delta)
    ledger = GaussianFilter(budget, adjacency)
    least = max(LEAST_NOISE, moved / (mu * math.sqrt(MOST_SHARE)))
    sigma, step = problem.lipschitz / (2 * math.sqrt(d)), 1 / (2 * problem.smoothness)
    squared: float | None = None
    steps: list[float] = []
    while len(steps) < most:
        part = Rounds(max(least, sigma * N / run.clip_norm), 1, FullBatch())
        if ledger.would_exceed(part):
            break
        ledger.spend(part)
        noised = run.release(part)
        place = run.path.place(len(steps) + 1)
        gradient = noised.mean().view_as(place)
        run.path.step(place, gradient, step)
        steps.append(step)
        drawn = noised.round.noise_std / noised.round.divisor
        found = _squared_norm(gradient + problem.l2 * place) - d * drawn**2
        squared = found if squared is None else (1 - NEWEST) * squared + NEWEST * found
        # An estimate below its own noise says only that the gradient is small.
        sigma = max(RATIO * math.sqrt(max(squared, 0.0) / d), drawn / 2)
    chosen = Caveat("noise-by-releases", "in proportion to the norm they showed")
    plan = run.plan(steps, chosen, budget)
    statement = account(
        plan,
        accountant=filter_details(ledger),
        randomness=Randomness(seeded_noise=run.seeded),
        not_covered=uses_of_data(slope is not None),
    ).of_run(run.transcript.releases())
    return finished(plan, run.path.weights.numpy(), statement, run.transcript, run.records)


def descend_unprotected(
    problem: Problem,
    budget: Budget,
    features: Any,
    targets: Any,
    *,
    rounds: int = 1000,
    seeds: Seeds | None = None,
) -> Descended:
    """Proposition 1 with the gradient's norm read off the data: for comparison only, not private.

    σ_t = ‖∇F(θ_t)‖/√d, η = 1/(2M), until noise at these levels would have spent the budget had they
    been fixed in advance. They were not, so the statement says that nothing is guaranteed.

    Args:
        problem, budget, features, targets, rounds, seeds: as in :func:`descend_steered`.

    Raises:
        ValueError, TypeError: data that do not fit, or no round within the budget.
    """
    most = whole("rounds", rounds)
    run = _begun(problem, features, targets, budget.delta, "replace-one", "clip", seeds, None)
    N, d = len(run.records.records), run.model.weight.numel()
    allowed, spent = gaussian_mu(budget.epsilon, budget.delta) ** 2, 0.0
    step = 1 / (2 * problem.smoothness)
    steps: list[float] = []
    while len(steps) < most:
        place = run.path.place(len(steps) + 1)
        norm = math.sqrt(_squared_norm(_gradient(run, place)))
        multiplier = max(LEAST_NOISE, norm / math.sqrt(d) * N / run.clip_norm)
        spent += (2 / multiplier) ** 2
        if spent > allowed:
            break
        noised = run.release(Rounds(multiplier, 1, FullBatch()))
        run.path.step(place, noised.mean().view_as(place), step)
        steps.append(step)
    if not steps:
        raise ValueError(f"a budget of ε = {budget.epsilon:g} pays for no round of this schedule")
    plan = run.plan(steps, Caveat("not-stated"), None)
    leak = Caveat("data-dependent-noise", "in proportion to the norm of the gradient")
    statement = account(
        plan,
        randomness=Randomness(seeded_noise=run.seeded),
        not_covered=[*uses_of_data(False), leak],
    ).of_run(run.transcript.releases())
    return finished(plan, run.path.weights.numpy(), statement, run.transcript, run.records)


def _begun(
    problem: Problem,
    features: Any,
    targets: Any,
    delta: float,
    adjacency: Adjacency,
    above: Above,
    seeds: Seeds | None,
    slope: Slope | None,
) -> _Run:
    functions = functions_of(problem, slope)
    found = bounded_records(problem, features, targets, above)
    columns = found.records.features.shape[1]
    model = LinearModel(columns, problem.outputs, functions.slope)
    path = Path(beginning(None, model.weight), problem.l2, problem.radius, accelerated=False)
    C = real("lipschitz", problem.lipschitz, above=0)
    return _Run(problem, found, model, path, C, delta, adjacency, seeds or Seeds(), Transcript())


def _squared_norm(values: Tensor) -> float:
    return float(values.square().sum())


def _gradient(run: _Run, place: Tensor) -> Tensor:
    """∇F at a place, without noise."""
    records = run.records.records
    every = torch.arange(len(records)).numpy()
    with torch.no_grad():
        run.model.weight.copy_(place)
    sums, _ = linear_sums(run.model, records, every, run.clip_norm, flat, len(every))
    return sums["weight"] / len(every) + run.problem.l2 * place
