from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.data.test_patches import pictures

from drawn import randn, stream
from forethought.data.deep_patches import STANDARD, Components
from forethought.data.patches import Filters
from learners import shifted_patches as learner
from learners.patches import counted_filters
from learners.shifted_patches import altered, evened_out, values_of, weights_of


def test_images_are_altered_as_far_as_is_said_and_no_further(monkeypatch):
    images = pictures(3, 4, 24)
    found = altered(images, torch.Generator().manual_seed(0))
    assert found.shape == images.shape
    assert found.min() >= 0 and found.max() <= 1
    assert (found - images).abs().mean() > 0.02
    for name in ("TURN", "ZOOM", "MOVE", "LIGHT", "TINT"):
        monkeypatch.setattr(learner, name, 0.0)
    still = altered(images, torch.Generator().manual_seed(0))
    torch.testing.assert_close(still, images, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "size"), [("TURN", 0.2), ("ZOOM", 0.2), ("MOVE", 0.15)])
def test_a_point_moves_as_the_alteration_says(monkeypatch, name, size):
    """A bright point right of the middle, by the centre of what is bright afterwards."""
    for other in {"TURN", "ZOOM", "MOVE", "LIGHT", "TINT"} - {name}:
        monkeypatch.setattr(learner, other, 0.0)
    at = (torch.arange(81) - 40) / 40.5
    down, across = torch.meshgrid(at, at, indexing="ij")
    image = (-((across - 0.4) ** 2 + down**2) / 0.005).exp().expand(40, 1, 81, 81)
    found = altered(image, torch.Generator().manual_seed(1))[:, 0]
    mass = found.sum((1, 2))
    x, y = (found * across).sum((1, 2)) / mass, (found * down).sum((1, 2)) / mass
    if name == "TURN":
        moved = torch.atan2(y, x)
        torch.testing.assert_close(x.hypot(y), torch.full((40,), 0.4), atol=0.02, rtol=0)
    elif name == "ZOOM":
        moved = 0.4 / x - 1
        assert y.abs().max() < 0.02
    else:
        moved = torch.stack([x - 0.4, y])
    assert 0.7 * size < moved.abs().max() <= size + 0.02
    assert moved.min() < 0 < moved.max()


def test_what_changes_most_within_an_image_is_evened_out(monkeypatch):
    """Without a ridge the components' covariance within becomes a multiple of the identity."""
    monkeypatch.setattr(learner, "RIDGE", 0.0)
    random = stream(0)
    filters = randn(6, 40, generator=random)
    plain = Components(Filters(*counted_filters(filters)), np.zeros(6, np.int32))
    scale = torch.linspace(0.2, 4, 40)
    changes = (randn(4000, 40, generator=random) * scale * 8).round()
    seen = values_of(plain, changes)
    means = 10 * randn(40, generator=random).double()
    found = evened_out(plain, seen.T @ seen, means)
    after = values_of(found, changes)
    covariance = after.T @ after / len(after)
    covariance /= covariance.diagonal().mean()
    assert (covariance - torch.eye(6)).abs().max() < 0.03
    # Off the mean of the channels: what the mean itself gives is nothing.
    centred = found.of(means[None].float(), 256.0)
    assert centred.abs().max() <= 256.0 / STANDARD * 0.05 * weights_of(found.filters).norm()
    assert abs(float(weights_of(found.filters).norm() / weights_of(plain.filters).norm()) - 1) < 0.5
