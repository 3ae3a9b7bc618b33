"""The Plan: one frozen value that is planned, run, accounted and stored with the result.

What ran and what was accounted cannot differ, because both read the same :class:`Plan`. Options
that only change speed (micro-batches, device, compilation) live elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from forethought.mechanism import (
    Budget,
    Mechanism,
    Rounds,
    Sampling,
    Shuffled,
    _exact_keys,
    one_of,
    real,
    whole,
)

PLAN_SCHEMA = "forethought/plan/1"
FIXED_IN_ADVANCE = "fixed in advance, without looking at the private data"

ClipRule = Literal["flat", "automatic", "per-layer", "quantile"]
ScheduleKind = Literal["constant", "inverse", "inverse-sqrt", "cosine"]
AveragingKind = Literal["none", "exponential", "tail"]


@dataclass(frozen=True)
class Clip:
    """How one contribution is bounded in L2 norm by ``norm``.

    Args:
        norm: the clipping norm C. Under ``"quantile"`` it is only the first round's norm.
        rule: ``"flat"`` scales by min(1, C/‖g‖); ``"automatic"`` by C/(‖g‖ + gamma)
            (Bu et al. 2022); ``"per-layer"`` clips every parameter tensor to its own share of C;
            ``"quantile"`` follows a quantile of the norms, estimated privately each round
            (Andrew et al. 2021), which is part of the mechanism.
        gamma: stability constant of the automatic rule.
        quantile, quantile_rate: target quantile and step of the quantile rule.
        count_noise: standard deviation of the noise on the count of clipped contributions; the
            quantile rule needs it, and its cost is taken from the plan's noise multiplier.
        shares: per-layer rule: parameter name → share of C. The squares sum to at most 1.
            None splits evenly.
    """

    norm: float = 1.0
    rule: ClipRule = "flat"
    gamma: float = 0.01
    quantile: float = 0.5
    quantile_rate: float = 0.2
    count_noise: float | None = None
    shares: tuple[tuple[str, float], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", real("clip_norm", self.norm, above=0))
        one_of("clip rule", self.rule, get_args(ClipRule))
        real("gamma", self.gamma, above=0)
        real("quantile", self.quantile, above=0, below=1)
        real("quantile_rate", self.quantile_rate, above=0)
        if (self.rule == "quantile") != (self.count_noise is not None):
            raise ValueError("count_noise goes with the clip rule 'quantile', and only with it")
        if self.count_noise is not None:
            real("count_noise", self.count_noise, above=0)
        if self.shares is not None:
            if self.rule != "per-layer":
                raise ValueError("shares go with the clip rule 'per-layer' only")
            pairs = self.shares.items() if isinstance(self.shares, Mapping) else self.shares
            shares = tuple(
                (str(name), real(f"share of {name!r}", share, above=0)) for name, share in pairs
            )
            object.__setattr__(self, "shares", shares)
            if math.fsum(share**2 for _, share in shares) > 1 + 1e-12:
                raise ValueError("the squares of the per-layer shares must sum to at most 1")

    def gradient_noise(self, noise_multiplier: float) -> float:
        """Noise multiplier left for the gradients when the round's total is ``noise_multiplier``.

        The quantile rule's count has sensitivity 1/2 where the gradient has C, so both together
        are one Gaussian release with σ⁻² = σ_g⁻² + (2 σ_b)⁻² (Andrew et al. 2021, Theorem 1).

        Raises:
            ValueError: the count's noise alone is too small for the total.
        """
        if self.count_noise is None or noise_multiplier == 0:
            return noise_multiplier
        left = noise_multiplier**-2 - (2 * self.count_noise) ** -2
        if left <= 0:
            raise ValueError(
                f"count_noise {self.count_noise} spends more than a noise multiplier of "
                f"{noise_multiplier} allows: it must be above {noise_multiplier / 2:.4g}"
            )
        return float(left**-0.5)


@dataclass(frozen=True)
class Schedule:
    """Step size as a function of time t, counted in ``unit`` and starting at 0.

    ``constant`` η₀; ``inverse`` η₀/(1 + decay·t); ``inverse-sqrt`` η₀/(1 + decay·√t); ``cosine``
    from η₀ to 0 over the run. Over the first ``warmup`` rounds η grows linearly to its value.
    """

    kind: ScheduleKind = "constant"
    decay: float = 0.0
    warmup: int = 0
    unit: Literal["rounds", "examples"] = "rounds"

    def __post_init__(self) -> None:
        one_of("schedule", self.kind, get_args(ScheduleKind))
        object.__setattr__(self, "decay", real("decay", self.decay, least=0))
        object.__setattr__(self, "warmup", whole("warmup", self.warmup, least=0))
        one_of("schedule unit", self.unit, ("rounds", "examples"))


@dataclass(frozen=True)
class Averaging:
    """Which average of the iterates is the reported model: free post-processing.

    ``exponential`` weights by ``decay`` a round (with warm-up of the weight); ``tail`` averages
    the last ``fraction`` of the rounds evenly; ``none`` reports the last iterate.
    """

    kind: AveragingKind = "exponential"
    decay: float = 0.95
    fraction: float = 0.25

    def __post_init__(self) -> None:
        one_of("averaging", self.kind, get_args(AveragingKind))
        real("averaging decay", self.decay, least=0, below=1)
        real("averaging fraction", self.fraction, above=0, most=1)


@dataclass(frozen=True)
class Optimizer:
    """A torch optimizer by name: ``"sgd"``, ``"adam"``, … or ``"module:Class"``, with options."""

    name: str = "sgd"
    learning_rate: float = 0.1
    options: tuple[tuple[str, Any], ...] = (("momentum", 0.9),)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"optimizer must be a name, not {self.name!r}")
        rate = real("learning_rate", self.learning_rate, above=0)
        object.__setattr__(self, "learning_rate", rate)
        pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
        frozen = tuple(
            (str(name), tuple(value) if isinstance(value, list) else value) for name, value in pairs
        )
        object.__setattr__(self, "options", frozen)


@dataclass(frozen=True)
class Plan:
    """Everything a private run needs, decided before any private data is touched.

    Args:
        mechanism: the releases, all with the same clipping kind.
        examples: size N of the training set, taken as public.
        delta: the δ at which the Statement gives ε.
        clip: how one contribution is bounded.
        groups: with ``clipping="group"``: how many groups a batch is dealt into (1 is batch
            clipping). Each record goes to a group by itself, at random, so that one record more
            never moves another into a different group.
        optimizer, schedule, averaging: what happens to the noised mean; post-processing.
        budget: the target that was asked for, if any. The mechanism need not use it up.
        hyperparameters: how this plan's numbers were chosen, for the Statement.
        not_covered: ways in which private data was used outside the mechanism, for the Statement.
        reasons: pairs (what, why it is what it is), written by the planner for :meth:`explain`.
    """

    mechanism: Mechanism
    examples: int
    delta: float
    clip: Clip = Clip()
    groups: int | None = None
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    averaging: Averaging = Averaging()
    budget: Budget | None = None
    hyperparameters: str = FIXED_IN_ADVANCE
    not_covered: tuple[str, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError("mechanism must be a forethought.Mechanism")
        object.__setattr__(self, "examples", whole("examples", self.examples))
        object.__setattr__(self, "delta", real("delta", self.delta, above=0, below=1))
        object.__setattr__(self, "not_covered", tuple(self.not_covered))
        reasons = tuple((str(what), str(why)) for what, why in self.reasons)
        object.__setattr__(self, "reasons", reasons)
        kinds = {part.clipping for part in self.mechanism}
        if len(kinds) > 1:
            raise ValueError("all rounds of a plan clip the same kind of contribution")
        if (kinds == {"group"}) != (self.groups is not None):
            raise ValueError(
                "groups= goes with clipping='group' (1 is batch clipping), and only with it"
            )
        if self.groups is not None:
            whole("groups", self.groups)
        for part in self.mechanism:
            said = getattr(part.sampling, "examples", self.examples)
            if said != self.examples:
                raise ValueError(
                    f"the sampling speaks of {said} examples, the plan of {self.examples}"
                )
            self.clip.gradient_noise(part.noise_multiplier)

    @property
    def rounds(self) -> int:
        """How many noised sums are released."""
        return len(self.mechanism)

    def _only(self, what: str) -> Any:
        values = {getattr(part, what) for part in self.mechanism}
        if len(values) > 1:
            raise ValueError(
                f"this plan has several values of {what}; see each of plan.mechanism.rounds"
            )
        return values.pop()

    @property
    def noise_multiplier(self) -> float:
        """σ, when all rounds share one (ValueError otherwise)."""
        return float(self._only("noise_multiplier"))

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn, when all rounds share one way (ValueError otherwise)."""
        sampling: Sampling = self._only("sampling")
        return sampling

    @property
    def clip_norm(self) -> float:
        """The bound C on the L2 norm of one contribution."""
        return self.clip.norm

    @property
    def batch(self) -> float:
        """Expected batch size, when all rounds share one (ValueError otherwise)."""
        return expected_batch(self.sampling, self.examples)

    @property
    def epochs(self) -> float:
        """Expected passes over the data in the whole run."""
        return (
            math.fsum(
                part.count * expected_batch(part.sampling, self.examples) for part in self.mechanism
            )
            / self.examples
        )

    def round_at(self, index: int) -> Rounds:
        """The Rounds that round ``index`` (from 0) belongs to."""
        left = index
        for part in self.mechanism:
            if left < part.count:
                return part
            left -= part.count
        raise IndexError(f"round {index} of a plan with {self.rounds}")

    def explain(self) -> str:
        """Why each number is what it is, a sentence each; as the planner wrote it down."""
        if not self.reasons:
            return "This plan was written by hand: every number was given."
        return "\n".join(f"{what}: {why}" for what, why in self.reasons)

    def with_(self, **changes: Any) -> Plan:
        """A copy with the named fields replaced."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["mechanism"] = self.mechanism.to_dict()
        for name in ("clip", "schedule", "averaging", "optimizer"):
            values[name] = asdict(values[name])
        values["clip"]["shares"] = None if self.clip.shares is None else dict(self.clip.shares)
        values["optimizer"]["options"] = dict(self.optimizer.options)
        values["budget"] = None if self.budget is None else asdict(self.budget)
        values["not_covered"] = list(self.not_covered)
        values["reasons"] = [list(pair) for pair in self.reasons]
        return {"schema": PLAN_SCHEMA, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: another schema version, an unknown or a missing key.
        """
        if values.get("schema") != PLAN_SCHEMA:
            raise ValueError(
                f"not a plan this version can read: schema {values.get('schema')!r}, "
                f"expected {PLAN_SCHEMA!r}"
            )
        _exact_keys("plan", values, {"schema", *(field.name for field in fields(cls))})
        known = {name: value for name, value in values.items() if name != "schema"}
        known["mechanism"] = Mechanism.from_dict(known["mechanism"])
        for name, kind in (
            ("clip", Clip),
            ("schedule", Schedule),
            ("averaging", Averaging),
            ("optimizer", Optimizer),
            ("budget", Budget),
        ):
            if known[name] is not None:
                _exact_keys(name, known[name], {field.name for field in fields(kind)})
                known[name] = kind(**known[name])
        return cls(**known)

    def to_json(self) -> str:
        """One JSON object; :meth:`from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of :meth:`to_json`."""
        return cls.from_dict(json.loads(text))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that :meth:`save` wrote.

        Raises:
            OSError: no such file. ValueError: not a plan; the message names the file.
        """
        text = Path(path).read_text(encoding="utf-8")
        try:
            return cls.from_json(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no plan: {error}") from error


def expected_batch(sampling: Sampling, examples: int) -> float:
    """Expected number of records in one round: what a noised sum is divided by."""
    match sampling:
        case Shuffled(batch=batch):
            return float(batch)
        case _:
            return float(getattr(sampling, "rate", 1.0)) * examples
