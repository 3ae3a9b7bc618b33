"""Privacy statements of a worker against three views of its messages.

- ``"neighbours"`` see every message of the worker, hence which worker stepped, and every noised
  sum. All rounds in its ledger count, at its own sampling rate. A neighbour can end a run when it
  likes: the caveat "ended-early" has the ε of all planned rounds, which then count.
- an ``"outsider"`` sees final models only. The same bound holds by post-processing; it is smaller
  where only the total of all workers' sums is visible, after rounds that all were averaged.
- ``"network"``: some distant workers see the messages sent to them, and know their own noise. The
  same rounds count, hidden by the noise of others, where that is proven.

The first is the default and needs no trust in other workers. ``as_in_the_paper`` computes the bound
of A(DP)²SGD's theorem, which assumes that nobody sees which worker stepped. Neighbours do see it,
so this bound is shown beside the statement and never claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Literal, get_args

from forethought.accounting import exact
from forethought.accounting.accountants import AGGREGATE, NETWORK
from forethought.accounting.interval import Interval, at_most
from forethought.accounting.statement import Randomness, Statement, account
from forethought.accounting.statement import shared as together
from forethought.gossip import decentralised
from forethought.gossip.decentralised import NetworkViewError
from forethought.gossip.gossip import Gossip, GossipError
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, whole
from forethought.values.mechanism import Mechanism, Poisson, Rounds, WithoutReplacement
from forethought.values.plan import Transcript

View = Literal["neighbours", "outsider", "network"]
VIEWS: tuple[View, ...] = get_args(View)
# Caveats of every worker's statement, in addition to those of its plan.
NOTES = (Caveat("known-steps"), Caveat("arrival-times"))


def worker_statement(
    gossip: Gossip,
    worker: int,
    view: View = "neighbours",
    *,
    transcript: Transcript | None = None,
    observers: Sequence[int] = (),
    randomness: Randomness | None = None,
    delta: float | None = None,
    not_covered: Iterable[Caveat | str] = (),
) -> Statement:
    """The privacy statement of a worker's releases against an observer with the given view.

    Args:
        gossip: the agreement. worker: its index in the members.
        view: see the module.
        transcript: the releases in the worker's ledger, which may be fewer than its plan allows.
            None: all that the plan allows. An outsider is thought to see the last of fewer rounds
            before it was averaged.
        observers: for "network": colluding workers, which share all that they see.
        randomness: the source of its random numbers.
        delta: δ; the plan's by default.
        not_covered: other uses of the worker's records, such as an accuracy that was looked at.

    Raises:
        GossipError: nothing was released, or ``observers`` and ``view`` contradict each other.
        TranscriptError: the releases are not the beginning of the plan.
        NetworkViewError: no theorem covers this gossip under "network".
    """
    one_of("view", view, VIEWS)
    if bool(observers) != (view == "network"):
        raise GossipError("observers are for the view 'network': name them there, and only there")
    gossip.require_released(worker, transcript)
    plan, count = gossip.plan(worker), gossip.updates(worker)
    plan = plan.remade(mechanism=plan.mechanism.first(count))
    if transcript is not None:
        count = len(transcript)
        transcript.require(plan.mechanism.first(count))
    accountant: dict[str, Any] | None = None
    if view == "network":
        gains = [[*pair] for pair in network_gains(gossip, worker, observers, count)]
        accountant = {"kind": NETWORK, "gains": gains, "observers": len(set(observers))}
    elif view == "outsider":
        gain = outsider_gain(gossip, worker, count)
        accountant = None if gain == 1 else {"kind": AGGREGATE, "gain": gain}
    return account(
        plan,
        delta,
        released=count,
        releases=() if transcript is None else transcript.releases(),
        not_covered=(*NOTES, *not_covered),
        randomness=randomness,
        accountant=accountant,
    )


def outsider_gain(gossip: Gossip, worker: int, rounds: int | None = None) -> float:
    """The ratio of all noise in a round's average to the worker's own (standard deviations).

    It is the least over the rounds, and exactly 1 where models depend on more than the sums over
    all workers: asynchronous rules, exchanges that do not average exactly, clipping norms or steps
    that move, noise on a grid, and fewer rounds than were agreed on, the last of which may not have
    been averaged.

    Args:
        rounds: the number that the worker has released; None: all that it makes.
    """
    ended = rounds not in (None, gossip.updates(worker))
    if ended or _moving(gossip) or _on_a_grid(gossip) or not _one_model_a_round(gossip):
        return 1.0
    return min(
        math.sqrt(math.fsum((one / stds[worker]) ** 2 for one in stds)) if stds[worker] else 1.0
        for _, stds in _noise_levels(gossip)
    )


def network_gains(
    gossip: Gossip, worker: int, observers: Sequence[int], rounds: int
) -> list[tuple[float, int]]:
    """Ratios of the noise that ``observers`` face to the worker's own: (gain, number of rounds).

    Args:
        rounds: the number that the worker has released.

    Raises:
        NetworkViewError: this is not proven for the gossip; the message says for which it is.
    """
    what = None
    if gossip.rule != "synchronous":
        what = f"under the rule {gossip.rule!r}"
    elif _on_a_grid(gossip):
        what = "of noise on a grid, whose sums are not discrete Gaussian"
    elif _moving(gossip):
        what = "of clipping norms that follow the data, or steps that move apart in other plans"
    elif not _linear(gossip):
        what = "of compressed or clipped exchanges, which are not linear in the noised sums"
    elif gossip.tracking or (gossip.momentum and rounds > 1):
        what = "of momentum or gradient tracking, which show a sum in several rounds"
    elif gossip.rounds > 1 and not _averages(gossip):
        what = (
            f"of {gossip.exchanges} exchanges a round, which do not average exactly: gradients are "
            "then taken at weights that the observers do not know"
        )
    if what is not None:
        raise NetworkViewError(
            f"no theorem known here covers a distant worker's view {what}. Proven are one round, "
            "and the rule 'synchronous' with one exchange more than average exactly (exponential "
            "mixing of 2^p workers: exchanges = p + 1); the view 'neighbours' holds always"
        )
    counts: dict[float, int] = {}
    period = gossip.mixing.period
    mixes = gossip.exchanges - 1
    phases: dict[tuple[int, int], float] = {}
    levels = _noise_levels(gossip)
    for round in range(rounds):
        level = max(place for place, (begin, _) in enumerate(levels) if begin <= round)
        first = round * gossip.exchanges + 1
        key = (first % period if rounds > 1 else first, level)
        if key not in phases:
            phases[key] = decentralised.gain(
                gossip.mixing, first, mixes, worker, observers, levels[level][1]
            )
        gain = phases[key]
        if gain == math.inf:
            raise NetworkViewError(
                f"nothing of worker {worker} reaches these observers in {mixes} exchanges: there "
                "is nothing to state against them"
            )
        counts[gain] = counts.get(gain, 0) + 1
    return sorted(counts.items())


def as_in_the_paper(gossip: Gossip, worker: int, delta: float | None = None) -> Interval:
    """The exact ε of A(DP)²SGD's Theorem 2, under its assumption: no guarantee against neighbours.

    The theorem treats each of the T steps of all workers as a step of a worker that is drawn in
    secret, so a record is in the batch with probability B/(K n). Neighbours see which worker
    stepped. The sum's noise is the worker's own; :mod:`forethought.papers.decentralised` has the
    paper's calibration of it.

    Raises:
        GossipError: the rounds have different noise, or batches that are not sampled.
    """
    plan = gossip.plan(worker)
    parts = plan.mechanism.rounds
    one = parts[0]
    if len(parts) != 1 or not isinstance(one, Rounds):
        raise GossipError("the paper's theorem is about rounds of one noise")
    match one.sampling:
        case Poisson(rate=rate):
            sampling: Poisson | WithoutReplacement = Poisson(rate / gossip.workers)
        case WithoutReplacement(batch=batch, examples=examples):
            sampling = WithoutReplacement(batch, examples * gossip.workers)
        case _:
            raise GossipError("the paper's theorem is about batches sampled at a rate B/n")
    hidden = Mechanism(
        Rounds(one.noise_multiplier, gossip.total, sampling, one.clipping),
        adjacency=plan.mechanism.adjacency,
    )
    return exact.epsilon(hidden, plan.delta if delta is None else delta)


def shared(
    gossip: Gossip,
    holders: int,
    *,
    transcripts: Sequence[Transcript] | None = None,
    randomness: Randomness | None = None,
) -> Statement:
    """The statement against neighbours for a person with records at up to ``holders`` workers.

    Args:
        transcripts: of every worker, in order. None: their whole plans.

    Raises:
        ValueError: the workers' adjacencies or units of privacy differ, or no worker released
            anything.
    """
    whole("holders", holders, most=gossip.workers)
    workers = range(gossip.workers)
    return together(
        [gossip.plan(k).mechanism.first(gossip.updates(k)) for k in workers],
        holders,
        max(gossip.plan(k).delta for k in workers),
        plans=gossip.plans,
        transcripts=transcripts,
        randomness=randomness,
        not_covered=NOTES,
    )


def overview(gossip: Gossip, transcripts: Sequence[Transcript] | None = None) -> str:
    """A Markdown table of ε: one row per worker, one column per view."""
    lines = [
        "| worker | rounds | ε, neighbours | ε, outsider | as in the paper (not claimed) | δ |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    # Where rounds of others are missing, their noise is too; the paper's figure is of all rounds.
    complete = transcripts is None or sum(map(len, transcripts)) >= gossip.total
    views: tuple[View, View] = ("neighbours", "outsider" if complete else "neighbours")
    for worker, member in enumerate(gossip.members):
        transcript = None if transcripts is None else transcripts[worker]
        rounds, shown, paper = 0, "0 | 0", "–"
        if transcript is None or len(transcript):
            own = [worker_statement(gossip, worker, view, transcript=transcript) for view in views]
            rounds, shown = len(own[0].mechanism), " | ".join(at_most(one.guarantee) for one in own)
            with suppress(GossipError):
                paper = at_most(as_in_the_paper(gossip, worker).upper) if complete else paper
        delta = at_most(gossip.plan(worker).delta, ".6g")
        lines.append(f"| {member.name} | {rounds:,} | {shown} | {paper} | {delta} |")
    return "\n".join(lines)


def _one_model_a_round(gossip: Gossip) -> bool:
    """True if all workers begin each round with the same model, their average."""
    if gossip.rule == "allreduce":
        return True
    plain = gossip.rule == "synchronous" and _linear(gossip) and not gossip.tracking
    return plain and _averages(gossip)


def _on_a_grid(gossip: Gossip) -> bool:
    """True if some noise is discrete: averages of such noises are not."""
    return any(plan.noise == "grid" for plan in gossip.plans)


def _moving(gossip: Gossip) -> bool:
    """True if the share of a worker's noise in a round may change inside a part of its plan."""
    clip, schedule = gossip.plans[0].clip, gossip.plans[0].schedule  # those of all plans
    moves = clip.final is not None or schedule.unit == "examples"
    return clip.rule == "quantile" or (moves and len(gossip.plans) > 1)


