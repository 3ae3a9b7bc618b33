"""Phases: continue with less noise and a new sample size while accuracy is not reached.

The next phase follows from the phases so far by exact accounting, compared with the
paper's own calculator. Source: van Dijk et al., "Proactive DP", Appendix E (Figure 15) and E.1.

Two ways to decide, two ways to account:

- :func:`plan_phases` fixes the whole sequence before the first round, and only the time of
  stopping depends on results. A stopped run is a function of the full one, so the exact ε of the
  full sequence holds whenever it stops.
- :func:`next_by_shortfall`, or any rule that looks at results, chooses noise or sample size as
  they come in. Then only a filter that was set beforehand holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forethought.accounting import exact
from forethought.accounting.adaptive import Progress
from forethought.accounting.calibration import solved
from forethought.accounting.closed_bounds import gaussian_delta_bounds
from forethought.accounting.interval import at_most, warn_if_wide
from forethought.papers.calculators import Phase, phase_calculator
from forethought.planning.defaults import budget_mu
from forethought.planning.solve import PlanError
from forethought.values.checks import real, whole
from forethought.values.mechanism import Adjacency, Budget, Correlated, Mechanism, Rounds
from forethought.values.plan import Plan
from forethought.values.samplings import FullBatch, Poisson

# σ of a phase against that of the one before. With it every phase can be worth twice the one
# before by growing its sample size by about the same factor.
SHRINK = 0.85
# The adaptive rule: by this much less noise when the accuracy is near, or far; what is left of the
# filter is spent by halves until this share is used; a rest below the last one is left alone.
NEAR, NEAR_SHRINK, FAR_SHRINK = 0.03, 0.9, 0.7
HALVE_UNTIL, ENOUGH = 0.5, 0.95


@dataclass(frozen=True)
class NextPhase:
    """A phase that fits, with what the closed form says of the same request.

    Args:
        rounds: what to run.
        epsilon: certified upper end of ε of all phases up to this one, as if fixed in advance.
        closed_form: what Appendix E.1 allows for the same gradients and noise; None where
            Theorem B.4 allows nothing, or does not speak of this sampling.
        remark: why ``closed_form`` is None, otherwise empty.
    """

    rounds: Rounds
    epsilon: float
    closed_form: Phase | None
    remark: str


def next_phase(
    earlier: Mechanism | None,
    *,
    examples: int,
    rounds: int,
    noise_multiplier: float,
    budget: Budget,
    like: Rounds,
    adjacency: Adjacency = "add-or-remove",
) -> NextPhase:
    """The largest sample size of the next phase with which all phases keep the budget, exactly.

    Args:
        earlier: the phases so far; None before the first.
        examples: N.
        rounds: T_j of the phase.
        noise_multiplier: σ_j that was chosen for it.
        budget: of all phases together.
        like: rounds whose kind of sampling and clipping the phase takes over.
        adjacency: of the first phase; later ones keep it.

    Raises:
        PlanError: not even a sample size of 1 fits (or, with full batches, the phase itself).
        ValueError, TypeError: an argument outside its range.
    """
    if isinstance(like, Correlated):
        raise PlanError("phases have independent noise each: give rounds that are not correlated")
    N, count = whole("examples", examples), whole("rounds", rounds)
    sigma = real("noise_multiplier", noise_multiplier, above=0)

    def total(size: float) -> Mechanism:
        part = Rounds(
            sigma,
            count,
            like.sampling.resized(int(size), N),
            like.clipping,
            groups=like.groups,
        )
        if earlier is None:
            return Mechanism(part, adjacency=adjacency)
        return earlier + Mechanism(part, adjacency=earlier.adjacency)

    def fits(size: int) -> bool:
        return exact.epsilon(total(size), budget.delta).upper <= budget.epsilon

    smallest = N if isinstance(like.sampling, FullBatch) else 1
    if not fits(smallest):
        spent = 0.0 if earlier is None else exact.epsilon(earlier, budget.delta).upper
        raise PlanError(
            f"{count} rounds with noise multiplier {sigma:g} do not fit into ε = "
            f"{budget.epsilon:g} after ε = {at_most(spent)} has been spent, even with sample size "
            f"{smallest}: raise the noise multiplier, run fewer rounds, or stop here"
        )
    size = N if fits(N) else int(solved(total, budget, (smallest, N), integer=True))
    while not fits(size):  # the interval that a Statement shows is wider than the solver's
        size -= 1
    part = Rounds(sigma, count, like.sampling.resized(size, N), like.clipping, groups=like.groups)
    found, remark = _closed_form(earlier, part, N, size, budget)
    interval = exact.epsilon(total(size), budget.delta)
    warn_if_wide(interval)
    return NextPhase(part, interval.upper, found, remark)


def _closed_form(
    earlier: Mechanism | None, part: Rounds, examples: int, size: int, budget: Budget
) -> tuple[Phase | None, str]:
    parts = [*(earlier or ()), part]
    if any(not isinstance(p.sampling, Poisson) or p.clipping != "example" for p in parts):
        return None, "Theorem B.4 speaks of Poisson sampling and clipped examples only"
    before = [
        (p.sampling.expected_batch(examples), p.count) for p in (() if earlier is None else earlier)
    ]
    try:
        return (
            phase_calculator(
                examples,
                size * part.count,
                budget.epsilon,
                before,
                sigma=part.noise_multiplier,
                delta=budget.delta,
            ),
            "",
        )
    except ValueError as error:
        return None, f"Theorem B.4 allows no such phase: {error}"


def plan_phases(plan: Plan, *, phases: int = 3, shrink: float = SHRINK) -> Plan:
    """A plan's rounds and budget, spread over phases of less and less noise.

    Every phase has as many rounds, σ smaller by ``shrink``, the largest sample size that exact
    accounting allows, and is worth about twice the budget of the one before (in squared Gaussian
    μ); the last one uses up what is left. Hand the result to ``forethought.train_until``, which
    stops as soon as the accuracy is reached, or to ``forethought.train``.

    Args:
        plan: with one kind of rounds and a budget; clipping, optimizer and the rest are kept.
        phases: how many. shrink: in (0, 1).

    Raises:
        PlanError: no budget, several parts, or fewer rounds than phases.
    """
    count, factor = whole("phases", phases), real("shrink", shrink, above=0, below=1)
    if plan.preparation is not None and plan.preparation.centres:
        plan = plan.with_(preparation=None)  # the phases share all of the budget
    if plan.budget is None:
        raise PlanError("phases share out a budget: make the plan with budget=")
    if plan.preparation is not None:
        raise PlanError(
            "phases pay for no preparation of the data: standardise with public constants, and "
            "plan without preparation="
        )
    if len(plan.mechanism.rounds) > 1:
        raise PlanError("this plan has several parts already: give one with equal rounds")
    if plan.rounds < count:
        raise PlanError(f"{plan.rounds} rounds do not make {count} phases: plan more rounds")
    if count == 1:
        return plan
    like, budget = plan.mechanism.rounds[0], plan.budget
    batch = max(1, round(like.sampling.expected_batch(plan.examples)))
    lengths = [plan.rounds // count + (j < plan.rounds % count) for j in range(count)]
    shares = [(2**j - 1) / (2**count - 1) for j in range(1, count + 1)]
    targets = [_epsilon_of(math.sqrt(share) * budget_mu(budget), budget) for share in shares[:-1]]
    found: list[NextPhase] = []
    done: Mechanism | None = None
    for length, target in zip(lengths, [*targets, budget.epsilon], strict=True):
        within = Budget(target, budget.delta)
        size = batch if not found else None
        phase = _solved(plan, done, length, within, found, factor, size)
        found.append(phase)
        done = Mechanism(*(f.rounds for f in found), adjacency=plan.mechanism.adjacency)
    why = tuple(
        (
            f"phase {j}",
            f"{f.rounds.count} rounds with σ = {f.rounds.noise_multiplier:.4g} and sample size "
            f"{f.rounds.sampling.expected_batch(plan.examples):.0f}; exact ε up to here "
            f"{at_most(f.epsilon)}. Closed form: "
            + (
                f.remark
                if f.closed_form is None
                else f"sample size {f.closed_form.size} in {f.closed_form.rounds} rounds"
            ),
        )
        for j, f in enumerate(found, start=1)
    )
    kept = tuple(pair for pair in plan.reasons if pair[0] not in ("noise", "batch", "rounds"))
    mechanism = Mechanism(*(f.rounds for f in found), adjacency=plan.mechanism.adjacency)
    return plan.with_(mechanism=mechanism, reasons=(*kept, *why))


def _solved(
    plan: Plan,
    done: Mechanism | None,
    length: int,
    within: Budget,
    found: list[NextPhase],
    factor: float,
    size: int | None,
) -> NextPhase:
    like = plan.mechanism.rounds[0]
    N, adjacency = plan.examples, plan.mechanism.adjacency
    if size is None and not isinstance(like.sampling, FullBatch):
        sigma = factor * found[-1].rounds.noise_multiplier
        phase = next_phase(
            done, examples=N, rounds=length, noise_multiplier=sigma, budget=within, like=like
        )
        size = round(phase.rounds.sampling.expected_batch(N))
        if size < N:
            return phase
    # The sample size is given, or cannot grow: what is left is taken from the noise.
    sampling = like.sampling.resized(size or N, N)

    def total(sigma: float) -> Mechanism:
        part = Mechanism(
            Rounds(sigma, length, sampling, like.clipping, groups=like.groups), adjacency=adjacency
        )
        return part if done is None else done + part

    def fits(sigma: float) -> bool:
        return exact.epsilon(total(sigma), within.delta).upper <= within.epsilon

    most = found[-1].rounds.noise_multiplier if found else like.noise_multiplier
    while not fits(most):
        most *= 1.5
    least = most / 1.5
    while fits(least):
        least /= 1.5
    sigma = solved(total, within, (0.9 * least, most))
    while exact.epsilon(total(sigma), within.delta).upper > within.epsilon:
        sigma *= 1 + 1e-4  # the interval that a Statement shows is wider than the solver's
    part = Rounds(sigma, length, sampling, like.clipping, groups=like.groups)
    form, remark = _closed_form(done, part, N, size or N, within)
    interval = exact.epsilon(total(sigma), within.delta)
    warn_if_wide(interval)
    return NextPhase(part, interval.upper, form, remark)


def next_by_shortfall(progress: Progress) -> Rounds | None:
    """A rule for ``forethought.train_until`` that looks at how much accuracy is missing.

    Close to the wanted accuracy σ falls by a tenth, further away by three tenths. The phase is as
    long as the one before, and its sample size the largest that leaves half of what the filter
    has left, until half is used, and nothing after that.

    Returns:
        The next phase, or None when no sample size fits or hardly anything is left.
    """
    last, accuracy = progress.done[-1]
    ledger = progress.filter
    if ledger.fraction_used > ENOUGH:
        return None
    near = progress.wanted - accuracy <= NEAR
    sigma = last.noise_multiplier * (NEAR_SHRINK if near else FAR_SHRINK)
    # Half of what is left holds twice the rounds.
    spread = 2 if ledger.fraction_used < HALVE_UNTIL else 1

    def part(size: int, times: int) -> Rounds:
        sampling = last.sampling.resized(size, progress.examples)
        return Rounds(sigma, times * last.count, sampling, last.clipping, groups=last.groups)

    low = 0
    high = progress.examples + 1
    if isinstance(last.sampling, FullBatch):
        low, high = (0, 1) if ledger.would_exceed(part(1, spread)) else (1, 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ledger.would_exceed(part(middle, spread)) else (middle, high)
    return part(low, 1) if low else None


def _epsilon_of(mu: float, budget: Budget) -> float:
    low, high = 0.0, budget.epsilon
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        if gaussian_delta_bounds(mu, middle).upper > budget.delta:
            low = middle
        else:
            high = middle
    return high
