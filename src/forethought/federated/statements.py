"""Privacy statements of a client against several views, and statements of the whole federation.

A client's main statement is about the server, which sees every noised update. What the server and
all other clients send changes nothing in it. If results decided that fewer rounds were released
than planned, the ε of all of them holds, which it names ("ended-early"). Others see less:

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
        transcript: the releases in the client's ledger. If they are fewer than planned, the
            caveat "ended-early" has the ε of all. None: all that its plan allows.
        randomness: the source of the client's random numbers.
        delta: δ; the plan's by default.
        not_covered: other uses of the client's records, such as an accuracy that was looked at.
        left: True: its owner ended it, perhaps for what results showed, so all rounds count.
        made: number of updates of every client; None: as planned, if ``transcript`` is whole. If a
            client missed a round, no noise of others counts.

    Raises:
        ValueError: an unknown view.
        FederationError: nothing was released, or the view "secure-server" without secure
            aggregation.
        TranscriptError: the releases are not the beginning of the plan.
    """
    one_of("view", view, VIEWS)
    federation.require_released(client, transcript)
    plan = plan_made(federation, client, transcript)
    own = _phase_notes(federation, client, transcript)
    released = None if transcript is None else len(transcript)
    accountant = accountant_of(federation, client, view, made, released)
    if federation.sizes is not None:
        kept = charged(federation.plan(client), transcript)
        accountant = kept.details()
        spent = f"{100 * kept.fraction_used:.1f} % of it is used"
        own = (Caveat("sizes-by-results", f"the rule {federation.sizes.kind!r}; {spent}"),)
        plan = plan.with_(not_covered=[one for one in plan.not_covered if one != PHASES_ALONE])
    count = len(plan.mechanism)
    if transcript is not None and not federation.phases:
        count, planned = len(transcript), count
        transcript.require(plan.mechanism.first(count))
        if left and count < planned:
            own, count = (Caveat("stopped-early", f"{count} of {planned}"),), planned
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
    """The plan that a client's statement covers: its own one, restricted to the rounds that were
    agreed on, or with the sizes that it chose in its releases."""
    plan = federation.plan(client)
    if federation.sizes is not None and transcript is not None:
        return plan.remade(
            mechanism=transcript.mechanism(plan.mechanism.adjacency),
            not_covered=(*plan.not_covered, PHASES_ALONE),
        )
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
    own = {federation.phase(at[0]): at for at in federation.places(client) if at}
    for phase in range(len(federation.phases)):
        if phase not in own:
            words.append(f"phase {phase + 1} left out")
            continue
        begin, end = (federation.first_round(at) for at in (own[phase].start, own[phase].stop))
        made = [range(max(begin, r.start), min(end, r.stop)) for r in done]
        count = sum(map(len, made))
        within += count
        alone = account(plan.with_(mechanism=plan.mechanism.between(begin, end))).guarantee
        of_all = f"all {end - begin}" if transcript is None else f"{count} of {end - begin}"
        words.append(f"phase {phase + 1}: {of_all} rounds, by itself epsilon {at_most(alone)}")
    if transcript is not None:
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
        made: number of updates of every client; None: as planned. A client that missed a model
            adds no noise to it, and its later rounds are in other models than planned: then 1.
    """
    ends = [federation.updates(other) for other in range(len(federation.members))]
    missed = made is not None and set(made) != {federation.rounds}
    if missed or not _one_sum_a_round(federation):
        return 1.0
    least = math.inf
    # Rounds of the client at which its own noise or another client's may change.
    parts = (accumulate(part.count for part in plan.mechanism) for plan in federation.plans)
    begins = {0, *ends}.union(*parts)
    for round in sorted(one for one in begins if one < ends[client]):
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
        A statement whose δ is the largest of all clients. At each client it counts as many records
        of a person as the plan that protects the most together.

    Raises:
        FederationError: the clients' adjacencies or units of privacy differ, or they choose sizes
            from results.
    """
    members = len(federation.members)
    whole("holders", holders, most=members)
    if federation.sizes is not None:
        raise FederationError(
            "sizes that are chosen by results are accounted by a filter of each client's own, and "
            "no theorem here adds filters up: a person at several clients has no statement"
        )
    try:
        return statement.shared(
            [federation.planned(client) for client in range(members)],
            holders,
            max(federation.plan(client).delta for client in range(members)),
            plans=federation.plans,
            transcripts=None if federation.phases else transcripts,
            randomness=randomness,
            not_covered=notes(federation),
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
        cells, rounds = ["0"] * len(views), 0
        if transcript is None or len(transcript):
            found = [
                client_statement(federation, client, view, transcript=transcript, made=updates)
                for view in views
            ]
            cells, rounds = [at_most(one.guarantee) for one in found], len(found[0].mechanism)
        delta = at_most(federation.plan(client).delta, ".6g")
        lines.append(f"| {member.name} | {rounds:,} | {' | '.join(cells)} | {delta} |")
    return "\n".join(lines)


def notes(federation: Federation) -> tuple[Caveat, ...]:
    """The notes that the federation adds to a client's statement."""
    found = [Caveat("arrival-times")]
    if federation.cadence is not None:
        found = [Caveat("padded-times", f"{federation.cadence:g} seconds")]
    if federation.refreshes:
        found.append(Caveat("refresh-times", f"{federation.refreshes + 1}"))
    if federation.cohort is not None:
        found.append(Caveat("no-client-amplification"))
    return tuple(found)


def accountant_of(
    federation: Federation,
    client: int,
    view: View,
    made: Sequence[int] | None = None,
    released: int | None = None,
) -> dict[str, Any] | None:
    """The accountant of a client's releases against ``view``; None: the plan's own accounting.

    Args:
        made: see :func:`gain`. released: the number of the client's own rounds; None: all.
    """
    if view == "server" or federation.sizes is not None:
        return None
    if view == "secure-server":
        return _behind_masks(federation, client)
    secure = federation.secure or {"dropouts": 0}
    # The noise of drop-outs may be missing from a sum.
    known = (view == "client") + int(secure["dropouts"])
    if made is None and released not in (None, federation.updates(client)):
        made = [int(released or 0)]  # it was missing from models that the others may have made
    found = gain(federation, client, known, made)
    if found > 1.0:
        return {"kind": AGGREGATE, "gain": found}
    # Models are post-processing of the server's view, and another client counts as one colluder.
    if federation.secure is not None and (view == "outsider" or int(secure["colluders"])):
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


def _one_sum_a_round(federation: Federation) -> bool:
    """True if every global model is a function of the weighted sums of all clients' noised sums.

    This needs all clients in every round, one release per round, a plain mean and a fixed clipping
    norm. Exchanged weights count like gradients where the local step is linear and the same for all
    clients: SGD, with or without momentum, its sizes counted in rounds. Noise on a grid counts only
    in masked sums, of whole numbers: a weighted sum of discrete noises is no discrete noise.
    """
    plans = federation.plans
    weighted = federation.secure is None and any(plan.noise == "grid" for plan in plans)
    if (
        weighted
        or any(plan.clip.rule == "quantile" or plan.clip.final is not None for plan in plans)
        or federation.rule != "synchronous"
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
    # would show its past sums separately from the others'. And step sizes of plans of other lengths
    # or, counted in examples, of other batches move apart.
    uses = {(plan.use, plan.rounds) for plan in plans}
    alike = len(plans) == 1 or plans[0].schedule.unit == "rounds"
    descends = kind_of(plans[0].optimizer.name).descends
    return len(uses) == 1 and alike and descends


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
