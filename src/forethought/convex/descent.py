"""Noisy full-batch gradient descent: θ ← Π(θ − η_t(∇F(θ) + N(0, σ_t² I))).

**Formal guarantee.** Whatever the features and targets are, what a run releases is the sequence of
noised sums of its transcript, each of clipped gradients, and the statement is written only when
that is the plan's mechanism. Weights, projection, momentum and the term λθ follow from those sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forethought.accounting.assumptions import Randomness
from forethought.accounting.statement import Statement, account
from forethought.caveats import Caveat
from forethought.convex.descent_plan import DescentPlan
from forethought.convex.losses import LossAndSlope, loss_and_slope
from forethought.convex.problems import Problem
from forethought.convex.rows import Above, Bounded, bounded_records
from forethought.preparing.paid import require_prepared, with_preparation
from forethought.preparing.prepare import Prepared
from forethought.rounds.linear import LinearModel, Slope
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.transcript import Transcript

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Descended:
    """A finished descent.

    Args:
        weights: shape (d,), or (d, classes) of softmax, without the constant column's.
        intercept: a number, or one a class; 0 without a constant column.
        statement: what was guaranteed.
        plan: what was run. transcript: what was released.
        features_clipped, targets_clipped: how many lay beyond their bounds; private, and named in
            the statement as not covered. For the operator only.
    """

    weights: Array
    intercept: Array | float
    statement: Statement
    plan: DescentPlan
    transcript: Transcript
    features_clipped: int
    targets_clipped: int


class Path:
    """The weights from step to step; every column of theirs is a path of its own where wished.

    Args:
        start: θ_0, any shape with the weights in the first dimension.
        l2: λ. radius: of the ball, None for none. accelerated: with Nesterov's momentum.
        apart: whether columns are projected apart, as models of their own.
    """

    def __init__(
        self,
        start: Tensor,
        l2: float,
        radius: float | None,
        accelerated: bool,
        apart: bool = False,
    ) -> None:
        self.weights, self._before = start, start
        self._l2, self._radius, self._accelerated, self._apart = l2, radius, accelerated, apart

    def place(self, t: int) -> Tensor:
        """Where the gradient of iteration t = 1, 2, … is taken."""
        if not self._accelerated:
            return self.weights
        return self.weights + (t - 1) / (t + 2) * (self.weights - self._before)

    def step(self, place: Tensor, gradient: Tensor, size: float) -> None:
        """Step from ``place`` along the noised mean gradient of the data's part, and project."""
        moved = place - size * (gradient + self._l2 * place)
        if self._radius is not None:
            norms = torch.linalg.vector_norm(moved, dim=0 if self._apart else None, keepdim=True)
            moved = moved * (self._radius / norms).clamp(max=1.0)
        self._before, self.weights = self.weights, moved


def descend(
    plan: DescentPlan,
    features: Any,
    targets: Any,
    *,
    above: Above = "clip",
    seeds: Seeds | None = None,
    start: Any | None = None,
    slope: Slope | None = None,
    prepared: Prepared | None = None,
    watch: Callable[[int, Array], None] | None = None,
) -> Descended:
    """Run the plan of a descent.

    Args:
        features: shape (N, d): an array, a tensor, a scipy sparse matrix. Rows longer than the
            problem's bound are scaled to it, or refused.
        targets: shape (N,): labels 0 … k − 1, or numbers, held to the problem's bound likewise.
        above: "clip" what is beyond its bound, and count it, or "refuse" it.
        seeds: of the noise; default: the operating system's entropy. With a seed there is no
            guarantee.
        start: θ_0 with the weights' shape, the constant column's last; public. Default: zero.
        slope: of a loss of one's own: its derivative by the output, (N, 1) and targets → (N, 1),
            each row from itself.
        prepared: what :func:`forethought.prepare` released for this plan, where it pays for that;
            ``features`` are then those that ``prepared.apply`` makes.
        watch: called with t and the weights (public, all columns) after every step.

    Returns:
        The weights with their statement.

    Raises:
        TypeError, ValueError: data or arguments that do not fit the plan.
        TranscriptError: what was released is not what was accounted.
    """
    if not isinstance(plan, DescentPlan):
        raise TypeError(f"plan must come from forethought.convex.plan, not {type(plan).__name__}")
    require_prepared(plan, prepared)
    problem = plan.problem
    loss = functions_of(problem, slope)
    found = bounded_records(problem, features, targets, above)
    _require_size(plan, found)
    model = LinearModel(plan.columns, problem.outputs, loss.slope)
    path = Path(beginning(start, model.weight), problem.l2, problem.radius, plan.accelerated)
    secrets = Secrets.draw(seeds or Seeds())
    rounds = PrivateRounds(plan.privacy, dict(model.named_parameters()), loss.loss, secrets)
    with rounds, torch.no_grad():
        for index, size in enumerate(plan.steps):
            place = path.place(index + 1)
            model.weight.copy_(place)
            total = rounds.open(index)
            total.add(model, found.records)
            noised = total.release()
            path.step(place, noised.mean().view_as(place), size)
            if watch is not None:
                watch(index + 1, path.weights.numpy().copy())
    transcript = with_preparation(prepared, rounds.transcript)
    seeded = secrets.seeded_noise or (prepared is not None and prepared.seeded)
    statement = _statement(plan, seeded, transcript, slope is not None)
    return finished(plan, path.weights.numpy(), statement, transcript, found)


