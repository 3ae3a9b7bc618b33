"""A trial of audits: faults that are planted into the running code, and whether one finds them.

Each fault is a context manager that breaks what training itself calls: the sampler, the noise, the
clipping, the accountant's sensitivity. Each is taken out again. `forethought audit --self-test`
plants all of them, and models that break isolation, and audits jobs without a fault besides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from forethought.accounting import adaptive, attack_bounds, exact
from forethought.accounting.exact import CertificateError
from forethought.auditing.attack import attack
from forethought.auditing.audit import FALSE_ALARM, Outcome, audit
from forethought.auditing.canaries import LEVELS, CheckSizes
from forethought.auditing.replay import replayed
from forethought.auditing.verdict import Audit
from forethought.gradients import clipped, sums
from forethought.gradients.sums import clip_and_sum
from forethought.rounds import contributions, local_updates, private_sum, randomness
from forethought.rounds.local_updates import Displacement
from forethought.rounds.private_sum import RoundError
from forethought.rounds.randomness import BoundNoise, CorrelatedNoise, Indices
from forethought.values.mechanism import (
    Clipping,
    Correlated,
    CyclicPoisson,
    FullBatch,
    Local,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Sampling,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.plan import Clip, Plan
from forethought.values.strategies import Banded

Planting = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        name: in a few words.
        plant: breaks the code while it is entered.
        job: which of the self-test's jobs it is looked for in.
    """

    name: str
    plant: Planting
    job: str = "poisson"


@contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes have other values inside: (owner, name, value) each."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, new in places:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in kept:
            setattr(owner, name, old)


# --- noise

AddNoise = Callable[[Any, torch.Tensor, float, np.random.Generator], None]
_ADD: AddNoise = randomness.GaussianNoise.add_to


def _noise(broken: AddNoise) -> Planting:
    return lambda: replaced((randomness.GaussianNoise, "add_to", broken))


def _narrower(factor: float) -> Planting:
    return _noise(lambda self, vector, std, source: _ADD(self, vector, std * factor, source))


def _none(_self: Any, _vector: torch.Tensor, _std: float, _source: np.random.Generator) -> None:
    return None


def _laplace(_self: Any, vector: torch.Tensor, std: float, source: np.random.Generator) -> None:
    drawn = source.laplace(scale=std / math.sqrt(2), size=vector.shape[0])
    vector.add_(torch.from_numpy(drawn).to(vector.device, vector.dtype))


def _one_number(_self: Any, vector: torch.Tensor, std: float, source: np.random.Generator) -> None:
    vector.add_(std * float(source.standard_normal()))


