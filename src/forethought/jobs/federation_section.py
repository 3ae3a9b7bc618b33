"""The ``[federation]`` table of a job: who takes part, by which rule, how fast everything is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, model_validator

from forethought.federated.federation import Exchanged, RobustKind, Rule, ServerKind

_Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Int = Annotated[int, Field(strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClientTable(_Table):
    """One ``[[federation.client]]``: what differs from the others.

    ``examples`` and ``folder`` are for a client that brings its own records; ``speed`` is records
    a second against the others' 1.
    """

    name: str
    examples: _Int | None = Field(default=None, ge=1)
    epsilon: _Float | None = Field(default=None, gt=0)
    speed: _Float = Field(default=1.0, gt=0)
    folder: str | None = None


class ServerTable(_Table):
    """``[federation.server]``: what the mean of a round's updates does to the model."""

    kind: ServerKind = "avg"
    rate: _Float = Field(default=1.0, gt=0)
    momentum: _Float = Field(default=0.9, ge=0, lt=1)
    second: _Float = Field(default=0.99, ge=0, lt=1)
    tau: _Float = Field(default=1e-3, gt=0)


class RobustTable(_Table):
    """``[federation.robust]``: which mean of a round's updates."""

    kind: RobustKind = "mean"
    share: _Float = Field(default=0.1, ge=0, lt=0.5)
    bound: _Float | None = Field(default=None, gt=0)


class DelayTable(_Table):
    """``[federation.delay]``: how far a client's round may run ahead of the newest model."""

    kind: Literal["constant", "one", "sqrt"] = "one"
    most: _Int = Field(default=1, ge=0)


class FederationSection(_Table):
    """Everything of a federation that is not data, model, budget or training.

    ``rounds`` are global rounds (of each client, where updates are asynchronous); ``local_rounds``
    are private rounds (steps) in one of them, ``local_epochs`` the same in passes over the
    client's own records. ``growth`` is the last sample size over the first. ``speeds`` (records a
    second against the others' 1, or "lognormal:0.5"), ``slow`` clients of ``slow_factor``,
    ``record_seconds``, ``latency``, ``bandwidth`` and ``straggling`` are of simulations.
    """

    clients: _Int | None = Field(default=None, ge=1)
    client: tuple[ClientTable, ...] = ()
    rounds: _Int | None = Field(default=None, ge=1)
    local_rounds: _Int | None = Field(default=None, ge=1)
    local_epochs: _Float | None = Field(default=None, gt=0)
    rule: Rule = "synchronous"
    exchanged: Exchanged | None = None
    shares: str = "iid"
    weights: Literal["size", "equal"] = "size"
    cohort: _Int | None = Field(default=None, ge=1)
    deadline: _Float | None = Field(default=None, gt=0)
    absence: _Float | None = Field(default=None, gt=0)
    resend: _Float = Field(default=5.0, gt=0)
    cadence: _Float | None = Field(default=None, gt=0)
    growth: _Float = Field(default=1.0, ge=1, le=1000)
    delay: DelayTable = DelayTable()
    server: ServerTable = ServerTable()
    robust: RobustTable = RobustTable()
    secure: dict[str, Any] | None = None
    address: str | None = None
    seed: _Int = Field(default=0, ge=0)
    speeds: tuple[StrictFloat | StrictInt, ...] | str | None = None
    slow: _Int = Field(default=0, ge=0)
    slow_factor: _Float = Field(default=10.0, gt=0)
    record_seconds: _Float = Field(default=0.01, gt=0)
    latency: _Float = Field(default=0.0, ge=0)
    bandwidth: _Float | None = Field(default=None, gt=0)
    straggling: _Float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _agree(self) -> FederationSection:
        if self.client and self.clients not in (None, len(self.client)):
            raise ValueError(
                f"clients = {self.clients}, and there are {len(self.client)} [[federation.client]]"
            )
        if self.local_rounds is not None and self.local_epochs is not None:
            raise ValueError("give local_rounds (steps) or local_epochs, not both")
        if isinstance(self.speeds, tuple) and self.slow:
            raise ValueError("give speeds, or slow with slow_factor, not both")
        return self
