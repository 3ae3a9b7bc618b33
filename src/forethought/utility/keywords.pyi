"""The settings of :func:`forethought.utility_graph`, for editors: written by tools/options.py."""

from typing import TypedDict

from forethought.utility.perturbing import NoiseScaleName
from forethought.values.plan import ClipRule
from forethought.values.use import Optimizer, Schedule

class GraphKeywords(TypedDict, total=False):
    draws: int
    batch: int
    epochs: float | None
    rounds: int | None
    optimizer: Optimizer | None
    schedule: Schedule | None
    clip_rule: ClipRule
    noise_scale: float | NoiseScaleName
    holders: int
    test_examples: int | None
    stop_at: float | None
    seed: int
