"""The Gossip: one frozen value that all workers agree on before anything is sent.

It holds every worker's plan, the graph, its mixing and the stopping rule. Only its own plan
decides what a worker releases. Sources: A(DP)²SGD (Xu, Zhang and Wang, Algorithm 1);
D-PSGD (Lian et al. 2017); gradient tracking (Nedić, Olshevsky and Shi 2017).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal, get_args

import numpy as np

from forethought.exchange.keys import Agreement
from forethought.exchange.messages import Vector
from forethought.gossip.compression import Compression
from forethought.gossip.mixing import Mixing
from forethought.values.checks import one_of, optional, real, settle, whole
from forethought.values.plan import Plan
from forethought.values.serialisation import Readers, build, each
from forethought.values.use import kind_of

# Limits on the weights of a neighbour that is not trusted.
#
# A neighbour may send any weights. A worker refuses weights that are not finite, or whose norm is
# larger than any honest model's. Optionally it clips the *difference* from its own weights to a
# bound before it averages (He, Karimireddy and Jaggi 2022, ClippedGossip): a hostile neighbour then
# moves a worker by at most weight · bound per exchange. Two honest workers clip the same difference
# by the same factor, so their mean is preserved. All of this is post-processing.


# No model has a norm above this: the square of a larger float32 would overflow.
HUGE = 1e18


class NeighbourError(ValueError):
    """A worker refuses a neighbour's weights."""


@dataclass(frozen=True)
class Trust:
    """The largest distance of a neighbour's weights from one's own.

    Args:
        difference: bound to which the difference's L2 norm is clipped. None: not clipped.
        largest: bound on the L2 norm of a neighbour's weights; larger ones are refused.
    """

    difference: float | None = None
    largest: float = HUGE

    def __post_init__(self) -> None:
        optional(real, "difference", self.difference, above=0)
        real("largest", self.largest, above=0, most=HUGE)

    @property
    def hostile(self) -> bool:
        """True if a neighbour may lie: one neighbour's message alone then does not end the run."""
        return self.difference is not None

    def admit(self, own: Vector, received: Vector, neighbour: str = "a neighbour") -> Vector:
        """The neighbour's weights (d,), clipped towards ``own``, ready to be averaged.

        Args:
            own: the worker's weights (d,). received: the neighbour's weights (d,).
            neighbour: its name, for the message.

        Raises:
            NeighbourError: the number of weights differs, they are not finite, or their norm is
                above ``largest``.
        """
        if received.shape != own.shape:
            raise NeighbourError(
                f"{neighbour} sent {received.size:,} weights, this model has {own.size:,}: all "
                "workers train one architecture"
            )
        length = _norm(received)
        if not math.isfinite(length):
            raise NeighbourError(f"{neighbour} sent weights that are not finite; they are refused")
        if length > self.largest:
            raise NeighbourError(
                f"{neighbour} sent weights of norm {length:.3g}, and at most {self.largest:.3g} is "
                "taken; they are refused"
            )
        if self.difference is None:
            return received
        change = received - own
        length = _norm(change)
        if length <= self.difference:
            return received
        return own + change * np.float32(self.difference / length)


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


# The file name of a gossip.
GOSSIP = "gossip.json"
# No honest model's weights have a norm above this; larger ones are refused.
LARGEST = 1e6
Rule = Literal["asynchronous", "synchronous", "allreduce"]


class GossipError(ValueError):
    """A gossip is invalid, or a worker does not match it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One worker.

    Args:
        name: readable and unique. plan: index of its plan in the gossip's plans.
        public_key: Ed25519, 32 bytes in hexadecimal; "" where nothing is signed (a simulation).
    """

    name: str
    plan: int = 0
    public_key: str = ""


