"""The Plan: one frozen value that is planned, run, accounted and stored with the result.

It has two parts: what privacy needs (:mod:`forethought.privacy`) and how the noised sums are used
(:mod:`forethought.use`). What ran and what was accounted cannot differ, because both read the same
:class:`~forethought.privacy.Privacy`. Options that only change speed live elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypedDict, Unpack

from forethought.assumed import Assumed
from forethought.augmentation import Augmentation
from forethought.caveats import Caveat, caveats, choice
from forethought.contributions import Contribution, Examples, Groups
from forethought.local_updates import Local, LocalUpdates
from forethought.mechanism import Budget, Mechanism, Rounds
from forethought.preparation import Preparation
from forethought.privacy import Clip, NoiseKind, Privacy, Round
from forethought.samplings import Sampling
from forethought.serialisation import Stored, plain
from forethought.use import (
    Averaging,
    GradientFilter,
    Optimizer,
    Schedule,
    Use,
)

PLAN_SCHEMA = "forethought/plan/2"
DECLARED = Caveat("declared")


class Parts(TypedDict, total=False):
    """Short forms: ``groups=`` of ``contribution=Groups(...)``, with ``local=`` of
    ``contribution=LocalUpdates(...)``; ``preparation=``, ``records_per_person=`` and
    ``augmentation=`` of the Privacy; the rest of ``use=Use(...)``.
    """

    groups: int | None
    local: Local | None
    preparation: Preparation | None
    records_per_person: int
    augmentation: Augmentation | None
    optimizer: Optimizer
    schedule: Schedule
    averaging: Averaging
    assumed: Assumed | None
    gradient_filter: GradientFilter | None


@dataclass(frozen=True, init=False)
class Plan(Stored):
    """Everything a private run needs, decided before any private data is touched.

    Args:
        mechanism, examples, delta, clip, contribution, noise, budget, preparation,
            records_per_person, augmentation: see :class:`Privacy`. ``mechanism`` is that of
            training alone; the attribute has it all.
        use: what happens to the noised means; post-processing.
        hyperparameters: how this plan's numbers were chosen, for the Statement: a
            :class:`~forethought.caveats.Caveat` of that role, or words.
        not_covered: ways in which private data was used outside the mechanism, and assumptions,
            for the Statement: caveats, or words.
        reasons: pairs (what, why it is what it is), written by the planner for :meth:`explain`.
        parts: short forms, see :class:`Parts`.

    Attributes:
        privacy: what privacy needs. use: how the releases are used.
    """

    SCHEMA: ClassVar[str] = PLAN_SCHEMA
    CALLED: ClassVar[str] = "plan"

    privacy: Privacy
    use: Use
    hyperparameters: Caveat
    not_covered: tuple[Caveat, ...]
    reasons: tuple[tuple[str, str], ...]

    def __init__(
        self,
        mechanism: Mechanism,
        examples: int,
        delta: float,
        clip: Clip = Clip(),  # noqa: B008 (frozen)
        *,
        contribution: Contribution | None = None,
        noise: NoiseKind = "gaussian",
        budget: Budget | None = None,
        use: Use = Use(),  # noqa: B008 (frozen)
        hyperparameters: Caveat | str = DECLARED,
        not_covered: Iterable[Caveat | str] = (),
        reasons: tuple[tuple[str, str], ...] = (),
        **parts: Unpack[Parts],
    ) -> None:
        groups, local = parts.pop("groups", None), parts.pop("local", None)
        preparation = parts.pop("preparation", None)
        records_per_person = parts.pop("records_per_person", 1)
        augmentation = parts.pop("augmentation", None)
        if contribution is None:
            contribution = Examples() if groups is None else Groups(groups)
            if local is not None:
                contribution = LocalUpdates(1 if groups is None else groups, local)
        elif groups is not None or local is not None:
            raise ValueError(
                "groups= and local= are short for contribution=Groups(...) or LocalUpdates(...): "
                "give one of them"
            )
        privacy = Privacy(
            mechanism,
            examples,
            delta,
            clip,
            contribution,
            noise,
            budget,
            preparation,
            records_per_person,
            augmentation,
        )
        changed: dict[str, Any] = dict(parts)
        self._set(privacy, replace(use, **changed), hyperparameters, not_covered, reasons)

    def _set(
        self,
        privacy: Privacy,
        use: Use,
        hyperparameters: Caveat | str,
        not_covered: Iterable[Caveat | str],
        reasons: tuple[tuple[str, str], ...],
    ) -> None:
        object.__setattr__(self, "privacy", privacy)
        object.__setattr__(self, "use", use)
        object.__setattr__(self, "hyperparameters", choice(hyperparameters))
        object.__setattr__(self, "not_covered", caveats(not_covered))
        pairs = tuple((str(what), str(why)) for what, why in reasons)
        object.__setattr__(self, "reasons", pairs)

    @property
    def mechanism(self) -> Mechanism:
        """Everything that is released, the preparation of the data first."""
        return self.privacy.accounted

    @property
    def preparation(self) -> Preparation | None:
        """The release of the data before training, to prepare inputs with."""
        return self.privacy.preparation

    @property
    def examples(self) -> int:
        """Size N of the training set."""
        return self.privacy.examples

    @property
    def delta(self) -> float:
        """The δ at which the Statement gives ε."""
        return self.privacy.delta

    @property
    def clip(self) -> Clip:
        """The bound on one contribution."""
        return self.privacy.clip

    @property
    def contribution(self) -> Contribution:
        """The unit that is clipped."""
        return self.privacy.contribution

    @property
    def records_per_person(self) -> int:
        """The number of examples that may be one person's, protected together."""
        return self.privacy.records_per_person

    @property
    def augmentation(self) -> Augmentation | None:
        """The altered copies of a record that its contribution is the mean over; None: none."""
        return self.privacy.augmentation

    @property
    def groups(self) -> int | None:
        """The number of groups that a batch is dealt into; None where examples are clipped."""
        return self.contribution.groups

    @property
    def local(self) -> Local | None:
        """The algorithm inside a group; None where gradients are clipped."""
        return self.contribution.local if isinstance(self.contribution, LocalUpdates) else None

    @property
    def noise(self) -> NoiseKind:
        """The kind of noise."""
        return self.privacy.noise

    @property
    def budget(self) -> Budget | None:
        """The target that was asked for."""
        return self.privacy.budget

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that steps along a noised mean."""
        return self.use.optimizer

    @property
    def schedule(self) -> Schedule:
        """Its step sizes."""
        return self.use.schedule

    @property
    def averaging(self) -> Averaging:
        """The average of the iterates that is reported."""
        return self.use.averaging

    @property
    def assumed(self) -> Assumed | None:
        """The model that the planner chose for; see :mod:`forethought.assumed`."""
        return self.use.assumed

    @property
    def gradient_filter(self) -> GradientFilter | None:
        """The filter of noised means before the optimizer; None: none."""
        return self.use.gradient_filter

    @property
    def rounds(self) -> int:
        """The number of noised sums that are released."""
        return self.privacy.rounds

    def round(self, index: int, clip_norm: float | None = None) -> Round:
        """Round ``index``, from 0; see :meth:`forethought.privacy.Privacy.round`."""
        return self.privacy.round(index, clip_norm)

    def _only(self, what: str) -> Any:
        values = {getattr(part, what) for part in self.privacy.mechanism}
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
        """The sampling of batches, when all rounds share one way (ValueError otherwise)."""
        sampling: Sampling = self._only("sampling")
        return sampling

    @property
    def clip_norm(self) -> float:
        """The bound C on the L2 norm of one contribution."""
        return self.clip.norm

    @property
    def batch(self) -> float:
        """Expected batch size, when all rounds share one (ValueError otherwise)."""
        return self.sampling.expected_batch(self.examples)

    @property
    def mean_batch(self) -> float:
        """Expected batch size in the mean over the run: :attr:`batch` where all are alike."""
        return self.epochs * self.examples / self.rounds

    @property
    def epochs(self) -> float:
        """Expected passes over the data in the whole run."""
        sizes = (
            part.count * part.sampling.expected_batch(self.examples)
            for part in self.privacy.mechanism
        )
        return math.fsum(sizes) / self.examples

    def round_at(self, index: int) -> Rounds:
        """The Rounds that round ``index`` (from 0) belongs to."""
        return self.privacy.part(index)[0]

    def explain(self) -> str:
        """The reason for each number, a sentence each; as the planner wrote it down."""
        if not self.reasons:
            return "This plan was written by hand: every number was given."
        return "\n".join(f"{what}: {why}" for what, why in self.reasons)

    def with_(self, **changes: Any) -> Plan:
        """A copy with the named arguments of :class:`Plan` replaced."""
        values: dict[str, Any] = {
            **{field.name: getattr(self.privacy, field.name) for field in fields(Privacy)},
            "use": self.use,
            "hyperparameters": self.hyperparameters,
            "not_covered": self.not_covered,
            "reasons": self.reasons,
        }
        if {"groups", "local"} & set(changes):
            del values["contribution"]
            changes = {"groups": self.groups, "local": self.local, **changes}
            if any(part.groups for part in self.mechanism):
                parts = (replace(part, groups=changes["groups"]) for part in self.mechanism)
                moved = Mechanism(*parts, adjacency=self.mechanism.adjacency)
                changes = {"mechanism": moved, **changes}
        return Plan(**{**values, **changes})

    def _values(self) -> dict[str, Any]:
        return {
            "privacy": self.privacy.to_dict(),
            "use": self.use.to_dict(),
            "hyperparameters": plain(self.hyperparameters),
            "not_covered": plain(self.not_covered),
            "reasons": plain(self.reasons),
        }

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Plan:
        privacy, use = Privacy.from_dict(values["privacy"]), Use.from_dict(values["use"])
        plan = cls.__new__(cls)
        plan._set(
            privacy,
            use,
            Caveat.from_dict(values["hyperparameters"]),
            map(Caveat.from_dict, values["not_covered"]),
            values["reasons"],
        )
        return plan


def promised(plan: Plan) -> dict[str, Any]:
    """The terms that a plan's guarantee is about and rests on, but for the figures that decide ε.

    Noise, rates and rounds are not in it: their ε is computed and held against a budget.
    """
    found: dict[str, Any] = plain(plan.privacy)
    found.pop("budget", None)
    found["clip"].pop("norm", None)  # the noise goes with it
    mechanism = plan.mechanism
    kinds = {
        (type(part).__name__, type(part.sampling).__name__, part.clipping, str(part.groups))
        for part in mechanism
    }
    return {"adjacency": mechanism.adjacency, **found, "mechanism": sorted(kinds)}


def other_terms(own: Mapping[str, Any], given: Mapping[str, Any], file: str) -> str | None:
    """The first of one's own terms that a file has otherwise, in words; None: all are the same."""
    for name, value in own.items():
        if given[name] != value:
            return (
                f"{file} has {name.replace('_', ' ')} {given[name]!r}, the job here {value!r}: "
                f"the guarantee rests on that. Take the {file} that was made from this job, or "
                "the job that it was made from"
            )
    return None
