"""Faults that are planted into the running code, to see whether the audit finds them.

Each is a context manager that breaks what training itself calls: the sampler, the noise, the
clipping, the accountant's sensitivity. Each is taken out again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from forethought.accounting import adaptive, attack_bounds, exact, theorems
from forethought.gradients import clipped, sums
from forethought.rounds import contributions, private_sum, randomness, sampling
from forethought.rounds.randomness import BoundNoise
from forethought.rounds.sampling import Indices
from forethought.values import mechanism
from forethought.values.mechanism import per_hit

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

_SUBSET, _COUNT = sampling.uniform_subset, sampling.poisson_count


def _poisson(broken: Callable[[int, float, np.random.Generator], Indices]) -> Planting:
    return lambda: replaced((sampling, "_poisson", broken))


def _rate(factor: float) -> Planting:
    def count(examples: int, rate: float, source: np.random.Generator) -> int:
        return _COUNT(examples, min(1.0, factor * rate), source)

    return lambda: replaced((sampling, "poisson_count", count))


def _drawn(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return _SUBSET(examples, _COUNT(examples, rate, source), source)


def _twice(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return np.repeat(_drawn(examples, rate, source), 2)


def _same_batch() -> AbstractContextManager[None]:
    kept: dict[tuple[int, float], Indices] = {}

    def same(examples: int, rate: float, source: np.random.Generator) -> Indices:
        return kept.setdefault((examples, rate), _drawn(examples, rate, source))

    return replaced((sampling, "_poisson", same))


def _first_records(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return np.arange(_COUNT(examples, rate, source))


def _fixed_size(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return _SUBSET(examples, round(examples * rate), source)


def _with_replacement(examples: int, rate: float, source: np.random.Generator) -> Indices:
    return source.integers(examples, size=_COUNT(examples, rate, source))


def _same_order() -> AbstractContextManager[None]:
    original = sampling._Epochs.__call__

    def call(self: Any, index: int) -> Indices:
        length = self._sampling.rounds_per_epoch
        return original(self, self._first + (index - self._first) % length)

    return replaced((sampling._Epochs, "__call__", call))


def _repeated_subset() -> AbstractContextManager[None]:
    kept: dict[tuple[int, int], Indices] = {}

    def subset(examples: int, size: int, source: np.random.Generator) -> Indices:
        return kept.setdefault((examples, size), _SUBSET(examples, size, source))

    return replaced((sampling, "uniform_subset", subset))


def groups_in_order() -> AbstractContextManager[None]:
    """A batch is cut into groups in its order."""

    def assign(size: int, groups: int, _source: np.random.Generator) -> Indices:
        return np.arange(size) * groups // max(1, size)

    return replaced((sampling, "assign_groups", assign), (contributions, "assign_groups", assign))


# --- accounting


@contextmanager
def half_sensitivity() -> Iterator[None]:
    """The accountant takes a sensitivity of 1 where it is 2."""

    def half(*arguments: Any) -> float:
        return min(1.0, per_hit(*arguments))

    _forget()
    try:
        with replaced(*((room, "per_hit", half) for room in (mechanism, theorems))):
            yield
    finally:
        _forget()  # what was computed with the fault


def _forget() -> None:
    for module in (exact, adaptive, attack_bounds):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


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
)
"""Others, in parts of the code that the first list does not reach."""
