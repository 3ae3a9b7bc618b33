"""Options that by definition cannot change a guarantee: where a run computes, when it saves."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, dataclass
from typing import Any, TypedDict, Unpack

import torch

from forethought.checks import whole
from forethought.rounds.randomness import Seeds


@dataclass(frozen=True)
class Execution:
    """How a plan is executed. Sampling and the laws of noise and results stay the same.

    A sum that is rounded otherwise, by a last bit, has another draw of the noise.

    Args:
        device: where to train; default: where the model is.
        micro_batch: examples whose gradients are held at once. Bounds memory. Blocks follow from it
            and are probed, so that it changes no record's contribution but in last bits.
        checkpoint_every: rounds between checkpoints; default: by time, about every 10 s.
        log_every: rounds between rows of the history; default: about 100 rows.
        salted: deprecated: a round's noise always depends on the weights, and on the sum.

    Raises:
        TypeError, ValueError: no whole number of at least 1.
    """

    device: str | torch.device | None = None
    micro_batch: int | None = None
    checkpoint_every: int | None = None
    log_every: int | None = None
    salted: InitVar[bool | None] = None

    def __post_init__(self, salted: bool | None) -> None:
        if salted is not None:
            warnings.warn(
                "Execution(salted=) does nothing: every round's noise is bound to its weights and "
                "its sum. Leave it out",
                DeprecationWarning,
                stacklevel=3,
            )
        for name in ("micro_batch", "checkpoint_every", "log_every"):
            value = getattr(self, name)
            if value is not None:
                whole(name, value)


class ShortForms(TypedDict, total=False):
    """Options of ``execution=Execution(...)`` and ``seeds=Seeds(...)`` by themselves."""

    device: str | torch.device | None
    micro_batch: int | None
    checkpoint_every: int | None
    log_every: int | None
    seed: int | None
    noise_seed: int | None


def settled(
    execution: Execution | None, seeds: Seeds | None, **short: Unpack[ShortForms]
) -> tuple[Execution, Seeds]:
    """One value each from ``execution=``, ``seeds=`` and their short forms.

    Raises:
        TypeError: an unknown option, or values of another type. ValueError: something said twice.
    """
    unknown = sorted(set(short) - set(ShortForms.__annotations__))
    if unknown:
        raise TypeError(
            f"unknown option {', '.join(map(repr, unknown))}; besides those by name there are "
            f"{', '.join(ShortForms.__annotations__)}"
        )
    for name, value, kind in (("execution", execution, Execution), ("seeds", seeds, Seeds)):
        if not isinstance(value, kind | None):
            raise TypeError(f"{name} must be a forethought.{kind.__name__}, not {value!r}")
    given: dict[str, Any] = {name: value for name, value in short.items() if value is not None}
    of_seeds = {
        own: given.pop(name)
        for name, own in (("seed", "sampling"), ("noise_seed", "noise"))
        if name in given
    }
    if (execution is not None and given) or (seeds is not None and of_seeds):
        raise ValueError(
            f"{', '.join({**given, **of_seeds})} is said twice: in execution= or seeds=, and by "
            "itself. Say it in one place"
        )
    return execution or Execution(**given), seeds or Seeds(**of_seeds)
