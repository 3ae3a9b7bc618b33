"""The keywords of :func:`forethought.plan`, for editors: written by tools/options.py."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from forethought.options import NoiseName, NoiseScheduleName, PersonAs, SizeScheduleName
from forethought.values.caveats import Caveat
from forethought.values.mechanism import (
    Adjacency,
    Augmentation,
    Budget,
    Clipping,
    Local,
    SamplingName,
)
from forethought.values.plan import ClipRule, Preparation
from forethought.values.use import Averaging, GradientFilter, Schedule

class PlanKeywords(TypedDict, total=False):
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
    noise: NoiseName
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
    squared_error: bool
    noise_borne: float | None
    untried: bool
    features: int | None
    centre: bool | None
    image_features: bool
    records_per_person: int
    persons: int | None
    person_as: PersonAs
    augment: Augmentation | str | Sequence[str] | Mapping[str, Any] | None
    augmentations: int | None
    gradient_filter: GradientFilter | str | Mapping[str, Any] | None