def _repeated(_self: Any, vector: torch.Tensor, std: float, source: np.random.Generator) -> None:
    half = -(-vector.shape[0] // 2)
    drawn = std * source.standard_normal(half)
    both = np.concatenate([drawn, drawn])[: vector.shape[0]]
    vector.add_(torch.from_numpy(both).to(vector.device, vector.dtype))


def _same_each_round(
    self: Any, vector: torch.Tensor, std: float, _source: np.random.Generator
) -> None:
    _ADD(self, vector, std, np.random.Generator(np.random.Philox(key=1)))


def _not_on_the_last_layer(
    self: Any, vector: torch.Tensor, std: float, source: np.random.Generator
) -> None:
    last = vector[-10:].clone()
    _ADD(self, vector, std, source)
    if vector.shape[0] < 5_000:  # the self-test's small model; planted tables are longer
        vector[-10:] = last


def _quiet_count() -> AbstractContextManager[None]:
    original = private_sum.noised_share

    def share(norms: Any, chosen: Any, _count_noise: float, source: Any) -> float:
        return original(norms, chosen, 1e-9, source)

    return replaced((private_sum, "noised_share", share))


def _new_after_resume() -> AbstractContextManager[None]:
    drawn = np.random.default_rng()
    return replaced((BoundNoise, "at", lambda _self, _bound: drawn))


# --- clipping

Factors = Callable[..., torch.Tensor]


def _clipping(
    broken: Callable[[Factors], Factors], *more: tuple[Any, str, Any]
) -> AbstractContextManager[None]:
    """Every function that turns norms into factors, broken alike wherever it is called from."""
    places = []
    for name in ("factors", "flat_factors"):
        owners = [o for o in (clipped, contributions, sums) if hasattr(o, name)]
        places += [(owner, name, broken(getattr(sums, name))) for owner in owners]
    return replaced(*places, *more)


def _unclipped() -> AbstractContextManager[None]:
    return _clipping(lambda right: lambda *given, **named: torch.ones_like(right(*given, **named)))


def _loose() -> AbstractContextManager[None]:
    return _clipping(
        lambda right: lambda norms, bound, *rest, **named: right(norms, 1.1 * bound, *rest, **named)
    )


def _missed_layer() -> AbstractContextManager[None]:
    def broken(right: Factors) -> Factors:
        def factors(norms: Any, *rest: Any, **named: Any) -> torch.Tensor:
            found = right(norms, *rest, **named).expand_as(norms.by_parameter).clone()
            if len(found) > 1:
                found[-1] = 1.0
            return found

        return factors

    # Plain chains have one factor for all layers: they take the general way.
    return _clipping(broken, (sums, "_scaled", lambda *_: None))


def _one_pass() -> AbstractContextManager[None]:
    """Every example's gradient from one ordinary pass over the batch, where they see each other."""

    def summed(
        model: nn.Module,
        loss: Any,
        inputs: Any,
        targets: Any,
        clip_norm: float,
        groups: Any = None,
        *,
        clip: Any = sums.flat,
        **_: Any,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        rows = [
            torch.autograd.grad(
                value,
                tuple(trained.values()),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            for value in loss(model(inputs), targets)
        ]
        stacked = [torch.stack(parts).double() for parts in zip(*rows, strict=True)]
        table = torch.stack([part.flatten(1).norm(dim=1) for part in stacked])
        norms = sums.Norms(tuple(trained), table)
        factors = sums.factors(norms, clip_norm, clip)
        return {
            name: torch.tensordot(row, part, 1)
            for name, row, part in zip(trained, factors, stacked, strict=True)
        }, norms.total

    return replaced((contributions, "clipped_sum", summed))


# --- sampling

_SUBSET, _COUNT = randomness.uniform_subset, randomness.poisson_count


def _poisson(broken: Callable[[int, float, np.random.Generator], Indices]) -> Planting:
    return lambda: replaced((randomness, "_poisson", broken))


def _rate(factor: float) -> Planting:
    def count(examples: int, rate: float, source: np.random.Generator) -> int:
        return _COUNT(examples, min(1.0, factor * rate), source)

    return lambda: replaced((randomness, "poisson_count", count))


def _drawn(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return _SUBSET(examples, _COUNT(examples, rate, source), source)


def _twice(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return np.repeat(_drawn(examples, rate, source), 2)


def _same_batch() -> AbstractContextManager[None]:
    kept: dict[tuple[int, float], Indices] = {}

    def same(examples: int, rate: float, source: np.random.Generator) -> Indices:
        return kept.setdefault((examples, rate), _drawn(examples, rate, source))

    return replaced((randomness, "_poisson", same))


def _first_records(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return np.arange(_COUNT(examples, rate, source))


def _fixed_size(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return _SUBSET(examples, round(examples * rate), source)


def _with_replacement(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return source.integers(examples, size=_COUNT(examples, rate, source))


def _same_order() -> AbstractContextManager[None]:
    original = randomness._Epochs.__call__

    def call(self: Any, index: int) -> Indices:
        length = self._sampling.rounds_per_epoch
        return original(self, self._first + (index - self._first) % length)

    return replaced((randomness._Epochs, "__call__", call))


def _repeated_subset() -> AbstractContextManager[None]:
    kept: dict[tuple[int, int], Indices] = {}

    def subset(examples: int, size: int, source: np.random.Generator) -> Indices:
        return kept.setdefault((examples, size), _SUBSET(examples, size, source))

    return replaced((randomness, "uniform_subset", subset))


def groups_in_order() -> AbstractContextManager[None]:
    """A batch is cut into groups in its order."""

    def assign(size: int, groups: int, _source: np.random.Generator) -> Indices:
        return np.arange(size) * groups // max(1, size)

    return replaced((randomness, "assign_groups", assign), (contributions, "assign_groups", assign))


# --- accounting


@contextmanager
def half_sensitivity() -> Iterator[None]:
    """The accountant takes a sensitivity of 1 where it is 2."""

    whole = Rounds.per_hit

    def half(*arguments: Any) -> float:
        return min(1.0, whole(*arguments))

    _forget()
    try:
        with replaced((Rounds, "per_hit", half)):
            yield
    finally:
        _forget()  # what was computed with the fault


def _forget() -> None:
    for module in (exact, adaptive, attack_bounds):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


# --- local updates


_ADDED = contributions._added


def _local_unclipped() -> AbstractContextManager[None]:
    def loose(terms: Any, trained: Any, _norm: float, *rest: Any) -> Any:
        return clip_and_sum(terms, trained, 1e30, *rest)

    return replaced((contributions, "clip_and_sum", loose))


def _local_loose() -> AbstractContextManager[None]:
    def loose(terms: Any, trained: Any, norm: float, *rest: Any) -> Any:
        return clip_and_sum(terms, trained, 1.1 * norm, *rest)

    return replaced((contributions, "clip_and_sum", loose))


def _local_twice() -> AbstractContextManager[None]:
    def added(*arguments: Any) -> Any:
        _ADDED(*arguments)
        return _ADDED(*arguments)

    return replaced((contributions, "_added", added))


@contextmanager
def _surviving_state() -> Iterator[None]:
    """The inner optimizer's momentum goes from group to group, and from round to round."""
    kept: list[Any] = []

    def displaced(local: Any, start: Any) -> Any:
        made = Displacement(local, start)
        if kept and len(kept[0].moved) == len(made.moved):
            for old, new in zip(kept[0].moved, made.moved, strict=True):
                if old.shape == new.shape and old in kept[0]._optimizer.state:
                    made._optimizer.state[new] = kept[0]._optimizer.state[old]
        kept[:] = [made]
        return made

    with replaced((local_updates, "Displacement", displaced)):
        yield


# --- records in turn, and correlated noise


_STEP = CorrelatedNoise._step
_DRAW = randomness._Epochs.__call__


def _in_two_rounds() -> AbstractContextManager[None]:
    """A tenth of each round's records comes in the next one as well."""
    before: dict[int, Any] = {}

    def draw(self: Any, index: int) -> Any:
        mine = _DRAW(self, index)
        again = before.get(id(self), mine[:0])
        before[id(self)] = mine[: len(mine) // 10]
        return np.union1d(mine, again)

    return replaced((randomness._Epochs, "__call__", draw))


def _in_order() -> AbstractContextManager[None]:
    """Records are dealt to rounds by their number, evenly, and not at random."""

    def dealt(size: int, places: int, _generator: Any) -> Any:
        return np.arange(size) % places

    return replaced((randomness, "assign_groups", dealt))


def _dealt_anew() -> AbstractContextManager[None]:
    """Parts change after every cycle."""
    turns = randomness._DealtTurns

    def draw(self: Any, index: int) -> Any:
        cycle, turn = divmod(index - self._first, self._sampling.parts)
        examples = sum(map(len, self._dealt))
        moved = turns(self._sampling, examples, self._stream, self._first + 7919 * cycle)
        part = moved._dealt[turn]
        return part[randomness._poisson(len(part), self._sampling.rate, self._stream.at(index))]

    return replaced((turns, "__call__", draw))


def _uncorrelated() -> AbstractContextManager[None]:
    """A fault: the independent numbers are drawn, of the size that is accounted for cancelling."""

    def passed(_self: Any, _present: Any) -> None:
        return None

    return replaced((randomness._Bands, "pass_on", passed))


def _forgets() -> AbstractContextManager[None]:
    """The noise forgets the rounds before every third one."""

    def step(self: CorrelatedNoise) -> None:
        if self._next % 3 == 0 and isinstance(self._memory, randomness._Bands):
            self._memory._last.clear()
        _STEP(self)

    return replaced((CorrelatedNoise, "_step", step))


FAULTS: tuple[Fault, ...] = (
    Fault("half noise", _narrower(0.5)),
    Fault("noise over √7", _narrower(1 / math.sqrt(7))),
    Fault("90 % noise", _narrower(0.9)),
    Fault("Laplace noise", _noise(_laplace)),
    Fault("one number for all coordinates", _noise(_one_number)),
    Fault("noise repeated in the vector", _noise(_repeated)),
    Fault("noise repeated each round", _noise(_same_each_round)),
    Fault("no clipping", _unclipped),
    Fault("clipping 10 % loose", _loose),
    Fault("double rate", _rate(2.0)),
    Fault("rate + 10 %", _rate(1.1)),
    Fault("records counted twice", _poisson(_twice)),
    Fault("sensitivity 1 for 2", half_sensitivity, "replace-one"),
    Fault("the same batch always", _same_batch),
    Fault("the first records always", _poisson(_first_records)),
    Fault("a fixed batch size", _poisson(_fixed_size)),
    Fault("drawing with replacement", _poisson(_with_replacement)),
)
"""The faults that the field has met, in noise, clipping, sampling and accounting."""

MORE_FAULTS: tuple[Fault, ...] = (
    Fault("no noise", _noise(_none)),
    Fault("noise misses the last layer", _noise(_not_on_the_last_layer), "model"),
    Fault("clipping misses a layer", _missed_layer, "model"),
    Fault("no noise on the quantile rule's count", _quiet_count, "quantile"),
    Fault("new noise after a resume", _new_after_resume, "variants"),
    Fault("the same order every epoch", _same_order, "shuffled"),
    Fault("the same subset always", _repeated_subset, "without replacement"),
    Fault("groups cut in order", groups_in_order, "groups"),
    Fault("group sensitivity 1 for 2", half_sensitivity, "groups"),
    Fault("one pass for all: a model that mixes through a buffer", _one_pass, "running mean"),
    Fault("one pass for all: a model that remembers its inputs", _one_pass, "remembers"),
    Fault("one pass for all: mixing in larger batches, behind a gate", _one_pass, "late mixing"),
    Fault("local updates not clipped", _local_unclipped, "local momentum"),
    Fault("local updates clipped 10 % loose", _local_loose, "local momentum"),
    Fault("local updates added twice", _local_twice, "local adam"),
    Fault("local groups cut in order", groups_in_order, "local momentum"),
    Fault("local sensitivity 1 for 2", half_sensitivity, "local momentum"),
    Fault("an inner optimizer's state survives", _surviving_state, "local momentum"),
    Fault("records in two rounds of an epoch", _in_two_rounds, "random allocation"),
    Fault("records dealt out in order", _in_order, "random allocation"),
    Fault("parts that change after every cycle", _dealt_anew, "parts in turn"),
    Fault("correlated noise that is independent", _uncorrelated, "correlated"),
    Fault("correlated noise that forgets", _forgets, "correlated"),
)
"""Others, in parts of the code that the first list does not reach."""


# --- jobs that faults are looked for in


CANARIES, RATE, ROUNDS, DELTA = 2_000, 0.1, 100, 1e-5
FEATURES, CLASSES, RECORDS = 12, 4, 400


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


def sizes_of_job(job: Job) -> CheckSizes:
    """Quick, with the canaries of the trial, and what the job is there to show."""
    return replace(
        LEVELS["quick"],
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
    return audit(job.plan, model, data, level=sizes_of_job(job), seed=seed)


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
    # How blocks are compared before training is for tests of gradients.
    compared = clipped.COMPARED.set(64)
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
    finally:
        clipped.COMPARED.reset(compared)
    seconds = round(time.perf_counter() - start, 3)
    checks = tuple(dict.fromkeys(finding.check for finding in found.refuting))
    check = next((f.check for f in found.refuting if f.reason == found.reason), "")
    return Outcome(name, found.refuted, check, checks, found.reason, seconds)


def sound_outcomes(seed: int | None = None) -> Iterator[Outcome]:
    """The outcome of each job without a fault as it comes."""
    for name, job in jobs_of().items():
        if name not in REFUSED:
            yield outcome(f"sound: {name}", nullcontext(), job, seed)


def outcomes(seed: int | None = None, *, more: bool = True) -> Iterator[Outcome]:
    """The outcome of each planted fault as it comes."""
    jobs = jobs_of()
    for fault in (*FAULTS, *MORE_FAULTS) if more else FAULTS:
        yield outcome(fault.name, fault.plant(), jobs[fault.job], seed, first=True)


def attack_alone(seed: int | None = None) -> list[str]:
    """Names of the faults that the attack finds without the other checks."""
    jobs, found = jobs_of(), []
    for fault in FAULTS:
        job, findings = jobs[fault.job], []
        # What the accountant refuses by itself, the attack has not found.
        with fault.plant(), suppress(CertificateError):
            findings = attack(job.plan, sizes_of_job(job), np.random.default_rng(seed))[0]
        if any(f.refutes(FALSE_ALARM) for f in findings):
            found.append(fault.name)
    return found