@dataclass(frozen=True)
class Gossip(Agreement):
    """All that the workers agree on. K is the number of workers, η the step size.

    Args:
        members: the workers; a worker is named by its index here, which is its node in the graph.
        plans: the different plans of the members.
        mixing: the graph, and the weights with which neighbours average.
        parameters: their number in the model. architecture: digest of their names and shapes.
        start: digest of the first weights, :func:`digest_of`; "": not checked (a simulation).
        rounds: R. Asynchronously all workers stop when they have made K·R updates together, each
            worker at most its plan's rounds; under the other rules they stop after R rounds.
        rule: ``"asynchronous"``: A(DP)²SGD, no worker waits; ``"synchronous"``: D-PSGD, each worker
            waits for its neighbours; ``"allreduce"``: SYNC, each worker waits for all.
        exchanges: mixing steps per round, for the synchronous rule; the first runs during the
            gradient. With one more than the mixing needs to average exactly, a distant worker's
            view can be accounted (:mod:`forethought.gossip.statements`).
        weights: of the workers' steps: "equal", as in A(DP)²SGD, or "size": in proportion to their
            public numbers of records, so that the noisy mean of few records moves the model less.
        momentum: of the steps along noised means; post-processing.
        tracking: gradient tracking: neighbours exchange an estimate of the mean update as well.
        trust: limits on a neighbour's weights, and on the distance that one may move a worker.
        compression: of exchanged weights; "top-k" needs symmetric mixing and no tracking.
        point: the weights at which a gradient is taken, under the rule "asynchronous". "own": the
            worker's own, as in Algorithm 1; they contain its newest noise in full: K times the
            noise variance of the average. "average": its estimate of the average: its weights
            minus the excess over 1/K of each of its own updates in them. The excess is 1 − 1/K at
            first; every exchange reduces it by the mixing's weight. Post-processing; no time cost.
        pause: exchanges between a worker's update and its next gradient, for the asynchronous rule,
            so that its own noise is averaged before that gradient. 0: Algorithm 1 as printed.
        stagger: if True, first rounds take longer, the k-th worker's 1 + k/K times as long.
            Without it, workers of equal speed that begin together take every gradient without the
            last update of any worker: η times the curvature must then stay below 1, while SYNC
            allows 2. None: staggered under the rule "asynchronous" at the point "average". The
            "own" weights contain the own last update, so workers in lockstep behave like SYNC.
        clock: the count that a step-size schedule follows, under the rule "asynchronous". "own":
            the worker's own rounds, out of its plan's; "all": the global count, out of K·R, so
            that all workers reach the schedule's end when they stop.
        window: exchange steps for which a late answer still counts.
        settle: exchange steps after the last update, in which the workers approach consensus.
        seed: of the simulation. nonce: drawn with the roster, so that every run has its own name.
        encoding: see :class:`~forethought.federated.federation.Federation`.

    Raises:
        GossipError: settings contradict each other.
    """

    SCHEMA: ClassVar[str] = "forethought/gossip/2"
    CALLED: ClassVar[str] = "gossip"
    MEMBER: ClassVar[str] = "worker"
    REFUSAL: ClassVar[type[ValueError]] = GossipError
    LATER: ClassVar[tuple[str, ...]] = ("stagger", "clock", "encoding")
    PARTS: ClassVar[Readers] = {
        "members": each(partial(build, Member, what="worker")),
        "plans": each(Plan.from_dict),
        "trust": partial(build, Trust, what="trust"),
        "compression": partial(build, Compression, what="compression"),
        "mixing": Mixing.from_dict,
    }

    members: tuple[Member, ...]
    mixing: Mixing
    parameters: int
    architecture: str
    rounds: int
    start: str = ""
    rule: Rule = "asynchronous"
    exchanges: int = 1
    weights: Literal["equal", "size"] = "equal"
    momentum: float = 0.0
    tracking: bool = False
    trust: Trust = Trust(largest=LARGEST)
    compression: Compression = Compression()  # noqa: RUF009 (frozen)
    window: int = 4
    settle: int = 10
    point: Literal["average", "own"] = "average"
    pause: int = 0
    stagger: bool | None = None
    clock: Literal["own", "all"] = "own"
    seed: int = 0
    nonce: str = ""
    encoding: str = ""

    def __post_init__(self) -> None:
        for name in ("parameters", "rounds", "window", "exchanges"):
            settle(self, **{name: whole(name, getattr(self, name))})
        one_of("rule", self.rule, get_args(Rule))
        one_of("weights", self.weights, ("equal", "size"))
        one_of("point", self.point, ("average", "own"))
        one_of("clock", self.clock, ("own", "all"))
        real("momentum", self.momentum, least=0, below=1)
        for name in ("settle", "pause", "seed"):
            whole(name, getattr(self, name), least=0)
        if self.exchanges > 1 and self.rule != "synchronous":
            raise GossipError("several exchanges a round are for the rule 'synchronous'")
        if not isinstance(self.stagger, bool | None):
            raise TypeError(f"stagger is true or false, not {self.stagger!r}")
        if self.rule != "asynchronous" and (self.stagger or self.clock != "own"):
            name = "stagger = true" if self.stagger else "clock = 'all'"
            raise GossipError(f"{name} is for the rule 'asynchronous': leave it out")
        self._check_compression()
        if self.tracking and self.momentum:
            raise GossipError("gradient tracking replaces momentum: set one of the two")
        if self.tracking and self.rule == "allreduce":
            raise GossipError("under 'allreduce' every worker has the mean itself: no tracking")
        self._check_members()

    def _check_compression(self) -> None:
        kind = self.compression.kind
        if kind != "none" and self.rule == "allreduce":
            raise GossipError("compression is for exchanges between neighbours, not 'allreduce'")
        if kind == "top-k" and self.tracking:
            raise GossipError("'top-k' is for weights without tracking: take 'bf16'")
        if kind == "top-k" and not self.mixing.mutual:
            raise GossipError(
                "'top-k' keeps the mean where both ends of a link exchange: take matchings or "
                "metropolis, or compression 'bf16'"
            )

    def _check_members(self) -> None:
        self.require_members()
        if len(self.members) != self.mixing.graph.size:
            size = self.mixing.graph.size
            raise GossipError(f"{len(self.members)} workers on a graph of {size}: give as many")
        for member in self.members:
            self._check_plan(member.name, self.plans[member.plan])
        most = sum(self.plan(worker).rounds for worker in range(self.workers))
        if most < self.total:
            raise GossipError(
                f"all plans together have {most} rounds and never reach {self.total} updates: plan "
                "more rounds for each worker, or set fewer rounds"
            )

    def _check_plan(self, name: str, plan: Plan) -> None:
        first = self.plans[0]
        clip = replace(plan.clip, count_noise=first.clip.count_noise)
        if plan.use != first.use or clip != first.clip:
            raise GossipError(
                f"worker {name!r} has another plan than the others: optimizer, step sizes and "
                "clipping must be the same for all; noise, batch and rounds may differ"
            )
        options = dict(plan.optimizer.options)
        if not kind_of(plan.optimizer.name).descends or any(options.values()):
            raise GossipError(
                f"a worker steps by plain 'sgd', not {plan.optimizer.name!r} with {options}: give "
                "the gossip momentum= or tracking= instead"
            )
        if plan.schedule.kind == "drops":
            raise GossipError(
                "the schedule 'drops' needs an accuracy that all workers see: use 'cosine' or "
                "'inverse'"
            )
        for part in plan.privacy.mechanism:
            batch = part.sampling.expected_batch(plan.examples)
            if batch < 1:
                raise GossipError(
                    f"worker {name!r} has too little data for its rate: {plan.examples} records in "
                    f"batches of {batch:.3g}, not one or more; raise the rate, or leave it out"
                )
        if self.rule != "asynchronous" and plan.rounds < self.rounds:
            raise GossipError(
                f"worker {name!r} has a plan of {plan.rounds} rounds, {self.rounds} are to be made"
            )

    @property
    def workers(self) -> int:
        """K, the number of workers."""
        return len(self.members)

    @property
    def total(self) -> int:
        """K·R, the global count of updates at which all workers stop."""
        return self.workers * self.rounds

    @property
    def coordinates(self) -> int:
        """Length of an exchanged vector."""
        return self.parameters * (2 if self.tracking else 1)

    @property
    def in_ledger(self) -> int:
        """Length of the vector that a ledger keeps per release: the worker's state and, where a
        worker can return under the rule 'synchronous', the vectors that it sent in the exchanges
        since the previous release, so that it can send them again."""
        returns = self.rule == "synchronous" and not self.tracking
        returns = returns and self.compression.kind != "top-k"
        return self.coordinates * (1 + self.exchanges if returns else 1)

    def weight(self, worker: int) -> float:
        """The factor on a worker's steps; 1 on average over the workers."""
        if self.weights == "equal":
            return 1.0
        return self.plan(worker).examples * self.workers / self._examples

    @cached_property
    def _examples(self) -> int:
        return sum(self.plan(worker).examples for worker in range(self.workers))

    def with_allreduce(self) -> Gossip:
        """SYNC on the same plans, without the settings for exchanges between neighbours."""
        alone = replace(self, tracking=False, exchanges=1, stagger=None, clock="own")
        return replace(alone, rule="allreduce", compression=Compression())

    def waits(self, worker: int) -> float:
        """The wait before a worker's first round, as a fraction of the round's duration."""
        staggers = self.stagger
        if staggers is None:
            staggers = self.rule == "asynchronous" and self.point == "average"
        return worker / self.workers if staggers else 0.0

    def updates(self, worker: int) -> int:
        """The most updates that a worker makes: its plan's rounds, or at most R if not
        asynchronous."""
        own = self.plan(worker).rounds
        return own if self.rule == "asynchronous" else min(own, self.rounds)

    def require(self, architecture: str, start: Vector) -> None:
        """Refuse a worker's model of another architecture or with other first weights.

        Raises:
            GossipError: the architecture, number of parameters or digest differs.
        """
        if architecture != self.architecture or len(start) != self.parameters:
            raise GossipError(
                "this worker's model has another architecture than was agreed: all workers train "
                "one model, with the same names and shapes"
            )
        if self.start and digest_of(start) != self.start:
            raise GossipError(
                "this worker's first weights are not those that were agreed: all workers begin "
                "with the same ones; make the model with the agreed seed, or load them"
            )


def digest_of(weights: Vector) -> str:
    """SHA-256 (hexadecimal) of the first weights as float32; all workers share them."""
    held = np.ascontiguousarray(weights, dtype="<f4")
    return hashlib.sha256(b"weights\n" + held.tobytes()).hexdigest()
