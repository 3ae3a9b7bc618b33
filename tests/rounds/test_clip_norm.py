from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from forethought.gradients import quantile_update
from forethought.gradients.sums import centred_count_below, next_clip_norm
from forethought.rounds.private_sum import noised_share
from forethought.rounds.randomness import noised_count
from forethought.values.mechanism import FullBatch, Mechanism, Rounds
from forethought.values.plan import Clip, NoiseKind, Plan, grid

CLIP = Clip(1.0, "quantile", quantile=0.6, quantile_rate=0.2, count_noise=1.0)
NORMS = torch.tensor([0.5, 0.9, 1.0, 1.1, float("inf")])


def next_norm(clip: Clip, norm: float, share: float) -> float:
    return next_clip_norm(norm, share, clip.quantile, clip.quantile_rate)


def share_of(
    norms: torch.Tensor,
    norm: float,
    noise: float,
    expected: float,
    generator: np.random.Generator,
    kind: NoiseKind = "gaussian",
) -> float:
    """The noised share in a full-batch round of ``expected`` records."""
    clip = Clip(norm, "quantile", quantile=0.6, quantile_rate=0.2, count_noise=noise)
    mechanism = Mechanism(Rounds(0.0, 1, FullBatch()))
    plan = Plan(mechanism, int(expected), 1e-5, clip, noise=kind)
    return noised_share(centred_count_below(norms, norm), plan.round(0), noise, generator)


def test_quantile_update_is_geometric() -> None:
    share = share_of(NORMS, 1.0, 1e-12, 10.0, np.random.default_rng(0))
    # A contribution that was not finite became zero: it is within the norm.
    assert share == pytest.approx(0.5 + (4 - 2.5) / 10, rel=1e-9)
    assert next_norm(CLIP, 1.0, share) == pytest.approx(math.exp(-0.2 * (share - 0.6)), rel=1e-9)


def test_the_rounds_and_the_gradients_have_one_quantile_rule() -> None:
    clip = Clip(1.0, "quantile", quantile=0.6, quantile_rate=0.2, count_noise=1e-12)
    share, norm = quantile_update(clip, NORMS, 1.0, 10.0)
    own = share_of(NORMS, 1.0, 1e-12, 10.0, np.random.default_rng(0))
    assert share == pytest.approx(own, rel=1e-9)
    assert norm == pytest.approx(next_norm(clip, 1.0, own), rel=1e-9)


def test_quantile_finds_the_quantile() -> None:
    norm, generator = 1.0, np.random.default_rng(0)
    for _ in range(300):
        norms = torch.from_numpy(generator.lognormal(1.0, 1.0, 200))
        norm = next_norm(CLIP, norm, share_of(norms, norm, 1.0, 200.0, generator))
    assert norm == pytest.approx(stats.lognorm(1.0, scale=math.e).ppf(0.6), rel=0.2)


@pytest.mark.parametrize("kind", ["gaussian", "grid"])
def test_count_noise_has_its_scale_on_an_empty_batch_too(kind: NoiseKind) -> None:
    """Kolmogorov-Smirnov on 2,000 counts of no contributions, false-alarm rate 1e-6."""
    generator, nothing = np.random.default_rng(0), torch.zeros(0)
    drawn = [(share_of(nothing, 1.0, 3.0, 100.0, generator, kind) - 0.5) * 100 for _ in range(2000)]
    assert stats.kstest(np.array(drawn) / 3.0, "norm").pvalue > 1e-6


def test_a_count_on_the_grid_is_on_the_grid() -> None:
    noised = noised_count(7.5, 3.0, 0.5, "grid", np.random.default_rng(0))
    step, _ = grid(3.0, 0.5, 1)
    assert (noised / step).is_integer() and 0 < abs(noised - 7.5) < 30