def _linear(gossip: Gossip) -> bool:
    """True if the exchanged vectors are linear in all noised sums."""
    return gossip.compression.exact and gossip.trust.difference is None


def _averages(gossip: Gossip) -> bool:
    """True if every round's exchanges after its step average exactly."""
    mixing, mixes = gossip.mixing, gossip.exchanges - 1
    if mixing.drawn or mixes < 1 or gossip.workers > decentralised.MOST_WORKERS:
        return False
    # Check every position in the period at which a round can begin.
    starts = {(round * gossip.exchanges + 1) % mixing.period for round in range(mixing.period)}
    return all(decentralised.averages_exactly(mixing, start, mixes) for start in starts)


def _noise_levels(gossip: Gossip) -> list[tuple[int, list[float]]]:
    """(First round, standard deviation of each worker's noise in its weighted mean) for every
    change of a worker's noise."""
    parts = (accumulate(part.count for part in plan.mechanism) for plan in gossip.plans)
    last = min(gossip.updates(worker) for worker in range(gossip.workers))
    found = []
    for begin in sorted(one for one in {0}.union(*parts) if one < last):
        rounds = [gossip.plan(worker).round(begin) for worker in range(gossip.workers)]
        noise = [
            gossip.weight(worker) * one.noise_std / one.divisor for worker, one in enumerate(rounds)
        ]
        found.append((begin, noise))
    return found
