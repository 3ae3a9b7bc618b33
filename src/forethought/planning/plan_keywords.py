"""The keywords of :func:`forethought.plan`, by their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from forethought.augmentation import Augmentation
from forethought.caveats import Caveat
from forethought.local_updates import Local
from forethought.mechanism import Adjacency, Budget, Clipping
from forethought.planning.courses import SizeScheduleName
from forethought.planning.noise_schedules import NoiseScheduleName
from forethought.planning.persons import PersonAs
from forethought.preparation import Preparation
from forethought.privacy import ClipRule
from forethought.use import Averaging, GradientFilter, Schedule

if TYPE_CHECKING:  # which reads the keywords
    from forethought.planning.plan_request import RequestedNoise, SamplingName


class PlanKeywords(TypedDict, total=False):
    """The keywords of :func:`forethought.plan`: fields of a :class:`PlanRequest`, and three more.

    ``data``, a loaded :class:`forethought.data.Dataset`, stands for its number of training records
    and persons, its caveats and, where the model is linear, the norm of its features; ``model``, a
    torch module, for its number of trained parameters; ``shape``, of one record, stands beside a
    network where there is no ``data``, and both say how much noise its weights bear.
    """

    data: Any
    model: Any
    shape: tuple[int, ...]
    examples: int
    budget: Budget | None
    delta: float | None
    epochs: float | None
    rounds: int | None
    batch: int | None
    noise_multiplier: float | None
    noise: RequestedNoise
    noise_schedule: NoiseScheduleName
    noise_fall: float | None
    size_schedule: SizeScheduleName
    size_growth: float | None
    size_power: float | None
    sampling: SamplingName
    parts: int | None
    adjacency: Adjacency | None
    clipping: Clipping
    groups: int | None
    local: Local | str | Mapping[str, Any] | None
    preparation: Preparation | None
    clip_norm: float | None
    final_clip_norm: float | None
    clip_rule: ClipRule | None
    quantile: float | None
    count_noise: float | None
    optimizer: str
    learning_rate: float | None
    options: Mapping[str, Any] | None
    schedule: Schedule | None
    averaging: Averaging | None
    hyperparameters: Caveat | str | None
    not_covered: tuple[Caveat | str, ...]
    parameters: int | None
    feature_norm: float | None
    feature_norm_known: bool
    noise_borne: float | None
    features: int | None
    centre: bool | None
    image_features: bool
    records_per_person: int
    augment: Augmentation | str | Sequence[str] | Mapping[str, Any] | None
    augmentations: int | None
    gradient_filter: GradientFilter | str | Mapping[str, Any] | None
    persons: int | None
    person_as: PersonAs
