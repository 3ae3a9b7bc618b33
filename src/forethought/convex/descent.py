"""Noisy full-batch gradient descent: θ ← Π(θ − η_t(∇F(θ) + N(0, σ_t² I)))."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from forethought.accounting.adaptive import GaussianFilter
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.accounting.statement import Randomness, Statement, account
from forethought.convex import problems
from forethought.convex.planning import DescentPlan
from forethought.gradients.clipped import cross_entropy_slope
from forethought.gradients.sums import flat
from forethought.rounds.contributions import LinearModel, LinearRecords, Slope, linear_sums, no_loss
from forethought.rounds.preparation import Prepared, require_prepared, with_preparation
from forethought.rounds.private_sum import NoisedSum, PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import require_unmasked
from forethought.values import mechanism as kinds
from forethought.values.caveats import Caveat
from forethought.values.checks import function, instance, one_of, real, require_payer, whole
from forethought.values.plan import LEAST_NOISE, Clip, Payer, Privacy, Transcript, marked

# Losses of :mod:`forethought.convex.problems` and their derivatives, row by row.
#
# Each is a function of outputs z, shape (N, k), and targets, shape (N,). Losses have shape (N,) for
# softmax, and (N, k) for all others, where every column is a separate model. Derivatives have the
# shape of z. Labels of two classes are 0 and 1.


class LossAndSlope(NamedTuple):
    """Functions of (outputs, targets): the losses, and the derivative of each by its outputs."""

    loss: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _column(targets: Tensor, outputs: Tensor) -> Tensor:
    return targets.to(outputs.dtype).unsqueeze(1)


def _signs(targets: Tensor, outputs: Tensor) -> Tensor:
    return _column(targets, outputs).mul_(2).sub_(1)


def _logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(-_signs(targets, outputs) * outputs)


def _logistic_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    # Cancellation in p − y does not matter: the bound on a gradient is relative to the row's norm.
    return torch.sigmoid(outputs).sub_(_column(targets, outputs))


def _huber(threshold: float, outputs: Tensor, targets: Tensor) -> Tensor:
    return F.huber_loss(outputs, _column(targets, outputs), "none", threshold)


def _huber_slope(threshold: float, outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - _column(targets, outputs)).clamp_(-threshold, threshold)


def _hinge(smoothing: float, outputs: Tensor, targets: Tensor) -> Tensor:
    short = F.relu(1 - _signs(targets, outputs) * outputs)
    near = short.clamp(max=smoothing)
    return near / smoothing * (short - near / 2)


def _hinge_slope(smoothing: float, outputs: Tensor, targets: Tensor) -> Tensor:
    signs = _signs(targets, outputs)
    return -signs * ((1 - signs * outputs) / smoothing).clamp_(0, 1)


def loss_and_slope(problem: problems.Problem) -> LossAndSlope:
    """The loss of a problem and its derivative.

    Raises:
        ValueError: the problem is a DeclaredLoss, whose slope the caller must give.
    """
    match problem:
        case problems.LogisticRegression():
            return LossAndSlope(_logistic, _logistic_slope)
        case problems.SoftmaxRegression():
            loss = partial(F.cross_entropy, reduction="none")
            return LossAndSlope(loss, cast(Slope, cross_entropy_slope))
        case problems.LinearRegression() | problems.HuberRegression():
            threshold = getattr(problem, "threshold", math.inf)
            return LossAndSlope(partial(_huber, threshold), partial(_huber_slope, threshold))
        case problems.SmoothedHinge(smoothing=smoothing):
            return LossAndSlope(partial(_hinge, smoothing), partial(_hinge_slope, smoothing))
        case _:
            raise ValueError(
                f"{getattr(problem, 'name', problem)!r} needs slope=, its derivative, row by row"
            )


# Features and targets in the form that descent reads, clipped to their public bounds.
#
# Each row and each target is processed by itself: no statistic of other records centres, scales or
# encodes it.


Above = Literal["clip", "refuse"]


def _finite(what: str, given: Any) -> Array:
    """A float64 copy of numbers in an array, a tensor, a sparse matrix or lists.

    Raises:
        TypeError: they are not numbers. ValueError: masked in places, or not finite.
    """
    if isinstance(given, Tensor):
        dense = given.detach().cpu().to_dense().resolve_conj().resolve_neg()
        given = (dense.double() if dense.is_floating_point() else dense).numpy()
    elif hasattr(given, "toarray"):
        given = given.toarray()
    require_unmasked(what, given)
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"{what} must be numbers, not of dtype {array.dtype}: encode text and categories first"
        )
    found = np.array(array, dtype=np.float64, order="C")
    if not np.isfinite(found).all():
        raise ValueError(f"NaN or infinite values in {what}: fill them in by a fixed rule")
    return found


def bounded_rows(features: Any, bound: float, above: Above = "clip") -> tuple[Array, int]:
    """Scale every row longer than ``bound`` to it; return the rows and the number of scaled ones.

    Use it before prediction as well: a model expects rows in the form in which it was trained.

    Args:
        features: shape (N, d): an array, a tensor or a sparse matrix.
        bound: the largest norm of a row, above 0; infinity is no bound.
        above: "clip" scales longer rows, "refuse" raises.

    Returns:
        A float64 copy of the rows, and a number.

    Raises:
        ValueError: no matrix, masked or not finite in places; a row is longer and ``above`` is
            "refuse"; or a bound that is not above 0.
        TypeError: the features or the bound are not numbers.
    """
    rows = _finite("features", features)
    if not (isinstance(bound, float) and bound == math.inf):
        bound = real("bound", bound, above=0)
    if rows.ndim != 2:
        raise ValueError(f"features must be a matrix, a row a record, not {rows.shape}")
    one_of("above", above, get_args(Above))
    norms = torch.linalg.vector_norm(torch.from_numpy(rows), dim=1).numpy()
    # The tolerance covers rounding in the norm of a row whose norm is exactly the bound.
    longer = norms > bound * (1 + 1e-12)
    if longer.any():
        if above == "refuse":
            raise ValueError(
                f"some rows are longer than feature_bound = {bound:g}: scale the features by "
                'public constants, or clip them with above="clip"'
            )
        # Divide by the largest entry first, so that the norm cannot overflow.
        few = torch.from_numpy(rows[longer])
        few /= few.abs().amax(1, keepdim=True)
        rows[longer] = few * (bound / torch.linalg.vector_norm(few, dim=1, keepdim=True))
    return rows, int(longer.sum())


def bounded_records(
    problem: problems.Problem, features: Any, targets: Any, above: Above
) -> tuple[LinearRecords, tuple[int, int]]:
    """Records for a problem's rounds, with the constant column appended.

    Returns:
        The records, and the numbers of clipped rows and targets, for the operator only.

    Raises:
        TypeError, ValueError: the data do not fit the problem, or exceed a bound under "refuse".
    """
    held, clipped = bounded_rows(features, problem.feature_bound, above)
    rows = torch.from_numpy(held)
    if problem.intercept:
        rows = torch.cat([rows, rows.new_full((len(rows), 1), problem.intercept)], 1)
    values, moved = _targets(problem, targets, above)
    if len(values) != len(rows):
        raise ValueError(f"{len(rows)} rows of features and {len(values)} targets")
    return LinearRecords(rows, values), (clipped, moved)


def _targets(problem: problems.Problem, targets: Any, above: Above) -> tuple[torch.Tensor, int]:
    values, bound = _finite("targets", targets), problem.target_bound
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise TypeError(f"targets must be one number a record, not shape {values.shape}")
    if problem.classes:
        labels = values.astype(np.int64)
        if (labels != values).any() or (labels < 0).any() or (labels >= problem.classes).any():
            raise ValueError(
                f"some labels are not among the {problem.classes} declared classes: labels are "
                f"whole numbers from 0 to {problem.classes - 1}, their places in the declared list"
            )
        return torch.from_numpy(labels), 0
    held = np.clip(values, -bound, bound)
    moved = int((held != values).sum())
    if moved and above == "refuse":
        raise ValueError(
            f"some targets lie beyond target_bound = {bound:g}: shift and scale them by public "
            'constants, or clip them with above="clip"'
        )
    return torch.from_numpy(held), moved


# **Formal guarantee.** For any features and targets, a run releases the sequence of noised sums of
# clipped gradients in its transcript. The statement is written only if they are the plan's
# mechanism. Weights, projection, momentum and the term λθ are post-processing of those sums.


Array = NDArray[np.float64]


@dataclass(frozen=True)
class Descended:
    """A finished descent.

    Args:
        weights: shape (d,), or (d, classes) for softmax, without those of the constant column.
        intercept: a number, or for softmax shape (classes,); 0 without a constant column.
        statement: the guarantee.
        plan: the plan of the run.
        transcript: the releases.
        features_clipped, targets_clipped: numbers of rows and targets beyond their bounds. They are
            private, for the operator only; the statement names them as not covered.
    """

    weights: Array
    intercept: Array | float
    statement: Statement
    plan: DescentPlan
    transcript: Transcript
    features_clipped: int
    targets_clipped: int


@dataclass(eq=False)
class Path:
    """The weights of a descent from step to step.

    Args:
        weights: θ_0, any shape with the weights in the first dimension; then θ_t.
        l2: λ.
        radius: radius of the ball of the projection; None for no projection.
        accelerated: True for Nesterov's momentum.
        apart: True projects each column separately, as the weights of separate models.
    """

    weights: Tensor
    l2: float
    radius: float | None
    accelerated: bool
    apart: bool = False

    def __post_init__(self) -> None:
        self._before = self.weights

    def place(self, t: int) -> Tensor:
        """The point at which iteration t = 1, 2, … evaluates the gradient."""
        if not self.accelerated:
            return self.weights
        return self.weights + (t - 1) / (t + 2) * (self.weights - self._before)

    def step(self, place: Tensor, gradient: Tensor, size: float) -> None:
        """Step from ``place`` by the noised mean gradient (without the term λθ), and project."""
        moved = place - size * (gradient + self.l2 * place)
        if self.radius is not None:
            norms = torch.linalg.vector_norm(moved, dim=0 if self.apart else None, keepdim=True)
            moved = moved * (self.radius / norms).clamp(max=1.0)
        self._before, self.weights = self.weights, moved


class _Run:
    """The records, the model and the path of a descent.

    Args:
        data: features, targets, and what happens above their bounds.
    """

    def __init__(
        self,
        problem: problems.Problem,
        data: tuple[Any, Any, Above],
        slope: Slope | None,
        start: Any | None = None,
        accelerated: bool = False,
    ) -> None:
        own = slope_of(problem, slope)
        self.records, self.clipped = bounded_records(problem, *data)
        columns = self.records.features.shape[1]
        self.model = LinearModel(columns, problem.outputs, own)
        begun = beginning(start, self.model.weight)
        self.path = Path(begun, problem.l2, problem.radius, accelerated)
        #: The uses of the data that every descent's statement names, besides those of its plan.
        self.uses = [Caveat("time-and-memory"), Caveat("clipped-counts")]
        if slope is not None:
            self.uses.append(Caveat("declared-slope"))

    def rounds(self, privacy: Privacy, secrets: Secrets) -> PrivateRounds:
        parameters = dict(self.model.named_parameters())
        return PrivateRounds(privacy, parameters, no_loss, secrets)

    def advance(self, rounds: PrivateRounds, index: int, size: float) -> tuple[NoisedSum, Tensor]:
        """Release a round at the path's place, and step; returns the noised gradient, too.

        The gradient is that of the mean loss with the term λθ.
        """
        place = self.path.place(index + 1)
        self.model.weight.copy_(place)
        total = rounds.open(index)
        total.add(self.model, self.records)
        noised = total.release()
        gradient = noised.mean().view_as(place)
        self.path.step(place, gradient, size)
        return noised, gradient + self.path.l2 * place

    def finished(
        self, plan: DescentPlan, transcript: Transcript, seeded: bool, **more: Any
    ) -> Descended:
        """The results and their statement; weights of the constant column are the intercept."""
        # No batch is drawn at random, so only the noise's seed matters.
        randomness = Randomness(seeded_noise=seeded)
        statement = account(plan, randomness=randomness, not_covered=self.uses, **more)
        statement = statement.of_run(transcript.releases())
        value, columns, weights = plan.problem.intercept, plan.features, self.path.weights.numpy()
        flat = weights[:, 0] if plan.problem.outputs == 1 else weights
        held = flat[columns:].sum(0) * value if value else np.zeros(flat.shape[1:])
        intercept = held if plan.problem.outputs > 1 else float(held)
        weights = flat[:columns].copy()
        return Descended(weights, intercept, statement, plan, transcript, *self.clipped)


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
    ledger: Payer | None = None,
) -> Descended:
    """Run the plan of a descent.

    Args:
        features: shape (N, d): an array, a tensor, a scipy sparse matrix. Rows longer than the
            problem's bound are scaled to it, or refused.
        targets: shape (N,): labels 0 … k − 1, or numbers; these are clipped to the problem's bound,
            or refused.
        above: "clip" values beyond their bound, and count them, or "refuse" them.
        seeds: seeds of the noise; default: the operating system's entropy. With a seed there is no
            guarantee.
        start: θ_0 with the weights' shape, the constant column's last; public. A number s above 0
            draws it from N(0, s² I), the same in every run. Default: zero.
        slope: for a DeclaredLoss: its derivative by the output, (N, 1) and targets → (N, 1), each
            row computed from itself.
        prepared: the release of :func:`forethought.prepare` for this plan, if the plan has a
            preparation; ``features`` are then the output of ``prepared.apply``.
        watch: called with t and the weights (public, all columns) after every step.
        ledger: a `forethought.Ledger` whose budget the run spends.

    Returns:
        The weights with their statement.

    Raises:
        TypeError, ValueError: data or arguments do not fit the plan.
        OverBudgetError: the ledger's remaining budget is too small (a ValueError).
        TranscriptError: the releases are not the accounted ones.
    """
    if not isinstance(plan, DescentPlan):
        raise TypeError(f"plan must come from forethought.convex.plan, not {type(plan).__name__}")
    require_prepared(plan, prepared)
    require_payer(ledger)
    function("watch", watch)
    # What does not fit is refused before anything is paid.
    secrets = Secrets.draw(_settled(seeds))
    run = _Run(plan.problem, (features, targets, above), slope, start, plan.accelerated)
    examples, columns = run.records.features.shape
    if (examples, columns) != (plan.examples, plan.columns):
        given = (examples, columns - (plan.columns - plan.features))
        raise ValueError(
            f"the plan is for features of shape {(plan.examples, plan.features)}, the data has "
            f"{given}: the guarantee depends on it. Make the plan with the data's shape"
        )
    with nullcontext() if ledger is None else ledger.paid(plan.mechanism) as paid:
        rounds = run.rounds(plan.privacy, secrets)
        if paid is not None:
            before = len(plan.mechanism) - plan.rounds
            if prepared is not None:
                paid.ahead(before)
            rounds.note = marked(paid, None, before)
        with rounds, torch.no_grad():
            for index, size in enumerate(plan.steps):
                run.advance(rounds, index, size)
                if watch is not None:
                    watch(index + 1, run.path.weights.numpy().copy())
        transcript = with_preparation(prepared, rounds.transcript)
        seeded = secrets.seeded_noise or (prepared is not None and prepared.seeded)
        transcript.require(plan.mechanism)
        found = run.finished(plan, transcript, seeded)
        if paid is not None:
            caveats = (*found.statement.caveats, Caveat("in-the-book", paid.settle()[1]))
            found = replace(found, statement=replace(found.statement, caveats=caveats))
    return found


def _settled(seeds: Seeds | None) -> Seeds:
    return instance("seeds", Seeds() if seeds is None else seeds, Seeds)


def slope_of(problem: problems.Problem, slope: Slope | None) -> Slope:
    """The problem's own slope, or the given one of a DeclaredLoss.

    Raises:
        TypeError: the slope is no function.
        ValueError: a slope for a loss that has its own, or none for a DeclaredLoss.
    """
    function("slope", slope)
    if slope is None:
        return loss_and_slope(problem).slope
    if problem.kind != "declared":
        raise ValueError(f"slope= goes with a DeclaredLoss; {problem.kind!r} has its own")
    return slope


def beginning(start: Any | None, weight: Tensor) -> Tensor:
    """θ_0 in the weight's shape. None: zero; a number: drawn at this scale.

    Raises:
        TypeError: text, or anything else that holds no numbers.
        ValueError: a scale that is not above 0, or numbers of another shape or not finite.
    """
    if start is None:
        return torch.zeros_like(weight)
    if isinstance(start, int | float | np.number):
        scale = real("start", start, above=0)
        return torch.from_numpy(scale * np.random.default_rng(0).standard_normal(weight.shape))
    found = _finite("start", start)
    if found.size != weight.numel():
        raise ValueError(
            f"start must hold {weight.numel()} numbers, {tuple(weight.shape)}, not {found.shape}"
        )
    return torch.from_numpy(found).reshape(weight.shape)


# Noise in proportion to the gradient's norm during the run.
#
# Proposition 1 makes the noise proportional to the gradient, σ_t = ‖∇F(θ_t)‖/√d. The true norm
# leaks information on the data, so :func:`descend_unprotected` is for comparison only and its
# statement says that there is no guarantee. :func:`descend_steered` estimates the norm from earlier
# releases: a noised gradient g̃ has E‖g̃‖² = ‖∇F‖² + dσ², so ‖g̃‖² − dσ² has no privacy cost. The
# noise then depends on outputs, which composition with fixed parameters does not cover, so a
# Gaussian filter is charged before each round; this adds no cost.


# Weight of the newest estimate of the squared norm.
NEWEST = 0.3
# σ_t = RATIO·‖∇F‖/√d, but large enough that no round spends more than MOST_SHARE of μ².
RATIO, MOST_SHARE = 1.0, 0.25


class _StepwiseRun(_Run):
    """A run whose rounds are chosen one after the other, with steps of 1/(2M)."""

    def __init__(
        self,
        problem: problems.Problem,
        data: tuple[Any, Any, Above],
        slope: Slope | None,
        budget: kinds.Budget,
        adjacency: kinds.Adjacency,
        seeds: Seeds | None,
    ) -> None:
        instance("budget", budget, kinds.Budget)
        super().__init__(problem, data, slope)
        self.seeds, self.transcript, self.seeded = _settled(seeds), Transcript(), False
        self.problem, self.budget, self.adjacency = problem, budget, adjacency
        self.clip_norm = real("lipschitz", problem.lipschitz, above=0)
        self.size = 1 / (2 * problem.smoothness)

    def privacy(self, *rounds: kinds.Rounds, budget: kinds.Budget | None = None) -> Privacy:
        mechanism = kinds.Mechanism(*rounds, adjacency=self.adjacency)
        sizes = len(self.records), self.budget.delta, Clip(self.clip_norm)
        return Privacy(mechanism, *sizes, kinds.LinearExamples(), budget=budget)

    def next(self, rounds: kinds.Rounds) -> tuple[NoisedSum, Tensor]:
        """Release one round with fresh secrets, and step, as :meth:`advance` does."""
        # Every round has number 0 here: with one secret, two equal rounds would have equal noise.
        secrets = Secrets.draw(self.seeds.part(len(self.transcript)))
        self.seeded |= secrets.seeded_noise
        private = self.rounds(self.privacy(rounds), secrets)
        with private, torch.no_grad():
            found = self.advance(private, 0, self.size)
        self.transcript.extend(private.transcript)
        return found

    def ended(self, chosen: Caveat, budget: kinds.Budget | None = None, **more: Any) -> Descended:
        """The results, with the plan of the rounds that were run and its statement."""
        privacy = self.privacy(*self.transcript.mechanism(self.adjacency), budget=budget)
        columns = self.records.features.shape[1] - bool(self.problem.intercept)
        steps = (self.size,) * len(self.transcript)
        plan = DescentPlan(self.problem, privacy, columns, steps, hyperparameters=chosen)
        return self.finished(plan, self.transcript, self.seeded, **more)


def descend_steered(
    problem: problems.Problem,
    budget: kinds.Budget,
    features: Any,
    targets: Any,
    *,
    rounds: int = 1000,
    adjacency: kinds.Adjacency = "replace-one",
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
        rounds: the largest number of rounds.
        adjacency: the neighbouring relation.

    Returns:
        The weights; the statement's accountant is the filter.

    Raises:
        ValueError, TypeError: data or arguments do not fit.
    """
    most = whole("rounds", rounds)
    run = _StepwiseRun(problem, (features, targets, above), slope, budget, adjacency, seeds)
    N, d = len(run.records), run.model.weight.numel()
    moved = kinds.Rounds(1.0, 1, kinds.FullBatch()).sensitivity(adjacency)
    mu = gaussian_mu(budget.epsilon, budget.delta)
    ledger = GaussianFilter(budget, adjacency)
    least = max(LEAST_NOISE, moved / (mu * math.sqrt(MOST_SHARE)))
    sigma = problem.lipschitz / (2 * math.sqrt(d))
    squared: float | None = None
    while len(run.transcript) < most:
        part = kinds.Rounds(max(least, sigma * N / run.clip_norm), 1, kinds.FullBatch())
        if ledger.would_exceed(part):
            break
        ledger.spend(part)
        noised, gradient = run.next(part)
        drawn = noised.round.noise_std / noised.round.divisor
        found = float(gradient.square().sum()) - d * drawn**2
        squared = found if squared is None else (1 - NEWEST) * squared + NEWEST * found
        # An estimate below its own noise shows only that the gradient is small.
        sigma = max(RATIO * math.sqrt(max(squared, 0.0) / d), drawn / 2)
    chosen = Caveat("noise-by-releases", "in proportion to the norm they showed")
    return run.ended(chosen, budget, accountant=ledger.details())


