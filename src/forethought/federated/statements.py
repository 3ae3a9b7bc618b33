"""Privacy statements of a client against several views, and statements of the whole federation.

A client's main statement is about the server, which sees every noised update: it holds whatever the
server and all other clients do. Others see less:

| view | sees | additional assumptions |
| --- | --- | --- |
| ``"server"`` | every noised update | nothing |
| ``"secure-server"`` | the cohort's sums | secure aggregation; enough other clients add noise |
| ``"client"`` | every global model, as another client that knows its own noise | single updates \
stay hidden; the others add noise |
| ``"outsider"`` | the final model (and every one before it) | the same |

Where a model is not a function of one noised sum per round (asynchronous rules, several local
rounds, robust means, cohorts, deadlines), the last two views have the ε of the server's view, by
post-processing; for cohorts under secure aggregation, that of the secure server's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

from forethought.accounting import statement
from forethought.accounting.accountants import AGGREGATE, SECURE_AGGREGATION
from forethought.accounting.adaptive import PHASES_ALONE
from forethought.accounting.interval import at_most
from forethought.accounting.statement import Randomness, Statement, StatementError, account
from forethought.federated.federation import Federation, FederationError
from forethought.federated.secure_aggregation.masking import SecureAggregation
from forethought.federated.sizes import charged
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real, whole
from forethought.values.plan import Plan, Transcript, TranscriptError, grid
from forethought.values.use import kind_of

View = Literal["server", "secure-server", "client", "outsider"]
VIEWS: tuple[View, ...] = get_args(View)


def client_statement(
    federation: Federation,
    client: int,
    view: View = "server",
    *,
    transcript: Transcript | None = None,
    randomness: Randomness | None = None,
    delta: float | None = None,
    not_covered: Iterable[Caveat | str] = (),
    left: bool = False,
    made: Sequence[int] | None = None,
) -> Statement:
    """The statement of a client's releases against an attacker with the given view.

    Args:
        federation: the agreement. client: the client's place in the roster.
        view: see the module.
        transcript: the releases in the client's ledger; a run that stopped early costs less.
            None: all that its plan allows.
        randomness: the source of the client's random numbers.
        delta: δ; the plan's by default.
        not_covered: other uses of the client's records, such as an accuracy that was looked at.
        left: True: its owner ended it, perhaps for what results showed, so all rounds count.
        made: number of updates of every client; None: as planned. Others' noise counts as far.

    Raises:
        ValueError: an unknown view.
        FederationError: nothing was released, or the view "secure-server" without secure
            aggregation.
        TranscriptError: the releases are not the beginning of the plan.
    """
    one_of("view", view, VIEWS)
    plan = plan_made(federation, client, transcript)
    own = _phase_notes(federation, client, transcript)
    accountant = accountant_of(federation, client, view, made)
    if federation.sizes is not None:
        kept = charged(federation.plan(client), transcript)
        accountant = kept.details()
        spent = f"{100 * kept.fraction_used:.1f} % of it is used"
        own = (Caveat("sizes-by-results", f"the rule {federation.sizes.kind!r}; {spent}"),)
        plan = plan.with_(not_covered=[one for one in plan.not_covered if one != PHASES_ALONE])
    count = federation.first_round(federation.updates(client))
    if federation.phases:
        count = len(plan.mechanism)
    elif transcript is not None:
        count, planned = len(transcript), count
        if count:
            transcript.require(plan.mechanism.first(count))
        if left and count < planned and federation.sizes is None:
            own, count = (Caveat("stopped-early", f"{count} of {planned}"),), planned
    federation.require_released(client, transcript)
    return account(
        plan,
        delta,
        released=count,
        releases=() if transcript is None else transcript.releases(),
        not_covered=(*notes(federation), *own, *not_covered),
        randomness=randomness,
        accountant=accountant,
    )


def plan_made(federation: Federation, client: int, transcript: Transcript | None = None) -> Plan:
    """The plan that a client's statement covers: its own one, restricted to its phases, or with the
    sizes that it chose."""
    plan = federation.plan(client)
    if federation.sizes is not None and transcript is not None and len(transcript):
        return plan.remade(
            mechanism=transcript.mechanism(plan.mechanism.adjacency),
            not_covered=(*plan.not_covered, PHASES_ALONE),
        )
    if not federation.phases:
        return plan
    return plan.remade(mechanism=federation.planned(client))


def _phase_notes(
    federation: Federation, client: int, transcript: Transcript | None
) -> tuple[Caveat, ...]:
    """The note on the rounds that a client released in each phase, with each phase's own ε.

    The client's phases were fixed before the run, and all of their rounds are accounted, because a
    client may leave or return depending on results. The rounds that it then releases are
    post-processing of all the rounds that it could have released.

    Raises:
        TranscriptError: a round was released outside of the phases, or not as planned.
    """
    if not federation.phases:
        return ()
    plan = federation.plan(client)
    done = [] if transcript is None else transcript.ranges()
    words, within = [], 0
    for phase in range(len(federation.phases)):
        places = next(
            (own for own in federation.places(client) if own and federation.phase(own[0]) == phase),
            range(0),
        )
        if not places:
            words.append(f"phase {phase + 1} left out")
            continue
        begin, end = (federation.first_round(at) for at in (places.start, places.stop))
        made = [range(max(begin, r.start), min(end, r.stop)) for r in done]
        count = sum(map(len, made))
        within += count
        alone = account(plan.with_(mechanism=plan.mechanism.between(begin, end))).guarantee
        of_all = f"all {end - begin}" if transcript is None else f"{count} of {end - begin}"
        words.append(f"phase {phase + 1}: {of_all} rounds, by itself epsilon {at_most(alone)}")
    if transcript is not None and len(transcript):
        if within != len(transcript):
            raise TranscriptError(
                f"{len(transcript)} rounds were released, {within} of them in the phases of "
                f"{federation.members[client].name!r}: no statement is written"
            )
        parts = [plan.mechanism.between(one.start, one.stop) for one in done]
        transcript.require(sum(parts[1:], parts[0]))
    return (Caveat("phases-fixed", "; ".join(words)),)


def gain(
    federation: Federation, client: int, known: int = 0, made: Sequence[int] | None = None
) -> float:
    """Standard deviation of all noise in a round's weighted sum over that of the client's own.

    The least over all rounds of the client. At least 1; exactly 1 where a round's model is
    not a function of one weighted sum.

    Args:
        known: number of other clients whose noise does not count, since the attacker knows it or
            since they may drop out; the noisiest are left out.
        made: number of updates of every client; None: as planned.
    """
    ends = made or [federation.updates(other) for other in range(len(federation.members))]
    if not _one_sum_a_round(federation, ends):
        return 1.0
    least = math.inf
    for round in _beginnings(federation, client, ends):
        variances = [
            _noise_in_the_mean(federation, other, round) ** 2
            for other in range(len(federation.members))
            if other != client and round < ends[other]
        ]
        hidden = sorted(variances)[: max(0, len(variances) - known)]
        own = _noise_in_the_mean(federation, client, round) ** 2
        least = min(least, math.sqrt(1 + math.fsum(hidden) / own) if own else 1.0)
    return least


def disjoint(statements: Mapping[str, Statement]) -> Statement:
    """The statement of the whole federation where no two clients hold records of one person.

    A record is in one client's data, and the others' releases do not depend on it. So the largest ε
    of all clients, at the largest δ, holds for everybody (parallel composition).

    Args:
        statements: client's name → its statement; one adjacency, one view.

    Raises:
        FederationError: statements of different kinds, or none.
    """
    try:
        return statement.disjoint(statements)
    except StatementError as problem:
        raise FederationError(str(problem)) from None


def shared(
    federation: Federation,
    holders: int,
    *,
    transcripts: Sequence[Transcript] | None = None,
    randomness: Randomness | None = None,
) -> Statement:
    """The statement for persons whose records up to ``holders`` clients hold, against the server.

    Each client adds its own noise, so the releases of several clients compose; the statement is for
    the worst choice of clients. Against an attacker who sees only sums there is no such statement,
    since a person at two clients changes one sum twice.

    Args:
        holders: largest number of clients with one person's records, 1 to the number of clients.
        transcripts: every client's releases, in the order of the roster. None: their whole plans.

    Returns:
        A statement whose δ is the largest of all clients.

    Raises:
        FederationError: the clients' adjacencies differ, or they choose sizes from results.
    """
    members = len(federation.members)
    whole("holders", holders, most=members)
    if federation.sizes is not None:
        raise FederationError(
            "sizes that are chosen by results are accounted by a filter of each client's own, and "
            "no theorem here adds filters up: a person at several clients has no statement"
        )
    given = [None] * members if transcripts is None else transcripts
    mechanisms = [
        federation.planned(client)
        if transcript is None or federation.phases
        else transcript.mechanism(federation.plan(client).mechanism.adjacency)
        for client, transcript in enumerate(given)
        if transcript is None or len(transcript)
    ]
    delta = max(federation.plan(client).delta for client in range(members))
    times = (_arrivals(federation),)
    try:
        return statement.shared(
            mechanisms, holders, delta, randomness=randomness, not_covered=times
        )
    except StatementError as problem:
        raise FederationError(str(problem)) from None


def overview(federation: Federation, transcripts: Sequence[Transcript] | None = None) -> str:
    """A Markdown table of the ε of every client (rows) against every view (columns)."""
    views: list[View] = ["server", "client", "outsider"]
    if federation.secure is not None:
        views.insert(1, "secure-server")
    lines = [
        "| client | rounds | " + " | ".join(f"ε, {view}" for view in views) + " | δ |",
        "| --- | --- |" + " --- |" * (len(views) + 1),
    ]
    updates = None if transcripts is None else [len(one) for one in transcripts]
    for client, member in enumerate(federation.members):
        transcript = None if transcripts is None else transcripts[client]
        if transcript is not None and not len(transcript):
            cells = ["0"] * len(views)
            rounds, delta = 0, federation.plan(client).delta
        else:
            found = [
                client_statement(federation, client, view, transcript=transcript, made=updates)
                for view in views
            ]
            cells = [at_most(one.guarantee) for one in found]
            rounds, delta = len(found[0].mechanism), found[0].delta
        lines.append(
            f"| {member.name} | {rounds:,} | {' | '.join(cells)} | {at_most(delta, '.6g')} |"
        )
    return "\n".join(lines)


def notes(federation: Federation) -> tuple[Caveat, ...]:
    """The notes that the federation adds to a client's statement."""
    found = [_arrivals(federation)]
    if federation.refreshes:
        found.append(Caveat("refresh-times", f"{federation.refreshes + 1}"))
    if federation.cohort is not None:
        found.append(Caveat("no-client-amplification"))
    return tuple(found)


