"""The Federation: one frozen value that all members agree on before anything is sent.

It holds every member's plan and public key, and the rules by which updates become a model. The
server cannot change a client's releases: the client's own plan determines them, and its own policy
must allow that plan. Sources: synchronous rounds, FedAvg (McMahan et al. 2017) over DP-SGD at each
client; asynchronous rounds, van Dijk et al., Appendix A.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar, Literal, get_args

from forethought.exchange.keys import Agreement
from forethought.federated.sizes import Guard, Sizes
from forethought.values.checks import imported, one_of, optional, real, settle, whole
from forethought.values.mechanism import LocalRounds, Mechanism, first_round, updates_of
from forethought.values.plan import Plan, other_terms, promised, step_sizes
from forethought.values.serialisation import Readers, build, each
from forethought.values.use import Averaging

# Permissible delay: how far a client's round may be ahead of its newest global model.
#
# Υ(k, i) of the asynchronous algorithm (van Dijk et al., Appendix A, Algorithm 2) is true if round
# i (from 0) may be computed when the newest global model received is v_k. Plain functions, chosen
# by name; ``module:function`` names a function of the user's own.


Permissible = Callable[[int, int], bool]
# Name → the function of k, i and ``most``. A delay of √(t/ln t) keeps the best rate for strongly
# convex problems (Nguyen et al. 2018); it is counted in rounds.
DELAYS: Mapping[str, Callable[[int, int, int], bool]] = {
    "constant": lambda k, i, most: i - k <= most,
    "one": lambda k, i, most: i - k <= 1,
    "sqrt": lambda k, i, most: i - k <= max(most, math.sqrt(i / math.log(i)) if i > 1 else 0),
}


@dataclass(frozen=True)
class Delay:
    """A permissible delay by name.

    Args:
        kind: a key of :data:`DELAYS`. ``"constant"``: a fixed number of rounds ahead, of which 0
            waits for every client each round; ``"one"``: 1-asynchronous, as in the paper's
            experiments; ``"sqrt"``: more as rounds go on. Or ``"module:function"``, a function of
            the user's own that is called with k and i.
        most: for "constant", the permitted rounds ahead; for "sqrt", rounds ahead that are always
            permitted.

    Raises:
        ValueError: an unknown kind, or a negative number.
    """

    kind: str = "one"
    most: int = 1

    def __post_init__(self) -> None:
        if ":" not in self.kind:
            one_of("delay", self.kind, (*DELAYS, "module:function"))
        settle(self, most=whole("most", self.most, least=0))

    @property
    def permits(self) -> Permissible:
        """The function Υ(k, i).

        A function of the user's own is imported here, not before, so that reading another member's
        file imports nothing. Round i on v_i is always permitted: no newer model comes before this
        round.

        Raises:
            ValueError: the function cannot be imported, or called with two numbers.
        """
        if ":" in self.kind:
            chosen = imported("delay", self.kind)
            try:
                bool(chosen(0, 1))  # the first call that a run makes
            except Exception as error:
                raise ValueError(
                    f"delay {self.kind!r} called with 0, 1 failed with {type(error).__name__}: "
                    f"{error}; give a function of k and i that returns True or False"
                ) from error
            return lambda k, i: k >= i or bool(chosen(k, i))
        named, most = DELAYS[self.kind], self.most
        return lambda k, i: named(k, i, most)


# The file of a federation.
FEDERATION = "federation.json"

Rule = Literal["synchronous", "asynchronous", "published"]
Exchanged = Literal["weights", "gradients"]
ServerKind = Literal["avg", "avgm", "adam", "yogi"]
RobustKind = Literal["mean", "trimmed", "median", "norm-bound"]


class FederationError(ValueError):
    """An invalid federation, or one that a member refuses."""


@dataclass(frozen=True, slots=True)
class Member:
    """One client.

    Args:
        name: for people; unique.
        plan: place of its plan in the federation's plans.
        weight: weight of its updates, relative to the other members': its public number of
            records, its sample size, or 1.
        public_key: Ed25519, 32 bytes in hexadecimal; "" where nothing is signed (a simulation).
    """

    name: str
    plan: int = 0
    weight: float = 1.0
    public_key: str = ""


@dataclass(frozen=True)
class ServerOptimizer:
    """The step of the global model along a mean of updates (Reddi et al. 2021, Algorithm 2).

    Args:
        kind: ``"avg"``: FedAvg, a step by the mean itself; ``"avgm"``: with momentum (Hsu et al.
            2019); ``"adam"``, ``"yogi"``: with adaptive steps.
        rate: the server's step size. With 1 and "avg" the new model is the plain mean.
        momentum: momentum of avgm; β₁ of adam and yogi.
        second: β₂ of adam and yogi. tau: their τ, which bounds the adaptivity.
    """

    kind: ServerKind = "avg"
    rate: float = 1.0
    momentum: float = 0.9
    second: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        one_of("server optimizer", self.kind, get_args(ServerKind))
        real("server rate", self.rate, above=0)
        real("server momentum", self.momentum, least=0, below=1)
        real("server second", self.second, least=0, below=1)
        real("server tau", self.tau, above=0)


@dataclass(frozen=True)
class Robust:
    """The aggregate of one round's updates: the mean, or one more robust to hostile clients.

    Args:
        kind: ``"mean"``; ``"trimmed"``: the mean of each coordinate without the ``share`` highest
            and lowest values (Yin et al. 2018); ``"median"``: of each coordinate;
            ``"norm-bound"``: updates longer than ``bound`` are shortened to it (Sun et al. 2019).
        share: share of clients trimmed at each end. bound: largest L2 norm of an update.
    """

    kind: RobustKind = "mean"
    share: float = 0.1
    bound: float | None = None

    def __post_init__(self) -> None:
        one_of("robust", self.kind, get_args(RobustKind))
        real("robust share", self.share, least=0, below=0.5)
        if (self.kind == "norm-bound") != (self.bound is not None):
            raise ValueError("bound= goes with robust kind 'norm-bound', and only with it")
        optional(real, "robust bound", self.bound, above=0)


@dataclass(frozen=True)
class Federation(Agreement):
    """Everything that clients and server agree on.

    Args:
        members: the clients; a client's number is its place in this tuple.
        plans: the different plans of the members.
        parameters: length of the exchanged vectors.
        architecture: digest of the model's names, shapes and dtypes.
        rounds: global rounds R; asynchronously, the most updates that a client sends.
        local_rounds: private rounds E (steps, not epochs) in one update. Several numbers are those
            of a client's first updates, in order; the last holds for all later updates.
        rule: ``"synchronous"``; ``"asynchronous"``: updates are applied as they arrive, and the
            server does not wait for clients that are absent too long; ``"published"``: Algorithm 4
            exactly, except for its sign: a new model waits for all clients.
        exchanged: ``"weights"`` after E local rounds of the plan's own optimizer, or
            ``"gradients"``: the noised mean of one round, along which the server makes a step.
        delay: permissible delay of the asynchronous rules.
        cohort: number of clients that a synchronous round asks; None: all.
        deadline: seconds that a synchronous round waits from its beginning; None: for ever.
        absence: seconds without a message after which the asynchronous rule goes on without a
            client; None: never.
        cadence: seconds. To others, a client's computation of an update seems to last a whole
            multiple of them, so that the batch size stays hidden if it needs only one cadence.
        refreshes: how often in a round a client replaces the round's first model by the newest one,
            at equal steps of the cadence; Algorithm 4 does so whenever a model arrives. The round's
            records are dealt to the intervals between them; for why that is sound see
            :meth:`~forethought.rounds.private_sum.PrivateSum.parts`.
        resend: seconds after which unacknowledged updates are sent again; also the heartbeat.
        server: the step by which a round's mean moves the model. robust: the kind of mean.
        averaging: averaging of the global models for the reported one.
        secure: :class:`~forethought.federated.secure_aggregation.masking.SecureAggregation` as a
            mapping; None: no secure aggregation.
        seed: public seed of the cohorts.
        server_key: the server's Ed25519 key, 32 bytes in hexadecimal; "" in a simulation.
        nonce: drawn with the roster, so that no two runs have the same name; "" in a simulation.
        phases: number of updates of each phase, in order; (): there is one phase. The newest model
            determines the phase: a client does not make up missed rounds of an earlier phase.
        sizes: rule by which clients choose sample sizes within a filter; None: as planned.
        taking: for each member the phases that it takes part in, from 0, fixed before the run; ():
            all members take part in all phases.
        encoding: how records become inputs and losses: of a declared table a digest, of other data
            what the job says of it; "": it says nothing.

    Raises:
        FederationError: parts that contradict each other. ValueError: a value out of its range.
    """

    SCHEMA: ClassVar[str] = "forethought/federation/1"
    CALLED: ClassVar[str] = "federation"
    MEMBER: ClassVar[str] = "client"
    REFUSAL: ClassVar[type[ValueError]] = FederationError
    LATER: ClassVar[tuple[str, ...]] = ("refreshes", "phases", "taking", "sizes", "encoding")
    PARTS: ClassVar[Readers] = {
        "members": each(partial(build, Member, what="member")),
        "plans": each(Plan.from_dict),
        "delay": partial(build, Delay, what="delay"),
        "server": partial(build, ServerOptimizer, what="server"),
        "robust": partial(build, Robust, what="robust"),
        "averaging": partial(build, Averaging, what="averaging"),
        "sizes": lambda found: None if found is None else build(Sizes, found, "sizes"),
    }

    members: tuple[Member, ...]
    parameters: int
    architecture: str
    rounds: int
    local_rounds: LocalRounds = 1
    rule: Rule = "synchronous"
    exchanged: Exchanged = "weights"
    delay: Delay = Delay()
    cohort: int | None = None
    deadline: float | None = None
    absence: float | None = None
    resend: float = 5.0
    server: ServerOptimizer = ServerOptimizer()
    robust: Robust = Robust()
    averaging: Averaging = Averaging(kind="none")  # noqa: RUF009 (frozen)
    secure: Mapping[str, Any] | None = None
    seed: int = 0
    server_key: str = ""
    nonce: str = ""
    cadence: float | None = None
    refreshes: int = 0
    phases: tuple[int, ...] = ()
    taking: tuple[tuple[int, ...], ...] = ()
    sizes: Sizes | None = None
    encoding: str = ""

    def __post_init__(self) -> None:
        for name in ("parameters", "rounds"):
            settle(self, **{name: whole(name, getattr(self, name))})
        settle(self, local_rounds=local_rounds_of(self.local_rounds))
        one_of("rule", self.rule, get_args(Rule))
        one_of("exchanged", self.exchanged, get_args(Exchanged))
        for name in ("seed", "refreshes"):
            whole(name, getattr(self, name), least=0)
        real("resend", self.resend, above=0)
        for name in ("deadline", "absence", "cadence"):
            optional(real, name, getattr(self, name), above=0)
        settle(self, phases=tuple(whole("phases", one) for one in self.phases))
        settle(self, taking=tuple(tuple(sorted(set(own))) for own in self.taking))
        self._check_members()
        self._check_rule()
        if self.phases or self.taking:
            self._check_phases()
        if self.sizes is not None:
            self._check_sizes(self.sizes)

    def _check_members(self) -> None:
        if not self.members:
            raise FederationError("a federation needs at least one member")
        self.require_members()
        for member in self.members:
            real(f"weight of {member.name!r}", member.weight, above=0)
        for plan in self.plans:
            most = self.updates_of(plan)
            if self.first_round(most) != plan.rounds:
                raise FederationError(
                    f"a plan of {plan.rounds} rounds does not divide into updates: {most} take "
                    f"{self.first_round(most)}, one more takes {self.first_round(most + 1)}"
                )

    def _check_rule(self) -> None:
        if self.exchanged == "gradients" and self.local_rounds != 1:
            raise FederationError("exchanged 'gradients' are of one round: set local_rounds to 1")
        if self.rule != "synchronous":
            if self.exchanged != "gradients":
                raise FederationError(
                    f"{self.rule!r} adds updates as they come: exchange 'gradients'"
                )
            if self.cohort is not None or self.deadline is not None:
                raise FederationError("cohort and deadline go with the rule 'synchronous'")
            if self.secure is not None:
                raise FederationError("secure= sums a fixed cohort: take the rule 'synchronous'")
            if self.robust.kind not in ("mean", "norm-bound") or self.server.kind != "avg":
                raise FederationError(
                    f"the rule {self.rule!r} applies updates one by one: robust 'mean' or "
                    "'norm-bound' and the server optimizer 'avg' go with it"
                )
        elif self.absence is not None:
            raise FederationError("absence goes with the rule 'asynchronous'; give a deadline")
        if self.rule == "published" and self.absence is not None:
            raise FederationError("the published rule waits for everyone: absence= contradicts it")
        if self.cadence is not None and self.secure is not None:
            raise FederationError("masked sums leave at no cadence: leave secure= or cadence= out")
        optional(whole, "cohort", self.cohort, most=len(self.members))
        if self.refreshes:
            self._check_refreshes()

    def _check_refreshes(self) -> None:
        if self.rule == "synchronous" or self.cadence is None:
            raise FederationError(
                "refreshes are at steps of a cadence=, else speeds show which model a record met: "
                "give it, and the rule 'published' or 'asynchronous'"
            )
        for plan in self.plans:
            if plan.contribution.kind != "examples":
                raise FederationError(
                    f"refreshes deal single records to models; {plan.contribution.kind!r} are "
                    "clipped together: leave refreshes out"
                )

    def _check_sizes(self, sizes: Sizes) -> None:
        refused = {
            "secure": "masks share one noise out among all",
            "phases": "a phase has one sample size",
            "refreshes": "the parts of a round are dealt from one planned batch",
        }
        for name, why in refused.items():
            if getattr(self, name):
                raise FederationError(f"sizes= and {name}=: {why}; leave one of the two out")
        if self.local_rounds != 1:
            raise FederationError("a size is chosen for one round: set local_rounds to 1")
        for plan in self.plans:
            if (why_not := sizes.refusal(plan)) is not None:
                raise FederationError(f"sizes=: {why_not}")

    def _check_phases(self) -> None:
        if sum(self.phases) != self.rounds:
            raise FederationError(
                f"phases of {', '.join(map(str, self.phases))} updates are not the {self.rounds} "
                "rounds of the federation"
            )
        if self.secure is not None:
            raise FederationError("secure aggregation shares one noise among all: drop phases")
        for plan in self.plans:
            steps = plan.schedule
            if self.rule != "synchronous" and (steps.kind != "constant" or steps.warmup):
                raise FederationError(
                    f"under the rule {self.rule!r} step sizes follow updates, not phases: take the "
                    "schedule 'constant' without warmup, or the rule 'synchronous'"
                )
            if any(part.sampling.rounds_per_epoch > 1 for part in plan.mechanism):
                raise FederationError(
                    "a phase that is left out may end inside an epoch, whose other rounds hold the "
                    "records that it has not: plan with Poisson batches"
                )
        everywhere = set(range(len(self.phases)))
        if self.taking and (
            len(self.taking) != len(self.members)
            or not all(own and set(own) <= everywhere for own in self.taking)
            or set().union(*self.taking) != everywhere
        ):
            raise FederationError(
                f"taking= says for each member at least one of the phases 0 to "
                f"{len(everywhere) - 1}, and every phase needs somebody"
            )
        for client, member in enumerate(self.members):
            if not any(self.places(client)):
                raise FederationError(f"the plan of {member.name!r} ends before its phases begin")

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.phases))

    def phase(self, place: int) -> int:
        """The phase, from 0, of a model's version or of an update's place in the plan."""
        return min(bisect_right(self._ends, place), max(0, len(self.phases) - 1))

    def begins(self, phase: int) -> int:
        """The place in the plan at which a phase begins."""
        return self._ends[phase - 1] if phase else 0

    def takes(self, client: int, phase: int) -> bool:
        """True if a member takes part in a phase."""
        return not self.taking or phase in self.taking[client]

    def places(self, client: int) -> list[range]:
        """Places in its plan of the updates that a member may make: a range for each phase."""
        end = min(self.rounds, self.updates_of(self.plan(client)))
        starts, ends = [0, *self._ends[:-1]], self._ends or [end]
        found = [range(min(a, end), min(b, end)) for a, b in zip(starts, ends, strict=True)]
        return [own for phase, own in enumerate(found) if self.takes(client, phase)]

    def planned(self, client: int) -> Mechanism:
        """The mechanism of all that a member may release: the rounds of its phases."""
        parts = [
            self.plan(client).mechanism.between(
                self.first_round(own.start), self.first_round(own.stop)
            )
            for own in self.places(client)
            if own
        ]
        return sum(parts[1:], parts[0])

    def guard(self, client: int) -> Guard | None:
        """The guard of a member's sample sizes; None: the sizes are as planned."""
        if self.sizes is None:
            return None
        return Guard(self.plan(client), self.sizes, self.parameters)

    def updates(self, client: int) -> int:
        """The most updates that a member sends: those of its plan, at most one a global round."""
        if self.phases:
            return sum(map(len, self.places(client)))
        return min(self.rounds, self.updates_of(self.plan(client)))

    @property
    def total(self) -> int:
        """The largest number of updates of all clients together."""
        return sum(self.updates(client) for client in range(len(self.members)))

    def updates_of(self, plan: Plan) -> int:
        """The number of updates that a plan's rounds make."""
        return updates_of(self.local_rounds, plan.rounds)

    def first_round(self, update: int) -> int:
        """The number of private rounds before a client's update."""
        return first_round(self.local_rounds, update)

    def relative_size(self, plan: Plan, update: int) -> float:
        """An update's expected records, divided by the mean over all updates of its plan."""
        before = plan.privacy.examples_before
        own = before(self.first_round(update + 1)) - before(self.first_round(update))
        return own * self.updates_of(plan) / before(plan.rounds)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Every member's weight, divided by the sum of all weights."""
        total = sum(member.weight for member in self.members)
        return tuple(member.weight / total for member in self.members)

    @cached_property
    def permits(self) -> Permissible:
        """The permissible delay Υ(k, i)."""
        return self.delay.permits

    @cached_property
    def step_sizes(self) -> tuple[Callable[[int], float], ...]:
        """Every plan's step size by round."""
        return tuple(step_sizes(plan) for plan in self.plans)

    def __getstate__(self) -> dict[str, Any]:
        # Without cached properties: they hold functions, which cannot be pickled.
        return {one.name: getattr(self, one.name) for one in fields(self)}