def descend_unprotected(
    problem: problems.Problem,
    budget: kinds.Budget,
    features: Any,
    targets: Any,
    *,
    rounds: int = 1000,
    seeds: Seeds | None = None,
) -> Descended:
    """Proposition 1 with the true norm of the gradient: for comparison only, not private.

    σ_t = ‖∇F(θ_t)‖/√d, η = 1/(2M). The run ends when these noise levels, if fixed in advance, would
    have spent the budget. They depend on the data, so the statement gives no guarantee.

    Args:
        problem, budget, features, targets, rounds, seeds: as in :func:`descend_steered`.

    Raises:
        ValueError, TypeError: data or arguments do not fit, or the budget pays for no round.
    """
    most = whole("rounds", rounds)
    run = _StepwiseRun(problem, (features, targets, "clip"), None, budget, "replace-one", seeds)
    N, d = len(run.records), run.model.weight.numel()
    allowed, spent, every = gaussian_mu(budget.epsilon, budget.delta) ** 2, 0.0, np.arange(N)
    while len(run.transcript) < most:
        with torch.no_grad():
            run.model.weight.copy_(run.path.weights)
        sums, _ = linear_sums(run.model, run.records, every, run.clip_norm, flat, N)
        gradient = sums["weight"] / N + problem.l2 * run.path.weights
        norm = math.sqrt(float(gradient.square().sum()))
        multiplier = max(LEAST_NOISE, norm / math.sqrt(d) * N / run.clip_norm)
        spent += (2 / multiplier) ** 2
        if spent > allowed:
            break
        run.next(kinds.Rounds(multiplier, 1, kinds.FullBatch()))
    if not len(run.transcript):
        raise ValueError(f"a budget of ε = {budget.epsilon:g} pays for no round of this schedule")
    run.uses.append(Caveat("data-dependent-noise", "in proportion to the norm of the gradient"))
    return run.ended(Caveat("not-stated"))
