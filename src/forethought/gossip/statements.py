"""The views of a worker, and what each can learn from it.

- ``"neighbours"`` see every message of the worker, hence who stepped, and every noised sum: its
  own rounds count, at its own rate, as many as its ledger has.
- an ``"outsider"`` sees final models only. The same holds for it, by post-processing; less where
  all workers' sums reach everybody only added up.
- ``"network"``: some distant workers see what they are sent, and know their own noise. The same
  rounds count behind the noise of others, where that is proven.

The first is the default and rests on nobody else. ``as_in_the_paper`` is what A(DP)²SGD's theorem
counts, with its assumption: that nobody sees which worker stepped. Neighbours do see it, so it is
shown beside the statement and never claimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
# What every statement of a worker must say besides its plan.
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
    """The statement of a worker's releases to somebody who sees ``view`` of them.

    Args:
        gossip: what all agreed on. worker: its place in the members.
        view: see the module.
        transcript: what the worker's ledger released, which may be less than its plan allows. None:
            all of that.
        observers: for "network": the workers who tell each other all that they see.
        randomness: where its random numbers came from.
        delta: δ; the plan's by default.
        not_covered: other uses of the worker's records, such as an accuracy that was looked at.

    Raises:
        GossipError: nothing was released. TranscriptError: what was released is not the beginning
            of the plan. NetworkViewError: no theorem covers this gossip under "network".
    """
    one_of("view", view, VIEWS)
    if bool(observers) != (view == "network"):
        raise GossipError("observers are for the view 'network': name them there, and only there")
    plan = gossip.plan(worker)
    count = gossip.updates(worker)
    gossip.require_released(worker, transcript)
    if transcript is not None:
        count = len(transcript)
        transcript.require(plan.mechanism.first(count))
    accountant: dict[str, Any] | None = None
    if view == "network":
        gains = network_gains(gossip, worker, observers, count)
        listed = [[gain, rounds] for gain, rounds in gains]
        accountant = {"kind": NETWORK, "gains": listed, "observers": len(set(observers))}
    elif view == "outsider":
        gain = outsider_gain(gossip, worker)
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


def outsider_gain(gossip: Gossip, worker: int) -> float:
    """All noise in the average of a round over the worker's own, as standard deviations.

    Exactly 1 where models are more than a function of the sums over all workers: asynchronous
    rules, exchanges that do not average exactly, norms that follow the data.
    """
    if gossip.plan(worker).clip.rule == "quantile" or not _one_model_a_round(gossip):
        return 1.0
    return min(
        math.sqrt(math.fsum((one / std) ** 2 for one in stds)) if std else 1.0
        for _, stds in _noise_levels(gossip)
        for std in (stds[worker],)
    )


def network_gains(
    gossip: Gossip, worker: int, observers: Sequence[int], rounds: int
) -> list[tuple[float, int]]:
    """The noise that ``observers`` face over the worker's own: (gain, in how many rounds).

    Args:
        rounds: that the worker has released.

    Raises:
        NetworkViewError: a gossip for which this is not proven; says which are.
    """
    plan = gossip.plan(worker)
    what = None
    if gossip.rule != "synchronous":
        what = f"under the rule {gossip.rule!r}"
    elif plan.noise == "grid":
        what = "of noise on a grid, whose sums are not discrete Gaussian"
    elif plan.clip.rule == "quantile":
        what = "of clipping norms that follow the data"
    elif not _linear(gossip):
        what = "of compressed or clipped exchanges, which are not linear in the noised sums"
    elif gossip.tracking or (gossip.momentum and rounds > 1):
        what = "of momentum or gradient tracking, which show a sum in several rounds"
    elif rounds > 1 and not _averages(gossip):
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
    """ε of what A(DP)²SGD's Theorem 2 counts, exactly: not a guarantee against neighbours.

    The theorem takes every one of the T steps of all workers for one of a worker that was drawn in
    secret, so that a record is in its batch with probability B/(K n). Neighbours see who stepped.
    The sum's noise is the worker's own; how the paper calibrates it is
    :mod:`forethought.papers.decentralised`.

    Raises:
        GossipError: rounds that are not all of one noise and a sampled batch.
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
    """The statement for persons whose records up to ``holders`` workers have, against neighbours.

    Args:
        transcripts: of every worker, in order. None: their whole plans.

    Raises:
        ValueError: workers of different adjacency, or that released nothing.
    """
    whole("holders", holders, most=gossip.workers)
    if transcripts is None:
        made = [gossip.plan(k).mechanism.first(gossip.updates(k)) for k in range(gossip.workers)]
    else:
        made = [
            one.mechanism(gossip.plan(k).mechanism.adjacency)
            for k, one in enumerate(transcripts)
            if len(one)
        ]
    return together(
        made,
        holders,
        max(gossip.plan(k).delta for k in range(gossip.workers)),
        randomness=randomness,
        not_covered=NOTES,
    )


def overview(gossip: Gossip, transcripts: Sequence[Transcript] | None = None) -> str:
    """The views and their ε, as a table in Markdown: a worker a row, a view a column."""
    lines = [
        "| worker | rounds | ε, neighbours | ε, outsider | as in the paper (not claimed) | δ |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for worker, member in enumerate(gossip.members):
        transcript = None if transcripts is None else transcripts[worker]
        delta = gossip.plan(worker).delta
        if transcript is not None and not len(transcript):
            lines.append(f"| {member.name} | 0 | 0 | 0 | 0 | {at_most(delta, '.6g')} |")
            continue
        cells = [
            worker_statement(gossip, worker, view, transcript=transcript)
            for view in ("neighbours", "outsider")
        ]
        shown = " | ".join(at_most(one.guarantee) for one in cells)
        try:
            paper = at_most(as_in_the_paper(gossip, worker).upper)
        except GossipError:
            paper = "–"
        lines.append(
            f"| {member.name} | {len(cells[0].mechanism):,} | {shown} | {paper} | "
            f"{at_most(delta, '.6g')} |"
        )
    return "\n".join(lines)


def _one_model_a_round(gossip: Gossip) -> bool:
    """True if everybody begins each round with one model, the average of all."""
    if gossip.rule == "allreduce":
        return True
    plain = gossip.rule == "synchronous" and _linear(gossip) and not gossip.tracking
    return plain and _averages(gossip)


def _linear(gossip: Gossip) -> bool:
    """True if what is exchanged is linear in all noised sums."""
    return gossip.compression.exact and gossip.trust.difference is None


def _averages(gossip: Gossip) -> bool:
    """True if every round's exchanges after its step average exactly."""
    mixing, mixes = gossip.mixing, gossip.exchanges - 1
    if mixing.drawn or mixes < 1 or gossip.workers > decentralised.MOST_WORKERS:
        return False
    # Once for every place in the period at which a round can begin.
    starts = {(round * gossip.exchanges + 1) % mixing.period for round in range(mixing.period)}
    return all(decentralised.averages_exactly(mixing, start, mixes) for start in starts)


def _noise_levels(gossip: Gossip) -> list[tuple[int, list[float]]]:
    """(First round, noise of each worker in its mean) for every change of somebody's noise."""
    begins = {0}
    for plan in gossip.plans:
        before = 0
        for part in plan.mechanism:
            before += part.count
            begins.add(before)
    last = min(gossip.updates(worker) for worker in range(gossip.workers))
    found = []
    for begin in sorted(one for one in begins if one < last):
        rounds = [gossip.plan(worker).round(begin) for worker in range(gossip.workers)]
        noise = [
            gossip.weight(worker) * one.noise_std / one.divisor for worker, one in enumerate(rounds)
        ]
        found.append((begin, noise))
    return found
