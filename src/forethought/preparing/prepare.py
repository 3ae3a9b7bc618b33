"""Release the statistics that a plan pays for, and prepare the data with them.

**Formal guarantee.** Each statistic is one private sum over all records (:mod:`rounds`): records'
own vectors, bounded in norm by what is declared, with Gaussian noise, noted in a transcript under
its own name. The constants follow from the noised sums. What a run of the plan then states covers
these releases as its first rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from forethought.mechanism import Mechanism, Rounds
from forethought.preparation import NAMES, Preparation, Statistics
from forethought.preparing import constants
from forethought.preparing.constants import Constants
from forethought.preparing.vectors import Vectors
from forethought.privacy import Clip, NoiseKind, Privacy
from forethought.rounds.private_sum import NoisedSum, PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import Records, as_records
from forethought.rounds.statistics import STATISTIC, unclipped
from forethought.rounds.transcript import Transcript
from forethought.samplings import FullBatch
from forethought.serialisation import Stored, build, plain


class Paying(Protocol):
    """What is read of a plan that pays for a preparation."""

    @property
    def preparation(self) -> Preparation | None: ...
    @property
    def mechanism(self) -> Mechanism: ...
    @property
    def examples(self) -> int: ...
    @property
    def delta(self) -> float: ...
    @property
    def noise(self) -> NoiseKind: ...


@dataclass(frozen=True)
class Prepared(Stored):
    """What was released to prepare inputs with: public from now on, and made once.

    Args:
        preparation: what was asked for. examples: of how many records.
        constants: what inputs are prepared with.
        seeded: whether a person chose the seed of the noise; then there is no guarantee.
        transcript: the releases.
    """

    SCHEMA: ClassVar[str] = "forethought/prepared/1"
    CALLED: ClassVar[str] = "prepared data's constants"

    preparation: Preparation
    examples: int
    constants: Constants
    seeded: bool
    transcript: Transcript

    def apply(self, inputs: Any) -> Tensor:
        """Inputs prepared: those of training, held-out ones and new ones alike."""
        return self.constants.apply(inputs)

    @property
    def shares(self) -> tuple[float, ...]:
        """Noised shares of the classes; empty where they were not counted."""
        return self.constants.shares

    def _values(self) -> dict[str, Any]:
        return {
            "preparation": plain(self.preparation),
            "examples": self.examples,
            "constants": plain(self.constants),
            "seeded": self.seeded,
            "transcript": self.transcript.to_values(),
        }

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Prepared:
        found = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values["constants"].items()
        }
        return cls(
            build(Preparation, values["preparation"]),
            values["examples"],
            build(Constants, found),
            values["seeded"],
            Transcript.from_values(values["transcript"]),
        )

    @classmethod
    def load(cls, path: str | Path) -> Prepared:
        """What was saved; a continued run must not release its statistics again."""
        return super().load(path)


def prepare(plan: Paying, data: Any, *, seeds: Seeds | None = None) -> Prepared:
    """Release the statistics that a plan has a budget for.

    Args:
        plan: made with ``preparation=``. data: (inputs, targets), as :func:`forethought.train`
            takes them, not prepared yet; dimension 1 of the inputs holds features or channels.
        seeds: of the noise, where a person chooses it; then nothing is guaranteed.

    Returns:
        The constants with what they cost. Give ``train`` the inputs that :meth:`Prepared.apply`
        makes and the value itself as ``prepared=``.

    Raises:
        ValueError: a plan without preparation, or data that is not what it declares.
    """
    return released(plan, as_records(data, torch.float64), seeds)


def released(plan: Paying, records: Records, seeds: Seeds | None = None) -> Prepared:
    """:func:`prepare` of records in the form that training reads.

    Raises:
        ValueError: a plan without preparation, or records that are not what it declares.
    """
    asked = plan.preparation
    if asked is None:
        raise ValueError("the plan has no preparation: make it with forethought.plan(preparation=)")
    if len(records) != plan.examples:
        raise ValueError(
            f"the plan is for {plan.examples} examples, the data has {len(records)}: the "
            "guarantee depends on it"
        )
    found: dict[str, Tensor] = {}
    transcript = Transcript()
    seeds = seeds or Seeds()
    centre: tuple[float, ...] = ()
    for place, statistic in enumerate(asked.statistics):
        rounds = _rounds(plan, asked, statistic, seeds.part(place))
        total = rounds.open(0)
        total.add(torch.nn.Module(), Vectors(records, asked, statistic, centre))
        found[statistic] = _mean(total.release())
        if statistic == "means":
            centre = constants.centre(asked, found[statistic], plan.examples).shift
        transcript.extend(rounds.transcript)
    return Prepared(
        asked,
        plan.examples,
        _constants(asked, found, plan.examples),
        seeds.noise is not None,
        transcript,
    )


def _rounds(plan: Paying, asked: Preparation, statistic: Any, seeds: Seeds) -> PrivateRounds:
    part = Rounds(asked.sigma(statistic), 1, FullBatch())
    privacy = Privacy(
        Mechanism(part, adjacency=plan.mechanism.adjacency),
        plan.examples,
        plan.delta,
        Clip(unclipped(asked.norm(statistic))),
        Statistics(NAMES[statistic]),
        plan.noise,
    )
    layout = {STATISTIC: torch.zeros(asked.length(statistic), dtype=torch.float64)}
    return PrivateRounds(privacy, layout, _no_loss, Secrets.draw(seeds))


def _no_loss(outputs: Any, targets: Any) -> Tensor:
    raise TypeError("a statistic has no loss")


def _mean(noised: NoisedSum) -> Tensor:
    return noised.mean()


def _constants(asked: Preparation, released: Mapping[str, Tensor], examples: int) -> Constants:
    found = Constants()
    if "means" in released:
        found = constants.centre(asked, released["means"], examples)
    if "norms" in released:
        found = constants.rescaled(asked, found, float(released["norms"]), examples)
    if "moments" in released:
        found = constants.moments(asked, released["moments"])
    if "quantiles" in released:
        found = constants.quantiles(asked, released["quantiles"])
    if "classes" in released:
        found = replace(found, shares=constants.shares(released["classes"]))
    return found
