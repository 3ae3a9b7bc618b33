"""Does the audit find what it is for? Plants every fault, and models that break isolation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from forethought.accounting.exact import CertificateError
from forethought.auditing.attack import attack
from forethought.auditing.audit import FALSE_ALARM, gather
from forethought.auditing.effort import EFFORTS, Effort
from forethought.auditing.faults import FAULTS, MORE_FAULTS, Fault
from forethought.auditing.local_faults import LOCAL_FAULTS
from forethought.auditing.replay import replayed
from forethought.auditing.turn_faults import TURN_FAULTS
from forethought.auditing.verdict import Audit
from forethought.rounds.private_sum import RoundError
from forethought.values.contributions import Local
from forethought.values.mechanism import Clipping, Correlated, Mechanism, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.samplings import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.strategies import Banded

CANARIES, RATE, ROUNDS, DELTA = 2_000, 0.1, 100, 1e-5
FEATURES, CLASSES, RECORDS = 12, 4, 400


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault.

    Args:
        name: of the fault.
        caught: whether the audit refuted the run.
        check: which check did; empty where none.
        checks: all checks that refuted.
        reason: the sentence that a user would read.
        seconds: that the audit took.
    """

    name: str
    caught: bool
    check: str
    checks: tuple[str, ...]
    reason: str
    seconds: float


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test: every fault, and the sound jobs."""

    faults: tuple[Outcome, ...]
    sound: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Every fault was caught, and no sound job was refuted."""
        return all(f.caught for f in self.faults) and not any(s.caught for s in self.sound)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "passed": self.passed,
            "faults": [asdict(outcome) for outcome in self.faults],
            "sound": [asdict(outcome) for outcome in self.sound],
        }


@dataclass(frozen=True)
class Job:
    plan: Plan
    model: Callable[[], nn.Module] | None = None
    variants: bool = False


def _plan(
    sampling: Sampling, examples: int = CANARIES, rounds: int = ROUNDS, **options: Any
) -> Plan:
    adjacency = options.pop("adjacency", "add-or-remove")
    clipping: Clipping = "group" if "groups" in options else "example"
    part = Rounds(1.0, rounds, sampling, clipping)
    return Plan(Mechanism(part, adjacency=adjacency), examples, DELTA, **options)


def _correlated(sampling: Sampling) -> Plan:
    part = Correlated(1.0, ROUNDS, sampling, "example", Banded((1.0, 0.6, 0.4, 0.2)))
    return Plan(Mechanism(part), CANARIES, DELTA)


def jobs_of() -> dict[str, Job]:
    fixed = WithoutReplacement(200, CANARIES)
    shuffled = Shuffled(200, CANARIES)
    own = _plan(Poisson(RATE), RECORDS)
    return {
        "poisson": Job(_plan(Poisson(RATE))),
        "replace-one": Job(_plan(FullBatch(), rounds=4, adjacency="replace-one")),
        "quantile": Job(_plan(Poisson(RATE), clip=Clip(1.0, "quantile", count_noise=10.0))),
        "shuffled": Job(_plan(shuffled, rounds=30, adjacency="zero-out")),
        "without replacement": Job(_plan(fixed, adjacency="zero-out")),
        "random allocation": Job(_plan(RandomAllocation(5), rounds=30)),
        "parts in turn": Job(_plan(CyclicPoisson(0.5, 5), rounds=30)),
        "correlated": Job(_correlated(CyclicPoisson(0.5, 5))),
        "groups": Job(_plan(Poisson(RATE), groups=4)),
        "local momentum": Job(
            _plan(Poisson(RATE), groups=4, local=Local("momentum", 0.1, passes=2))
        ),
        "local adam": Job(_plan(Poisson(RATE), groups=4, local=Local("adam", 0.1, step=16))),
        "variants": Job(_plan(Poisson(RATE)), variants=True),
        "model": Job(own, Plain),
        "running mean": Job(own, RunningMean),
        "remembers": Job(own, Remembers),
        "late mixing": Job(own, LateMixing),
    }


class Plain(nn.Module):
    """Two layers: a model that keeps its examples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of inputs (batch, features)."""
        return self.last(torch.tanh(self.first(inputs)))  # type: ignore[no-any-return]


class RunningMean(Plain):
    """Mixes through a buffer: every pass moves a running mean that the next one subtracts."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits, relative to the running mean."""
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().reshape(-1, FEATURES).mean(0)
        return super().forward(inputs - self.mean)