def _arrivals(federation: Federation) -> Caveat:
    """The note on what the arrival times of updates can reveal."""
    if federation.cadence is None:
        return Caveat("arrival-times")
    return Caveat("padded-times", f"{federation.cadence:g} seconds")


def accountant_of(
    federation: Federation, client: int, view: View, made: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """The accountant of a client's releases against ``view``; None: the plan's own accounting."""
    if view == "server" or federation.sizes is not None:
        return None
    if view == "secure-server":
        return _behind_masks(federation, client)
    known = 1 if view == "client" else 0
    if federation.secure is not None:
        known += int(federation.secure["dropouts"])  # their noise may be missing from a sum
    found = gain(federation, client, known, made)
    if found > 1.0:
        return {"kind": AGGREGATE, "gain": found}
    # Models are post-processing of the server's view, and another client counts as one colluder.
    secure = federation.secure
    if secure is not None and (view == "outsider" or int(secure["colluders"])):
        return _behind_masks(federation, client)
    return None


def _behind_masks(federation: Federation, client: int) -> dict[str, Any]:
    """The accountant of a client against a server that sees only its cohort's sums."""
    if federation.secure is None:
        raise FederationError(
            "this federation has no secure aggregation: its server sees every update. Give "
            "secure=SecureAggregation(...).to_dict()"
        )
    secure = SecureAggregation.from_dict(federation.secure)
    secure.require(federation)
    first = federation.plan(client).round(0)
    _, scale = grid(first.noise_std, first.clip_norm, federation.parameters)
    return {
        "kind": SECURE_AGGREGATION,
        "clients": secure.clients,
        "dropouts": secure.dropouts,
        "colluders": secure.colluders,
        "coordinates": federation.parameters,
        "scale": float(scale),
    }


def _one_sum_a_round(federation: Federation, ends: Sequence[int]) -> bool:
    """True if every global model is a function of the weighted sums of all clients' noised sums.

    This needs all clients in every round, one release per round, a plain mean and a fixed clipping
    norm. Exchanged weights count like gradients where the local step is linear and the same for all
    clients: SGD, with or without momentum.
    """
    if any(plan.clip.rule == "quantile" for plan in federation.plans):
        return False
    if (
        federation.rule != "synchronous"
        or federation.local_rounds != 1
        or federation.robust.kind != "mean"
        or federation.cohort is not None
        or federation.deadline is not None
        or federation.phases
    ):
        return False
    if federation.exchanged == "gradients":
        return True
    # Later models lack the momentum of a client that stopped. Compared with earlier models, they
    # would show its past sums separately from the others'.
    uses = {plan.use for plan in federation.plans}
    return len(set(ends)) == 1 and len(uses) == 1 and kind_of(uses.pop().optimizer.name).descends


def _beginnings(federation: Federation, client: int, ends: Sequence[int]) -> list[int]:
    """Rounds of a client at which its own noise or another client's may change."""
    found = {0, *ends}
    for plan in federation.plans:
        found.update(accumulate(part.count for part in plan.mechanism))
    return sorted(round for round in found if round < ends[client])


def _noise_in_the_mean(federation: Federation, client: int, round: int) -> float:
    chosen = federation.plan(client).round(round)
    if federation.secure is not None:
        return chosen.noise_std  # masked sums are added without weights
    return federation.shares[client] * chosen.noise_std / chosen.divisor


@dataclass(frozen=True)
class Policy:
    """The largest privacy loss that a client allows, whatever a server proposes.

    Args:
        epsilon: largest ε of its whole plan at ``delta``, for the plan's unit of privacy; > 0.
        delta: the δ at which ε is computed, in (0, 1).
        secure: True: in a federation with secure aggregation, ``epsilon`` limits the ε against the
            view "secure-server" instead of "server".

    Raises:
        ValueError: a value outside its range.
    """

    epsilon: float
    delta: float
    secure: bool = False

    def __post_init__(self) -> None:
        real("policy epsilon", self.epsilon, above=0)
        real("policy delta", self.delta, above=0, below=1)

    def require(self, federation: Federation, client: int) -> None:
        """Refuse a federation in which a member's plan exceeds this policy.

        Raises:
            FederationError: it does; the message names both values of ε.
        """
        behind = self.secure and federation.secure is not None
        view: View = "secure-server" if behind else "server"
        found = client_statement(federation, client, view, delta=self.delta).guarantee
        if found > self.epsilon:
            raise FederationError(
                f"the plan for {federation.members[client].name!r} spends epsilon "
                f"{at_most(found)} at delta {at_most(self.delta, '.6g')}, the policy allows "
                f"{self.epsilon:g}: ask for a plan with more noise or fewer rounds"
            )