def local_words(local: LocalRounds) -> str:
    """Local rounds for people: ``"4"``, or ``"1, 1, 2, …"``."""
    return str(local) if isinstance(local, int) else f"{', '.join(map(str, local))}, …"


def local_rounds_of(given: object) -> LocalRounds:
    """Local rounds in canonical form: a number, or a tuple without repetitions at its end.

    Args:
        given: a whole number, or a list of the numbers of the first updates.

    Raises:
        ValueError: anything else.
    """
    many = given if isinstance(given, list | tuple) and given else (given,)
    try:
        each = [whole("local_rounds", one) for one in many]
    except (TypeError, ValueError):
        raise ValueError(
            "local_rounds must be a whole number of at least 1, or a list of those of the first "
            f"updates, not {given!r}"
        ) from None
    while len(each) > 1 and each[-1] == each[-2]:
        each.pop()
    return each[0] if len(each) == 1 else tuple(each)


# The terms of a federation that a client's own job sets and no server may change. The seed deals
# out a job's data: under another one, two clients would hold one record.
_AGREED = (
    *("rule", "exchanged", "delay", "cohort", "cadence", "secure", "parameters", "refreshes"),
    *("phases", "taking", "sizes", "seed"),
)


def require_contract(federation: Federation, own: Federation, client: int) -> None:
    """Refuse a federation whose terms are not those of a client's own job.

    A plan's noise, number of rounds and sampling rate are not compared: their ε is computed and
    compared with the client's policy.

    Args:
        own: the federation according to the client's own job. client: its place.

    Raises:
        FederationError: names the first term that differs, in the file and in the job.
    """
    here, there = promised(own.plan(client)), promised(federation.plan(client))
    for name in _AGREED:
        here[name], there[name] = getattr(own, name), getattr(federation, name)
    here["members"], there["members"] = own.names, federation.names
    if (problem := other_terms(here, there, FEDERATION)) is not None:
        raise FederationError(problem)