class Remembers(Plain):
    """Keeps the last inputs in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.last_seen: torch.Tensor | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        self.last_seen = inputs.detach().clone()
        return super().forward(inputs)


class LateMixing(Plain):
    """Mixes the batch, with a gate that is shut at first, and in larger batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits; from 8 examples on each sees the others' mean."""
        hidden = self.first(inputs)
        if inputs.dim() > 1 and len(inputs) >= 8:
            hidden = hidden + self.gate * hidden.mean(0)
        return self.last(torch.tanh(hidden))  # type: ignore[no-any-return]


# These run only where a fault lets them: training refuses them.
REFUSED = ("running mean", "remembers")


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, FEATURES, generator=source)
    return inputs, (inputs @ torch.randn(FEATURES, CLASSES, generator=source)).argmax(1)


def effort_of(job: Job) -> Effort:
    """Quick, with the canaries of the trial, and what the job is there to show."""
    return replace(
        EFFORTS["quick"],
        canaries=CANARIES,
        attack_cells=CANARIES * ROUNDS,
        directed_games=40,
        batch=64,
        neighbours=4,
        bounds=False,
    )


def _audited(job: Job, seed: int | None) -> Audit:
    model = None if job.model is None else job.model()
    data = None if model is None else _data()
    return gather(job.plan, model, data, None, effort_of(job), FALSE_ALARM, seed)


def _replayed(job: Job) -> Audit:
    model = None if job.model is None else job.model()
    data = None if model is None else _data()
    found = replayed(job.plan, model, data, resumed=job.variants)
    return Audit(tuple(found.findings()), FALSE_ALARM)


def outcome(
    name: str,
    plant: AbstractContextManager[None],
    job: Job,
    seed: int | None,
    *,
    first: bool = False,
) -> Outcome:
    """Audit a job while a fault is planted.

    What training or the accountant refuses never runs: that counts as caught, by the refusal.

    Args:
        first: replay a few rounds first, and do no more where that refutes the run.
    """
    start = time.perf_counter()
    try:
        with plant:
            # The laws of sampler and noise, and the accountant, are what a replay cannot see.
            found = _replayed(job) if first else None
            if found is None or not found.refuted:
                found = _audited(job, seed)
    except (ValueError, RoundError, CertificateError) as error:
        seconds = time.perf_counter() - start
        text = str(error).partition("\n")[0].rstrip(".") + "."
        return Outcome(name, True, "refused", ("refused",), text, round(seconds, 3))
    seconds = round(time.perf_counter() - start, 3)
    checks = tuple(dict.fromkeys(finding.check for finding in found.refuting))
    check = next((f.check for f in found.refuting if f.reason == found.reason), "")
    return Outcome(name, found.refuted, check, checks, found.reason, seconds)


def self_test(seed: int | None = None, *, more: bool = True) -> SelfTest:
    """Plant every fault, one after the other, and audit the sound jobs, too.

    Args:
        seed: of the audits' own choices. more: also :data:`MORE_FAULTS`.
    """
    return SelfTest(
        tuple(outcomes(seed, more=more)),
        tuple(
            outcome(f"sound: {name}", nullcontext(), job, seed)
            for name, job in jobs_of().items()
            if name not in REFUSED
        ),
    )


def outcomes(seed: int | None = None, *, more: bool = True) -> Iterator[Outcome]:
    """The outcome of each planted fault as it comes."""
    jobs = jobs_of()
    all_of_them = (*FAULTS, *MORE_FAULTS, *LOCAL_FAULTS, *TURN_FAULTS)
    faults: tuple[Fault, ...] = all_of_them if more else FAULTS
    for fault in faults:
        yield outcome(fault.name, fault.plant(), jobs[fault.job], seed, first=True)


def attack_alone(seed: int | None = None) -> list[str]:
    """Names of the faults that the attack finds without the other checks."""
    jobs, found = jobs_of(), []
    for fault in FAULTS:
        job, findings = jobs[fault.job], []
        # What the accountant refuses by itself, the attack has not found.
        with fault.plant(), suppress(CertificateError):
            findings = attack(job.plan, effort_of(job), np.random.default_rng(seed))[0]
        if any(f.refutes(FALSE_ALARM) for f in findings):
            found.append(fault.name)
    return found
