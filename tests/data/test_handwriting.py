"""Features of handwriting: deskewing, drawings of a random pen, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forethought.data import DataError, features, handwriting
from forethought.data import handwriting as drawings
from forethought.data.handwriting import POWER, RIDGE, deskewed, evening, pen_strokes
from forethought.data.scattering import group_normalised, scatter


@pytest.fixture(autouse=True)
def few_drawings(tmp_path, monkeypatch):
    """Constants from fewer drawings, and nothing kept outside the test."""
    monkeypatch.setenv("FORETHOUGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(drawings, "pen_strokes", lambda h, w: DRAWINGS)
    evening.cache_clear()
    yield
    evening.cache_clear()


DRAWINGS = pen_strokes(28, 28, images=120)


def bar(slant: float, at: float = 13.5, height: int = 28, width: int = 28) -> torch.Tensor:
    """A soft upright bar, sheared by so many pixels across for one down."""
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    inside = np.clip(8 - np.abs(y - (height - 1) / 2), 0, 1)
    across = x - at - slant * (y - (height - 1) / 2)
    image = inside * np.clip(2 - np.abs(across), 0, 1)
    return torch.from_numpy(image.astype(np.float32))[None, None]


def moments(image: torch.Tensor) -> tuple[float, float, float]:
    """Centre of mass, and slant: covariance of the two directions over the variance down."""
    ink = image[0, 0].double()
    y, x = torch.meshgrid(*(torch.arange(float(n)) for n in ink.shape), indexing="ij")
    total = ink.sum()
    my, mx = (ink * y).sum() / total, (ink * x).sum() / total
    slant = (ink * (y - my) * (x - mx)).sum() / (ink * (y - my) ** 2).sum()
    return my.item(), mx.item(), slant.item()


@pytest.mark.parametrize("slant", [-0.4, 0.25, 0.5])
@pytest.mark.parametrize("size", [(28, 28), (24, 32)])
def test_a_slanted_bar_is_set_upright_in_the_middle(slant, size):
    given = bar(slant, at=size[1] / 2 + 2, height=size[0], width=size[1])
    assert abs(moments(given)[2]) > 0.15
    y, x, left = moments(deskewed(given))
    assert abs(y - (size[0] - 1) / 2) < 0.1
    assert abs(x - (size[1] - 1) / 2) < 0.1
    assert abs(left) < 0.03


def scattered(images: NDArray[np.float32]) -> NDArray[np.float64]:
    coefficients = scatter(deskewed(torch.from_numpy(images)))
    return group_normalised(coefficients, 27).flatten(1).double().numpy()


def test_each_image_is_deskewed_by_itself_and_an_empty_one_stays_empty():
    images = torch.cat([bar(0.3), torch.zeros(1, 1, 28, 28), bar(-0.5, at=9)])
    together = deskewed(images)
    for index in range(3):
        assert torch.equal(deskewed(images[index : index + 1])[0], together[index])
    assert together[1].abs().max() == 0
    with pytest.raises(ValueError, match="images"):
        deskewed(torch.zeros(1, 3, 28, 28))


@pytest.mark.parametrize("name", ["deskewed", "handwriting"])
def test_no_image_changes_a_bit_of_another_s_features(name: str) -> None:
    """A matrix product over all images rounds by their number and order."""
    images = np.random.default_rng(0).random((41, 1, 28, 28), dtype=np.float32)
    together = features.features_of(images, name)
    alone = [features.features_of(images[at : at + 1], name) for at in range(len(images))]
    np.testing.assert_array_equal(np.concatenate(alone), together)
    np.testing.assert_array_equal(features.features_of(images[1:], name), together[1:])


def test_drawings_are_a_pen_s_in_the_middle_of_the_image():
    assert DRAWINGS.shape == (120, 1, 28, 28)
    assert DRAWINGS.min() == 0
    assert DRAWINGS.max() == 1
    frame = DRAWINGS[:, 0].copy()
    frame[:, 3:-3, 3:-3] = 0
    assert frame.max() == 0, "ink outside the middle"
    share = (DRAWINGS > 0.5).mean((1, 2, 3))
    assert 0.04 < np.median(share) < 0.25
    np.testing.assert_array_equal(pen_strokes(28, 28, images=5), DRAWINGS[:5])


def test_features_are_evened_out_scattering_of_deskewed_images_with_norm_one():
    images = pen_strokes(28, 28, images=6, seed=3)
    found = features.features_of(images, "handwriting").reshape(6, -1)
    drawn = scattered(DRAWINGS)
    mean = drawn.mean(0)
    # The whole spectrum, by a decomposition that has nothing to do with subspace iteration.
    _, values, vectors = np.linalg.svd(drawn - mean, full_matrices=False)
    values = values**2 / len(drawn)
    kept = len(drawn) // 2
    tail = values[kept:].sum() / (drawn.shape[1] - kept)
    factors = ((values[:kept] + RIDGE) / (tail + RIDGE)) ** -POWER
    expected = scattered(images) - mean
    along = expected @ vectors[:kept].T
    expected += (along * (factors - 1)) @ vectors[:kept]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    norms = np.linalg.norm(found, axis=1)
    assert norms.max() <= 1 + 1e-6
    np.testing.assert_allclose(norms, 1, atol=0.01)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert not np.any(found.view(np.uint32) & 0xFFFF), "every feature is a bfloat16"


def test_drawings_take_the_mean_out_of_other_drawings():
    others = pen_strokes(28, 28, images=60, seed=4)
    found = features.features_of(others, "handwriting").reshape(60, -1)
    assert (found.mean(0) ** 2).sum() < 0.1
    plain = scattered(others)
    plain /= np.linalg.norm(plain, axis=1, keepdims=True)
    assert (plain.mean(0) ** 2).sum() > 0.2


def test_cached_features_are_the_computed_ones():
    images = pen_strokes(28, 28, images=4, seed=5)
    first = features.cached(images, "handwriting")
    np.testing.assert_array_equal(features.cached(images, "handwriting"), first)
    np.testing.assert_array_equal(features.features_of(images, "handwriting"), first)


def test_constants_are_computed_once_and_kept_bit_for_bit(monkeypatch):
    first = evening(28, 28)
    runs = []
    computed = handwriting.computed_for
    monkeypatch.setattr(
        handwriting, "computed_for", lambda *size: runs.append(size) or computed(*size)
    )
    for expected_runs, variable in ((0, None), (1, "off")):
        if variable:
            monkeypatch.setenv("FORETHOUGHT_CACHE", variable)
        evening.cache_clear()
        again = evening(28, 28)
        assert len(runs) == expected_runs
        for one, other in zip(first, again, strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()


def test_other_code_or_torch_has_other_constants(monkeypatch):
    path = handwriting.path_of(28, 28)
    assert path == handwriting.path_of(28, 28) != handwriting.path_of(28, 32)
    monkeypatch.setattr(torch, "__version__", "another")
    assert path != handwriting.path_of(28, 28)


@pytest.mark.slow
def test_the_numbers_are_those_that_the_jobs_were_run_with(monkeypatch):
    # Other constants are other features: they want another kind in `features.EXTRACTORS`.
    monkeypatch.setattr(drawings, "pen_strokes", pen_strokes)
    found = features.features_of(pen_strokes(28, 28, images=2, seed=3), "handwriting")
    assert features.EXTRACTORS["handwriting"].kind == "handwriting/2"
    expected = [
        [-0.0023, -0.0159, 0.0150, 0.0237, 0.0049, 0.0148, -0.0084, -0.0077],
        [0.0010, -0.0076, -0.0055, -0.0171, -0.0027, -0.0242, -0.0068, 0.0045],
    ]
    np.testing.assert_allclose(found.reshape(2, -1)[:, 100::500], expected, atol=3e-4)


def test_only_grey_images_of_some_size():
    for shape in ((2, 3, 28, 28), (2, 1, 8, 8), (2, 30)):
        with pytest.raises(DataError, match="grey images"):
            features.features_of(np.zeros(shape, np.float32), "handwriting")


def test_deskewed_images_stay_images():
    images = pen_strokes(28, 28, images=4, seed=5)
    found = features.features_of(images, "deskewed")
    np.testing.assert_array_equal(found, deskewed(torch.from_numpy(images)).numpy())
