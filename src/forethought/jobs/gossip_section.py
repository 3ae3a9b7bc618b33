"""The ``[gossip]`` table of a job: who takes part, on which graph, how fast everything is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, model_validator

from forethought.gossip.graphs import Kind as GraphKind
from forethought.gossip.mixing import Named as MixingKind

_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Int = Annotated[int, Field(strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerTable(_Table):
    """One ``[[gossip.worker]]``: what differs from the others.

    ``examples`` and ``folder`` are for a worker that brings its own records; ``speed`` is records
    a second against the others' 1; ``address`` is host:port, where neighbours reach it.
    """

    name: str
    examples: _Int | None = Field(default=None, ge=1)
    epsilon: _Float | None = Field(default=None, gt=0)
    speed: _Float = Field(default=1.0, gt=0)
    folder: str | None = None
    address: str | None = None


class OutageTable(_Table):
    """One ``[[gossip.outage]]`` of a simulation: who is away from when to when, in seconds."""

    worker: str
    begin: _Float = Field(ge=0)
    end: _Float | None = Field(default=None, gt=0)


class GossipSection(_Table):
    """Everything of a gossip that is not data, model, budget or training.

    ``rounds`` are R: all together make workers · R updates, and each plans ``headroom`` times R.
    ``weights`` of the workers' steps are by public "size", or "equal" as in the paper.
    ``exchanges`` are mixing steps a round, of the synchronous rule. ``edges`` is a file with the
    graph, ``matrix`` one with the mixing. ``compression`` of exchanged weights is "none", "bf16"
    or "top-k:0.1" (the share that is sent). ``largest`` and ``difference`` say what of a
    neighbour's weights is refused and how far one moves a worker. ``point`` says where gradients
    are taken: at the worker's "own" weights, as in the paper, or at its estimate of the "average".

    Of simulations: ``case`` (the paper's "I", "II", "III"), ``speeds`` (records a second against
    the others' 1, or "lognormal:0.5"), ``slow`` workers of ``slow_factor``, ``hiccup`` (one worker,
    drawn anew in every round, takes so many times as long), ``trace`` (a file of factors),
    ``record_seconds``, ``latency``, ``bandwidth``, ``straggling``, ``exchange`` (seconds between
    exchanges), ``deadline``.
    """

    workers: _Int | None = Field(default=None, ge=2)
    worker: tuple[WorkerTable, ...] = ()
    rounds: _Int | None = Field(default=None, ge=1)
    headroom: _Float = Field(default=1.1, ge=1, le=10)
    rule: Literal["asynchronous", "synchronous", "allreduce"] = "asynchronous"
    shares: str = "iid"
    graph: GraphKind = "complete"
    degree: _Int | None = Field(default=None, ge=1)
    edges: str | None = None
    mixing: MixingKind = "matchings"
    matrix: str | None = None
    exchanges: _Int = Field(default=1, ge=1)
    weights: Literal["size", "equal"] = "size"
    momentum: _Float = Field(default=0.0, ge=0, lt=1)
    tracking: bool = False
    largest: _Float = Field(default=1e6, gt=0)
    difference: _Float | None = Field(default=None, gt=0)
    compression: str = "none"
    window: _Int = Field(default=4, ge=1)
    settle: _Int = Field(default=10, ge=0)
    point: Literal["average", "own"] = "average"
    pause: _Int = Field(default=0, ge=0)
    seed: _Int = Field(default=0, ge=0)
    case: Literal["I", "II", "III"] | None = None
    speeds: tuple[StrictFloat | StrictInt, ...] | str | None = None
    slow: _Int = Field(default=0, ge=0)
    slow_factor: _Float = Field(default=10.0, gt=0)
    hiccup: _Float = Field(default=1.0, ge=1)
    trace: str | None = None
    record_seconds: _Float = Field(default=0.01, gt=0)
    latency: _Float = Field(default=0.0, ge=0)
    bandwidth: _Float | None = Field(default=None, gt=0)
    straggling: _Float = Field(default=0.0, ge=0)
    exchange: _Float | None = Field(default=None, gt=0)
    deadline: _Float | None = Field(default=None, gt=0)
    outage: tuple[OutageTable, ...] = ()

    @model_validator(mode="after")
    def _agree(self) -> GossipSection:
        if self.worker and self.workers not in (None, len(self.worker)):
            raise ValueError(
                f"workers = {self.workers}, and there are {len(self.worker)} [[gossip.worker]]"
            )
        if isinstance(self.speeds, tuple) and self.slow:
            raise ValueError("give speeds, or slow with slow_factor, not both")
        if self.edges is not None and (self.graph != "complete" or self.degree is not None):
            raise ValueError("edges is a graph of its own: leave graph and degree out")
        if self.case == "II" and (self.slow or self.speeds is not None):
            raise ValueError("case II is one worker ten times slower: leave slow and speeds out")
        if self.hiccup > 1 and (self.trace is not None or self.case == "I"):
            raise ValueError("give one of hiccup, trace and case I")
        if self.case == "I" and self.trace is not None:
            raise ValueError("give one of hiccup, trace and case I")
        return self