def functions_of(problem: Problem, slope: Slope | None) -> LossAndSlope:
    """The problem's own loss and slope, or the slope that is given for a declared one."""
    if slope is None:
        return loss_and_slope(problem)
    if problem.kind != "declared":
        raise ValueError(f"slope= goes with a DeclaredLoss; {problem.kind!r} has its own")

    def unknown(outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError("only the slope of a declared loss is known")

    return LossAndSlope(unknown, slope)


def _require_size(plan: DescentPlan, found: Bounded) -> None:
    shape = tuple(found.records.features.shape)
    if shape != (plan.examples, plan.columns):
        held = (plan.examples, plan.features)
        given = (shape[0], shape[1] - (plan.columns - plan.features))
        raise ValueError(
            f"the plan is for features of shape {held}, the data has {given}: the guarantee "
            "depends on it. Make the plan with the data's shape"
        )


def beginning(start: Any | None, weight: Tensor) -> Tensor:
    """θ_0 in the weight's shape; None: zero. Raises ValueError."""
    if start is None:
        return torch.zeros_like(weight)
    found = torch.as_tensor(np.array(start, dtype=np.float64))
    if found.numel() != weight.numel() or not bool(torch.isfinite(found).all()):
        raise ValueError(
            f"start must hold {weight.numel()} finite numbers of shape {tuple(weight.shape)}, not "
            f"shape {tuple(found.shape)}"
        )
    return found.reshape(weight.shape)


def _statement(
    plan: DescentPlan, seeded: bool, transcript: Transcript, own_loss: bool
) -> Statement:
    transcript.require(plan.mechanism)
    caveats = uses_of_data(own_loss)
    # No batch is drawn at random: only the noise's seed could matter.
    randomness = Randomness(seeded_noise=seeded)
    statement = account(plan, randomness=randomness, not_covered=caveats)
    return statement.of_run(transcript.releases())


def uses_of_data(own_loss: bool) -> list[Caveat]:
    """What the statement of any descent names besides its plan's."""
    caveats = [Caveat("time-and-memory"), Caveat("clipped-counts")]
    return [*caveats, Caveat("declared-slope")] if own_loss else caveats


def finished(
    plan: DescentPlan, weights: Array, statement: Statement, transcript: Transcript, found: Bounded
) -> Descended:
    """A run's results, the constant column's weights apart."""
    value, columns = plan.problem.intercept, plan.features
    flat = weights[:, 0] if plan.problem.outputs == 1 else weights
    held = flat[columns:].sum(0) * value if value else np.zeros(flat.shape[1:])
    return Descended(
        weights=flat[:columns].copy(),
        intercept=held if plan.problem.outputs > 1 else float(held),
        statement=statement,
        plan=plan,
        transcript=transcript,
        features_clipped=found.features_clipped,
        targets_clipped=found.targets_clipped,
    )
